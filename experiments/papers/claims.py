"""Every claim of both papers, and some of our own, as a list that runs can be held against.

A claim has its sentence (in our words), where it stands, the statistic that it is judged by, turned
so that a positive effect is what is claimed, and the smallest effect that counts. Statistics and
smallest effects were written down before the runs of the studies ``phases``, ``complexity``,
``pairs``, ``noise``, ``rates``, ``arbitrary``, ``steps`` and ``branches``, and before those of the
seeds from 303 on of ``decay`` and ``depth``, whose seeds 300 to 302 were known. What was changed
after some of these runs had been seen is told in ``docs/results.md``.

Phases come with settings: nearly all inferential runs of ``phases`` are pre-LayerNorm models. So
claims that compare phases compare cells of one task, layout and depth with each other; those of
``decay`` and ``depth`` that were trained after the claims were written stand beside those of
``phases``. Five that look at ``decay`` alone take all of its runs.

"N" is the NeurIPS paper, "C" the complexity-control paper. :func:`judge_ledger` needs nothing but
the studies' tables.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anchor_interp._util.errors import StoreError
from anchor_interp.tasks.anchor import Pair

from .judging import (
    Finding,
    Judgement,
    Row,
    Test,
    between_cells,
    difference,
    having,
    judge,
    mean,
    phase,
    trend,
    unexplained,
)
from .measures import pair_steps

Tables = Mapping[str, Sequence[Row]]
"""Rows by study."""


PHASE_2 = ("composite", "symmetric")


COMPARED = ("phases", "decay", "depth")
"""The studies whose runs are compared by phase."""


@dataclass(frozen=True)
class Claim:
    """A sentence that runs can support or not."""

    name: str
    """A short name."""
    sentence: str
    """The claim."""
    source: str
    """Where it stands."""
    statistic: str
    """The effect that is measured; positive as claimed."""
    minimum: float
    """The smallest effect that counts."""
    section: str | None = None
    """The script under ``experiments/`` that shows it; None of a claim on a task that is not there
    yet."""
    studies: tuple[str, ...] = ()
    """The studies whose runs it needs; none of a claim on a task that is not there yet."""
    find: Callable[[Tables], Finding] | None = None
    """From the studies' tables to the finding."""


KNOWN_SEEDS = frozenset((300, 301, 302))
"""Seeds of ``decay`` and ``depth`` at ``tiny`` that were known when the claims were written."""


_ALIKE = ("task", "normalization", "n_layers")
"""What runs of different phases must have in common to be compared."""


def _log_steps(row: Row, column: str = "steps_to_loss") -> float | None:
    """Natural logarithm of the steps to a training loss; of a run that never came, of all."""
    if row.get("final_loss") is None:  # not measured
        return None
    return math.log(row.get(column) or row["steps"])


def _never(row: Row, column: str = "steps_to_loss") -> bool:
    return row.get(column) is None


def _log_final_loss(row: Row) -> float | None:
    return math.log(row["final_loss"]) if row.get("final_loss") else None


_NUMBERED = {"memorizing": 1, "composite": 2, "symmetric": 2, "inferential": 3}
"""Phases as the complexity-control paper counts them (section IV)."""


def _in_a_phase(row: Row) -> bool:
    return row["phase"] in _NUMBERED


def _rank_share(row: Row) -> float | None:
    if row["stable_rank"] is None or not row["stable_rank_at_init"]:
        return None
    return float(row["stable_rank"] / row["stable_rank_at_init"])


def of_three_and_four(pair: Pair) -> bool:
    """Whether a pair is made of the anchors whose groups ``pairs`` breaks (figure 8B of C)."""
    return set(pair) <= {3, 4}


def _slowed(row: Row) -> float | None:
    """How much longer the four pairs of 3 and 4 take than the others, as a log ratio."""
    steps = pair_steps(row)
    slow = [math.log(value) for pair, value in steps.items() if of_three_and_four(pair)]
    rest = [math.log(value) for pair, value in steps.items() if not of_three_and_four(pair)]
    if not slow or not rest:
        return None
    return sum(slow) / len(slow) - sum(rest) / len(rest)


