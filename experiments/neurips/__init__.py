"""The figures of the NeurIPS paper; a file has a figure's runs, claims and drawing.

*Initialization is Critical to Whether Transformers Fit Composite Functions by Reasoning or
Memorizing*.
"""

from collections.abc import Mapping
from typing import Any

from anchor_interp import RunConfig
from studies import Grid, override, preset

PAPER = preset("paper-1head")  # the paper's model and training (appendix A)


def at_rate(rate: float, steps: int = 12_000, /, **settings: Any) -> RunConfig:
    """A run of the paper's model with a quarter of its batch, at one rate after 200 of warm-up."""
    often = {"log_every": 50, "eval_every": 50, "checkpoint_every": steps}
    return override(PAPER, batch_size=512, steps=steps, warmup=200 / steps, lr_start=1e-5,
                    lr=rate, lr_end=rate, **often | settings)  # fmt: skip


def until_fitted(
    cells: Mapping[float, int], first_seed: int, steps: int, **settings: Any
) -> list[Grid]:
    """Runs at the paper's width until they are fitted: so many seeds for each gamma.

    Every run has a seed of its own; half of a cell's have three quarters of the rate. Shapes, data,
    batch and schedule are those of figure 2's runs, products in TF32.
    """
    often = {"precision": "tf32", "until_accuracy": 0.99, "log_every": 100, "eval_every": 100}
    grids = []
    for place, (gamma, n) in enumerate(cells.items()):
        seeds = range(first_seed + 100 * place, first_seed + 100 * place + n)
        for rate, of_rate in ((1e-4, seeds[::2]), (7.5e-5, seeds[1::2])):
            config = at_rate(rate, steps, gamma=gamma, **often, **settings)
            grids.append(Grid(config, seeds=tuple(of_rate)))
    return grids
