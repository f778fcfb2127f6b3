"""Jobs on a Ray cluster: one task for each, with or without a folder that all machines see.

Ray is an extra (``pip install 'anchor-interp[ray]'``) and is loaded when an engine is used. The
driver keeps as many tasks in flight as the machines of the cluster have room for, also those that
join later. A task trains in the run folder itself if its machine sees the driver's folder.
Elsewhere it trains in a temporary folder, and what it commits there is copied once a second to a
depot, an actor on the driver's machine that holds the run folder's lock and writes it as training
would: a checkpoint is renamed into place whole, and ``result.json`` comes last.

A task that is lost with its worker or its machine is started again, wherever there is room, from
the last checkpoint in the run folder. An error of the run itself is its result.

The machines import the driver's own copy of this package, which is sent along. PyTorch and the
other packages have to be installed on each, in the versions that the driver has.
"""

import contextlib
import functools
import importlib
import itertools
import logging
import os
import secrets
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anchor_interp
from anchor_interp._util import files
from anchor_interp._util.errors import (
    AnchorInterpError,
    ConfigError,
    InterruptedRunError,
    OutOfMemoryError,
    StoreError,
)
from anchor_interp._util.progress import Progress
from anchor_interp._util.schema import checked, shown
from anchor_interp.runs import lock
from anchor_interp.runs.config import RunConfig
from anchor_interp.sweeps.engine import Job, Meter, RunResult
from anchor_interp.sweeps.worker import do_job

if TYPE_CHECKING:
    from anchor_interp.runs.store import RunWriter


_POLL_SECONDS = 0.5


_REPORT_SECONDS = 2.0


_DELIVER_SECONDS = 1.0


_ANSWER_SECONDS = 10.0


_LARGEST_FILE = 1 << 30


_OLD_PROBE_SECONDS = 7 * 24 * 3600.0


_PACKAGES = ("torch", "transformer-lens", "numpy", "safetensors")


_LOGGER = logging.getLogger("anchor_interp")


@dataclass(frozen=True)
class RayEngine:
    """Tasks on a Ray cluster (an :class:`anchor_interp.sweeps.engine.Engine`)."""

    address: str | None = None
    """The cluster, as ``HOST:PORT`` of its head; this process must run on one of its machines. If
    None the one that this process is connected to, else the one on this machine, else one that is
    started for the sweep."""
    cpus: float = 1
    """Cores of a task; it trains with as many threads, at least one."""
    gpus: float = 0
    """GPUs of a task; 0.25 lets four share one."""
    shared: bool | None = None
    """Whether every machine sees the driver's folder under the same path. If None each task finds
    out by looking for a file that the driver has just written there."""
    retries: int = 3
    """How often a job that was lost with its worker or machine is started again."""
    device: str = "auto"
    """Where each run trains; ``auto`` is a GPU for tasks that have one or a share of one."""

    def run(
        self, jobs: Iterator[Job | None], folder: Path, progress: Callable[[str], Progress]
    ) -> Generator[RunResult, None, None]:
        """Do jobs; see :meth:`anchor_interp.sweeps.engine.Engine.run`.

        Raises:
            ConfigError: Ray is not installed, a value that cannot be used, no such cluster, or one
                that no task fits; later: a machine with other versions, or one that does not see a
                folder that was said to be shared.
        """
        self._check()
        try:
            ray = _import_ray()
        except ImportError as error:
            raise ConfigError(
                "the engine ray needs a package that is not installed: "
                "pip install 'anchor-interp[ray]'"
            ) from error
        _check_answers(self.address)
        return _run(ray, self, jobs, folder.absolute(), progress)

    def _check(self) -> None:
        from anchor_interp._util.environment import DEVICES

        for name in ("cpus", "gpus"):
            value = checked(getattr(self, name), float, name)
            if not 0 <= value < float("inf") or (value > 1 and value != int(value)):
                raise ConfigError(f"{name} is {value}; expected a share up to 1 or a whole number")
        if not self.cpus and not self.gpus:
            raise ConfigError("cpus and gpus are 0; a task needs some of one of them")
        if checked(self.retries, int, "retries") < 0:
            raise ConfigError(f"retries is {self.retries}; expected 0 or more")
        checked(self.address, str | None, "address")
        if self.address is not None and "://" in self.address:
            raise ConfigError(
                f"address is {shown(self.address)}; expected HOST:PORT of the cluster's head, "
                "given on a machine of the cluster: runs are written there"
            )
        checked(self.shared, bool | None, "shared")
        kind = checked(self.device, str, "device").split(":")[0]
        if kind not in DEVICES:
            raise ConfigError(f"device is {shown(self.device)}; expected one of {DEVICES}")
        if kind == "cuda" and not self.gpus:
            raise ConfigError(
                f"device is {shown(self.device)} and gpus is 0; give each task a share of a GPU, "
                "such as gpus 0.25"
            )


