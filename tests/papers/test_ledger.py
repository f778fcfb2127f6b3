"""The ledger: its command, its page, the verdict's score, and the sections' scripts."""

import csv
import importlib
import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from test_gathering import MICRO
from test_tables import TABLES
from watched_page import Watched

import section
from anchor_interp._util.errors import ConfigError, StoreError
from papers import __main__ as command
from papers import figures, studies
from papers.claims import CLAIMS, section_claims
from papers.judging import Verdict
from papers.page import Ledger, known_before, make_ledger, render_ledger
from papers.rows import KNOWN_SEEDS, SETTINGS, Row, cell, of_three_and_four
from papers.tables import read_tables
from papers.verdict_score import PHASES, can_be_judged, judge_verdict

ROOT = Path(__file__).parents[2]
Tables = dict[str, list[Row]]


@pytest.fixture
def micro(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "STUDIES", MICRO)


def test_the_command_trains_judges_and_writes(
    tmp_path: Path, micro: None, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["decay", "--out", str(tmp_path), "--workers", "1", "--quiet"]
    assert command.main([*asked, "--dry-run"]) == 0
    assert "runs: 2, of which 0 are in tables and 2 new" in capsys.readouterr().out
    assert command.main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["judgements"]) == {claim.name for claim in CLAIMS}
    assert found["runs"] == {"decay": 2}
    assert (tmp_path / "index.html").is_file()
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
    (["--dry-run", "--workers", "0"], "workers is 0"),
])  # fmt: skip
def test_a_wrong_command_is_one_clear_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--out", str(tmp_path / "out"), *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(("study", "column"), [
    ("complexity", "complexity"), ("branches", "branch_weight_decay"),
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


def test_runs_without_a_fingerprint_leave_the_ledger_without_a_verdict(
    committed: Tables,
) -> None:
    """Where measuring failed the claims are judged all the same."""
    bare = [{k: v for k, v in row.items() if k != "noise_share"} for row in committed["phases"]]
    ledger = make_ledger("tiny", committed | {"phases": bare})
    assert ledger.verdict is None
    assert ledger.judgements["n-rates-lr"].verdict == "supported"


def test_runs_of_one_cell_leave_the_ledger_without_a_verdict(committed: Tables) -> None:
    """No rule can be fitted on other cells."""
    first = committed["phases"][0]
    alike = [row | {name: first[name] for name in SETTINGS} for row in committed["phases"]]
    assert make_ledger("tiny", {"phases": alike, "decay": committed["decay"]}).verdict is None
    with pytest.raises(ConfigError, match="two cells or more"):
        judge_verdict(alike, committed["decay"])


def test_a_number_out_of_range_names_its_run(
    committed: Tables,
) -> None:
    found = [dict(row) for row in committed["phases"]]
    found[7]["recomposed"] = 1.7
    with pytest.raises(StoreError, match=f"{found[7]['run_id']} is damaged: recomposed is 1.7"):
        judge_verdict(found, committed["decay"])


def test_the_committed_verdicts_follow_from_the_committed_tables(ledger: Ledger) -> None:
    """The evidence is what the tables say, on this machine too."""
    kept = json.loads((ROOT / "docs" / "evidence" / "claims.json").read_text())
    assert {name: j.verdict for name, j in ledger.judgements.items()} == {
        name: judged["verdict"] for name, judged in kept["judgements"].items()
    }
    for name, judged in ledger.judgements.items():
        before = kept["judgements"][name]["finding"]
        if judged.finding is not None and judged.finding.effect is not None:
            assert judged.finding.effect == pytest.approx(before["effect"], rel=1e-9), name
            assert judged.finding.p_value == pytest.approx(before["p_value"], rel=1e-9), name
    assert ledger.verdict is not None
    for rule, before in zip(ledger.verdict.rules, kept["verdict"]["rules"], strict=True):
        assert rule.accuracy == pytest.approx(before["accuracy"])


def test_the_verdict_beats_what_knows_less_and_chance_does_not(
    committed: Tables, ledger: Ledger
) -> None:
    fitted = [*committed["decay"], *committed["depth"]]
    found = ledger.verdict
    assert found is not None
    scores = {rule.name: rule for rule in found.rules}
    for name in ("stable-rank", "gamma-and-decay"):
        for rule in (scores[name], scores[f"{name}-here"]):
            assert (rule.behind_low or 0) > 0, rule.name
    assert found.mixed_p is not None
    assert 0 < found.mixed_p < 1
    assert sum(sum(row.values()) for row in found.confusion.values()) == sum(found.n.values())
    assert len(found.disagreements) == sum(
        n for phase, row in found.confusion.items() for other, n in row.items() if other != phase
    )
    generator = np.random.default_rng(0)
    phases = generator.permutation([row["phase"] for row in committed["phases"]])
    mixed = [
        row | {"phase": str(phase)} for row, phase in zip(committed["phases"], phases, strict=True)
    ]
    assert judge_verdict(mixed, fitted).rules[0].accuracy < 0.5


