"""Verdicts follow from the tables; pages are up to date, short, and their links lead somewhere."""

import json
import re
from typing import Any

import pytest

from anchor_interp._util.errors import ConfigError
from claims import Judgement, archived, family, judge_all
from evidence import verdict
from evidence.verdict_score import Disagreement, RuleScore, VerdictScore
from fill_pages import EVIDENCE, PAGES, ROOT, Pages
from studies import Data


@pytest.fixture(scope="module")
def judged() -> dict[str, Judgement]:
    return judge_all(Data())


@pytest.fixture(scope="module")
def pages(judged: dict[str, Judgement]) -> Pages:
    return Pages(Data(), judged)


def test_the_committed_verdicts_follow_from_the_committed_tables(
    judged: dict[str, Judgement],
) -> None:
    """Effects, intervals, p and q, on this machine too, also in parts and in other strata."""
    kept = json.loads(EVIDENCE.read_text())["judgements"]
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


@pytest.mark.parametrize("anew", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_pages_have_the_tables_numbers(
    pages: Pages, anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``anew``: with the verdict's score from the tables, not as it is committed."""
    kept = json.loads((ROOT / "docs/evidence/verdict.json").read_text(encoding="utf-8"))
    kept["rules"] = [RuleScore(**rule) for rule in kept["rules"]]
    kept["disagreements"] = [Disagreement(**one) for one in kept["disagreements"]]
    if not anew:
        monkeypatch.setattr(verdict, "score", lambda _: VerdictScore(**kept))
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        assert pages.filled(text) == text, f"{path.name}: run python experiments/fill_pages.py"


def test_the_page_of_claims_is_short_and_has_a_section_a_figure() -> None:
    text = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 12_000
    for claim in family():
        assert (f'<a id="{claim.name}"></a>' in text) != claim.later


def test_counts_leave_out_what_can_hardly_fail(pages: Pages) -> None:
    counted = sum(not (claim.asks or claim.follows) for claim in family())
    verdicts = {pages.judged[claim.name].verdict for claim in family()}
    assert int(pages.papers(", ".join(verdicts))) == counted
    papers = pages.counts().partition("\n")[0]
    assert sum(map(int, re.findall(r"\*\*(\d+)\*\*", papers))) == counted


def test_an_archived_claim_keeps_its_last_result_and_an_unknown_part_is_named(pages: Pages) -> None:
    row = next(row for row in archived() if row["claim"] == "fig2-gives-way")
    assert pages.verdict("fig2-gives-way") == row["verdict"] == "withdrawn"
    assert pages.claim("fig2-gives-way").startswith("withdrawn, +0.28 [")
    with pytest.raises(ConfigError, match="the claim n52-values has no part 'post'"):
        pages.verdict("n52-values post")
