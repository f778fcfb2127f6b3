"""Sequences of an anchor task.

:func:`sample` draws from one side of the split, :func:`draw` draws given ordered pairs, and
:func:`assemble` writes given pairs, keys, positions and noise. Every sequence is a function of
(seed, stream, index); see :mod:`anchor_interp.tasks.hashing`. 900,000 of them take 12 MB.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Int64, Integer, UInt8, UInt64

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, digest, shown
from anchor_interp.tasks.contract import MAX_EXAMPLES
from anchor_interp.tasks.examples import Dataset, Examples
from anchor_interp.tasks.functions import MAX_TOKEN, ROLES, Pair
from anchor_interp.tasks.hashing import below, hash_counter, stream_key
from anchor_interp.tasks.rules import AnchorRules, Keys, require_anchors

if TYPE_CHECKING:
    import torch

SplitName = Literal["train", "id", "ood"]
Place = Literal["key", "first", "second", "last"]
"""A position by its meaning: the key, the first and the second anchor, the end of the sequence."""
PositionRole = Literal[Place, "noise"]
_SPLITS: dict[SplitName, Keys] = {"train": "train", "id": "test", "ood": "all"}
GENERATOR = 1
"""Version of the generator: the sequences of one version never change."""
PROBE_TOKENS = (35, 63, 99, 4, 3, 38, 42, 36, 62)
PROBE_POSITION = 2
"""The position of the key, 99, in :data:`PROBE_TOKENS`."""
PROBE = Examples([PROBE_TOKENS], places={"key": 2, "first": 3, "second": 4})
"""The sequence of both papers' figures."""
_CHUNK = 1 << 15
_IN_A_ROW: tuple[Place, ...] = ("key", "first", "second")
_COLUMNS = ("tokens", "targets", "key", "position", "pair", "role")


def _view(make: Callable[["Sequences"], Any]) -> Any:
    """What other examples store; sequences make it of their bytes whenever it is asked for."""
    return property(make)


