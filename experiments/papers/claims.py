"""The ledger: every claim of both papers and some of our own.

``claims.toml`` has their sentences, sources and smallest effects; here are the statistics that
judge them. They were written down before the runs that judge them, but for those that
:func:`papers.rows.was_known` and ``known`` in ``claims.toml`` name: the page counts these claim by
claim. ``docs/claims.md`` tells what was changed after runs had been seen.

Settings and phases go together: nearly all inferential runs of ``phases`` are pre-LayerNorm models.
So claims about phases compare the runs of ``settings``, whose settings were drawn at random, inside
one task and layout (:mod:`papers.strata`).
"""

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anchor_interp._util.errors import ConfigError

from .across_tasks import AcrossTasks
from .effects import Difference, Effect, Finding, Mean, Number, Trend
from .judging import Claim, Family, Judgement, judge
from .language_runs import CURVE, GAMMAS
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
    fresh_on_control,
    having,
    initialised_large,
    initialised_small,
    log_final_loss,
    log_rank_share,
    log_steps,
    moved,
    never_came,
    phase,
    rank_share,
    slowed,
    with_end,
    with_numbered_phase,
)
from .section_7_runs import (
    CONCEPT_GAMMAS,
    CORNERS,
    PAPER_GAMMA,
    composing,
    corner,
    fitted,
    held_out_at_random,
    held_out_square,
    log_epochs,
)
from .strata import Alike, Between

PHASE_2 = ("composite", "symmetric")
FIGURE_2 = ("figure2",)
DATA = ("task", "n_sequences")  # what section VII holds
GAMMA = ("gamma", "gamma_qk")  # one setting where gamma_qk is empty
RANDOM = ("settings", "settings-judging")  # the studies whose runs are compared by phase
ELSEWHERE = ("phases", "decay", "depth")  # studies whose phases differ in task and layout as well
# Half the smallest step between phases in the complexity-control paper's figure 5C: the stable rank
# is about 150 in phase 1, 55 in phase 2 (100, and 30 where it commutes) and 10 in phase 3.
HALF_A_STEP = math.sqrt(150 / 55)

_INFERENTIAL, _SYMMETRIC = phase("inferential"), phase("symmetric")
_COMPOSITE, _MEMORIZING, _TWO = phase("composite"), phase("memorizing"), phase(*PHASE_2)
_SHADOW = Rise(number=mean("id_accuracy"), x="side", prepare=beside_middle, studies=FIGURE_2)
_ENDS = having(end=1), having(end=-1)
_ARBITRARY: dict[str, Any] = {"studies": ("arbitrary",), "prepare": with_end, "untrained": True}


def _between_phases(
    number: Number,
    more: Test,
    less: Test,
    *,
    prepare: Callable[[Rows], Rows] = fresh,
    free: tuple[str, ...] = (),
    elsewhere: tuple[str, ...] = ELSEWHERE,
) -> Effect:
    """More of a number in runs of some phases than in those of others, inside task and layout."""
    return Between(number, more, less, free, elsewhere, studies=RANDOM, prepare=prepare)


def _more_gamma(more: Test, less: Test) -> Effect:
    return _between_phases("gamma", more, less, prepare=fresh_on_control, free=GAMMA)


def _trend_on_control(x: str, y: str, held: str, **more: Any) -> Effect:
    """A trend over new runs: of ``decay`` at equal ``held``, and of random settings."""

    def prepare(rows: Rows) -> Rows:
        return [row | {"held": row[held] if row["study"] == "decay" else None}
                for row in fresh_on_control(rows)]  # fmt: skip

    layout = ("normalization",)
    return Trend(
        x, y, (*layout, "held"), layout, studies=("decay", *RANDOM), prepare=prepare, **more
    )


