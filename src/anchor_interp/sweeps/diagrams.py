"""Phase diagrams from a sweep's table: the content of each cell, and curves along each axis.

A diagram has two axes: any two settings that vary, such as the initialisation rate and the weight
decay. A *cell* is a pair of their values with all its runs, one per seed. The same cells give the
figures of the papers: NeurIPS paper, figure 2; complexity-control paper, figures 3A, 3B and 5C.

Every run of the table appears (:mod:`anchor_interp.sweeps.cells`). Nothing is selected by its
result unless ``best_over`` asks for it, as the NeurIPS paper does over learning rates.
"""

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown, suggestion
from anchor_interp.sweeps import settings
from anchor_interp.sweeps.cells import (
    MEASURES,
    Cell,
    RunMark,
    RunState,
    in_order,
    make_cell,
    make_mark,
    seed_of,
)
from anchor_interp.sweeps.decay import DecayPanel, decay_panels
from anchor_interp.sweeps.settings import (
    ANCHORS,
    TableRow,
    Value,
    follows,
    group,
    sort_key,
    values_of,
)

MAX_DIAGRAMS = 6  # side by side


@dataclass(frozen=True)
class Axis:
    """A setting that varies: its column, its name in words, its values in order."""

    name: str
    label: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Band:
    """Neighbouring columns whose runs are all in one state, or one column with several states."""

    first: int
    last: int
    states: dict[RunState, int]


@dataclass(frozen=True)
class Diagram:
    """The cells over two axes. All other settings are equal or follow the axes."""

    facet: dict[str, Value]
    """The settings that tell it from the other diagrams; empty if it is the only one."""
    x: Axis
    y: Axis | None
    """None if only one setting varies."""
    slots: int
    """Places in a cell."""
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    """The cells that the sweep asks for, row by row, both axes rising."""

    @property
    def rows(self) -> tuple[Value, ...]:
        """The values of the vertical axis; None alone without one."""
        return self.y.values if self.y else (None,)

    def place(self, cell: Cell) -> dict[str, Value]:
        """The settings that tell a cell from all others."""
        place = self.facet | {self.x.name: cell.x}
        return place | {self.y.name: cell.y} if self.y else place

    def row(self, y: Value) -> dict[int, Cell]:
        """The cells of one value of the vertical axis by column."""
        return {self.x.values.index(cell.x): cell for cell in self.cells if cell.y == y}

    def bands(self, y: Value) -> list[Band]:
        """The states along the horizontal axis; a column without a cell separates two bands."""
        bands: list[Band] = []
        for column, cell in self.row(y).items():
            last = bands[-1] if bands else None
            if last and last.last == column - 1 and len({*last.states, *cell.states}) == 1:
                states = dict(Counter(last.states) + Counter(cell.states))
                bands[-1] = Band(last.first, column, states)
            else:
                bands.append(Band(column, column, cell.states))
        return bands


@dataclass(frozen=True)
class Diagrams:
    """All diagrams of a sweep's table."""

    diagrams: tuple[Diagram, ...]
    """One for each combination of the further settings that vary."""
    decay: tuple[DecayPanel, ...]
    """The same runs over effective decay; empty if it does not vary."""
    where: dict[str, tuple[Value, ...]]
    best_over: dict[str, int]
    """How many values each of these settings has."""
    follows: dict[str, tuple[Value, ...]]
    """Settings that vary with the axes but not within a cell."""
    left_out: int
    """How many rows ``where`` left out."""
    maps: tuple[str, ...] = ()
    """Columns that are mapped beside the :data:`anchor_interp.sweeps.cells.MEASURES`."""
    anchors: dict[str, str] = field(default_factory=dict)
    """The anchors of every anchor task that is not a preset's, by the task's name."""
    schema: int = 1

    @property
    def cells(self) -> list[Cell]:
        """The cells of all diagrams by number."""
        return [cell for diagram in self.diagrams for cell in diagram.cells]

    @property
    def runs(self) -> list[RunMark]:
        """The runs of all cells."""
        return [run for cell in self.cells for run in cell.runs]


