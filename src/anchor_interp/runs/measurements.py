"""Measurements of a run, kept beside its weights in ``RUN/measurements.json``.

A value is kept with the name and version of its :class:`Measure`, the step, and the SHA-256 of the
weights. What has another version, step or weights is measured again. A damaged file counts as
empty. Reading kept values does not load torch.
"""

import contextlib
import hashlib
import inspect
import itertools
import json
import operator
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor_interp._util import files
from anchor_interp._util.errors import (
    AnchorInterpError,
    ConfigError,
    InterruptedRunError,
    StoreError,
    UnknownSchemaError,
)  # fmt: skip
from anchor_interp._util.schema import check_fields, shown, to_dict

if TYPE_CHECKING:
    from anchor_interp.runs.run import Run

SCHEMA = 1
FILE = "measurements.json"
_STOPPED = "stopped while measuring; give the same command again"
_FUNCTION = re.compile(r"[\w.]+:\w+")


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

    def __post_init__(self) -> None:
        check_fields(self, "measure")
        if not _FUNCTION.fullmatch(self.function):
            raise ConfigError(f"function is {shown(self.function)}; expected module:function")

    def resolve(self) -> Callable[["Run"], Any]:
        """The function itself; ConfigError if it cannot be imported."""
        try:
            found: Any = pkgutil.resolve_name(self.function)
            if not callable(found):
                raise ValueError(f"it is {shown(found)}, which is not a function")
        except Exception as error:  # a user's module may raise anything
            kind = type(error).__name__
            raise ConfigError(
                f"cannot import the measure {self.function} ({kind}: {error}); expected "
                "module:function, of a module in this folder, or file.py:function"
            ) from error
        function: Callable[[Run], Any] = found
        return function

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
            frames = traceback.extract_tb(error.__traceback__)
            code = getattr(function, "__code__", None)
            own = [at for at in frames if code is not None and at.filename == code.co_filename]
            line = (own or frames)[-1]  # the function's own file, not the library that it calls
            where = f"{Path(line.filename).name}:{line.lineno}"
            raise ConfigError(
                f"{self.name} of {run.name} at step {run.step} failed in {where} "
                f"({type(error).__name__}: {error})"
            ) from error
        returned = f"{self.function} returned"
        if self.column and not _is_column(value):
            raise ConfigError(
                f"{returned} {shown(value)} for {run.name}; expected a number, or a dictionary of "
                "numbers"
            )
        try:
            json.dumps(value, allow_nan=False)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{returned} a value that is not JSON: {error}") from error
        if value is None:
            raise ConfigError(f"{returned} None; expected a JSON value")
        return value


def column_measure(function: str) -> Measure:
    """The measure of a user's function of a run, which becomes a column of sweep tables.

    Its version follows from the text of the function's file. After a change of the file, runs are
    measured again.

    Args:
        function: ``module:function``, of an installed module or one in the current folder, or
            ``file.py:function``. Its folder joins ``sys.path``.

    Raises:
        ConfigError: the function cannot be imported.
    """
    place, _, name = function.rpartition(":")
    if not (place and name):
        expected = "module:function or file.py:function"
        raise ConfigError(f"the measure is {shown(function)}; expected {expected}")
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
    with contextlib.suppress(TypeError, OSError):  # built in, or defined in no file
        text = Path(inspect.getfile(code)).read_bytes()
    return replace(measure, version=int(hashlib.sha256(text).hexdigest()[:12], 16))


def _is_column(value: Any) -> bool:
    numbers = value.values() if isinstance(value, Mapping) else [value]
    most = sys.float_info.max
    return all(type(one) in (int, float) and -most <= one <= most for one in numbers)


def kept(path: Path, measure: Measure, step: int) -> Any | None:
    """The value that a run folder keeps of a measure; None if it has to be measured."""
    return _value(_entries(path), path, measure, step)


def kept_columns(path: Path, step: int) -> dict[str, float]:
    """What a run folder keeps for columns of tables, by the column's name.

    A number has the name of its function; of a dictionary, each has the function's and its own,
    such as ``norms.first``.
    """
    found: dict[str, float] = {}
    with contextlib.suppress(StoreError):
        for entry in _entries(path):
            name, value = entry["name"], entry["value"]
            is_ours = entry.get("column") and entry["step"] == step and _is_column(value)
            if is_ours and entry["weights"] == _digest(path, step):
                parts = value if isinstance(value, Mapping) else {"": value}
                found |= {f"{name}.{part}".rstrip("."): float(n) for part, n in parts.items()}
    return found


