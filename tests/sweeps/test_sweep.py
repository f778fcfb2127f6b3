"""Sweeps: what is missing is trained, everything is a row, nothing done is done twice."""

import errno
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
import sweep_faults
import torch
from in_process_engine import Here
from short import SHORT

import anchor_interp
from anchor_interp._util.errors import AnchorInterpError, ConfigError, LockedError, StoreError
from anchor_interp._util.lock import is_held
from anchor_interp._util.progress import Progress, reporting_all
from anchor_interp.analysis import fingerprint as fingerprints
from anchor_interp.cli.main import main
from anchor_interp.cli.typed import typed_sweep
from anchor_interp.runs.config import RunConfig, override, run_id
from anchor_interp.runs.loop import TrainState
from anchor_interp.runs.run import Run, load
from anchor_interp.runs.store import RunFolder, writing
from anchor_interp.sweeps import folder as folder_module
from anchor_interp.sweeps.columns import COLUMNS
from anchor_interp.sweeps.engine import Engine, Job, RunResult, each_alone
from anchor_interp.sweeps.estimate import disk_bytes, estimate
from anchor_interp.sweeps.folder import SweepFolder, counts, read_table
from anchor_interp.sweeps.local import LocalEngine, _Worker
from anchor_interp.sweeps.scheduler import TRIES, Scheduler
from anchor_interp.sweeps.spec import Grid, Sweep
from anchor_interp.sweeps.sweep import sweep
from anchor_interp.sweeps.table_files import from_csv, to_csv

Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]
START = anchor_interp.preset("tiny", **SHORT)
SMALL = Sweep((Grid(START, {"gamma": (0.4, 0.8)}, seeds=(0, 1)),))


class Copying(Here):
    """An engine that copies finished runs instead of training them."""

    def __init__(self, finished: SweepFolder) -> None:
        super().__init__()
        self.finished = finished

    def do(self, job: Job, folder: Path) -> Iterator[RunResult]:
        for name in job.configs:
            shutil.copytree(self.finished.runs / name, folder / name, dirs_exist_ok=True)
            yield RunResult(name, None)


