"""Anchor tasks: what the sequences of the two papers mean.

A *key* x is followed by two *anchors* a1, a2. Each anchor stands for a function of the key, and the
target is both functions applied in turn, g(g(x; a1); a2) (NeurIPS paper, equation 1). All other
tokens are noise. Each ordered pair of anchors has a *role*: ``inferential`` (its training target is
the composition), ``overridden`` (its training target is another function, the paper's
"non-inferential" mapping) or ``unseen`` (never in the training data). The answer of a trained model
to an unseen pair tells how it works. The *inferential* answer is the composition; the *symmetric*
answer is the training target of the other order, where that was seen and differs from it.

The position p of a key decides whether it is training or test data (complexity-control paper,
appendix B): x is a test key at p when ``x mod length == p``. So every number is trained on
somewhere, and no (pair, key, position) of the training data is ever tested.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import bounded, check_fields, checked, shown
from anchor_interp.tasks.examples import Dataset, Split
from anchor_interp.tasks.task import Task

Role = Literal["inferential", "overridden", "unseen"]
SplitRule = Literal["key", "every-position"]
Keys = Literal["train", "test", "all"]
Pair = tuple[int, int]
Ints = npt.NDArray[np.int64]

ROLES: tuple[Role, ...] = ("inferential", "overridden", "unseen")
MAX_TOKEN = 255  # sequences store one byte a token
MAX_ANCHORS = 16  # the index of an ordered pair is one byte
MAX_SEQUENCES = 1 << 31
"""Most sequences of one request."""


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
    """Number of values of the cyclic range; null for plain integers."""
    origin: int = bounded(0, low=0, high=MAX_TOKEN)
    """First value of the cyclic range."""

    def __post_init__(self) -> None:
        check_fields(self, "affine")

    def __call__(self, x: Ints) -> Ints:
        """Apply the function to every element."""
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
    """The values of first, first + 1, and so on; each 0 to 255."""

    def __post_init__(self) -> None:
        check_fields(self, "table")
        checked(len(self.values), int, "the number of table.values", low=1, high=MAX_TOKEN + 1)
        for i, value in enumerate(self.values):
            checked(value, int, f"table.values[{i}]", low=0, high=MAX_TOKEN)

    def __call__(self, x: Ints) -> Ints:
        """Look up every element; ConfigError if one lies outside the table."""
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
    """An ordered pair that is trained on another function than the composition."""

    pair: Pair
    """The two anchor tokens in their order."""
    function: KeyFunction
    """Key to training target."""

    def __post_init__(self) -> None:
        check_fields(self, "override")


PAPER_ANCHORS = tuple(Anchor(token, Affine(add)) for token, add in enumerate((5, 1, -2, -8), 1))
"""g(x; 1) = x + 5, g(x; 2) = x + 1, g(x; 3) = x - 2, g(x; 4) = x - 8 (NeurIPS paper, eq. 2)."""


@dataclass(frozen=True)
class AnchorTask(Task, untagged=True):
    """A task that composes the functions of two anchors; ConfigError if it is inconsistent."""

    anchors: tuple[Anchor, ...] = PAPER_ANCHORS
    """The anchors, each a token with its function."""
    overrides: tuple[Override, ...] = ()
    """Ordered pairs that are trained on another target than the composition."""
    unseen: tuple[Pair, ...] = ()
    """Ordered pairs that the training data leave out."""
    key_min: int = bounded(20, low=0, high=MAX_TOKEN)
    """Smallest key and noise token."""
    key_max: int = bounded(99, low=0, high=MAX_TOKEN)
    """Largest key and noise token (inclusive)."""
    length: int = bounded(9, low=3, high=MAX_TOKEN + 1)
    """Tokens per sequence."""
    split: SplitRule = "key"
    """What separates training from test data: ``key`` looks at the key alone (the released code);
    ``every-position`` also bans noise tokens x from every position i with x mod length == i in
    training sequences (complexity-control paper, appendix B)."""

    def __post_init__(self) -> None:
        check_fields(self, "task")
        checked(len(self.anchors), int, "the number of task.anchors", low=1, high=MAX_ANCHORS)
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
        named = [*self.unseen, *(override.pair for override in self.overrides)]
        for pair in named:
            self.known(pair)
            if named.count(pair) > 1:
                raise ConfigError(f"the pair {pair} has two roles; give each pair one")
        if not self.seen:
            raise ConfigError("task.unseen holds every pair; leave some to train on")
        for pair in self.answered:
            for targets in (self.composed(pair, self.keys), self.target(pair, self.keys)):
                if targets.min() < 0 or targets.max() > MAX_TOKEN:
                    raise ConfigError(
                        f"targets of the pair {pair} run from {targets.min()} to {targets.max()}; "
                        f"expected 0 to {MAX_TOKEN}: change the key range or the functions"
                    )
        test = on_side(self, "test", np.arange(self.length - 2))
        if test.all() or not test.any():
            raise ConfigError(
                f"keys {self.key_min} to {self.key_max} with length {self.length} leave no "
                f"{'train' if test.all() else 'test'} key (x mod length == position); widen the "
                "key range"
            )

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
        """The ordered pairs in the training data."""
        return tuple(pair for pair in self.pairs if pair not in self.unseen)

    @property
    def answered(self) -> tuple[Pair, ...]:
        """The ordered pairs that have a target: all of them."""
        return self.pairs

    @property
    def keys(self) -> Ints:
        """All keys, ascending; noise tokens come from the same range."""
        return np.arange(self.key_min, self.key_max + 1, dtype=np.int64)

    @property
    def n_input_tokens(self) -> int:
        """One more than the largest input token."""
        return max(*self.tokens, self.key_max) + 1

    @functools.cached_property
    def n_tokens(self) -> int:
        """One more than the largest input token and target: the vocabulary needed."""
        targets = [self.target(pair, self.keys).max() for pair in self.answered]
        return max(self.n_input_tokens, int(max(targets)) + 1)

    @property
    def words(self) -> tuple[str, ...]:
        """Every token is the number that it stands for."""
        return tuple(map(str, range(self.n_tokens)))

    @property
    def splits(self) -> tuple[Split, ...]:
        """Training data, test keys of seen pairs (ID) and, if there are any, unseen pairs (OOD)."""
        seen = (Split("train", "train"), Split("id", "id"))
        return (*seen, Split("ood", "ood")) if self.unseen else seen

    def examples(self, split: str, n: int, *, seed: int) -> Dataset:
        """N sequences (:func:`anchor_interp.tasks.sequences.sample`), each with its target."""
        from anchor_interp.tasks.sequences import sample  # which draws from tasks of this class

        return sample(self, checked(split, str, "split"), n, seed=seed).dataset()

    @property
    def answers_last(self) -> bool:
        """True: the target follows the last token."""
        return True

    @property
    def anchored(self) -> "AnchorTask":
        """The task itself."""
        return self

    @property
    def about(self) -> str:
        """Its functions and the roles of its pairs."""
        functions = ", ".join(f"{anchor.token}: {anchor.function}" for anchor in self.anchors)
        overridden = ", ".join(f"{o.pair} -> {o.function}" for o in self.overrides) or "none"
        unseen = ", ".join(map(str, self.unseen)) or "none"
        return f"{functions}; unseen {unseen}; overridden {overridden}"

    def function(self, token: int) -> KeyFunction:
        """The function g( . ; token) of an anchor."""
        for anchor in self.anchors:
            if anchor.token == token:
                return anchor.function
        raise ConfigError(f"{shown(token)} is not an anchor; this task has {self.tokens}")

    def override(self, pair: Pair) -> KeyFunction | None:
        """The function that replaces the composition for an ordered pair, if any."""
        pair = self.known(pair)
        return next((each.function for each in self.overrides if each.pair == pair), None)

    def role(self, pair: Pair) -> Role:
        """The role of an ordered pair."""
        pair = self.known(pair)
        if pair in self.unseen:
            return "unseen"
        return "inferential" if self.override(pair) is None else "overridden"

    def composed(self, pair: Pair, keys: Ints) -> Ints:
        """The composition g(g(x; a1); a2) of every key."""
        first, second = self.known(pair)
        return self.function(second)(self.function(first)(keys))

    def target(self, pair: Pair, keys: Ints) -> Ints:
        """The training target of every key; for an unseen pair the composition."""
        override = self.override(pair)
        return self.composed(pair, keys) if override is None else override(keys)

    def known(self, pair: Pair) -> Pair:
        """The pair itself; ConfigError if it is not one of this task's."""
        found: Pair = checked(pair, Pair, "pair")
        if found not in self.pairs:
            raise ConfigError(f"the pair {found} is not made of the anchors {self.tokens}")
        return found

    def symmetric(self, pair: Pair, keys: Ints) -> Ints | None:
        """The symmetric answer to an unseen pair: the training target of the other order.

        None if the other order is unseen too, or has the same target for every key.
        """
        pair = self.known(pair)
        mirror = (pair[1], pair[0])
        if pair not in self.unseen or mirror in self.unseen:
            return None
        same = np.array_equal(self.target(mirror, self.keys), self.composed(pair, self.keys))
        return None if same else self.target(mirror, keys)

    def is_test_key(self, keys: Ints, positions: Ints) -> npt.NDArray[np.bool_]:
        """Whether each key is test data at its position (x mod length == p)."""
        return np.equal(_integers(keys, "keys") % self.length, _integers(positions, "positions"))

    def cells(self, keys: Keys) -> tuple[Ints, Ints]:
        """All positions (0 to length - 3) with their keys on one side of the split: two [cell]."""
        positions = np.arange(self.length - 2, dtype=np.int64)
        place, index = on_side(self, keys, positions).nonzero()
        return positions[place], self.keys[index]