@dataclass(frozen=True)
class _Order:
    """What a task is given."""

    job: Job
    folder: Path
    ticket: int
    """Ascending; the depot takes nothing from a task that was started again since."""
    device: str
    threads: int
    versions: Mapping[str, str]
    shared: bool | None
    probe: Path
    """A file that is there if the machine sees the driver's folder."""
    depot: Any
    """Ray's handle of the depot; None if the folder is shared."""
    level: int


@dataclass(frozen=True)
class _Begun:
    """What a task tells first."""

    host: str
    pid: int


@dataclass(frozen=True)
class _Said:
    """A message that was logged."""

    level: int
    message: str


@dataclass
class _Task:
    """A task in flight."""

    order: _Order
    attempt: int
    stream: Any
    """Ray's generator of what the task tells."""
    left: set[str]
    """Runs without a result so far."""
    begun: _Begun | None = None
    failure: Exception | None = None

    @property
    def job(self) -> Job:
        """The runs without a result."""
        configs = self.order.job.configs
        left = {name: config for name, config in configs.items() if name in self.left}
        return Job(left, self.order.job.measures)


def _run(
    ray: Any,
    engine: RayEngine,
    jobs: Iterator[Job | None],
    folder: Path,
    progress: Callable[[str], Progress],
) -> Generator[RunResult, None, None]:
    from anchor_interp._util.environment import interruptible

    with (
        _environment("RAY_AUTH_MODE", None),  # Ray sets it when it starts a cluster
        _connected(ray, engine.address),
        interruptible(),
        _probe(folder, engine.shared) as probe,
    ):
        cluster = _Cluster(ray, engine, folder, probe)
        cluster.check_fits()
        meters: dict[str, Meter] = {}
        waiting, more, warned = None, True, False
        try:
            while True:
                room = cluster.room() if more else 0
                while more and len(cluster.tasks) < room:
                    try:
                        waiting = next(jobs)
                    except StopIteration:
                        more = False
                    if waiting is None or not more:
                        break
                    cluster.start(waiting)
                if not more and not cluster.tasks:
                    return
                if not room and more and not warned:
                    _LOGGER.warning("the cluster has no room for a task; waiting for a machine")
                warned = not room
                yield from cluster.news()
                begun = [task for task in cluster.tasks if task.begun is not None]
                running = {name for task in begun for name in task.left}
                meters = {
                    n: meters.get(n) or Meter(folder / n, progress(n), every=_REPORT_SECONDS)
                    for n in running
                }
                for meter in meters.values():
                    meter.read()
        finally:
            cluster.stop()


