"""Effects: what a claim measures over runs, signed so that a positive effect is what it claims.

Tests are two-sided permutation tests (:mod:`anchor_interp.analysis.statistics`). Runs that failed
or did not converge are *censored*: they are counted and stand in no sample, unless the effect is
``untrained``. Settings decide the phase, so runs that differ in their seed alone are not
independent witnesses of a phase: :class:`BetweenCells` counts each *cell* of equal settings once.
"""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata, t

from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.statistics import MeanComparison, against_zero, two_samples

from .rows import SETTINGS, Row, Rows, Test, columns_of, every, having, never

Number = Callable[[Row], float | None] | str  # a number of a run, or the name of its column
Floats = npt.NDArray[np.float64]
_Interval = tuple[float, float, float, float]  # an effect, the ends of its interval, and p
_DRAWN = 9_999


@dataclass(frozen=True)
class Finding:
    """What runs say about an effect."""

    n: tuple[int, ...]  # runs in each sample
    seeds: int  # different seeds in the sample that has fewest
    censored: int  # relevant runs that failed or did not converge
    effect: float | None  # the effect; None where it cannot be computed
    low: float | None  # lower end of its 95 % interval
    high: float | None  # upper end
    p_value: float | None  # two-sided
    runs: tuple[str, ...]  # the runs in the samples
    cells: tuple[int, ...] | None = None  # cells in each sample, where cells are compared
    pooled: float | None = None  # the effect run by run, where it is one within strata
    with_censored: float | None = None  # the effect with the censored runs, where they have one
    with_censored_p: float | None = None  # its p
    note: str | None = None  # why there is no effect


@dataclass(frozen=True)
class Observation:
    """What runs say about a rule that holds or does not."""

    holds: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class Effect(ABC):
    """An effect over the runs of some studies."""

    studies: tuple[str, ...] = ()  # the studies; a run of several counts once
    prepare: Callable[[Rows], Rows] = tuple  # selects runs, or adds columns
    untrained: bool = False  # also counts runs that did not converge

    def find_in(self, tables: Mapping[str, Rows]) -> Finding | Observation | None:
        """The finding of the studies' tables; None if one of them is missing or empty."""
        if not all(tables.get(name) for name in self.studies):
            return None
        runs: dict[str, Row] = {}
        for name in self.studies:
            for row in tables[name]:
                runs.setdefault(row["run_id"], row)
        return self.find(tuple(runs.values()))

    @abstractmethod
    def find(self, rows: Rows) -> Finding | Observation:
        """The finding of these runs."""

    def split(self, rows: Rows) -> tuple[list[Row], list[Row]]:
        """The runs that count, and the censored ones."""
        parts: tuple[list[Row], list[Row]] = ([], [])
        for row in self.prepare(rows):
            parts[row["status"] != "done" or (row["censored"] and not self.untrained)].append(row)
        return parts


@dataclass(frozen=True)
class Difference(Effect):
    """The mean of a number in some runs minus that in others, with Welch's interval.

    Runs that are ``unreached`` have a lower bound only, such as the last step where a loss is never
    reached. If one sample alone has them the true difference is larger. If they are more than half
    of both samples there is no effect.
    """

    number: Number
    more: Test  # the runs in which the number is larger, as claimed
    less: Test  # the runs in which it is smaller
    unreached: Test = never

    def compare(self, rows: Rows) -> MeanComparison | None:
        """The two samples compared; None if one has fewer than two runs."""
        samples, _ = _samples(self, rows, self.more, self.less)
        one, two = (_values(sample, self.number) for sample in samples)
        return two_samples(one, two) if min(len(one), len(two)) > 1 else None

    def find(self, rows: Rows) -> Finding:
        """See the class."""
        samples, censored = _samples(self, rows, self.more, self.less)
        if all(2 * sum(map(self.unreached, sample)) > len(sample) for sample in samples):
            return _finding(samples, censored, note="most runs of both samples never came there")
        return _finding(samples, censored, _interval(self.compare(rows)))


@dataclass(frozen=True)
class Mean(Effect):
    """The mean of a number over runs, above a reference (Student's interval, sign flips)."""

    number: Number
    only: Test = every
    reference: float = 0.0

    def compare(self, rows: Rows) -> MeanComparison | None:
        """The runs compared with the reference; None if there are fewer than two."""
        (sample,), _ = _samples(self, rows, self.only)
        values = [value - self.reference for value in _values(sample, self.number)]
        return against_zero(values) if len(values) > 1 else None

    def find(self, rows: Rows) -> Finding:
        """See the class."""
        return _finding(*_samples(self, rows, self.only), _interval(self.compare(rows)))


