"""What patching measures: one number an example, from the logits where it is answered.

A metric takes logits [n, d_vocab] of all n examples in order, *not* [n, pos, d_vocab], and returns
n values; of examples with k answers each, logits [n, k, d_vocab]. It is larger where the answer is
more like the clean run's. ``over`` says how the metrics here take k answers together: as their
``mean``, or their ``sum``, which of log-probabilities is that of the whole answer.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.models.forward import last_logits
from anchor_interp.models.number_checks import at_least_float32, check_answers, check_finite
from anchor_interp.models.transformer import HookedTransformer, Inputs
from anchor_interp.tasks.examples import Examples, Integers, as_integers

Metric = Callable[[Float[Tensor, "n *k d_vocab"]], Float[Tensor, " n"]]
"""The module's text says what it takes and returns."""
Answers = Examples | Integers
"""Examples that have answers, or the answers: a token each, or k [n, k]."""
Over = Literal["mean", "sum"]
"""How the k answers of an example are taken together."""


def logit_difference(
    right: Answers, wrong: Answers | None = None, *, over: Over = "mean"
) -> Metric:
    """Logit of the right answer minus logit of the wrong one.

    ``logit_difference(clean, corrupted)`` takes the answers of both; ``logit_difference(examples)``
    the right and the wrong ones of examples that have both. Each can be tokens [n] alone.

    Two answers that are the same do not count; an example without others has none (NaN). Raises
    ConfigError if all are the same, as in a negative control, or answers are missing.
    """
    rights, wrongs = _answers(right), _answers(right if wrong is None else wrong, wrong is None)
    if rights.shape != wrongs.shape:
        raise ConfigError(f"{_counted(rights)} right answers, {_counted(wrongs)} wrong ones")
    if (rights == wrongs).all():
        raise ConfigError(f"right and wrong are the same in all {len(rights)} examples")
    together = _together(over)

    def metric(logits: Float[Tensor, "n *k d_vocab"]) -> Float[Tensor, " n"]:
        values = at_least_float32(logits)
        same = torch.from_numpy(rights == wrongs).to(logits.device)
        apart = _picked(values, rights) - _picked(values, wrongs)
        return together(torch.where(same, torch.nan, apart))

    return metric


def log_prob(answers: Answers, *, over: Over = "mean") -> Metric:
    """Log-probability of the answer, in nats and at least float32."""
    tokens, together = _answers(answers), _together(over)
    return lambda logits: together(_picked(at_least_float32(logits).log_softmax(-1), tokens))


def probability(answers: Answers, *, over: Over = "mean") -> Metric:
    """Probability of the answer, in at least float32."""
    tokens, together = _answers(answers), _together(over)
    return lambda logits: together(_picked(at_least_float32(logits).softmax(-1), tokens))


def kl_divergence(model: HookedTransformer, clean: Inputs, *, over: Over = "mean") -> Metric:
    """Minus the KL divergence to the model's answers to the clean examples, in nats.

    It is the divergence of the patched from the clean distribution, at least in float32: 0 in the
    clean run, where its gradient is 0 too.
    """
    together = _together(over)
    with torch.no_grad():
        own = at_least_float32(last_logits(model, clean)).log_softmax(-1)

    def metric(logits: Float[Tensor, "n *k d_vocab"]) -> Float[Tensor, " n"]:
        _check_examples(own, logits)
        patched = at_least_float32(logits).log_softmax(-1)
        return together((own.exp() * (patched - own)).sum(-1))

    return metric


def rank(answers: Answers, *, over: Over = "mean") -> Metric:
    """Minus the number of tokens with a larger logit: 0 if the answer is the most likely one."""
    tokens, together = _answers(answers), _together(over)
    return lambda logits: together(-(logits > _picked(logits, tokens)[..., None]).sum(-1).float())


def measure(metric: Metric, logits: Float[Tensor, "n *k d_vocab"]) -> Float[np.ndarray, " n"]:
    """A metric of finite logits, in float64.

    Raises:
        ConfigError: the metric reads another shape, returns one, or is NaN everywhere.
    """
    given = f"it was given the logits where each example is answered, {tuple(logits.shape)}"
    try:
        measured: Any = metric(check_finite(logits, "the model's logits").as_subclass(_Logits))
    except IndexError as error:
        raise ConfigError(f"the metric fails: {error}; {given}") from error
    if not isinstance(measured, Tensor) or measured.shape != logits.shape[:1]:
        shape = tuple(measured.shape) if isinstance(measured, Tensor) else shown(measured)
        raise ConfigError(f"the metric returned {shape}, expected ({len(logits)},); {given}")
    if measured.isnan().all():
        raise ConfigError(f"the metric is NaN in all {len(logits)} examples; {given}")
    return measured.detach().double().cpu().numpy()


class _Logits(Tensor):
    """Logits [n, d_vocab] that refuse ``[:, -1]``, the last position of [n, pos, d_vocab].

    What is computed from them is a plain tensor.
    """

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    def __getitem__(self, index: Any) -> Tensor:
        last = isinstance(index, tuple) and any(isinstance(i, int) and i == -1 for i in index)
        if last and self.ndim == 2:
            raise IndexError("[:, -1] reads the last token of the vocabulary, not a position")
        return super().__getitem__(index)


def _together(over: Over) -> Callable[[Float[Tensor, "n *k"]], Float[Tensor, " n"]]:
    """The values of an example's answers as one; NaN among them does not count."""
    checked(over, Over, "over")

    def together(values: Float[Tensor, "n *k"]) -> Float[Tensor, " n"]:
        if values.ndim == 1:
            return values
        return values.nanmean(-1) * (1 if over == "mean" else (~values.isnan()).sum(-1))

    return together


def _answers(given: Answers, wrong: bool = False) -> Int64[np.ndarray, "n *k"]:
    """The right or wrong answers of examples, or tokens as they are."""
    if not isinstance(given, Examples):
        axes = "n, k" if np.ndim(given) == 2 else "n"
        return as_integers(given, "answers", axes).astype(np.int64)
    which = "wrong" if wrong else "answers"
    tokens = given.each_wrong if wrong else given.each_answer
    if tokens is None:
        raise ConfigError(f"the examples have no {which}; give Examples(tokens, ..., {which}=...)")
    return tokens if tokens.shape[1] > 1 else tokens[:, 0]


def _picked(values: Tensor, answers: np.ndarray) -> Tensor:
    """The value of every answer."""
    _check_examples(answers[..., None], values[..., :1])
    check_answers(answers, values.shape[-1])
    index = torch.from_numpy(answers).to(values.device)
    return values.gather(-1, index[..., None])[..., 0]


def _check_examples(own: Any, patched: Tensor) -> None:
    """Refuse logits of other examples than those that a metric is of."""
    if own.shape != patched.shape:
        (mine, has), (theirs, have) = ((_counted(x[..., 0]), x.shape[-1]) for x in (own, patched))
        what = f"{mine} examples, {theirs}" if mine != theirs else f"{has} output tokens, {have}"
        raise ConfigError(f"the metric is of {what} are patched; make it of these")


def _counted(answers: Any) -> str:
    """How many there are: ``12``, or ``12 x 3``."""
    return " x ".join(map(str, answers.shape))
