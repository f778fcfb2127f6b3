"""What sequences are made of, each part drawn by itself: key, pair, position and noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.tasks.anchor import AnchorTask, Pair
from anchor_interp.tasks.hashing import hash_counter, stream_key
from anchor_interp.tasks.sequences import Sequences, spell_over

Factor = Literal["key", "pair", "position", "noise"]


Floats = npt.NDArray[np.float64]


Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Factors:
    """What n sequences are made of, each part drawn by itself."""

    key: Ints
    """[n] the key."""
    pair: Ints
    """[n] the index of the ordered pair in ``task.pairs``."""
    position: Ints
    """[n] the key's 0-based position."""
    noise: Ints
    """[n, length] a token for every position, hidden where key and anchors stand."""

    @classmethod
    def draw(
        cls,
        task: AnchorTask,
        n: int,
        seed: int,
        stream: str,
        *,
        index: Ints | None = None,
        maskable: bool = False,
    ) -> "Factors":
        """Uniform and independent; pairs from ``index``, the second anchor not last if asked."""
        pairs = np.arange(len(task.pairs)) if index is None else index
        n_positions = task.length - 2 - maskable
        return cls(
            key=task.keys[uniform(n, seed, f"{stream}/key") % len(task.keys)],
            pair=pairs[uniform(n, seed, f"{stream}/pair") % len(pairs)],
            position=uniform(n, seed, f"{stream}/position") % n_positions,
            noise=noise_tokens(task, n, seed, stream),
        )

    def sequences(self, task: AnchorTask) -> Sequences:
        """The n sequences spelled out."""
        return spell_over(task, self.noise, self.pair, self.key, self.position)

    def exchanged(self, factor: Factor, other: "Factors") -> "Factors":
        """The same with one factor of another draw."""
        parts: dict[str, Ints] = {name: getattr(self, name) for name in get_args(Factor)}
        return Factors(**(parts | {factor: getattr(other, factor)}))

    def differs(self, factor: Factor, other: "Factors") -> npt.NDArray[np.bool_]:
        """Where the exchange of a factor changes it."""
        unequal: npt.NDArray[np.bool_] = getattr(self, factor) != getattr(other, factor)
        rows: npt.NDArray[np.bool_] = np.any(unequal.reshape(len(unequal), -1), axis=1)
        return rows


def pair_indices(task: AnchorTask, pairs: Sequence[Pair]) -> Ints:
    """Of pairs, their indices in ``task.pairs``: [pair].

    Raises:
        ConfigError: no pairs, or one that the task does not have.
    """
    found: tuple[Pair, ...] = checked(pairs, tuple[Pair, ...], "pairs")
    if not found:
        raise ConfigError("pairs is empty; expected at least one pair of the task's anchors")
    return np.array([task.pairs.index(task.known(pair)) for pair in found])


def uniform(n: int, seed: int, stream: str) -> Ints:
    """Uniform integers from 0 to 2^63 - 1: [n], a function of seed, stream and index."""
    # the prefix is part of what is drawn: with another one every number would be another
    drawn = hash_counter(
        stream_key(seed, f"representations/{stream}"), np.arange(n, dtype=np.uint64)
    )
    return (drawn >> np.uint64(1)).astype(np.int64)


def noise_tokens(task: AnchorTask, n: int, seed: int, stream: str) -> Ints:
    """Tokens [n, length] drawn uniformly from the task's keys."""
    bits = uniform(n * task.length, seed, f"{stream}/noise").reshape(n, task.length)
    return task.keys[bits % len(task.keys)]
