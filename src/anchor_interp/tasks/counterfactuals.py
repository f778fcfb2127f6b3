"""Pairs of sequences that differ in one thing: what activation patching compares.

A *clean* and a *corrupted* sequence have their key and anchors at the same positions and the same
tokens everywhere but in the one thing that tells them apart, so that whatever a model does
differently on them comes from it (contrastive pairs; Heimersheim and Nanda 2024).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int64, UInt8

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.tasks.anchor import AnchorTask, Keys, Pair
from anchor_interp.tasks.hashing import below, choose, hash_counter, stream_key
from anchor_interp.tasks.sequences import Place, Sequences, draw, on_side, places, spell


def swap_anchors(sequences: Sequences) -> UInt8[np.ndarray, "n length"]:
    """The same tokens with the two anchors of every sequence exchanged."""
    checked(sequences, Sequences, "sequences")
    tokens = sequences.tokens.copy()
    rows, first = np.arange(len(tokens)), sequences.position.astype(np.int64) + 1
    tokens[rows, first] = sequences.tokens[rows, first + 1]
    tokens[rows, first + 1] = sequences.tokens[rows, first]
    return tokens


def replace_keys(
    task: AnchorTask, sequences: Sequences, *, seed: int
) -> UInt8[np.ndarray, "n length"]:
    """The same tokens with every key exchanged for another one, drawn uniformly."""
    checked(task, AnchorTask, "task")
    checked(sequences, Sequences, "sequences")
    n_keys = len(task.keys)
    steps = 1 + below(
        hash_counter(stream_key(seed, "other-key"), np.arange(len(sequences), dtype=np.uint64)),
        n_keys - 1,
    )
    other = task.key_min + (sequences.key.astype(np.int64) - task.key_min + steps) % n_keys
    tokens = sequences.tokens.copy()
    tokens[np.arange(len(tokens)), sequences.position] = other
    return tokens


Perturbation = Literal["key", "first", "second", "order", "noise"]
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
    kind: Perturbation,
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
    checked(kind, Perturbation, "kind")
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
    task: AnchorTask, kind: Perturbation, keys: Keys, clean: Sequences, *, seed: int, stream: str
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


@dataclass(frozen=True, eq=False)
class InterchangePairs:
    """n base sequences, each with a source and the answer that their interchange predicts."""

    base: Sequences
    """(x; a1, a2): the sequences that are run."""
    source: Sequences
    """(x'; a1', a2') at the same positions: the sequences that an activation comes from."""
    counterfactual: Int64[np.ndarray, " n"]
    """g(g(x'; a1'); a2)."""
    anchor_moved: Int64[np.ndarray, " n"]
    """The answer to (x; a1', a2): what follows if only the first anchor is exchanged."""
    key_moved: Int64[np.ndarray, " n"]
    """The answer to (x'; a1, a2): what follows if only the key is exchanged."""


def interchange_pairs(
    task: AnchorTask,
    n: int,
    *,
    seed: int,
    keys: Keys = "all",
    pairs: Sequence[Pair] | None = None,
) -> InterchangePairs:
    """Base and source sequences whose counterfactual answer differs from all others.

    Args:
        task: the task.
        n: number of sequences, at least 1.
        seed: equal arguments give equal sequences; fewer are the first of more.
        keys: side of the split that keys and noise come from: search on ``train``, judge on
            ``test``.
        pairs: ordered pairs of base and source; those trained on the composition if None.

    Raises:
        ConfigError: a pair whose target is no composition, an n or seed out of range, or base
            sequences without such a source.
    """
    checked(task, AnchorTask, "task")
    checked(n, int, "n", low=1)
    composing = [pair for pair in task.seen if task.role(pair) == "inferential"]
    given = composing if pairs is None else checked(pairs, tuple[Pair, ...], "pairs")
    pairs = [task.known(pair) for pair in given]
    for pair in pairs:
        if task.role(pair) == "overridden":
            raise ConfigError(
                f"the target of the pair {pair} is not the composition, so it has no intermediate "
                "value to exchange; leave it out"
            )
    base = draw(task, pairs, keys, n, seed=seed, stream="interchange")
    targets = np.stack([task.target(pair, task.keys) for pair in task.pairs])  # [pair, key]
    values = np.stack([task.function(token)(task.keys) for token in task.tokens])  # [anchor, key]
    counterfactuals = _continued(task, composing)
    settled = np.array([_is_settled(task, pair) for pair in task.pairs])

    n_anchors, n_keys = len(task.anchors), len(task.keys)
    option_pair, option_key = np.divmod(np.arange(len(task.pairs) * n_keys), n_keys)
    option_first = option_pair // n_anchors
    option_value = values[option_first, option_key]
    drawable = np.array([pair in pairs for pair in task.pairs])[option_pair]

    second = base.pair.astype(np.int64) % n_anchors
    key = base.key.astype(np.int64) - task.key_min
    predicted = counterfactuals[second][:, option_value]  # [n, option]; -1 where not trained
    combined = np.arange(n_anchors) * n_anchors + second[:, None]  # [n, a1']: pairs (a1', a2)
    anchor_moved = targets[combined, key[:, None]]
    anchor_moved = anchor_moved[:, option_first]  # [n, option], like the next
    key_moved = targets[base.pair][:, option_key]
    allowed = (
        drawable
        & settled[combined][:, option_first]
        & (predicted >= 0)
        & (predicted != base.targets[:, None])
        & (predicted != targets[option_pair, option_key])
        & (predicted != anchor_moved)
        & (predicted != key_moved)
        & on_side(task, keys, base.position)[:, option_key]
    )
    if not allowed.any(1).all():
        raise ConfigError(
            f"{(~allowed.any(1)).sum()} of {n} base sequences have no source whose counterfactual "
            "answer differs from all others; choose other pairs or keys"
        )
    chosen = choose(allowed, seed=seed, stream="interchange/source")
    source = spell(
        task,
        option_pair[chosen],
        task.keys[option_key[chosen]],
        base.position.astype(np.int64),
        keys=keys,
        seed=seed,
        stream="interchange/source",
    )
    rows = np.arange(n)
    return InterchangePairs(
        base=base,
        source=source,
        counterfactual=predicted[rows, chosen],
        anchor_moved=anchor_moved[rows, chosen],
        key_moved=key_moved[rows, chosen],
    )


def _is_settled(task: AnchorTask, pair: Pair) -> bool:
    """Whether the composition is the one answer that the training data suggest."""
    return task.role(pair) != "overridden" and task.symmetric(pair, task.keys) is None


def _continued(task: AnchorTask, composing: Sequence[Pair]) -> Int64[np.ndarray, "anchor value"]:
    """g(v; a2) for every second anchor and the values that it was trained on, else -1."""
    continued = np.full((len(task.anchors), 256), -1)
    for first, second in composing:
        values = task.function(first)(task.keys)
        continued[task.tokens.index(second), values] = task.function(second)(values)
    return continued


def replace_anchors(
    task: AnchorTask, sequences: Sequences, place: Place, seed: int, seen_only: bool
) -> np.ndarray:
    """The same tokens with one anchor of every sequence exchanged for another one."""
    n, allowed = len(task.tokens), task.seen if seen_only else task.pairs

    def others(pair: Pair) -> list[int]:
        now = task.tokens.index(pair[place == "second"])
        after = [task.tokens[(now + step) % n] for step in range(1, n)]
        new = {token: (token, pair[1]) if place == "first" else (pair[0], token) for token in after}
        found = [token for token in after if new[token] in allowed]
        if not found:
            raise ConfigError(
                f"no other {place} anchor makes a seen pair of {pair}; leave seen_only out"
            )
        return found

    options = {index: others(task.pairs[index]) for index in np.unique(sequences.pair)}
    bits = hash_counter(
        stream_key(seed, f"other-{place}"), np.arange(len(sequences), dtype=np.uint64)
    )
    tokens = sequences.tokens.copy()
    tokens[np.arange(len(sequences)), places(sequences, place)] = [
        options[pair][int(drawn) % len(options[pair])]
        for pair, drawn in zip(sequences.pair, bits, strict=True)
    ]
    return tokens
