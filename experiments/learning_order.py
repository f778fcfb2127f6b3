"""When a model learns each group of its training data, an ordered pair, and which break the rule.

A model of small initial weights learns first what follows the common rule, and later what breaks
it (complexity-control paper, end of section VIII). Pairs with less data come late, and so do
*neighbours*: innocent pairs of broken ones' anchors alone, such as (3, 3) if (3, 4) is broken.
:func:`detection` scores them apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64

from anchor_interp import AnchorTask, ConfigError, Run, sample
from anchor_interp.behaviour.scoring import token_scores
from anchor_interp.tasks.functions import Pair

LEARNED = 0.6  # accuracy on a learned pair (complexity-control paper, figure 8B)
_MEASURED = 200  # sequences of each pair


@dataclass(frozen=True, eq=False)
class LearningCurves:
    """Accuracy and loss (in nats) on the sequences of each pair at every checkpoint."""

    pairs: tuple[Pair, ...]
    steps: Int64[np.ndarray, " step"]
    accuracy: Float[np.ndarray, "step pair"]
    loss: Float[np.ndarray, "step pair"]


def learning_curves(run: Run) -> LearningCurves:
    """Measure the first sequences of each pair in a run's own training data.

    Lateness is read between checkpoints, so keep many of them (``checkpoint_every``), at least two.
    """
    config = run.config
    training = sample(config.anchor_task, "train", config.train.n_sequences, seed=config.seed)
    members = {
        config.anchor_task.pairs[index]: np.flatnonzero(training.pair == index)[:_MEASURED]
        for index in np.unique(training.pair)
    }
    pairs = tuple(sorted(members))
    rows = [members[pair] for pair in pairs]
    ends = np.cumsum([*map(len, rows)])[:-1]
    measured = training[np.concatenate(rows)].dataset()
    found = [
        [[float(part.mean()) for part in np.split(values, ends)]
         for values in token_scores(run.at(step).transformer, measured)]
        for step in run.steps
    ]  # fmt: skip
    accuracy, loss = np.array(found).swapaxes(0, 1)
    return LearningCurves(pairs, np.array(run.steps, np.int64), accuracy, loss)


def lateness(curves: LearningCurves) -> Float[np.ndarray, " pair"]:
    """The step at which each pair is learned: its accuracy reaches ``LEARNED`` and stays there.

    Steps are interpolated between checkpoints. A pair below it at the last one is infinitely late.
    """
    found = np.full(len(curves.pairs), np.inf)
    for place, accuracy in enumerate(curves.accuracy.T):
        below = np.flatnonzero(accuracy < LEARNED)
        if not len(below):
            found[place] = curves.steps[0]
        elif below[-1] + 1 < len(accuracy):
            last, first = below[-1], below[-1] + 1
            share = (LEARNED - accuracy[last]) / (accuracy[first] - accuracy[last])
            found[place] = curves.steps[last] + share * (curves.steps[first] - curves.steps[last])
    return found


@dataclass(frozen=True)
class Detection:
    """How well a score tells broken pairs from innocent ones: areas under the ROC curve."""

    auroc: float  # against all others
    neighbours: float | None  # against those of the broken ones' anchors alone
    strangers: float | None  # against all other innocent pairs; None without one


def detection(
    scores: Float[np.ndarray, " pair"], pairs: Sequence[Pair], broken: Sequence[Pair]
) -> Detection:
    """Areas of a score that should be larger for broken pairs, or infinite.

    Pairs that are all broken, or all innocent, are a ConfigError.
    """
    is_broken = np.array([pair in broken for pair in pairs])
    if is_broken.all() or not is_broken.any():
        raise ConfigError(
            f"{is_broken.sum()} of {len(pairs)} groups are broken; expected some, not all"
        )
    anchors = {token for pair in broken for token in pair}
    near = np.array([set(pair) <= anchors for pair in pairs])
    ranks = np.nan_to_num(scores, posinf=np.finfo(float).max)

    def area(innocent: Bool[np.ndarray, " pair"]) -> float | None:
        larger = np.sign(ranks[is_broken, None] - ranks[innocent])  # -1, 0 or 1: the area is a mean
        return float(larger.mean() / 2 + 0.5) if innocent.any() else None

    auroc = area(~is_broken)
    assert auroc is not None
    return Detection(auroc, area(~is_broken & near), area(~is_broken & ~near))


def broken_pairs(task: AnchorTask) -> tuple[Pair, ...]:
    """The ordered pairs whose training target is not the composition."""
    return tuple(pair for pair in task.seen if task.role(pair) == "overridden")
