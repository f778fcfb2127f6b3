"""Phase diagrams from a sweep's table: the content of each cell, and curves along each axis.

A diagram has two axes: any two settings that vary, such as the initialisation rate and the weight
decay. A *cell* is a pair of their values with all its runs, one per seed. The same cells give the
figures of the papers: NeurIPS paper, figure 2; complexity-control paper, figures 3A, 3B and 5C.

Every run of the table appears (:mod:`anchor_interp.sweeps.cells`). Nothing is selected by its
result unless ``best_over`` asks for it, as the NeurIPS paper does over learning rates.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import to_dict
from anchor_interp.sweeps.cells import MEASURE_LABELS, OF_RUN, Cell, in_order, make_cell, shown_row
from anchor_interp.sweeps.columns import (
    ANCHORS,
    NUMERIC,
    TableRow,
    Value,
    check_column,
    group,
    kind_of,
    label,
    rows_where,
    values_of,
)
from anchor_interp.sweeps.compared import distinct_runs
from anchor_interp.sweeps.diagram_layout import Layout, choose_layout, slots_of


@dataclass(frozen=True)
class Axis:
    """A setting that varies: its column, its name in words, its values in order."""

    name: str
    label: str
    values: tuple[Value, ...]


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


@dataclass(frozen=True)
class Diagrams:
    """All diagrams of a sweep's table."""

    diagrams: tuple[Diagram, ...]
    """One for each combination of the further settings that vary."""
    where: dict[str, tuple[Value, ...]]
    best_over: dict[str, int]
    """How many values each of these settings has."""
    follows: dict[str, tuple[Value, ...]]
    """Settings that vary with the axes but not within a cell."""
    left_out: int
    """How many rows ``where`` left out."""
    maps: tuple[str, ...] = ()
    """Columns that are mapped beside the :data:`anchor_interp.sweeps.cells.MEASURE_LABELS`."""
    anchors: dict[str, str] = field(default_factory=dict)
    """The anchors of every anchor task that is not a preset's, by the task's name."""
    schema: int = 1

    @property
    def cells(self) -> list[Cell]:
        """The cells of all diagrams by number."""
        return [cell for diagram in self.diagrams for cell in diagram.cells]

    @property
    def runs(self) -> list[TableRow]:
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
    """The diagrams of a sweep's table (:mod:`anchor_interp.sweeps.folder`).

    Args:
        rows: one run each; a run's rows count once
            (:func:`anchor_interp.sweeps.compared.distinct_runs`).
        x: the setting of the horizontal axis; by default the first of
            :data:`anchor_interp.sweeps.columns.PREFERRED` that varies, else another that does.
        y: the setting of the vertical axis; by default as for ``x``.
        where: the value, or a list of values, to keep, by column.
        best_over: settings such as ``lr``: each seed counts with its best accuracy over their
            values, each measure by itself (NeurIPS paper, figure 2). By default every run counts.
        maps: further columns with numbers to map, such as a user's measures.

    Raises:
        ConfigError: there is no finished run, no such column or no setting that varies, or more
            than :data:`anchor_interp.sweeps.diagram_layout.MAX_DIAGRAMS` diagrams are needed.
    """
    kept, conditions = rows_where(rows, where or {})
    left_out, kept = len(rows) - len(kept), distinct_runs(kept)
    states = Counter(str(row.get("status")) for row in kept)
    if not states["done"]:
        counts = ", ".join(f"{n} {status}" for status, n in states.items()) or "no runs"
        raise ConfigError(f"no run is done ({counts}); a diagram needs at least one: run the sweep")
    layout = choose_layout(kept, x, y, _names(best_over))
    further = _further(kept, _names(maps))
    slots = slots_of(kept, layout)
    shown = [shown_row(row, slot, further) for row, slot in zip(kept, slots, strict=True)]
    shown.sort(key=lambda row: row["slot"])
    return Diagrams(
        diagrams=tuple(_diagrams(shown, layout, further)),
        where=conditions,
        best_over=layout.n_choices(kept),
        follows={name: values_of(kept, name) for name in layout.following},
        left_out=left_out,
        maps=further,
        anchors={str(row["task"]): str(row[ANCHORS]) for row in kept if row.get(ANCHORS)},
    )


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _diagrams(shown: Sequence[TableRow], layout: Layout, maps: Sequence[str]) -> Iterator[Diagram]:
    """One diagram for each combination of the facets, of rows by slot."""
    slots, number = 1 + max(row["slot"] for row in shown), itertools.count()
    seeds = tuple(sorted({row["seed"] for row in shown}))
    for facet, rows in group(shown, layout.facets):
        axes = [Axis(name, label(name), values_of(rows, name)) for name in layout.axes]
        cells = []
        for place, of_cell in group(rows, layout.axes[::-1]):
            x, y = place[layout.x], place[layout.y] if layout.y else None
            best = bool(layout.best)
            cells.append(make_cell(next(number), x, y, tuple(of_cell), maps=maps, best=best))
        yield Diagram(facet, axes[0], axes[1] if layout.y else None, slots, seeds, tuple(cells))


def _further(rows: Sequence[TableRow], maps: Sequence[str]) -> tuple[str, ...]:
    """The columns to map, without the measures that are mapped anyway."""
    columns = dict.fromkeys(name for row in rows for name in row)
    numeric = [name for name in columns if kind_of(row.get(name) for row in rows) in NUMERIC]
    for name in maps:
        check_column(name, "map", numeric)
    drawn = MEASURE_LABELS.keys() - {"train_accuracy"}
    return tuple(dict.fromkeys(name for name in maps if name not in drawn))


def summary(diagrams: Diagrams) -> Iterator[dict[str, Value]]:
    """One row per cell: its place, how many runs are in each state, and the means."""
    states = in_order(Counter(run["state"] for run in diagrams.runs))
    for diagram in diagrams.diagrams:
        for cell in diagram.cells:
            row = diagram.place(cell) | {"phase": cell.phase, "runs": len(cell.runs)}
            row |= {state: cell.states.get(state, 0) for state in states}
            for name, measured in cell.measures.items():
                row |= {f"{name}_n": measured.n, name: measured.mean}
                row |= {f"{name}_low": measured.low, f"{name}_high": measured.high}
            yield row | {"poor_id": cell.poor_id, "poor_commutativity": cell.poor_commutativity}


def plain_diagrams(diagrams: Diagrams) -> dict[str, Any]:
    """The contents of ``diagram.json``; ``values`` are the measures of a run."""
    plain: dict[str, Any] = to_dict(diagrams)
    for cell in (cell for diagram in plain["diagrams"] for cell in diagram["cells"]):
        cell["runs"] = [
            {name: run[name] for name in OF_RUN}
            | {"run_id": str(run["run_id"])}
            | {"values": {name: run[name] for name in cell["measures"]}}
            for run in cell["runs"]
        ]
    return plain
