"""What the anchors of a task mean: their functions and the roles of ordered pairs.

:class:`anchor_interp.tasks.anchor.AnchorTask` is the task. Its sequences are drawn from these rules
(:mod:`anchor_interp.tasks.sequences`).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Integer

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import bounded, check_fields, checked, shown
from anchor_interp.tasks.examples import warn_once
from anchor_interp.tasks.functions import (
    MAX_TOKEN,
    Affine,
    Anchor,
    Ints,
    KeyFunction,
    Override,
    Pair,
    Role,
)
from anchor_interp.tasks.task import Task

Keys = Literal["train", "test", "all"]
"""A side of the split of keys."""
_MAX_ANCHORS = 16  # the index of an ordered pair is one byte

PAPER_ANCHORS = tuple(Anchor(token, Affine(add)) for token, add in enumerate((5, 1, -2, -8), 1))
"""g(x; 1) = x + 5, g(x; 2) = x + 1, g(x; 3) = x - 2, g(x; 4) = x - 8 (NeurIPS paper, eq. 2)."""


@dataclass(frozen=True)
class AnchorRules:
    """The anchors of a task and the roles of their pairs; ConfigError if it is inconsistent.

    A warning names the unseen pairs whose rule seen pairs have at every key (:meth:`alike`).
    """

    anchors: tuple[Anchor, ...] = PAPER_ANCHORS
    """The anchors, each a token with its function."""
    overrides: tuple[Override, ...] = ()
    """Ordered pairs that are trained on another target than the composition."""
    unseen: tuple[Pair, ...] = ()
    """Ordered pairs that the training data leave out."""
    answers_last = True
    """The target follows the last token."""
    key_min: int = bounded(20, low=0, high=MAX_TOKEN)
    """Smallest key and noise token."""
    key_max: int = bounded(99, low=0, high=MAX_TOKEN)
    """Largest key and noise token (inclusive)."""
    length: int = bounded(9, low=3, high=MAX_TOKEN + 1)
    """Tokens per sequence."""
    split: Literal["key", "every-position"] = "key"
    """What separates training from test data: ``key`` looks at the key alone (the released code);
    ``every-position`` also bans noise tokens x from every position i with x mod length == i in
    training sequences (complexity-control paper, appendix B)."""

    def __post_init__(self) -> None:
        check_fields(self, "task")
        checked(len(self.anchors), int, "the number of task.anchors", low=1, high=_MAX_ANCHORS)
        if len(set(self.tokens)) < len(self.tokens):
            raise ConfigError(f"task.anchors use a token twice: {self.tokens}")
        checked(self.key_max, int, "task.key_max", above=self.key_min)
        if clash := set(self.tokens) & set(self.keys.tolist()):
            raise ConfigError(f"task.anchors use {min(clash)}, which is also a key")
        named = [*self.unseen, *(override.pair for override in self.overrides)]
        for pair in named:
            self.known(pair)
            if named.count(pair) > 1:
                raise ConfigError(f"the pair {pair} has two roles; give each pair one")
        if not self.seen:
            raise ConfigError("task.unseen holds every pair; leave some to train on")
        for pair in self.answered:
            answers = [self.target_table[self.pairs.index(pair)]]
            if self.role(pair) == "overridden":
                answers.append(self.composed(pair, self.keys))
            for extreme in (np.min(answers), np.max(answers)):
                checked(extreme, int, f"a target of the pair {pair}", low=0, high=MAX_TOKEN)
        for side in ("train", "test"):
            if not self.on_side(side, np.arange(self.length - 2)).any():
                raise ConfigError(f"the keys leave no {side} key (x mod length == position)")
        asked = (pair for pair in self.unseen if pair in self.answered)
        hidden = [pair for pair in asked if not self.tells(pair, self.keys).any()]
        if alike := [f"{pair} that of {', '.join(map(str, self.alike(pair)))}" for pair in hidden]:
            what = "no answer tells the rule of an unseen pair from a seen one's: %s"
            warn_once(what, "; ".join(alike))

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
        own: Pair = checked(pair, Pair, "pair")
        if own not in self.pairs:
            raise ConfigError(f"the pair {own} is not made of the anchors {self.tokens}")
        return own

    def indices(self, pairs: Sequence[Pair]) -> Ints:
        """The indices of one or more ordered pairs in :attr:`pairs`: [pair]."""
        if not checked(pairs, tuple[Pair, ...], "pairs"):
            raise ConfigError("there is no pair to draw from; expected at least one of the task")
        return np.array([self.pairs.index(self.known(pair)) for pair in pairs])

    @functools.cached_property
    def target_table(self) -> Ints:
        """:meth:`target` of every ordered pair and key: [pair, key], read-only.

        -1 for a pair that is not in :attr:`answered`.
        """
        table = np.full((len(self.pairs), len(self.keys)), -1)
        for pair in self.answered:
            table[self.pairs.index(pair)] = self.target(pair, self.keys)
        table.flags.writeable = False
        return table

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

    def alike(self, pair: Pair) -> tuple[Pair, ...]:
        """Seen pairs with the composition of an unseen pair as target, at half of the keys or more.

        A model may read the pair as one of them.
        """
        table = self.target_table[[self.pairs.index(other) for other in self.seen]]
        same = (table == self.composed(pair, self.keys)).mean(1) >= 0.5
        return tuple(other for other, is_same in zip(self.seen, same, strict=True) if is_same)

    def tells(self, pair: Pair, keys: Ints) -> Bool[np.ndarray, " n"]:
        """At which keys the composition of an unseen pair is the target of no pair alike."""
        rule, others = self.composed(pair, keys), self.alike(pair)
        told: np.ndarray = np.all([self.target(other, keys) != rule for other in others], axis=0)
        return np.broadcast_to(told, len(keys))

    def on_side(
        self, keys: Keys, positions: Integer[np.ndarray, " n"]
    ) -> Bool[np.ndarray, "n key"]:
        """Whether each of the task's keys x is on a side of the split at each position p.

        It is a test key where x mod length == p, and a training key elsewhere (both papers, data).
        """
        test = self.keys % self.length == positions[:, None]
        sides = {"train": ~test, "test": test, "all": np.ones_like(test)}
        mask: np.ndarray = sides[checked(keys, Keys, "keys")]
        return mask

    def cells(self, keys: Keys) -> tuple[Ints, Ints]:
        """All positions (0 to length - 3) with their keys on one side of the split: two [cell]."""
        positions = np.arange(self.length - 2, dtype=np.int64)
        place, index = self.on_side(keys, positions).nonzero()
        return positions[place], self.keys[index]


def require_anchors(task: Any, what: str) -> Any:
    """The task itself; ConfigError if it has no anchors, which ``what`` needs."""
    if not isinstance(checked(task, Task, "task"), AnchorRules):
        raise ConfigError(f"{what} needs a task with anchors; the task {task.kind} has none")
    return task
