"""Jobs on Ray: a real cluster of two nodes on this machine, nodes killed, users' mistakes."""

import json
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import sweep_faults
import torch
from short import SHORT

import anchor_interp
from anchor_interp._util.errors import (
    AnchorInterpError,
    ConfigError,
    DivergedError,
    LockedError,
    StoreError,
)
from anchor_interp._util.progress import Silent
from anchor_interp.runs import lock
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.run import Run
from anchor_interp.runs.store import RunFolder
from anchor_interp.sweeps import ray as module
from anchor_interp.sweeps.engine import Job, RunResult, each_alone
from anchor_interp.sweeps.ray import Depot, RayEngine

LONG = SHORT | {"steps": 2000, "eval_every": 500, "log_every": 20, "checkpoint_every": 100}
"""Long enough for a node to die in the middle of it."""
MEMORY = 80 << 20


class Watch:
    """Acts once, when a run has a checkpoint to go on from."""

    def __init__(self, path: Path, act: Callable[[], None]) -> None:
        self.path, self.act, self.acted = path, act, False

    def update(self, _step: int, _facts: Mapping[str, Any]) -> None:
        # a copied checkpoint may come without the optimizer state that its run had removed by then
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
        patch.setenv("RAY_worker_niceness", "0")  # 15 lets every other process go first
        started = Nodes()
        try:
            yield started
        finally:
            started.stop()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REPORT_SECONDS", 0.2)


@pytest.fixture(scope="module")
def long() -> RunConfig:
    return anchor_interp.preset("tiny", **LONG)