class _Cluster:
    """The driver's side: tasks in flight and the depot."""

    def __init__(self, ray: Any, engine: RayEngine, folder: Path, probe: Path) -> None:
        self.tasks: list[_Task] = []
        self._ray, self._engine, self._folder, self._probe = ray, engine, folder, probe
        self._tickets = itertools.count()
        self._versions = _versions()
        self._work = ray.remote(_work).options(
            num_cpus=engine.cpus, num_gpus=engine.gpus, num_returns="streaming", max_retries=0
        )
        self._depot = None
        if engine.shared is not True:
            here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=False
            )
            depot = ray.remote(Depot).options(
                num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here
            )
            self._depot = depot.remote(folder)

    def room(self) -> int:
        """How many tasks the machines of the cluster have room for."""
        wanted = {"CPU": self._engine.cpus, "GPU": self._engine.gpus}
        needs = {kind: amount for kind, amount in wanted.items() if amount}
        count = 0
        for node in self._ray.nodes():
            has = node["Resources"] if node["Alive"] else {}
            shares = (has.get(kind, 0.0) / amount for kind, amount in needs.items())
            count += min(int(share + 1e-6) for share in shares)
        return count

    def check_fits(self) -> None:
        """Refuse a task that no machine has room for.

        Raises:
            ConfigError: says what there is.
        """
        if self.room():
            return
        found = [
            f"{node['NodeManagerHostname']} ({node['Resources'].get('CPU', 0):g} CPUs, "
            f"{node['Resources'].get('GPU', 0):g} GPUs)"
            for node in self._ray.nodes()
            if node["Alive"]
        ]
        raise ConfigError(
            f"a task asks for {self._engine.cpus:g} CPUs and {self._engine.gpus:g} GPUs, and no "
            f"machine of the cluster has them: {', '.join(found)}; ask for less, or let a larger "
            "machine join first"
        )

    def start(self, job: Job, attempt: int = 0) -> None:
        """Give a job to the cluster."""
        engine = self._engine
        device = engine.device
        if device == "auto":
            device = "cuda" if engine.gpus else "cpu"
        order = _Order(
            job=job,
            folder=self._folder,
            ticket=next(self._tickets),
            device=device,
            threads=max(1, int(engine.cpus)),
            versions=self._versions,
            shared=engine.shared,
            probe=self._probe,
            depot=self._depot,
            level=_LOGGER.getEffectiveLevel(),
        )
        self.tasks.append(_Task(order, attempt, self._work.remote(order), set(job.configs)))

    def news(self) -> list[RunResult]:
        """The results that came within half a second, of tasks that ended or of one of their runs.

        Raises:
            AnchorInterpError: a task found something that is wrong with all.
        """
        results: list[RunResult] = []
        if not self.tasks:
            time.sleep(_POLL_SECONDS)
            return results
        streams = {task.stream: task for task in self.tasks}
        self._ray.wait(list(streams), timeout=_POLL_SECONDS)
        ready, _ = self._ray.wait(list(streams), num_returns=len(streams), timeout=0)
        for task in (streams[stream] for stream in ready):
            told = self._next(task)
            if isinstance(told, RunResult):
                task.left.discard(told.name)
                results.append(told)
            elif isinstance(told, _Begun):
                task.begun = told
            elif isinstance(told, _Said):
                _LOGGER.log(told.level, told.message)
            elif told is None:
                self.tasks.remove(task)
                results += self._ended(task)
        return results

    def stop(self) -> None:
        """Ask every task to checkpoint and leave, wait until it has, and let go of the runs."""
        for task in self.tasks:
            self._ray.cancel(task.stream, force=False, recursive=False)
        for task in self.tasks:
            while self._next(task) is not None:
                pass
        if self._depot is not None:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.get(self._depot.close.remote())

    def _next(self, task: _Task) -> Any:
        """What a task tells next, True for nothing of interest; None once it has ended."""
        try:
            return self._ray.get(next(task.stream))
        except StopIteration:
            return None
        except self._ray.exceptions.RayError as error:
            task.failure = error
            return True

    def _ended(self, task: _Task) -> list[RunResult]:
        """What became of the runs of a task that are left; some may be started again."""
        if not task.left:
            return []
        failure, exceptions = task.failure, self._ray.exceptions
        cause = failure.cause if isinstance(failure, exceptions.RayTaskError) else None
        if isinstance(cause, AnchorInterpError) and not isinstance(cause, InterruptedRunError):
            raise cause
        if isinstance(failure, exceptions.RuntimeEnvSetupError):
            raise ConfigError(
                "a machine of the cluster could not be given this package: "
                f"{_first_line(failure)}; see Ray's logs there"
            )
        lost = not isinstance(failure, exceptions.RayTaskError) or isinstance(
            cause, (InterruptedRunError, exceptions.RayError)
        )
        if lost:
            for name in task.left:
                if task.begun is not None:
                    path = self._folder / name / ".lock"
                    lock.forget(path, task.begun.host, task.begun.pid)
            reason = _first_line(failure)
            if task.attempt < self._engine.retries:
                _LOGGER.warning(
                    "%s was lost (%s) and is started again from its last checkpoint, %d of %d",
                    task.job.name,
                    reason,
                    task.attempt + 1,
                    self._engine.retries,
                )
                self.start(task.job, task.attempt + 1)
                return []
            kind = AnchorInterpError
            if isinstance(failure, exceptions.OutOfMemoryError):
                kind = OutOfMemoryError
            what = f"was lost {task.attempt + 1} times with its worker or machine ({reason})"
        else:
            kind, what = AnchorInterpError, f"failed ({type(cause).__name__}: {cause})"
        results = []
        for name in task.job.configs:
            path = self._folder / name
            error = kind(f"the task of {path} {what}; start again to resume it")
            results.append(RunResult(name, path, error))
            if self._depot is not None:
                self._depot.end.remote(name, task.order.ticket)
        return results


