"""The split of keys into training and test keys, at every position of a sequence."""

from typing import Literal

import numpy as np
from jaxtyping import Bool, Integer

from anchor_interp.tasks.functions import Ints

Keys = Literal["train", "test", "all"]
"""A side of the split."""
SplitRule = Literal["key", "every-position"]


def on_side(
    side: Keys, keys: Ints, positions: Integer[np.ndarray, " n"], length: int
) -> Bool[np.ndarray, "n key"]:
    """Whether each key x is on a side at each position p of sequences of a length.

    It is a test key where x mod length == p, and a training key elsewhere (both papers, data).
    """
    test = keys % length == positions[:, None]
    mask: np.ndarray = {"train": ~test, "test": test, "all": np.ones_like(test)}[side]
    return mask
