"""How far a number rises with a setting where a seed is trained at several learning rates.

The NeurIPS paper's figure 2 keeps the best of nine rates for each seed, and each of its maps keeps
another one. Runs of one seed at several rates share their data and their initial weights, so they
are one witness: a *unit*, which has one number.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchor_interp._util.errors import StoreError
from anchor_interp._util.schema import shown
from anchor_interp.analysis.statistics import Floats
from anchor_interp.runs.phase import PAPER
from anchor_interp.sweeps.effects import Stratum, line

from .effects import Effect, Finding, finding_of, grouped
from .rows import Row, Rows, columns_of, with_side

Summary = Callable[[Rows], float]  # one number of the runs of a unit
CELL = ("n_layers", "gamma")
SEED = (*CELL, "seed")


def best(column: str) -> Summary:
    """The largest number of any rate."""
    return lambda runs: float(_numbers(runs, column).max())


def mean(column: str) -> Summary:
    """The mean over all runs."""
    return lambda runs: float(_numbers(runs, column).mean())


def majority(column: str) -> Summary:
    """The share of the runs in which at least half of the answers are of a kind."""
    return lambda runs: float((_numbers(runs, column) >= PAPER.ood).mean())


def spread(column: str) -> Summary:
    """The standard deviation over all runs; 0 of a single one."""
    return lambda runs: float(_numbers(runs, column).std(ddof=min(1, len(runs) - 1)))


def _numbers(runs: Rows, column: str) -> Floats:
    for row in runs:
        if row[column] is None or not math.isfinite(row[column]):
            what = f"{column} of the run {row['run_id']} is {shown(row[column])}"
            raise StoreError(f"{what}; expected a finite number: restore the table's line")
    return np.array([float(row[column]) for row in runs])


def in_zone(rows: Rows, summary: Callable[[str], Summary]) -> list[tuple[Any, ...]]:
    """The shaded zone: the cells whose ID accuracy, the mean over seeds, is below 0.9."""
    known = [row for row in rows if row["id_accuracy"] is not None]
    of_seed = summary("id_accuracy")
    return [
        cell
        for cell, runs in grouped(known, CELL).items()
        if np.mean([of_seed(same) for same in grouped(runs, SEED).values()]) < PAPER.id
    ]


def outside_zone(summary: Callable[[str], Summary]) -> Callable[[Rows], Rows]:
    """Leaves out the runs of the shaded zone."""

    def kept(rows: Rows) -> Rows:
        zone = in_zone(rows, summary)
        return [row for row in rows if columns_of(row, CELL) not in zone]

    return kept


def beside_middle(rows: Rows) -> Rows:
    """The rows with their ``side`` of the middle gamma, without those that have it."""
    return [row for row in with_side(rows) if row["side"]]


def below_middle(rows: Rows) -> Rows:
    """The rows of gammas below the middle one."""
    return [row for row in with_side(rows) if row["side"] < 0]


@dataclass(frozen=True, kw_only=True)
class Rise(Effect):
    """How far a number rises from the smallest to the largest value of a setting, others held.

    It is the slope of a straight line over units times the range of the setting, with a level for
    each group of equal ``within`` (:func:`anchor_interp.sweeps.effects.line`); a group with fewer
    than three units or with one value is left out.
    """

    number: Summary
    x: str = "gamma"  # the column of the setting
    within: tuple[str, ...] = ("n_layers",)  # columns that are held
    unit: tuple[str, ...] = SEED  # columns that tell units apart
    sign: int = 1  # -1 where the claim is that the number falls

    def measure(self, rows: Rows) -> Finding:
        """See the class."""
        kept, censored = self.split(rows)
        groups = [
            [*grouped(group, (*self.unit, self.x)).values()]
            for group in grouped(kept, self.within).values()
        ]
        groups = [
            units
            for units in groups
            if len(units) > 2 and len({runs[0][self.x] for runs in units}) > 1
        ]
        found = line([self._stratum(units) for units in groups])
        used = [row for units in groups for runs in units for row in runs]
        if found is None:
            note = f"no group has three units at several values of {self.x}"
            return finding_of(
                [used], len(censored), problem="not answerable here" if kept else "", note=note
            )
        return finding_of([used], len(censored), found)

    def _stratum(self, units: list[list[Row]]) -> Stratum:
        x = np.array([float(runs[0][self.x]) for runs in units])
        y = self.sign * np.array([self.number(runs) for runs in units])
        return Stratum(x, y, [columns_of(runs[0], self.unit) for runs in units])