def _first_line(error: Exception | None) -> str:
    """What an error of Ray's says at first."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


# The connection


def _import_ray() -> Any:
    """Ray, which prints nothing of its own about workers that die."""
    with _environment("RAY_DEDUP_LOGS_SKIP_REGEX", "^"):  # read while it is loaded
        ray = importlib.import_module("ray")
        importlib.import_module("ray.util.scheduling_strategies")
    return ray


def _check_answers(address: str | None) -> None:
    """Refuse an address where nobody listens; Ray itself would try for minutes.

    Raises:
        ConfigError: says why.
    """
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal():
        return  # Ray knows what auto and the like mean
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str | None, error: Exception) -> ConfigError:
    where = "on this machine" if address is None else f"at the address {shown(address)}"
    return ConfigError(
        f"no Ray cluster can be reached {where}: {_first_line(error).rstrip('.')}; start one with "
        "ray start --head, or give the HOST:PORT of its head"
    )


@contextlib.contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """Be connected to a cluster inside the block; a connection that is there is used and kept."""
    if ray.is_initialized():
        if address is not None:
            raise ConfigError(
                f"address is {shown(address)}, but this process is connected to a Ray cluster "
                "already; leave the address out, or call ray.shutdown() first"
            )
        yield
        return
    connect = functools.partial(
        ray.init,
        log_to_driver=False,
        configure_logging=False,
        runtime_env={
            "py_modules": [anchor_interp],
            "excludes": ["specimens/", "__pycache__/"],
        },
    )
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with _own_signals(), _environment("RAY_USAGE_STATS_ENABLED", "0"):
            try:
                connect(address=address or "auto")
            except ConnectionError:
                if address is not None:
                    raise
                connect(address="local", include_dashboard=False)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _unreachable(address, error) from error
    finally:
        logger.setLevel(level)
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Put back what Ray replaces when it connects: the handler of SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # raised outside the main thread
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """Set a variable inside the block, or leave it to others if None, and put it back after it."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


@contextlib.contextmanager
def _probe(folder: Path, shared: bool | None) -> Iterator[Path]:
    """A file of a name that no other folder has a file of, for tasks to look for."""
    path = folder / f".seen-{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(".seen-*"):  # left by drivers that were killed
            if time.time() - old.stat().st_mtime > _OLD_PROBE_SECONDS:
                old.unlink()
        if shared is not False:
            path.touch(exist_ok=False)
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error}") from error
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _versions() -> dict[str, str]:
    """Versions that must be the same on every machine, without what a build appends to them."""
    found = {"anchor-interp": anchor_interp.__version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package).split("+")[0]
        except PackageNotFoundError:
            found[package] = "none"
    return found


# A task


def _sees(probe: Path) -> bool:
    """Whether this machine has the driver's probe under the same path."""
    try:
        return probe.exists()
    except OSError:  # a folder that this user may not enter
        return False


def _work(order: _Order) -> Iterator[_Begun | _Said | RunResult]:
    """What a task does, and tells the driver as it goes."""
    here = _versions()
    for package, wanted in order.versions.items():
        if here[package] != wanted:
            raise ConfigError(
                f"{socket.gethostname()} has {package} {here[package]}, the driver's machine "
                f"{wanted}; install the same versions on every machine of the cluster"
            )
    seen = order.shared is not False and _sees(order.probe)
    if order.shared and not seen:
        raise ConfigError(
            f"shared is True, but {socket.gethostname()} does not see {order.folder} as the "
            "driver's machine does; mount it there under the same path, or leave shared out"
        )
    yield _Begun(socket.gethostname(), os.getpid())
    messages = _Messages(order.level)
    _LOGGER.addHandler(messages)
    before = _LOGGER.level
    _LOGGER.setLevel(order.level)
    try:
        for result in _train_here(order) if seen else _train_away(order, messages):
            yield from messages.taken()
            yield result
    finally:
        _LOGGER.removeHandler(messages)
        _LOGGER.setLevel(before)
    yield from messages.taken()


def _train_here(order: _Order) -> Iterator[RunResult]:
    return do_job(order.job, order.folder, device=order.device, threads=order.threads)


