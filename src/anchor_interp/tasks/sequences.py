"""Sequences of an anchor task, drawn by counter-based hashing.

Every sequence is a pure function of (seed, stream, index): a 64-bit mixing function (the finalizer
of SplitMix64; Steele, Lea and Flood 2014) is applied to a counter, so that no generator has a
state, the first m of n sequences are those that a request for m gives, and batch size, thread
count and device change nothing.

A request for 900,000 sequences takes about a second and 12 MB: tokens, targets, keys, positions,
pairs and roles take one byte each.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Int64, Integer, UInt8, UInt64

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, digest
from anchor_interp.tasks.anchor import MAX_SEQUENCES, ROLES, AnchorTask, Keys, Pair
from anchor_interp.tasks.hashing import below, hash_counter, stream_key

Split = Literal["train", "id", "ood"]


SPLITS: dict[Split, Keys] = {"train": "train", "id": "test", "ood": "all"}
"""Keys of each split. ``train`` and ``id`` use the seen pairs, ``ood`` the unseen ones."""


Place = Literal["key", "first", "second", "last"]
"""A position by its meaning: the key, the first and the second anchor, the end of the sequence."""


GENERATOR = 1
"""Version of the generator: sequences of one version never change."""


_CHUNK = 1 << 15


@dataclass(frozen=True, eq=False)
class Sequences:
    """n sequences of a task with what they mean; all arrays have one byte an element."""

    tokens: UInt8[np.ndarray, "n length"]
    """Input tokens."""
    targets: UInt8[np.ndarray, " n"]
    """Training target; for unseen pairs the composition."""
    key: UInt8[np.ndarray, " n"]
    """Key x."""
    position: UInt8[np.ndarray, " n"]
    """Position of the key (0-based); the anchors follow it."""
    pair: UInt8[np.ndarray, " n"]
    """Index of the ordered pair in ``task.pairs``."""
    role: UInt8[np.ndarray, " n"]
    """Index of the pair's role in ``task.ROLES``."""
    provenance: dict[str, str | int]
    """Where the sequences come from: enough to draw them again."""

    def __len__(self) -> int:
        return len(self.tokens)


def sample(task: AnchorTask, split: Split, n: int, *, seed: int) -> Sequences:
    """Draw n sequences of one side of the split.

    Args:
        task: the task.
        split: ``train`` (seen pairs, training keys), ``id`` (seen pairs, test keys) or ``ood``
            (unseen pairs, training and test keys).
        n: number of sequences.
        seed: which sequences; equal arguments give equal sequences on every machine.

    Returns:
        Sequences with uniformly drawn pairs and (position, key) combinations.

    Raises:
        ConfigError: an unknown split, an n or seed out of range, or a task without unseen pairs.
    """
    checked(task, AnchorTask, "task")
    checked(split, Split, "split")
    pairs = task.unseen if split == "ood" else task.seen
    return draw(task, pairs, SPLITS[split], n, seed=seed, stream=split)


def draw(
    task: AnchorTask, pairs: Sequence[Pair], keys: Keys, n: int, *, seed: int, stream: str
) -> Sequences:
    """Draw n sequences of the given ordered pairs and side of the split.

    Args:
        task: the task.
        pairs: ordered pairs to draw from, uniformly.
        keys: (position, key) combinations to draw from: training, test or all.
        n: number of sequences.
        seed: seed of the draw.
        stream: name of an independent stream of the same seed.

    Raises:
        ConfigError: no pair, an unknown pair, or an n or seed out of range.
    """
    checked(task, AnchorTask, "task")
    pairs = [task.known(pair) for pair in checked(pairs, tuple[Pair, ...], "pairs")]
    checked(keys, Keys, "keys")
    n = checked(n, int, "n", low=0, high=MAX_SEQUENCES)
    checked(stream, str, "stream")
    hashing_key = stream_key(seed, stream)
    if not pairs:
        raise ConfigError("there is no pair to draw from: the task has no pair of this role")
    provenance: dict[str, str | int] = {
        "task": digest(task),
        "pairs": " ".join(f"{first},{second}" for first, second in pairs),
        "keys": keys,
        "n": n,
        "seed": int(seed),
        "stream": stream,
        "generator": GENERATOR,
    }
    out = _empty(task, n, provenance)
    tables = _Tables.build(task, pairs, keys)
    for start in range(0, n, _CHUNK):
        _fill(out, slice(start, min(start + _CHUNK, n)), task, tables, hashing_key)
    return out


