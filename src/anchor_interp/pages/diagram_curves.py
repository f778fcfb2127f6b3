"""ID and OOD accuracy as curves: along an axis of a phase diagram, and over effective decay."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Literal, get_args

from anchor_interp.pages import diagram_marks, style
from anchor_interp.pages.diagram_marks import COLOURS, add_hit_area, add_legend, state_handles
from anchor_interp.pages.style import INK
from anchor_interp.sweeps.cells import MEASURES, STATE_MARKS, Measured, RunMark, in_order
from anchor_interp.sweeps.decay import DecayPanel
from anchor_interp.sweeps.diagrams import Diagram, Diagrams
from anchor_interp.sweeps.settings import Value, word, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ID, OOD = "#2F86C6", "#D55E00"
"""Colours that are visible on white and on a dark page (complexity-control paper, figure 3A)."""
_CURVES = (("id_accuracy", ID, "o", -0.1), ("ood_accuracy", OOD, "s", 0.1))
_MARKERS = ("o", "s", "D", "v", "P", "X")
_Dashes = Literal["-", "--", ":", "-."]
_DASHES: tuple[_Dashes, ...] = get_args(_Dashes)
_MOST_LETTERS = 6  # above a point; more runs are counted instead


def along_axis(diagram: Diagram, *, best_over: Mapping[str, int] | None = None) -> "Figure":
    """Both accuracies along the horizontal axis with its phases, one panel per value of the other.

    Source: complexity-control paper, figure 3A.
    """
    values, ticks = diagram.rows, diagram.x.values
    width = max(4.2, 1.0 + 0.5 * len(ticks))
    with style.single(width, 1.0 + 1.35 * len(values)) as figure:
        panels = figure.subplots(len(values), 1, sharex=True, squeeze=False)[:, 0]
        for axes, value in zip(panels, reversed(values), strict=True):
            _draw_row(axes, diagram, value)
            if diagram.y:
                axes.set_title(f"{diagram.y.label} {word(value)}", fontsize=8, loc="left")
        panels[-1].set_xticks(range(len(ticks)), list(map(word, ticks)))
        panels[-1].set_xlabel(diagram.x.label, fontsize=9)
        _add_accuracy_legend(figure, best_over or {})
        add_legend(figure, state_handles(diagram.cells))
    return figure


def over_decay(diagrams: Diagrams) -> "Figure":
    """Both accuracies over effective decay, one panel for each value of what else varies."""
    n = len(diagrams.decay)
    series = [series for panel in diagrams.decay for series in panel.series]
    positions, ticks = _decay_axis({point.total_decay for s in series for point in s.points})
    names = sorted({words(s.settings) for s in series})
    with style.single(4.4, 1.1 + 1.35 * n + 0.1 * len(names)) as figure:
        panels = figure.subplots(n, 1, sharex=True, squeeze=False)[:, 0]
        for axes, panel in zip(panels, reversed(diagrams.decay), strict=True):
            _draw_decay(axes, panel, positions)
        panels[-1].set_xticks(list(ticks.values()), list(ticks))
        panels[-1].set_xlabel("effective decay: sum of learning rate x weight decay", fontsize=9)
        _add_accuracy_legend(figure, {}, names if len(names) > 1 else ())
        add_legend(figure, state_handles(diagrams.cells))
    return figure


def _draw_row(axes: "Axes", diagram: Diagram, value: Value) -> None:
    from matplotlib.patches import Rectangle

    cells = diagram.row(value)
    for band in diagram.bands(value):  # the background; parted where seeds differ
        left, width, bottom = band.first - 0.5, band.last - band.first + 1, 0.0
        for state, times in band.states.items():
            height, colour = times / sum(band.states.values()), COLOURS.get(state, "none")
            axes.add_patch(Rectangle((left, bottom), width, height, facecolor=colour, alpha=0.3,
                                     linewidth=0, zorder=0))  # fmt: skip
            bottom += height
        axes.plot((left, left), (0, 1), color=INK, linewidth=0.4, alpha=0.4, zorder=1)
    columns = range(len(diagram.x.values))
    for name, colour, marker, shift in _CURVES:
        measured = [cells[c].measures[name] if c in cells else None for c in columns]
        _draw_curve(axes, columns, measured, colour, marker, shift)
    _label_accuracy(axes)
    axes.set_xlim(-0.5, len(diagram.x.values) - 0.5)
    for column, cell in cells.items():
        _draw_states(axes, cell.runs, column, 1.07, 0.9)
        add_hit_area(axes, cell.number, (column - 0.5, -0.06), 1, 1.38)


def _draw_decay(axes: "Axes", panel: DecayPanel, positions: Mapping[float, float]) -> None:
    span = max(positions.values()) - min(positions.values()) or 1.0
    reach, nudge = 0.04 * span, 0.012 * span
    for number, series in enumerate(panel.series):
        at = [positions[point.total_decay] for point in series.points]
        marker, dashes = _series_style(number)
        for name, colour, _, shift in _CURVES:
            measured = [p.id if name == "id_accuracy" else p.ood for p in series.points]
            shift = math.copysign(nudge, shift)
            _draw_curve(axes, at, measured, colour, marker, shift, nudge, dashes)
        for point, place in zip(series.points, at, strict=True):
            _draw_states(axes, point.runs, place, 1.07 + 0.25 * number, 0.16 * span)
            height = 1.38 + 0.25 * number
            add_hit_area(axes, point.cell, (place - reach, -0.06), 2 * reach, height)
    _label_accuracy(axes)
    axes.set_ylim(-0.06, 1.32 + 0.25 * (len(panel.series) - 1))
    axes.set_xlim(min(positions.values()) - 2 * reach, max(positions.values()) + 2 * reach)
    axes.grid(alpha=0.25)
    axes.set_title(words(panel.settings), fontsize=8, loc="left")


def _draw_states(
    axes: "Axes", runs: Sequence[RunMark], centre: float, bottom: float, room: float
) -> None:
    """Draw the states of runs above a point: one letter per run, or a count per state."""
    height = 0.2
    if len(runs) > _MOST_LETTERS:
        states = in_order(Counter(run.state for run in runs))
        text = " ".join(f"{n}{STATE_MARKS[state]}" for state, n in states.items())
        axes.text(centre, bottom + height / 2, text, ha="center", va="center_baseline",
                  fontsize=7.5, color=INK)  # fmt: skip
        return
    width = min(0.3, 1 / len(runs)) * room
    for place, run in enumerate(runs):
        left = centre + (place - len(runs) / 2) * width
        box = left + 0.04 * width, bottom, 0.92 * width, height
        diagram_marks.draw_state(axes, run.state, box, fontsize=7.5, linewidth=0.5, zorder=3)


def _draw_curve(
    axes: "Axes", places: Sequence[float], measured: Sequence[Measured | None], colour: str,
    marker: str, shift: float, spread: float = 0.12, dashes: str = "-",
) -> None:  # fmt: skip
    """Draw means with their intervals, joined between neighbours, and every run beside them."""
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


def _label_accuracy(axes: "Axes") -> None:
    axes.set_ylabel("accuracy", fontsize=8)
    axes.set_ylim(-0.06, 1.32)
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.tick_params(labelsize=8)


def _add_accuracy_legend(
    figure: "Figure", best_over: Mapping[str, int], series: Sequence[str] = ()
) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, marker=marker, ms=3.5, linewidth=1.3, label=MEASURES[name])
        for name, colour, marker, _ in _CURVES
    ]
    for number, text in enumerate(series):
        marker, dashes = _series_style(number)
        handles += [Line2D([], [], color=INK, marker=marker, linestyle=dashes, ms=3.5,
                           linewidth=1.1, label=text)]  # fmt: skip
    title = diagram_marks.best_words(best_over) or None
    figure.legend(handles=handles, frameon=False, fontsize=8, loc="outside upper center", ncols=2,
                  title=title, title_fontsize=8)  # fmt: skip


def _series_style(number: int) -> tuple[str, _Dashes]:
    """Marker and dashes."""
    return _MARKERS[number % len(_MARKERS)], _DASHES[number % len(_DASHES)]


def _decay_axis(totals: Set[float]) -> tuple[dict[float, float], dict[str, float]]:
    """Where effective decays and ticks stand: at the logarithm, and zero apart at the left."""
    places = {total: math.log10(total) for total in totals if total > 0}
    low, high = (end(places.values(), default=0.0) for end in (min, max))
    ticks = {f"{10.0**n:g}": float(n) for n in range(math.floor(low), math.ceil(high) + 1)}
    if 0 in totals:
        places[0.0] = math.floor(low) - 0.6
        ticks = {"0": places[0.0]} | ticks
    return places, ticks
