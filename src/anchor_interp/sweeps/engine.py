"""Engines train and measure runs: what they are given and what they give back.

An :class:`Engine` takes a :class:`Job` when it has room for one and yields a :class:`RunResult` for
each run as it ends. There are two: :class:`anchor_interp.sweeps.local.LocalEngine` and
:class:`anchor_interp.sweeps.ray.RayEngine`.
"""

import contextlib
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from anchor_interp._util.errors import AnchorInterpError
from anchor_interp._util.progress import Progress
from anchor_interp._util.signals import interruptible
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.measurements import Measure


@dataclass(frozen=True)
class Job:
    """What one worker does at a time: train a run, or several of one shape as a batch of models.

    Runs have the name of their folder. Each is measured once it is done, unless it keeps the value.
    """

    configs: Mapping[str, RunConfig]
    measures: tuple[Measure, ...] = ()


@dataclass(frozen=True)
class RunResult:
    """How a run ended; the error is None if it is finished and measured."""

    name: str
    error: AnchorInterpError | None


def each_alone(configs: Mapping[str, RunConfig]) -> Iterator[Job]:
    """One job for each run, in order."""
    return (Job({name: config}) for name, config in configs.items())


class Engine(Protocol):
    """Where jobs are done."""

    @property
    def device(self) -> str:
        """Where runs train: ``auto``, ``cpu``, ``cuda``, ..."""

    def run(
        self, jobs: Iterator[Job | None], folder: Path, progress: Callable[[str], Progress]
    ) -> Generator[RunResult, None, None]:
        """Do jobs, each run in ``folder / name``, and resume those that exist.

        A job is pulled when there is room for it; None means to ask again later. Yields a result
        for each run as it ends; one that fails does not stop the others. Closing the iterator early
        checkpoints and stops the unfinished runs. ``progress`` gives what a run reports to.
        """


class Queue:
    """The jobs of an engine; one that does not fit yet is kept."""

    def __init__(self, jobs: Iterator[Job | None]) -> None:
        self._jobs = jobs
        self._next: Job | None = None
        self.has_ended = False

    def take(self, fits: Callable[[Job], bool] = lambda _: True) -> Job | None:
        """The next job; None if it does not fit, nothing is to be done now or none is left."""
        if self._next is None and not self.has_ended:
            try:
                self._next = next(self._jobs)
            except StopIteration:
                self.has_ended = True
        job = self._next
        if job is None or not fits(job):
            return None
        self._next = None
        return job


class Crew(Protocol):
    """What does the jobs of an engine: processes, or the tasks of a cluster."""

    @property
    def busy(self) -> Sized:
        """Those that have a job."""

    def start(self, queue: Queue) -> None:
        """Give out jobs while there is room."""

    def running(self) -> list[str]:
        """The runs in work that have no result yet."""

    def wait(self) -> None:
        """Wait a while, or until there is news."""

    def news(self) -> Iterator[RunResult]:
        """New results; the runs of a worker that died get an error."""

    def close(self) -> None:
        """Let everyone checkpoint, and wait until all have ended."""


def drive(
    crew: Callable[[], Crew], jobs: Iterator[Job | None], meters: "Meters"
) -> Generator[RunResult, None, None]:
    """Have a crew do all jobs, and yield its results as they come."""
    queue = Queue(jobs)
    with interruptible(), contextlib.closing(crew()) as workers:
        while True:
            workers.start(queue)
            if queue.has_ended and not len(workers.busy):
                return
            workers.wait()
            meters.read(workers.running())
            yield from workers.news()


class Meters:
    """Report runs from the new lines of their metrics."""

    def __init__(self, folder: Path, progress: Callable[[str], Progress]) -> None:
        self._folder, self._progress = folder, progress
        self._meters: dict[str, _Meter] = {}

    def read(self, running: Iterable[str]) -> None:
        """Report the runs of these names; forget the others."""
        meters = {name: self._meters.get(name) or _Meter(self._progress(name)) for name in running}
        self._meters = meters
        for name, meter in meters.items():
            meter.read(self._folder / name / "metrics.jsonl")


@dataclass
class _Meter:
    """How far the metrics of one run are read."""

    progress: Progress
    position: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    def read(self, path: Path) -> None:
        """Report the new lines; whatever is wrong with the file, the run's own process reports."""
        with contextlib.suppress(AnchorInterpError, OSError, ValueError, TypeError, KeyError):
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self.position:
                    self.position = 0  # the run resumed and cut the lines after its checkpoint
                file.seek(self.position)
                part = file.read()
            whole = part[: part.rfind(b"\n") + 1]
            self.position += len(whole)
            for line in whole.splitlines():
                self.facts.update(json.loads(line))
            if whole:
                self.progress.update(self.facts["step"], self.facts)
