"""NeurIPS paper, section 6, figure 6: steps to fit data of growing inferential complexity.

"Models that tend to learn data with inferential solutions indeed use more training steps for data
with larger inferential complexity", the number of groups of pairs that break the rule; those that
tend to symmetric solutions "use roughly the same training steps". Figure 8A of the
complexity-control paper shows the same.

Runs are post-LayerNorm models of two and three layers, one head, width 128; those of ``complexity``
are pre-LayerNorm, which the figure does not have.
"""

import math
import operator
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp.runs.config import override
from anchor_interp.sweeps.spec import Grid, Sweep
from anchor_interp.tasks import anchor
from claims import registered
from common import main
from complexity_control import CONTROL, LARGE, SMALL
from effects import Mean, Row, Rows, Trend, equal, never_came
from measures import log_steps
from random_settings import NARROW
from studies import Study


def _complexity() -> Sweep:
    tasks = tuple(anchor.reasoning_complexity(n) for n in (0, 1, 2, 4, 6))
    start = override(CONTROL, log_every=20, eval_every=500)
    return Sweep(
        (Grid(start, {"gamma": (LARGE, SMALL), "task": tasks}, seeds=(*range(400, 405),)),)
    )


def _complexity_post() -> Sweep:
    start = override(NARROW, n_sequences=100_000, log_every=10, eval_every=100, until_accuracy=0.99)
    tasks = tuple(map(anchor.reasoning_complexity, range(7)))
    axes = {"n_layers": (2, 3), "gamma": (0.45, 0.7), "task": tasks}
    return Sweep((Grid(start, axes, seeds=tuple(range(600, 607))),))


RUNS = {
    "complexity-post": Study(
        "inferential complexity, gamma and depth, post-LayerNorm", _complexity_post, ("learning",)
    ),
    "complexity": Study("inferential complexity and gamma", _complexity, ("learning",)),
}


def with_ratio(rows: Rows) -> list[Row]:
    """A row for each depth, gamma and seed: the log ratio of steps at complexity 6 and 0.

    The column of the steps is empty where one of the two never came there.
    """
    ends = [row for row in rows if row["status"] == "done" and row["complexity"] in (0, 6)]
    cell = operator.itemgetter("n_layers", "gamma", "seed")
    at = {(*cell(row), row["complexity"]): row for row in ends}
    found = []
    for one in dict.fromkeys(map(cell, ends)):
        simple, broken = at.get((*one, 0), {}), at.get((*one, 6), {})
        first, last = log_steps(simple), log_steps(broken)
        if first is not None and last is not None:
            reached = None if never_came(simple) else broken.get("steps_to_loss")
            own = {"censored": False, "steps_to_loss": reached, "ratio": last - first}
            found.append(simple | own)
    return found


def alike_ratio(row: Row) -> float:
    """By how much the log ratio of steps stays within a factor of 1.2."""
    return math.log(1.2) - abs(float(row["ratio"]))


_STEPS: dict[str, Any] = {"unconverged": True, "bounds": True}
CLAIMS = [
    registered(
        "complexity-small", "small weights: more broken pairs, slower training",
        Trend(
            log_steps, "complexity", lambda row: row["gamma"] > 0.5,
            runs=("complexity-post", "complexity"), where=equal(normalization="post"),
            within=("n_layers",), also=("normalization",), cluster=("seed",), **_STEPS,
        ),
        note="The paper's appendix A gives gamma = 0.8 for symmetric models of two layers: in "
        "its figures the same gamma can be called small or large.",
    ),
    registered(
        "complexity-large", "large weights: as fast with broken pairs",
        Mean(
            alike_ratio, lambda row: row["gamma"] < 0.5, runs=("complexity-post",),
            select=with_ratio, is_margin=True, **_STEPS,
        ),
    ),
]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(__file__))
