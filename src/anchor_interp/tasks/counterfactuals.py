"""Pairs of examples that differ in one thing, and pairs whose states are exchanged.

Activation patching compares a *clean* and a *corrupted* sequence, which have their key and anchors
at the same positions and all tokens in common but the one thing that differs (contrastive pairs;
Heimersheim and Nanda 2024). Interchange runs a *base* example with a state of its *source*, and a
counterfactual answer says what this predicts.
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int64, UInt8

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import check_name, checked
from anchor_interp.tasks.anchor import AnchorTask, check_anchors
from anchor_interp.tasks.examples import Examples, as_examples
from anchor_interp.tasks.functions import Ints, Pair
from anchor_interp.tasks.hashing import below, nth_allowed, random_bits, random_choice
from anchor_interp.tasks.rules import Keys
from anchor_interp.tasks.sequences import Place, Sequences, assemble, draw, draw_noise

Perturbation = Literal["key", "first", "second", "order", "noise"]
"""The one thing that differs. The last two are negative controls: ``order`` keeps the answer where
the task's functions commute, ``noise`` on every task."""
_LOGGER = logging.getLogger(__name__)


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
        return _rows_of(
            clean=self.clean.tokens,
            corrupted=self.corrupted.tokens,
            position=self.clean.position,
            clean_target=self.clean.targets,
            corrupted_target=self.corrupted.targets,
        )

    @property
    def left_out(self) -> int:
        """How many drawn sequences have no twin and are left out."""
        return int(self.clean.provenance.get("left_out", 0))


@dataclass(frozen=True, eq=False, repr=False)
class InterchangePairs(Readable):
    """n base examples, each with a source and the answer that their interchange predicts."""

    base: Any
    """Examples, which are run; sequences (x; a1, a2) of an anchor task."""
    source: Any
    """Examples where an activation comes from, each from its own places; sequences (x'; a1', a2')
    of an anchor task."""
    counterfactual: Int64[np.ndarray, " n"]
    """The answer expected; of an anchor task g(g(x'; a1'); a2)."""
    anchor_moved: Int64[np.ndarray, " n"] | None = None
    """The answer to (x; a1', a2), as if only the first anchor were exchanged."""
    key_moved: Int64[np.ndarray, " n"] | None = None
    """The answer to (x'; a1, a2), as if only the key were exchanged."""
    left_out: int = 0
    """How many base examples have no source that an answer tells apart, and are left out."""
    label: str | None = None
    """The label of examples that is exchanged; None of anchors."""
    made: frozenset[Pair] | None = None
    """Of anchors, all pairs of an exchange: (a1, a2), (a1', a2'), (a1', a2) and (a1, a2')."""

    def __post_init__(self) -> None:
        base, source = _paired(self.base, self.source)
        expected = base._each(self.counterfactual, "counterfactual")
        for name, value in {"base": base, "source": source, "counterfactual": expected}.items():
            object.__setattr__(self, name, value)

    def _summary(self) -> str:
        about = f"{len(self.base)} base sequences, each with a source; {self.left_out} left out"
        return about if self.label is None else f"{about}; exchanged: {self.label}"

    def _rows(self) -> Iterator[dict[str, Any]]:
        return _rows_of(
            base=self.base.tokens,
            source=self.source.tokens,
            base_target=self.base.answers,
            source_target=self.source.answers,
            counterfactual=self.counterfactual,
        )


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
    stream = "interchange/source"
    drawn = draw(task, pairs, keys, n, seed=seed, stream="interchange")
    allowed, answers = _sources(task, drawn, pairs, composing, keys)
    lack = "have no source whose counterfactual answer differs from all others"
    base, rows, chosen = _matched(drawn, allowed.reshape(n, -1), lack, seed=seed, stream=stream)
    first, second, key = np.unravel_index(chosen, allowed.shape[1:])
    noise = draw_noise(task, n, keys=keys, seed=seed, stream=stream)[rows]
    n_anchors, position = len(task.tokens), base.position.astype(np.int64)
    pair = first * n_anchors + second
    source = assemble(task, noise, pair, task.keys[key], position)
    source = replace(source, provenance=base.provenance | {"stream": stream})
    expected, anchor_moved, key_moved = (
        np.broadcast_to(each, allowed.shape)[rows, first, second, key] for each in answers
    )
    own, other = np.divmod(base.pair.astype(np.int64), n_anchors)
    met = (base.pair, pair, first * n_anchors + other, own * n_anchors + second)
    made = frozenset(task.pairs[index] for index in np.unique(met))
    return InterchangePairs(
        base, source, expected, anchor_moved, key_moved, left_out=n - len(base), made=made
    )