def _train_away(order: _Order, messages: "_Messages") -> Iterator[RunResult]:
    """Train in a temporary folder and deliver what is committed there."""
    from anchor_interp._util.environment import stop_signals

    with tempfile.TemporaryDirectory(prefix="anchor-interp-") as scratch, stop_signals() as stopped:
        messages.renamed = (scratch, os.fspath(order.folder))
        couriers: dict[str, _Courier] = {}
        try:
            for name, config in order.job.configs.items():
                try:
                    couriers[name] = _Courier.fetch(order, name, config, Path(scratch) / name)
                except AnchorInterpError as error:
                    yield RunResult(name, order.folder / name, error)
            if stopped():
                raise InterruptedRunError("stopped before training began")
            if not couriers:
                return
            job = Job({name: order.job.configs[name] for name in couriers}, order.job.measures)
            with _delivering(list(couriers.values())):
                for result in do_job(
                    job, Path(scratch), device=order.device, threads=order.threads
                ):
                    failure = result.error
                    if failure is not None:
                        failure = type(failure)(messages.rename(str(failure)))
                    try:
                        couriers.pop(result.name).end()
                    except AnchorInterpError as undelivered:
                        failure = failure or undelivered
                    yield RunResult(result.name, order.folder / result.name, failure)
        finally:
            for name, courier in couriers.items():
                try:
                    courier.end()
                except AnchorInterpError as error:
                    _LOGGER.warning("%s: the last steps are lost: %s", name, error)


class _Messages(logging.Handler):
    """What a task logs, until it is told."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.renamed = ("", "")
        """A folder that the user does not know, and what to call it."""
        self._waiting: list[_Said] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self._waiting.append(_Said(record.levelno, self.rename(record.getMessage())))

    def rename(self, text: str) -> str:
        """A text with the folder that the user knows."""
        found, wanted = self.renamed
        return text.replace(found, wanted) if found else text

    def taken(self) -> Iterator[_Said]:
        """The messages since the last time, from a generator: Ray sends values into a task's."""
        while self._waiting:
            yield self._waiting.pop(0)


@dataclass
class _Courier:
    """Copies what is committed in a run's temporary folder to the depot."""

    order: _Order
    name: str
    config: RunConfig
    path: Path
    steps: set[int]
    """Checkpoints that are there already."""
    sent: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Files as they were when they were sent: inode, size, time."""
    metrics: tuple[int, int] = (0, 0)
    """Of the metrics: the file's inode, and how many bytes were sent."""
    ended: bool = False
    busy: Any = field(default_factory=threading.Lock)

    @classmethod
    def fetch(cls, order: _Order, name: str, config: RunConfig, path: Path) -> "_Courier":
        """Take the run from the depot with what there is of it.

        Raises:
            LockedError: another process is writing the run.
            StoreError: the run folder cannot be used.
        """
        courier = cls(order, name, config, path, set())
        step, contents = courier._ask("begin")
        if step is not None:
            courier.steps.add(step)
        for relative, data in contents.items():
            file = path / relative
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        return courier

    def deliver(self) -> None:
        """Send what is new.

        Raises:
            AnchorInterpError: something could not be read or written; to be tried again.
        """
        from anchor_interp.runs.store import RunFolder

        folder = RunFolder(self.path)
        with self.busy:
            if self.ended or not files.is_there(self.path / "config.json"):
                return
            done = files.is_there(self.path / "result.json")  # then the rest is complete
            steps = folder.steps()
            for file in sorted(self.path.glob("*.json")):
                if file.name not in ("config.json", "result.json"):
                    self._send(file)
            self._send_metrics()  # before the checkpoints, which count on their lines
            for step in steps:
                if step not in self.steps:
                    self._ask("take_checkpoint", step, folder.checkpoint_files(step))
                    self.steps.add(step)
            if done:
                self._send(self.path / "result.json")

    def end(self) -> None:
        """Send the rest and let go of the run, also if that fails."""
        try:
            self.deliver()
        finally:
            self.ended = True
            _asked(self.order.depot.end.remote(self.name, self.order.ticket))

    def _send(self, file: Path) -> None:
        facts = file.stat()
        signature = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
        if self.sent.get(file.name) != signature:
            self._ask("take_file", file.name, files.read_bytes(file, limit=files.MAX_JSON_BYTES))
            self.sent[file.name] = signature

    def _send_metrics(self) -> None:
        file = self.path / "metrics.jsonl"
        if not files.is_there(file):
            return
        with files.open_regular(file) as opened:
            facts = os.fstat(opened.fileno())
            at = self.metrics[1] if self.metrics[0] == facts.st_ino else 0
            opened.seek(at)
            part = opened.read()
        part = part[: part.rfind(b"\n") + 1]
        if part or self.metrics[0] != facts.st_ino:
            self._ask("take_metrics", at, part)
            self.metrics = facts.st_ino, at + len(part)

    def _ask(self, what: str, *arguments: Any) -> Any:
        method = getattr(self.order.depot, what)
        return _asked(method.remote(self.name, self.config, self.order.ticket, *arguments))


