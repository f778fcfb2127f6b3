"""The ledger: every claim of both papers and some of our own.

``claims.toml`` has their sentences, sources and smallest effects; here are the statistics that
judge them. All were written down before the runs of the studies ``phases``, ``complexity``,
``pairs``, ``noise``, ``rates``, ``arbitrary``, ``steps`` and ``branches``, and before those of the
seeds from 303 on of ``decay`` and ``depth``, whose seeds 300 to 302 were known.
``docs/results.md`` tells what was changed after some of these runs had been seen.

Settings and phases go together: nearly all inferential runs of ``phases`` are pre-LayerNorm models.
So claims about phases compare cells of one task, layout and depth, over the runs of ``phases`` and
those of ``decay`` and ``depth`` with seeds that were not known. Five claims about ``decay`` alone
take all of its runs; without the known seeds there are too few.
"""

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .effects import BetweenCells, Difference, Effect, Finding, Mean, Number, Trend, Unexplained
from .judging import Claim, Family, Judgement, judge
from .rises import (
    CELL,
    Rise,
    Summary,
    below_middle,
    beside_middle,
    best,
    majority,
    mean,
    outside_zone,
    spread,
)
from .rows import (
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
)

PHASE_2 = ("composite", "symmetric")
FIGURE_2 = ("figure2",)
COMPARED = ("phases", "decay", "depth")  # the studies whose runs are compared by phase
DECAY = ("decay",)

_INFERENTIAL, _SYMMETRIC = phase("inferential"), phase("symmetric")
_COMPOSITE, _MEMORIZING, _TWO = phase("composite"), phase("memorizing"), phase(*PHASE_2)
_SHADOW = Rise(number=mean("id_accuracy"), x="side", prepare=beside_middle, studies=FIGURE_2)
_ENDS = having(end=1), having(end=-1)
_ARBITRARY: dict[str, Any] = {"studies": ("arbitrary",), "prepare": with_end, "untrained": True}


def _between_phases(
    number: Number, more: Test, less: Test, *, prepare: Callable[[Rows], Rows] = fresh
) -> Effect:
    """More of a number in runs of some phases than in runs of others, other settings equal."""
    within = ("task", "normalization", "n_layers")
    return BetweenCells(number, more, less, within, studies=COMPARED, prepare=prepare)


def _at_equal_decay(number: Number, more: Test, less: Test) -> Effect:
    return BetweenCells(number, more, less, ("weight_decay",), studies=DECAY)


def _in_figure_2(summary: Callable[[str], Summary], column: str, **more: Any) -> Rise:
    """How far a number rises with gamma outside the shaded zone.

    The zone is that of the best rates where the number is theirs, else that of every run.
    """
    zone = outside_zone(best if summary is best else mean)
    return Rise(number=summary(column), prepare=zone, untrained=True, studies=FIGURE_2, **more)


def _two_layers(rows: Rows) -> Rows:
    return [row for row in fresh(rows) if row["n_layers"] == 2]


def _small(*, broken: bool) -> Test:
    return lambda row: initialised_small(row) and bool(row["complexity"]) == broken


@dataclass(frozen=True)
class Price(Effect):
    """How many more steps complexity 6 takes than 0, small minus large initialisation.

    The number is the log ratio of the steps, one for each gamma and seed.
    """

    column: str  # the column of the steps

    def find(self, rows: Rows) -> Finding:
        """See the class."""
        ends = [row for row in rows if row["status"] == "done" and row["complexity"] in (0, 6)]
        at = {(row["gamma"], row["seed"], row["complexity"]): row for row in ends}
        log, ratios = log_steps(self.column), []
        for gamma, seed in sorted({(row["gamma"], row["seed"]) for row in ends}):
            pair = [at[gamma, seed, level] for level in (0, 6) if (gamma, seed, level) in at]
            steps = [n for row in pair if (n := log(row)) is not None]
            if len(steps) == 2:
                never = any(row.get(self.column) is None for row in pair)
                ratio = None if never else steps[1] - steps[0]
                ratios.append(pair[0] | {"censored": False, "never": never, "ratio": ratio})
        found = Difference("ratio", initialised_small, initialised_large).find(ratios)
        note = None
        for sample in (initialised_small, initialised_large):
            never_there = [row["never"] for row in ratios if sample(row)]
            if 2 * (n := sum(never_there)) > (of := len(never_there)):
                note = f"{n} of {of} seeds of a sample never came there"
        return replace(found, runs=tuple(sorted(row["run_id"] for row in ends)), note=note)


