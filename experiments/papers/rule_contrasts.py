"""The papers' claims about representations, tested over several runs of each recipe.

:mod:`anchor_interp.analysis.similarity`, :mod:`anchor_interp.analysis.clusters` and
:mod:`anchor_interp.analysis.sensitivity` look at one model. What distinguishes phases is a statement
about *runs*: :func:`rule_contrasts` takes of one model every number that the papers draw, and
:func:`judge` compares the runs of two recipes, or those of one with zero, for each of
:data:`CLAIMS`. The unit is the run: p is exact over the runs' relabellings
(:mod:`anchor_interp.analysis.statistics`) and corrected by Holm over all claims.

The papers show one or a few models a phase and give no numbers. What is claimed here is the
direction of what their text says, with near misses and unrelated models in the place of "high" and
"low". The claims were committed before this measurement of the runs, but after exploratory looks
at runs of these recipes: this is no blind preregistration. Claims name
recipes of :data:`anchor_interp.runs.presets.RECIPES`; those of the NeurIPS paper are tested on its task
and again on the complexity-control task. Recipes differ in more than the phase (layout, activation
function, number of sequences, one in its depth), so that what is tested is a difference of recipes.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import shown
from anchor_interp.analysis.clusters import Clusters, key_mask_clusters, pair_clusters
from anchor_interp.analysis.contrast import SimilarityContrast
from anchor_interp.analysis.sensitivity import Sensitivity, sensitivity
from anchor_interp.analysis.similarity import answer_similarity, block_similarity, value_similarity
from anchor_interp.analysis.statistics import (
    MeanComparison,
    against_zero,
    holm,
    smallest_p,
    two_samples,
)
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.anchor import AnchorTask

LEVEL = 0.05
"""A claim counts as shown with a corrected p of no more than this."""


Outcome = Literal["shown", "opposite", "not shown", "too few runs"]


@dataclass(frozen=True)
class Grouping:
    """What :class:`anchor_interp.analysis.clusters.Clusters` scores, without its points."""

    ordered: float | None
    """Silhouette of the ordered pairs."""
    unordered: float | None
    """Silhouette of the unordered pairs."""
    order: float | None
    """Silhouette of (a, b) against (b, a) within their own points."""
    n_clusters: int
    """Clusters found."""
    at_limit: bool
    """Whether that is the smallest or the largest number tried."""
    n_ordered: int
    """Ordered pairs there are."""
    n_unordered: int
    """Unordered pairs there are."""
    agreement_ordered: float
    """Adjusted Rand index of the clusters with the ordered pairs."""
    agreement_unordered: float
    """The same with the unordered pairs."""


@dataclass(frozen=True)
class RuleContrasts:
    """Every contrast of the papers for one model; layers are the papers', whatever the depth."""

    value: SimilarityContrast
    """V^(2) at the first anchor: equal g(x; a1) against near misses."""
    value_ov: SimilarityContrast
    """The same of what the heads would write, which no basis inside a head changes."""
    answer: SimilarityContrast
    """X^ao(2) at the last position: equal answers of different pairs against near misses."""
    blocks: SimilarityContrast
    """Logits under a second-anchor mask: equal g(x; a1) against near misses."""
    blocks_renormalised: SimilarityContrast
    """The same with the rest of each attention row scaled up, so that nothing of the second anchor
    leaks through the softmax (:mod:`anchor_interp.interventions.masks`); not in the papers."""
    blocks_before: SimilarityContrast
    """The blocks under the paper's mask in X^ao(2), which the last MLP has still to read; not in
    the papers, and added after the logits of symmetric models had shown blocks as well."""
    key_mask: Grouping
    """Logits under a key mask: the twelve pairs of unequal anchors, as in the paper's figure."""
    key_mask_all: Grouping
    """The same of all sixteen pairs."""
    first_layer: Grouping
    """X^ao(1) at the last position: all pairs."""
    sensitivity: tuple[Sensitivity, ...]
    """How much key, pair, position and noise matter to the logits, to V^(2) at the first anchor
    and to X^ao(2) at the last position."""

    def number(self, name: str) -> float | None:
        """One of :data:`NUMBERS` by its name."""
        found: float | None = operator.attrgetter(name)(self)
        return found


