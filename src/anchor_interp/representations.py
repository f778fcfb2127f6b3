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
* items of equal value are compared with *near misses*, whose values differ by 1 or 2, of other
  anchors, *at the same |x - x'|* and, where items have two anchors, with *the same anchors in
  common*: (1, 2) and (1, 3) are alike by their first anchor already, so that only two pairs with
  the first anchor in common are a comparison for them. The mean cosine of both kinds is taken in
  each such *stratum* that has both, weighted by the comparisons of equal value there. Vectors that
  depend on each anchor and on the key by themselves, u(a1, x) + w(a2, x), then have no contrast on
  average, however smooth they are.

Comparisons share items, and keys are smooth, so neither may be shuffled. The test renames whole
anchors, everywhere at once: the vectors of a, all keys together, change places with those of a',
those of (a, b) with those of (a', b'), and all keys may be reversed. This leaves every |x - x'|,
every dependence between items and all smoothness as they were, and changes only which values are
equal. Four anchors have 4! x 2 = 48 such relabellings, all of which are tried. Of their pairs only
those that follow the rule are used, and a relabelling must map these onto themselves: where (3, 4)
and (4, 3) do not, 1 may change places with 2 and 3 with 4, and 8 relabellings are left. No p is
below 1/48 for anchors, or 1/8 for such pairs, which is no evidence in one run: the contrasts of
several seeds, in :mod:`anchor_interp.statistics`, say what one run cannot.

Noise, key position and the anchor that is not compared are the same for all items of a *context*;
cosines are means over contexts. :func:`sensitivity` measures how much these matter, which the
papers assume to be little.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from einops import einsum, rearrange
from jaxtyping import Float64, Int64, Integer
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform
from sklearn.manifold import TSNE
from sklearn.metrics import adjusted_rand_score, silhouette_score
from torch import Tensor

from anchor_interp.data import Place, Sequences, hash_counter, places, spell_over, stream_key
from anchor_interp.errors import ConfigError
from anchor_interp.flow import PROBE, PROBE_POSITION
from anchor_interp.forward import last_logits
from anchor_interp.hooks import activations, layout, token_rows
from anchor_interp.masks import mask_key_token, mask_second_anchor
from anchor_interp.model import HookedTransformer, check_fits
from anchor_interp.schema import checked, shown
from anchor_interp.statistics import permutation_p
from anchor_interp.task import AnchorTask, Pair

State = Literal["X", "V", "OV", "X_ao", "X_do"]
Factor = Literal["key", "pair", "position", "noise"]

PAPER_KEYS = range(30, 41)
"""Keys of the heatmaps (NeurIPS paper, figure 4)."""
PAPER_PAIRS: tuple[Pair, ...] = ((3, 3), (2, 2), (1, 2), (1, 3))
"""Pairs of the heatmaps (NeurIPS paper, figure 4a, 4b)."""
PAPER_VALUES = range(51, 61)
"""Values g(x; a1) of the blocks (complexity-control paper, figure 4D)."""

NEAR = (1, 2)
"""A near miss differs by one of these in value."""

_MOST_ANCHORS = 4
_RELABELLINGS = 999
_ALL_UP_TO = 10_000
_SCORED = 2_000
_FEWEST_MAPPED = 5

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Contrast:
    """Whether equal values have more similar vectors than near misses in the same strata."""

    equal: float
    """Mean centred cosine of pairs of equal value."""
    near: float
    """The same of near misses, at the same distribution over strata."""
    difference: float
    """``equal - near``: the number to compare over seeds; between -2 and 2."""
    effect: float | None
    """The difference in standard deviations of the cosines in a stratum (Cohen's d); None where
    these do not scatter. Comparisons share items: this is a size, not a basis for a test."""
    p_value: float
    """Share of relabellings with a difference as large (one-sided); never below
    1 / ``n_permutations``: with fewer than 20 there is nothing to be seen in one run."""
    n_permutations: int
    """Relabellings tried."""
    exact: bool
    """Whether these are all there are."""
    distances: tuple[int, ...]
    """The |x - x'| with comparisons of both kinds."""
    n_equal: int
    """Comparisons of equal value in strata that have both."""
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
    silhouette_ordered: float | None
    """Mean silhouette of the ordered pairs: 1 for tight clusters far apart, 0 where they overlap;
    None for too few points."""
    silhouette_unordered: float | None
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
    """The number with the largest; 1 where all points coincide. No fewer than 2 and no more than
    the ordered pairs and 4 are tried: either end can stand for a number beyond it, or for points
    without clusters; see :attr:`at_limit`."""
    agreement_ordered: float
    """Adjusted Rand index of that clustering with the ordered pairs: 1 if equal, 0 by chance."""
    agreement_unordered: float
    """The same with the unordered pairs."""
    embedding: Float64[np.ndarray, "n 2"] | None
    """t-SNE of the points, for a picture; None if not asked for. No score uses it."""

    @property
    def at_limit(self) -> bool:
        """Whether ``n_clusters`` is the smallest or the largest number tried."""
        return self.n_clusters in (*self.counts[:1], *self.counts[-1:])


