"""What a phase diagram shows of one run, and of all runs in a cell.

A finished run counts with the measurements of its last checkpoint, even if it is undertrained. A
run that diverged, failed or is unfinished has no measurements: it appears as a mark and is
excluded from means. The interval of a mean is Student's
(:func:`anchor_interp.analysis.statistics.mean_interval`), cut to the range of the measure.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.analysis.statistics import mean_interval
from anchor_interp.runs.phase import PAPER, Phase
from anchor_interp.sweeps.folder import State as RunStatus
from anchor_interp.sweeps.settings import TableRow, Value

RunState = Literal[Phase, "diverged", "failed", "unfinished", "missing"]
"""The phase of a finished run; otherwise, why it has none."""
STATE_MARKS: dict[RunState, str] = {
    "undertrained": "U",
    "memorizing": "M",
    "composite": "C",
    "symmetric": "S",
    "inferential": "I",
    "other": "O",
    "diverged": "\N{MULTIPLICATION SIGN}",
    "failed": "!",
    "unfinished": "\N{HORIZONTAL ELLIPSIS}",
    "missing": "\N{EN DASH}",
}
"""The letter or mark of every state, in the order in which states are listed."""
PHASE_INDEX: dict[Phase, int] = {"memorizing": 1, "composite": 2, "symmetric": 2, "inferential": 3}
"""The complexity-control paper's number of a phase (section IV); the others have none."""
MEASURES: dict[str, tuple[str, float | None]] = {
    "train_accuracy": ("training accuracy", 1),
    "id_accuracy": ("ID accuracy", 1),
    "ood_accuracy": ("OOD accuracy", 1),
    "symmetric_accuracy": ("symmetric answers", 1),
    "commutativity": ("commutativity", 1),
    "stable_rank": ("stable rank of W_Q(1)", None),
    "stable_rank_ratio": ("stable rank / at initialisation", None),
}
"""The measures, in words and with their largest value; the smallest is 0. All are columns of the
table except ``stable_rank_ratio``."""
BEST_OF = ("train_accuracy", "id_accuracy", "ood_accuracy", "symmetric_accuracy")
"""The measures that ``best_over`` applies to."""


@dataclass(frozen=True)
class RunMark:
    """One run in its cell."""

    run_id: str
    slot: int
    """Its place in the cell; runs of one seed have the same place in every cell."""
    seed: int
    status: RunStatus
    phase: Phase | None
    """None if the run is not done."""
    state: RunState
    censored: bool
    """Whether its final phase is unknown: not done, diverged or undertrained."""
    reason: str
    """Why it has its phase, or what went wrong."""
    total_decay: float | None
    """Learning rate x weight decay, summed over its steps."""
    seconds: float | None
    """Wall time."""
    values: dict[str, float | None]
    """Its :data:`MEASURES`; None for what was not measured."""
    poor_id: bool
    """ID accuracy below 0.9."""
    poor_commutativity: bool
    """Commutativity below 0.7, on a task without a symmetric target. On a task with one, an
    inferential model does not commute either."""


@dataclass(frozen=True)
class Measured:
    """One measure over the runs of a cell."""

    values: dict[int, float | None]
    """By slot, or with ``best_over`` by seed; None for a run without a measurement."""
    n: int
    """How many values there are."""
    mean: float | None
    """None without values."""
    low: float | None
    """Lower end of Student's 95 % interval; None with fewer than two values."""
    high: float | None
    """Upper end."""


@dataclass(frozen=True)
class Cell:
    """All runs at one value of each axis."""

    number: int
    """Its number among the cells of all diagrams."""
    x: Value
    """Value of the horizontal axis."""
    y: Value
    """Value of the vertical axis; None without one."""
    runs: tuple[RunMark, ...]
    """All runs by slot, also those without measurements."""
    states: dict[RunState, int]
    """How many runs are in each state that occurs."""
    phase: Phase | None
    """The most frequent phase; None in a tie, or if no run is done."""
    measures: dict[str, Measured]
    """The :data:`MEASURES` over its runs."""
    poor_id: bool
    """Mean ID accuracy below 0.9: the shaded zone."""
    poor_commutativity: bool
    """Mean commutativity below 0.7; see :attr:`RunMark.poor_commutativity`."""


