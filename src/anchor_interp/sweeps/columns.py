"""The columns of a sweep's table: their names, order and kinds, and those that are settings.

Settings vary between runs; rows are grouped, named and chosen by their values.
"""

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.rounding import decimal
from anchor_interp._util.schema import checked, shown, suggestion
from anchor_interp.analysis.fingerprint_numbers import NUMBERS
from anchor_interp.behaviour.phase import CellAccuracy
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.runs.config import TrainConfig

_MOST_NAMED = 8  # columns in a message, the nearest first
TASK_SETTINGS = ("split", "length", "key_min", "key_max")
"""Settings of tasks that have a column; a task may lack some of them."""
FIELDS: Mapping[str, Any] = {
    field.name: field.type
    for config in (ModelConfig, InitConfig, TrainConfig)
    for field in dataclasses.fields(config)
}
"""The types of a configuration's fields that have a column."""
OF_TASK, OF_MODEL = "task.", "model."
OWN = (OF_TASK, OF_MODEL)
"""What the columns begin with of a task's other fields, such as ``task.held_out``, and of a network
that a task brings."""
ANCHORS = f"{OF_TASK}anchors"
"""The column that spells out the anchors of an anchor task which is not a preset's."""
TableRow = dict[str, Any]
"""One run of a sweep's table, by the names of its columns."""
Value = str | int | float | bool | None
"""A value of a setting."""
Group = tuple[dict[str, Value], list[TableRow]]
"""Values of some settings, with the rows that have them."""
LABELS = {
    "gamma": "initialisation rate \N{GREEK SMALL LETTER GAMMA}",
    "n_layers": "layers",
    "n_heads": "heads",
    "lr": "learning rate",
    "d_model": "width",
    "total_decay": "effective decay",
    "n_sequences": "training sequences",
}
"""Words for settings whose names say too little."""
PREFERRED = ("gamma", "weight_decay", "n_layers", "lr", "steps", "n_sequences")
"""Settings that become axes before the others."""
_IDLE = ("log_every", "checkpoint_every")  # they change no result
_SETTINGS = ("task", *TASK_SETTINGS, *(name for name in FIELDS if name not in _IDLE))
Kind = Literal["string", "int64", "double", "bool"]
"""What a column holds, by Arrow's name of the type; any value may be null."""
NUMERIC: tuple[Kind, ...] = ("int64", "double")
_KINDS: Mapping[Any, Kind] = {int: "int64", float: "double", bool: "bool"}
RunStatus = Literal["done", "diverged", "failed", "running", "begun", "missing"]
"""A ``begun`` run was stopped before its end; it is resumed, as ``failed`` ones are."""
MEASURED = (
    "train_accuracy", "id_accuracy", "ood_accuracy", "symmetric_accuracy", "commutativity",
    "commutativity_wrong", "key_dependence", "stable_rank", "stable_rank_at_init", "condensation",
    "condensation_at_init",
)  # fmt: skip
"""Columns from the evaluation of the final checkpoint."""
ALONG = ("best_id_accuracy", "best_ood_accuracy")
"""Columns of the best along training: the largest accuracies that the probes had at any step."""
CELLS = tuple(field.name for field in dataclasses.fields(CellAccuracy))
MECHANISM = tuple(name for name in NUMBERS if name not in (*MEASURED, *CELLS))
"""Columns from the run's fingerprint."""
LAST_SESSION = ("machine", "cpu", "device", "threads")
"""Columns about where the last session of a run took place."""
VERSIONS = ("anchor_interp", "torch", "transformer_lens", "python")
"""Packages whose versions in the last session have a column."""


def _kind(hint: Any) -> Kind:
    """What the column of a field of this type holds."""
    options = [option for option in (get_args(hint) or (hint,)) if option is not type(None)]
    return _KINDS.get(options[0], "string")


