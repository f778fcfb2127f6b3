"""The ledger: its command, its page, the verdict's score, and the sections' scripts."""

import csv
import dataclasses
import importlib
import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from in_process_engine import Here
from test_gathering import MICRO
from test_tables import TABLES

import section
import sections
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp.analysis import statistics, verdict
from anchor_interp.analysis.mechanism import NUMBERS
from anchor_interp.analysis.verdict import LINES
from anchor_interp.runs.phase import PAPER
from papers import __main__ as command
from papers import figures, judging, studies
from papers.claims import CLAIMS, PHASE_2, REALISTIC, judge_ledger, section_claims
from papers.effects import Finding
from papers.judging import Claim, Verdict
from papers.page import Ledger, known_before, make_ledger
from papers.rows import KNOWN_SEEDS, Row, Rows
from papers.tables import read_study, read_tables
from papers.verdict_runs import half
from papers.verdict_score import (
    PHASES,
    VerdictScore,
    can_be_judged,
    coverage_curve,
    fit_lines,
    fitting_rows,
    judge_verdict,
    named_by,
)

EVIDENCE_NUMBERS = tuple(number.name for number in verdict.NUMBERS)
ROOT = Path(__file__).parents[2]
Tables = dict[str, list[Row]]


@pytest.fixture
def micro(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "STUDIES", MICRO)


