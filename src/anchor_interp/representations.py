"""What the vectors inside a model say: similar where the rule says so, or pair by pair.

Which tensor
------------
The papers name four tensors of layer l = 1, 2, ... (NeurIPS paper, equations 4 to 7). In their
post-LayerNorm model each is the residual stream *as its reader sees it*. That is what a
pre-LayerNorm model has as well, one LayerNorm further on, and so it is what is taken there:

=========  ===================  ===========================  ======================================
tensor     its reader           post-LayerNorm               pre-LayerNorm
=========  ===================  ===========================  ======================================
``X``      attention            ``hook_resid_pre``           ``ln1`` of ``hook_resid_pre``
``V``      the attending query  ``attn.hook_v``              ``attn.hook_v``
``OV``     the residual stream  ``attn.hook_v`` x ``W_O``    ``attn.hook_v`` x ``W_O``
``X_ao``   the MLP              ``hook_resid_mid``           ``ln2`` of ``hook_resid_mid``
``X_do``   the next attention   ``hook_resid_post``          next ``ln1`` (at the end ``ln_final``)
                                                             of ``hook_resid_post``
=========  ===================  ===========================  ======================================

``V`` has its heads side by side. ``OV`` is not in the papers: it is what a head would write for
this value, heads side by side again (each has its own attention, so that their sum stands for
nothing). Any basis inside a head gives the same ``OV``, while cosines of ``V`` depend on it:
W_V -> W_V R, W_O -> R^-1 W_O is the same model.

Contrasts
---------
Two values that the rule makes equal, g(x; a) = g(x'; a'), should have similar vectors (NeurIPS
paper, section 5.2; complexity-control paper, section V-B). A high cosine shows little by itself:
all vectors share a mean, and number embeddings alone make near keys similar. So

* vectors are *centred*: the mean over all keys is removed for each anchor (or pair) by itself, and
  with it all that depends on the anchor alone;
* pairs of equal value are compared with *near misses*, whose values differ by 1 or 2, of other
  anchors and *at the same |x - x'|*: the mean cosine of both kinds is taken at each |x - x'| that
  has both, weighted by the pairs of equal value there.

Pairs share items, and keys are smooth, so neither pairs nor keys may be shuffled. The test moves
whole anchors: the vectors of anchor a, all keys together, change places with those of a', and all
keys may be reversed. Both leave every |x - x'|, every dependence between pairs and all smoothness
as they were, and change only which values are equal. Four anchors have 4! x 2 = 48 such
relabellings, all of which are tried: no p is below 1/48, and the contrasts of several seeds, in
:mod:`anchor_interp.statistics`, say what one run cannot.

Noise, key position and the anchor that is not compared are the same for all items of a *context*;
cosines are means over contexts. :func:`sensitivity` measures how much these matter, which the
papers assume to be little.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from einops import einsum, rearrange
from jaxtyping import Float, Float64, Int64, Integer
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor

from anchor_interp.data import Place, Sequences, hash_counter, places, stream_key
from anchor_interp.errors import ConfigError
from anchor_interp.forward import last_logits
from anchor_interp.hooks import activations, layout, token_rows
from anchor_interp.masks import mask_key_token, mask_second_anchor
from anchor_interp.model import HookedTransformer
from anchor_interp.schema import checked, digest, shown
from anchor_interp.statistics import permutation_p
from anchor_interp.task import ROLES, AnchorTask, Keys, Pair

State = Literal["X", "V", "OV", "X_ao", "X_do"]
Factor = Literal["key", "pair", "position", "noise"]

PAPER_PROBE = (35, 63, 99, 4, 3, 38, 42, 36, 62)
"""The NeurIPS paper's sequence (section 5.1): key 99 at position 2, anchors 4 and 3."""
PAPER_KEYS = range(30, 41)
"""Keys of the heatmaps (NeurIPS paper, figure 4)."""
PAPER_PAIRS: tuple[Pair, ...] = ((3, 3), (2, 2), (1, 2), (1, 3))
"""Pairs of the heatmaps (NeurIPS paper, figure 4a, 4b)."""
PAPER_VALUES = range(51, 61)
"""Values g(x; a1) of the blocks (complexity-control paper, figure 4D)."""

NEAR = (1, 2)
"""A near miss differs by one of these in value."""

