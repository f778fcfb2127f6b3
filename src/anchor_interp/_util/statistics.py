"""An effect with its interval, the p of a permutation test, and the interval of a mean.

A *permutation test* counts the relabellings whose statistic is as large as the observed one; ties
count. If they are drawn, the observed one counts among them, p = (1 + as large) / (1 + drawn), so
that the test keeps its level (Phipson and Smyth 2010).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import t

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.rounding import ROUNDING, as_large
from anchor_interp._util.schema import checked, shown

DRAWN = 9_999  # relabellings, where there are too many to try all
CONFIDENCE = 0.95
POWER = 0.8
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """An effect with its 95 % interval."""

    effect: float
    low: float
    high: float
    p: float
    finds: float
    """The effect that so many runs of this spread find with 80 %, two-sided at 0.05."""


def mean_interval(values: Sequence[float] | Floats) -> tuple[float, float]:
    """Student's 95 % interval of a mean: of three values 2.5 standard deviations each way.

    Fewer than two values, or one that is not finite, are a ConfigError.
    """
    sample = finite_sample(values, "values")
    n, mean = len(sample), float(sample.mean())
    reach = student_quantile(float(n - 1)) * spread_of(sample) / math.sqrt(n)
    return mean - reach, mean + reach


def mean_margin(values: Floats) -> float | None:
    """Half the width of that interval; None for fewer than two values."""
    return None if len(values) < 2 else float(np.diff(mean_interval(values))[0]) / 2


def permutation_p(observed: float, relabelled: Floats, *, exact: bool, size: float = 0) -> float:
    """How often a relabelling is as large as the observed statistic, up to rounding (one-sided).

    If ``exact``, these are all relabellings; otherwise the observed one counts as one more.
    The tolerance scales with the largest number involved. ``size`` is the largest input in the unit
    of the statistic: if values are centred or scaled first, their size before it, scaled alike.
    """
    observed = checked(observed, float, "observed")
    drawn = finite_sample(relabelled, "relabelled", least=1)
    size = max(size, abs(observed), largest(drawn))
    reached = int(as_large(drawn, observed, size=size).sum())
    return reached / len(drawn) if exact else (1 + reached) / (1 + len(drawn))


@functools.cache
def student_quantile(df: float) -> float:
    """How many standard errors Student's 95 % interval reaches each way."""
    return float(t.ppf((1 + CONFIDENCE) / 2, df))


def spread_of(sample: Floats) -> float:
    """The standard deviation; 0 if the values differ only by rounding."""
    spread = float(sample.std(ddof=1))
    return spread if spread > ROUNDING * largest(sample) else 0.0


def largest(values: Any) -> float:
    """The size of the largest number; 0 if there is none."""
    return float(np.abs(values).max(initial=0))


def finite_sample(values: Any, name: str, *, least: int = 2) -> Floats:
    """A list of finite numbers; anything else is a ConfigError that names it."""
    try:
        sample = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} is {shown(values)}; expected numbers") from None
    if sample.ndim != 1 or len(sample) < least:
        raise ConfigError(f"{name} has shape {sample.shape}; expected {least} or more numbers")
    if not np.isfinite(sample).all():
        raise ConfigError(f"{name} holds a value that is not finite; leave runs without one out")
    return sample
