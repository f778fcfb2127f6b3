"""The sweep: what is missing of what was asked for is trained, whoever stops it and however often.

:func:`sweep` is the whole pipeline: write down what is asked for, hand out what is missing, keep
what went wrong, bring the table up to date. It keeps nothing that the run folders do not show, so
it can be killed at any moment and started again, and several may work on one folder: a run that
another one trains is left to it and taken up if it is abandoned.
"""

import contextlib
import logging
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anchor_interp._util.errors import (
    AnchorInterpError,
    ConfigError,
    DivergedError,
    LockedError,
    StoreError,
)
from anchor_interp._util.progress import Overall, Progress, reporting_all
from anchor_interp._util.schema import checked, checked_path
from anchor_interp.models.shapes import n_parameters
from anchor_interp.runs.config import RunConfig, shape_key
from anchor_interp.runs.measurements import Measure, lacking
from anchor_interp.sweeps.engine import Engine, Job, RunResult
from anchor_interp.sweeps.folder import ENDED, State, SweepFolder
from anchor_interp.sweeps.local import LocalEngine
from anchor_interp.sweeps.spec import Sweep, read_sweep
from anchor_interp.sweeps.table import counts, write_table

TRIES = 3
"""How often a run is tried before it counts as failed, until the sweep is started again."""


TABLE_SECONDS = 60.0
"""Seconds between tables while runs are under way."""


_LOOK_SECONDS = 2.0


_LOGGER = logging.getLogger(__name__)


def sweep(
    spec: Sweep | str | Path,
    out: str | Path,
    *,
    engine: Engine | None = None,
    measures: Sequence[Measure] | Mapping[str, Sequence[Measure]] = (),
    batch: int = 1,
    quiet: bool = False,
) -> SweepFolder:
    """Train every run of a sweep that is not done yet, and measure what the runs do not keep.

    Args:
        spec: the sweep, or the path of its file.
        out: the sweep folder; created, or extended by what it has not been asked for before.
        engine: where runs are trained; worker processes on this machine if None.
        measures: what to measure of every run once it is done, or of some runs by their names.
        batch: most runs of one shape that one worker trains at a time as a batch of models; 0
            chooses what the device's memory takes and pays.
        quiet: report no progress.

    Returns:
        The folder with its table up to date. Runs that diverged or failed are rows of the table,
        with their errors; failed ones are tried again when the sweep is started again. Measurements
        are in the run folders (:mod:`anchor_interp.runs.measurements`).

    Raises:
        ConfigError: a sweep, a device or a number of workers that cannot be used.
        StoreError: the folder cannot be used.
    """
    plan = spec if isinstance(spec, Sweep) else read_sweep(spec)
    checked(batch, int, "batch", low=0)
    configs = plan.configs()
    folder = SweepFolder(checked_path(out, "out"))
    engine = LocalEngine() if engine is None else engine
    of_each = measures if isinstance(measures, Mapping) else dict.fromkeys(configs, measures)
    wanted = {name: tuple(of_each.get(name, ())) for name in configs}
    total = len(configs) + sum(map(_n_measurements, wanted.values()))
    what = "runs" if total == len(configs) else "runs and measurements"
    work = sum(map(work_of, configs.values()))
    with reporting_all(total, work, what=what, quiet=quiet) as overall:
        todo = _Todo(folder, configs, wanted, batch, engine.device, overall)
        results = engine.run(todo.jobs(), folder.runs, todo.progress)  # refuses what cannot be
        folder.extend(plan)
        write_table(folder)
        todo.begin()
        began = time.monotonic()
        with contextlib.closing(results):  # at once, whatever keeps hold of an exception
            for result in results:
                todo.take(result)
                if time.monotonic() - began > TABLE_SECONDS:
                    _write_table(folder)
                    began = time.monotonic()
    found = write_table(folder)
    _LOGGER.info(
        "%s: %s", folder.path, ", ".join(f"{n} {state}" for state, n in counts(found).items())
    )
    return folder


def work_of(config: RunConfig) -> float:
    """The work of a run, to compare runs by: sequences seen times parameters."""
    return config.train.steps * config.train.batch_size * n_parameters(config.model)


def _n_measurements(measures: Sequence[Measure]) -> int:
    return sum(len(measure.steps) or 1 for measure in measures)


