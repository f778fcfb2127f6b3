"""Jobs on this machine: one worker process for each core, with one thread each.

A worker is a new Python process that reads its jobs from a pipe, one line of JSON each, and does
one after the other. It imports nothing of the program that started it, so a script needs no
``if __name__ == "__main__"``. A worker whose parent has died stops its training, which checkpoints
first: killing the driver loses nothing and leaves no process behind.
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
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

from anchor_interp._util import errors
from anchor_interp._util.errors import AnchorInterpError, InterruptedRunError
from anchor_interp._util.limits import available_cores, memory_limit
from anchor_interp._util.progress import Progress
from anchor_interp._util.schema import checked, to_dict
from anchor_interp.runs.config import memory_bytes
from anchor_interp.sweeps.engine import Job, Meters, Queue, RunResult, drive
from anchor_interp.sweeps.worker import do_job, read_job
from anchor_interp.tasks.registry import TASKS_VARIABLE, further_tasks

WORKER_BYTES = 600 << 20
"""Approximate memory of a worker without its runs: Python, torch and TransformerLens."""
MEMORY_SHARE = 0.8
"""How much of the machine's memory all workers may use."""
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
    """How many jobs to do at a time; if None, one for each usable core, or one on a GPU. Fewer jobs
    run at a time if the memory does not suffice."""
    device: str = "auto"

    def __post_init__(self) -> None:
        checked(self.workers, int | None, "workers", low=1)

    def slots(self) -> int:
        """How many jobs are done at a time; ConfigError if this machine lacks the device."""
        from anchor_interp._util.environment import resolve_device  # it loads torch

        on_gpu = resolve_device(self.device).type == "cuda"
        return self.workers or (1 if on_gpu else available_cores())

    def run(
        self, jobs: Iterator[Job | None], folder: Path, progress: Callable[[str], Progress]
    ) -> Generator[RunResult, None, None]:
        """See :meth:`anchor_interp.sweeps.engine.Engine.run`; ConfigError without the device."""
        workers = _Workers(folder, self.device, self.slots())
        return drive(lambda: workers, jobs, Meters(folder, progress))


class _Workers:
    """The worker processes; one is started when there is a job and no worker is idle."""

    def __init__(self, folder: Path, device: str, slots: int) -> None:
        self._folder, self._device, self._slots = folder, device, slots
        self._memory = MEMORY_SHARE * memory_limit()
        self._all: list[_Worker] = []

    @property
    def busy(self) -> list["_Worker"]:
        return [worker for worker in self._all if worker.job is not None]

    def start(self, queue: Queue) -> None:
        while len(self.busy) < self._slots and (job := queue.take(self._fits)) is not None:
            worker = next((worker for worker in self._all if worker.job is None), None)
            if worker is None:
                worker = _Worker(self._folder, self._device)
                self._all.append(worker)
            worker.give(job)

    def running(self) -> list[str]:
        return [name for worker in self.busy for name in worker.unfinished()]

    def wait(self) -> None:
        # a pipe is also ready when its worker has died
        wait([worker.reports.fileno() for worker in self._all], _POLL_SECONDS)

    def news(self) -> Iterator[RunResult]:
        for worker in list(self._all):
            if worker.process.poll() is None:
                yield from worker.news()
            else:
                self._all.remove(worker)
                yield from worker.end()

    def close(self) -> None:
        for worker in self.busy:
            worker.process.terminate()
        for worker in self._all:
            worker.end()

    def _fits(self, job: Job) -> bool:
        """Whether the memory suffices for this job too; always if no other is running."""
        jobs = [worker.job for worker in self._all if worker.job is not None]
        configs = [config for each in (job, *jobs) for config in each.configs.values()]
        of_runs = sum(sum(memory_bytes(config).values()) for config in configs)
        return not jobs or WORKER_BYTES * (1 + len(jobs)) + of_runs <= self._memory


