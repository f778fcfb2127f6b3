"""Whether vectors cluster by ordered pair of anchors, by unordered pair or otherwise.

A model that maps each pair by itself has one cluster for each ordered pair. A model that takes the
anchors together has (a, b) and (b, a) in one. No score uses t-SNE, which is for pictures.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float64, Int64
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform
from sklearn.manifold import TSNE
from sklearn.metrics import adjusted_rand_score, silhouette_score

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.analysis.read_states import (
    State,
    check_state,
    read_masked,
    read_state,
    state_name,
)
from anchor_interp.interventions.masks import mask_position
from anchor_interp.interventions.subject import Subject, subject_of
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.functions import Ints, Pair
from anchor_interp.tasks.sequence_factors import Factors, Floats
from anchor_interp.tasks.sequences import Place, Sequences

_SCORED = 2_000
_LEAST = 1e-5  # of the longest vector before centring: points nearer than this coincide


@dataclass(frozen=True, eq=False)
class Clusters:
    """How vectors cluster by pair of anchors.

    Silhouettes are means over points, and None with too few of them: 1 for tight clusters far
    apart, 0 where they overlap. Agreements are adjusted Rand indices with the best clustering: 1 if
    equal, 0 by chance.
    """

    state: str
    layer: int | None
    pairs: tuple[Pair, ...]
    pair: Int64[np.ndarray, " n"]
    key: Int64[np.ndarray, " n"]
    silhouette_ordered: float | None
    silhouette_unordered: float | None
    silhouette_order: float | None
    """Of (a, b) against (b, a) among their own points: near 0 if the order leaves no trace."""
    silhouette_key: float | None
    n_clusters: int
    """Of 2 to four more than ``pairs``, the number with the largest silhouette; 1 if all points
    coincide."""
    agreement_ordered: float
    agreement_unordered: float
    embedding: Float64[np.ndarray, "n 2"] | None


def key_mask_clusters(
    model: HookedTransformer | Subject,
    task: AnchorTask | None = None,
    *,
    state: State | None = None,
    layer: int = 1,
    pairs: Sequence[Pair] | None = None,
    n: int = 50,
    position: int = 1,
    tsne: bool = False,
    seed: int = 0,
) -> Clusters:
    """Clusters of the logits, or of a state at the last position, while the key is masked.

    There are n sequences of each pair (2 to 10,000; by default the pairs of unequal anchors), each
    with its own noise and a test key at ``position``. ``tsne`` asks for the picture as well.
    Source: complexity-control paper, section V-A, figure 4A, 4C.
    """
    checked(n, int, "n", low=2, high=10_000)
    subject = subject_of(model, task, seed)
    model, task = subject.model, subject.anchor_task
    check_state(model, state, layer)
    unequal = tuple(pair for pair in task.pairs if pair[0] != pair[1])
    index = _pairs_to_tell_apart(task, unequal if pairs is None else pairs)
    at, test = task.cells("test")
    known = sorted(set(at[at <= task.length - 4].tolist()))
    if position not in known:
        raise ConfigError(f"position {position} has no test key; choose one of {known}")
    total = len(index) * n
    factors = Factors.draw(task, total, subject.seed, "key-mask", keys=test[at == position])
    pair, where = np.tile(index, n), np.full(total, position)
    sequences = dataclasses.replace(factors, pair=pair, position=where).sequences(task)
    mask = mask_position(model, sequences, "key")
    points = read_masked(model, state, layer, sequences, mask)
    return _clusters(subject, state_name(state, layer), sequences, points, points, tsne=tsne)


def pair_clusters(
    model: HookedTransformer | Subject,
    task: AnchorTask | None = None,
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
    """Clusters of a state over sequences; X_ao of layer 0 at the last position by default.

    n is 500 to 10,000 (the paper shows 10,000); scores use the first 2,000. No second anchor is the
    last token. ``centre`` removes the mean effect of the last position's own token and of the key's
    position. ``tsne`` asks for the picture. Source: NeurIPS paper, section 5.1, figure 3b.
    """
    checked(n, int, "n", low=500, high=10_000)
    subject = subject_of(model, task, seed)
    check_state(subject.model, state, layer)
    task = subject.anchor_task
    index = _pairs_to_tell_apart(task, task.pairs if pairs is None else pairs)
    factors = Factors.draw(task, n, subject.seed, "pair-clusters", index=index, maskable=True)
    sequences = factors.sequences(task)
    points = read = read_state(subject.model, state, layer, place, sequences)
    if centre:
        labels = [sequences.position] + [sequences.tokens[:, -1]] * (place == "last")
        known = np.hstack([np.equal.outer(each, np.unique(each)) for each in labels]).astype(float)
        points = points - known @ np.linalg.lstsq(known, points, rcond=None)[0]
    return _clusters(subject, (state, layer), sequences, points, read, tsne=tsne)


def _pairs_to_tell_apart(task: AnchorTask, pairs: Sequence[Pair]) -> Ints:
    index = task.indices(pairs)
    if len(set(index.tolist())) < 2:
        raise ConfigError(f"pairs are {shown(list(pairs))}; expected at least two to tell apart")
    return index


def _clusters(
    subject: Subject,
    name: tuple[str, int | None],
    sequences: Sequences,
    points: Floats,
    read: Floats,
    *,
    tsne: bool,
) -> Clusters:
    """The scores of points, which are ``read`` or the same centred."""
    apart = _LEAST * np.linalg.norm(read, axis=1).max()
    present, ordered = np.unique(sequences.pair, return_inverse=True)
    pairs = tuple(subject.anchor_task.pairs[i] for i in present)
    alike = sorted({tuple(sorted(pair)) for pair in pairs})
    unordered = np.array([alike.index(tuple(sorted(pair))) for pair in pairs])[ordered]
    keys = sequences.key.astype(np.int64)
    some = slice(_SCORED)
    distances = squareform(pdist(points[some]))
    distances[distances <= apart] = 0
    by_order = [
        _silhouette(distances[np.ix_(own, own)], ordered[some][own])
        for own in (np.flatnonzero(unordered[some] == i) for i in range(len(alike)))
    ]
    defined = [score for score in by_order if score is not None]
    labels = _best_clustering(points[some], distances, len(pairs) + 4)
    return Clusters(
        *name,
        pairs=pairs,
        pair=ordered.astype(np.int64),
        key=keys,
        silhouette_ordered=_silhouette(distances, ordered[some]),
        silhouette_unordered=_silhouette(distances, unordered[some]),
        silhouette_order=float(np.mean(defined)) if defined else None,
        silhouette_key=_silhouette(distances, keys[some]),
        n_clusters=len(np.unique(labels)),
        agreement_ordered=float(adjusted_rand_score(ordered[some], labels)),
        agreement_unordered=float(adjusted_rand_score(unordered[some], labels)),
        embedding=_tsne(points, apart, subject.seed) if tsne else None,
    )


def _best_clustering(points: Floats, distances: Floats, most: int) -> npt.NDArray[Any]:
    """The labels of the best clustering (Ward); all the same if all points coincide."""
    if not distances.any():
        return np.zeros(len(points))
    tree = linkage(points, "ward")
    counts = range(2, min(most, len(points) - 1) + 1)
    divisions = [fcluster(tree, count, "maxclust") for count in counts]
    return max(divisions, key=lambda labels: _silhouette(distances, labels) or 0.0)


def _silhouette(distances: Floats, labels: npt.NDArray[Any]) -> float | None:
    """The mean silhouette; None for one label, or as many labels as points."""
    if not 2 <= len(np.unique(labels)) < len(labels):
        return None
    return float(silhouette_score(distances, labels, metric="precomputed"))


def _tsne(points: Floats, apart: float, seed: int) -> Floats:
    """t-SNE of the distinct points; fewer than five have no neighbourhoods, so principal ones."""
    away = points - points.mean(0)
    grid = np.round(away / (apart or 1))
    distinct, index = np.unique(grid, axis=0, return_inverse=True)
    if len(distinct) < 5:
        left, size, _ = np.linalg.svd(distinct - distinct.mean(0), full_matrices=False)
        mapped = np.pad(left * size, ((0, 0), (0, 2)))[:, :2]
    else:
        perplexity = min(30.0, (len(distinct) - 1) / 3)
        mapped = TSNE(perplexity=perplexity, random_state=seed).fit_transform(distinct)
    return np.asarray(mapped[index.reshape(-1)], np.float64)
