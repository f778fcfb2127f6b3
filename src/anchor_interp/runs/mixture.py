"""A map of answers as numbers: which function holds in each cell.

:func:`anchor_interp.runs.answers.answer_map` measures it. This module does not import torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from anchor_interp._util.readable import Readable
from anchor_interp.tasks.functions import Pair

RULE, EXCEPTION, SYMMETRIC, NONE = "rule", "exception", "symmetric", "none"
"""The composition, the function that replaces it, the target of the other order, and no function
that the task knows."""
_VERBS = {
    RULE: "follows the rule",
    EXCEPTION: "makes the exception",
    SYMMETRIC: "answers as for the other order",
    NONE: "applies none",
}


@dataclass(frozen=True, eq=False, repr=False)
class AnswerMap(Readable):
    """The functions that a model applies to some ordered pairs."""

    pairs: tuple[Pair, ...]
    functions: tuple[str, ...]
    """``rule``, ``exception`` (an overridden pair's own target), ``symmetric``, then the functions
    of seen pairs, such as ``(2, 4): x - 7`` (pairs with the same function are named by the first),
    and last ``none``."""
    keys: Int64[np.ndarray, " key"]
    n: int
    """Sequences a cell."""
    shares: Float[np.ndarray, "pair key position function"]
    """Share of a cell's answers that each function gives. An answer that two functions give counts
    for the first of them."""

    @property
    def holding(self) -> Int64[np.ndarray, "pair key position"]:
        """The index of the function that holds in each cell; that of ``none`` if none does."""
        best = self.shares.argmax(-1)
        return np.where(self.shares.max(-1) >= 0.5, best, len(self.functions) - 1)

    @property
    def cells(self) -> dict[str, float]:
        """The share of cells in which each function holds, in the order of :attr:`functions`."""
        counts = np.bincount(self.holding.ravel(), minlength=len(self.functions))
        return dict(zip(self.functions, (counts / counts.sum()).tolist(), strict=True))

    @property
    def mixture(self) -> dict[str, float]:
        """Shares of the cells: the rule, the symmetric target, a borrowed function, and none.

        Borrowed is what is right for another pair, or an exception to the rule.
        """
        cells = self.cells
        own = {name: cells.get(name, 0.0) for name in (RULE, SYMMETRIC, NONE)}
        return {**own, "borrowed": max(0.0, 1 - sum(own.values()))}

    @property
    def sentence(self) -> str:
        """The mixture in words: the rule, and what else holds in at least 5 % of the cells."""
        named, last = list[str](), ""
        for name, share in sorted(self.cells.items(), key=lambda cell: -cell[1]):
            if name == RULE or share >= 0.05:
                verb, what = _VERBS.get(name, "borrows"), "" if name in _VERBS else name
                words = [*([verb] if verb != last else []), what.partition(":")[0], "on"]
                named.append(f"{' '.join(filter(None, words))} {100 * share:.0f} %")
                last = verb
        return ", ".join([f"{named[0]} of cells", *named[1:]])

    def _summary(self) -> str:
        return f"{', '.join(map(str, self.pairs))}: {self.sentence}"

    def _rows(self) -> Iterator[dict[str, Any]]:
        holding = self.holding
        for i, k, position in np.ndindex(*holding.shape):
            row = {"pair": self.pairs[i], "key": int(self.keys[k]), "position": position}
            share = self.shares[i, k, position]
            yield row | {"function": self.functions[holding[i, k, position]],
                         "share": float(share[holding[i, k, position]]),
                         "rule": float(share[0])}  # fmt: skip
