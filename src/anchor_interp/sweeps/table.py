"""The table of a sweep: one row per run, derived from the run folders.

For every run of the sweep, ``table.parquet`` holds its status, the fields of its configuration,
the measurements of its final checkpoint, and how the run took place. What a run lacks is null. The
fields of a task that :data:`COLUMNS` lacks have columns such as ``task.held_out``; other further
columns are a user's measures.

The numbers of the mechanism (:data:`anchor_interp.analysis.mechanism.NUMBERS`) and a user's own
measures (:func:`anchor_interp.runs.measurements.column_measure`) are those of the run's
``measurements.json``; :mod:`anchor_interp.sweeps.measuring` makes the missing ones.

A row of an existing table is reused while the run's ``result.json`` and
``measurements.json`` are the same files; remove the table to rebuild every row.
"""

import contextlib
import csv
import functools
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from anchor_interp._util import files
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.schema import checked_path, digest, shown
from anchor_interp.analysis.mechanism import NUMBERS, kept_fingerprint
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.runs.config import RunConfig, TrainConfig, total_decay
from anchor_interp.runs.measurements import kept_columns
from anchor_interp.runs.phase import CellAccuracy, Phase
from anchor_interp.sweeps.folder import STATES, State, SweepFolder, sweep_folder
from anchor_interp.sweeps.settings import OWN, TASK_SETTINGS, TableRow, word
from anchor_interp.tasks.catalog import NAMED_TASKS
from anchor_interp.tasks.task import Task, plain_fields

SCHEMA = 1  # of a table
Kind = Literal["text", "integer", "number", "truth"]
"""What a column holds; any value may be null."""
_KINDS: Mapping[Any, Kind] = {int: "integer", float: "number", bool: "truth"}
_PARTS = {"model": ModelConfig, "init": InitConfig, "train": TrainConfig}
UNET_COLUMNS = ("n_features", "n_times", "d_image")
"""Columns of a network that draws pictures; what it is told follows from its task."""
_MEASURED = (
    "train_accuracy", "id_accuracy", "ood_accuracy", "symmetric_accuracy", "commutativity",
    "commutativity_wrong", "key_dependence", "stable_rank", "stable_rank_at_init", "condensation",
    "condensation_at_init",
)  # fmt: skip
_CELLS = tuple(field.name for field in fields(CellAccuracy))
_MECHANISM = tuple(name for name in NUMBERS if name not in _MEASURED)
_LAST = ("machine", "cpu", "device", "threads")  # of the last session
_VERSIONS = ("anchor_interp", "torch", "transformer_lens", "python")
_MAX_BYTES = 1 << 30


def _kind(hint: Any) -> Kind:
    """What the column of a field of this type holds."""
    options = [option for option in (get_args(hint) or (hint,)) if option is not type(None)]
    return _KINDS.get(options[0], "text")


COLUMNS: Mapping[str, Kind] = {
    **dict.fromkeys(("run_id", "status", "error", "phase", "reason"), "text"),
    "censored": "truth",
    **dict.fromkeys(("task", *TASK_SETTINGS), "text"),
    **dict.fromkeys(TASK_SETTINGS[1:], "integer"),
    **{field.name: _kind(field.type) for part in _PARTS.values() for field in fields(part)},
    **dict.fromkeys(UNET_COLUMNS, "integer"),
    "seed": "integer",
    **dict.fromkeys(("total_decay", *_MEASURED, *_CELLS, *_MECHANISM, "seconds"), "number"),
    "sessions": "integer",
    **dict.fromkeys(("started", "ended", *_LAST), "text"),
    "threads": "integer",
    **dict.fromkeys(_VERSIONS, "text"),
    **dict.fromkeys(("result_ns", "fingerprint_ns"), "integer"),
}
"""What each column holds. ``censored`` marks a run that is not done, diverged or undertrained.
``seconds`` is the wall time of all sessions, a stopped one counted up to its last checkpoint; the
runs of a batch share it. ``result_ns`` and ``fingerprint_ns`` are when these files were written."""
_ADDED = (
    "branch_step", "branch_lr", "branch_weight_decay", "weights", *UNET_COLUMNS,
    "blocks", "virtual_rule", "virtual_alike", "exceptions", "commutativity_wrong",
)  # fmt: skip
"""Columns that older tables and runs lack."""
CIRCUMSTANCES = tuple(COLUMNS)[tuple(COLUMNS).index("seconds") :]
"""Columns in which two sweeps with the same results may differ."""