def test_the_command_trains_judges_and_writes(
    tmp_path: Path,
    micro: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "LocalEngine", lambda *_: Here())
    asked = ["decay", "--out", str(tmp_path), "--workers", "1", "--quiet"]
    assert command.main([*asked, "--dry-run"]) == 0
    assert "runs: 2, of which 0 are in tables and 2 new" in capsys.readouterr().out
    assert command.main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["judgements"]) == {claim.name for claim in CLAIMS}
    assert found["runs"] == {"decay": 2}
    assert command.main([*asked, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["known"] == 2
    assert command.main(["--out", str(tmp_path), "--judge", "--quiet"]) == 0
    assert "not run" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "message"), [
    (["decai"], "no study is called 'decai'"),
    (["--dry-run", "--judge"], "--judge is for tables that are there, --dry-run for"),
    (["--scale", "huge"], "huge"),
    (["--judge", "--tables", "nowhere"], "nowhere is not a folder"),
    (["--dry-run", "--tables", "nowhere"], "nowhere is not a folder"),
    (["decay", "--judge"], "--judge is for every table, without training; leave out a study"),
    (["decay", "--dry-run", "--workers", "0"], "workers is 0"),
])  # fmt: skip
def test_a_wrong_command_is_one_clear_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--out", str(tmp_path / "out"), *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(("study", "column"), [
    ("complexity-post", "complexity"), ("branches", "branch_weight_decay"),
])  # fmt: skip
def test_a_table_that_lacks_a_column_is_named(
    study: str, column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = read_tables(TABLES, [study])[study]
    path = tmp_path / f"{study}.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [name for name in rows[0] if name != column])
        writer.writeheader()
        writer.writerows({k: v for k, v in row.items() if k != column} for row in rows)
    asked = ["--judge", "--tables", str(tmp_path), "--out", str(tmp_path / "out")]
    assert command.main(asked) == 1
    told = capsys.readouterr().err
    assert f"needs the column {column}, which the table of {study} lacks" in told
    assert told.count("\n") == 1


@pytest.fixture(scope="module")
def verdict_runs(committed: Tables) -> list[Row]:
    """Made-up runs of every phase whose evidence follows it, with noise; half of them judge."""
    generator = np.random.default_rng(0)
    margins = {name: 0.01 for name in NUMBERS if name.endswith("_margin")}
    rows = []
    for i, row in enumerate(committed["decay"]):
        if row["phase"] in PHASES:
            high = {"symmetric": "route_symmetric", "inferential": "virtual_rule",
                    "memorizing": "memory"}.get(row["phase"])  # fmt: skip
            evidence = {name: float(generator.uniform(0, 0.09)) for name in EVIDENCE_NUMBERS}
            evidence |= {"route_gathered": 1.0, "exceptions": 0.0}
            evidence |= {} if high is None else {high: float(generator.uniform(0.7, 1))}
            own = {"seed": 7_010_000 + i, "run_id": f"verdict-{i}"}
            rows.append(row | margins | evidence | own)
    return rows


@pytest.fixture(scope="module")
def score(committed: Tables, verdict_runs: list[Row]) -> VerdictScore:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("papers.page.judge_ledger", lambda _: {})  # claims are judged elsewhere
        found = make_ledger("tiny", committed, verdict_runs).verdict
    assert found is not None
    return found


def test_the_verdict_is_judged_on_the_half_that_did_not_fit_it(
    score: VerdictScore, verdict_runs: list[Row], committed: Tables
) -> None:
    judged = [row for row in verdict_runs if row["seed"] % 2]
    assert sum(score.n.values()) == len(judged)
    fitted = {row["run_id"] for row in fitting_rows(committed, verdict_runs)}
    assert not fitted & {row["run_id"] for row in judged}


def test_deeper_and_wider_models_are_judged_apart(
    score: VerdictScore, verdict_runs: list[Row], committed: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("papers.page.judge_ledger", lambda _: {})
    deeper = [row | {"n_layers": 4, "run_id": f"{row['run_id']}-4"} for row in verdict_runs]
    tables = {**committed, "solutions": deeper[:30]}
    found = make_ledger("tiny", tables, [*verdict_runs, *deeper]).verdict
    assert found is not None
    assert dataclasses.replace(found, rules=()) == dataclasses.replace(score, rules=())
    named = {rule.name: (rule.n, rule.accuracy) for rule in found.rules}
    assert named["3 and 4 layers of two heads"] == (len(deeper), 1.0)
    assert named["width 400"] == (30, 1.0)


def test_rows_without_the_verdicts_numbers_are_not_judged(committed: Tables) -> None:
    """Tables of an earlier fingerprint are read; nobody is told that their verdict is unclear."""
    assert not any(map(can_be_judged, committed["depth"]))
    assert make_ledger("tiny", {"rates": committed["rates"]}).verdict is None


def test_lines_lie_between_the_numbers_of_the_phases(verdict_runs: list[Row]) -> None:
    rows = [row for row in verdict_runs if row["phase"] != "memorizing"]
    for line in (fit_lines(rows)[name] for name in ("route_symmetric", "virtual_rule")):
        assert 0.09 < line.start <= line.line <= line.end < 0.7


def test_the_verdict_beats_what_knows_less_and_chance_does_not(
    score: VerdictScore, verdict_runs: list[Row], committed: Tables
) -> None:
    """The made-up numbers follow the phase, so what does not know them is behind."""
    scores = {rule.name: rule for rule in score.rules}
    assert (scores["verdict"].accuracy, score.coverage, score.disagreements) == (1.0, 1.0, ())
    for name in ("stable-rank", "gamma-and-decay"):
        assert (scores[name].behind_low or 0) > 0, name
    generator = np.random.default_rng(0)
    phases = generator.permutation([row["phase"] for row in verdict_runs])
    mixed = [row | {"phase": str(phase)} for row, phase in zip(verdict_runs, phases, strict=True)]
    chance = judge_verdict(mixed, committed["settings"])
    assert chance.rules[0].accuracy < 0.5
    assert len(chance.disagreements) == sum(
        n for phase, row in chance.confusion.items() for other, n in row.items() if other != phase
    )


def test_wider_bands_name_fewer_runs(score: VerdictScore, verdict_runs: list[Row]) -> None:
    judged = [row for row in verdict_runs if row["seed"] % 2]
    (most, _), (share, point), (fewest, _) = coverage_curve(judged, (0, 1, 30))
    assert (share, point.accuracy) == (score.coverage, score.rules[0].accuracy)
    assert fewest < share <= most
    given = named_by(judged)
    assert {phase: counts.total() for phase, counts in given.items()} == score.n
    assert {phase: dict(+counts) for phase, counts in given.items()} == {
        phase: {name: n for name, n in row.items() if n} for phase, row in score.confusion.items()
    }


def test_a_number_out_of_range_names_its_run(verdict_runs: list[Row]) -> None:
    found = [dict(row) for row in verdict_runs]
    found[7]["virtual_rule"] = 1.7
    with pytest.raises(StoreError, match=f"{found[7]['run_id']} is damaged: virtual_rule is 1.7"):
        judge_verdict(found, verdict_runs)


def test_the_committed_verdicts_follow_from_the_committed_tables(ledger: Ledger) -> None:
    """The evidence is what the tables say, on this machine too."""
    kept = json.loads((ROOT / "docs" / "evidence" / "claims.json").read_text())
    assert {name: j.verdict for name, j in ledger.judgements.items()} == {
        name: judged["verdict"] for name, judged in kept["judgements"].items()
    }
    for name, judged in ledger.judgements.items():
        before = kept["judgements"][name]["finding"]
        if judged.finding is not None and judged.finding.found is not None:
            found = before["found"]
            assert judged.finding.found.effect == pytest.approx(found["effect"], rel=1e-9), name
            assert judged.finding.found.p == pytest.approx(found["p"], rel=1e-9), name
    assert (ledger.verdict is None) == (kept["verdict"] is None)
    if ledger.verdict is not None:
        for rule, before in zip(ledger.verdict.rules, kept["verdict"]["rules"], strict=True):
            assert rule.accuracy == pytest.approx(before["accuracy"])
        assert ledger.verdict.left_out == kept["verdict"]["left_out"]


def test_the_package_has_what_the_committed_runs_say_of_the_verdict(ledger: Ledger) -> None:
    results = importlib.import_module("results")
    assert results.JUDGED.read_text(encoding="utf-8") == results.judged_text()
    assert ledger.verdict is not None
    scores = {rule.name: rule for rule in ledger.verdict.rules}
    for kind, name in zip(verdict.JUDGED, ("verdict", "3 and 4 layers of two heads", "width 400"),
                          strict=True):  # fmt: skip
        assert (kind.named, kind.right) == (scores[name].n, round(scores[name].accuracy, 4))
    assert verdict.JUDGED[0].runs == sum(ledger.verdict.n.values())


def test_runs_without_a_phase_are_counted_as_left_out(ledger: Ledger) -> None:
    """The verdict has no name for a run that is undertrained, or other."""
    rows = [
        r for r in read_study(TABLES / "verdict.csv") if half(r["seed"], r["n_layers"]) == "judge"
    ]
    assert ledger.verdict is not None
    lacking = [row["phase"] for row in rows if row["phase"] not in PHASES]
    assert ledger.verdict.left_out == len(lacking) == len(rows) - sum(ledger.verdict.n.values())
    n, told = len(lacking), f"{len(lacking)} of {len(rows)} are left out"
    counts = f"{lacking.count('undertrained')} are undertrained, {lacking.count('other')} *other*"
    assert n == lacking.count("undertrained") + lacking.count("other")
    page = (ROOT / "docs" / "verdict.md").read_text(encoding="utf-8")
    assert f"{told}, because they have no phase that a verdict names: {counts}" in page
    assert told in (ROOT / "docs" / "evidence" / "verdict.md").read_text(encoding="utf-8")


def test_documents_use_the_words_of_the_verdicts() -> None:
    docs = ROOT / "docs"
    results = (docs / "results.md").read_text(encoding="utf-8")
    meaning = results.split("## What a verdict means")[1].split("##")[0]
    for word in get_args(Verdict):
        assert f"- *{word}*: " in meaning
    for path in (docs / "mechanism.md", ROOT / "README.md"):
        text = path.read_text(encoding="utf-8")
        assert "results.md#what-a-verdict-means" in text, path
        cells = {part.strip(" *").lower() for part in text.split("|")}
        assert not {"shown", "not shown", "too few runs", "opposite"} & cells, path


def test_the_page_lists_the_claims_on_known_runs(committed: Tables, ledger: Ledger) -> None:
    """The list follows from the tables: known seeds, and studies known as a whole."""
    listed = {name: runs for name, runs, *_ in known_before(ledger)}
    for claim in CLAIMS:
        found = ledger.judgements[claim.name].finding
        if found is not None:
            rows = {row["run_id"]: (s, row) for s in claim.studies for row in committed[s]}
            mine = [rows[run] for run in found.runs]
            known = sum(s in claim.known or row["seed"] in KNOWN_SEEDS for s, row in mine)
            assert listed.get(claim.name, "0 of") == (
                f"{known} of {len(mine)}" if known else "0 of"
            )
    assert {"c4-id", "c4-gamma"} <= set(listed)


def test_the_pages_have_the_tables_numbers(ledger: Ledger) -> None:
    results = importlib.import_module("results")
    for file in results.PAGES:
        page = file.read_text(encoding="utf-8")
        assert results.filled(page, ledger) == page
        patterns = (results._PLACE, results._TEXT, results._NUMBER)
        known = {match.start() for pattern in patterns for match in pattern.finditer(page)}
        markers = re.finditer(r"<!-- (?!end -->)(?:\w+:|\w+ (?:\w+ )?of ).*?-->", page)
        assert {match.start() for match in markers} == known, file.name


def test_wrong_answers_alone_change_no_verdict(
    committed: Tables, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right answers commute on the complexity-control task, so they could hide phase 2's kind."""

    def again(row: Row) -> Row:
        share = row.get("commutativity_wrong")
        if (
            row["phase"] not in PHASE_2
            or share is None
            or row.get("symmetric_accuracy") is not None
        ):
            return row
        return row | {"phase": "symmetric" if share >= PAPER.commutativity else "composite"}

    tables = {name: [again(row) for row in rows] for name, rows in committed.items()}
    moved = sum(a["phase"] != b["phase"] for n in tables for a, b in zip(
        tables[n], committed[n], strict=True))  # fmt: skip
    assert moved > 0

    measured, anew = judging._found, set[str]()

    def moved_in(claim: Claim, given: Mapping[str, Rows]) -> bool:
        pairs = (zip(given[name], committed[name], strict=True) for name in claim.studies)
        return any(new is not old for new, old in itertools.chain(*pairs))

    def found(claim: Claim, given: Mapping[str, Rows]) -> Finding | None:
        """Measured again where a phase moved; what remains without known runs decides nothing."""
        if any(len(given[name]) < len(committed[name]) for name in claim.studies):
            return None
        if moved_in(claim, given):
            anew.add(claim.name)
            return measured(claim, given)
        one = ledger.judgements[claim.name]
        parts = {name: part.finding for name, part in one.parts.items() if part.finding}
        return one.finding and dataclasses.replace(one.finding, parts=parts)

    monkeypatch.setattr(judging, "_found", found)
    monkeypatch.setattr(statistics, "DRAWN", 999)
    for name, judged in judge_ledger(tables).items():
        assert judged.verdict == ledger.judgements[name].verdict, name
    assert len(anew) == sum(moved_in(claim, tables) for claim in CLAIMS) > 0
    supported = [each for each in ledger.judgements.values() if each.verdict == "supported"]
    assert len(supported) > 5


def test_a_part_of_a_claim_is_told_or_named_as_unknown(ledger: Ledger) -> None:
    text = importlib.import_module("ledger_text")
    judged = ledger.judgements["c4-gamma"]
    elsewhere = judged.also["neurips, pre"].verdict
    assert text.part_text(ledger, "c4-gamma neurips, pre") == elsewhere
    assert text.part_text(ledger, "c4-gamma grid") == judged.parts["grid"].verdict
    with pytest.raises(ConfigError, match="c4-gamma has no part 'prae'; expected one of: "):
        text.part_text(ledger, "c4-gamma prae")
    unrun = dataclasses.replace(judged, verdict="not run", finding=None)
    without = dataclasses.replace(ledger, judgements={"c4-gamma": unrun})
    assert text.part_text(without, "c4-gamma pre") == "not run"


def test_every_claim_is_in_one_of_the_forest_plots(ledger: Ledger) -> None:
    assert {claim.name for claim in CLAIMS} > REALISTIC > {"c7-scan", "across-tasks-rank"}
    data = section.Data("tiny", {}, TABLES, ledger.judgements)
    shown = []
    for draw in (sections.forest_anchors, sections.forest_realistic):
        [[(_, figure)]] = draw(data)
        labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        shown.append([" ".join(label.split()) for label in labels if label])
    drawn = [
        claim
        for claim in CLAIMS
        if (found := ledger.judgements[claim.name].finding) and found.found is not None
    ]
    assert sorted(shown[0] + shown[1]) == sorted(claim.short for claim in drawn)
    assert sorted(shown[1]) == sorted(claim.short for claim in drawn if claim.name in REALISTIC)


def test_every_claim_is_counted_and_named(ledger: Ledger) -> None:
    text = importlib.import_module("ledger_text")
    counted = re.findall(r"\*\*(\d+)\*\*", text.counts(ledger))
    assert sum(map(int, counted)) == len(CLAIMS)
    for claim in CLAIMS:  # it stands alone in its row
        assert re.fullmatch(r"[A-Z].*\.", claim.sentence), claim.name
        assert not re.match(r"(It|They|The same)\b", claim.sentence), claim.name
    assert all(0 < len(claim.short) <= 55 for claim in CLAIMS)


def test_a_number_on_a_page_is_that_of_its_runs(
    ledger: Ledger, committed: dict[str, list[dict[str, Any]]]
) -> None:
    results = importlib.import_module("results")
    runs = [row for row in committed["rates"] if row["phase"] in ("composite", "symmetric")]
    assert runs
    only = "of rates; phase=composite,symmetric --"
    page = f"<!-- count {only}>9<!-- end --> and <!-- largest gamma {only}><!-- end -->."
    assert results.filled(page, ledger) == (
        f"<!-- count {only}>{len(runs)}<!-- end --> and "
        f"<!-- largest gamma {only}>{max(row['gamma'] for row in runs):.2f}<!-- end -->."
    )


def test_a_bound_is_drawn_hollow_and_an_interval_beyond_the_axis_has_an_arrowhead(
    ledger: Ledger, committed: Tables
) -> None:
    rows = [row for row in committed["pairs"] if row["gamma"] == 0.3]
    never = sum(int(row["never_learned"]) for row in rows)
    (axes,) = figures.pairs_learned(rows).axes
    points = [line for line in axes.lines if line.get_marker() == "o"]
    assert len(points) == 16 * len(rows)
    assert sum(line.get_markerfacecolor() == "none" for line in points) == never > 0
    (axes,) = figures.forest({"all": [*ledger.judgements.values()]}).axes
    arrows = {line.get_marker() for line in axes.lines if np.abs(line.get_xdata()).max() > 8}
    assert arrows == {"<", ">"}


SECTIONS = (
    "forest_anchors", "forest_realistic", "forest_readme", "neurips_4", "neurips_6",
    "neurips_rates", "control_4", "control_8", "control_c", "own", "verdict",
)  # fmt: skip
"""Scripts that draw from tables and specimens, which takes moments; others look inside models."""


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_draws_its_figure_and_prints_its_claims(
    name: str,
    ledger: Ledger,
    committed: Tables,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(section, "judge_ledger", lambda _: ledger.judgements)  # judged once
    monkeypatch.setattr(section, "read_tables", lambda *_, **__: committed)
    asked = ["--judge", "--tables", str(TABLES), "--figures", str(tmp_path)]
    if name == "verdict":
        script = importlib.import_module(name)
        monkeypatch.setattr(script, "read_ledger", lambda *_: ledger)
    assert sections.main([name, *asked]) == 0
    printed = capsys.readouterr().out
    for claim in section_claims(name):
        assert claim.name in printed
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_a_section_with_a_failed_run_ends_with_an_error(
    committed: Tables,
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = committed["rates"][0] | {"status": "failed"}
    monkeypatch.setattr(section, "gather", lambda *_, **__: {"rates": [failed]})
    monkeypatch.setattr(section, "judge_ledger", lambda _: ledger.judgements)
    monkeypatch.setattr(section, "montage", lambda _: b"a picture")
    monkeypatch.setattr(section, "pages", lambda _: b"the same")
    asked = ["neurips_rates", "--tables", str(TABLES), "--out", str(tmp_path)]
    assert sections.main(asked) == 1
    told = capsys.readouterr().err
    assert f"1 runs failed or lack a measurement, such as {failed['run_id']}" in told


def test_a_section_without_tables_names_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sections.main(["neurips_4", "--judge", "--tables", str(tmp_path / "none")]) == 2
    assert "sections: " in capsys.readouterr().err
    assert sections.main(["neurips_9"]) == 2
    assert "no section is called neurips_9" in capsys.readouterr().err


def test_a_section_draws_ones_own_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ledger: Ledger
) -> None:
    """Only what the runs show is drawn; the packaged models and tables have no part in it."""
    monkeypatch.setattr(section, "judge_ledger", lambda _: ledger.judgements)
    monkeypatch.setattr(section, "read_tables", lambda *_, **__: {})
    asked = ["--judge", "--tables", str(TABLES), "--figures", str(tmp_path)]
    assert sections.main(["neurips_b", "control_6a", *asked, "--run", "tiny/composite/1"]) == 0
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {f"{n}.{kind}" for n in ("neurips_b", "control_6a") for kind in ("png", "pdf")}


@pytest.mark.slow
def test_the_lines_are_those_that_fitting_finds(committed: Tables) -> None:
    own = read_study(TABLES / "verdict.csv")
    assert fit_lines(fitting_rows(committed, own)) == dict(LINES)
