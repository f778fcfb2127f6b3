"""Effects of known size, censoring, verdicts, adjustment, and mutated data."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from findings import told

from anchor_interp._util.statistics import Estimate
from claim_effects import Difference, Effect, Finding, Mean, Rise, Rows, Trend, equal, two_samples
from claims import Claim, Judgement, holm, judge


def rows(n: int = 40, **columns: Any) -> list[dict[str, Any]]:
    """Finished runs of ten seeds with these columns, a function of the index or a constant."""
    same = {"status": "done", "censored": False, "task": "t", "phase": "other"}
    return [
        {"run_id": f"{i:04d}", "seed": i % 10, **same}
        | {name: f(i) if callable(f) else f for name, f in columns.items()}
        for i in range(n)
    ]


@dataclass(frozen=True)
class Given(Effect):
    """An effect that is found already."""

    finding: Finding | None = None

    def find_in(self, _: Any, *, whole: bool = True) -> Finding | None:  # noqa: ARG002
        return self.finding

    def measure(self, _: Rows) -> Finding:
        assert self.finding is not None
        return self.finding


def judged_all(minimum: float, **findings: Finding | None) -> dict[str, Judgement]:
    """Judge findings together."""
    claims = tuple(
        Claim(name, "", Given(finding=found), minimum) for name, found in findings.items()
    )
    return judge(claims, {})


def judged_alone(found: Finding | None, minimum: float) -> Judgement:
    return judged_all(minimum, claim=found)["claim"]


def noisy(i: int) -> float:
    return math.sin(37.0 * i)


def test_a_difference_is_the_one_of_statistics() -> None:
    found = rows(y=lambda i: noisy(i) + (i % 2), kind=lambda i: i % 2)
    judged = Difference("y", equal(kind=1), equal(kind=0)).measure(found)
    one, two = ([row["y"] for row in found if row["kind"] == kind] for kind in (1, 0))
    expected = two_samples(one, two)
    assert (told(judged).effect, told(judged).p) == (expected.effect, expected.p)
    assert judged.n == (20, 20)
    assert judged.seeds == 5  # odd ones in one sample, even ones in the other
    turned = Difference("y", equal(kind=0), equal(kind=1)).measure(found)
    assert told(turned).effect == pytest.approx(-expected.effect)


def test_a_trend_tells_groups_that_disagree() -> None:
    found = rows(x=lambda i: i % 10, g=lambda i: i // 20, y=lambda i: i % 10 * (1 - 2 * (i // 20)))
    judged = Trend("y", "x", within=("g",), apart=("g",)).find(found)
    assert told(judged).effect == pytest.approx(0)
    assert {name: told(part).effect for name, part in judged.parts.items()} == pytest.approx(
        {"0": 1, "1": -1}
    )
    mixed = judged_alone(judged, 0.3)
    assert (mixed.verdict, mixed.reason) == ("mixed", "supported in 0, not in 1")


def test_a_claim_is_judged_in_the_papers_stratum_and_others_are_told_beside_it() -> None:
    """In the paper's layout y rises, in the other it falls: the claim is supported there."""
    found = rows(layout=lambda i: "pre" if i < 20 else "post", x=lambda i: i % 10,
                 y=lambda i: i % 10 * (1 if i < 20 else -1))  # fmt: skip
    effect = Trend("x", "y", where=equal(layout="pre"), also=("layout",), runs=("made",))
    claim = Claim("claim", "", effect, 0.3)
    judged = judge((claim,), {"made": found})["claim"]
    assert (judged.verdict, judged.also["post"].verdict) == ("supported", "reversed")
    assert judged.finding is not None
    assert judged.finding.n == (20,)


def test_runs_of_a_seed_do_not_count_as_witnesses_of_their_own() -> None:
    """Forty runs of five seeds, alike within a seed: five seeds are five witnesses."""
    found = rows(40, x=lambda i: i % 2, g=lambda i: i // 10,
                 y=lambda i: noisy(i % 10) + 0.8 * (i % 2),
                 seed=lambda i: (i % 10) // 2)  # fmt: skip
    alone, together = (told(Trend("y", "x", within=("g",), cluster=of).measure(found)).p
                       for of in ((), ("seed",)))  # fmt: skip
    assert alone < 0.01 < together


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("column", "answerable"), [
    ("fitted", {"fitted": ("fitted", 0.95)}),
    ("chance", {"above": ("chance", 0.6)}),
    ("steps_to_loss", {"bounds": True}),
])  # fmt: skip
def test_what_is_not_answerable_is_so_whichever_way_it_points(
    sign: int, column: str, answerable: dict[str, Any]
) -> None:
    found = [row | {column: 1.0} for row in
             rows(y=lambda i: sign * (i % 2) + 0.1 * noisy(i), kind=lambda i: i % 2)]  # fmt: skip
    effect = Difference("y", equal(kind=1), equal(kind=0), **answerable)
    verdict = judged_alone(effect.measure(found), 0.5).verdict
    assert verdict == ("supported" if sign > 0 else "reversed")
    unlearned = [row | {column: None if column == "steps_to_loss" else 0.5} for row in found]
    assert judged_alone(effect.measure(unlearned), 0.5).verdict == "not answerable here"


