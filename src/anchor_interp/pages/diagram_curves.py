"""ID and OOD accuracy as curves along an axis of a phase diagram."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from anchor_interp.pages import diagram_marks, style
from anchor_interp.pages.diagram_marks import COLOURS, add_hit_area, add_legend, state_handles
from anchor_interp.pages.style import INK
from anchor_interp.sweeps.cells import MEASURE_LABELS, STATE_MARKS, Measured, in_order
from anchor_interp.sweeps.columns import TableRow, Value, word
from anchor_interp.sweeps.diagrams import Diagram

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ID, OOD = "#2F86C6", "#D55E00"
"""Colours that are visible on white and on a dark page (complexity-control paper, figure 3A)."""
_CURVES = (("id_accuracy", ID, "o", -0.1), ("ood_accuracy", OOD, "s", 0.1))
_MOST_LETTERS = 6  # above a point; more runs are counted instead


def along_axis(diagram: Diagram, *, best_over: Mapping[str, int] | None = None) -> "Figure":
    """Both accuracies along the horizontal axis with its phases, one panel per value of the other.

    Source: complexity-control paper, figure 3A.
    """
    from matplotlib.lines import Line2D

    values, ticks = diagram.rows, [*map(diagram_marks.tick, diagram.x.values)]
    few = all(len(cell.runs) <= 3 for cell in diagram.cells)
    letters = max(map(len, "\n".join(ticks).split("\n")))
    width = max(3.3, 0.9 + max(0.34 if few else 0.5, 0.1 + 0.07 * letters) * len(ticks))
    with style.single(width, 1.0 + 1.35 * len(values)) as figure:
        panels = figure.subplots(len(values), 1, sharex=True, squeeze=False)[:, 0]
        for axes, value in zip(panels, reversed(values), strict=True):
            _draw_row(axes, diagram, value)
            if diagram.y:
                axes.set_title(f"{diagram.y.label} {word(value)}", fontsize=8, loc="left")
        panels[-1].set_xticks(range(len(ticks)), ticks)
        panels[-1].set_xlabel(diagram.x.label, fontsize=9)
        handles = [
            Line2D([], [], color=colour, marker=marker, ms=3.5, lw=1.3, label=MEASURE_LABELS[name])
            for name, colour, marker, _ in _CURVES
        ]
        title = diagram_marks.best_words(best_over or {}) or None
        figure.legend(handles=handles, frameon=False, fontsize=8, loc="outside upper center",
                      ncols=2, title=title, title_fontsize=8)  # fmt: skip
        add_legend(figure, state_handles(diagram.cells))
    return figure


def _draw_row(axes: "Axes", diagram: Diagram, value: Value) -> None:
    from matplotlib.patches import Rectangle

    cells = diagram.row(value)
    for column, cell in cells.items():  # the background; parted where seeds differ
        left, bottom, before = column - 0.5, 0.0, cells.get(column - 1)
        for state, times in cell.states.items():
            height, colour = times / len(cell.runs), COLOURS.get(state, "none")
            axes.add_patch(Rectangle((left, bottom), 1, height, facecolor=colour, alpha=0.3,
                                     linewidth=0, zorder=0, antialiased=False))  # fmt: skip
            bottom += height
        if before is None or len({*before.states, *cell.states}) > 1:
            axes.plot((left, left), (0, 1), color=INK, linewidth=0.4, alpha=0.4, zorder=1)
    columns = range(len(diagram.x.values))
    for name, colour, marker, shift in _CURVES:
        measured = [cells[c].measures[name] if c in cells else None for c in columns]
        _draw_curve(axes, measured, colour, marker, shift)
    axes.set_ylabel("accuracy", fontsize=8)
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.tick_params(labelsize=8)
    axes.set(xlim=(-0.5, len(diagram.x.values) - 0.5), ylim=(-0.06, 1.32))
    for column, cell in cells.items():
        _draw_states(axes, cell.runs, column)
        add_hit_area(axes, cell.number, (column - 0.5, -0.06), 1, 1.38)


def _draw_states(axes: "Axes", runs: Sequence[TableRow], column: int) -> None:
    """Draw the states of runs above a point: one letter per run, or a count per state."""
    bottom, height = 1.07, 0.2
    if len(runs) > _MOST_LETTERS:
        states = in_order(Counter(run["state"] for run in runs))
        text = " ".join(f"{n}{STATE_MARKS[state]}" for state, n in states.items())
        axes.text(column, bottom + height / 2, text, ha="center", va="center_baseline",
                  fontsize=7.5, color=INK)  # fmt: skip
        return
    width = min(0.27, 0.9 / len(runs))
    for place, run in enumerate(runs):
        left = column + (place - len(runs) / 2) * width
        box = left + 0.04 * width, bottom, 0.92 * width, height
        diagram_marks.draw_state(axes, run["state"], box, fontsize=7.5, linewidth=0.5, zorder=3)


def _draw_curve(
    axes: "Axes", measured: Sequence[Measured | None], colour: str, marker: str, shift: float
) -> None:
    """Draw means with their intervals, joined between neighbours, and every run beside them."""
    means = [math.nan if m is None or m.mean is None else m.mean for m in measured]
    at = [place + shift for place in range(len(measured))]
    axes.plot(at, means, "-", marker=marker, color=colour, linewidth=1.3, ms=3.5, zorder=4)
    for place, m in zip(at, measured, strict=True):
        if m is None or m.mean is None:
            continue
        if m.low is not None and m.high is not None:
            axes.errorbar(place, m.mean, [[m.mean - m.low], [m.high - m.mean]], color=colour,
                          linewidth=0.9, capsize=2, zorder=3)  # fmt: skip
        values = [value for value in m.values.values() if value is not None]
        axes.plot([place + math.copysign(0.12, shift)] * len(values), values, ".", color=colour,
                  ms=4.5, alpha=0.7, zorder=3, mew=0)  # fmt: skip
