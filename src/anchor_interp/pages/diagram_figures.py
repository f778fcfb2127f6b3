"""Phase diagrams as figures: nothing is computed here (see :mod:`anchor_interp.sweeps.diagrams`).

Every run has a place of its own in its cell, at the same place in every cell for one seed. A phase
is told by its colour and its letter, a run that is not done by a mark. Cells carry SVG groups
``cell-NUMBER``, by which a page finds them again in every figure.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure

from anchor_interp.pages import style
from anchor_interp.pages.style import INK
from anchor_interp.sweeps.diagrams import (
    BEST_OF,
    MEASURES,
    PHASE_INDEX,
    STATES,
    Band,
    Cell,
    DecayPanel,
    DecayPoint,
    Diagram,
    Diagrams,
    Measured,
    RunMark,
    State,
    Value,
    label,
    word,
    words,
)

COLOURS: dict[State, str] = {
    "undertrained": "#BBBBBB",
    "memorizing": "#E69F00",
    "composite": "#CC79A7",
    "symmetric": "#56B4E9",
    "inferential": "#009E73",
    "other": "#F0E442",
    "diverged": "#3A3A3A",
}
"""Colours of states (Okabe and Ito, and greys); the others are empty places."""


ID, OOD = "#2F86C6", "#D55E00"
"""Colours of the two accuracies along an axis (complexity-control paper, figure 3A): a blue and a
red that are seen on white and on a dark page."""


TRIANGLE = "#5CF0B8"
"""Colour of the triangles of poor commutativity."""


Rank = Literal["stable_rank", "stable_rank_ratio"]
"""What the bubbles' colour is."""


_BLACK = "#000000"


_Slots = tuple[int, int]
"""Places in a cell, and how many in a row (0: as fits)."""


_WIDTH = 0.9
"""Share of a cell that its places fill."""


_DIAMETERS = {1: 0.4, 2: 0.65, 3: 0.92}
"""Bubbles by the phase's index, relative to the largest."""


_MARKED = ("ood_accuracy", "symmetric_accuracy")
"""Measures whose maps are marked where ID accuracy or commutativity is poor."""


_MOST_LETTERS = 6
"""Most runs above a point that have a letter each; more are counted."""


_MARKERS = ("o", "s", "D", "v", "P", "X")


