"""Several processes train one run: as one does, whatever befalls them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from short import with_helpers

import anchor_interp
from anchor_interp._util.errors import ConfigError
from anchor_interp.realistic.corpus import Corpus
from anchor_interp.runs import distributed
from anchor_interp.runs.distributed import Processes, processes
from anchor_interp.runs.loop import TrainState, train_step
from anchor_interp.runs.objectives import make_objective
from anchor_interp.runs.presets import preset
from anchor_interp.runs.run import Run
from anchor_interp.sweeps.sweep import sweep

ROBUSTNESS = Path(__file__).parents[1] / "robustness"
KILLS = os.environ.get("KILLS", "3")
CPU = torch.device("cpu")


def trained(folder: Path, way: str, *more: str) -> tuple[Run, list[list[int]]]:
    texts = folder / "texts"
    texts.mkdir(parents=True)
    for number in range(30):
        text = "\n".join(f"def f{number}_{line}(x): return x + {line}" for line in range(20))
        (texts / f"m{number}.py").write_text(text)
    command = [sys.executable, "two_processes.py", str(folder), way, *more]
    environment = with_helpers() | {"XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROBUSTNESS, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    attempts: list[list[int]] = json.loads(done.stdout)
    if way == "refused":
        assert "train.batch_size is 1; expected at least 2, a row a process" in done.stderr
        assert not (folder / "run").exists()
        return anchor_interp.load("exact/inferential"), attempts
    assert set(attempts[-1]) == {0}, done.stderr
    return anchor_interp.load(folder / "run"), attempts


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("two"), "whole")[0]


def curve(run: Run) -> list[float]:
    return [row["loss"] for row in run.metrics if "loss" in row]


def weights(run: Run) -> dict[str, torch.Tensor]:
    return dict(run.folder.weights(run.steps[-1]))


@pytest.mark.slow
def test_two_processes_have_the_loss_curve_of_one(tmp_path: Path, by_two: Run) -> None:
    alone, _ = trained(tmp_path, "alone")
    np.testing.assert_allclose(curve(by_two), curve(alone), rtol=0, atol=1e-4)
    assert len(curve(alone)) == 60
    ours, theirs = by_two.evaluation.splits, alone.evaluation.splits
    assert [s.loss for s in ours] == pytest.approx([s.loss for s in theirs], abs=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_killed_processes_end_in_the_same_weights(tmp_path: Path, by_two: Run) -> None:
    """Three times; ``KILLS=10`` makes it ten."""
    run, attempts = trained(tmp_path, "killed", KILLS)
    assert attempts[:-1] == [[-9, -9]] * int(KILLS)
    found, expected = weights(run), weights(by_two)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert run.metrics == by_two.metrics


@pytest.mark.slow
def test_a_signal_stops_both_and_one_goes_on(tmp_path: Path, by_two: Run) -> None:
    run, attempts = trained(tmp_path, "stopped")
    assert attempts[0] == [130, 130]
    np.testing.assert_allclose(curve(run), curve(by_two), rtol=0, atol=1e-4)
    assert [row["step"] for row in run.metrics] == [row["step"] for row in by_two.metrics]


@pytest.mark.slow
def test_two_processes_train_one_run_after_another(tmp_path: Path, by_two: Run) -> None:
    run, attempts = trained(tmp_path, "twice")
    assert attempts == [[0, 0]]
    other = anchor_interp.load(tmp_path / "other")
    for name, found in weights(by_two).items():
        assert torch.equal(weights(run)[name], found)
        assert torch.equal(weights(other)[name], found)


@pytest.mark.slow
def test_a_batch_that_cannot_be_shared_out_is_refused(tmp_path: Path) -> None:
    _, attempts = trained(tmp_path, "refused")
    assert attempts == [[2, 2]]


@pytest.mark.parametrize("name", ["tiny", "scan"])
def test_shares_of_a_step_add_up_to_its_gradient(name: str) -> None:
    """Without processes: three shares after one another, against the whole batch."""
    settings = {"batch_size": 25, "n_sequences": 200, "d_model": 16, "d_head": 8, "d_mlp": 24}
    config = preset(name, **settings)
    whole, shared = TrainState.fresh(config, CPU), TrainState.fresh(config, CPU)
    expected = train_step(whole, make_objective(config, CPU))
    parts = [make_objective(config, CPU, None, Processes(rank, 3)) for rank in range(3)]

    class Together:
        def parts(self, step: int) -> Any:
            return [(rank, b) for rank, of in enumerate(parts) for b in of.parts(step)]

        def loss(self, module: Any, batch: Any) -> Any:
            return parts[batch[0]].loss(module, batch[1])

    found = train_step(shared, Together())
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(found.grad_norm, expected.grad_norm)


def test_a_device_of_its_own_is_refused_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="device is 'cuda:1'; expected auto or cpu"):
        anchor_interp.train(preset("tiny"), "nowhere", device="cuda:1")


def test_several_processes_refuse_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        ConfigError, match=r"^2 processes were started for a sweep \(WORLD_SIZE is 2\); exp"
    ):
        sweep("tiny-decay", tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("value", ["", "0", "many"])
def test_no_number_of_processes_is_one(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", value)
    assert processes(preset("tiny"), "cpu") == (distributed.ALONE, "cpu")


def test_a_corpus_is_read_before_processes_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waiting for each other has a time limit of minutes, a corpus may take days."""
    monkeypatch.setenv("WORLD_SIZE", "2")

    def read(task: Corpus) -> str:
        raise ConfigError(f"reading {task.source}")

    monkeypatch.setattr(Corpus, "data", property(read))
    with pytest.raises(ConfigError, match="reading stdlib"):
        anchor_interp.train(preset("language-tiny"), "nowhere", device="cpu")


def test_another_device_than_that_of_the_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group stands on one kind of device, and a missing GPU is not replaced by the CPU."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device is 'cuda'; expected auto or cpu: every"):
        anchor_interp.train(preset("tiny"), "nowhere", device="cuda")
    on_gpus = SimpleNamespace(device=torch.device("cuda:1"), process_index=1, num_processes=2)
    monkeypatch.setattr(distributed, "_group", lambda _: on_gpus)
    with pytest.raises(ConfigError, match="device is 'cpu'; expected auto or cuda, where these"):
        anchor_interp.train(preset("tiny"), "nowhere", device="cpu")