COLUMNS: Mapping[str, Kind] = {
    **dict.fromkeys(("run_id", "status", "error", "phase", "reason"), "string"),
    "censored": "bool",
    **dict.fromkeys(("task", *TASK_SETTINGS), "string"),
    **dict.fromkeys(TASK_SETTINGS[1:], "int64"),
    **{name: _kind(hint) for name, hint in FIELDS.items()},
    "seed": "int64",
    "fitted_step": "int64",
    **dict.fromkeys(("total_decay", *MEASURED, *ALONG, *CELLS, *MECHANISM, "seconds"), "double"),
    "sessions": "int64",
    **dict.fromkeys(("started", "ended", *LAST_SESSION), "string"),
    "threads": "int64",
    **dict.fromkeys(VERSIONS, "string"),
    **dict.fromkeys(("result_ns", "fingerprint_ns"), "int64"),
}
"""What each column holds. ``status`` is a :data:`RunStatus`. ``censored`` marks a run that is not
done, diverged or undertrained. ``fitted_step`` is where a run met its ``until_accuracy``.
``seconds`` is the wall time of all sessions, a stopped one counted up to its last checkpoint; it is
null if the clock was set back meanwhile, and the runs of a batch share it. ``result_ns`` and
``fingerprint_ns`` are when these files were written."""
CIRCUMSTANCES = tuple(COLUMNS)[tuple(COLUMNS).index("seconds") :]
"""Columns in which two sweeps with the same results may differ."""


def aligned(rows: list[TableRow]) -> list[TableRow]:
    """Rows of several tasks with the same columns; a column of mixed values holds their texts."""
    columns = columns_of(rows)

    def fitting(name: str, value: Any) -> Any:
        is_mixed = name.startswith(OWN) and columns[name] == "string" and value is not None
        return word(value) if is_mixed else value

    return [{name: fitting(name, row.get(name)) for name in columns} for row in rows]


def columns_of(rows: Sequence[TableRow]) -> dict[str, Kind]:
    """What each column of some rows holds; a measure that no row has is left out."""
    own = dict.fromkeys(name for row in rows for name in row if name not in COLUMNS)
    kinds = {name: kind_of(row.get(name) for row in rows) for name in own}
    return with_own({n: kind or "string" for n, kind in kinds.items() if kind or n.startswith(OWN)})


def with_own(own: Mapping[str, Kind]) -> dict[str, Kind]:
    """All columns in order, with those of tasks' own fields and of a user's measures."""
    names = list(COLUMNS)
    place, end = names.index(TASK_SETTINGS[-1]) + 1, names.index(CIRCUMSTANCES[0])
    task_fields = [name for name in own if name.startswith(OWN)]
    measures = [name for name in own if not name.startswith(OWN)]
    ordered = (*names[:place], *task_fields, *names[place:end], *measures, *names[end:])
    return {name: COLUMNS.get(name) or own[name] for name in ordered}


def kind_of(values: Iterable[Any]) -> Kind | None:
    """The kind of a column with these values; None if all are None."""
    kinds = {_KINDS.get(type(value), "string") for value in values if value is not None}
    if kinds == {"int64", "double"}:
        return "double"
    return kinds.pop() if len(kinds) == 1 else "string" if kinds else None


def label(name: str) -> str:
    """A setting in words."""
    plain = name.removeprefix(OF_TASK).removeprefix(OF_MODEL)
    return LABELS.get(name, plain.replace("_", " "))


