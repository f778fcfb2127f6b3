"""Whether vectors are similar where the rule makes values equal: equal values against near misses.

A high cosine shows little by itself. All vectors share a mean, and number embeddings alone make
near keys similar. So:

* Vectors are *centred*: the mean over all keys is removed for each anchor (or pair), and with it
  everything that depends on the anchor alone.
* Items of equal value are compared with *near misses*: items of other anchors whose values differ
  by 1 or 2. Both have the same |x - x'| and, where items have two anchors, the same anchors in
  common: (1, 2) and (1, 3) share their first anchor, so only pairs that share their first anchor
  are compared with them. Each such combination is a *stratum*. The mean cosine of both kinds is
  taken in every stratum that has both, weighted by the number of equal values. Vectors
  u(a1, x) + w(a2, x), which depend on each anchor separately, then have no contrast on average,
  however smooth they are in x.

Comparisons share items, and keys are smooth, so neither may be shuffled. The permutation test
renames whole anchors: the vectors of a, all keys together, change places with those of a', those of
(a, b) with those of (a', b'), and the order of all keys may be reversed. This changes only which
values are equal; every |x - x'|, all smoothness and all dependence between items stay. Four anchors
have 4! x 2 = 48 such relabellings, and all are tried. Pairs that do not follow the rule are left
out, and a relabelling must map the rest onto itself: without (3, 4) and (4, 3), 8 relabellings
remain. So p is at least 1/48 for anchors and 1/8 for such pairs. That is no evidence in one run;
:mod:`anchor_interp.analysis.statistics` compares the contrasts of several seeds.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from einops import rearrange
from jaxtyping import Float64, Int64

from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.states import finite
from anchor_interp.analysis.statistics import permutation_p
from anchor_interp.tasks.factors import Floats, Ints

NEAR = (1, 2)
"""A near miss differs in value by one of these."""

_DRAWN = 999
_EXACT_UP_TO = 10_000


@dataclass(frozen=True)
class SimilarityContrast:
    """Whether equal values have more similar vectors than near misses in the same strata."""

    equal: float
    """Mean centred cosine of items of equal value."""
    near: float
    """Mean centred cosine of near misses, with the same distribution over strata."""
    difference: float
    """``equal - near``, from -2 to 2: the number to compare over seeds."""
    effect: float | None
    """The difference in standard deviations of the cosines in a stratum (Cohen's d); None where
    they do not scatter. Comparisons share items: this is a size, not a basis for a test."""
    p_value: float
    """Share of relabellings with a difference at least as large (one-sided); at least
    1 / ``n_permutations``, so fewer than 20 relabellings can show nothing in one run."""
    n_permutations: int
    """Relabellings tried."""
    exact: bool
    """Whether all relabellings were tried."""
    distances: tuple[int, ...]
    """The |x - x'| with comparisons of both kinds."""
    n_equal: int
    """Comparisons of equal value in strata that have both kinds."""
    n_near: int
    """Near misses in those strata."""


Cosines = Float64[np.ndarray, "group key group key"]


def cosines(vectors: Float64[np.ndarray, "context group key width"]) -> Cosines:
    """Cosines between vectors, as a mean over contexts; 0 for a zero vector."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit = np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)
    n_contexts, n_groups, n_keys, _ = vectors.shape
    flat = rearrange(unit, "context group key width -> (group key) (context width)")
    found: Floats = (flat @ flat.T).reshape(n_groups, n_keys, n_groups, n_keys) / n_contexts
    return found


def centred_cosines(vectors: Float64[np.ndarray, "context group key width"]) -> Cosines:
    """Cosines after each group's mean over keys is removed; what is only rounding becomes 0.

    Raises:
        ConfigError: vectors that are not finite.
    """
    centred = finite(vectors) - vectors.mean(2, keepdims=True)
    scale = np.linalg.norm(vectors, axis=-1, keepdims=True).max(initial=0)
    length = np.linalg.norm(centred, axis=-1, keepdims=True)
    return cosines(np.where(length > 1e-5 * scale, centred, 0))


def similarity_contrast(
    centred: Cosines,
    groups: Sequence[tuple[int, ...]],
    values: Int64[np.ndarray, "group key"],
    keys: Int64[np.ndarray, " key"],
    *,
    seed: int = 0,
) -> SimilarityContrast:
    """Compare equal values with near misses in the same strata; see the module's text.

    Args:
        centred: from :func:`centred_cosines`.
        groups: the anchor or the pair of anchors of each group.
        values: the value that the rule gives each item.
        keys: the keys, ascending.
        seed: seed of the relabellings, where there are too many to try all.

    Raises:
        ConfigError: no stratum has both equal values and near misses.
    """
    matched = _Matched.find(groups, values, keys)
    n_items = values.size
    flat, grid = centred.reshape(n_items, n_items), np.arange(n_items).reshape(values.shape)
    orders, exact = _relabellings(groups, seed)
    # each item is given the vector of the item that stands in its place after relabelling
    relabelled = [matched.difference(flat, grid[order][:, ::way].ravel()) for order, way in orders]
    observed = matched.difference(flat, grid.ravel())
    equal, near = matched.means(flat)
    spread = matched.spread(flat)
    return SimilarityContrast(
        equal=equal,
        near=near,
        difference=equal - near,
        effect=(equal - near) / spread if spread > 1e-9 else None,
        # rounded, so that relabellings that change nothing tie with the observed difference
        p_value=permutation_p(round(observed, 9), np.round(relabelled, 9), exact=exact),
        n_permutations=len(relabelled),
        exact=exact,
        distances=matched.distances,
        n_equal=int(matched.is_equal.sum()),
        n_near=int((~matched.is_equal).sum()),
    )


@dataclass(frozen=True, eq=False)
class _Matched:
    """Comparisons of two items, equal values and near misses, in the strata that have both.

    All arrays but ``distances`` are [comparison].
    """

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
        # near misses get the distribution over strata that equal values have
        weight = np.where(is_equal, 1.0, (n_equal / n_near)[stratum]) / n_equal.sum()
        return cls(one, two, is_equal, stratum, distances, weight)

    def difference(self, flat: Floats, moved: Ints) -> float:
        """Equal minus near if item i has the vector of item ``moved[i]``."""
        found = flat[moved[self.one], moved[self.two]]
        return float(np.dot(np.where(self.is_equal, self.weight, -self.weight), found))

    def means(self, flat: Floats) -> tuple[float, float]:
        """The mean cosine of equal values and that of near misses."""
        found, of = flat[self.one, self.two] * self.weight, self.is_equal
        return float(found[of].sum()), float(found[~of].sum())

    def spread(self, flat: Floats) -> float:
        """Standard deviation of one kind in one stratum, both kinds weighted alike."""
        found, variance = flat[self.one, self.two], 0.0
        for kind in (self.is_equal, ~self.is_equal):
            for stratum in range(int(self.stratum.max()) + 1):
                chosen = kind & (self.stratum == stratum)
                variance += float(self.weight[chosen].sum() * found[chosen].var()) / 2
        return math.sqrt(variance)


def _in_common(one: tuple[int, ...], two: tuple[int, ...]) -> tuple[int, ...]:
    """Which anchors of two groups are the same, whatever their names and the groups' order.

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
    """Orders of the groups after renaming anchors, each with a direction of the keys (1 or -1).

    The second result says whether these are all there are.
    """
    anchors = sorted({anchor for group in groups for anchor in group})
    index = {group: i for i, group in enumerate(groups)}

    def order(renamed: Sequence[int]) -> list[int] | None:
        """For each group the one whose vectors it gets; None if that one is not there."""
        new = dict(zip(anchors, renamed, strict=True))
        try:
            return [index[tuple(new[anchor] for anchor in group)] for group in groups]
        except KeyError:
            return None

    if 2 * math.factorial(len(anchors)) <= _EXACT_UP_TO:
        every = [order(renamed) for renamed in itertools.permutations(anchors)]
        return [(found, way) for found in every if found for way in (1, -1)], True
    generator = np.random.default_rng(seed)
    drawn = [order(generator.permutation(anchors).tolist()) for _ in range(_DRAWN)]
    return [(found, int(generator.choice((1, -1)))) for found in drawn if found], False
