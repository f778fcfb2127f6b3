"""Complexity-control paper, section VII, figure 7A, B, C, E: SCAN, COGS, addition and PrOntoQA.

"Small initialization and large weight decay consistently outperform large initialization and small
weight decay across different task types and data scales"; on COGS "even when the ID generalization
of both settings (with 20k training data) reaches over 99%".

The paper compares a small initialisation with much weight decay against a large one with little.
Here every task has all four combinations, so that one setting can be told from the other, at
several numbers of training examples; sizes at which half of either kind have not fitted are left
out, and those at which the better kind is not above chance. Decays that hinder a task from fitting
its data were left out after single runs of the seeds 900 to 905. On COGS the runs have half the
steps of the preset and twice its rate: single runs of the seeds 906 to 908 chose them, with ID
accuracies of 0.86 and 0.87 at the paper's two corners, and of 0.86 and 0.67 at the preset's rate.
The five seeds did not bear this out: 0.92 and 0.75 with 24,155 examples.
"""

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp.runs.config import override
from anchor_interp.runs.presets import preset
from anchor_interp.sweeps.spec import Grid, Sweep
from anchor_interp.tasks.catalog import named_task
from claims import Claim, registered
from common import main
from effects import Difference, Row, Rows, Test, equal
from measures import log_steps
from studies import Study

SEEDS = tuple(range(1000, 1005))
FITTED = 0.95  # the accuracy from which runs count as matched
Pair = tuple[float, float]


def corners(name: str, sizes: tuple[int, ...], gammas: Pair, decays: Pair, **tiny: Any) -> Sweep:
    """All four combinations of a large or small initialisation and little or much decay."""
    axes = {"n_sequences": sizes, "gamma": gammas, "weight_decay": decays}
    return Sweep((Grid(preset(name, **tiny), axes, seeds=SEEDS),))


def _addition() -> Sweep:
    tasks = tuple(map(named_task, ("addition-100", "addition-100-random")))
    start = preset("addition", d_vocab=max(task.n_tokens for task in tasks))
    axes = {"n_sequences": (4_000, 8_559), **_CORNER_SETTINGS, "task": tasks}
    return Sweep((Grid(start, axes, seeds=SEEDS),))


def _addition_20() -> Sweep:
    (grid,) = _addition().grids
    start = override(grid.start, task=grid.axes["task"][0], n_sequences=8_559)
    return Sweep((Grid(start, together=(_CORNER_SETTINGS,), seeds=tuple(range(1015, 1035))),))


def _scan_fitted() -> Sweep:
    """The larger two numbers of commands; a decay of 1 keeps the small corner from fitting."""
    start = preset("scan", until_accuracy=0.99, eval_every=250)
    start = override(start, steps=3 * start.train.steps)
    sizes, seeds = {"n_sequences": (4_400, 17_600)}, tuple(range(1040, 1045))
    return Sweep((Grid(start, sizes, together=(_CORNER_SETTINGS,), seeds=seeds),))


def _cogs_fitted() -> Sweep:
    """The whole training set.

    A single run of the small corner (seed 909) had an ID accuracy of 0.98 after 6,500 steps. With
    20,000 steps, as first planned, the rate is large for too long: two runs (seeds 1045 and 1046)
    were ended at 5,000 steps, at ID accuracies between 0.67 and 0.95.
    """
    start = preset("cogs", steps=8_000, lr=4e-3, n_sequences=24_155, until_accuracy=0.99,
                   eval_every=250)  # fmt: skip
    return Sweep((Grid(start, together=(_CORNER_SETTINGS,), seeds=tuple(range(1050, 1055))),))


