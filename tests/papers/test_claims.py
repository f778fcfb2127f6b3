"""The committed claims, their archive, and that verdicts follow from the tables."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import claims
from claims import REGISTERED, Judgement, archived, family, judge_all, scripts
from studies import Data, known

ROOT = Path(__file__).parents[2]
FIELDS = {
    "by", "figure", "quote", "sentence", "predictor", "statistic", "stratum", "studies", "least",
    "n", "spread", "finds",
}  # fmt: skip


@pytest.fixture(scope="module")
def judged() -> dict[str, Judgement]:
    return judge_all(Data())


def test_the_committed_verdicts_follow_from_the_committed_tables(
    judged: dict[str, Judgement],
) -> None:
    """Effects, intervals, p and q, on this machine too, also in parts and in other strata."""
    kept = json.loads((ROOT / "docs/evidence/claims.json").read_text())["judgements"]
    assert set(judged) <= set(kept)

    def compare(name: str, one: Judgement, two: dict[str, Any]) -> None:
        assert (one.verdict, one.known) == (two["verdict"], two["known"]), name
        q = two["q_value"]
        assert one.q_value == (q if q is None else pytest.approx(q, rel=1e-9)), name
        found = one.finding.found if one.finding else None
        before = two["finding"] and two["finding"]["found"]
        assert (found is None) == (before is None), name
        if found is not None:
            assert vars(found) == pytest.approx(before, rel=1e-9, abs=1e-12), name
        for kind in ("parts", "also"):
            parts = getattr(one, kind)
            assert set(parts) == set(two[kind]), name
            for at, part in parts.items():
                compare(f"{name}, {at}", part, two[kind][at])

    for name, one in judged.items():
        compare(name, one, kept[name])


def test_one_script_judges_its_claims_as_the_whole_family_does(
    judged: dict[str, Judgement],
) -> None:
    names = ["noise-found", "c8b-control"]
    assert judge_all(Data(), names) == {name: judged[name] for name in names}


def test_every_claim_is_complete() -> None:
    names = [claim.name for claim in family()]
    assert len(names) == len(set(names))
    assert sum(not claim.ours for claim in family()) >= 51
    assert sum(claim.ours for claim in family()) <= 12
    for claim in family():
        assert bool(claim.quote) != claim.ours or claim.name in REGISTERED
        assert claim.statistic
        assert claim.source
        assert claim.least >= 0
        assert 0 < len(claim.short) <= 55
        assert {*claim.effect.runs, *claim.effect.elsewhere} <= set(known())
        assert set(claim.known) <= set(claim.effect.runs)


def test_a_script_says_what_its_figure_is() -> None:
    """Each has a paper's figure or a question in its first line, and one place for each study."""
    for name, script in scripts().items():
        first = (script.__doc__ or "").partition("\n")[0]
        assert re.match(
            r"NeurIPS paper, .*figure|Complexity-control paper, .*figure|.*\?$", first
        ), name
    runs = [study for script in scripts().values() for study in getattr(script, "RUNS", {})]
    assert len(runs) == len(set(runs))


def test_what_was_ever_judged_stays_in_the_family() -> None:
    """The archive has the claims of ours that are not shown, each with its last result."""
    shown, gone = {claim.name for claim in family()}, [row["claim"] for row in archived()]
    assert len(gone) == len(set(gone))
    assert not shown & set(gone)
    for row in archived():
        assert row["sentence"]
        assert row["verdict"]
        assert bool(row["p"]) == bool(row["effect"])
        assert not row["p"] or 0 < float(row["p"]) <= 1


@pytest.mark.parametrize("name", REGISTERED)
def test_a_registered_claim_says_all_that_judges_it(name: str) -> None:
    claim = REGISTERED[name]
    assert set(claim) >= FIELDS
    assert claim["by"] in ("paper", "ours")
    assert claim["quote"] or claim["by"] == "ours", "a paper's claim quotes the paper"
    assert 0 < claim["finds"] < 1


def test_claims_without_tables_are_not_run() -> None:
    assert {found.verdict for found in claims.judge(family(), {}).values()} == {"not run"}
