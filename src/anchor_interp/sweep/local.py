"""Many runs on this machine: one worker process per core, one thread each.

A worker is a fresh Python that gets its configuration as JSON and trains one run; it imports
nothing of the program that asked for it, so a script needs no ``if __name__ == "__main__"``. A
worker that finds its parent gone asks its own training to stop, which checkpoints and leaves, so
killing the driver loses nothing and leaves no process behind.
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

from anchor_interp import errors
from anchor_interp.config import RunConfig
from anchor_interp.errors import AnchorInterpError, ConfigError
from anchor_interp.files import read_lines
from anchor_interp.progress import Progress
from anchor_interp.schema import from_dict, to_dict

_POLL_SECONDS = 0.5
_LOGGER = logging.getLogger("anchor_interp")
_PROGRAM = """
import json, sys
job = json.load(sys.stdin)
sys.path[:] = job.pop("import_path")
from anchor_interp.sweep.local import work
work(**job)
"""


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
        ConfigError: fewer than one worker, or a device that this machine does not have.
    """
    count = available_cores() if workers is None else workers
    if count < 1:
        raise ConfigError(f"workers is {count}; expected at least 1")
    from anchor_interp.environment import resolve_device  # it loads torch

    resolve_device(device)  # before any worker is started
    return _run(configs, folder, progress, min(count, len(configs)), device)


@dataclass(frozen=True)
class _Worker:
    """A process that trains one run and tells of messages and of an error through a pipe."""

    name: str
    path: Path
    process: subprocess.Popen[bytes]
    reports: IO[bytes]
    unread: bytearray = field(default_factory=bytearray)
    failures: list[AnchorInterpError] = field(default_factory=list)

    @classmethod
    def start(cls, name: str, config: RunConfig, path: Path, device: str) -> "_Worker":
        receiver, sender = os.pipe()
        os.set_blocking(receiver, False)
        job = {
            "import_path": list(map(str, sys.path)),
            "config": to_dict(config),
            "path": os.fspath(path),
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
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(json.dumps(job).encode())
        return cls(name, path, process, os.fdopen(receiver, "rb", buffering=0))

    def result(self) -> RunResult:
        """How the run ended, once the process has."""
        code = self.process.wait()
        with self.reports:
            self.read_reports()
        if self.failures:
            return RunResult(self.name, self.path, self.failures[0])
        if not code:
            return RunResult(self.name, self.path, None)
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        if code == -signal.SIGKILL:
            how += ", perhaps for lack of memory"
        died = f"the worker of {self.path} died ({how}); start again to resume it"
        return RunResult(self.name, self.path, AnchorInterpError(died))

    def read_reports(self) -> None:
        """Log what the process has logged since the last time, and keep its error."""
        while part := self.reports.read(1 << 16):  # None without news, b"" once it has ended
            self.unread.extend(part)
        *lines, rest = self.unread.split(b"\n")
        self.unread[:] = rest
        for line in lines:
            kind, message = json.loads(line)
            if isinstance(kind, int):
                _LOGGER.log(kind, message)
            else:
                self.failures.append(getattr(errors, kind)(message))


def _run(
    configs: Mapping[str, RunConfig],
    folder: Path,
    progress: Mapping[str, Progress],
    workers: int,
    device: str,
) -> Iterator[RunResult]:
    from anchor_interp.environment import interruptible

    waiting = list(configs)
    running: list[_Worker] = []
    with interruptible():
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    name = waiting.pop(0)
                    running.append(_Worker.start(name, configs[name], folder / name, device))
                # a worker's end of the pipe closes when it ends
                wait([worker.reports.fileno() for worker in running], _POLL_SECONDS)
                for worker in list(running):
                    ended = worker.process.poll() is not None
                    _report(worker.path, progress[worker.name])
                    worker.read_reports()
                    if ended:
                        running.remove(worker)
                        yield worker.result()
        finally:
            for worker in running:
                worker.process.terminate()  # SIGTERM: checkpoint and leave
            for worker in running:
                worker.result()


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
        self.send(record.levelno, record.getMessage())

    def send(self, kind: int | str, message: str) -> None:
        """Send a message with its level, or an error with the name of its class."""
        with contextlib.suppress(OSError):  # nobody is left to be told
            self._reports.write(json.dumps([kind, message]).encode() + b"\n")


def work(config: Any, path: str, device: str, reports: int, parent: int, level: int) -> None:
    """What a worker process does: train one run, and tell the driver through a pipe.

    Args:
        config: the run's configuration as JSON values.
        path: its folder.
        device: where it trains.
        reports: file descriptor for messages and the error.
        parent: the process to end with.
        level: least level of the messages that are told.
    """
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    driver = _Reports(os.fdopen(reports, "wb", buffering=0))
    _LOGGER.setLevel(level)
    _LOGGER.addHandler(driver)
    try:
        from anchor_interp.run import train  # torch is loaded in the workers only

        train(from_dict(RunConfig, config), path, device=device, threads=1, quiet=True)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except AnchorInterpError as error:
        driver.send(type(error).__name__, str(error))


def _leave_with(parent: int) -> None:
    """Send this process SIGTERM once its parent has died, again until it leaves."""
    while True:
        time.sleep(1)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)


def _report(path: Path, progress: Progress) -> None:
    """Tell the progress; what is wrong with the file is the worker's to say."""
    facts: dict[str, Any] = {}
    with contextlib.suppress(AnchorInterpError, ValueError, TypeError, KeyError, RecursionError):
        for _, line in read_lines(path / "metrics.jsonl"):
            facts.update(json.loads(line))
        if facts:
            progress.update(facts["step"], facts)
