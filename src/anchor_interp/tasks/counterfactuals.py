"""Pairs of sequences that differ in one thing: what activation patching compares.

A *clean* and a *corrupted* sequence have their key and anchors at the same positions and all tokens
in common but the one thing that differs (contrastive pairs; Heimersheim and Nanda 2024).
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int64, UInt8

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked
from anchor_interp.tasks.anchor import AnchorTask, check_anchors
from anchor_interp.tasks.exchanges import InterchangePairs
from anchor_interp.tasks.functions import Ints, Keys, Pair
from anchor_interp.tasks.hashing import below, nth_allowed, random_bits, random_choice
from anchor_interp.tasks.sequences import Place, Sequences, assemble, draw, draw_noise, places

Perturbation = Literal["key", "first", "second", "order", "noise"]
"""The one thing that differs. The last two are negative controls: ``order`` keeps the answer where
the task's functions commute, ``noise`` on every task."""
_LOGGER = logging.getLogger(__name__)


def swap_anchors(sequences: Sequences) -> UInt8[np.ndarray, "n length"]:
    """The same tokens with the two anchors of every sequence exchanged."""
    first, tokens = places(sequences, "first"), sequences.tokens.copy()
    rows = np.arange(len(tokens))
    tokens[rows, first], tokens[rows, first + 1] = tokens[rows, first + 1], tokens[rows, first]
    return tokens


def replace_keys(
    task: AnchorTask, sequences: Sequences, *, seed: int
) -> UInt8[np.ndarray, "n length"]:
    """The same tokens with another key in every sequence, drawn uniformly."""
    n_keys = len(task.keys)
    bits = random_bits(len(sequences), seed=seed, stream="other-key")
    steps = 1 + below(bits, n_keys - 1)
    other = task.key_min + (sequences.key.astype(np.int64) - task.key_min + steps) % n_keys
    return _with_token(sequences, "key", other)


def replace_anchors(
    task: AnchorTask,
    sequences: Sequences,
    place: Literal["first", "second"],
    seed: int,
    seen_only: bool,
) -> UInt8[np.ndarray, "n length"]:
    """The same tokens with another first or second anchor in every sequence, drawn uniformly.

    ``seen_only`` allows only anchors that make a seen pair, and refuses a pair that has none.
    """
    n = len(task.tokens)
    first, second = (index[:, None] for index in np.divmod(sequences.pair.astype(np.int64), n))
    other = ((first if place == "first" else second) + np.arange(1, n)) % n  # [n, option]
    others = other * n + second if place == "first" else first * n + other
    allowed = _is_seen(task)[others] if seen_only else np.ones(others.shape, np.bool_)
    stuck = ~allowed.any(1)
    if stuck.any():
        pair = task.pairs[sequences.pair[stuck.argmax()]]
        raise ConfigError(f"no other {place} anchor makes a seen pair of {pair}")
    bits = random_bits(len(sequences), seed=seed, stream=f"other-{place}")
    chosen = nth_allowed(allowed, (bits % allowed.sum(1).astype(np.uint64)).astype(np.int64))
    new = np.array(task.tokens)[other[np.arange(len(other)), chosen]]
    return _with_token(sequences, place, new)


def _with_token(sequences: Sequences, place: Place, new: Ints) -> UInt8[np.ndarray, "n length"]:
    tokens = sequences.tokens.copy()
    tokens[np.arange(len(tokens)), places(sequences, place)] = new
    return tokens


def _is_seen(task: AnchorTask) -> np.ndarray:
    return np.array([pair in task.seen for pair in task.pairs])


class _Pairs(NamedTuple):
    clean: Sequences
    corrupted: Sequences


class ContrastPairs(Readable, _Pairs):
    """n clean sequences, which patching restores, each with its twin that has one thing changed.

    Attributes:
        clean: n sequences.
        corrupted: n sequences; row i is the twin of row i of ``clean``.
    """

    def _summary(self) -> str:
        kind = self.corrupted.provenance.get("corrupted", "one thing")
        same = int((self.clean.targets == self.corrupted.targets).sum())
        about = f"{len(self.clean)} pairs that differ in {kind}, {self.left_out} left out"
        return f"{about}; in {same} both targets are equal"

    def _rows(self) -> Iterator[dict[str, Any]]:
        for clean, corrupted in zip(self.clean, self.corrupted, strict=True):
            yield {
                "clean": " ".join(map(str, clean.tokens[0])),
                "corrupted": " ".join(map(str, corrupted.tokens[0])),
                "position": int(clean.position[0]),
                "clean_target": int(clean.targets[0]),
                "corrupted_target": int(corrupted.targets[0]),
            }

    @property
    def left_out(self) -> int:
        """How many drawn sequences have no twin and are left out."""
        return int(self.clean.provenance.get("left_out", 0))


