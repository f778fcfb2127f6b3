"""The ledger: every claim of both papers and some of our own.

Each claim has its sentence (in our words), its source, the statistic that judges it, signed so that
a positive effect is what is claimed, and the smallest effect that counts. Statistics and smallest
effects were written down before the runs of the studies ``phases``, ``complexity``, ``pairs``,
``noise``, ``rates``, ``arbitrary``, ``steps`` and ``branches``, and before those of the seeds from
303 on of ``decay`` and ``depth``, whose seeds 300 to 302 were known. ``docs/results.md`` tells what
was changed after some of these runs had been seen.

Settings and phases go together: nearly all inferential runs of ``phases`` are pre-LayerNorm models.
So claims about phases compare cells of one task, layout and depth, over the runs of ``phases`` and
those of ``decay`` and ``depth`` with seeds that were not known. Five claims about ``decay`` alone
take all of its runs; without the known seeds there are too few.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from .effects import BetweenCells, Difference, Effect, Finding, Mean, Number, Trend, Unexplained
from .judging import Claim, Family, Judgement, judge
from .rows import (
    Row,
    Rows,
    Test,
    fresh,
    having,
    initialised_large,
    initialised_small,
    log_final_loss,
    log_steps,
    moved,
    never_came,
    phase,
    rank_share,
    slowed,
    with_end,
    with_numbered_phase,
    with_side,
)

PHASE_2 = ("composite", "symmetric")
COMPARED = ("phases", "decay", "depth")
"""The studies whose runs are compared by phase."""
DECAY, DEPTH = ("decay",), ("depth",)

_INFERENTIAL, _SYMMETRIC = phase("inferential"), phase("symmetric")
_COMPOSITE, _MEMORIZING, _TWO = phase("composite"), phase("memorizing"), phase(*PHASE_2)
_SMALL, _LARGE = having(side=1), having(side=-1)


def _between_phases(
    number: Number, more: Test, less: Test, *, prepare: Callable[[Rows], Rows] = fresh
) -> Effect:
    """More of a number in runs of some phases than in runs of others, other settings equal."""
    within = ("task", "normalization", "n_layers")
    return BetweenCells(number, more, less, within, studies=COMPARED, prepare=prepare)


def _at_equal_decay(number: Number, more: Test, less: Test) -> Effect:
    return BetweenCells(number, more, less, ("weight_decay",), studies=DECAY)


def _two_layers(rows: Rows) -> Rows:
    return [row for row in fresh(rows) if row["n_layers"] == 2]


def _small_and_broken(row: Row) -> bool:
    return bool(row["gamma"] > 0.5 and row["complexity"])


def _small_and_unbroken(row: Row) -> bool:
    return bool(row["gamma"] > 0.5 and not row["complexity"])


def _moved_anchors(row: Row) -> bool:
    return bool(row["task"] != "complexity-control")


def _late_decay(row: Row) -> bool:
    return bool(row["branch_weight_decay"] == 1.0 and row["branch_step"] * 4 > row["steps"])


def _low_decay_throughout(row: Row) -> bool:
    return bool(row["branch_step"] is None and row["weight_decay"] < 1)


@dataclass(frozen=True)
class Price(Effect):
    """How many more steps complexity 6 takes than 0, small minus large initialisation.

    The number is the log ratio of the steps, one for each gamma and seed.
    """

    column: str
    """The column of the steps."""

    def find(self, rows: Rows) -> Finding:
        """See the class."""
        ends = [row for row in rows if row["status"] == "done" and row["complexity"] in (0, 6)]
        log = log_steps(self.column)
        ratios = []
        for gamma, seed in sorted({(row["gamma"], row["seed"]) for row in ends}):
            pair = [row for row in ends if (row["gamma"], row["seed"]) == (gamma, seed)]
            low, high = (
                next((log(row) for row in pair if row["complexity"] == level), None)
                for level in (0, 6)
            )
            if low is not None and high is not None:
                unreached = any(row.get(self.column) is None for row in pair)
                ratio = None if unreached else high - low
                ratios.append(pair[0] | {"censored": False, "never": unreached, "ratio": ratio})
        found = Difference("ratio", initialised_small, initialised_large).find(ratios)
        note = None
        for sample in (initialised_small, initialised_large):
            unreached_runs = [row["never"] for row in ratios if sample(row)]
            n, of = sum(unreached_runs), len(unreached_runs)
            if 2 * n > of:
                note = f"{n} of {of} seeds of a sample never came there"
        return replace(found, runs=tuple(sorted(row["run_id"] for row in ends)), note=note)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "n4-inferential", source="N 4, figure 2b", minimum=0.3, section="neurips_4",
        sentence="With smaller initial weights the model answers the unseen pair by the rule.",
        statistic="Spearman's correlation of gamma with OOD accuracy at equal depth",
        effect=Trend("gamma", "ood_accuracy", ("n_layers",), studies=DEPTH),
    ),
    Claim(
        "n4-symmetric", source="N 4, figure 2a", minimum=0.3, section="neurips_4",
        sentence="With larger initial weights it answers with the target of the other order.",
        statistic="Spearman's correlation of gamma with symmetric accuracy at equal depth, falling",
        effect=Trend("gamma", "symmetric_accuracy", ("n_layers",), sign=-1, studies=DEPTH),
    ),
    Claim(
        "n4-shadow", source="N 4, figure 2, shaded zone", minimum=0.1, section="neurips_4",
        sentence="With very large initial weights it fails on seen pairs as well, though it fits "
                 "its data.",
        statistic="mean ID accuracy at gammas above the middle one minus below it, converged runs",
        effect=Difference("id_accuracy", _SMALL, _LARGE, studies=DEPTH, prepare=with_side),
    ),
    Claim(
        "n4-shadow-all", source="N 4, figure 2, shaded zone", minimum=0.1, section="neurips_4",
        sentence="With very large initial weights it fails on seen pairs as well, whether or not "
                 "it fits its data.",
        statistic="the same, runs that did not converge among them",
        effect=Difference(
            "id_accuracy", _SMALL, _LARGE, studies=DEPTH, prepare=with_side, untrained=True,
        ),
    ),
    Claim(
        "n4-shadow-deep", source="N 4, figure 2, shaded zone", minimum=0.3, section="neurips_4",
        sentence="It fails on seen pairs the more the deeper the model is.",
        statistic="Spearman's correlation of depth with ID accuracy, gammas below the middle, "
                  "whether or not runs converge, falling",
        effect=Trend(
            "n_layers", "id_accuracy", ("gamma",), _LARGE, -1, studies=DEPTH, prepare=with_side,
            untrained=True,
        ),
    ),
    Claim(
        "n51-symmetric-route", source="N 5.1, figure 3a", minimum=0.3, section="neurips_5_1",
        sentence="In symmetric models layer 1 takes both anchors to the last position and layer 2"
                 " the key.",
        statistic="share of the effect on the symmetric route, symmetric minus inferential runs",
        effect=_between_phases("route_symmetric", _SYMMETRIC, _INFERENTIAL, prepare=_two_layers),
    ),
    Claim(
        "n51-inferential-route", source="N 5.1, figure 3c", minimum=0.2, section="neurips_5_1",
        sentence="In inferential models layer 1 takes the key to the anchors and layer 2 these to"
                 " the last position.",
        statistic="share of the effect on the inferential route, inferential minus symmetric runs",
        effect=_between_phases("route_inferential", _INFERENTIAL, _SYMMETRIC, prepare=_two_layers),
    ),
    Claim(
        "n51-merged", source="N 5.1, figure 3b", minimum=0.05, section="neurips_5_1",
        sentence="In symmetric models X^ao(1) is the same for both orders of a pair.",
        statistic="change of X^ao(1) when anchors change places, composite minus symmetric runs",
        effect=_between_phases("order_first", _COMPOSITE, _SYMMETRIC),
    ),
    Claim(
        "n52-answers", source="N 5.2, figure 4a, 4b", minimum=0.15, section="neurips_5_2",
        sentence="In inferential models equal answers of different pairs have parallel X^ao(L), "
                 "in symmetric ones they have not.",
        statistic="contrast of equal answers against near misses, inferential minus symmetric runs",
        effect=_between_phases("answer", _INFERENTIAL, _SYMMETRIC),
    ),
    Claim(
        "n52-values", source="N 5.2, figure 4c", minimum=0.2, section="neurips_5_2",
        sentence="In inferential models V^(2) at the first anchor is parallel for equal g(x; a1).",
        statistic="contrast of equal values against near misses in OV, the largest of the layers "
                  "from the second on, inferential minus symmetric runs",
        effect=_between_phases("value", _INFERENTIAL, _SYMMETRIC),
    ),
    Claim(
        "n53-condensation", source="N 5.3, figure 5a, 5b", minimum=0.1, section="neurips_5_3",
        sentence="The neurons of W_Q(1) condense in inferential models and not in symmetric ones.",
        statistic="mean |cosine| between neurons, inferential minus symmetric runs",
        effect=_between_phases("condensation", _INFERENTIAL, _SYMMETRIC),
    ),
    Claim(
        "n53-order", source="N 5.3, figure 5c, 5d", minimum=0.1, section="neurips_5_3",
        sentence="The embedded numbers are in order in inferential models and not in symmetric "
                 "ones.",
        statistic="share of the embedding's variance on a smooth curve, inferential minus "
                  "symmetric runs",
        effect=_between_phases("embedding_smooth", _INFERENTIAL, _SYMMETRIC),
    ),
    Claim(
        "nb-eigenvalues", source="N appendix B, figure 7", minimum=0.1, section="neurips_b",
        sentence="The embedding's covariance has few large eigenvalues in inferential models, in "
                 "symmetric ones they are even.",
        statistic="participation ratio over a Gaussian's, symmetric minus inferential runs",
        effect=_between_phases("embedding_dimension", _SYMMETRIC, _INFERENTIAL),
    ),
    Claim(
        "n6-small", source="N 6, figure 6a; C VIII, figure 8A right",
        minimum=0.5, section="neurips_6",
        sentence="A small initialisation needs more steps the more groups of pairs break the rule.",
        statistic="Spearman's correlation of complexity with the steps to a training loss of 0.05",
        effect=Trend(
            "complexity", log_steps("steps_to_loss"), only=initialised_small,
            unreached=never_came("steps_to_loss"), studies=("complexity",), untrained=True,
        ),
    ),
    Claim(
        "n6-large", source="N 6, figure 6b; C VIII, figure 8A left",
        minimum=math.log(1.2), section="neurips_6",
        sentence="A large initialisation needs about the same steps whatever the complexity: less"
                 " of an increase than a small one.",
        statistic="log ratio of the steps at complexity 6 and 0, small minus large initialisation",
        effect=Price("steps_to_loss", studies=("complexity",)),
    ),
    Claim(
        "n6-large-half", source="N 6, figure 6b; C VIII, figure 8A left",
        minimum=math.log(1.2), section="neurips_6",
        sentence="The same up to a training loss of 0.5, which more runs come to.",
        statistic="log ratio of the steps to that loss at complexity 6 and 0, small minus large",
        effect=Price("steps_to_half", studies=("complexity",)),
    ),
    Claim(
        "c4-gamma", source="C IV, figure 3A", minimum=0.3, section="control_4",
        sentence="OOD accuracy rises with gamma.",
        statistic="Spearman's correlation of gamma with OOD accuracy at equal weight decay",
        effect=Trend("gamma", "ood_accuracy", ("weight_decay",), studies=DECAY),
    ),
    Claim(
        "c4-decay", source="C IV, figure 3B", minimum=0.2, section="control_4",
        sentence="OOD accuracy rises with weight decay.",
        statistic="Spearman's correlation of weight decay with OOD accuracy at equal gamma",
        effect=Trend("weight_decay", "ood_accuracy", ("gamma",), studies=DECAY),
    ),
    Claim(
        "c4-phase-2", source="C IV, figure 3A", minimum=0.05, section="control_4",
        sentence="Between memorizing and inferential runs lie some of good ID and poor OOD "
                 "accuracy: they have a larger gamma than memorizing ones,",
        statistic="mean gamma of the cells at equal weight decay, phase 2 minus phase 1",
        effect=_at_equal_decay("gamma", _TWO, _MEMORIZING),
    ),
    Claim(
        "c4-phase-3", source="C IV, figure 3A", minimum=0.05, section="control_4",
        sentence="and a smaller one than inferential runs.",
        statistic="mean gamma of the cells at equal weight decay, phase 3 minus phase 2",
        effect=_at_equal_decay("gamma", _INFERENTIAL, _TWO),
    ),
    Claim(
        "c4-commutes", source="C IV, footnote 2", minimum=0.1, section="control_4",
        sentence="Where OOD accuracy is high commutativity is high as well.",
        statistic="commutativity of the cells at equal weight decay, phase 3 minus phase 2",
        effect=_at_equal_decay("commutativity", _INFERENTIAL, _TWO),
    ),
    Claim(
        "c4-commutativity", source="C IV, figure 3A", minimum=0.3, section="control_4",
        sentence="Within phase 2 commutativity grows with gamma.",
        statistic="Spearman's correlation of gamma with commutativity in phase 2 at equal weight "
                  "decay",
        effect=Trend("gamma", "commutativity", ("weight_decay",), _TWO, studies=DECAY),
    ),
    Claim(
        "c5a-disorder", source="C V-A, figure 4C left", minimum=0.1, section="control_5a",
        sentence="With the key masked, the pairs of a memorizing model do not form clusters; "
                 "those of phase 2 do.",
        statistic="silhouette of unordered pairs, runs of phase 2 minus of phase 1",
        effect=_between_phases("key_mask_pairs", _TWO, _MEMORIZING),
    ),
    Claim(
        "c5a-orders", source="C V-A, figure 4C middle, right", minimum=0.15, section="control_5a",
        sentence="With the key masked, both orders of a pair are two clusters in composite models"
                 " and one in symmetric ones.",
        statistic="silhouette of (a, b) against (b, a), composite minus symmetric runs",
        effect=_between_phases("key_mask_order", _COMPOSITE, _SYMMETRIC),
    ),
    Claim(
        "c5b-blocks", source="C V-B, figure 4D", minimum=0.1, section="control_5b",
        sentence="With the second anchor masked, outputs of equal g(x; a1) are alike in "
                 "inferential models and not in phase 2.",
        statistic="contrast of equal values against near misses, inferential minus phase 2 runs",
        effect=_between_phases("blocks", _INFERENTIAL, _TWO),
    ),
    Claim(
        "c6a-mild", source="C VI-A, figure 5A", minimum=0.05, section="control_6a",
        sentence="The neurons of W_Q(1) condense a little in phase 2: more than in phase 1,",
        statistic="mean |cosine| between neurons, runs of phase 2 minus of phase 1",
        effect=_between_phases("condensation", _TWO, _MEMORIZING),
    ),
    Claim(
        "c6a-strong", source="C VI-A, figure 5A", minimum=0.05, section="control_6a",
        sentence="and less than in phase 3.",
        statistic="mean |cosine| between neurons, inferential minus phase 2 runs",
        effect=_between_phases("condensation", _INFERENTIAL, _TWO),
    ),
    Claim(
        "c6b-steps", source="C VI-B, figure 5B; N 5.3, figure 5c",
        minimum=2.0, section="control_6b",
        sentence="The embedded numbers have steps of 3 and 4 in phase 3, no structure in phases 1"
                 " and 2.",
        statistic="z score of the weaker of the steps 3 and 4, inferential minus other runs",
        effect=_between_phases("embedding_steps", _INFERENTIAL, phase("memorizing", *PHASE_2)),
    ),
    Claim(
        "c6c-first", source="C VI-C, figure 5C", minimum=0.1, section="control_6c",
        sentence="The stable rank of W_Q(1) falls from phase 1 to phase 2,",
        statistic="stable rank over its initial value at equal weight decay, phase 1 minus phase 2",
        effect=_at_equal_decay(rank_share, _MEMORIZING, _TWO),
    ),
    Claim(
        "c6c-second", source="C VI-C, figure 5C", minimum=0.1, section="control_6c",
        sentence="and again from phase 2 to phase 3.",
        statistic="stable rank over its initial value at equal weight decay, phase 2 minus phase 3",
        effect=_at_equal_decay(rank_share, _TWO, _INFERENTIAL),
    ),
    Claim(
        "c6c-within", source="C VI-C, figure 5C", minimum=0.0, section="control_6c",
        sentence="Within a phase it is about the same whatever the settings.",
        statistic="share of the variance within phases that settings do not explain, above one "
                  "half",
        effect=Unexplained(rank_share, "phase", 0.5, studies=DECAY, prepare=with_numbered_phase),
    ),
    Claim(
        "cc-gamma", source="C appendix C, figure 10", minimum=0.3, section="control_c",
        sentence="Condensation grows with gamma,",
        statistic="Spearman's correlation of gamma with condensation at equal weight decay",
        effect=Trend("gamma", "condensation", ("weight_decay",), studies=DECAY),
    ),
    Claim(
        "cc-decay", source="C appendix C, figure 10", minimum=0.3, section="control_c",
        sentence="and with weight decay.",
        statistic="Spearman's correlation of weight decay with condensation at equal gamma",
        effect=Trend("weight_decay", "condensation", ("gamma",), studies=DECAY),
    ),
    Claim(
        "c8b-pairs", source="C VIII, figure 8B", minimum=math.log(1.1), section="control_8",
        sentence="Where (3, 4) and (4, 3) break the rule, a small initialisation learns the four "
                 "pairs of 3 and 4 more slowly than the others.",
        statistic="log ratio of the steps to 60 % accuracy, the four against the others, small "
                  "weights",
        effect=Mean(slowed, _small_and_broken, studies=("pairs",)),
    ),
    Claim(
        "c8b-control", source="C VIII, figure 8B", minimum=math.log(1.1), section="control_8",
        sentence="They are slower than they would be if no pair broke the rule.",
        statistic="the same log ratio, runs with the broken group minus runs without",
        effect=Difference(slowed, _small_and_broken, _small_and_unbroken, studies=("pairs",)),
    ),
    Claim(
        "c8-noise", source="C VIII, last paragraph", minimum=0.3, section="control_8",
        sentence="Data that break the rule are found by how late they are learned.",
        statistic="AUROC of broken groups by lateness, above chance (one half), over tasks",
        effect=Mean("auroc_late", reference=0.5, studies=("noise",)),
    ),
    Claim(
        "n-rates-lr", source="first paper's later version (learning rate x weight decay)",
        minimum=0.3, section="neurips_rates",
        sentence="A larger learning rate makes for the rule.",
        statistic="Spearman's correlation of learning rate with OOD accuracy at equal weight decay",
        effect=Trend("lr", "ood_accuracy", ("weight_decay",), studies=("rates",)),
    ),
    Claim(
        "n-rates-decay", source="first paper's later version (learning rate x weight decay)",
        minimum=0.3, section="neurips_rates",
        sentence="A larger weight decay makes for the rule.",
        statistic="Spearman's correlation of weight decay with OOD accuracy at equal learning rate",
        effect=Trend("weight_decay", "ood_accuracy", ("lr",), studies=("rates",)),
    ),
    Claim(
        "price-of-reasoning", source="C IX, limitations", minimum=math.log(1.2), section="own",
        sentence="A small initialisation memorizes arbitrary mappings more slowly than a large "
                 "one.",
        statistic="log ratio of the steps to a training loss of 0.05 without any rule, small "
                  "against large",
        effect=Difference(
            log_steps("steps_to_loss"), having(end=1), having(end=-1),
            never_came("steps_to_loss"), studies=("arbitrary",), prepare=with_end, untrained=True,
        ),
    ),
    Claim(
        "price-in-loss", source="C IX, limitations", minimum=math.log(1.2), section="own",
        sentence="A small initialisation memorizes arbitrary mappings worse than a large one.",
        statistic="log ratio of the training loss at the end without any rule, small against large",
        effect=Difference(
            log_final_loss, having(end=1), having(end=-1), studies=("arbitrary",),
            prepare=with_end, untrained=True,
        ),
    ),
    Claim(
        "distance-travelled", source="N 5.3 (changing parameters slightly)",
        minimum=0.5, section="own",
        sentence="Memorizing models stay near their initial weights, inferential ones travel far.",
        statistic="relative distance from initialisation, inferential minus memorizing runs",
        effect=_between_phases("distance", _INFERENTIAL, _MEMORIZING),
    ),
    Claim(
        "moved-steps", source="our prediction, from C VI-B", minimum=4.0, section="control_6b",
        sentence="With anchors whose differences are sums of 2 and 5 the embedding has steps of 2"
                 " and 5.",
        statistic="z of the steps 2 and 5 over 3 and 4, such anchors minus the papers'",
        effect=Difference(
            moved, _moved_anchors, having(task="complexity-control"), studies=("steps",),
        ),
    ),
    Claim(
        "late-decay", source="our question, from C IV (weight decay controls complexity)",
        minimum=0.3, section="own",
        sentence="Weight decay that sets in after a third of the training still leads to the rule.",
        statistic="OOD accuracy, weight decay 1 from a third of the steps on minus 0.01 throughout",
        effect=Difference(
            "ood_accuracy", _late_decay, _low_decay_throughout, studies=("branches",),
        ),
    ),
    Claim(
        "c7-concepts", source="C VII, figure 6", minimum=0.3,
        sentence="A diffusion model composes unseen concept tuples once its initialisation is "
                 "small.",
        statistic="share of right shapes on the unseen tuples, small minus default initialisation",
    ),
    Claim(
        "c7-scan", source="C VII, figure 7A", minimum=0.1,
        sentence="On SCAN a small initialisation and large weight decay generalise to a held-out "
                 "primitive.",
        statistic="exact-match accuracy on held-out commands, small minus large initialisation",
    ),
    Claim(
        "c7-cogs", source="C VII, figure 7B", minimum=0.1,
        sentence="On COGS they generalise to other combinations, at equal ID accuracy.",
        statistic="exact-match accuracy on the generalisation set, small minus large "
                  "initialisation",
    ),
    Claim(
        "c7-addition", source="C VII, figure 7C", minimum=0.1,
        sentence="On addition they learn the rule for held-out cases.",
        statistic="accuracy on the held-out square of operands, small minus large initialisation",
    ),
    Claim(
        "c7-slimpajama", source="C VII, figure 7D", minimum=0.01,
        sentence="On natural text a smaller initialisation has a lower perplexity.",
        statistic="log perplexity after equal training, large minus small initialisation",
    ),
    Claim(
        "c7-prontoqa", source="C VII, figure 7E", minimum=0.1,
        sentence="On PrOntoQA they generalise better.",
        statistic="test accuracy at equal data, small minus large initialisation",
    ),
)  # fmt: skip
"""The claims on realistic tasks have no study and count as not run."""

LEDGER = Family(CLAIMS)


def section_claims(section: str) -> tuple[Claim, ...]:
    """The claims that one section's script shows."""
    return tuple(claim for claim in CLAIMS if claim.section == section)


def judge_ledger(tables: Mapping[str, Rows]) -> dict[str, Judgement]:
    """The judgement of every claim of the ledger, by name; ``tables`` holds rows by study.

    Raises:
        StoreError: a table lacks a column that a claim needs.
    """
    return judge(LEDGER, tables)