def spell(
    task: AnchorTask,
    pair: Int64[np.ndarray, " n"],
    key: Int64[np.ndarray, " n"],
    position: Int64[np.ndarray, " n"],
    *,
    keys: Keys,
    seed: int,
    stream: str,
) -> Sequences:
    """Sequences of given pairs, keys and positions; only their noise is drawn.

    Args:
        task: the task.
        pair: indices in ``task.pairs``.
        key: keys.
        position: 0-based positions of the keys.
        keys: the side of the split whose rule the noise follows.
        seed: seed of the noise.
        stream: name of an independent stream of the same seed.

    Raises:
        ConfigError: a pair, key or position that the task does not have, or a seed out of range.
    """
    checked(task, AnchorTask, "task")
    checked(keys, Keys, "keys")
    hashing_key = stream_key(seed, stream)
    noise = np.empty((len(pair), task.length), np.uint8)
    counters = np.arange(len(pair), dtype=np.uint64) * np.uint64(1 + (task.length + 1) // 2)
    _fill_noise(noise, _noise_tokens(task, keys), hashing_key, counters)
    found = spell_over(task, noise, pair, key, position)
    drawn: dict[str, str | int] = {
        "keys": keys,
        "seed": int(seed),
        "stream": stream,
        "generator": GENERATOR,
    }
    return replace(found, provenance=found.provenance | drawn)


def spell_over(
    task: AnchorTask,
    noise: Integer[np.ndarray, "n length"],
    pair: Int64[np.ndarray, " n"],
    key: Int64[np.ndarray, " n"],
    position: Int64[np.ndarray, " n"],
) -> Sequences:
    """Sequences of given noise, pairs, keys and positions.

    Args:
        task: the task.
        noise: a token for every position, over which key and anchors are written.
        pair: indices in ``task.pairs``.
        key: keys.
        position: 0-based positions of the keys.

    Raises:
        ConfigError: a pair, key or position that the task does not have.
    """
    checked(task, AnchorTask, "task")
    for values, name, low, high in (
        (pair, "pair", 0, len(task.pairs) - 1),
        (key, "key", task.key_min, task.key_max),
        (position, "position", 0, task.length - 3),
    ):
        if len(values) and not low <= values.min() <= values.max() <= high:
            raise ConfigError(
                f"{name} runs from {values.min()} to {values.max()}; expected {low} to {high}"
            )
    out = _empty(task, len(pair), {"task": digest(task), "n": len(pair)})
    out.tokens[:] = noise
    tables = _Tables.build(task, task.pairs, "all")
    every = slice(0, len(pair))
    _fill_meaning(out, every, tables, pair, key.astype(np.uint8), position.astype(np.uint8))
    return out


def on_side(
    task: AnchorTask, keys: Keys, position: UInt8[np.ndarray, " n"]
) -> Bool[np.ndarray, "n key"]:
    """Whether each key of the task is on a side of the split at each position."""
    test: Bool[np.ndarray, "n key"] = task.is_test_key(
        task.keys, position.astype(np.int64)[:, None]
    )
    return {"train": ~test, "test": test, "all": np.ones_like(test)}[keys]


def places(sequences: Sequences, place: Place) -> Int64[np.ndarray, " n"]:
    """The 0-based position of a meaning in every sequence.

    With the key three places from the end the second anchor is also the last position.
    """
    checked(sequences, Sequences, "sequences")
    if checked(place, Place, "place") == "last":
        return np.full(len(sequences), sequences.tokens.shape[1] - 1, np.int64)
    return sequences.position.astype(np.int64) + {"key": 0, "first": 1, "second": 2}[place]


def _empty(task: AnchorTask, n: int, provenance: dict[str, str | int]) -> Sequences:
    return Sequences(
        tokens=np.empty((n, task.length), np.uint8),
        targets=np.empty(n, np.uint8),
        key=np.empty(n, np.uint8),
        position=np.empty(n, np.uint8),
        pair=np.empty(n, np.uint8),
        role=np.empty(n, np.uint8),
        provenance=provenance,
    )


@dataclass(frozen=True, eq=False)
class _Tables:
    """Look-up tables that turn hashed integers into sequences."""

    first: npt.NDArray[np.uint8]  # [pair]
    second: npt.NDArray[np.uint8]  # [pair]
    index: npt.NDArray[np.uint8]  # [pair] -> index in task.pairs
    role: npt.NDArray[np.uint8]  # [pair]
    target: npt.NDArray[np.uint8]  # [pair, key - key_min]
    position: npt.NDArray[np.uint8]  # [cell]
    key: npt.NDArray[np.uint8]  # [cell]
    noise: list[npt.NDArray[np.uint8]]  # per position: the tokens allowed there
    key_min: int

    @classmethod
    def build(cls, task: AnchorTask, pairs: Sequence[Pair], keys: Keys) -> "_Tables":
        position, key = task.cells(keys)
        return cls(
            first=np.array([first for first, _ in pairs], np.uint8),
            second=np.array([second for _, second in pairs], np.uint8),
            index=np.array([task.pairs.index(pair) for pair in pairs], np.uint8),
            role=np.array([ROLES.index(task.role(pair)) for pair in pairs], np.uint8),
            target=np.stack([task.target(pair, task.keys) for pair in pairs]).astype(np.uint8),
            position=position.astype(np.uint8),
            key=key.astype(np.uint8),
            noise=_noise_tokens(task, keys),
            key_min=task.key_min,
        )


def _noise_tokens(task: AnchorTask, keys: Keys) -> list[npt.NDArray[np.uint8]]:
    """The tokens that noise may be, for every position."""
    restrict = task.split == "every-position" and keys == "train"
    noise = []
    for place in range(task.length):
        banned = task.is_test_key(task.keys, np.full_like(task.keys, place))
        noise.append((task.keys[~banned] if restrict else task.keys).astype(np.uint8))
    return noise


def _fill(
    out: Sequences, rows: slice, task: AnchorTask, tables: _Tables, hashing_key: np.uint64
) -> None:
    """Fill some rows: draw 0 gives (pair, cell), each later one the noise of two positions."""
    n_draws = 1 + (task.length + 1) // 2
    index = np.arange(rows.start, rows.stop, dtype=np.uint64) * np.uint64(n_draws)
    bits = hash_counter(hashing_key, index)
    pair = below(bits, len(tables.first))
    cell = below(bits, len(tables.key), high=False)
    key, position, tokens = tables.key[cell], tables.position[cell], out.tokens[rows]
    _fill_noise(tokens, tables.noise, hashing_key, index)
    _fill_meaning(out, rows, tables, pair, key, position)


def _fill_noise(
    tokens: UInt8[np.ndarray, "n length"],
    noise: list[npt.NDArray[np.uint8]],
    hashing_key: np.uint64,
    index: UInt64[np.ndarray, " n"],
) -> None:
    """Draw a token for every position; ``index + 1`` is the first draw's counter."""
    bits = index
    for place, allowed in enumerate(noise):
        if place % 2 == 0:
            bits = hash_counter(hashing_key, index + np.uint64(1 + place // 2))
        tokens[:, place] = allowed[below(bits, len(allowed), high=place % 2 == 0)]


def _fill_meaning(
    out: Sequences,
    rows: slice,
    tables: _Tables,
    pair: npt.NDArray[np.int64],
    key: npt.NDArray[np.uint8],
    position: npt.NDArray[np.uint8],
) -> None:
    """Put keys and anchors into their places; ``pair`` indexes the tables."""
    row, first = np.arange(len(pair)), position.astype(np.int64) + 1
    tokens = out.tokens[rows]
    tokens[row, first - 1] = key
    tokens[row, first] = tables.first[pair]
    tokens[row, first + 1] = tables.second[pair]
    out.key[rows], out.position[rows] = key, position
    out.pair[rows], out.role[rows] = tables.index[pair], tables.role[pair]
    out.targets[rows] = tables.target[pair, key.astype(np.int64) - tables.key_min]


PositionRole = Literal["key", "first", "second", "last", "noise"]
"""What stands at a position."""


def position_roles(length: int, position: int | None) -> tuple[PositionRole, ...]:
    """The role of every position of a sequence.

    Args:
        length: tokens of the sequence.
        position: 0-based position of the key; None for a sequence without key and anchors.

    Returns:
        ``key``, ``first``, ``second`` and ``last`` once each, else ``noise``; where the second
        anchor stands at the last position, ``second``.

    Raises:
        ConfigError: a key without room for two anchors behind it.
    """
    checked(length, int, "length", low=1)
    checked(position, int | None, "position", low=0, high=length - 3)
    named: dict[int, PositionRole] = {length - 1: "last"}
    if position is not None:
        named |= {position: "key", position + 1: "first", position + 2: "second"}
    return tuple(named.get(i, "noise") for i in range(length))


def aligned_sequences(
    task: AnchorTask,
    position: int,
    n: int,
    *,
    seed: int,
    pairs: Sequence[Pair] | None = None,
    keys: Keys = "all",
) -> Sequences:
    """Draw n sequences that have the key at one position.

    Args:
        task: the task.
        position: 0-based position of the key, 0 to length - 3.
        n: number of sequences; the first m of n are those of a request for m.
        seed: which sequences.
        pairs: ordered pairs to draw from; all of the task's if None.
        keys: the side of the split.

    Raises:
        ConfigError: a position that no key of this side has, or as
            :func:`anchor_interp.tasks.sequences.draw`.
    """
    checked(task, AnchorTask, "task")
    checked(position, int, "position", low=0, high=task.length - 3)
    if position not in task.cells(keys)[0]:
        raise ConfigError(f"no {keys} key stands at position {position}; choose another position")
    chosen = task.pairs if pairs is None else pairs
    return drawn_sequences(task, lambda s: s.position == position, n, seed, chosen, keys)


def drawn_sequences(
    task: AnchorTask,
    wanted: Callable[[Sequences], np.ndarray],
    n: int,
    seed: int,
    pairs: Sequence[Pair],
    keys: Keys,
) -> Sequences:
    """The first n drawn sequences that are wanted."""
    checked(n, int, "n", low=1)
    total = 2 * n
    while True:
        drawn = draw(task, pairs, keys, total, seed=seed, stream="flow")
        found = np.flatnonzero(wanted(drawn))[:n]
        if len(found) == n:
            break
        total *= 2
    arrays = {
        field.name: getattr(drawn, field.name)[found]
        for field in dataclasses.fields(Sequences)
        if field.name != "provenance"
    }
    return Sequences(**arrays, provenance=drawn.provenance | {"kept": n})


PROBE = (35, 63, 99, 4, 3, 38, 42, 36, 62)
"""The sequence of both papers' figures; its key, 99, is at position 2."""


PROBE_POSITION = 2
"""The key's position in :data:`PROBE`."""