class Failing(Copying):
    """An engine in which runs fail with given errors before they succeed."""

    def __init__(self, finished: SweepFolder, errors: dict[str, list[AnchorInterpError]]) -> None:
        super().__init__(finished)
        self.errors = errors

    def do(self, job: Job, folder: Path) -> Iterator[RunResult]:
        (name,) = job.configs
        if self.errors.get(name):
            yield RunResult(name, self.errors[name].pop(0))
        else:
            yield from super().do(job, folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    """A finished sweep; leave it as it is."""
    return sweep(SMALL, tmp_path_factory.mktemp("sweeps") / "small", engine=Here(), quiet=True)


@pytest.fixture
def copy(small: SweepFolder, tmp_path: Path) -> SweepFolder:
    shutil.copytree(small.path, tmp_path / "sweep")
    return SweepFolder(tmp_path / "sweep")


def test_every_run_is_trained_and_a_row(small: SweepFolder) -> None:
    found = small.rows()
    configs = SMALL.configs()
    assert [row["run_id"] for row in found] == list(configs)
    for row, config in zip(found, configs.values(), strict=True):
        assert list(row) == list(COLUMNS)
        run = load(small.runs / row["run_id"])
        assert run.config == config
        assert (row["status"], row["task"]) == ("done", "complexity-control")
        assert (row["seed"], row["sessions"], row["threads"]) == (config.seed, 1, 1)
        assert (row["phase"], row["reason"]) == (run.phase, run.reason)
        assert row["censored"] == (run.phase == "undertrained")
        assert row["id_accuracy"] == run.evaluation.id_accuracy
        assert row["commutativity_wrong"] == run.evaluation.commutativity_wrong is not None
        assert row["unseen_test_keys"] == run.evaluation.cells.unseen_test_keys
        assert (row["gamma"], row["d_model"], row["clip"]) == (config.init.gamma, 16, 1.0)
        assert row["gamma_qk"] is None
    assert read_table(small.path / "table.parquet") == found
    frame = small.table()
    assert list(frame.columns) == list(COLUMNS)
    assert frame["id_accuracy"].tolist() == [row["id_accuracy"] for row in found]


def test_only_what_is_missing_is_trained(copy: SweepFolder) -> None:
    gone, begun = list(SMALL.configs())[1:3]
    before = copy.write_table()
    shutil.rmtree(copy.runs / gone)
    (copy.runs / begun / "result.json").unlink()
    assert counts(copy.rows()) == {"done": 2, "begun": 1, "missing": 1}
    engine, asked = Here(), copy.spec_file.read_text()
    sweep(copy.spec_file, copy.path, engine=engine, quiet=True)
    assert engine.done == [gone, begun]
    assert copy.spec_file.read_text() == asked
    assert sweep_faults.what_counts(copy.rows()) == sweep_faults.what_counts(before)
    assert copy.rows()[2]["sessions"] == 2


def test_a_new_value_of_an_axis_reuses_what_is_there(copy: SweepFolder) -> None:
    wider = Sweep((Grid(START, {"gamma": (0.4, 0.6, 0.8)}),))
    engine = Here()
    sweep(wider, copy.path, engine=engine, quiet=True)
    assert engine.done == [run_id(override(START, gamma=0.6))]
    assert counts(copy.rows()) == {"done": 5}
    # what was asked for before stays asked for
    narrow = Sweep((Grid(START, {"gamma": (0.4,)}),))
    assert len(sweep(narrow, copy.path, engine=engine, quiet=True).rows()) == 5
    assert len(engine.done) == 1


@pytest.mark.parametrize(("batch", "sizes"), [(3, [3, 1, 1]), (0, [1] * 5)])
def test_runs_of_one_shape_train_together(batch: int, sizes: list[int], tmp_path: Path) -> None:
    """0 is as many as train fastest: on a CPU one."""
    wider = Sweep((*SMALL.grids, Grid(override(START, n_layers=3)))).configs()
    folder, measures = SweepFolder(tmp_path / "new"), dict.fromkeys(wider, ())
    with reporting_all(5, quiet=True) as overall:
        scheduler = Scheduler(folder, wider, measures, batch=batch, device="cpu")
        scheduler.begin(overall)
        jobs = scheduler.jobs()
        assert [len(job.configs) for job in (next(jobs) for _ in sizes) if job] == sizes


def test_errors_are_rows_and_tried_again(
    tmp_path: Path, small: SweepFolder, caplog: pytest.LogCaptureFixture
) -> None:
    lost, locked, refused, fine = SMALL.configs()
    errors: dict[str, list[AnchorInterpError]] = {
        lost: [AnchorInterpError("the worker died")] * (TRIES - 1),
        locked: [LockedError("somebody else has it")],
        refused: [StoreError("disk full")] * TRIES,
    }
    engine = Failing(small, errors)
    folder = sweep(SMALL, tmp_path / "out", engine=engine, quiet=True)
    assert [engine.done.count(name) for name in (lost, locked, refused, fine)] == [3, 2, 3, 1]
    by_name = {row["run_id"]: row for row in folder.rows()}
    assert by_name[lost]["status"] == by_name[locked]["status"] == "done"
    assert (by_name[refused]["status"], by_name[refused]["error"]) == ("failed", "disk full")
    assert by_name[refused]["censored"]
    assert by_name[refused]["phase"] is None
    assert sum("disk full" in message for message in caplog.messages) == TRIES
    again = Copying(small)
    sweep(SMALL, folder.path, engine=again, quiet=True)
    assert again.done == [refused]
    assert counts(folder.rows()) == {"done": 4}
    assert all(row["error"] is None for row in folder.rows())


def test_a_diverging_run_is_final(tmp_path: Path) -> None:
    diverging = sweep_faults.small_sweep().grids[1]
    engine = Here()
    folder = sweep(Sweep((diverging,)), tmp_path / "out", engine=engine, quiet=True)
    sweep(Sweep((diverging,)), tmp_path / "out", engine=engine, quiet=True)
    assert len(engine.done) == 1
    (row,) = folder.rows()
    assert (row["status"], row["censored"], row["phase"]) == ("diverged", True, None)
    assert "lower the learning rate" in row["error"]


def test_a_run_of_another_process_is_left_to_it(
    copy: SweepFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it lets go; then it is taken up. The waiting is said once."""
    configs = SMALL.configs()
    name, measures = next(iter(configs)), dict.fromkeys(configs, ())
    shutil.rmtree(copy.runs / name)
    with writing(copy.runs / name, configs[name]), reporting_all(4, quiet=True) as overall:
        assert copy.state(name) == "running"
        assert counts(copy.rows()) == {"done": 3, "running": 1}
        scheduler = Scheduler(copy, configs, measures, batch=1, device="cpu")
        scheduler.begin(overall)
        jobs = scheduler.jobs()
        assert [next(jobs) for _ in range(3)] == [None] * 3
    (said,) = (text for text in caplog.messages if "waiting for 1 run" in text)
    assert str(copy.runs / name / ".lock") in said
    assert copy.state(name) == "begun"
    engine = Here()
    sweep(SMALL, copy.path, engine=engine, quiet=True)
    assert engine.done == [name]


def test_a_lock_left_behind_is_not_held(tmp_path: Path) -> None:
    path, owner = tmp_path / ".lock", tmp_path / ".lock.json"
    gone, here = 9_999_999, socket.gethostname()  # more than Linux's largest number of a process
    for host, pid, held in ((here, gone, False), (here, os.getpid(), True), ("other", gone, True)):
        owner.write_text(json.dumps({"host": host, "pid": pid}))
        assert is_held(path) == held
    os.utime(owner, (time.time() - 3600,) * 2)
    assert not is_held(path)
    owner.write_text("")
    assert not is_held(path)
    assert not is_held(tmp_path / "nothing")


def test_a_sweep_is_read_where_the_file_system_has_no_locks(
    copy: SweepFolder, monkeypatch: Patch, capsys: Capture
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert main(["status", str(copy.path)]) == 0
    assert main(["table", str(copy.path)]) == 0
    assert capsys.readouterr().err == ""
    with pytest.raises(StoreError, match=r"has no locks .*choose a folder on a local disk, or"):
        copy.extend(Sweep((Grid(START, {"gamma": (0.5,)}),)))


def test_damage_costs_a_row_and_no_more(copy: SweepFolder) -> None:
    first, second, third, *_ = SMALL.configs()
    before = copy.rows()
    (copy.path / "table.parquet").write_bytes(b"nonsense")
    (copy.runs / third / "measurements.json").write_text("{")
    (copy.runs / first / "provenance.json").write_text("{")
    (copy.runs / second / "result.json").write_text('{"schema": 1}')
    found = copy.write_table()
    assert found[0]["phase"] == before[0]["phase"]
    assert found[0]["machine"] is None
    assert found[1]["status"] == "failed"
    assert "result.json is damaged" in found[1]["error"]
    assert "measurements.json is damaged: not valid JSON" in found[2]["error"]
    assert found[2]["error"].count("remove it") == 1
    assert found[3:] == before[3:]
    assert read_table(copy.path / "table.parquet") == found
    copy.spec_file.write_text("grids: [")
    with pytest.raises(ConfigError, match="cannot read the sweep"):
        copy.rows()


def test_a_result_of_another_schema_is_refused_everywhere(
    copy: SweepFolder, capsys: Capture
) -> None:
    """Its numbers may mean something else: the table says so, as a worker process does."""
    path = copy.runs / next(iter(SMALL.configs())) / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 2}))
    first, *others = copy.write_table()
    assert (first["status"], first["phase"], first["id_accuracy"]) == ("failed", None, None)
    assert f"{path} has schema 2" in first["error"]
    assert counts(others) == {"done": 3}
    assert main(["sweep", str(copy.spec_file), "--out", str(copy.path), "--quiet"]) == 1
    assert "has schema 2" in capsys.readouterr().out


def test_a_clock_that_was_set_back_gives_no_seconds(copy: SweepFolder) -> None:
    first, *_ = SMALL.configs()
    path = copy.runs / first / "provenance.json"
    provenance = json.loads(path.read_text())
    (session,) = provenance["sessions"]
    session["ended"] = "1999-01-01T00:00:00+00:00"
    path.write_text(json.dumps(provenance))
    (copy.path / "table.parquet").unlink()
    before, after = copy.rows()[:2]
    assert before["seconds"] is None
    assert before["ended"] == session["ended"]
    assert after["seconds"] >= 0


def test_a_spec_that_grows_meanwhile_loses_no_row(copy: SweepFolder, monkeypatch: Patch) -> None:
    """A second driver that adds runs while the first makes its table waits for it."""
    (copy.path / "table.parquet").unlink()
    states = SweepFolder.states
    more = Sweep((Grid(START, {"gamma": (0.6,)}),))
    other = threading.Thread(target=copy.extend, args=(more,))

    def meanwhile(self: SweepFolder, names: Any) -> Any:
        monkeypatch.setattr(SweepFolder, "states", states)
        other.start()
        other.join(0.3)
        assert other.is_alive()
        return self.states(names)

    monkeypatch.setattr(SweepFolder, "states", meanwhile)
    assert len(copy.write_table()) == 4
    other.join(60)
    assert len(copy.rows()) == 5


def test_a_flipped_bit_of_the_table_is_noticed(copy: SweepFolder) -> None:
    """It is derived: what it says wrongly is made anew, and never taken over."""
    expected, table = copy.write_table(), copy.path / "table.parquet"
    whole = table.read_bytes()
    chance = random.Random(0)
    for _ in range(20):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        table.write_bytes(damaged)
        assert copy.rows() == expected


def test_a_run_whose_mechanism_cannot_be_measured_stops_no_other(
    copy: SweepFolder, capsys: Capture, monkeypatch: Patch
) -> None:
    first, second, *_ = SMALL.configs()
    (weights,) = (copy.runs / first).glob("checkpoints/00000040/weights.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    measured = []

    def fingerprint(run: Run) -> dict[str, str]:
        _ = run.model  # it is loaded when it is asked for
        measured.append(run.folder.path.name)
        return {"run_id": "another"}

    monkeypatch.setattr(fingerprints, "fingerprint", fingerprint)
    assert main(["table", str(copy.path), "--mechanism"]) == 1
    assert "weights.safetensors" in capsys.readouterr().err
    assert len({*measured}) == 3
    assert second in measured


MEASURES = """
def reached(run):
    return run.step

def parts(run):
    return {"gamma": run.config.init.gamma, "half": 0.5}

def even(run):
    if run.config.seed:
        raise ValueError("an odd seed has none")
    return 1

def words(run):
    return "many"

def seed(run):
    return run.config.seed
"""


def test_own_measures_are_columns(
    copy: SweepFolder, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("anchor_interp.sweeps.local.LocalEngine", lambda *_: Here())
    (file := tmp_path / "own_columns.py").write_text(MEASURES)
    table = ["table", str(copy.path), "--quiet"]
    before = copy.rows()
    assert main([*table, "--measure", f"{file}:reached", "--measure", f"{file}:parts"]) == 0
    found = read_table(copy.path / "table.parquet")
    own = {"reached": 40.0, "parts.half": 0.5}
    assert found == [
        row | own | {"parts.gamma": row["gamma"], "fingerprint_ns": now["fingerprint_ns"]}
        for row, now in zip(before, found, strict=True)
    ]
    assert from_csv(to_csv(found)) == found == copy.rows()
    assert list(copy.table()["parts.half"]) == [0.5] * 4
    capsys.readouterr()

    # a measurement that fails stops no other, and a wrong function is named before any work
    sweeping = ["sweep", str(copy.spec_file), "--out", str(copy.path), "--quiet"]
    both = ["--measure", f"{file}:even", "--measure", f"{file}:words"]
    assert main([*sweeping, *both]) == 1
    said = capsys.readouterr()
    assert "states: 4 done" in said.out
    assert said.err.count("words returned 'many' for") == 4
    assert said.err.count("(ValueError: an odd seed has none)") == 2
    assert said.err.count("\n") == 4  # one line a run
    assert [row["even"] for row in copy.rows()] == [1, None, 1, None]
    assert "words" not in copy.rows()[0]
    for function, message in (
        (f"{file}:seed", "'seed' is the name of a column of every table; rename the function"),
        (f"{file}:nothing", "cannot import the measure own_columns:nothing"),
    ):
        assert main([*table, "--measure", function]) == 2
        assert message in capsys.readouterr().err

    # no column mixes two versions of a function
    file.write_text(MEASURES.replace("return run.step", "return run.step / run.config.seed"))
    assert main([*table, "--measure", f"{file}:reached"]) == 1
    assert [row["reached"] for row in copy.rows()] == [None, 40, None, 40]


def test_an_export_does_not_replace_measurements(small: SweepFolder) -> None:
    run = load(next(small.runs.iterdir()))
    with pytest.raises(StoreError, match=r"measurements\.json"):
        run.export(run.folder.path / "measurements.json")


def test_a_spec_too_large_to_be_read_is_not_written(copy: SweepFolder, monkeypatch: Patch) -> None:
    before = copy.spec_file.read_text()
    monkeypatch.setattr(folder_module, "MAX_BYTES", len(before))
    with pytest.raises(ConfigError, match="its own folder"):
        copy.extend(Sweep((Grid(START, {"gamma": (0.6,)}),)))
    assert copy.spec_file.read_text() == before


def test_a_run_that_spoils_its_batch_fails_alone(tmp_path: Path, small: SweepFolder) -> None:
    bad, *others = SMALL.configs()

    class Fragile(Copying):
        def do(self, job: Job, folder: Path) -> Iterator[RunResult]:
            """Lose a whole job if the bad run is part of it."""
            if bad in job.configs:
                for name in job.configs:
                    yield RunResult(name, AnchorInterpError("the worker died"))
            else:
                yield from super().do(job, folder)

    folder = sweep(SMALL, tmp_path / "out", engine=Fragile(small), batch=3, quiet=True)
    assert folder.state(bad) == "failed"
    assert {folder.state(name) for name in others} == {"done"}


def test_a_table_as_text(small: SweepFolder, tmp_path: Path) -> None:
    found = small.rows()
    assert from_csv(to_csv(found)) == found
    (tmp_path / "table.csv").write_text(to_csv(found))
    assert read_table(tmp_path / "table.csv") == found
    (tmp_path / "table.csv").write_text(to_csv(found).replace("gamma,", "gama,", 1))
    with pytest.raises(StoreError, match=r"table.csv is not .* lacks the column gamma"):
        read_table(tmp_path / "table.csv")
    (tmp_path / "table.csv").write_text("gamma,lr,gamma\n0.3,0.1,0.5\n")
    for whole in (True, False):  # a table of one's own may lack columns
        with pytest.raises(StoreError, match=r"the column 'gamma' occurs twice; keep one"):
            read_table(tmp_path / "table.csv", whole=whole)
    with pytest.raises(ConfigError, match=r"is not a sweep folder, a .parquet or a .csv file"):
        read_table(tmp_path / "table.txt")
    with pytest.raises(StoreError, match="not a sweep folder"):
        read_table(tmp_path)


def test_a_table_with_other_columns_is_refused_and_made_anew_in_its_sweep(
    copy: SweepFolder,
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    found, path = copy.write_table(), copy.path / "table.parquet"
    whole = pq.read_table(path, use_threads=False)
    pq.write_table(whole.drop_columns(["memory", "branch_lr", "weights"]), path)
    assert copy.write_table() == found == read_table(path)
    for table, message in (
        (whole.drop_columns(["lr"]), "lacks the column lr"),
        (whole.append_column("lr", whole["lr"]), '"lr" exists 2 times'),
        (whole.set_column(0, "run_id", pa.nulls(4, pa.list_(pa.int64()))), "list"),
    ):
        pq.write_table(table, path)
        with pytest.raises(StoreError, match=message):
            read_table(path)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(StoreError, match=r"not a sweep folder but holds 'thesis.tex'"):
        sweep(SMALL, tmp_path, engine=Here(), quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_axes_from_a_command_line() -> None:
    changes = ["gamma=0.3,0.5", "steps=2000", "lr=1e-3,2e-3", "clip=null"]
    (grid,) = typed_sweep("tiny", changes, seeds=2).grids
    assert dict(grid.axes) == {"gamma": (0.3, 0.5), "lr": (0.001, 0.002)}
    assert (grid.start.train.steps, grid.start.train.clip, grid.seeds) == (2000, None, (0, 1))


@pytest.mark.parametrize(
    ("start", "changes", "message"),
    [
        ("tiny", ["gamma"], "'gamma' is not NAME=VALUE,VALUE, such as gamma=0.3,0.5"),
        ("tiny", ["gamma=0.3", "gamma=0.5"], "gamma is given twice"),
        ("tiny", ["weight-decay=0.1", "weight_decay=0.5"], "weight_decay is given twice"),
        ("tiny", ["gama=0.3,0.4"], r"no field is called 'gama' \(did you mean"),
        ("tinny", [], "no preset or sweep is called 'tinny'"),
        ("tiny_decay", [], "did you mean 'tiny-decay'"),
        ("tiny-decay", ["gamma=1"], r"gamma=1 changes a preset, .* edit .*tiny-decay.yaml"),
        ("nowhere.yaml", [], "cannot read .*nowhere.yaml"),
        ("nowhere.yaml", ["gamma=1"], "is a file; edit nowhere.yaml"),
        ("tiny", ["gamma=0.3,"], "'gamma=0.3,' is not NAME=VALUE,VALUE"),
    ],
)
def test_bad_axes(start: str, changes: list[str], message: str) -> None:
    with pytest.raises((ConfigError, StoreError), match=message):
        typed_sweep(start, changes).configs()


@pytest.mark.parametrize("periods", [(4, 6), (6, 6), (4, 5), (90, 90)])
def test_disk_counts_each_line_of_metrics_once(periods: tuple[int, int]) -> None:
    often, never = (
        override(START, log_every=log, eval_every=evaluate, steps=60)
        for log, evaluate in (periods, (60, 60))
    )
    logged = sum(map(often.train.is_logged, range(61)))
    assert disk_bytes(often) - disk_bytes(never) == (logged - 2) * 200


def test_an_estimate_names_what_is_left(copy: SweepFolder, tmp_path: Path) -> None:
    configs = SMALL.configs()
    fresh = estimate(configs, SweepFolder(tmp_path / "new"), workers=2, device="cpu")
    assert (fresh.runs, fresh.todo, fresh.basis) == (4, 4, "3 steps of each of 1 shapes")
    assert fresh.seconds == fresh.core_seconds / 2 > 0
    assert not (tmp_path / "new").exists()
    name = next(iter(configs))
    held = sum(file.stat().st_size for file in (copy.runs / name).rglob("*") if file.is_file())
    assert 0.6 * held < disk_bytes(configs[name]) < 1.6 * held
    shutil.rmtree(copy.runs / name)
    left = estimate(configs, copy, workers=2, device="cpu")
    assert left.todo == 1
    done = estimate({run: configs[run] for run in list(configs)[1:]}, copy, workers=2)
    assert (done.todo, done.core_seconds, done.basis) == (0, 0, "3 steps of each of 0 shapes")


def test_a_large_batch_is_timed_in_part(monkeypatch: Patch, tmp_path: Path) -> None:
    asked = []
    fresh = TrainState.fresh

    def watched(config: RunConfig, device: torch.device) -> TrainState:
        asked.append(config.train.batch_size)
        return fresh(config, device)

    monkeypatch.setattr(TrainState, "fresh", watched)
    large = override(START, n_sequences=4096, batch_size=4096, steps=100_000)
    part = override(large, batch_size=128)
    whole, some = (
        estimate({"x": config}, SweepFolder(tmp_path), workers=1, device="cpu").core_seconds
        for config in (large, part)
    )
    assert asked == [128, 128]
    assert 10 < whole / some < 100  # 32 on a quiet machine


def test_four_thousand_configurations(tmp_path: Path) -> None:
    """Nothing is trained: what is asked for must not take long to look at."""
    gammas = tuple(i / 1000 for i in range(400))
    many = Sweep((Grid(START, {"gamma": gammas}, seeds=tuple(range(10))),))
    folder = SweepFolder(tmp_path)
    folder.extend(many)
    assert counts(folder.write_table()) == {"missing": 4_000}
    began = time.process_time()
    assert len(folder.rows()) == 4_000
    assert time.process_time() - began < 1.5


def test_the_commands(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    """Two runs are trained in this process, then the commands look at them."""
    out = str(tmp_path / "out")
    changes = [f"{name}={value}" for name, value in SHORT.items()]
    arguments = ["sweep", "tiny", *changes, "gamma=0.4,0.8", "--out", out, "--device", "cpu"]
    assert main([*arguments, "--dry-run"]) == 0
    assert "runs: 2, of which 2 are to be done" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr("anchor_interp.sweeps.local.LocalEngine", lambda *_: Here())
    monkeypatch.setattr("anchor_interp._util.progress.LATE_SECONDS", 0.0)  # also on a fast machine
    assert main([*arguments, "--workers", "1"]) == 0
    captured = capsys.readouterr()
    assert f"{out}: 2 runs\nstates: 2 done\n" in captured.out
    assert "2/2 runs" in captured.err
    assert main(["status", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["states"] == {"done": 2}
    assert main(["table", out, "--csv"]) == 0
    found = from_csv(capsys.readouterr().out)
    assert found == SweepFolder(tmp_path / "out").rows()
    assert main(["table", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == found


@pytest.mark.slow
def test_a_killed_driver_leaves_runs_to_resume(tmp_path: Path, small: SweepFolder) -> None:
    """Its worker checkpoints and ends; the next sweep ends with the same table."""
    world = sweep_faults.World(tmp_path, small.rows(), random.Random(0), SMALL)
    out = tmp_path / "out"
    first, *_ = SMALL.configs()
    driver = world.start(out, "--workers", "1")
    while not (out / "runs" / first / "checkpoints").exists():
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    sweep(SMALL, out, engine=Here(), quiet=True)
    assert world.verdict(out) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("find", "message"),
    [
        (sweep_faults.workers, "died (signal 9"),
        (sweep_faults.children, "died (with the process that forked it)"),
    ],
)
def test_a_killed_worker_or_fork_server_is_replaced(
    find: Callable[[int], list[int]],
    message: str,
    tmp_path: Path,
    small: SweepFolder,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: Patch,
) -> None:
    before, give, killed = set(find(os.getpid())), _Worker.give, list[int]()

    def give_when_killed(worker: _Worker, job: Job) -> None:
        while not killed:
            if found := set(find(os.getpid())) - before:  # a server takes a moment to fork
                killed.append(found.pop())
                os.kill(killed[0], signal.SIGKILL)
                wait([worker.reports.fileno()])
            time.sleep(0.01)
        give(worker, job)

    monkeypatch.setattr(_Worker, "give", give_when_killed)
    found = sweep(SMALL, tmp_path / "out", engine=LocalEngine(1, "cpu"), quiet=True)
    assert sweep_faults.what_counts(found.rows()) == sweep_faults.what_counts(small.rows())
    assert any(message in logged for logged in caplog.messages)
    assert not set(find(os.getpid())) - before


@pytest.mark.slow
def test_an_interrupted_sweep_leaves_no_worker(tmp_path: Path) -> None:
    long = sweep_faults.small_sweep(steps=100_000)
    run = RunFolder(tmp_path / "runs" / next(iter(long.configs())))
    before = set(sweep_faults.children(os.getpid()))
    threads: set[str] = set()
    processes: set[int] = set()

    def interrupt() -> None:
        while len(run.steps()) < 2:
            time.sleep(0.05)
        (server,) = set(sweep_faults.children(os.getpid())) - before
        processes.update({server, *sweep_faults.children(server)})
        threads.update(os.listdir(f"/proc/{server}/task"))
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        sweep(long, tmp_path, engine=LocalEngine(1, "cpu"), quiet=True)
    interrupting.join()
    assert len(processes) == 2, "a fork server and its worker"
    assert len(threads) == 1, "it forks safely"
    assert not [process for process in processes if Path(f"/proc/{process}").exists()]
    assert SweepFolder(tmp_path).state(run.path.name) == "begun"
    assert run.steps()[-1] % 50, "the step at which it was stopped"


@pytest.mark.slow
def test_forked_and_new_workers_train_the_same_weights(tmp_path: Path, monkeypatch: Patch) -> None:
    """Off Linux and on a GPU a worker is a new process."""
    engines: dict[str, Engine] = {"here": Here(), "forked": LocalEngine(1, "cpu")}
    for name, engine in engines.items():
        (result,) = engine.run(each_alone({name: START}), tmp_path, lambda _: Progress())
        assert result.error is None
    monkeypatch.setattr("anchor_interp.sweeps.local.ForkServer", lambda: None)
    jobs = each_alone({"new": START})
    (result,) = LocalEngine(1, "cpu").run(jobs, tmp_path, lambda _: Progress())
    assert result.error is None
    here, forked, new = (
        [path.read_bytes() for path in sorted((tmp_path / name).rglob("weights.safetensors"))]
        for name in ("here", "forked", "new")
    )
    assert len(here) > 1
    assert here == forked == new


def test_a_worker_has_one_passive_thread(tmp_path: Path, monkeypatch: Patch) -> None:
    """From its start, unless the user says how threads wait."""
    given: list[dict[str, str]] = []

    def start(*_: Any, env: dict[str, str], **__: Any) -> None:
        given.append(env)
        raise OSError("not started")

    monkeypatch.setattr(subprocess, "Popen", start)
    for policy in (None, "ACTIVE"):
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        if policy is not None:
            monkeypatch.setenv("OMP_WAIT_POLICY", policy)
        jobs = each_alone({"x": START})
        with pytest.raises(OSError, match="not started"):
            list(LocalEngine(1, "cpu").run(jobs, tmp_path, lambda _: Progress()))
    assert [env["OMP_WAIT_POLICY"] for env in given] == ["PASSIVE", "ACTIVE"]
    assert {env["OMP_NUM_THREADS"] for env in given} == {"1"}
