"""Measures a model on its task: the numbers that its phase is read from.

On a task without anchors these are the scores on its splits, at most ``n`` examples each
(:mod:`anchor_interp.behaviour.scoring`). On an anchor task every model answers the same fixed
sequences: ``n`` for each ordered pair with training keys and ``n`` with test keys
(complexity-control paper, appendix B).

* **train** accuracy is on the run's own training sequences, noise included;
* **ID** accuracy is the mean over the seen pairs, with test keys. If the training sequences given
  have test keys, it is of keys and positions that they lack, or else of other noise;
* **OOD** accuracy is the mean over the unseen pairs, with training and test keys. It counts the
  keys at which the rule differs from what seen pairs like it (``AnchorTask.alike``) were trained
  on, and the pairs that have such keys, if there are any;
* **symmetric** accuracy is the share of unseen sequences answered with the target of the other
  order (this and OOD count the keys at which the two answers differ: in the presets, all);
* **commutativity** is the share of predictions on unseen pairs that stay the same when the two
  anchors change places, **key dependence** the share of them that change with the key;
* **commutativity of wrong answers** counts the unseen sequences that are not answered with the
  composition: where the functions commute, so do right answers. No phase depends on it.
"""

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Int64
from torch import nn

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.behaviour.phase import CellAccuracy, Evaluation, PairAccuracy, UnseenAnswers
from anchor_interp.behaviour.scoring import score_split
from anchor_interp.models.complexity import main_numbers
from anchor_interp.models.forward import last_logits
from anchor_interp.models.networks import Network
from anchor_interp.models.number_checks import check_weights
from anchor_interp.models.transformer import HookedTransformer, Inputs, check_fits, is_transformer
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.contract import draw_examples, untrained
from anchor_interp.tasks.counterfactuals import replace_keys, swap_anchors
from anchor_interp.tasks.examples import Dataset, Examples, SplitRole
from anchor_interp.tasks.functions import Pair
from anchor_interp.tasks.rules import Keys
from anchor_interp.tasks.sequences import Sequences, anchor_pairs, draw
from anchor_interp.tasks.task import Task

Training = Dataset | Examples | None
"""The sequences that a model was trained on, if they are known."""
EVALUATION_SEED = 0
"""Every model is judged on the same sequences unless asked otherwise."""

_MAX_SEQUENCES = 1_000_000  # per pair and kind of key
_LEAST_WRONG = 20  # answers, to say whether they commute
_MOST_TRAINING = 10_000
_BATCH = 4096
_LOGGER = logging.getLogger(__name__)


def evaluate(
    model: Network,
    task: Task,
    *,
    n: int = 500,
    seed: int = EVALUATION_SEED,
    training: Training = None,
    initial: Network | None = None,
    steps: int | None = None,
) -> Evaluation:
    """Measure a model on a task, afresh: ``Run.evaluation`` is what a run has stored.

    Args:
        model: any HookedTransformer whose vocabulary covers the task; its hooks act. Or the network
            that the task brings; on an anchor task also a model of Hugging Face, or what else
            :func:`anchor_interp.models.forward.last_logits` calls (else take ``ai.bridge``).
        n: sequences per ordered pair and kind of key, or examples per split, 1 to 1,000,000.
        training: the run's own training sequences with their answers, of which 10,000 count, or n
            without anchors (``Run.evaluate`` passes them). Without them ``train_accuracy`` is None,
            a model that memorized its sequences cannot be told from an undertrained one, and that
            the test data are new to it is taken on trust.
        initial: the model at initialisation, for the reference of the complexity.
        steps: optimizer updates of the checkpoint, to be recorded.

    Raises:
        ConfigError: n is out of range, the model is too small for the task, its logits or weights
            are not finite, ``training`` has rows of unseen pairs, or ``initial`` has other shapes.
    """
    checked(task, Task, "task")
    checked(initial, Network | None, "initial")
    n = checked(n, int, "n", low=1, high=_MAX_SEQUENCES)
    is_called = isinstance(task, AnchorTask) and callable(model) and not is_transformer(model)
    if not is_called:
        check_fits(model, task)
    own = own_training(task, training)
    if isinstance(model, nn.Module):
        check_weights(model)
    last, first = main_numbers(model, initial)
    if isinstance(task, AnchorTask):
        scores = _of_pairs(model, task, n, seed, own)
    else:
        scores = _of_splits(model, task, n, seed, own)
    return Evaluation(
        **scores,
        steps=steps,
        stable_rank=last.stable_rank,
        stable_rank_at_init=first.stable_rank,
        condensation=last.condensation,
        condensation_at_init=first.condensation,
        n=n,
        seed=seed,
    )


