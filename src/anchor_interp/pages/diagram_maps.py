"""Phase diagrams as maps over two axes: phases, accuracies, stable rank.

Every run has a place in its cell; the runs of one seed have the same place in every cell.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from anchor_interp.pages import diagram_marks, style
from anchor_interp.pages.diagram_marks import BLACK, add_legend, state_handles
from anchor_interp.pages.style import INK
from anchor_interp.sweeps.cells import BEST_OF, MEASURE_LABELS, PHASE_INDEX, Cell
from anchor_interp.sweeps.columns import TableRow
from anchor_interp.sweeps.diagrams import Diagram

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

RankMeasure = Literal["stable_rank", "stable_rank_ratio"]
"""What the colour of a bubble shows."""
TRIANGLE = "#5CF0B8"  # of poor commutativity
MARKED = ("ood_accuracy", "symmetric_accuracy")
"""Measures whose maps mark poor ID accuracy and poor commutativity."""
_BUBBLES = {1: ("o", 0.4, "memorizing"), 2: ("o", 0.65, "composite, symmetric"),
            3: ("o", 0.92, "inferential"), 0: ("D", 0.5, "undertrained, other")}  # fmt: skip
"""Marker, diameter as a share of the place, and legend entry by the index of the phase."""
_EVERY_RUN: Mapping[str, int] = MappingProxyType({})  # instead of a seed's best one
_WIDTH = 0.9  # share of a cell that its places fill
_MEAN = -0.12  # lower edge of the places if the mean is below them


class _Places:
    """Where the runs of a cell stand, in units of a cell.

    There is one place per run, with a row per seed if a seed has several runs. With ``best`` there
    is one place per seed. ``bottom`` is the lower edge relative to the centre of the cell.
    """

    def __init__(self, diagram: Diagram, *, best: bool = False, bottom: float = _MEAN) -> None:
        n = len(diagram.seeds) if best else diagram.slots
        per_seed = n // len(diagram.seeds)
        columns = n if n <= 4 else math.ceil(math.sqrt(1.4 * n))
        self.columns = per_seed if 1 < per_seed <= 10 else columns
        self.inches = min(1.3, max(0.375, 0.13 * self.columns))  # width of a cell
        self.width = _WIDTH / self.columns
        self.rows = math.ceil(n / self.columns)
        self.height = (_WIDTH / 2 - bottom) / self.rows
        self.points = 72 * self.inches * min(self.width, self.height)  # smaller side of a place

    def corner(self, centre: tuple[int, int], slot: int) -> tuple[float, float]:
        """Lower left corner of a place; the first place is at the top left."""
        row, column = divmod(slot, self.columns)
        left, low = column * self.width - _WIDTH / 2, _WIDTH / 2 - (row + 1) * self.height
        return centre[0] + left, centre[1] + low

    def centre(self, corner: tuple[float, float]) -> tuple[float, float]:
        """The middle of the place with this corner."""
        return corner[0] + self.width / 2, corner[1] + self.height / 2


class _Placed(NamedTuple):
    """The value of a run, or the best of a seed, in its place."""

    run: TableRow
    value: float
    corner: tuple[float, float]
    poor_id: bool
    """Whether the map marks it for that."""
    poor_commutativity: bool


def phase_map(diagram: Diagram) -> "Figure":
    """The phase of every run over both axes (complexity-control paper, figure 3B)."""
    with _map_figure(diagram, legend=2) as figure:
        add_legend(figure, _draw_phases(figure.subplots(), diagram))
    return figure


def accuracy_map(
    diagram: Diagram, measure: str, *, best_over: Mapping[str, int] = _EVERY_RUN
) -> "Figure":
    """One measure of every run over both axes, with its mean below.

    Shares have colours from 0 to 1, a user's own measure from its least to its largest value.

    On OOD accuracy and symmetric answers, stripes and an outline mark poor ID accuracy (the shaded
    zone of the NeurIPS paper, figure 2) and triangles mark poor commutativity (complexity-control
    paper, figure 3B).
    """
    best = bool(best_over) and measure in BEST_OF
    with _map_figure(diagram, legend=1.5 * (measure in MARKED), bar=0.55, best=best) as figure:
        add_legend(figure, _draw_accuracies(figure.subplots(), diagram, measure, best_over))
    return figure


def rank_map(diagram: Diagram, measure: RankMeasure) -> "Figure":
    """Stable rank of W_Q L0: one bubble per run, coloured by it, sized by the phase's index.

    Source: complexity-control paper, figure 5C.
    """
    with _map_figure(diagram, legend=1.5, bar=0.55) as figure:
        handles = _draw_ranks(figure.subplots(), diagram, measure)
        add_legend(figure, handles, columns=2)
    return figure


def overview(diagram: Diagram, *, best_over: Mapping[str, int] = _EVERY_RUN) -> "Figure":
    """Phases, accuracies and stable rank of one diagram, side by side."""
    other = "symmetric_accuracy" if has(diagram, "symmetric_accuracy") else "id_accuracy"
    measures = [name for name in (other, "ood_accuracy") if has(diagram, name)]
    ranked = has(diagram, "stable_rank")
    n = 1 + len(measures) + ranked
    columns = min(n, 2)
    rows = math.ceil(n / columns)
    width, height = _figure_size(diagram)
    inches = max(4.8, columns * (width + 0.2))
    with style.single(inches, rows * (height + 0.75)) as figure:
        panels = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
        for unused in panels[n:]:
            unused.set_axis_off()
        handles = _draw_phases(panels[0], diagram)
        panels[0].set_title("phase", fontsize=9)
        for axes, measure in zip(panels[1:], measures, strict=False):
            labels = [handle.get_label() for handle in handles]
            more = _draw_accuracies(axes, diagram, measure, best_over)
            handles += [handle for handle in more if handle.get_label() not in labels]
        if ranked:
            handles += _draw_ranks(panels[n - 1], diagram, "stable_rank")
        beside = min(4, int(inches // 1.7))
        add_legend(figure, handles, columns=beside)
        figure.set_figheight(figure.get_figheight() + 0.2 * (1 + math.ceil(len(handles) / beside)))
    return figure


def has(diagram: Diagram, measure: str) -> bool:
    """Whether any run of a diagram has this measure."""
    return any(cell.measures[measure].n for cell in diagram.cells)


def _figure_size(diagram: Diagram, *, best: bool = False) -> tuple[float, float]:
    """Width and height of a map with its axes, in inches."""
    places = _Places(diagram, best=best)
    height = max(0.5, 0.2 * places.rows) * len(diagram.rows)
    width = places.inches * len(diagram.x.values) + diagram_marks.room(diagram.rows)
    return 0.57 + width, 0.6 + height + diagram_marks.room(diagram.x.values)


def _map_figure(
    diagram: Diagram, *, legend: float, bar: float = 0, best: bool = False
) -> "AbstractContextManager[Figure]":
    width, height = _figure_size(diagram, best=best)
    return style.single(max(3.2, width), height + 0.2 * (1 + legend) + bar)


def _centres(diagram: Diagram) -> Iterator[tuple[Cell, tuple[int, int]]]:
    """Every cell with its column and row."""
    for cell in diagram.cells:
        yield cell, (diagram.x.values.index(cell.x), diagram.rows.index(cell.y))


def _draw_phases(axes: "Axes", diagram: Diagram) -> list[Any]:
    """Draw the phases of all runs; return their legend entries."""
    places = _Places(diagram, bottom=-_WIDTH / 2)
    for cell, centre in _centres(diagram):
        for run in cell.runs:
            _draw_state(axes, run, places.corner(centre, run["slot"]), places)
    _draw_frame(axes, diagram)
    return state_handles(diagram.cells)


def _place(
    axes: "Axes", diagram: Diagram, measure: str, places: _Places, *, best: bool = False
) -> list[_Placed]:
    """Every value of a measure in its place; with ``best`` those of a seed share one.

    Draws the states of runs without a value.
    """
    placed, marked = [], measure in MARKED
    for cell, centre in _centres(diagram):
        runs = {run["seed" if best else "slot"]: run for run in reversed(cell.runs)}
        for key, value in cell.measures[measure].values.items():
            corner = places.corner(centre, diagram.seeds.index(key) if best else key)
            if value is None:
                _draw_state(axes, runs[key], corner, places)
            else:
                run = runs[key]
                poor_id = marked and (cell.poor_id if best else run["poor_id"])
                apart = cell.poor_commutativity if best else run["poor_commutativity"]
                placed.append(_Placed(run, value, corner, poor_id, marked and apart))
    return placed


def _draw_accuracies(
    axes: "Axes", diagram: Diagram, measure: str, best_over: Mapping[str, int]
) -> list[Any]:
    """Draw a map of one measure with its colour bar; return legend entries of its marks."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch, Rectangle

    best = best_over if measure in BEST_OF else {}
    low, high = (0.0, 1.0) if measure in MEASURE_LABELS else _range(diagram, measure)
    image = ScalarMappable(Normalize(low, high), "cividis")
    places = _Places(diagram, best=bool(best))
    measured = _place(axes, diagram, measure, places, best=bool(best))
    for one in measured:
        (x, y), stripes = one.corner, "#FFFFFF" if one.value < 0.6 else BLACK
        axes.add_patch(
            Rectangle((x + 0.0125, y + 0.0125), places.width - 0.025, places.height - 0.025,
                      facecolor=image.to_rgba(np.asarray(one.value)),
                      linewidth=0 if one.poor_id else 0.4, hatch="/////" if one.poor_id else None,
                      edgecolor=stripes if one.poor_id else INK)
        )  # fmt: skip
    triangle: dict[str, Any] = {"marker": "^", "color": TRIANGLE, "mec": BLACK, "mew": 0.6}
    not_commuting = [places.centre(one.corner) for one in measured if one.poor_commutativity]
    for x, y in not_commuting:
        axes.plot(x, y, linestyle="", ms=min(7, 0.62 * places.points), **triangle)
    outlined = measure in MARKED and _draw_outline(axes, diagram)
    label = MEASURE_LABELS.get(measure, measure)
    title = ", ".join(filter(None, (label, diagram_marks.best_words(best))))
    _finish(axes, diagram, measure, image, title)
    handles = {
        Patch(facecolor="#7C7B78", edgecolor="white", hatch="/////", linewidth=0,
              label="ID < 0.9"): any(one.poor_id for one in measured),
        Line2D([], [], color=INK, linewidth=1.6, label="mean ID < 0.9"): outlined,
        Line2D([], [], linestyle="", ms=6, label="commutativity < 0.7",
               **triangle): bool(not_commuting),
    }  # fmt: skip
    return [handle for handle, occurs in handles.items() if occurs]


