"""Judging claims: effects whose size is known, censoring, verdicts, and mutated data."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anchor_interp.analysis.statistics import two_samples
from papers.claims import CLAIMS, judge_ledger, section_claims
from papers.judging import (
    Finding,
    between_cells,
    difference,
    having,
    judge,
    mean,
    phase,
    trend,
    unexplained,
)
from papers.studies import STUDIES
from papers.tables import read_tables

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "experiments" / "tables" / "tiny"


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


def noisy(i: int) -> float:
    return math.sin(37.0 * i)


def test_a_difference_is_the_one_of_statistics() -> None:
    found = rows(y=lambda i: noisy(i) + (i % 2), kind=lambda i: i % 2)
    judged = difference(found, "y", having(kind=1), having(kind=0))
    one, two = ([row["y"] for row in found if row["kind"] == kind] for kind in (1, 0))
    expected = two_samples(one, two)
    assert (judged.effect, judged.p_value) == (expected.mean, expected.p_value)
    assert judged.n == (20, 20)
    assert judged.seeds == 5  # odd ones in one sample, even ones in the other
    turned = difference(found, "y", having(kind=1), having(kind=0), sign=-1)
    assert turned.effect == pytest.approx(-expected.mean)


def test_a_trend_is_taken_within_groups() -> None:
    """Between groups y falls, within each it rises with x: Simpson's paradox."""
    found = rows(x=lambda i: i % 10, g=lambda i: i // 10, y=lambda i: i % 10 - 20 * (i // 10))
    judged = trend(found, "x", "y", within=("g",))
    assert judged.effect == pytest.approx(1)
    assert judged.p_value == pytest.approx(0.0001)
    assert trend(found, "g", "y").effect == pytest.approx(-1, abs=0.05)
    nothing = trend(rows(x=lambda i: i, y=noisy), "x", "y")
    assert nothing.p_value is not None
    assert nothing.p_value > 0.05
    assert nothing.low is not None
    assert nothing.high is not None
    assert nothing.low < 0 < nothing.high


def test_a_difference_between_cells_is_blind_to_what_tells_strata_apart() -> None:
    """All of the difference is between strata: pooled it is large, within there is none."""
    found = rows(
        80,
        normalization=lambda i: "pre" if i < 40 else "post",
        gamma=float,
        kind=lambda i: int(i % 4 == 0) if i < 40 else int(i % 4 != 0),
        y=lambda i: noisy(i) + 5 * (i < 40),
    )
    more, less = having(kind=0), having(kind=1)
    pooled = difference(found, "y", more, less)
    assert (pooled.effect or 0) > 2
    assert (pooled.p_value or 1) < 0.001
    within = between_cells(found, "y", more, less, within=("normalization",))
    assert within.pooled == pytest.approx(pooled.effect)
    assert within.cells == (40, 40)  # each run is a cell of its own
    assert abs(within.effect or 9) < 0.5
    assert (within.p_value or 0) > 0.05
    for row in found:  # and one that is there within both
        row["y"] += 3 * (row["kind"] == 0)
    within = between_cells(found, "y", more, less, within=("normalization",))
    assert within.effect == pytest.approx(3, abs=0.5)
    assert (within.low or 0) < 3 < (within.high or 0)


def test_the_seeds_of_a_cell_are_one_witness() -> None:
    """Thirty seeds of two cells a side say no more than one seed of each."""
    cells = {"gamma": lambda i: 0.1 * (i % 4), "kind": lambda i: i % 2}
    few = rows(4, **cells, y=lambda i: noisy(i % 4))
    many = rows(120, **cells, y=lambda i: noisy(i % 4))
    more, less = having(kind=1), having(kind=0)
    one, two = (between_cells(found, "y", more, less, within=("task",)) for found in (few, many))
    assert one.cells == two.cells == (2, 2)
    assert two.n == (60, 60)
    assert (one.effect, one.low, one.p_value) == pytest.approx((two.effect, two.low, two.p_value))
    reason = judge({"claim": two}, {"claim": 0.0})["claim"].reason
    assert reason == "2 and 2 cells of equal settings; 5 are needed"
    run_by_run = difference(many, "y", more, less)
    assert (run_by_run.p_value or 1) < 0.001 < (two.p_value or 0)


def test_intervals_between_cells_hold_their_level_where_variances_differ() -> None:
    """Of 200 samples without a difference, the 95 % interval leaves out 0 in about ten."""
    generator, missed = np.random.default_rng(0), 0
    for _ in range(200):
        small, large = generator.normal(0, 1, 6), generator.normal(0, 0.1, 24)
        found = rows(30, gamma=float, kind=lambda i: int(i < 6))
        found = [row | {"y": y} for row, y in zip(found, [*small, *large], strict=True)]
        judged = between_cells(found, "y", having(kind=1), having(kind=0), within=("task",))
        missed += not (judged.low or 0) <= 0 <= (judged.high or 0)
    assert 2 <= missed <= 22


def test_strata_without_both_kinds_say_nothing() -> None:
    found = rows(task=lambda i: i % 2, kind=lambda i: i % 2, y=noisy, gamma=float)
    within = between_cells(found, "y", having(kind=0), having(kind=1), within=("task",))
    assert within.effect is None
    assert judge({"claim": within}, {"claim": 0.1})["claim"].verdict == "inconclusive"


def test_what_was_never_reached_in_both_samples_decides_nothing() -> None:
    """Bounds alone are no measurements: neither a difference nor its absence."""
    found = rows(y=lambda i: 8.0 - (i % 2) * noisy(i), kind=lambda i: i % 2)
    judged = difference(found, "y", having(kind=1), having(kind=0), unreached=lambda _: True)
    assert judge({"claim": judged}, {"claim": 0.1})["claim"].verdict == "inconclusive"
    assert "never came there" in (judged.note or "")
    assert trend(found, "seed", "y", unreached=lambda _: True).effect is None


def test_what_only_one_sample_never_reaches_is_a_difference() -> None:
    """All of one sample are still on their way when all of the other are there."""
    found = rows(10, y=lambda i: 3.0 if i % 2 else 1.0 + 0.1 * noisy(i), kind=lambda i: i % 2)
    judged = difference(
        found, "y", having(kind=1), having(kind=0), unreached=lambda row: row["y"] == 3.0
    )
    assert judged.p_value == pytest.approx(2 / 252)
    assert judge({"claim": judged}, {"claim": 0.5})["claim"].verdict == "supported"


def test_a_trend_that_censoring_makes_decides_nothing() -> None:
    """Among the runs that converged y rises; those that did not turn it round."""
    found = rows(
        60,
        x=lambda i: i % 10,
        y=lambda i: i % 10 if i % 3 else 9.0 - 3 * (i % 10),
        censored=lambda i: i % 3 == 0,
    )
    judged = trend(found, "x", "y")
    assert judged.effect == pytest.approx(1)
    assert judged.censored == 20
    assert (judged.with_censored or 1) < 0.5
    verdict = judge({"claim": judged}, {"claim": 0.5})["claim"]
    assert verdict.verdict == "inconclusive"
    assert "with the runs that did not converge" in verdict.reason
    assert judge({"claim": trend(found, "x", "y", only=lambda row: not row["censored"])},
                 {"claim": 0.5})["claim"].verdict == "supported"  # fmt: skip


def test_what_censoring_makes_the_other_way_round_is_only_not_there() -> None:
    """y falls among the runs that converged, and hardly once the others are counted."""
    found = rows(
        60,
        x=lambda i: i % 10,
        y=lambda i: -(i % 10) if i % 3 else 5.0 * noisy(i) - 4.5,
        censored=lambda i: i % 3 == 0,
    )
    judged = trend(found, "x", "y")
    assert judged.effect == pytest.approx(-1)
    weaker = replace(judged, with_censored=-0.1, with_censored_p=0.4)
    assert judge({"claim": weaker}, {"claim": 0.3})["claim"].reason == "the interval ends below 0.3"
    assert judge({"claim": judged}, {"claim": 0.3})["claim"].reason == (
        "the effect is the other way round"
    )


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_a_trend_with_a_run_that_has_no_number(status: str) -> None:
    found = rows(30, x=lambda i: i % 10, y=lambda i: i % 10)
    found[3] |= {"status": status, "y": None}
    judged = trend(found, "x", "y")
    assert (judged.n, judged.censored) == ((29,), 1)
    assert judged.with_censored == pytest.approx(1)


def test_a_group_without_any_change_has_no_trend() -> None:
    found = rows(30, x=lambda i: i % 10, g=lambda i: i // 10, y=lambda i: (i % 10) * (i < 10))
    assert trend(found, "x", "y", within=("g",)).effect == pytest.approx(1 / 3)


def test_shares_that_settings_leave_unexplained() -> None:
    """Two groups with four cells each: what cells differ by is explained, the rest is not."""
    cells = {"g": lambda i: i // 40, "gamma": lambda i: float(i % 4)}
    by_cell = rows(80, **cells, y=lambda i: 9 * (i // 40) + i % 4 + 0.01 * noisy(i))
    judged = unexplained(by_cell, "y", "g", more_than=0.5)
    assert judged.effect == pytest.approx(-0.5, abs=0.01)
    assert (judged.p_value or 1) < 0.01
    by_seed = rows(80, **cells, y=lambda i: 9 * (i // 40) + noisy(i))
    judged = unexplained(by_seed, "y", "g", more_than=0.5)
    assert (judged.effect or 0) > 0.3
    assert (judged.low or 0) > 0


def test_runs_that_did_not_converge_are_counted_and_in_no_sample() -> None:
    found = rows(y=lambda i: 1.0 + noisy(i), censored=lambda i: i < 8)
    found[39]["status"], found[38]["y"] = "diverged", None
    judged = mean(found, "y")
    assert judged.n == (30,)
    assert judged.censored == 9
    assert set(judged.runs) == {f"{i:04d}" for i in range(8, 38)}
    kept = difference(
        found, "y", lambda row: row["seed"] < 5, lambda row: row["seed"] >= 5, untrained=True
    )
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
    assert judge({"claim": found}, {"claim": 0.2})["claim"].verdict == verdict


def test_p_values_are_adjusted_for_all_claims_together() -> None:
    """Benjamini and Hochberg: of ten claims the one at p = 0.03 has q = 0.3."""
    one = {"real": finding(0.5, 0.3, 0.7, 0.03)}
    assert judge(one, {"real": 0.2})["real"].verdict == "supported"
    rest = {f"chance-{i}": finding(0.0, -0.5, 0.5, 0.9) for i in range(9)}
    judged = judge(one | rest, dict.fromkeys([*one, *rest], 0.2))["real"]
    assert judged.q_value == pytest.approx(0.3)
    assert judged.verdict == "inconclusive"


@pytest.fixture(scope="module")
def committed() -> dict[str, list[dict[str, Any]]]:
    return read_tables(TABLES)


def test_every_claim_is_told_of_completely() -> None:
    names = [claim.name for claim in CLAIMS]
    assert len(names) == len(set(names))
    assert 25 <= len(names) <= 50
    for claim in CLAIMS:
        assert claim.sentence
        assert claim.statistic
        assert claim.source
        assert claim.minimum >= 0
        assert set(claim.studies) <= set(STUDIES)
        assert (claim.find is None) == (not claim.studies)
        assert (claim.section is None) == (claim.find is None)
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


@pytest.mark.parametrize("moved", [("phase",), SET_OR_NAMED])
def test_permuted_labels_support_nothing(
    moved: tuple[str, ...], committed: dict[str, list[dict[str, Any]]]
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
    before, after = (
        {name for name, judged in judge_ledger(tables).items() if judged.verdict == "supported"}
        for tables in (committed, mutated)
    )
    if moved == ("phase",):
        by_phase = {"n52-answers", "c4-phase-2", "c5a-disorder", "c6a-mild", "c6b-steps",
                    "c6c-first", "distance-travelled"}  # fmt: skip
        assert by_phase <= before
        assert not by_phase & after
    else:
        assert len(before) > 15
        assert after <= BY_THEMSELVES


def test_swapped_phases_turn_claims_round(committed: dict[str, list[dict[str, Any]]]) -> None:
    other = {"inferential": "symmetric", "symmetric": "inferential"}
    swapped = {
        name: [row | {"phase": other.get(row["phase"], row["phase"])} for row in found]
        for name, found in committed.items()
    }
    before, after = judge_ledger(committed), judge_ledger(swapped)
    assert before["n52-answers"].verdict == "supported"
    assert after["n52-answers"].verdict == "not supported"
    assert after["n52-answers"].reason == "the effect is the other way round"
    for name in ("n52-values", "c6b-steps"):
        assert after[name].verdict != "supported", name


def test_phases_by_name() -> None:
    assert phase("memorizing", "composite")({"phase": "composite"})
    assert not phase("memorizing")({"phase": None})
