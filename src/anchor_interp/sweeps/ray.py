"""Jobs on a Ray cluster, one task for each.

Every machine of the cluster sees the driver's folder under the same path: a task trains in the run
folder itself. The driver keeps as many tasks in flight as the machines have room for; machines may
join later. The runs of a task that dies with its worker or machine get an error. The machines use
the driver's copy of this package; PyTorch and the others must be installed in the same versions.
"""

import contextlib
import importlib
import logging
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anchor_interp
from anchor_interp._util import errors
from anchor_interp._util.errors import AnchorInterpError, ConfigError, raising
from anchor_interp._util.files import write_output
from anchor_interp._util.lock import forget
from anchor_interp._util.progress import Progress
from anchor_interp._util.schema import checked, shown, to_dict
from anchor_interp.sweeps.engine import Job, Meters, Queue, RunResult, drive
from anchor_interp.tasks.registry import further_tasks

_POLL_SECONDS = 2.0  # a result ends the wait at once
_ANSWER_SECONDS = 10.0
_LOGGER = logging.getLogger("anchor_interp")


@dataclass(frozen=True)
class RayEngine:
    """Tasks on a Ray cluster (an :class:`anchor_interp.sweeps.engine.Engine`)."""

    address: str | None = None
    """``HOST:PORT`` of the cluster's head; this process must run on a machine of the cluster. If
    None: the cluster that this process is connected to, else the one on this machine, else a new
    one on this machine."""
    cpus: float = 1
    """Cores of a task. It trains with as many threads, at least one."""
    gpus: float = 0
    """GPUs of a task; with 0.25, four tasks share one."""
    device: str = "auto"
    """Where runs train; ``auto`` is a GPU if ``gpus`` is not 0."""

    def run(
        self, jobs: Iterator[Job | None], folder: Path, progress: Callable[[str], Progress]
    ) -> Generator[RunResult, None, None]:
        """See :meth:`anchor_interp.sweeps.engine.Engine.run`.

        Raises:
            ConfigError: Ray, the cluster or room for a task is missing, a field cannot be used, or
                a machine has other versions or does not see the folder.
        """
        self._check_resources()
        # print nothing about dead workers, report nothing about the use
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        advice = "; pip install 'anchor-interp[ray]'"
        with raising(ConfigError, "the engine ray is not installed: ", advice, of=ImportError):
            ray = importlib.import_module("ray")
        _check_answers(self.address)
        meters = Meters(folder.absolute(), progress)
        return _run(ray, self, jobs, folder.absolute(), meters)

    def _check_resources(self) -> None:
        for name in ("cpus", "gpus"):
            value = checked(getattr(self, name), float, name, low=0)
            if value > 1 and value != int(value):
                raise ConfigError(f"{name} is {value}; expected a share up to 1 or a whole number")
        if not self.gpus and (not self.cpus or self.device.startswith("cuda")):
            text = f"device is {shown(self.device)}, cpus is {self.cpus:g} and gpus is 0"
            raise ConfigError(f"{text}; give each task a share, such as gpus 0.25")


@dataclass
class _Task:
    """A task in flight: its runs without a result, Ray's stream of messages, the first message."""

    left: list[str]
    stream: Any
    begun: Any = None
    failure: Exception | None = None


def _run(
    ray: Any, engine: RayEngine, jobs: Iterator[Job | None], folder: Path, meters: Meters
) -> Generator[RunResult, None, None]:
    def cluster() -> _Cluster:
        cluster = _Cluster(ray, engine, folder, probe)
        if not cluster.room():
            asked = f"a task asks for {engine.cpus:g} CPUs and {engine.gpus:g} GPUs"
            raise ConfigError(f"{asked}; no machine of the cluster has them (see ray status)")
        return cluster

    probe = folder / f".seen-{uuid.uuid4().hex}"  # a name that no other folder has
    with _connected(ray, engine.address):
        write_output(probe, b"")
        try:
            yield from drive(cluster, jobs, meters)
        finally:
            probe.unlink(missing_ok=True)