@dataclass(frozen=True, eq=False, repr=False)
class Sequences(Examples):
    """n sequences of a task with what they mean: the examples of an anchor task.

    All arrays have one byte an element: widen them (``astype(int)``) before you subtract. Every
    function that takes tokens takes them whole. A model that is called directly takes their
    :attr:`tensor`. An index gives some of them, an integer one.

    Raises:
        ConfigError: an array does not hold one value a sequence, or a value is not 0 to 255.
    """

    tokens: UInt8[np.ndarray, "n length"]
    """Input tokens."""
    targets: UInt8[np.ndarray, " n"]
    """Training target; for unseen pairs the composition."""
    key: UInt8[np.ndarray, " n"]
    """Key x."""
    position: UInt8[np.ndarray, " n"]
    """0-based position of the key; the anchors follow it."""
    pair: UInt8[np.ndarray, " n"]
    """Index of the ordered pair in ``task.pairs``."""
    role: UInt8[np.ndarray, " n"]
    """Index of the pair's role in :data:`anchor_interp.tasks.functions.ROLES`."""
    provenance: dict[str, str | int]
    """What draws the sequences again, and ``kept``, how many are here if some were chosen."""
    padding = attention_mask = each_wrong = None
    explained = (None, None)
    inside = _view(lambda s: np.broadcast_to(np.True_, s.tokens.shape))
    each_at = _view(lambda s: np.full((len(s), 1), s.tokens.shape[1] - 1))
    at = _view(lambda s: np.full(len(s), s.tokens.shape[1] - 1))
    each_answer = _view(lambda s: s.targets.astype(np.int64)[:, None])
    labels = _view(lambda s: MappingProxyType({n: getattr(s, n).astype(int) for n in _COLUMNS[2:]}))
    places = _view(
        lambda s: MappingProxyType({n: s.position.astype(int) + i for i, n in enumerate(_IN_A_ROW)})
    )

    def __post_init__(self) -> None:
        for name in _COLUMNS:
            values, axes = getattr(self, name), "n, length" if name == "tokens" else "n"
            integers = isinstance(values, np.ndarray) and values.dtype.kind in "iu"
            n_axes = 2 if name == "tokens" else 1
            inside = integers and 0 <= values.min(initial=0) <= values.max(initial=0) <= MAX_TOKEN
            if not inside or values.ndim != n_axes:
                expected = f"expected an array [{axes}] of integers from 0 to {MAX_TOKEN}"
                raise ConfigError(f"{name} is {shown(values)}; {expected}")
            checked(len(values), int, f"the length of {name}", low=len(self), high=len(self))
            object.__setattr__(self, name, values.astype(np.uint8, copy=False))

    def __getitem__(self, index: Any) -> "Sequences":
        """One sequence by its number, or some by a slice, numbers or a mask [n] of booleans."""
        rows = np.atleast_1d(np.arange(len(self))[index])
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return Sequences(**columns, provenance={**self.provenance, "kept": len(rows)})

    def __iter__(self) -> "Iterator[Sequences]":
        return (self[index] for index in range(len(self)))

    def where(self, *, pair: Pair | Sequence[Pair]) -> "Sequences":
        """The sequences of an ordered pair of anchors, such as ``(3, 4)``, or of several pairs.

        Columns choose by anything else: ``sequences[sequences.position < 6]``, and roles by index:
        ``sequences[sequences.role == ROLES.index("unseen")]``. Absent pairs are a ConfigError.
        """
        after = self.position.astype(np.int64)[:, None] + [1, 2]
        anchors = self.tokens[np.arange(len(self))[:, None], after]  # [n, 2]
        wanted = np.reshape(checked(pair, Pair | tuple[Pair, ...], "pair"), (-1, 2))
        there = (anchors[:, None] == wanted).all(2)  # [n, pair]
        drawn = str(self.provenance.get("pairs", "")).split()
        absent = [f"{a},{b}" for a, b in wanted[~there.any(0)] if f"{a},{b}" not in drawn]
        if drawn and absent:
            known = ", ".join(f"({each})" for each in drawn)
            hint = "train and id have seen pairs, ood unseen ones"
            raise ConfigError(f"pair ({absent[0]}) is not among the pairs drawn ({known}); {hint}")
        return self[there.any(1)]

    @property
    def tensor(self) -> "torch.Tensor":
        """The tokens as a model reads them: 64-bit integers [n, length] on the CPU."""
        import torch

        return torch.from_numpy(self.tokens.astype(np.int64))

    def _summary(self) -> str:
        pairs, roles = len(np.unique(self.pair)), ", ".join(ROLES[r] for r in np.unique(self.role))
        shape = f"{len(self)} of {self.tokens.shape[1]} tokens"
        return f"{shape}, {pairs} ordered pairs, targets {roles}"

    def _rows(self) -> Iterator[dict[str, Any]]:
        columns = self.tokens, self.key, self.position, self.role, self.targets
        for tokens, key, position, role, target in zip(*columns, strict=True):
            anchors = tuple(map(int, tokens[int(position) + 1 : int(position) + 3]))
            about = {"tokens": " ".join(map(str, tokens)), "key": int(key), "pair": anchors}
            yield {**about, "position": int(position), "role": ROLES[role], "target": int(target)}

    def examples(self) -> Examples:
        """The same as plain examples, whose targets are what an analysis explains."""
        checked(len(self), int, "the number of sequences", low=1)
        return self.until(self.tokens.shape[1])

    def dataset(self) -> Dataset:
        """The same sequences, each with its target at the end."""
        tokens = np.concatenate([self.tokens, self.targets[:, None]], axis=1)
        mask = np.zeros(tokens.shape, bool)
        mask[:, -1] = True
        return Dataset(tokens, mask, np.full(len(tokens), tokens.shape[1]))

    def as_dataset(self) -> list[dict[str, Int64[np.ndarray, " read"]]]:
        """The same sequences for Hugging Face's ``Trainer``, which takes any list.

        ``input_ids`` are the tokens with the target appended, so a model reads length + 1
        positions; ``labels`` are the target at the last one, -100 (not predicted) elsewhere. A
        causal model shifts them: it predicts the target at the sequence's end.
        """
        tokens = self.dataset().tokens.astype(np.int64)
        labels = np.full_like(tokens, -100)
        labels[:, -1] = tokens[:, -1]
        rows = zip(tokens, labels, strict=True)
        return [{"input_ids": row, "labels": label} for row, label in rows]


