"""Progress on standard error: rich's bars on a terminal, plain lines elsewhere.

Work that ends within two seconds reports nothing. Work inside other work has no line of its own.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

PLAIN_SECONDS = 10.0
"""Seconds between plain lines."""
LATE_SECONDS = 2.0
"""Seconds of work before anything is shown."""
_SPEED_SECONDS = 3600.0  # steps may be slow: the speed is that of the last 1000 or of an hour

Facts = Mapping[str, Any]
"""The latest line of metrics."""


class Progress(Protocol):
    """What a training, or other long work, reports to."""

    def update(self, step: int, facts: Facts) -> None:
        """Report that a step is done."""
        ...


class Silent:
    """Reports nothing."""

    def update(self, step: int, facts: Facts) -> None:
        """Do nothing."""


class Meter:
    """One piece of work with its steps; without a batch size it has no throughput."""

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

    def update_part(self, facts: Facts) -> None:
        """Report what a part of the work is doing."""
        self._display.update(self._task, facts=_joined(describe(self._facts), describe(facts)))


class _Part:
    """A part of longer work; its own steps do not matter to the whole."""

    def __init__(self, whole: Meter) -> None:
        self._whole = whole

    def update(self, step: int, facts: Facts) -> None:
        del step
        self._whole.update_part(facts)


_OUTER: ContextVar[Meter | Silent | None] = ContextVar("outer", default=None)
"""The work under way, to which its parts report; None if there is none."""


@contextlib.contextmanager
def _inside(outer: Meter | Silent) -> Iterator[None]:
    token = _OUTER.set(outer)
    try:
        yield
    finally:
        _OUTER.reset(token)


def silence() -> contextlib.AbstractContextManager[None]:
    """Within the ``with`` block :func:`reporting_one` reports nothing."""
    return _inside(Silent())


@contextlib.contextmanager
def reporting(
    runs: Mapping[str, tuple[int, int]], *, quiet: bool = False
) -> Iterator[dict[str, Progress]]:
    """Report the progress of named runs, each given by its steps and its batch size."""
    with silence(), _display(quiet=quiet) as display:
        yield {name: Meter(display, name, *shape) for name, shape in runs.items()}


@contextlib.contextmanager
def reporting_one(
    name: str, steps: int, *, batch_size: int = 0, quiet: bool = False
) -> Iterator[Progress]:
    """Report the progress of one piece of work.

    Nested work reports through the outer bar, as what the outer work is ``doing``. Nested work is
    silent if the outer work reports otherwise or either is ``quiet``.
    """
    outer = _OUTER.get()
    if quiet or outer is not None:
        with silence():
            yield _Part(outer) if isinstance(outer, Meter) and not quiet else Silent()
    else:
        with _display() as display:
            meter = Meter(display, name, steps, batch_size)
            with _inside(meter):
                yield meter


@contextlib.contextmanager
def reporting_all(
    total: int, work: float, *, what: str = "runs", quiet: bool = False
) -> Iterator["Overall"]:
    """Report the progress of many runs of which a few are under way; see :class:`Overall`."""
    with silence(), _display(quiet=quiet) as display:
        yield Overall(display, total, work, what)


class Overall:
    """Progress of many runs: how many have ended, how many are under way, the time left.

    The time left follows from the work done since the start. A run's work is in any unit.
    """

    def __init__(self, display: Bars, total: int, work: float, what: str) -> None:
        self._display = display
        self._whole = display.add_task(what, total=total, facts="", line=f"# {what}")
        self._work_left, self._work_done = work, 0.0
        self._ended = self._failed = 0
        self._began = time.monotonic()
        self._under_way: dict[str, float] = {}  # work done of each run
        self._bars: dict[str, TaskID] = {}

    def begin(self, ended: int, work: float) -> None:
        """Count runs that ended earlier; their work costs no time."""
        self._ended += ended
        self._work_left -= work
        self._show()

    def run(self, name: str, steps: int, work: float) -> Progress:
        """What one run reports to."""
        return _Run(self, name, steps, work)

    def update(self, name: str, steps: int, work: float, step: int, facts: Facts) -> None:
        """Report that a run has reached a step."""
        done = work * step / steps
        if name not in self._under_way:  # what was done before costs no time
            self._under_way[name] = done
            self._work_left -= done
            self._bars[name] = self._display.add_task(f"  {name}", total=steps, facts="")
        self._work_done += done - self._under_way[name]
        self._under_way[name] = done
        self._display.update(self._bars[name], completed=step, facts=describe(facts))
        self._show()

    def end(self, name: str, work: float, *, failed: bool = False) -> None:
        """Count a run that has ended, well or not."""
        self._work_done += work - self._forget(name)
        self._ended += 1
        self._failed += failed
        self._show()

    def lose(self, name: str) -> None:
        """Forget a run that is no longer under way and has not ended."""
        self._work_left += self._forget(name)

    def seconds_left(self) -> float | None:
        """Estimate of the time left; None while unknown."""
        if self._work_done <= 0:  # also if reported steps are trained again
            return None
        rate = self._work_done / (time.monotonic() - self._began)
        return max(0.0, self._work_left - self._work_done) / rate

    def _forget(self, name: str) -> float:
        """Remove a run's bar; returns its work done."""
        if name in self._bars:
            self._display.remove_task(self._bars.pop(name))
        return self._under_way.pop(name, 0.0)

    def _show(self) -> None:
        failed = f"{self._failed} failed" if self._failed else ""
        under_way = f"{len(self._under_way)} under way" if self._under_way else ""
        facts, left = _joined(failed, under_way), self.seconds_left()
        self._display.update(self._whole, completed=self._ended, facts=facts, seconds_left=left)


class _Run:
    """One run of :class:`Overall`."""

    def __init__(self, overall: Overall, name: str, steps: int, work: float) -> None:
        self._overall, self._run = overall, (name, steps, work)

    def update(self, step: int, facts: Facts) -> None:
        self._overall.update(*self._run, step, facts)


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
    if quiet:
        display = Bars(disable=True)
    elif sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown"):
        display = _LateBars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            _Details(),
            console=Console(stderr=True),
            refresh_per_second=4,
            speed_estimate_period=_SPEED_SECONDS,
        )
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


class _Details(ProgressColumn):
    """What work is doing, its throughput and the time left."""

    def render(self, task: Task) -> Text:
        return Text(_details(task))


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


def _details(task: Task) -> str:
    """What is done now, the throughput and the time left of a task."""
    throughput = (task.speed or 0.0) * task.fields.get("batch_size", 0)
    rate = f"{throughput:,.0f} sequences/s" if throughput else ""
    seconds = task.fields.get("seconds_left", task.time_remaining)
    left = f"{format_seconds(seconds)} left" if seconds and not task.finished else ""
    return _joined(task.fields["facts"], rate, left)


def _joined(*parts: str) -> str:
    return "  ".join(part for part in parts if part)
