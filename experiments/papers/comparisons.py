"""Means compared over runs: a mean with zero, or two means with each other.

A *permutation test* tries all relabellings if there are few: p is exact. Otherwise some are drawn.
A sign-flip test of n runs cannot go below 2 / 2^n. The interval of a mean is Student's, that of a
difference Welch's. The intervals assume runs that scatter normally; p does not.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.stats import permutation_test, t

from anchor_interp.analysis.statistics import (
    DRAWN,
    POWER,
    Floats,
    permutation_p,
    spread_of,
    student_quantile,
)
from anchor_interp.sweeps.effects import Estimate

EXACT_UP_TO = 200_000  # relabellings: 17 runs against zero, ten runs against ten


def against_zero(values: Sequence[float] | Floats) -> Estimate:
    """The mean of two values or more, one for each independent run, with a sign-flip test."""
    sample = np.asarray(values, dtype=float)
    n = len(sample)
    p = _permutation_p((sample,), lambda x, axis: np.abs(x.mean(axis)), "samples", 2**n)
    return _estimate(float(sample.mean()), spread_of(sample) / math.sqrt(n), n - 1, p)


def two_samples(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> Estimate:
    """The mean of the first minus that of the second, with a permutation test of Welch's t.

    Each has two values or more, one for each independent run. The test allows for unequal variances
    (Janssen 1997).
    """
    one, two = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    n, m = len(one), len(two)

    middle = float(np.concatenate([one, two]).mean())

    def apart(x: Floats, y: Floats, axis: int) -> Any:
        """Rises with the size of Welch's t, from 0 to 1."""
        difference = np.abs(x.mean(axis) - y.mean(axis))
        error = np.sqrt(x.var(axis, ddof=1) / n + y.var(axis, ddof=1) / m)
        return difference / np.maximum(np.hypot(difference, error), 1e-300)

    p = _permutation_p((one - middle, two - middle), apart, "independent", math.comb(n + m, n))
    parts = np.array([spread_of(one) ** 2 / n, spread_of(two) ** 2 / m])
    error, df = math.sqrt(parts.sum()), n + m - 2
    # the interval of the difference: Welch's standard error with Satterthwaite's degrees of freedom
    welch = parts.sum() ** 2 / (parts**2 / (n - 1, m - 1)).sum() if error else df
    return _estimate(float(one.mean() - two.mean()), error, welch, p)


def _estimate(mean: float, error: float, df: float, p: float) -> Estimate:
    """A mean with its standard error, the degrees of freedom of that, and p."""
    quantile = student_quantile(float(df))
    reach = quantile * error
    finds = error * (quantile + float(t.ppf(POWER, df)))
    return Estimate(mean, mean - reach, mean + reach, p, finds)


def _permutation_p(
    samples: tuple[Floats, ...], statistic: Callable[..., Any], kind: str, count: int
) -> float:
    """P over all ``count`` relabellings, or over some that are drawn."""
    exact = count <= EXACT_UP_TO
    size = max(float(np.abs(sample).max()) for sample in samples) or 1.0
    result = permutation_test(
        tuple(sample / size for sample in samples),
        statistic,
        permutation_type=kind,
        n_resamples=count if exact else DRAWN,
        vectorized=True,
        batch=10_000,
        rng=np.random.default_rng(0),
    )
    # not scipy's p: its room for rounding is relative to the difference, not to the values
    return permutation_p(result.statistic, result.null_distribution, exact=exact, size=1)
