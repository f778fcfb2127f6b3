"""Which runs of a table are compared, inside which strata, and which are left out and why."""

import contextlib
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import shown
from anchor_interp.sweeps.columns import (
    CIRCUMSTANCES,
    RunStatus,
    TableRow,
    Value,
    asked,
    check_column,
    is_missing,
    label,
    listed,
    plain,
    rows_where,
    sort_key,
    words,
)
from anchor_interp.sweeps.folder import read_table

FEWEST = 5  # runs of a kind, below which nothing is compared
_YES, _NO = ("true", "yes", "1", "1.0"), ("false", "no", "0", "0.0", "")
_NAMED = 4  # columns of a row in a warning
_UNFITTED = ("undertrained", "censored")
_OF_ROWS = ("", "index", "Unnamed: 0")  # columns in which pandas numbers rows
_LOGGER = logging.getLogger(__name__)


class Compared(NamedTuple):
    """Runs that are compared by stratum, in an order that follows from them."""

    strata: Mapping[str, list[TableRow]]
    between: Sequence[Value] | None
    """The two values of the setting whose runs are compared; None for a correlation."""
    outside: Sequence[tuple[str, str, str]]
    """For each run that is left out: its stratum, why, and its name."""
    every: "Compared | None" = None
    """The same with the runs that did not converge, if some of these have all values."""

    def left_out(self, *strata: str) -> dict[str, tuple[str, ...]]:
        """The names of the runs that are left out, by why; of all strata if none is given."""
        names: dict[str, list[str]] = defaultdict(list)
        for at, why, name in self.outside:
            if not strata or at in strata:
                names[why].append(name)
        return {why: tuple(some) for why, some in names.items()}


def compared(
    table: Any,
    of: str,
    on: str,
    *,
    within: Sequence[str],
    between: Any,
    cluster: Sequence[str],
    where: Mapping[str, Any],
) -> Compared:
    """The runs that a question is about; arguments as of :func:`anchor_interp.effect`."""
    given = _rows(table)
    columns = list(dict.fromkeys(name for row in given for name in row))
    for name in (of, on, *within, *cluster):
        check_column(name, "column", columns)
    for row in given:
        row |= {n: plain(row[n]) for n in {of, on, *within, *cluster, *where} & row.keys()}
    numbers = {id(row): f"row {i}" for i, row in enumerate(given) if is_missing(row.get("run_id"))}
    rows = distinct_runs(rows_where(given, where)[0])
    why = {id(row): _why_left_out(row, (of, on, *cluster)) for row in rows}
    names = _names(rows, within)

    def without(why: dict[int, str], between: Any) -> Compared:
        """The runs that no reason leaves out, by stratum."""
        counted = [row for row in rows if not why[id(row)]]
        if not all(isinstance(row[of], int | float) for row in counted):
            raise ConfigError(f"{of} holds texts; expected the column of a number")
        between = _kinds(counted, on, between)
        strata: dict[str, list[TableRow]] = defaultdict(list)
        for row in sorted(counted, key=lambda row: sort_key(row, (on, of, *cluster))):
            if between is None or row[on] in between:
                strata[names[sort_key(row, within)]].append(row)
            else:
                why[id(row)] = f"of another {label(on)}"
        enough = {at: strata[at] for at in sorted(strata) if _enough(strata[at], on, between)}
        few = [row for at in strata.keys() - enough.keys() for row in strata[at]]
        why |= dict.fromkeys(map(id, few), "in a stratum with too little to compare")
        outside = [
            (names[sort_key(row, within)], why[id(row)], numbers.get(id(row)) or str(row["run_id"]))
            for row in rows
            if why[id(row)]
        ]
        return Compared(enough, between, outside)

    found = without(dict(why), between)
    texts = any(not why[id(row)] and not isinstance(row[on], int | float) for row in rows)
    unfitted = {
        id(row): "" for row in rows
        if why[id(row)] in _UNFITTED and not _lacks(row, (of, on, *cluster))
        and all(isinstance(row[name], int | float) for name in ([of] if texts else [of, on]))
    }  # fmt: skip
    if not unfitted:
        return found
    kinds = found.between if texts else between  # a third text would ask which two are meant
    return found._replace(every=without(why | unfitted, kinds))


def _names(rows: Sequence[TableRow], within: Sequence[str]) -> dict[tuple[Any, ...], str]:
    """A name for each stratum; values that print alike are written in full."""
    values = {sort_key(row, within): [*map(row.get, within)] for row in rows}
    names = {key: listed(each) for key, each in values.items()}
    often = Counter(names.values())
    return {
        key: name if often[name] == 1 else ", ".join(map(repr, values[key]))
        for key, name in names.items()
    }