def _moved(row: Row) -> float | None:
    """How much more the steps 2 and 5 stand out of the embedding than 3 and 4, in z."""
    zs = [float(z) for step in (2, 5, 3, 4) if (z := row.get(f"step_z_{step}")) is not None]
    return min(zs[:2]) - min(zs[2:]) if len(zs) == 4 else None


def _initialised(small: bool) -> Callable[[Row], bool]:
    return lambda row: (row["gamma"] > 0.5) == small


def _small_and_broken(row: Row) -> bool:
    return bool(row["gamma"] > 0.5 and row["complexity"])


def _price(rows: Sequence[Row], column: str) -> Finding:
    """Whether complexity costs a small initialisation more steps than a large one."""
    ends = [row for row in rows if row["status"] == "done" and row["complexity"] in (0, 6)]
    ratios = []
    for gamma in sorted({row["gamma"] for row in ends}):
        for seed in sorted({row["seed"] for row in ends}):
            pair = [row for row in ends if (row["gamma"], row["seed"]) == (gamma, seed)]
            low, high = (
                next((_log_steps(row, column) for row in pair if row["complexity"] == level), None)
                for level in (0, 6)
            )
            if low is not None and high is not None:
                never = any(_never(row, column) for row in pair)
                ratio = None if never else high - low
                ratios.append({**pair[0], "censored": False, "never": never, "ratio": ratio})
    small, large = _initialised(True), _initialised(False)
    found = difference(ratios, "ratio", small, large)
    note = None
    for test in (small, large):
        mine = [row["never"] for row in ratios if test(row)]
        if 2 * sum(mine) > len(mine):
            note = f"{sum(mine)} of {len(mine)} seeds of a sample never came there"
    return replace(found, runs=tuple(sorted(row["run_id"] for row in ends)), note=note)


def _shadow(rows: Sequence[Row], *, untrained: bool) -> Finding:
    middle = statistics.median(sorted({row["gamma"] for row in rows}))
    return difference(
        rows,
        "id_accuracy",
        lambda row: row["gamma"] > middle,
        lambda row: row["gamma"] < middle,
        untrained=untrained,
    )


def _deeper(rows: Sequence[Row]) -> Finding:
    middle = statistics.median(sorted({row["gamma"] for row in rows}))
    large = [row for row in rows if row["gamma"] < middle]
    return trend(large, "n_layers", "id_accuracy", within=("gamma",), sign=-1, untrained=True)


def _ends(
    rows: Sequence[Row],
    of: Callable[[Row], float | None],
    *,
    unreached: Test = lambda _: False,
) -> Finding:
    """The largest gamma minus the smallest, whether or not runs converge."""
    gammas = [row["gamma"] for row in rows]
    small, large = having(gamma=max(gammas)), having(gamma=min(gammas))
    return difference(rows, of, small, large, untrained=True, unreached=unreached)


def _later(tables: Tables) -> list[Row]:
    """The runs whose phases are compared: all but those known before, each once."""
    found: dict[str, Row] = {}
    for name in COMPARED:
        for row in tables.get(name, ()):
            if name == "phases" or row["seed"] not in KNOWN_SEEDS:
                found.setdefault(row["run_id"], row)
    return list(found.values())


def _phases(
    number: str, more: Test, less: Test, *, within: tuple[str, ...] = _ALIKE, **having_: Any
) -> dict[str, Any]:
    """A claim that runs of some phases have more of a number than those of others."""

    def find(tables: Tables) -> Finding:
        rows = [row for row in _later(tables) if having(**having_)(row)]
        return between_cells(rows, number, more, less, within=within)

    return {"studies": COMPARED, "find": find}


def _at_equal_decay(
    rows: Sequence[Row], of: Callable[[Row], float | None] | str, more: Test, less: Test
) -> Finding:
    """Of all runs of ``decay``, those of the known seeds among them: the others are too few."""
    return between_cells(rows, of, more, less, within=("weight_decay",))


