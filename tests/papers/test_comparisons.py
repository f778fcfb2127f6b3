"""Permutation tests and intervals against enumeration, closed forms and simulation."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import hypergeom, ttest_1samp, ttest_ind

from anchor_interp._util.statistics import DRAWN, student_quantile
from claim_effects import EXACT_UP_TO, against_zero, two_samples

Sample = Sequence[int]


def far_apart(plus: Fraction, minus: Fraction) -> Fraction:
    """|log(plus / minus)|, in the same order."""
    return max(plus / minus, minus / plus)


def two_sizes(one: Sample, two: Sample) -> Fraction:
    """How much of (mean(one) - mean(two))^2 and its squared error together is the first."""
    means = [Fraction(sum(sample), len(sample)) for sample in (one, two)]
    error = sum(
        sum((v - mean) ** 2 for v in sample) / (len(sample) * (len(sample) - 1))
        for sample, mean in zip((one, two), means, strict=True)
    )
    square = (means[0] - means[1]) ** 2
    return Fraction(square / (square + error)) if square else square


def one_size(kind: str, values: Sample, signs: Sample) -> Fraction:
    """The size of the mean of values with these signs, times a constant, or of their logarithms."""
    if kind == "sums":
        return Fraction(abs(sum(s * v for s, v in zip(signs, values, strict=True))))
    plus, minus = (
        Fraction(math.prod(v for s, v in zip(signs, values, strict=True) if s == sign))
        for sign in (1, -1)
    )
    return far_apart(plus, minus)


# integers and the numbers that stand for them: their sums or products are exact, the numbers' not
DISCRETE: dict[str, tuple[str, list[int], Callable[[int], float]]] = {
    "logarithms": ("products", [1100, 1200, 1300, 1440], math.log),
    "tenths": ("sums", [0, 1, 2, 3, 6], lambda k: k / 10),
    "large": ("sums", [10_001, 10_002, 10_003, 10_007], lambda k: k / 10),
    "thirds": ("sums", [-2, -1, 1, 2, 4], lambda k: k / 3e9),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_ties_are_those_of_exact_arithmetic(name: str) -> None:
    """Discrete samples have many ties, which rounding must not break."""
    kind, levels, number = DISCRETE[name]
    generator = np.random.default_rng(5)
    for _ in range(80):
        n, m = generator.integers(2, 6, 2)
        pooled = generator.choice(levels, n + m).tolist()
        values, sizes = [number(k) for k in pooled], []
        for chosen in itertools.combinations(range(n + m), int(n)) if kind == "sums" else ():
            rest = [pooled[i] for i in range(n + m) if i not in chosen]
            sizes.append(two_sizes([pooled[i] for i in chosen], rest))
        if sizes:
            expected = sum(size >= sizes[0] for size in sizes) / len(sizes)
            assert two_samples(values[:n], values[n:]).p == pytest.approx(expected), pooled
        signs = list(itertools.product((1, -1), repeat=len(pooled[:7])))
        sizes = [one_size(kind, pooled[:7], each) for each in signs]
        expected = sum(size >= sizes[0] for size in sizes) / len(sizes)
        assert against_zero(values[:7]).p == pytest.approx(expected), pooled


def test_a_tie_of_rounded_logarithms() -> None:
    found = two_samples(
        np.log([1200, 1200, 1300, 1300, 1300]), np.log([1100, 1200, 1200, 1200, 1200])
    )
    assert found.p == pytest.approx(30 / 252)


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e7])
def test_ties_of_numbers_that_are_large_beside_their_spread(shift: float) -> None:
    """Ties follow from k alone, whatever number it is added to and how that rounds."""
    k = np.array([0, 3, 0, 1, 2, 2, 0, 2])
    first, second = np.split(shift + 0.1 * k, 2)
    sizes = [
        two_sizes(k[[*chosen]].tolist(), np.delete(k, chosen).tolist())
        for chosen in itertools.combinations(range(8), 4)
    ]
    exact = sum(size >= sizes[0] for size in sizes) / len(sizes)
    assert exact == pytest.approx(0.743, abs=5e-4)
    assert two_samples(first, second).p == exact


def test_ties_about_a_reference_that_is_large() -> None:
    k = np.array([-2, 1, 1, 2, -1, 3])
    sums = [abs(k @ signs) for signs in itertools.product((1, -1), repeat=6)]
    found = against_zero(1e4 + 0.1 * k, 1e4)
    assert found.p == np.mean(np.array(sums) >= abs(k.sum()))
    assert found.effect == pytest.approx(0.1 * k.mean())
    same = against_zero([1e4 + 0.1 + 0.2, 1e4 + 0.3, 1e4 + 0.3], 1e4)
    assert same.low == same.high == pytest.approx(0.3)


def test_drawn_relabellings_count_ties() -> None:
    """How many of 12 high values come into the first 12 of 24 is hypergeometric."""
    levels = np.log([1100, 1200])
    found = two_samples(np.repeat(levels, (5, 7)), np.repeat(levels, (7, 5)))
    assert math.comb(24, 12) > EXACT_UP_TO
    expected = 1 - hypergeom(24, 12, 12).pmf(6)
    assert found.p == pytest.approx(float(expected), abs=0.02)


def test_drawn_relabellings_agree_with_all_and_never_give_zero() -> None:
    generator = np.random.default_rng(1)
    values = generator.standard_normal(20) + 0.4
    drawn = against_zero(values)
    assert EXACT_UP_TO < 2**20
    assert drawn.p == pytest.approx(ttest_1samp(values, 0).pvalue, abs=0.02)
    assert drawn == against_zero(values)
    assert against_zero(values + 100).p == 1 / (DRAWN + 1)


def test_effects_and_intervals_follow_the_textbook() -> None:
    generator = np.random.default_rng(2)
    one, two = generator.standard_normal(8) + 1, 2 * generator.standard_normal(6)
    found = against_zero(one)
    assert found.effect == pytest.approx(one.mean())
    low, high = ttest_1samp(one, 0).confidence_interval()
    assert (found.low, found.high) == pytest.approx((low, high))
    found = two_samples(one, two)
    assert found.effect == pytest.approx(one.mean() - two.mean())
    low, high = ttest_ind(one, two, equal_var=False).confidence_interval()
    assert (found.low, found.high) == pytest.approx((low, high))


def test_values_without_scatter_have_no_interval() -> None:
    found = against_zero([0.1 + 0.2, 0.3, 0.3])
    assert found.low == found.high == pytest.approx(0.3)
    assert (found := two_samples([1.0, 1.0], [0.0, 0.0])).low == found.high == 1
    assert against_zero([0.0, 0.0, 0.0]).p == 1


def test_the_values_of_a_cluster_count_as_one() -> None:
    """Equal clusters are their means; unequal ones have the interval of the jackknife."""
    generator = np.random.default_rng(3)
    values = generator.standard_normal((7, 4)) + generator.standard_normal((7, 1)) + 0.4
    clusters = [("all", seed) for seed in range(7) for _ in range(4)]
    found, means = against_zero(values.ravel(), clusters=clusters), against_zero(values.mean(1))
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(means))
    seeds, uneven = np.repeat(range(4), (1, 1, 1, 6)), generator.standard_normal(9)
    drops = np.array([(seeds != s) / (seeds != s).sum() - 1 / 9 for s in range(4)])  # jackknife
    spread, error = drops @ drops.T, math.sqrt(0.75 * ((drops @ uneven) ** 2).sum())
    df = np.trace(spread) ** 2 / (spread**2).sum()  # Bell and McCaffrey's
    found = against_zero(uneven, clusters=[("all", int(seed)) for seed in seeds])
    assert found.high == pytest.approx(uneven.mean() + student_quantile(df) * error)


def test_kinds_count_alike_and_a_seed_counts_once_in_each() -> None:
    values, seeds = np.arange(1.0, 13.0), [*range(4), *range(4), *range(4)]
    kinds = ["one"] * 8 + ["two"] * 4
    found = against_zero(values, clusters=[*zip(kinds, seeds, strict=True)])
    assert found.effect == pytest.approx((values[:8].mean() + values[8:].mean()) / 2)
    assert found.p == 2 / 2**8
