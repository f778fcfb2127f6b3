"""The factors of a sequence: key, pair, position and noise, each drawn independently."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from anchor_interp._util.errors import ConfigError
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.functions import Ints
from anchor_interp.tasks.hashing import random_integers
from anchor_interp.tasks.sequences import Sequences, assemble

Factor = Literal["key", "pair", "position", "noise"]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Factors:
    """Keys, pair indices and key positions of n sequences, and their noise [n, length]."""

    key: Ints
    pair: Ints
    position: Ints
    noise: Ints

    @classmethod
    def draw(
        cls,
        task: AnchorTask,
        n: int,
        seed: int,
        stream: str,
        *,
        index: Sequence[int] | Ints | None = None,
        keys: Ints | None = None,
        maskable: bool = False,
    ) -> "Factors":
        """Draw n sequences uniformly, from all or given pairs (an index of each) and keys.

        ``maskable`` leaves out the position whose second anchor is the last token; ConfigError if
        the task has no other.
        """
        if maskable and task.length < 4:
            raise ConfigError(
                "sequences of 3 tokens end with the second anchor: no mask can hide it"
            )

        def drawn(options: Sequence[int] | Ints, part: str, count: int = n) -> Ints:
            # the prefix decides what is drawn: another name would change every number
            name = f"representations/{stream}/{part}"
            picked = random_integers(count, len(options), seed=seed, stream=name)
            values: Ints = np.asarray(options, np.int64)[picked]
            return values

        return cls(
            key=drawn(task.keys if keys is None else keys, "key"),
            pair=drawn(range(len(task.pairs)) if index is None else index, "pair"),
            position=drawn(range(task.length - 2 - maskable), "position"),
            noise=drawn(task.keys, "noise", n * task.length).reshape(n, task.length),
        )

    def sequences(self, task: AnchorTask) -> Sequences:
        """The sequences with these factors."""
        return assemble(task, self.noise, self.pair, self.key, self.position)
