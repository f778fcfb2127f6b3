"""Comparisons of computed numbers that leave room for rounding."""

from typing import Any

_ROUNDING = 1e-12  # of numbers in double precision, after thousands of operations


def as_large(statistics: Any, observed: Any, *, size: float) -> Any:
    """Whether statistics are as large as the observed one, or smaller by rounding alone.

    ``size`` is that of the numbers they are computed from: small differences have their rounding.
    """
    return statistics >= observed - _ROUNDING * size
