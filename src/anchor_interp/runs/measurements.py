"""Measurements of a run, kept beside its weights in ``RUN/measurements.json``.

A value is kept with the name and version of its :class:`Measure`, the step, and the SHA-256 of the
weights. What has another version, step or weights is measured again. Reading kept values does not
load torch.
"""

import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import math
import operator
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor_interp._util.errors import (
    AnchorInterpError,
    ConfigError,
    InterruptedRunError,
    error_of,
)
from anchor_interp._util.schema import check_fields, shown, to_dict
from anchor_interp._util.signals import StopRequest, stop_signals
from anchor_interp.runs.store import Row, RunFolder, writing

if TYPE_CHECKING:
    from anchor_interp.runs.run import Run

FILE = "measurements.json"
ALONG = "along "
"""Begins the name of a measure of :mod:`anchor_interp.sweeps.along`."""
Values = Mapping[str, float | None]
"""Numbers by name; None for one that is not finite."""
_STOPPED = "stopped while measuring; give the same command again"


@dataclass(frozen=True)
class Measure:
    """A function of a run's checkpoint whose value the run keeps under a unique name."""

    name: str
    function: str
    """``module:function``. It takes a :class:`anchor_interp.runs.run.Run` at the checkpoint and
    returns JSON values (dataclasses and arrays become JSON), not None."""
    version: int = 1
    steps: tuple[int, ...] = ()
    """Checkpoints to measure; the last one if empty."""
    column: bool = False
    """Whether tables of sweeps show it. The value is then a number, or a dictionary of numbers."""
    through: str = ""
    """``module:function`` that is called with the function and the run in its place, if any."""

    def __post_init__(self) -> None:
        check_fields(self, "measure")

    def resolve(self) -> Callable[["Run"], Any]:
        """The function of a run; ConfigError if it cannot be imported."""
        function = _imported(self.function)
        return functools.partial(_imported(self.through), function) if self.through else function

    def __call__(self, run: "Run") -> Any:
        """The value at the run's checkpoint, as plain JSON values.

        Raises:
            ConfigError: there is no such function, it failed, or its value is None, is not JSON or
                is not the number that a column needs.
        """
        function = self.resolve()
        try:
            value = to_dict(function(run))
        except AnchorInterpError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{self.name} of {run.name} at step {run.step} failed in "
                f"{_line_of(error, function)} ({type(error).__name__}: {error})"
            ) from error
        if value is None or not (_is_column if self.column else _is_json)(value):
            expected = "a number, or a dictionary of numbers" if self.column else "a JSON value"
            returned = f"{self.function} returned {shown(value)} for {run.name}"
            raise ConfigError(f"{returned}; expected {expected}")
        return value


def _imported(function: str) -> Callable[..., Any]:
    try:
        named: object = pkgutil.resolve_name(function)
        if callable(named):
            return named
        reason = f"it is {shown(named)}"
    except Exception as error:  # a user's module may raise anything
        reason = f"{type(error).__name__}: {error}"
    expected = "module:function, of a module in this folder, or file.py:function"
    raise ConfigError(f"cannot import the measure {function} ({reason}); expected {expected}")


def _line_of(error: Exception, function: Any) -> str:
    """Where a measure failed: the last line in its own file, not in a library that it calls."""
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(function, "__code__", None)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    line = (own or frames)[-1]
    return f"{Path(line.filename).name}:{line.lineno}"


def column_measure(function: str) -> Measure:
    """The measure of a user's function of a run, which becomes a column of sweep tables.

    Its version follows from the text of the function's file: a change measures runs again.

    Args:
        function: ``module:function``, of an installed module or one in the current folder, or
            ``file.py:function``; its folder joins ``sys.path``. ConfigError if it is not there.
    """
    place, _, name = function.rpartition(":")
    if not place:
        expected = "expected module:function or file.py:function, such as my_measures.py:norm"
        raise ConfigError(f"the measure is {shown(function)}; {expected}")
    file = Path(place) if place.endswith(".py") else None
    folder = (file.parent if file else Path()).resolve()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    module = file.stem if file else place
    before = getattr(sys.modules.get(module), "__file__", None)
    if before is not None and Path(before).resolve().parent == folder:
        del sys.modules[module]  # it may have changed since this process imported it
    measure = Measure(name, f"{module}:{name}", column=True)
    code, text = inspect.unwrap(measure.resolve()), b""
    found = getattr(sys.modules[module], "__file__", None) or "built in"
    if file is not None and Path(found).resolve() != file.resolve():
        raise ConfigError(f"the module {module} is {found}, not {file}; rename the file")
    with contextlib.suppress(TypeError, OSError):  # built in, or defined in no file
        text = Path(inspect.getfile(code)).read_bytes()
    return replace(measure, version=int(hashlib.sha256(text).hexdigest()[:12], 16))


def _is_json(value: Any) -> bool:
    with contextlib.suppress(ValueError, TypeError):
        json.dumps(value, allow_nan=False)
        return True
    return False


def _is_column(value: Any) -> bool:
    numbers = value.values() if isinstance(value, Mapping) else [value]
    most = sys.float_info.max
    return all(type(one) in (int, float) and -most <= one <= most for one in numbers)


