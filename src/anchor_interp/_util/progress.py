"""Progress on standard error: rich bars on a terminal, plain lines elsewhere."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Protocol

PLAIN_SECONDS = 10.0
"""Seconds between plain lines."""
LATE_SECONDS = 2.0
"""Work that ends sooner than this need not report."""
_SILENT: ContextVar[bool] = ContextVar("silent", default=False)
_WHOLE: ContextVar["_Late | None"] = ContextVar("whole", default=None)
"""The work whose parts report through it."""

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


class _Rate:
    """Steps per second since the first report, which may come long after the start."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._first: tuple[int, float] | None = None

    def update(self, step: int) -> tuple[float, str]:
        """Steps per second, and the text in sequences per second; 0 and "" while unknown."""
        now = time.monotonic()
        if self._first is None:
            self._first = step, now
        first_step, began = self._first
        rate = (step - first_step) / (now - began) if step > first_step else 0.0
        throughput = rate * self._batch_size
        return rate, f"{throughput:,.0f} sequences/s" if throughput else ""


class Plain:
    """A line every few seconds: step, numbers, throughput and time left.

    The first one comes after these seconds, or ``at_once``.
    """

    def __init__(self, name: str, steps: int, batch_size: int, *, at_once: bool = False) -> None:
        self._name, self._steps, self._rate = name, steps, _Rate(batch_size)
        self._last = -math.inf if at_once else time.monotonic()
        self._ended = False

    def update(self, step: int, facts: Facts) -> None:
        """Print a line if the last one is old enough, and once at the end."""
        rate, throughput = self._rate.update(step)
        now, ends = time.monotonic(), step >= self._steps
        if self._ended or (not ends and now - self._last < PLAIN_SECONDS):
            return
        self._last, self._ended = now, ends
        left = f"{format_seconds((self._steps - step) / rate)} left" if rate and not ends else ""
        text = _joined(f"step {step}/{self._steps}", describe(facts), throughput, left)
        _print(f"{self._name}: {text}")


