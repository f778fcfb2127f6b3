"""Means compared over runs: a mean with zero, or two means with each other.

A *permutation test* tries all relabellings if there are few: p is exact. Otherwise some are drawn.
A sign-flip test of n runs cannot go below 2 / 2^n.

An *effect size* is a difference in units of the spread between runs: Cohen's d for two samples,
d_z for one (Cohen 1988, sections 2.2 and 2.3). The interval of a mean is Student's, that of a
difference Welch's. The intervals assume runs that scatter normally; p does not.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import permutation_test, t

from anchor_interp._util.schema import checked
from anchor_interp.analysis.statistics import (
    DRAWN,
    POWER,
    Floats,
    finite_sample,
    permutation_p,
    spread_of,
    student_quantile,
)

EXACT_UP_TO = 200_000  # relabellings: 17 runs against zero, ten runs against ten


@dataclass(frozen=True)
class MeanComparison:
    """A mean against zero, or the difference of two means, with 95 % intervals (low and high)."""

    n: tuple[int, ...]
    mean: float
    low: float
    high: float
    effect: float | None
    """The mean in units of the spread: d_z or Cohen's d; None if nothing scatters."""
    p_value: float
    """Share of relabellings with a difference at least as large, in either direction."""
    n_permutations: int
    exact: bool
    finds: float
    """The mean or difference that so many runs of this spread find with 80 %, two-sided at 0.05."""


def against_zero(values: Sequence[float] | Floats, *, seed: int = 0) -> MeanComparison:
    """Whether values scatter around zero: a sign-flip test of their mean, with d_z.

    Give one value for each independent run, such as the differences of a paired design. Fewer than
    two values, or one that is not finite, are a ConfigError here and in the next two functions.
    """
    sample = finite_sample(values, "values")
    n, spread = len(sample), spread_of(sample)
    test = _permutation_test((sample,), lambda x, axis: np.abs(x.mean(axis)), "samples", 2**n, seed)
    return _comparison((n,), float(sample.mean()), spread / math.sqrt(n), n - 1, spread, test)


def two_samples(
    first: Sequence[float] | Floats, second: Sequence[float] | Floats, *, seed: int = 0
) -> MeanComparison:
    """Whether two samples differ in their mean: a permutation test of Welch's t, with Cohen's d.

    Give one value for each independent run; the difference is first - second. Cohen's d divides by
    the pooled standard deviation. The test allows for unequal variances (Janssen 1997).
    """
    one, two = finite_sample(first, "first"), finite_sample(second, "second")
    n, m = len(one), len(two)

    middle = float(np.concatenate([one, two]).mean())

    def apart(x: Floats, y: Floats, axis: int) -> Any:
        """Rises with the size of Welch's t, from 0 to 1."""
        difference = np.abs(x.mean(axis) - y.mean(axis))
        error = np.sqrt(x.var(axis, ddof=1) / n + y.var(axis, ddof=1) / m)
        return difference / np.maximum(np.hypot(difference, error), 1e-300)

    test = _permutation_test(
        (one - middle, two - middle), apart, "independent", math.comb(n + m, n), seed
    )
    parts = np.array([spread_of(one) ** 2 / n, spread_of(two) ** 2 / m])
    error, df = math.sqrt(parts.sum()), n + m - 2
    # the interval of the difference: Welch's standard error with Satterthwaite's degrees of freedom
    welch = parts.sum() ** 2 / (parts**2 / (n - 1, m - 1)).sum() if error else df
    pooled = math.sqrt(((n - 1) * n * parts[0] + (m - 1) * m * parts[1]) / df)
    return _comparison((n, m), float(one.mean() - two.mean()), error, welch, pooled, test)


def _comparison(
    n: tuple[int, ...], mean: float, error: float, df: float, spread: float,
    test: tuple[float, int, bool],
) -> MeanComparison:  # fmt: skip
    """A mean with its standard error, the degrees of freedom of that, and the runs' spread."""
    reach = student_quantile(float(df)) * error
    effect = mean / spread if spread else None
    finds = error * (student_quantile(float(df)) + float(t.ppf(POWER, df)))
    return MeanComparison(n, mean, mean - reach, mean + reach, effect, *test, finds)


def _permutation_test(
    samples: tuple[Floats, ...], statistic: Callable[..., Any], kind: str, count: int, seed: int
) -> tuple[float, int, bool]:
    """p, the number of relabellings tried, and whether these are all ``count`` there are."""
    checked(seed, int, "seed", low=0)
    exact = count <= EXACT_UP_TO
    size = max(float(np.abs(sample).max()) for sample in samples) or 1.0
    samples = tuple(sample / size for sample in samples)
    tried = count if exact else DRAWN
    result = permutation_test(
        samples,
        statistic,
        permutation_type=kind,
        n_resamples=tried,
        vectorized=True,
        batch=10_000,
        rng=np.random.default_rng(seed),
    )
    # not scipy's p: its room for rounding is relative to the difference, not to the values
    p = permutation_p(result.statistic, result.null_distribution, exact=exact, size=1)
    return p, tried, exact
