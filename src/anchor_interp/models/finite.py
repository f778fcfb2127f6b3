"""Refuses numbers that are not finite: NaN passes through many measures without a trace."""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from anchor_interp._util.errors import ConfigError

Numbers = TypeVar("Numbers", bound=np.ndarray | Tensor)


def check_finite(values: Numbers, what: str) -> Numbers:
    """The values themselves, if all are finite.

    Raises:
        ConfigError: a value is NaN or infinite; the message names ``what``, such as ``the model's
            logits``.
    """
    found = torch.isfinite(values) if isinstance(values, Tensor) else np.isfinite(values)
    if not found.all():
        raise ConfigError(f"{what} are not finite; its weights are damaged")
    return values
