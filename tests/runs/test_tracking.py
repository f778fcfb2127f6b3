"""A tracker sees every step of a run once, even after an interruption, and never stops it."""

import importlib.util
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from anchor_interp._util.errors import ConfigError
from anchor_interp.runs import tracking as module
from anchor_interp.runs.config import RunConfig, run_id
from anchor_interp.runs.run import Run
from anchor_interp.runs.tracking import Track
from anchor_interp.runs.train import train

STEPS = [0, 5, 10, 15, 20, 25, 30, 35, 40]
Patch = pytest.MonkeyPatch


class Recorder:
    """A tracker that keeps its lines, and fails at one step if asked to."""

    def __init__(self, fails_at: int = -1) -> None:
        self.rows: list[dict[str, Any]] = []
        self.fails_at, self.closed = fails_at, False

    def log(self, row: Any) -> None:
        if row["step"] == self.fails_at:
            raise RuntimeError("the server\nis away")
        self.rows.append(dict(row))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def interrupted(tmp_path: Path, finished_run: Run) -> Path:
    """The short run with its metrics, but without its last checkpoint and result."""
    out = tmp_path / "run"
    shutil.copytree(finished_run.folder.path, out)
    (out / "result.json").unlink()
    shutil.rmtree(out / "checkpoints/00000040")
    return out


def _train(config: RunConfig, out: Path, track: Track) -> Run:
    return train(config, out, device="cpu", threads=1, quiet=True, track=track)


def _use(monkeypatch: Patch, tracker: object) -> None:
    monkeypatch.setattr("anchor_interp.runs.train.check_tracker", lambda _track: None)
    monkeypatch.setattr(module, "_TensorBoard", lambda *_: tracker)


def test_a_tracker_sees_the_lines_of_metrics(
    tmp_path: Path, short: RunConfig, finished_run: Run, monkeypatch: Patch
) -> None:
    recorder = Recorder()
    _use(monkeypatch, recorder)
    run = _train(short, tmp_path / "run", "tensorboard")
    assert recorder.rows == run.metrics == finished_run.metrics
    assert recorder.closed
    assert run_id(run.config) == run_id(finished_run.config)


def test_a_failing_tracker_never_stops_a_training(
    tmp_path: Path,
    short: RunConfig,
    finished_run: Run,
    monkeypatch: Patch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder(fails_at=15)
    _use(monkeypatch, recorder)
    with caplog.at_level(logging.WARNING, "anchor_interp"):
        run = _train(short, tmp_path / "run", "tensorboard")
    assert run.evaluation == finished_run.evaluation
    assert [row["step"] for row in recorder.rows] == [0, 5, 10]
    assert [r.getMessage() for r in caplog.records] == [
        "tensorboard failed and is not used from here on: the server"
    ]


def test_trackers_that_cannot_be_used_are_refused(
    tmp_path: Path, short: RunConfig, monkeypatch: Patch
) -> None:
    misspelt: Any = "tensorbord"
    with pytest.raises(ConfigError, match="did you mean 'tensorboard'"):
        train(short, tmp_path / "run", track=misspelt)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pip install 'anchor-interp\[tensorboard\]'"):
        train(short, tmp_path / "run", track="tensorboard")
    assert not (tmp_path / "run").exists()


def test_tensorboard_shows_every_step_once(interrupted: Path, short: RunConfig) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _session in range(2):
        run = _train(short, interrupted, "tensorboard")
        (interrupted / "result.json").unlink()
        shutil.rmtree(interrupted / "checkpoints/00000040")
    events = EventAccumulator(str(interrupted / "tensorboard"))
    events.Reload()
    assert [e.step for e in events.Scalars("loss")] == STEPS[1:]
    assert [e.step for e in events.Scalars("train_accuracy")] == [0, 10, 20, 30, 40]
    losses = [row["loss"] for row in run.metrics if "loss" in row]
    assert [e.value for e in events.Scalars("loss")] == pytest.approx(losses, rel=1e-6)
