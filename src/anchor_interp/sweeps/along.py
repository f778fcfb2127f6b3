"""Any function of a model at every checkpoint of a run, or of all finished runs of a sweep.

Runs keep each value at once (:mod:`anchor_interp.runs.measurements`), and their reports draw it.
Over a sweep the same call goes on where an earlier one was stopped: a function is measured again
after a change of the file that defines it, and what failed is tried again.
"""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import logging
import math
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anchor_interp._util.errors import AnchorInterpError, ConfigError, StoreError
from anchor_interp._util.progress import Progress, reporting_all
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked, shown, to_dict
from anchor_interp.interventions.subject import Subject
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.measurements import ALONG, Measure, Values, keep, kept, lacking, rows_along
from anchor_interp.runs.run import Run, load
from anchor_interp.runs.zoo import SPECIMENS
from anchor_interp.sweeps.engine import Job
from anchor_interp.sweeps.folder import SweepFolder, sweep_folder
from anchor_interp.sweeps.local import LocalEngine

_LOGGER = logging.getLogger(__name__)
_LOADED: dict[Path, str] = {}  # files as they were when a function of theirs was first measured
_Found = Iterator[tuple[dict[str, Any], Values | str]]
_Take = Callable[[Callable[[Any], Any], Run], Values | str]


@dataclass(frozen=True, eq=False, repr=False)
class Along(Readable):
    """Numbers along training: one row a checkpoint, NaN with its ``reason`` where one failed.

    :func:`anchor_interp.pages.run_figures.along_curves` draws the rows.
    """

    name: str
    rows: tuple[Mapping[str, Any], ...]

    def _summary(self) -> str:
        failed = sum(row["reason"] is not None for row in self.rows)
        runs = len({row.get("run_id") for row in self.rows})
        return f"{self.name} at {len(self.rows)} checkpoints of {runs} runs; {failed} failed"

    def _rows(self) -> tuple[Mapping[str, Any], ...]:
        return self.rows


def along(
    source: Run | SweepFolder | str | Path,
    measure: Callable[[Any], Any],
    *,
    subject: bool = False,
    workers: int = 1,
    quiet: bool = False,
) -> Along:
    """Apply a function to the model at every checkpoint of a run, or of a sweep's finished runs.

    Runs keep what a function at the top of a file gives. A single run is always measured anew.

    Args:
        source: a run, or a sweep by its folder.
        measure: takes the HookedTransformer in ``eval`` mode, and returns a number, or a dictionary
            or dataclass of numbers (other fields of a dataclass are left out). Each number is a
            column; a single one is ``value``. If it raises, the row has NaN and the reason.
        subject: give it the :class:`anchor_interp.interventions.subject.Subject` in place of the
            model: with the run's task, training data and initial model.
        workers: processes that measure a sweep's runs. They import the function; one that cannot be
            imported, such as a script's own, is measured in this process.

    Raises:
        ConfigError: no function, or one without a name, which the runs of a sweep cannot keep.
        StoreError: there is no such sweep.
    """
    if not callable(measure):
        raise ConfigError(f"measure is {shown(measure)}; expected a function of a model")
    checked(subject, bool, "subject")
    checked(workers, int, "workers", low=1)
    name = getattr(measure, "__qualname__", type(measure).__name__)
    take = of_subject if subject else of_model
    if isinstance(source, Run):
        return Along(name, rows_along(_of_run(source, measure, name, take)))
    folder = source if isinstance(source, SweepFolder) else sweep_folder(source)
    named, configs = _named(measure, name, take), folder.spec().configs()
    done = {n: configs[n] for n, state in folder.states(configs).items() if state == "done"}
    for run in (load(folder.runs / name) for name in done):
        for step in run.steps:
            if isinstance(kept(run.folder.path, named, step), str):
                keep(run.at(step), named, None)  # what failed is tried again
    if workers > 1 and _is_importable(measure, named):
        _measure_in_workers(folder, done, named, workers, quiet)
        quiet = True
    found = _of_runs(folder, done, named, functools.partial(take, measure), quiet)
    return Along(name, rows_along(found))


def of_model(measure: Callable[[Any], Any], run: Run) -> Values | str:
    """The numbers of a function of a run's model, or why there are none."""
    return _taken(lambda: measure(run.model))


