"""The split of keys into training and test keys, at every position of a sequence."""

from typing import Literal

import numpy as np
from jaxtyping import Bool, Integer

from anchor_interp.tasks.functions import Ints

Keys = Literal["train", "test", "all"]
"""A side of the split."""
SplitRule = Literal["key", "every-position"]
"""Whether the split looks at the key alone or at every token; see ``AnchorTask.split``."""


def on_side(
    side: Keys, keys: Ints, positions: Integer[np.ndarray, " n"], length: int
) -> Bool[np.ndarray, "n key"]:
    """Whether each key x is on a side at each position p of sequences of a length.

    It is a test key where x mod length == p, and a training key elsewhere (both papers, data).
    """
    test = keys % length == positions[:, None]
    mask: np.ndarray = {"train": ~test, "test": test, "all": np.ones_like(test)}[side]
    return mask


def noise_side(rule: SplitRule, side: Keys) -> Keys:
    """The side that noise tokens are drawn from in sequences whose keys are on a side."""
    return "train" if rule == "every-position" and side == "train" else "all"