def distinct_runs(rows: Sequence[TableRow]) -> list[TableRow]:
    """Each run once: rows of one ``run_id`` become one row with all their values.

    ConfigError if two of them differ, but for :data:`anchor_interp.sweeps.columns.CIRCUMSTANCES`.
    Rows without a ``run_id`` stay; a warning names those that repeat another one whole.
    """
    runs: dict[str | int, TableRow] = {}
    seen: set[str] = set()
    again: list[str] = []
    for i, row in enumerate(rows):
        if not is_missing(name := row.get("run_id")):
            name = str(plain(name))
            runs[name] = _together(runs[name], row) if name in runs else row
            continue
        runs[i] = row
        text = repr(sorted((item for item in row.items() if item[0] not in _OF_ROWS), key=repr))
        if text in seen:
            again.append(words(dict([*row.items()][:_NAMED])))
        seen.add(text)
    for name in ("step", "epoch") if 0 in runs else ():
        if len({row.get(name) for row in rows}) > 1:
            text = "rows of several %ss count as a run each: keep one a run (where), or give run_id"
            _LOGGER.warning(text, name)
    if again:
        text = "%d of %d rows repeat another one whole and count as further runs (%.300s); %s"
        such, to_do = "; ".join(dict.fromkeys(again)), "a column run_id would tell copies from runs"
        _LOGGER.warning(text, len(again), len(rows), such, to_do)
    return [*runs.values()]


def _together(one: TableRow, two: TableRow) -> TableRow:
    """One row of two rows of a run."""
    known = {name: value for name, value in one.items() if not is_missing(value)}
    for name in known.keys() & two.keys() - {"run_id", *CIRCUMSTANCES}:
        if not is_missing(two[name]) and known[name] != two[name]:
            both = f"{name} {shown(known[name])} and {shown(two[name])}"
            raise ConfigError(f"the run {one['run_id']} has {both}; keep one of its rows")
    return two | known


def _rows(table: Any) -> list[TableRow]:
    """The rows of a table; a DataFrame's missing numbers become None."""
    if isinstance(table, str | Path):
        return read_table(table, whole=False)
    if hasattr(table, "to_dict"):
        table = table.reset_index("run_id") if "run_id" in table.index.names else table
        for name in table.columns[table.columns.duplicated()]:
            raise ConfigError(f"the column {name!r} occurs twice; keep one")
        short = dict.fromkeys(table.select_dtypes(["float16", "float32"]), str)
        table = table.astype(short).astype(dict.fromkeys(short, float))  # 0.3, not 0.30000001
        table = table.astype(object).where(table.notna(), None).to_dict("records")
    if not isinstance(table, Sequence) or not all(isinstance(row, Mapping) for row in table):
        raise ConfigError(f"table is {shown(table)}; expected a sweep folder, its table or rows")
    return list(map(dict, table))


def _why_left_out(row: TableRow, needed: Sequence[str]) -> str:
    """Why a run does not count; empty if it has converged and has the values needed."""
    status = row.get("status", "done")
    status = "missing" if is_missing(status) or status == "" else status
    if status not in (known := get_args(RunStatus)):
        raise ConfigError(f"status is {shown(status)}; expected {listed(known)}: write done for "
                          "runs that ended well, and failed for others")  # fmt: skip
    if status != "done":
        return str(status)
    if _is_true(row.get("censored")) or row.get("phase") == "undertrained":
        return "undertrained" if row.get("phase", "undertrained") == "undertrained" else "censored"
    return _lacks(row, needed)


def _lacks(row: TableRow, needed: Sequence[str]) -> str:
    """The first value that a run is without; empty if it has all."""
    return next((f"without {label(n)}" for n in needed if is_missing(row.get(n))), "")


def _is_true(value: Any) -> bool:
    """What ``censored`` says; one that is missing says no."""
    says = "" if is_missing(value) else str(value).strip().lower()
    if says not in (*_YES, *_NO):
        raise ConfigError(f"censored is {shown(value)}; expected true or false")
    return says in _YES


def _kinds(rows: Sequence[TableRow], on: str, between: Any) -> Sequence[Value] | None:
    """The two values of a setting to compare; None if it is a number with fewer or more values."""
    values = sorted({row[on] for row in rows}, key=str)
    if between is not None:
        given = between if isinstance(between, Sequence) else []
        wanted = [plain(asked(value, rows, on)) for value in given]
        if len(wanted) != 2 or wanted[0] == wanted[1] or not all(v in values for v in wanted):
            two = f"two values of {on}: {listed(values)}"
            raise ConfigError(f"between is {shown(between)}; expected {two}")
        return wanted
    numbers = [isinstance(value, int | float) for value in values]
    if len(values) == 2 and (all(numbers) or not (any(numbers) or all(map(_is_number, values)))):
        return min(values), max(values)
    if not all(numbers):
        raise ConfigError(f"{on} holds texts; give two of them as between: {listed(values)}")
    return None


def _is_number(value: Any) -> bool:
    """Whether a value is a number, if only as a text: as a text 128 is less than 64."""
    with contextlib.suppress(TypeError, ValueError):
        return math.isfinite(float(value))
    return False


def _enough(rows: Sequence[TableRow], on: str, between: Sequence[Value] | None) -> bool:
    """Whether a stratum has enough runs of each kind, or enough at different settings."""
    if between is None:
        return len(rows) >= FEWEST and len({row[on] for row in rows}) > 1
    return all(sum(row[on] == value for row in rows) >= FEWEST for value in between)