class _Worker:
    """A process that does jobs and reports messages and results through a pipe."""

    def __init__(self, folder: Path, device: str) -> None:
        self._folder, self._unread = folder, b""
        self.job: Job | None = None
        self._results: list[RunResult] = []  # of its job so far
        receiver, sender = os.pipe()
        os.set_blocking(receiver, False)
        # one thread that sleeps while it waits, from before torch is loaded
        environment = {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ | {"OMP_NUM_THREADS": "1"}
        environment[TASKS_VARIABLE] = os.pathsep.join(further_tasks())
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # for these
        command = [sys.executable, "-c", _PROGRAM]
        # Ctrl-C also reaches the workers, but only the parent may act on it: it sends SIGTERM. A
        # process starts with those signals blocked that its parent blocks.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, pass_fds=[sender], env=environment
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(sender)
        self.reports = os.fdopen(receiver, "rb", buffering=0)
        setup: dict[str, Any] = {"device": device, "reports": sender, "parent": os.getpid()}
        setup |= {"import_path": list(map(str, sys.path)), "folder": os.fspath(folder)}
        self._send(setup | {"level": _LOGGER.getEffectiveLevel()})

    def give(self, job: Job) -> None:
        self.job, self._results = job, []
        self._send(to_dict(job))

    def unfinished(self) -> list[str]:
        """The runs of its job that have no result."""
        ended = {result.name for result in self._results}
        return [name for name in self.job.configs if name not in ended] if self.job else []

    def news(self) -> list[RunResult]:
        """New results; new messages are logged."""
        while part := self.reports.read(1 << 16):  # None without news, b"" once it has ended
            self._unread += part
        *lines, self._unread = self._unread.split(b"\n")
        before = len(self._results)
        for line in lines:
            kind, *message = json.loads(line)
            if kind == "log":
                _LOGGER.log(*message)
            elif kind == "result":
                name, error = message
                failure = None if error is None else getattr(errors, error[0])(error[1])
                self._results.append(RunResult(name, self._folder / name, failure))
            elif kind == "idle":
                self.job = None
        return self._results[before:]

    def end(self) -> list[RunResult]:
        """Wait until the process has ended; the results of its runs."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        code = self.process.wait()
        before = len(self._results)
        with self.reports:
            self.news()
        if self.job is not None:
            how = f"exit code {code}" if code >= 0 else f"signal {-code}"
            if code == -signal.SIGKILL:
                how += ", perhaps for lack of memory"
            for name in self.unfinished():
                path = self._folder / name
                text = f"the worker of {path} died ({how}); start again to resume it"
                self._results.append(RunResult(name, path, AnchorInterpError(text)))
        return self._results[before:]

    def _send(self, data: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # news and end notice that it has died
            self.process.stdin.write(json.dumps(data).encode() + b"\n")
            self.process.stdin.flush()


class _Reports(logging.Handler):
    """Sends what a worker logs to its driver, one line of JSON each."""

    def __init__(self, reports: IO[bytes]) -> None:
        super().__init__()
        self._reports = reports

    def emit(self, record: logging.LogRecord) -> None:
        self.send("log", record.levelno, record.getMessage())

    def send(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # the driver has died
            self._reports.write(json.dumps(message).encode() + b"\n")


def work(folder: str, device: str, reports: int, parent: int, level: int) -> None:
    """The worker process: do the jobs on standard input until it closes, or its parent dies.

    Messages of this level or above and results go to the file descriptor ``reports``.
    """
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    driver = _Reports(os.fdopen(reports, "wb", buffering=0))
    _LOGGER.setLevel(level)
    _LOGGER.addHandler(driver)
    try:
        for line in sys.stdin:
            job = read_job(json.loads(line))
            for result in do_job(job, Path(folder), device=device, threads=1):
                error = result.error
                failure = None if error is None else (type(error).__name__, str(error))
                driver.send("result", result.name, failure)
            driver.send("idle")
    except (InterruptedRunError, KeyboardInterrupt):
        raise SystemExit(130) from None


def _end_with(parent: int) -> None:
    """Send this process SIGTERM when its parent has died, and again every few minutes.

    A second SIGTERM soon after the first would mean not to wait for a checkpoint.
    """
    while os.getppid() == parent:
        time.sleep(1)
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_PATIENCE_SECONDS)
