"""Keeps numbers sound: NaN, rounding and wrong tokens pass many measures without a trace."""

import itertools
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor, nn

from anchor_interp._util.errors import ConfigError

Numbers = TypeVar("Numbers", bound=np.ndarray | Tensor)


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor, in float32 if its precision is lower: sums in half precision lose small parts."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def check_finite(values: Numbers, what: str) -> Numbers:
    """The values themselves; ConfigError if one of ``the model's logits``, say, is not finite."""
    finite = torch.isfinite(values) if isinstance(values, Tensor) else np.isfinite(values)
    if not finite.all():
        raise ConfigError(f"{what} are not finite: look at the weights, and at hooks attached")
    return values


def rounding(logits: Tensor, dtype: torch.dtype) -> float:
    """The share of the largest number by which two ways to the same logits may differ.

    It is the root of the precision's epsilon. ``dtype`` is the one of the model's settings, in
    which TransformerLens's LayerNorms round.
    """
    mixed = (logits.dtype, dtype) == (torch.float64, torch.float32)
    return float(torch.finfo(torch.float32 if mixed else logits.dtype).eps ** 0.5)


def check_answers(answers: Integer[np.ndarray, " ..."] | None, d_vocab: int) -> None:
    """Raise a ConfigError if answers are not among a model's ``d_vocab`` output tokens."""
    if answers is not None and not 0 <= answers.min() <= answers.max() < d_vocab:
        given = f"answers run from {answers.min()} to {answers.max()}"
        raise ConfigError(f"{given}; the model's output tokens are 0 to {d_vocab - 1}")


def placed(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name; ConfigError at the first one on the device meta."""
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_meta:
            raise ConfigError(f"{name} is on the device meta: the model has no weights to run")
        yield name, tensor


@torch.no_grad()
def check_weights(model: nn.Module) -> None:
    """ConfigError at the first tensor on the device meta, or with a value that is not finite.

    Logits do not always tell: TransformerLens takes attention that is NaN as 0.
    """
    for name, weight in placed(model):
        if weight.numel() and torch.stack(weight.aminmax()).isfinite().all():
            continue
        finite = torch.isfinite(weight)
        if not isinstance(weight, nn.Parameter) and not weight[finite].any():
            finite |= torch.isneginf(weight)  # a mask, or the score of a masked position
        if wrong := int((~finite).sum()):
            text = f"{name} holds {wrong:,} of {weight.numel():,} values that are not finite"
            raise ConfigError(f"{text}; restore the file, or take an earlier checkpoint (Run.at)")
