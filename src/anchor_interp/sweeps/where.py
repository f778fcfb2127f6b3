"""Conditions on the rows of a table, such as ``lr=0.001``."""

from collections.abc import Mapping, Sequence
from typing import Any

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import shown, suggestion
from anchor_interp.sweeps.settings import TableRow, Value, listed, values_of


def rows_where(
    rows: Sequence[TableRow], where: Mapping[str, Any]
) -> tuple[list[TableRow], dict[str, tuple[Value, ...]]]:
    """The rows that meet all conditions, and these: the value, or values, to keep by column.

    ConfigError if there is no such column, or no row meets the conditions.
    """
    conditions: dict[str, tuple[Value, ...]] = {}
    kept = list(rows)
    columns = sorted({column for row in rows for column in row}) if where else []
    for name, wanted in where.items():
        values = tuple(wanted) if isinstance(wanted, list | tuple | set | frozenset) else (wanted,)
        check_column(name, "where", columns)
        before, kept = kept, [row for row in kept if any(row.get(name) == v for v in values)]
        if not kept:
            expected = listed(values_of(before, name)[:10])
            raise ConfigError(f"no run has {name} {listed(values)}; expected one of {expected}")
        conditions[name] = values
    return kept, conditions


def check_column(name: str, what: str, known: Sequence[str]) -> None:
    """Refuse a column that is not among the known ones; ``what`` is what it was given for."""
    if name not in known:
        close = suggestion(str(name), known)
        raise ConfigError(f"{what} is {shown(name)}{close}; expected one of {', '.join(known)}")
