"""Phase diagrams as maps over two axes: phases, accuracies, stable rank.

Every run has a place in its cell; the runs of one seed have the same place in every cell. The
numbers come from :mod:`anchor_interp.sweeps.diagrams`.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anchor_interp.pages import style
from anchor_interp.pages.diagram_marks import (
    BLACK,
    add_hit_area,
    add_legend,
    best_words,
    state_handles,
    state_style,
    write_mark,
)
from anchor_interp.pages.style import INK
from anchor_interp.sweeps.cells import BEST_OF, MEASURES, PHASE_INDEX, Cell, Measured, RunState
from anchor_interp.sweeps.diagrams import Diagram
from anchor_interp.sweeps.settings import word

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

RankMeasure = Literal["stable_rank", "stable_rank_ratio"]
"""What the colour of a bubble shows."""
TRIANGLE = "#5CF0B8"
"""Colour of the triangles of poor commutativity."""
MARKED = ("ood_accuracy", "symmetric_accuracy")
"""Measures whose maps mark poor ID accuracy and poor commutativity."""
_DIAMETERS = {1: 0.4, 2: 0.65, 3: 0.92}  # of bubbles by phase index; the place has diameter 1
_WIDTH = 0.9  # share of a cell that its places fill
_MEAN = -0.12  # lower edge of the places where the mean stands below them


@dataclass(frozen=True)
class _Places:
    """Where the runs of a cell stand, relative to its centre; the unit is a cell."""

    columns: int
    rows: int
    bottom: float
    """Lower edge of the places."""

    @classmethod
    def of(cls, diagram: Diagram, *, best: bool = False, bottom: float = _MEAN) -> "_Places":
        """One place per run, a row per seed if a seed has several runs; with best, per seed."""
        n = len(diagram.seeds) if best else diagram.slots
        per_seed = n // len(diagram.seeds)
        columns = n if n <= 4 else math.ceil(math.sqrt(1.4 * n))
        columns = per_seed if 1 < per_seed <= 10 else columns
        return cls(columns, math.ceil(n / columns), bottom)

    @property
    def inches(self) -> float:
        """Width of a cell."""
        return min(1.3, max(0.52, 0.17 * self.columns))

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of a place."""
        return _WIDTH / self.columns, (_WIDTH / 2 - self.bottom) / self.rows

    @property
    def points(self) -> float:
        """The smaller side of a place in points."""
        return 72 * self.inches * min(self.size)

    def corner(self, slot: int) -> tuple[float, float]:
        """Lower left corner of a place; the first place is at the top left."""
        width, height = self.size
        row, column = divmod(slot, self.columns)
        return column * width - _WIDTH / 2, _WIDTH / 2 - (row + 1) * height

    def figure_size(self, diagram: Diagram) -> tuple[float, float]:
        """Width and height of a map with its axes, in inches."""
        rows = len(diagram.y.values) if diagram.y else 1
        return 0.85 + self.inches * len(diagram.x.values), 0.6 + max(0.5, 0.2 * self.rows) * rows


def phase_map(diagram: Diagram) -> "Figure":
    """The phase of every run over both axes (complexity-control paper, figure 3B)."""
    with _map_figure(diagram, legend=2) as figure:
        _draw_phases(figure.subplots(), diagram)
        add_legend(figure, state_handles(diagram.cells))
    return figure


def accuracy_map(
    diagram: Diagram, measure: str, *, best_over: Mapping[str, int] | None = None
) -> "Figure":
    """One measure of every run over both axes, with its mean below.

    On OOD accuracy and symmetric answers, stripes and an outline mark poor ID accuracy (the shaded
    zone of the NeurIPS paper, figure 2) and triangles mark poor commutativity (complexity-control
    paper, figure 3B).
    """
    best = _best_for(measure, best_over)
    with _map_figure(
        diagram, legend=1.5 * (measure in MARKED), bar=True, best=bool(best)
    ) as figure:
        add_legend(figure, _draw_accuracies(figure, figure.subplots(), diagram, measure, best))
    return figure


def rank_map(diagram: Diagram, measure: RankMeasure) -> "Figure":
    """Stable rank of W_Q(1): one bubble per run, coloured by it, sized by the phase's index.

    Source: complexity-control paper, figure 5C.
    """
    with _map_figure(diagram, legend=1.5, bar=True) as figure:
        add_legend(figure, _draw_ranks(figure, figure.subplots(), diagram, measure), columns=4)
    return figure