_MOST_GROUPS = 16
_RELABELLINGS = 999
_ALL_UP_TO = 10_000
_BATCH = 4096
_SCORED = 2_000

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Contrast:
    """Whether equal values have more similar vectors than near misses at the same |x - x'|."""

    equal: float
    """Mean centred cosine of pairs of equal value."""
    near: float
    """The same of near misses, at the same distribution of |x - x'|."""
    difference: float
    """``equal - near``: the number to compare over seeds; between -2 and 2."""
    effect: float | None
    """The difference in standard deviations of the cosines at one |x - x'| (Cohen's d); None where
    these do not scatter. Pairs share items: this is a size, not a basis for a test."""
    p_value: float
    """Share of relabellings with a difference as large (one-sided)."""
    n_permutations: int
    """Relabellings tried."""
    exact: bool
    """Whether these are all there are."""
    distances: tuple[int, ...]
    """The |x - x'| that have pairs of both kinds."""
    n_equal: int
    """Pairs of equal value there."""
    n_near: int
    """Near misses there."""


@dataclass(frozen=True, eq=False)
class Similarity:
    """Cosines between the vectors of some items, and the contrast over all keys."""

    state: str
    """The tensor compared, as in the module's table, or ``logits``."""
    layer: int | None
    """0-based layer; None for logits."""
    anchors: tuple[tuple[int, ...], ...]
    """Of every item, its anchor or pair of anchors."""
    keys: Int64[np.ndarray, " item"]
    """Its key."""
    values: Int64[np.ndarray, " item"]
    """The value that the rule gives it: items of one value are the papers' red boxes and blocks."""
    cosine: Float64[np.ndarray, "item item"]
    """Cosines as the papers show them; the mean over contexts."""
    centred: Float64[np.ndarray, "item item"]
    """The same of vectors whose mean over all keys is removed, anchor by anchor."""
    contrast: Contrast
    """Equal values against near misses."""


@dataclass(frozen=True, eq=False)
class Clusters:
    """Whether vectors lie together by ordered pair, by unordered pair or otherwise."""

    state: str
    """The tensor, as in the module's table, or ``logits``."""
    layer: int | None
    """0-based layer; None for logits."""
    pairs: tuple[Pair, ...]
    """The ordered pairs there are."""
    pair: Int64[np.ndarray, " n"]
    """Of every point, its ordered pair as an index in ``pairs``."""
    key: Int64[np.ndarray, " n"]
    """Its key."""
    n_ordered: int
    """Ordered pairs: 16, or 12 of unequal anchors, on the papers' tasks."""
    n_unordered: int
    """Unordered pairs: 10, or 6."""
    silhouette_ordered: float
    """Mean silhouette of the ordered pairs: 1 for tight clusters far apart, 0 where they overlap."""
    silhouette_unordered: float
    """The same of unordered pairs."""
    silhouette_order: float | None
    """Mean silhouette of (a, b) against (b, a) within their own points: near 0 if the order leaves
    no trace, towards 1 if it separates; None without such a pair."""
    silhouette_key: float | None
    """Mean silhouette of the keys; None where all keys are alike."""
    counts: tuple[int, ...]
    """Numbers of clusters tried."""
    silhouettes: tuple[float, ...]
    """Mean silhouette of Ward's clustering with each number."""
    n_clusters: int
    """The number with the largest; 1 where all points coincide."""
    agreement_ordered: float
    """Adjusted Rand index of that clustering with the ordered pairs: 1 if equal, 0 by chance."""
    agreement_unordered: float
    """The same with the unordered pairs."""
    embedding: Float64[np.ndarray, "n 2"] | None
    """t-SNE of the points, for a picture; None if not asked for. No score uses it."""


@dataclass(frozen=True)
class Influence:
    """How much one factor of a sequence matters to a state or the logits."""

    factor: str
    """Key, pair, position or noise."""
    alone: float | None
    """Share of the variance that the factor explains by itself (Sobol' first-order index)."""
    total: float | None
    """Share that it has a part in, interactions included (total-effect index); None for both where
    nothing varies."""
    change: float | None
    """Mean length of the change when this factor alone changes, over that when all do."""
    agreement: float | None
    """Share of predictions that stay when this factor alone changes; None for a hidden state."""


