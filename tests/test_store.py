"""Run folders: locks, damaged and foreign files, and what a reader sees."""

import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import anchor_interp
from anchor_interp.config import RunConfig, override
from anchor_interp.errors import AnchorInterpError, ConfigError, LockedError, StoreError
from anchor_interp.run import Run, train
from anchor_interp.schema import to_dict
from anchor_interp.store import RunFolder


@pytest.fixture
def copy(finished_run: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run.path, tmp_path / "copy"))


def test_layout(finished_run: Run) -> None:
    names = {path.name for path in finished_run.path.iterdir()}
    assert names == {
        ".lock",
        "config.json",
        "provenance.json",
        "metrics.jsonl",
        "checkpoints",
        "result.json",
    }
    assert finished_run.steps == [0, 10, 20, 30, 40]
    for name in ("config.json", "provenance.json", "result.json"):
        assert json.loads((finished_run.path / name).read_text())["schema"] == 1
    state = json.loads((finished_run.path / "checkpoints/00000040/state.json").read_text())
    assert state == {"schema": 1, "step": 40, "generator": 1}
    session = finished_run.folder.provenance()[0]
    assert {"versions", "machine", "device", "threads", "started", "ended"} <= set(session)


def test_a_run_gives_its_model_at_every_checkpoint(finished_run: Run) -> None:
    first, last = finished_run.at(0), finished_run.at(40)
    assert (first.step, last.step, finished_run.step) == (0, 40, 40)
    built = anchor_interp.build_model(
        finished_run.config.model, finished_run.config.init, seed=finished_run.config.seed
    )
    assert torch.equal(first.model.embed.W_E, built.embed.W_E)
    assert not torch.equal(first.model.embed.W_E, last.model.embed.W_E)
    double = anchor_interp.load(finished_run.path, dtype=torch.float64)
    assert double.model.embed.W_E.dtype == double.model.cfg.dtype == torch.float64
    assert finished_run.evaluation == finished_run.evaluate()
    with pytest.raises(StoreError, match=r"no checkpoint at step 15; it has \[0, 10, 20, 30, 40\]"):
        finished_run.at(15)


def test_a_second_writer_is_told_who_holds_the_folder(tmp_path: Path, short: RunConfig) -> None:
    folder = RunFolder(tmp_path / "run")
    with (
        folder.writing(short),
        pytest.raises(LockedError, match=f"process {os.getpid()} on {socket.gethostname()}"),
    ):
        train(short, tmp_path / "run", quiet=True)
    train(short, tmp_path / "run", device="cpu", threads=1, quiet=True)


def test_a_dead_writers_lock_is_taken_over(tmp_path: Path, short: RunConfig) -> None:
    out = tmp_path / "run"
    out.mkdir()
    stale = {"host": socket.gethostname(), "pid": 999_999, "heartbeat": time.time()}
    (out / ".lock").write_text(json.dumps(stale))
    with RunFolder(out).writing(short):
        pass


def test_a_lock_of_another_machine_counts_while_it_beats(tmp_path: Path, short: RunConfig) -> None:
    out = tmp_path / "run"
    out.mkdir()
    holder = {"host": "elsewhere", "pid": 5, "heartbeat": time.time() - 5}
    (out / ".lock").write_text(json.dumps(holder))
    with pytest.raises(LockedError, match="process 5 on elsewhere"), RunFolder(out).writing(short):
        pass
    (out / ".lock").write_text(json.dumps(holder | {"heartbeat": time.time() - 3600}))
    with RunFolder(out).writing(short) as writer:
        held = json.loads((out / ".lock").read_text())
        assert held["pid"] == os.getpid()
        assert abs(held["heartbeat"] - time.time()) < 60
        writer.heartbeat()
    assert (out / ".lock").read_text() == ""


