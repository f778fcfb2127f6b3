"""The runs behind the NeurIPS paper's figure 2, and those that change one factor at a time.

Each function takes the run from which a scale starts (:class:`papers.studies.Scale`).
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from anchor_interp.runs.config import RunConfig, override, total_decay
from anchor_interp.runs.presets import preset
from anchor_interp.sweeps.spec import Grid, Sweep

PAPER = preset("paper-1head")  # the paper's model and training (appendix A)
DEPTHS, GAMMAS, SEEDS_A_CELL = (2, 3, 4), (0.2, 0.33, 0.47, 0.6, 0.73, 0.87, 1.0), 3
# The cells from which one factor at a time is changed, by the phase that is expected of them.
BASES: Mapping[str, dict[str, Any]] = {
    "inferential": {"n_layers": 3, "gamma": 0.5},
    "symmetric": {"n_layers": 2, "gamma": 0.5},
}
FACTOR_SEEDS = tuple(range(800, 805))


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


def factor_levels(start: RunConfig) -> dict[str, dict[str, dict[str, Any]]]:
    """What each level of each factor changes of a base cell: by factor, then by level.

    A width goes with its rate (:func:`paper_rates`), a batch does not. The exception's share of the
    data and the key's position are not among them: both are drawn uniformly, and no setting changes
    that. A sequence of another ``length`` has fewer positions.
    """
    model, train, task = start.model, start.train, start.anchor_task

    def wide(width: int) -> dict[str, Any]:
        sizes = {
            name: getattr(model, name) * width // model.d_model for name in ("d_head", "d_mlp")
        }
        return {"d_model": width, "lr": middle_rate(width), **sizes}

    decay = train.weight_decay * total_decay(PAPER.train) / total_decay(train)
    return {
        "warm-up": {f"{n:.0%}": {"warmup": n, "lr_start": 1e-5} for n in (0.01, 0.2, 0.5)},
        "rate": {f"x {n:g}": {"lr": train.lr * n} for n in (0.5, 1.5)},
        "steps": {f"x {n:g}": _steps(int(train.steps * n)) for n in (0.5, 2)},
        "sequences": {f"{n:,}": {"n_sequences": n} for n in (10_000, 100_000, 900_000)},
        "weight decay": {f"{decay:.2g}": {"weight_decay": float(f"{decay:.2g}")}},
        "biases": {"with": {"bias": True}},
        "scheme": {
            "released": {"scheme": "released"},
            "released, biases": {"scheme": "released", "bias": True},
        },
        "embedding's d_in": {"vocabulary": {"embed_d_in": "d_vocab"}},
        "length": {"5": {"task": replace(task, length=5)}},
        "split": {"every position": {"task": replace(task, split="every-position")}},
        "LayerNorm": {"pre": {"normalization": "pre"}},
        # last, since they take longest
        "width": {str(n): wide(n) for n in (128, 256, 400)},
        "batch": {str(n): {"batch_size": n} for n in (64, 256, 2048)},
    }


def factor_runs(start: RunConfig, base: str, changes: Mapping[str, Any]) -> dict[str, RunConfig]:
    """The runs of a base cell with some changes, by their names."""
    changed = override(start, **BASES[base] | dict(changes))
    return Sweep((Grid(changed, seeds=FACTOR_SEEDS),)).configs()


def factors(start: RunConfig) -> Sweep:
    """Both base cells, and each with one factor changed."""
    levels = [{}, *(level for of in factor_levels(start).values() for level in of.values())]
    runs = (
        run
        for level in levels
        for base in BASES
        for run in factor_runs(start, base, level).values()
    )
    return Sweep(tuple(Grid(run, seeds=(run.seed,)) for run in runs))


def paper_width(*, steps: int) -> Sweep:
    """Two runs of the paper's model, batch, data and base rate, for as many steps.

    A shorter run keeps the share of its steps in which the rate climbs. The rate ends at the
    largest of the paper's nine.
    """
    start = override(PAPER, lr=paper_rates(PAPER.model.d_model)[-1])
    if steps < PAPER.train.steps:
        often = {"log_every": 50, "eval_every": 100, "checkpoint_every": steps // 10}
        start = override(start, steps=steps, **often)
    return Sweep((Grid(start, {"gamma": (0.5, 0.8)}, seeds=(850,)),))


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


def _steps(steps: int) -> dict[str, int]:
    return {"steps": steps, "checkpoint_every": steps}
