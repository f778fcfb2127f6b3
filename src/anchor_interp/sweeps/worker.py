"""What a worker process of any engine does with a job: train its runs, then measure them."""

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from anchor_interp._util.errors import AnchorInterpError, InterruptedRunError, error_of
from anchor_interp._util.schema import from_dict
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.measurements import Measure, measure_run
from anchor_interp.sweeps.engine import Job, RunResult

_PATIENCE_SECONDS = 300.0
_LOGGER = logging.getLogger("anchor_interp")


def read_job(data: Mapping[str, Any]) -> Job:
    """A job from its plain JSON values; ConfigError if a task of it is not known here."""
    configs = {name: from_dict(RunConfig, config) for name, config in data["configs"].items()}
    return Job(configs, tuple(from_dict(Measure, one) for one in data["measures"]))


def do_job(job: Job, folder: Path, *, device: str, threads: int) -> Iterator[RunResult]:
    """Train the runs of a job in this process, and measure each on the CPU once it is finished.

    If a measurement fails, its error is the run's. If a batch fails, every unfinished run of it
    gets its error. InterruptedRunError on SIGINT or SIGTERM; the runs are checkpointed first.
    """
    from anchor_interp._util.environment import limited_threads  # it loads torch

    def measure(path: Path) -> None:
        with limited_threads(threads):
            measure_run(path, job.measures)

    left = dict.fromkeys(job.configs)
    with contextlib.closing(_train(job, folder, device, threads)) as results:
        try:
            for result in results:
                error = result.error
                if error is None and job.measures:
                    error = error_of(measure, folder / result.name)
                del left[result.name]
                yield RunResult(result.name, error)
        except InterruptedRunError:
            raise
        except AnchorInterpError as error:
            for name in left:
                yield RunResult(name, error)


def _train(job: Job, folder: Path, device: str, threads: int) -> Generator[RunResult, None, None]:
    from anchor_interp.runs.train import train
    from anchor_interp.sweeps.train_batch import train_batch

    if len(job.configs) > 1:
        yield from train_batch(job.configs, folder, device=device, threads=threads)
    else:
        ((name, config),) = job.configs.items()
        train(config, folder / name, device=device, threads=threads, quiet=True)
        yield RunResult(name, None)


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
