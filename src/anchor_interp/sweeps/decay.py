"""Accuracy over effective decay: the sum of learning rate x weight decay over all steps.

On this axis short and long runs are comparable (:func:`anchor_interp.runs.config.total_decay`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from anchor_interp.sweeps.cells import Measured, RunMark, measured
from anchor_interp.sweeps.settings import TableRow, Value, follows, group

_PARTS = ("weight_decay", "lr", "steps", "lr_start", "lr_end", "warmup")  # of the effective decay


@dataclass(frozen=True)
class DecayPoint:
    """The runs of one cell, by its number, that have one effective decay, and their accuracy."""

    cell: int
    total_decay: float
    runs: tuple[RunMark, ...]
    id: Measured
    ood: Measured


@dataclass(frozen=True)
class DecaySeries:
    """Points that differ in weight decay alone, by rising effective decay."""

    settings: dict[str, Value]
    """Other parts of the effective decay that vary, such as learning rate and steps."""
    points: tuple[DecayPoint, ...]


@dataclass(frozen=True)
class DecayPanel:
    """Runs that differ only in seed and in what makes up their effective decay."""

    settings: dict[str, Value]
    series: tuple[DecaySeries, ...]


def decay_panels(rows: Sequence[TableRow], varying: Sequence[str]) -> tuple[DecayPanel, ...]:
    """The panels of a sweep; none if the effective decay does not vary.

    Each row has its :class:`RunMark` as ``mark`` and the number of its cell as ``cell``, and they
    are in the order of slots.
    """
    rows = [row for row in rows if row["mark"].total_decay is not None]
    if len({row["mark"].total_decay for row in rows}) < 2:
        return ()
    outside = [name for name in varying if name not in _PARTS]
    outside = [name for i, name in enumerate(outside) if not follows(rows, name, outside[:i])]
    inside = [name for name in varying if name in _PARTS and name != "weight_decay"]
    panels = []
    for panel, of_panel in group(rows, outside):
        series = [DecaySeries(place, _points(same)) for place, same in group(of_panel, inside)]
        panels.append(DecayPanel(panel, tuple(series)))
    return tuple(panels)


def _points(rows: Sequence[TableRow]) -> tuple[DecayPoint, ...]:
    points = []
    for _, same in group(rows, ("total_decay", "cell")):
        runs = tuple(row["mark"] for row in same)
        accuracies = measured(runs, "id_accuracy"), measured(runs, "ood_accuracy")
        points.append(DecayPoint(same[0]["cell"], float(same[0]["total_decay"]), runs, *accuracies))
    return tuple(points)
