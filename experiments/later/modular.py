"""Does scheduled weight decay help on modular addition (arXiv 2605.04396)?

The paper says that it does not: a tuned constant decay does as well. Here a transformer adds two
numbers modulo 59; training has half of all pairs, and the others are asked afterwards. The constant
decay and the decay of a window are tuned apart, on runs that judge nothing.
"""

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import anchor_interp as ai
from anchor_interp.realistic.finite_sets import drawn_rows, finite_splits
from anchor_interp.runs.config import override
from anchor_interp.sweeps.spec import Grid, Sweep
from anchor_interp.tasks.functions import Ints
from anchor_interp.tasks.hashing import random_bits


@dataclass(frozen=True)
class ModularAddition(ai.Task):
    """Add two numbers modulo a third; tested on the half of the pairs that training leaves out."""

    kind: Literal["modular-addition"] = "modular-addition"
    """The name of this task in files."""
    modulus: int = 59
    """How many numbers there are."""

    length = 3
    answers_last = True

    @property
    def words(self) -> tuple[str, ...]:
        """Every number, and the sign of equality."""
        return (*map(str, range(self.modulus)), "=")

    @property
    def splits(self) -> tuple[ai.Split, ...]:
        """Half of the pairs each."""
        return finite_splits(_halves(self.modulus))

    def examples(self, split: str, n: int, *, seed: int) -> ai.Dataset:
        """N sums: the whole set in random order, then again in another order."""
        rows = drawn_rows(_halves(self.modulus), split, n, seed=seed, stream="modular")
        a, b = np.divmod(rows, self.modulus)
        tokens = np.stack([a, b, np.full_like(a, self.modulus), (a + b) % self.modulus], 1)
        mask = np.zeros(tokens.shape, bool)
        mask[:, -1] = True
        return ai.Dataset(tokens.astype(np.int32), mask, np.full(n, 4))


@cache
def _halves(modulus: int) -> dict[str, Ints]:
    """The pairs of each split, (a, b) as a * modulus + b."""
    order = random_bits(modulus**2, seed=0, stream="modular/split").argsort()
    half = len(order) // 2
    return {"train": order[:half], "id": order[half:], "ood": order[:0]}
