"""Measures a model on an anchor task: the numbers that its phase is read from.

Every model answers the same fixed sequences: ``n`` for each ordered pair with training keys and
``n`` with test keys (complexity-control paper, appendix B).

* **train** accuracy is on the run's own training sequences, noise included;
* **ID** accuracy is the mean over the seen pairs, with test keys;
* **OOD** accuracy is the mean over the unseen pairs, with training and test keys;
* **symmetric** accuracy is the share of unseen sequences answered with the target of the other
  order (this and OOD count the keys at which the two answers differ: in the presets, all);
* **commutativity** is the share of predictions on unseen pairs that stay the same when the two
  anchors change places, **key dependence** the share of them that change with the key;
* **commutativity of wrong answers** counts the unseen sequences that are not answered with the
  composition: where the functions commute, so do right answers. No phase depends on it.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int64, Integer

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.models.complexity import condensation, first_query_matrix, measured, stable_rank
from anchor_interp.models.finite import check_finite
from anchor_interp.models.forward import last_logits
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.phase import CellAccuracy, Evaluation, PairAccuracy, UnseenAnswers
from anchor_interp.tasks.anchor import AnchorTask, Keys, Pair
from anchor_interp.tasks.counterfactuals import replace_keys, swap_anchors
from anchor_interp.tasks.sequences import Sequences, draw

EVALUATION_SEED = 0
"""Every model is judged on the same sequences unless asked otherwise."""

_MAX_SEQUENCES = 1_000_000  # per pair and kind of key
_LEAST_WRONG = 20  # answers, to say whether they commute
_MOST_TRAINING = 10_000
_BATCH = 4096


def evaluate(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    n: int = 500,
    seed: int = EVALUATION_SEED,
    training: Sequences | None = None,
    initial: HookedTransformer | None = None,
    steps: int | None = None,
) -> Evaluation:
    """Measure a model on a task.

    Args:
        model: any HookedTransformer whose vocabulary covers the task; its hooks act.
        n: sequences per ordered pair and kind of key, 1 to 1,000,000.
        training: the run's own training sequences, of which 10,000 count (``Run.evaluate`` passes
            them). Without them ``train_accuracy`` is None, and a model that memorized its sequences
            cannot be told from an undertrained one.
        initial: the model at initialisation, for the reference of the complexity.
        steps: optimizer updates of the checkpoint, to be recorded.

    Raises:
        ConfigError: n is out of range, the model is too small for the task, or its logits or
            weights are not finite.
    """
    checked(model, HookedTransformer, "model")
    checked(task, AnchorTask, "task")
    checked(training, Sequences | None, "training")
    checked(initial, HookedTransformer | None, "initial")
    n = checked(n, int, "n")
    if not 1 <= n <= _MAX_SEQUENCES:
        raise ConfigError(f"n is {shown(n)}; expected 1 to {_MAX_SEQUENCES:,} sequences per pair")
    n_tokens, n_ctx = min(model.cfg.d_vocab, model.cfg.d_vocab_out), model.cfg.n_ctx
    if n_tokens < task.n_tokens or n_ctx < task.length:
        needs = f"the task needs {task.n_tokens} and {task.length}"
        raise ConfigError(f"the model has {n_tokens} tokens and {n_ctx} positions; {needs}")
    if training is not None and (not len(training) or training.tokens.shape[1] != task.length):
        found = f"training holds sequences of shape {training.tokens.shape}"
        raise ConfigError(f"{found}; expected at least one, of length {task.length}")

    def shares(pair: Pair) -> list[float]:
        return [accuracy(model, p.tokens, p.targets) for p in _draw(task, pair, n, seed)]

    pairs = tuple(PairAccuracy(pair, task.role(pair), *shares(pair)) for pair in task.pairs)
    answered = [_unseen_answers(model, task, pair, n, seed) for pair in task.unseen]
    unseen = tuple(answers for answers, _ in answered)
    wrong = np.concatenate([np.empty(0), *(stays for _, stays in answered)])
    seen_pairs = [entry for entry in pairs if entry.role != "unseen"]
    unseen_pairs = [entry for entry in pairs if entry.role == "unseen"]
    cells = CellAccuracy(
        seen_train_keys=float(np.mean([entry.train_keys for entry in seen_pairs])),
        seen_test_keys=float(np.mean([entry.test_keys for entry in seen_pairs])),
        unseen_train_keys=_mean(entry.train_keys for entry in unseen_pairs),
        unseen_test_keys=_mean(entry.test_keys for entry in unseen_pairs),
    )
    train_accuracy = None
    if training is not None:
        some = slice(_MOST_TRAINING)
        train_accuracy = accuracy(model, training.tokens[some], training.targets[some])
    query = first_query_matrix(model)
    reference = None if initial is None else first_query_matrix(initial)
    return Evaluation(
        steps=steps,
        train_accuracy=train_accuracy,
        id_accuracy=cells.seen_test_keys,
        ood_accuracy=_mean(answers.inferential for answers in unseen),
        symmetric_accuracy=_mean(answers.symmetric for answers in unseen),
        commutativity=_mean(answers.commutativity for answers in unseen),
        key_dependence=_mean(answers.key_dependence for answers in unseen),
        pair_accuracy=pairs,
        unseen=unseen,
        cells=cells,
        stable_rank=measured(stable_rank, query),
        stable_rank_at_init=measured(stable_rank, reference),
        condensation=measured(condensation, query),
        condensation_at_init=measured(condensation, reference),
        n=n,
        seed=seed,
        commutativity_wrong=float(wrong.mean()) if len(wrong) >= _LEAST_WRONG else None,
    )


@torch.no_grad()
def predict(
    model: HookedTransformer, tokens: Integer[np.ndarray, "n pos"]
) -> Int64[np.ndarray, " n"]:
    """The argmax of the last position's logits of every sequence; ConfigError if not finite."""
    checked(model, HookedTransformer, "model")
    checked(tokens, np.ndarray, "tokens")
    if tokens.ndim != 2 or tokens.dtype.kind not in "iu":
        raise ConfigError(f"tokens is {shown(tokens)}; expected an array of integers (n, pos)")
    device = model.embed.W_E.device
    answers = [np.empty(0, np.int64)]
    for start in range(0, len(tokens), _BATCH):
        rows = torch.from_numpy(tokens[start : start + _BATCH].astype(np.int64)).to(device)
        logits = last_logits(model, rows)
        answers.append(check_finite(logits, "the model's logits").argmax(-1).cpu().numpy())
    return np.concatenate(answers)


