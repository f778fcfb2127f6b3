"""Gathering studies' tables: training and measuring what is missing, resuming, lost runs."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from in_process_engine import Here
from short import SHORT
from test_tables import PARTLY_MEASURED, TABLES

import anchor_interp as ai
import measures
from anchor_interp._util.errors import StoreError
from anchor_interp.runs.config import override, read_config
from anchor_interp.runs.measurements import Measure
from anchor_interp.runs.run import Run
from anchor_interp.sweeps.spec import Grid, Sweep
from papers import gathering, studies
from papers.gathering import gather, plan, task_columns, unfinished
from papers.rows import Row
from papers.studies import Study, broken_task
from papers.tables import read_study, read_tables


def _tiny(_scale: str) -> Sweep:
    start = ai.preset("tiny", **SHORT)
    return Sweep((Grid(override(start, checkpoint_every=20), seeds=(0, 1)),))


def _broken(_scale: str) -> Sweep:
    start = override(ai.preset("tiny", **SHORT), task=broken_task({(3, 4): -6}))
    return Sweep((Grid(start), Grid(ai.preset("tiny", **{**SHORT, "checkpoint_every": 20}))))


MICRO: Mapping[str, Study] = {
    "decay": Study("one", _tiny, ("learning", "embedding")),
    "pairs": Study("two", _broken, ("learning",)),
}
"""Two studies of runs that last a moment and share one."""


def failing(run: Run) -> None:
    raise ValueError(f"cannot measure step {run.step}")


@pytest.fixture
def micro(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "STUDIES", MICRO)


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the two studies' runs and tables."""
    out: Path = tmp_path_factory.mktemp("papers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "STUDIES", MICRO)
        gather(["decay", "pairs"], "tiny", out, tables=out / "tables", engine=Here(), quiet=True)
    return out


@pytest.fixture
def without_learning(gathered: Path, tmp_path: Path) -> Path:
    """A folder of tables in which the first run of the study lacks a measurement."""
    table = (gathered / "tables" / "decay.csv").read_text()
    place = tmp_path / "incomplete"
    place.mkdir()
    (place / "decay.csv").write_text(table.replace("learning embedding", "embedding", 1))
    return place


def test_a_table_has_the_runs_the_task_and_the_measurements(gathered: Path) -> None:
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


def test_a_run_of_two_studies_is_trained_once(gathered: Path) -> None:
    assert len(list((gathered / "sweep" / "runs").iterdir())) == 3


def test_numbers_come_back_exactly(gathered: Path, micro: None) -> None:
    before = (gathered / "tables" / "decay.csv").read_text()
    tables = gathered / "tables"
    again = gather(["decay"], "tiny", gathered, tables=tables, engine=Here(), quiet=True)["decay"]
    assert (gathered / "tables" / "decay.csv").read_text() == before
    for one, two in zip(again, read_study(gathered / "tables" / "decay.csv"), strict=True):
        assert {k: v for k, v in one.items() if v is not None} == {
            k: v for k, v in two.items() if v is not None
        }


def test_rows_of_an_earlier_table_need_no_run(
    gathered: Path, tmp_path: Path, micro: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "sweep", None)  # nothing is trained
    found = gather(["decay"], "tiny", tmp_path, tables=gathered / "tables", quiet=True)
    assert len(found["decay"]) == 2
    assert not (tmp_path / "sweep").exists()


def test_a_missing_row_is_made(gathered: Path, tmp_path: Path, micro: None) -> None:
    first = read_study(gathered / "tables" / "decay.csv")
    place = tmp_path / "tables"
    place.mkdir()
    lines = (gathered / "tables" / "decay.csv").read_text().splitlines(keepends=True)
    (place / "decay.csv").write_text("".join(lines[:2]))  # one run of two
    todo = plan(["decay"], "tiny", tmp_path, tables=place, workers=1)
    assert (todo.runs, todo.known, todo.training.todo) == (2, 1, 1)
    assert todo.measuring == measures.SECONDS["learning"] + measures.SECONDS["embedding"]
    found = gather(["decay"], "tiny", tmp_path, tables=place, engine=Here(), quiet=True)["decay"]
    assert len(list((tmp_path / "sweep" / "runs").iterdir())) == 1
    for one, two in zip(first, found, strict=True):  # the same to the last bit
        assert (one["run_id"], one["final_loss"]) == (two["run_id"], two["final_loss"])


def test_a_row_that_lacks_a_measurement_is_completed(
    gathered: Path, without_learning: Path, micro: None
) -> None:
    assert plan(["decay"], "tiny", gathered, tables=without_learning, workers=1).known == 1
    found = gather(["decay"], "tiny", gathered, tables=without_learning, engine=Here(), quiet=True)[
        "decay"
    ]
    assert {row["measured"] for row in found} == {"learning embedding"}


def test_a_run_whose_measurement_fails_is_unfinished(
    gathered: Path, tmp_path: Path, micro: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(measures.MEASURES, "learning", Measure("bad", f"{__name__}:failing"))
    found = gather(["decay"], "tiny", gathered, tables=tmp_path, engine=Here(), quiet=True)
    assert len(unfinished(found, "cpu")) == 2
    assert {row["status"] for row in found["decay"]} == {"done"}


def test_a_run_that_fails_leaves_the_row_that_it_has(
    gathered: Path, without_learning: Path, tmp_path: Path, micro: None
) -> None:
    path = without_learning / "decay.csv"
    first, second = (row["run_id"] for row in read_study(path))
    place = tmp_path / "other" / "sweep" / "runs" / first
    place.parent.mkdir(parents=True)
    place.write_text("a file where the run would be")
    before = path.read_bytes()
    found = gather(
        ["decay"], "tiny", tmp_path / "other", tables=without_learning, engine=Here(), quiet=True
    )
    assert [row["run_id"] for row in found["decay"]] == [first, second]
    assert unfinished(found, "cpu") == [first]
    assert path.read_bytes() == before


def test_a_run_that_measures_less_leaves_the_row_that_it_has(
    gathered: Path, tmp_path: Path, micro: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = (gathered / "tables" / "decay.csv").read_text()
    (tmp_path / "decay.csv").write_text(table.replace("learning embedding", "embedding"))
    before = (tmp_path / "decay.csv").read_bytes()
    monkeypatch.setitem(measures.MEASURES, "embedding", Measure("bad", f"{__name__}:failing"))
    gather(["decay"], "tiny", gathered, tables=tmp_path, engine=Here(), quiet=True)
    assert (tmp_path / "decay.csv").read_bytes() == before


def test_runs_for_a_gpu_are_left_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "sweep", None)  # nothing is trained
    path, names = tmp_path / "solutions.csv", ["solutions"]
    table = (TABLES / "solutions.csv").read_text().replace(",done,", ",diverged,", 1)
    path.write_text(table)
    todo = plan(names, "tiny", tmp_path, tables=tmp_path, workers=1, device="cpu")
    rows = read_study(path)
    unmeasured = sum(row["status"] != "done" or row["measured"] is None for row in rows)
    assert (todo.runs - todo.known, todo.training.todo) == (unmeasured, 0)
    with caplog.at_level("INFO", "anchor_interp"):
        found = gather(names, "tiny", tmp_path / "out", tables=tmp_path, engine=Here())
    assert unfinished(found, "cpu") == []
    assert path.read_text() == table
    assert f"{unmeasured} runs need a CUDA GPU and are not trained" in caplog.text
    path.unlink()
    assert gather(names, "tiny", tmp_path / "out", tables=tmp_path, engine=Here()) == {names[0]: []}
    assert not path.exists()


def test_runs_that_differ_in_their_seeds_are_one_grid() -> None:
    configs = studies.study_sweep("branches", "tiny").configs()
    found = gathering._grouped(configs.values())
    assert list(found.configs()) == list(configs)
    assert [len(grid.seeds) for grid in found.grids] == [5] * 6


def test_a_table_of_another_scale_is_left_alone(gathered: Path, micro: None) -> None:
    with pytest.raises(StoreError, match="of the scale tiny, not small"):
        gather(["decay"], "small", gathered, tables=gathered / "tables", engine=Here())
    with pytest.raises(StoreError, match="of the scale tiny, not paper"):
        read_tables(gathered / "tables", scale="paper")
    assert len(read_study(gathered / "tables" / "decay.csv")) == 2


def test_a_line_of_another_study_is_not_lost(gathered: Path, tmp_path: Path, micro: None) -> None:
    table = (gathered / "tables" / "decay.csv").read_text()
    run = read_study(gathered / "tables" / "decay.csv")[1]["run_id"]
    (tmp_path / "decay.csv").write_text(text := table.replace(run, "deadbeef"))
    with pytest.raises(StoreError, match="not of the study decay at the scale tiny, such as dead"):
        gather(["decay"], "tiny", gathered, tables=tmp_path, engine=Here(), quiet=True)
    assert (tmp_path / "decay.csv").read_text() == text


def test_complete_tables_stay_as_they_are(tmp_path: Path) -> None:
    place = tmp_path / "tables"
    place.mkdir()
    complete = list(TABLES.glob("*.csv"))
    for path in complete:
        (place / path.name).write_bytes(path.read_bytes())
    names = [name for name in studies.STUDIES if (place / f"{name}.csv").is_file()]
    names = [name for name in names if name not in PARTLY_MEASURED]
    found = gather(names, "tiny", tmp_path / "out", tables=place)
    assert unfinished(found, "cpu") == []
    for path in complete:
        assert (place / path.name).read_bytes() == path.read_bytes(), path.name
    assert not (tmp_path / "out").exists()


def test_a_table_says_which_groups_break_the_rule() -> None:
    assert task_columns(broken_task({(1, 2): 4, (3, 4): -6}))["broken"] == "12 34"
    assert task_columns(ai.TASKS["neurips"])["broken"] is None


def _logged(losses: Iterator[tuple[int, float]]) -> Any:
    metrics: list[Row] = [{"step": 0}]
    return SimpleNamespace(
        folder=SimpleNamespace(path=Path("a run")),
        metrics=metrics + [{"step": step, "loss": x} for step, x in losses],
    )


def test_learning_is_the_first_mean_of_five_below_the_loss() -> None:
    losses = [1, 0.04, 1, 0.05, 0.04, 0.05, 0.05, 0.05, 0.9]
    found = measures.learning(_logged((10 * i, loss) for i, loss in enumerate(losses, 1)))
    assert found == {
        "steps_to_loss": 80.0, "steps_to_half": 50.0, "final_loss": pytest.approx(0.218)
    }  # fmt: skip
    assert measures.learning(_logged((i, 1.0) for i in range(8)))["steps_to_loss"] is None
    with pytest.raises(StoreError, match="4 logged losses; 5 are needed"):
        measures.learning(_logged((i, 1.0) for i in range(4)))
