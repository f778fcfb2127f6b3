"""Figures of what networks draw, and of how their layers change along training."""

import functools

import numpy as np
from jaxtyping import UInt8
from matplotlib.figure import Figure

from anchor_interp.analysis.development import Development, development_of
from anchor_interp.pages import style
from anchor_interp.runs.run import Run
from anchor_interp.tasks.network import OwnFigure

from .drawings import Drawings, drawings


def report_figures(run: Run) -> tuple[OwnFigure, ...]:
    """What a report draws of a run on pictures; it is measured here and drawn later."""
    grid = OwnFigure(
        "drawings",
        "What the network draws of every node, after a real picture. A frame marks drawings of "
        "which the judge reads an attribute wrong; the number is the share without.",
        functools.partial(drawing_grid, drawings(run)),
    )
    if len(run.steps) == 1:
        return (grid,)
    development = development_of(run)
    words = {"stable_rank": "Stable rank", "condensation": "Condensation"}
    return grid, *(
        OwnFigure(f"layers-{measure.replace('_', '-')}",
                  f"{title} of every layer along training, over its initial value.",
                  functools.partial(layer_map, development, measure))
        for measure, title in words.items()
    )  # fmt: skip


def drawing_grid(shown: Drawings) -> Figure:
    """A row of drawings for each node, after a real picture; wrong ones are framed."""
    n_nodes, n, _, side, _ = shown.drawn.shape
    gap = 2
    step = side + gap
    sheet = tiled(np.concatenate([shown.real[:, None], shown.drawn], 1), gap)
    with style.panel(1.9 + 0.36 * (n + 1), 0.4 + 0.38 * n_nodes) as (figure, axes):
        axes.imshow(sheet, interpolation="nearest")
        for row, column in np.argwhere(~shown.right.all(2)):
            corner = ((column + 1) * step - 0.5, row * step - 0.5)
            style.frame(axes, corner, side, edgecolor=style.CHOSEN, linewidth=2)
        each = zip(shown.titles, shown.roles, shown.shares, strict=True)
        labels = [f"{title}{role and f' ({role})'}  {share:.0%}" for title, role, share in each]
        axes.set_yticks([row * step + side / 2 for row in range(n_nodes)], labels, fontsize=8)
        axes.set_xticks([side / 2, step + n * step / 2], ["real", "drawn"], fontsize=8)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
    return figure


def tiled(
    pictures: UInt8[np.ndarray, "row column 3 y x"], gap: int = 2
) -> UInt8[np.ndarray, "height width 3"]:
    """Pictures side by side on white."""
    n_rows, n_columns, _, height, width = pictures.shape
    sheet = np.full((n_rows, height + gap, n_columns, width + gap, 3), 255, np.uint8)
    sheet[:, :height, :, :width] = pictures.transpose(0, 3, 1, 4, 2)
    flat = sheet.reshape(n_rows * (height + gap), n_columns * (width + gap), 3)
    return flat[:-gap, :-gap]


def layer_map(development: Development, measure: str) -> Figure:
    """A measure of every layer at every checkpoint, over its value at the first one."""
    values = np.array([[style.or_nan(v) for v in row] for row in getattr(development, measure)])
    shares = (values / values[0]).T  # [layer, step]
    with style.panel(4.6, 0.6 + 0.18 * len(development.names)) as (figure, axes):
        image = axes.imshow(shares, vmin=0, vmax=2, cmap="PuOr_r", aspect="auto")
        style.colour_bar(image, axes, f"{measure.replace('_', ' ')} / initial")
        axes.set_yticks(range(len(development.names)), development.names, fontsize=8)
        places = np.unique(np.linspace(0, len(development.steps) - 1, 5).astype(int))
        axes.set_xticks(places, [f"{development.steps[place]:,}" for place in places])
        axes.set(xlabel="step")
    return figure
