"""Jobs on Ray: a cluster of two nodes on this machine, nodes and workers that die, user errors."""

import json
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import sweep_faults
from short import SHORT

import anchor_interp
import own_task
from anchor_interp._util import lock
from anchor_interp._util.errors import (
    AnchorInterpError,
    ConfigError,
    DivergedError,
    LockedError,
    StoreError,
)
from anchor_interp._util.progress import Progress
from anchor_interp._util.schema import from_dict, to_dict
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.measurements import Measure, kept
from anchor_interp.runs.run import Run
from anchor_interp.runs.store import RunFolder, writing
from anchor_interp.sweeps import ray as module
from anchor_interp.sweeps import ray_task
from anchor_interp.sweeps.engine import Job, RunResult, each_alone
from anchor_interp.sweeps.ray import RayEngine
from anchor_interp.tasks import registry
from anchor_interp.tasks.registry import import_tasks
from anchor_interp.tasks.task import Task

pytestmark = pytest.mark.slow
LONG = SHORT | {"steps": 1500, "eval_every": 500, "log_every": 20, "checkpoint_every": 100}
"""Long enough for a node to die during the training."""
MEMORY = 80 << 20
MEASURE = Measure("text", "builtins:str")


class Watch:
    """Acts once, when a run has a checkpoint that it can resume from."""

    def __init__(self, path: Path, act: Callable[[], None]) -> None:
        self.path, self.act, self.acted = path, act, False

    def update(self, _step: int, _facts: Mapping[str, Any]) -> None:
        states = self.path.glob("checkpoints/*/optimizer.safetensors")
        if not self.acted and any(int(path.parent.name) for path in states):
            self.acted = True
            self.act()


class Nodes:
    """A head without cores and one worker node, both on this machine."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.worker = self.add(num_cpus=1)

    def stop(self) -> None:
        stop: Callable[[], None] = self.cluster.shutdown
        stop()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, **resources: Any) -> Any:
        return self.cluster.add_node(object_store_memory=MEMORY, **resources)

    def replace_worker(self) -> None:
        """SIGKILL the worker node, then let another join."""
        self.cluster.remove_node(self.worker, allow_graceful=False)
        self.worker = self.add(num_cpus=1)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_DEDUP_LOGS_SKIP_REGEX", "^")
        patch.setenv("RAY_worker_niceness", "0")  # with 15, every other process goes first
        # the workers import the tasks that other tests have imported here
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        started = Nodes()
        try:
            yield started
        finally:
            started.stop()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.2)


@pytest.fixture(scope="module")
def long() -> RunConfig:
    return anchor_interp.preset("tiny", **LONG)


def contents(path: Path) -> dict[str, bytes]:
    """All files of a run, except those that say when and where."""
    found = {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    return {
        name: data
        for name, data in found.items()
        if name not in (".lock", ".lock.json", "provenance.json")
    }


def run_all(
    engine: RayEngine,
    configs: Mapping[str, RunConfig],
    folder: Path,
    measures: tuple[Measure, ...] = (),
    update: Any = None,
) -> dict[str, RunResult]:
    jobs = (Job({name: config}, measures) for name, config in configs.items())
    results = engine.run(jobs, folder, lambda _: Progress(update) if update else Progress())
    return {result.name: result for result in results}


def test_a_run_survives_the_death_of_its_node(
    nodes: Nodes, long: RunConfig, tmp_path: Path
) -> None:
    """Another node joins, where the next try goes on from the run's checkpoint."""
    alone = anchor_interp.train(long, tmp_path / "alone", device="cpu", threads=1, quiet=True)
    before, folder = signal.getsignal(signal.SIGTERM), tmp_path / "runs"
    engine = RayEngine(address=nodes.address)
    watch = Watch(folder / "run", nodes.replace_worker)
    lost = run_all(engine, {"run": long}, folder, update=watch.update)["run"]
    assert watch.acted
    assert type(lost.error) is AnchorInterpError
    assert "was lost with its worker or machine" in str(lost.error)
    assert run_all(engine, {"run": long}, folder)["run"].error is None
    first, second = RunFolder(folder / "run").provenance()
    assert first["from_step"] == 0 < second["from_step"]
    assert contents(folder / "run") == contents(alone.folder.path)
    assert os.listdir(folder) == ["run"]
    assert signal.getsignal(signal.SIGTERM) == before
    for wrong, words in (
        (RayEngine(address=nodes.address, cpus=64), "64 CPUs"),
        (RayEngine(address=nodes.address, gpus=1), "1 GPUs"),
    ):
        with pytest.raises(ConfigError, match=f"{words}.* no machine of the cluster"):
            run_all(wrong, {"run": long}, folder)