def of_subject(measure: Callable[[Any], Any], run: Run) -> Values | str:
    """The numbers of a function of a run's subject, or why there are none."""
    return _taken(lambda: measure(Subject.of_run(run)))


def _of_run(run: Run, measure: Callable[[Any], Any], name: str, take: _Take) -> _Found:
    """The values of a run, which are kept if its folder and the function allow it."""
    named = None
    is_stored = run.path is not None and SPECIMENS not in run.path.parents
    if is_stored and str(run.dtype) == "torch.float32":  # as a sweep's are measured
        with contextlib.suppress(ConfigError):
            named = _named(measure, name, take)
    for step in run.steps:
        values = take(measure, at := run.at(step))
        if named is not None and not (
            isinstance(values, str) and kept(at.folder.path, named, step)
        ):
            with contextlib.suppress(StoreError):
                keep(at, named, values)
        yield {"step": step}, values


def _of_runs(
    folder: SweepFolder,
    names: Collection[str],
    named: Measure,
    take: Callable[[Run], Values | str],
    quiet: bool,
) -> _Found:
    """The values of finished runs; each that is new is kept."""
    with reporting_all(len(names), what="runs", quiet=quiet) as progress:
        for name in names:
            run = load(folder.runs / name)
            for step in run.steps:
                if (values := kept(folder.runs / name, named, step)) is None:
                    values = take(at := run.at(step))
                    keep(at, named, values)
                yield {"run_id": name, "step": step}, values
            progress.end(name)


def _measure_in_workers(
    folder: SweepFolder, done: Mapping[str, RunConfig], named: Measure, workers: int, quiet: bool
) -> None:
    """Let other processes measure what runs lack; what they cannot is left to this one."""
    measures = {n: replace(named, steps=tuple(load(folder.runs / n).steps)) for n in done}
    jobs = [Job({n: done[n]}, (m,)) for n, m in measures.items() if lacking(folder.runs / n, [m])]
    with reporting_all(len(jobs), what="runs", quiet=quiet) as progress:
        results = LocalEngine(workers, "cpu").run(iter(jobs), folder.runs, lambda _: Progress())
        with contextlib.closing(results):
            for result in results:
                if result.error is not None:
                    _LOGGER.warning("%s: %s", result.name, result.error)
                progress.end(result.name)


def _is_importable(measure: Callable[[Any], Any], named: Measure) -> bool:
    """Whether other processes can import the function; they would run a script again."""
    if measure.__module__ != "__main__":
        return True
    _LOGGER.warning("workers cannot import %s: it is measured in this process", named.function)
    return False


def _named(measure: Callable[[Any], Any], name: str, take: _Take) -> Measure:
    """What runs keep the values under."""
    try:
        inner = inspect.unwrap(measure)
        file = Path(inspect.getfile(inner))  # TypeError if it has none
        where = f"{measure.__module__}:{name}"
        if "<" in name or pkgutil.resolve_name(where) is not measure:
            raise TypeError
        text = file.read_text("utf-8") if file.exists() else inspect.getsource(inner)
    except (TypeError, OSError, ImportError, AttributeError):
        expected = "expected a function at the top of a file, whose name tells runs what they keep"
        raise ConfigError(f"measure is {shown(measure)}; {expected}") from None
    if _LOADED.setdefault(file, text) != text:
        raise ConfigError(f"{file} has changed since its function was measured; start Python again")
    version = int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)
    of = " of a subject" if take is of_subject else ""
    return Measure(f"{ALONG}{where}{of}", where, version, through=f"{__name__}:{take.__name__}")


def _taken(take: Callable[[], Any]) -> Values | str:
    """The numbers, or why there are none."""
    try:
        return _numbers(take())
    except AnchorInterpError as error:
        return str(error)
    except Exception as error:  # a user's function may raise anything
        return f"{type(error).__name__}: {error}"


def _numbers(value: Any) -> Values:
    if dataclasses.is_dataclass(value):
        value = {n: v for n, v in to_dict(value).items() if type(v) in (int, float)}
    named = value if isinstance(value, Mapping) else {"value": value}
    if not named or any(isinstance(number, str) for number in named.values()):
        raise ConfigError(f"it returned {shown(value)}; expected numbers")
    numbers = {str(name): float(number) for name, number in named.items()}
    if taken := sorted(numbers.keys() & {"run_id", "step", "reason"}):
        raise ConfigError(f"it returned a number called {taken[0]}, a column of every table")
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}