_CORNER_SETTINGS = {"gamma": (0.5, 0.8), "weight_decay": (0.01, 0.1)}
RUNS: Mapping[str, Study] = {
    "scan-fitted": Study("two corners on SCAN until they are fitted", _scan_fitted),
    "cogs-fitted": Study("two corners on COGS until they are fitted", _cogs_fitted),
    "addition-20": Study("both settings on addition, twenty seeds", _addition_20),
    "addition": Study("both settings and the data on addition", _addition),
    "scan": Study(
        "both settings and the data on SCAN",
        lambda: corners("scan", (1_100, 4_400, 17_600), (0.3, 0.8), (0.01, 1.0)),
    ),
    "cogs": Study(
        "both settings and the data on COGS",
        lambda: corners("cogs", (6_000, 24_155), (0.5, 0.8), (0.01, 0.1), steps=2_500, lr=4e-3),
    ),
    # the paper's own values of both settings
    "prontoqa": Study(
        "both settings and the data on PrOntoQA",
        lambda: corners("prontoqa", (250, 1_000, 4_000, 16_000), (0.5, 0.7), (0.01, 0.1)),
        ("learning",),
    ),
}


def square(rows: Rows) -> list[Row]:
    """Runs on addition without a square of operands."""
    return [row for row in rows if not row["task"].endswith("random")]


def at_random(rows: Rows) -> list[Row]:
    """Runs on addition without pairs drawn at random."""
    return [row for row in rows if row["task"].endswith("random")]


def with_place(rows: Rows) -> list[Row]:
    """The rows with the place of their number of examples, smallest first, and of the largest."""
    sizes = sorted({row["n_sequences"] for row in rows})
    return [row | {"place": sizes.index(row["n_sequences"]),
                   "largest": row["n_sequences"] == sizes[-1]} for row in rows]  # fmt: skip


def log_epochs(row: Row) -> float | None:
    """Natural logarithm of the passes over the training set until its loss is at most 0.05."""
    steps = log_steps(row)
    return None if steps is None else steps + math.log(row["batch_size"] / row["n_sequences"])


_SMALL, _LARGE = equal(gamma=0.8), equal(gamma=0.5)
_BOTH = ("gamma", "gamma_qk", "weight_decay")
_CORNERS: dict[str, Any] = {
    "free": _BOTH, "within": ("task", "n_sequences"), "cluster": ("seed",), "unconverged": True,
}  # fmt: skip
_ID: dict[str, Any] = {"fitted": ("id_accuracy", FITTED), "above": ("ood_accuracy", 0.1)}
_SQUARE: dict[str, Any] = {
    "runs": ("addition",), "select": square, "cluster": ("seed",), "unconverged": True, **_ID,
}  # fmt: skip
_MUCH, _LITTLE = equal(gamma=0.7, weight_decay=0.1), equal(gamma=0.5, weight_decay=0.01)
_WORLDS: dict[str, Any] = {"runs": ("prontoqa",), "above": ("id_accuracy", 0.6), **_CORNERS}
_SIZES: dict[str, Any] = {
    "runs": ("prontoqa",), "select": with_place, "unconverged": True, "bounds": True,
    "above": ("id_accuracy", 0.6),
}  # fmt: skip
_TAKES = (
    "A setting that a small model learns at all: on new worlds every run guesses. Written down as "
    "`prontoqa-fitted`: pilots over hops, worlds and width, then both corners at three sizes, 30 "
    "runs, 5 core-hours or more; or the paper's GPT-2 on a GPU."
)


def _fitted(gamma: float, decay: float) -> Test:
    corner = equal(gamma=gamma, weight_decay=decay)
    return lambda row: corner(row) and (row["id_accuracy"] or 0.0) > FITTED


def _at(**size: Any) -> Test:
    return equal(gamma=0.5, weight_decay=0.01, **size)


