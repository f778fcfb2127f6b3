"""Every contrast of the papers for one model, such as a run of a recipe."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields

from anchor_interp.analysis.clusters import Clusters, key_mask_clusters, pair_clusters
from anchor_interp.analysis.contrast import SimilarityContrast
from anchor_interp.analysis.sensitivity import Sensitivity, sensitivity
from anchor_interp.analysis.similarity import answer_similarity, block_similarity, value_similarity
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.anchor import AnchorTask


@dataclass(frozen=True)
class Grouping:
    """What :class:`anchor_interp.analysis.clusters.Clusters` scores, without its points."""

    ordered: float | None  # silhouette of the ordered pairs
    unordered: float | None  # silhouette of the unordered pairs
    order: float | None  # silhouette of (a, b) against (b, a) within their own points
    n_clusters: int
    at_limit: bool  # whether ``n_clusters`` is the smallest or the largest number tried
    n_ordered: int
    n_unordered: int
    agreement_ordered: float  # adjusted Rand index of the clusters with the ordered pairs
    agreement_unordered: float

    @classmethod
    def of(cls, found: Clusters) -> "Grouping":
        """The scores of clusters."""
        silhouettes = (getattr(found, f"silhouette_{n}") for n in ("ordered", "unordered", "order"))
        names = [field.name for field in fields(cls)][3:]
        return cls(*silhouettes, *(getattr(found, name) for name in names))


@dataclass(frozen=True)
class RuleContrasts:
    """Every contrast of the papers for one model; layers are the papers', whatever the depth.

    Not in the papers are ``blocks_renormalised``, in which nothing of the second anchor leaks
    through the softmax (:mod:`anchor_interp.interventions.masks`), and ``blocks_before``, added
    after the logits of symmetric models had shown blocks as well.
    """

    value: SimilarityContrast  # V L1 at the first anchor: equal g(x; a1) against near misses
    value_ov: SimilarityContrast  # the same of what the heads would write
    answer: SimilarityContrast  # X_ao L1 at the end: equal answers of different pairs
    blocks: SimilarityContrast  # logits under a second-anchor mask: equal g(x; a1)
    blocks_renormalised: SimilarityContrast  # the same with attention renormalised
    blocks_before: SimilarityContrast  # the blocks in X_ao L1, which the last MLP has still to read
    key_mask: Grouping  # logits under a key mask: the twelve pairs of unequal anchors
    key_mask_all: Grouping  # the same of all sixteen pairs
    first_layer: Grouping  # X_ao L0 at the last position: all pairs
    sensitivity: tuple[Sensitivity, ...]
    """How much key, pair, position and noise matter to the logits, to V L1 at the first anchor
    and to X_ao L1 at the last position."""

    def number(self, name: str) -> float | None:
        """One of :data:`NUMBERS` by its name."""
        found: float | None = operator.attrgetter(name)(self)
        return found


NUMBERS: Mapping[str, str] = {
    "value.difference": "V L1 at the first anchor",
    "value_ov.difference": "OV L1 there",
    "answer.difference": "X_ao L1 at the end",
    "blocks.difference": "second-anchor blocks",
    "blocks_renormalised.difference": "blocks, renormalised",
    "blocks_before.difference": "blocks in X_ao L1",
    "key_mask.ordered": "key mask: ordered pairs",
    "key_mask.unordered": "key mask: unordered pairs",
    "key_mask.order": "key mask: order",
    "key_mask.n_clusters": "key mask: clusters",
    "key_mask_all.n_clusters": "key mask, all pairs: clusters",
    "first_layer.unordered": "X_ao L0: unordered pairs",
    "first_layer.order": "X_ao L0: order",
    "first_layer.n_clusters": "X_ao L0: clusters",
}  # differences of centred cosines, mean silhouettes and numbers of clusters


def rule_contrasts(model: HookedTransformer, task: AnchorTask, *, seed: int = 0) -> RuleContrasts:
    """Every contrast of the papers for one model."""
    return RuleContrasts(
        value=value_similarity(model, task, seed=seed).contrast,
        value_ov=value_similarity(model, task, state="OV", seed=seed).contrast,
        answer=answer_similarity(model, task, seed=seed).contrast,
        blocks=block_similarity(model, task, seed=seed).contrast,
        blocks_renormalised=block_similarity(model, task, renormalise=True, seed=seed).contrast,
        blocks_before=block_similarity(model, task, state="X_ao", seed=seed).contrast,
        key_mask=Grouping.of(key_mask_clusters(model, task, seed=seed)),
        key_mask_all=Grouping.of(key_mask_clusters(model, task, pairs=task.pairs, seed=seed)),
        first_layer=Grouping.of(pair_clusters(model, task, seed=seed)),
        sensitivity=(
            sensitivity(model, task, seed=seed),
            sensitivity(model, task, state="V", place="first", seed=seed),
            sensitivity(model, task, state="X_ao", seed=seed),
        ),
    )