def _in(study: str, find: Callable[[Sequence[Row]], Finding]) -> dict[str, Any]:
    return {"studies": (study,), "find": lambda tables: find(tables[study])}


_INFERENTIAL, _SYMMETRIC = phase("inferential"), phase("symmetric")


_COMPOSITE, _MEMORIZING, _TWO = phase("composite"), phase("memorizing"), phase(*PHASE_2)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "n4-inferential",
        "With smaller initial weights the model answers the unseen pair by the rule.",
        "N 4, figure 2b",
        "Spearman's correlation of gamma with OOD accuracy at equal depth",
        0.3,
        "neurips_4",
        **_in("depth", lambda rows: trend(rows, "gamma", "ood_accuracy", within=("n_layers",))),
    ),
    Claim(
        "n4-symmetric",
        "With larger initial weights it answers with the target of the other order.",
        "N 4, figure 2a",
        "Spearman's correlation of gamma with symmetric accuracy at equal depth, falling",
        0.3,
        "neurips_4",
        **_in(
            "depth",
            lambda rows: trend(rows, "gamma", "symmetric_accuracy", within=("n_layers",), sign=-1),
        ),
    ),
    Claim(
        "n4-shadow",
        "With very large initial weights it fails on seen pairs as well, though it fits its data.",
        "N 4, figure 2, shaded zone",
        "mean ID accuracy at gammas above the middle one minus below it, converged runs",
        0.1,
        "neurips_4",
        **_in("depth", lambda rows: _shadow(rows, untrained=False)),
    ),
    Claim(
        "n4-shadow-all",
        "With very large initial weights it fails on seen pairs as well, whether or not it fits "
        "its data.",
        "N 4, figure 2, shaded zone",
        "the same, runs that did not converge among them",
        0.1,
        "neurips_4",
        **_in("depth", lambda rows: _shadow(rows, untrained=True)),
    ),
    Claim(
        "n4-shadow-deep",
        "It fails on seen pairs the more the deeper the model is.",
        "N 4, figure 2, shaded zone",
        "Spearman's correlation of depth with ID accuracy, gammas below the middle, whether or not "
        "runs converge, falling",
        0.3,
        "neurips_4",
        **_in("depth", _deeper),
    ),
    Claim(
        "n51-symmetric-route",
        "In symmetric models layer 1 takes both anchors to the last position and layer 2 the key.",
        "N 5.1, figure 3a",
        "share of the effect on the symmetric route, symmetric minus inferential runs",
        0.3,
        "neurips_5_1",
        **_phases("route_symmetric", _SYMMETRIC, _INFERENTIAL, n_layers=2),
    ),
    Claim(
        "n51-inferential-route",
        "In inferential models layer 1 takes the key to the anchors and layer 2 these to the last "
        "position.",
        "N 5.1, figure 3c",
        "share of the effect on the inferential route, inferential minus symmetric runs",
        0.2,
        "neurips_5_1",
        **_phases("route_inferential", _INFERENTIAL, _SYMMETRIC, n_layers=2),
    ),
    Claim(
        "n51-merged",
        "In symmetric models X^ao(1) is the same for both orders of a pair.",
        "N 5.1, figure 3b",
        "change of X^ao(1) when anchors change places, composite minus symmetric runs",
        0.05,
        "neurips_5_1",
        **_phases("order_first", _COMPOSITE, _SYMMETRIC),
    ),
    Claim(
        "n52-answers",
        "In inferential models equal answers of different pairs have parallel X^ao(L), in "
        "symmetric ones they have not.",
        "N 5.2, figure 4a, 4b",
        "contrast of equal answers against near misses, inferential minus symmetric runs",
        0.15,
        "neurips_5_2",
        **_phases("answer", _INFERENTIAL, _SYMMETRIC),
    ),
    Claim(
        "n52-values",
        "In inferential models V^(2) at the first anchor is parallel for equal g(x; a1).",
        "N 5.2, figure 4c",
        "contrast of equal values against near misses in OV, the largest of the layers from the "
        "second on, inferential minus symmetric runs",
        0.2,
        "neurips_5_2",
        **_phases("value", _INFERENTIAL, _SYMMETRIC),
    ),
    Claim(
        "n53-condensation",
        "The neurons of W_Q(1) condense in inferential models and not in symmetric ones.",
        "N 5.3, figure 5a, 5b",
        "mean |cosine| between neurons, inferential minus symmetric runs",
        0.1,
        "neurips_5_3",
        **_phases("condensation", _INFERENTIAL, _SYMMETRIC),
    ),
    Claim(
        "n53-order",
        "The embedded numbers are in order in inferential models and not in symmetric ones.",
        "N 5.3, figure 5c, 5d",
        "share of the embedding's variance on a smooth curve, inferential minus symmetric runs",
        0.1,
        "neurips_5_3",
        **_phases("embedding_smooth", _INFERENTIAL, _SYMMETRIC),
    ),
    Claim(
        "nb-eigenvalues",
        "The embedding's covariance has few large eigenvalues in inferential models, in symmetric "
        "ones they are even.",
        "N appendix B, figure 7",
        "participation ratio over a Gaussian's, symmetric minus inferential runs",
        0.1,
        "neurips_b",
        **_phases("embedding_dimension", _SYMMETRIC, _INFERENTIAL),
    ),
    Claim(
        "n6-small",
        "A small initialisation needs more steps the more groups of pairs break the rule.",
        "N 6, figure 6a; C VIII, figure 8A right",
        "Spearman's correlation of complexity with the steps to a training loss of 0.05",
        0.5,
        "neurips_6",
        **_in(
            "complexity",
            lambda rows: trend(
                rows,
                "complexity",
                _log_steps,
                only=_initialised(True),
                untrained=True,
                unreached=_never,
            ),
        ),
    ),
    Claim(
        "n6-large",
        "A large initialisation needs about the same steps whatever the complexity: less of an "
        "increase than a small one.",
        "N 6, figure 6b; C VIII, figure 8A left",
        "log ratio of the steps at complexity 6 and 0, small minus large initialisation",
        math.log(1.2),
        "neurips_6",
        **_in("complexity", lambda rows: _price(rows, "steps_to_loss")),
    ),
    Claim(
        "n6-large-half",
        "The same up to a training loss of 0.5, which more runs come to.",
        "N 6, figure 6b; C VIII, figure 8A left",
        "log ratio of the steps to that loss at complexity 6 and 0, small minus large",
        math.log(1.2),
        "neurips_6",
        **_in("complexity", lambda rows: _price(rows, "steps_to_half")),
    ),
    Claim(
        "c4-gamma",
        "OOD accuracy rises with gamma.",
        "C IV, figure 3A",
        "Spearman's correlation of gamma with OOD accuracy at equal weight decay",
        0.3,
        "control_4",
        **_in("decay", lambda rows: trend(rows, "gamma", "ood_accuracy", within=("weight_decay",))),
    ),
    Claim(
        "c4-decay",
        "OOD accuracy rises with weight decay.",
        "C IV, figure 3B",
        "Spearman's correlation of weight decay with OOD accuracy at equal gamma",
        0.2,
        "control_4",
        **_in("decay", lambda rows: trend(rows, "weight_decay", "ood_accuracy", within=("gamma",))),
    ),
    Claim(
        "c4-phase-2",
        "Between memorizing and inferential runs lie some of good ID and poor OOD accuracy: they "
        "have a larger gamma than memorizing ones,",
        "C IV, figure 3A",
        "mean gamma of the cells at equal weight decay, phase 2 minus phase 1",
        0.05,
        "control_4",
        **_in("decay", lambda rows: _at_equal_decay(rows, "gamma", _TWO, _MEMORIZING)),
    ),
    Claim(
        "c4-phase-3",
        "and a smaller one than inferential runs.",
        "C IV, figure 3A",
        "mean gamma of the cells at equal weight decay, phase 3 minus phase 2",
        0.05,
        "control_4",
        **_in("decay", lambda rows: _at_equal_decay(rows, "gamma", _INFERENTIAL, _TWO)),
    ),
    Claim(
        "c4-commutes",
        "Where OOD accuracy is high commutativity is high as well.",
        "C IV, footnote 2",
        "commutativity of the cells at equal weight decay, phase 3 minus phase 2",
        0.1,
        "control_4",
        **_in("decay", lambda rows: _at_equal_decay(rows, "commutativity", _INFERENTIAL, _TWO)),
    ),
    Claim(
        "c4-commutativity",
        "Within phase 2 commutativity grows with gamma.",
        "C IV, figure 3A",
        "Spearman's correlation of gamma with commutativity in phase 2 at equal weight decay",
        0.3,
        "control_4",
        **_in(
            "decay",
            lambda rows: trend(rows, "gamma", "commutativity", within=("weight_decay",), only=_TWO),
        ),
    ),
    Claim(
        "c5a-disorder",
        "With the key masked, the pairs of a memorizing model do not form clusters; those of "
        "phase 2 do.",
        "C V-A, figure 4C left",
        "silhouette of unordered pairs, runs of phase 2 minus of phase 1",
        0.1,
        "control_5a",
        **_phases("key_mask_pairs", _TWO, _MEMORIZING),
    ),
    Claim(
        "c5a-orders",
        "With the key masked, both orders of a pair are two clusters in composite models and one "
        "in symmetric ones.",
        "C V-A, figure 4C middle, right",
        "silhouette of (a, b) against (b, a), composite minus symmetric runs",
        0.15,
        "control_5a",
        **_phases("key_mask_order", _COMPOSITE, _SYMMETRIC),
    ),
    Claim(
        "c5b-blocks",
        "With the second anchor masked, outputs of equal g(x; a1) are alike in inferential models "
        "and not in phase 2.",
        "C V-B, figure 4D",
        "contrast of equal values against near misses, inferential minus phase 2 runs",
        0.1,
        "control_5b",
        **_phases("blocks", _INFERENTIAL, _TWO),
    ),
    Claim(
        "c6a-mild",
        "The neurons of W_Q(1) condense a little in phase 2: more than in phase 1,",
        "C VI-A, figure 5A",
        "mean |cosine| between neurons, runs of phase 2 minus of phase 1",
        0.05,
        "control_6a",
        **_phases("condensation", _TWO, _MEMORIZING),
    ),
    Claim(
        "c6a-strong",
        "and less than in phase 3.",
        "C VI-A, figure 5A",
        "mean |cosine| between neurons, inferential minus phase 2 runs",
        0.05,
        "control_6a",
        **_phases("condensation", _INFERENTIAL, _TWO),
    ),
    Claim(
        "c6b-steps",
        "The embedded numbers have steps of 3 and 4 in phase 3, no structure in phases 1 and 2.",
        "C VI-B, figure 5B; N 5.3, figure 5c",
        "z score of the weaker of the steps 3 and 4, inferential minus other runs",
        2.0,
        "control_6b",
        **_phases("embedding_steps", _INFERENTIAL, phase("memorizing", *PHASE_2)),
    ),
    Claim(
        "c6c-first",
        "The stable rank of W_Q(1) falls from phase 1 to phase 2,",
        "C VI-C, figure 5C",
        "stable rank over its initial value at equal weight decay, phase 1 minus phase 2",
        0.1,
        "control_6c",
        **_in("decay", lambda rows: _at_equal_decay(rows, _rank_share, _MEMORIZING, _TWO)),
    ),
    Claim(
        "c6c-second",
        "and again from phase 2 to phase 3.",
        "C VI-C, figure 5C",
        "stable rank over its initial value at equal weight decay, phase 2 minus phase 3",
        0.1,
        "control_6c",
        **_in("decay", lambda rows: _at_equal_decay(rows, _rank_share, _TWO, _INFERENTIAL)),
    ),
    Claim(
        "c6c-within",
        "Within a phase it is about the same whatever the settings.",
        "C VI-C, figure 5C",
        "share of the variance within phases that settings do not explain, above one half",
        0.0,
        "control_6c",
        **_in(
            "decay",
            lambda rows: unexplained(
                [{**row, "phase": _NUMBERED[row["phase"]]} for row in rows if _in_a_phase(row)],
                _rank_share,
                "phase",
                more_than=0.5,
            ),
        ),
    ),
    Claim(
        "cc-gamma",
        "Condensation grows with gamma,",
        "C appendix C, figure 10",
        "Spearman's correlation of gamma with condensation at equal weight decay",
        0.3,
        "control_c",
        **_in("decay", lambda rows: trend(rows, "gamma", "condensation", within=("weight_decay",))),
    ),
    Claim(
        "cc-decay",
        "and with weight decay.",
        "C appendix C, figure 10",
        "Spearman's correlation of weight decay with condensation at equal gamma",
        0.3,
        "control_c",
        **_in("decay", lambda rows: trend(rows, "weight_decay", "condensation", within=("gamma",))),
    ),
    Claim(
        "c8b-pairs",
        "Where (3, 4) and (4, 3) break the rule, a small initialisation learns the four pairs of 3 "
        "and 4 more slowly than the others.",
        "C VIII, figure 8B",
        "log ratio of the steps to 60 % accuracy, the four against the others, small weights",
        math.log(1.1),
        "control_8",
        **_in("pairs", lambda rows: mean(rows, _slowed, _small_and_broken)),
    ),
    Claim(
        "c8b-control",
        "They are slower than they would be if no pair broke the rule.",
        "C VIII, figure 8B",
        "the same log ratio, runs with the broken group minus runs without",
        math.log(1.1),
        "control_8",
        **_in(
            "pairs",
            lambda rows: difference(
                rows,
                _slowed,
                _small_and_broken,
                lambda row: row["gamma"] > 0.5 and not row["complexity"],
            ),
        ),
    ),
    Claim(
        "c8-noise",
        "Data that break the rule are found by how late they are learned.",
        "C VIII, last paragraph",
        "AUROC of broken groups by lateness, above chance (one half), over tasks",
        0.3,
        "control_8",
        **_in("noise", lambda rows: mean(rows, "auroc_late", at_least=0.5)),
    ),
    Claim(
        "n-rates-lr",
        "A larger learning rate makes for the rule.",
        "first paper's later version (learning rate x weight decay)",
        "Spearman's correlation of learning rate with OOD accuracy at equal weight decay",
        0.3,
        "neurips_rates",
        **_in("rates", lambda rows: trend(rows, "lr", "ood_accuracy", within=("weight_decay",))),
    ),
    Claim(
        "n-rates-decay",
        "A larger weight decay makes for the rule.",
        "first paper's later version (learning rate x weight decay)",
        "Spearman's correlation of weight decay with OOD accuracy at equal learning rate",
        0.3,
        "neurips_rates",
        **_in("rates", lambda rows: trend(rows, "weight_decay", "ood_accuracy", within=("lr",))),
    ),
    Claim(
        "price-of-reasoning",
        "A small initialisation memorizes arbitrary mappings more slowly than a large one.",
        "C IX, limitations",
        "log ratio of the steps to a training loss of 0.05 without any rule, small against large",
        math.log(1.2),
        "own",
        **_in("arbitrary", lambda rows: _ends(rows, _log_steps, unreached=_never)),
    ),
    Claim(
        "price-in-loss",
        "A small initialisation memorizes arbitrary mappings worse than a large one.",
        "C IX, limitations",
        "log ratio of the training loss at the end without any rule, small against large",
        math.log(1.2),
        "own",
        **_in("arbitrary", lambda rows: _ends(rows, _log_final_loss)),
    ),
    Claim(
        "distance-travelled",
        "Memorizing models stay near their initial weights, inferential ones travel far.",
        "N 5.3 (changing parameters slightly)",
        "relative distance from initialisation, inferential minus memorizing runs",
        0.5,
        "own",
        **_phases("distance", _INFERENTIAL, _MEMORIZING),
    ),
    Claim(
        "moved-steps",
        "With anchors whose differences are sums of 2 and 5 the embedding has steps of 2 and 5.",
        "our prediction, from C VI-B",
        "z of the steps 2 and 5 over 3 and 4, such anchors minus the papers'",
        4.0,
        "control_6b",
        **_in(
            "steps",
            lambda rows: difference(
                rows,
                _moved,
                lambda row: row["task"] != "complexity-control",
                having(task="complexity-control"),
            ),
        ),
    ),
    Claim(
        "late-decay",
        "Weight decay that sets in after a third of the training still leads to the rule.",
        "our question, from C IV (weight decay controls complexity)",
        "OOD accuracy, weight decay 1 from a third of the steps on minus 0.01 throughout",
        0.3,
        "own",
        **_in(
            "branches",
            lambda rows: difference(
                rows,
                "ood_accuracy",
                lambda row: (
                    row["branch_weight_decay"] == 1.0 and row["branch_step"] * 4 > row["steps"]
                ),
                lambda row: row["branch_step"] is None and row["weight_decay"] < 1,
            ),
        ),
    ),
    Claim(
        "c7-concepts",
        "A diffusion model composes unseen concept tuples once its initialisation is small.",
        "C VII, figure 6",
        "share of right shapes on the unseen tuples, small minus default initialisation",
        0.3,
    ),
    Claim(
        "c7-scan",
        "On SCAN a small initialisation and large weight decay generalise to a held-out primitive.",
        "C VII, figure 7A",
        "exact-match accuracy on held-out commands, small minus large initialisation",
        0.1,
    ),
    Claim(
        "c7-cogs",
        "On COGS they generalise to other combinations, at equal ID accuracy.",
        "C VII, figure 7B",
        "exact-match accuracy on the generalisation set, small minus large initialisation",
        0.1,
    ),
    Claim(
        "c7-addition",
        "On addition they learn the rule for held-out cases.",
        "C VII, figure 7C",
        "accuracy on the held-out square of operands, small minus large initialisation",
        0.1,
    ),
    Claim(
        "c7-slimpajama",
        "On natural text a smaller initialisation has a lower perplexity.",
        "C VII, figure 7D",
        "log perplexity after equal training, large minus small initialisation",
        0.01,
    ),
    Claim(
        "c7-prontoqa",
        "On PrOntoQA they generalise better.",
        "C VII, figure 7E",
        "test accuracy at equal data, small minus large initialisation",
        0.1,
    ),
)
"""The ledger. Realistic tasks have no study yet and count as not run."""


def section_claims(section: str) -> tuple[Claim, ...]:
    """The claims that one section's script shows."""
    return tuple(claim for claim in CLAIMS if claim.section == section)


def judge_ledger(tables: Tables, claims: Sequence[Claim] = CLAIMS) -> dict[str, Judgement]:
    """The verdict on every claim, by name.

    Args:
        tables: the rows of every study that was run.
        claims: the claims; p-values are adjusted for these together.

    Raises:
        StoreError: a table lacks a column that a claim needs.
    """
    findings = {claim.name: _found(claim, tables) for claim in claims}
    return judge(findings, {claim.name: claim.minimum for claim in claims})


def _found(claim: Claim, tables: Tables) -> Finding | None:
    if claim.find is None or not all(tables.get(name) for name in claim.studies):
        return None
    try:
        return claim.find(tables)
    except KeyError as error:
        raise StoreError(
            f"the claim {claim.name} needs the column {error.args[0]}, which the table of "
            f"{' or '.join(claim.studies)} lacks; remove the table to have it made anew"
        ) from error
