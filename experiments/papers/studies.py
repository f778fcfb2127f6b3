"""What is trained for the papers' sections: each *study* is a set of runs, at three scales.

``tiny`` is for two cores of a laptop, ``small`` for one GPU, and ``paper`` has the papers' own
shapes and lengths. A run is its configuration, so what two studies share is trained once. A study
also says what is measured of each of its runs (:mod:`measures`).
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import shown, suggestion
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.presets import preset
from anchor_interp.sweeps.spec import SWEEPS, Grid, Sweep, read_sweep
from anchor_interp.tasks import anchor
from anchor_interp.tasks.anchor import TASKS, AnchorTask
from anchor_interp.tasks.functions import Affine, Anchor, Override, Pair, Table

from .language_runs import language
from .section_7_runs import (
    CORNERS,
    addition_judging,
    cogs_fitted,
    concepts,
    concepts_judging,
    scan_fitted,
)

_T = TypeVar("_T")
MeasureName = Literal[
    "mechanism", "raw", "answers", "learning", "pairs", "language", "embedding", "attributes"
]  # fmt: skip

# Anchors whose differences are sums of 2 and 5 (5, 2, 4, 7, 6, 11); the papers' are of 3 and 4.
MOVED_ANCHORS = tuple(Anchor(token, Affine(add)) for token, add in enumerate((6, 1, -1, -5), 1))
_SEEDS = tuple(range(400, 405))
# Random settings on each task in each layout. The first fit the verdict; it is judged by settings
# from NEW on, which were trained when its thresholds had been committed.
FITTING, JUDGING, NEW = range(25), range(25, 70), 35


_POST = {"normalization": "post", "act_fn": "relu"}  # the layout of the one-head models
PAPER = preset("paper-1head")  # the paper's model and training (appendix A)


@dataclass(frozen=True)
class Scale:
    """What the studies of a scale have in common."""

    control: RunConfig  # where runs on the complexity-control task start
    neurips: RunConfig  # where runs on the NeurIPS task start
    large: float  # the gamma of a large initialisation: memorizing or composite
    middle: float
    small: float  # the gamma of a small initialisation: inferential
    short: int  # steps in which most of the training data are learned, with checkpoints all along


def _scales() -> Mapping[str, Scale]:
    control = preset("inferential", batch_size=128, log_every=100, eval_every=500)
    control = override(control, checkpoint_every=3000, gamma=0.5, weight_decay=0.01)
    rest = {"log_every": 100, "eval_every": 500}
    neurips = preset("tiny", task="neurips", n_sequences=10_000, batch_size=128, **rest)
    neurips = override(neurips, steps=4000, lr=1e-3, weight_decay=0.01, checkpoint_every=4000)
    gpu = preset("paper-1head", n_sequences=100_000, batch_size=512, steps=6000, lr=5e-4, **rest)
    gpu = override(gpu, lr_start=0.0, lr_end=0.0, warmup=0.05, checkpoint_every=6000)
    on_control = {"task": TASKS["complexity-control"]}
    return {
        "tiny": Scale(control, neurips, large=0.3, middle=0.5, small=0.7, short=1_500),
        "small": Scale(override(gpu, **on_control), gpu, 0.4, 0.6, 0.8, short=3_000),
        "paper": Scale(override(PAPER, **on_control), PAPER, 0.5, 0.65, 0.8, short=20_000),
    }  # fmt: skip


SCALES: Mapping[str, Scale] = _scales()


@dataclass(frozen=True)
class Study:
    """Runs that are trained and measured together."""

    title: str  # what is varied, in a few words
    sweep: Callable[[str], Sweep]  # the runs at a scale of this name
    measures: tuple[MeasureName, ...] = ()  # what is measured of each run, beside its evaluation


def broken_task(offsets: Mapping[Pair, int]) -> AnchorTask:
    """The paper's anchors, where both orders of some pairs add another offset to the key."""
    overrides = tuple(
        Override(order, Affine(add))
        for pair, add in offsets.items()
        for order in dict.fromkeys((pair, pair[::-1]))
    )
    return AnchorTask(overrides=overrides)