def _of_splits(
    model: Network, task: Task, n: int, seed: int, training: Dataset | None
) -> dict[str, Any]:
    """What an evaluation says of a task without anchors."""
    scores = []
    for split in task.splits:
        if split.role != "train":
            size = n if split.size is None else min(n, split.size)
            drawn = draw_examples(task, split.name, size, seed=seed)
            drawn = untrained(task, split.name, drawn, training)
        elif training is not None:
            drawn = training.rows(slice(n))
        else:
            continue
        scores.append(score_split(model, task, split, drawn, seed=seed))

    def mean(role: SplitRole) -> float | None:
        return _mean(score.accuracy for score in scores if score.role == role)

    none = ("symmetric_accuracy", "commutativity", "key_dependence")
    return dict.fromkeys(none) | {
        "train_accuracy": mean("train"),
        "id_accuracy": mean("id"),
        "ood_accuracy": mean("ood"),
        "pair_accuracy": (),
        "unseen": (),
        "cells": CellAccuracy(None, None, None, None),
        "splits": tuple(scores),
    }


def _of_pairs(
    model: HookedTransformer, task: AnchorTask, n: int, seed: int, training: Dataset | None
) -> dict[str, Any]:
    """What an evaluation says of an anchor task."""

    def shares(pair: Pair) -> list[float]:
        return [accuracy(model, p) for p in _draw(task, pair, n, seed)]

    pairs = tuple(PairAccuracy(pair, task.role(pair), *shares(pair)) for pair in task.pairs)
    answered = [_unseen_answers(model, task, pair, n, seed) for pair in task.unseen]
    unseen = tuple(answers for answers, _ in answered)
    telling = [answers for answers in unseen if not answers.cannot_tell]
    wrong = np.concatenate([np.empty(0), *(stays for _, stays in answered)])
    seen_pairs = [entry for entry in pairs if entry.role != "unseen"]
    unseen_pairs = [entry for entry in pairs if entry.role == "unseen"]
    cells = CellAccuracy(
        seen_train_keys=float(np.mean([entry.train_keys for entry in seen_pairs])),
        seen_test_keys=float(np.mean([entry.test_keys for entry in seen_pairs])),
        unseen_train_keys=_mean(entry.train_keys for entry in unseen_pairs),
        unseen_test_keys=_mean(entry.test_keys for entry in unseen_pairs),
    )
    new: float | None = cells.seen_test_keys
    if training is not None and (held := trained_cells(task, training)) is not None:
        new = _untrained_accuracy(model, task, n, seed, training, held)
    return {
        "train_accuracy": None if training is None else training_accuracy(model, training),
        "id_accuracy": new,
        "ood_accuracy": _mean(each.inferential for each in telling or unseen),
        "symmetric_accuracy": _mean(answers.symmetric for answers in unseen),
        "commutativity": _mean(answers.commutativity for answers in unseen),
        "key_dependence": _mean(answers.key_dependence for answers in unseen),
        "pair_accuracy": pairs,
        "unseen": unseen,
        "cells": cells,
        "commutativity_wrong": float(wrong.mean()) if len(wrong) >= _LEAST_WRONG else None,
    }


