"""Pairs of sequences that differ in one thing: what activation patching compares.

A *clean* and a *corrupted* sequence have their key and anchors at the same positions and the same
tokens everywhere but in the one thing that tells them apart, so that whatever a model does
differently on them comes from it (contrastive pairs; Heimersheim and Nanda 2024).
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from anchor_interp.data import Sequences, choose, draw, on_side, places, spell
from anchor_interp.errors import ConfigError
from anchor_interp.schema import checked
from anchor_interp.task import AnchorTask, Keys, Pair

Contrast = Literal["key", "first", "second", "order", "noise"]
"""The one thing that differs: the key, an anchor, the anchors' order or the noise. The last two
are negative controls: ``order`` leaves the answer as it is where the task's functions commute,
``noise`` on every task."""


class ContrastPairs(NamedTuple):
    """n clean sequences, each with its corrupted twin; places agree."""

    clean: Sequences
    """What is restored."""
    corrupted: Sequences
    """The same with one thing changed."""


def contrast_pairs(
    task: AnchorTask,
    kind: Contrast,
    n: int,
    *,
    seed: int,
    keys: Keys = "all",
    pairs: Sequence[Pair] | None = None,
) -> ContrastPairs:
    """Clean sequences and their corrupted twins, which differ in one thing.

    A changed key comes from the same side of the split, a changed anchor makes a seen pair; the
    target always differs then. ``order`` exchanges the anchors, ``noise`` draws all noise anew.

    Args:
        task: the task.
        kind: what differs.
        n: number of sequences.
        seed: equal arguments give equal sequences; fewer are the first of more.
        keys: side of the split that keys and noise come from.
        pairs: ordered pairs of the clean sequences; the seen ones if None.

    Raises:
        ConfigError: an unknown kind or pair, an n or seed out of range, two equal anchors to
            exchange, no noise to draw, or sequences that have no such twin.
    """
    checked(task, AnchorTask, "task")
    checked(kind, Contrast, "kind")
    if pairs is None:
        pairs = [pair for pair in task.seen if kind != "order" or pair[0] != pair[1]]
    stream = f"contrast/{kind}"
    clean = draw(task, pairs, keys, n, seed=seed, stream=stream)
    pair, key, position = (
        column.astype(np.int64) for column in (clean.pair, clean.key, clean.position)
    )
    if kind == "noise":
        if task.length == 3:
            raise ConfigError("the task's sequences have 3 tokens and so no noise to draw anew")
        twins = spell(task, pair, key, position, keys=keys, seed=seed, stream=f"{stream}/anew")
        corrupted = dataclasses.replace(clean, tokens=twins.tokens)
    else:
        pair, key = _changed(task, kind, keys, clean, seed=seed, stream=stream)
        twins = spell(task, pair, key, position, keys=keys, seed=seed, stream=stream)
        tokens, row = clean.tokens.copy(), np.arange(n)
        for place in ("key", "first", "second"):
            at = places(clean, place)
            tokens[row, at] = twins.tokens[row, at]
        corrupted = dataclasses.replace(twins, tokens=tokens)
    provenance = clean.provenance | {"corrupted": kind}
    return ContrastPairs(clean, dataclasses.replace(corrupted, provenance=provenance))


def _changed(
    task: AnchorTask, kind: Contrast, keys: Keys, clean: Sequences, *, seed: int, stream: str
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Pair indices and keys of the corrupted twins."""
    pair, key = clean.pair.astype(np.int64), clean.key.astype(np.int64)
    n_anchors = len(task.anchors)
    first, second = np.divmod(pair, n_anchors)
    if kind == "order":
        if (first == second).any():
            raise ConfigError("a pair of two equal anchors has no other order; leave it out")
        return second * n_anchors + first, key
    targets = np.stack([task.target(each, task.keys) for each in task.pairs])  # [pair, key]
    if kind == "key":
        differs = np.not_equal(targets[pair], clean.targets[:, None])
        allowed = differs & on_side(task, keys, clean.position)
        return pair, task.keys[choose(_required(allowed, kind), seed=seed, stream=stream)]
    anchors = np.arange(n_anchors)
    options = (
        anchors * n_anchors + second[:, None]
        if kind == "first"
        else first[:, None] * n_anchors + anchors
    )
    seen = np.array([each in task.seen for each in task.pairs])
    differs = np.not_equal(targets[options, (key - task.key_min)[:, None]], clean.targets[:, None])
    chosen = choose(_required(seen[options] & differs, kind), seed=seed, stream=stream)
    return options[np.arange(len(pair)), chosen], key


def _required(allowed: Bool[np.ndarray, "n option"], kind: str) -> Bool[np.ndarray, "n option"]:
    missing = np.logical_not(allowed.any(1))
    if missing.any():
        raise ConfigError(
            f"{missing.sum()} of {len(missing)} sequences have no twin that differs in {kind} and "
            "in the target; choose other pairs or keys"
        )
    return allowed