def random_broken_task(seed: int) -> AnchorTask:
    """All 16 pairs seen, one or two groups broken, by offsets at least 2 from the rule's own."""
    generator = np.random.default_rng(seed)
    groups = [pair for pair, _ in anchor.BROKEN_GROUPS]
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
    low, high, n = task.key_min, task.key_max, len(task.keys)
    drawn = {pair: generator.integers(low, high + 1, n).tolist() for pair in task.pairs}
    tables = {pair: Table(low, tuple(numbers)) for pair, numbers in drawn.items()}
    return AnchorTask(overrides=tuple(Override(*entry) for entry in tables.items()))


def broken_groups(task: AnchorTask) -> tuple[Pair, ...]:
    """The unordered pairs, as (a, b) with a < b, that break the rule alike in both orders.

    Their number is the task's inferential complexity (NeurIPS paper, section 6), called reasoning
    complexity in the complexity-control paper (section VIII).
    """
    return tuple(
        (a, b)
        for a, b in itertools.combinations(sorted(task.tokens), 2)
        if (one := task.override((a, b))) is not None and one == task.override((b, a))
    )


def _diagram(name: str, n_seeds: int) -> Callable[[str], Sweep]:
    """The sweep of a phase diagram, with more seeds than the papers' three."""

    def seeded(grid: Grid) -> Grid:
        return replace(grid, seeds=tuple(range(grid.seeds[0], grid.seeds[0] + n_seeds)))

    return lambda scale: Sweep(tuple(map(seeded, read_sweep(SWEEPS[f"{scale}-{name}"]).grids)))


def settings(name: str, indices: Iterable[int]) -> Sweep:
    """Two-layer runs of random settings, in both layouts and on both tasks; each has its own seed.

    The distribution was written down before any of these runs. Rates, sequences and weight decay
    are uniform in their logarithm. The index of a run gives its settings.
    """
    base, grids = SCALES[name].neurips, []
    width, head, mlp = base.model.d_model, base.model.d_head, base.model.d_mlp
    layouts = (("post", "relu"), ("pre", "gelu"))
    strata = tuple(itertools.product(("neurips", "complexity-control"), layouts))
    for index in indices:
        for number, (task, (normalization, act_fn)) in enumerate(strata):
            seed = 10_000 * (number + 1) + index
            generator = np.random.default_rng(seed)

            def log_uniform(low: float, high: float, draw: Callable[..., float]) -> float:
                return float(f"{math.exp(draw(math.log(low), math.log(high))):.2g}")

            draw = generator.uniform
            share, own = generator.choice((0.5, 0.75, 1.0)), generator.random() < 0.5
            gammas = [round(draw(*ends), 2) for ends in ((0.3, 1.0), (0.3, 1.1))]
            start = override(
                base, task=TASKS[task], n_layers=2, normalization=normalization, act_fn=act_fn,
                d_model=int(width * share), d_head=int(head * share), d_mlp=int(mlp * share),
                gamma=gammas[0], gamma_qk=gammas[1] if own else None,
                weight_decay=log_uniform(0.005, 2.0, draw),
                lr=base.train.lr * log_uniform(0.7, 2.0, draw),
                n_sequences=int(base.train.n_sequences * log_uniform(0.5, 10.0, draw)),
                steps=int(base.train.steps * generator.choice((0.75, 1.0))),
            )  # fmt: skip
            grids.append(Grid(start, seeds=(seed,)))
    return Sweep(tuple(grids))


