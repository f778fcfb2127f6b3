"""Which function a model applies where: its answers by pair, key and position of the key.

A phase is one word for a whole run, and most runs are mixtures: at some keys and positions they
follow the rule, at others they answer an unseen pair as if it were a seen one. A *cell* is one pair
with one key at one position; its sequences differ in their noise tokens alone. A function *holds*
in a cell if it gives at least half of the model's answers there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.evaluation import predict
from anchor_interp.runs.run import Run
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.functions import Pair
from anchor_interp.tasks.sequences import assemble, draw_noise
from anchor_interp.tasks.task import anchored

RULE, EXCEPTION, SYMMETRIC, NONE = "rule", "exception", "symmetric", "none"
"""The composition, the function that replaces it, the target of the other order, and no function
that the task knows."""
_MOST_PER_CELL = 1_000


@dataclass(frozen=True)
class Explained:
    """Shares of the variance of "the answer follows the rule", over all sequences of a map.

    Each is corrected for its degrees of freedom (epsilon squared), so that chance gives 0. Keys and
    positions together are the cells; ``cell``, ``pair`` and ``noise`` add up to 1.
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
    def answers(self) -> dict[str, float]:
        """The share of all answers that each function gives."""
        means = self.shares.mean((0, 1, 2)).tolist()
        return dict(zip(self.functions, means, strict=True))

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
    def sentence(self) -> str:
        """The mixture in words: functions that hold in at least 5 % of the cells."""
        shares = {name: f"{share:.0%}" for name, share in self.cells.items() if share >= 0.05}
        parts = [f"follows the rule on {shares.pop(RULE, f'{self.cells[RULE]:.0%}')} of cells"]
        unsettled = shares.pop(NONE, None)
        ranked = sorted(shares, key=self.cells.__getitem__, reverse=True)
        borrowed = [f"{name} on {shares[name]}" for name in ranked]
        if borrowed:
            parts.append(f"answers {', '.join(borrowed)}")
        if unsettled:
            parts.append(f"no function holds on {unsettled}")
        return "; ".join(parts)

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


def answer_map(
    model: Run | HookedTransformer,
    task: AnchorTask | None = None,
    *,
    pairs: Sequence[Pair] | None = None,
    n: int = 10,
    seed: int = 0,
) -> AnswerMap:
    """The function that a model applies, for each pair, key and position of the key.

    Args:
        model: a run, or a model together with its task.
        pairs: ordered pairs; if None, the unseen ones. ``task.pairs`` shows as well what is not
            learned yet.
        n: sequences a cell, 2 to 1,000; they differ in their noise tokens.

    Raises:
        ConfigError: a task without anchors or without unseen pairs, or n out of range.
    """
    if isinstance(model, Run):
        task = anchored(model.config.task, "a map of answers")
        model = model.transformer
    checked(task, AnchorTask, "task")
    assert task is not None
    n = checked(n, int, "n", low=2, high=_MOST_PER_CELL)
    chosen = task.unseen if pairs is None else tuple((int(a), int(b)) for a, b in pairs)
    if not chosen:
        found = "the task has no unseen pair" if pairs is None else "pairs is empty"
        raise ConfigError(f"{found}; name pairs, such as task.pairs")
    names, values = _functions(task, chosen)
    n_keys, n_positions = len(task.keys), task.length - 2
    shape = len(chosen), n_keys, n_positions, n
    pair, key, position, _ = (axis.ravel() for axis in np.indices(shape))
    noise = draw_noise(task, len(pair), keys="all", seed=seed, stream="answers")
    index = task.indices(chosen)
    sequences = assemble(task, noise, index[pair], task.keys[key], position)
    answers = predict(model, sequences)
    given = values[pair, :, key] == answers[:, None]  # [n, function]
    first = np.where(given.any(1), given.argmax(1), len(names) - 1)
    counts = np.zeros((*shape[:3], len(names)))
    np.add.at(counts, (pair, key, position, first), 1)
    return AnswerMap(chosen, names, task.keys, n, counts / n)


def _functions(
    task: AnchorTask, pairs: Sequence[Pair]
) -> tuple[tuple[str, ...], Int64[np.ndarray, "pair function key"]]:
    """Names of the functions, and their values for each pair; -1 where a pair has no such one."""
    missing = np.full(len(task.keys), -1)
    seen: dict[str, np.ndarray] = {}
    for each in task.seen:
        target = task.target(each, task.keys)
        if not any(np.array_equal(target, other) for other in seen.values()):
            seen[f"{each}{_offset(target - task.keys)}"] = target
    table = []
    for pair in pairs:
        own = task.override(pair)
        symmetric = task.symmetric(pair, task.keys)
        rows = [
            task.composed(pair, task.keys),
            missing if own is None else own(task.keys),
            missing if symmetric is None else symmetric,
        ]
        table.append([*rows, *seen.values(), missing])
    values = np.array(table)
    used = [i for i in range(len(values[0])) if i in (0, len(values[0]) - 1) or _new(values, i)]
    names = (RULE, EXCEPTION, SYMMETRIC, *seen, NONE)
    return tuple(names[i] for i in used), values[:, used]


def _new(values: Int64[np.ndarray, "pair function key"], index: int) -> bool:
    """Whether a function differs from all before it, for some pair that has it."""
    return any(
        (rows[index] >= 0).any() and not (rows[:index] == rows[index]).all(1).any()
        for rows in values
    )


def _offset(differences: np.ndarray) -> str:
    """``: x - 7`` for a shift of the key, else nothing."""
    shift = int(differences[0])
    if (differences != shift).any():
        return ""
    return f": x {'-' if shift < 0 else '+'} {abs(shift)}"
