"""Figures of right and wrong answers: where in the plane of two numbers they lie."""

import math
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Integer, Shaped

from anchor_interp.pages import style
from anchor_interp.tasks.examples import Plane

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_CELLS = 100


def plane_of_errors(
    plane: Plane,
    x: Integer[np.ndarray, " n"],
    y: Integer[np.ndarray, " n"],
    right: Shaped[np.ndarray, " n"],
) -> "Figure":
    """The share of right answers (each 0 to 1) over a plane of two numbers, from 0 on.

    A cell without an example stays white. Cells grow until there are at most 100 a side, and on
    average an example or more in each.
    """
    square = plane.square
    n_numbers = 1 + int(max(x.max(initial=0), y.max(initial=0), square[1] if square else 0))
    width = math.ceil(n_numbers / min(_MOST_CELLS, max(1, math.isqrt(len(right)))))
    n_cells = math.ceil(n_numbers / width)
    cell = (y // width) * n_cells + x // width
    counts, rights = (np.bincount(cell, w, n_cells**2) for w in (np.ones(len(x)), right))
    with np.errstate(invalid="ignore"):
        shares = (rights / counts).reshape(n_cells, n_cells)  # NaN where there is no example
    with style.panel(5.2, 4.4) as (figure, axes):
        edges = (-0.5, n_cells * width - 0.5)
        image = axes.imshow(
            shares, vmin=0, vmax=1, cmap="cividis", origin="lower", extent=(*edges, *edges)
        )
        style.colour_bar(image, axes, "right answers")
        if square is not None:
            low, high = square
            style.frame(
                axes, (low - 0.5, low - 0.5), high - low + 1, edgecolor=style.CHOSEN, linewidth=1.5
            )
        axes.set(
            xlabel=plane.x,
            ylabel=plane.y,
            xlim=(-0.5, n_numbers - 0.5),
            ylim=(-0.5, n_numbers - 0.5),
        )
    return figure