def contrast_pairs(
    task: AnchorTask,
    kind: Perturbation,
    n: int,
    *,
    seed: int,
    keys: Keys = "all",
    pairs: Sequence[Pair] | None = None,
) -> ContrastPairs:
    """Clean sequences of some pairs (by default the seen ones) and their corrupted twins.

    A changed key comes from the same side of the split, and a changed anchor makes a seen pair;
    both change the target. ``order`` exchanges the anchors, ``noise`` draws all noise again. A
    drawn sequence whose target no such change alters is left out: :attr:`ContrastPairs.left_out`.
    ConfigError if none is left.
    """
    check_anchors(task, "examples go to ai.patch in pairs")
    checked(kind, Perturbation, "kind")
    checked(n, int, "n", low=1)
    if pairs is None:
        pairs = [pair for pair in task.seen if kind != "order" or pair[0] != pair[1]]
    stream = f"contrast/{kind}"
    clean = draw(task, pairs, keys, n, seed=seed, stream=stream)
    clean, pair, key = _perturbed(task, kind, keys, clean, seed=seed, stream=stream)
    around = clean.tokens
    if kind == "noise":
        around = draw_noise(task, len(clean), keys=keys, seed=seed, stream=f"{stream}/anew")
    corrupted = assemble(task, around, pair, key, clean.position.astype(np.int64))
    provenance = clean.provenance | {"corrupted": kind}
    return ContrastPairs(clean, replace(corrupted, provenance=provenance))


def _perturbed(
    task: AnchorTask, kind: Perturbation, keys: Keys, clean: Sequences, *, seed: int, stream: str
) -> tuple[Sequences, Int[np.ndarray, " kept"], Int[np.ndarray, " kept"]]:
    """The clean sequences that have twins, and the pair indices and keys of these."""
    pair, key = clean.pair.astype(np.int64), clean.key.astype(np.int64)
    n_anchors, targets = len(task.anchors), task.target_table
    first, second = np.divmod(pair, n_anchors)
    if kind == "noise" and task.length == 3:
        raise ConfigError("a sequence of 3 tokens has no noise to draw again")
    if kind == "noise":
        return clean, pair, key
    if kind == "order":
        if (first == second).any():
            raise ConfigError("a pair of two equal anchors has no other order; leave it out")
        return clean, second * n_anchors + first, key
    if kind == "key":
        pairs, others = pair[:, None], np.arange(len(task.keys))[None]
        allowed = task.on_side(keys, clean.position)
    else:
        anchors, others = np.arange(n_anchors), (key - task.key_min)[:, None]
        a, b = (anchors, second[:, None]) if kind == "first" else (first[:, None], anchors)
        pairs = a * n_anchors + b
        allowed = _is_seen(task)[pairs]
    allowed = allowed & np.not_equal(targets[pairs, others], clean.targets[:, None])
    clean, kept = _usable(clean, allowed, f"have no twin that differs in {kind} and in the target")
    chosen = random_choice(allowed[kept], seed=seed, stream=stream)
    if kind == "key":
        return clean, pair[kept], task.keys[chosen]
    return clean, pairs[kept, chosen], key[kept]


def _usable(
    drawn: Sequences, allowed: Bool[np.ndarray, "n option"], lack: str
) -> tuple[Sequences, Int64[np.ndarray, " kept"]]:
    """The sequences with an option, and their rows; the others are counted and a warning says so.

    ConfigError if none has one.
    """
    kept = np.flatnonzero(allowed.any(1))
    if len(kept) == len(drawn):
        return drawn, kept
    left_out = f"{len(drawn) - len(kept)} of {len(drawn)} sequences {lack}"
    if not len(kept):
        raise ConfigError(f"{left_out}; choose other pairs or keys")
    _LOGGER.warning("left out: %s", left_out)
    provenance = {**drawn.provenance, "left_out": len(drawn) - len(kept)}
    return replace(drawn[kept], provenance=provenance), kept


