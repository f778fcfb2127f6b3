"""Finding data that break the rule by how late they are learned.

A model of small initial weights learns first what follows the common rule, and later what breaks
it (complexity-control paper, end of section VIII). So divide the training data into *groups* and
rank them by how late a model of small initialisation learns them, or by their mean loss::

    config = ai.preset("inferential", gamma=0.7, steps=1500, checkpoint_every=50)
    curves = learning_curves(ai.train(config, "runs/mine"))
    for pair, step in ranked(curves):
        print(pair, step)

On our tasks the ranking does no better than chance (``docs/results.md``). Groups with less data
come late, and so do *neighbours*: innocent groups that share their parts with broken ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64

from anchor_interp._util.errors import ConfigError
from anchor_interp.models.forward import last_logits
from anchor_interp.runs.run import Run
from anchor_interp.tasks.sequences import Sequences, sample

LEARNED = 0.6  # accuracy of a learned group (complexity-control paper, figure 8B)
_BATCH = 4096


@dataclass(frozen=True, eq=False)
class LearningCurves:
    """Accuracy and loss (in nats) of groups of training data (with sizes) at every checkpoint."""

    groups: tuple[Any, ...]
    sizes: tuple[int, ...]
    steps: Int64[np.ndarray, " step"]
    accuracy: Float[np.ndarray, "step group"]
    loss: Float[np.ndarray, "step group"]


def learning_curves(
    run: Run, groups: Sequence[Any] | None = None, *, n: int = 200
) -> LearningCurves:
    """Measure groups of a run's own training data at each of its checkpoints.

    ``groups`` names the group of each training sequence; by default its ordered pair. The first n
    sequences of each group are measured. Lateness is read between checkpoints, so keep many of
    them (``checkpoint_every``), at least two.
    """
    config = run.config
    if len(run.steps) < 2:
        raise ConfigError(
            f"{run.name} has {len(run.steps)} checkpoint; expected two or more: train with a "
            "smaller checkpoint_every"
        )
    task = config.anchor_task
    training = sample(task, "train", config.train.n_sequences, seed=config.seed)
    labels = list([task.pairs[i] for i in training.pair] if groups is None else groups)
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
    sizes = tuple(map(len, chosen))
    rows, ends = np.concatenate(chosen), np.cumsum(sizes)[:-1]
    found = [
        [[float(part.mean()) for part in np.split(values, ends)] for values in measured]
        for measured in (_answers(run.at(step), training, rows) for step in run.steps)
    ]
    accuracy, loss = np.array(found).swapaxes(0, 1)
    return LearningCurves(tuple(names), sizes, np.array(run.steps, np.int64), accuracy, loss)


def lateness(curves: LearningCurves, *, level: float = LEARNED) -> Float[np.ndarray, " group"]:
    """The step at which each group is learned: its accuracy reaches ``level`` and stays there.

    Steps are interpolated between checkpoints. A group below it at the last one is infinitely late.
    """
    found = np.full(len(curves.groups), np.inf)
    for group, accuracy in enumerate(curves.accuracy.T):
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


@torch.no_grad()
def _answers(
    run: Run, sequences: Sequences, rows: Int64[np.ndarray, " n"]
) -> tuple[Bool[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Whether each of some sequences is answered with its target, and its loss."""
    model, right, losses = run.transformer, [], []
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        wanted = torch.from_numpy(sequences.targets[batch].astype(np.int64)).to(run.device)
        logits = last_logits(model, sequences[batch])
        right.append((logits.argmax(-1) == wanted).cpu().numpy())
        loss = torch.nn.functional.cross_entropy(logits.float(), wanted, reduction="none")
        losses.append(loss.cpu().numpy())
    return np.concatenate(right), np.concatenate(losses).astype(np.float64)
