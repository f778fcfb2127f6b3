"""Anchor tasks: what the sequences of the two papers mean.

A *key* x is followed by two *anchors* a1, a2. Every anchor stands for a function of the key, and
the target of the sequence is the two functions applied in turn (NeurIPS paper, equation 1)::

    f(x; a1, a2) = g(g(x; a1); a2)

All other tokens are noise. Each ordered pair of anchors has a *role*: ``inferential`` (its
training target is the composition), ``overridden`` (its training target is another function: the
paper's "non-inferential" mapping) or ``unseen`` (never in the training data). What a trained model
answers on an unseen pair tells how it works:

* the *inferential* answer is the composition;
* the *symmetric* answer is the training target of the same two anchors in the other order. It
  exists only where that order was seen and differs from the composition.

Whether a key counts as training or test data depends on its position p (complexity-control
paper, appendix B): x is a test key at p when ``x mod length == p``. So every number is trained
on somewhere, and no (pair, key, position) of the training data is ever tested.

This module is pure: numbers in, numbers out, no randomness.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import bounded, check_fields, checked, shown, suggestion

Role = Literal["inferential", "overridden", "unseen"]


SplitRule = Literal["key", "every-position"]


Keys = Literal["train", "test", "all"]


Pair = tuple[int, int]


Ints = npt.NDArray[np.int64]


ROLES: tuple[Role, ...] = ("inferential", "overridden", "unseen")


MAX_TOKEN = 255
"""Largest token and target: sequences are stored with one byte a token."""


MAX_ANCHORS = 16
"""Most anchors of a task: an ordered pair's index is stored in one byte."""


@dataclass(frozen=True)
class Affine:
    """g(x) = mul * x + add, by default the paper's offsets x + add.

    With a ``modulus`` M the function stays in M consecutive numbers from ``origin`` on:
    ``origin + (mul * (x - origin) + add) mod M``. Two such maps need not commute.
    """

    add: int = bounded(0, low=-1_000_000, high=1_000_000)
    """What is added."""
    mul: int = bounded(1, low=-1_000_000, high=1_000_000)
    """What the key is multiplied with first."""
    modulus: int | None = bounded(None, low=2, high=MAX_TOKEN + 1)
    """Number of values of the cyclic range; null for plain integers."""
    origin: int = bounded(0, low=0, high=MAX_TOKEN)
    """First value of the cyclic range."""

    def __post_init__(self) -> None:
        check_fields(self, "affine")

    def __call__(self, x: Ints) -> Ints:
        """Apply the function element by element."""
        x = _integers(x, "x")
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
    """The values for first, first + 1, and so on; each 0 to 255."""

    def __post_init__(self) -> None:
        check_fields(self, "table")
        if not 1 <= len(self.values) <= MAX_TOKEN + 1:
            raise ConfigError(
                f"table.values holds {len(self.values)} values; expected 1 to {MAX_TOKEN + 1}"
            )
        for i, value in enumerate(self.values):
            checked(value, int, f"table.values[{i}]", low=0, high=MAX_TOKEN)

    def __call__(self, x: Ints) -> Ints:
        """Look every element up.

        Raises:
            ConfigError: an argument lies outside the table.
        """
        x = _integers(x, "x")
        index = x - self.first
        if ((index < 0) | (index >= len(self.values))).any():
            low, high = self.first, self.first + len(self.values) - 1
            raise ConfigError(
                f"a table covers {low} to {high} but is applied to {x.min()} to {x.max()}; "
                "give it a value for every argument that can occur"
            )
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
    """An ordered pair whose training target is another function than the composition."""

    pair: Pair
    """The two anchor tokens in their order."""
    function: KeyFunction
    """Key to training target."""

    def __post_init__(self) -> None:
        check_fields(self, "override")


PAPER_ANCHORS = tuple(Anchor(token, Affine(add)) for token, add in enumerate((5, 1, -2, -8), 1))
"""g(x; 1) = x + 5, g(x; 2) = x + 1, g(x; 3) = x - 2, g(x; 4) = x - 8 (NeurIPS paper, eq. 2)."""


