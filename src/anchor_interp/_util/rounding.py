"""Comparisons of computed numbers that leave room for rounding."""

from typing import Any

_ROUNDING = 1e-12  # of numbers in double precision, after thousands of operations


def as_large(statistics: Any, observed: Any, *, size: float) -> Any:
    """Whether statistics reach the observed one, or miss it by the rounding of ``size``."""
    return statistics >= observed - _ROUNDING * size
