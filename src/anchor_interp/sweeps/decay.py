"""Accuracy over effective decay: the sum of learning rate x weight decay over all steps.

On this axis short and long runs are comparable (:func:`anchor_interp.runs.config.total_decay`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anchor_interp.sweeps.cells import Measured, RunMark, measured
from anchor_interp.sweeps.settings import TableRow, Value, follows, group

_PARTS = ("weight_decay", "lr", "steps", "lr_start", "lr_end", "warmup")  # of the effective decay


@dataclass(frozen=True)
class DecayPoint:
    """The runs of one cell that have one effective decay."""

    cell: int
    """The cell's number."""
    total_decay: float
    """The effective decay."""
    runs: tuple[RunMark, ...]
    id: Measured
    """ID accuracy of every run, also with ``best_over``."""
    ood: Measured
    """OOD accuracy of every run."""


@dataclass(frozen=True)
class DecaySeries:
    """Points that differ in weight decay alone."""

    settings: dict[str, Value]
    """The parts of the effective decay that vary, such as learning rate and steps."""
    points: tuple[DecayPoint, ...]
    """Points by rising effective decay."""


@dataclass(frozen=True)
class DecayPanel:
    """Runs that differ only in seed and in what makes up their effective decay."""

    settings: dict[str, Value]
    """The settings that vary between panels."""
    series: tuple[DecaySeries, ...]


def decay_panels(
    rows: Sequence[TableRow], marks: Mapping[int, tuple[int, RunMark]], varying: Sequence[str]
) -> tuple[DecayPanel, ...]:
    """The panels of a sweep; none if the effective decay does not vary.

    Args:
        rows: the runs.
        marks: the number of its cell and its mark, by ``id`` of the row.
        varying: the settings that vary.
    """
    rows = [row for row in rows if marks[id(row)][1].total_decay is not None]
    if len({marks[id(row)][1].total_decay for row in rows}) < 2:
        return ()
    outside = [name for name in varying if name not in _PARTS]
    outside = [name for i, name in enumerate(outside) if not follows(rows, name, outside[:i])]
    inside = [name for name in varying if name in _PARTS and name != "weight_decay"]
    return tuple(
        DecayPanel(
            dict(zip(outside, panel, strict=True)),
            tuple(
                DecaySeries(
                    dict(zip(inside, series, strict=True)),
                    _points([marks[id(row)] for row in same]),
                )
                for series, same in group(of_panel, inside).items()
            ),
        )
        for panel, of_panel in group(rows, outside).items()
    )


def _points(numbered: Sequence[tuple[int, RunMark]]) -> tuple[DecayPoint, ...]:
    points: dict[tuple[float, int], list[RunMark]] = {}
    for number, mark in sorted(numbered, key=lambda entry: entry[1].slot):
        assert mark.total_decay is not None, "rows without one are left out"
        points.setdefault((mark.total_decay, number), []).append(mark)
    return tuple(
        DecayPoint(
            number,
            total,
            tuple(points[total, number]),
            measured(points[total, number], "id_accuracy"),
            measured(points[total, number], "ood_accuracy"),
        )
        for total, number in sorted(points)
    )