def rows(folder: SweepFolder) -> list[TableRow]:
    """One row for every run of the sweep, in order.

    Raises:
        StoreError: the folder is not a sweep folder; ConfigError if its ``spec.yaml`` is damaged.
    """
    return _rows(folder, _digest_of(folder))


def _rows(folder: SweepFolder, spec: str) -> list[TableRow]:
    """The rows. The digest is read before them, so it is never newer than they are."""
    kept = _kept(folder, spec)
    if kept is None:
        kept = _aligned([_configuration(*run) for run in folder.spec().configs().items()])
    states = folder.states(row["run_id"] for row in kept)
    found = [_row(folder, row, states[row["run_id"]]) for row in kept]
    same = all(row.keys() == found[0].keys() for row in found)
    return found if same else _aligned(found)  # some have other measures


def write_table(folder: SweepFolder) -> list[TableRow]:
    """Bring ``table.parquet`` up to date and return its rows.

    Raises:
        StoreError: as :func:`rows`, or the table cannot be written.
    """
    spec = _digest_of(folder)
    try:
        with folder.locked():  # an older table must not replace a newer one
            found = _rows(folder, spec)
            files.write_output(folder.path / "table.parquet", to_parquet(found, spec=spec))
    except OSError as error:
        raise StoreError(f"cannot write to the sweep folder {folder.path}: {error}") from error
    return found


def read_table(path: str | Path) -> list[TableRow]:
    """The rows of a sweep folder, or of a Parquet or CSV table.

    Raises:
        StoreError: the table is missing or damaged; ConfigError if the path is not a table.
    """
    path = checked_path(path, "the path of the table")
    if path.is_dir():
        return rows(SweepFolder(path))
    if path.suffix not in (".parquet", ".csv"):
        expected = "a sweep folder, a .parquet or a .csv file"
        raise ConfigError(f"{path} is not a table; expected {expected}")
    data = files.read_bytes(path, limit=_MAX_BYTES)
    try:
        if path.suffix == ".csv":
            return from_csv(data.decode())
        return from_parquet(data, older=True)[0]
    except (ValueError, LookupError, csv.Error) as error:
        raise StoreError(f"{path} is damaged: {error}; write it again") from error


def counts(found: Iterable[TableRow]) -> dict[State, int]:
    """How many runs are in each state that occurs."""
    number = Counter(row["status"] for row in found)
    return {state: number[state] for state in STATES if number[state]}


def phases(found: Iterable[TableRow]) -> dict[str, int]:
    """How many finished runs are in each phase."""
    number = Counter(row["phase"] for row in found if row["phase"] is not None)
    return {phase: number[phase] for phase in get_args(Phase) if number[phase]}


def to_csv(found: Sequence[TableRow]) -> str:
    """A table as CSV; a missing value is an empty field."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(found), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


def from_csv(text: str) -> list[TableRow]:
    """Read the rows of :func:`to_csv`; a column that an older table lacks is empty.

    A further column holds numbers if all its values can be read as such.

    Raises:
        ValueError: the table lacks a column, or a field does not fit its column.
    """
    reader = csv.DictReader(io.StringIO(text), strict=True)
    names = list(reader.fieldnames or ())
    _check_columns([*names, *(name for name in _ADDED if name not in names)])
    lines = list(reader)
    own = {n: _kind_of_texts([line[n] for line in lines]) for n in names if n not in COLUMNS}
    columns = _with_own(own).items()
    return [{name: parsed(name, line.get(name) or "", kind) for name, kind in columns}
            for line in lines]  # fmt: skip


def to_parquet(found: Sequence[TableRow], *, spec: str = "") -> bytes:
    """A table as the contents of a Parquet file, with the digest of its ``spec.yaml``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _parquet_schema(_columns(found))
    schema = schema.with_metadata({"schema": str(SCHEMA), "spec": spec})
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(list(found), schema=schema)
    pq.write_table(table, sink, write_page_checksum=True)
    return bytes(sink.getvalue())


