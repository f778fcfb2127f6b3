"""Measurements of finished runs. A run keeps each at once, so this can stop at any moment."""

import logging
from collections.abc import Iterable, Sequence

from anchor_interp._util.errors import ConfigError, error_of
from anchor_interp._util.progress import reporting_all
from anchor_interp._util.schema import shown
from anchor_interp.runs.measurements import Measure, column_measure, lacking, measure_run
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