def exchange_label(
    base: Examples,
    source: Examples,
    label: str,
    answer: Callable[[Mapping[str, np.ndarray]], np.ndarray],
) -> InterchangePairs:
    """The answers of examples of any task if one of their labels were their source's.

    Row i of ``source`` is the source of row i of ``base``. ``answer`` is what the model is thought
    to compute: it takes labels by name, each [n], and returns the answers, tokens [n]. Examples
    that should answer as the base tell nothing and are left out. So are examples that should answer
    as the source, which an exchange of everything gives too, unless no others are left: if the
    answer copies the label. ConfigError if none is left, or ``answer`` does not give the examples'
    own answers.
    """
    base, source = _paired(base, source)
    for examples in (base, source):
        check_name(label, examples.labels, "no label of the examples")
        computed = examples._each(answer(examples.labels), "answer")
        if (own := examples.answers) is None:
            raise ConfigError("the examples have no answers; give answers=answer(labels)")
        for row in np.flatnonzero(own != computed)[:1]:
            made = f"answer makes {computed[row]} of the labels of row {row}"
            raise ConfigError(f"{made}, answered by {own[row]}")
    moved = {**base.labels, label: source.labels[label]}
    expected = base._each(answer(moved), "answer")
    apart = expected != base.answers
    if not apart.any():
        raise ConfigError(f"exchanging {label!r} changes no answer; choose other sources")
    if (specific := apart & (expected != source.answers)).any():
        apart = specific
    left_out = int((~apart).sum())
    return InterchangePairs(
        base[apart], source[apart], expected[apart], left_out=left_out, label=label
    )


def swap_anchors(sequences: Sequences) -> UInt8[np.ndarray, "n length"]:
    """The same tokens with the two anchors of every sequence exchanged."""
    first, tokens = sequences.positions("first"), sequences.tokens.copy()
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
    n, pair = len(task.tokens), sequences.pair.astype(np.int64)
    own = np.divmod(pair, n)[place == "second"]
    other = (own[:, None] + np.arange(1, n)) % n  # [n, option]
    among = _is_in(task, task.seen if seen_only else task.pairs)
    allowed = among[_with_anchor(task, pair, place, other)]
    stuck = ~allowed.any(1)
    if stuck.any():
        raise ConfigError(
            f"no other {place} anchor makes a seen pair of {task.pairs[pair[stuck.argmax()]]}"
        )
    bits = random_bits(len(sequences), seed=seed, stream=f"other-{place}")
    chosen = nth_allowed(allowed, (bits % allowed.sum(1).astype(np.uint64)).astype(np.int64))
    new = np.array(task.tokens)[other[np.arange(len(other)), chosen]]
    return _with_token(sequences, place, new)


def _with_token(sequences: Sequences, place: Place, new: Ints) -> UInt8[np.ndarray, "n length"]:
    tokens = sequences.tokens.copy()
    tokens[np.arange(len(tokens)), sequences.positions(place)] = new
    return tokens


def _with_anchor(
    task: AnchorTask, pair: Ints, place: Literal["first", "second"], anchors: Ints
) -> Int64[np.ndarray, "n option"]:
    """The pairs with other anchors, given as indices [option] or [n, option], at one place."""
    n = len(task.tokens)
    first, second = (index[:, None] for index in np.divmod(pair, n))
    return anchors * n + second if place == "first" else first * n + anchors


def _is_in(task: AnchorTask, some: Sequence[Pair]) -> Bool[np.ndarray, " pair"]:
    """Which of the task's pairs are among some."""
    return np.array([pair in some for pair in task.pairs])


def _perturbed(
    task: AnchorTask, kind: Perturbation, keys: Keys, clean: Sequences, *, seed: int, stream: str
) -> tuple[Sequences, Int[np.ndarray, " kept"], Int[np.ndarray, " kept"]]:
    """The clean sequences that have twins, and the pair indices and keys of these."""
    pair, key, n_anchors = clean.pair.astype(np.int64), clean.key.astype(np.int64), len(task.tokens)
    if kind == "noise" and task.length == 3:
        raise ConfigError("a sequence of 3 tokens has no noise to draw again")
    if kind == "noise":
        return clean, pair, key
    if kind == "order":
        first, second = np.divmod(pair, n_anchors)
        if (first == second).any():
            raise ConfigError("a pair of two equal anchors has no other order; leave it out")
        return clean, second * n_anchors + first, key
    if kind == "key":
        pairs, others = pair[:, None], np.arange(len(task.keys))[None]
        allowed = task.on_side(keys, clean.position)
    else:
        pairs = _with_anchor(task, pair, kind, np.arange(n_anchors))
        others, allowed = (key - task.key_min)[:, None], _is_in(task, task.seen)[pairs]
    allowed = allowed & np.not_equal(task.target_table[pairs, others], clean.targets[:, None])
    lack = f"have no twin that differs in {kind} and in the target"
    clean, rows, chosen = _matched(clean, allowed, lack, seed=seed, stream=stream)
    if kind == "key":
        return clean, pair[rows], task.keys[chosen]
    return clean, pairs[rows, chosen], key[rows]