def make_mark(row: TableRow, slot: int) -> RunMark:
    """The mark of one run.

    Raises:
        ConfigError: the row has an unknown status or phase, or a measure that is not a number.
    """
    run_id = str(row.get("run_id"))
    status: RunStatus = checked(row.get("status"), RunStatus, f"status of run {run_id}")
    phase: Phase | None = None
    if status == "done":
        phase = checked(row.get("phase"), Phase, f"phase of run {run_id}")
    waiting: RunState = "unfinished" if status in ("running", "begun") else "missing"
    state: RunState = phase or (status if status in ("diverged", "failed") else waiting)
    values: dict[str, float | None] = dict.fromkeys(MEASURES)
    if status == "done":
        values |= {name: _number(row, name) for name in MEASURES}
        now, start = values["stable_rank"], _number(row, "stable_rank_at_init")
        values["stable_rank_ratio"] = now / start if now is not None and start else None
    return RunMark(
        run_id=run_id,
        slot=slot,
        seed=seed_of(row),
        status=status,
        phase=phase,
        state=state,
        censored=status != "done" or state == "undertrained",
        reason=str((row.get("reason") if status == "done" else row.get("error")) or ""),
        total_decay=_number(row, "total_decay"),
        seconds=_number(row, "seconds"),
        values=values,
        poor_id=_below(values["id_accuracy"], PAPER.id),
        poor_commutativity=_below(values["commutativity"], PAPER.commutativity)
        and values["symmetric_accuracy"] is None,
    )


def seed_of(row: TableRow) -> int:
    """A run's seed; 0 if the row has none."""
    return int(_number(row, "seed") or 0)


def make_cell(number: int, x: Value, y: Value, runs: tuple[RunMark, ...], *, best: bool) -> Cell:
    """A cell of these runs; with ``best``, each seed counts with its best accuracies."""
    measures = {name: measured(runs, name, best=best and name in BEST_OF) for name in MEASURES}
    phases = Counter(run.phase for run in runs if run.phase).most_common(2)
    tie = len(phases) == 2 and phases[0][1] == phases[1][1]
    return Cell(
        number=number,
        x=x,
        y=y,
        runs=runs,
        states=in_order(Counter(run.state for run in runs)),
        phase=phases[0][0] if phases and not tie else None,
        measures=measures,
        poor_id=_below(measures["id_accuracy"].mean, PAPER.id),
        poor_commutativity=_below(measures["commutativity"].mean, PAPER.commutativity)
        and not measures["symmetric_accuracy"].n,
    )


def measured(runs: Sequence[RunMark], name: str, *, best: bool = False) -> Measured:
    """One measure over some runs: of every run, or the best of each seed."""
    values: dict[int, float | None] = {}
    for run in runs:
        key = run.seed if best else run.slot
        both = (values.get(key), run.values[name])
        values[key] = max((value for value in both if value is not None), default=None)
    known = [value for value in values.values() if value is not None]
    if len(known) < 2:
        return Measured(values, len(known), known[0] if known else None, None, None)
    low, high = mean_interval(known)
    largest = MEASURES[name][1]
    high = high if largest is None else min(high, largest)
    return Measured(values, len(known), math.fsum(known) / len(known), max(low, 0.0), high)


def in_order(states: Mapping[RunState, int]) -> dict[RunState, int]:
    """The states that occur, in the order of :data:`STATE_MARKS`."""
    return {state: states[state] for state in STATE_MARKS if states.get(state)}


def _number(row: TableRow, name: str) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool | str) or not isinstance(value, int | float):
        raise ConfigError(f"run {row.get('run_id')} has {name} {shown(value)}; expected a number")
    return float(value) if math.isfinite(value) else None


def _below(value: float | None, threshold: float) -> bool:
    return value is not None and value < threshold
