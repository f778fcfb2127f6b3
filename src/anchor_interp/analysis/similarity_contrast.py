"""Whether vectors are similar where the rule makes values equal: equal values against near misses.

All vectors share a mean, and number embeddings alone make near keys similar. So:

* Vectors are *centred*: the mean over all keys is removed for each anchor (or pair), and with it
  everything that depends on the anchor alone.
* Items of equal value are compared with *near misses*, items of other anchors whose values differ
  by 1 or 2, in the same *stratum*: the same |x - x'| and, for pairs, the same anchors in common.
  Mean cosines are taken in each stratum that has both kinds, weighted by its number of equal
  values. Vectors u(a1, x) + w(a2, x) then have no contrast on average, however smooth in x.

Comparisons share items, and keys are smooth, so neither may be shuffled. The permutation test
renames whole anchors: the vectors of a, all keys together, change places with those of a', those of
(a, b) with those of (a', b'), and the order of all keys may be reversed. Four anchors have 4! x 2 =
48 such relabellings; those that map the pairs which follow the rule onto themselves may be 8. So p
is at least 1/48 for anchors and 1/8 for such pairs: compare the effects of several seeds.
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
from anchor_interp._util.statistics import permutation_p
from anchor_interp.models.number_checks import check_finite
from anchor_interp.tasks.functions import Ints
from anchor_interp.tasks.sequence_factors import Floats

_MISSED_BY = (1, 2)  # how much a near miss differs in value
_DRAWN = 999
_EXACT_UP_TO = 10_000
_LEAST = 1e-5  # of the longest vector: what is shorter after centring has too much rounding
Group = tuple[int, ...]


@dataclass(frozen=True)
class SimilarityContrast:
    """Whether equal values have more similar vectors than near misses in the same strata."""

    equal: float
    """Mean centred cosine, as ``near`` is of near misses with the same distribution over strata."""
    near: float
    difference: float
    """``equal - near``, from -2 to 2: the number to compare over seeds."""
    effect: float | None
    """The difference in standard deviations of the cosines in a stratum (Cohen's d). None if there
    are none: if all vectors are absent, so that the difference is 0 and p is 1, or all parallel."""
    p_value: float
    """Share of relabellings with a difference at least as large (one-sided)."""
    n_permutations: int
    exact: bool
    n_equal: int
    n_near: int


Cosines = Float64[np.ndarray, "group key group key"]


def cosines(vectors: Float64[np.ndarray, "context group key width"]) -> Cosines:
    """Cosines between vectors, as a mean over contexts; 0 for an absent (zero) vector."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit = np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)
    n_contexts, n_groups, n_keys, _ = vectors.shape
    flat = rearrange(unit, "context group key width -> (group key) (context width)")
    products: Floats = (flat @ flat.T).reshape(n_groups, n_keys, n_groups, n_keys) / n_contexts
    return products


def centred_cosines(vectors: Float64[np.ndarray, "context group key width"]) -> Cosines:
    """Cosines without each group's mean over keys; what is only rounding becomes 0."""
    centred = check_finite(vectors, "the model's activations") - vectors.mean(2, keepdims=True)
    scale = np.linalg.norm(vectors, axis=-1, keepdims=True).max(initial=0)
    length = np.linalg.norm(centred, axis=-1, keepdims=True)
    return cosines(np.where(length > _LEAST * scale, centred, 0))


def similarity_contrast(
    centred: Cosines,
    groups: Sequence[Group],
    values: Int64[np.ndarray, "group key"],
    keys: Int64[np.ndarray, " key"],
    *,
    seed: int = 0,
) -> SimilarityContrast:
    """Compare equal values with near misses in the same strata; see the module's text.

    ``groups`` are anchors or pairs of anchors, ``values`` what the rule gives each item. A task
    without a stratum that has both kinds is a ConfigError.
    """
    one, two, is_equal, strata, weight = _matched(groups, values, keys)
    signed = np.where(is_equal, weight, -weight)
    flat = centred.reshape(values.size, values.size)
    grid = np.arange(values.size).reshape(values.shape)

    def difference(moved: Ints) -> float:
        # equal minus near if item i has the vector of item moved[i]
        return float(np.dot(signed, flat[moved[one], moved[two]]))

    orders, exact = _relabellings(groups, seed)
    relabelled = np.array([difference(grid[order][:, ::way].ravel()) for order, way in orders])
    observed = difference(grid.ravel())
    pairwise = flat[one, two]
    equal, near = (float((pairwise * weight)[kind].sum()) for kind in (is_equal, ~is_equal))
    variance = 0.0
    for kind, stratum in itertools.product((is_equal, ~is_equal), np.unique(strata)):
        chosen = kind & (strata == stratum)
        variance += float(weight[chosen].sum() * pairwise[chosen].var()) / 2
    spread = math.sqrt(variance)
    return SimilarityContrast(
        equal=equal,
        near=near,
        difference=equal - near,
        effect=(equal - near) / spread if spread > 1e-9 else None,
        p_value=permutation_p(observed, relabelled, exact=exact, size=1 / _LEAST),
        n_permutations=len(relabelled),
        exact=exact,
        n_equal=int(is_equal.sum()),
        n_near=int((~is_equal).sum()),
    )


def _matched(
    groups: Sequence[Group], values: Ints, keys: Ints
) -> tuple[Ints, Ints, npt.NDArray[np.bool_], Ints, Floats]:
    """Comparisons in strata of both kinds: two items, whether equal, the stratum, the weight."""
    n_groups, n_keys = values.shape
    apart = np.abs(np.subtract.outer(keys, keys))
    patterns: dict[Group, int] = {}
    # a comparison is of one key under group g and another under group h: i and j index the keys
    rows: list[Ints] = [np.empty((5, 0), np.int64)]
    for g, h in itertools.combinations(range(n_groups), 2):
        missed = np.abs(np.subtract.outer(values[g], values[h]))
        i, j = np.nonzero(np.isin(missed, (0, *_MISSED_BY)))
        shared = patterns.setdefault(_in_common(groups[g], groups[h]), len(patterns))
        equal, pattern = missed[i, j] == 0, np.full(len(i), shared)
        rows.append(np.stack([g * n_keys + i, h * n_keys + j, equal, pattern, apart[i, j]]))
    one, two, kind, pattern, distance = np.concatenate(rows, axis=1)
    is_equal = kind.astype(bool)
    # vectors are alike for near keys and for shared anchors too: compare only where both agree
    stratum = pattern * (1 + apart.max()) + distance
    both = np.intersect1d(stratum[is_equal], stratum[~is_equal])
    kept = np.isin(stratum, both)
    if not kept.any():
        lacks = "no |x - x'| has equal values and near misses with the same anchors in common"
        raise ConfigError(f"{lacks}: the task's functions have no contrast")
    one, two, is_equal = one[kept], two[kept], is_equal[kept]
    stratum = np.searchsorted(both, stratum[kept])
    n_equal = np.bincount(stratum[is_equal], minlength=len(both))
    n_near = np.bincount(stratum[~is_equal], minlength=len(both))
    # near misses get the distribution over strata that equal values have
    weight = np.where(is_equal, 1.0, (n_equal / n_near)[stratum]) / n_equal.sum()
    return one, two, is_equal, stratum, weight


def _in_common(one: Group, two: Group) -> Group:
    """Which anchors of two groups agree, whatever their names and the groups' order."""
    # equal for (1, 2) with (1, 3) and for (4, 2) with (4, 1)
    patterns = []
    for anchors in ((*one, *two), (*two, *one)):
        names: dict[int, int] = {}
        patterns.append(tuple(names.setdefault(anchor, len(names)) for anchor in anchors))
    return min(patterns)


def _relabellings(groups: Sequence[Group], seed: int) -> tuple[list[tuple[list[int], int]], bool]:
    """Orders of the groups with a direction of the keys, 1 or -1; and whether these are all."""
    anchors = sorted({anchor for group in groups for anchor in group})
    index = {group: i for i, group in enumerate(groups)}

    def order(renamed: Sequence[int]) -> list[int] | None:
        """For each group the one whose vectors it gets; None if that one is not there."""
        new = dict(zip(anchors, renamed, strict=True))
        moved = [tuple(new[anchor] for anchor in group) for group in groups]
        return [index[group] for group in moved] if set(moved) <= index.keys() else None

    if 2 * math.factorial(len(anchors)) <= _EXACT_UP_TO:
        every = [order(renamed) for renamed in itertools.permutations(anchors)]
        return [(moved, way) for moved in every if moved for way in (1, -1)], True
    generator = np.random.default_rng(seed)
    drawn = [order(generator.permutation(anchors).tolist()) for _ in range(_DRAWN)]
    return [(moved, int(generator.choice((1, -1)))) for moved in drawn if moved], False