@dataclass(frozen=True)
class Influence:
    """How much one factor of a sequence matters to a state or the logits."""

    factor: str
    """Key, pair, position or noise; or the order of the anchors."""
    alone: float | None
    """Share of the variance that the factor explains by itself (Sobol' first-order index)."""
    total: float | None
    """Share that it has a part in, interactions included (total-effect index); None for both where
    nothing varies, and for the order."""
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
        raise ConfigError(
            "X_ao is what the MLP reads after attention; this model has no such state"
        )
    name = f"blocks.{layer}.{_HOOKS[state]}"
    found = activations(model, tokens, [name])[name]
    at = torch.from_numpy(positions.astype(np.int64)).to(found.device)
    found = found[torch.arange(len(found), device=found.device), at]  # [batch, ...]
    with torch.no_grad():
        if state == "V":
            found = rearrange(found, "batch head d_head -> batch (head d_head)")
        elif state == "OV":
            written = "batch head d_head, head d_head d_model -> batch head d_model"
            found = einsum(found, block.attn.W_O, written).flatten(1)
        elif layout(model) == "pre":
            found = _reader_norm(model, state, layer)(found[:, None])[:, 0]
    return _numbers(found)


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
        return _read(model, state, layer, "first", sequences)

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
    all ordered pairs that follow the rule, of at most four anchors (of more, four evenly spaced).

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
        return _read(model, "X_ao", layer, "last", sequences)

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
    state: State | None = None,
    layer: int = 1,
    values: Sequence[int] | None = None,
    n_contexts: int | None = None,
    renormalise: bool = False,
    seed: int = 0,
) -> Similarity:
    """Similarity of the logits while the second anchor is masked (C, figure 4B, 4D).

    For a model that works step by step what is left is g(x; a1), so that the (x, a1) of one value
    form a block of similar outputs (complexity-control paper, section V-B).

    Args:
        model: a model of the task.
        task: the task.
        state: the tensor read at the last position, in the sense of the module's table; the
            logits, as in the paper, if None.
        layer: 0-based layer of the state.
        values: the values whose items are shown, block by block; :data:`PAPER_VALUES` (or the
            middle ten that every anchor reaches) if None. The contrast takes all keys.
        n_contexts: combinations of noise, key position and second anchor to draw; if None the
            released code's one sequence, (35, 63, x, a1, 2, 38, 42, 36, 62), where the task has
            such sequences, else 8.
        renormalise: as in :func:`anchor_interp.masks.mask_edges`.
        seed: seed of the contexts.

    Raises:
        ConfigError: as :func:`value_similarity`.
    """
    check_fits(model, task)
    groups = [(anchor,) for anchor in task.tokens]
    table = np.stack([task.function(anchor)(task.keys) for anchor in task.tokens])
    probe = _probe(task) if n_contexts is None else None
    n = 8 if n_contexts is None else n_contexts
    contexts = _contexts(model, task, n, seed, maskable=True) if probe is None else probe

    def read(sequences: Sequences) -> Floats:
        whole = _read(model, state, layer, "last", sequences)
        with mask_second_anchor(model, sequences, renormalise=renormalise):
            return _left(_read(model, state, layer, "last", sequences), whole)

    vectors = _vectors(task, contexts, groups, read)
    reached = sorted(set.intersection(*(set(row.tolist()) for row in table)))
    if values is None:
        inside = set(PAPER_VALUES) <= set(reached)
        middle = max(0, len(reached) // 2 - 5)
        values = list(PAPER_VALUES) if inside else reached[middle : middle + 10]
    items = [(int(g), int(k)) for value in values for g, k in np.argwhere(table == value)]
    if not items:
        raise ConfigError(f"no key has g(x; a) in {shown(list(values))}; choose among {reached}")
    return _similarity(*_named(state, layer), task, groups, table, vectors, items, seed)


def contrast(
    vectors: Float64[np.ndarray, "context group key width"],
    values: Int64[np.ndarray, "group key"],
    keys: Int64[np.ndarray, " key"],
    *,
    groups: Sequence[tuple[int, ...]] | None = None,
    seed: int = 0,
) -> Contrast:
    """Equal values against near misses in the same strata; see the module's text.

    Args:
        vectors: for every context, one vector for each group (anchor or pair) and key.
        values: the value that the rule gives each.
        keys: the keys, ascending.
        groups: the anchor or the pair of anchors of each group; an anchor of its own if None.
        seed: seed of the relabellings, where there are too many to try all.

    Raises:
        ConfigError: no stratum has both equal values and near misses, or vectors that are not
            finite.
    """
    names = [(g,) for g in range(len(values))] if groups is None else list(groups)
    return _contrast(_cosines(_centred(_finite(vectors))), names, values, keys, seed)


def key_mask_clusters(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    state: State | None = None,
    layer: int = 1,
    pairs: Sequence[Pair] | None = None,
    n: int = 50,
    position: int = 1,
    renormalise: bool = False,
    tsne: bool = False,
    seed: int = 0,
) -> Clusters:
    """How the logits of anchor pairs cluster while the key is masked (C, figure 4A, 4C).

    A model that maps each ordered pair by itself has one cluster for each, a commutative one has
    (a, b) and (b, a) in one (complexity-control paper, section V-A).

    Args:
        model: a model of the task.
        task: the task.
        state: the tensor read at the last position, in the sense of the module's table; the
            logits, as in the paper, if None.
        layer: 0-based layer of the state.
        pairs: the ordered pairs; those of two unequal anchors if None.
        n: sequences of each pair, 2 to 10,000, with test keys and noise of their own.
        position: 0-based position of the key.
        renormalise: as in :func:`anchor_interp.masks.mask_edges`.
        tsne: whether to compute the picture as well.
        seed: seed of the sequences and of t-SNE.

    Raises:
        ConfigError: fewer than two pairs, an n below 2, a position without test keys or whose
            second anchor is the last token, or a model too small for the task.
    """
    check_fits(model, task)
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
    pair = np.tile([task.pairs.index(pair) for pair in chosen], n)
    where = np.full(total, position)
    sequences = spell_over(task, noise, pair, test[bits % len(test)], where)
    whole = _read(model, state, layer, "last", sequences)
    with mask_key_token(model, sequences, renormalise=renormalise):
        points = _left(_read(model, state, layer, "last", sequences), whole)
    return _clusters(*_named(state, layer), task, sequences, points, tsne, seed)


def pair_clusters(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    state: State = "X_ao",
    layer: int = 0,
    place: Place = "last",
    pairs: Sequence[Pair] | None = None,
    n: int = 2_000,
    centre: bool = True,
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
        n: sequences, 500 to 10,000 (the paper shows 10,000); scores use the first 2,000.
        centre: remove what the place's own token (where it is noise) and the key's position add to
            a vector on average: each of the 80 tokens and 6 positions would make clusters of its
            own. The paper's picture has them in.
        tsne: whether to compute the picture as well; of 10,000 points in about a minute.
        seed: seed of the sequences and of t-SNE.

    Raises:
        ConfigError: fewer than two pairs, an n out of range, an unknown state or layer, or a model
            too small for the task.
    """
    check_fits(model, task)
    wanted = task.pairs if pairs is None else checked(pairs, tuple[Pair, ...], "pairs")
    chosen = [task.known(pair) for pair in wanted]
    n = checked(n, int, "n", low=500, high=10_000)
    checked(centre, bool, "centre")
    if len(set(chosen)) < 2:
        raise ConfigError(f"pairs are {shown(chosen)}; expected at least two to tell apart")
    index = np.array([task.pairs.index(pair) for pair in chosen])
    factors = _Factors.draw(task, n, seed, "pair-clusters", index=index, maskable=True)
    sequences = factors.sequences(task)
    points = _read(model, state, layer, place, sequences)
    if centre:
        nuisances = [sequences.position]
        if place == "last":
            nuisances.append(sequences.tokens[:, -1])
        points = _without(points, nuisances)
    return _clusters(state, layer, task, sequences, points, tsne, seed)


def sensitivity(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    state: State | None = None,
    layer: int = 1,
    place: Place = "last",
    pairs: Sequence[Pair] | None = None,
    n: int = 1_000,
    seed: int = 0,
) -> Sensitivity:
    """How much key, pair, key position and noise matter (the papers assume the last two do not).

    The four are drawn independently: pairs, all keys, all positions, a noise token for every
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
        pairs: the ordered pairs that sequences have; all if None.
        n: sequences for each factor.
        seed: seed of the sequences.

    Raises:
        ConfigError: an n below 2, no pairs or an unknown one, an unknown state or layer, or a model
            too small for the task.
    """
    check_fits(model, task)
    n = checked(n, int, "n", low=2, high=100_000)
    index = _indices(task, task.pairs if pairs is None else pairs)

    def read(factors: _Factors) -> Floats:
        return _read(model, state, layer, place, factors.sequences(task))

    first = _Factors.draw(task, n, seed, "sensitivity/first", index=index)
    second = _Factors.draw(task, n, seed, "sensitivity/second", index=index)
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
    return Sensitivity(*_named(state, layer), tuple(found), n)


def order_influence(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    state: State | None = None,
    layer: int = 1,
    place: Place = "last",
    pairs: Sequence[Pair] | None = None,
    n: int = 1_000,
    seed: int = 0,
) -> Influence:
    """How much the order of the anchors matters: (a, b) becomes (b, a), all else stays.

    Where both orders have one target, a model that maps each ordered pair by itself still holds
    them apart, a commutative one does not. It has no share of the variance: order is no factor
    that is drawn.

    Args:
        model: a model of the task.
        task: the task.
        state: the tensor, in the sense of the module's table; the logits if None.
        layer: 0-based layer of the state.
        place: where the state is read.
        pairs: the ordered pairs that sequences have before and after; all if None. Pairs of equal
            anchors, and those whose other order is not among them, are left out.
        n: sequences, whose second anchor is not the last token.
        seed: seed of the sequences.

    Raises:
        ConfigError: as :func:`sensitivity`, or no pair in both orders.
    """
    check_fits(model, task)
    n = checked(n, int, "n", low=2, high=100_000)
    index = _indices(task, task.pairs if pairs is None else pairs)
    known = {task.pairs[i] for i in index}
    both = sorted((a, b) for a, b in known if a != b and (b, a) in known)
    if not both:
        raise ConfigError(f"pairs are {shown(sorted(known))}; expected one in both its orders")
    drawn = [
        _Factors.draw(task, n, seed, f"order/{name}", index=_indices(task, both), maskable=True)
        for name in ("first", "second")
    ]
    reverse = np.array([task.pairs.index((b, a)) for a, b in task.pairs])
    swapped = dataclasses.replace(drawn[0], pair=reverse[drawn[0].pair])
    one, two, moved = (
        _read(model, state, layer, place, factors.sequences(task)) for factors in (*drawn, swapped)
    )
    unrelated = float(np.linalg.norm(one - two, axis=1).mean())
    step = float(np.linalg.norm(moved - one, axis=1).mean())
    return Influence(
        factor="order",
        alone=None,
        total=None,
        change=step / unrelated if unrelated > 0 else None,
        agreement=float((moved.argmax(1) == one.argmax(1)).mean()) if state is None else None,
    )


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
        return spell_over(task, self.noise, self.pair, self.key, self.position)

    def exchanged(self, factor: Factor, other: "_Factors") -> "_Factors":
        """The same with one factor of another draw."""
        parts: dict[str, Ints] = {name: getattr(self, name) for name in get_args(Factor)}
        return _Factors(**(parts | {factor: getattr(other, factor)}))

    def differs(self, factor: Factor, other: "_Factors") -> npt.NDArray[np.bool_]:
        """Where the exchange of a factor changes it."""
        unequal: npt.NDArray[np.bool_] = getattr(self, factor) != getattr(other, factor)
        rows: npt.NDArray[np.bool_] = np.any(unequal.reshape(len(unequal), -1), axis=1)
        return rows


def _indices(task: AnchorTask, pairs: Sequence[Pair]) -> Ints:
    """Of pairs, their indices in ``task.pairs``."""
    found: tuple[Pair, ...] = checked(pairs, tuple[Pair, ...], "pairs")
    if not found:
        raise ConfigError("pairs is empty; expected at least one pair of the task's anchors")
    return np.array([task.pairs.index(task.known(pair)) for pair in found])


def _bits(n: int, seed: int, stream: str) -> Ints:
    """Uniform integers from 0 to 2^63 - 1, a function of seed, stream and index."""
    drawn = hash_counter(
        stream_key(seed, f"representations/{stream}"), np.arange(n, dtype=np.uint64)
    )
    return (drawn >> np.uint64(1)).astype(np.int64)


def _noise(task: AnchorTask, n: int, seed: int, stream: str) -> Ints:
    bits = _bits(n * task.length, seed, f"{stream}/noise").reshape(n, task.length)
    return task.keys[bits % len(task.keys)]


def _contexts(
    model: HookedTransformer, task: AnchorTask, n: int, seed: int, *, maskable: bool = False
) -> _Factors:
    check_fits(model, task)
    n = checked(n, int, "n_contexts", low=1, high=1_000)
    # second anchors that were seen behind every first one, where there are any
    second = [b for b in task.tokens if all((a, b) in task.seen for a in task.tokens)]
    index = [i for i, pair in enumerate(task.pairs) if pair[1] in second or not second]
    return _Factors.draw(task, n, seed, "contexts", index=np.array(index), maskable=maskable)


def _behind(task: AnchorTask, group: tuple[int, ...], second: int) -> int:
    """The index of a group's pair; one anchor takes a second one that it was seen with."""
    seen = [b for a, b in task.seen if a == group[0]]
    if len(group) == 1 and second not in seen:
        if not seen:
            raise ConfigError(f"the anchor {group[0]} is first in no seen pair; expected one")
        second = seen[0]
    return task.pairs.index((*group, second)[:2])


def _probe(task: AnchorTask) -> _Factors | None:
    """The released code's sequence (35, 63, x, a1, 2, 38, 42, 36, 62); None on other tasks."""
    at = PROBE_POSITION
    noise = [*PROBE[: at + 1], *PROBE[at + 3 :]]
    if len(PROBE) != task.length or (2, 2) not in task.pairs:
        return None
    if not set(noise) <= set(task.keys.tolist()):
        return None
    pair = np.array([task.pairs.index((2, 2))])
    return _Factors(np.array([PROBE[at]]), pair, np.array([at]), np.array([PROBE]))


def _vectors(
    task: AnchorTask,
    contexts: _Factors,
    groups: Sequence[tuple[int, ...]],
    read: Callable[[Sequences], Floats],
) -> Floats:
    """[context, group, key, width]; a group of one anchor takes the context's second one.

    Where it was not seen with that, it takes one that it was seen with: attention is causal, so
    that no state at the first anchor depends on it.
    """
    n_keys, found = len(task.keys), []
    for c in range(len(contexts.key)):
        second = task.pairs[contexts.pair[c]][1]
        pairs = [_behind(task, group, second) for group in groups]
        total = len(groups) * n_keys
        sequences = spell_over(
            task,
            np.repeat(contexts.noise[c : c + 1], total, axis=0),
            np.repeat(pairs, n_keys),
            np.tile(task.keys, len(groups)),
            np.repeat(contexts.position[c : c + 1], total),
        )
        found.append(read(sequences).reshape(len(groups), n_keys, -1))
    return np.stack(found)


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
    """The ordered pairs that follow the rule, of at most four anchors, evenly spaced."""
    some = np.linspace(0, len(task.tokens) - 1, min(len(task.tokens), _MOST_ANCHORS))
    anchors = {task.tokens[i] for i in some.round().astype(int)}
    ruled = [pair for pair in task.pairs if task.role(pair) == "inferential"]
    chosen = [pair for pair in ruled if set(pair) <= anchors]
    if len(chosen) < 2:
        raise ConfigError("the contrast needs two pairs that follow the rule; the task has fewer")
    return chosen


def _read(
    model: HookedTransformer, state: State | None, layer: int, place: Place, sequences: Sequences
) -> Floats:
    """A state at one place, or the logits at the last position."""
    if state is not None:
        return _finite(read_state(model, state, layer, sequences.tokens, places(sequences, place)))
    with torch.no_grad():
        return _finite(_numbers(last_logits(model, token_rows(model, sequences.tokens))))


def _finite(numbers: Floats) -> Floats:
    """The numbers, if all are finite: NaNs would pass for vectors without a contrast."""
    if not np.isfinite(numbers).all():
        raise ConfigError(
            "the model's activations are not all finite; expected numbers: look for NaN or "
            "infinite weights, or take an earlier checkpoint"
        )
    return numbers


def _left(masked: Floats, whole: Floats) -> Floats:
    """What a mask left, or zeros if what varies is no more than rounding of what varied before."""
    varies, varied = (float(found.std(0).max(initial=0)) for found in (masked, whole))
    return masked if varies > 1e-4 * varied else np.zeros_like(masked)


def _named(state: State | None, layer: int) -> tuple[str, int | None]:
    return ("logits", None) if state is None else (state, layer)


def _numbers(found: Tensor) -> Floats:
    numbers: Floats = found.to("cpu", torch.float64).numpy()
    return numbers


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
        contrast=_contrast(whole, groups, values, task.keys, seed),
    )


def _centred(vectors: Floats) -> Floats:
    """Vectors without their group's mean over keys; what is left of rounding becomes zero."""
    centred = vectors - vectors.mean(2, keepdims=True)
    scale = np.linalg.norm(vectors, axis=-1, keepdims=True).max(initial=0)
    length = np.linalg.norm(centred, axis=-1, keepdims=True)
    found: Floats = np.where(length > 1e-5 * scale, centred, 0)
    return found


def _cosines(vectors: Floats) -> Floats:
    """[context, group, key, width] -> [group, key, group, key], the mean over contexts."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit = np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)
    n_contexts, n_groups, n_keys, _ = vectors.shape
    flat = rearrange(unit, "context group key width -> (group key) (context width)")
    found: Floats = (flat @ flat.T).reshape(n_groups, n_keys, n_groups, n_keys) / n_contexts
    return found


def _contrast(
    cosines: Floats, groups: Sequence[tuple[int, ...]], values: Ints, keys: Ints, seed: int
) -> Contrast:
    matched = _Matched.find(groups, values, keys)
    orders, exact = _relabellings(groups, seed)
    grid, relabelled = np.arange(values.size).reshape(values.shape), []
    for order, step in orders:
        moved = grid[order][:, ::step].ravel()  # item -> the item whose vector it is given
        relabelled.append(matched.difference(cosines, moved))
    equal, near = matched.means(cosines)
    spread = matched.spread(cosines)
    observed = matched.difference(cosines, grid.ravel())
    # rounded, so that relabellings which change nothing tie with what was found
    p_value = permutation_p(round(observed, 9), np.round(relabelled, 9), exact=exact)
    return Contrast(
        equal=equal,
        near=near,
        difference=equal - near,
        effect=(equal - near) / spread if spread > 1e-9 else None,
        p_value=p_value,
        n_permutations=len(relabelled),
        exact=exact,
        distances=matched.distances,
        n_equal=int(matched.is_equal.sum()),
        n_near=int((~matched.is_equal).sum()),
    )


@dataclass(frozen=True, eq=False)
class _Matched:
    """Two items of equal value and near misses, in the strata that have both."""

    one: Ints  # flat index of an item
    two: Ints
    is_equal: npt.NDArray[np.bool_]
    stratum: Ints  # index of the anchors in common and the |x - x'|
    distances: tuple[int, ...]
    weight: Floats  # of each comparison in the mean of its kind

    @classmethod
    def find(cls, groups: Sequence[tuple[int, ...]], values: Ints, keys: Ints) -> "_Matched":
        n_groups, n_keys = values.shape
        apart = np.abs(np.subtract.outer(keys, keys))
        patterns: dict[tuple[int, ...], int] = {}
        rows: list[Ints] = [np.empty((5, 0), np.int64)]
        for g, h in itertools.combinations(range(n_groups), 2):
            missed = np.abs(np.subtract.outer(values[g], values[h]))
            i, j = np.nonzero(np.isin(missed, (0, *NEAR)))
            shared = patterns.setdefault(_in_common(groups[g], groups[h]), len(patterns))
            equal, pattern = missed[i, j] == 0, np.full(len(i), shared)
            rows.append(np.stack([g * n_keys + i, h * n_keys + j, equal, pattern, apart[i, j]]))
        one, two, kind, pattern, distance = np.concatenate(rows, axis=1)
        is_equal = kind.astype(bool)
        stratum = pattern * (1 + apart.max()) + distance
        both = np.intersect1d(stratum[is_equal], stratum[~is_equal])
        kept = np.isin(stratum, both)
        if not kept.any():
            raise ConfigError(
                "no |x - x'| has both equal values and near misses with the same anchors in "
                "common: the contrast is not defined for this task's functions"
            )
        one, two, is_equal = one[kept], two[kept], is_equal[kept]
        distances = tuple(np.unique(distance[kept]).tolist())
        stratum = np.searchsorted(both, stratum[kept])
        n_equal = np.bincount(stratum[is_equal], minlength=len(both))
        n_near = np.bincount(stratum[~is_equal], minlength=len(both))
        # near misses are weighted to the strata of the comparisons of equal value
        weight = np.where(is_equal, 1.0, (n_equal / n_near)[stratum]) / n_equal.sum()
        return cls(one, two, is_equal, stratum, distances, weight)

    def difference(self, cosines: Floats, moved: Ints) -> float:
        """Equal minus near, item i having the vector of item ``moved[i]``."""
        n_items = len(moved)
        found = cosines.reshape(n_items, n_items)[moved[self.one], moved[self.two]]
        return float(np.dot(np.where(self.is_equal, self.weight, -self.weight), found))

    def means(self, cosines: Floats) -> tuple[float, float]:
        """Of equal values and of near misses."""
        found, of = self._cosines(cosines) * self.weight, self.is_equal
        return float(found[of].sum()), float(found[~of].sum())

    def spread(self, cosines: Floats) -> float:
        """Standard deviation within one kind in one stratum, both kinds alike."""
        found, variance = self._cosines(cosines), 0.0
        for kind in (self.is_equal, ~self.is_equal):
            for stratum in range(int(self.stratum.max()) + 1):
                chosen = kind & (self.stratum == stratum)
                variance += float(self.weight[chosen].sum() * found[chosen].var()) / 2
        return math.sqrt(variance)

    def _cosines(self, cosines: Floats) -> Floats:
        n_items = cosines.shape[0] * cosines.shape[1]
        found: Floats = cosines.reshape(n_items, n_items)[self.one, self.two]
        return found


def _in_common(one: tuple[int, ...], two: tuple[int, ...]) -> tuple[int, ...]:
    """Which anchors of two groups are the same, whatever their names.

    Equal for (1, 2) with (1, 3) and for (4, 2) with (4, 1).
    """
    found = []
    for anchors in ((*one, *two), (*two, *one)):
        names: dict[int, int] = {}
        found.append(tuple(names.setdefault(anchor, len(names)) for anchor in anchors))
    return min(found)


def _relabellings(
    groups: Sequence[tuple[int, ...]], seed: int
) -> tuple[list[tuple[list[int], int]], bool]:
    """Orders of the groups that come from renaming anchors, with a direction of the keys.

    And whether these are all there are.
    """
    anchors = sorted({anchor for group in groups for anchor in group})
    index = {group: i for i, group in enumerate(groups)}

    def order(renamed: Sequence[int]) -> list[int] | None:
        """Of every group the one whose vectors it is given; None if one is not there."""
        new = dict(zip(anchors, renamed, strict=True))
        images = [index.get(tuple(new[anchor] for anchor in group)) for group in groups]
        found = [image for image in images if image is not None]
        return found if len(found) == len(groups) else None

    if 2 * math.factorial(len(anchors)) <= _ALL_UP_TO:
        every = [order(renamed) for renamed in itertools.permutations(anchors)]
        return [(found, step) for found in every if found for step in (1, -1)], True
    generator = np.random.default_rng(seed)
    drawn = [order(generator.permutation(anchors).tolist()) for _ in range(_RELABELLINGS)]
    return [(found, int(generator.choice((1, -1)))) for found in drawn if found], False


def _clusters(
    state: str,
    layer: int | None,
    task: AnchorTask,
    sequences: Sequences,
    points: Floats,
    tsne: bool,
    seed: int,
) -> Clusters:
    checked(tsne, bool, "tsne")
    found, ordered = np.unique(sequences.pair, return_inverse=True)
    pairs = tuple(task.pairs[i] for i in found)
    alike = sorted({tuple(sorted(pair)) for pair in pairs})
    unordered = np.array([alike.index(tuple(sorted(pair))) for pair in pairs])[ordered]
    some, keys = slice(_SCORED), sequences.key.astype(np.int64)
    scored, distances = points[some], squareform(pdist(points[some]))
    apart = distances.max() > 1e-5 * np.linalg.norm(scored, axis=1).max()
    counts = tuple(range(2, min(len(pairs) + 4, len(scored) - 1) + 1)) if apart else ()
    tree = linkage(scored, "ward")
    divisions = [fcluster(tree, count, "maxclust") for count in counts]
    silhouettes = tuple(_silhouette(distances, labels) or 0.0 for labels in divisions)
    best = int(np.argmax(silhouettes)) if counts else None
    labels = np.zeros(len(scored)) if best is None else divisions[best]
    each = [_silhouette(distances, ordered[some], unordered[some] == i) for i in range(len(alike))]
    within = [score for score in each if score is not None]
    return Clusters(
        state=state,
        layer=layer,
        pairs=pairs,
        pair=ordered.astype(np.int64),
        key=keys,
        n_ordered=len(pairs),
        n_unordered=len(alike),
        silhouette_ordered=_silhouette(distances, ordered[some]),
        silhouette_unordered=_silhouette(distances, unordered[some]),
        silhouette_order=float(np.mean(within)) if within else None,
        silhouette_key=_silhouette(distances, keys[some]),
        counts=counts,
        silhouettes=silhouettes,
        n_clusters=1 if best is None else counts[best],
        agreement_ordered=float(adjusted_rand_score(ordered[some], labels)),
        agreement_unordered=float(adjusted_rand_score(unordered[some], labels)),
        embedding=_tsne(points, seed) if tsne else None,
    )


def _without(points: Floats, nuisances: Sequence[npt.NDArray[np.uint8]]) -> Floats:
    """Points without what labels that mean nothing here add to them on average."""
    labels = [np.equal.outer(labels, np.unique(labels)) for labels in nuisances]
    known = np.concatenate(labels, axis=1).astype(np.float64)  # [n, label]
    fitted: Floats = known @ np.linalg.lstsq(known, points, rcond=None)[0]
    return points - fitted


def _silhouette(
    distances: Floats, labels: npt.NDArray[Any], chosen: npt.NDArray[np.bool_] | None = None
) -> float | None:
    """The mean silhouette of labelled points; None for one label, or one point for each."""
    if chosen is not None:
        distances, labels = distances[chosen][:, chosen], labels[chosen]
    if not 2 <= len(np.unique(labels)) < len(labels):
        return None
    return float(silhouette_score(distances, labels, metric="precomputed"))


def _tsne(points: Floats, seed: int) -> Floats:
    """t-SNE of the distinct points: those that coincide up to rounding are mapped together.

    A handful has no neighbourhoods to keep: such points get their principal components.
    """
    away = points - points.mean(0)
    grid = 1e-5 * np.linalg.norm(points, axis=1).max(initial=1e-300)
    distinct, index = np.unique(np.round(away / grid), axis=0, return_inverse=True)
    if len(distinct) < _FEWEST_MAPPED:
        left, size, _ = np.linalg.svd(distinct - distinct.mean(0), full_matrices=False)
        mapped = np.pad(left * size, ((0, 0), (0, 2)))[:, :2]
    else:
        perplexity = min(30.0, (len(distinct) - 1) / 3)
        mapped = TSNE(perplexity=perplexity, random_state=seed).fit_transform(distinct)
    found: Floats = mapped[index.reshape(-1)].astype(np.float64)
    return found