@dataclass(frozen=True)
class Recipes(Effect):
    """The mean of a number in the runs of one recipe minus that of another recipe, or of zero."""

    number: str
    larger: str
    smaller: str | None = None

    def compare(self, rows: Rows) -> MeanComparison | None:
        """The recipes compared; None if one has fewer than two runs."""
        return self._as_effect().compare(rows)

    def find(self, rows: Rows) -> Finding:
        """See the class; every run that counts needs the number."""
        for row in self.split(rows)[0]:
            if row["recipe"] in (self.larger, self.smaller) and row[self.number] is None:
                raise ConfigError(f"{row['run_id']} has no {self.number}; leave the run out")
        return self._as_effect().find(rows)

    def _as_effect(self) -> Difference | Mean:
        larger = having(recipe=self.larger)
        if self.smaller is None:
            return Mean(self.number, larger)
        return Difference(self.number, larger, having(recipe=self.smaller))


@dataclass(frozen=True)
class BetweenCells(Effect):
    """The mean of a number in runs of some phases minus that in others, cell by cell.

    A cell counts as the mean of its runs. Cells are compared within a *stratum* of equal ``within``
    that has at least two cells of each kind. The effect is that of a linear model with a level for
    each stratum. For p, labels change places inside strata. The interval is Student's with HC3
    standard errors, which allow for unequal variances (MacKinnon and White 1985).
    """

    number: Number
    more: Test
    less: Test
    within: tuple[str, ...]  # columns that tell the strata apart

    def find(self, rows: Rows) -> Finding:
        """See the class."""
        samples, _ = _samples(self, rows, self.more, self.less)
        censored = len(self.split(rows)[1])
        one, two = (_values(sample, self.number) for sample in samples)
        pooled = float(np.mean(one) - np.mean(two)) if one and two else None
        strata = [_grouped(sample, self.within) for sample in samples]
        shared = [key for key in strata[0] if key in strata[1]]
        by_cell = {key: [_grouped(side[key], SETTINGS) for side in strata] for key in shared}
        used = [key for key in shared if min(map(len, by_cell[key])) > 1]
        samples = [
            [row for row in sample if columns_of(row, self.within) in used] for sample in samples
        ]
        units = [
            (float(np.mean(_values(runs, self.number))), label, place)
            for place, key in enumerate(used)
            for label, cells in zip((1.0, 0.0), by_cell[key], strict=True)
            for runs in cells.values()
        ]
        if not units:
            note = "fewer than two cells of both kinds under equal settings"
            return _finding(samples, censored, pooled=pooled, note=note)
        numbers, labels, places = map(np.array, zip(*units, strict=True))
        count = (int(labels.sum()), int((1 - labels).sum()))
        effect = _within_strata(numbers, labels, places)
        return _finding(samples, censored, effect, pooled=pooled, cells=count)


@dataclass(frozen=True)
class Trend(Effect):
    """Spearman's correlation of a number with a setting while other settings are held.

    It is the mean over groups of equal ``within``, weighted by their runs; a group whose number
    never changes counts as 0. For p, values change places within groups. The interval is Fisher's,
    with the degrees of freedom of the groups.
    """

    x: str  # the column of the setting
    y: Number
    within: tuple[str, ...] = ()  # columns that are held
    only: Test = every
    sign: int = 1  # -1 where the claim is that the number falls
    unreached: Test = never  # a bound only; if more than half of the runs, there is no effect

    def find(self, rows: Rows) -> Finding:
        """See the class."""
        (sample,), censored = _samples(self, rows, self.only, number=self.y)
        sample = [row for row in sample if row.get(self.x) is not None]
        groups = [
            group
            for group in _grouped(sample, self.within).values()
            if len(group) > 2 and len({row[self.x] for row in group}) > 1
        ]
        used = [row for group in groups for row in group]
        n = len(used)
        if n - 3 * len(groups) < 1:
            return _finding([used], censored)
        if 2 * (bounds := sum(map(self.unreached, used))) > n:
            return _finding([used], censored, note=f"{bounds} of {n} runs never came there")
        ranks = [
            (_standard([row[self.x] for row in group]), _standard(_values(group, self.y)))
            for group in groups
        ]
        rho = self.sign * sum(float(a @ b) * len(a) for a, b in ranks) / n
        generator = np.random.default_rng(0)
        drawn = np.zeros(_DRAWN)
        for a, b in ranks:
            orders = generator.permuted(np.tile(a, (_DRAWN, 1)), axis=1)
            drawn += orders @ b * len(a) / n
        z = math.atanh(max(-0.999999, min(0.999999, rho)))
        error = 1 / math.sqrt(n - 3 * len(groups))
        low, high = math.tanh(z - 1.96 * error), math.tanh(z + 1.96 * error)
        again = censored and not self.untrained
        whole = replace(self, untrained=True).find(rows) if again else None
        return _finding(
            [used], censored, (rho, low, high, _p_value(rho, drawn)),
            with_censored=whole and whole.effect, with_censored_p=whole and whole.p_value,
        )  # fmt: skip