def overview(diagram: Diagram, *, best_over: Mapping[str, int] | None = None) -> "Figure":
    """Phases, accuracies and stable rank of one diagram, side by side."""
    other = "symmetric_accuracy" if has(diagram, "symmetric_accuracy") else "id_accuracy"
    measures = [name for name in (other, "ood_accuracy") if has(diagram, name)]
    ranked = has(diagram, "stable_rank")
    n = 1 + len(measures) + ranked
    columns = 2 if n > 2 else n
    rows = math.ceil(n / columns)
    width, height = _Places.of(diagram).figure_size(diagram)
    with style.single(columns * (width + 0.2), rows * (height + 0.75) + 1.0) as figure:
        panels = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
        for unused in panels[n:]:
            unused.set_axis_off()
        _draw_phases(panels[0], diagram)
        panels[0].set_title("phase", fontsize=9)
        handles = state_handles(diagram.cells)
        for axes, measure in zip(panels[1:], measures, strict=False):
            best = _best_for(measure, best_over)
            labels = [handle.get_label() for handle in handles]
            more = _draw_accuracies(figure, axes, diagram, measure, best)
            handles += [handle for handle in more if handle.get_label() not in labels]
        if ranked:
            handles += _draw_ranks(figure, panels[n - 1], diagram, "stable_rank")
        add_legend(figure, handles, columns=4)
    return figure


def has(diagram: Diagram, measure: str) -> bool:
    """Whether any run of a diagram has this measure."""
    return any(cell.measures[measure].n for cell in diagram.cells)


def _best_for(measure: str, best_over: Mapping[str, int] | None) -> Mapping[str, int]:
    return (best_over or {}) if measure in BEST_OF else {}


def _map_figure(
    diagram: Diagram, *, legend: float, bar: bool = False, best: bool = False
) -> "AbstractContextManager[Figure]":
    width, height = _Places.of(diagram, best=best).figure_size(diagram)
    return style.single(max(3.6, width), height + 0.2 * (1 + legend) + 0.55 * bar)


def _centres(diagram: Diagram) -> Iterator[tuple[Cell, int, int]]:
    """Every cell with its column and row."""
    for cell in diagram.cells:
        row = diagram.y.values.index(cell.y) if diagram.y else 0
        yield cell, diagram.x.values.index(cell.x), row


def _draw_phases(axes: "Axes", diagram: Diagram) -> None:
    places = _Places.of(diagram, bottom=-_WIDTH / 2)
    for cell, column, row in _centres(diagram):
        for run in cell.runs:
            left, low = places.corner(run.slot)
            _draw_state(axes, run.state, column + left, row + low, places)
    _draw_frame(axes, diagram)


def _draw_accuracies(
    figure: "Figure", axes: "Axes", diagram: Diagram, measure: str, best: Mapping[str, int]
) -> list[Any]:
    """Draw a map of one measure with its colour bar.

    Returns:
        Legend entries of the marks that occur.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch, Rectangle

    image = ScalarMappable(Normalize(0, 1), "cividis")
    places = _Places.of(diagram, best=bool(best))
    width, height = places.size
    triangle: dict[str, Any] = {"marker": "^", "color": TRIANGLE, "mec": BLACK, "mew": 0.6}
    marked = measure in MARKED
    striped = triangles = False
    for cell, column, row in _centres(diagram):
        for key, value in cell.measures[measure].values.items():
            run = next(run for run in cell.runs if (run.seed if best else run.slot) == key)
            left, low = places.corner(diagram.seeds.index(key) if best else key)
            x, y = column + left, row + low
            if value is None:
                _draw_state(axes, run.state, x, y, places)
                continue
            poor = marked and (cell.poor_id if best else run.poor_id)
            axes.add_patch(
                Rectangle((x + 0.0125, y + 0.0125), width - 0.025, height - 0.025, linewidth=0,
                          facecolor=_colour(image, value), hatch="/////" if poor else None,
                          edgecolor="#FFFFFF" if value < 0.6 else BLACK)
            )  # fmt: skip
            striped |= poor
            if marked and (cell.poor_commutativity if best else run.poor_commutativity):
                size = min(7, 0.62 * places.points)
                axes.plot(x + width / 2, y + height / 2, linestyle="", ms=size, **triangle)
                triangles = True
        _draw_mean(axes, cell.measures[measure], column, row)
    outlined = marked and _draw_outline(axes, diagram)
    _draw_frame(axes, diagram)
    _draw_bar(
        figure, axes, image, ", ".join(filter(None, (MEASURES[measure][0], best_words(best))))
    )
    handles: list[Any] = []
    if striped:
        handles.append(Patch(facecolor="#7C7B78", edgecolor="white", hatch="/////", linewidth=0,
                             label="ID < 0.9"))  # fmt: skip
    if outlined:
        handles.append(Line2D([], [], color=INK, linewidth=1.6, label="mean ID < 0.9"))
    if triangles:
        handles.append(Line2D([], [], linestyle="", ms=6, label="commutativity < 0.7", **triangle))
    return handles


def _draw_ranks(
    figure: "Figure", axes: "Axes", diagram: Diagram, measure: RankMeasure
) -> list[Any]:
    """Draw the bubbles with their colour bar.

    Returns:
        Legend entries of the sizes.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.lines import Line2D

    known = [v for c in diagram.cells for v in c.measures[measure].values.values() if v is not None]
    low, high = min(known), max(known)
    logarithmic = measure == "stable_rank" and low > 0
    norm = LogNorm(low / 1.05, high * 1.05) if logarithmic else Normalize(0, max(1, high))
    image = ScalarMappable(norm, "cividis")
    places = _Places.of(diagram)
    width, height = places.size
    largest = 0.98 * places.points
    odd = False
    for cell, column, row in _centres(diagram):
        for run in cell.runs:
            left, bottom = places.corner(run.slot)
            x, y = column + left, row + bottom
            value = run.values[measure]
            if value is None:
                _draw_state(axes, run.state, x, y, places)
                continue
            index = PHASE_INDEX.get(run.phase) if run.phase else None
            odd |= index is None
            axes.plot(x + width / 2, y + height / 2, "o" if index else "D", mew=0.7, mec=INK,
                      color=_colour(image, value),
                      ms=largest * (_DIAMETERS[index] if index else 0.5))  # fmt: skip
        _draw_mean(axes, cell.measures[measure], column, row, digits=1 if logarithmic else 2)
    _draw_frame(axes, diagram)
    _draw_bar(figure, axes, image, MEASURES[measure][0])
    sizes = [("o", size, f"phase {index}") for index, size in _DIAMETERS.items()]
    return [
        Line2D([], [], marker=marker, linestyle="", color="none", mec=INK, mew=0.7,
               ms=largest * size, label=text)
        for marker, size, text in [*sizes, *([("D", 0.5, "undertrained, other")] if odd else [])]
    ]  # fmt: skip