def accuracy(
    model: HookedTransformer,
    tokens: Integer[np.ndarray, "n pos"],
    targets: Integer[np.ndarray, " n"],
) -> float:
    """Share of sequences answered with their target."""
    return float((predict(model, tokens) == targets).mean())


def _draw(task: AnchorTask, pair: Pair, n: int, seed: int) -> list[Sequences]:
    """Sequences of a pair with training keys, and as many with test keys."""
    kinds: tuple[Keys, ...] = ("train", "test")
    return [draw(task, [pair], k, n, seed=seed, stream=f"evaluate/{pair}/{k}") for k in kinds]


def _unseen_answers(
    model: HookedTransformer, task: AnchorTask, pair: Pair, n: int, seed: int
) -> tuple[UnseenAnswers, npt.NDArray[np.bool_]]:
    """The answers on one unseen pair, and whether each wrong one stays when anchors are swapped."""
    parts = _draw(task, pair, n, seed)
    answer = np.concatenate([predict(model, part.tokens) for part in parts])
    swapped = np.concatenate([predict(model, swap_anchors(part)) for part in parts])
    other = np.concatenate([predict(model, replace_keys(task, part, seed=seed)) for part in parts])
    keys = np.concatenate([part.key for part in parts]).astype(np.int64)
    composed, mirrored = task.composed(pair, keys), task.symmetric(pair, keys)
    differ = np.ones_like(keys, dtype=bool) if mirrored is None else mirrored != composed
    if not differ.any():  # the two answers coincide at every key that was drawn
        mirrored, differ = None, ~differ
    stays = (answer == swapped)[answer != composed] if pair[0] != pair[1] else np.empty(0, bool)
    values, counts = np.unique(answer - keys, return_counts=True)
    ranked = sorted(zip(counts, values, strict=True), key=lambda item: (-item[0], item[1]))
    answers = UnseenAnswers(
        pair=pair,
        inferential=float((answer == composed)[differ].mean()),
        symmetric=None if mirrored is None else float((answer == mirrored)[differ].mean()),
        commutativity=None if pair[0] == pair[1] else float((answer == swapped).mean()),
        key_dependence=float((answer != other).mean()),
        offsets={f"{value:+d}": float(count / len(keys)) for count, value in ranked},
    )
    return answers, stays


def _mean(values: Iterable[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None
