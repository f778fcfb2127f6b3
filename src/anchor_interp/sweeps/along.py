"""Any function of a model at every checkpoint of a run, or of all finished runs of a sweep.

The runs of a sweep keep each value at once (:mod:`anchor_interp.runs.measurements`), so the same
call goes on where an earlier one was stopped. A function is measured again after a change of the
file that defines it. What failed is tried again.
"""

import dataclasses
import hashlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchor_interp._util.errors import AnchorInterpError, ConfigError
from anchor_interp._util.progress import reporting_all
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked, shown, to_dict
from anchor_interp.interventions.subject import Subject
from anchor_interp.runs.measurements import Measure, keep, kept
from anchor_interp.runs.run import Run, load
from anchor_interp.sweeps.folder import SweepFolder, sweep_folder

Values = Mapping[str, float | None]
"""Numbers by name; None for one that is not finite."""


@dataclass(frozen=True, eq=False, repr=False)
class Along(Readable):
    """Numbers along training: one row a checkpoint, NaN with its ``reason`` where one failed."""

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
    quiet: bool = False,
) -> Along:
    """Apply a function to the model at every checkpoint of a run, or of a sweep's finished runs.

    Args:
        source: a run, or a sweep by its folder.
        measure: takes the HookedTransformer in ``eval`` mode, and returns a number, or a dictionary
            or dataclass of numbers (other fields of a dataclass are left out). Each number is a
            column; a single one is ``value``. If it raises, the row has NaN and the reason.
        subject: give it the :class:`anchor_interp.interventions.subject.Subject` in place of the
            model: with the run's task, training data and initial model.

    Raises:
        ConfigError: no function, or one without a name, which the runs of a sweep cannot keep.
        StoreError: there is no such sweep.
    """
    if not callable(measure):
        raise ConfigError(f"measure is {shown(measure)}; expected a function of a model")
    checked(subject, bool, "subject")
    name = getattr(measure, "__qualname__", type(measure).__name__)
    if isinstance(source, Run):
        found = [({"step": step}, _taken(source, step, measure, subject)) for step in source.steps]
        return Along(name, _table(found))
    folder = source if isinstance(source, SweepFolder) else sweep_folder(source)
    return Along(
        name, _table(_over(folder, measure, _named(measure, name, subject), subject, quiet))
    )


def _over(
    folder: SweepFolder,
    measure: Callable[[Any], Any],
    named: Measure,
    subject: bool,
    quiet: bool,
) -> Iterator[tuple[dict[str, Any], Values | str]]:
    """The values of all finished runs; each that is new is kept."""
    done = [name for name, state in folder.states(folder.spec().configs()).items()
            if state == "done"]  # fmt: skip
    with reporting_all(len(done), what="runs", quiet=quiet) as progress:
        for name in done:
            run = load(folder.runs / name)
            for step in run.steps:
                values = kept(folder.runs / name, named, step)
                if values is None:
                    values = _taken(run, step, measure, subject)
                    if not isinstance(values, str):
                        keep(run.at(step), named, values)
                yield {"run_id": name, "step": step}, values
            progress.end(name)


def _named(measure: Callable[[Any], Any], name: str, subject: bool) -> Measure:
    """What runs keep the values under."""
    try:
        inner = inspect.unwrap(measure)
        file = Path(inspect.getfile(inner))  # TypeError if it has none
        if "<" in name or hasattr(measure, "__self__"):
            raise TypeError
        text = file.read_text("utf-8") if file.exists() else inspect.getsource(inner)
    except (TypeError, OSError):
        expected = "expected a function at the top of a file, whose name tells runs what they keep"
        raise ConfigError(f"measure is {shown(measure)}; {expected}") from None
    version = int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)
    where = f"{measure.__module__}:{name}"
    return Measure(f"along {where}{' of a subject' * subject}", where, version)


def _taken(run: Run, step: int, measure: Callable[[Any], Any], subject: bool) -> Values | str:
    """The numbers at a checkpoint, or why there are none."""
    try:
        at = run.at(step)
        return _numbers(measure(Subject.of_run(at) if subject else at.model))
    except AnchorInterpError as error:
        return str(error)
    except Exception as error:  # a user's function may raise anything
        return f"{type(error).__name__}: {error}"


def _numbers(value: Any) -> Values:
    if dataclasses.is_dataclass(value):
        value = {n: v for n, v in to_dict(value).items() if type(v) in (int, float)}
    named = value if isinstance(value, Mapping) else {"value": value}
    if not named:
        raise ConfigError(f"it returned {shown(value)}; expected numbers")
    numbers = {str(name): float(number) for name, number in named.items()}
    if taken := sorted(numbers.keys() & {"run_id", "step", "reason"}):
        raise ConfigError(f"it returned a number called {taken[0]}, a column of every table")
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}


def _table(found: Any) -> tuple[dict[str, Any], ...]:
    """Rows with the same columns."""
    found = list(found)
    names = {name: None for _, values in found if not isinstance(values, str) for name in values}
    rows = []
    for about, values in found:
        failed = isinstance(values, str)
        numbers = {n: None if failed else values.get(n) for n in names or ("value",)}
        lost = ", ".join(name for name, number in numbers.items() if number is None)
        reason = values if failed else f"{lost}: not finite" if lost else None
        nan = {n: math.nan if number is None else number for n, number in numbers.items()}
        rows.append({**about, **nan, "reason": reason})
    return tuple(rows)
