"""The sweep: train and measure what is missing of what was asked for.

It can be killed at any moment and started again: a run keeps checkpoints and each measurement at
once. Several may work on one folder: a run that another process trains is left to it, and taken up
if that process dies.
"""

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from anchor_interp._util.errors import ConfigError, StoreError, error_of
from anchor_interp._util.machine_limits import launched
from anchor_interp._util.progress import reporting_all
from anchor_interp._util.schema import checked, shown
from anchor_interp.runs.measurements import Measure, column_measure, lacking, measure_run
from anchor_interp.sweeps.columns import COLUMNS
from anchor_interp.sweeps.engine import Engine
from anchor_interp.sweeps.folder import SweepFolder, counts, new_folder
from anchor_interp.sweeps.local import LocalEngine
from anchor_interp.sweeps.scheduler import Scheduler
from anchor_interp.sweeps.spec import Sweep, read_sweep

TABLE_SECONDS = 60.0
"""Seconds between tables while runs are unfinished."""
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
        measures: what to measure of every run once it is done, or of some runs by their names.
        batch: how many runs of one shape a worker trains together at most; 0 trains as many as fit
            into the device's memory, if that is faster.

    Returns:
        The folder, with its table up to date. Runs that diverged or failed are rows of the table
        with their errors. Failed ones are tried again when the sweep is started again.
    """
    if (size := launched()) > 1:  # each would train every run
        text = f"{size} processes were started for a sweep (WORLD_SIZE is {size}); expected one"
        raise ConfigError(f"{text}: leave accelerate launch out, or unset WORLD_SIZE")
    plan = spec if isinstance(spec, Sweep) else read_sweep(spec)
    checked(batch, int, "batch", low=0)
    folder = new_folder(out)
    plan = folder.resumed(plan)
    configs = plan.configs()
    engine = LocalEngine() if engine is None else engine
    by_run = measures if isinstance(measures, Mapping) else dict.fromkeys(configs, measures)
    wanted = {name: tuple(by_run.get(name, ())) for name in configs}
    scheduler = Scheduler(folder, configs, wanted, batch=batch, device=engine.device)
    with reporting_all(len(configs), quiet=quiet) as overall:
        # before anything is written: an engine refuses bad settings
        results = engine.run(scheduler.jobs(), folder.runs, scheduler.progress)
        folder.extend(plan)
        folder.write_table()
        scheduler.begin(overall)
        began = time.monotonic()
        with contextlib.closing(results):  # at once, even if an exception keeps a reference
            for result in results:
                scheduler.take(result)
                if time.monotonic() - began > TABLE_SECONDS:
                    with contextlib.suppress(StoreError):  # it is written again at the end
                        folder.write_table()
                    began = time.monotonic()
    states = counts(folder.write_table())
    _LOGGER.info("%s: %s", folder.path, ", ".join(f"{n} {state}" for state, n in states.items()))
    return folder


def own_measures(functions: Iterable[str]) -> tuple[Measure, ...]:
    """The measures of functions, each as ``module:function``; ConfigError for a taken name."""
    measures = tuple(map(column_measure, functions))
    names = [measure.name for measure in measures]
    for name in names:
        if name in COLUMNS or names.count(name) > 1:
            whose = "a column of every table" if name in COLUMNS else "two measures"
            raise ConfigError(f"{shown(name)} is the name of {whose}; rename the function")
    return measures


def unmeasured(
    folder: SweepFolder, measures: Sequence[Measure], names: Iterable[str] | None = None
) -> list[str]:
    """The finished runs, of all or of these names, that lack a value of a measure."""
    states = folder.states(folder.spec().configs() if names is None else names)
    done = [name for name, state in states.items() if state == "done"]
    return [name for name in done if lacking(folder.runs / name, measures)]


def measure_runs(folder: SweepFolder, measures: Sequence[Measure], *, quiet: bool = False) -> int:
    """Take the measurements that finished runs lack; how many runs failed (warnings say why)."""
    todo, failed = unmeasured(folder, measures), 0
    with reporting_all(len(todo), what="measurements", quiet=quiet) as progress:
        for name in todo:
            if (error := error_of(measure_run, folder.runs / name, measures)) is not None:
                failed += 1
                _LOGGER.warning("%s: %s", name, error)
            progress.end(name)
    return failed