def word(value: Value) -> str:
    """A value as figures and tables show it."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def listed(values: Iterable[Value]) -> str:
    """Values as figures and tables show them."""
    return ", ".join(map(word, values))


def words(settings: Mapping[str, Value]) -> str:
    """Settings with their values, such as ``learning rate 0.001, steps 4000``."""
    return ", ".join(f"{label(name)} {word(value)}" for name, value in settings.items())


def settings_of(rows: Sequence[TableRow]) -> list[str]:
    """The columns that are settings and hold plain values.

    A field that every task of the table has comes before the task's name, which it is a part of.
    :data:`ANCHORS` are not among them: the task's name tells them apart.
    """
    columns = dict.fromkeys(name for row in rows for name in row)
    if not any(row.get("until_accuracy") for row in rows):
        columns.pop("eval_every", None)  # it changes a result only where training ends by it
    own = [name for name in columns if name.startswith(OWN) and name != ANCHORS]
    common = [name for name in own if all(row.get(name) is not None for row in rows)]
    known = [name for name in _SETTINGS if name in columns]
    ordered = dict.fromkeys((*common, *known, *own))
    return [name for name in ordered if all(isinstance(row.get(name), Value) for row in rows)]


def values_of(rows: Iterable[TableRow], name: str) -> tuple[Value, ...]:
    """The different values of a column: None, then numbers, then texts, each in order."""
    return tuple(sorted({plain(row.get(name)) for row in rows}, key=_rank))


def sort_key(row: TableRow, names: Iterable[str]) -> tuple[Any, ...]:
    """A row's values in these columns, such that they can be compared."""
    return tuple(_rank(plain(row.get(name))) for name in names)


def group(rows: Iterable[TableRow], names: Sequence[str]) -> list[Group]:
    """Every combination of values in these columns, in order, with its rows."""
    groups: dict[tuple[Any, ...], list[TableRow]] = {}
    for row in rows:
        groups.setdefault(sort_key(row, names), []).append(row)
    ordered = [groups[key] for key in sorted(groups)]
    return [({name: plain(same[0].get(name)) for name in names}, same) for same in ordered]


def follows(rows: Sequence[TableRow], name: str, others: Sequence[str]) -> bool:
    """Whether the values of the other settings fix the value of this one."""
    return all(len(values_of(same, name)) == 1 for _, same in group(rows, others))


def rows_where(
    rows: Sequence[TableRow], where: Mapping[str, Any]
) -> tuple[list[TableRow], dict[str, tuple[Value, ...]]]:
    """The rows that meet all conditions, and these: the value, or values, to keep by column.

    ConfigError if there is no such column, or no row meets the conditions.
    """
    conditions: dict[str, tuple[Value, ...]] = {}
    kept = list(rows)
    columns = sorted({column for row in rows for column in row}) if where else []
    for name, wanted in checked(where, Mapping, "where").items():
        values = tuple(wanted) if np.iterable(wanted) and not isinstance(wanted, str) else (wanted,)
        check_column(name, "where", columns)
        values = tuple(asked(value, kept, name) for value in values)
        before, kept = kept, [r for r in kept if plain(r.get(name)) in map(plain, values)]
        if not kept:
            expected = listed(values_of(before, name)[:10])
            raise ConfigError(f"no run has {name} {listed(values)}; expected one of {expected}")
        conditions[name] = values
    return kept, conditions


def asked(value: Value, rows: Iterable[TableRow], name: str) -> Value:
    """A value that is asked for: ``none`` is no value where no row has the word."""
    is_word = value != "none" or any(row.get(name) == "none" for row in rows)
    return value if is_word else None


def is_missing(value: Any) -> bool:
    """Whether a column has no value: None, or a number that is not finite."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def check_column(name: str, what: str, known: Sequence[str]) -> None:
    """Refuse a column that is not among the known ones; ``what`` is what it was given for."""
    if name not in known:
        close = suggestion(str(name), known)
        names = ", ".join(difflib.get_close_matches(str(name), known, n=_MOST_NAMED, cutoff=0))
        many = f", ... ({len(known)} columns)" if len(known) > _MOST_NAMED else ""
        raise ConfigError(f"{what} is {shown(name)}{close}; expected one of {names}{many}")


def _rank(value: Value) -> tuple[int, float, str]:
    """A sort key for values of any kind."""
    if value is None or isinstance(value, str):
        return (0, 0, "") if value is None else (2, 0, value)
    return 1, value, ""


def plain(value: Any) -> Any:
    """A number as Python's, a whole one as an integer: 1 and 1.0 have one name; None for NaN."""
    value = decimal(value)
    if isinstance(value, Decimal | Real | np.bool_) and not isinstance(value, Value):
        value = value.item() if isinstance(value, np.generic) else float(value)
    if isinstance(value, float) and math.isnan(value):
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value
