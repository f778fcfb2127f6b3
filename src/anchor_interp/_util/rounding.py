"""Computed numbers with room for rounding: compared, and as the decimals they stand for."""

from typing import Any

ROUNDING = 1e-12
"""Of the largest number that went in: in double precision, after thousands of operations."""
_DIGITS = {2: 3, 4: 6, 8: 15}  # that a decimal keeps in a float of so many bytes


def as_large(statistics: Any, observed: Any, *, size: float) -> Any:
    """Whether statistics reach the observed one, or miss it by the rounding of ``size``."""
    return statistics >= observed - ROUNDING * size


def decimal(value: Any) -> Any:
    """A float as the decimal that it stands for: 0.6 for 0.1 * 6 = 0.6000000000000001.

    What is not a short decimal stays, such as 1 / 3. A float of numpy with fewer bits than Python's
    is the number that it prints. Other values stay as they are.
    """
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if getattr(value, "ndim", 0) or not (isinstance(value, float) or kind == "f"):
        return value
    digits = _DIGITS.get(getattr(value, "itemsize", 8), 15)
    short = f"{value:.{digits}g}"
    significant = short.partition("e")[0].replace(".", "").strip("-0")
    return float(short if len(significant) <= digits - 3 else str(value))
