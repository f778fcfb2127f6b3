"""Jobs on this machine: one worker process for each core, with one thread each.

A worker reads its jobs from a pipe, one line of JSON each, and does one after the other. On Linux
workers for the CPU are forked by a process that has loaded PyTorch; others are new processes.
Neither imports anything of the program that started it, so a script needs no
``if __name__ == "__main__"``. A worker whose parent has died stops its training, which checkpoints
first: killing the driver loses nothing and leaves no process behind.
"""

import contextlib
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from anchor_interp._util import errors
from anchor_interp._util.errors import AnchorInterpError
from anchor_interp._util.limits import available_cores, memory_limit
from anchor_interp._util.progress import Progress
from anchor_interp._util.schema import checked, to_dict
from anchor_interp.runs.config import memory_bytes
from anchor_interp.sweeps.engine import Job, Meters, Queue, RunResult, drive
from anchor_interp.tasks.registry import TASKS_VARIABLE, further_tasks

WORKER_BYTES = 600 << 20
"""Approximate memory of a worker without its runs: Python, torch and TransformerLens."""
MEMORY_SHARE = 0.8
"""How much of the machine's memory all workers may use."""
_POLL_SECONDS = 0.5
_PROGRAM = """
import json, sys
setup = json.loads(sys.argv[1])
sys.path[:] = setup.pop("import_path")
from anchor_interp.sweeps.worker import work
work(**setup)
"""
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
        ahead: list[_Worker] = []
        if sys.platform == "linux" and self.device in ("auto", "cpu"):
            # first: they load torch while this program does
            ahead = _started(folder, self.device, self.workers or available_cores())
        workers = _Workers(folder, self.device, self.slots(), ahead)
        if self._kind() != "cpu":
            workers.close()  # one that was forked could not use a GPU
        return drive(lambda: workers, jobs, Meters(folder, progress))

    def _kind(self) -> str:
        from anchor_interp._util.environment import resolve_device  # it loads torch

        return resolve_device(self.device).type


class _Workers:
    """The worker processes; one is started when there is a job and no worker is idle."""

    def __init__(self, folder: Path, device: str, slots: int, ahead: list["_Worker"]) -> None:
        self._folder, self._device, self._slots, self._all = folder, device, slots, ahead
        self._processes = {worker.process for worker in ahead}
        self._memory = MEMORY_SHARE * memory_limit()

    def __del__(self) -> None:
        self.close()  # an engine that never gets to its first job

    @property
    def busy(self) -> list["_Worker"]:
        return [worker for worker in self._all if worker.job is not None]

    def start(self, queue: Queue) -> None:
        while len(self.busy) < self._slots and (job := queue.take(self._fits)) is not None:
            worker = next((worker for worker in self._all if worker.job is None), None)
            if worker is None:
                (worker,) = _started(self._folder, self._device, 1)
                self._all.append(worker)
                self._processes.add(worker.process)
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
        for process in self._processes:
            process.terminate()  # idle workers may still be loading
        for worker in self._all:
            worker.end()
        for process in self._processes:
            process.wait()
        self._all, self._processes = [], set()

    def _fits(self, job: Job) -> bool:
        """Whether the memory suffices for this job too; always if no other is running."""
        jobs = [worker.job for worker in self._all if worker.job is not None]
        configs = [config for each in (job, *jobs) for config in each.configs.values()]
        of_runs = sum(sum(memory_bytes(config).values()) for config in configs)
        return not jobs or WORKER_BYTES * (1 + len(jobs)) + of_runs <= self._memory


def _started(folder: Path, device: str, n: int) -> list["_Worker"]:
    """Start a process with one thread; it is one worker, or forks several.

    Ctrl-C does not reach it: the program decides what to do.
    """
    pipes = [(*os.pipe(), *os.pipe()) for _ in range(n)]
    theirs = [(jobs, reports) for jobs, _, _, reports in pipes]
    setup: dict[str, Any] = {"folder": os.fspath(folder), "device": device, "pipes": theirs}
    setup |= {"level": _LOGGER.getEffectiveLevel(), "parent": os.getpid()}
    setup |= {"import_path": list(map(str, sys.path))}
    # one thread that sleeps while it waits, from before torch is loaded
    environment = {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ | {"OMP_NUM_THREADS": "1"}
    environment["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    environment[TASKS_VARIABLE] = os.pathsep.join(further_tasks())
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # for these
    # a process starts with those signals blocked that its parent blocks
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    ends = [*itertools.chain(*theirs)]
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(setup)],
            stdin=subprocess.DEVNULL, pass_fds=ends, env=environment,
        )  # fmt: skip
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for end in ends:
            os.close(end)
    return [_Worker(folder, process, giver, reader, n == 1) for _, giver, reader, _ in pipes]


class _Worker:
    """A worker that does jobs and reports messages and results through a pipe."""

    def __init__(
        self, folder: Path, process: subprocess.Popen[bytes], giver: int, reader: int, alone: bool
    ) -> None:
        self._folder, self._unread, self._is_alone = folder, b"", alone
        self.process = process
        """The worker, or the process that forked it and passes SIGTERM on to all of its workers."""
        self.job: Job | None = None
        self.has_ended = False
        self._code: int | None = None
        self._results: list[RunResult] = []  # of its job so far
        os.set_blocking(reader, False)
        self.reports, self._jobs = os.fdopen(reader, "rb", buffering=0), os.fdopen(giver, "wb")

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
            else:
                (self._code,) = message
        return self._results[before:]

    def end(self) -> list[RunResult]:
        """Wait until the worker has ended; the results of its runs."""
        with contextlib.suppress(OSError):
            self._jobs.close()
        before = len(self._results)
        with self.reports:
            while not self.has_ended:
                wait([self.reports.fileno()])
                self.news()
        code = self.process.wait() if self._is_alone else self._code
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
