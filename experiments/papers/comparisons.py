"""Means compared over runs: a mean with zero, or two means with each other.

A *permutation test* tries all relabellings if there are few: p is exact. Otherwise some are drawn.
A sign-flip test of n runs cannot go below 2 / 2^n. The interval of a mean is Student's, that of a
difference Welch's. The intervals assume runs that scatter normally; p does not.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import t

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
    if exact := 2**n <= EXACT_UP_TO:
        signs = np.array(list(itertools.product((1, -1), repeat=n)))
    else:
        drawn = np.tile([1, -1], (DRAWN, n, 1))
        signs = np.random.default_rng(0).permuted(drawn, axis=-1)[..., 0]
    sizes = np.abs((np.vstack([np.ones(n), signs]) * _scaled(sample)).mean(1))
    p = permutation_p(float(sizes[0]), sizes[1:], exact=exact, size=1)
    return _estimate(float(sample.mean()), spread_of(sample) / math.sqrt(n), n - 1, p)


def two_samples(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> Estimate:
    """The mean of the first minus that of the second, with a permutation test of Welch's t.

    Each has two values or more, one for each independent run. The test allows for unequal variances
    (Janssen 1997).
    """
    one, two = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    n, m = len(one), len(two)

    if exact := math.comb(n + m, n) <= EXACT_UP_TO:
        chosen = np.array(list(itertools.combinations(range(n + m), n)))
        is_second = np.ones((len(chosen), n + m), dtype=bool)
        np.put_along_axis(is_second, chosen, False, axis=1)
        orders = np.argsort(is_second, axis=1, kind="stable")
    else:
        generator = np.random.default_rng(0)
        orders = np.array([generator.permutation(n + m) for _ in range(DRAWN)])
    pooled = np.concatenate([one, two])
    pooled = _scaled(pooled - pooled.mean())[np.vstack([np.arange(n + m), orders])]
    x, y = pooled[:, :n], pooled[:, n:]
    difference = np.abs(x.mean(1) - y.mean(1))
    error = np.sqrt(x.var(1, ddof=1) / n + y.var(1, ddof=1) / m)
    sines = difference / np.maximum(np.hypot(difference, error), 1e-300)  # they order as t does
    p = permutation_p(float(sines[0]), sines[1:], exact=exact, size=1)
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


def _scaled(values: Floats) -> Floats:
    """Values whose largest size is 1."""
    return values / (float(np.abs(values).max()) or 1.0)