@pytest.fixture(scope="module")
def connected(nodes: Nodes) -> Iterator[Nodes]:
    """The cluster as a user connects to it, whose workers are kept from test to test."""
    import ray

    before = signal.getsignal(signal.SIGTERM)
    ray.init(address=nodes.address, log_to_driver=False, configure_logging=False)
    signal.signal(signal.SIGTERM, before)
    try:
        yield nodes
    finally:
        ray.shutdown()


def test_runs_are_those_of_training_alone(
    connected: Nodes, finished_run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights, errors, messages, measurements."""
    caplog.set_level(logging.DEBUG, "anchor_interp")
    short, engine = finished_run.config, RayEngine()
    diverging = sweep_faults.small_sweep().grids[1].start
    results = run_all(engine, {"good": short, "bad": diverging}, tmp_path)
    assert results["good"] == RunResult("good", None)
    assert any(f"{tmp_path / 'good'}: " in message for message in caplog.messages)
    assert contents(tmp_path / "good") == contents(finished_run.folder.path)
    assert isinstance(results["bad"].error, DivergedError)
    assert RunFolder(tmp_path / "bad").metrics()
    again = run_all(engine, {"good": short}, tmp_path, (MEASURE,))
    assert again["good"].error is None
    assert len(RunFolder(tmp_path / "good").provenance()) == 1
    assert "good at step 40 of 40" in str(kept(tmp_path / "good", MEASURE, short.train.steps))


def test_machines_learn_a_users_own_task(
    connected: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that all see; a worker that is kept learns its next version."""
    monkeypatch.setattr(registry, "CLASSES", dict(registry.CLASSES))
    file = tmp_path / "mirror_task.py"
    text = Path(own_task.__file__).read_text(encoding="utf-8").replace("reverse", "mirror")
    for version, about in enumerate(("Write a word", "Now write a word")):
        file.write_text(text.replace("Write a word", about))
        import_tasks(str(file))
        task = from_dict(Task, {"kind": "mirror", "longest": 4 + version})
        assert task.about.startswith(about)
        config = override(own_task.config(), task=task, **SHORT)
        folder = tmp_path / f"runs-{version}"
        results = run_all(RayEngine(), {"run": config}, folder, (MEASURE,))
        assert results["run"] == RunResult("run", None)
        assert RunFolder(folder / "run").config() == config
        alone = anchor_interp.train(config, tmp_path / f"{version}", device="cpu", threads=1)
        assert contents(folder / "run").items() >= contents(alone.folder.path).items()
    (tmp_path / "broken.py").write_text("oh no")
    monkeypatch.setenv("ANCHOR_INTERP_TASKS", str(tmp_path / "broken.py"))
    with pytest.raises(ConfigError, match=r"cannot import the tasks of .*broken.py .SyntaxError"):
        run_all(RayEngine(), {"run": config}, tmp_path / "broken")


def test_closing_early_checkpoints(connected: Nodes, long: RunConfig, tmp_path: Path) -> None:
    def leave() -> None:
        raise KeyboardInterrupt

    rarely = override(long, checkpoint_every=700)  # a stop hardly falls on one of these steps
    watch = Watch(tmp_path / "run", leave)
    with pytest.raises(KeyboardInterrupt):
        run_all(RayEngine(), {"run": rarely}, tmp_path, update=watch.update)
    folder = RunFolder(tmp_path / "run")
    newest = folder.steps()[-1]
    assert newest not in (700, 1400, 1500), "the step at which it was stopped"
    assert folder.optimizer(newest)
    with writing(folder.path, rarely):  # nobody holds it
        pass


def test_as_many_tasks_as_the_machines_have_room_for(tmp_path: Path) -> None:
    machines = [
        {"Alive": True, "Resources": {"CPU": 3.0}},
        {"Alive": True, "Resources": {"CPU": 1.0, "GPU": 1.0}},
        {"Alive": False, "Resources": {"CPU": 8.0, "GPU": 8.0}},
    ]
    ray = MagicMock(**{"nodes.return_value": machines})

    def room(**settings: Any) -> int:
        return module._Cluster(ray, RayEngine(**settings), tmp_path, tmp_path).room()

    assert [room(cpus=1), room(cpus=2), room(cpus=0.5)] == [4, 1, 8]
    assert [room(cpus=0, gpus=0.5), room(cpus=1, gpus=0.25), room(gpus=2)] == [2, 1, 0]


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (RayEngine(cpus=-1), "cpus is -1"),
        (RayEngine(gpus=1.5), "gpus is 1.5; expected a share up to 1 or a whole number"),
        (RayEngine(cpus=0), "cpus is 0 and gpus is 0"),
        (RayEngine(device="cuda"), "device is 'cuda', cpus is 1 and gpus is 0"),
        (RayEngine(address="127.0.0.1:1"), "no Ray cluster can be reached .* refused; start one"),
        (RayEngine(address="ray://head.invalid:10001"), "or give the HOST:PORT of its head"),
    ],
)
def test_user_errors_are_raised_at_once(
    engine: RayEngine, words: str, short: RunConfig, tmp_path: Path
) -> None:
    if engine.address:
        pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=words):
        engine.run(each_alone({"run": short}), tmp_path, lambda _: Progress())