def lacking(path: Path, measures: Iterable[Measure], last: int) -> list[tuple[Measure, int]]:
    """The measures, each with a step, that a run folder whose last step is this lacks."""
    entries = _entries(path)
    wanted = [(measure, step) for measure in measures for step in measure.steps or (last,)]
    return [pair for pair in wanted if _value(entries, path, *pair) is None]


def keep(run: "Run", measure: Measure, value: Any) -> None:
    """Keep the value of a measure at the run's checkpoint; None forgets an earlier one.

    Raises:
        StoreError: it cannot be written.
    """
    from anchor_interp.runs.writer import writing  # it loads torch

    if run.path is None:
        raise StoreError(f"{run.name} has no run folder to keep a measurement in")
    entry = _wanted(measure, run.step) | {"weights": _digest(run.path, run.step), "value": value}

    def place(entry: dict[str, Any]) -> tuple[Any, ...]:
        return entry["name"], entry["step"], entry.get("column", False)

    with writing(run.path, run.config) as writer:
        try:
            found = files.read_json(run.path / FILE)["schema"]
        except (StoreError, LookupError, TypeError):
            found = SCHEMA  # a missing or damaged file is made anew
        if found != SCHEMA:
            raise UnknownSchemaError(f"{run.path / FILE} has schema {found}; expected {SCHEMA}")
        others = [other for other in _entries(run.path) if place(other) != place(entry)]
        entries = others if value is None else [*others, entry]
        data = {"schema": SCHEMA, "measurements": entries}
        writer.copy_file(FILE, (json.dumps(data, indent=1, allow_nan=False) + "\n").encode())


def measure_run(path: Path, measures: Iterable[Measure]) -> None:
    """Take every measurement that a finished run lacks, and keep each at once.

    AnchorInterpError, after all others, if some fail or cannot be kept; InterruptedRunError on
    SIGINT or SIGTERM.
    """
    from anchor_interp._util.environment import stop_signals
    from anchor_interp._util.progress import silence
    from anchor_interp.runs.run import load

    measures = tuple(measures)
    if not measures:
        return
    by_step = operator.itemgetter(1)
    todo = sorted(lacking(path, measures, load(path).step), key=by_step)
    failed: list[AnchorInterpError] = []
    with stop_signals() as stopped, silence():
        for step, group in itertools.groupby(todo, key=by_step):
            run = load(path, step=step)  # one model in memory at a time
            for measure, _ in group:
                try:
                    with stopped.at_once(_STOPPED):
                        value = measure(run)
                    keep(run, measure, value)
                except InterruptedRunError:
                    raise
                except AnchorInterpError as error:
                    failed.append(error)
                    if measure.column:  # no table shows what another version gave
                        with contextlib.suppress(AnchorInterpError):
                            keep(run, measure, None)
                if stopped():  # a signal came while it was kept
                    raise InterruptedRunError(_STOPPED)
    if failed:
        raise type(failed[0])("; ".join(map(str, failed)))


def _entries(path: Path) -> list[dict[str, Any]]:
    """The entries of the file that have the right form."""
    names, entries = {"name", "version", "step", "weights", "value"}, []
    with contextlib.suppress(StoreError, LookupError, TypeError):
        data = files.read_json(path / FILE)
        if data["schema"] == SCHEMA and isinstance(data["measurements"], list):
            entries = data["measurements"]
    return [entry for entry in entries if isinstance(entry, dict) and names <= entry.keys()]


def _value(entries: list[dict[str, Any]], path: Path, measure: Measure, step: int) -> Any | None:
    wanted = _wanted(measure, step).items()
    found = next((entry for entry in entries if wanted <= entry.items()), None)
    with contextlib.suppress(StoreError):
        if found and found["weights"] == _digest(path, step):
            return found["value"]
    return None


def _wanted(measure: Measure, step: int) -> dict[str, Any]:
    about = {"name": measure.name, "version": measure.version, "step": step}
    return about | ({"column": True} if measure.column else {})


def _digest(path: Path, step: int) -> str:
    """The SHA-256 that a checkpoint recorded of its weights, which loading them checks."""
    folder = path / "checkpoints" / f"{step:08d}"
    try:
        return str(files.read_json(folder / "state.json")["files"]["weights.safetensors"]["sha256"])
    except (LookupError, TypeError) as error:
        raise StoreError(f"{folder} has no record of its weights; train the run again") from error