def _in_figure_2(summary: Callable[[str], Summary], column: str, **more: Any) -> Rise:
    """How far a number rises with gamma outside the shaded zone.

    The zone is that of the best rates where the number is theirs, else that of every run.
    """
    zone = outside_zone(best if summary is best else mean)
    return Rise(number=summary(column), prepare=zone, untrained=True, studies=FIGURE_2, **more)


def _corners(study: str, number: str, prepare: Callable[[Rows], Rows] = tuple) -> Effect:
    """Small initialisation with much weight decay minus large one with little, at equal data."""
    more, less = (corner(study, small=small) for small in (True, False))
    return Between(
        number, more, less, (*GAMMA, "weight_decay"), within=DATA, studies=(study,),
        prepare=prepare, untrained=True,
    )  # fmt: skip


def _on_corners(
    study: str, number: str, prepare: Callable[[Rows], Rows] = tuple, matched: str = "id_accuracy"
) -> dict[str, Effect]:
    """The claims of section VII on one task: both settings, among fitted runs, and each setting."""
    both, of = _corners(study, number, prepare), CORNERS[study]
    assert isinstance(both, Between)
    large, small = (having(gamma=gamma) for gamma in of.gammas)
    little, much = (having(weight_decay=decay) for decay in of.decays)
    return {
        f"c7-{study}": both,
        f"c7-{study}-matched": replace(
            both, more=fitted(both.more, matched), less=fitted(both.less, matched)
        ),
        f"c7-{study}-gamma": replace(
            both, more=small, less=large, free=GAMMA, within=(*DATA, "weight_decay")
        ),
        f"c7-{study}-decay": replace(
            both, more=much, less=little, free=("weight_decay",), within=(*DATA, "gamma")
        ),
    }


def _epochs_between(more: int, less: int) -> Effect:
    """Epochs that a large initialisation needs for one number of examples minus those for another.

    Numbers are given by their place among those of the study, smallest first. Runs have equal
    steps, since equal epochs would cost the largest number many times as much: where the loss is
    never reached they are bounds, which ``Difference`` refuses unless they tell the direction.
    """
    large, of = corner("prontoqa", small=False), CORNERS["prontoqa"]

    def of_size(place: int) -> Test:
        return lambda row: large(row) and row["n_sequences"] == of.sizes_at(row["scale"])[place]

    return Difference(
        log_epochs, of_size(more), of_size(less), never_came("steps_to_loss"),
        studies=("prontoqa",), untrained=True,
    )  # fmt: skip


def _language(number: str, more: float, less: float) -> Effect:
    """A loss at one gamma minus that at another, on the same text."""
    return Between(
        number, having(gamma=more), having(gamma=less), GAMMA, within=("task", "n_sequences"),
        studies=("language",), untrained=True,
    )  # fmt: skip


def _two_layers(rows: Rows) -> Rows:
    return [row for row in fresh(rows) if row["n_layers"] == 2]


