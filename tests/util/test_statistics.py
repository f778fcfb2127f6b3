"""The p of a permutation test by hand, and the interval of a mean against Student's."""

import math

import jaxtyping
import numpy as np
import pytest
from scipy.stats import ttest_1samp

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.statistics import mean_interval, permutation_p


def test_p_counts_ties_and_the_observed_statistic() -> None:
    relabelled = np.array([0.0, 1.0, 2.0, 3.0])
    assert permutation_p(2.0, relabelled, exact=True) == 0.5
    assert permutation_p(2.0 + 1e-12, relabelled, exact=True) == 0.5
    assert permutation_p(4.0, relabelled, exact=False) == 0.2
    # small differences of large numbers have the rounding of these
    assert permutation_p(2.0 + 1e-7, relabelled, exact=True) == 0.25
    assert permutation_p(2.0 + 1e-7, relabelled, exact=True, size=1e6) == 0.5


def test_the_interval_of_a_mean_is_students() -> None:
    values = np.random.default_rng(2).standard_normal(8) + 1
    low, high = ttest_1samp(values, 0).confidence_interval()
    assert mean_interval(values) == pytest.approx((low, high))
    low, high = mean_interval([0.1 + 0.2, 0.3, 0.3])
    assert low == high == pytest.approx(0.3)


@pytest.mark.parametrize(
    "values", [[1.0], [], [1.0, math.nan], [1.0, math.inf], [1.0, None], [[1.0, 2.0]], "ab", None]
)
def test_values_without_an_interval_are_refused(
    values: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ConfigError, match="values"):
        mean_interval(values)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_statistics_that_are_not_finite_are_refused(value: float) -> None:
    """NaN is not as large as anything: its p would be the smallest there is."""
    with pytest.raises(ConfigError, match="observed is"):
        permutation_p(value, np.zeros(3), exact=False)
    with pytest.raises(ConfigError, match="relabelled holds a value that is not finite"):
        permutation_p(1.0, np.array([0.0, value]), exact=False)
