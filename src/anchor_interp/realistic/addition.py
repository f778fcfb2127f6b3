"""Addition: two numbers become their sum, and training leaves out a square of the pairs.

"417 + 580 =" is answered with 997. Pairs of operands are points of a plane. A model that answers
from the training pairs most like the one asked (*case-based*) fails in the middle of the square,
where all such pairs are left out; one that has learned the rule does not notice the square.

==========  ======================================================================================
holdout     what training leaves out
==========  ======================================================================================
``square``  every pair whose operands both lie in one range, 400 to 600 of 0 to 999: 40,401 of the
            1,000,000 pairs (complexity-control paper, section VII and figure 7C)
``random``  as many pairs drawn from the whole plane: the same distribution as the training data
==========  ======================================================================================

The papers do not state the tokens. ``numbers`` has one token a number, so that nothing but the
training data relates 417 to 418; the others spell each number with zeros in front, as long as the
longest: "4 1 7 + 5 8 0 = 0 9 9 7 ." or, ``reversed``, "7 1 4 + 0 8 5 = 7 9 9 0 .". Training may
show b + a where a + b is left out, except in the square. Source: Hu, Tang, Yang and Zhang, ICML
2024 ("Case-based or rule-based: how do transformers do the math?").
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import bounded, checked
from anchor_interp.realistic.finite_sets import drawn_rows, finite_splits
from anchor_interp.tasks.examples import Dataset, Plane, Split
from anchor_interp.tasks.functions import Ints
from anchor_interp.tasks.hashing import random_bits
from anchor_interp.tasks.task import Task

_PLUS, _EQUALS = 0, 1
_SYMBOLS = ("+", "=")


@dataclass(frozen=True)
class Addition(Task):
    """Add two numbers; tested on a square of pairs, or on random ones."""

    kind: Literal["addition"] = "addition"
    """The name of this task in files."""
    largest: int = bounded(999, low=1, high=2_999)
    """The largest operand; the smallest is 0."""
    holdout: Literal["square", "random"] = "square"
    """What training leaves out; see the module."""
    square_from: float = bounded(0.4, low=0, high=1)
    """Where the square's range starts, as a share of the number of operands (400 of 1,000)."""
    square_to: float = bounded(0.6, low=0, high=1)
    """Where it ends (600, inclusive)."""
    held_out: int = bounded(1_000, low=0, high=1_000_000)
    """Pairs outside the square kept out of the training set as a test of the same distribution
    (ID); 0 gives the paper's training set. ``random`` ignores it: its test set is such a test."""
    tokens: Literal["numbers", "digits", "reversed"] = "numbers"
    """How a number is written: as one token, or in decimal digits with the most or the least
    significant one first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.square
        if not 1 <= high - low + 1 <= self.largest:
            text = f"task.square_from is {self.square_from:g} and square_to {self.square_to:g}"
            raise ConfigError(f"{text}; expected a square of some operands, not of none or all")
        if self.holdout == "square":
            outside = (self.largest + 1) ** 2 - (high - low + 1) ** 2
            checked(self.held_out, int, "task.held_out", high=outside - 1)

    @property
    def square(self) -> tuple[int, int]:
        """The smallest and the largest operand of the square."""
        shares = (self.square_from, self.square_to)
        low, high = (round(share * (self.largest + 1)) for share in shares)
        return low, min(high, self.largest)

    @property
    def words(self) -> tuple[str, ...]:
        """Plus, equals, and every number or digit; with digits, also the end of an answer."""
        end = () if self.end is None else (".",)
        return (*_SYMBOLS, *map(str, range(self._base)), *end)

    @property
    def end(self) -> int | None:
        """The token ``.`` of digits; a number by itself needs no end."""
        return None if self.answers_last else len(_SYMBOLS) + self._base

    @property
    def answers_last(self) -> bool:
        """Whether the sum is one token."""
        return self.tokens == "numbers"

    @property
    def length(self) -> int:
        """Both operands, plus, equals, and all but the last token of the answer."""
        written = 2 * len(self._places(self.largest)) + len(self._places(2 * self.largest))
        return written + len(_SYMBOLS) - self.answers_last

    @property
    def n_input_tokens(self) -> int:
        """The model reads no number above the largest operand, and no end."""
        return len(_SYMBOLS) + (self.largest + 1 if self.answers_last else self._base)

    @property
    def about(self) -> str:
        """The task and its test set."""
        low, high = self.square
        tested = f"pairs of {low} to {high}" if self.holdout == "square" else "random pairs"
        return f"The sum of two numbers up to {self.largest}; tested on {tested}"

    @property
    def splits(self) -> tuple[Split, ...]:
        """``train``, ``id`` (unless nothing is held out) and ``ood`` (the square)."""
        return finite_splits(_rows(self))

    def examples(self, split: str, n: int, *, seed: int) -> Dataset:
        """N sums: the whole set in random order, then again in another order."""
        chosen = drawn_rows(_rows(self), split, n, seed=seed, stream="addition")
        return self.sums(*np.divmod(chosen, self.largest + 1))

    def sums(self, a: Ints, b: Ints) -> Dataset:
        """The examples of these operands, each [n]."""
        plus, equals = (np.full((len(a), 1), symbol) for symbol in (_PLUS, _EQUALS))
        prompt = [self._write(a, self.largest), plus, self._write(b, self.largest), equals]
        end = [] if self.end is None else [np.full((len(a), 1), self.end)]
        tokens = np.hstack([*prompt, self._write(a + b, 2 * self.largest), *end]).astype(np.int32)
        mask = np.zeros(tokens.shape, bool)
        mask[:, sum(part.shape[1] for part in prompt) :] = True
        return Dataset(tokens, mask, np.full(len(a), tokens.shape[1]))

    def operands(self, examples: Dataset) -> tuple[Ints, Ints]:
        """The operands of examples: two [n]."""
        places = self._places(self.largest)
        read = examples.tokens[:, : 2 * len(places) + 1].astype(np.int64) - len(_SYMBOLS)
        return read[:, : len(places)] @ places, read[:, len(places) + 1 :] @ places

    def aspects(self, examples: Dataset) -> Mapping[str, Sequence[str | int]]:
        """The operands of every example, and how many digits of its sum a carry reaches."""
        a, b = self.operands(examples)
        # a carry takes 10 from one digit and adds 1 to the next
        carries = (_digit_sum(a) + _digit_sum(b) - _digit_sum(a + b)) // 9
        return {"a": a.tolist(), "b": b.tolist(), "carries": carries.tolist()}

    @property
    def plane(self) -> Plane:
        """The operands, with the square if training leaves it out."""
        return Plane("a", "b", self.square if self.holdout == "square" else None)

    @property
    def _base(self) -> int:
        """How many numbers, or digits, have a token."""
        return 2 * self.largest + 1 if self.tokens == "numbers" else 10

    def _places(self, largest: int) -> Ints:
        """What a 1 in each token of a written number is worth: [token]."""
        n_tokens = 1 if self.tokens == "numbers" else len(str(largest))
        powers = self._base ** np.arange(n_tokens, dtype=np.int64)
        return powers if self.tokens == "reversed" else powers[::-1]

    def _write(self, numbers: Ints, largest: int) -> Ints:
        """The tokens of numbers, as many as the largest needs: [n, token]."""
        return numbers[:, None] // self._places(largest) % self._base + len(_SYMBOLS)


TASKS = {
    "addition": Addition(),
    "addition-random": Addition(holdout="random"),
    "addition-100": Addition(largest=99),
    "addition-100-random": Addition(largest=99, holdout="random"),
}
"""The named tasks: the paper's, and a hundredth of it."""


def _digit_sum(numbers: Ints) -> Ints:
    """The sum of the decimal digits of numbers below 10,000: [n]."""
    total: Ints = (numbers[:, None] // 10 ** np.arange(4) % 10).sum(1)
    return total


@functools.lru_cache(maxsize=8)
def _rows(task: Addition) -> dict[str, Ints]:
    """The pairs of each set, a and b as the number a * (largest + 1) + b."""
    every = np.arange((task.largest + 1) ** 2)
    a, b = np.divmod(every, task.largest + 1)
    low, high = task.square
    inside = (np.minimum(a, b) >= low) & (np.maximum(a, b) <= high)
    if task.holdout == "square":
        others, square, n_held_out = every[~inside], every[inside], task.held_out
    else:
        others, square, n_held_out = every, every[:0], int(inside.sum())
    order = random_bits(len(others), seed=0, stream=f"addition/{task.holdout}/held-out").argsort()
    return {"train": others[order[n_held_out:]], "id": others[order[:n_held_out]], "ood": square}
