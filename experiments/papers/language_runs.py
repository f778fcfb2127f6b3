"""The runs behind figure 7D: language models from a large and from a small initialisation.

The paper trains GPT-2 medium on 40 billion tokens of SlimPajama, of code and of code with prose;
the smaller initialisation overtakes the larger one after 2 billion tokens of code and 30 billion of
both. At ``tiny`` and ``small`` the text is Python's own library, which every machine has, and runs
are thousands of times shorter: that they show the opposite there contradicts nothing in the paper.
``tiny`` also has a tenth of the code, ten times over.
"""

import math

import numpy as np
import numpy.typing as npt

from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.presets import preset
from anchor_interp.sweeps.spec import Grid, Sweep

from .effects import grouped
from .rows import Row, Rows, number_of

SEEDS = tuple(range(1000, 1005))
GAMMAS = (0.5, 0.8)  # the large and the small initialisation
MEASURED = 15  # how often along the training the held-out loss is measured
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


def by_text(rows: Rows) -> list[tuple[str, int, list[Row]]]:
    """The finished runs by their text and its number of windows."""
    done = [row for row in rows if row["status"] == "done"]
    groups = grouped(done, ("task.part", "n_sequences"))
    names = {"both": "code and prose"}
    return [(names.get(part, part), size, mine) for (part, size), mine in groups.items()]


def crossing(rows: Rows) -> float | None:
    """The tokens at which the mean curve of the small initialisation comes below the large one's.

    ``rows`` are the runs of one task and number of windows, which have the same seeds. None if it
    does not, or was below from the start.
    """
    curves = [[curve(row) for row in rows if row["gamma"] == gamma] for gamma in GAMMAS]
    if not all(curves):
        return None
    large, small = (np.mean([losses for _, losses in mine], axis=0) for mine in curves)
    tokens, gap = curves[0][0][0], small - large
    above = np.flatnonzero(gap > 0)
    if not len(above) or above[-1] + 1 == len(gap):
        return None
    last = int(above[-1])
    share = gap[last] / (gap[last] - gap[last + 1])  # on a scale of logarithms
    return math.exp(float(np.interp(share, [0, 1], np.log(tokens[last : last + 2]))))
