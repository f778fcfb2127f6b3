"""A run that trains until it is fitted ends at the right step, whatever interrupts it."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
from power_cut import assert_same_run, power_cut
from short import SHORT

import anchor_interp
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp.runs.config import RunConfig, override, run_id
from anchor_interp.runs.distributed import processes
from anchor_interp.runs.run import Run
from anchor_interp.runs.schedule import last_step, learning_rate, total_decay
from anchor_interp.runs.store import RunFolder
from anchor_interp.runs.train import train
from anchor_interp.sweeps.rows import planned_row, updated_row
from anchor_interp.sweeps.train_batch import train_batch

CHANGES = {"lr": 3e-3, "steps": 400, "eval_every": 6, "log_every": 4, "checkpoint_every": 25}


def config(goal: float | None = 0.05, **changes: Any) -> RunConfig:
    return anchor_interp.preset("tiny", **(SHORT | CHANGES | {"until_accuracy": goal} | changes))


def trained(of: RunConfig, out: Path) -> Run:
    return train(of, out, device="cpu", threads=1, quiet=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(config(), tmp_path_factory.mktemp("fitted") / "run")


def evaluations(run: Run) -> list[tuple[int, float]]:
    return [(r["step"], r["train_accuracy"]) for r in run.metrics if "train_accuracy" in r]


def cut_off(of: RunConfig, out: Path, fatal: int) -> None:
    """Train until that step, at which the process dies."""
    with power_cut(fatal):
        trained(of, out)


def test_it_ends_as_long_again_after_two_evaluations_in_a_row(whole: Run) -> None:
    measured = evaluations(whole)
    pairs = itertools.pairwise(measured)
    fitted = next(step for (_, one), (step, two) in pairs if min(one, two) >= 0.05)
    assert measured[1][0] < fitted < 200
    assert whole.steps == [*range(0, 2 * fitted, 25), 2 * fitted]
    assert (whole.step, whole.metrics[-1]["step"]) == (2 * fitted, 2 * fitted)
    result = whole.folder.result() or {}
    assert (result["steps"], result["fitted_step"]) == (2 * fitted, fitted)
    assert whole.evaluation.steps == 2 * fitted
    assert str(whole).splitlines()[0].endswith(f"step {2 * fitted} of at most 400, seed 0")


def test_the_schedule_is_that_of_the_most_steps(
    whole: Run, finished_run: Run, tmp_path: Path
) -> None:
    most = config()
    cut_off(override(most, until_accuracy=None), tmp_path / "all", whole.step + 1)
    common = RunFolder(tmp_path / "all").metrics()[: len(whole.metrics)]
    assert [row["step"] for row in common] == [row["step"] for row in whole.metrics]
    assert common == whole.metrics
    rates = (
        learning_rate(most.train, step) * most.train.weight_decay for step in range(whole.step)
    )
    assert (whole.folder.result() or {})["total_decay"] == pytest.approx(sum(rates), rel=1e-9)
    without_goal = finished_run.folder.result() or {}
    assert without_goal["fitted_step"] is None
    assert without_goal["total_decay"] == total_decay(finished_run.config.train)


def test_a_kill_when_it_is_fitted_changes_nothing(tmp_path: Path, whole: Run) -> None:
    cut_off(config(), tmp_path / "run", 48)
    assert_same_run(trained(config(), tmp_path / "run"), whole)


def test_an_end_between_evaluations_is_measured_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anchor_interp.runs.schedule._MOST_AFTER_FIT", 7)
    run = trained(config(), tmp_path / "whole")
    result = run.folder.result() or {}
    assert result["steps"] == result["fitted_step"] + 7
    assert evaluations(run)[-1][0] == run.step  # no multiple of eval_every
    assert run.metrics[-1]["loss"] > 0
    out = tmp_path / "unjudged"
    shutil.copytree(run.folder.path, out)
    (out / "result.json").unlink()
    assert_same_run(trained(config(), out), run)
    cut_off(config(), tmp_path / "cut", run.step - 1)
    assert_same_run(trained(config(), tmp_path / "cut"), run)


@pytest.mark.parametrize(("steps", "fitted", "last"), [
    (4_000, None, 4_000),
    (4_000, 300, 600),
    (4_000, 1_000, 2_000),
    (4_000, 2_500, 3_500),
    (4_000, 3_500, 4_000),
    (500, 500, 500),
])  # fmt: skip
def test_the_last_step(steps: int, fitted: int | None, last: int) -> None:
    assert last_step(steps, fitted) == last


def test_lost_lines_of_metrics_are_refused(tmp_path: Path) -> None:
    cut_off(config(), tmp_path / "run", 60)
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:3] + lines[4:]))
    with pytest.raises(StoreError, match="lacks 1 of 17 lines up to step 50, and where the train"):
        trained(config(), tmp_path / "run")


def test_a_batch_ends_each_of_its_runs_by_itself(tmp_path: Path, whole: Run) -> None:
    configs = {"one": config(), "never": config(1.0, steps=60)}
    results = list(train_batch(configs, tmp_path, device="cpu", threads=1))
    assert [result.error for result in results] == [None] * 2
    ends = {name: RunFolder(tmp_path / name).result() or {} for name in configs}
    assert ends["one"]["fitted_step"] == (whole.folder.result() or {})["fitted_step"]
    for name, end in ends.items():
        assert end["steps"] == last_step(configs[name].train.steps, end["fitted_step"])
    assert ends["never"]["steps"] == 60 < ends["one"]["steps"]
    assert ends["never"]["fitted_step"] is None
    assert trained(configs["never"], tmp_path / "never").step == 60  # it is done


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"2 processes were started .*until_accuracy is 0\.05"):
        processes(config(), "cpu")


def test_a_table_tells_where_it_was_fitted_and_the_best_along_training(
    tmp_path: Path, whole: Run
) -> None:
    out = Path(shutil.copytree(whole.folder.path, tmp_path / "run"))
    row = updated_row(planned_row(run_id(whole.config), whole.config), out, "done", None)
    result = whole.folder.result() or {}
    assert (row["fitted_step"], row["steps"]) == (result["fitted_step"], 400)
    assert row["total_decay"] == result["total_decay"] < total_decay(whole.config.train)
    for name in ("id_accuracy", "ood_accuracy"):
        curve = [line[name] for line in whole.metrics if name in line]
        assert row[f"best_{name}"] == max(curve)
    (out / "metrics.jsonl").write_text("damaged")
    row = updated_row(planned_row(run_id(whole.config), whole.config), out, "done", None)
    assert (row["status"], row["best_id_accuracy"]) == ("done", None)


def test_the_setting_is_part_of_a_run_only_where_it_is_given() -> None:
    assert run_id(config(None)) == run_id(anchor_interp.preset("tiny", **(SHORT | CHANGES)))
    assert run_id(config()) != run_id(config(None))
    for wrong in (0, 1.5):
        with pytest.raises(ConfigError, match="until_accuracy"):
            config(wrong)
