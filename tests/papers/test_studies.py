"""Studies: training and measuring what tables lack, resuming, lost runs, damaged tables."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from in_process_engine import Here
from quick_analysis import judged_on_few
from short import SHORT

import anchor_interp as ai
import measures
import studies
from anchor_interp._util.errors import StoreError
from anchor_interp.runs.config import override, read_config
from anchor_interp.runs.measurements import Measure
from anchor_interp.sweeps.spec import Grid
from anchor_interp.tasks.anchor import BROKEN_GROUPS
from claim_effects import Row
from claims import REGISTERED
from complexity_control.fig8_order import broken_task
from studies import Data, Study, broken_groups, known, read_study, task_columns, train

TABLES = studies.TABLES


def _tiny() -> list[Grid]:
    start = ai.preset("tiny", **SHORT)
    return [Grid(override(start, checkpoint_every=20), seeds=(0, 1))]


def _broken() -> list[Grid]:
    start = override(ai.preset("tiny", **SHORT), task=broken_task({(3, 4): -6}))
    return [Grid(start), Grid(ai.preset("tiny", **{**SHORT, "checkpoint_every": 20}))]


MICRO: Mapping[str, Study] = {
    "decay": Study("one", _tiny, ("learning", "embedding")),
    "pairs": Study("two", _broken, ("learning",)),
}
"""Two studies of runs that last a moment and share one."""


def failing(run: ai.Run) -> None:
    raise ValueError(f"cannot measure step {run.step}")


def gather(names: list[str], out: Path, tables: Path) -> list[str]:
    return train(names, out, tables, Here(), quiet=True)


@pytest.fixture
def micro(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "known", lambda: MICRO)
    judged_on_few(monkeypatch)


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the two studies' runs and tables."""
    out: Path = tmp_path_factory.mktemp("papers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "known", lambda: MICRO)
        judged_on_few(patch)
        gather(["decay", "pairs"], out, out)
    return out


def incomplete(gathered: Path, tmp_path: Path, without: str, n: int) -> Path:
    """A table of the study ``decay`` in which some runs lack a measurement."""
    path = tmp_path / "tiny" / "decay.csv"
    path.parent.mkdir(exist_ok=True)
    table = (gathered / "tiny" / "decay.csv").read_text()
    path.write_text(table.replace("learning embedding", without, n))
    return path


def test_a_table_has_the_runs_the_task_and_the_measurements(gathered: Path) -> None:
    rows = read_study(gathered / "tiny" / "decay.csv")
    assert [row["seed"] for row in rows] == [0, 1]
    assert {row["status"] for row in rows} == {"done"}
    for row in rows:
        config = read_config(gathered / "sweep" / "runs" / row["run_id"] / "config.json")
        assert (row["gamma"], row["steps"]) == (config.init.gamma, config.train.steps)
        assert np.isfinite(row["step_z_3"])
        assert row["final_loss"] > 0
        assert row["complexity"] == 0
    (broken, _) = read_study(gathered / "tiny" / "pairs.csv")
    assert (broken["complexity"], broken["broken"]) == (1, "34")
    assert len(list((gathered / "sweep" / "runs").iterdir())) == 3  # one of them in both studies


def test_complete_rows_need_no_run_and_come_back_exactly(
    gathered: Path, tmp_path: Path, micro: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "sweep", None)  # nothing is trained
    before = (gathered / "tiny" / "decay.csv").read_text()
    assert gather(["decay"], tmp_path, gathered) == []
    assert (gathered / "tiny" / "decay.csv").read_text() == before
    assert not (tmp_path / "sweep").exists()


def test_a_missing_row_is_made(gathered: Path, tmp_path: Path, micro: None) -> None:
    first = read_study(gathered / "tiny" / "decay.csv")
    path = incomplete(gathered, tmp_path, "", 0)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))  # one run of two
    assert gather(["decay"], tmp_path, tmp_path) == []
    assert len(list((tmp_path / "sweep" / "runs").iterdir())) == 1
    for one, two in zip(first, read_study(path), strict=True):  # the same to the last bit
        assert (one["run_id"], one["final_loss"]) == (two["run_id"], two["final_loss"])


def test_a_row_that_lacks_a_measurement_is_completed(
    gathered: Path, tmp_path: Path, micro: None
) -> None:
    path = incomplete(gathered, tmp_path, "embedding", 1)
    assert gather(["decay"], gathered, tmp_path) == []
    assert {row["measured"] for row in read_study(path)} == {"learning embedding"}


def test_a_run_whose_measurement_fails_is_lacking_and_keeps_its_row(
    gathered: Path, tmp_path: Path, micro: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(measures.MEASURES, "learning", Measure("bad", f"{__name__}:failing"))
    path = incomplete(gathered, tmp_path, "embedding", 2)
    before = path.read_bytes()
    assert len(gather(["decay"], gathered, tmp_path)) == 2
    assert path.read_bytes() == before


def test_a_run_that_fails_leaves_the_row_that_it_has(
    gathered: Path, tmp_path: Path, micro: None
) -> None:
    path = incomplete(gathered, tmp_path, "embedding", 1)
    first, second = (row["run_id"] for row in read_study(path))
    place = tmp_path / "other" / "sweep" / "runs" / first
    place.parent.mkdir(parents=True)
    place.write_text("a file where the run would be")
    before = path.read_bytes()
    assert gather(["decay"], tmp_path / "other", tmp_path) == [first]
    assert [row["run_id"] for row in read_study(path)] == [first, second]
    assert path.read_bytes() == before


def test_runs_for_a_gpu_are_left_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "sweep", None)  # nothing is trained
    path = tmp_path / "wide" / "solutions.csv"
    path.parent.mkdir()
    table = (TABLES / "wide" / "solutions.csv").read_text().replace(",done,", ",diverged,", 1)
    path.write_text(table)
    assert gather(["solutions"], tmp_path / "out", tmp_path) == []
    assert path.read_text() == table