@torch.no_grad()
def predict(model: HookedTransformer, tokens: Inputs) -> Int64[np.ndarray, " n"]:
    """The most likely token where every sequence is answered; ConfigError if not finite."""
    answers = [np.empty(0, np.int64)]
    for start in range(0, len(tokens), _BATCH):
        logits = last_logits(model, part := tokens[start : start + _BATCH])
        n_outputs = logits.shape[-1]
        if isinstance(part, Sequences) and n_outputs <= (largest := int(part.targets.max())):
            needs = f"an answer of the task is {largest}"
            raise ConfigError(f"the model has {n_outputs} outputs, from 0; {needs}")
        answers.append(logits.argmax(-1).cpu().numpy())
    return np.concatenate(answers)


def accuracy(model: HookedTransformer, sequences: Sequences) -> float:
    """Share of sequences that are answered with their target."""
    checked(sequences, Sequences, "sequences")
    return float((predict(model, sequences) == sequences.targets).mean())


def training_accuracy(model: HookedTransformer, training: Dataset) -> float:
    """Accuracy on the first 10,000 training sequences of an anchor task."""
    some = training.rows(slice(_MOST_TRAINING))
    return float((predict(model, some.inputs) == some.last).mean())


def own_training(task: Task, training: Training) -> Dataset | None:
    """The training sequences as examples; ConfigError if their lengths are not of this task.

    They may hold no unseen pair of an anchor task, wherever it stands in a row.
    """
    checked(training, Training, "training")
    if training is None:
        return None
    examples = training if isinstance(training, Dataset) else training.dataset()
    read = examples.lengths - 1
    shortest, longest = read.min(initial=task.length), read.max(initial=0)
    if not len(read) or longest > task.length or (task.answers_last and shortest < task.length):
        raise ConfigError(
            f"training holds sequences of shape {(len(read), int(longest))}, of {shortest} to "
            f"{longest} tokens before the answer; expected at least one, of length {task.length}"
        )
    if isinstance(task, AnchorTask) and task.unseen:
        pairs = anchor_pairs(task, examples.tokens[:, : task.length])
        rows, places = np.isin(pairs, task.indices(task.unseen)).nonzero()
        if len(rows):
            held = f"{len(np.unique(rows)):,} of {len(read):,} rows of unseen pairs"
            raise ConfigError(
                f"training holds {held}, such as {task.pairs[pairs[rows[0], places[0]]]}; "
                "give only what the model was trained on, or take these pairs out of task.unseen"
            )
    return examples


def trained_cells(
    task: AnchorTask, training: Dataset
) -> Bool[np.ndarray, "pair key position"] | None:
    """Which pairs, keys and positions a training set holds; None if none of its keys is a test key.

    Warnings say how many rows have test keys, and how many another answer than the task.
    """
    tokens = training.tokens[:, : task.length]
    pairs = anchor_pairs(task, tokens)[:, 1:]  # with the key before them
    row, position = ((pairs >= 0) & np.isin(tokens[:, :-2], task.keys)).nonzero()
    key = tokens[row, position] - task.key_min
    target = task.target_table[pairs[row, position], key]
    wrong = np.setdiff1d(row[target >= 0], row[target == training.last[row]])
    if n := len(wrong):
        example = wrong[0], training.last[wrong[0]], target[row == wrong[0]][0]
        what = "%s of %s training rows have other answers than the task, as row %d: %d, not %d"
        _LOGGER.warning(what, f"{n:,}", f"{len(tokens):,}", *example)
    tested = task.on_side("test", np.arange(task.length))[position, key]
    if not tested.any():
        return None
    _LOGGER.warning(
        "%s of %s training rows have keys and positions that the split by key and position keeps "
        "for testing: ID accuracy is of what training lacks",
        *(f"{n:,}" for n in (len(np.unique(row[tested])), len(tokens))),
    )
    held = np.zeros((len(task.pairs), len(task.keys), task.length - 2), bool)
    held[pairs[row, position], key, position] = True
    return held


