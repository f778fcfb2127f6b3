"""A run that is killed at any moment and started again ends in the same weights and metrics."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from killed_training import config, small_cogs
from power_cut import assert_same_run, power_cut
from short import SHORT, with_helpers

import anchor_interp
from anchor_interp._util.errors import InterruptedRunError
from anchor_interp.cli.main import main
from anchor_interp.runs import loop
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.loop import TrainState, train_step
from anchor_interp.runs.run import Run
from anchor_interp.runs.store import RunFolder
from anchor_interp.runs.train import train

TESTS = Path(__file__).parents[1] / "robustness"


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_twenty_kills_half_of_them_inside_a_write(tmp_path: Path) -> None:
    undisturbed = train(config(), tmp_path / "whole", device="cpu", threads=1, quiet=True)
    command = [sys.executable, str(TESTS / "killed_training.py"), str(tmp_path), "20", "0"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=TESTS, check=False, env=with_helpers()
    )
    assert done.returncode == 0, done.stderr
    deaths = json.loads(done.stdout)
    assert [deaths.pop(), deaths.pop()] == ["before the result", "in the final judging"]
    assert len(deaths) == 20
    inside = [death for death in deaths if death != "at a random time"]
    assert len(inside) == 10
    assert len({death.split(":")[0] for death in inside}) == 5  # every kind of place
    assert_same_run(anchor_interp.load(tmp_path / "run"), undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize("preset", ["scan", "cogs", "concepts", "language-tiny"])
def test_other_tasks_survive_kills(tmp_path: Path, preset: str) -> None:
    """Four of them; ``KILLS=8`` makes it ten."""
    kills = os.environ.get("KILLS", "2")
    with small_cogs():
        expected = train(config(preset), tmp_path / "whole", device="cpu", threads=1, quiet=True)
    command = [sys.executable, str(TESTS / "killed_training.py"), str(tmp_path), kills, "1", preset]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=TESTS, check=False, env=with_helpers()
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == int(kills) + 2  # two of them after the training
    assert_same_run(anchor_interp.load(tmp_path / "run"), expected)


def test_only_the_newest_checkpoint_keeps_its_optimizer_state(finished_run: Run) -> None:
    assert finished_run.steps == list(range(0, 41, 10))
    kept = sorted(finished_run.folder.path.glob("checkpoints/*/optimizer.safetensors"))
    assert [path.parent.name for path in kept] == ["00000040"]


def test_an_exception_at_any_step_loses_nothing(
    tmp_path: Path, short: RunConfig, finished_run: Run
) -> None:
    for fatal in (1, 25):
        out = tmp_path / str(fatal)
        with power_cut(fatal):
            train(short, out, device="cpu", threads=1, quiet=True)
        run = train(short, out, device="cpu", threads=1, quiet=True)
        assert_same_run(run, finished_run)


def test_accuracies_need_not_fall_on_logged_steps(tmp_path: Path, finished_run: Run) -> None:
    """Every 5 steps a line, every 7 accuracies: weights and common lines stay as they are."""
    config = anchor_interp.preset("tiny", **(SHORT | {"eval_every": 7}))
    whole = train(config, tmp_path / "whole", device="cpu", threads=1, quiet=True)
    with power_cut(31):
        train(config, tmp_path / "cut", device="cpu", threads=1, quiet=True)
    assert_same_run(train(config, tmp_path / "cut", device="cpu", threads=1, quiet=True), whole)
    steps = [row["step"] for row in whole.metrics]
    assert steps == sorted({*range(0, 41, 5), *range(0, 41, 7)})
    measured = [row["step"] for row in whole.metrics if "id_accuracy" in row]
    assert measured == [*range(0, 41, 7), 40]
    losses, before = (
        {row["step"]: row.get("loss") for row in r.metrics} for r in (whole, finished_run)
    )
    assert {step: losses[step] for step in before} == before
    mine, other = (run.folder.weights(40) for run in (whole, finished_run))
    assert all(torch.equal(mine[name], other[name]) for name in other)


def test_a_signal_checkpoints_and_leaves(
    tmp_path: Path, short: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(state: TrainState, objective: loop.Objective) -> object:
        if state.step == 13:
            os.kill(os.getpid(), signal.SIGTERM)
        return train_step(state, objective)

    monkeypatch.setattr(loop, "train_step", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(InterruptedRunError, match="stopped at step 14 of 40 and checkpointed"):
        train(short, tmp_path / "run", device="cpu", threads=1, quiet=True)
    assert signal.getsignal(signal.SIGTERM) == before
    assert RunFolder(tmp_path / "run").steps()[-1] == 14
    monkeypatch.setattr(loop, "train_step", train_step)
    run = train(short, tmp_path / "run", device="cpu", threads=1, quiet=True)
    assert run.steps == [0, 10, 20, 30, 40]  # without the checkpoint of the interruption


def test_ctrl_c_on_the_command_line_ends_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(state: TrainState, objective: loop.Objective) -> object:
        if state.step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return train_step(state, objective)

    monkeypatch.setattr(loop, "train_step", interrupted)
    command = ["train", "--out", str(tmp_path / "run"), "--device", "cpu", "--threads", "1"]
    assert main([*command, "--quiet"]) == 130
    errors = capsys.readouterr().err
    assert "give the same command again to continue" in errors
    assert "Traceback" not in errors


def test_resuming_with_other_threads_is_a_warning(
    tmp_path: Path, short: RunConfig, finished_run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    out = Path(shutil.copytree(finished_run.folder.path, tmp_path / "run"))
    (out / "result.json").unlink()
    train(short, out, device="cpu", threads=2, quiet=True)
    assert "resuming with other threads (2; before: 1)" in caplog.text
    sessions = RunFolder(out).provenance()
    assert [session["threads"] for session in sessions] == [1, 2]
    assert sessions[1]["from_step"] == 40