def on_side(task: AnchorTask, keys: Keys, positions: Ints) -> npt.NDArray[np.bool_]:
    """Whether each key of a task is on a side of the split at each position: [position, key]."""
    checked(keys, Keys, "keys")
    test = task.is_test_key(task.keys, positions[:, None])
    return {"train": ~test, "test": test, "all": np.ones_like(test)}[keys]


@functools.lru_cache(maxsize=32)
def target_table(task: AnchorTask) -> Ints:
    """:meth:`AnchorTask.target` of every ordered pair and key: [pair, key], read-only.

    -1 for a pair that is not in :attr:`AnchorTask.answered`.
    """
    table = np.full((len(task.pairs), len(task.keys)), -1)
    for pair in task.answered:
        table[task.pairs.index(pair)] = task.target(pair, task.keys)
    table.flags.writeable = False
    return table


def pair_indices(task: AnchorTask, pairs: Sequence[Pair]) -> Ints:
    """The indices of one or more ordered pairs in ``task.pairs``: [pair]."""
    found: tuple[Pair, ...] = checked(pairs, tuple[Pair, ...], "pairs")
    if not found:
        raise ConfigError("pairs is empty; expected at least one ordered pair of the task")
    return np.array([task.pairs.index(task.known(pair)) for pair in found])


