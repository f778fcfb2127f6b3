"""How phase diagrams show a run's state, and what their figures share.

Colour and letter tell a phase; a mark tells a run that is not done. Every cell has an SVG group
``cell-NUMBER``, by which a page finds it in every figure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anchor_interp.pages.style import INK, PHASE_COLOURS
from anchor_interp.sweeps.cells import STATE_MARKS, Cell, RunState
from anchor_interp.sweeps.columns import Value, label, word

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Mapping[str, str] = {**PHASE_COLOURS, "diverged": "#3A3A3A"}
"""Colours of states; the others are empty frames."""
BLACK = "#000000"


def draw_state(
    axes: "Axes", state: RunState, box: tuple[float, ...], *, fontsize: float, linewidth: float,
    zorder: int = 1,
) -> None:  # fmt: skip
    """Draw the letter of a state on its colour, or its mark in a frame: x, y, width, height."""
    from matplotlib.patches import Rectangle

    x, y, width, height = box
    style = _style(state) | {"linewidth": linewidth, "zorder": zorder}
    axes.add_patch(Rectangle((x, y), width, height, **style))
    colour = "white" if state == "diverged" else BLACK if state in COLOURS else INK
    axes.text(x + width / 2, y + height / 2, STATE_MARKS[state], ha="center", va="center_baseline",
              color=colour, fontsize=fontsize, zorder=zorder + 2)  # fmt: skip


def add_hit_area(axes: "Axes", cell: int, corner: tuple[float, float], w: float, h: float) -> None:
    """Add an invisible rectangle that a page turns into a button."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle(corner, w, h, fc="none", ec="none", zorder=20, gid=f"cell-{cell}"))


def state_handles(cells: Iterable[Cell]) -> list[Any]:
    """Legend entries of the states that occur."""
    from matplotlib.patches import Patch

    present = {state for cell in cells for state in cell.states}
    marks = {state: mark for state, mark in STATE_MARKS.items() if state in present}
    return [Patch(linewidth=0.7, label=f"{m}  {s}", **_style(s)) for s, m in marks.items()]


def add_legend(figure: "Figure", handles: Sequence[Any], *, columns: int = 3) -> None:
    """Put a legend below the figure, if there are entries."""
    if handles:
        in_rows = [handle for column in range(columns) for handle in handles[column::columns]]
        figure.legend(handles=in_rows, frameon=False, fontsize=7.5, ncols=columns,
                      loc="outside lower center", handlelength=1.3, columnspacing=1.2)  # fmt: skip


def tick(value: Value) -> str:
    """A value on an axis; a schedule has a line for each piece."""
    return word(value).replace("; ", "\n")


def room(values: Iterable[Value]) -> float:
    """Inches that the longest piece of a schedule takes beside its axis; 0 for other values."""
    lines = "\n".join(map(tick, values)).split("\n")
    return 0.065 * max((len(line) for line in lines if " " in line), default=0)


def best_words(best_over: Mapping[str, int]) -> str:
    """What the best is taken over, such as ``best of 9 learning rates``; empty if nothing."""
    values = " x ".join(f"{n} {label(name)}s" for name, n in best_over.items())
    return f"best of {values}" if values else ""


def _style(state: RunState) -> dict[str, Any]:
    """Fill and frame of a state; ``diverged`` is framed because it is as dark as a dark page."""
    return {
        "facecolor": COLOURS.get(state, "none"),
        "edgecolor": INK if state not in COLOURS or state == "diverged" else "none",
        "linestyle": (0, (2, 2)) if state == "missing" else "-",
    }
