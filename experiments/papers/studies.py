"""What is trained for the papers' sections: each *study* a set of runs, at three scales.

``tiny`` is for two cores of a laptop, ``small`` for one GPU, ``paper`` has the papers' own shapes
and lengths. A run is its configuration, so what two studies share is trained once. A study says
besides which numbers are measured of each of its runs (:mod:`papers.measures`); the
claims of :mod:`papers.claims` are judged on these tables alone.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import shown, suggestion
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.presets import preset
from anchor_interp.sweeps.spec import SWEEPS, Grid, Sweep, read_sweep
from anchor_interp.tasks.anchor import (
    BROKEN_GROUPS,
    TASKS,
    Affine,
    Anchor,
    AnchorTask,
    Override,
    Pair,
    Table,
    reasoning_complexity,
)

ScaleName = Literal["tiny", "small", "paper"]


Measure = Literal["mechanism", "learning", "pairs", "embedding", "behaviour"]


MOVED_ANCHORS = tuple(Anchor(token, Affine(add)) for token, add in enumerate((6, 1, -1, -5), 1))
"""Anchors whose differences are sums of 2 and 5 (5, 2, 4, 7, 6, 11), where those of the papers are
sums of 3 and 4."""


_SEEDS = tuple(range(400, 405))


@dataclass(frozen=True)
class Scale:
    """What the studies of a scale have in common."""

    control: RunConfig
    """Where the runs on the complexity-control task start."""
    neurips: RunConfig
    """Where those on the NeurIPS task start."""
    large: float
    """A gamma of a large initialisation: memorizing or composite."""
    middle: float
    """One in between."""
    small: float
    """One of a small initialisation: inferential."""
    short: int
    """Steps in which most of the training data are learned; all along them checkpoints are kept."""


def _scales() -> Mapping[str, Scale]:
    control = preset("inferential", batch_size=128, log_every=100, eval_every=500)
    control = override(control, checkpoint_every=3000, gamma=0.5, weight_decay=0.01)
    rest = {"log_every": 100, "eval_every": 500}
    neurips = preset("tiny", task="neurips", n_sequences=10_000, batch_size=128, **rest)
    neurips = override(neurips, steps=4000, lr=1e-3, weight_decay=0.01, checkpoint_every=4000)
    gpu = preset("paper-1head", n_sequences=100_000, batch_size=512, steps=6000, lr=5e-4, **rest)
    gpu = override(gpu, lr_start=0.0, lr_end=0.0, warmup=0.05, checkpoint_every=6000)
    paper = preset("paper-1head")
    control_task = TASKS["complexity-control"]
    return {
        "tiny": Scale(control, neurips, large=0.3, middle=0.5, small=0.7, short=1_500),
        "small": Scale(override(gpu, task=control_task), gpu, 0.4, 0.6, 0.8, short=3_000),
        "paper": Scale(override(paper, task=control_task), paper, 0.5, 0.65, 0.8, short=20_000),
    }


SCALES: Mapping[str, Scale] = MappingProxyType(_scales())
"""The three scales by name."""


@dataclass(frozen=True)
class Study:
    """Runs that are trained and measured together."""

    title: str
    """What is varied, in a few words."""
    sweep: Callable[[str], Sweep]
    """The runs, of a scale's name."""
    measures: tuple[Measure, ...]
    """What is measured of each, beside its evaluation."""
    checkpoints: bool = False
    """Whether mechanism and behaviour are measured along the training as well: at the first
    checkpoint, and at each one that is twice as late as the one before."""


def broken_task(offsets: Mapping[Pair, int], *, unseen: Sequence[Pair] = ()) -> AnchorTask:
    """The paper's anchors, with both orders of some pairs breaking the rule.

    Args:
        offsets: what is added to the key instead, by pair; the other order follows.
        unseen: ordered pairs held out.
    """
    overrides = tuple(
        Override(order, Affine(add))
        for pair, add in offsets.items()
        for order in dict.fromkeys((pair, pair[::-1]))
    )
    return AnchorTask(overrides=overrides, unseen=tuple(unseen))