def is_trained(
    task: AnchorTask, sequences: Sequences, held: Bool[np.ndarray, "pair key position"]
) -> Bool[np.ndarray, " n"]:
    """Whether the pair, key and position of each sequence are among those that training holds."""
    found: np.ndarray = held[sequences.pair, sequences.key - task.key_min, sequences.position]
    return found


def _untrained_accuracy(
    model: HookedTransformer,
    task: AnchorTask,
    n: int,
    seed: int,
    training: Dataset,
    held: Bool[np.ndarray, "pair key position"],
) -> float | None:
    """Mean accuracy over the seen pairs on sequences that training does not hold; None without any.

    They have pairs, keys and positions that training lacks; if it has all, only other noise.
    """
    drawn = {pair: _draw(task, pair, n, seed) for pair in task.seen}
    parts = [part for both in drawn.values() for part in both]
    new = [~is_trained(task, part, held) for part in parts]
    if not any(each.any() for each in new):
        rows = {row.tobytes() for row in training.tokens[:, : task.length].astype(np.uint8)}
        new = [np.array([row.tobytes() not in rows for row in part.tokens]) for part in parts]
    right = [predict(model, part) == part.targets for part in parts]
    by_pair = [np.concatenate([a[b] for a, b in zip(right[i : i + 2], new[i : i + 2], strict=True)])
               for i in range(0, len(parts), 2)]  # fmt: skip
    return _mean(float(each.mean()) for each in by_pair if len(each))


def _draw(task: AnchorTask, pair: Pair, n: int, seed: int) -> list[Sequences]:
    """Sequences of a pair with training keys, and as many with test keys."""
    kinds: tuple[Keys, ...] = ("train", "test")
    return [draw(task, [pair], k, n, seed=seed, stream=f"evaluate/{pair}/{k}") for k in kinds]


def _unseen_answers(
    model: HookedTransformer, task: AnchorTask, pair: Pair, n: int, seed: int
) -> tuple[UnseenAnswers, npt.NDArray[np.bool_]]:
    """The answers on one unseen pair, and whether each wrong one stays when anchors are swapped."""
    parts = _draw(task, pair, n, seed)
    answer = np.concatenate([predict(model, part) for part in parts])
    swapped = np.concatenate([predict(model, swap_anchors(part)) for part in parts])
    other = np.concatenate([predict(model, replace_keys(task, part, seed=seed)) for part in parts])
    keys = np.concatenate([part.key for part in parts]).astype(np.int64)
    composed, mirrored = task.composed(pair, keys), task.symmetric(pair, keys)
    differ = np.ones_like(keys, dtype=bool) if mirrored is None else mirrored != composed
    if not differ.any():  # the two answers coincide at every key that was drawn
        mirrored, differ = None, ~differ
    tells = differ & task.tells(pair, keys)
    stays = (answer == swapped)[answer != composed] if pair[0] != pair[1] else np.empty(0, bool)
    values, counts = np.unique(answer - keys, return_counts=True)
    ranked = sorted(zip(counts, values, strict=True), key=lambda item: (-item[0], item[1]))
    answers = UnseenAnswers(
        pair=pair,
        inferential=float((answer == composed)[tells if tells.any() else differ].mean()),
        symmetric=None if mirrored is None else float((answer == mirrored)[differ].mean()),
        commutativity=None if pair[0] == pair[1] else float((answer == swapped).mean()),
        key_dependence=float((answer != other).mean()),
        as_other_order=mirrored is None and (pair[1], pair[0]) in task.seen,
        as_seen=() if tells.any() else task.alike(pair),
        offsets={f"{value:+d}": float(count / len(keys)) for count, value in ranked},
    )
    return answers, stays


def _mean(values: Iterable[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None