def kept(path: Path, measure: Measure, step: int) -> Any | None:
    """The value that a run folder keeps of a measure; None if it has to be measured."""
    folder = RunFolder(path)
    return _value(folder, folder.measurements(), measure, step)


def kept_columns(path: Path) -> dict[str, float]:
    """What a run folder keeps for columns of tables, by names such as ``norm``, ``norms.first``."""
    folder, columns = RunFolder(path), dict[str, float]()
    entries = [entry for entry in folder.measurements() if entry.get("column")]
    if not entries:
        return {}
    last = folder.steps()[-1]
    weights = folder.weights_digest(last)
    for entry in entries:
        if (entry.get("step"), entry.get("weights")) == (last, weights):
            name, value = entry["name"], entry["value"]
            parts = value if isinstance(value, Mapping) else {"": value}
            columns |= {f"{name}.{part}".rstrip("."): float(n) for part, n in parts.items()}
    return columns


def kept_along(path: Path) -> dict[str, tuple[Row, ...]]:
    """What a run folder keeps along training: by function, rows (:func:`rows_along`) by step."""
    folder = RunFolder(path)
    entries = [entry for entry in folder.measurements() if str(entry.get("name")).startswith(ALONG)]
    newest = {entry["name"]: entry["version"] for entry in entries}
    found: dict[str, dict[int, Values | str]] = {}
    for entry in entries:
        name, step = entry["name"], entry["step"]
        is_newest = entry["version"] == newest[name] and step in folder.steps()
        if is_newest and entry["weights"] == folder.weights_digest(step):
            found.setdefault(name.removeprefix(ALONG), {})[step] = entry["value"]
    return {
        name: rows_along(({"step": step}, values) for step, values in sorted(series.items()))
        for name, series in found.items()
    }


def rows_along(found: Iterable[tuple[Row, Values | str]]) -> tuple[Row, ...]:
    """Rows with the same columns: what each is about, its numbers or NaN, and the ``reason``.

    Values that are a text failed for that reason.
    """
    found = list(found)
    names = {name: None for _, values in found if not isinstance(values, str) for name in values}
    rows = []
    for about, values in found:
        given: Values = {} if isinstance(values, str) else values
        numbers = {name: given.get(name) for name in names or ("value",)}
        lost = ", ".join(name for name, number in numbers.items() if number is None)
        reason = values if isinstance(values, str) else f"{lost}: not finite" if lost else None
        nan = {n: math.nan if number is None else number for n, number in numbers.items()}
        rows.append({**about, **nan, "reason": reason})
    return tuple(rows)


def lacking(path: Path, measures: Iterable[Measure]) -> list[tuple[Measure, int]]:
    """The measures that a run folder lacks, each with the step: its newest if none is named."""
    folder = RunFolder(path)
    entries, last = folder.measurements(), max(folder.steps(), default=0)
    wanted = [(measure, step) for measure in measures for step in measure.steps or (last,)]
    return [(m, step) for m, step in wanted if _value(folder, entries, m, step) is None]


def keep(run: "Run", measure: Measure, value: Any) -> None:
    """Keep the value of a measure at the run's checkpoint; None forgets an earlier one."""
    entry = _about(measure, run.step)
    place = {name: value for name, value in entry.items() if name != "version"}
    entry |= {"weights": run.folder.weights_digest(run.step), "value": value}
    with writing(run.folder.path, run.config) as writer:
        others = [other for other in writer.measurements() if not _has(other, place)]
        entries = others if value is None else [*others, entry]
        writer.write_json(FILE, {"measurements": entries})


def measure_run(path: Path, measures: Iterable[Measure]) -> None:
    """Take what a finished run lacks; AnchorInterpError, after all others, if one fails."""
    from anchor_interp._util.progress import silence
    from anchor_interp.runs.run import load

    by_step = operator.itemgetter(1)
    errors: list[AnchorInterpError] = []
    with stop_signals() as stopped, silence():
        for step, group in itertools.groupby(sorted(lacking(path, measures), key=by_step), by_step):
            run = load(path, step=step)  # one model in memory at a time
            for measure, _ in group:
                errors += filter(None, [error_of(_measure, run, measure, stopped)])
    if errors:
        raise type(errors[0])("; ".join(map(str, errors)))


def _measure(run: "Run", measure: Measure, stopped: "StopRequest") -> None:
    """Take one measurement and keep it."""
    value = None
    try:
        with stopped.at_once(_STOPPED):
            value = measure(run)
    finally:
        if value is not None or measure.column:  # no table shows what another version gave
            keep(run, measure, value)
    if stopped():  # a signal came while it was kept
        raise InterruptedRunError(_STOPPED)


def _value(folder: RunFolder, entries: list[Row], measure: Measure, step: int) -> Any | None:
    """The value among the entries that is of this measure, step and weights."""
    about = _about(measure, step)
    for entry in entries:
        if _has(entry, about) and entry.get("weights") == folder.weights_digest(step):
            return entry.get("value")
    return None


def _about(measure: Measure, step: int) -> Row:
    names = {"name": measure.name, "version": measure.version, "column": measure.column}
    return names | {"step": step}


def _has(entry: Row, about: Row) -> bool:
    return entry.items() >= about.items()