def test_a_garbled_lock_is_no_obstacle(tmp_path: Path, short: RunConfig) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / ".lock").write_text('{"heartbeat": "x", "host": "elsewhere"}')
    with RunFolder(out).writing(short):
        pass
    with open(out / ".lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released


def test_foreign_folders_are_refused_and_left_alone(tmp_path: Path, short: RunConfig) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(StoreError, match="no run folder but holds 'thesis"):
        train(short, tmp_path, quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(StoreError, match="is a file"):
        train(short, tmp_path / "thesis.tex", quiet=True)
    with pytest.raises(StoreError, match="cannot write to the run folder"):
        train(short, Path("/proc/nowhere"), quiet=True)


def test_another_configuration_is_refused_with_the_difference(
    short: RunConfig, finished_run: Run
) -> None:
    other = override(short, gamma=0.7, seed=3)
    with pytest.raises(StoreError, match=r"init.gamma 0.5 \(asked: 0.7\), seed 0 \(asked: 3\)"):
        train(other, finished_run.path, quiet=True)


def test_reading_an_unfinished_run(tmp_path: Path, short: RunConfig) -> None:
    with pytest.raises(StoreError, match="no run folder"):
        anchor_interp.load(tmp_path / "missing")
    with RunFolder(tmp_path / "run").writing(short):
        pass
    with pytest.raises(StoreError, match="no checkpoint yet"):
        anchor_interp.load(tmp_path / "run")


def test_metrics_drop_a_line_cut_off_by_a_kill(copy: Path) -> None:
    whole = RunFolder(copy).metrics()
    with open(copy / "metrics.jsonl", "a") as file:
        file.write('{"step": 45, "lo')
    assert RunFolder(copy).metrics() == whole


def _without_a_weight(path: Path) -> None:
    save_file({"embed.W_E": torch.zeros(201, 16)}, path)


def _with_a_nan(path: Path) -> None:
    from safetensors.torch import load_file

    weights = load_file(path)
    weights["embed.W_E"][0, 0] = float("nan")
    save_file(weights, path)


def _with_another_shape(path: Path) -> None:
    from safetensors.torch import load_file

    weights = load_file(path)
    save_file(weights | {"embed.W_E": torch.zeros(3, 3)}, path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", lambda p: p.write_text("{"), "no valid JSON"),
        ("config.json", lambda p: p.write_text('{"schema": 99, "task": {}}'), "schema is 99"),
        ("config.json", lambda p: p.unlink(), "no run folder"),
        ("result.json", lambda p: p.write_text("[]"), "has schema None"),
        ("result.json", lambda p: p.write_text('{"schema": 2}'), "has schema 2; this version"),
        ("result.json", lambda p: p.write_text("{"), "is damaged"),
        ("checkpoints/00000040/weights.safetensors", lambda p: p.unlink(), "does not exist"),
        ("checkpoints/00000040/weights.safetensors", lambda p: p.write_bytes(b"x"), "is damaged"),
        (
            "checkpoints/00000040/weights.safetensors",
            lambda p: p.write_bytes(p.read_bytes()[:500]),
            "is damaged",
        ),
        ("checkpoints/00000040/weights.safetensors", _without_a_weight, "do not fit"),
        ("checkpoints/00000040/state.json", lambda p: p.unlink(), "cannot read"),
        (
            "checkpoints/00000040/state.json",
            lambda p: p.write_text('{"schema": 99}'),
            "has schema 99",
        ),
        (
            "checkpoints/00000040/state.json",
            lambda p: p.write_text('{"schema": 1, "step": 40, "generator": 7}'),
            "data of generator 7",
        ),
        ("metrics.jsonl", lambda p: p.write_text('{"step": 0}\n{"ste\n'), "damaged in line 2"),
        ("metrics.jsonl", lambda p: p.write_text("[]\n"), "damaged in line 1"),
        ("metrics.jsonl", lambda p: p.write_text('{"step": "x"}\n'), "step is 'x'"),
        ("provenance.json", lambda p: p.write_text('{"schema": 1}'), "is damaged; remove it"),
        (
            "result.json",
            lambda p: p.write_text('{"schema": 1, "run_id": "x"}'),
            "does not belong to this run",
        ),
        ("checkpoints/00000040/weights.safetensors", _with_a_nan, "not finite"),
        ("checkpoints/00000040/weights.safetensors", _with_another_shape, r"has shape \(3, 3\)"),
    ],
)
def test_damaged_files_are_refused_with_the_reason(
    copy: Path, name: str, change: Callable[[Path], object], message: str
) -> None:
    change(copy / name)
    with pytest.raises((StoreError, ConfigError), match=message):
        _read_everything(copy)


def _read_everything(path: Path) -> None:
    run = anchor_interp.load(path)
    assert run.model.cfg.n_layers == 2
    assert run.phase
    assert run.metrics
    assert run.folder.provenance()


def test_a_committed_checkpoint_is_never_touched_again(tmp_path: Path, short: RunConfig) -> None:
    """A stop signal at a step that is due for a checkpoint anyway must not rewrite it."""
    with RunFolder(tmp_path / "run").writing(short) as writer:
        weights = {"w": torch.zeros(3)}
        writer.save_checkpoint(10, weights, weights, keep_every=10)
        folder = tmp_path / "run/checkpoints/00000010"
        before = folder.stat().st_ino
        writer.save_checkpoint(10, weights, weights, keep_every=10)
        assert folder.stat().st_ino == before


def test_thinning_out_can_be_repeated_until_it_is_done(tmp_path: Path, short: RunConfig) -> None:
    with RunFolder(tmp_path / "run").writing(short) as writer:
        weights = {"w": torch.zeros(3)}
        for step in (0, 10, 13, 20):
            writer.save_checkpoint(step, weights, weights, keep_every=1)
        (tmp_path / "run/checkpoints/.00000007.partial").mkdir()  # a removal that was cut short
        writer.thin_out(keep_every=10)
        assert writer.steps() == [0, 10, 20]
        names = sorted(path.name for path in (tmp_path / "run/checkpoints").rglob("*"))
        assert names.count("optimizer.safetensors") == 1
        assert not [name for name in names if "partial" in name]


def test_a_lost_checkpoint_is_made_again(copy: Path, finished_run: Run) -> None:
    """Training falls back on what is left, in the last resort on the initial weights."""
    (copy / "result.json").unlink()
    shutil.rmtree(copy / "checkpoints/00000040")
    run = train(finished_run.config, copy, device="cpu", threads=1, quiet=True)
    assert run.steps == finished_run.steps
    assert run.metrics == finished_run.metrics
    expected = finished_run.folder.weights(40)
    assert all(torch.equal(w, expected[name]) for name, w in run.folder.weights(40).items())


def test_a_result_of_another_run_is_refused(copy: Path, finished_run: Run) -> None:
    other = override(finished_run.config, seed=9)
    (copy / "config.json").write_text(json.dumps(to_dict(other)))
    with pytest.raises(StoreError, match="result that does not belong"):
        train(other, copy, quiet=True)
    no_config: Any = {"a": 1}
    with pytest.raises(ConfigError, match="expected a RunConfig"):
        train(no_config, copy.parent / "poison", quiet=True)
    assert not (copy.parent / "poison").exists()


def test_damaged_optimizer_states_are_refused(tmp_path: Path, short: RunConfig) -> None:
    out = tmp_path / "run"
    train(short, out, device="cpu", threads=1, quiet=True)
    (out / "result.json").unlink()
    save_file({"x": torch.zeros(1)}, out / "checkpoints/00000040/optimizer.safetensors")
    with pytest.raises(StoreError, match="is damaged or missing"):
        train(short, out, quiet=True)


def test_a_failed_write_leaves_the_last_checkpoint(
    tmp_path: Path, short: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anchor_interp import store

    write = store._write_bytes

    def full_disk(path: Path, data: bytes) -> None:
        if "00000030" in str(path):
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(store, "_write_bytes", full_disk)
    with pytest.raises(AnchorInterpError, match="No space left on device"):
        train(short, tmp_path / "run", device="cpu", threads=1, quiet=True)
    assert RunFolder(tmp_path / "run").steps() == [0, 10, 20]
    monkeypatch.setattr(store, "_write_bytes", write)
    run = train(short, tmp_path / "run", device="cpu", threads=1, quiet=True)
    assert run.steps == [0, 10, 20, 30, 40]