def interchange_pairs(
    task: AnchorTask, n: int, *, seed: int, keys: Keys = "all", pairs: Sequence[Pair] | None = None
) -> InterchangePairs:
    """Base and source sequences whose counterfactual answer differs from all other answers.

    Keys and noise come from one side of the split: search on ``train``, judge on ``test``. The
    pairs are by default those trained on the composition. An exchange at any place combines the
    anchors into these pairs or others trained on it: (a1', a2) and (a1, a2') are among them. A
    drawn base sequence without such a source is left out: :attr:`InterchangePairs.left_out`.
    ConfigError if a pair is overridden, or no sequence is left.
    """
    check_anchors(task, "ai.exchange_label pairs examples")
    checked(n, int, "n", low=1)
    composing = [pair for pair in task.seen if task.role(pair) == "inferential"]
    pairs = composing if pairs is None else checked(pairs, tuple[Pair, ...], "pairs")
    if overridden := [pair for pair in pairs if task.role(pair) == "overridden"]:
        text = f"the target of the pair {overridden[0]} is not the composition"
        raise ConfigError(f"{text}, so it has no intermediate value to exchange")
    base = draw(task, pairs, keys, n, seed=seed, stream="interchange")
    allowed = _allowed_sources(task, base, pairs, composing, keys)
    options = allowed.reshape(n, -1)
    lack = "have no source whose counterfactual answer differs from all others"
    base, rows = _usable(base, options, lack)
    stream = "interchange/source"
    chosen = random_choice(options[rows], seed=seed, stream=stream)
    first, second, key = np.unravel_index(chosen, allowed.shape[1:])
    noise = draw_noise(task, n, keys=keys, seed=seed, stream=stream)[rows]
    pair, position = first * len(task.tokens) + second, base.position.astype(np.int64)
    source = assemble(task, noise, pair, task.keys[key], position)
    answers = _answers(task, composing, base.pair, base.key, first, key)
    provenance = base.provenance | {"stream": stream}
    source = replace(source, provenance=provenance)
    left_out = int(base.provenance.get("left_out", 0))
    return InterchangePairs(base, source, *answers, left_out=left_out)


def _allowed_sources(
    task: AnchorTask, base: Sequences, pairs: Sequence[Pair], composing: Sequence[Pair], keys: Keys
) -> Bool[np.ndarray, "n first second key"]:
    """Which first anchors a1', second anchors a2' and keys x' a source of each base may have.

    (a1', a2') is one of ``pairs``; (a1', a2) and (a1, a2') may be met; the counterfactual answer
    exists and differs from the answers to base and source and from both moved ones.
    """
    n, size = len(base), (len(task.tokens), len(task.tokens))
    drawable = np.array([pair in pairs for pair in task.pairs]).reshape(size)
    met = drawable | np.array([pair in composing for pair in task.pairs]).reshape(size)
    first, second = np.divmod(base.pair.astype(np.int64), len(task.tokens))
    base_pair, base_key = (column.reshape(n, 1, 1, 1) for column in (base.pair, base.key))
    first_of, key = np.arange(len(task.tokens))[:, None, None], np.arange(len(task.keys))
    answer, *moved = _answers(task, composing, base_pair, base_key, first_of, key)
    allowed: np.ndarray = (
        drawable[:, :, None]
        & met.T[second][:, :, None, None]
        & met[first][:, None, :, None]
        & task.on_side(keys, base.position)[:, None, None, :]
        & (answer >= 0)
    )
    own = base.targets.reshape(n, 1, 1, 1), task.target_table.reshape(*size, -1)
    for other in (*own, *moved):
        allowed &= answer != other
    return allowed


def _answers(
    task: AnchorTask,
    composing: Sequence[Pair],
    base_pair: np.ndarray,
    base_key: np.ndarray,
    first: np.ndarray,
    key: np.ndarray,
) -> tuple[Ints, Ints, Ints]:
    """The answers g(g(x'; a1'); a2), (x; a1', a2) and (x'; a1, a2) to sources of bases.

    A source has a first anchor and a key, each given by its index; shapes broadcast. The first
    answer is -1 where a2 was not trained on the value.
    """
    pair, n_anchors = base_pair.astype(np.int64), len(task.tokens)
    second = pair % n_anchors
    values = np.stack([task.function(token)(task.keys) for token in task.tokens])  # [anchor, key]
    return (
        _continued(task, composing)[second, values[first, key]],
        task.target_table[first * n_anchors + second, base_key.astype(np.int64) - task.key_min],
        task.target_table[pair, key],
    )


def _continued(task: AnchorTask, composing: Sequence[Pair]) -> Int64[np.ndarray, "anchor value"]:
    """g(v; a2) for every second anchor a2 and every value v that it was trained on, else -1."""
    continued = np.full((len(task.anchors), 256), -1)
    for first, second in composing:
        values = task.function(first)(task.keys)
        continued[task.tokens.index(second), values] = task.function(second)(values)
    return continued
