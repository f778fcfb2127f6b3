"""Figures of right and wrong answers: where in the plane of two numbers they lie."""

import math
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Integer

from anchor_interp.pages import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_CELLS = 100


def plane_of_errors(
    a: Integer[np.ndarray, " n"],
    b: Integer[np.ndarray, " n"],
    right: Bool[np.ndarray, " n"],
    *,
    region: tuple[int, int] | None,
) -> "Figure":
    """The share of right answers over the plane of two operands, from 0 on.

    A cell without an example stays white. Cells grow until there are at most 100 a side, and on
    average an example or more in each.

    Args:
        a: first operands.
        b: second operands.
        right: which answers are right.
        region: the smallest and the largest operand of a square to frame; None for no frame.
    """
    n_operands = 1 + int(max(a.max(initial=0), b.max(initial=0), region[1] if region else 0))
    width = math.ceil(n_operands / min(_MOST_CELLS, max(1, math.isqrt(len(right)))))
    n_cells = math.ceil(n_operands / width)
    cell = (b // width) * n_cells + a // width
    counts, rights = (np.bincount(cell, w, n_cells**2) for w in (np.ones(len(a)), right))
    with np.errstate(invalid="ignore"):
        shares = (rights / counts).reshape(n_cells, n_cells)  # NaN where there is no example
    with style.panel(5.2, 4.4) as (figure, axes):
        edges = (-0.5, n_cells * width - 0.5)
        image = axes.imshow(
            shares, vmin=0, vmax=1, cmap="cividis", origin="lower", extent=(*edges, *edges)
        )
        style.colour_bar(image, axes, "right sums")
        if region is not None:
            low, high = region
            style.frame(
                axes, (low - 0.5, low - 0.5), high - low + 1, edgecolor=style.CHOSEN, linewidth=1.5
            )
        axes.set(
            xlabel="a", ylabel="b", xlim=(-0.5, n_operands - 0.5), ylim=(-0.5, n_operands - 0.5)
        )
    return figure
