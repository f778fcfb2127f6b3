"""Every contrast of the papers for one model, and what the papers claim of them.

:data:`CONTRASTS` (``rule_contrasts.toml``) compares runs of two recipes
(:data:`anchor_interp.runs.presets.RECIPES`), or of one recipe with zero. The unit is the run, p is
exact over the runs' relabellings, and Holm's correction is over all claims. The papers show one or
a few models a phase and give no numbers: a claim is the direction of what their text says, with
near misses and unrelated models in the place of "high" and "low". Claims of the NeurIPS paper are
tested on its task and on the complexity-control task.

The claims were committed before this measurement of the runs, but after exploratory looks at runs
of these recipes: this is not a blind preregistration. The contrast of X_ao L1 was corrected after
five seeds had been seen. Recipes differ in more than the phase (layout, activation function, number
of sequences, one in its depth), so a difference is one between recipes.
"""

import operator
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from anchor_interp.analysis.clusters import Clusters, key_mask_clusters, pair_clusters
from anchor_interp.analysis.contrast import SimilarityContrast
from anchor_interp.analysis.sensitivity import Sensitivity, sensitivity
from anchor_interp.analysis.similarity import answer_similarity, block_similarity, value_similarity
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.anchor import AnchorTask

from .effects import Recipes
from .judging import Claim, Family


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


def recipe_claim(
    sentence: str, source: str, statistic: str, number: str, larger: str, smaller: str | None = None
) -> Claim:
    """One number is larger in the runs of one recipe than in those of another, or than zero."""
    effect = Recipes(number, larger, smaller, studies=("recipes",))
    name = f"{number}, {larger} > {smaller or 0}"
    return Claim(name, sentence=sentence, source=source, statistic=statistic, effect=effect)


_SAID = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["claim"]
CONTRASTS = Family(
    tuple(recipe_claim(statistic=NUMBERS[said["number"]], **said) for said in _SAID),
    "holm",
    fewest=2,
)