def _integers(values: Any, where: str) -> Ints:
    """Integers as a 64-bit array: sums of bytes would wrap around."""
    found = np.asarray(values) if isinstance(values, np.ndarray | np.integer | int | list) else None
    if found is None or found.dtype.kind not in "iu":
        raise ConfigError(f"{where} is {shown(values)}; expected an array of integers")
    return found.astype(np.int64, copy=False)


BROKEN_GROUPS = (((1, 2), 4), ((1, 3), 1), ((1, 4), -5), ((2, 3), 5), ((2, 4), -9), ((3, 4), -6))
"""Unordered pairs, each with the offset that breaks its rule, in the order in which
:func:`reasoning_complexity` breaks them (released code of the complexity-control paper)."""


def reasoning_complexity(level: int) -> AnchorTask:
    """The task whose first ``level`` unordered pairs break the rule in both orders.

    Training shows all 16 pairs (NeurIPS paper, section 6; complexity-control paper, section VIII).
    """
    checked(level, int, "reasoning complexity", low=0, high=len(BROKEN_GROUPS))
    broken = [(order, add) for (a, b), add in BROKEN_GROUPS[:level] for order in ((a, b), (b, a))]
    return AnchorTask(overrides=tuple(Override(order, Affine(add)) for order, add in broken))


_RING = tuple(
    Anchor(token, Affine(add, mul, modulus=80, origin=20))
    for token, (add, mul) in enumerate(((5, 1), (1, 1), (0, -1), (-8, 1)), 1)
)
"""Shifts and a reflection of a ring of 80 numbers: the orders of 3 and 4 differ by 16 for every
key, so the symmetric answer shows without an overridden pair."""

TASKS: Mapping[str, AnchorTask] = MappingProxyType(
    {
        # complexity-control paper, section III-B
        "complexity-control": AnchorTask(unseen=((3, 4), (4, 3))),
        # NeurIPS paper, section 4: (3, 4) is trained on x - 6 instead of x - 10
        "neurips": AnchorTask(overrides=(Override((3, 4), Affine(-6)),), unseen=((4, 3),)),
        "non-commuting": AnchorTask(anchors=_RING, unseen=((4, 3),)),
        **{f"reasoning-complexity-{level}": reasoning_complexity(level) for level in range(7)},
    }
)
"""The named anchor tasks."""