def _draw_ranks(axes: "Axes", diagram: Diagram, measure: RankMeasure) -> list[Any]:
    """Draw the bubbles with their colour bar; return legend entries of the sizes."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.lines import Line2D

    low, high = _range(diagram, measure)
    logarithmic = measure == "stable_rank" and low > 0
    norm = LogNorm(low / 1.05, high * 1.05) if logarithmic else Normalize(0, max(1, high))
    image = ScalarMappable(norm, "cividis")
    places = _Places(diagram)
    largest = 0.98 * places.points
    outline: dict[str, Any] = {"mew": 0.7, "mec": INK}
    shown = {1, 2, 3}
    for one in _place(axes, diagram, measure, places):
        index = PHASE_INDEX.get(one.run["phase"], 0)
        marker, size, _ = _BUBBLES[index]
        axes.plot(*places.centre(one.corner), marker, ms=largest * size,
                  color=image.to_rgba(np.asarray(one.value)), **outline)  # fmt: skip
        shown.add(index)
    paper = "\n(the papers' W_Q(1))" if measure == "stable_rank" else ""
    _finish(axes, diagram, measure, image, MEASURE_LABELS[measure] + paper)
    key = min(largest, 12)  # larger bubbles would overlap their words
    return [
        Line2D([], [], marker=marker, linestyle="", color="none", ms=key * size, label=text,
               **outline)
        for index, (marker, size, text) in _BUBBLES.items() if index in shown
    ]  # fmt: skip


def _range(diagram: Diagram, measure: str) -> tuple[float, float]:
    """The least and the largest value of a measure that some run has."""
    known = [v for c in diagram.cells for v in c.measures[measure].values.values() if v is not None]
    return min(known), max(known)


def _draw_state(axes: "Axes", run: TableRow, corner: tuple[float, float], places: _Places) -> None:
    """Draw the state of a run into its place."""
    gap, size = 0.025, min(9, 0.92 * places.points)
    box = corner[0] + gap / 2, corner[1] + gap / 2, places.width - gap, places.height - gap
    diagram_marks.draw_state(axes, run["state"], box, fontsize=size, linewidth=0.7)


def _draw_outline(axes: "Axes", diagram: Diagram) -> bool:
    """Draw the border of the zone of poor mean ID accuracy; say whether there is one."""
    zone = {centre for cell, centre in _centres(diagram) if cell.poor_id}
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
    across = list(map(diagram_marks.tick, x.values))
    turned = 90 * bool(diagram_marks.room(x.values))  # a schedule is wider than a cell
    axes.set_xticks(range(len(across)), across, fontsize=8, rotation=turned)
    axes.set_xlabel(x.label, fontsize=9)
    axes.set_yticks([])
    if y:
        axes.set_yticks(range(len(y.values)), list(map(diagram_marks.tick, y.values)), fontsize=8)
        axes.set_ylabel(y.label, fontsize=9)
    axes.set_xlim(-0.55, len(x.values) - 0.45)
    axes.set_ylim(-0.55, len(diagram.rows) - 0.45)
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    for cell, (column, row) in _centres(diagram):
        diagram_marks.add_hit_area(axes, cell.number, (column - 0.5, row - 0.5), 1, 1)


def _finish(
    axes: "Axes", diagram: Diagram, measure: str, image: "ScalarMappable", title: str
) -> None:
    """Add the means, with their number of runs if some have no measurement, and a colour bar."""
    from matplotlib.colors import LogNorm

    logarithmic = isinstance(image.norm, LogNorm)
    form = ".1f" if logarithmic else ".2f" if measure in MEASURE_LABELS else ".3g"
    for cell, (column, row) in _centres(diagram):
        measured = cell.measures[measure]
        text = "\N{EN DASH}" if measured.mean is None else f"{measured.mean:{form}}"
        text += f" ({measured.n})" if 0 < measured.n < len(measured.values) else ""
        axes.text(column, row - 0.29, text, ha="center", va="center_baseline", fontsize=7.5,
                  color=INK)  # fmt: skip
    _draw_frame(axes, diagram)
    bar = axes.figure.colorbar(image, ax=axes, location="top", aspect=32, shrink=0.9)
    if logarithmic:
        style.plain_ticks(bar.ax.xaxis)
    bar.set_label(title, fontsize=9)
    bar.ax.tick_params(labelsize=8, length=2)