def sample(task: AnchorRules, split: SplitName, n: int, *, seed: int) -> Sequences:
    """Draw n sequences of one split, with uniform pairs and (position, key) combinations.

    The split is ``train`` (seen pairs, training keys), ``id`` (seen pairs, test keys) or ``ood``
    (unseen pairs, all keys). Equal arguments give equal sequences on every machine.
    """
    task = require_anchors(task, "sample")
    checked(split, SplitName, "split")
    pairs = task.unseen if split == "ood" else task.seen
    return draw(task, pairs, _SPLITS[split], n, seed=seed, stream=split)


def draw(
    task: AnchorRules, pairs: Sequence[Pair], keys: Keys, n: int, *, seed: int, stream: str
) -> Sequences:
    """Draw n sequences of the given ordered pairs, with keys on one side of the split.

    Pairs and (position, key) combinations are uniform; streams of one seed are independent.
    """
    n = checked(n, int, "n", low=0, high=MAX_EXAMPLES)
    hashing_key = stream_key(seed, stream)
    index = task.indices(pairs)
    position, key = task.cells(keys)
    chunks = []
    for start in range(0, max(n, 1), _CHUNK):
        counter = _counters(task, start, min(start + _CHUNK, n))
        bits = hash_counter(hashing_key, counter)
        pair, cell = below(bits, len(index)), below(bits, len(key), high=False)
        noise = _noise(task, keys, hashing_key, counter)
        chunks.append(assemble(task, noise, index[pair], key[cell], position[cell]))
    provenance: dict[str, str | int] = {
        **_task_of(task),
        "pairs": " ".join(f"{first},{second}" for first, second in pairs),
        "keys": keys,
        "n": n,
        "seed": int(seed),
        "stream": stream,
        "generator": GENERATOR,
    }
    columns = {name: np.concatenate([getattr(c, name) for c in chunks]) for name in _COLUMNS}
    return Sequences(**columns, provenance=provenance)


def draw_noise(
    task: AnchorRules, n: int, *, keys: Keys, seed: int, stream: str
) -> UInt8[np.ndarray, "n length"]:
    """The noise that :func:`draw` gives n sequences, with a token for every position."""
    return _noise(task, keys, stream_key(seed, stream), _counters(task, 0, n))


def assemble(
    task: AnchorRules,
    noise: Integer[np.ndarray, "n length"],
    pair: Int64[np.ndarray, " n"],
    key: Int64[np.ndarray, " n"],
    position: Int64[np.ndarray, " n"],
) -> Sequences:
    """Sequences of given noise, pairs (indices in ``task.pairs``), keys and 0-based positions.

    ``noise`` has a token for every position; keys and anchors replace it where they stand.
    """
    row, tokens = np.arange(len(pair)), noise.astype(np.uint8)
    first, second = np.array(task.pairs, np.uint8).T
    roles = np.array([ROLES.index(task.role(each)) for each in task.pairs], np.uint8)
    tokens[row, position] = key
    tokens[row, position + 1] = first[pair]
    tokens[row, position + 2] = second[pair]
    return Sequences(
        tokens=tokens,
        targets=task.target_table[pair, key - task.key_min].astype(np.uint8),
        key=key.astype(np.uint8),
        position=position.astype(np.uint8),
        pair=pair.astype(np.uint8),
        role=roles[pair],
        provenance={**_task_of(task), "n": len(pair)},
    )


