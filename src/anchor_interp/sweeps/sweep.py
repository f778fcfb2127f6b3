"""The sweep: train and measure what is missing of what was asked for.

A sweep knows only what the run folders show, so it can be killed at any moment and started again.
Several may work on one folder: a run that another process trains is left to it, and taken up if
that process dies.
"""

import contextlib
import logging
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anchor_interp._util.errors import ConfigError, DivergedError, LockedError, StoreError
from anchor_interp._util.limits import launched
from anchor_interp._util.progress import Overall, Progress, reporting_all
from anchor_interp._util.schema import checked, checked_path
from anchor_interp.models.shapes import n_parameters
from anchor_interp.runs.config import RunConfig, shape_key
from anchor_interp.runs.measurements import Measure, lacking
from anchor_interp.sweeps.columns import State
from anchor_interp.sweeps.engine import Engine, Job, RunResult
from anchor_interp.sweeps.folder import ENDED, SweepFolder
from anchor_interp.sweeps.local import LocalEngine
from anchor_interp.sweeps.spec import Sweep, read_sweep
from anchor_interp.sweeps.table import counts

TRIES = 3
"""How often a run is tried before it counts as failed, until the sweep is started again."""
TABLE_SECONDS = 60.0
"""Seconds between tables while runs are unfinished."""
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
    """Train every run of a sweep that is not done yet, and take the measurements that runs lack.

    Args:
        out: the sweep folder; it is created, or extended by what is new.
        engine: if None, worker processes on this machine.
        measures: what to measure of every run once it is done, or of some runs by their names. The
            values are in the run folders, see :mod:`anchor_interp.runs.measurements`.
        batch: how many runs of one shape a worker trains together at most; 0 trains as many as fit
            into the device's memory, if that is faster.

    Returns:
        The folder, with its table up to date. Runs that diverged or failed are rows of the table
        with their errors. Failed ones are tried again when the sweep is started again.

    Raises:
        ConfigError: the sweep, the device or the number of workers cannot be used, or several
            processes were started for it.
        StoreError: the folder cannot be used.
    """
    if (size := launched()) > 1:  # each would train every run
        raise ConfigError(
            f"{size} processes were started for a sweep (WORLD_SIZE is {size}); expected one, "
            "which starts workers by itself: leave accelerate launch out, or unset WORLD_SIZE"
        )
    plan = spec if isinstance(spec, Sweep) else read_sweep(spec)
    checked(batch, int, "batch", low=0)
    configs = plan.configs()
    folder = SweepFolder(checked_path(out, "out"))
    engine = LocalEngine() if engine is None else engine
    by_run = measures if isinstance(measures, Mapping) else dict.fromkeys(configs, measures)
    wanted = {name: tuple(by_run.get(name, ())) for name in configs}
    total = len(configs) + sum(map(_n_values, wanted.values()))
    what = "runs" if total == len(configs) else "runs and measurements"
    work = sum(map(work_of, configs.values()))
    with reporting_all(total, work, what=what, quiet=quiet) as overall:
        todo = _Todo(folder, configs, wanted, batch, engine.device, overall)
        results = engine.run(todo.jobs(), folder.runs, todo.progress)  # refuses bad settings
        folder.extend(plan)
        folder.write_table()
        todo.begin()
        began = time.monotonic()
        with contextlib.closing(results):  # at once, even if an exception keeps a reference
            for result in results:
                todo.take(result)
                if time.monotonic() - began > TABLE_SECONDS:
                    with _warned():  # the table is written again at the end
                        folder.write_table()
                    began = time.monotonic()
    found = counts(folder.write_table())
    _LOGGER.info("%s: %s", folder.path, ", ".join(f"{n} {state}" for state, n in found.items()))
    return folder


def work_of(config: RunConfig) -> float:
    """The work of a run, to compare runs: sequences seen times parameters."""
    return config.train.steps * config.train.batch_size * n_parameters(config.model)


def _n_values(measures: Sequence[Measure]) -> int:
    return sum(len(measure.steps) or 1 for measure in measures)


@contextlib.contextmanager
def _warned() -> Iterator[None]:
    """Turn a StoreError, such as a full disk, into a warning."""
    try:
        yield
    except StoreError as error:
        _LOGGER.warning(error)