_EFFECTS: Mapping[str, Effect] = {
    "n4-inferential": _in_figure_2(best, "ood_accuracy"),
    "n4-symmetric": _in_figure_2(best, "symmetric_accuracy", sign=-1),
    "n4-inferential-mean": _in_figure_2(mean, "ood_accuracy"),
    "n4-symmetric-mean": _in_figure_2(mean, "symmetric_accuracy", sign=-1),
    "n4-inferential-most": _in_figure_2(majority, "ood_accuracy"),
    "n4-symmetric-most": _in_figure_2(majority, "symmetric_accuracy", sign=-1),
    "n4-spread": _in_figure_2(spread, "ood_accuracy", unit=CELL),
    "n4-shadow": _SHADOW,
    "n4-shadow-all": replace(_SHADOW, untrained=True),
    "n4-shadow-deep": Rise(
        number=mean("id_accuracy"), x="n_layers", within=("gamma",), sign=-1,
        prepare=below_middle, untrained=True, studies=FIGURE_2,
    ),
    "n51-symmetric-route": _between_phases(
        "route_symmetric", _SYMMETRIC, _INFERENTIAL, prepare=_two_layers
    ),
    "n51-inferential-route": _between_phases(
        "route_inferential", _INFERENTIAL, _SYMMETRIC, prepare=_two_layers
    ),
    "n51-merged": _between_phases("order_first", _COMPOSITE, _SYMMETRIC),
    "n52-answers": _between_phases("answer", _INFERENTIAL, _SYMMETRIC),
    "n52-values": _between_phases("value", _INFERENTIAL, _SYMMETRIC),
    "n53-condensation": _between_phases("condensation", _INFERENTIAL, _SYMMETRIC),
    "n53-order": _between_phases("embedding_smooth", _INFERENTIAL, _SYMMETRIC),
    "nb-eigenvalues": _between_phases("embedding_dimension", _SYMMETRIC, _INFERENTIAL),
    "n6-small": Trend(
        "complexity", log_steps("steps_to_loss"), only=initialised_small,
        unreached=never_came("steps_to_loss"), studies=("complexity",), untrained=True,
    ),
    "n6-large": Price("steps_to_loss", studies=("complexity",)),
    "n6-large-half": Price("steps_to_half", studies=("complexity",)),
    "c4-gamma": Trend("gamma", "ood_accuracy", ("weight_decay",), studies=DECAY),
    "c4-decay": Trend("weight_decay", "ood_accuracy", ("gamma",), studies=DECAY),
    "c4-phase-2": _at_equal_decay("gamma", _TWO, _MEMORIZING),
    "c4-phase-3": _at_equal_decay("gamma", _INFERENTIAL, _TWO),
    "c4-commutes": _at_equal_decay("commutativity", _INFERENTIAL, _TWO),
    "c4-commutativity": Trend("gamma", "commutativity", ("weight_decay",), _TWO, studies=DECAY),
    "c5a-disorder": _between_phases("key_mask_pairs", _TWO, _MEMORIZING),
    "c5a-orders": _between_phases("key_mask_order", _COMPOSITE, _SYMMETRIC),
    "c5b-blocks": _between_phases("blocks", _INFERENTIAL, _TWO),
    "c6a-mild": _between_phases("condensation", _TWO, _MEMORIZING),
    "c6a-strong": _between_phases("condensation", _INFERENTIAL, _TWO),
    "c6b-steps": _between_phases("embedding_steps", _INFERENTIAL, phase("memorizing", *PHASE_2)),
    "c6c-first": _at_equal_decay(rank_share, _MEMORIZING, _TWO),
    "c6c-second": _at_equal_decay(rank_share, _TWO, _INFERENTIAL),
    "c6c-within": Unexplained(
        rank_share, "phase", 0.5, studies=DECAY, prepare=with_numbered_phase
    ),
    "cc-gamma": Trend("gamma", "condensation", ("weight_decay",), studies=DECAY),
    "cc-decay": Trend("weight_decay", "condensation", ("gamma",), studies=DECAY),
    "c8b-pairs": Mean(slowed, _small(broken=True), studies=("pairs",)),
    "c8b-control": Difference(
        slowed, _small(broken=True), _small(broken=False), studies=("pairs",)
    ),
    "c8-noise": Mean("auroc_late", reference=0.5, studies=("noise",)),
    "n-rates-lr": Trend("lr", "ood_accuracy", ("weight_decay",), studies=("rates",)),
    "n-rates-decay": Trend("weight_decay", "ood_accuracy", ("lr",), studies=("rates",)),
    "price-of-reasoning": Difference(
        log_steps("steps_to_loss"), *_ENDS, never_came("steps_to_loss"), **_ARBITRARY
    ),
    "price-in-loss": Difference(log_final_loss, *_ENDS, **_ARBITRARY),
    "distance-travelled": _between_phases("distance", _INFERENTIAL, _MEMORIZING),
    "moved-steps": Difference(
        moved, lambda row: row["task"] != "complexity-control", having(task="complexity-control"),
        studies=("steps",),
    ),
    "late-decay": Difference(
        "ood_accuracy",
        lambda row: row["branch_weight_decay"] == 1.0 and row["branch_step"] * 4 > row["steps"],
        lambda row: row["branch_step"] is None and row["weight_decay"] < 1,
        studies=("branches",),
    ),
}  # fmt: skip


def _claim(name: str, *, ratio: float = 1.0, **said: Any) -> Claim:
    effect = _EFFECTS[name] if "section" in said else None
    return Claim(name, **{"minimum": math.log(ratio)} | said, effect=effect)


_TEXTS = tomllib.loads(Path(__file__).with_name("claims.toml").read_text(encoding="utf-8"))
CLAIMS = tuple(_claim(name, **said) for name, said in _TEXTS.items())
LEDGER = Family(CLAIMS)


def section_claims(section: str) -> tuple[Claim, ...]:
    """The claims that one section's script shows."""
    return tuple(claim for claim in CLAIMS if claim.section == section)


def judge_ledger(tables: Mapping[str, Rows]) -> dict[str, Judgement]:
    """The judgement of every claim of the ledger, by name; ``tables`` holds rows by study."""
    return judge(LEDGER, tables)
