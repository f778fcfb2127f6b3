"""Judging claims: effects whose size is known, censoring, verdicts, and mutated data."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anchor_interp.papers.judging import (
    Finding,
    difference,
    explained,
    having,
    judge,
    mean,
    phase,
    trend,
)
from anchor_interp.papers.ledger import CLAIMS, judge_ledger, section_claims, section_of
from anchor_interp.papers.ledger import SECTIONS as LEDGER_SECTIONS
from anchor_interp.papers.studies import STUDIES
from anchor_interp.papers.tables import read_tables
from anchor_interp.statistics import two_samples

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
    assert judged.seeds == 10
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


def test_shares_that_groups_explain() -> None:
    found = rows(y=lambda i: (i % 4) + 0.01 * noisy(i), g=lambda i: "abcd"[i % 4])
    assert (explained(found, "y", "g").effect or 0) > 0.99
    apart = explained(rows(y=noisy, g=lambda i: "abcd"[i // 10]), "y", "g", chance=0.5)
    assert (apart.effect or 0) < 0
    assert (apart.high or 0) < 0.5


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
    (Finding((0,), 0, 12, None, None, None, None, ()), "not run"),
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
        assert (section_of(claim.name) is None) == (claim.find is None)
    shown = [claim.name for name in LEDGER_SECTIONS for claim in section_claims(name)]
    assert sorted(shown) == sorted(claim.name for claim in CLAIMS if claim.find is not None)
    for name in LEDGER_SECTIONS:
        assert (ROOT / "experiments" / f"{name}.py").is_file()


def test_claims_without_tables_are_not_run() -> None:
    assert {found.verdict for found in judge_ledger({}).values()} == {"not run"}


@pytest.fixture(scope="module")
def committed() -> dict[str, list[dict[str, Any]]]:
    return read_tables(TABLES)


RESTS_ON_LABELS = ("n51-symmetric-route", "n52-answers", "n52-values", "c6b-steps")


def test_permuted_phases_support_nothing(committed: dict[str, list[dict[str, Any]]]) -> None:
    """Phases change places between the runs of a study: no claim that rests on them is left."""
    generator = np.random.default_rng(1)
    before = judge_ledger(committed)
    assert any(before[name].verdict == "supported" for name in RESTS_ON_LABELS)
    mutated = {}
    for name, found in committed.items():
        phases = generator.permutation([row["phase"] for row in found])
        mutated[name] = [row | {"phase": str(p)} for row, p in zip(found, phases, strict=True)]
    after = judge_ledger(mutated)
    for name in RESTS_ON_LABELS:
        assert after[name].verdict != "supported", name


def test_swapped_phases_turn_claims_round(committed: dict[str, list[dict[str, Any]]]) -> None:
    other = {"inferential": "symmetric", "symmetric": "inferential"}
    before = judge_ledger(committed)
    swapped = {
        name: [row | {"phase": other.get(row["phase"], row["phase"])} for row in found]
        for name, found in committed.items()
    }
    after = judge_ledger(swapped)
    for name in RESTS_ON_LABELS[:3]:
        assert before[name].verdict != "supported" or after[name].verdict == "not supported", name


def test_phases_by_name() -> None:
    assert phase("memorizing", "composite")({"phase": "composite"})
    assert not phase("memorizing")({"phase": None})
