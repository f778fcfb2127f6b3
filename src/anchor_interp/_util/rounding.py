"""Comparisons of computed numbers that leave room for rounding."""

from typing import Any

_ROUNDING = 1e-12  # of numbers in double precision, after thousands of operations


def as_large(statistics: Any, observed: Any, *, size: float) -> Any:
    """Whether statistics are as large as the observed one, or smaller by rounding alone.

    ``size`` is the largest number in the computation: it sets the rounding of small differences.
    """
    return statistics >= observed - _ROUNDING * size