@pytest.fixture(scope="module")
def reference(long: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("alone") / "run"
    return anchor_interp.train(long, out, device="cpu", threads=1, quiet=True).path


def contents(path: Path) -> dict[str, bytes]:
    """All files of a run but those that say when and where."""
    found = {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    return {name: data for name, data in found.items() if name not in (".lock", "provenance.json")}


def run_all(
    engine: RayEngine, configs: Mapping[str, RunConfig], folder: Path
) -> dict[str, RunResult]:
    results = engine.run(each_alone(configs), folder, lambda _: Silent())
    return {result.name: result for result in results}


def survives(
    engine: RayEngine, nodes: Nodes, config: RunConfig, reference: Path, folder: Path
) -> None:
    """The run's node dies in the middle of it; another joins, where it goes on and ends."""
    watch = Watch(folder / "run", nodes.replace_worker)
    results = list(engine.run(each_alone({"run": config}), folder, lambda _: watch))
    assert watch.acted
    assert results == [RunResult("run", folder / "run", None)]
    first, second = RunFolder(folder / "run").provenance()
    assert first["from_step"] == 0 < second["from_step"]
    assert contents(folder / "run") == contents(reference)
    assert os.listdir(folder) == ["run"]


def test_a_run_survives_the_death_of_its_node(
    nodes: Nodes, long: RunConfig, reference: Path, tmp_path: Path
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    engine = RayEngine(address=nodes.address, shared=True)
    survives(engine, nodes, long, reference, tmp_path)
    assert signal.getsignal(signal.SIGTERM) == before
    for wrong, words in (
        (RayEngine(address=nodes.address, cpus=64), "64 CPUs"),
        (RayEngine(address=nodes.address, gpus=1), "1 GPUs"),
    ):
        with pytest.raises(ConfigError, match=f"{words}.* no machine of the cluster"):
            run_all(wrong, {"run": long}, tmp_path)


@pytest.fixture(scope="module")
def connected(nodes: Nodes) -> Iterator[Nodes]:
    """The cluster as a user connects to it, whose workers are kept from test to test."""
    import ray

    with module._own_signals():
        ray.init(address=nodes.address, log_to_driver=False, configure_logging=False)
    try:
        yield nodes
    finally:
        ray.shutdown()


def test_a_run_survives_the_death_of_its_node_without_a_shared_folder(
    connected: Nodes, long: RunConfig, reference: Path, tmp_path: Path
) -> None:
    survives(RayEngine(shared=False), connected, long, reference, tmp_path)


@pytest.mark.parametrize("shared", [None, False])
def test_runs_are_those_of_training_alone(
    connected: Nodes,
    short: RunConfig,
    tmp_path: Path,
    shared: bool | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "anchor_interp")  # a task tells what it logs
    diverging = sweep_faults.small_sweep().grids[1].start
    configs = {"good": short, "bad": diverging}
    results = run_all(RayEngine(shared=shared), configs, tmp_path)
    alone = anchor_interp.train(short, tmp_path / "alone", device="cpu", threads=1, quiet=True)
    assert results["good"] == RunResult("good", tmp_path / "good", None)
    assert [f"{tmp_path / 'good'}: " in message for message in caplog.messages].count(True) > 0
    assert contents(tmp_path / "good") == contents(alone.path)
    assert isinstance(results["bad"].error, DivergedError)
    with pytest.raises(DivergedError):
        anchor_interp.train(diverging, tmp_path / "alone2", device="cpu", threads=1, quiet=True)
    assert contents(tmp_path / "bad") == contents(tmp_path / "alone2")
    again = run_all(RayEngine(shared=shared), {"good": short}, tmp_path)
    assert again["good"].error is None
    assert len(RunFolder(tmp_path / "good").provenance()) == 1


def test_closing_early_checkpoints(connected: Nodes, long: RunConfig, tmp_path: Path) -> None:
    def leave() -> None:
        raise KeyboardInterrupt

    watch = Watch(tmp_path / "run", leave)
    with pytest.raises(KeyboardInterrupt):
        list(RayEngine(shared=False).run(each_alone({"run": long}), tmp_path, lambda _: watch))
    folder = RunFolder(tmp_path / "run")
    newest = folder.steps()[-1]
    assert newest % LONG["checkpoint_every"], "the step at which it was stopped"
    assert folder.optimizer(newest)
    with folder.writing(long):  # nobody holds it
        pass


def test_a_killed_worker_is_a_result_once_retries_are_spent(
    connected: Nodes, long: RunConfig, tmp_path: Path
) -> None:
    def kill() -> None:
        os.kill(json.loads((tmp_path / "run/.lock").read_text())["pid"], signal.SIGKILL)

    watch = Watch(tmp_path / "run", kill)
    engine = RayEngine(retries=0)
    (result,) = engine.run(each_alone({"run": long}), tmp_path, lambda _: watch)
    assert type(result.error) is AnchorInterpError
    assert "was lost 1 times" in str(result.error)
    assert RunFolder(tmp_path / "run").steps()[-1] > 0


def test_a_run_that_another_process_writes_is_left_to_it(
    connected: Nodes, short: RunConfig, tmp_path: Path
) -> None:
    with RunFolder(tmp_path / "taken").writing(short):
        configs = {"taken": short, "free": override(short, seed=1)}
        results = run_all(RayEngine(shared=False), configs, tmp_path)
    assert isinstance(results["taken"].error, LockedError)
    assert results["free"].error is None


def test_gpu_shares(connected: Nodes, short: RunConfig, tmp_path: Path) -> None:
    """A node that claims a GPU: two tasks of a half each at once, told to train on it."""
    node = connected.add(num_cpus=0, num_gpus=1)
    try:
        engine = RayEngine(cpus=0, gpus=0.5)
        configs = {str(seed): override(short, seed=seed) for seed in range(3)}
        most = asked = 0

        def jobs() -> Iterator[Job]:
            nonlocal asked
            for job in each_alone(configs):
                asked += 1
                yield job

        for result in engine.run(jobs(), tmp_path, lambda _: Silent()):
            most = max(most, asked)
            if not torch.cuda.is_available():
                assert isinstance(result.error, ConfigError)
                assert "device is 'cuda'" in str(result.error)
            break
        assert most == 2
    finally:
        connected.cluster.remove_node(node, allow_graceful=False)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (RayEngine(cpus=-1), "cpus is -1"),
        (RayEngine(gpus=1.5), "gpus is 1.5; expected a share up to 1 or a whole number"),
        (RayEngine(cpus=0), "cpus and gpus are 0"),
        (RayEngine(retries=-1), "retries is -1"),
        (RayEngine(device="gpu"), "device is 'gpu'; expected one of"),
        (RayEngine(device="cuda"), "device is 'cuda' and gpus is 0"),
        (RayEngine(address="127.0.0.1:1"), "no Ray cluster can be reached .* refused; start one"),
        (RayEngine(address="ray://head:10001"), "on a machine of the cluster"),
    ],
)
def test_mistakes_are_told_at_once(
    engine: RayEngine, words: str, short: RunConfig, tmp_path: Path
) -> None:
    if engine.address == "127.0.0.1:1":
        pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=words):
        engine.run(each_alone({"run": short}), tmp_path, lambda _: Silent())


