"""Progress of a training on standard error: a rich bar, or plain lines without a terminal."""

import contextlib
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


class Plain:
    """One line now and then: step, numbers, throughput and time left."""

    def __init__(self, name: str, start: int, steps: int, batch_size: int) -> None:
        self._name, self._start, self._steps, self._batch = name, start, steps, batch_size
        self._began = self._last = time.monotonic()

    def update(self, step: int, facts: Mapping[str, Any]) -> None:
        """Print a line if the last one is old enough, and always at the end."""
        now = time.monotonic()
        if step < self._steps and now - self._last < PLAIN_SECONDS:
            return
        self._last = now
        rate = (step - self._start) / max(now - self._began, 1e-9)
        left = format_seconds((self._steps - step) / rate) if rate else "?"
        print(
            f"{self._name}: step {step}/{self._steps}  {describe(facts)}  "
            f"{rate * self._batch:,.0f} sequences/s  {left} left",
            file=sys.stderr,
            flush=True,
        )


class Bar:
    """A rich progress bar with throughput and time left."""

    def __init__(self, bars: Any, name: str, start: int, steps: int, batch_size: int) -> None:
        self._bars, self._batch, self._start = bars, batch_size, start
        self._began = time.monotonic()
        self._task = bars.add_task(name, total=steps, completed=start, facts="", rate="")

    def update(self, step: int, facts: Mapping[str, Any]) -> None:
        """Move the bar."""
        rate = (step - self._start) * self._batch / max(time.monotonic() - self._began, 1e-9)
        self._bars.update(
            self._task, completed=step, facts=describe(facts), rate=f"{rate:,.0f} sequences/s"
        )


@contextlib.contextmanager
def bars() -> Iterator[Any]:
    """A set of rich progress bars on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}  {task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True), refresh_per_second=4) as shown:
        yield shown


@contextlib.contextmanager
def reporting(name: str, start: int, steps: int, batch_size: int) -> Iterator[Progress]:
    """A bar if standard error is a terminal, else plain lines."""
    if not sys.stderr.isatty():
        yield Plain(name, start, steps, batch_size)
        return
    with bars() as shown:
        yield Bar(shown, name, start, steps, batch_size)


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
