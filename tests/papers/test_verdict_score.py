"""How good the verdict from the mechanism is: its score, its lines, and what is committed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anchor_interp._util.errors import StoreError
from anchor_interp.analysis.fingerprint_numbers import NUMBERS
from anchor_interp.analysis.verdict import JUDGED, LINES
from anchor_interp.analysis.verdict import VERDICT_NUMBERS as EVIDENCE
from claim_effects import Row
from evidence import verdict, verdict_score
from evidence.verdict_score import (
    PHASES,
    VerdictScore,
    can_be_judged,
    coverage_curve,
    fit_lines,
    fitting_rows,
    judge_verdict,
    named_by,
)
from studies import Data

KEPT = json.loads((Path(__file__).parents[2] / "docs/evidence/verdict.json").read_text())


@pytest.fixture(scope="module")
def data() -> Data:
    return Data()


@pytest.fixture(scope="module")
def runs(data: Data) -> list[Row]:
    """Made-up runs of every phase whose evidence follows it, with noise; half of them judge."""
    generator = np.random.default_rng(0)
    margins = {name: 0.01 for name in NUMBERS if name.endswith("_margin")}
    rows = []
    for i, row in enumerate(data["decay"][::2]):
        if row["phase"] in PHASES:
            high = {"symmetric": "route_symmetric", "inferential": "virtual_rule",
                    "memorizing": "memory"}.get(row["phase"])  # fmt: skip
            evidence = {number.name: float(generator.uniform(0, 0.09)) for number in EVIDENCE}
            evidence |= {"route_gathered": 1.0, "exceptions": 0.0}
            evidence |= {} if high is None else {high: float(generator.uniform(0.7, 1))}
            own = {"seed": 7_010_000 + i, "run_id": f"verdict-{i}"}
            rows.append(row | margins | evidence | own)
    return rows


@pytest.fixture(scope="module")
def known(data: Data, runs: list[Row]) -> list[Row]:
    older = data.rows("settings", "settings-judging")
    return fitting_rows(older, [row for row in runs if row["seed"] % 2 == 0])


@pytest.fixture(scope="module")
def judging(runs: list[Row]) -> list[Row]:
    return [row for row in runs if row["seed"] % 2]


def judged(*rows: Any) -> VerdictScore:
    """As :func:`judge_verdict`, beside decision trees of one size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdict_score, "_DEPTHS", (3,))
        patch.setattr(verdict_score, "_LEAVES", (1,))
        return judge_verdict(*rows)


@pytest.fixture(scope="module")
def score(judging: list[Row], known: list[Row]) -> VerdictScore:
    return judged(judging, known)


def test_the_verdict_is_judged_on_the_half_that_did_not_fit_it(
    score: VerdictScore, judging: list[Row], known: list[Row]
) -> None:
    assert sum(score.n.values()) == len(judging)
    assert not {row["run_id"] for row in known} & {row["run_id"] for row in judging}
    assert [verdict.half(seed, depth) for seed, depth in ((6, 2), (7, 2), (7, 3))] == [
        "fit", "judge", "deeper"
    ]  # fmt: skip


def test_runs_without_a_phase_are_counted_and_left_out(
    score: VerdictScore, judging: list[Row], known: list[Row]
) -> None:
    more = [row | {"phase": "undertrained", "run_id": f"{row['run_id']}-u"} for row in judging[:7]]
    found = judged([*judging, *more], known)
    assert (found.left_out, found.n, found.confusion) == (7, score.n, score.confusion)


def test_accuracy_without_memorizing_runs_is_the_mean_over_the_other_phases(
    judging: list[Row], known: list[Row]
) -> None:
    wrong = [row | {"memory": 0.0} if row["phase"] == "memorizing" else row for row in judging]
    rules = {rule.name: rule for rule in judged(wrong, known).rules}
    assert rules["leaning"].accuracy == pytest.approx(0.75)
    assert rules["leaning"].without == 1.0


