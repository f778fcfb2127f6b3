"""Progress of a training on standard error: a rich bar, or plain lines without a terminal."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

PLAIN_SECONDS = 10.0
"""Seconds between plain lines."""


class Progress(Protocol):
    """What a training reports to."""

    def update(self, step: int, facts: Mapping[str, Any]) -> None:
        """A step is done; ``facts`` are the numbers of the latest line of metrics."""
        ...


class Silent:
    """Reports nothing."""

    def update(self, step: int, facts: Mapping[str, Any]) -> None:
        """Do nothing."""


class Throughput:
    """Sequences per second since the first report, which may come long after the start."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._first: tuple[int, float] | None = None

    def steps_per_second(self, step: int) -> float:
        """Rate from the first reported step to this one; 0 while unknown."""
        now = time.monotonic()
        if self._first is None:
            self._first = step, now
        first_step, began = self._first
        return (step - first_step) / (now - began) if step > first_step else 0.0

    def describe(self, rate: float) -> str:
        """The rate in sequences per second, or nothing while unknown."""
        return f"{rate * self._batch_size:,.0f} sequences/s" if rate else ""


class Plain:
    """One line now and then: step, numbers, throughput and time left."""

    def __init__(self, name: str, steps: int, batch_size: int) -> None:
        self._name, self._steps = name, steps
        self._throughput = Throughput(batch_size)
        self._last = time.monotonic()
        self._ended = False

    def update(self, step: int, facts: Mapping[str, Any]) -> None:
        """Print a line if the last one is old enough, and once at the end."""
        rate = self._throughput.steps_per_second(step)
        now, ends = time.monotonic(), step >= self._steps
        if self._ended or (not ends and now - self._last < PLAIN_SECONDS):
            return
        self._last, self._ended = now, ends
        left = f"{format_seconds((self._steps - step) / rate)} left" if rate and not ends else ""
        parts = (
            f"step {step}/{self._steps}",
            describe(facts),
            self._throughput.describe(rate),
            left,
        )
        text = "  ".join(part for part in parts if part)
        with contextlib.suppress(OSError):  # a full disk behind the stream stops no training
            print(f"{self._name}: {text}", file=sys.stderr, flush=True)


class Bar:
    """A rich progress bar with throughput and time left."""

    def __init__(self, bars: Any, name: str, steps: int, batch_size: int) -> None:
        self._bars = bars
        self._throughput = Throughput(batch_size)
        self._task = bars.add_task(name, total=steps, facts="waiting", rate="")

    def update(self, step: int, facts: Mapping[str, Any]) -> None:
        """Move the bar."""
        rate = self._throughput.describe(self._throughput.steps_per_second(step))
        self._bars.update(self._task, completed=step, facts=describe(facts), rate=rate)


