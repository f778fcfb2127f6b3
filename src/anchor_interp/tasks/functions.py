"""What anchors stand for: functions of a key, and the words for pairs and roles."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import bounded, check_fields, checked, shown

Pair = tuple[int, int]
"""Two anchor tokens in their order."""
Role = Literal["inferential", "overridden", "unseen"]
"""What training shows of a pair: the composition, another function, nothing."""
Ints = npt.NDArray[np.int64]

ROLES: tuple[Role, ...] = ("inferential", "overridden", "unseen")
MAX_TOKEN = 255  # sequences store one byte a token


@dataclass(frozen=True)
class Affine:
    """g(x) = mul * x + add; the papers use x + add.

    With a ``modulus`` M the function stays in the M consecutive numbers from ``origin`` on:
    ``origin + (mul * (x - origin) + add) mod M``. Two such maps need not commute.
    """

    add: int = bounded(0, low=-1_000_000, high=1_000_000)
    """The offset."""
    mul: int = bounded(1, low=-1_000_000, high=1_000_000)
    """The factor."""
    modulus: int | None = bounded(None, low=2, high=MAX_TOKEN + 1)
    """Number of values of the cyclic range; None for plain integers."""
    origin: int = bounded(0, low=0, high=MAX_TOKEN)
    """First value of the cyclic range."""

    def __post_init__(self) -> None:
        check_fields(self, "affine")

    def __call__(self, x: Ints) -> Ints:
        """Apply the function to every element."""
        x = _integers(x)
        if self.modulus is None:
            return self.mul * x + self.add
        return self.origin + (self.mul * (x - self.origin) + self.add) % self.modulus

    def __str__(self) -> str:
        product = {1: "x", -1: "-x"}.get(self.mul, f"{self.mul}x")
        text = product if self.add == 0 else f"{product} {'-+'[self.add > 0]} {abs(self.add)}"
        return text if self.modulus is None else f"{text} mod {self.modulus}"


@dataclass(frozen=True)
class Table:
    """Any function of the key, written out: g(first + i) = values[i]."""

    first: int = field(metadata={"low": 0, "high": MAX_TOKEN})
    """The smallest argument."""
    values: tuple[int, ...]
    """The values of first, first + 1, and so on; each 0 to 255."""

    def __post_init__(self) -> None:
        check_fields(self, "table")
        checked(len(self.values), int, "the number of table.values", low=1, high=MAX_TOKEN + 1)
        checked(min(self.values), int, "the least of table.values", low=0)
        checked(max(self.values), int, "the largest of table.values", high=MAX_TOKEN)

    def __call__(self, x: Ints) -> Ints:
        """Look up every element; ConfigError if one lies outside the table."""
        x = _integers(x)
        index = x - self.first
        if ((index < 0) | (index >= len(self.values))).any():
            covered = f"{self.first} to {self.first + len(self.values) - 1}"
            raise ConfigError(f"a table covers {covered} but is applied to {x.min()} to {x.max()}")
        return np.asarray(self.values, dtype=np.int64)[index]

    def __str__(self) -> str:
        return f"table of {len(self.values)}"


KeyFunction = Affine | Table


@dataclass(frozen=True)
class Anchor:
    """A token and the function that it stands for."""

    token: int = bounded(0, low=0, high=MAX_TOKEN)
    """The anchor's token."""
    function: KeyFunction = Affine()
    """g(x; token)."""

    def __post_init__(self) -> None:
        check_fields(self, "anchor")


@dataclass(frozen=True)
class Override:
    """An ordered pair that is trained on another function than the composition."""

    pair: Pair
    """The two anchor tokens in their order."""
    function: KeyFunction
    """Key to training target."""

    def __post_init__(self) -> None:
        check_fields(self, "override")


def _integers(x: Any) -> Ints:
    """Integers as a 64-bit array: sums of bytes would wrap around."""
    array = np.asarray(x)
    if array.dtype.kind not in "iu":
        raise ConfigError(f"x is {shown(x)}; expected an array of integers")
    return array.astype(np.int64, copy=False)