def random_broken_task(seed: int) -> AnchorTask:
    """All 16 pairs seen, one or two groups broken: which and how is drawn.

    The offsets of a broken group are those of another sum of anchors or none's, at least 2 from the
    rule's own.
    """
    generator = np.random.default_rng(seed)
    groups = [pair for pair, _ in BROKEN_GROUPS]
    chosen = generator.choice(len(groups), size=1 + seed % 2, replace=False)
    offsets = {}
    for index in sorted(chosen):
        a, b = groups[index]
        own = int(AnchorTask().composed((a, b), np.zeros(1, np.int64))[0])
        allowed = [c for c in range(-12, 13) if abs(c - own) >= 2]
        offsets[(a, b)] = int(generator.choice(allowed))
    return broken_task(offsets)


def arbitrary_task(seed: int) -> AnchorTask:
    """Every ordered pair maps the keys to numbers drawn at random: there is no rule to infer."""
    generator = np.random.default_rng(seed)
    task = AnchorTask()
    low, high = task.key_min, task.key_max
    overrides = tuple(
        Override(
            pair, Table(low, tuple(map(int, generator.integers(low, high + 1, len(task.keys)))))
        )
        for pair in task.pairs
    )
    return AnchorTask(overrides=overrides)


def broken_groups(task: AnchorTask) -> tuple[Pair, ...]:
    """The unordered pairs, as (a, b) with a < b, that break the rule alike in both orders.

    Their number is the task's inferential complexity (NeurIPS paper, section 6), called reasoning
    complexity in the complexity-control paper (section VIII).
    """
    pairs = itertools.combinations(sorted(task.tokens), 2)
    return tuple(
        (a, b)
        for a, b in pairs
        if task.override((a, b)) is not None and task.override((a, b)) == task.override((b, a))
    )


def _diagram(name: str, seeds: int) -> Callable[[str], Sweep]:
    """The sweep of a phase diagram, with more seeds than the papers' three."""

    def sweep(scale: str) -> Sweep:
        grids = read_sweep(SWEEPS[f"{scale}-{name}"]).grids
        return Sweep(tuple(replace(grid, seeds=_more(grid.seeds, seeds)) for grid in grids))

    return sweep


def _more(seeds: tuple[int, ...], n: int) -> tuple[int, ...]:
    return (*seeds, *range(seeds[-1] + 1, seeds[-1] + 1 + n - len(seeds)))


