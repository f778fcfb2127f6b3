"""Judging claims: effects whose size is known, censoring, verdicts, and mutated data."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anchor_interp.papers.judging import (
    FEWEST,
    LEVEL,
    Finding,
    difference,
    explained,
    having,
    judge,
    mean,
    phase,
    trend,
)
from anchor_interp.papers.ledger import CLAIMS, judge_ledger, section_claims
from anchor_interp.papers.studies import STUDIES
from anchor_interp.papers.tables import read_tables
from anchor_interp.statistics import smallest_p, two_samples

ROOT = Path(__file__).parent.parent
TABLES = ROOT / "experiments" / "tables" / "tiny"


def rows(n: int = 40, **columns: Any) -> list[dict[str, Any]]:
    """Finished runs of ten seeds with these columns, a function of the index or a constant."""
    return [
        {
            "run_id": f"{i:04d}",
            "status": "done",
            "censored": False,
            "seed": i % 10,
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


def test_a_difference_within_strata_is_blind_to_what_tells_them_apart() -> None:
    """All of the difference is between strata: pooled it is large, within there is none."""
    found = rows(
        80,
        layout=lambda i: "pre" if i < 40 else "post",
        kind=lambda i: int(i % 4 == 0) if i < 40 else int(i % 4 != 0),
        y=lambda i: noisy(i) + 5 * (i < 40),
    )
    pooled = difference(found, "y", having(kind=0), having(kind=1))
    assert (pooled.effect or 0) > 2
    assert (pooled.p_value or 1) < 0.001
    within = difference(found, "y", having(kind=0), having(kind=1), within=("layout",))
    assert within.pooled == pytest.approx(pooled.effect)
    assert abs(within.effect or 9) < 0.5
    assert (within.p_value or 0) > 0.05
    for row in found:  # and one that is there within both
        row["y"] += 3 * (row["kind"] == 0)
    within = difference(found, "y", having(kind=0), having(kind=1), within=("layout",))
    assert within.effect == pytest.approx(3, abs=0.5)
    assert (within.low or 0) < 3 < (within.high or 0)


def test_strata_without_both_kinds_say_nothing() -> None:
    found = rows(layout=lambda i: i % 2, kind=lambda i: i % 2, y=noisy)
    within = difference(found, "y", having(kind=0), having(kind=1), within=("layout",))
    assert within.effect is None
    assert judge({"claim": within}, {"claim": 0.1})["claim"].verdict == "inconclusive"


def test_what_was_never_reached_decides_nothing() -> None:
    """Bounds alone are no measurements: neither a difference nor its absence."""
    found = rows(y=lambda i: 8.0 - (i % 2) * noisy(i), kind=lambda i: i % 2, there=lambda i: i % 2)
    unreached = having(there=0)
    judged = difference(found, "y", having(kind=1), having(kind=0), unreached=unreached)
    assert judge({"claim": judged}, {"claim": 0.1})["claim"].verdict == "inconclusive"
    assert "20 of 20 runs" in (judged.note or "")
    assert trend(found, "seed", "y", unreached=lambda _: True).effect is None


def test_a_group_without_any_change_has_no_trend() -> None:
    found = rows(30, x=lambda i: i % 10, g=lambda i: i // 10, y=lambda i: (i % 10) * (i < 10))
    assert trend(found, "x", "y", within=("g",)).effect == pytest.approx(1 / 3)


def test_shares_that_groups_explain() -> None:
    found = rows(y=lambda i: (i % 4) + 0.01 * noisy(i), g=lambda i: "abcd"[i % 4])
    clear = explained(found, "y", "g", more_than=0.5)
    assert (clear.effect or 0) > 0.49
    assert (clear.p_value or 1) < 0.01
    apart = explained(rows(y=noisy, g=lambda i: "abcd"[i // 10]), "y", "g", more_than=0.5)
    assert (apart.effect or 0) < 0
    assert (apart.high or 0) < 0
    near = explained(found, "y", "g", more_than=clear.effect + 0.5 if clear.effect else 0)
    assert (near.p_value or 0) > 0.05


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


def test_every_claim_can_be_supported_by_its_studies_runs(
    committed: dict[str, list[dict[str, Any]]],
) -> None:
    """No test has so few values that its smallest p is above the level."""
    for name, judged in judge_ledger(committed).items():
        found = judged.finding
        if found is not None and found.effect is not None and min(found.n) >= FEWEST:
            assert smallest_p(found.n) < LEVEL, name


def test_claims_without_tables_are_not_run() -> None:
    assert {found.verdict for found in judge_ledger({}).values()} == {"not run"}


RESTS_ON_LABELS = ("n51-merged", "n52-answers", "c5a-disorder", "c6b-steps")


def test_permuted_phases_support_nothing(committed: dict[str, list[dict[str, Any]]]) -> None:
    """Phases change places between the runs of a study: no claim that rests on them is left."""
    generator = np.random.default_rng(1)
    before = judge_ledger(committed)
    assert all(before[name].verdict == "supported" for name in RESTS_ON_LABELS)
    mutated = {}
    for name, found in committed.items():
        phases = generator.permutation([row["phase"] for row in found])
        mutated[name] = [row | {"phase": str(p)} for row, p in zip(found, phases, strict=True)]
    after = judge_ledger(mutated)
    for name in RESTS_ON_LABELS:
        assert after[name].verdict != "supported", name


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
    for name in ("n52-values", "n51-merged", "c6b-steps"):
        assert after[name].verdict != "supported", name


def test_phases_by_name() -> None:
    assert phase("memorizing", "composite")({"phase": "composite"})
    assert not phase("memorizing")({"phase": None})
