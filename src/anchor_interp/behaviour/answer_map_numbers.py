"""A map of answers as numbers: which function holds in each cell.

:func:`anchor_interp.behaviour.answer_map.answer_map` measures it. This module imports no torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from anchor_interp._util.readable import Readable
from anchor_interp.tasks.functions import Pair

RULE, EXCEPTION, OTHER_ORDER, NONE = "rule", "exception", "other order", "none"
"""The composition, the function that replaces it, the target of the other order, and no function
that the task knows."""
_VERBS = {
    RULE: "follows the rule",
    EXCEPTION: "makes the exception",
    OTHER_ORDER: "answers as for the other order",
    NONE: "applies no function",
}


@dataclass(frozen=True)
class Explained:
    """Shares of the variance of "the answer follows the rule", over all sequences of a map.

    Each is corrected for noise (epsilon squared). Keys and positions are the cells; ``cell``,
    ``pair`` and ``noise`` add up to 1. Two pairs of unlike cells give ``cell`` about 0.4 by chance.
    """

    key: float
    position: float
    cell: float
    """Key x position, with both by themselves."""
    pair: float
    """What the pair adds to the cell."""
    noise: float
    """What is left: sequences of one pair and cell differ in their noise tokens alone."""


@dataclass(frozen=True, eq=False, repr=False)
class AnswerMap(Readable):
    """The functions that a model applies to some ordered pairs."""

    pairs: tuple[Pair, ...]
    functions: tuple[str, ...]
    """``rule``, ``exception`` (an overridden pair's own target), ``other order`` (its target), then
    the functions of seen pairs, such as ``(2, 4): x - 7`` (pairs with the same function are named
    by the first), and last ``none``. Where a seen pair has the rule of an unseen one, which no
    answer tells apart, the first is such as ``rule or (1, 4): x + 5``."""
    keys: Int64[np.ndarray, " key"]
    n: int
    """Sequences a cell."""
    shares: Float[np.ndarray, "pair key position function"]
    """Share of a cell's answers that each function gives. An answer that two functions give counts
    for the first of them."""

    @property
    def holding(self) -> Int64[np.ndarray, "pair key position"]:
        """The index of the function that holds in each cell; the index of ``none`` if none does."""
        best = self.shares.argmax(-1)
        return np.where(self.shares.max(-1) >= 0.5, best, len(self.functions) - 1)

    @property
    def cells(self) -> dict[str, float]:
        """The share of cells in which each function holds, in the order of :attr:`functions`."""
        counts = np.bincount(self.holding.ravel(), minlength=len(self.functions))
        return dict(zip(self.functions, (counts / counts.sum()).tolist(), strict=True))

    @property
    def explained(self) -> Explained | None:
        """What decides whether an answer follows the rule; None if all answers do, or none."""
        right = self.shares[..., 0]  # [pair key position]
        mean, n_cells = right.mean(), right[0].size
        total = right.size * self.n * mean * (1 - mean)
        if total == 0:
            return None
        noise = self.n * (right * (1 - right)).sum()  # of 0 and 1 within pair and cell
        per_freedom = noise / (right.size * (self.n - 1))

        def share(means: np.ndarray, free: int) -> float:
            """Of the variance between groups of equal size, for their degrees of freedom."""
            between = right.size / means.size * self.n * ((means - mean) ** 2).sum()
            return float((between - free * per_freedom) / total)

        cell = share(right.mean(0), n_cells - 1)
        everything = share(right, right.size - 1)
        return Explained(
            key=share(right.mean((0, 2)), right.shape[1] - 1),
            position=share(right.mean((0, 1)), right.shape[2] - 1),
            cell=cell,
            pair=everything - cell,
            noise=1 - everything,
        )

    @property
    def mixture(self) -> dict[str, float]:
        """Shares of the cells: rule, the other order's target, none, and borrowed.

        Borrowed is what is right for another pair, or an exception to the rule. Where no answer
        tells that from the rule, it is ``rule or borrowed``.
        """
        cells = self.cells
        own = {name: cells.get(name, 0.0) for name in (RULE, OTHER_ORDER, NONE)}
        if self.functions[0] != RULE:
            own["rule or borrowed"] = cells[self.functions[0]]
        return {**own, "borrowed": max(0.0, 1 - sum(own.values()))}

    @property
    def sentence(self) -> str:
        """The mixture in words: the rule, and what else holds in at least 5 % of the cells."""
        named, last = list[str](), ""
        for name, share in sorted(self.cells.items(), key=lambda cell: -cell[1]):
            if name == self.functions[0] or share >= 0.05:
                verb, what = _VERBS.get(name, "answers as for"), "" if name in _VERBS else name
                if name.startswith(f"{RULE} or "):
                    verb, what = f"{_VERBS[RULE]} or {verb}", name.removeprefix(f"{RULE} or ")
                words = [*([verb] if verb != last else []), what.partition(":")[0], "on"]
                percent = "over 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"
                named.append(f"{' '.join(filter(None, words))} {percent}")
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
