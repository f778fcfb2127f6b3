"""The settings of a sweep's runs: which vary, and how their values are grouped and named."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.runs.config import TrainConfig
from anchor_interp.tasks.anchor import AnchorTask

TableRow = dict[str, Any]
"""One run of a sweep's table, by the names of its columns."""
Value = str | int | float | bool | None
"""A value of a setting."""
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
_IDLE = ("schema", "log_every", "eval_every", "checkpoint_every")  # they change no result
_SETTINGS = (
    "task",
    *dict.fromkeys(
        field.name
        for config in (AnchorTask, ModelConfig, InitConfig, TrainConfig)
        for field in dataclasses.fields(config)
        if field.name not in _IDLE
    ),
)


def label(name: str) -> str:
    """A setting in words."""
    return LABELS.get(name, name.replace("_", " "))


def word(value: Value) -> str:
    """A value as figures and tables show it."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "default"
    return f"{value:g}" if isinstance(value, float) else str(value)


def words(settings: Mapping[str, Value]) -> str:
    """Settings with their values, such as ``learning rate 0.001, steps 4000``."""
    return ", ".join(f"{label(name)} {word(value)}" for name, value in settings.items())


def settings_of(rows: Sequence[TableRow]) -> list[str]:
    """The columns that are settings and hold plain values."""
    columns = {name for row in rows for name in row}
    return [
        name
        for name in _SETTINGS
        if name in columns and all(isinstance(row.get(name), Value) for row in rows)
    ]


def values_of(rows: Iterable[TableRow], name: str) -> tuple[Value, ...]:
    """The different values of a column: None, then numbers, then texts, each in order."""
    return tuple(sorted({_plain(row.get(name)) for row in rows}, key=rank))


def place_of(row: TableRow, names: Iterable[str]) -> tuple[Value, ...]:
    """A row's values in these columns."""
    return tuple(_plain(row.get(name)) for name in names)


def group(
    rows: Iterable[TableRow], names: Sequence[str]
) -> dict[tuple[Value, ...], list[TableRow]]:
    """The rows by their values in these columns, in the order of the values."""
    groups: dict[tuple[Value, ...], list[TableRow]] = {}
    for row in rows:
        groups.setdefault(place_of(row, names), []).append(row)
    return {key: groups[key] for key in sorted(groups, key=lambda key: list(map(rank, key)))}


def follows(rows: Sequence[TableRow], name: str, others: Sequence[str]) -> bool:
    """Whether the values of the other settings fix the value of this one."""
    return all(len(values_of(same, name)) == 1 for same in group(rows, others).values())


def rank(value: Value) -> tuple[int, float, str]:
    """A sort key for values of any kind."""
    if value is None:
        return 0, 0.0, ""
    return (2, 0.0, value) if isinstance(value, str) else (1, float(value), "")


def _plain(value: Value) -> Value:
    """A whole number as an integer, so that 1 and 1.0 have one name."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