def test_a_mean_of_runs_that_never_came_there_answers_nothing_and_a_margin_is_missed() -> None:
    found = rows(y=lambda i: 0.1 * noisy(i) - 1, steps_to_loss=lambda _: 1.0)
    missed = Mean("y", bounds=True, is_margin=True).measure(found)
    assert judged_alone(missed, 0.0).verdict == "not supported"
    assert judged_alone(Mean("y").measure(found), 0.0).verdict == "reversed"
    never = [row | {"steps_to_loss": None, "y": 1 + row["y"]} for row in found]
    measured = Mean("y", bounds=True, is_margin=True).measure(never)
    assert judged_alone(measured, 0.0).verdict == "not answerable here"


def test_a_trend_is_taken_within_groups() -> None:
    """Between groups y falls, within each it rises with x: Simpson's paradox."""
    found = rows(x=lambda i: i % 10, g=lambda i: i // 10, y=lambda i: i % 10 - 20 * (i // 10))
    judged = Trend("y", "x", within=("g",)).measure(found)
    assert told(judged).effect == pytest.approx(1)
    assert told(judged).p == pytest.approx(0.0001)
    assert told(Trend("y", "g").measure(found)).effect == pytest.approx(-1, abs=0.05)
    nothing = Trend("y", "x").measure(rows(x=lambda i: i, y=noisy))
    assert told(nothing).p > 0.05
    assert told(nothing).low < 0 < told(nothing).high
    # a group whose number never changes counts as no trend
    found = rows(30, x=lambda i: i % 10, g=lambda i: i // 10, y=lambda i: (i % 10) * (i < 10))
    assert told(Trend("y", "x", within=("g",)).measure(found)).effect == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "effect",
    [
        Trend("y", "x"),
        Rise("y", "x"),
        Mean("y", reference=2.0),
        Difference("y", lambda row: row["x"] >= 5, lambda row: row["x"] < 5),
        Difference("y", lambda row: row["x"] >= 5, lambda row: row["x"] < 5, within=("task",)),
    ],
)
def test_an_effect_due_to_censoring_decides_nothing(effect: Effect) -> None:
    """Among the runs that converged y rises; those that did not turn it round."""
    found = rows(
        60,
        x=lambda i: i % 10,
        y=lambda i: i % 10 if i % 3 else 9.0 - 3 * (i % 10),
        censored=lambda i: i % 3 == 0,
    )
    judged = effect.find(found)
    assert told(judged).effect >= 1
    assert judged.censored == 20
    assert judged.with_censored is not None
    assert judged.with_censored.effect < 0.5
    verdict = judged_alone(judged, 0.5)
    assert verdict.verdict == "inconclusive"
    assert "with the runs that did not converge" in verdict.reason
    converged = effect.find([row for row in found if not row["censored"]])
    assert judged_alone(converged, 0.5).verdict == "supported"


def test_censored_runs_are_counted_and_stand_in_no_sample() -> None:
    found = rows(y=lambda i: 1.0 + noisy(i), censored=lambda i: i < 8)
    found[39]["status"], found[38]["y"] = "diverged", None
    judged = Mean("y").measure(found)
    assert judged.n == (30,)
    assert judged.censored == 9
    assert set(judged.runs) == {f"{i:04d}" for i in range(8, 38)}
    kept = Difference(
        "y", lambda row: row["seed"] < 5, lambda row: row["seed"] >= 5, unconverged=True
    ).measure(found)
    assert sum(kept.n) == 38


def finding(
    effect: float, low: float, high: float, p: float, n: int = 10, finds: float = 0.1
) -> Finding:
    return Finding((n, n), n, 0, Estimate(effect, low, high, p, finds), ())


@pytest.mark.parametrize(("found", "verdict"), [
    (finding(0.5, 0.3, 0.7, 0.001), "supported"),
    (finding(0.15, 0.1, 0.19, 0.001), "not supported"),  # there, but smaller than what counts
    (finding(-0.5, -0.7, -0.3, 0.001), "reversed"),
    (replace(finding(-0.5, -0.7, -0.3, 0.001), is_margin=True), "not supported"),  # missed
    # reversed among the runs that converged alone
    (replace(finding(-0.5, -0.7, -0.3, 0.001), with_censored=Estimate(-0.1, -0.3, 0.1, 0.4, 0.2)),
     "inconclusive"),
    (finding(0.15, 0.1, 0.25, 0.001), "inconclusive"),  # there, perhaps as large as counts
    (finding(0.05, -0.1, 0.19, 0.4), "not supported"),  # what would count is excluded
    (finding(0.05, -0.1, 0.19, 0.4, finds=0.3), "not answerable here"),  # too few would find it
    (finding(0.05, -0.3, 0.4, 0.4), "inconclusive"),
    (finding(0.5, 0.3, 0.7, 0.001, n=4), "not answerable here"),
    (None, "not run"),
    (Finding((0,), 0, 12, None, ()), "not answerable here"),  # all censored
    (Finding((0,), 0, 0, None, ()), "not run"),
    (Finding((9, 0), 0, 0, None, (), problem="nothing comparable"), "nothing comparable"),
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


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm([0.5, 0.9]) == (1.0, 1.0)