def _asked(answer: Any) -> Any:
    """The depot's answer, with its errors as they were raised there."""
    ray = _import_ray()
    try:
        return ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, AnchorInterpError):
            raise error.cause from None
        raise


@contextlib.contextmanager
def _delivering(couriers: list[_Courier]) -> Iterator[None]:
    """Deliver every second inside the block.

    What fails is tried again, such as on a full disk that someone empties; if it still fails in the
    end, :meth:`_Courier.end` says so.
    """
    over = threading.Event()

    def deliver() -> None:
        while not over.wait(_DELIVER_SECONDS):
            for courier in couriers:
                try:
                    courier.deliver()
                except Exception as error:
                    _LOGGER.debug("%s: not delivered yet: %s", courier.name, error)

    thread = threading.Thread(target=deliver, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Depot:
    """Writes run folders on the driver's machine for tasks elsewhere, holding their locks.

    It runs as an actor. A call names the run, its configuration and the task's ticket; a run is
    taken with the first call, so that an actor that Ray had to start again goes on.
    """

    def __init__(self, folder: Path) -> None:
        """Hold nothing yet.

        Args:
            folder: where the run folders go.
        """
        self._folder = folder
        self._held: dict[str, tuple[contextlib.ExitStack, RunWriter]] = {}
        self._least: dict[str, int] = {}

    def begin(
        self, name: str, config: RunConfig, ticket: int
    ) -> tuple[int | None, dict[str, bytes]]:
        """Take a run and hand out what training it goes on from.

        Returns:
            The checkpoint that is among it, and its files by their paths in the run folder.

        Raises:
            LockedError: another process is writing it.
            StoreError: the folder cannot be used, or the task was started again since.
        """
        writer = self._writer(name, config, ticket)
        if files.is_there(writer.path / "result.json"):
            step = max(writer.steps(), default=None)
        else:
            step = writer.fall_back()
        names = [file.name for file in writer.path.glob("*.json")]
        if files.is_there(writer.path / "metrics.jsonl"):
            names.append("metrics.jsonl")
        contents = {
            name: files.read_bytes(writer.path / name, limit=_LARGEST_FILE) for name in names
        }
        if step is not None:
            for file, data in writer.checkpoint_files(step).items():
                contents[f"checkpoints/{step:08d}/{file}"] = data
        return step, contents

    def take_checkpoint(
        self, name: str, config: RunConfig, ticket: int, step: int, contents: dict[str, bytes]
    ) -> None:
        """Commit a checkpoint; see :meth:`anchor_interp.runs.store.RunWriter.copy_checkpoint`."""
        writer = self._writer(name, config, ticket)
        writer.copy_checkpoint(step, contents, config.train.checkpoint_every)

    def take_file(self, name: str, config: RunConfig, ticket: int, file: str, data: bytes) -> None:
        """Write a file; see :meth:`anchor_interp.runs.store.RunWriter.copy_file`."""
        self._writer(name, config, ticket).copy_file(file, data)

    def take_metrics(self, name: str, config: RunConfig, ticket: int, at: int, part: bytes) -> None:
        """Add lines of metrics; see :meth:`anchor_interp.runs.store.RunWriter.copy_metrics`."""
        self._writer(name, config, ticket).copy_metrics(at, part)

    def end(self, name: str, ticket: int) -> None:
        """Let go of a run; nothing more is taken of it from this task or earlier ones."""
        if ticket < self._least.get(name, 0):
            return
        self._least[name] = ticket + 1
        if name in self._held:
            stack, _ = self._held.pop(name)
            stack.close()

    def close(self) -> None:
        """Let go of all runs."""
        for stack, _ in self._held.values():
            stack.close()
        self._held.clear()

    def _writer(self, name: str, config: RunConfig, ticket: int) -> "RunWriter":
        from anchor_interp.runs.store import RunFolder

        if ticket < self._least.get(name, 0):
            raise StoreError(f"{self._folder / name} is trained by another task by now")
        self._least[name] = ticket
        if name not in self._held:
            stack = contextlib.ExitStack()
            writer = stack.enter_context(RunFolder(self._folder / name).writing(config))
            self._held[name] = stack, writer
        return self._held[name][1]
