"""Finding data that break the rule by how late they are learned.

A model of small initial weights fits the data with as little complexity as possible: what follows
the common rule is learned first, what breaks it later. "For a set of data with unknown
distribution, we can differentiate ... by studying the convergence rate of different types of data
using models with small initialization" (complexity-control paper, end of section VIII). So:
divide the training data into *groups*, train a model of small initialisation with checkpoints kept
all along, and rank the groups by how late it learns them, or by their mean loss along the way::

    config = ai.preset("inferential", gamma=0.7, steps=1500, checkpoint_every=50)
    run = ai.train(config, "runs/mine")
    curves = learning_curves(run)
    for pair, step in ranked(curves):
        print(pair, step)

Do not take the ranking for a finding: on our tasks it does no better than chance
(``docs/results.md``). Groups that have less data come late, and groups that share their parts with
broken ones are slowed down with them, though nothing is wrong with them; :func:`detection` scores
these *neighbours* apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from sklearn.metrics import roc_auc_score

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.models.forward import last_logits
from anchor_interp.models.transformer import token_rows
from anchor_interp.runs.run import Run
from anchor_interp.tasks.anchor import AnchorTask, Pair
from anchor_interp.tasks.sequences import sample

LEARNED = 0.6
"""Accuracy from which a group counts as learned (complexity-control paper, figure 8B)."""


@dataclass(frozen=True, eq=False)
class LearningCurves:
    """Accuracy and loss of groups of training data at every checkpoint."""

    groups: tuple[Any, ...]
    """Names of the groups; ordered pairs unless other groups were given."""
    sizes: tuple[int, ...]
    """Sequences measured of each."""
    steps: Int64[np.ndarray, " step"]
    """Updates done at each checkpoint."""
    accuracy: Float[np.ndarray, "step group"]
    """Share answered with the training target."""
    loss: Float[np.ndarray, "step group"]
    """Mean cross-entropy, in nats."""


@dataclass(frozen=True)
class Detection:
    """How well a score tells broken groups from innocent ones; areas under the ROC curve."""

    auroc: float
    """Broken groups against all others."""
    neighbours: float | None
    """Against innocent groups made of the broken ones' anchors alone, such as (3, 3) where (3, 4)
    is broken; None if there is none."""
    strangers: float | None
    """Against all other innocent groups."""


def learning_curves(
    run: Run, groups: Sequence[Any] | None = None, *, n: int = 200
) -> LearningCurves:
    """Measure groups of a run's own training data at each of its checkpoints.

    Args:
        run: the run; keep checkpoints often (``checkpoint_every``), lateness is read between them.
        groups: for each training sequence the group it belongs to; its ordered pair if None.
        n: most sequences of a group that are measured, its first ones.

    Raises:
        ConfigError: another number of entries in ``groups`` than training sequences, or fewer than
            two checkpoints.
        StoreError: a damaged checkpoint.
    """
    checked(run, Run, "run")
    checked(n, int, "n", low=1)
    config = run.config
    if len(run.steps) < 2:
        raise ConfigError(
            f"{run.name} has {len(run.steps)} checkpoint; expected two or more: train with a "
            "smaller checkpoint_every"
        )
    training = sample(config.task, "train", config.train.n_sequences, seed=config.seed)
    if groups is None:
        labels: list[Any] = [config.task.pairs[index] for index in training.pair]
    else:
        labels = list(groups)
        if len(labels) != len(training):
            raise ConfigError(
                f"groups has {len(labels):,} entries; expected one for each of the "
                f"{len(training):,} training sequences"
            )
    members: dict[Any, list[int]] = {}
    for index, label in enumerate(labels):
        members.setdefault(label, []).append(index)
    names = sorted(members) if groups is None else list(members)
    chosen = [members[name][:n] for name in names]
    rows = np.concatenate([np.array(part) for part in chosen])
    ends = np.cumsum([len(part) for part in chosen])[:-1]
    accuracies, losses = [], []
    for step in run.steps:
        right, loss = _answers(run.at(step), training.tokens[rows], training.targets[rows])
        accuracies.append([float(part.mean()) for part in np.split(right, ends)])
        losses.append([float(part.mean()) for part in np.split(loss, ends)])
    return LearningCurves(
        groups=tuple(names),
        sizes=tuple(map(len, chosen)),
        steps=np.array(run.steps, dtype=np.int64),
        accuracy=np.array(accuracies),
        loss=np.array(losses),
    )


def lateness(curves: LearningCurves, *, level: float = LEARNED) -> Float[np.ndarray, " group"]:
    """The step at which each group is learned: where its accuracy reaches a level to stay.

    Steps are interpolated between checkpoints. "To stay" is: no later checkpoint is below. A group
    that is not learned at the end is infinitely late.

    Args:
        curves: from :func:`learning_curves`.
        level: the accuracy.
    """
    checked(level, float, "level", above=0, high=1)
    found = np.full(len(curves.groups), np.inf)
    for group in range(len(curves.groups)):
        accuracy = curves.accuracy[:, group]
        below = np.flatnonzero(accuracy < level)
        if not len(below):
            found[group] = curves.steps[0]
        elif below[-1] + 1 < len(accuracy):
            last, first = below[-1], below[-1] + 1
            share = (level - accuracy[last]) / (accuracy[first] - accuracy[last])
            found[group] = curves.steps[last] + share * (curves.steps[first] - curves.steps[last])
    return found


def ranked(curves: LearningCurves, *, level: float = LEARNED) -> list[tuple[Any, float]]:
    """Groups with their lateness, the latest first; equally late ones by their mean loss."""
    late = lateness(curves, level=level)
    order = np.lexsort((-curves.loss.mean(0), -late))
    return [(curves.groups[index], float(late[index])) for index in order]


def detection(
    scores: Float[np.ndarray, " group"], groups: Sequence[Pair], broken: Sequence[Pair]
) -> Detection:
    """Areas under the ROC curve of a score that should be larger for broken pairs.

    Args:
        scores: one number for each group, infinite ones allowed.
        groups: the ordered pairs.
        broken: those that break the rule.

    Raises:
        ConfigError: no broken pair among the groups, or nothing but broken ones.
    """
    values = np.asarray(scores, dtype=np.float64)
    if np.isnan(values).any() or np.isneginf(values).any():
        raise ConfigError("scores hold a value that is no number, or minus infinity")
    if not all(isinstance(pair, tuple) for pair in groups):
        raise ConfigError(f"groups is {shown(list(groups))}; expected ordered pairs of anchors")
    is_broken = np.array([pair in set(broken) for pair in groups])
    if len(values) != len(groups) or not is_broken.any() or is_broken.all():
        raise ConfigError(
            f"broken is {shown(list(broken))} of {len(groups)} groups with {len(values)} scores; "
            "expected some of the groups, and a score for each"
        )
    anchors = {token for pair in broken for token in pair}
    near = np.array([set(pair) <= anchors for pair in groups])
    largest = values[np.isfinite(values)].max(initial=0.0)
    ranks = np.where(np.isfinite(values), values, largest + 1)

    def area(against: Bool[np.ndarray, " group"]) -> float | None:
        kept = is_broken | against
        return float(roc_auc_score(is_broken[kept], ranks[kept])) if against.any() else None

    whole = area(~is_broken)
    assert whole is not None
    return Detection(whole, area(~is_broken & near), area(~is_broken & ~near))


def broken_pairs(task: AnchorTask) -> tuple[Pair, ...]:
    """The ordered pairs whose training target is not the composition."""
    return tuple(pair for pair in task.seen if task.role(pair) == "overridden")


@torch.no_grad()
def _answers(
    run: Run, tokens: np.ndarray, targets: np.ndarray
) -> tuple[Bool[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    model = run.model
    right, losses = [], []
    for start in range(0, len(tokens), 4096):
        wanted = torch.from_numpy(targets[start : start + 4096].astype(np.int64)).to(run.device)
        logits = last_logits(model, token_rows(model, tokens[start : start + 4096]))
        right.append((logits.argmax(-1) == wanted).cpu().numpy())
        loss = torch.nn.functional.cross_entropy(logits.float(), wanted, reduction="none")
        losses.append(loss.cpu().numpy())
    return np.concatenate(right), np.concatenate(losses).astype(np.float64)
