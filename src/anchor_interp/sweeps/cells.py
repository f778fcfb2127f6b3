"""What a phase diagram shows of one run, and of all runs in a cell.

A finished run counts with the measurements of its last checkpoint, even if it is undertrained. A
run that diverged, failed or is unfinished has no measurements: it appears as a mark and is
excluded from means. The interval of a mean is Student's
(:func:`anchor_interp._util.statistics.mean_interval`), cut to the range of the measure.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp._util.statistics import mean_interval
from anchor_interp.behaviour.phase import (
    MEASUREMENTS,
    PAPER,
    CellAccuracy,
    Evaluation,
    Phase,
    classify,
    near_lines,
)
from anchor_interp.sweeps.columns import RunStatus, TableRow, Value

RunState = Literal[Phase, "diverged", "failed", "unfinished", "missing"]
"""The phase of a finished run; otherwise, why it has none."""
STATE_MARKS: dict[RunState, str] = {
    "undertrained": "U", "memorizing": "M", "composite": "C", "symmetric": "S", "inferential": "I",
    "other": "O", "diverged": "\N{MULTIPLICATION SIGN}", "failed": "!",
    "unfinished": "\N{HORIZONTAL ELLIPSIS}", "missing": "\N{EN DASH}",
}  # fmt: skip
"""The letter or mark of every state, in the order in which states are listed."""
PHASE_INDEX: Mapping[str | None, int] = {
    "memorizing": 1, "composite": 2, "symmetric": 2, "inferential": 3,
}  # fmt: skip
"""The complexity-control paper's index of a phase (section IV); the others have none."""
MEASURE_LABELS: dict[str, str] = {
    **{name: words for name, words in MEASUREMENTS.items() if name != "key_dependence"},
    "stable_rank": "stable rank of W_Q L0",
    "stable_rank_ratio": "stable rank, relative to initialisation",
}
"""The measures in words: shares, and stable ranks. All but the last are columns of the table.
Further columns with numbers are measures if a diagram maps them."""
BEST_OF = ("train_accuracy", "id_accuracy", "ood_accuracy", "symmetric_accuracy")
"""The measures that ``best_over`` applies to."""
OF_RUN = (
    "run_id", "slot", "seed", "status", "phase", "state", "censored", "reason", "near",
    "total_decay", "seconds", "poor_id", "poor_commutativity",
)  # fmt: skip
"""What ``diagram.json`` says of a run beside its measures."""


@dataclass(frozen=True)
class Measured:
    """One measure over the runs of a cell, with Student's 95 % interval of its mean."""

    values: dict[int, float | None]
    """By slot, or with ``best_over`` by seed; None for a run without a measurement."""
    n: int
    """How many are not None."""
    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Cell:
    """All runs at one value of each axis, by slot."""

    number: int
    """Its number among the cells of all diagrams."""
    x: Value
    y: Value
    """None without a vertical axis."""
    runs: tuple[TableRow, ...]
    """The rows of :func:`shown_row`."""
    states: dict[RunState, int]
    phase: Phase | None
    """The most frequent phase; None in a tie, or if no run is done."""
    measures: dict[str, Measured]
    poor_id: bool
    """Mean ID accuracy below 0.9: the shaded zone."""
    poor_commutativity: bool
    """Mean commutativity below 0.7, without a symmetric target."""


def shown_row(row: TableRow, slot: int, maps: Sequence[str] = ()) -> TableRow:
    """The row of one run with what a diagram shows of it; ``maps`` are further measures.

    Besides, it holds

    * ``slot``: its place in the cell; runs of one seed have the same place in every cell,
    * ``state``: its :data:`RunState`; ``reason``: why it has its phase, or what went wrong,
    * ``censored``: whether its final phase is unknown: not done, diverged or undertrained,
    * ``near``: what :func:`anchor_interp.behaviour.phase.near_lines` says of its measurements,
    * its measures, all None if it is not done, ``stable_rank_ratio`` among them,
    * ``poor_id``: ID accuracy below 0.9, and ``poor_commutativity``: commutativity below 0.7, on a
      task without a symmetric target. On a task with one, an inferential model does not commute
      either.

    ConfigError if a row has an invalid status, phase or measure.
    """
    run_id = str(row.get("run_id"))
    status: RunStatus = checked(row.get("status"), RunStatus, f"status of run {run_id}")
    is_done, phase = status == "done", None
    values: dict[str, float | None] = dict.fromkeys((*MEASURE_LABELS, *maps))
    if is_done:
        phase = checked(row.get("phase"), Phase, f"phase of run {run_id}")
        values |= {name: _number(row, name) for name in values}
        now, start = values["stable_rank"], _number(row, "stable_rank_at_init")
        values["stable_rank_ratio"] = now / start if now is not None and start else None
    undone: RunState = status if status in ("diverged", "failed", "missing") else "unfinished"
    poor_id, poor_commutativity = _poor(values)
    sizes = {name: _number(row, name) for name in ("total_decay", "seconds")}
    return row | sizes | values | {
        "run_id": row.get("run_id"),
        "slot": slot,
        "seed": seed_of(row),
        "phase": phase,
        "state": phase or undone,
        "censored": not is_done or phase == "undertrained",
        "reason": str(row.get("reason" if is_done else "error") or ""),
        "near": _near(row, phase),
        "poor_id": poor_id,
        "poor_commutativity": poor_commutativity,
    }  # fmt: skip


