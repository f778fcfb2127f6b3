"""What a model of an anchor task answers: the numbers that its phase is read from.

Four cells (seen or unseen pairs, training or test keys) of every ordered pair are measured on the
same fixed sequences for every model (complexity-control paper, appendix B):

* **train**: the run's own training sequences, noise and all;
* **ID**: all seen pairs with test keys, **OOD**: all unseen pairs with training and test keys,
  each the mean over its (pair, keys) cells;
* **symmetric**: share of the unseen pairs' sequences answered with the target of the other order
  (this and OOD over the keys at which the two answers differ: in the presets, all);
* **commutativity**: share of predictions on unseen pairs that stay the same when the two anchors
  of the sequence change places;
* **key dependence**: share that changes when the key is exchanged;
* the distribution of answer minus key on every unseen pair;
* stable rank and condensation of W_Q(1), beside their values at initialisation.
"""

import numpy as np
import torch
from jaxtyping import Int64, Integer

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.models.complexity import condensation, first_query_matrix, measured, stable_rank
from anchor_interp.models.forward import last_logits
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.phase import CellAccuracy, Evaluation, PairAccuracy, UnseenAnswers
from anchor_interp.tasks.anchor import AnchorTask, Keys, Pair
from anchor_interp.tasks.counterfactuals import replace_keys, swap_anchors
from anchor_interp.tasks.sequences import Sequences, draw

EVALUATION_SEED = 0
"""Every model is judged on the same sequences unless asked otherwise."""


MAX_SEQUENCES = 1_000_000
"""Most sequences per cell."""


_BATCH = 4096