def _sources(
    task: AnchorTask, base: Sequences, pairs: Sequence[Pair], composing: Sequence[Pair], keys: Keys
) -> tuple[Bool[np.ndarray, "n first second key"], tuple[np.ndarray, ...]]:
    """Which anchors a1', a2' and keys x' a source of each base may have, and what each predicts.

    (a1', a2') is one of ``pairs``; (a1', a2) and (a1, a2') may be met; the counterfactual answer
    differs from the answers to base and source and from both moved ones. The answers, which
    broadcast, are g(g(x'; a1'); a2), or -1 where a2 was not trained on the value, then those to
    (x; a1', a2) and (x'; a1, a2).
    """
    n, n_anchors, targets = len(base), len(task.tokens), task.target_table
    pair, key = base.pair.astype(np.int64), base.key.astype(np.int64) - task.key_min
    first, second = np.divmod(pair, n_anchors)
    values = np.stack([task.function(token)(task.keys) for token in task.tokens])  # [anchor, key]
    continued = np.full((n_anchors, 256), -1)  # g(v; a2) of the values that a2 was trained on
    for a, b in composing:
        met_values = values[task.tokens.index(a)]
        continued[task.tokens.index(b), met_values] = task.function(b)(met_values)
    answer = continued[second[:, None, None], values][:, :, None]
    first_moved = targets[np.arange(n_anchors) * n_anchors + second[:, None], key[:, None]]
    moved = first_moved[:, :, None, None], targets[pair][:, None, None]
    drawable = _is_in(task, pairs).reshape(n_anchors, n_anchors)
    met = drawable | _is_in(task, composing).reshape(n_anchors, n_anchors)
    allowed: np.ndarray = (
        drawable[:, :, None]
        & met.T[second][:, :, None, None]
        & met[first][:, None, :, None]
        & task.on_side(keys, base.position)[:, None, None, :]
        & (answer >= 0)
    )
    own = base.targets.reshape(n, 1, 1, 1), targets.reshape(n_anchors, n_anchors, -1)
    for other in (*own, *moved):
        allowed &= answer != other
    return allowed, (answer, *moved)


def _matched(
    drawn: Sequences, allowed: Bool[np.ndarray, "n option"], lack: str, *, seed: int, stream: str
) -> tuple[Sequences, Int64[np.ndarray, " kept"], Int64[np.ndarray, " kept"]]:
    """The sequences with an option, their rows, and an option each; a warning counts the others.

    ConfigError if none has one.
    """
    rows = np.flatnonzero(allowed.any(1))
    if n := len(drawn) - len(rows):
        left_out = f"{n} of {len(drawn)} sequences {lack}"
        if not len(rows):
            raise ConfigError(f"{left_out}; choose other pairs or keys")
        _LOGGER.warning("left out: %s", left_out)
        drawn = replace(drawn[rows], provenance={**drawn.provenance, "left_out": n})
    return drawn, rows, random_choice(allowed[rows], seed=seed, stream=stream)


def _rows_of(**columns: Any) -> Iterator[dict[str, Any]]:
    """A row an example: tokens as text, numbers as they are, None of a column that there is not."""
    given = (itertools.repeat(None) if c is None else c.tolist() for c in columns.values())
    for row in zip(*given, strict=False):
        texts = (" ".join(map(str, v)) if isinstance(v, list) else v for v in row)
        yield dict(zip(columns, texts, strict=True))


def _paired(base: Examples, source: Examples) -> tuple[Examples, Examples]:
    """Both as examples; ConfigError if they are not as many."""
    pair = as_examples(base), as_examples(source)
    if len(pair[0]) != len(pair[1]):
        raise ConfigError(f"{len(pair[0])} base examples have {len(pair[1])} sources")
    return pair