def phase_diagrams(
    rows: Sequence[TableRow],
    *,
    x: str | None = None,
    y: str | None = None,
    where: Mapping[str, Any] | None = None,
    best_over: str | Sequence[str] = (),
    maps: str | Sequence[str] = (),
) -> Diagrams:
    """The diagrams of a sweep's table (:mod:`anchor_interp.sweeps.table`).

    Args:
        rows: one run each.
        x: the setting of the horizontal axis; by default the first of
            :data:`anchor_interp.sweeps.settings.PREFERRED` that varies, else another that does.
        y: the setting of the vertical axis; by default as for ``x``.
        where: the value, or a list of values, to keep, by column (see :func:`read_where`).
        best_over: settings such as ``lr``: each seed counts with its best accuracy over their
            values, each measure by itself (NeurIPS paper, figure 2). By default every run counts.
        maps: further columns with numbers to map, such as a user's measures.

    Raises:
        ConfigError: there is no row, no finished run, no such column or no setting that varies; or
            the table needs more than :data:`MAX_DIAGRAMS` diagrams, or has an invalid row.
    """
    rows = [checked(row, Mapping, f"rows[{i}]") for i, row in enumerate(rows)]
    if not rows:
        raise ConfigError("the table has no rows; expected at least one run")
    kept, chosen = rows_where(rows, where or {})
    columns = settings.settings_of(kept)
    varying = [name for name in columns if len(values_of(kept, name)) > 1]
    best = (best_over,) if isinstance(best_over, str) else tuple(best_over)
    for name in best:
        _check_column(kept, name, "best_over", columns)
    x, y = _axes(kept, x, y, columns, [name for name in varying if name not in best])
    if not any(row.get("status") == "done" for row in kept):
        states = Counter(str(row.get("status")) for row in kept)
        found = ", ".join(f"{n} {status}" for status, n in states.items())
        raise ConfigError(f"no run is done ({found}); a diagram needs at least one: run the sweep")
    axes = [name for name in (x, y) if name]
    others = [name for name in varying if name not in (*axes, *best)]
    inside: list[str] = []  # settings that vary within a cell and follow no other one
    for name in sorted(others, key=lambda name: name not in settings.PREFERRED):
        if not follows(kept, name, [*axes, *inside]):
            inside.append(name)
    further = _further(kept, (maps,) if isinstance(maps, str) else tuple(maps))
    kept = _with_marks(kept, [*axes, *inside], best, further)
    facets = group(kept, inside)
    if len(facets) > MAX_DIAGRAMS:
        raise ConfigError(_too_many(kept, inside, len(facets), axes))
    marks: list[RunMark] = [row["mark"] for row in kept]
    slots, seeds = 1 + max(mark.slot for mark in marks), sorted({mark.seed for mark in marks})
    numbers = itertools.count()
    diagrams: list[Diagram] = []
    for facet, of_facet in facets:
        cells: list[Cell] = []
        for place, of_cell in group(of_facet, axes[::-1]):
            number = next(numbers)
            for row in of_cell:
                row["cell"] = number
            runs = tuple(sorted((row["mark"] for row in of_cell), key=lambda mark: mark.slot))
            y_value = place[y] if y else None
            cells.append(make_cell(number, place[x], y_value, runs, best=bool(best)))
        first, *second = [Axis(n, settings.label(n), values_of(of_facet, n)) for n in axes]
        second_axis = second[0] if y else None
        diagrams.append(Diagram(facet, first, second_axis, slots, tuple(seeds), tuple(cells)))
    best_of = {name: _choices(kept, name, [*axes, *inside]) for name in best}
    following = {name: values_of(kept, name) for name in others if name not in inside}
    decay, left_out = decay_panels(kept, varying), len(rows) - len(kept)
    own = {str(row["task"]): str(row[ANCHORS]) for row in kept if row.get(ANCHORS)}
    return Diagrams(tuple(diagrams), decay, chosen, best_of, following, left_out, further, own)


