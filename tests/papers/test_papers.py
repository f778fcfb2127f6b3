"""Gathering a study's table, resuming, the ledger's command and page, the sections' scripts."""

import csv
import importlib
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from in_process_engine import Here
from short import SHORT
from watched_page import Watched

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp.cli import main as cli
from anchor_interp.runs.config import override, read_config
from anchor_interp.sweeps.local import LocalEngine
from anchor_interp.sweeps.spec import Grid, Sweep
from papers import figures, measures, studies, tables
from papers.claims import CLAIMS, of_three_and_four
from papers.page import Ledger, make_ledger, read_ledger, render_ledger
from papers.studies import Study, broken_task
from papers.tables import (
    checkpoints_table,
    gather,
    plan,
    read_checkpoints,
    read_study,
    read_tables,
    task_columns,
)
from papers.verdict_score import judge_early, judge_verdict

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "experiments" / "tables" / "tiny"


def _tiny(_scale: str) -> Sweep:
    start = ai.preset("tiny", **SHORT)
    return Sweep((Grid(override(start, checkpoint_every=20), seeds=(0, 1)),))


def _broken(_scale: str) -> Sweep:
    start = override(ai.preset("tiny", **SHORT), task=broken_task({(3, 4): -6}))
    return Sweep((Grid(start), Grid(ai.preset("tiny", **{**SHORT, "checkpoint_every": 20}))))


def _measure_here(folder: Path, jobs: Sequence[Any], *_: object) -> None:
    measures.work(folder, jobs)


MICRO = MappingProxyType(
    {
        "decay": Study("one", _tiny, ("learning", "embedding")),
        "pairs": Study("two", _broken, ("learning",)),
    }
)
"""Two studies of runs that last a moment and share one."""


@pytest.fixture
def micro(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "STUDIES", MICRO)


