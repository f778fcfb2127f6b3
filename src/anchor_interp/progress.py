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
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in ("", "dumb", "unknown"):
        yield {name: Plain(name, *shape) for name, shape in runs.items()}
        return
    with bars() as shown:
        yield {name: Bar(shown, name, *shape) for name, shape in runs.items()}


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
