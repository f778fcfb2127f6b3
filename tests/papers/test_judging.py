"""Effects of known size, censoring, verdicts, adjustment, and mutated data."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anchor_interp.analysis.statistics import two_samples
from papers.claims import CLAIMS, COMPARED, LEDGER, judge_ledger, section_claims
from papers.effects import BetweenCells, Difference, Effect, Finding, Mean, Trend, Unexplained
from papers.judging import Claim, Family, Judgement, judge
from papers.page import Ledger
from papers.rows import Row, Rows, having, phase
from papers.studies import STUDIES

ROOT = Path(__file__).parents[2]
Tables = dict[str, list[Row]]


def rows(n: int = 40, **columns: Any) -> list[dict[str, Any]]:
    """Finished runs of ten seeds with these columns, a function of the index or a constant."""
    return [
        {
            "run_id": f"{i:04d}",
            "status": "done",
            "censored": False,
            "seed": i % 10,
            "task": "t",
            "phase": "other",
        }
        | {name: f(i) if callable(f) else f for name, f in columns.items()}
        for i in range(n)
    ]


@dataclass(frozen=True)
class Given(Effect):
    """An effect that is found already."""

    finding: Finding | None

    def find_in(self, _: Any) -> Finding | None:
        return self.finding

    def find(self, _: Rows) -> Finding:
        raise NotImplementedError


def judged_all(minimum: float, **findings: Finding | None) -> dict[str, Judgement]:
    """Judge findings together."""
    claims = tuple(
        Claim(name, sentence="", source="", statistic="", minimum=minimum, effect=Given(found))
        for name, found in findings.items()
    )
    return judge(Family(claims), {})


def judged_alone(found: Finding | None, minimum: float) -> Judgement:
    return judged_all(minimum, claim=found)["claim"]


def noisy(i: int) -> float:
    return math.sin(37.0 * i)


def test_a_difference_is_the_one_of_statistics() -> None:
    found = rows(y=lambda i: noisy(i) + (i % 2), kind=lambda i: i % 2)
    judged = Difference("y", having(kind=1), having(kind=0)).find(found)
    one, two = ([row["y"] for row in found if row["kind"] == kind] for kind in (1, 0))
    expected = two_samples(one, two)
    assert (judged.effect, judged.p_value) == (expected.mean, expected.p_value)
    assert judged.n == (20, 20)
    assert judged.seeds == 5  # odd ones in one sample, even ones in the other
    turned = Difference("y", having(kind=0), having(kind=1)).find(found)
    assert turned.effect == pytest.approx(-expected.mean)


def test_a_trend_is_taken_within_groups() -> None:
    """Between groups y falls, within each it rises with x: Simpson's paradox."""
    found = rows(x=lambda i: i % 10, g=lambda i: i // 10, y=lambda i: i % 10 - 20 * (i // 10))
    judged = Trend("x", "y", ("g",)).find(found)
    assert judged.effect == pytest.approx(1)
    assert judged.p_value == pytest.approx(0.0001)
    assert Trend("g", "y").find(found).effect == pytest.approx(-1, abs=0.05)
    nothing = Trend("x", "y").find(rows(x=lambda i: i, y=noisy))
    assert nothing.p_value is not None
    assert nothing.p_value > 0.05
    assert nothing.low is not None
    assert nothing.high is not None
    assert nothing.low < 0 < nothing.high


def test_a_difference_between_cells_ignores_differences_between_strata() -> None:
    """All of the difference is between strata: pooled it is large, within there is none."""
    found = rows(
        80,
        normalization=lambda i: "pre" if i < 40 else "post",
        gamma=float,
        kind=lambda i: int(i % 4 == 0) if i < 40 else int(i % 4 != 0),
        y=lambda i: noisy(i) + 5 * (i < 40),
    )
    more, less = having(kind=0), having(kind=1)
    pooled = Difference("y", more, less).find(found)
    assert (pooled.effect or 0) > 2
    assert (pooled.p_value or 1) < 0.001
    within = BetweenCells("y", more, less, ("normalization",)).find(found)
    assert within.pooled == pytest.approx(pooled.effect)
    assert within.cells == (40, 40)  # each run is a cell of its own
    assert abs(within.effect or 9) < 0.5
    assert (within.p_value or 0) > 0.05
    for row in found:  # and one that is there within both
        row["y"] += 3 * (row["kind"] == 0)
    within = BetweenCells("y", more, less, ("normalization",)).find(found)
    assert within.effect == pytest.approx(3, abs=0.5)
    assert (within.low or 0) < 3 < (within.high or 0)


def test_the_seeds_of_a_cell_count_once() -> None:
    """Thirty seeds of two cells a side say no more than one seed of each."""
    cells = {"gamma": lambda i: 0.1 * (i % 4), "kind": lambda i: i % 2}
    few = rows(4, **cells, y=lambda i: noisy(i % 4))
    many = rows(120, **cells, y=lambda i: noisy(i % 4))
    more, less = having(kind=1), having(kind=0)
    one, two = (BetweenCells("y", more, less, ("task",)).find(found) for found in (few, many))
    assert one.cells == two.cells == (2, 2)
    assert two.n == (60, 60)
    assert (one.effect, one.low, one.p_value) == pytest.approx((two.effect, two.low, two.p_value))
    reason = judged_alone(two, 0.0).reason
    assert reason == "2 and 2 cells of equal settings; 5 are needed"
    run_by_run = Difference("y", more, less).find(many)
    assert (run_by_run.p_value or 1) < 0.001 < (two.p_value or 0)


def test_intervals_between_cells_hold_their_level_where_variances_differ() -> None:
    """Of 200 samples without a difference, the 95 % interval leaves out 0 in about ten."""
    generator, missed = np.random.default_rng(0), 0
    for _ in range(200):
        small, large = generator.normal(0, 1, 6), generator.normal(0, 0.1, 24)
        found = rows(30, gamma=float, kind=lambda i: int(i < 6))
        found = [row | {"y": y} for row, y in zip(found, [*small, *large], strict=True)]
        judged = BetweenCells("y", having(kind=1), having(kind=0), ("task",)).find(found)
        missed += not (judged.low or 0) <= 0 <= (judged.high or 0)
    assert 2 <= missed <= 22


def test_a_stratum_without_both_kinds_decides_nothing() -> None:
    found = rows(task=lambda i: i % 2, kind=lambda i: i % 2, y=noisy, gamma=float)
    within = BetweenCells("y", having(kind=0), having(kind=1), ("task",)).find(found)
    assert within.effect is None
    assert judged_alone(within, 0.1).verdict == "inconclusive"


def test_numbers_that_both_samples_never_reach_decide_nothing() -> None:
    """Bounds alone are not measurements: they show neither a difference nor its absence."""
    found = rows(y=lambda i: 8.0 - (i % 2) * noisy(i), kind=lambda i: i % 2)
    judged = Difference("y", having(kind=1), having(kind=0), unreached=lambda _: True).find(found)
    assert judged_alone(judged, 0.1).verdict == "inconclusive"
    assert "never came there" in (judged.note or "")
    assert Trend("seed", "y", unreached=lambda _: True).find(found).effect is None


def test_a_number_that_one_sample_never_reaches_is_a_difference() -> None:
    """All of one sample are still on their way when all of the other are there."""
    found = rows(10, y=lambda i: 3.0 if i % 2 else 1.0 + 0.1 * noisy(i), kind=lambda i: i % 2)
    judged = Difference(
        "y", having(kind=1), having(kind=0), unreached=lambda row: row["y"] == 3.0
    ).find(found)
    assert judged.p_value == pytest.approx(2 / 252)
    assert judged_alone(judged, 0.5).verdict == "supported"


def test_a_trend_due_to_censoring_decides_nothing() -> None:
    """Among the runs that converged y rises; those that did not turn it round."""
    found = rows(
        60,
        x=lambda i: i % 10,
        y=lambda i: i % 10 if i % 3 else 9.0 - 3 * (i % 10),
        censored=lambda i: i % 3 == 0,
    )
    judged = Trend("x", "y").find(found)
    assert judged.effect == pytest.approx(1)
    assert judged.censored == 20
    assert (judged.with_censored or 1) < 0.5
    verdict = judged_alone(judged, 0.5)
    assert verdict.verdict == "inconclusive"
    assert "with the runs that did not converge" in verdict.reason
    converged = Trend("x", "y", only=lambda row: not row["censored"]).find(found)
    assert judged_alone(converged, 0.5).verdict == "supported"


def test_a_trend_reversed_only_without_censored_runs_is_not_called_reversed() -> None:
    """y falls among the runs that converged, and hardly once the others are counted."""
    found = rows(
        60,
        x=lambda i: i % 10,
        y=lambda i: -(i % 10) if i % 3 else 5.0 * noisy(i) - 4.5,
        censored=lambda i: i % 3 == 0,
    )
    judged = Trend("x", "y").find(found)
    assert judged.effect == pytest.approx(-1)
    weaker = replace(judged, with_censored=-0.1, with_censored_p=0.4)
    assert judged_alone(weaker, 0.3).reason == "the interval ends below 0.3"
    assert judged_alone(judged, 0.3).reason == ("the effect is the other way round")


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_a_trend_with_a_run_that_has_no_number(status: str) -> None:
    found = rows(30, x=lambda i: i % 10, y=lambda i: i % 10)
    found[3] |= {"status": status, "y": None}
    judged = Trend("x", "y").find(found)
    assert (judged.n, judged.censored) == ((29,), 1)
    assert judged.with_censored == pytest.approx(1)


def test_a_group_whose_number_never_changes_counts_as_no_trend() -> None:
    found = rows(30, x=lambda i: i % 10, g=lambda i: i // 10, y=lambda i: (i % 10) * (i < 10))
    assert Trend("x", "y", ("g",)).find(found).effect == pytest.approx(1 / 3)


def test_the_share_that_settings_do_not_explain() -> None:
    """Two groups with four cells each: what cells differ by is explained, the rest is not."""
    cells = {"g": lambda i: i // 40, "gamma": lambda i: float(i % 4)}
    by_cell = rows(80, **cells, y=lambda i: 9 * (i // 40) + i % 4 + 0.01 * noisy(i))
    judged = Unexplained("y", "g", reference=0.5).find(by_cell)
    assert judged.effect == pytest.approx(-0.5, abs=0.01)
    assert (judged.p_value or 1) < 0.01
    by_seed = rows(80, **cells, y=lambda i: 9 * (i // 40) + noisy(i))
    judged = Unexplained("y", "g", reference=0.5).find(by_seed)
    assert (judged.effect or 0) > 0.3
    assert (judged.low or 0) > 0


def test_censored_runs_are_counted_and_stand_in_no_sample() -> None:
    found = rows(y=lambda i: 1.0 + noisy(i), censored=lambda i: i < 8)
    found[39]["status"], found[38]["y"] = "diverged", None
    judged = Mean("y").find(found)
    assert judged.n == (30,)
    assert judged.censored == 9
    assert set(judged.runs) == {f"{i:04d}" for i in range(8, 38)}
    kept = Difference(
        "y", lambda row: row["seed"] < 5, lambda row: row["seed"] >= 5, untrained=True
    ).find(found)
    assert sum(kept.n) == 38


def finding(effect: float, low: float, high: float, p: float, n: int = 10) -> Finding:
    return Finding((n, n), n, 0, effect, low, high, p, ())


@pytest.mark.parametrize(("found", "verdict"), [
    (finding(0.5, 0.3, 0.7, 0.001), "supported"),
    (finding(0.15, 0.1, 0.19, 0.001), "not supported"),  # there, but smaller than what counts
    (finding(-0.5, -0.7, -0.3, 0.001), "not supported"),  # the other way round
    (finding(0.15, 0.1, 0.25, 0.001), "inconclusive"),  # there, perhaps as large as counts
    (finding(0.05, -0.1, 0.19, 0.4), "not supported"),  # what would count is excluded
    (finding(0.05, -0.3, 0.4, 0.4), "inconclusive"),
    (finding(0.5, 0.3, 0.7, 0.001, n=4), "inconclusive"),
    (None, "not run"),
    (Finding((0,), 0, 12, None, None, None, None, ()), "inconclusive"),  # all censored
    (Finding((0,), 0, 0, None, None, None, None, ()), "not run"),
])  # fmt: skip
def test_verdicts(found: Finding | None, verdict: str) -> None:
    assert judged_alone(found, 0.2).verdict == verdict


def test_p_values_are_adjusted_for_all_claims_together() -> None:
    """Benjamini and Hochberg: of ten claims the one at p = 0.03 has q = 0.3."""
    real = finding(0.5, 0.3, 0.7, 0.03)
    assert judged_alone(real, 0.2).verdict == "supported"
    rest = {f"chance_{i}": finding(0.0, -0.5, 0.5, 0.9) for i in range(9)}
    judged = judged_all(0.2, real=real, **rest)["real"]
    assert judged.q_value == pytest.approx(0.3)
    assert judged.verdict == "inconclusive"


def test_every_claim_is_complete() -> None:
    names = [claim.name for claim in CLAIMS]
    assert len(names) == len(set(names))
    assert 25 <= len(names) <= 60
    for claim in CLAIMS:
        assert claim.sentence
        assert claim.statistic
        assert claim.source
        assert claim.minimum >= 0
        assert set(claim.studies) <= set(STUDIES)
        assert (claim.section is None) == (claim.effect is None) == (not claim.studies)
        if claim.section is not None:
            assert (ROOT / "experiments" / f"{claim.section}.py").is_file()
            assert claim in section_claims(claim.section)


def test_claims_without_tables_are_not_run() -> None:
    assert {found.verdict for found in judge_ledger({}).values()} == {"not run"}


SET_OR_NAMED = (
    "phase", "gamma", "weight_decay", "n_layers", "lr", "complexity", "task", "normalization",
    "branch_step", "branch_weight_decay",
)  # fmt: skip
"""What is set before training, and the phase: what claims compare numbers by."""
BY_THEMSELVES = {"c8b-pairs"}
"""Claims that hold pairs of one run against each other."""


def judged_claims(names: set[str], tables: Tables) -> dict[str, Judgement]:
    return judge(Family(tuple(claim for claim in CLAIMS if claim.name in names)), tables)


@pytest.mark.parametrize("moved", [("phase",), SET_OR_NAMED])
def test_permuted_labels_support_nothing(
    moved: tuple[str, ...], committed: Tables, ledger: Ledger
) -> None:
    """Labels change places between the runs of a study: no claim that rests on them is left."""
    generator = np.random.default_rng(1)
    mutated = {}
    for name, found in committed.items():
        order = generator.permutation(len(found))
        mutated[name] = [
            row | {key: found[other][key] for key in moved if key in row}
            for row, other in zip(found, order, strict=True)
        ]
    before = {name for name, found in ledger.judgements.items() if found.verdict == "supported"}
    if moved == ("phase",):
        by_phase = {"n52-answers", "c4-phase-2", "c5a-disorder", "c6a-mild", "c6b-steps",
                    "c6c-first", "distance-travelled"}  # fmt: skip
        assert by_phase <= before
        after = judged_claims(by_phase, mutated)
        assert "supported" not in {found.verdict for found in after.values()}
    else:
        assert len(before) > 15
        after = judge(LEDGER, mutated)
        assert {n for n, found in after.items() if found.verdict == "supported"} <= BY_THEMSELVES


def test_swapped_phases_reverse_claims(committed: Tables, ledger: Ledger) -> None:
    other = {"inferential": "symmetric", "symmetric": "inferential"}
    swapped = {
        name: [row | {"phase": other.get(row["phase"], row["phase"])} for row in committed[name]]
        for name in COMPARED
    }
    after = judged_claims({"n52-answers", "n52-values", "c6b-steps"}, swapped)
    assert ledger.judgements["n52-answers"].verdict == "supported"
    assert after["n52-answers"].verdict == "not supported"
    assert after["n52-answers"].reason == "the effect is the other way round"
    for name in ("n52-values", "c6b-steps"):
        assert after[name].verdict != "supported", name


def test_phases_by_name() -> None:
    assert phase("memorizing", "composite")({"phase": "composite"})
    assert not phase("memorizing")({"phase": None})
