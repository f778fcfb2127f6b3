"""Sets of examples: what a task gives for training and for judging, as arrays."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int, Integer

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import shown

SplitRole = Literal["train", "id", "ood"]
"""What a split tests: ``id`` has the distribution of the training data, ``ood`` another one."""


@dataclass(frozen=True)
class Split:
    """A set of examples that a task has."""

    name: str
    role: SplitRole
    size: int | None = None
    """How many different examples it has; None if there is no limit."""


@dataclass(frozen=True)
class Plane:
    """Two aspects of whole numbers that span a plane of errors."""

    x: str
    y: str
    square: tuple[int, int] | None = None
    """The smallest and the largest number, on both axes, of a square that is drawn in."""


@dataclass(frozen=True, eq=False)
class Examples:
    """n sequences, padded with zeros on the right to one length."""

    tokens: Integer[np.ndarray, "n pos"]
    """Prompt and answer, with its end token if the task has one."""
    mask: Bool[np.ndarray, "n pos"]
    """The tokens that the model is trained to predict, each from the tokens before it. In a task
    with an end token they are the answer, whole."""
    lengths: Integer[np.ndarray, " n"]
    """Tokens before the padding."""

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> "Examples":
        """Examples of prompts and answers that are lists of tokens; an answer has its end token.

        Raises:
            ConfigError: there are more prompts than answers, or the other way round.
        """
        flat = [part for part in (*prompts, *answers) if not hasattr(part, "__len__")]
        if flat:
            raise ConfigError(f"{shown(flat[0])} is not a list of tokens; put an answer in a list")
        if len(prompts) != len(answers):
            raise ConfigError(f"{len(prompts):,} prompts have {len(answers):,} answers")
        starts = np.fromiter(map(len, prompts), np.int64, len(prompts))
        lengths = starts + np.fromiter(map(len, answers), np.int64, len(prompts))
        place = np.arange(lengths.max(initial=1))
        inside = place < lengths[:, None]
        tokens = np.zeros(inside.shape, np.int32)
        pairs = zip(prompts, answers, strict=True)
        tokens[inside] = [token for pair in pairs for part in pair for token in part]
        return cls(tokens, inside & (place >= starts[:, None]), lengths)

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, which: slice | np.ndarray) -> "Examples":
        """Some of the examples, cut to the longest of them."""
        longest = int(self.lengths[which].max(initial=1))
        return Examples(
            self.tokens[which, :longest], self.mask[which, :longest], self.lengths[which]
        )

    @functools.cached_property
    def starts(self) -> Int[np.ndarray, " n"]:
        """Where the answers start: the first token that is predicted."""
        found: Int[np.ndarray, " n"] = self.mask.argmax(1)
        return found

    def answers(self) -> list[tuple[int, ...]]:
        """The tokens of every answer, with its end token."""
        rows = zip(self.tokens, self.starts, self.lengths, strict=True)
        return [tuple(map(int, row[start:length])) for row, start, length in rows]

    @functools.cached_property
    def n_predicted(self) -> Int[np.ndarray, " n"]:
        """How many tokens of each example are predicted."""
        if self.mask.strides[0] == 0:  # one row stands for all
            return np.broadcast_to(self.mask[:1].sum(1), len(self))
        found: Int[np.ndarray, " n"] = self.mask.sum(1)
        return found

    @property
    def inputs(self) -> Integer[np.ndarray, "n read"]:
        """All tokens but the last position's: what a model reads."""
        return self.tokens[:, :-1]

    @property
    def last(self) -> Integer[np.ndarray, " n"]:
        """The tokens of the last position: the answers of a task that ``answers_last``."""
        return self.tokens[:, -1]
