"""Which runs of a sweep are not done yet, and who works on them."""

import functools
import logging
import time
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from anchor_interp._util.errors import (
    AnchorInterpError,
    ConfigError,
    DivergedError,
    LockedError,
    StoreError,
)
from anchor_interp._util.progress import Overall, Progress
from anchor_interp.runs.config import RunConfig, shape_key
from anchor_interp.runs.measurements import Measure, lacking
from anchor_interp.sweeps.columns import RunStatus
from anchor_interp.sweeps.engine import Job, RunResult
from anchor_interp.sweeps.folder import ENDED, SweepFolder

TRIES = 3
"""How often a run is tried before it counts as failed, until the sweep is started again."""
_LOOK_SECONDS = 2.0
_LOGGER = logging.getLogger(__name__)


@dataclass(eq=False)
class _Run:
    """A run that is asked for, and how often it was tried."""

    name: str
    config: RunConfig
    measures: tuple[Measure, ...]
    tries: int = 0
    is_in_batch: bool = False
    is_kept_alone: bool = False
    """It failed in a batch, perhaps due to another run."""

    @functools.cached_property
    def shape(self) -> Hashable:
        """What the runs of a batch have in common."""
        return shape_key(self.config), self.measures

    def has_ended(self, state: RunStatus, runs: Path) -> bool:
        """Whether it needs neither training nor measuring."""
        if state != "done" or not self.measures:
            return state in ENDED
        return not lacking(runs / self.name, self.measures)


class Scheduler:
    """The runs of a sweep: those that wait, those in jobs, those of other processes.

    At most ``batch`` runs train together; 0 stands for as many as are fastest on the device. Call
    :meth:`begin` before the first job is taken.
    """

    def __init__(
        self,
        folder: SweepFolder,
        configs: Mapping[str, RunConfig],
        measures: Mapping[str, tuple[Measure, ...]],
        *,
        batch: int,
        device: str,
    ) -> None:
        self._folder = folder
        self._runs = {name: _Run(name, config, measures[name]) for name, config in configs.items()}
        self._batch, self._device = batch, device
        self._fastest: dict[Hashable, int] = {}
        self._waiting: dict[str, _Run] = {}
        self._running: dict[str, _Run] = {}
        self._elsewhere: dict[str, _Run] = {}  # another process trains them
        self._has_warned = False
        self._overall: Overall

    def begin(self, overall: Overall) -> None:
        """See which runs have ended."""
        self._overall = overall
        states = self._folder.states(self._runs)
        for name, run in self._runs.items():
            if not run.has_ended(states[name], self._folder.runs):
                self._waiting[name] = run
        overall.begin(len(self._runs) - len(self._waiting))

    def progress(self, name: str) -> Progress:
        """What a run reports to."""
        return self._overall.run(name, self._runs[name].config.train.steps)

    def jobs(self) -> Iterator[Job | None]:
        """The jobs that are left, each chosen when it is asked for; None means to wait."""
        looked = 0.0
        while self._waiting or self._running or self._elsewhere:
            if self._elsewhere and time.monotonic() - looked > _LOOK_SECONDS:
                looked = time.monotonic()
                self._look_elsewhere()
            if runs := self._next():
                for run in runs:
                    self._running[run.name] = run
                    run.is_in_batch = len(runs) > 1
                yield Job({run.name: run.config for run in runs}, runs[0].measures)
            elif self._running or self._elsewhere:
                if not self._running and not self._has_warned:
                    self._warn_of_others()
                yield None

    def take(self, result: RunResult) -> None:
        """Note how a run ended and whether to try it again."""
        run, error = self._running.pop(result.name), result.error
        if error is None:
            self._folder.forget_failure(run.name)
            self._overall.end(run.name)
        elif isinstance(error, LockedError):
            self._overall.lose(run.name)
            self._elsewhere[run.name] = run
        elif run.is_in_batch and not isinstance(error, DivergedError):
            _LOGGER.warning("%s: %s; it is tried again by itself", run.name, error)
            run.is_kept_alone = True
            self._retry(run)
        else:
            self._note_failure(run, error)

    def _note_failure(self, run: _Run, error: AnchorInterpError) -> None:
        run.tries += 1
        is_final = isinstance(error, DivergedError | ConfigError) or run.tries >= TRIES
        how = "" if is_final else f"; it is tried again ({TRIES - run.tries} left)"
        _LOGGER.warning("%s: %s%s", run.name, error, how)
        try:
            self._folder.note_failure(run.name, error)
        except StoreError as problem:  # a run whose error cannot be kept is simply not done
            _LOGGER.warning(problem)
        if is_final:
            self._overall.end(run.name, failed=True)
        else:
            self._retry(run)

    def _retry(self, run: _Run) -> None:
        self._overall.lose(run.name)
        self._waiting[run.name] = run

    def _look_elsewhere(self) -> None:
        """Take up the runs that other processes have finished or abandoned."""
        for name in sorted(self._elsewhere):
            if self._folder.state(name) != "running":
                self._waiting[name] = self._elsewhere.pop(name)

    def _warn_of_others(self) -> None:
        self._has_warned = True
        lock = self._folder.runs / min(self._elsewhere) / ".lock.json"
        _LOGGER.warning(
            f"waiting for {len(self._elsewhere)} runs that other processes train, such as the one "
            f"that {lock} names; if it is gone, remove that file"
        )

    def _most(self, run: _Run) -> int:
        """How many runs may train together with this one, itself included."""
        if run.is_kept_alone or self._batch:
            return 1 if run.is_kept_alone else self._batch
        if run.shape not in self._fastest:
            from anchor_interp.sweeps.train_batch import batch_size  # it loads torch

            alike = [other.config for other in self._runs.values() if other.shape == run.shape]
            self._fastest[run.shape] = batch_size(alike, self._device)
        return self._fastest[run.shape]

    def _next(self) -> list[_Run]:
        """The runs of the next job, by what the folder shows now."""
        chosen: list[_Run] = []
        for run in list(self._waiting.values()):
            if chosen and len(chosen) >= self._most(chosen[0]):
                break
            if chosen and (run.is_kept_alone or run.shape != chosen[0].shape):
                continue
            del self._waiting[run.name]
            state = self._folder.state(run.name)
            if state == "running":
                self._elsewhere[run.name] = run
            elif run.has_ended(state, self._folder.runs):
                self._overall.end(run.name)
            else:
                chosen.append(run)
        return chosen
