"""Every contrast of the papers for one model, and what the papers claim of them.

:func:`rule_contrasts` takes the numbers of one model. :data:`CONTRASTS` compares runs of two
recipes (:data:`anchor_interp.runs.presets.RECIPES`), or of one recipe with zero. The unit is the
run, p is exact over the runs' relabellings, and Holm's correction is over all claims. The papers
show one or a few models a phase and give no numbers: a claim is the direction of what their text
says, with near misses and unrelated models in the place of "high" and "low".

The claims were committed before this measurement of the runs, but after exploratory looks at runs
of these recipes: this is not a blind preregistration. The contrast of X^ao(2) was corrected after
five seeds had been seen. Recipes differ in more than the phase (layout, activation function, number
of sequences, one in its depth), so a difference is one between recipes.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass

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
        return cls(
            ordered=found.silhouette_ordered,
            unordered=found.silhouette_unordered,
            order=found.silhouette_order,
            n_clusters=found.n_clusters,
            at_limit=found.at_limit,
            n_ordered=found.n_ordered,
            n_unordered=found.n_unordered,
            agreement_ordered=found.agreement_ordered,
            agreement_unordered=found.agreement_unordered,
        )


@dataclass(frozen=True)
class RuleContrasts:
    """Every contrast of the papers for one model; layers are the papers', whatever the depth."""

    value: SimilarityContrast  # V^(2) at the first anchor: equal g(x; a1) against near misses
    value_ov: SimilarityContrast
    """The same of what the heads would write, which no basis inside a head changes."""
    answer: SimilarityContrast
    """X^ao(2) at the last position: equal answers of different pairs against near misses."""
    blocks: SimilarityContrast
    """Logits under a second-anchor mask: equal g(x; a1) against near misses."""
    blocks_renormalised: SimilarityContrast
    """The same with attention renormalised, so that nothing of the second anchor leaks through the
    softmax (:mod:`anchor_interp.interventions.masks`); not in the papers."""
    blocks_before: SimilarityContrast
    """The blocks in X^ao(2), which the last MLP has still to read; not in the papers, and added
    after the logits of symmetric models had shown blocks as well."""
    key_mask: Grouping
    """Logits under a key mask: the twelve pairs of unequal anchors, as in the paper's figure."""
    key_mask_all: Grouping  # the same of all sixteen pairs
    first_layer: Grouping  # X^ao(1) at the last position: all pairs
    sensitivity: tuple[Sensitivity, ...]
    """How much key, pair, position and noise matter to the logits, to V^(2) at the first anchor
    and to X^ao(2) at the last position."""

    def number(self, name: str) -> float | None:
        """One of :data:`NUMBERS` by its name."""
        found: float | None = operator.attrgetter(name)(self)
        return found


NUMBERS: Mapping[str, str] = {
    "value.difference": "V^(2) at the first anchor",
    "value_ov.difference": "OV^(2) there",
    "answer.difference": "X^ao(2) at the end",
    "blocks.difference": "second-anchor blocks",
    "blocks_renormalised.difference": "blocks, renormalised",
    "blocks_before.difference": "blocks in X^ao(2)",
    "key_mask.ordered": "key mask: ordered pairs",
    "key_mask.unordered": "key mask: unordered pairs",
    "key_mask.order": "key mask: order",
    "key_mask.n_clusters": "key mask: clusters",
    "key_mask_all.n_clusters": "key mask, all pairs: clusters",
    "first_layer.unordered": "X^ao(1): unordered pairs",
    "first_layer.order": "X^ao(1): order",
    "first_layer.n_clusters": "X^ao(1): clusters",
}
"""Differences of centred cosines, mean silhouettes and numbers of clusters."""


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


_NEURIPS, _CONTROL = "NeurIPS paper, section ", "complexity-control paper, section "
_VALUES = "V^(2) at the first anchor is alike where g(x; a1) is equal"
_ANSWERS = "X^ao(2) at the end is alike where the answer is equal"
_MORE = "this is more so in inferential models than in symmetric ones"
_MERGED = "X^ao(1) at the end clusters by unordered pair in symmetric models"
_BLOCKS = "outputs under a second-anchor mask are alike where g(x; a1) is equal"
_SAID = (
    (_NEURIPS + "5.2, figure 4c", "value.difference", (
        (_VALUES, "neurips-inferential", None),
        (_MORE, "neurips-inferential", "neurips-symmetric"),
        (_VALUES, "inferential", None),
        (_MORE, "inferential", "symmetric"),
    )),
    (_NEURIPS + "5.2, figure 4a, 4b", "answer.difference", (
        (_ANSWERS, "neurips-inferential", None),
        (_MORE, "neurips-inferential", "neurips-symmetric"),
        (_ANSWERS, "inferential", None),
        (_MORE, "inferential", "symmetric"),
    )),
    (_NEURIPS + "5.1, figure 3b", "first_layer.unordered", (
        (_MERGED, "neurips-symmetric", "neurips-inferential"),
        (_MERGED, "symmetric", "inferential"),
    )),
    (_CONTROL + "V-B, figure 4D", "blocks.difference", (
        (_BLOCKS, "inferential", None),
        ("this is more so in phase 3 than in phase 2 with commutativity", "inferential",
         "symmetric"),
        ("this is more so in phase 3 than in phase 2 without commutativity", "inferential",
         "composite"),
    )),
    (_CONTROL + "V-A, figure 4C", "key_mask.ordered", (
        ("outputs under a key mask separate the pairs in phase 2, not in phase 1", "composite",
         "memorizing"),
    )),
    (_CONTROL + "V-A, figure 4C", "key_mask.order", (
        ("without commutativity (a, b) and (b, a) lie apart, with it they are one", "composite",
         "symmetric"),
    )),
    (_CONTROL + "V-A, figure 4C", "key_mask.unordered", (
        ("with commutativity the clusters are the unordered pairs", "symmetric", "composite"),
    )),
    (_CONTROL + "V-A, figure 4C", "key_mask.order", (
        ("in phase 3 (a, b) and (b, a) are one as well", "composite", "inferential"),
    )),
)  # fmt: skip

CONTRASTS = Family(
    tuple(
        recipe_claim(sentence, source, NUMBERS[number], number, larger, smaller)
        for source, number, claims in _SAID
        for sentence, larger, smaller in claims
    ),
    "holm",
    fewest=2,
)
"""What the papers say, in the direction of their text. Claims of the NeurIPS paper are tested on
its task and on the complexity-control task."""
