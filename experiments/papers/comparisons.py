"""Means compared over runs: a mean with zero, or two means with each other.

A *permutation test* tries all relabellings if there are few, else some; p is exact if runs of both
kinds scatter alike. A sign-flip test of n runs cannot go below 2 / 2^n. The interval of a mean is
Student's, that of a difference Welch's. The intervals assume runs that scatter normally; p does
not.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from scipy.stats import t

from anchor_interp.analysis.statistics import (
    DRAWN,
    POWER,
    Floats,
    largest,
    permutation_p,
    spread_of,
    student_quantile,
)
from anchor_interp.sweeps.effects import Estimate

EXACT_UP_TO = 200_000  # relabellings: 17 runs against zero, ten runs against ten
BLOCK = 10_000  # relabellings in memory at once
Indices = npt.NDArray[np.intp]


def against_zero(values: Sequence[float] | Floats, reference: float = 0.0) -> Estimate:
    """The mean of two values or more less a reference, with a sign-flip test.

    Each value stands for an independent run.
    """
    given = np.asarray(values, dtype=float)
    sample, n = given - reference, len(given)
    scale = largest(sample) or 1.0
    if exact := 2**n <= EXACT_UP_TO:
        signs = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n)[::-1] & 1)
    else:
        drawn = np.tile([1, -1], (DRAWN, n, 1))
        signs = np.random.default_rng(0).permuted(drawn, axis=-1)[..., 0]
    sizes = np.abs((np.vstack([np.ones(n), signs]) * (sample / scale)).mean(1))
    size = max(largest(given), abs(reference)) / scale
    p = permutation_p(float(sizes[0]), sizes[1:], exact=exact, size=size)
    return _estimate(float(sample.mean()), spread_of(given) / math.sqrt(n), n - 1, p)


def two_samples(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> Estimate:
    """The mean of the first minus that of the second, with a permutation test of Welch's t.

    Each has two values or more, one for each independent run. Where spreads and numbers of runs are
    unequal, p is approximate (Janssen 1997): 6 runs that scatter five times as much as 18 others
    have p <= 0.05 in about 7.5 % of samples without a difference.
    """
    one, two = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    n, m = len(one), len(two)

    exact = math.comb(n + m, n) <= EXACT_UP_TO
    pooled = np.concatenate([one, two])
    centred = pooled - pooled.mean()
    scale = largest(centred) or 1.0
    blocks = _orders(n, m) if exact else [_drawn_orders(n + m)]
    sines = np.concatenate([_sines(centred[orders] / scale, n) for orders in blocks])
    drawn, size = sines if exact else sines[1:], largest(pooled) / scale
    p = permutation_p(float(sines[0]), drawn, exact=exact, size=size)
    parts = np.array([spread_of(one) ** 2 / n, spread_of(two) ** 2 / m])
    error, df = math.sqrt(parts.sum()), n + m - 2
    # the interval of the difference: Welch's standard error with Satterthwaite's degrees of freedom
    welch = parts.sum() ** 2 / (parts**2 / (n - 1, m - 1)).sum() if error else df
    return _estimate(float(one.mean() - two.mean()), error, welch, p)


def _orders(n: int, m: int) -> Iterator[Indices]:
    """All divisions into n and m, the given one first, in blocks of [relabelling, run]."""
    divisions = itertools.combinations(range(n + m), n)
    while chosen := list(itertools.islice(divisions, BLOCK)):
        is_second = np.ones((len(chosen), n + m), dtype=bool)
        np.put_along_axis(is_second, np.array(chosen), False, axis=1)
        yield np.argsort(is_second, axis=1, kind="stable")


def _drawn_orders(n: int) -> Indices:
    """The given order, then the drawn ones, [relabelling, run]."""
    generator = np.random.default_rng(0)
    return np.array([np.arange(n), *(generator.permutation(n) for _ in range(DRAWN))])


def _sines(runs: Floats, n: int) -> Floats:
    """What orders as Welch's t does, of the first n runs against the others: [relabelling]."""
    x, y = runs[:, :n], runs[:, n:]
    difference = np.abs(x.mean(1) - y.mean(1))
    error = np.sqrt(x.var(1, ddof=1) / n + y.var(1, ddof=1) / y.shape[1])
    sines: Floats = difference / np.maximum(np.hypot(difference, error), 1e-300)
    return sines


def _estimate(mean: float, error: float, df: float, p: float) -> Estimate:
    """A mean with its standard error, the degrees of freedom of that, and p."""
    quantile = student_quantile(float(df))
    reach = quantile * error
    finds = error * (quantile + float(t.ppf(POWER, df)))
    return Estimate(mean, mean - reach, mean + reach, p, finds)