@dataclass(frozen=True)
class Unexplained(Effect):
    """Share of a number's variance within groups that settings do not explain, above a reference.

    That is the variance within the cells of a group over the variance within the group. Interval
    and p are bootstrapped over the runs of each cell: p is twice the share of resampled runs on the
    other side of the reference. A cell with a single run is left out.
    """

    number: Number
    group: str  # the column of the groups
    reference: float = 0.0

    def find(self, rows: Rows) -> Finding:
        """See the class."""
        (sample,), censored = _samples(self, rows, every)
        groups = [
            [cell for cell in _grouped(group, SETTINGS).values() if len(cell) > 1]
            for group in _grouped(sample, (self.group,)).values()
        ]
        groups = [cells for cells in groups if len(cells) > 1]
        samples = [[row for cell in cells for row in cell] for cells in groups]
        if not groups:
            return _finding(samples, censored)
        values = [[np.array(_values(cell, self.number)) for cell in cells] for cells in groups]
        generator = np.random.default_rng(0)
        drawn = np.array([
            _share_within([[generator.choice(v, len(v)) for v in cells] for cells in values])
            for _ in range(_DRAWN // 5)
        ])  # fmt: skip
        below = int((drawn <= self.reference).sum())
        p = min(1.0, 2 * (1 + min(below, len(drawn) - below)) / (1 + len(drawn)))
        low, high = (float(end) - self.reference for end in np.quantile(drawn, [0.025, 0.975]))
        effect = _share_within(values) - self.reference
        return _finding(samples, censored, (effect, low, high, p))


def _samples(
    effect: Any, rows: Rows, *tests: Test, number: Number | None = None
) -> tuple[list[list[Row]], int]:
    """The runs that pass each test and have the number; how many censored runs pass one."""
    number = effect.number if number is None else number
    kept, censored = effect.split(rows)
    samples = [[row for row in kept if test(row) and _value(row, number) is not None]
               for test in tests]  # fmt: skip
    return samples, sum(any(test(row) for test in tests) for row in censored)


def _value(row: Row, number: Number) -> float | None:
    return row.get(number) if isinstance(number, str) else number(row)


def _values(rows: Rows, number: Number) -> list[float]:
    return [float(value) for row in rows if (value := _value(row, number)) is not None]


def _grouped(rows: Rows, columns: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[columns_of(row, columns)].append(row)
    return groups


def _interval(found: MeanComparison | None) -> _Interval | None:
    return None if found is None else (found.mean, found.low, found.high, found.p_value)


def _finding(
    samples: Sequence[Rows], censored: int, effect: _Interval | None = None, **more: Any
) -> Finding:
    """A finding about samples; ``effect`` is the effect, the ends of its interval, and p."""
    value, low, high, p_value = effect or (None,) * 4
    seeds = min((len({row["seed"] for row in sample}) for sample in samples), default=0)
    runs = tuple(sorted({row["run_id"] for sample in samples for row in sample}))
    n = tuple(map(len, samples))
    return Finding(n, seeds, censored, value, low, high, p_value, runs, **more)


def _within_strata(values: Floats, label: Floats, stratum: npt.NDArray[np.int64]) -> _Interval:
    """The effect of a label beside the levels of strata, its interval, and p."""
    levels = np.eye(int(stratum.max()) + 1)[stratum]
    sizes = levels.sum(0)
    means = levels.T @ np.stack([values, label], axis=1) / sizes[:, None]
    y, x = (np.stack([values, label], axis=1) - means[stratum]).T
    power = float(x @ x)
    effect = float(x @ y) / power
    leverage = 1 / sizes[stratum] + x**2 / power
    rest = (y - effect * x) / (1 - leverage)
    error = math.sqrt(float((x * rest) @ (x * rest))) / power
    reach = float(t.ppf(0.975, len(values) - levels.shape[1] - 1)) * error
    generator = np.random.default_rng(0)
    drawn = np.zeros(_DRAWN)
    for level in range(levels.shape[1]):
        mine = stratum == level
        drawn += generator.permuted(np.tile(x[mine], (_DRAWN, 1)), axis=1) @ y[mine] / power
    return effect, effect - reach, effect + reach, _p_value(effect, drawn)


def _p_value(effect: float, drawn: Floats) -> float:
    """Two-sided, the effect counted among those drawn; ties count, with room for rounding."""
    return (1 + int((np.abs(drawn) >= abs(effect) - 1e-9).sum())) / (1 + len(drawn))


def _share_within(groups: Sequence[Sequence[Floats]]) -> float:
    """Squares within cells over squares within groups."""
    inner = sum(float(((cell - cell.mean()) ** 2).sum()) for cells in groups for cell in cells)
    whole = [np.concatenate(cells) for cells in groups]
    outer = sum(float(((values - values.mean()) ** 2).sum()) for values in whole)
    return inner / outer if outer else 0.0


def _standard(values: Sequence[float]) -> Floats:
    """Ranks of mean 0 and length 1; zeros where all are equal."""
    ranks: Floats = rankdata(np.array(values, dtype=np.float64))
    ranks -= ranks.mean()
    length = float(np.linalg.norm(ranks))
    return ranks / length if length else ranks