def from_parquet(data: bytes, *, older: bool = False) -> tuple[list[TableRow], str]:
    """Read the rows and the digest of :func:`to_parquet`; ``older`` adds columns lacking in them.

    Raises:
        ValueError: the data is damaged or not a table, has another schema or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # an Arrow thread that is alive at exit can abort the process (apache/arrow#34314)
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        table = file.read(use_threads=False)
    except (pa.ArrowException, OSError, TypeError) as error:
        raise ValueError(str(error)) from error
    about = table.schema.metadata or {}
    if about.get(b"schema") != str(SCHEMA).encode():
        raise ValueError(f"schema {about.get(b'schema')!r:.40}, this version reads {SCHEMA}")
    types = {kind: name for name, kind in _parquet_types().items()}
    fields_of = {entry.name: types.get(entry.type, "text") for entry in table.schema}
    wanted = _parquet_schema(_with_own({n: k for n, k in fields_of.items() if n not in COLUMNS}))
    for name in set(_ADDED) - set(table.column_names) if older else ():
        entry = wanted.field(name)
        table = table.append_column(entry, pa.nulls(table.num_rows, entry.type))
    _check_columns(table.column_names)
    table = table.select(wanted.names)  # in our order
    if not table.schema.equals(wanted):
        raise ValueError("its columns hold values of other types")
    return table.to_pylist(), about.get(b"spec", b"").decode()


def _parquet_schema(columns: Mapping[str, Kind]) -> Any:
    import pyarrow as pa

    types = _parquet_types()
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


def _parquet_types() -> dict[Kind, Any]:
    import pyarrow as pa

    return {"text": pa.string(), "integer": pa.int64(), "number": pa.float64(), "truth": pa.bool_()}


def _digest_of(folder: SweepFolder) -> str:
    """A digest of a sweep folder's ``spec.yaml``."""
    data = files.read_bytes(sweep_folder(folder.path).spec_file, limit=_MAX_BYTES)
    return digest(data.decode("utf-8", "replace"))


def _kept(folder: SweepFolder, spec: str) -> list[TableRow] | None:
    """The rows of the existing table, if it has this schema and this spec."""
    try:
        data = files.read_bytes(folder.path / "table.parquet", limit=_MAX_BYTES)
        found, of_spec = from_parquet(data)
    except (StoreError, ValueError):
        return None  # the table is derived, so a missing or damaged one is rebuilt
    return found if of_spec == spec else None


def _configuration(name: str, config: RunConfig) -> TableRow:
    """The row of a run that has not started."""
    row: TableRow = dict.fromkeys(COLUMNS)
    row |= {"run_id": name, "task": _task_name(config.task), "seed": config.seed}
    row |= _task_columns(config.task)
    for part in _PARTS:
        row |= {name: v for name, v in vars(getattr(config, part)).items() if name in COLUMNS}
    return row | {"total_decay": total_decay(config.train)}


def _row(folder: SweepFolder, row: TableRow, state: State) -> TableRow:
    """A row, brought up to date with the run's folder."""
    name = row["run_id"]
    if state == "missing" and row["status"] == "missing":
        return row
    result = folder.runs / name / "result.json"
    written = {
        "result_ns": _written(result) if state == "done" else None,
        "fingerprint_ns": _written(result.with_name("measurements.json")),
    }
    if state == "done" and row["status"] == "done" and written.items() <= row.items():
        return row
    derived = ("error", "phase", "reason", *_MEASURED, *_CELLS, *_MECHANISM, *CIRCUMSTANCES)
    row = {key: value for key, value in row.items() if key in COLUMNS or key.startswith(OWN)}
    row = row | dict.fromkeys(derived) | {"status": state, "censored": True} | written
    if state != "missing":
        row |= _circumstances(folder, name)
    if state in ("diverged", "failed") and (failure := folder.failure(name)):
        row["error"] = failure.message
    if state == "done":
        try:
            row |= _measured(result.parent, row) | _result(name, files.read_json(result))
        except (StoreError, LookupError, TypeError, ValueError) as error:
            row |= {"status": "failed", "error": f"{result} is damaged ({error}); remove it"}
    return row


def _result(name: str, data: Any) -> TableRow:
    if data["run_id"] != name:
        raise ValueError(f"it belongs to the run {data['run_id']!r:.40}")
    evaluation, phase = data["evaluation"], str(data["phase"])
    found = {key: evaluation[key] for key in _MEASURED if key in evaluation or key not in _ADDED}
    found |= {key: evaluation["cells"][key] for key in _CELLS}
    for key, value in found.items():
        if not isinstance(value, int | float | None):
            raise ValueError(f"{key} is {value!r:.40}")
    censored = phase == "undertrained"
    return found | {"phase": phase, "reason": str(data["reason"]), "censored": censored}


def _measured(run: Path, row: TableRow) -> TableRow:
    found = kept_fingerprint(run, row["run_id"], row["steps"])
    own = kept_columns(run, row["steps"])
    return own if found is None else own | {name: getattr(found, name) for name in _MECHANISM}