NUMBERS: Mapping[str, str] = MappingProxyType(
    {
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
)
"""The numbers that are compared between runs: differences of centred cosines, mean silhouettes,
numbers of clusters."""


@dataclass(frozen=True)
class Claim:
    """One number is larger in the runs of one recipe than in those of another, or than zero."""

    text: str
    """What is claimed, in our words."""
    source: str
    """Where it is said."""
    number: str
    """What is compared: a name in :data:`NUMBERS`."""
    larger: str
    """The recipe with the larger number."""
    smaller: str | None = None
    """The recipe with the smaller one; zero if None."""


_N4A = "NeurIPS paper, section 5.2, figure 4a, 4b"


_N4C = "NeurIPS paper, section 5.2, figure 4c"


_N3B = "NeurIPS paper, section 5.1, figure 3b"


_C4C = "complexity-control paper, section V-A, figure 4C"


_C4D = "complexity-control paper, section V-B, figure 4D"


_VALUES = "V^(2) at the first anchor is alike where g(x; a1) is equal"


_ANSWERS = "X^ao(2) at the end is alike where the answer is equal"


_MORE = "this is more so in inferential models than in symmetric ones"


_MERGED = "X^ao(1) at the end clusters by unordered pair in symmetric models"


CLAIMS: tuple[Claim, ...] = (
    Claim(_VALUES, _N4C, "value.difference", "neurips-inferential"),
    Claim(_MORE, _N4C, "value.difference", "neurips-inferential", "neurips-symmetric"),
    Claim(_VALUES, _N4C, "value.difference", "inferential"),
    Claim(_MORE, _N4C, "value.difference", "inferential", "symmetric"),
    Claim(_ANSWERS, _N4A, "answer.difference", "neurips-inferential"),
    Claim(_MORE, _N4A, "answer.difference", "neurips-inferential", "neurips-symmetric"),
    Claim(_ANSWERS, _N4A, "answer.difference", "inferential"),
    Claim(_MORE, _N4A, "answer.difference", "inferential", "symmetric"),
    Claim(_MERGED, _N3B, "first_layer.unordered", "neurips-symmetric", "neurips-inferential"),
    Claim(_MERGED, _N3B, "first_layer.unordered", "symmetric", "inferential"),
    Claim(
        "outputs under a second-anchor mask are alike where g(x; a1) is equal",
        _C4D,
        "blocks.difference",
        "inferential",
    ),
    Claim(
        "this is more so in phase 3 than in phase 2 with commutativity",
        _C4D,
        "blocks.difference",
        "inferential",
        "symmetric",
    ),
    Claim(
        "this is more so in phase 3 than in phase 2 without commutativity",
        _C4D,
        "blocks.difference",
        "inferential",
        "composite",
    ),
    Claim(
        "outputs under a key mask separate the pairs in phase 2, not in phase 1",
        _C4C,
        "key_mask.ordered",
        "composite",
        "memorizing",
    ),
    Claim(
        "without commutativity (a, b) and (b, a) lie apart, with it they are one",
        _C4C,
        "key_mask.order",
        "composite",
        "symmetric",
    ),
    Claim(
        "with commutativity the clusters are the unordered pairs",
        _C4C,
        "key_mask.unordered",
        "symmetric",
        "composite",
    ),
    Claim(
        "in phase 3 (a, b) and (b, a) are one as well",
        _C4C,
        "key_mask.order",
        "composite",
        "inferential",
    ),
)
"""What the papers say. The directions are those of the papers' text. The list and the level were
committed before the measurement of the runs in ``docs/evidence/contrasts.md``, after exploratory
looks at runs of the same recipes: which numbers are compared was not chosen blindly. The contrast
of X^ao(2) at the end was corrected (comparisons within the anchors in common) after five seeds had
been seen."""


@dataclass(frozen=True)
class Verdict:
    """What the runs say to a claim."""

    claim: Claim
    """The claim."""
    comparison: MeanComparison | None
    """The difference over runs; None where a recipe has fewer than two."""
    holm: float | None
    """Its p, corrected over all claims that were tested."""
    outcome: Outcome
    """``shown`` with a corrected p of :data:`LEVEL` or less in the claim's direction, ``opposite``
    with such a p in the other one, ``too few runs`` where no result could have been ``shown``."""


def rule_contrasts(model: HookedTransformer, task: AnchorTask, *, seed: int = 0) -> RuleContrasts:
    """Every contrast of the papers for one model.

    Args:
        model: a model of the task, of two layers or more.
        task: the task.
        seed: seed of all sequences; the same for models that are compared.

    Raises:
        ConfigError: a model too small for the task, or a task that lacks one of the contrasts.
    """
    return RuleContrasts(
        value=value_similarity(model, task, seed=seed).contrast,
        value_ov=value_similarity(model, task, state="OV", seed=seed).contrast,
        answer=answer_similarity(model, task, seed=seed).contrast,
        blocks=block_similarity(model, task, seed=seed).contrast,
        blocks_renormalised=block_similarity(model, task, renormalise=True, seed=seed).contrast,
        blocks_before=block_similarity(model, task, state="X_ao", seed=seed).contrast,
        key_mask=_grouping(key_mask_clusters(model, task, seed=seed)),
        key_mask_all=_grouping(key_mask_clusters(model, task, pairs=task.pairs, seed=seed)),
        first_layer=_grouping(pair_clusters(model, task, seed=seed)),
        sensitivity=(
            sensitivity(model, task, seed=seed),
            sensitivity(model, task, state="V", place="first", seed=seed),
            sensitivity(model, task, state="X_ao", seed=seed),
        ),
    )


def judge(
    runs: Mapping[str, Sequence[RuleContrasts]], claims: Sequence[Claim] = CLAIMS
) -> tuple[Verdict, ...]:
    """Test claims over independent runs.

    Args:
        runs: of every recipe, its runs; leave out those that are not of the recipe's phase, and
            say so. Five of each recipe are too few to show any of :data:`CLAIMS`, ten are enough.
        claims: what to test; Holm's correction is over these.

    Raises:
        ConfigError: an unknown number, or a run that does not have it.
    """
    comparisons = [_compared(runs, claim) for claim in claims]
    tested = [found for found in comparisons if found is not None]
    corrected = iter(holm([found.p_value for found in tested]))
    at_best = iter(holm([smallest_p(found.n) for found in tested]))
    return tuple(
        Verdict(claim, None, None, "too few runs")
        if found is None
        else _verdict(claim, found, next(corrected), next(at_best))
        for claim, found in zip(claims, comparisons, strict=True)
    )


def _compared(runs: Mapping[str, Sequence[RuleContrasts]], claim: Claim) -> MeanComparison | None:
    if claim.number not in NUMBERS:
        raise ConfigError(f"no number is called {shown(claim.number)}; known: {', '.join(NUMBERS)}")
    larger, smaller = (
        [_known(run, claim.number) for run in runs.get(recipe or "", ())]
        for recipe in (claim.larger, claim.smaller)
    )
    if len(larger) < 2 or (claim.smaller is not None and len(smaller) < 2):
        return None
    return against_zero(larger) if claim.smaller is None else two_samples(larger, smaller)


def _known(run: RuleContrasts, name: str) -> float:
    found = run.number(name)
    if found is None:
        raise ConfigError(f"a run has no {name}; leave it out")
    return float(found)


def _verdict(claim: Claim, found: MeanComparison, corrected: float, at_best: float) -> Verdict:
    outcome: Outcome = "not shown" if at_best <= LEVEL else "too few runs"
    if corrected <= LEVEL:
        outcome = "shown" if found.mean > 0 else "opposite"
    return Verdict(claim, found, corrected, outcome)


def _grouping(found: Clusters) -> Grouping:
    return Grouping(
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