_TRAINING = 10_000


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
        model: any HookedTransformer whose vocabulary covers the task; hooks attached to it act.
        task: the task that it was trained on.
        n: sequences per ordered pair and side of the split, 1 to 1,000,000 (at most 10,000
            training sequences are looked at besides).
        seed: seed of the evaluation sequences.
        training: the run's own training sequences (``Run.evaluate`` gives them). Without them
            ``train_accuracy`` is None, and a model that knows its sequences by heart cannot be told
            from an undertrained one.
        initial: the model at initialisation, for the complexity numbers' reference.
        steps: optimizer updates of the checkpoint, to be recorded.

    Raises:
        ConfigError: n out of range, a vocabulary or context too small for the task, or weights
            that are not finite.
    """
    checked(model, HookedTransformer, "model")
    checked(task, AnchorTask, "task")
    checked(training, Sequences | None, "training")
    checked(initial, HookedTransformer | None, "initial")
    n = checked(n, int, "n")
    if not 1 <= n <= MAX_SEQUENCES:
        raise ConfigError(f"n is {shown(n)}; expected 1 to {MAX_SEQUENCES:,} sequences per cell")
    n_tokens = min(model.cfg.d_vocab, model.cfg.d_vocab_out)
    if n_tokens < task.n_tokens or model.cfg.n_ctx < task.length:
        raise ConfigError(
            f"the model has {n_tokens} tokens and {model.cfg.n_ctx} positions; the task "
            f"needs {task.n_tokens} and {task.length}"
        )
    pairs = tuple(_pair_accuracy(model, task, pair, n, seed) for pair in task.pairs)
    unseen = tuple(_unseen_answers(model, task, pair, n, seed) for pair in task.unseen)
    if training is not None and (not len(training) or training.tokens.shape[1] != task.length):
        raise ConfigError(
            f"training holds sequences of shape {training.tokens.shape}; expected some of length "
            f"{task.length}"
        )
    symmetric = [answers.symmetric for answers in unseen if answers.symmetric is not None]
    query = first_query_matrix(model)
    reference = None if initial is None else first_query_matrix(initial)
    return Evaluation(
        steps=steps,
        train_accuracy=None
        if training is None
        else accuracy(model, training.tokens[:_TRAINING], training.targets[:_TRAINING]),
        id_accuracy=_mean([pair.test_keys for pair in pairs if pair.role != "unseen"]),
        ood_accuracy=_mean_or_none([answers.inferential for answers in unseen]),
        symmetric_accuracy=_mean_or_none(symmetric),
        commutativity=_mean_or_none(
            [answers.commutativity for answers in unseen if answers.commutativity is not None]
        ),
        key_dependence=_mean_or_none([answers.key_dependence for answers in unseen]),
        pair_accuracy=pairs,
        unseen=unseen,
        cells=_cells(pairs),
        stable_rank=measured(stable_rank, query),
        stable_rank_at_init=measured(stable_rank, reference),
        condensation=measured(condensation, query),
        condensation_at_init=measured(condensation, reference),
        n=n,
        seed=seed,
    )


@torch.no_grad()
def predict(
    model: HookedTransformer, tokens: Integer[np.ndarray, "n pos"]
) -> Int64[np.ndarray, " n"]:
    """The predicted token (argmax of the last position's logits) of every sequence.

    Raises:
        ConfigError: no model, no array of tokens, or logits that are not finite.
    """
    checked(model, HookedTransformer, "model")
    checked(tokens, np.ndarray, "tokens")
    if tokens.ndim != 2 or tokens.dtype.kind not in "iu":
        raise ConfigError(f"tokens is {shown(tokens)}; expected an array of integers (n, pos)")
    device = model.embed.W_E.device
    answers = []
    for start in range(0, len(tokens), _BATCH):
        rows = torch.from_numpy(tokens[start : start + _BATCH].astype(np.int64)).to(device)
        logits = last_logits(model, rows)
        if not torch.isfinite(logits).all():
            raise ConfigError("the model's logits are not finite numbers; its weights are damaged")
        answers.append(logits.argmax(-1).cpu().numpy())
    return np.concatenate(answers) if answers else np.empty(0, np.int64)


def accuracy(
    model: HookedTransformer,
    tokens: Integer[np.ndarray, "n pos"],
    targets: Integer[np.ndarray, " n"],
) -> float:
    """Share of sequences answered with their target."""
    return float((predict(model, tokens) == targets).mean())


def _pair_accuracy(
    model: HookedTransformer, task: AnchorTask, pair: Pair, n: int, seed: int
) -> PairAccuracy:
    def share(keys: Keys) -> float:
        drawn = draw(task, [pair], keys, n, seed=seed, stream=f"evaluate/{pair}/{keys}")
        return accuracy(model, drawn.tokens, drawn.targets)

    return PairAccuracy(pair, task.role(pair), share("train"), share("test"))


def _unseen_answers(
    model: HookedTransformer, task: AnchorTask, pair: Pair, n: int, seed: int
) -> UnseenAnswers:
    """Equal numbers of training-key and test-key sequences of an unseen pair."""
    parts = [
        draw(task, [pair], keys, n, seed=seed, stream=f"evaluate/{pair}/{keys}")
        for keys in ("train", "test")
    ]
    answer = np.concatenate([predict(model, part.tokens) for part in parts])
    swapped = np.concatenate([predict(model, swap_anchors(part)) for part in parts])
    other = np.concatenate([predict(model, replace_keys(task, part, seed=seed)) for part in parts])
    keys = np.concatenate([part.key for part in parts]).astype(np.int64)
    composed, mirrored = task.composed(pair, keys), task.symmetric(pair, keys)
    told_apart = np.ones_like(keys, dtype=bool) if mirrored is None else mirrored != composed
    if not told_apart.any():  # only coinciding keys were drawn: they tell nothing either way
        mirrored, told_apart = None, ~told_apart
    values, counts = np.unique(answer - keys, return_counts=True)
    ranked = sorted(zip(counts, values, strict=True), key=lambda item: (-item[0], item[1]))
    return UnseenAnswers(
        pair=pair,
        inferential=float((answer == composed)[told_apart].mean()),
        symmetric=None if mirrored is None else float((answer == mirrored)[told_apart].mean()),
        commutativity=None if pair[0] == pair[1] else float((answer == swapped).mean()),
        key_dependence=float((answer != other).mean()),
        offsets={f"{value:+d}": float(count / len(keys)) for count, value in ranked},
    )


def _cells(pairs: tuple[PairAccuracy, ...]) -> CellAccuracy:
    seen = [entry for entry in pairs if entry.role != "unseen"]
    unseen = [entry for entry in pairs if entry.role == "unseen"]
    return CellAccuracy(
        seen_train_keys=_mean([entry.train_keys for entry in seen]),
        seen_test_keys=_mean([entry.test_keys for entry in seen]),
        unseen_train_keys=_mean_or_none([entry.train_keys for entry in unseen]),
        unseen_test_keys=_mean_or_none([entry.test_keys for entry in unseen]),
    )


def _mean(values: list[float]) -> float:
    return float(np.mean(values))


def _mean_or_none(values: list[float]) -> float | None:
    return _mean(values) if values else None
