"""Jobs on this machine: one worker process per core, one thread each.

A worker is a fresh Python that gets its jobs as lines of JSON and does one after the other; it
imports nothing of the program that asked for it, so a script needs no
``if __name__ == "__main__"``. A worker that finds its parent gone asks its own training to stop,
which checkpoints and leaves, so killing the driver loses nothing and leaves no process behind.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

from anchor_interp._util import errors
from anchor_interp._util.errors import AnchorInterpError, InterruptedRunError
from anchor_interp._util.progress import Progress
from anchor_interp._util.schema import checked, from_dict, to_dict
from anchor_interp.runs.config import RunConfig, memory_bytes
from anchor_interp.runs.measurements import Measure
from anchor_interp.sweeps.engine import Job, Meter, RunResult
from anchor_interp.sweeps.worker import do_job

WORKER_BYTES = 600 << 20
"""About what a worker's memory holds beside its runs: Python, torch and TransformerLens."""


MEMORY_SHARE = 0.8
"""How much of the machine's memory workers may plan with."""


_POLL_SECONDS = 0.5


_PATIENCE_SECONDS = 300.0


_LOGGER = logging.getLogger("anchor_interp")


_PROGRAM = """
import json, sys
setup = json.loads(sys.stdin.readline())
sys.path[:] = setup.pop("import_path")
from anchor_interp.sweeps.local import work
work(**setup)
"""


@dataclass(frozen=True)
class LocalEngine:
    """Worker processes on this machine (an :class:`anchor_interp.sweeps.engine.Engine`)."""

    workers: int | None = None
    """Processes at a time; if None the number of usable cores, or one on a GPU. Fewer run where
    the memory would not suffice for all."""
    device: str = "auto"
    """Where each run trains."""

    def __post_init__(self) -> None:
        checked(self.workers, int | None, "workers", low=1)

    def slots(self) -> int:
        """How many jobs are done at a time.

        Raises:
            ConfigError: a device that this machine does not have.
        """
        from anchor_interp._util.environment import resolve_device  # it loads torch

        on_gpu = resolve_device(self.device).type == "cuda"
        return self.workers or (1 if on_gpu else available_cores())

    def run(
        self, jobs: Iterator[Job | None], folder: Path, progress: Callable[[str], Progress]
    ) -> Generator[RunResult, None, None]:
        """Do jobs; see :meth:`anchor_interp.sweeps.engine.Engine.run`.

        Raises:
            ConfigError: a device that this machine does not have.
        """
        return _run(jobs, folder, progress, self.slots(), self.device)


