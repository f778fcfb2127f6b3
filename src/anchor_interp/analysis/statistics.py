"""Permutation tests, and means with their intervals.

A *permutation test* tries all relabellings if there are few: p is exact. Otherwise some are drawn
and the observed one counts among them, p = (1 + as large) / (1 + drawn), so that the test keeps its
level (Phipson and Smyth 2010). A sign-flip test of n runs cannot go below 2 / 2^n. Ties count.

An *effect size* is a difference in units of the spread between runs: Cohen's d for two samples,
d_z for one (Cohen 1988, sections 2.2 and 2.3). The interval of a mean is Student's, that of a
difference Welch's. The intervals assume runs that scatter normally; p does not.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import permutation_test, t

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.rounding import as_large
from anchor_interp._util.schema import checked, shown

EXACT_UP_TO = 200_000  # relabellings: 17 runs against zero, ten runs against ten
DRAWN = 9_999  # if there are more
CONFIDENCE = 0.95
Floats = npt.NDArray[np.float64]


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


def against_zero(values: Sequence[float] | Floats, *, seed: int = 0) -> MeanComparison:
    """Whether values scatter around zero: a sign-flip test of their mean, with d_z.

    Give one value for each independent run, such as the differences of a paired design. Fewer than
    two values, or one that is not finite, are a ConfigError here and in the next two functions.
    """
    sample = _sample(values, "values")
    n, spread = len(sample), _spread(sample)
    test = _permutation_test((sample,), lambda x, axis: np.abs(x.mean(axis)), "samples", 2**n, seed)
    return _comparison((n,), float(sample.mean()), spread / math.sqrt(n), n - 1, spread, test)


def two_samples(
    first: Sequence[float] | Floats, second: Sequence[float] | Floats, *, seed: int = 0
) -> MeanComparison:
    """Whether two samples differ in their mean: a permutation test, with Cohen's d.

    Give one value for each independent run; the difference is first - second. Cohen's d divides by
    the pooled standard deviation.
    """
    one, two = _sample(first, "first"), _sample(second, "second")
    n, m = len(one), len(two)

    def apart(x: Floats, y: Floats, axis: int) -> Any:
        return np.abs(x.mean(axis) - y.mean(axis))

    test = _permutation_test((one, two), apart, "independent", math.comb(n + m, n), seed)
    parts = np.array([_spread(one) ** 2 / n, _spread(two) ** 2 / m])
    error, df = math.sqrt(parts.sum()), n + m - 2
    # the interval of the difference: Welch's standard error with Satterthwaite's degrees of freedom
    welch = parts.sum() ** 2 / (parts**2 / (n - 1, m - 1)).sum() if error else df
    pooled = math.sqrt(((n - 1) * n * parts[0] + (m - 1) * m * parts[1]) / df)
    return _comparison((n, m), float(one.mean() - two.mean()), error, welch, pooled, test)


def mean_interval(values: Sequence[float] | Floats) -> tuple[float, float]:
    """Student's 95 % interval of a mean: of three values 2.5 standard deviations each way."""
    sample = _sample(values, "values")
    n, mean = len(sample), float(sample.mean())
    reach = _quantile(float(n - 1)) * _spread(sample) / math.sqrt(n)
    return mean - reach, mean + reach


def permutation_p(observed: float, relabelled: Floats, *, exact: bool, size: float = 0) -> float:
    """How often a relabelling is as large as the observed statistic, up to rounding (one-sided).

    If ``exact``, these are all relabellings; otherwise the observed one counts as one more.
    ``size`` is that of the numbers they are computed from, if these are larger than they are.
    """
    found = checked(observed, float, "observed")
    drawn = _sample(relabelled, "relabelled", least=1)
    size = max(size, abs(found), float(np.abs(drawn).max()))
    reached = int(as_large(drawn, found, size=size).sum())
    return reached / len(drawn) if exact else (1 + reached) / (1 + len(drawn))


def _comparison(
    n: tuple[int, ...], mean: float, error: float, df: float, spread: float,
    test: tuple[float, int, bool],
) -> MeanComparison:  # fmt: skip
    """A mean with its standard error, the degrees of freedom of that, and the runs' spread."""
    reach = _quantile(float(df)) * error
    effect = mean / spread if spread else None
    return MeanComparison(n, mean, mean - reach, mean + reach, effect, *test)


@functools.cache
def _quantile(df: float) -> float:
    return float(t.ppf((1 + CONFIDENCE) / 2, df))


def _permutation_test(
    samples: tuple[Floats, ...], statistic: Callable[..., Any], kind: str, count: int, seed: int
) -> tuple[float, int, bool]:
    """p, the number of relabellings tried, and whether these are all ``count`` there are."""
    checked(seed, int, "seed", low=0)
    exact = count <= EXACT_UP_TO
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
    size = max(float(np.abs(sample).max()) for sample in samples)
    p = permutation_p(result.statistic, result.null_distribution, exact=exact, size=size)
    return p, tried, exact


def _spread(sample: Floats) -> float:
    """The standard deviation; 0 if the values differ only by rounding."""
    spread = float(sample.std(ddof=1))
    return spread if spread > 1e-12 * float(np.abs(sample).max()) else 0.0


def _sample(values: Any, name: str, *, least: int = 2) -> Floats:
    try:
        sample = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} is {shown(values)}; expected numbers") from None
    if sample.ndim != 1 or len(sample) < least:
        raise ConfigError(f"{name} has shape {sample.shape}; expected {least} or more numbers")
    if not np.isfinite(sample).all():
        raise ConfigError(f"{name} holds a value that is not finite; leave runs without one out")
    return sample