def anchor_pairs(
    task: AnchorRules, tokens: Integer[np.ndarray, "n length"]
) -> Integer[np.ndarray, "n length-1"]:
    """The ordered pair of every two tokens in a row: its index in ``task.pairs``, or -1."""
    index = np.full(max(task.n_tokens, int(tokens.max(initial=0)) + 1), -1, np.int16)
    index[list(task.tokens)] = np.arange(len(task.tokens))
    first, second = index[tokens[:, :-1]], index[tokens[:, 1:]]
    return np.where((first < 0) | (second < 0), -1, first * len(task.tokens) + second)


def position_roles(length: int, position: int) -> tuple[PositionRole, ...]:
    """The role of every position of a sequence whose key is at a 0-based position.

    A second anchor at the last position is ``second``.
    """
    named: dict[int, PositionRole] = {length - 1: "last"}
    named |= {position: "key", position + 1: "first", position + 2: "second"}
    return tuple(named.get(i, "noise") for i in range(length))


def probe_position(task: AnchorRules) -> int:
    """Where the key stands in sequences of a task like :data:`PROBE_TOKENS`."""
    return min(PROBE_POSITION, task.length - 3)


def aligned_sequences(
    task: AnchorRules,
    position: int,
    n: int,
    *,
    seed: int,
    pairs: Sequence[Pair] | None = None,
    keys: Keys = "all",
) -> Sequences:
    """Draw n sequences that have the key at one 0-based position, of all pairs by default."""
    task = require_anchors(task, "aligned_sequences")
    if position not in task.cells(keys)[0]:
        raise ConfigError(f"no {keys} key stands at position {position}; choose another position")
    chosen = task.pairs if pairs is None else pairs
    return drawn_sequences(task, lambda s: s.position == position, n, seed, chosen, keys)


def drawn_sequences(
    task: AnchorRules,
    wanted: Callable[[Sequences], np.ndarray],
    n: int,
    seed: int,
    pairs: Sequence[Pair],
    keys: Keys,
) -> Sequences:
    """The first n drawn sequences for which ``wanted`` is true."""
    total = checked(n, int, "n", low=1)
    while True:
        total *= 2
        drawn = draw(task, pairs, keys, total, seed=seed, stream="flow")
        rows = np.flatnonzero(wanted(drawn))[:n]
        if len(rows) == n:
            return drawn[rows]


def _task_of(task: AnchorRules) -> dict[str, str | int]:
    """What the provenance of sequences says of their task."""
    return {"task": digest(task), "anchors": " ".join(map(str, task.tokens))}


def _counters(task: AnchorRules, start: int, stop: int) -> UInt64[np.ndarray, " n"]:
    """The first counter of each sequence: one for its pair and cell, then one per two positions."""
    per_sequence = np.uint64(1 + (task.length + 1) // 2)
    return np.arange(start, stop, dtype=np.uint64) * per_sequence


def _noise(
    task: AnchorRules, keys: Keys, hashing_key: np.uint64, counter: UInt64[np.ndarray, " n"]
) -> UInt8[np.ndarray, "n length"]:
    """A token for every position; the high and low half of a hash serve two positions."""
    banned = task.split == "every-position" and keys == "train"  # no test key in noise
    allowed = task.on_side("train" if banned else "all", np.arange(task.length))
    tokens, bits = np.empty((len(counter), task.length), np.uint8), counter
    for place in range(task.length):
        if place % 2 == 0:
            bits = hash_counter(hashing_key, counter + np.uint64(1 + place // 2))
        options = task.keys[allowed[place]].astype(np.uint8)
        tokens[:, place] = options[below(bits, len(options), high=place % 2 == 0)]
    return tokens