@dataclass
class _Todo:
    """Which runs are not done yet, and who works on them."""

    folder: SweepFolder
    configs: Mapping[str, RunConfig]
    measures: Mapping[str, tuple[Measure, ...]]
    batch: int
    device: str
    overall: Overall
    waiting: dict[str, None] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)  # another process trains them
    tries: dict[str, int] = field(default_factory=dict)
    in_batch: set[str] = field(default_factory=set)
    alone: set[str] = field(default_factory=set)  # failed in a batch, perhaps due to another run
    shapes: dict[str, Hashable] = field(default_factory=dict)  # what a batch has in common
    most: dict[Hashable, int] = field(default_factory=dict)  # runs of a shape in a batch
    has_warned: bool = False

    def begin(self) -> None:
        states = self.folder.states(self.configs)
        ended = {name for name, state in states.items() if self._has_ended(name, state)}
        self.waiting = dict.fromkeys(name for name in states if name not in ended)
        if self.batch != 1:
            configs = self.configs.items()
            self.shapes = {name: (shape_key(run), self.measures[name]) for name, run in configs}
        count = sum(1 + _n_values(self.measures[name]) for name in ended)
        self.overall.begin(count, sum(work_of(self.configs[name]) for name in ended))

    def progress(self, name: str) -> Progress:
        config = self.configs[name]
        return self.overall.run(name, config.train.steps, work_of(config))

    def jobs(self) -> Iterator[Job | None]:
        """The jobs that are left, each chosen when it is asked for; None means to wait."""
        looked = 0.0
        while self.waiting or self.running or self.elsewhere:
            if self.elsewhere and time.monotonic() - looked > _LOOK_SECONDS:
                looked = time.monotonic()
                for name in sorted(self.elsewhere):
                    if self.folder.state(name) != "running":  # finished or abandoned
                        self.elsewhere.remove(name)
                        self.waiting[name] = None
            names = self._next()
            if names:
                self.running.update(names)
                if len(names) > 1:
                    self.in_batch.update(names)
                yield Job({name: self.configs[name] for name in names}, self.measures[names[0]])
            elif self.running or self.elsewhere:
                if not self.running and not self.has_warned:
                    self.has_warned = True
                    lock = self.folder.runs / min(self.elsewhere) / ".lock.json"
                    _LOGGER.warning(
                        f"waiting for {len(self.elsewhere)} runs that other processes train, such "
                        f"as the one that {lock} names; if it is gone, remove that file"
                    )
                yield None

    def take(self, result: RunResult) -> None:
        """Note how a run ended and whether to try it again."""
        name, error = result.name, result.error
        self.running.discard(name)
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
            self._retry(name)
        else:
            tries = self.tries[name] = self.tries.get(name, 0) + 1
            is_final = isinstance(error, DivergedError | ConfigError) or tries >= TRIES
            how = "" if is_final else f"; it is tried again ({TRIES - tries} left)"
            _LOGGER.warning("%s: %s%s", name, error, how)
            with _warned():  # a run whose error cannot be kept is simply not done
                self.folder.note_failure(name, error)
            if is_final:
                self._end(name, failed=True)
            else:
                self._retry(name)

    def _retry(self, name: str) -> None:
        self.overall.lose(name)
        self.waiting[name] = None

    def _end(self, name: str, *, failed: bool = False) -> None:
        self.overall.end(name, work_of(self.configs[name]), failed=failed)
        for _ in range(_n_values(self.measures[name])):
            self.overall.end(name, 0.0)

    def _next(self) -> list[str]:
        """The names of the next job, by what the folder shows now."""
        found: list[str] = []
        for name in list(self.waiting):
            if found and len(found) >= self._most(found[0]):
                break
            if found and (name in self.alone or self.shapes[name] != self.shapes[found[0]]):
                continue
            del self.waiting[name]
            if self._is_free(name):
                found.append(name)
        return found

    def _most(self, name: str) -> int:
        """How many runs may train together with this one, itself included."""
        if self.batch == 1 or name in self.alone:
            return 1
        if self.batch:
            return self.batch
        shape = self.shapes[name]
        if shape not in self.most:
            from anchor_interp.sweeps.batch import batch_size  # it loads torch

            alike = [config for name, config in self.configs.items() if self.shapes[name] == shape]
            self.most[shape] = batch_size(alike, self.device)
        return self.most[shape]

    def _is_free(self, name: str) -> bool:
        """Whether a run is not done and nobody works on it; otherwise it is noted."""
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