def test_cells_that_the_rules_were_fitted_on_are_scored_apart(
    committed: Tables, ledger: Ledger
) -> None:
    """Some runs differ from runs of the diagrams in their seed alone."""
    fitted = {cell(row) for name in ("decay", "depth") for row in committed[name]}
    judged = [row for row in committed["phases"] if can_be_judged(row)]
    wrong = {run.run_id for run in ledger.verdict.disagreements} if ledger.verdict else set()
    for familiar in (True, False):
        rows = [row for row in judged if (cell(row) in fitted) == familiar]
        kinds = [[row for row in rows if row["phase"] == phase] for phase in PHASES]
        right = [np.mean([row["run_id"] not in wrong for row in kind]) for kind in kinds if kind]
        assert ledger.verdict is not None
        counted = ledger.verdict.familiar if familiar else ledger.verdict.unfamiliar
        assert counted == (len({cell(row) for row in rows}), len(rows))
        rule = ledger.verdict.rules[0]
        found = rule.familiar if familiar else rule.unfamiliar
        assert found == pytest.approx(np.mean(right))


def test_documents_use_the_words_of_the_verdicts() -> None:
    docs = ROOT / "docs"
    results = (docs / "results.md").read_text(encoding="utf-8")
    meaning = results.split("### What a verdict means")[1].split("###")[0]
    for word in get_args(Verdict):
        assert f"- *{word}*: " in meaning
    contrasts = json.loads((docs / "evidence" / "contrasts.json").read_text(encoding="utf-8"))
    assert {judged["verdict"] for judged in contrasts["verdicts"]} <= set(get_args(Verdict))
    for path in (docs / "mechanism.md", docs / "evidence" / "contrasts.md", ROOT / "README.md"):
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
        if claim.why:
            assert claim.name not in listed
    assert {"c8b-control", "n6-large-half"} <= set(listed)
    page = render_ledger(ledger)
    assert all(f"<li>{name}: {runs} runs were known." in page for name, runs in listed.items())


def test_early_verdicts_end_at_the_verdict(ledger: Ledger) -> None:
    found, scores = ledger.verdict, ledger.early
    assert found is not None
    assert {score.n for score in scores} == {sum(found.n.values())}  # the same runs at each
    assert scores[-1].share == 1
    assert scores[-1].accuracy == pytest.approx(found.rules[0].accuracy)
    assert all(0 <= score.low <= score.accuracy <= score.high <= 1 for score in scores)


def test_the_results_page_has_the_tables_numbers(ledger: Ledger) -> None:
    results = importlib.import_module("results")
    page = results.PAGE.read_text(encoding="utf-8")
    assert results.filled(page, ledger) == page


def test_a_bound_is_drawn_hollow_and_an_interval_beyond_the_axis_has_an_arrowhead(
    ledger: Ledger, committed: Tables
) -> None:
    rows = [row for row in committed["pairs"] if row["gamma"] == 0.3]
    never = sum(int(row["never_learned"]) for row in rows)
    (axes,) = figures.pairs_learned(rows, of_three_and_four).axes
    points = [line for line in axes.lines if line.get_marker() == "o"]
    assert len(points) == 16 * len(rows)
    assert sum(line.get_markerfacecolor() == "none" for line in points) == never > 0
    (axes,) = figures.forest(ledger.judgements).axes
    arrows = {line.get_marker() for line in axes.lines if np.abs(line.get_xdata()).max() > 8}
    assert arrows == {"<", ">"}


def test_the_page_in_a_browser(ledger: Ledger, browser: Any, tmp_path: Path) -> None:
    page_file = tmp_path / "index.html"
    page_file.write_text(render_ledger(ledger))
    for width in (390, 1280):
        page = browser.new_page(viewport={"width": width, "height": 900})
        watched = Watched(page)
        page.goto(page_file.as_uri())
        assert watched.complaints == []
        assert watched.requests == [page_file.as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#claims tbody tr").count() == len(CLAIMS)
        page.close()


SECTIONS = (
    "neurips_4", "neurips_6", "neurips_rates", "control_4", "control_8", "control_c", "own",
    "verdict",
)  # fmt: skip
"""Scripts that draw from tables alone, which takes moments; the others look into models too."""


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_draws_its_figure_and_prints_its_claims(
    name: str,
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = importlib.import_module(name)
    monkeypatch.setattr(section, "judge_ledger", lambda _: ledger.judgements)  # judged once
    monkeypatch.setattr(script, "read_ledger", lambda *_: ledger, raising=False)
    asked = ["--judge", "--tables", str(TABLES), "--figures", str(tmp_path)]
    assert section.run(script.draw, arguments=asked) == 0
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
    script = importlib.import_module("neurips_rates")
    asked = ["--tables", str(TABLES), "--out", str(tmp_path)]
    assert section.run(script.draw, arguments=asked) == 1
    told = capsys.readouterr().err
    assert f"1 runs failed or lack a measurement, such as {failed['run_id']}" in told


def test_a_section_without_tables_names_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = importlib.import_module("neurips_4")
    asked = ["--judge", "--tables", str(tmp_path / "none")]
    assert section.run(script.draw, arguments=asked) == 2
    assert "neurips_4: " in capsys.readouterr().err
