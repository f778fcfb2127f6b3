"""Progress on standard error: rich's bars on a terminal, plain lines elsewhere.

Work that ends within two seconds reports nothing. Work inside other work has no line of its own.
"""

import contextlib
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from anchor_interp._util.schema import checked

PLAIN_SECONDS = 10.0
"""Seconds between plain lines."""
LATE_SECONDS = 2.0
"""Seconds of work before anything is shown."""
_SPEED_SECONDS = 3600.0  # steps may be slow: the speed is that of the last 1000 or of an hour

Facts = Mapping[str, Any]
"""The latest line of metrics, or what is ``doing``."""


@dataclass(frozen=True)
class Progress:
    """What long work reports to; without a function it reports nothing."""

    update: Callable[[int, Facts], None] = lambda _step, _facts: None
    """Called with the steps done and the latest facts."""


_OUTER: ContextVar[Progress | None] = ContextVar("outer", default=None)
"""What the parts of the work under way report to; None if no work is."""


@contextlib.contextmanager
def _inside(outer: Progress) -> Iterator[None]:
    token = _OUTER.set(outer)
    try:
        yield
    finally:
        _OUTER.reset(token)


def deadline(max_seconds: float | None) -> float:
    """When work that may take so many seconds has to end, by ``time.monotonic``; never if None."""
    checked(max_seconds, float | None, "max_seconds", above=0)
    return math.inf if max_seconds is None else time.monotonic() + max_seconds


def silence() -> contextlib.AbstractContextManager[None]:
    """Within the ``with`` block :func:`reporting_one` reports nothing."""
    return _inside(Progress())


@contextlib.contextmanager
def reporting(
    runs: Mapping[str, tuple[int, int]], *, quiet: bool = False
) -> Iterator[dict[str, Progress]]:
    """Report the progress of named runs, each given by its steps and its batch size."""
    with silence(), _display(quiet=quiet) as display:
        yield {n: Progress(_Meter(display, n, *shape).update) for n, shape in runs.items()}


@contextlib.contextmanager
def reporting_one(
    name: str, steps: int, *, batch_size: int = 0, quiet: bool = False
) -> Iterator[Progress]:
    """Report the progress of one piece of work; without a batch size it has no throughput.

    Nested work reports through the outer bar, as what the outer work is ``doing``. Nested work is
    silent if the outer work reports otherwise or either is ``quiet``.
    """
    outer = _OUTER.get()
    if quiet or outer is not None:
        with silence():
            yield outer if outer is not None and not quiet else Progress()
        return
    with _display() as display:
        meter = _Meter(display, name, steps, batch_size)
        with _inside(Progress(meter.update_part)):
            yield Progress(meter.update)


@contextlib.contextmanager
def reporting_all(total: int, *, what: str = "runs", quiet: bool = False) -> Iterator["Overall"]:
    """Report the progress of many runs of which a few are under way; see :class:`Overall`."""
    with silence(), _display(quiet=quiet) as display:
        yield Overall(display, total, what)


class Overall:
    """Progress of many runs: how many have ended, which are under way, the time left."""

    def __init__(self, display: Bars, total: int, what: str) -> None:
        self._display, self._total = display, total
        self._whole = display.add_task(what, total=total, facts="", line=f"# {what}")
        self._earlier = self._ended = self._failed = 0
        self._began = time.monotonic()
        self._under_way: dict[str, TaskID] = {}

    def begin(self, ended: int) -> None:
        """Count runs that ended earlier, which cost no time."""
        self._earlier = self._ended = ended
        self._show()

    def run(self, name: str, steps: int) -> Progress:
        """What one run reports to."""
        return Progress(functools.partial(self._update, name, steps))

    def end(self, name: str, *, failed: bool = False) -> None:
        """Count a run that has ended, well or not."""
        self.lose(name)
        self._ended += 1
        self._failed += failed
        self._show()

    def lose(self, name: str) -> None:
        """Forget a run that is no longer under way and has not ended."""
        if name in self._under_way:
            self._display.remove_task(self._under_way.pop(name))

    def _update(self, name: str, steps: int, step: int, facts: Facts) -> None:
        if name not in self._under_way:
            self._under_way[name] = self._display.add_task(f"  {name}", total=steps, facts="")
        self._display.update(self._under_way[name], completed=step, facts=describe(facts))
        self._show()

    def _show(self) -> None:
        failed = f"{self._failed} failed" if self._failed else ""
        under_way = f"{len(self._under_way)} under way" if self._under_way else ""
        done, left = self._ended - self._earlier, self._total - self._ended
        seconds = left * (time.monotonic() - self._began) / done if done else None
        facts = _joined(failed, under_way)
        self._display.update(self._whole, completed=self._ended, facts=facts, seconds_left=seconds)