def test_deeper_and_wider_models_are_judged_apart(
    score: VerdictScore, runs: list[Row], judging: list[Row], known: list[Row]
) -> None:
    deeper = [row | {"n_layers": 4, "run_id": f"{row['run_id']}-4"} for row in runs]
    found = judged(judging, known, {"deeper": deeper, "wide": deeper[:30]})
    assert dataclasses.replace(found, rules=()) == dataclasses.replace(score, rules=())
    named = {rule.name: (rule.n, rule.accuracy) for rule in found.rules}
    assert (named["deeper"], named["wide"]) == ((len(deeper), 1.0), (30, 1.0))


def test_rows_without_the_verdicts_numbers_are_not_judged(data: Data) -> None:
    """Tables of an earlier fingerprint are read; nobody is told that their verdict is unclear."""
    assert not any(map(can_be_judged, data["depth"]))


def test_lines_lie_between_the_numbers_of_the_phases(runs: list[Row]) -> None:
    rows = [row for row in runs if row["phase"] != "memorizing"]
    for line in (fit_lines(rows)[name] for name in ("route_symmetric", "virtual_rule")):
        assert 0.09 < line.start <= line.line <= line.end < 0.7


def test_the_verdict_beats_what_knows_less_and_chance_does_not(
    score: VerdictScore, runs: list[Row], data: Data
) -> None:
    """The made-up numbers follow the phase, so what does not know them is behind."""
    scores = {rule.name: rule for rule in score.rules}
    assert (scores["verdict"].accuracy, score.coverage, score.disagreements) == (1.0, 1.0, ())
    for name in ("stable-rank", "gamma-and-decay"):
        assert (scores[name].behind_low or 0) > 0, name
    generator = np.random.default_rng(0)
    phases = generator.permutation([row["phase"] for row in runs])
    mixed = [row | {"phase": str(phase)} for row, phase in zip(runs, phases, strict=True)]
    chance = judged(mixed, data["settings"][::4])
    assert chance.rules[0].accuracy < 0.5
    assert len(chance.disagreements) == sum(
        n for phase, row in chance.confusion.items() for other, n in row.items() if other != phase
    )


def test_wider_bands_name_fewer_runs(score: VerdictScore, judging: list[Row]) -> None:
    (most, _), (share, point), (fewest, _) = coverage_curve(judging, (0, 1, 30))
    assert (share, point.accuracy) == (score.coverage, score.rules[0].accuracy)
    assert fewest < share <= most
    given = named_by(judging)
    assert {phase: counts.total() for phase, counts in given.items()} == score.n
    assert {phase: dict(+counts) for phase, counts in given.items()} == {
        phase: {name: n for name, n in row.items() if n} for phase, row in score.confusion.items()
    }


def test_a_number_out_of_range_names_its_run(runs: list[Row]) -> None:
    found = [dict(row) for row in runs]
    found[7]["virtual_rule"] = 1.7
    with pytest.raises(StoreError, match=f"{found[7]['run_id']} is damaged: virtual_rule is 1.7"):
        judge_verdict(found, runs)


@pytest.mark.slow
def test_the_committed_score_follows_from_the_committed_tables(data: Data) -> None:
    """The evidence is what the tables say, on this machine too."""
    found = verdict.score(data.tables)
    assert dataclasses.asdict(found)["confusion"] == KEPT["confusion"]
    assert (found.left_out, sum(found.n.values())) == (KEPT["left_out"], sum(KEPT["n"].values()))
    assert found.left_out + sum(found.n.values()) == len(verdict.kinds(data)["judge"])
    for rule, before in zip(found.rules, KEPT["rules"], strict=True):
        assert rule.accuracy == pytest.approx(before["accuracy"])
        assert rule.without == pytest.approx(before["without"])
    # what the package knows
    assert verdict.JUDGED.read_text(encoding="utf-8") == verdict.judged_text(data)
    scores = {rule.name: rule for rule in found.rules}
    for kind, name in zip(JUDGED, ("verdict", *verdict.SHAPES.values()), strict=True):
        assert (kind.named, kind.right) == (scores[name].n, round(scores[name].accuracy, 4))
    assert JUDGED[0].runs == sum(found.n.values())
    for name, table in verdict.TABLES.items():
        assert table(data).startswith("| "), name


@pytest.mark.slow
def test_the_lines_are_those_that_fitting_finds(data: Data) -> None:
    assert fit_lines(verdict.known_rows(data)) == dict(LINES)
