"""Jobs on this machine: one worker process for each core, with one thread each.

A worker reads its jobs from a pipe, one line of JSON each, and does one after the other. On Linux
workers for the CPU are forked from a process that has loaded PyTorch; others are new processes.
Neither imports anything of the program that started it, so a script needs no
``if __name__ == "__main__"``. A worker whose parent has died stops its training, which checkpoints
first: killing the driver loses nothing and leaves no process behind.
"""

import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from anchor_interp._util import errors
from anchor_interp._util.errors import AnchorInterpError
from anchor_interp._util.machine_limits import available_cores, memory_limit
from anchor_interp._util.progress import Progress
from anchor_interp._util.schema import checked, to_dict
from anchor_interp.runs.config import memory_bytes
from anchor_interp.sweeps.engine import Job, Meters, Queue, RunResult, drive
from anchor_interp.sweeps.fork_server import ForkServer, start_python

WORKER_BYTES = 600 << 20
"""Approximate memory of a worker without its runs: Python, torch and TransformerLens."""
MEMORY_SHARE = 0.8
"""How much of the machine's memory all workers may use."""
_POLL_SECONDS = 0.5
_LOGGER = logging.getLogger("anchor_interp")


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
        on_gpu = self._kind() == "cuda"
        return self.workers or (1 if on_gpu else available_cores())

    def run(
        self, jobs: Iterator[Job | None], folder: Path, progress: Callable[[str], Progress]
    ) -> Generator[RunResult, None, None]:
        """See :meth:`anchor_interp.sweeps.engine.Engine.run`; ConfigError without the device."""
        may_fork = sys.platform == "linux" and self.device in ("auto", "cpu")
        server = ForkServer() if may_fork else None  # first: it loads torch while this program does
        slots = self.slots()
        if server is not None and self._kind() != "cpu":
            server = server.close()
        workers = _Workers(folder, self.device, slots, server)
        return drive(lambda: workers, jobs, Meters(folder, progress))

    def _kind(self) -> str:
        from anchor_interp._util.environment import resolve_device  # it loads torch

        return resolve_device(self.device).type


class _Workers:
    """The worker processes; one is started when there is a job and no worker is idle."""

    def __init__(self, folder: Path, device: str, slots: int, server: ForkServer | None) -> None:
        self._folder, self._device, self._slots, self._server = folder, device, slots, server
        self._memory = MEMORY_SHARE * memory_limit()
        self._all: list[_Worker] = []

    @property
    def busy(self) -> list["_Worker"]:
        return [worker for worker in self._all if worker.job is not None]

    def start(self, queue: Queue) -> None:
        while len(self.busy) < self._slots and (job := queue.take(self._fits)) is not None:
            worker = next((worker for worker in self._all if worker.job is None), None)
            if worker is None:
                if self._server is not None and not self._server.is_alive():
                    self._server = ForkServer()
                worker = _Worker(self._folder, self._device, self._server)
                self._all.append(worker)
            worker.give(job)

    def running(self) -> list[str]:
        return [name for worker in self.busy for name in worker.unfinished()]

    def wait(self) -> None:
        # a pipe is also ready when its worker has died
        wait([worker.reports.fileno() for worker in self._all], _POLL_SECONDS)

    def news(self) -> Iterator[RunResult]:
        for worker in list(self._all):
            yield from worker.news()
            if worker.has_ended:
                self._all.remove(worker)
                yield from worker.end()

    def close(self) -> None:
        for worker in self.busy:
            worker.stop()
        if self._server is not None:
            self._server.close()
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

    def __init__(self, folder: Path, device: str, server: ForkServer | None) -> None:
        self._folder, self._unread = folder, b""
        self.job: Job | None = None
        self.has_ended = False
        self._results: list[RunResult] = []  # of its job so far
        (jobs, giver), (receiver, sender) = os.pipe(), os.pipe()
        os.set_blocking(receiver, False)
        self.reports, self._jobs = os.fdopen(receiver, "rb", buffering=0), os.fdopen(giver, "wb")
        setup: dict[str, Any] = {"device": device, "folder": os.fspath(folder)}
        setup["level"] = _LOGGER.getEffectiveLevel()
        try:
            if server is not None:
                self.stop: Callable[[], object] = server.close
                self._wait: Callable[[], int | None] = server.fork(setup, jobs, sender)
            else:
                setup["reports"] = sender
                process = start_python("worker", "work", setup, jobs, sender)
                self.stop, self._wait = process.terminate, process.wait
        finally:
            os.close(jobs)
            os.close(sender)

    def give(self, job: Job) -> None:
        self.job, self._results = job, []
        with contextlib.suppress(BrokenPipeError):  # news and end notice that it has died
            self._jobs.write(json.dumps(to_dict(job)).encode() + b"\n")
            self._jobs.flush()

    def unfinished(self) -> list[str]:
        """The runs of its job that have no result."""
        ended = {result.name for result in self._results}
        return [name for name in self.job.configs if name not in ended] if self.job else []

    def news(self) -> list[RunResult]:
        """New results; new messages are logged."""
        while part := self.reports.read(1 << 16):  # None without news, b"" once it has ended
            self._unread += part
        self.has_ended = part == b""
        *lines, self._unread = self._unread.split(b"\n")
        before = len(self._results)
        for line in lines:
            kind, *message = json.loads(line)
            if kind == "log":
                _LOGGER.log(*message)
            elif kind == "result":
                name, error = message
                failure = None if error is None else getattr(errors, error[0])(error[1])
                self._results.append(RunResult(name, failure))
            elif kind == "idle":
                self.job = None
        return self._results[before:]

    def end(self) -> list[RunResult]:
        """Wait until the process has ended; the results of its runs."""
        with contextlib.suppress(OSError):
            self._jobs.close()
        code = self._wait()
        before = len(self._results)
        with self.reports:
            self.news()
        if self.job is not None:
            how = "with the process that forked it"
            if code is not None:
                how = f"exit code {code}" if code >= 0 else f"signal {-code}"
            if code == -signal.SIGKILL:
                how += ", perhaps for lack of memory"
            for name in self.unfinished():
                text = f"the worker of {self._folder / name} died ({how}); start again to resume it"
                self._results.append(RunResult(name, AnchorInterpError(text)))
        return self._results[before:]
