"""Writing run folders: locks, foreign folders, failed writes."""

import errno
import fcntl
import json
import os
import shutil
import socket
import time
from pathlib import Path

import pytest
import torch

from anchor_interp._util import files, lock
from anchor_interp._util.errors import AnchorInterpError, ConfigError, LockedError, StoreError
from anchor_interp._util.machine_limits import memory_limit
from anchor_interp._util.schema import to_dict
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.run import Run
from anchor_interp.runs.store import RunFolder, writing
from anchor_interp.runs.train import train


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_a_second_writer_is_told_who_holds_the_folder(out: Path, short: RunConfig) -> None:
    with (
        writing(out, short),
        pytest.raises(LockedError, match=f"process {os.getpid()} on {socket.gethostname()}"),
    ):
        train(short, out, quiet=True)
    with writing(out, short):
        pass


def test_the_lock_of_another_machine_counts_while_it_beats(out: Path, short: RunConfig) -> None:
    owner = out / ".lock.json"
    owner.write_text(json.dumps({"host": "elsewhere", "pid": 5}))
    with pytest.raises(LockedError, match="process 5 on elsewhere"), writing(out, short):
        pass
    os.utime(owner, (time.time() - 3600,) * 2)
    with writing(out, short):
        assert json.loads(owner.read_text()) == {"host": socket.gethostname(), "pid": os.getpid()}
    assert not owner.exists()


def test_a_lock_dated_in_the_future_names_the_file_to_remove(out: Path, short: RunConfig) -> None:
    owner = out / ".lock.json"
    owner.write_text(json.dumps({"host": "elsewhere", "pid": 5}))
    os.utime(owner, (time.time() + 1e6,) * 2)
    with pytest.raises(LockedError, match=r"if it is gone, remove .*lock"):
        train(short, out, quiet=True)


@pytest.mark.parametrize("pid", ["999999", '"x"'])
def test_a_lock_of_a_dead_process_or_a_garbled_one_is_taken_over(
    pid: str, out: Path, short: RunConfig
) -> None:
    (out / ".lock.json").write_text(f'{{"pid": {pid}, "host": "{socket.gethostname()}"}}')
    with writing(out, short):
        pass
    with open(out / ".lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released


def test_without_locks_nothing_is_written(
    out: Path, short: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StoreError, match=r"has no locks .*choose a folder on a local disk, or"):
        train(short, out, quiet=True)
    assert {path.name for path in out.iterdir()} <= {".lock"}


def test_the_owner_of_a_lock_shows_that_it_works_between_writes(
    out: Path, short: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.01)
    with writing(out, short):
        first = (out / ".lock.json").stat().st_mtime_ns
        deadline = time.monotonic() + 10
        while (out / ".lock.json").stat().st_mtime_ns == first:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_foreign_folders_are_refused_and_left_alone(tmp_path: Path, short: RunConfig) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(StoreError, match="is not a run folder but holds 'thesis"):
        train(short, tmp_path, quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(StoreError, match="cannot write to the run folder"):
        train(short, Path("/proc/nowhere"), quiet=True)


@pytest.mark.parametrize(("name", "message"), [
    ("a" * 300, "File name too long"),
    ("loose", "loose is a broken link; name a folder for the run"),
])  # fmt: skip
def test_impossible_folder_names_are_refused(
    tmp_path: Path, short: RunConfig, name: str, message: str
) -> None:
    (tmp_path / "loose").symlink_to(tmp_path / "nothing")
    with pytest.raises(AnchorInterpError, match=message) as refused:
        train(short, tmp_path / name, quiet=True)
    assert str(refused.value).isprintable()


def test_another_configuration_is_refused_with_the_difference(
    short: RunConfig, finished_run: Run
) -> None:
    other = override(short, gamma=0.7, seed=3, steps=50)
    differences = r"init.gamma 0.5 \(asked: 0.7\), train.steps 40 \(asked: 50\), seed 0 \(asked: 3"
    with pytest.raises(StoreError, match=differences):
        train(other, finished_run.folder.path, quiet=True)


def test_the_result_of_another_run_is_refused(tmp_path: Path, finished_run: Run) -> None:
    copy = Path(shutil.copytree(finished_run.folder.path, tmp_path / "copy"))
    other = override(finished_run.config, seed=9)
    (copy / "config.json").write_text(json.dumps(to_dict(other)))
    with pytest.raises(StoreError, match="result that does not belong"):
        train(other, copy, quiet=True)


def test_a_committed_checkpoint_is_never_touched_again(out: Path, short: RunConfig) -> None:
    """A stop signal at a step with a regular checkpoint must not rewrite it."""
    with writing(out, short) as writer:
        weights = {"w": torch.zeros(3)}
        writer.save_checkpoint(10, weights, weights, keep_every=10)
        before = writer.checkpoint(10).stat().st_ino
        writer.save_checkpoint(10, weights, weights, keep_every=10)
        assert writer.checkpoint(10).stat().st_ino == before


def test_an_interrupted_thinning_out_can_be_repeated(out: Path, short: RunConfig) -> None:
    with writing(out, short) as writer:
        weights = {"w": torch.zeros(3)}
        for step in (0, 10, 13, 20):
            writer.save_checkpoint(step, weights, weights, keep_every=1)
        (out / "checkpoints/.00000007.partial").mkdir()  # left by an interruption
        writer.thin_out(keep_every=10)
        assert writer.steps() == [0, 10, 20]
        names = sorted(path.name for path in (out / "checkpoints").rglob("*"))
        assert names.count("optimizer.safetensors") == 1
        assert not [name for name in names if "partial" in name]


def test_a_failed_write_leaves_the_last_checkpoint(
    out: Path, short: RunConfig, finished_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = files.write_bytes

    def full_disk(path: Path, data: bytes) -> None:
        if "00000030" in str(path):
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(files, "write_bytes", full_disk)
    with pytest.raises(AnchorInterpError, match="No space left on device"):
        train(short, out, device="cpu", threads=1, quiet=True)
    assert RunFolder(out).steps() == [0, 10, 20]
    assert not list((out / "checkpoints").glob(".*"))
    monkeypatch.setattr(files, "write_bytes", write)
    run = train(short, out, device="cpu", threads=1, quiet=True)
    assert run.steps == [0, 10, 20, 30, 40]
    assert run.metrics == finished_run.metrics


def test_a_lost_checkpoint_is_made_again(tmp_path: Path, finished_run: Run) -> None:
    """Training falls back on what is left, in the last resort on the initial weights."""
    copy = Path(shutil.copytree(finished_run.folder.path, tmp_path / "copy"))
    (copy / "result.json").unlink()
    shutil.rmtree(copy / "checkpoints/00000040")
    run = train(finished_run.config, copy, device="cpu", threads=1, quiet=True)
    assert run.steps == finished_run.steps
    assert run.metrics == finished_run.metrics
    expected = finished_run.folder.weights(40)
    assert all(torch.equal(w, expected[name]) for name, w in run.folder.weights(40).items())


@pytest.mark.parametrize("changes", [
    {"d_model": 16384, "d_mlp": 65536, "n_layers": 10},
    {"n_sequences": 1 << 31},
])  # fmt: skip
def test_a_configuration_larger_than_memory_is_refused(
    tmp_path: Path, short: RunConfig, changes: dict[str, int]
) -> None:
    if "n_sequences" in changes and memory_limit() >= 1 << 36:
        pytest.skip("this machine has the memory")
    with pytest.raises(ConfigError, match=r"needs at least .* GiB .* this machine has"):
        train(override(short, **changes), tmp_path / "run", device="cpu", quiet=True)
    assert not (tmp_path / "run").exists()