@dataclass
class _Todo:
    """Which runs are still to be done, and by whom."""

    folder: SweepFolder
    configs: Mapping[str, RunConfig]
    measures: Mapping[str, tuple[Measure, ...]]
    batch: int
    device: str
    overall: Overall
    waiting: dict[str, None] = field(default_factory=dict)
    """The names of runs, in order."""
    under_way: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)
    """Runs that another process is training."""
    tries: dict[str, int] = field(default_factory=dict)
    in_batch: set[str] = field(default_factory=set)
    alone: set[str] = field(default_factory=set)
    """Runs that failed in a batch, by whoever's fault."""
    shapes: dict[str, Hashable] = field(default_factory=dict)
    most: dict[Hashable, int] = field(default_factory=dict)
    """Runs of a shape that train together at most."""
    waits: bool = False
    """Whether it was said that all that is left is trained by others."""

    def begin(self) -> None:
        """See what there is to do."""
        states = self.folder.states(self.configs)
        ended = [name for name, state in states.items() if self._has_ended(name, state)]
        self.waiting = dict.fromkeys(name for name in states if name not in set(ended))
        if self.batch != 1:
            self.shapes = {
                name: (shape_key(config), self.measures[name])
                for name, config in self.configs.items()
            }
        count = sum(1 + _n_measurements(self.measures[name]) for name in ended)
        self.overall.begin(count, sum(work_of(self.configs[name]) for name in ended))

    def progress(self, name: str) -> Progress:
        """What a run reports to."""
        config = self.configs[name]
        return self.overall.run(name, config.train.steps, work_of(config))

    def jobs(self) -> Iterator[Job | None]:
        """The jobs that are left, each decided on when it is asked for; None to wait."""
        looked = 0.0
        while self.waiting or self.under_way or self.elsewhere:
            if self.elsewhere and time.monotonic() - looked > _LOOK_SECONDS:
                self._look_elsewhere()
                looked = time.monotonic()
            names = self._next()
            if names:
                self.under_way |= set(names)
                self.in_batch |= set(names[1:] and names)
                yield Job({name: self.configs[name] for name in names}, self.measures[names[0]])
            elif self.under_way or self.elsewhere:
                self._say_if_waiting()
                yield None

    def take(self, result: RunResult) -> None:
        """Note how a run ended and whether it is to be tried again."""
        name, error = result.name, result.error
        self.under_way.discard(name)
        if error is None:
            self.folder.forget_failure(name)
            self._end(name)
        elif isinstance(error, LockedError):
            self.overall.lose(name)
            self.elsewhere.add(name)
        elif name in self.in_batch and not isinstance(error, DivergedError):
            _LOGGER.warning("%s: %s; it is tried again by itself", name, error)
            self.in_batch.discard(name)
            self.alone.add(name)
            self.overall.lose(name)
            self.waiting[name] = None
        else:
            tries = self.tries[name] = self.tries.get(name, 0) + 1
            final = isinstance(error, DivergedError | ConfigError) or tries >= TRIES
            how = "" if final else f"; it is tried again ({TRIES - tries} left)"
            _LOGGER.warning("%s: %s%s", name, error, how)
            self._keep(name, error)
            if final:
                self._end(name, failed=True)
            else:
                self.overall.lose(name)
                self.waiting[name] = None

    def _next(self) -> list[str]:
        """The names of the next job, by what the folder shows now."""
        while self.waiting:
            name = next(iter(self.waiting))
            del self.waiting[name]
            if self._is_free(name):
                return [name, *self._companions(name)]
        return []

    def _companions(self, name: str) -> list[str]:
        """Other waiting runs that one worker can train along with this one."""
        if self.batch == 1 or name in self.alone:
            return []
        shape = self.shapes[name]
        found: list[str] = []
        for other in list(self.waiting):
            if len(found) + 1 >= self._most(shape):
                break
            if self.shapes[other] == shape and other not in self.alone:
                del self.waiting[other]
                if self._is_free(other):
                    found.append(other)
        return found

    def _most(self, shape: Hashable) -> int:
        """How many runs of a shape train together at most."""
        if self.batch:
            return self.batch
        if shape not in self.most:
            from anchor_interp.sweeps.batch import batch_size  # it loads torch

            alike = [config for name, config in self.configs.items() if self.shapes[name] == shape]
            self.most[shape] = batch_size(alike, self.device)
        return self.most[shape]

    def _is_free(self, name: str) -> bool:
        """Whether a run is left to be done by nobody else; those that are not are noted."""
        state = self.folder.state(name)
        if state == "running":
            self.elsewhere.add(name)
        elif self._has_ended(name, state):
            self._end(name)
        else:
            return True
        return False

    def _has_ended(self, name: str, state: State) -> bool:
        """Whether a run needs neither training nor measuring."""
        if state != "done" or not self.measures[name]:
            return state in ENDED
        last = self.configs[name].train.steps
        return not lacking(self.folder.runs / name, self.measures[name], last)

    def _look_elsewhere(self) -> None:
        """Take up what another process has ended or abandoned."""
        for name in sorted(self.elsewhere):
            if self.folder.state(name) != "running":
                self.elsewhere.remove(name)
                self.waiting[name] = None

    def _say_if_waiting(self) -> None:
        """Say once who is waited for when nothing is left to do here."""
        if self.elsewhere and not self.under_way and not self.waits:
            self.waits = True
            _LOGGER.warning(
                "waiting for %d runs that other processes are training, such as the one that %s "
                "names; if it is gone, remove that file",
                len(self.elsewhere),
                self.folder.runs / min(self.elsewhere) / ".lock",
            )

    def _end(self, name: str, *, failed: bool = False) -> None:
        self.overall.end(name, work_of(self.configs[name]), failed=failed)
        for _ in range(_n_measurements(self.measures[name])):
            self.overall.end(name, 0.0)

    def _keep(self, name: str, error: AnchorInterpError) -> None:
        try:
            self.folder.note_failure(name, error)
        except StoreError as problem:  # a full disk, say: the run is simply not done
            _LOGGER.warning(problem)


def _write_table(folder: SweepFolder) -> None:
    try:
        write_table(folder)
    except StoreError as problem:  # it is derived and will be written at the end
        _LOGGER.warning(problem)
