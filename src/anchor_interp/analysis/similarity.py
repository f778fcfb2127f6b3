"""What the vectors inside a model say: similar where the rule says so, or pair by pair.

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
several seeds, in :mod:`anchor_interp.analysis.statistics`, say what one run cannot.

Noise, key position and the anchor that is not compared are the same for all items of a *context*;
cosines are means over contexts. How much these matter, which the papers assume to be little, is for
:mod:`anchor_interp.analysis.sensitivity` to say; which vectors there are, for :mod:`anchor_interp.analysis.states`.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from einops import rearrange
from jaxtyping import Float64, Int64

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.analysis.states import State, finite, left_by_mask, named, read_at
from anchor_interp.analysis.statistics import permutation_p
from anchor_interp.interventions.masks import mask_second_anchor
from anchor_interp.models.transformer import HookedTransformer, check_fits
from anchor_interp.tasks.anchor import AnchorTask, Pair
from anchor_interp.tasks.factors import Factors, Floats, Ints
from anchor_interp.tasks.sequences import PROBE, PROBE_POSITION, Sequences, assemble

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
    """The tensor compared, as in :mod:`anchor_interp.analysis.states`, or ``logits``."""
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
        return read_at(model, state, layer, "first", sequences)

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
        return read_at(model, "X_ao", layer, "last", sequences)

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
        state: the tensor read at the last position, in the sense of :mod:`anchor_interp.analysis.states`;
            the logits, as in the paper, if None.
        layer: 0-based layer of the state.
        values: the values whose items are shown, block by block; :data:`PAPER_VALUES` (or the
            middle ten that every anchor reaches) if None. The contrast takes all keys.
        n_contexts: combinations of noise, key position and second anchor to draw; if None the
            released code's one sequence, (35, 63, x, a1, 2, 38, 42, 36, 62), where the task has
            such sequences, else 8.
        renormalise: as in :func:`anchor_interp.interventions.masks.mask_edges`.
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
        whole = read_at(model, state, layer, "last", sequences)
        with mask_second_anchor(model, sequences, renormalise=renormalise):
            return left_by_mask(read_at(model, state, layer, "last", sequences), whole)

    vectors = _vectors(task, contexts, groups, read)
    reached = sorted(set.intersection(*(set(row.tolist()) for row in table)))
    if values is None:
        inside = set(PAPER_VALUES) <= set(reached)
        middle = max(0, len(reached) // 2 - 5)
        values = list(PAPER_VALUES) if inside else reached[middle : middle + 10]
    items = [(int(g), int(k)) for value in values for g, k in np.argwhere(table == value)]
    if not items:
        raise ConfigError(f"no key has g(x; a) in {shown(list(values))}; choose among {reached}")
    return _similarity(*named(state, layer), task, groups, table, vectors, items, seed)


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
    return _contrast(_cosines(_centred(finite(vectors))), names, values, keys, seed)


def _contexts(
    model: HookedTransformer, task: AnchorTask, n: int, seed: int, *, maskable: bool = False
) -> Factors:
    check_fits(model, task)
    n = checked(n, int, "n_contexts", low=1, high=1_000)
    # second anchors that were seen behind every first one, where there are any
    second = [b for b in task.tokens if all((a, b) in task.seen for a in task.tokens)]
    index = [i for i, pair in enumerate(task.pairs) if pair[1] in second or not second]
    return Factors.draw(task, n, seed, "contexts", index=np.array(index), maskable=maskable)


def _behind(task: AnchorTask, group: tuple[int, ...], second: int) -> int:
    """The index of a group's pair; one anchor takes a second one that it was seen with."""
    seen = [b for a, b in task.seen if a == group[0]]
    if len(group) == 1 and second not in seen:
        if not seen:
            raise ConfigError(f"the anchor {group[0]} is first in no seen pair; expected one")
        second = seen[0]
    return task.pairs.index((*group, second)[:2])


def _probe(task: AnchorTask) -> Factors | None:
    """The released code's sequence (35, 63, x, a1, 2, 38, 42, 36, 62); None on other tasks."""
    at = PROBE_POSITION
    noise = [*PROBE[: at + 1], *PROBE[at + 3 :]]
    if len(PROBE) != task.length or (2, 2) not in task.pairs:
        return None
    if not set(noise) <= set(task.keys.tolist()):
        return None
    pair = np.array([task.pairs.index((2, 2))])
    return Factors(np.array([PROBE[at]]), pair, np.array([at]), np.array([PROBE]))


def _vectors(
    task: AnchorTask,
    contexts: Factors,
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
        sequences = assemble(
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