CLAIMS = [
    registered(
        "scan-fitted", "SCAN: a held-out primitive is used better",
        Difference("ood_accuracy", _SMALL, _LARGE, runs=("scan-fitted",), **_CORNERS, **_ID),
        name="c7-scan",
    ),
    registered(
        "cogs-fitted", "COGS: new combinations, depths are answered better",
        Difference("ood_accuracy", _SMALL, _LARGE, runs=("cogs-fitted",), **_CORNERS, **_ID),
        name="c7-cogs",
        note="The number is the mean of the lexical and the structural test set; the paper's "
        "words leave open whether the lexical one is its ID set. Two runs of the small "
        "corner end at 8,000 steps with ID accuracies of 0.91 and 0.93; without them the "
        "difference is as small.",
    ),
    registered(
        "addition-20", "addition: a held-out square is answered better",
        Difference(
            "ood_accuracy", _fitted(0.8, 0.1), _fitted(0.5, 0.01), _BOTH, runs=("addition-20",),
            cluster=("seed",), unconverged=True, above=("ood_accuracy", 0.1),
        ),
    ),
    Claim(
        "c7-addition-gamma", "addition: small weights help by themselves",
        Difference(
            "ood_accuracy", equal(gamma=0.8), equal(gamma=0.5), ("gamma", "gamma_qk"),
            **_SQUARE | {"within": ("task", "n_sequences", "weight_decay")},
        ),
        least=0.1, source="C VII, figure 7C",
        quote="small initialization scales (or large weight decay coefficients) generally lead "
        "to good rule generalization, while large initialization scales (or small weight "
        "decay coefficients) fail to generalize perfectly",
        statistic="the same number, small minus large initialisation at equal weight decay and "
        "data",
        known=("addition",),
    ),
    Claim(
        "c7-addition-decay", "addition: weight decay helps by itself",
        Difference(
            "ood_accuracy", equal(weight_decay=0.1), equal(weight_decay=0.01), ("weight_decay",),
            **_SQUARE | {"within": ("task", "n_sequences", "gamma")},
        ),
        least=0.1, source="C VII, figure 7C",
        quote="small initialization scales (or large weight decay coefficients) generally lead "
        "to good rule generalization, while large initialization scales (or small weight "
        "decay coefficients) fail to generalize perfectly",
        statistic="the same number, much minus little weight decay at equal initialisation and "
        "data",
        known=("addition",),
    ),
    Claim(
        "c7-prontoqa", "PrOntoQA: new worlds are answered better",
        Difference("id_accuracy", _MUCH, _LITTLE, fitted=("train_accuracy", 0.95), **_WORLDS),
        least=0.1, source="C VII, figure 7E",
        quote="leading to faster convergence and better generalization at the same data scale "
        "compared to models with large initialization (small weight decay coefficients)",
        statistic="accuracy on new worlds, small initialisation with much weight decay minus "
        "large one with little, at equal data",
        takes=_TAKES,
        known=("prontoqa",),
    ),
    Claim(
        "c7-prontoqa-faster", "PrOntoQA: fits in fewer epochs",
        Difference(log_epochs, _LITTLE, _MUCH, bounds=True, **_WORLDS),
        least=0.18, source="C VII, figure 7E",
        quote="leading to faster convergence and better generalization at the same data scale "
        "compared to models with large initialization (small weight decay coefficients)",
        statistic="log of the epochs to a training loss of 0.05, large minus small corner at "
        "equal data",
        takes=_TAKES,
        known=("prontoqa",),
    ),
    Claim(
        "c7-prontoqa-rises", "PrOntoQA: large weights: more epochs for more data",
        Difference(log_epochs, _at(place=1), _at(place=0), **_SIZES),
        least=0.18, source="C VII, figure 7E",
        quote="as the data size increases, the convergence rate first decreases and then "
        "increases",
        statistic="log of the epochs to a training loss of 0.05, second smallest minus "
        "smallest number of examples: at tiny 1,000 minus 250",
        note="At chance nothing tells slow learning from memorizing. The paper says "
        "convergence rate, not whether in steps or in epochs; epochs are our reading, and "
        "so is that the turn lies at the second smallest size.",
        takes=_TAKES,
        known=("prontoqa",),
    ),
    Claim(
        "c7-prontoqa-falls", "PrOntoQA: large weights need fewer again for much more",
        Difference(log_epochs, _at(place=1), _at(largest=True), **_SIZES),
        least=0.18, source="C VII, figure 7E",
        quote="as the data size increases, the convergence rate first decreases and then "
        "increases",
        statistic="log of the epochs to a training loss of 0.05, second smallest minus largest "
        "number of examples: at tiny 1,000 minus 16,000",
        takes=_TAKES,
        known=("prontoqa",),
    ),
]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(__file__))
