"""Run folders: locks, damaged and foreign files, and what a reader sees."""

import fcntl
import hashlib
import io
import json
import os
import pickle
import shutil
import socket
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import anchor_interp
from anchor_interp._util import files
from anchor_interp._util.errors import AnchorInterpError, ConfigError, LockedError, StoreError
from anchor_interp._util.schema import to_dict
from anchor_interp.runs import lock
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.memory import memory_limit
from anchor_interp.runs.run import Run
from anchor_interp.runs.store import RunFolder
from anchor_interp.runs.train import train


@pytest.fixture
def copy(finished_run: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run.folder.path, tmp_path / "copy"))


def test_layout(finished_run: Run) -> None:
    names = {path.name for path in finished_run.folder.path.iterdir()}
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
        assert json.loads((finished_run.folder.path / name).read_text())["schema"] == 1
    state = json.loads((finished_run.folder.path / "checkpoints/00000040/state.json").read_text())
    assert (state["schema"], state["step"], state["generator"]) == (1, 40, 1)
    assert state["run_id"] == anchor_interp.run_id(finished_run.config)
    weights = finished_run.folder.path / "checkpoints/00000040/weights.safetensors"
    assert state["files"]["weights.safetensors"] == {
        "bytes": weights.stat().st_size,
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
    }
    with safe_open(weights, "pt") as file:
        assert file.metadata() == {"schema": "1"}
    lines = (finished_run.folder.path / "metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line)["schema"] == 1 for line in lines)
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
    double = anchor_interp.load(finished_run.folder.path, dtype=torch.float64)
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
        writer.check()
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
        train(other, finished_run.folder.path, quiet=True)


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


def _rewrite(path: Path, **tensors: torch.Tensor | None) -> None:
    """Change tensors of a checkpoint's file and its record, as one who means harm would."""
    kept = load_file(path) | tensors
    save_file({name: tensor for name, tensor in kept.items() if tensor is not None}, path)
    state = json.loads((path.parent / "state.json").read_text())
    data = path.read_bytes()
    record = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    state["files"][path.name] = record
    (path.parent / "state.json").write_text(json.dumps(state))


def _embedding(path: Path, change: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    _rewrite(path, **{"embed.W_E": change(load_file(path)["embed.W_E"])})


def _flip_one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def _header(text: bytes, claimed: int | None = None) -> bytes:
    return (len(text) if claimed is None else claimed).to_bytes(8, "little") + text


def _without_record(path: Path, data: bytes) -> None:
    """Hostile bytes in a checkpoint that, like the first ones of schema 1, records no checksum."""
    path.write_bytes(data)
    state = json.loads((path.parent / "state.json").read_text())
    del state["files"]
    (path.parent / "state.json").write_text(json.dumps(state))


def _zip_bomb() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(1 << 22))
    return data.getvalue()


def _moved_away(path: Path) -> None:
    path.rename(path.parent.parent / "away")
    path.symlink_to("../away")


def _turned_into_a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.touch()


def _huge_hole(path: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(1 << 40)


HUGE = b'{"embed.W_E":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'
WEIGHTS = "checkpoints/00000040/weights.safetensors"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", lambda p: p.write_text("{"), "is damaged"),
        (
            "config.json",
            lambda p: p.write_text('{"schema": 99, "task": {}}'),
            "has schema 99; anchor-interp 0.1.0 reads schema 1.* wrote it$",
        ),
        ("config.json", lambda p: p.unlink(), "no run folder"),
        ("result.json", lambda p: p.write_text("[]"), "holds no object"),
        ("result.json", lambda p: p.write_text('{"schema": 2}'), "has schema 2; anchor-interp 0"),
        ("result.json", lambda p: p.write_text("{"), "is damaged"),
        ("checkpoints/00000040/weights.safetensors", lambda p: p.unlink(), "does not exist"),
        ("checkpoints/00000040/weights.safetensors", lambda p: p.write_bytes(b"x"), "is damaged"),
        (
            "checkpoints/00000040/weights.safetensors",
            lambda p: p.write_bytes(p.read_bytes()[:500]),
            "is damaged",
        ),
        (WEIGHTS, lambda p: _embedding(p, lambda _: None), "do not fit"),
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
        ("metrics.jsonl", lambda p: p.write_text('{"step": "x"}\n'), "it has no step"),
        (
            "provenance.json",
            lambda p: p.write_text('{"schema": 1}'),
            "holds no sessions; remove it",
        ),
        (
            "result.json",
            lambda p: p.write_text('{"schema": 1, "run_id": "x"}'),
            "does not belong to this run",
        ),
        (WEIGHTS, lambda p: _embedding(p, lambda w: w / 0), "not finite"),
        (WEIGHTS, lambda p: _embedding(p, lambda w: w[:3].clone()), r"has shape \(3, 16\)"),
        (WEIGHTS, lambda p: _embedding(p, lambda w: w.double()), "of torch.float64"),
        (
            WEIGHTS,
            _flip_one_bit,
            "SHA-256 differs.*; restore .*/00000040, or remove it and result.json and train",
        ),
        (WEIGHTS, lambda p: _without_record(p, b""), "it has 0 bytes"),
        (WEIGHTS, lambda p: _without_record(p, pickle.dumps({"a": 1})), "pickle or a zip archive"),
        (WEIGHTS, lambda p: _without_record(p, _zip_bomb()), "pickle or a zip archive"),
        (WEIGHTS, lambda p: _without_record(p, _header(HUGE)), "is damaged"),
        (WEIGHTS, lambda p: _without_record(p, _header(b"{}", 1 << 60)), "its header claims"),
        (WEIGHTS, lambda p: _without_record(p, _header(b"[]")), "header is no object"),
        (
            WEIGHTS,
            lambda p: _without_record(p, _header(b'{"__metadata__":{"schema":"2"}}')),
            "has schema '2'",
        ),
        (WEIGHTS, _huge_hole, "expected at most"),
        (WEIGHTS, lambda p: _replace(p, os.mkfifo), "is a FIFO"),
        (WEIGHTS, lambda p: _replace(p, lambda q: q.symlink_to("/dev/zero")), "is a symbolic link"),
        (WEIGHTS, lambda p: _replace(p, Path.mkdir), "is a folder"),
        ("checkpoints/00000040", _moved_away, "no folder of this run's own"),
        ("checkpoints/00000040", _turned_into_a_file, "no folder of this run's own"),
        ("checkpoints", lambda p: (p.rename(f"{p}2"), p.symlink_to(f"{p}2")), "a symbolic link"),
        ("config.json", lambda p: _replace(p, os.mkfifo), "is a FIFO"),
        ("config.json", lambda p: p.write_text('{"schema": 1, "schema": 1}'), "stands 2 times"),
        ("config.json", lambda p: p.write_text("[" * 100_000), "is damaged"),
        ("config.json", lambda p: p.write_bytes(b'{"schema": "\xff"}'), "is damaged"),
        ("config.json", _huge_hole, "expected at most"),
        ("result.json", lambda p: p.write_text('{"schema": NaN}'), "NaN is no finite number"),
        ("result.json", lambda p: p.write_text('{"schema": true}'), "has schema True"),
        ("metrics.jsonl", _huge_hole, "is damaged in line"),
        ("metrics.jsonl", lambda p: p.write_text('{"step": 0, "loss": "<b>"}\n'), "no number"),
        ("metrics.jsonl", lambda p: p.write_text('{"schema": 2, "step": 0}\n'), "schema 2"),
        ("metrics.jsonl", lambda p: p.write_text('{"step": 5}\n{"step": 5}\n'), "5 after step 5"),
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
    _rewrite(out / "checkpoints/00000040/optimizer.safetensors", **{"embed.W_E/step": None})
    with pytest.raises(StoreError, match="is damaged or missing"):
        train(short, out, quiet=True)


def test_a_failed_write_leaves_the_last_checkpoint(
    tmp_path: Path, short: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = files.write_bytes

    def full_disk(path: Path, data: bytes) -> None:
        if "00000030" in str(path):
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(files, "write_bytes", full_disk)
    with pytest.raises(AnchorInterpError, match="No space left on device"):
        train(short, tmp_path / "run", device="cpu", threads=1, quiet=True)
    assert RunFolder(tmp_path / "run").steps() == [0, 10, 20]
    monkeypatch.setattr(files, "write_bytes", write)
    run = train(short, tmp_path / "run", device="cpu", threads=1, quiet=True)
    assert run.steps == [0, 10, 20, 30, 40]
    assert not list((tmp_path / "run/checkpoints").glob(".*"))


DATA = Path(__file__).parents[1] / "data"


def test_the_first_folders_of_schema_1_are_read_and_resumed(tmp_path: Path) -> None:
    """They have no checksums, no metadata and no schema number in a line of metrics."""
    stored = anchor_interp.load(DATA / "schema-1-finished")
    assert (stored.steps, stored.phase) == ([0, 8], "undertrained")
    out = Path(shutil.copytree(DATA / "schema-1-stopped", tmp_path / "run"))
    assert [row["step"] for row in RunFolder(out).metrics()] == [0, 2, 4, 6]
    run = train(stored.config, out, device="cpu", threads=1, quiet=True)
    assert run.steps == [0, 4, 8]
    expected = stored.folder.weights(8)
    for name, found in run.folder.weights(8).items():
        torch.testing.assert_close(found, expected[name])
    assert [row["step"] for row in run.metrics] == [0, 2, 4, 6, 8]
    state = json.loads((out / "checkpoints/00000008/state.json").read_text())
    assert set(state["files"]) == {"weights.safetensors", "optimizer.safetensors"}


@pytest.mark.parametrize(("schema", "version"), [(0, "0.0.1"), (2, "2.0.0")])
def test_folders_of_other_schemas_are_refused_with_their_version(
    tmp_path: Path, schema: int, version: str
) -> None:
    config = anchor_interp.load(DATA / "schema-1-stopped").config
    out = Path(shutil.copytree(DATA / f"schema-{schema}", tmp_path / "run"))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    expected = f"has schema {schema}; .* reads schema 1: use the version that wrote it, {version}$"
    with pytest.raises(StoreError, match=expected):
        anchor_interp.load(out)
    with pytest.raises(StoreError, match=expected):
        train(config, out, quiet=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_checkpoint_of_another_run_is_refused(
    copy: Path, tmp_path: Path, finished_run: Run
) -> None:
    other = override(finished_run.config, seed=1)
    train(other, tmp_path / "other", device="cpu", threads=1, quiet=True)
    shutil.rmtree(copy / "checkpoints/00000040")
    shutil.copytree(tmp_path / "other/checkpoints/00000040", copy / "checkpoints/00000040")
    with pytest.raises(StoreError, match="is a checkpoint of another run; restore"):
        _read_everything(copy)


@pytest.mark.parametrize(
    ("name", "message"),
    [("a\0b", "expected a path"), ("a" * 300, "File name too long"), ("loose", "leads nowhere")],
)
def test_names_that_no_folder_can_have(
    tmp_path: Path, short: RunConfig, name: str, message: str
) -> None:
    (tmp_path / "loose").symlink_to(tmp_path / "nothing")
    with pytest.raises(AnchorInterpError, match=message) as refused:
        train(short, tmp_path / name, quiet=True)
    assert str(refused.value).isprintable()


def test_a_special_file_as_lock_does_not_hang(tmp_path: Path, short: RunConfig) -> None:
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run/.lock")
    with pytest.raises(StoreError, match="no regular file"):
        train(short, tmp_path / "run", quiet=True)


def test_a_lock_dated_in_the_future_can_be_got_rid_of(tmp_path: Path, short: RunConfig) -> None:
    out = tmp_path / "run"
    out.mkdir()
    holder = {"host": "elsewhere", "pid": 5, "heartbeat": time.time() + 1e6}
    (out / ".lock").write_text(json.dumps(holder))
    with pytest.raises(LockedError, match=r"ahead of this clock.*if it is gone, remove .*lock"):
        train(short, out, quiet=True)


def test_the_heartbeat_is_renewed_between_writes(
    tmp_path: Path, short: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.01)
    with RunFolder(tmp_path / "run").writing(short):
        first = json.loads((tmp_path / "run/.lock").read_text())["heartbeat"]
        deadline = time.monotonic() + 10
        while json.loads((tmp_path / "run/.lock").read_text())["heartbeat"] == first:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_configuration_larger_than_memory_is_refused(tmp_path: Path, short: RunConfig) -> None:
    for changes in (
        {"d_model": 16384, "d_mlp": 65536, "n_layers": 10},
        {"n_sequences": 1 << 31},
    ):
        monster = override(short, **changes)
        if "n_layers" in changes or memory_limit() < 1 << 36:
            with pytest.raises(ConfigError, match=r"needs at least .* GiB .* this machine has"):
                train(monster, tmp_path / "run", device="cpu", quiet=True)
        assert not (tmp_path / "run").exists()