def read_where(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Read conditions such as ``lr=0.001`` or ``gamma=0.5,0.6`` for :func:`phase_diagrams`.

    A value is a number, ``true``, ``false``, ``null``, or a text. Raises ConfigError.
    """
    conditions: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, _, values = map(str.strip, text.partition("="))
        if not (name and values):
            expected = "COLUMN=VALUE, such as lr=0.001, or COLUMN=VALUE,VALUE"
            raise ConfigError(f"the condition is {shown(text)}; expected {expected}")
        if name in conditions:
            raise ConfigError(f"{name} has two conditions; give one, as {name}=VALUE,VALUE")
        conditions[name] = tuple(_scalar(part.strip()) for part in values.split(","))
    return conditions


def summary(found: Diagrams) -> Iterator[dict[str, Value]]:
    """One row per cell: its place, how many runs are in each state, and the means."""
    states = in_order(Counter(run.state for run in found.runs))
    for diagram in found.diagrams:
        for cell in diagram.cells:
            row = diagram.place(cell) | {"phase": cell.phase, "runs": len(cell.runs)}
            row |= {state: cell.states.get(state, 0) for state in states}
            for name, measured in cell.measures.items():
                row |= {f"{name}_n": measured.n, name: measured.mean}
                row |= {f"{name}_low": measured.low, f"{name}_high": measured.high}
            yield row | {"poor_id": cell.poor_id, "poor_commutativity": cell.poor_commutativity}


def _scalar(text: str) -> Value:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    finite = not isinstance(value, float) or math.isfinite(value)
    return value if finite and isinstance(value, Value) else text


def rows_where(
    rows: Sequence[TableRow], where: Mapping[str, Any]
) -> tuple[list[TableRow], dict[str, tuple[Value, ...]]]:
    """The rows that meet all conditions, and the conditions."""
    chosen: dict[str, tuple[Value, ...]] = {}
    kept = list(rows)
    columns = sorted({str(column) for row in rows for column in row}) if where else []
    for name, wanted in where.items():
        values = tuple(wanted) if isinstance(wanted, list | tuple | set | frozenset) else (wanted,)
        _check_column(rows, name, "where", columns)
        before, kept = kept, [row for row in kept if any(row.get(name) == v for v in values)]
        if not kept:
            wrong = " or ".join(map(settings.word, values))
            expected = settings.listed(values_of(before, name)[:10])
            raise ConfigError(f"no run has {name} {wrong}; expected one of {expected}")
        chosen[name] = values
    return kept, chosen


def _check_column(rows: Sequence[TableRow], name: Any, what: str, known: Sequence[str]) -> None:
    if checked(name, str, what) not in known:
        is_column = any(name in row for row in rows)
        wanted = "a setting" if is_column else f"a column of the table{suggestion(name, known)}"
        problem = f"{what} is {shown(name)}, which is not {wanted}"
        raise ConfigError(f"{problem}; expected one of {', '.join(known)}")


def _further(rows: Sequence[TableRow], maps: Sequence[str]) -> tuple[str, ...]:
    """The columns to map, without the measures that are mapped anyway."""
    columns = dict.fromkeys(name for row in rows for name in row)
    numeric = [name for name in columns if _is_numeric([row.get(name) for row in rows])]
    for name in maps:
        if checked(name, str, "map") not in numeric:
            has = "holds no numbers" if name in columns else "is not a column of the table"
            close = suggestion(name, numeric)
            raise ConfigError(f"map is {shown(name)}, which {has}{close}; expected one of "
                              f"{', '.join(numeric)}")  # fmt: skip
    return tuple(dict.fromkeys(name for name in maps if name not in MEASURES))


def _is_numeric(values: Sequence[Value]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(type(value) in (int, float) for value in known)


def _axes(
    rows: Sequence[TableRow], x: str | None, y: str | None, columns: list[str], varying: list[str]
) -> tuple[str, str | None]:
    """The axes: those that are given, else settings that vary."""
    known = columns + ["total_decay"] * any("total_decay" in row for row in rows)
    for name, what in ((x, "x"), (y, "y")):
        if name is not None:
            _check_column(rows, name, what, known)
    if x is not None and x == y:
        raise ConfigError(f"x and y are both {shown(x)}; expected two settings")
    order = dict.fromkeys((*settings.PREFERRED, *varying))
    free = [name for name in order if name in varying and name not in (x, y)]
    if x is None:
        x, y = (free.pop(0), y) if free else (y, None)
    if x is None:
        advice = "name one with x, or add values to the sweep"
        raise ConfigError(f"no setting varies between the runs: no axis for a diagram; {advice}")
    if y is None:  # a setting that follows x would fill only a diagonal of cells
        y = next((name for name in free if not follows(rows, name, [x])), None)
    return x, y


def _choices(rows: Sequence[TableRow], name: str, others: Sequence[str]) -> int:
    """How many values of a setting ``best_over`` chooses from, at most."""
    groups = group(rows, [*others, "seed"]) if name not in others else []
    most = max((len(values_of(same, name)) for _, same in groups), default=1)
    if most == 1:
        expected = "a setting that varies within the cells and is not an axis"
        problem = "has one value for every seed of a cell"
        raise ConfigError(f"best_over is {shown(name)}, which {problem}; expected {expected}")
    return most


def _too_many(rows: Sequence[TableRow], names: list[str], n: int, axes: list[str]) -> str:
    words = {name: [*map(settings.word, values_of(rows, name))] for name in names}
    shortened = {
        name: [*found[:5], *(["..."] if found[5:] else [])] for name, found in words.items()
    }
    varying = ", ".join(f"{name} ({', '.join(found)})" for name, found in shortened.items())
    name = names[0]
    return (
        f"besides {' and '.join(axes)} these settings vary: {varying}, which makes {n} diagrams; "
        f"expected at most {MAX_DIAGRAMS}: keep some runs with where, such as {name}="
        f"{words[name][0]}, make {name} an axis with x or y, or take the best over it with "
        f"best_over={name}"
    )


def _with_marks(
    rows: Sequence[TableRow], place: Sequence[str], best: Sequence[str], maps: Sequence[str]
) -> list[TableRow]:
    """Copies of the rows with their marks; a seed has the same slot in every cell.

    Rows that differ only in what the diagram does not know stand side by side.
    """
    times: Counter[tuple[Any, ...]] = Counter()
    keys: list[tuple[Any, ...]] = []
    for row in rows:
        key = (seed_of(row), *sort_key(row, best))
        cell = (*sort_key(row, place), key)
        keys.append((*key, times[cell]))
        times[cell] += 1
    slots = {key: slot for slot, key in enumerate(sorted(set(keys)))}
    return [
        {**row, "mark": make_mark(row, slots[key], maps)}
        for row, key in zip(rows, keys, strict=True)
    ]