def _numbered(rows: Rows) -> Rows:
    return with_numbered_phase(fresh(rows))


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
    # Older tables hold another number in this column.
    "n51-merged": _between_phases("order_first", _COMPOSITE, _SYMMETRIC, elsewhere=()),
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
    "c4-gamma": _trend_on_control("gamma", "ood_accuracy", "weight_decay"),
    "c4-decay": _trend_on_control("weight_decay", "ood_accuracy", "gamma"),
    "c4-phase-2": _more_gamma(_TWO, _MEMORIZING),
    "c4-phase-3": _more_gamma(_INFERENTIAL, _TWO),
    "c4-commutes": _between_phases(
        "commutativity", _INFERENTIAL, _TWO, prepare=fresh_on_control
    ),
    "c4-commutativity": _trend_on_control("gamma", "commutativity", "weight_decay", only=_TWO),
    "c5a-disorder": _between_phases("key_mask_pairs", _TWO, _MEMORIZING),
    "c5a-orders": _between_phases("key_mask_order", _COMPOSITE, _SYMMETRIC),
    "c5b-blocks": _between_phases("blocks", _INFERENTIAL, _TWO),
    "c6a-mild": _between_phases("condensation", _TWO, _MEMORIZING),
    "c6a-strong": _between_phases("condensation", _INFERENTIAL, _TWO),
    "c6b-steps": _between_phases("embedding_steps", _INFERENTIAL, phase("memorizing", *PHASE_2)),
    "c6c-first": _between_phases(rank_share, _MEMORIZING, _TWO),
    "c6c-second": _between_phases(rank_share, _TWO, _INFERENTIAL),
    "c6c-within": Alike(log_rank_share, HALF_A_STEP, studies=RANDOM, prepare=_numbered),
    "cc-gamma": _trend_on_control("gamma", "condensation", "weight_decay"),
    "cc-decay": _trend_on_control("weight_decay", "condensation", "gamma"),
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
    **_on_corners("scan", "ood_accuracy"),
    **_on_corners("cogs", "ood_accuracy"),
    **_on_corners("addition", "ood_accuracy", held_out_square),
    "c7-concepts": Difference("ood_shape", composing(small=True), composing(small=False),
                              studies=("concepts",)),
    "c7-concepts-whole": Difference("ood_accuracy", composing(small=True), composing(small=False),
                                    studies=("concepts",)),
    "c7-concepts-again": Difference(
        "ood_shape", having(gamma=PAPER_GAMMA), having(gamma=CONCEPT_GAMMAS[0]),
        studies=("concepts-judging",),
    ),
    "c7-addition-random": _corners("addition", "id_accuracy", held_out_at_random),
    **_on_corners("prontoqa", "id_accuracy", matched="train_accuracy"),
    "c7-prontoqa-faster": Between(
        log_epochs, corner("prontoqa", small=False), corner("prontoqa", small=True),
        (*GAMMA, "weight_decay"), within=DATA, unreached=never_came("steps_to_loss"),
        studies=("prontoqa",), untrained=True,
    ),
    "c7-prontoqa-rises": _epochs_between(1, 0),
    "c7-prontoqa-falls": _epochs_between(1, -1),
    "c7-slimpajama": _language("held_out_loss", *GAMMAS),
    "c7-slimpajama-early": _language(f"{CURVE}01", *GAMMAS[::-1]),
    "across-tasks-rank": AcrossTasks(rank_share, -1),
    "across-tasks-condensation": AcrossTasks("condensation"),
    "late-decay": Difference(
        "ood_accuracy",
        lambda row: row["branch_weight_decay"] == 1.0 and row["branch_step"] * 4 > row["steps"],
        lambda row: row["branch_step"] is None and row["weight_decay"] < 1,
        studies=("branches",),
    ),
}  # fmt: skip


def _claim(name: str, *, ratio: float = 1.0, known: Sequence[str] = (), **said: Any) -> Claim:
    if "section" in said and name not in _EFFECTS:
        raise ConfigError(f"claims.toml has {name}, and claims.py no effect of it; add one")
    effect = _EFFECTS[name] if "section" in said else None
    return Claim(name, **{"minimum": math.log(ratio)} | said, effect=effect, known=tuple(known))


_TEXTS = tomllib.loads(Path(__file__).with_name("claims.toml").read_text(encoding="utf-8"))
CLAIMS = tuple(_claim(name, **said) for name, said in _TEXTS.items())
LEDGER = Family(CLAIMS)


REALISTIC = frozenset(
    claim.name
    for claim in CLAIMS
    if claim.section in ("control_7", "control_7_concepts", "control_7d", "across_tasks")
)
"""Claims on the tasks of the complexity-control paper's section VII, and across all tasks."""


def section_claims(section: str) -> tuple[Claim, ...]:
    """The claims that one section's script shows."""
    return tuple(claim for claim in CLAIMS if claim.section == section)


def judge_ledger(tables: Mapping[str, Rows]) -> dict[str, Judgement]:
    """The judgement of every claim of the ledger, by name; ``tables`` holds rows by study."""
    return judge(LEDGER, tables)