@contextlib.contextmanager
def bars() -> Iterator[Any]:
    """A set of rich progress bars on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}  {task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True), refresh_per_second=4) as shown:
        yield shown


@contextlib.contextmanager
def reporting(
    runs: Mapping[str, tuple[int, int]], *, quiet: bool = False
) -> Iterator[dict[str, Progress]]:
    """Report the progress of named runs, each given by its steps and its batch size.

    Bars if standard error is a terminal that can redraw a line, else plain lines; nothing if quiet.
    """
    if quiet:
        yield {name: Silent() for name in runs}
        return
    if not _is_redrawable():
        yield {name: Plain(name, *shape) for name, shape in runs.items()}
        return
    with bars() as shown:
        yield {name: Bar(shown, name, *shape) for name, shape in runs.items()}


class Overall:
    """Progress of many runs together: how many are done, what is under way, the time left.

    The time left follows from the work done since the start, a run's work being what its
    configuration says; runs of other sizes are other work.
    """

    def __init__(self, total: int, work: float, shown: Any, what: str = "runs") -> None:
        self._total, self._what = total, what
        self._work_left = work
        self._work_done = 0.0
        self._ended = 0
        self._failed = 0
        self._began = self._last = time.monotonic()
        self._under_way: dict[str, float] = {}
        self._bars = shown
        self._whole = shown.add_task(what, total=total, facts="", rate="") if shown else None
        self._tasks: dict[str, Any] = {}

    def run(self, name: str, steps: int, work: float) -> Progress:
        """What one run reports to."""
        return _Part(self, name, steps, work)

    def begin(self, ended: int, work: float) -> None:
        """Count runs that were done before, whose work costs no time."""
        self._ended += ended
        self._work_left -= work
        self._show(now=True)

    def end(self, name: str, work: float, *, failed: bool = False) -> None:
        """Count a run that has ended, well or not."""
        self._work_done += work - self._under_way.pop(name, 0.0)
        self._ended += 1
        self._failed += failed
        if self._bars and name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))
        self._show(now=self._ended == self._total)

    def lose(self, name: str) -> None:
        """Forget about a run that is under way no longer and has not ended."""
        self._work_left += self._under_way.pop(name, 0.0)
        if self._bars and name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))

    def update(self, name: str, step: int, steps: int, work: float, facts: str) -> None:
        """A run has come to a step."""
        done = work * step / steps
        if name not in self._under_way:  # what was done before costs no time
            self._under_way[name] = done
            self._work_left -= done
        self._work_done += done - self._under_way[name]
        self._under_way[name] = done
        if self._bars:
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(f"  {name}", total=steps, facts="", rate="")
            self._bars.update(self._tasks[name], completed=step, facts=facts)
        self._show()

    def seconds_left(self) -> float | None:
        """Estimate of the time left; None while unknown."""
        if self._work_done <= 0:  # also when lines were shown of steps that are trained again
            return None
        rate = self._work_done / (time.monotonic() - self._began)
        return max(0.0, self._work_left - self._work_done) / rate

    def _show(self, *, now: bool = False) -> None:
        failed = f"{self._failed} failed" if self._failed else ""
        if self._bars:
            self._bars.update(self._whole, completed=self._ended, facts=failed)
            return
        if not now and time.monotonic() - self._last < PLAIN_SECONDS:
            return
        self._last = time.monotonic()
        left = self.seconds_left()
        parts = (
            f"{self._ended}/{self._total} {self._what}",
            failed,
            f"{len(self._under_way)} under way" if self._under_way else "",
            f"{format_seconds(left)} left" if left else "",
        )
        with contextlib.suppress(OSError):
            print("  ".join(part for part in parts if part), file=sys.stderr, flush=True)


class _Part:
    """One run of :class:`Overall`."""

    def __init__(self, overall: Overall, name: str, steps: int, work: float) -> None:
        self._overall, self._name, self._steps, self._work = overall, name, steps, work

    def update(self, step: int, facts: Mapping[str, Any]) -> None:
        """Pass it on."""
        self._overall.update(self._name, step, self._steps, self._work, describe(facts))


class _Nothing:
    """Stands in for rich's bars and shows nothing."""

    def add_task(self, *_: Any, **__: Any) -> int:
        """Show nothing."""
        return 0

    update = remove_task = add_task


@contextlib.contextmanager
def reporting_all(
    total: int, work: float, *, what: str = "runs", quiet: bool = False
) -> Iterator[Overall]:
    """Report the progress of many runs, of which a few are under way at a time.

    Args:
        total: how many runs there are.
        work: the work of all of them, in any unit.
        what: what to call them.
        quiet: report nothing.
    """
    if quiet:
        yield Overall(total, work, _Nothing(), what)
    elif _is_redrawable():
        with bars() as shown:
            yield Overall(total, work, shown, what)
    else:
        yield Overall(total, work, None, what)


def _is_redrawable() -> bool:
    """Whether standard error is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def describe(facts: Mapping[str, Any]) -> str:
    """The numbers of a line of metrics that say how a run is doing."""
    shown = (("loss", "loss", ".3f"), ("id_accuracy", "ID", ".2f"), ("ood_accuracy", "OOD", ".2f"))
    found = [(label, facts.get(key), form) for key, label, form in shown]
    return " ".join(f"{label} {value:{form}}" for label, value, form in found if value is not None)


def format_seconds(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"
