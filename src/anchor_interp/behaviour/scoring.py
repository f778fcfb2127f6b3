"""How well a model does on examples of any task: right answers, and loss.

Where a task's answers have an end, the model decodes them and the task scores them. A task that
keeps the score of exact matches needs no decoding: a greedy answer is right if and only if every
token of the right answer is the most likely one after the true tokens before it, which one forward
pass tells. Where answers have no end, each token to predict counts by itself.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64

from anchor_interp.behaviour.phase import AspectScore, Baseline, SplitScore
from anchor_interp.models.batches import IGNORED, masked_batch
from anchor_interp.models.decoding import generate
from anchor_interp.models.forward import place_logits
from anchor_interp.models.networks import Network
from anchor_interp.models.number_checks import at_least_float32, check_finite
from anchor_interp.models.shapes import most_positions
from anchor_interp.models.transformer import HookedTransformer, device
from anchor_interp.tasks.contract import draw_aspects, draw_baselines, right_or_wrong
from anchor_interp.tasks.examples import Dataset, Split
from anchor_interp.tasks.network import OwnNetwork
from anchor_interp.tasks.task import Task

MOST_VALUES = 32
"""Most numbers of an aspect that are counted one by one; more are counted in as many ranges."""


def score_split(
    model: Network, task: Task, split: Split, examples: Dataset, *, seed: int = 0
) -> SplitScore:
    """The accuracy, also by the task's aspects, and the loss on examples of one split."""
    own: tuple[AspectScore, ...] = ()
    if task.most_judged is not None:
        examples = examples.rows(slice(task.most_judged))
    parts = task.judge(model, examples, seed=seed, stream=split.name)
    if parts is None:
        tokens, losses = token_scores(model, examples)
        shares = right_answers(model, task, examples, tokens)
        loss = float(np.average(losses, weights=examples.n_predicted))
    else:
        judge = cast(OwnNetwork, task)  # only such a task judges
        loss = judge.loss(model, examples, seed=seed, stream=f"score/{split.name}")
        shares, n = _whole(parts), len(examples)
        own = tuple(
            AspectScore(judge.part, name, None, float(right.mean()), n)
            for name, right in parts.items()
        )
    aspects, n_bytes = draw_aspects(task, examples).items(), task.n_bytes(examples)
    bits = loss / math.log(2) * int(examples.n_predicted.sum())
    weights = examples.n_predicted if task.by_token else np.ones(len(examples))

    def mean(rows: Any) -> float:
        return float(np.average(shares[rows], weights=weights[rows]))

    scores = tuple(score for name, values in aspects for score in _by(name, values, mean))
    return SplitScore(
        name=split.name,
        role=split.role,
        accuracy=mean(slice(None)),
        loss=loss,
        n=len(examples),
        aspects=(*own, *scores),
        chance=task.chance,
        baselines=tuple(starmap(Baseline, draw_baselines(task, examples).items())),
        bits_per_byte=None if n_bytes is None else bits / int(n_bytes.sum()),
        by_token=task.by_token,
    )


def _by(
    aspect: str, values: Sequence[str] | Sequence[int], mean: Callable[[Any], float]
) -> Iterator[AspectScore]:
    """The accuracy for every value, or for ranges of equal width where there are many numbers."""
    distinct, group = np.unique(np.array(values), return_inverse=True)
    lows, highs = distinct.tolist(), [None] * len(distinct)
    if distinct.dtype.kind == "i":
        extent = int(distinct[-1] - distinct[0] + 1)
        width = -(-extent // MOST_VALUES) if len(distinct) > MOST_VALUES else 1
        start = distinct - (distinct - distinct[0]) % width
        low, group = np.unique(start[group], return_inverse=True)
        lows, highs = low.tolist(), (low + width - 1).tolist()
    for index, (first, last) in enumerate(zip(lows, highs, strict=True)):
        own = group == index
        yield AspectScore(aspect, first, last, mean(own), int(own.sum()))


def right_answers(
    model: Network, task: Task, examples: Dataset, tokens: Float[np.ndarray, " n"] | None = None
) -> Float[np.ndarray, " n"]:
    """How right each answer is, 0 or 1; without an end token the share of right ``tokens``."""
    if (parts := task.judge(model, examples, seed=0, stream="probe")) is not None:
        return _whole(parts)
    if task.end is not None and type(task).score is not Task.score:
        return decoded_answers(model, task, examples, end=task.end)
    if tokens is None:
        tokens, _ = token_scores(model, examples)
    return tokens if task.end is None else np.floor(tokens)  # 1 if all tokens are right


def _whole(parts: Mapping[str, Bool[np.ndarray, " n"]]) -> Float[np.ndarray, " n"]:
    """Which answers have all of their parts right, 0 or 1."""
    return np.stack(tuple(parts.values())).all(0).astype(float)


def decoded_answers(
    model: HookedTransformer, task: Task, examples: Dataset, *, end: int
) -> Float[np.ndarray, " n"]:
    """The task's own score of what the model writes; 0 for a token that the task does not have."""
    scores = np.empty(len(examples))
    for rows, part in _parts(examples, model.cfg.d_vocab):
        prompts = [row[:start] for row, start in zip(part.tokens, part.starts, strict=True)]
        written = generate(model, prompts, end=end)
        known = [max(answer) < task.n_tokens for answer in written]
        asked = [a if of_task else (end,) for a, of_task in zip(written, known, strict=True)]
        what = f"the score of the task {task.kind}"
        scores[rows] = right_or_wrong(task.score(part, asked), what, len(part)) & known
    return scores


@torch.no_grad()
def token_scores(
    model: HookedTransformer, examples: Dataset
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """The share of right tokens and the mean loss, over the tokens to predict of each example."""
    means = np.empty((2, len(examples)))
    for rows, part in _parts(examples, model.cfg.d_vocab):
        batch = masked_batch(part, model.cfg.n_ctx, device(model))
        logits = place_logits(model, batch.tokens, batch.places)
        logits = at_least_float32(check_finite(logits, "the model's logits"))
        right = (logits.argmax(-1) == batch.targets).double()
        losses = F.cross_entropy(logits, batch.targets, reduction="none", ignore_index=IGNORED)
        n_tokens = part.n_predicted
        values = torch.stack((right, losses.double()))[:, : n_tokens.sum()].cpu().numpy()
        sums = np.add.reduceat(values, np.cumsum(n_tokens) - n_tokens, axis=1)
        means[:, rows] = sums / n_tokens
    return means[0], means[1]


def _parts(examples: Dataset, d_vocab: int) -> Iterator[tuple[Int64[np.ndarray, " part"], Dataset]]:
    """Examples of similar length, as many as one pass takes, with their rows."""
    order = np.argsort(examples.lengths, kind="stable")
    n_rows = max(1, most_positions(d_vocab) // examples.tokens.shape[1])
    for start in range(0, len(order), n_rows):
        rows = order[start : start + n_rows]
        yield rows, examples.rows(rows)