@dataclass(frozen=True)
class AnchorTask:
    """A two-anchor composition task; validated as a whole when it is built.

    Raises:
        ConfigError: tokens that collide, a pair with two roles, targets that do not fit in one
            byte, or a split that leaves no training or no test key.
    """

    anchors: tuple[Anchor, ...] = PAPER_ANCHORS
    """The anchors, each a token with its function."""
    overrides: tuple[Override, ...] = ()
    """Ordered pairs trained on another target than the composition."""
    unseen: tuple[Pair, ...] = ()
    """Ordered pairs held out of the training data."""
    key_min: int = bounded(20, low=0, high=MAX_TOKEN)
    """Smallest key and noise token."""
    key_max: int = bounded(99, low=0, high=MAX_TOKEN)
    """Largest key and noise token (inclusive)."""
    length: int = bounded(9, low=3, high=MAX_TOKEN + 1)
    """Tokens per sequence."""
    split: SplitRule = "key"
    """What keeps training apart from test data: ``key`` looks at the key alone (the released
    code), ``every-position`` also bans noise tokens x from every position i with
    x mod length == i in training sequences (complexity-control paper, appendix B)."""

    def __post_init__(self) -> None:
        check_fields(self, "task")
        self._check_tokens()
        self._check_pairs()
        self._check_targets()
        self._check_split()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The anchors' tokens."""
        return tuple(anchor.token for anchor in self.anchors)

    @functools.cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """All ordered pairs of anchor tokens; their order gives a pair its index."""
        return tuple((first, second) for first in self.tokens for second in self.tokens)

    @property
    def seen(self) -> tuple[Pair, ...]:
        """The ordered pairs that training sequences use."""
        return tuple(pair for pair in self.pairs if pair not in self.unseen)

    @property
    def keys(self) -> Ints:
        """All keys, ascending; noise tokens come from the same range."""
        return np.arange(self.key_min, self.key_max + 1, dtype=np.int64)

    @property
    def n_input_tokens(self) -> int:
        """Every input token is smaller than this."""
        return max(*self.tokens, self.key_max) + 1

    @functools.cached_property
    def n_tokens(self) -> int:
        """Every input token and every target is smaller than this: the vocabulary needed."""
        targets = [self.target(pair, self.keys).max() for pair in self.pairs]
        return max(self.n_input_tokens, int(max(targets)) + 1)

    def function(self, token: int) -> KeyFunction:
        """g( . ; token).

        Raises:
            ConfigError: no anchor of this task.
        """
        for anchor in self.anchors:
            if anchor.token == token:
                return anchor.function
        raise ConfigError(
            f"{shown(token)} is no anchor of this task; its anchors are {self.tokens}"
        )

    def override(self, pair: Pair) -> KeyFunction | None:
        """The function that replaces the composition for an ordered pair, if any."""
        pair = self.known(pair)
        found = [override.function for override in self.overrides if override.pair == pair]
        return found[0] if found else None

    def role(self, pair: Pair) -> Role:
        """How an ordered pair is used."""
        pair = self.known(pair)
        if pair in self.unseen:
            return "unseen"
        return "inferential" if self.override(pair) is None else "overridden"

    def composed(self, pair: Pair, keys: Ints) -> Ints:
        """The inferential target g(g(x; a1); a2) of every key."""
        first, second = self.known(pair)
        return self.function(second)(self.function(first)(keys))

    def target(self, pair: Pair, keys: Ints) -> Ints:
        """The target of every key: what training asks for, for an unseen pair the composition."""
        override = self.override(pair)
        return self.composed(pair, keys) if override is None else override(keys)

    def known(self, pair: Pair) -> Pair:
        """The pair, if it is one of this task.

        Raises:
            ConfigError: no ordered pair of this task's anchors.
        """
        found: Pair = checked(pair, Pair, "pair")
        if found not in self.pairs:
            raise ConfigError(f"the pair {found} is not made of the anchors {self.tokens}")
        return found

    def symmetric(self, pair: Pair, keys: Ints) -> Ints | None:
        """The symmetric answer to an unseen pair: the training target of the other order.

        None if the other order was not trained on either, or if it has the same target for every
        key, so that the symmetric and the inferential answer cannot be told apart.
        """
        pair = self.known(pair)
        mirror = (pair[1], pair[0])
        if pair not in self.unseen or mirror in self.unseen:
            return None
        answer = self.target(mirror, self.keys)
        if (answer == self.composed(pair, self.keys)).all():
            return None
        return self.target(mirror, keys)

    def is_test_key(self, keys: Ints, positions: Ints) -> npt.NDArray[np.bool_]:
        """Whether each key belongs to the test data at its position (x mod length == p)."""
        return np.equal(_integers(keys, "keys") % self.length, _integers(positions, "positions"))

    def cells(self, keys: Keys) -> tuple[Ints, Ints]:
        """All (position, key) combinations of one side of the split, as two equal-long arrays.

        Positions run from 0 to length - 3, because both anchors follow the key.
        """
        checked(keys, Keys, "keys")
        n_positions = self.length - 2
        position = np.repeat(np.arange(n_positions, dtype=np.int64), len(self.keys))
        key = np.tile(self.keys, n_positions)
        test = self.is_test_key(key, position)
        keep = {"train": ~test, "test": test, "all": np.ones_like(test)}[keys]
        return position[keep], key[keep]

    def _check_tokens(self) -> None:
        if not self.anchors:
            raise ConfigError("task.anchors is empty; give at least one anchor")
        if len(self.anchors) > MAX_ANCHORS:
            raise ConfigError(
                f"task.anchors has {len(self.anchors)} anchors; expected at most "
                f"{MAX_ANCHORS}, whose pairs fit in one byte"
            )
        if len(set(self.tokens)) < len(self.tokens):
            raise ConfigError(f"task.anchors use a token twice: {self.tokens}")
        if self.key_max <= self.key_min:
            raise ConfigError(
                f"task.key_max is {self.key_max}; expected more than key_min {self.key_min}"
            )
        clash = [token for token in self.tokens if self.key_min <= token <= self.key_max]
        if clash:
            raise ConfigError(
                f"task.anchors use {clash[0]}, which is also a key "
                f"({self.key_min} to {self.key_max}); choose tokens outside the key range"
            )

    def _check_pairs(self) -> None:
        named = [*self.unseen, *(override.pair for override in self.overrides)]
        for pair in named:
            self.known(pair)
            if named.count(pair) > 1:
                raise ConfigError(f"the pair {pair} is given a role twice; give each pair one")
        if not self.seen:
            raise ConfigError("task.unseen holds every pair; leave some to train on")

    def _check_targets(self) -> None:
        for pair in self.pairs:
            for targets in (self.composed(pair, self.keys), self.target(pair, self.keys)):
                if targets.min() < 0 or targets.max() > MAX_TOKEN:
                    raise ConfigError(
                        f"targets of the pair {pair} run from {targets.min()} to {targets.max()}; "
                        f"expected 0 to {MAX_TOKEN}: change the key range or the functions"
                    )

    def _check_split(self) -> None:
        for side in ("train", "test"):
            if not len(self.cells(side)[0]):
                raise ConfigError(
                    f"keys {self.key_min} to {self.key_max} with length {self.length} leave no "
                    f"{side} key (x mod length == position); widen the key range"
                )