@dataclass(frozen=True)
class Sensitivity:
    """How much key, pair, position and noise matter."""

    state: str
    """The tensor, as in the module's table, or ``logits``."""
    layer: int | None
    """0-based layer; None for logits."""
    factors: tuple[Influence, ...]
    """One for each factor."""
    n: int
    """Sequences for each factor."""


def read_state(
    model: HookedTransformer,
    state: State,
    layer: int,
    tokens: Integer[np.ndarray, "batch pos"],
    positions: Integer[np.ndarray, " batch"],
) -> Float64[np.ndarray, "batch width"]:
    """One of the papers' tensors at one position of every sequence.

    Args:
        model: any HookedTransformer; hooks attached to it act.
        state: which tensor, in the sense of the module's table.
        layer: 0-based layer; the papers' layer 2 is 1.
        tokens: token indices.
        positions: of every sequence, the 0-based position read.

    Returns:
        Vectors of d_model (``V``: heads x d_head; ``OV``: heads x d_model) numbers.

    Raises:
        ConfigError: an unknown tensor or layer, or a layer that lacks the tensor.
    """
    n_layers = checked(model, HookedTransformer, "model").cfg.n_layers
    checked(state, State, "state")
    checked(layer, int, "layer")
    if not 0 <= layer < n_layers:
        raise ConfigError(
            f"layer is {shown(layer)}; expected 0 to {n_layers - 1} (the papers' layer 2 is 1)"
        )
    block: Any = model.blocks[layer]
    if state == "X_ao" and (model.cfg.attn_only or model.cfg.parallel_attn_mlp):
        raise ConfigError("X_ao is what the MLP reads after attention; this model has no such state")
    parts = []
    for start in range(0, len(tokens), _BATCH):
        rows = token_rows(model, tokens[start : start + _BATCH])
        at = torch.from_numpy(positions[start : start + _BATCH].astype(np.int64)).to(rows.device)
        name = f"blocks.{layer}.{_HOOKS[state]}"
        with torch.no_grad():
            found = activations(model, rows, [name])[name]
            found = found[torch.arange(len(rows), device=rows.device), at]  # [batch, ...]
            if state == "V":
                found = rearrange(found, "batch head d_head -> batch (head d_head)")
            elif state == "OV":
                written = "batch head d_head, head d_head d_model -> batch head d_model"
                found = einsum(found, block.attn.W_O, written).flatten(1)
            elif layout(model) == "pre":
                found = _reader_norm(model, state, layer)(found[:, None])[:, 0]
        parts.append(found.to("cpu", torch.float64).numpy())
    return np.concatenate(parts)


_HOOKS: dict[State, str] = {
    "X": "hook_resid_pre",
    "V": "attn.hook_v",
    "OV": "attn.hook_v",
    "X_ao": "hook_resid_mid",
    "X_do": "hook_resid_post",
}


def _reader_norm(model: HookedTransformer, state: State, layer: int) -> Any:
    """The LayerNorm through which a pre-LayerNorm stream is read."""
    blocks: list[Any] = list(model.blocks)
    if state == "X":
        return blocks[layer].ln1
    if state == "X_ao":
        return blocks[layer].ln2
    return blocks[layer + 1].ln1 if layer + 1 < len(blocks) else model.ln_final


def value_similarity(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    state: Literal["V", "OV"] = "V",
    layer: int = 1,
    keys: Sequence[int] | None = None,
    n_contexts: int = 8,
    seed: int = 0,
) -> Similarity:
    """Similarity at the first anchor's position of what layer 2 can move on (N, figure 4c).

    A model that works g(x; a1) out at the first anchor has parallel vectors there wherever
    g(x; a) = g(x'; a') (NeurIPS paper, section 5.2).

    Args:
        model: a model of the task.
        task: the task.
        state: ``V``, the papers' V^(2), or ``OV``, which does not depend on the basis in a head.
        layer: 0-based layer.
        keys: keys of the items shown; :data:`PAPER_KEYS` (or the middle eleven) if None. The
            contrast takes all keys.
        n_contexts: combinations of noise, key position and second anchor.
        seed: seed of the contexts.

    Raises:
        ConfigError: a layer, key or number out of range, a model too small for the task, or a
            task without near misses at the |x - x'| of equal values.
    """
    checked(state, Literal["V", "OV"], "state")
    contexts = _contexts(model, task, n_contexts, seed)
    groups = [(anchor,) for anchor in task.tokens]
    values = np.stack([task.function(anchor)(task.keys) for anchor in task.tokens])

    def read(sequences: Sequences) -> Floats:
        at = places(sequences, "first")
        return read_state(model, state, layer, sequences.tokens, at)

    vectors = _vectors(task, contexts, groups, read)
    items = [(g, k) for g in range(len(groups)) for k in _shown_keys(task, keys)]
    return _similarity(state, layer, task, groups, values, vectors, items, seed)