@pytest.fixture
def measured_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in this process: one of its own would spend its time on imports."""
    monkeypatch.setattr(tables, "_measure", _measure_here)


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the two studies' runs and tables."""
    out: Path = tmp_path_factory.mktemp("papers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "STUDIES", MICRO)
        patch.setattr(tables, "_measure", _measure_here)
        gather(["decay", "pairs"], "tiny", out, engine=Here(), quiet=True)
    return out


def test_a_table_has_the_runs_the_task_and_the_measures(gathered: Path) -> None:
    rows = read_study(gathered / "tables" / "decay.csv")
    assert [row["seed"] for row in rows] == [0, 1]
    assert {row["status"] for row in rows} == {"done"}
    for row in rows:
        config = read_config(gathered / "sweep" / "runs" / row["run_id"] / "config.json")
        assert (row["gamma"], row["steps"]) == (config.init.gamma, config.train.steps)
        assert np.isfinite(row["step_z_3"])
        assert row["final_loss"] > 0
        assert row["complexity"] == 0
    (broken, _) = read_study(gathered / "tables" / "pairs.csv")
    assert (broken["complexity"], broken["broken"]) == (1, "34")


def test_what_studies_share_is_trained_once(gathered: Path) -> None:
    assert len(list((gathered / "sweep" / "runs").iterdir())) == 3


def test_numbers_come_back_exactly(gathered: Path, micro: None) -> None:
    again = gather(["decay"], "tiny", gathered, engine=Here(), quiet=True)["decay"]
    kept = read_study(gathered / "tables" / "decay.csv")
    for one, two in zip(again, kept, strict=True):
        assert {name: value for name, value in one.items() if value is not None} == {
            name: value for name, value in two.items() if value is not None
        }


def test_rows_of_an_earlier_table_need_no_run(
    gathered: Path, tmp_path: Path, micro: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "sweep", None)  # nothing is trained
    found = gather(["decay"], "tiny", tmp_path, tables=gathered / "tables", quiet=True)
    assert len(found["decay"]) == 2
    assert not (tmp_path / "sweep").exists()


def test_what_is_missing_of_a_table_is_made(
    gathered: Path, tmp_path: Path, micro: None, measured_here: None
) -> None:
    first = read_study(gathered / "tables" / "decay.csv")
    place = tmp_path / "tables"
    place.mkdir()
    lines = (gathered / "tables" / "decay.csv").read_text().splitlines(keepends=True)
    (place / "decay.csv").write_text("".join(lines[:2]))  # one run of two
    todo = plan(["decay"], "tiny", tmp_path, tables=place, workers=1)
    assert (todo.runs, todo.known, todo.training.todo) == (2, 1, 1)
    found = gather(["decay"], "tiny", tmp_path, tables=place, engine=Here(), quiet=True)["decay"]
    assert len(list((tmp_path / "sweep" / "runs").iterdir())) == 1
    for one, two in zip(first, found, strict=True):  # the same to the last bit
        assert (one["run_id"], one["final_loss"]) == (two["run_id"], two["final_loss"])


def test_a_measurement_that_was_lost_is_made_again(
    gathered: Path, micro: None, measured_here: None
) -> None:
    file = next((gathered / "measured" / "embedding").iterdir())
    before = file.read_text()
    file.write_text(before[:10])
    (gathered / "tables" / "decay.csv").unlink()
    gather(["decay"], "tiny", gathered, engine=Here(), quiet=True)
    assert json.loads(file.read_text()) == json.loads(before)


def test_checkpoints_have_a_table_of_their_own(
    gathered: Path, tmp_path: Path, micro: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(run: Any) -> dict[str, float | None]:
        return {"noise_share": float(run.step)}

    kept = dict(measures.MEASURES) | {"mechanism": short}
    monkeypatch.setattr(measures, "MEASURES", kept)
    runs = [run.name for run in (gathered / "sweep" / "runs").iterdir()]
    jobs = [(measure, run, 20) for run in runs for measure in ("mechanism", "behaviour")]
    assert measures.work(gathered, jobs) == 0
    rows = read_study(gathered / "tables" / "decay.csv")
    (of,) = tables._wanted(["decay"], "tiny", None)
    path = checkpoints_table(tmp_path, "decay")
    tables._write_checkpoints(path, of, gathered, rows)
    found = read_checkpoints(path)
    assert [(row["at_step"], row["noise_share"]) for row in found] == [(20, 20), (20, 20)]
    assert {row["behaviour"] for row in found} == {"undertrained"}
    tables._write_checkpoints(tmp_path / "none.csv", of, tmp_path, rows)
    assert read_checkpoints(tmp_path / "none.csv") == []


def test_a_measurement_that_cannot_be_made_is_told(
    gathered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measures.work(gathered, [("learning", "0" * 16, None)]) == 1
    assert "0000" in capsys.readouterr().err


def test_runs_that_lack_a_checkpoints_row_are_made_anew(
    gathered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of the runs alone does not count as the whole study."""
    along = Study("one", _tiny, ("learning",), checkpoints=True)
    monkeypatch.setattr(studies, "STUDIES", MappingProxyType({"decay": along}))
    table = (gathered / "tables" / "decay.csv").read_text()
    (tmp_path / "decay.csv").write_text(table)
    (of,) = tables._wanted(["decay"], "tiny", tmp_path)
    assert (len(of.ended), len(of.known)) == (2, 0)
    first = next(iter(of.configs))
    lines = _table(run_id=first, at_step="20", at_number="1", noise_share="0.1")
    path = checkpoints_table(tmp_path, "decay")
    path.write_text(lines)
    (of,) = tables._wanted(["decay"], "tiny", tmp_path)
    assert list(of.known) == [first]
    tables._write_checkpoints(path, of, tmp_path, list(of.ended.values()))  # of no run of its own
    assert [row["run_id"] for row in read_checkpoints(path)] == [first]
    path.write_text(lines.replace("20,1,0.1", ",1,0.1"))
    with pytest.raises(StoreError, match="lacks at_step"):
        gather(["decay"], "tiny", gathered, tables=tmp_path, engine=Here(), quiet=True)
    (tmp_path / "decay.csv").unlink()
    with pytest.raises(StoreError, match="lacks at_step"):  # not written over either
        gather(["decay"], "tiny", gathered, tables=tmp_path, engine=Here(), quiet=True)


def test_a_run_without_its_checkpoints_counts_as_unfinished(
    gathered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    along = Study("one", _tiny, ("learning",), checkpoints=True)
    monkeypatch.setattr(studies, "STUDIES", MappingProxyType({"decay": along}))
    monkeypatch.setattr(tables, "_ALONG", ("pairs",))
    monkeypatch.setattr(tables, "_measure", lambda *_: None)  # as if it had failed
    found = gather(["decay"], "tiny", gathered, tables=tmp_path, engine=Here(), quiet=True)
    assert len(tables.unfinished(found)) == 2


def test_runs_that_differ_in_their_seeds_are_one_grid() -> None:
    configs = studies.study_sweep("branches", "tiny").configs()
    found = tables._grouped(configs.values())
    assert list(found.configs()) == list(configs)
    assert [len(grid.seeds) for grid in found.grids] == [5] * 6


A_ROW = {
    "run_id": "x", "status": "done", "phase": "other", "censored": "True", "seed": "1",
    "task": "neurips", "gamma": "0.5", "weight_decay": "0.1", "n_layers": "2", "steps": "40",
    "normalization": "post", "d_model": "16", "lr": "0.001", "n_sequences": "300",
    "id_accuracy": "0.5", "ood_accuracy": "0.1",
}  # fmt: skip
"""What a table has to hold of a run, as text."""


def _table(**changed: str | None) -> str:
    row = {name: value for name, value in (A_ROW | changed).items() if value is not None}
    return f"{','.join(row)}\n{','.join(row.values())}\n"


def test_a_table_needs_no_more(tmp_path: Path) -> None:
    (tmp_path / "decay.csv").write_text(_table())
    (row,) = read_tables(tmp_path)["decay"]
    assert (row["run_id"], row["lr"], row["censored"]) == ("x", 0.001, True)


@pytest.mark.parametrize(("text", "message"), [
    ("", "lacks the column"),
    *((_table(**{name: None}), f"lacks the column {name}") for name in [*A_ROW][:-1]),
    (_table(censored="perhaps"), "damaged"),
    (_table()[:-5] + "\n", "a line is too short"),
    (_table(seed="many"), "damaged"),
    (_table()[:-1] + ",2\n", "a line is too long"),
    (_table().replace("\n", ",seed\n", 1)[:-1] + ",2\n", "the column seed twice"),
    (_table() + _table().split("\n")[1] + "\n", "the run x is there twice"),
    (_table(seed=""), "line 2: seed is empty"),
    (_table(value="nan"), "value is nan"),
    (_table(status="ready"), "status is 'ready'; expected"),
    (_table(phase="clever"), "phase is 'clever'; expected"),
    (_table(id_accuracy="7"), "id_accuracy is 7.0; expected a share from 0 to 1"),
    (_table(final_loss="-1"), "final_loss is -1.0; expected a number of 0 or more"),
    (_table(gamma=""), "gamma is empty"),
    (_table(seed="1" * 400), "seed is an integer"),
    (_table(steps="0"), "steps is 0; expected"),
    (_table(late_pair_33="-3"), "late_pair_33 is -3.0; expected a number above 0"),
    (_table(phase=""), "phase is empty, of a run that is done"),
    (_table(id_accuracy=""), "id_accuracy is empty, of a run that is done"),
    (_table(ood_accuracy=""), "ood_accuracy is empty, of a run that is done"),
    (_table(ood_accuracy=None), "ood_accuracy is empty, of a run that is done"),
])  # fmt: skip
def test_a_damaged_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "decay.csv").write_text(text)
    with pytest.raises(StoreError, match=message):
        read_tables(tmp_path)
    with pytest.raises(ConfigError, match="no folder"):
        read_tables(tmp_path / "nothing")


def test_a_table_of_another_scale_is_left_alone(gathered: Path, micro: None) -> None:
    with pytest.raises(StoreError, match="of the scale tiny, not small"):
        gather(["decay"], "small", gathered, engine=Here(), quiet=True)
    with pytest.raises(StoreError, match="of the scale tiny, not paper"):
        read_tables(gathered / "tables", scale="paper")
    assert len(read_study(gathered / "tables" / "decay.csv")) == 2


def test_a_row_that_lacks_a_measure_is_made_anew(
    gathered: Path, tmp_path: Path, micro: None
) -> None:
    """What could not be measured once is not taken for measured the next time."""
    table = (gathered / "tables" / "decay.csv").read_text()
    (tmp_path / "decay.csv").write_text(table.replace("learning embedding", "embedding", 1))
    todo = plan(["decay"], "tiny", gathered, tables=tmp_path, workers=1)
    assert todo.known == 1
    found = gather(["decay"], "tiny", gathered, tables=tmp_path, engine=Here(), quiet=True)["decay"]
    assert {row["measured"] for row in found} == {"learning embedding"}


def test_what_was_measured_of_other_weights_is_measured_anew(gathered: Path) -> None:
    run = read_study(gathered / "tables" / "decay.csv")[0]["run_id"]
    assert measures.kept(gathered, "learning", run) is not None
    file = gathered / "measured" / "learning" / f"{run}.json"
    whole = file.read_text()
    found = json.loads(whole)
    found["weights"]["sha256"] = "of another training"
    try:
        file.write_text(json.dumps(found))
        assert measures.kept(gathered, "learning", run) is None
    finally:
        file.write_text(whole)
    assert measures.kept(gathered, "learning", "no-such-run") is None


def test_a_run_that_cannot_be_trained_anew_keeps_its_row(
    gathered: Path,
    tmp_path: Path,
    micro: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place, out = tmp_path / "tables", tmp_path / "out"
    place.mkdir()
    table = (gathered / "tables" / "decay.csv").read_text()
    (place / "decay.csv").write_text(table.replace("learning embedding", "embedding", 1))
    before = read_study(place / "decay.csv")
    (out / "sweep" / "runs").mkdir(parents=True)
    (out / "sweep" / "runs" / before[0]["run_id"]).write_text("in the way")
    found = gather(["decay"], "tiny", out, tables=place, engine=Here(), quiet=True)["decay"]
    assert found[0]["id_accuracy"] == before[0]["id_accuracy"] is not None
    assert read_study(place / "decay.csv") == before
    assert "what their table says of them is kept" in caplog.text
    monkeypatch.setattr(LocalEngine, "run", lambda _, *arguments: Here().run(*arguments))
    assert cli.main(["claims", "decay", "--out", str(out), "--tables", str(place), "--quiet"]) == 1


def test_a_line_of_no_run_of_the_study_is_not_lost(
    gathered: Path, tmp_path: Path, micro: None
) -> None:
    table = (gathered / "tables" / "decay.csv").read_text()
    run = read_study(gathered / "tables" / "decay.csv")[1]["run_id"]
    (tmp_path / "decay.csv").write_text(text := table.replace(run, "deadbeef"))
    with pytest.raises(StoreError, match="not of the study decay at the scale tiny, such as dead"):
        gather(["decay"], "tiny", gathered, tables=tmp_path, engine=Here(), quiet=True)
    assert (tmp_path / "decay.csv").read_text() == text


def test_a_run_of_two_studies_keeps_the_numbers_of_both(gathered: Path, micro: None) -> None:
    before = (gathered / "tables" / "decay.csv").read_text()
    gather(["decay", "pairs"], "tiny", gathered, engine=Here(), quiet=True)
    assert (gathered / "tables" / "decay.csv").read_text() == before


def test_tasks_are_told(gathered: Path) -> None:
    assert task_columns(broken_task({(1, 2): 4, (3, 4): -6}))["broken"] == "12 34"
    assert task_columns(ai.TASKS["neurips"])["broken"] is None


def test_learning_is_the_first_mean_of_five_below_the_loss() -> None:
    class Logged:
        path = Path("a run")
        metrics = [{"step": 0}] + [
            {"step": 10 * i, "loss": loss}
            for i, loss in enumerate([1, 0.04, 1, 0.05, 0.04, 0.05, 0.05, 0.05, 0.9], 1)
        ]

    assert measures.learning(Logged()) == {
        "steps_to_loss": 80.0, "steps_to_half": 50.0, "final_loss": pytest.approx(0.218)
    }  # fmt: skip
    Logged.metrics = [{"step": i, "loss": 1.0} for i in range(1, 9)]
    assert measures.learning(Logged())["steps_to_loss"] is None
    Logged.metrics = Logged.metrics[:4]
    with pytest.raises(StoreError, match="4 logged losses; 5 are needed"):
        measures.learning(Logged())


def test_the_command_says_what_there_is_to_do(
    gathered: Path, micro: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["claims", "decay", "--out", str(gathered), "--dry-run", "--quiet"]) == 0
    assert "runs: 2, of which 2 are in tables and 0 new" in capsys.readouterr().out


def test_the_command_trains_judges_and_writes(
    tmp_path: Path, micro: None, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["claims", "decay", "--out", str(tmp_path), "--workers", "1", "--quiet", "--json"]
    assert cli.main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["judgements"]) == {claim.name for claim in CLAIMS}
    assert found["runs"] == {"decay": 2}
    assert (tmp_path / "index.html").is_file()
    assert cli.main(["claims", "--out", str(tmp_path), "--judge", "--quiet"]) == 0
    assert "not run" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "message"), [
    (["decai"], "no study is called 'decai'"),
    (["--dry-run", "--judge"], "--judge is for tables that are there, --dry-run for"),
    (["--scale", "huge"], "huge"),
    (["--judge", "--tables", "nowhere"], "nowhere is no folder"),
    (["--dry-run", "--tables", "nowhere"], "nowhere is no folder"),
    (["decay", "--judge"], "--judge is for every table, without training; leave out a study"),
    (["--dry-run", "--workers", "0"], "workers is 0"),
])  # fmt: skip
def test_a_wrong_command(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["claims", "--out", str(tmp_path / "out"), *arguments]) in (1, 2)
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(("study", "column"), [
    ("complexity", "complexity"), ("decay", "stable_rank"), ("branches", "branch_weight_decay"),
])  # fmt: skip
def test_a_table_without_a_column_that_claims_need(
    study: str, column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = read_tables(TABLES, [study])[study]
    path = tmp_path / f"{study}.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [name for name in rows[0] if name != column])
        writer.writeheader()
        writer.writerows({k: v for k, v in row.items() if k != column} for row in rows)
    command = ["claims", "--judge", "--tables", str(tmp_path), "--out", str(tmp_path / "out")]
    assert cli.main(command) == 1
    told = capsys.readouterr().err
    assert f"needs the column {column}, which the table of {study} lacks" in told
    assert told.count("\n") == 1


def test_runs_without_a_fingerprint_leave_the_ledger_without_a_verdict(
    committed: dict[str, list[dict[str, Any]]],
) -> None:
    """Measuring failed: the claims are judged all the same."""
    bare = [{k: v for k, v in row.items() if k != "noise_share"} for row in committed["phases"]]
    ledger = make_ledger("tiny", {"phases": bare, "decay": committed["decay"]})
    assert ledger.verdict is None
    assert ledger.judgements["c4-gamma"].verdict == "supported"


def test_a_number_out_of_range_names_its_run(
    committed: dict[str, list[dict[str, Any]]],
) -> None:
    found = [dict(row) for row in committed["phases"]]
    found[7]["composed"] = 1.7
    with pytest.raises(StoreError, match=f"{found[7]['run_id']} is damaged: composed is 1.7"):
        judge_verdict(found, committed["decay"])


@pytest.fixture(scope="module")
def committed() -> dict[str, list[dict[str, Any]]]:
    return read_tables(TABLES)


@pytest.fixture(scope="module")
def found() -> Ledger:
    """What the committed tables say."""
    return read_ledger("tiny", TABLES)


def test_the_committed_verdicts_follow_from_the_committed_tables(found: Ledger) -> None:
    """What was written down is what the tables say, on this machine too."""
    kept = json.loads((ROOT / "docs" / "evidence" / "claims.json").read_text())
    assert {name: j.verdict for name, j in found.judgements.items()} == {
        name: judged["verdict"] for name, judged in kept["judgements"].items()
    }
    for name, judged in found.judgements.items():
        before = kept["judgements"][name]["finding"]
        if judged.finding is not None and judged.finding.effect is not None:
            assert judged.finding.effect == pytest.approx(before["effect"], rel=1e-9), name
            assert judged.finding.p_value == pytest.approx(before["p_value"], rel=1e-9), name
    assert found.verdict is not None
    for rule, before in zip(found.verdict.rules, kept["verdict"]["rules"], strict=True):
        assert rule.accuracy == pytest.approx(before["accuracy"])


def test_the_verdict_beats_what_knows_less_and_chance_does_not(
    committed: dict[str, list[dict[str, Any]]],
) -> None:
    fitted = [*committed["decay"], *committed["depth"]]
    found = judge_verdict(committed["phases"], fitted)
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


def test_early_verdicts_end_at_the_verdict(committed: dict[str, list[dict[str, Any]]]) -> None:
    along = read_checkpoints(checkpoints_table(TABLES, "phases"))
    scores = judge_early(committed["phases"], along)
    found = judge_verdict(committed["phases"], committed["decay"])
    assert {score.n for score in scores} == {sum(found.n.values())}  # the same runs at each
    assert scores[-1].share == 1
    assert scores[-1].accuracy == pytest.approx(found.rules[0].accuracy)
    assert all(0 <= score.low <= score.accuracy <= score.high <= 1 for score in scores)


def test_the_results_page_has_the_tables_numbers(found: Ledger) -> None:
    results = importlib.import_module("results")
    page = results.PAGE.read_text(encoding="utf-8")
    assert results.filled(page, found) == page


def test_what_is_only_a_bound_is_drawn_hollow_and_what_goes_on_has_an_arrowhead(
    found: Ledger, committed: dict[str, list[dict[str, Any]]]
) -> None:
    rows = [row for row in committed["pairs"] if row["gamma"] == 0.3]
    never = sum(int(row["never_learned"]) for row in rows)
    (axes,) = figures.pairs_learned(rows, of_three_and_four).axes
    points = [line for line in axes.lines if line.get_marker() == "o"]
    assert len(points) == 16 * len(rows)
    assert sum(line.get_markerfacecolor() == "none" for line in points) == never > 0
    (axes,) = figures.forest(found.judgements).axes
    arrows = {line.get_marker() for line in axes.lines if np.abs(line.get_xdata()).max() > 8}
    assert arrows == {"<", ">"}


def test_the_page_in_a_browser(found: Ledger, browser: Any, tmp_path: Path) -> None:
    page_file = tmp_path / "index.html"
    page_file.write_text(render_ledger(found))
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
    found: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = importlib.import_module(name)
    section = importlib.import_module("section")
    monkeypatch.setattr(section, "judge_ledger", lambda _: found.judgements)  # judged once
    monkeypatch.setattr(script, "read_ledger", lambda *_: found, raising=False)
    arguments = ["--judge", "--tables", str(TABLES), "--figures", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    assert section.run_section(name, name, [], script.draw) == 0
    printed = capsys.readouterr().out
    for claim in section.section_claims(name):
        assert claim.name in printed
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_a_section_with_a_run_that_failed_ends_with_an_error(
    gathered: Path,
    tmp_path: Path,
    micro: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    section = importlib.import_module("section")
    failed = read_study(gathered / "tables" / "decay.csv")
    failed[0]["status"] = "failed"
    monkeypatch.setattr(section, "gather", lambda *_, **__: {"decay": failed})
    monkeypatch.setattr(section, "judge_ledger", lambda _: {})
    monkeypatch.setattr(section, "montage", lambda _: b"a picture")
    tables = str(gathered / "tables")
    monkeypatch.setattr(sys, "argv", ["x", "--tables", tables, "--out", str(tmp_path)])
    assert section.run_section("x", "x", ["decay"], lambda _: []) == 1
    assert f"x: 1 runs failed or lack a measurement, such as {failed[0]['run_id']}" in (
        capsys.readouterr().err
    )


def test_a_section_without_tables_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = importlib.import_module("section")
    script = importlib.import_module("neurips_4")
    monkeypatch.setattr(sys, "argv", ["x", "--judge", "--tables", str(tmp_path / "none")])
    assert section.run_section("neurips_4", "x", ["depth"], script.draw) == 2
    assert "neurips_4: " in capsys.readouterr().err


def test_the_tables_hold_every_run_of_their_studies(
    committed: dict[str, list[dict[str, Any]]],
) -> None:
    assert set(committed) == set(studies.STUDIES)
    for name, rows in committed.items():
        wanted = list(studies.study_sweep(name, "tiny").configs())
        assert [row["run_id"] for row in rows] == wanted
        assert {row["status"] for row in rows} <= {"done", "diverged"}


def test_tables_with_nothing_left_to_do_stay_as_they_are(tmp_path: Path) -> None:
    shutil.copytree(TABLES, tmp_path / "tables")
    found = gather([*studies.STUDIES], "tiny", tmp_path / "out", tables=tmp_path / "tables")
    assert tables.unfinished(found) == []
    for path in TABLES.glob("*.csv"):
        assert (tmp_path / "tables" / path.name).read_bytes() == path.read_bytes(), path.name
    assert not (tmp_path / "out").exists()


def test_no_table_is_too_wide_to_read() -> None:
    for path in TABLES.glob("*.csv"):
        with open(path, encoding="utf-8") as file:
            assert len(next(csv.reader(file))) < 130
