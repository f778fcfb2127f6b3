"""Tests without assumptions about a distribution, and effect sizes with their intervals.

A *permutation test* asks how often relabelled data show a difference as large as the one found.
Where there are few enough relabellings all are tried and p is exact; else some are drawn, with the
one found counted among them, p = (1 + as large) / (1 + drawn), so that p is never 0 and the test
keeps its level (Phipson and Smyth 2010). With n runs a sign-flip test cannot go below 2 / 2^n: five
seeds can show no less than p = 0.0625, six 0.03125, ten 0.002.

An *effect size* is a difference in units of the spread between runs: Cohen's d for two samples,
d_z for one (Cohen 1988, sections 2.2 and 2.3). Its interval inverts the noncentral t distribution
(Cumming and Finch 2001) and the mean's is Student's or, for two samples, Welch's: these do assume
runs that scatter normally; p does not.

No global random state is read or set.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.stats import nct, permutation_test, t

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown

EXACT_UP_TO = 200_000
"""Most relabellings that are all tried: 17 runs against zero, ten runs against ten."""


DRAWN = 9_999
"""Relabellings drawn where there are more."""


CONFIDENCE = 0.95
"""Coverage of every interval."""


_LARGEST_T = 30_000
"""The noncentral t distribution is NaN at noncentralities a few times larger."""


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """A mean against zero, or the difference of two means."""

    n: tuple[int, ...]
    """Values in each sample."""
    mean: float
    """The mean, or the difference of the means."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    """Upper end."""
    effect: float | None
    """The mean in units of the spread: d_z or Cohen's d; None where nothing scatters."""
    effect_low: float | None
    """Lower end of the effect's 95 % interval; None where values scatter so little beside their
    mean that the noncentral t distribution cannot be computed."""
    effect_high: float | None
    """Upper end."""
    p_value: float
    """Share of relabellings with a difference at least as large, in either direction."""
    n_permutations: int
    """Relabellings tried."""
    exact: bool
    """Whether these were all there are."""


def against_zero(values: Sequence[float] | Floats, *, seed: int = 0) -> Comparison:
    """Whether values scatter around zero: a sign-flip test of their mean, with d_z.

    Give the differences of a paired design. All 2^n sign patterns are tried up to
    :data:`EXACT_UP_TO`, else :data:`DRAWN` are drawn.

    Args:
        values: at least two values, one for each independent run.
        seed: seed of the patterns drawn.

    Raises:
        ConfigError: fewer than two values, or one that is not finite.
    """
    sample = _sample(values, "values")
    n, spread = len(sample), _spread(sample)
    test = _permutation_test((sample,), _size_of_mean, "samples", 2**n, seed)
    scale = _Scale(spread / math.sqrt(n), float(n - 1), spread, math.sqrt(n), n - 1)
    return _comparison((n,), float(sample.mean()), scale, test)


def two_samples(
    first: Sequence[float] | Floats, second: Sequence[float] | Floats, *, seed: int = 0
) -> Comparison:
    """Whether two samples differ in their mean: a permutation test, with Cohen's d.

    Cohen's d divides by the pooled standard deviation. All divisions into two samples of these
    sizes are tried up to :data:`EXACT_UP_TO`, else :data:`DRAWN` are drawn.

    Args:
        first: at least two values, one for each independent run.
        second: the same of the other kind; the difference is first - second.
        seed: seed of the divisions drawn.

    Raises:
        ConfigError: fewer than two values in a sample, or one that is not finite.
    """
    one, two = _sample(first, "first"), _sample(second, "second")
    n, m = len(one), len(two)
    count = math.comb(n + m, n)
    test = _permutation_test((one, two), _size_of_difference, "independent", count, seed)
    parts = np.array([_spread(one) ** 2 / n, _spread(two) ** 2 / m])
    error, df = math.sqrt(parts.sum()), n + m - 2
    # the interval of the difference: Welch's standard error with Satterthwaite's degrees of freedom
    welch = float(parts.sum() ** 2 / (parts**2 / (n - 1, m - 1)).sum()) if error else float(df)
    pooled = math.sqrt(((n - 1) * n * parts[0] + (m - 1) * m * parts[1]) / df)
    scale = _Scale(error, welch, pooled, math.sqrt(n * m / (n + m)), df)
    return _comparison((n, m), float(one.mean() - two.mean()), scale, test)


def mean_interval(values: Sequence[float] | Floats) -> tuple[float, float]:
    """Student's 95 % interval of a mean: of three values 2.5 standard deviations each way.

    Args:
        values: at least two values, one for each independent run.

    Raises:
        ConfigError: fewer than two values, or one that is not finite.
    """
    sample = _sample(values, "values")
    n, mean = len(sample), float(sample.mean())
    reach = _quantile(float(n - 1)) * _spread(sample) / math.sqrt(n)
    return mean - reach, mean + reach


