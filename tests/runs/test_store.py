"""Reading run folders: the layout, damaged and hostile files, other schemas."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from damaged_files import change_embedding, flip_one_bit, hole, rewrite
from safetensors import safe_open

import anchor_interp
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp.behaviour.phase import decide
from anchor_interp.runs import store
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.run import Run
from anchor_interp.runs.store import RunFolder, writing
from anchor_interp.runs.train import train


@pytest.fixture
def copy(finished_run: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run.folder.path, tmp_path / "copy"))


def test_every_file_has_its_schema_and_checksum(finished_run: Run) -> None:
    path = finished_run.folder.path
    assert {entry.name for entry in path.iterdir()} == {
        ".lock", "config.json", "provenance.json", "metrics.jsonl", "checkpoints", "result.json",
    }  # fmt: skip
    assert finished_run.steps == [0, 10, 20, 30, 40]
    for name in ("config.json", "provenance.json", "result.json"):
        assert json.loads((path / name).read_text())["schema"] == 1
    state = json.loads((path / "checkpoints/00000040/state.json").read_text())
    assert (state["schema"], state["step"], state["generator"]) == (1, 40, 1)
    assert state["run_id"] == anchor_interp.run_id(finished_run.config)
    weights = path / "checkpoints/00000040/weights.safetensors"
    data = weights.read_bytes()
    record = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert state["files"]["weights.safetensors"] == record
    assert finished_run.folder.weights_digest(40) == record["sha256"]
    with safe_open(weights, "pt") as file:
        assert file.metadata() == {"schema": "1"}
    lines = (path / "metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line)["schema"] == 1 for line in lines)
    session = finished_run.folder.provenance()[0]
    assert {"versions", "machine", "device", "threads", "started", "ended"} <= set(session)


def test_a_run_gives_its_model_at_every_checkpoint(finished_run: Run) -> None:
    first, last = finished_run.at(0), finished_run.at(40)
    assert (first.step, last.step, finished_run.step) == (0, 40, 40)
    initial = finished_run.initial
    assert initial is not None
    assert torch.equal(first.model.embed.W_E, initial.embed.W_E)
    assert not torch.equal(first.model.embed.W_E, last.model.embed.W_E)
    double = anchor_interp.load(finished_run.folder.path, dtype=torch.float64)
    assert double.model.embed.W_E.dtype == double.model.cfg.dtype == torch.float64
    assert finished_run.evaluation == finished_run.evaluate()
    assert finished_run.phase == decide(finished_run.evaluation).phase
    with pytest.raises(StoreError, match=r"no checkpoint at step 15; it has \[0, 10, 20, 30, 40\]"):
        finished_run.at(15)


def test_only_the_name_that_a_step_is_written_under_is_a_checkpoint(copy: Path) -> None:
    for name in ("20", "000000020", "\N{FULLWIDTH DIGIT FOUR}0", "00000050x"):
        shutil.copytree(copy / "checkpoints/00000020", copy / "checkpoints" / name)
    assert RunFolder(copy).steps() == [0, 10, 20, 30, 40]
    assert anchor_interp.load(copy).step == 40
    (copy / "checkpoints/00000040").rename(copy / "checkpoints/40")  # of which nothing is read
    assert anchor_interp.load(copy).step == 30


def test_an_unfinished_run_says_what_it_lacks(tmp_path: Path, short: RunConfig) -> None:
    with pytest.raises(StoreError, match="is not a run folder"):
        anchor_interp.load(tmp_path / "missing")
    with writing(tmp_path / "run", short):
        pass
    with pytest.raises(StoreError, match="has no checkpoint yet"):
        anchor_interp.load(tmp_path / "run")


def test_a_folder_of_runs_names_some(tmp_path: Path) -> None:
    for number in range(7):
        (tmp_path / f"run-{number}").mkdir()
        (tmp_path / f"run-{number}" / "config.json").touch()
    wanted = r"it holds the runs 'run-0', .*, 'run-5', \.\.\.; name one or more of them"
    with pytest.raises(StoreError, match=wanted):
        anchor_interp.load(tmp_path)


def test_metrics_leave_out_a_line_cut_off_by_a_kill(copy: Path) -> None:
    whole = RunFolder(copy).metrics()
    with open(copy / "metrics.jsonl", "a") as file:
        file.write('{"step": 45, "lo')
    assert RunFolder(copy).metrics() == whole


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def _turned_into_a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.touch()


def _without(path: Path, name: str) -> None:
    data = json.loads(path.read_text())
    del data[name]
    path.write_text(json.dumps(data))


def _with(path: Path, **changes: int) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


STEP_40 = "checkpoints/00000040"
WEIGHTS, STATE = f"{STEP_40}/weights.safetensors", f"{STEP_40}/state.json"


@pytest.mark.parametrize(("name", "change", "message"), [
    ("config.json", lambda p: p.write_text("{"), "is damaged"),
    ("config.json", lambda p: p.unlink(), "is not a run folder"),
    ("config.json", hole, "expected at most"),
    ("result.json", lambda p: p.write_text("[]"), "not an object with a schema"),
    ("result.json", lambda p: p.write_text("{"), "is damaged"),
    ("result.json", lambda p: p.write_text('{"schema": 2}'), "has schema 2; anchor-interp 0"),
    ("result.json", lambda p: p.write_text('{"schema": NaN}'), "NaN is not a finite number"),
    ("result.json", lambda p: p.write_text('{"schema": true}'), "has schema True"),
    ("result.json", lambda p: p.write_text('{"schema": 1, "run_id": "x"}'),
     "does not belong to this run"),
    ("provenance.json", lambda p: p.write_text('{"schema": 1}'),
     "no list of sessions; restore it or remove it"),
    ("metrics.jsonl", lambda p: p.write_text('{"schema": 1, "step": 0}\n{"ste\n'),
     "damaged in line 2"),
    ("metrics.jsonl", lambda p: p.write_text("[]\n"), "damaged in line 1"),
    ("metrics.jsonl", lambda p: p.write_text('{"schema": 1, "step": "x"}\n'),
     "a step and numbers"),
    ("metrics.jsonl", lambda p: p.write_text('{"schema": 1, "step": 0, "loss": "<b>"}\n'),
     "a step and numbers"),
    ("metrics.jsonl", lambda p: p.write_text('{"step": 0}\n'), "not an object with a schema"),
    ("metrics.jsonl", lambda p: p.write_text('{"schema": 2, "step": 0}\n'),
     "metrics.jsonl has schema 2; .* use the version that wrote it: sessions.* provenance.json$"),
    ("metrics.jsonl", lambda p: p.write_text(2 * '{"schema": 1, "step": 5}\n'), "5 after step 5"),
    ("metrics.jsonl", hole, "expected at most"),
    (STEP_40, _turned_into_a_file, r"00000040 has no state\.json; restore"),
    (STATE, lambda p: p.unlink(), r"has no state\.json; restore .*, or remove .* and train from"),
    (STATE, lambda p: p.write_text('{"schema": 99}'), "has schema 99"),
    (STATE, lambda p: _with(p, step=30), "is a checkpoint of another run or step"),
    (STATE, lambda p: _with(p, generator=7), "data of generator 7"),
    (STATE, lambda p: _without(p, "run_id"), "is a checkpoint of another run or step"),
    (STATE, lambda p: _without(p, "files"), "has no record of weights"),
    (WEIGHTS, lambda p: p.unlink(), "No such file"),
    (WEIGHTS, lambda p: p.write_bytes(p.read_bytes()[:500]), "SHA-256 differs"),
    (WEIGHTS, flip_one_bit,
     "SHA-256 differs.*; restore .*/00000040, or remove it and result.json and train"),
    (WEIGHTS, lambda p: change_embedding(p, lambda _: None), "do not fit"),
    (WEIGHTS, lambda p: change_embedding(p, lambda w: w / 0), "not finite"),
    (WEIGHTS, lambda p: change_embedding(p, lambda w: w[:3].clone()), r"has shape \(3, 16\)"),
    (WEIGHTS, hole, "expected at most"),
    (WEIGHTS, lambda p: _replace(p, lambda q: q.symlink_to("/dev/zero")), "expected at most"),
    (WEIGHTS, lambda p: _replace(p, Path.mkdir), "Is a directory"),
])  # fmt: skip
def test_damaged_files_are_refused_with_the_reason(
    copy: Path,
    name: str,
    change: Callable[[Path], object],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "_MOST_METRICS", 1 << 20)  # as many bytes are read
    change(copy / name)
    with pytest.raises((StoreError, ConfigError), match=message):
        _read_everything(copy)


def _read_everything(path: Path) -> None:
    run = anchor_interp.load(path)
    assert run.model.cfg.n_layers == 2
    assert run.phase
    assert run.metrics
    assert run.folder.provenance()


def test_a_damaged_provenance_does_not_stop_an_evaluation(copy: Path) -> None:
    (copy / "provenance.json").write_text("{")
    run = anchor_interp.load(copy)
    assert run.evaluate(n=2).id_accuracy is not None
    with pytest.raises(StoreError, match=r"provenance.json is damaged.*restore it or remove it"):
        run.folder.provenance()


def test_an_undamaged_copy_is_read(copy: Path) -> None:
    _read_everything(copy)


def test_damaged_optimizer_states_are_refused(copy: Path, short: RunConfig) -> None:
    (copy / "result.json").unlink()
    rewrite(copy / STEP_40 / "optimizer.safetensors", **{"embed.W_E/step": None})
    with pytest.raises(StoreError, match="is damaged or missing"):
        train(short, copy, device="cpu", quiet=True)


@pytest.mark.parametrize("schema", [0, 2])
def test_other_schemas_are_refused(copy: Path, short: RunConfig, schema: int) -> None:
    for name in ("config.json", "provenance.json"):
        data = json.loads((copy / name).read_text()) | {"schema": schema}
        (copy / name).write_text(json.dumps(data))
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    expected = f"has schema {schema}; .* reads schema 1: use the version that wrote it: sess"
    with pytest.raises(StoreError, match=expected):
        anchor_interp.load(copy)
    with pytest.raises(StoreError, match=expected):
        train(short, copy, quiet=True)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