def _written(path: Path) -> int | None:
    """When a file was written, in nanoseconds; None if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _circumstances(folder: SweepFolder, name: str) -> TableRow:
    """The :data:`CIRCUMSTANCES` of a run; empty if its provenance is damaged."""
    read = datetime.fromisoformat
    try:
        sessions = files.read_json(folder.runs / name / "provenance.json")["sessions"]
        last = sessions[-1]
        spans = [read(s["ended"]) - read(s["started"]) for s in sessions if "ended" in s]
        return {
            "seconds": math.fsum(span.total_seconds() for span in spans) if spans else None,
            "sessions": len(sessions),
            "started": sessions[0]["started"],
            "ended": last.get("ended"),
            **{key: last[key] for key in _LAST},
            **{key: last["versions"][key.replace("_", "-")] for key in _VERSIONS},
        }
    except (StoreError, LookupError, TypeError, ValueError):
        return {}


@functools.lru_cache(maxsize=64)
def _task_name(task: Task) -> str:
    """The name of a preset task; for another task, a digest, after its kind if it has one."""
    custom = f"{'custom' if task.anchored else task.kind}-{digest(task)[:8]}"
    return next((name for name, known in NAMED_TASKS.items() if known == task), custom)


def _task_columns(task: Task) -> TableRow:
    """A task's plain fields: in the columns that tasks share, if they fit, else in their own."""
    row: TableRow = {}
    for name, value in ({"length": task.length} | plain_fields(task)).items():
        shared = name in TASK_SETTINGS and _kind_of([value]) in (COLUMNS[name], None)
        row[name if shared else OWN + name] = value
    return row


def _aligned(found: list[TableRow]) -> list[TableRow]:
    """Rows of several tasks with the same columns; a column of mixed values holds their texts."""
    columns = _columns(found)

    def fitting(name: str, value: Any) -> Any:
        is_mixed = name.startswith(OWN) and columns[name] == "text" and value is not None
        return word(value) if is_mixed else value

    return [{name: fitting(name, row.get(name)) for name in columns} for row in found]


def _columns(found: Iterable[TableRow]) -> dict[str, Kind]:
    """What each column of some rows holds; a measure that no row has is left out."""
    found = list(found)
    own = dict.fromkeys(name for row in found for name in row if name not in COLUMNS)
    kinds = {name: _kind_of([row.get(name) for row in found]) for name in own}
    return _with_own({n: kind or "text" for n, kind in kinds.items() if kind or n.startswith(OWN)})


def _with_own(own: Mapping[str, Kind]) -> dict[str, Kind]:
    """The columns with those of tasks' own fields and of a user's measures."""
    names = list(COLUMNS)
    place, end = names.index(TASK_SETTINGS[-1]) + 1, len(names) - len(CIRCUMSTANCES)
    fields_of = [name for name in own if name.startswith(OWN)]
    measures = [name for name in own if not name.startswith(OWN)]
    if odd := [name for name in measures if own[name] not in ("integer", "number")]:
        raise ValueError(f"the column {shown(odd[0])} holds no numbers, as a user's measure does")
    ordered = (*names[:place], *fields_of, *names[place:end], *measures, *names[end:])
    return {name: COLUMNS.get(name) or own[name] for name in ordered}


def _kind_of(values: Iterable[Any]) -> Kind | None:
    """The kind of a column with these values; None if all are None."""
    kinds = {_KINDS.get(type(value), "text") for value in values if value is not None}
    if kinds == {"integer", "number"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else "text" if kinds else None


def _kind_of_texts(texts: Iterable[str]) -> Kind:
    """The first kind that can read all texts of a CSV column."""
    given = [text for text in texts if text]
    kinds: tuple[Kind, ...] = ("integer", "number", "truth")
    for kind in kinds if given else ():
        with contextlib.suppress(ValueError):
            for text in given:
                parsed("", text, kind)
            return kind
    return "text"


def _check_columns(found: Sequence[str]) -> None:
    if twice := [name for name, times in Counter(found).items() if times > 1]:
        raise ValueError(f"the column {shown(twice[0])} occurs twice")
    if lacking := sorted(set(COLUMNS) - set(found)):
        raise ValueError(f"it lacks the column {shown(lacking[0])}")


def parsed(name: str, text: str, kind: Kind) -> Any:
    """The value of a CSV field, None if it is empty; ValueError if it does not fit its column."""
    truths = {"True": True, "False": False}
    read: Mapping[Kind, Callable[[str], Any]] = {"text": str, "integer": int, "number": float}
    try:
        return None if text == "" else read.get(kind, truths.__getitem__)(text)
    except (ValueError, LookupError):
        expected = "True or False" if kind == "truth" else "a number"
        raise ValueError(f"{name} is {shown(text)}; expected {expected}") from None


def to_json(found: Sequence[TableRow]) -> str:
    """A table as one JSON object."""
    return json.dumps({"schema": SCHEMA, "runs": list(found)})
