"""Is it width, or the scale of the initial weights? Width 128 matched to width 400 in two ways."""

import math
from collections.abc import Mapping

from anchor_interp.models.shapes import MODELS, ModelConfig
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.presets import preset
from anchor_interp.sweeps.spec import Grid, Sweep
from questions import curves

GAMMAS = (0.35, 0.5, 0.65, 0.8, 0.95)  # at width 400, as in figure 2
STEPS, EVERY = 12_000, 50
NARROW, WIDE = ModelConfig(), MODELS["paper-1head"]
MATCHINGS = {"standard deviation": 0.0, "relative scale": 0.5}
"""The exponent c of what is matched: d_in^c times the standard deviation d_in^-gamma."""


def matched(gamma: float, matching: str) -> dict[str, float]:
    """Rates at width 128 that are matched to one at width 400.

    d^(c - gamma) is the same at both widths. The pairs W_V W_O and W_in W_out have one rate each,
    for which the product of their two is the same.
    """
    c = MATCHINGS[matching]

    def rate(narrow: int, wide: int) -> float:
        return round(c + (gamma - c) * math.log(wide) / math.log(narrow), 4)

    return {
        "gamma": rate(NARROW.d_model, WIDE.d_model),
        "gamma_vo": rate(NARROW.d_model * NARROW.d_head, WIDE.d_model * WIDE.d_head),
        "gamma_mlp": rate(NARROW.d_model * NARROW.d_mlp, WIDE.d_model * WIDE.d_mlp),
    }


def start(model: ModelConfig, rate: float) -> RunConfig:
    """A run of figure 2 that goes on to 12,000 steps, at a constant rate after 200 of warm-up."""
    often = {"log_every": EVERY, "eval_every": EVERY, "checkpoint_every": STEPS}
    shape = {name: getattr(model, name) for name in ("d_model", "d_head", "d_mlp")}
    return override(preset("paper-1head"), **shape, n_layers=2, batch_size=512, steps=STEPS,
                    lr_start=1e-5, lr=rate, lr_end=rate, warmup=200 / STEPS, precision="tf32",
                    **often)  # fmt: skip


def runs(matching: str, seeds: Mapping[float, tuple[int, ...]]) -> Sweep:
    """Width 128 matched to each gamma at width 400."""
    narrow = start(NARROW, 3e-4)
    return Sweep(tuple(Grid(override(narrow, **matched(gamma, matching)), seeds=mine)
                       for gamma, mine in seeds.items()))  # fmt: skip


SEEDS = {gamma: tuple(1_030_000 + 100 * place + k for k in range(3))
         for place, gamma in enumerate(GAMMAS)}  # fmt: skip
RUNS = Sweep(tuple(grid for matching in MATCHINGS for grid in runs(matching, SEEDS).grids))


if __name__ == "__main__":
    curves.main(lambda *_: RUNS, "width-or-scale", weights=True)