class _Cluster:
    """The driver's side of the tasks in flight."""

    def __init__(self, ray: Any, engine: RayEngine, folder: Path, probe: Path) -> None:
        from anchor_interp.sweeps.ray_task import Order, task, versions  # loads torch

        self.busy: list[_Task] = []
        self._has_warned = False
        self._ray, self._engine, self._folder = ray, engine, folder
        device, threads = engine.device, max(1, int(engine.cpus))
        if device == "auto":
            device = "cuda" if engine.gpus else "cpu"
        level = _LOGGER.getEffectiveLevel()
        self._order = Order(folder, probe, device, threads, level, versions(), further_tasks())
        policy = os.environ.get("OMP_WAIT_POLICY", "PASSIVE")
        environment = {"OMP_WAIT_POLICY": policy, "OMP_NUM_THREADS": str(threads)}
        self._work = ray.remote(task).options(
            num_cpus=engine.cpus,
            num_gpus=engine.gpus,
            num_returns="streaming",
            max_retries=0,
            runtime_env={"env_vars": environment},
        )

    def room(self) -> int:
        """How many tasks the machines have room for."""
        wanted = {"CPU": self._engine.cpus, "GPU": self._engine.gpus}
        needed = {kind: amount for kind, amount in wanted.items() if amount}
        return sum(
            min(int(node["Resources"].get(kind, 0.0) / n + 1e-6) for kind, n in needed.items())
            for node in self._ray.nodes()
            if node["Alive"]
        )

    def start(self, queue: Queue) -> None:
        room = self.room()
        while len(self.busy) < room and (job := queue.take()) is not None:
            stream = self._work.remote(to_dict(job), self._order)
            self.busy.append(_Task(list(job.configs), stream))
        if not room and not self._has_warned:
            _LOGGER.warning("the cluster has no room for a task; waiting for a machine")
        self._has_warned = not room

    def running(self) -> list[str]:
        return [name for task in self.busy if task.begun for name in task.left]

    def wait(self) -> None:
        if self.busy:
            self._ray.wait([task.stream for task in self.busy], timeout=_POLL_SECONDS)
        else:
            time.sleep(_POLL_SECONDS)

    def news(self) -> Iterator[RunResult]:
        from anchor_interp.sweeps.ray_task import Begun, Ended

        if not self.busy:
            return
        streams = {task.stream: task for task in self.busy}
        ready, _ = self._ray.wait(list(streams), num_returns=len(streams), timeout=0)
        for task in map(streams.__getitem__, ready):
            match self._next(task):
                case Begun() as begun:
                    task.begun = begun
                case Ended(result, logged):
                    task.left.remove(result.name)
                    for level, message in logged:
                        _LOGGER.log(level, message)
                    yield result
                case None:
                    self.busy.remove(task)
                    yield from self._unfinished(task)

    def close(self) -> None:
        for task in self.busy:
            self._ray.cancel(task.stream, force=False, recursive=False)
        for task in self.busy:
            while self._next(task) is not None:
                pass

    def _next(self, task: _Task) -> Any:
        """The next message of a task, or the error that ended it; None after its last."""
        try:
            return self._ray.get(next(task.stream))
        except StopIteration:
            return None
        except self._ray.exceptions.RayError as error:
            task.failure = error
            return error

    def _unfinished(self, task: _Task) -> Iterator[RunResult]:
        """Errors of the runs that a task has left; ConfigError if no task would do better."""
        if not task.left:
            return
        exceptions, reason = self._ray.exceptions, _first_line(task.failure)
        cause = getattr(task.failure, "cause", None)  # what the task itself raised
        if isinstance(cause, ConfigError):
            raise cause
        if isinstance(task.failure, exceptions.RuntimeEnvSetupError):
            raise ConfigError(f"a machine cannot use this package: {reason}; see Ray's logs there")
        what = f"was lost with its worker or machine ({reason})"
        if cause and not isinstance(cause, errors.InterruptedRunError | exceptions.RayError):
            what = f"failed ({type(cause).__name__}: {cause})"
        is_memory = isinstance(task.failure, exceptions.OutOfMemoryError)
        kind = errors.OutOfMemoryError if is_memory else AnchorInterpError
        for name in task.left:
            path = self._folder / name
            if task.begun is not None:
                forget(path / ".lock", task.begun.host, task.begun.pid)
            error = kind(f"the task of {path} {what}; start again to resume it")
            yield RunResult(name, error)


def _first_line(error: Exception | None) -> str:
    return next(filter(str.strip, str(error).splitlines()), type(error).__name__).strip()


def _check_answers(address: str | None) -> None:
    """Refuse an address where nothing listens; Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdecimal():  # Ray knows what auto and the like mean
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
        except (OSError, OverflowError, UnicodeError) as error:
            raise _unreachable(address, error) from error


def _unreachable(address: str | None, error: Exception) -> ConfigError:
    where = "on this machine" if address is None else f"at the address {shown(address)}"
    advice = "start one with ray start --head, or give the HOST:PORT of its head"
    reason = _first_line(error).rstrip(".")
    return ConfigError(f"no Ray cluster can be reached {where}: {reason}; {advice}")


@contextlib.contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connect to a cluster; a connection that exists is used and kept."""
    if ray.is_initialized():
        if address is not None:
            text = f"address is {shown(address)}, but this process is connected to a Ray cluster"
            raise ConfigError(f"{text}; leave the address out, or call ray.shutdown() first")
        yield
        return
    package = {"py_modules": [anchor_interp], "excludes": ["specimens/", "__pycache__/"]}
    how = {"log_to_driver": False, "configure_logging": False, "runtime_env": package}
    logger, on_sigterm = logging.getLogger("ray"), signal.getsignal(signal.SIGTERM)
    level, mode = logger.level, os.environ.get("RAY_AUTH_MODE")
    logger.setLevel(logging.ERROR)
    try:
        try:
            ray.init(address=address or "auto", **how)
        except ConnectionError:
            if address is not None:
                raise
            ray.init(address="local", include_dashboard=False, **how)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _unreachable(address, error) from error
    finally:
        logger.setLevel(level)
        # Ray replaces it. ValueError outside the main thread, TypeError if it was set from C.
        with contextlib.suppress(ValueError, TypeError):
            signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        ray.shutdown()
        if mode is None:  # Ray sets it when it starts a cluster
            os.environ.pop("RAY_AUTH_MODE", None)