def permutation_p(observed: float, relabelled: Floats, *, exact: bool) -> float:
    """Of a one-sided permutation test, p: how often a relabelling reaches what was observed.

    Args:
        observed: the statistic of the data as they are.
        relabelled: the statistic of every relabelling, the identity among them (``exact``), or of
            relabellings that were drawn.
        exact: whether these are all there are; if not, the observed one is counted among them.

    Ties count as reached, with room for rounding.
    """
    room = 1e-9 * max(abs(observed), float(np.abs(relabelled).max(initial=0)), 1e-300)
    reached = int((relabelled >= observed - room).sum())
    return reached / len(relabelled) if exact else (1 + reached) / (1 + len(relabelled))


def smallest_p(n: tuple[int, ...]) -> float:
    """The smallest p that so many values can give: in :func:`against_zero`, or in two samples.

    Args:
        n: values in each sample, as in :attr:`Comparison.n`.
    """
    count, alike = (2 ** n[0], 2) if len(n) == 1 else (math.comb(sum(n), n[0]), 1 + (n[0] == n[1]))
    return alike / count if count <= EXACT_UP_TO else 1 / (DRAWN + 1)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's adjustment: p-values that stay below a level keep it for all tests together.

    Source: Holm 1979.

    Raises:
        ConfigError: a value that is no probability.
    """
    found = [checked(p, float, f"p_values[{i}]", low=0, high=1) for i, p in enumerate(p_values)]
    adjusted, largest = [0.0] * len(found), 0.0
    for rank, index in enumerate(sorted(range(len(found)), key=found.__getitem__)):
        largest = max(largest, min(1.0, (len(found) - rank) * found[index]))
        adjusted[index] = largest
    return tuple(adjusted)


@dataclass(frozen=True)
class _Scale:
    """What turns a mean into an interval and an effect size."""

    error: float
    """Standard error of the mean."""
    df: float
    """Its degrees of freedom."""
    spread: float
    """Standard deviation between runs."""
    units: float
    """t = units * mean / spread."""
    df_spread: int
    """Degrees of freedom of the spread."""


def _comparison(
    n: tuple[int, ...], mean: float, scale: _Scale, test: tuple[float, int, bool]
) -> Comparison:
    reach = _quantile(scale.df) * scale.error
    effect, low, high = _effect(mean, scale)
    return Comparison(n, mean, mean - reach, mean + reach, effect, low, high, *test)


@functools.cache
def _quantile(df: float) -> float:
    """How many standard errors a 95 % interval reaches."""
    return float(t.ppf((1 + CONFIDENCE) / 2, df))


def _effect(mean: float, scale: _Scale) -> tuple[float | None, float | None, float | None]:
    """The effect size and the interval of noncentralities that its t is compatible with."""
    if not scale.spread:
        return None, None, None
    effect = mean / scale.spread
    found, tail = scale.units * effect, (1 - CONFIDENCE) / 2

    def noncentrality(level: float) -> float:
        reach = 5 + abs(found)  # the ends lie well within: t scatters about as much as it is large

        def gap(centre: float) -> float:
            below = float(nct.cdf(found, scale.df_spread, centre))
            if math.isnan(below):  # scipy's answer to shares that are as good as 0 or 1
                below = float(centre < found)
            return below - level

        while gap(found - reach) < 0 or gap(found + reach) > 0:
            reach *= 2
        return float(brentq(gap, found - reach, found + reach)) / scale.units

    if abs(found) > _LARGEST_T:
        return effect, None, None
    return effect, noncentrality(1 - tail), noncentrality(tail)


def _permutation_test(
    samples: tuple[Floats, ...], statistic: Callable[..., Any], kind: str, count: int, seed: int
) -> tuple[float, int, bool]:
    """p, the relabellings tried, and whether these are all; ``count`` is how many there are."""
    checked(seed, int, "seed", low=0)
    exact = count <= EXACT_UP_TO
    tried = count if exact else DRAWN
    result = permutation_test(
        samples,
        statistic,
        permutation_type=kind,
        alternative="greater",
        n_resamples=tried,
        vectorized=True,
        batch=10_000,
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue), tried, exact


def _size_of_mean(sample: Floats, axis: int = -1) -> Any:
    return np.abs(sample.mean(axis))


def _size_of_difference(one: Floats, two: Floats, axis: int = -1) -> Any:
    return np.abs(one.mean(axis) - two.mean(axis))


def _spread(sample: Floats) -> float:
    """The standard deviation; 0 where values differ by rounding alone."""
    spread = float(sample.std(ddof=1))
    return spread if spread > 1e-12 * float(np.abs(sample).max()) else 0.0


def _sample(values: Any, name: str) -> Floats:
    """Values to compare.

    Raises:
        ConfigError: fewer than two, or one that is no finite number.
    """
    try:
        sample = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} is {shown(values)}; expected numbers") from None
    if sample.ndim != 1 or len(sample) < 2:
        raise ConfigError(f"{name} has shape {sample.shape}; expected two numbers or more")
    if not np.isfinite(sample).all():
        raise ConfigError(f"{name} holds a value that is not finite; leave runs without one out")
    return sample
