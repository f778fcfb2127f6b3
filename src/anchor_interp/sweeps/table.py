"""The table of a sweep: one row per run, derived from the run folders.

For every run of the sweep, ``table.parquet`` holds its status, the fields of its configuration,
the measurements of its final checkpoint, and how the run took place. What a run lacks is null.
:mod:`anchor_interp.sweeps.columns` lists the columns. A field of a task that is not among them has
a column such as ``task.held_out``; other further columns are a user's measures.

The numbers of the mechanism (:data:`anchor_interp.analysis.mechanism.NUMBERS`) and a user's own
measures (:func:`anchor_interp.runs.measurements.column_measure`) are those of the run's
``measurements.json``; :mod:`anchor_interp.sweeps.measuring` makes the missing ones.

A row of an existing table is reused while the run's ``result.json`` and
``measurements.json`` are the same files; remove the table to rebuild every row.
"""

import csv
import math
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from anchor_interp._util import files
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.schema import checked_path, digest
from anchor_interp.analysis.mechanism import kept_fingerprint
from anchor_interp.runs.config import RunConfig, total_decay
from anchor_interp.runs.measurements import kept_columns
from anchor_interp.runs.phase import Phase
from anchor_interp.sweeps.columns import (
    ADDED,
    CELLS,
    CIRCUMSTANCES,
    COLUMNS,
    LAST_SESSION,
    MEASURED,
    MECHANISM,
    PARTS,
    VERSIONS,
    aligned,
    kind_of,
)
from anchor_interp.sweeps.folder import STATES, State, SweepFolder, sweep_folder
from anchor_interp.sweeps.settings import ANCHORS, OWN, TASK_SETTINGS, TableRow
from anchor_interp.sweeps.table_files import from_csv, from_parquet, to_parquet
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.catalog import NAMED_TASKS, task_name
from anchor_interp.tasks.task import Task, plain_fields

_MAX_BYTES = 1 << 30


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
        kept = aligned([_configuration(*run) for run in folder.spec().configs().items()])
    states = folder.states(row["run_id"] for row in kept)
    found = [_row(folder, row, states[row["run_id"]]) for row in kept]
    same = all(row.keys() == found[0].keys() for row in found)
    return found if same else aligned(found)  # some have other measures


def write_table(folder: SweepFolder) -> list[TableRow]:
    """Bring ``table.parquet`` up to date and return its rows.

    Raises:
        StoreError: as :func:`rows`, or the table cannot be written.
    """
    spec = _digest_of(folder)
    try:
        with folder.locked(needed=False):  # an older table must not replace a newer one
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
    row |= {"run_id": name, "task": task_name(config.task), "seed": config.seed}
    row |= _task_columns(config.task)
    for part in PARTS:
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
    derived = ("error", "phase", "reason", *MEASURED, *CELLS, *MECHANISM, *CIRCUMSTANCES)
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
    found = {key: evaluation[key] for key in MEASURED if key in evaluation or key not in ADDED}
    found |= {key: evaluation["cells"][key] for key in CELLS}
    for key, value in found.items():
        if not isinstance(value, int | float | None):
            raise ValueError(f"{key} is {value!r:.40}")
    censored = phase == "undertrained"
    return found | {"phase": phase, "reason": str(data["reason"]), "censored": censored}


def _measured(run: Path, row: TableRow) -> TableRow:
    found = kept_fingerprint(run, row["run_id"], row["steps"])
    own = kept_columns(run, row["steps"])
    return own if found is None else own | {name: getattr(found, name) for name in MECHANISM}


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
            **{key: last[key] for key in LAST_SESSION},
            **{key: last["versions"][key.replace("_", "-")] for key in VERSIONS},
        }
    except (StoreError, LookupError, TypeError, ValueError):
        return {}


def _task_columns(task: Task) -> TableRow:
    """A task's plain fields: in the columns that tasks share, if they fit, else in their own."""
    row: TableRow = {}
    for name, value in ({"length": task.length} | plain_fields(task)).items():
        shared = name in TASK_SETTINGS and kind_of([value]) in (COLUMNS[name], None)
        row[name if shared else OWN + name] = value
    if isinstance(task, AnchorTask) and task not in NAMED_TASKS.values():
        row[ANCHORS] = ", ".join(f"{each.token}: {each.function}" for each in task.anchors)
    return row
