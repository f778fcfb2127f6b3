"""Many runs on this machine: one worker process per core, one thread each.

A worker that finds its parent gone asks its own training to stop, which checkpoints and leaves, so
killing the driver loses nothing and leaves no process behind.
"""

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from anchor_interp.config import RunConfig
from anchor_interp.errors import AnchorInterpError, ConfigError
from anchor_interp.progress import Progress

_POLL_SECONDS = 0.5
_LOGGER = logging.getLogger("anchor_interp")


@dataclass(frozen=True)
class RunResult:
    """How one run of several ended."""

    name: str
    """Its name among the runs."""
    path: Path
    """Its folder."""
    error: AnchorInterpError | None
    """What went wrong; None for a finished run."""


def run_local(
    configs: Mapping[str, RunConfig],
    folder: Path,
    progress: Mapping[str, Progress],
    *,
    workers: int | None = None,
    device: str = "auto",
) -> Iterator[RunResult]:
    """Train runs side by side; each in ``folder / name``, resuming what is there.

    Args:
        configs: runs by name, started in this order.
        folder: where the run folders go.
        progress: what each run reports to.
        workers: processes at a time; the number of usable cores if None.
        device: where each run trains.

    Returns:
        An iterator of one result per run as it ends; a failed run does not stop the others. Leaving
        it early checkpoints and stops the runs that are under way.

    Raises:
        ConfigError: fewer than one worker.
    """
    count = available_cores() if workers is None else workers
    if count < 1:
        raise ConfigError(f"workers is {count}; expected at least 1")
    return _run(configs, folder, progress, min(count, len(configs)), device)


@dataclass(frozen=True)
class _Worker:
    """A process that trains one run and tells of messages and of an error through a pipe."""

    name: str
    path: Path
    process: SpawnProcess
    reports: Connection
    failures: list[AnchorInterpError] = field(default_factory=list)

    @classmethod
    def start(cls, name: str, config: RunConfig, path: Path, device: str) -> "_Worker":
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        level = _LOGGER.getEffectiveLevel()
        arguments = (config, path, device, sender, os.getpid(), level)
        process = context.Process(target=_work, args=arguments)
        process.start()
        sender.close()
        return cls(name, path, process, receiver)

    def result(self) -> RunResult:
        """How the run ended, once the process has."""
        self.process.join()
        with self.reports:
            self.read_reports()
        if self.failures:
            return RunResult(self.name, self.path, self.failures[0])
        code = self.process.exitcode  # it said nothing: finished, or died
        died = f"the worker of {self.path} died (exit code {code}); start again to resume it"
        return RunResult(self.name, self.path, AnchorInterpError(died) if code else None)

    def read_reports(self) -> None:
        """Log what the process has logged since the last time, and keep its error."""
        with contextlib.suppress(EOFError):  # it has ended
            while self.reports.poll():
                kind, message = self.reports.recv()
                if isinstance(kind, int):
                    _LOGGER.log(kind, message)
                else:
                    self.failures.append(kind(message))


def _run(
    configs: Mapping[str, RunConfig],
    folder: Path,
    progress: Mapping[str, Progress],
    workers: int,
    device: str,
) -> Iterator[RunResult]:
    waiting = list(configs)
    running: list[_Worker] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                name = waiting.pop(0)
                running.append(_Worker.start(name, configs[name], folder / name, device))
            wait([worker.process.sentinel for worker in running], _POLL_SECONDS)
            for worker in list(running):
                ended = not worker.process.is_alive()
                _report(worker.path, progress[worker.name])
                worker.read_reports()
                if ended:
                    running.remove(worker)
                    yield worker.result()
    finally:
        for worker in running:
            worker.process.terminate()  # SIGTERM: checkpoint and leave
        for worker in running:
            worker.process.join()


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Reports(logging.Handler):
    """Sends what a worker logs to its driver."""

    def __init__(self, reports: Connection) -> None:
        super().__init__()
        self._reports = reports

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # nobody is left to be told
            self._reports.send((record.levelno, record.getMessage()))


def _work(
    config: RunConfig, path: Path, device: str, reports: Connection, parent: int, level: int
) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the parent too, which sends SIGTERM
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    _LOGGER.setLevel(level)
    _LOGGER.addHandler(_Reports(reports))
    try:
        from anchor_interp.run import train  # torch is loaded in the workers only

        train(config, path, device=device, threads=1, quiet=True)
    except KeyboardInterrupt:
        return
    except AnchorInterpError as error:
        with contextlib.suppress(BrokenPipeError):  # nobody is left to be told
            reports.send((type(error), str(error)))


def _leave_with(parent: int) -> None:
    """Send this process SIGTERM once its parent has died, again until it leaves."""
    while True:
        time.sleep(1)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)


def _report(path: Path, progress: Progress) -> None:
    metrics = path / "metrics.jsonl"
    if not metrics.exists():
        return
    facts: dict[str, Any] = {}
    for line in metrics.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            facts.update(json.loads(line))
    if facts:
        progress.update(facts["step"], facts)