class Bar:
    """A rich progress bar with throughput and time left."""

    def __init__(self, bars: Any, name: str, steps: int, batch_size: int) -> None:
        self._bars, self._rate = bars, _Rate(batch_size)
        self._task = bars.add_task(name, total=steps, facts="waiting", rate="")

    def update(self, step: int, facts: Facts) -> None:
        """Move the bar."""
        _, throughput = self._rate.update(step)
        self._bars.update(self._task, completed=step, facts=describe(facts), rate=throughput)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Within the ``with`` block :func:`reporting_late` reports nothing."""
    token, whole = _SILENT.set(True), _WHOLE.set(None)
    try:
        yield
    finally:
        _SILENT.reset(token)
        _WHOLE.reset(whole)


@contextlib.contextmanager
def reporting(
    runs: Mapping[str, tuple[int, int]], *, quiet: bool = False, at_once: bool = False
) -> Iterator[dict[str, Progress]]:
    """Report the progress of named runs, each given by its steps and its batch size.

    The batch size of other work is 0. ``at_once`` prints the first plain line without delay.
    """
    with silence():
        if quiet:
            yield {name: Silent() for name in runs}
        elif _is_redrawable():
            with _rich_bars() as bars:
                yield {name: Bar(bars, name, *shape) for name, shape in runs.items()}
        else:
            yield {name: Plain(name, *shape, at_once=at_once) for name, shape in runs.items()}


@contextlib.contextmanager
def reporting_late(
    name: str, steps: int, *, batch_size: int = 0, quiet: bool = False
) -> Iterator[Progress]:
    """Report the progress of one piece of work, if it takes longer than :data:`LATE_SECONDS`.

    Work that is part of such work reports through it, as what it is ``doing``. Parts of
    other reported work, and of ``quiet`` work, are silent.
    """
    whole = _WHOLE.get()
    if quiet or _SILENT.get():
        with silence():
            yield Silent() if quiet or whole is None else _PartOf(whole)
        return
    with silence(), contextlib.ExitStack() as shown:
        late = _Late(shown, name, (steps, batch_size))
        _WHOLE.set(late)
        yield late


class _Late:
    """Reports from the moment on that the work has become long."""

    def __init__(self, shown: contextlib.ExitStack, name: str, shape: tuple[int, int]) -> None:
        self._shown, self._run, self._began = shown, {name: shape}, time.monotonic()
        self._progress: Progress | None = None
        self.last: tuple[int, Facts] = 0, {}

    def update(self, step: int, facts: Facts) -> None:
        """Report that a step is done."""
        self.last = step, facts
        self.show(step, facts)

    def show(self, step: int, facts: Facts) -> None:
        """Report if the work is long."""
        if self._progress is None and time.monotonic() - self._began > LATE_SECONDS:
            bars = self._shown.enter_context(reporting(self._run, at_once=True))
            _WHOLE.set(self)  # which the bars have unset
            (self._progress,) = bars.values()
        if self._progress is not None:
            self._progress.update(step, facts)


class _PartOf:
    """Reports a part of longer work as what that work is doing."""

    def __init__(self, whole: _Late) -> None:
        self._whole = whole

    def update(self, step: int, facts: Facts) -> None:
        """Report that a step of the part is done; its number does not matter to the whole."""
        del step
        of_whole, doing = self._whole.last
        self._whole.show(of_whole, {"doing": _joined(describe(doing), describe(facts))})


class Overall:
    """Progress of many runs: how many have ended, how many are under way, the time left.

    The time left follows from the work done since the start. A run's work is in any unit.

    Args:
        total: number of runs.
        work: the work of all of them.
        bars: rich's bars; None for plain lines.
        what: what to call the runs.
    """

    def __init__(self, total: int, work: float, bars: Any, what: str = "runs") -> None:
        self._total, self._what = total, what
        self._work_left, self._work_done = work, 0.0
        self._ended = self._failed = 0
        self._began = self._last = time.monotonic()
        self._under_way: dict[str, float] = {}  # work done of each run
        self._bars = bars
        self._whole = bars.add_task(what, total=total, facts="", rate="") if bars else None
        self._tasks: dict[str, Any] = {}  # rich's bar of each run

    def begin(self, ended: int, work: float) -> None:
        """Count runs that ended earlier; their work costs no time."""
        self._ended += ended
        self._work_left -= work
        self._show(now=True)

    def run(self, name: str, steps: int, work: float) -> Progress:
        """What one run reports to."""
        return _Part(self, name, steps, work)

    def update(self, name: str, steps: int, work: float, step: int, facts: Facts) -> None:
        """Report that a run has reached a step."""
        done = work * step / steps
        if name not in self._under_way:  # what was done before costs no time
            self._under_way[name] = done
            self._work_left -= done
        self._work_done += done - self._under_way[name]
        self._under_way[name] = done
        if self._bars:
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(f"  {name}", total=steps, facts="", rate="")
            self._bars.update(self._tasks[name], completed=step, facts=describe(facts))
        self._show()

    def end(self, name: str, work: float, *, failed: bool = False) -> None:
        """Count a run that has ended, well or not."""
        self._work_done += work - self._forget(name)
        self._ended += 1
        self._failed += failed
        self._show(now=self._ended == self._total)

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
        if name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))
        return self._under_way.pop(name, 0.0)

    def _show(self, *, now: bool = False) -> None:
        failed = f"{self._failed} failed" if self._failed else ""
        if self._bars:
            self._bars.update(self._whole, completed=self._ended, facts=failed)
            return
        if not now and time.monotonic() - self._last < PLAIN_SECONDS:
            return
        self._last = time.monotonic()
        ended = f"{self._ended}/{self._total} {self._what}"
        under_way = f"{len(self._under_way)} under way" if self._under_way else ""
        left = self.seconds_left()
        _print(_joined(ended, failed, under_way, f"{format_seconds(left)} left" if left else ""))


class _Part:
    """One run of :class:`Overall`."""

    def __init__(self, overall: Overall, name: str, steps: int, work: float) -> None:
        self._overall, self._run = overall, (name, steps, work)

    def update(self, step: int, facts: Facts) -> None:
        self._overall.update(*self._run, step, facts)


class _NoBars:
    """Stands in for rich's bars and shows nothing."""

    def add_task(self, *_: Any, **__: Any) -> int:
        return 0

    update = remove_task = add_task


@contextlib.contextmanager
def reporting_all(
    total: int, work: float, *, what: str = "runs", quiet: bool = False
) -> Iterator[Overall]:
    """Report the progress of many runs of which a few are under way; see :class:`Overall`."""
    with silence():
        if quiet:
            yield Overall(total, work, _NoBars(), what)
        elif _is_redrawable():
            with _rich_bars() as bars:
                yield Overall(total, work, bars, what)
        else:
            yield Overall(total, work, None, what)


def describe(facts: Facts) -> str:
    """What is ``doing``, or the numbers of a line of metrics that say how a run is doing."""
    if "doing" in facts:
        return str(facts["doing"])
    shown = (("loss", "loss", ".3f"), ("id_accuracy", "ID", ".2f"), ("ood_accuracy", "OOD", ".2f"))
    found = [(label, facts.get(key), form) for key, label, form in shown]
    return " ".join(f"{label} {value:{form}}" for label, value, form in found if value is not None)


def format_seconds(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


@contextlib.contextmanager
def _rich_bars() -> Iterator[Any]:
    """Rich progress bars on standard error."""
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
    with RichProgress(*columns, console=Console(stderr=True), refresh_per_second=4) as bars:
        yield bars


def _is_redrawable() -> bool:
    """Whether standard error is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def _joined(*parts: str) -> str:
    return "  ".join(part for part in parts if part)


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk behind the stream stops no training
        print(text, file=sys.stderr, flush=True)
