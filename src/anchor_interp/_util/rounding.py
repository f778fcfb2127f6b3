"""Comparisons of computed numbers that leave room for rounding."""

from typing import Any

ROUNDING = 1e-12
"""Of the largest number that went in: in double precision, after thousands of operations."""


def as_large(statistics: Any, observed: Any, *, size: float) -> Any:
    """Whether statistics reach the observed one, or miss it by the rounding of ``size``."""
    return statistics >= observed - ROUNDING * size
