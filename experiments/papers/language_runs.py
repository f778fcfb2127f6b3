"""The runs behind figure 7D: language models from a large and from a small initialisation.

The paper trains GPT-2 medium on 40 billion tokens of SlimPajama, of code and of code with prose;
the smaller initialisation overtakes the larger one after 2 billion tokens of code and 30 billion of
both. At ``tiny`` and ``small`` the text is Python's own library, which every machine has, and runs
are thousands of times shorter: that they show the opposite there contradicts nothing in the paper.
``tiny`` also has a tenth of the code, ten times over.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anchor_interp.analysis.statistics import CONFIDENCE
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.presets import preset
from anchor_interp.sweeps.spec import Grid, Sweep

from .rows import Row, Rows, number_of

SEEDS = tuple(range(1000, 1005))
GAMMAS = (0.5, 0.8)  # the large and the small initialisation
MEASURED = 15  # how often along the training the held-out loss is measured
DRAWN = 2_000  # samples of seeds for the interval of a crossing
CURVE = "held_out_loss_"

Floats = npt.NDArray[np.float64]


def language(scale: str) -> Sweep:
    """The runs at a scale: both initialisations on code, and on code with prose."""
    start = _start(scale)
    n = start.train.n_sequences
    both = Grid(start, {"part": ("code", "both"), "gamma": GAMMAS}, seeds=SEEDS)
    if scale != "tiny":
        return Sweep((both,))
    again = override(start, part="code", n_sequences=n // 10)
    return Sweep((both, Grid(again, {"gamma": GAMMAS}, seeds=SEEDS)))


def _start(scale: str) -> RunConfig:
    if scale == "paper":
        found = preset("language-medium")
    elif scale == "small":
        found = preset("language-tiny", n_layers=6, n_heads=6, d_model=384, d_head=64, d_mlp=1536)
        found = override(
            found, length=512, n_ctx=512, n_sequences=11_000, batch_size=64, steps=1_800, lr=1e-3
        )
    else:
        found = preset("language-tiny", n_sequences=30_720, steps=960)
    every = found.train.steps // MEASURED
    rest = {"log_every": every // 2, "eval_every": every, "checkpoint_every": found.train.steps}
    if scale != "tiny":
        rest["checkpoint_every"] = 2 * every
    return override(found, weight_decay=0.1, **rest)


def curve(row: Row) -> tuple[Floats, Floats]:
    """Tokens seen and held-out loss, in nats, along the training of a run, but for its start."""
    values = [number_of(row, f"{CURVE}{point:02}") for point in range(1, MEASURED + 1)]
    known = [(point, value) for point, value in enumerate(values, 1) if value is not None]
    points, losses = np.array(known, float).reshape(-1, 2).T
    return points * row["eval_every"] * row["batch_size"] * row["length"], losses


@dataclass(frozen=True)
class Crossing:
    """Where the mean curve of the small initialisation comes below that of the large one."""

    tokens: float | None  # None if it does not, or was below from the start
    low: float | None  # the ends of the interval over samples of seeds, of those that cross
    high: float | None
    share: float  # of the samples that cross

    def __str__(self) -> str:
        """One line."""
        if self.tokens is None or self.low is None or self.high is None:
            return f"no crossing ({self.share:.0%} of samples of seeds have one)"
        interval = f"{_millions(self.low)} to {_millions(self.high)}"
        return f"crosses at {_millions(self.tokens)} tokens ({interval}, {self.share:.0%})"


def _millions(tokens: float) -> str:
    return f"{tokens / 1e6:.3g} M"


def crossing(rows: Rows) -> Crossing:
    """The crossing of the runs of one task and number of windows, which have the same seeds.

    Its interval is that of 2,000 samples of the seeds, drawn with replacement.
    """
    large, small = (
        {row["seed"]: curve(row) for row in rows if row["gamma"] == gamma} for gamma in GAMMAS
    )
    if not (seeds := sorted(large.keys() & small.keys())):
        return Crossing(None, None, None, 0.0)
    gaps = np.array([small[seed][1] - large[seed][1] for seed in seeds])  # [seed, point]
    tokens = large[seeds[0]][0]
    drawn = np.random.default_rng(0).integers(0, len(seeds), (DRAWN, len(seeds)))
    found = [_crossed(tokens, gaps[sample].mean(0)) for sample in drawn]
    there = [value for value in found if value is not None]
    ends = np.quantile(there, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]) if there else None
    return Crossing(
        _crossed(tokens, gaps.mean(0)),
        None if ends is None else float(ends[0]),
        None if ends is None else float(ends[1]),
        len(there) / DRAWN,
    )


def _crossed(tokens: Floats, gap: Floats) -> float | None:
    """Where a gap falls to 0 for good, between two points on a scale of logarithms."""
    above = np.flatnonzero(gap > 0)
    if not len(above) or above[-1] + 1 == len(gap):
        return None
    last = int(above[-1])
    share = gap[last] / (gap[last] - gap[last + 1])
    return math.exp(float(np.interp(share, [0, 1], np.log(tokens[last : last + 2]))))
