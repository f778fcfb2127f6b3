"""Tasks with finite sets of examples: what SCAN and addition share.

A set is an array of row numbers. The task says which example a row is.
"""

from collections.abc import Mapping

from anchor_interp.tasks.examples import Split
from anchor_interp.tasks.functions import Ints
from anchor_interp.tasks.hashing import shuffled_rows

Sets = Mapping[str, Ints]
"""The rows of ``train``, ``id`` and ``ood``; training rows may repeat."""


def finite_splits(sets: Sets) -> tuple[Split, ...]:
    """The splits ``train``, ``id`` and ``ood`` with their sizes, without the empty ones."""
    train, id_, ood = (len(sets[name]) for name in ("train", "id", "ood"))
    splits = (Split("train", "train", train), Split("id", "id", id_), Split("ood", "ood", ood))
    return tuple(split for split in splits if split.size)


def drawn_rows(sets: Sets, split: str, n: int, *, seed: int, stream: str) -> Ints:
    """N rows of a split: all of them in random order, then all in another order, and so on."""
    rows = sets[split]
    drawn: Ints = rows[shuffled_rows(n, len(rows), seed=seed, stream=f"{stream}/{split}")]
    return drawn