class _Meter:
    """One piece of work with its steps."""

    def __init__(self, display: Bars, name: str, steps: int, batch_size: int) -> None:
        self._display, self._steps = display, steps
        self._facts: Facts = {}
        self._next = 0.0
        self._task = display.add_task(
            name, total=steps, batch_size=batch_size, facts="waiting", line=f"{name}: step #"
        )

    def update(self, step: int, facts: Facts) -> None:
        """Report that a step is done; without news ten times a second, as it costs time."""
        now = time.monotonic()
        if facts is not self._facts or now > self._next or step >= self._steps:
            self._facts, self._next = facts, now + 0.1
            self._display.update(self._task, completed=step, facts=describe(facts))

    def update_part(self, _step: int, facts: Facts) -> None:
        """Report what a part of the work is doing, whose own steps do not matter to the whole."""
        self._display.update(self._task, facts=_joined(describe(self._facts), describe(facts)))


def describe(facts: Facts) -> str:
    """What is ``doing``, or the numbers of a line of metrics that say how a run is doing."""
    if "doing" in facts:
        return str(facts["doing"])
    shown = (("loss", "loss", ".3f"), ("id_accuracy", "ID", ".2f"), ("ood_accuracy", "OOD", ".2f"))
    return " ".join(
        f"{label} {facts[key]:{form}}" for key, label, form in shown if facts.get(key) is not None
    )


def format_seconds(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


@contextlib.contextmanager
def _display(*, quiet: bool = False) -> Iterator[Bars]:
    """Rich's bars on a terminal that can redraw a line, else plain lines."""
    display: Bars
    if quiet:
        display = Bars(disable=True)
    elif sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown"):
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20))
        display = _LateBars(
            *columns, MofNCompleteColumn(), _Details(), console=Console(stderr=True),
            refresh_per_second=4, speed_estimate_period=_SPEED_SECONDS,
        )  # fmt: skip
    else:
        clock = time.monotonic
        display = _Lines(disable=True, get_time=clock, speed_estimate_period=_SPEED_SECONDS)
    try:
        yield display
    finally:
        display.stop()


class _LateBars(Bars):
    """Rich's bars, which appear once the work has become long."""

    def update(self, task_id: TaskID, *args: Any, **changes: Any) -> None:
        super().update(task_id, *args, **changes)
        if (self._tasks[task_id].elapsed or 0.0) > LATE_SECONDS:
            self.start()


class _Lines(Bars):
    """Rich's counts as lines; a task without a ``line`` has none."""

    def update(self, task_id: TaskID, *args: Any, **changes: Any) -> None:
        """Print a line if the last one is old enough, and once at the end."""
        task = self._tasks[task_id]
        had_ended = task.finished
        super().update(task_id, *args, **changes)
        if "line" not in task.fields or had_ended:
            return
        elapsed = task.elapsed or 0.0
        ends = task.finished and "due" in task.fields  # work without a line needs no last one
        if ends or elapsed > task.fields.get("due", LATE_SECONDS):
            task.fields["due"] = elapsed + PLAIN_SECONDS
            count = task.fields["line"].replace("#", f"{task.completed:.0f}/{task.total:.0f}")
            with contextlib.suppress(OSError):  # a full disk behind the stream stops no training
                print(_joined(count, _details(task)), file=sys.stderr, flush=True)


class _Details(ProgressColumn):
    """What work is doing, its throughput and the time left."""

    def render(self, task: Task) -> Text:
        return Text(_details(task))


def _details(task: Task) -> str:
    """What is done now, the throughput and the time left of a task."""
    throughput = (task.speed or 0.0) * task.fields.get("batch_size", 0)
    rate = f"{throughput:,.0f} sequences/s" if throughput else ""
    seconds = task.fields.get("seconds_left", task.time_remaining)
    left = f"{format_seconds(seconds)} left" if seconds and not task.finished else ""
    return _joined(task.fields["facts"], rate, left)


def _joined(*parts: str) -> str:
    return "  ".join(part for part in parts if part)