def answer_similarity(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    layer: int = 1,
    keys: Sequence[int] | None = None,
    pairs: Sequence[Pair] | None = None,
    n_contexts: int = 8,
    seed: int = 0,
) -> Similarity:
    """Similarity of X^ao(2) at the last position (N, figure 4a, 4b).

    A model that composes has parallel vectors wherever two pairs give the same answer; one that
    maps each pair by itself does not (NeurIPS paper, section 5.2). The contrast takes all keys and
    one order of every unordered pair that follows the rule (of more than 16, 16 evenly spaced).

    Args:
        model: a model of the task.
        task: the task.
        layer: 0-based layer.
        keys: keys of the items shown; :data:`PAPER_KEYS` (or the middle eleven) if None.
        pairs: pairs of the items shown, of those in the contrast; :data:`PAPER_PAIRS` (or the
            first four) if None.
        n_contexts: combinations of noise and key position.
        seed: seed of the contexts.

    Raises:
        ConfigError: as :func:`value_similarity`; or a pair that is not in the contrast.
    """
    contexts = _contexts(model, task, n_contexts, seed)
    groups = _ruled_pairs(task)
    values = np.stack([task.composed(pair, task.keys) for pair in groups])

    def read(sequences: Sequences) -> Floats:
        at = places(sequences, "last")
        return read_state(model, "X_ao", layer, sequences.tokens, at)

    vectors = _vectors(task, contexts, groups, read)
    if pairs is None:
        pairs = PAPER_PAIRS if set(PAPER_PAIRS) <= set(groups) else groups[:4]
    for pair in pairs:
        if task.known(pair) not in groups:
            raise ConfigError(f"the pair {pair} is not in the contrast; choose among {groups}")
    rows = [groups.index(pair) for pair in pairs]
    items = [(g, k) for g in rows for k in _shown_keys(task, keys)]
    return _similarity("X_ao", layer, task, groups, values, vectors, items, seed)


