"""Engines train and measure runs: what they are given and what they give back.

A :class:`Job` is what one worker trains at a time, then measures: one run, or several of one shape
as a batch of models. An :class:`Engine` pulls jobs when it has room for them and yields a :class:`RunResult` for
every run; :class:`anchor_interp.sweeps.local.LocalEngine` and
:class:`anchor_interp.sweeps.ray.RayEngine` are the two.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from anchor_interp._util import files
from anchor_interp._util.errors import AnchorInterpError, ConfigError
from anchor_interp._util.progress import Progress
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.measurements import Measure


@dataclass(frozen=True)
class Job:
    """What one worker trains at a time."""

    configs: Mapping[str, RunConfig]
    """Runs by the names of their folders; several train as a batch of models."""
    measures: tuple[Measure, ...] = ()
    """What to measure of each run once it is done, unless the run keeps it already."""

    def __post_init__(self) -> None:
        if not self.configs:
            raise ConfigError("a job without a run; expected one or more")

    @property
    def name(self) -> str:
        """The first run's name, and how many more there are."""
        first, *more = self.configs
        return f"{first} +{len(more)}" if more else first


@dataclass(frozen=True)
class RunResult:
    """How one run of several ended."""

    name: str
    """Its name among the runs."""
    path: Path
    """Its folder."""
    error: AnchorInterpError | None
    """What went wrong; None for a finished run."""


def each_alone(
    configs: Mapping[str, RunConfig], measures: tuple[Measure, ...] = ()
) -> Iterator[Job]:
    """One job for each run, in order."""
    return (Job({name: config}, measures) for name, config in configs.items())


class Engine(Protocol):
    """Where jobs are done."""

    @property
    def device(self) -> str:
        """What runs train on: ``auto``, ``cpu``, ``cuda``, ..."""
        ...

    def run(
        self, jobs: Iterator[Job | None], folder: Path, progress: Callable[[str], Progress]
    ) -> Generator[RunResult, None, None]:
        """Do jobs, each run in ``folder / name``, resuming what is there.

        Args:
            jobs: pulled one at a time and only when there is room for one, so that whoever gives
                them can decide as late as possible. None means that there is nothing to do right
                now: ask again a little later, and after every result.
            folder: where the run folders go.
            progress: what the run of a name reports to.

        Returns:
            An iterator of one result a run as it ends; a failed run does not stop the others.
            Closing it early checkpoints and stops the runs that are under way.
        """
        ...


class Meter:
    """Reports a run's progress from what was added to its metrics since the last time."""

    def __init__(self, path: Path, progress: Progress, *, every: float = 0.0) -> None:
        """Nothing is read yet.

        Args:
            path: the run folder.
            progress: what to report to.
            every: seconds between two looks at least.
        """
        self._file, self._progress, self._every = path / "metrics.jsonl", progress, every
        self._read, self._last = 0, -math.inf
        self._facts: dict[str, Any] = {}

    def read(self) -> None:
        """Report, if it is time; what is wrong with the file is its writer's to say."""
        if time.monotonic() - self._last < self._every:
            return
        self._last = time.monotonic()
        with contextlib.suppress(AnchorInterpError, OSError, ValueError, TypeError, KeyError):
            with files.open_regular(self._file) as file:
                if os.fstat(file.fileno()).st_size < self._read:
                    self._read = 0  # cut to the checkpoint that the run goes on from
                file.seek(self._read)
                part = file.read()
            whole = part[: part.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.splitlines():
                self._facts.update(json.loads(line))
            if whole:
                self._progress.update(self._facts["step"], self._facts)