def _integers(values: Any, where: str) -> Ints:
    """An array of integers as 64-bit ones: in bytes, sums would wrap around.

    Raises:
        ConfigError: no array of integers.
    """
    found = np.asarray(values) if isinstance(values, np.ndarray | np.integer | int | list) else None
    if found is None or found.dtype.kind not in "iu":
        raise ConfigError(f"{where} is {shown(values)}; expected an array of integers")
    return found.astype(np.int64, copy=False)


def _neurips() -> AnchorTask:
    """(3, 4) trained on x - 6 instead of x - 10, (4, 3) unseen (NeurIPS paper, section 4)."""
    return AnchorTask(overrides=(Override((3, 4), Affine(-6)),), unseen=((4, 3),))


def _complexity_control() -> AnchorTask:
    """(3, 4) and (4, 3) unseen (complexity-control paper, section III-B)."""
    return AnchorTask(unseen=((3, 4), (4, 3)))


BROKEN_GROUPS: tuple[tuple[Pair, int], ...] = (
    ((1, 2), 4),
    ((1, 3), 1),
    ((1, 4), -5),
    ((2, 3), 5),
    ((2, 4), -9),
    ((3, 4), -6),
)
"""Unordered pairs and the offset that breaks them, in the order of growing complexity (released
code of the complexity-control paper)."""


def reasoning_complexity(level: int) -> AnchorTask:
    """The task whose first ``level`` unordered pairs break the rule in both orders.

    All 16 pairs are seen (NeurIPS paper, section 6; complexity-control paper, section VIII).

    Raises:
        ConfigError: a level outside 0 to 6.
    """
    checked(level, int, "reasoning complexity", low=0, high=len(BROKEN_GROUPS))
    overrides = [
        Override(order, Affine(add))
        for (first, second), add in BROKEN_GROUPS[:level]
        for order in ((first, second), (second, first))
    ]
    return AnchorTask(overrides=tuple(overrides))


def _non_commuting() -> AnchorTask:
    """Shifts and a reflection of a ring of 80 numbers; (4, 3) unseen, (3, 4) seen as it is.

    g(x; 3) reflects, so the orders of 3 and 4 differ by 16 for every key: the symmetric answer
    shows without any overridden pair.
    """
    functions = ((5, 1), (1, 1), (0, -1), (-8, 1))
    anchors = tuple(
        Anchor(token, Affine(add, mul, modulus=80, origin=20))
        for token, (add, mul) in enumerate(functions, 1)
    )
    return AnchorTask(anchors=anchors, unseen=((4, 3),))


TASKS: Mapping[str, AnchorTask] = MappingProxyType(
    {
        "complexity-control": _complexity_control(),
        "neurips": _neurips(),
        "non-commuting": _non_commuting(),
        **{f"reasoning-complexity-{level}": reasoning_complexity(level) for level in range(7)},
    }
)
"""The named tasks."""


def named_task(name: str) -> AnchorTask:
    """The preset task of a name.

    Raises:
        ConfigError: an unknown name, with the known ones.
    """
    if checked(name, str, "the task's name") not in TASKS:
        known = ", ".join(TASKS)
        raise ConfigError(
            f"no task is called {shown(name)}{suggestion(name, TASKS)}; known: {known}"
        )
    return TASKS[name]


MAX_SEQUENCES = 1 << 31
"""Most sequences of one request."""