def test_a_line_of_another_study_is_not_lost(gathered: Path, tmp_path: Path, micro: None) -> None:
    path = incomplete(gathered, tmp_path, "", 0)
    run = read_study(path)[1]["run_id"]
    path.write_text(text := path.read_text().replace(run, "deadbeef"))
    with pytest.raises(StoreError, match="not of the study decay, such as deadbeef"):
        gather(["decay"], gathered, tmp_path)
    assert path.read_text() == text


def test_the_committed_tables_hold_the_runs_of_their_studies() -> None:
    """Every run, in order, but of studies that were stopped and figure 2's curves.

    Those in the folder ``wide`` have the paper's width, the others have not.
    """
    data = Data()
    for name, study in known().items():
        configs = study.sweep().configs()
        widths = {getattr(config.model, "d_model", None) for config in configs.values()}
        assert (widths == {400}) == (study.folder == "wide"), name
        if study.train is None and name in data:
            rows = [row["run_id"] for row in data[name]]
            assert rows == list(configs), name
            assert {row["status"] for row in data[name]} <= {"done", "diverged"}


A_ROW = {
    "run_id": "x", "status": "done", "phase": "other", "censored": "True", "seed": "1",
    "task": "neurips", "gamma": "0.5", "weight_decay": "0.1", "n_layers": "2", "steps": "40",
    "normalization": "post", "d_model": "16", "lr": "0.001", "n_sequences": "300",
    "id_accuracy": "0.5", "ood_accuracy": "0.1",
}  # fmt: skip
"""What a table needs to hold of a run, as text."""


def table_text(**changed: str | None) -> str:
    row = {name: value for name, value in (A_ROW | changed).items() if value is not None}
    return f"{','.join(row)}\n{','.join(row.values())}\n"


def test_a_row_with_the_needed_columns_is_enough_and_a_tasks_fields_are_numbers_or_texts(
    tmp_path: Path,
) -> None:
    texts = {"task.holdout": "square", "task.n_numbers": "100", "task.reversed": "True"}
    (tmp_path / "decay.csv").write_text(table_text(**texts))
    (row,) = read_study(tmp_path / "decay.csv")
    assert (row["run_id"], row["lr"], row["censored"]) == ("x", 0.001, True)
    assert [row[name] for name in texts] == ["square", 100, True]


@pytest.mark.parametrize(("text", "message"), [
    ("", "lacks the column"),
    *((table_text(**{name: None}), f"lacks the column {name}") for name in [*A_ROW][:-1]),
    (table_text(censored="perhaps"), "conversion error to bool: invalid value 'perhaps'"),
    (table_text()[:-5] + "\n", "Expected 16 columns, got 15"),
    (table_text(seed="many"), "conversion error to int64: invalid value 'many'"),
    (table_text()[:-1] + ",2\n", "Expected 16 columns, got 17"),
    (table_text().replace("\n", ",seed\n", 1)[:-1] + ",2\n", "the column 'seed' occurs twice"),
    (table_text() + table_text().split("\n")[1] + "\n", "the run x is there twice"),
    (table_text(seed="1" * 400), "conversion error to int64: invalid value"),
])  # fmt: skip
def test_a_damaged_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "decay.csv").write_text(text)
    with pytest.raises(StoreError, match=message):
        read_study(tmp_path / "decay.csv")


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


def test_a_run_is_matched_at_the_second_whole_id_accuracy_in_a_row() -> None:
    ids = [0.5, 1.0, 0.99, 1.0, 0.999, 0.2]
    rows: list[Row] = [{"step": 50, "loss": 1.0}] + [
        {"step": 100 * i, "id_accuracy": x, "ood_accuracy": i / 10} for i, x in enumerate(ids)
    ]
    run: Any = SimpleNamespace(metrics=rows)
    assert measures.matched(run) == {"matched_step": 400, "matched_ood": 0.4}
    run.metrics = rows[:4]
    assert measures.matched(run) == {"matched_step": None, "matched_ood": None}


def test_a_broken_task_breaks_both_orders_alike() -> None:
    for level in range(7):
        task = ai.TASKS[f"reasoning-complexity-{level}"]
        assert broken_groups(task) == tuple(pair for pair, _ in BROKEN_GROUPS[:level])
        assert broken_task(dict(BROKEN_GROUPS[:level])) == task
    assert task_columns(broken_task({(1, 2): 4, (3, 4): -6}))["broken"] == "12 34"
    assert task_columns(ai.TASKS["neurips"])["broken"] is None
    assert (task.target((4, 3), task.keys) == task.keys - 6).all()
    assert broken_groups(ai.TASKS["neurips"]) == ()  # one order alone


@pytest.mark.parametrize(("again", "claim", "before"), [
    ("memory-again", "memory-small-again", "memory"),
    ("routes-again", "routes-first-again", "routes-first"),
    ("addition-either", "addition-either-gamma", "addition-matched"),
])  # fmt: skip
def test_what_is_asked_again_has_as_many_runs_as_written_down_and_new_seeds(
    again: str, claim: str, before: str
) -> None:
    new, old = ([*known()[name].sweep().configs().values()] for name in (again, before))
    assert len(new) == REGISTERED[claim]["n"]
    assert not {config.seed for config in new} & {config.seed for config in old}
