"""Keeps numbers sound: NaN and rounding pass through many measures without a trace."""

from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from anchor_interp._util.errors import ConfigError

Numbers = TypeVar("Numbers", bound=np.ndarray | Tensor)
_ROUNDING = 1e-12  # of numbers in double precision, after thousands of operations


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor, in float32 if its precision is lower: sums in half precision lose small parts."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def as_large(found: Any, observed: Any, *, size: float) -> Any:
    """Whether statistics are as large as the observed one, or smaller by rounding alone.

    ``size`` is that of the numbers they are computed from: small differences have their rounding.
    """
    return found >= observed - _ROUNDING * size


def check_finite(values: Numbers, what: str) -> Numbers:
    """The values themselves; ConfigError if one of ``the model's logits``, say, is not finite."""
    finite = torch.isfinite(values) if isinstance(values, Tensor) else np.isfinite(values)
    if not finite.all():
        raise ConfigError(
            f"{what} are not finite; look for NaN weights or take an earlier checkpoint"
        )
    return values