def test_without_ray(short: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'anchor-interp[ray]'")):
        RayEngine().run(each_alone({"run": short}), tmp_path, lambda _: Progress())


def order(folder: Path) -> ray_task.Order:
    """What a task is given that works in this folder."""
    versions, level = ray_task.versions(), logging.WARNING
    return ray_task.Order(
        folder=folder,
        probe=folder,
        device="cpu",
        threads=1,
        log_level=level,
        versions=versions,
        tasks=(),
    )


def test_a_machine_with_other_versions_or_without_the_folder_is_refused(
    short: RunConfig, tmp_path: Path
) -> None:
    job = to_dict(Job({"run": short}))
    other = replace(order(tmp_path), versions=ray_task.versions() | {"torch": "1.0.0"})
    with pytest.raises(ConfigError, match=r"has torch .*, the driver's machine 1\.0\.0; install"):
        list(ray_task.task(job, other))
    unseen = replace(order(tmp_path), probe=tmp_path / ".seen-elsewhere")
    with pytest.raises(ConfigError, match=r"does not see .* as the driver's machine does; give a"):
        list(ray_task.task(job, unseen))
    lost = replace(order(tmp_path), tasks=(str(tmp_path / "mine.py"),))
    with pytest.raises(ConfigError, match=r"does not see .*mine\.py, a file with tasks; put it"):
        list(ray_task.task(job, lost))
    assert not (tmp_path / "run").exists()


def test_a_task_leaves_a_handler_alone_that_was_set_from_c(
    short: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python knows no such handler, and cannot set it back."""

    def set_handler(_number: int, handler: object) -> None:
        if handler is None:
            raise TypeError("signal handler must be a callable")

    monkeypatch.setattr(signal, "getsignal", lambda _number: None)
    monkeypatch.setattr(signal, "signal", set_handler)
    _, ended = ray_task.task(to_dict(Job({"run": short})), order(tmp_path))
    assert isinstance(ended, ray_task.Ended)
    assert ended.result == RunResult("run", None)


def test_a_lock_is_taken_from_the_dead_only(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    lock.forget(path, "elsewhere", 1)
    assert not path.exists()
    held = lock.Lock.acquire(path)
    lock.forget(path, socket.gethostname(), os.getpid() + 1)
    held.check_in_place()
    lock.forget(path, socket.gethostname(), os.getpid())
    with pytest.raises(StoreError, match="removed"):
        held.check_in_place()
    held.release()
    (tmp_path / ".lock.json").write_text(json.dumps({"host": "elsewhere", "pid": 1}))
    with pytest.raises(LockedError):
        lock.Lock.acquire(path)
    lock.forget(path, "elsewhere", 1)
    lock.Lock.acquire(path).release()