_DASHES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class _Places:
    """Where the runs of a cell stand, relative to its centre, in units of cells."""

    columns: int
    rows: int
    bottom: float
    """Lower edge of the places; what is below is for the mean."""
    cell: float
    """Width of a cell in inches."""

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of a place."""
        return _WIDTH / self.columns, (_WIDTH / 2 - self.bottom) / self.rows

    @property
    def points(self) -> float:
        """The smaller side of a place in points."""
        return 72 * self.cell * min(self.size)

    def corner(self, slot: int) -> tuple[float, float]:
        """Lower left corner of a place; the first is at the top left."""
        width, height = self.size
        row, column = divmod(slot, self.columns)
        return column * width - _WIDTH / 2, _WIDTH / 2 - (row + 1) * height


def phase_map(diagram: Diagram) -> "Figure":
    """The phase of every run over both axes (complexity-control paper, figure 3B)."""
    with _grid_figure(diagram, _every_run(diagram), legend=2) as figure:
        axes = figure.subplots()
        _phases(axes, diagram)
        _state_legend(figure, _states(diagram.cells))
    return figure


def accuracy_map(
    diagram: Diagram, measure: str, *, best_over: "dict[str, int] | None" = None
) -> "Figure":
    """One measure of every run over both axes, its mean below.

    On OOD accuracy and symmetric answers stripes and an outline mark poor ID accuracy (NeurIPS
    paper, figure 2: the shaded zone) and triangles poor commutativity (complexity-control paper,
    figure 3B).
    """
    best = _best_for(measure, best_over)
    slots = (len(diagram.seeds), 0) if best else _every_run(diagram)
    with _grid_figure(diagram, slots, legend=1.5 * (measure in _MARKED), bar=True) as figure:
        axes = figure.subplots()
        image, handles = _accuracies(axes, diagram, measure, slots, best)
        _bar(figure, axes, image, _title(measure, best))
        _legend(figure, handles)
    return figure


def rank_map(diagram: Diagram, measure: Rank) -> "Figure":
    """Stable rank of W_Q(1) as the colour of a bubble a run, whose size is its phase's index.

    Source: complexity-control paper, figure 5C.
    """
    with _grid_figure(diagram, _every_run(diagram), legend=1.5, bar=True) as figure:
        axes = figure.subplots()
        image, handles = _bubbles(axes, diagram, measure)
        _bar(figure, axes, image, MEASURES[measure][0])
        _legend(figure, handles, columns=4)
    return figure


def along_axis(diagram: Diagram, *, best_over: "dict[str, int] | None" = None) -> "Figure":
    """ID and OOD accuracy along the horizontal axis with its phases, a panel a value of the other.

    Source: complexity-control paper, figure 3A.
    """
    values: Sequence[Value] = diagram.y.values if diagram.y else (None,)
    width = max(4.2, 1.0 + 0.5 * len(diagram.x.values))
    with style.single(width, 1.0 + 1.35 * len(values)) as figure:
        panels = figure.subplots(len(values), 1, sharex=True, squeeze=False)[:, 0]
        for axes, value in zip(panels, reversed(values), strict=True):
            _along(axes, diagram, value)
            if diagram.y:
                axes.set_title(f"{diagram.y.label} {word(value)}", fontsize=8, loc="left")
        panels[-1].set_xticks(range(len(diagram.x.values)), list(map(word, diagram.x.values)))
        panels[-1].set_xlabel(diagram.x.label, fontsize=9)
        _accuracy_legend(figure, best_over or {})
        _state_legend(figure, _states(diagram.cells))
    return figure


def over_decay(found: Diagrams) -> "Figure":
    """ID and OOD accuracy over effective decay, a panel for each value of what else varies."""
    n = len(found.decay)
    positions = _decay_positions([p.total_decay for p in _points(found.decay)])
    several = sorted({words(s.settings) for panel in found.decay for s in panel.series})
    with style.single(4.4, 1.1 + 1.35 * n + 0.1 * len(several)) as figure:
        panels = figure.subplots(n, 1, sharex=True, squeeze=False)[:, 0]
        for axes, panel in zip(panels, reversed(found.decay), strict=True):
            _decay_panel(axes, panel, positions)
        _decay_axis(panels[-1], positions)
        _accuracy_legend(figure, {}, several if len(several) > 1 else ())
        _state_legend(figure, _states(found.cells))
    return figure


def overview(diagram: Diagram, *, best_over: "dict[str, int] | None" = None) -> "Figure":
    """Phases, accuracies and stable rank of one diagram beside each other."""
    other = "symmetric_accuracy" if _has(diagram, "symmetric_accuracy") else "id_accuracy"
    measures = [name for name in (other, "ood_accuracy") if _has(diagram, name)]
    ranked = _has(diagram, "stable_rank")
    n = 1 + len(measures) + ranked
    columns = 2 if n > 2 else n
    rows = math.ceil(n / columns)
    width, height = _size(diagram, _every_run(diagram))
    with style.single(columns * (width + 0.2), rows * (height + 0.75) + 1.0) as figure:
        parts = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
        for unused in parts[n:]:
            unused.set_axis_off()
        _phases(parts[0], diagram)
        parts[0].set_title("phase", fontsize=9)
        handles: list[Any] = []
        for axes, measure in zip(parts[1:], measures, strict=False):
            best = _best_for(measure, best_over)
            slots = (len(diagram.seeds), 0) if best else _every_run(diagram)
            image, more = _accuracies(axes, diagram, measure, slots, best)
            names = [handle.get_label() for handle in handles]
            handles += [entry for entry in more if entry.get_label() not in names]
            _bar(figure, axes, image, _title(measure, best))
        if ranked:
            image, more = _bubbles(parts[n - 1], diagram, "stable_rank")
            _bar(figure, parts[n - 1], image, MEASURES["stable_rank"][0])
            handles += more
        states = [_state_handle(state) for state in _states(diagram.cells)]
        _legend(figure, [*states, *handles], columns=4)
    return figure


def measures_of(diagram: Diagram) -> Iterator[str]:
    """The measures that runs of a diagram have, of those that are drawn as maps."""
    for name in ("ood_accuracy", "id_accuracy", "symmetric_accuracy", "commutativity"):
        if _has(diagram, name):
            yield name


def ranks_of(diagram: Diagram) -> Iterator[Rank]:
    """The same of stable ranks."""
    names: tuple[Rank, ...] = ("stable_rank", "stable_rank_ratio")
    for name in names:
        if _has(diagram, name):
            yield name


def _has(diagram: Diagram, measure: str) -> bool:
    return any(cell.measures[measure].n for cell in diagram.cells)


def _colour(image: "ScalarMappable", value: float) -> Any:
    return image.to_rgba(np.asarray(value))


def _best_for(measure: str, best_over: dict[str, int] | None) -> dict[str, int]:
    return (best_over or {}) if measure in BEST_OF else {}


def _bar(figure: "Figure", axes: "Axes", image: "ScalarMappable", title: str) -> None:
    from matplotlib.colors import LogNorm

    bar = figure.colorbar(image, ax=axes, location="top", aspect=32, shrink=0.9)
    if isinstance(image.norm, LogNorm):
        style.plain_ticks(bar.ax.xaxis)
    bar.set_label(title, fontsize=9)
    bar.ax.tick_params(labelsize=8, length=2)


def _title(measure: str, best_over: dict[str, int]) -> str:
    return MEASURES[measure][0] + _best_of(best_over)


def _best_of(best_over: dict[str, int]) -> str:
    if not best_over:
        return ""
    return ", best of " + " x ".join(f"{n} {label(name)}s" for name, n in best_over.items())


def _size(diagram: Diagram, slots: _Slots) -> tuple[float, float]:
    """Width and height of a grid with its axes, in inches."""
    rows = len(diagram.y.values) if diagram.y else 1
    cell = _cell_width(slots)
    tall = max(0.5, 0.2 * math.ceil(slots[0] / _columns(slots)))
    return 0.85 + cell * len(diagram.x.values), 0.6 + tall * rows


def _cell_width(slots: _Slots) -> float:
    return min(1.3, max(0.52, 0.17 * _columns(slots)))


def _columns(slots: _Slots) -> int:
    n, columns = slots
    return columns or (n if n <= 4 else math.ceil(math.sqrt(1.4 * n)))


def _every_run(diagram: Diagram) -> _Slots:
    """A place for every run; where a seed has several, a row a seed."""
    a_seed = diagram.slots // len(diagram.seeds)
    return diagram.slots, a_seed if 1 < a_seed <= 10 else 0


def _grid_figure(
    diagram: Diagram, slots: _Slots, *, legend: float, bar: bool = False
) -> "AbstractContextManager[Figure]":
    width, height = _size(diagram, slots)
    return style.single(max(3.6, width), height + 0.2 * (1 + legend) + 0.55 * bar)


def _places(slots: _Slots, *, bottom: float = -_WIDTH / 2) -> _Places:
    columns = _columns(slots)
    return _Places(columns, math.ceil(slots[0] / columns), bottom, _cell_width(slots))


def _centres(diagram: Diagram) -> Iterator[tuple[Cell, int, int]]:
    """Every cell with its column and row."""
    for cell in diagram.cells:
        row = diagram.y.values.index(cell.y) if diagram.y else 0
        yield cell, diagram.x.values.index(cell.x), row


def _frame(axes: "Axes", diagram: Diagram) -> None:
    """Axes of a grid, and in front of each cell what a pointer meets."""
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
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    for cell, column, row in _centres(diagram):
        _hit(axes, cell.number, column - 0.5, row - 0.5, 1, 1)


def _hit(axes: "Axes", number: int, x: float, y: float, width: float, height: float) -> None:
    """An invisible rectangle that a page makes a button of."""
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle((x, y), width, height, facecolor="none", edgecolor="none", zorder=20,
                  gid=f"cell-{number}")
    )  # fmt: skip


def _phases(axes: "Axes", diagram: Diagram) -> None:
    places = _places(_every_run(diagram))
    for cell, column, row in _centres(diagram):
        for run in cell.runs:
            left, low = places.corner(run.slot)
            _state(axes, run.state, column + left, row + low, places)
    _frame(axes, diagram)


def _state(axes: "Axes", state: State, x: float, y: float, places: _Places) -> None:
    """A place with its state: filled and lettered, or an empty frame with a mark."""
    width, height = places.size
    _box(axes, x, y, width, height, state)
    axes.text(x + width / 2, y + height / 2, STATES[state], ha="center", va="center_baseline",
              fontsize=min(9, 0.72 * places.points), color=_letter(state))  # fmt: skip


def _letter(state: State) -> str:
    return "white" if state == "diverged" else _BLACK if state in COLOURS else INK


def _box(axes: "Axes", x: float, y: float, width: float, height: float, state: State) -> None:
    from matplotlib.patches import Rectangle

    gap = 0.025
    framed = state not in COLOURS or state == "diverged"  # which is as dark as a dark page
    axes.add_patch(
        Rectangle((x + gap / 2, y + gap / 2), width - gap, height - gap,
                  facecolor=COLOURS.get(state, "none"), edgecolor=INK if framed else "none",
                  linewidth=0.7, linestyle=(0, (2, 2)) if state == "missing" else "-")
    )  # fmt: skip


def _accuracies(
    axes: "Axes", diagram: Diagram, measure: str, slots: _Slots, best: dict[str, int]
) -> "tuple[ScalarMappable, list[Any]]":
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    image = ScalarMappable(Normalize(0, 1), "cividis")
    places = _places(slots, bottom=-0.12)
    width, height = places.size
    marked = measure in _MARKED
    striped = triangles = False
    for cell, column, row in _centres(diagram):
        order = {seed: place for place, seed in enumerate(diagram.seeds)}
        for key, value in cell.measures[measure].values.items():
            run = next(run for run in cell.runs if (run.seed if best else run.slot) == key)
            left, low = places.corner(order[key] if best else key)
            x, y = column + left, row + low
            if value is None:
                _state(axes, run.state, x, y, places)
                continue
            poor = marked and (cell.poor_id if best else run.poor_id)
            axes.add_patch(
                Rectangle((x + 0.0125, y + 0.0125), width - 0.025, height - 0.025, linewidth=0,
                          facecolor=_colour(image, value), hatch="/////" if poor else None,
                          edgecolor="#FFFFFF" if value < 0.6 else _BLACK)
            )  # fmt: skip
            striped |= poor
            if marked and (cell.poor_commutativity if best else run.poor_commutativity):
                axes.plot(x + width / 2, y + height / 2, "^", color=TRIANGLE, mec=_BLACK, mew=0.6,
                          ms=min(7, 0.62 * places.points))  # fmt: skip
                triangles = True
        _mean(axes, cell.measures[measure], column, row)
    outlined = marked and _outline(axes, diagram)
    _frame(axes, diagram)
    return image, list(_marks(striped, triangles, outlined))


def _mean(axes: "Axes", measured: Measured, column: int, row: int, *, places: int = 2) -> None:
    """The mean below the runs; with its number of runs if not all have a measurement."""
    text = "\N{EN DASH}" if measured.mean is None else f"{measured.mean:.{places}f}"
    if 0 < measured.n < len(measured.values):
        text += f" ({measured.n})"
    axes.text(column, row - 0.29, text, ha="center", va="center_baseline", fontsize=7, color=INK)


def _outline(axes: "Axes", diagram: Diagram) -> bool:
    """The border of the zone of poor mean ID accuracy."""
    zone = {(column, row) for cell, column, row in _centres(diagram) if cell.poor_id}
    for column, row in zone:
        for across, up in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            if (column + across, row + up) not in zone:
                x, y = column + across / 2, row + up / 2
                half_x, half_y = (0 if across else 0.5), (0 if up else 0.5)
                axes.plot((x - half_x, x + half_x), (y - half_y, y + half_y), color=INK,
                          linewidth=1.6, clip_on=False, solid_capstyle="projecting")  # fmt: skip
    return bool(zone)


def _marks(striped: bool, triangles: bool, outlined: bool) -> Iterator[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if striped:
        yield Patch(facecolor="#7C7B78", edgecolor="white", hatch="/////", label="ID < 0.9",
                    linewidth=0)  # fmt: skip
    if outlined:
        yield Line2D([], [], color=INK, linewidth=1.6, label="mean ID < 0.9")
    if triangles:
        yield Line2D([], [], marker="^", linestyle="", color=TRIANGLE, mec=_BLACK, mew=0.6, ms=6,
                     label="commutativity < 0.7")  # fmt: skip


def _bubbles(axes: "Axes", diagram: Diagram, measure: Rank) -> "tuple[ScalarMappable, list[Any]]":
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize

    known = [v for c in diagram.cells for v in c.measures[measure].values.values() if v is not None]
    low, high = min(known), max(known)
    logarithmic = measure == "stable_rank" and low > 0
    norm = LogNorm(low / 1.05, high * 1.05) if logarithmic else Normalize(0, max(1, high))
    image = ScalarMappable(norm, "cividis")
    places = _places(_every_run(diagram), bottom=-0.12)
    width, height = places.size
    largest = 0.98 * places.points
    odd = False
    for cell, column, row in _centres(diagram):
        for run in cell.runs:
            left, bottom = places.corner(run.slot)
            x, y = column + left, row + bottom
            value = run.values[measure]
            if value is None:
                _state(axes, run.state, x, y, places)
                continue
            index = PHASE_INDEX.get(run.phase) if run.phase else None
            odd |= index is None
            axes.plot(x + width / 2, y + height / 2, "o" if index else "D", mew=0.7, mec=INK,
                      color=_colour(image, value),
                      ms=largest * (_DIAMETERS[index] if index else 0.5))  # fmt: skip
        _mean(axes, cell.measures[measure], column, row, places=1 if logarithmic else 2)
    _frame(axes, diagram)
    return image, list(_bubble_handles(largest, odd))


def _bubble_handles(largest: float, odd: bool) -> Iterator[Any]:
    from matplotlib.lines import Line2D

    for index, size in _DIAMETERS.items():
        yield Line2D([], [], marker="o", linestyle="", color="none", mec=INK, mew=0.7,
                     ms=largest * size, label=f"phase {index}")  # fmt: skip
    if odd:
        yield Line2D([], [], marker="D", linestyle="", color="none", mec=INK, mew=0.7,
                     ms=largest / 2, label="undertrained, other")  # fmt: skip


def _along(axes: "Axes", diagram: Diagram, value: Value) -> None:
    cells = {diagram.x.values.index(cell.x): cell for cell in diagram.row(value)}
    for band in diagram.bands(value):
        _band(axes, band)
    columns = range(len(diagram.x.values))
    for name, colour, marker, shift in _CURVES:
        measured = [cells[c].measures[name] if c in cells else None for c in columns]
        _curve(axes, list(columns), measured, colour, marker, shift)
    _accuracy_axis(axes)
    axes.set_xlim(-0.5, len(diagram.x.values) - 0.5)
    for column, cell in cells.items():
        _strip(axes, cell.runs, column, 1.07, 0.9)
        _hit(axes, cell.number, column - 0.5, -0.06, 1, 1.38)


_CURVES = (("id_accuracy", ID, "o", -0.1), ("ood_accuracy", OOD, "s", 0.1))


def _band(axes: "Axes", band: Band) -> None:
    """The background of neighbouring columns, parted where seeds differ."""
    from matplotlib.patches import Rectangle

    left, width, bottom = band.first - 0.5, band.last - band.first + 1, 0.0
    n = sum(band.states.values())
    for state, times in band.states.items():
        axes.add_patch(
            Rectangle((left, bottom), width, times / n, facecolor=COLOURS.get(state, "none"),
                      alpha=0.3, linewidth=0, zorder=0)
        )  # fmt: skip
        bottom += times / n
    axes.plot((left, left), (0, 1), color=INK, linewidth=0.4, alpha=0.4, zorder=1)


def _strip(
    axes: "Axes", runs: Sequence[RunMark], centre: float, bottom: float, room: float
) -> None:
    """The states of some runs above a point: a lettered place each, or how many of which."""
    from matplotlib.patches import Rectangle

    height = 0.2
    if len(runs) > _MOST_LETTERS:
        found = [run.state for run in runs]
        counts = [(found.count(state), STATES[state]) for state in STATES if state in found]
        text = " ".join(f"{n}{letter}" for n, letter in counts)
        axes.text(centre, bottom + height / 2, text, ha="center", va="center_baseline", fontsize=7,
                  color=INK)  # fmt: skip
        return
    width = min(0.3, 1 / len(runs)) * room
    for place, run in enumerate(runs):
        left = centre + (place - len(runs) / 2) * width
        framed = run.state not in COLOURS or run.state == "diverged"
        axes.add_patch(
            Rectangle((left + 0.04 * width, bottom), 0.92 * width, height, linewidth=0.5,
                      facecolor=COLOURS.get(run.state, "none"), zorder=3,
                      edgecolor=INK if framed else "none",
                      linestyle=(0, (2, 2)) if run.state == "missing" else "-")
        )  # fmt: skip
        axes.text(left + width / 2, bottom + height / 2, STATES[run.state], ha="center",
                  va="center_baseline", fontsize=6, color=_letter(run.state), zorder=4)  # fmt: skip


def _curve(
    axes: "Axes",
    places: Sequence[float],
    measured: Sequence[Measured | None],
    colour: str,
    marker: str,
    shift: float,
    spread: float = 0.12,
    dashes: Literal["-", "--", ":", "-."] = "-",
) -> None:
    """Means with their intervals, joined where neighbours have one; every run beside them."""
    means = [math.nan if m is None or m.mean is None else m.mean for m in measured]
    at = [place + shift for place in places]
    axes.plot(at, means, dashes, marker=marker, color=colour, linewidth=1.3, ms=3.5, zorder=4)
    for place, m in zip(at, measured, strict=True):
        if m is None or m.mean is None:
            continue
        if m.low is not None and m.high is not None:
            axes.errorbar(place, m.mean, [[m.mean - m.low], [m.high - m.mean]], color=colour,
                          linewidth=0.9, capsize=2, zorder=3)  # fmt: skip
        values = [value for value in m.values.values() if value is not None]
        axes.plot([place + math.copysign(spread, shift)] * len(values), values, ".", color=colour,
                  ms=4.5, alpha=0.7, zorder=3, mew=0)  # fmt: skip


def _accuracy_axis(axes: "Axes") -> None:
    axes.set_ylabel("accuracy", fontsize=8)
    axes.set_ylim(-0.06, 1.32)
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.tick_params(labelsize=8)


def _accuracy_legend(figure: "Figure", best: dict[str, int], series: Sequence[str] = ()) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, marker=marker, ms=3.5, linewidth=1.3,
               label=MEASURES[name][0])
        for name, colour, marker, _ in _CURVES
    ]  # fmt: skip
    handles += [
        Line2D([], [], color=INK, linestyle=_DASHES[i % len(_DASHES)],
               marker=_MARKERS[i % len(_MARKERS)], ms=3.5, linewidth=1.1, label=text)
        for i, text in enumerate(series)
    ]  # fmt: skip
    title = _best_of(best).lstrip(", ") or None
    figure.legend(handles=handles, frameon=False, fontsize=8, loc="outside upper center", ncols=2,
                  title=title, title_fontsize=8)  # fmt: skip


def _points(panels: Sequence[DecayPanel]) -> Iterator[DecayPoint]:
    for panel in panels:
        for series in panel.series:
            yield from series.points


def _decay_positions(totals: Sequence[float]) -> dict[float, float]:
    """Where effective decays stand: by their logarithm, zero apart at the left."""
    logs = {total: math.log10(total) for total in totals if total > 0}
    start = math.floor(min(logs.values(), default=0))
    return dict(sorted((logs | ({0.0: start - 0.6} if 0 in totals else {})).items()))


def _decay_axis(axes: "Axes", positions: dict[float, float]) -> None:
    powers = [place for total, place in positions.items() if total > 0]
    first = math.floor(min(powers, default=0))
    ticks = [float(p) for p in range(first, math.ceil(max(powers, default=0)) + 1)]
    labels = [f"{10.0**tick:g}" for tick in ticks]
    if 0 in positions:
        ticks, labels = [positions[0.0], *ticks], ["0", *labels]
    axes.set_xticks(ticks, labels)
    axes.set_xlabel("effective decay: sum of learning rate x weight decay", fontsize=9)


def _decay_panel(axes: "Axes", panel: DecayPanel, positions: dict[float, float]) -> None:
    span = max(positions.values()) - min(positions.values()) or 1.0
    reach, nudge = 0.04 * span, 0.012 * span
    for number, series in enumerate(panel.series):
        at = [positions[point.total_decay] for point in series.points]
        for name, colour, _, shift in _CURVES:
            measured = [p.id if name == "id_accuracy" else p.ood for p in series.points]
            _decay_curve(axes, at, measured, colour, number, math.copysign(nudge, shift))
        for point, place in zip(series.points, at, strict=True):
            _strip(axes, point.runs, place, 1.07 + 0.25 * number, 0.16 * span)
            _hit(axes, point.cell, place - reach, -0.06, 2 * reach, 1.38 + 0.25 * number)
    _accuracy_axis(axes)
    axes.set_ylim(-0.06, 1.32 + 0.25 * (len(panel.series) - 1))
    axes.set_xlim(min(positions.values()) - 2 * reach, max(positions.values()) + 2 * reach)
    axes.grid(alpha=0.25)
    axes.set_title(words(panel.settings), fontsize=8, loc="left")


def _decay_curve(
    axes: "Axes",
    at: Sequence[float],
    measured: Sequence[Measured],
    colour: str,
    number: int,
    nudge: float,
) -> None:
    marker, dashes = _MARKERS[number % len(_MARKERS)], _DASHES[number % len(_DASHES)]
    _curve(axes, at, measured, colour, marker, nudge, abs(nudge), dashes)


def _states(cells: Sequence[Cell]) -> list[State]:
    return [state for state in STATES if any(state in cell.states for cell in cells)]


def _state_legend(figure: "Figure", states: Sequence[State]) -> None:
    _legend(figure, [_state_handle(state) for state in states])


def _state_handle(state: State) -> Any:
    from matplotlib.patches import Patch

    framed = state not in COLOURS or state == "diverged"  # which is as dark as a dark page
    return Patch(facecolor=COLOURS.get(state, "none"), edgecolor=INK if framed else "none",
                 linewidth=0.7, label=f"{STATES[state]}  {state}",
                 linestyle=(0, (2, 2)) if state == "missing" else "-")  # fmt: skip


def _legend(figure: "Figure", handles: Sequence[Any], *, columns: int = 3) -> None:
    if handles:
        figure.legend(handles=handles, frameon=False, fontsize=7.5, ncols=columns,
                      loc="outside lower center", handlelength=1.3, columnspacing=1.2)  # fmt: skip
