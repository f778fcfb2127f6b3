"""The committed claims and their archive."""

import re

from claims import REGISTERED, archived, family, judge, scripts
from neurips import fig5_condensation, fig6_complexity
from studies import Data, known

FIELDS = {
    "by", "figure", "quote", "sentence", "predictor", "statistic", "stratum", "studies", "least",
    "n", "spread", "finds",
}  # fmt: skip


def test_one_script_judges_its_claims_as_all_together_do() -> None:
    claims, data = [*fig5_condensation.CLAIMS, *fig6_complexity.CLAIMS], Data()
    whole = judge(claims, data)
    names = [claim.name for claim in fig6_complexity.CLAIMS]
    assert judge(claims, data, shown=names) == {name: whole[name] for name in names}


def test_every_claim_is_complete() -> None:
    names = [claim.name for claim in family()]
    assert len(names) == len(set(names))
    assert sum(not (claim.ours or claim.later) for claim in family()) >= 51
    assert sum(claim.ours for claim in family()) <= 12
    for claim in family():
        assert bool(claim.quote) != bool(claim.asks) or claim.name in REGISTERED
        assert claim.statistic
        assert claim.source
        assert claim.least >= 0
        assert 0 < len(claim.short) <= 55
        assert {*claim.effect.runs, *claim.effect.elsewhere} <= set(known())
        assert set(claim.known) <= set(claim.effect.runs)
    without_tables = judge(family(), {})
    assert {found.verdict for found in without_tables.values()} == {"not run"}


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


def test_a_registered_claim_says_all_that_judges_it() -> None:
    for name, claim in REGISTERED.items():
        assert set(claim) >= FIELDS, name
        assert claim["by"] in ("paper", "ours", "later"), name
        assert claim["quote"] or claim["by"] != "paper", name
        assert 0 < claim["finds"] < 1, name