def test_without_ray(short: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'anchor-interp[ray]'")):
        RayEngine().run(each_alone({"run": short}), tmp_path, lambda _: Silent())


def order(job: Job, folder: Path, **changes: Any) -> module._Order:
    """What a task is given, whose machine sees the folder."""
    probe = folder / ".seen-here"
    probe.touch()
    given = module._Order(
        job=job,
        folder=folder,
        ticket=0,
        device="cpu",
        threads=1,
        versions=module._versions(),
        shared=None,
        probe=probe,
        depot=None,
        level=logging.WARNING,
    )
    return replace(given, **changes)


def test_a_machine_with_other_versions_or_without_the_folder_is_refused(
    short: RunConfig, tmp_path: Path
) -> None:
    job = Job({"run": short})
    other = module._versions() | {"torch": "1.0.0"}
    with pytest.raises(ConfigError, match=r"has torch .*, the driver's machine 1\.0\.0; install"):
        list(module._work(order(job, tmp_path, versions=other)))
    unseen = order(job, tmp_path, shared=True, probe=tmp_path / ".seen-elsewhere")
    with pytest.raises(ConfigError, match=r"shared is True, but .* does not see"):
        list(module._work(unseen))
    assert not (tmp_path / "run").exists()


class TestDepot:
    def test_a_copy_equals_its_source_and_is_begun_from_its_newest_checkpoint(
        self, finished_run: Run, tmp_path: Path
    ) -> None:
        folder, config = finished_run.folder, finished_run.config
        depot = Depot(tmp_path)
        assert depot.begin("run", config, 0) == (None, {"config.json": ANY})
        lines = (folder.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        depot.take_metrics("run", config, 0, 0, b"".join(lines[:3]))
        depot.take_metrics("run", config, 0, len(b"".join(lines[:2])), b"".join(lines[2:]))
        for step in folder.steps():
            depot.take_checkpoint("run", config, 0, step, folder.checkpoint_files(step))
        depot.take_file("run", config, 0, "result.json", (folder.path / "result.json").read_bytes())
        depot.end("run", 0)
        assert contents(tmp_path / "run") == contents(folder.path)
        newest, files = depot.begin("run", config, 1)
        assert newest == folder.steps()[-1]
        assert files["metrics.jsonl"] == b"".join(lines)
        assert {name for name in files if name.startswith("checkpoints")} == {
            f"checkpoints/{newest:08d}/{name}" for name in folder.checkpoint_files(newest)
        }

    def test_a_lost_task_that_lives_on_writes_nothing(
        self, finished_run: Run, tmp_path: Path
    ) -> None:
        config, depot = finished_run.config, Depot(tmp_path)
        depot.begin("run", config, 0)
        depot.begin("run", config, 1)
        with pytest.raises(StoreError, match="by another task"):
            depot.take_metrics("run", config, 0, 0, b"")
        depot.end("run", 0)  # says nothing about the run that is under way
        with pytest.raises(LockedError):
            Depot(tmp_path).begin("run", config, 0)
        depot.end("run", 1)
        with pytest.raises(StoreError, match="by another task"):
            depot.take_metrics("run", config, 1, 0, b"")
        Depot(tmp_path).begin("run", config, 0)

    def test_older_checkpoints_stay_until_a_newer_one_can_be_continued_from(
        self, finished_run: Run, tmp_path: Path
    ) -> None:
        folder, config, depot = finished_run.folder, finished_run.config, Depot(tmp_path)
        begin, *_, newest = folder.steps()
        whole = folder.checkpoint_files(newest)
        bare = {name: data for name, data in whole.items() if "optimizer" not in name}
        depot.take_checkpoint("run", config, 0, begin, folder.checkpoint_files(begin))
        depot.take_checkpoint("run", config, 0, 7, whole)
        depot.take_checkpoint("run", config, 0, newest, bare)
        assert RunFolder(tmp_path / "run").steps() == [begin, 7, newest]
        assert depot.begin("run", config, 1)[0] == 7


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
    facts = {"host": "elsewhere", "pid": 1, "heartbeat": time.time()}
    path.write_text(json.dumps(facts))
    with pytest.raises(LockedError):
        lock.Lock.acquire(path)
    lock.forget(path, "elsewhere", 1)
    lock.Lock.acquire(path).release()