def _fresh_settings(name: str, normalization: str, **indices: Iterable[int]) -> Sweep:
    """Random settings of one layout, by task.

    Post-LayerNorm runs on the complexity-control task have a third of the sequences: with more of
    them none memorizes in this layout.
    """
    grids = []
    for task, of_task in indices.items():
        for grid in settings(name, of_task).grids:
            start = grid.start
            if (start.anchor_task, start.model.normalization) == (TASKS[task], normalization):
                if (task, normalization) == ("complexity-control", "post"):
                    start = override(start, n_sequences=start.train.n_sequences // 3)
                grids.append(replace(grid, start=start))
    return Sweep(tuple(grids))


def _start(name: str, **settings: Any) -> RunConfig:
    return override(SCALES[name].control, **settings)


def _gammas(name: str, *sizes: str) -> dict[str, Any]:
    return {"gamma": tuple(getattr(SCALES[name], size) for size in sizes)}


def _wide(cells: Mapping[float, int], first_seed: int, steps: int, **settings: Any) -> Sweep:
    """Runs at the paper's width until they are fitted: so many seeds for each gamma.

    Every run has a seed of its own; half of a cell's have three quarters of the rate. Shapes, data,
    batch and schedule are those of figure 2's runs (:mod:`papers.wide_runs`), products in TF32.
    """
    often = {"log_every": 100, "eval_every": 100, "checkpoint_every": steps}
    start = override(PAPER, batch_size=512, steps=steps, warmup=200 / steps, precision="tf32",
                     until_accuracy=0.99, **often, **settings)  # fmt: skip
    grids = []
    for place, (gamma, n) in enumerate(cells.items()):
        seeds = range(first_seed + 100 * place, first_seed + 100 * place + n)
        for rate, of_rate in ((1e-4, seeds[::2]), (7.5e-5, seeds[1::2])):
            config = override(start, gamma=gamma, lr=rate, lr_end=rate)
            grids.append(Grid(config, seeds=tuple(of_rate)))
    return Sweep(tuple(grids))


def _complexity(name: str) -> Sweep:
    axes = _gammas(name, "large", "small")
    axes["task"] = tuple(anchor.reasoning_complexity(n) for n in (0, 1, 2, 4, 6))
    return Sweep((Grid(_start(name, log_every=20, eval_every=500), axes, seeds=_SEEDS),))


def _complexity_post(name: str) -> Sweep:
    neurips = SCALES[name].neurips
    start = override(neurips, n_sequences=max(100_000, neurips.train.n_sequences), log_every=10,
                     eval_every=100, until_accuracy=0.99)  # fmt: skip
    tasks = tuple(map(anchor.reasoning_complexity, range(7)))
    axes = {"n_layers": (2, 3), "gamma": (0.45, 0.7), "task": tasks}
    return Sweep((Grid(start, axes, seeds=tuple(range(600, 607))),))


def _densely(name: str, **settings: Any) -> RunConfig:
    steps = SCALES[name].short
    every = steps // 30
    often = {"log_every": every, "eval_every": 30 * every, "checkpoint_every": every}
    return _start(name, steps=steps, **often, **settings)


def _pairs(name: str, first_seed: int = 400, **settings: Any) -> Sweep:
    start = _densely(name, task=broken_task({(3, 4): -6}), **settings)
    seeds = tuple(range(first_seed, first_seed + 10))  # five cannot come below p = 0.06
    unbroken = override(start, task=anchor.reasoning_complexity(0), gamma=SCALES[name].small)
    return Sweep(
        (Grid(start, _gammas(name, "large", "small"), seeds=seeds), Grid(unbroken, seeds=seeds))
    )


def _noise(name: str, seeds: Iterable[int], **settings: Any) -> Sweep:
    start = _densely(name, gamma=SCALES[name].small, **settings)
    tasks = {seed: random_broken_task(seed) for seed in seeds}
    return Sweep(tuple(Grid(override(start, task=t), seeds=(s,)) for s, t in tasks.items()))


def _rates(name: str) -> Sweep:
    start = _start(name, gamma=SCALES[name].middle)
    axes = {"lr": (start.train.lr / 4, start.train.lr), "weight_decay": (0.01, 0.1, 1.0)}
    return Sweep((Grid(start, axes, seeds=_SEEDS),))


def _arbitrary(name: str) -> Sweep:
    gammas = _gammas(name, "large", "middle", "small")
    starts = {seed: _start(name, log_every=20, task=arbitrary_task(seed)) for seed in _SEEDS}
    return Sweep(tuple(Grid(start, gammas, seeds=(seed,)) for seed, start in starts.items()))


def _steps(name: str) -> Sweep:
    task = TASKS["complexity-control"]
    axes = {"task": (task, replace(task, anchors=MOVED_ANCHORS))}
    return Sweep((Grid(_start(name, gamma=0.9, weight_decay=0.5), axes, seeds=_SEEDS),))


def _branches(name: str) -> Sweep:
    start = _start(name, gamma=0.4)
    early, late = start.train.steps // 12, start.train.steps // 3
    changes: list[dict[str, Any]] = [
        {},
        {"weight_decay": 1.0},
        {"branch_step": early, "branch_weight_decay": 1.0},
        {"branch_step": late, "branch_weight_decay": 1.0},
        {"branch_step": late, "branch_lr": start.train.lr / 4},
        {"weight_decay": 1.0, "branch_step": late, "branch_weight_decay": 0.01},
    ]
    return Sweep(tuple(Grid(override(start, **change), seeds=_SEEDS) for change in changes))


STUDIES: Mapping[str, Study] = {
    "decay": Study("gamma and weight decay", _diagram("decay", 6), ("mechanism",)),
    "depth": Study("gamma and depth on the NeurIPS task", _diagram("depth", 5), ("mechanism",)),
    "settings": Study(
        "random settings within each layout", partial(settings, indices=FITTING), ("mechanism",)
    ),
    "settings-judging": Study(
        "more random settings", partial(settings, indices=JUDGING), ("mechanism",)
    ),
    "settings-post": Study(
        "fresh random settings, post-LayerNorm",
        lambda name: _fresh_settings(
            name, "post", **{"neurips": range(70, 130), "complexity-control": range(70, 130)}
        ),
        ("mechanism", "raw", "answers"),
    ),
    "settings-post-again": Study(
        "more random settings, post-LayerNorm",
        lambda name: _fresh_settings(
            name, "post", **{"neurips": range(130, 250), "complexity-control": range(130, 330)}
        ),
        ("mechanism", "raw", "answers"),
    ),
    "settings-pre": Study(
        "random settings, pre-LayerNorm",
        lambda name: _fresh_settings(name, "pre", **{"complexity-control": range(130, 530)}),
        ("mechanism",),
    ),
    "solutions": Study(
        "small and large initialisation at the paper's width",
        lambda _: _wide({0.35: 6, 0.45: 6, 0.85: 12, 0.95: 12}, 1_010_000, 12_000),
        ("mechanism", "answers"),
    ),
    "deep": Study(
        "large initialisation in four layers at the paper's width",
        lambda _: _wide({0.2: 6, 0.3: 6, 0.5: 8}, 1_020_000, 4_000, n_layers=4),
    ),
    "complexity": Study("inferential complexity and gamma", _complexity, ("learning",)),
    "complexity-post": Study(
        "inferential complexity, gamma and depth, post-LayerNorm", _complexity_post, ("learning",)
    ),
    "pairs": Study("one broken group or none, pair by pair", _pairs, ("pairs",)),
    "pairs-post": Study(
        "the same, post-LayerNorm", partial(_pairs, first_seed=410, **_POST), ("pairs",)
    ),
    "noise": Study(
        "randomly chosen broken groups", partial(_noise, seeds=range(500, 520)), ("pairs",)
    ),
    "noise-60": Study(
        "more tasks with broken groups, post-LayerNorm",
        partial(_noise, seeds=range(520, 580), **_POST),
        ("pairs",),
    ),
    "noise-240": Study(
        "240 more of these tasks, post-LayerNorm",
        partial(_noise, seeds=range(580, 820), **_POST),
        ("pairs",),
    ),
    "rates": Study("learning rate and weight decay", _rates),
    "arbitrary": Study("arbitrary mappings and gamma", _arbitrary, ("learning",)),
    "steps": Study("differences of the anchors", _steps, ("embedding",)),
    "branches": Study("weight decay or learning rate changed midway", _branches),
    "scan": Study("both settings and the data on SCAN", CORNERS["scan"].sweep),
    "scan-fitted": Study("two corners on SCAN until they are fitted", scan_fitted),
    "cogs": Study("both settings and the data on COGS", CORNERS["cogs"].sweep),
    "cogs-fitted": Study("two corners on COGS until they are fitted", cogs_fitted),
    "addition": Study("both settings and the data on addition", CORNERS["addition"].sweep),
    "addition-20": Study("both settings on addition, twenty seeds", addition_judging),
    "prontoqa": Study(
        "both settings and the data on PrOntoQA", CORNERS["prontoqa"].sweep, ("learning",)
    ),
    "language": Study("initialisation and text of language models", language, ("language",)),
    "concepts": Study("gamma on concepts", concepts, ("attributes",)),
    "concepts-judging": Study(
        "the paper's gamma on concepts, other seeds", concepts_judging, ("attributes",)
    ),
}


def study(name: str) -> Study:
    """A study by its name."""
    return _known("study", name, STUDIES)


def study_sweep(name: str, scale: str) -> Sweep:
    """The runs of a study at a scale."""
    found = study(name)
    _known("scale", scale, SCALES)
    return found.sweep(scale)


def _known(what: str, name: str, known: Mapping[str, _T]) -> _T:
    if name not in known:
        raise ConfigError(
            f"no {what} is called {shown(name)}{suggestion(name, known)}; known: {', '.join(known)}"
        )
    return known[name]
