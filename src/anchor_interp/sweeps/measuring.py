"""Measurements of finished runs. A run keeps each at once, so this can stop at any moment."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from anchor_interp._util.errors import ConfigError, error_of
from anchor_interp._util.progress import reporting_all
from anchor_interp._util.schema import shown
from anchor_interp.analysis.mechanism import kept_fingerprint
from anchor_interp.runs.measurements import Measure, column_measure, lacking, measure_run
from anchor_interp.runs.store import RunFolder
from anchor_interp.sweeps.columns import COLUMNS
from anchor_interp.sweeps.folder import SweepFolder

_LOGGER = logging.getLogger(__name__)


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
    chosen = folder.spec().configs() if names is None else names
    return [name for name in _done(folder, chosen) if lacking(folder.runs / name, measures)]


def measure_runs(folder: SweepFolder, measures: Sequence[Measure], *, quiet: bool = False) -> int:
    """Take the measurements that finished runs lack; how many runs failed (warnings say why)."""
    act = partial(measure_run, measures=measures)
    return _each(folder, unmeasured(folder, measures), act, "measurements", quiet)


def measure_mechanisms(folder: SweepFolder, *, quiet: bool = False) -> int:
    """Take the fingerprint of every finished run that keeps none; as :func:`measure_runs`."""
    from anchor_interp.analysis.fingerprint import keep_fingerprint
    from anchor_interp.runs.run import load

    configs, todo = folder.spec().configs(), []
    for name in _done(folder, configs):
        run = folder.runs / name
        last = max(RunFolder(run).steps(), default=configs[name].train.steps)
        if kept_fingerprint(run, name, last) is None:
            todo.append(name)
    return _each(folder, todo, lambda path: keep_fingerprint(load(path)), "fingerprints", quiet)


def _done(folder: SweepFolder, names: Iterable[str]) -> list[str]:
    return [name for name, state in folder.states(names).items() if state == "done"]


def _each(
    folder: SweepFolder, todo: list[str], act: Callable[[Path], object], what: str, quiet: bool
) -> int:
    """Call a function on each of these runs, and return how many failed."""
    failed = 0
    with reporting_all(len(todo), len(todo), what=what, quiet=quiet) as progress:
        for name in todo:
            if (error := error_of(act, folder.runs / name)) is not None:
                failed += 1
                _LOGGER.warning("%s: %s", name, error)
            progress.end(name, 1)
    return failed
