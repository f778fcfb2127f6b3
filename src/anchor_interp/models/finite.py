"""Keeps numbers sound: NaN and rounding pass through many measures without a trace."""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from anchor_interp._util.errors import ConfigError

Numbers = TypeVar("Numbers", bound=np.ndarray | Tensor)


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor, in float32 if its precision is lower: sums in half precision lose small parts."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def check_finite(values: Numbers, what: str) -> Numbers:
    """The values themselves; ConfigError if one of ``the model's logits``, say, is not finite."""
    finite = torch.isfinite(values) if isinstance(values, Tensor) else np.isfinite(values)
    if not finite.all():
        raise ConfigError(
            f"{what} are not finite; look for NaN weights or take an earlier checkpoint (Run.at)"
        )
    return values
