"""The columns of a sweep's table: their names, their order and what they hold."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, get_args

from anchor_interp.analysis.mechanism import NUMBERS
from anchor_interp.behaviour.phase import CellAccuracy
from anchor_interp.sweeps.settings import FIELDS, OWN, TASK_SETTINGS, TableRow, word

Kind = Literal["string", "int64", "double", "bool"]
"""What a column holds, by Arrow's name of the type; any value may be null."""
NUMERIC: tuple[Kind, ...] = ("int64", "double")
_KINDS: Mapping[Any, Kind] = {int: "int64", float: "double", bool: "bool"}
State = Literal["done", "diverged", "failed", "running", "begun", "missing"]
"""A ``begun`` run was stopped before its end; it is resumed, as ``failed`` ones are."""
STATES: tuple[State, ...] = get_args(State)
MEASURED = (
    "train_accuracy", "id_accuracy", "ood_accuracy", "symmetric_accuracy", "commutativity",
    "commutativity_wrong", "key_dependence", "stable_rank", "stable_rank_at_init", "condensation",
    "condensation_at_init",
)  # fmt: skip
"""Columns from the evaluation of the final checkpoint."""
ALONG = ("best_id_accuracy", "best_ood_accuracy")
"""Columns of the best along training: the largest accuracies that the probes had at any step."""
CELLS = tuple(field.name for field in fields(CellAccuracy))
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
"""What each column holds. ``status`` is a :data:`State`. ``censored`` marks a run that is not done,
diverged or undertrained. ``fitted_step`` is where a run met its ``until_accuracy``. ``seconds`` is
the wall time of all sessions, a stopped one counted up to its last checkpoint; it is null if the
clock was set back meanwhile, and the runs of a batch share it. ``result_ns`` and ``fingerprint_ns``
are when these files were written."""
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