def _near(row: TableRow, phase: Phase | None) -> tuple[str, ...]:
    """The measurements near a line, as far as the row holds what the rule reads."""
    shares: dict[str, Any] = {name: _number(row, name) for name in MEASUREMENTS}
    if phase is None or (shares["ood_accuracy"] is not None and shares["key_dependence"] is None):
        # without anchors the line of OOD accuracy depends on the task's chance and shortcuts, which
        # rows do not hold
        return ()
    fresh = _number(row, "seen_train_keys")
    evaluation = Evaluation(
        **shares, cells=CellAccuracy(fresh, None, None, None), steps=None, pair_accuracy=(),
        unseen=(), stable_rank=None, stable_rank_at_init=None, condensation=None,
        condensation_at_init=None, n=1, seed=0,
    )  # fmt: skip
    # if the rule reads more than the row holds, it may give another phase: then no line is known
    return near_lines(evaluation) if classify(evaluation) == phase else ()


def seed_of(row: TableRow) -> int:
    """A run's seed; 0 if the row has none."""
    return int(_number(row, "seed") or 0)


def make_cell(
    number: int, x: Value, y: Value, runs: tuple[TableRow, ...], *, maps: Sequence[str], best: bool
) -> Cell:
    """A cell of these runs; with ``best``, each seed counts with its best accuracies."""
    names = (*MEASURE_LABELS, *maps)
    measures = {name: measured(runs, name, best=best and name in BEST_OF) for name in names}
    phases = Counter(run["phase"] for run in runs if run["phase"]).most_common(2)
    tie = len(phases) == 2 and phases[0][1] == phases[1][1]
    phase = phases[0][0] if phases and not tie else None
    states = in_order(Counter(run["state"] for run in runs))
    poor = _poor({name: of_cell.mean for name, of_cell in measures.items()})
    return Cell(number, x, y, runs, states, phase, measures, *poor)


def measured(runs: Sequence[TableRow], name: str, *, best: bool = False) -> Measured:
    """One measure over some runs: of every run, or the best of each seed."""
    values: dict[int, float | None] = {}
    for run in runs:
        key = run["seed" if best else "slot"]
        both = values.get(key), run[name]
        values[key] = max((value for value in both if value is not None), default=None)
    known = [value for value in values.values() if value is not None]
    if len(known) < 2:
        return Measured(values, len(known), known[0] if known else None, None, None)
    low, high = mean_interval(known)
    if name in MEASURE_LABELS:
        low, high = max(low, 0.0), high if name.startswith("stable_rank") else min(high, 1)
    return Measured(values, len(known), math.fsum(known) / len(known), low, high)


def in_order(states: Mapping[RunState, int]) -> dict[RunState, int]:
    """The states that occur, in the order of :data:`STATE_MARKS`."""
    return {state: states[state] for state in STATE_MARKS if states.get(state)}


def _number(row: TableRow, name: str) -> float | None:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise ConfigError(f"run {row.get('run_id')} has {name} {shown(value)}; expected a number")
    return float(value) if value is not None and math.isfinite(value) else None


def _poor(values: Mapping[str, float | None]) -> tuple[bool, bool]:
    """Whether ID accuracy is poor, and commutativity; see :func:`shown_row`."""
    known = {name: value for name, value in values.items() if value is not None}
    not_commuting = known.get("commutativity", 1) < PAPER.commutativity
    poor_id = known.get("id_accuracy", 1) < PAPER.id
    return poor_id, not_commuting and "symmetric_accuracy" not in known