def block_similarity(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    values: Sequence[int] | None = None,
    n_contexts: int | None = None,
    seed: int = 0,
) -> Similarity:
    """Similarity of the logits while the second anchor is masked (C, figure 4B, 4D).

    For a model that works step by step what is left is g(x; a1), so that the (x, a1) of one value
    form a block of similar outputs (complexity-control paper, section V-B).

    Args:
        model: a model of the task.
        task: the task.
        values: the values whose items are shown, block by block; :data:`PAPER_VALUES` (or the
            middle ten that every anchor reaches) if None. The contrast takes all keys.
        n_contexts: combinations of noise, key position and second anchor to draw; if None the
            released code's one sequence, (35, 63, x, a1, 2, 38, 42, 36, 62), where the task has
            such sequences, else 8.
        seed: seed of the contexts.

    Raises:
        ConfigError: as :func:`value_similarity`.
    """
    groups = [(anchor,) for anchor in task.tokens]
    table = np.stack([task.function(anchor)(task.keys) for anchor in task.tokens])
    probe = _probe(task) if n_contexts is None else None
    n = 8 if n_contexts is None else n_contexts
    contexts = _contexts(model, task, n, seed, maskable=True) if probe is None else probe

    def read(sequences: Sequences) -> Floats:
        with mask_second_anchor(model, sequences):
            return _logits(model, sequences.tokens)

    vectors = _vectors(task, contexts, groups, read)
    reached = sorted(set.intersection(*(set(row.tolist()) for row in table)))
    if values is None:
        inside = set(PAPER_VALUES) <= set(reached)
        middle = max(0, len(reached) // 2 - 5)
        values = list(PAPER_VALUES) if inside else reached[middle : middle + 10]
    items = [(int(g), int(k)) for value in values for g, k in np.argwhere(table == value)]
    if not items:
        raise ConfigError(f"no key has g(x; a) in {shown(list(values))}; choose among {reached}")
    return _similarity("logits", None, task, groups, table, vectors, items, seed)


def contrast(
    vectors: Float64[np.ndarray, "context group key width"],
    values: Int64[np.ndarray, "group key"],
    keys: Int64[np.ndarray, " key"],
    *,
    seed: int = 0,
) -> Contrast:
    """Equal values against near misses at the same |x - x'|; see the module's text.

    Args:
        vectors: for every context, one vector for each anchor (or pair) and key.
        values: the value that the rule gives each.
        keys: the keys, ascending.
        seed: seed of the relabellings, where there are too many to try all.

    Raises:
        ConfigError: no |x - x'| has both equal values and near misses.
    """
    return _contrast(_cosines(_centred(vectors)), values, keys, seed)


def key_mask_clusters(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    pairs: Sequence[Pair] | None = None,
    n: int = 50,
    position: int = 1,
    tsne: bool = False,
    seed: int = 0,
) -> Clusters:
    """How the logits of anchor pairs cluster while the key is masked (C, figure 4A, 4C).

    A model that maps each ordered pair by itself has one cluster for each, a commutative one has
    (a, b) and (b, a) in one (complexity-control paper, section V-A).

    Args:
        model: a model of the task.
        task: the task.
        pairs: the ordered pairs; those of two unequal anchors if None.
        n: sequences of each pair, with test keys and noise of their own.
        position: 0-based position of the key.
        tsne: whether to compute the picture as well.
        seed: seed of the sequences and of t-SNE.

    Raises:
        ConfigError: fewer than two pairs, an n below 2, a position without test keys or whose
            second anchor is the last token, or a model too small for the task.
    """
    _check_fits(model, task)
    chosen = [pair for pair in task.pairs if pair[0] != pair[1]] if pairs is None else list(pairs)
    chosen = [task.known(pair) for pair in chosen]
    n = checked(n, int, "n", low=2, high=10_000)
    position = checked(position, int, "position", low=0, high=task.length - 4)
    if len(set(chosen)) < 2:
        raise ConfigError(f"pairs are {shown(chosen)}; expected at least two to tell apart")
    at, test = task.cells("test")
    test = test[at == position]
    if not len(test):
        raise ConfigError(f"position {position} has no test key; choose one of {sorted(set(at))}")
    total = len(chosen) * n
    noise, bits = _noise(task, total, seed, "key-mask"), _bits(total, seed, "key-mask/key")
    pair = np.repeat([task.pairs.index(pair) for pair in chosen], n)
    where = np.full(total, position)
    sequences = _assemble(task, noise, where, test[bits % len(test)], pair)
    with mask_key_token(model, sequences):
        points = _logits(model, sequences.tokens)
    return _clusters("logits", None, task, sequences, points, tsne, seed)


def pair_clusters(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    state: State = "X_ao",
    layer: int = 0,
    place: Place = "last",
    pairs: Sequence[Pair] | None = None,
    n: int = 2_000,
    tsne: bool = False,
    seed: int = 0,
) -> Clusters:
    """How a state clusters by anchor pair over sequences; X^ao(1) by default (N, figure 3b).

    A model that takes both anchors together in layer 1 has (a, b) and (b, a) in one cluster at the
    last position (NeurIPS paper, section 5.1). Sequences whose second anchor is the last token are
    left out: there the last position holds it anyway.

    Args:
        model: a model of the task.
        task: the task.
        state: which tensor, in the sense of the module's table.
        layer: 0-based layer.
        place: where it is read.
        pairs: the ordered pairs; all if None.
        n: sequences, 2 to 10,000 (the paper shows 10,000); scores use the first 2,000.
        tsne: whether to compute the picture as well; of 10,000 points in about a minute.
        seed: seed of the sequences and of t-SNE.

    Raises:
        ConfigError: fewer than two pairs, an n out of range, an unknown state or layer, or a model
            too small for the task.
    """
    _check_fits(model, task)
    chosen = [task.known(pair) for pair in (task.pairs if pairs is None else pairs)]
    n = checked(n, int, "n", low=2, high=10_000)
    if len(set(chosen)) < 2:
        raise ConfigError(f"pairs are {shown(chosen)}; expected at least two to tell apart")
    index = np.array([task.pairs.index(pair) for pair in chosen])
    factors = _Factors.draw(task, n, seed, "pair-clusters", index=index, maskable=True)
    sequences = factors.sequences(task)
    points = read_state(model, state, layer, sequences.tokens, places(sequences, place))
    return _clusters(state, layer, task, sequences, points, tsne, seed)


def sensitivity(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    state: State | None = None,
    layer: int = 1,
    place: Place = "last",
    n: int = 1_000,
    seed: int = 0,
) -> Sensitivity:
    """How much key, pair, key position and noise matter (the papers assume the last two do not).

    The four are drawn independently: all pairs, all keys, all positions, a noise token for every
    place that key and anchors leave free. One at a time is exchanged with all else fixed, so that
    moving the key moves its anchors with it and leaves each noise token in its place. Shares of the
    variance are Sobol' indices by Jansen's estimators (Saltelli et al. 2010, table 2), over all
    dimensions together. They scatter by a few hundredths at n = 1,000, and the shares of factors
    that interact add up to less than 1 alone and to more in total.

    A change of position can turn a training key into a test key: a model that has memorized answers
    differently there.

    Args:
        model: a model of the task.
        task: the task.
        state: the tensor, in the sense of the module's table; the logits if None.
        layer: 0-based layer of the state.
        place: where the state is read: in each sequence at its own position of that token.
        n: sequences for each factor.
        seed: seed of the sequences.

    Raises:
        ConfigError: an n below 2, an unknown state or layer, or a model too small for the task.
    """
    _check_fits(model, task)
    n = checked(n, int, "n", low=2, high=100_000)

    def read(factors: _Factors) -> Floats:
        sequences = factors.sequences(task)
        if state is None:
            return _logits(model, sequences.tokens)
        return read_state(model, state, layer, sequences.tokens, places(sequences, place))

    first = _Factors.draw(task, n, seed, "sensitivity/first")
    second = _Factors.draw(task, n, seed, "sensitivity/second")
    one, two = read(first), read(second)
    everything = np.concatenate([one, two])
    variance = float(((everything - everything.mean(0)) ** 2).sum(1).mean())
    unrelated = float(np.linalg.norm(one - two, axis=1).mean())
    varies = variance > 1e-9 * float((everything**2).sum(1).mean())
    found = []
    for factor in get_args(Factor):
        changed = first.exchanged(factor, second)
        moved = read(changed)
        differs = first.differs(factor, second)
        step = np.linalg.norm(moved - one, axis=1)[differs]
        stays = moved.argmax(1)[differs] == one.argmax(1)[differs]
        found.append(
            Influence(
                factor=factor,
                alone=1 - _half_square(moved - two) / variance if varies else None,
                total=_half_square(moved - one) / variance if varies else None,
                change=float(step.mean()) / unrelated if varies and len(step) else None,
                agreement=float(stays.mean()) if state is None and len(stays) else None,
            )
        )
    name, at = ("logits", None) if state is None else (state, layer)
    return Sensitivity(name, at, tuple(found), n)


@dataclass(frozen=True, eq=False)
class _Factors:
    """What n sequences are made of, each part drawn by itself."""

    key: Ints
    pair: Ints  # index in task.pairs
    position: Ints
    noise: Ints  # [n, length]: a token for every position, hidden where key and anchors stand

    @classmethod
    def draw(
        cls,
        task: AnchorTask,
        n: int,
        seed: int,
        stream: str,
        *,
        index: Ints | None = None,
        maskable: bool = False,
    ) -> "_Factors":
        """Uniform and independent; pairs from ``index``, the second anchor not last if asked."""
        pairs = np.arange(len(task.pairs)) if index is None else index
        n_positions = task.length - 2 - maskable
        return cls(
            key=task.keys[_bits(n, seed, f"{stream}/key") % len(task.keys)],
            pair=pairs[_bits(n, seed, f"{stream}/pair") % len(pairs)],
            position=_bits(n, seed, f"{stream}/position") % n_positions,
            noise=_noise(task, n, seed, stream),
        )

    def sequences(self, task: AnchorTask) -> Sequences:
        return _assemble(task, self.noise, self.position, self.key, self.pair)

    def exchanged(self, factor: Factor, other: "_Factors") -> "_Factors":
        """The same with one factor of another draw."""
        parts: dict[str, Ints] = {name: getattr(self, name) for name in get_args(Factor)}
        return _Factors(**(parts | {factor: getattr(other, factor)}))

    def differs(self, factor: Factor, other: "_Factors") -> npt.NDArray[np.bool_]:
        """Where the exchange of a factor changes it."""
        unequal = getattr(self, factor) != getattr(other, factor)
        return unequal if unequal.ndim == 1 else unequal.any(1)


def _assemble(task: AnchorTask, noise: Ints, position: Ints, key: Ints, pair: Ints) -> Sequences:
    """Sequences from noise at every position, over which key and anchors are written."""
    tokens, rows = noise.astype(np.uint8), np.arange(len(noise))
    anchors = np.array(task.pairs)
    tokens[rows, position] = key
    tokens[rows, position + 1] = anchors[pair, 0]
    tokens[rows, position + 2] = anchors[pair, 1]
    targets = np.stack([task.target(ordered, task.keys) for ordered in task.pairs])
    roles = np.array([ROLES.index(task.role(ordered)) for ordered in task.pairs])
    return Sequences(
        tokens=tokens,
        targets=targets[pair, key - task.key_min].astype(np.uint8),
        key=key.astype(np.uint8),
        position=position.astype(np.uint8),
        pair=pair.astype(np.uint8),
        role=roles[pair].astype(np.uint8),
        provenance={"task": digest(task), "n": len(tokens)},
    )


def _bits(n: int, seed: int, stream: str) -> Ints:
    """Uniform integers from 0 to 2^63 - 1, a function of seed, stream and index."""
    drawn = hash_counter(stream_key(seed, f"representations/{stream}"), np.arange(n, dtype=np.uint64))
    return (drawn >> np.uint64(1)).astype(np.int64)


def _noise(task: AnchorTask, n: int, seed: int, stream: str) -> Ints:
    bits = _bits(n * task.length, seed, f"{stream}/noise").reshape(n, task.length)
    return task.keys[bits % len(task.keys)]


def _contexts(
    model: HookedTransformer, task: AnchorTask, n: int, seed: int, *, maskable: bool = False
) -> _Factors:
    _check_fits(model, task)
    n = checked(n, int, "n_contexts", low=1, high=1_000)
    return _Factors.draw(task, n, seed, "contexts", maskable=maskable)


def _probe(task: AnchorTask) -> _Factors | None:
    """The released code's sequence (35, 63, x, a1, 2, 38, 42, 36, 62); None on other tasks."""
    key, noise = PAPER_PROBE[2], [token for i, token in enumerate(PAPER_PROBE) if i not in (3, 4)]
    if len(PAPER_PROBE) != task.length or (2, 2) not in task.pairs:
        return None
    if not set(noise) <= set(task.keys.tolist()):
        return None
    pair = np.array([task.pairs.index((2, 2))])
    return _Factors(np.array([key]), pair, np.array([2]), np.array([PAPER_PROBE]))


def _vectors(
    task: AnchorTask,
    contexts: _Factors,
    groups: Sequence[tuple[int, ...]],
    read: Callable[[Sequences], Floats],
) -> Floats:
    """[context, group, key, width]; a group of one anchor takes the context's second one."""
    n_keys, found = len(task.keys), []
    for c in range(len(contexts.key)):
        second = task.pairs[contexts.pair[c]][1]
        pairs = [task.pairs.index((*group, second)[:2]) for group in groups]
        total = len(groups) * n_keys
        sequences = _assemble(
            task,
            np.repeat(contexts.noise[c : c + 1], total, axis=0),
            np.repeat(contexts.position[c : c + 1], total),
            np.tile(task.keys, len(groups)),
            np.repeat(pairs, n_keys),
        )
        found.append(read(sequences).reshape(len(groups), n_keys, -1))
    return np.stack(found)


def _check_fits(model: HookedTransformer, task: AnchorTask) -> None:
    checked(model, HookedTransformer, "model")
    checked(task, AnchorTask, "task")
    if model.cfg.d_vocab < task.n_input_tokens or model.cfg.n_ctx < task.length:
        raise ConfigError(
            f"the model has {model.cfg.d_vocab} tokens and {model.cfg.n_ctx} positions; the task "
            f"needs {task.n_input_tokens} and {task.length}"
        )


def _shown_keys(task: AnchorTask, keys: Sequence[int] | None) -> list[int]:
    """Indices in ``task.keys``."""
    if keys is None:
        inside = task.key_min <= PAPER_KEYS[0] and PAPER_KEYS[-1] <= task.key_max
        middle = max(0, len(task.keys) // 2 - 5)
        keys = PAPER_KEYS if inside else task.keys[middle : middle + 11].tolist()
    for key in keys:
        checked(key, int, "keys", low=task.key_min, high=task.key_max)
    return [int(key) - task.key_min for key in keys]


def _ruled_pairs(task: AnchorTask) -> list[Pair]:
    """One order of every unordered pair that follows the rule; at most 16, evenly spaced."""
    chosen: list[Pair] = []
    for pair in task.pairs:
        if task.role(pair) == "inferential" and pair[::-1] not in chosen:
            chosen.append(pair)
    if len(chosen) < 2:
        raise ConfigError("the contrast needs two pairs that follow the rule; the task has fewer")
    step = np.linspace(0, len(chosen) - 1, min(len(chosen), _MOST_GROUPS)).round().astype(int)
    return [chosen[i] for i in step]


@torch.no_grad()
def _logits(model: HookedTransformer, tokens: npt.NDArray[np.uint8]) -> Floats:
    found = last_logits(model, token_rows(model, tokens))
    return found.to("cpu", torch.float64).numpy()


def _half_square(change: Floats) -> float:
    return float((change**2).sum(1).mean()) / 2


def _similarity(
    state: str,
    layer: int | None,
    task: AnchorTask,
    groups: Sequence[tuple[int, ...]],
    values: Ints,
    vectors: Floats,
    items: Sequence[tuple[int, int]],
    seed: int,
) -> Similarity:
    """The contrast over all vectors, and the cosines of the items (group, key index) shown."""
    group, key = np.array(items).T
    whole = _cosines(_centred(vectors))
    return Similarity(
        state=state,
        layer=layer,
        anchors=tuple(groups[g] for g in group),
        keys=task.keys[key],
        values=values[group, key],
        cosine=_cosines(vectors[:, group, key][:, None])[0, :, 0],
        centred=whole[group, key][:, group, key],
        contrast=_contrast(whole, values, task.keys, seed),
    )


def _centred(vectors: Floats) -> Floats:
    """Vectors without their group's mean over keys; what is left of rounding becomes zero."""
    centred = vectors - vectors.mean(2, keepdims=True)
    scale = np.linalg.norm(vectors, axis=-1, keepdims=True).max(initial=0)
    length = np.linalg.norm(centred, axis=-1, keepdims=True)
    return np.where(length > 1e-5 * scale, centred, 0)


def _cosines(vectors: Floats) -> Floats:
    """[context, group, key, width] -> [group, key, group, key], the mean over contexts."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit = np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)
    n_contexts, n_groups, n_keys, _ = vectors.shape
    flat = rearrange(unit, "context group key width -> (group key) (context width)")
    return (flat @ flat.T).reshape(n_groups, n_keys, n_groups, n_keys) / n_contexts


def _contrast(cosines: Floats, values: Ints, keys: Ints, seed: int) -> Contrast:
    matched = _Matched.find(values, keys)
    n_groups, n_keys = values.shape
    orders, exact = _relabellings(n_groups, seed)
    relabelled = [
        matched.difference(cosines, np.array(order), direction)
        for order in orders
        for direction in ((1, -1) if exact else (1 if order[-1] else -1,))
    ]
    equal, near, spread = matched.parts(cosines)
    observed = matched.difference(cosines, np.arange(n_groups), 1)
    return Contrast(
        equal=equal,
        near=near,
        difference=equal - near,
        effect=None,
        p_value=permutation_p(observed, np.array(relabelled), exact=exact),
        n_permutations=len(relabelled),
        exact=exact,
        distances=(),
        n_equal=0,
        n_near=0,
    )