def _draw_state(axes: "Axes", state: RunState, x: float, y: float, places: _Places) -> None:
    """Draw a state into a place: filled with a letter, or an empty frame with a mark."""
    from matplotlib.patches import Rectangle

    width, height = places.size
    gap = 0.025
    corner = (x + gap / 2, y + gap / 2)
    axes.add_patch(
        Rectangle(corner, width - gap, height - gap, linewidth=0.7, **state_style(state))
    )
    size = min(9, 0.72 * places.points)
    write_mark(axes, x + width / 2, y + height / 2, state, fontsize=size)


def _draw_mean(axes: "Axes", measured: Measured, column: int, row: int, *, digits: int = 2) -> None:
    """Write the mean below the runs, with their number if some have no measurement."""
    text = "\N{EN DASH}" if measured.mean is None else f"{measured.mean:.{digits}f}"
    if 0 < measured.n < len(measured.values):
        text += f" ({measured.n})"
    axes.text(column, row - 0.29, text, ha="center", va="center_baseline", fontsize=7, color=INK)


def _draw_outline(axes: "Axes", diagram: Diagram) -> bool:
    """Draw the border of the zone of poor mean ID accuracy; say whether there is one."""
    zone = {(column, row) for cell, column, row in _centres(diagram) if cell.poor_id}
    for column, row in zone:
        for across, up in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            if (column + across, row + up) not in zone:
                x, y = column + across / 2, row + up / 2
                half_x, half_y = (0 if across else 0.5), (0 if up else 0.5)
                axes.plot((x - half_x, x + half_x), (y - half_y, y + half_y), color=INK,
                          linewidth=1.6, clip_on=False, solid_capstyle="projecting")  # fmt: skip
    return bool(zone)


def _draw_frame(axes: "Axes", diagram: Diagram) -> None:
    """Label the axes, and put a hit area in front of each cell."""
    x, y = diagram.x, diagram.y
    axes.set_xticks(range(len(x.values)), list(map(word, x.values)), fontsize=8)
    axes.set_xlabel(x.label, fontsize=9)
    if y:
        axes.set_yticks(range(len(y.values)), list(map(word, y.values)), fontsize=8)
        axes.set_ylabel(y.label, fontsize=9)
    else:
        axes.set_yticks([])
    axes.set_xlim(-0.55, len(x.values) - 0.45)
    axes.set_ylim(-0.55, (len(y.values) if y else 1) - 0.45)
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    for cell, column, row in _centres(diagram):
        add_hit_area(axes, cell.number, (column - 0.5, row - 0.5), 1, 1)


def _draw_bar(figure: "Figure", axes: "Axes", image: "ScalarMappable", title: str) -> None:
    from matplotlib.colors import LogNorm

    bar = figure.colorbar(image, ax=axes, location="top", aspect=32, shrink=0.9)
    if isinstance(image.norm, LogNorm):
        style.plain_ticks(bar.ax.xaxis)
    bar.set_label(title, fontsize=9)
    bar.ax.tick_params(labelsize=8, length=2)


def _colour(image: "ScalarMappable", value: float) -> Any:
    return image.to_rgba(np.asarray(value))