def _phases(name: str) -> Sweep:
    """Runs of every phase around the boundaries, of other seeds and shapes than the diagrams."""
    scale = SCALES[name]
    often = {"checkpoint_every": scale.control.train.steps // 6}
    control, neurips = override(scale.control, **often), override(scale.neurips, **often)
    width, head = control.model.d_model, control.model.d_head
    small, large = (
        {"d_model": d, "d_head": d * head // width, "d_mlp": d * control.model.d_mlp // width}
        for d in (width * 3 // 4, width * 3 // 2)
    )
    post = override(preset("composite"), log_every=100, eval_every=500, checkpoint_every=500)
    post = post if name == "tiny" else control
    two = _SEEDS[:2]
    return Sweep(
        (
            Grid(control, {"gamma": (0.8, 0.9), "weight_decay": (0.0, 0.01)}, seeds=_SEEDS),
            Grid(
                override(control, **small),
                {"n_layers": (2, 3), "gamma": (0.3, 0.4, 0.6, 0.9)},
                seeds=two,
            ),
            Grid(override(control, **small), {"gamma": (0.3,)}, seeds=_SEEDS[2:]),
            Grid(override(control, **large), {"gamma": (0.3, 0.5, 0.8)}, seeds=two),
            Grid(neurips, {"n_layers": (2, 3), "gamma": (0.3, 0.5, 0.6, 0.7)}, seeds=two),
            Grid(post, {"gamma": (0.3, 0.4)}, seeds=_SEEDS),
            Grid(
                override(post, gamma=0.6, gamma_qk=0.4, weight_decay=1.0),
                {"task": (TASKS["complexity-control"], TASKS["neurips"])},
                seeds=_SEEDS,
            ),
        )
    )


def _complexity(name: str) -> Sweep:
    scale = SCALES[name]
    start = override(scale.control, log_every=20, eval_every=500)
    tasks = tuple(reasoning_complexity(n) for n in (0, 1, 2, 4, 6))
    return Sweep((Grid(start, {"gamma": (scale.large, scale.small), "task": tasks}, seeds=_SEEDS),))


def _densely(name: str) -> RunConfig:
    scale = SCALES[name]
    steps = scale.short
    every = steps // 30
    return override(
        scale.control, steps=steps, log_every=every, eval_every=30 * every, checkpoint_every=every
    )


def _pairs(name: str) -> Sweep:
    scale = SCALES[name]
    start = override(_densely(name), task=broken_task({(3, 4): -6}))
    seeds = tuple(range(400, 410))  # a sign-flip test of five cannot come below 0.06
    unbroken = override(start, task=reasoning_complexity(0), gamma=scale.small)
    gammas = {"gamma": (scale.large, scale.small)}
    return Sweep((Grid(start, gammas, seeds=seeds), Grid(unbroken, seeds=seeds)))


def _noise(name: str) -> Sweep:
    start = override(_densely(name), gamma=SCALES[name].small)
    return Sweep(
        tuple(
            Grid(override(start, task=random_broken_task(seed)), seeds=(seed,))
            for seed in range(500, 520)
        )
    )


def _rates(name: str) -> Sweep:
    scale = SCALES[name]
    lr = scale.control.train.lr
    axes = {"lr": (lr / 4, lr), "weight_decay": (0.01, 0.1, 1.0)}
    return Sweep((Grid(override(scale.control, gamma=scale.middle), axes, seeds=_SEEDS),))


def _arbitrary(name: str) -> Sweep:
    scale = SCALES[name]
    start = override(scale.control, log_every=20)
    gammas = (scale.large, scale.middle, scale.small)
    return Sweep(
        tuple(
            Grid(override(start, task=arbitrary_task(seed)), {"gamma": gammas}, seeds=(seed,))
            for seed in _SEEDS
        )
    )


def _steps(name: str) -> Sweep:
    task = TASKS["complexity-control"]
    start = override(SCALES[name].control, gamma=0.9, weight_decay=0.5)
    axes = {"task": (task, replace(task, anchors=MOVED_ANCHORS))}
    return Sweep((Grid(start, axes, seeds=_SEEDS),))


def _branches(name: str) -> Sweep:
    scale = SCALES[name]
    steps = scale.control.train.steps
    start = override(scale.control, gamma=0.4)
    early, late = steps // 12, steps // 3
    changes: list[dict[str, Any]] = [
        {},
        {"weight_decay": 1.0},
        {"branch_step": early, "branch_weight_decay": 1.0},
        {"branch_step": late, "branch_weight_decay": 1.0},
        {"branch_step": late, "branch_lr": start.train.lr / 4},
        {"weight_decay": 1.0, "branch_step": late, "branch_weight_decay": 0.01},
    ]
    return Sweep(tuple(Grid(override(start, **change), seeds=_SEEDS) for change in changes))


STUDIES: Mapping[str, Study] = MappingProxyType(
    {
        "decay": Study("gamma and weight decay", _diagram("decay", 6), ("mechanism",)),
        "depth": Study("gamma and depth on the NeurIPS task", _diagram("depth", 5), ("mechanism",)),
        "phases": Study(
            "every phase, at other widths, depths and layouts",
            _phases,
            ("mechanism",),
            checkpoints=True,
        ),
        "complexity": Study("inferential complexity and gamma", _complexity, ("learning",)),
        "pairs": Study("one broken group or none, pair by pair", _pairs, ("pairs",)),
        "noise": Study("randomly chosen broken groups", _noise, ("pairs",)),
        "rates": Study("learning rate and weight decay", _rates, ()),
        "arbitrary": Study("arbitrary mappings and gamma", _arbitrary, ("learning",)),
        "steps": Study("differences of the anchors", _steps, ("embedding",)),
        "branches": Study("weight decay or learning rate changed midway", _branches, ()),
    }
)
"""The studies by name."""


def study(name: str) -> Study:
    """A study by its name.

    Raises:
        ConfigError: there is none.
    """
    if name not in STUDIES:
        known = ", ".join(STUDIES)
        raise ConfigError(
            f"no study is called {shown(name)}{suggestion(name, STUDIES)}; known: {known}"
        )
    return STUDIES[name]


def study_sweep(name: str, scale: str) -> Sweep:
    """The runs of a study at a scale.

    Raises:
        ConfigError: no such study or scale.
    """
    found = study(name)
    if scale not in SCALES:
        known = ", ".join(SCALES)
        raise ConfigError(
            f"no scale is called {shown(scale)}{suggestion(scale, SCALES)}; known: {known}"
        )
    return found.sweep(scale)