@dataclass
class _Worker:
    """A process that does jobs and tells of messages and results through a pipe."""

    folder: Path
    process: subprocess.Popen[bytes]
    reports: IO[bytes]
    unread: bytearray = field(default_factory=bytearray)
    job: Job | None = None
    """What it is doing."""
    results: list[RunResult] = field(default_factory=list)
    """How the runs of its job have ended so far."""

    @classmethod
    def start(cls, folder: Path, device: str) -> "_Worker":
        receiver, sender = os.pipe()
        os.set_blocking(receiver, False)
        setup = {
            "import_path": list(map(str, sys.path)),
            "folder": os.fspath(folder),
            "device": device,
            "reports": sender,
            "parent": os.getpid(),
            "level": _LOGGER.getEffectiveLevel(),
        }
        # Ctrl-C reaches the workers too, from their first moment, and must not: it is for the
        # parent, which sends SIGTERM. A process starts with the signals blocked that its parent
        # blocks.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, pass_fds=[sender]
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(sender)
        worker = cls(folder, process, os.fdopen(receiver, "rb", buffering=0))
        worker._tell(setup)
        return worker

    def give(self, job: Job) -> None:
        """Let it do a job."""
        self.job, self.results = job, []
        self._tell(to_dict(job))

    def news(self) -> list[RunResult]:
        """Log what the process has logged since the last time; the results that came with it."""
        while part := self.reports.read(1 << 16):  # None without news, b"" once it has ended
            self.unread.extend(part)
        *lines, rest = self.unread.split(b"\n")
        self.unread[:] = rest
        before = len(self.results)
        for line in lines:
            kind, *told = json.loads(line)
            if kind == "log":
                _LOGGER.log(*told)
            elif kind == "result":
                name, error = told
                failure = None if error is None else getattr(errors, error[0])(error[1])
                self.results.append(RunResult(name, self.folder / name, failure))
            elif kind == "idle":
                self._lack_results("ended its job without a result of it")
        return self.results[before:]

    def end(self) -> list[RunResult]:
        """How the runs ended that were under way, once the process has."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        code = self.process.wait()
        before = len(self.results)
        with self.reports:
            self.news()
        if self.job is None:
            return self.results[before:]
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        if code == -signal.SIGKILL:
            how += ", perhaps for lack of memory"
        self._lack_results(f"died ({how})")
        return self.results[before:]

    def _lack_results(self, what: str) -> None:
        """Give the runs of the job a result that have none; the job is over."""
        assert self.job is not None
        for name in self.under_way():
            path = self.folder / name
            failure = AnchorInterpError(f"the worker of {path} {what}; start again to resume it")
            self.results.append(RunResult(name, path, failure))
        self.job = None

    def under_way(self) -> list[str]:
        """The runs of its job that have not ended."""
        ended = {result.name for result in self.results}
        return [name for name in self.job.configs if name not in ended] if self.job else []

    def _tell(self, data: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end is found out elsewhere
            self.process.stdin.write(json.dumps(data).encode() + b"\n")
            self.process.stdin.flush()


def _run(
    jobs: Iterator[Job | None],
    folder: Path,
    progress: Callable[[str], Progress],
    count: int,
    device: str,
) -> Generator[RunResult, None, None]:
    from anchor_interp._util.environment import interruptible
    from anchor_interp.runs.memory import memory_limit

    memory = MEMORY_SHARE * memory_limit()
    workers: list[_Worker] = []
    meters: dict[str, Meter] = {}
    waiting, more = None, True
    with interruptible():
        try:
            while True:
                while more:
                    busy = [worker.job for worker in workers if worker.job is not None]
                    if len(busy) == count:
                        break
                    if waiting is None:
                        try:
                            waiting = next(jobs)
                        except StopIteration:
                            more = False
                    if waiting is None or (busy and sum(map(_needs, [waiting, *busy])) > memory):
                        break
                    idle = [worker for worker in workers if worker.job is None]
                    if not idle:
                        idle = [_Worker.start(folder, device)]
                        workers += idle
                    idle[0].give(waiting)
                    waiting = None
                if not more and all(worker.job is None for worker in workers):
                    return
                # a worker's end of the pipe closes when it ends
                wait([worker.reports.fileno() for worker in workers], _POLL_SECONDS)
                for worker in list(workers):
                    ended = worker.process.poll() is not None
                    for name in worker.under_way():
                        if name not in meters:
                            meters[name] = Meter(folder / name, progress(name))
                        meters[name].read()
                    if ended:
                        workers.remove(worker)
                    yield from worker.end() if ended else worker.news()
        finally:
            for worker in workers:
                if worker.job is not None:
                    worker.process.terminate()  # SIGTERM: checkpoint and leave
            for worker in workers:
                worker.end()


def _needs(job: Job) -> int:
    """Bytes of a worker with this job, rather too few than too many."""
    return WORKER_BYTES + sum(sum(memory_bytes(config).values()) for config in job.configs.values())


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Reports(logging.Handler):
    """Sends what a worker logs to its driver, one JSON line a message."""

    def __init__(self, reports: IO[bytes]) -> None:
        super().__init__()
        self._reports = reports

    def emit(self, record: logging.LogRecord) -> None:
        self.send("log", record.levelno, record.getMessage())

    def send(self, *told: Any) -> None:
        """Send a line."""
        with contextlib.suppress(OSError):  # nobody is left to be told
            self._reports.write(json.dumps(told).encode() + b"\n")


def work(folder: str, device: str, reports: int, parent: int, level: int) -> None:
    """What a worker process does: the jobs on its standard input, one a line, until it closes.

    Args:
        folder: where the run folders go.
        device: where runs train.
        reports: file descriptor for messages and results.
        parent: the process to end with.
        level: least level of the messages that are told.
    """
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    driver = _Reports(os.fdopen(reports, "wb", buffering=0))
    _LOGGER.setLevel(level)
    _LOGGER.addHandler(driver)
    try:
        for line in sys.stdin:
            told = json.loads(line)
            configs = {n: from_dict(RunConfig, config) for n, config in told["configs"].items()}
            job = Job(configs, tuple(from_dict(Measure, one) for one in told["measures"]))
            for result in do_job(job, Path(folder), device=device, threads=1):
                error = result.error
                failure = None if error is None else (type(error).__name__, str(error))
                driver.send("result", result.name, failure)
            driver.send("idle")
    except (InterruptedRunError, KeyboardInterrupt):
        raise SystemExit(130) from None


def _leave_with(parent: int) -> None:
    """Send this process SIGTERM when its parent has died.

    Once, because a second one means not to wait for a checkpoint; after minutes, again.
    """
    while os.getppid() == parent:
        time.sleep(1)
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_PATIENCE_SECONDS)
