"""The runs behind the NeurIPS paper's figure 2, in the shape from which a scale starts."""

import itertools
import math
from dataclasses import replace

import numpy as np

from anchor_interp.runs.config import RunConfig, override, total_decay
from anchor_interp.runs.presets import preset
from anchor_interp.sweeps.spec import Grid, Sweep

PAPER = preset("paper-1head")  # the paper's model and training (appendix A)
DEPTHS, GAMMAS, SEEDS_A_CELL = (2, 3, 4), (0.2, 0.33, 0.47, 0.6, 0.73, 0.87, 1.0), 3


def paper_rates(width: int) -> tuple[float, ...]:
    """Nine learning rates, evenly over the paper's 1e-4 to 3e-4, times 400 / ``width``.

    A step of Adam moves every weight by about the rate, whatever its gradient. So a sum over
    ``width`` inputs moves by about rate x width, which is held at the paper's.
    """
    rates = np.linspace(1e-4, 3e-4, 9) * PAPER.model.d_model / width
    return tuple(float(f"{rate:.4g}") for rate in rates)


def middle_rate(width: int) -> float:
    """The middle one of the nine rates."""
    return paper_rates(width)[4]


def figure_2(start: RunConfig) -> Sweep:
    """Depth x gamma x rate. Every cell has seeds of its own: cells are independent witnesses."""
    rates, grids = paper_rates(start.model.d_model), []
    for number, (depth, gamma) in enumerate(itertools.product(DEPTHS, GAMMAS)):
        first = 700 + SEEDS_A_CELL * number
        seeds = tuple(range(first, first + SEEDS_A_CELL))
        cell = override(start, n_layers=depth, gamma=gamma)
        grids.append(Grid(cell, {"lr": rates}, seeds=seeds))
    return Sweep(tuple(grids))


def distance(start: RunConfig) -> list[tuple[str, str, str]]:
    """What tells the runs of :func:`figure_2` from the paper's: what, here, in the paper."""

    def told(run: RunConfig) -> dict[str, str]:
        width, train = run.model.d_model, run.train
        rates = paper_rates(width)
        decays = [total_decay(replace(train, lr=rate)) for rate in (rates[0], rates[-1])]
        shrunk = math.log(start.model.d_model) / math.log(PAPER.model.d_model)
        alike = f", that of gamma {GAMMAS[-1] * shrunk:.2f} at width {PAPER.model.d_model}"
        return {
            "width": f"{width}, heads {run.model.d_head}, MLP {run.model.d_mlp}",
            "training sequences": f"{train.n_sequences:,}",
            "batch": f"{train.batch_size:,}",
            "updates": f"{train.steps:,}",
            "learning rates": f"{rates[0]:g} to {rates[-1]:g}",
            "sum of learning rate x weight decay": " to ".join(f"{n:.2g}" for n in decays),
            f"std of initial weights at gamma {GAMMAS[-1]:g}": f"{width ** -GAMMAS[-1]:.2g}"
            + alike * (width != PAPER.model.d_model),
        }

    here, there = told(start), told(PAPER)
    return [(what, here[what], there[what]) for what in here]
