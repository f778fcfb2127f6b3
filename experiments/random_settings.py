"""Runs of random settings, on which claims between phases are judged.

Settings and phases go together: in a grid nearly all inferential runs are pre-LayerNorm models. So
claims about phases compare runs whose settings were drawn at random, inside one task and layout.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from anchor_interp import TASKS, RunConfig
from claim_effects import Difference, Trend, equal
from studies import Grid, Study, override, preset

# The narrow NeurIPS model from which random settings start, and the runs of figures 6 and 8.
NARROW = override(
    preset("tiny", task="neurips", n_sequences=10_000, batch_size=128, log_every=100,
           eval_every=500),
    steps=4000, lr=1e-3, weight_decay=0.01, checkpoint_every=4000,
)  # fmt: skip
_LAYOUTS = (("post", "relu"), ("pre", "gelu"))
_STRATA = tuple(itertools.product(("neurips", "complexity-control"), _LAYOUTS))


def settings(indices: Iterable[int]) -> list[Grid]:
    """Two-layer runs of random settings, in both layouts and on both tasks; each has its own seed.

    The distribution was written down before any of these runs. Rates, sequences and weight decay
    are uniform in their logarithm. The index of a run gives its settings.
    """
    numbered = itertools.product(indices, enumerate(_STRATA))
    return [
        Grid(_drawn(task, layout, seed), seeds=(seed,))
        for index, (number, (task, layout)) in numbered
        for seed in (10_000 * (number + 1) + index,)
    ]


def _drawn(task: str, layout: tuple[str, str], seed: int) -> RunConfig:
    generator = np.random.default_rng(seed)
    draw, model, train = generator.uniform, NARROW.model, NARROW.train

    def log_uniform(low: float, high: float) -> float:
        return float(f"{math.exp(draw(math.log(low), math.log(high))):.2g}")

    share, own = generator.choice((0.5, 0.75, 1.0)), generator.random() < 0.5
    gamma, gamma_qk = (round(draw(0.3, most), 2) for most in (1.0, 1.1))
    return override(
        NARROW, task=TASKS[task], n_layers=2, normalization=layout[0], act_fn=layout[1],
        d_model=int(model.d_model * share), d_head=int(model.d_head * share),
        d_mlp=int(model.d_mlp * share), gamma=gamma, gamma_qk=gamma_qk if own else None,
        weight_decay=log_uniform(0.005, 2.0), lr=train.lr * log_uniform(0.7, 2.0),
        n_sequences=int(train.n_sequences * log_uniform(0.5, 10.0)),
        steps=int(train.steps * generator.choice((0.75, 1.0))),
    )  # fmt: skip


def _fresh(normalization: str, **indices: Iterable[int]) -> list[Grid]:
    """Random settings of one layout, by task.

    Post-LayerNorm runs on the complexity-control task have a third of the sequences: with more of
    them none memorizes in this layout.
    """
    grids = []
    for task, of_task in indices.items():
        name = task.replace("_", "-")
        for grid in settings(of_task):
            start = grid.start
            if (start.anchor_task, start.model.normalization) == (TASKS[name], normalization):
                if (name, normalization) == ("complexity-control", "post"):
                    start = override(start, n_sequences=start.train.n_sequences // 3)
                grids.append(replace(grid, start=start))
    return grids


_RAW = ("mechanism", "raw", "answers")
RUNS: Mapping[str, Study] = {
    # these two fit the verdict; it is judged by settings of its own
    "settings": Study("random settings within each layout", partial(settings, range(25)),
                      ("mechanism",)),
    "settings-judging": Study("more random settings", partial(settings, range(25, 70)),
                              ("mechanism",)),
    "settings-post": Study("fresh random settings, post-LayerNorm", partial(
        _fresh, "post", neurips=range(70, 130), complexity_control=range(70, 130)), _RAW),
    "settings-post-again": Study("more random settings, post-LayerNorm", partial(
        _fresh, "post", neurips=range(130, 250), complexity_control=range(130, 330)), _RAW),
    "settings-pre": Study("random settings, pre-LayerNorm", partial(
        _fresh, "pre", complexity_control=range(130, 530)), ("mechanism",)),
}  # fmt: skip
KNOWN = ("settings", "settings-judging", "settings-post")
POST = (*KNOWN, "settings-post-again")  # the studies that judge claims on post-LayerNorm models
RAW = ("settings-post", "settings-post-again")  # those with raw cosines and maps of answers

MEMORIZING, COMPOSITE, SYMMETRIC, INFERENTIAL = (
    equal(phase=phase) for phase in ("memorizing", "composite", "symmetric", "inferential")
)
PHASE_2 = equal(phase=("composite", "symmetric"))
STRATUM = ("task", "normalization")
IN_NEURIPS = equal(task="neurips", normalization="post")
IN_CONTROL = equal(task="complexity-control", normalization="post")
_IN_POST: dict[str, Any] = {"runs": POST, "elsewhere": ("settings-pre",), "also": STRATUM}


def between(number: Any, more: Any, less: Any, where: Any, **words: Any) -> Difference:
    """A number in runs of one phase minus that in runs of another, in one task and layout."""
    return Difference(number, more, less, where=where,
                      **{**_IN_POST, "within": STRATUM} | words)  # fmt: skip


def over_gamma(number: Any, where: Any, sign: int = 1) -> Trend:
    """The trend of a number with gamma over random settings of one task and layout."""
    return Trend(number, "gamma", sign=sign, where=where, within=STRATUM, **_IN_POST)
