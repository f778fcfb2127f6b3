"""Effects: what a claim measures over runs, signed so that a positive effect is what it claims.

Tests are two-sided permutation tests (:mod:`anchor_interp.analysis.comparisons`). Runs that failed
or did not converge are *censored*: they are counted and stand in no sample, unless the effect is
``untrained``. :mod:`papers.strata` compares phases. A number that is not finite is refused.
"""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.comparisons import MeanComparison, against_zero, two_samples
from anchor_interp.analysis.statistics import DRAWN, permutation_p

from .rows import Row, Rows, Test, columns_of, every, finite, having, never, number_of

Number = Callable[[Row], float | None] | str  # a number of a run, or the name of its column
Floats = npt.NDArray[np.float64]
Interval = tuple[float, float, float, float]  # an effect, the ends of its interval, and p
FEWEST = 5  # runs of a kind, below which nothing is compared


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
    parts: Mapping[str, "Finding"] = field(default_factory=dict)  # by stratum, or by phase
    adjusted: "Finding | None" = None  # the effect with the settings regressed out
    comparable: bool = True  # whether there is anything to compare; ``note`` says why not
    pooled: float | None = None  # the effect over all runs of other studies, if nothing is
    is_margin: bool = False  # a margin to a limit: below 0 it is missed, not reversed
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
        return self.find(runs_of(self.studies, tables))

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
    reached. If they are more than half of ``more`` the true difference is larger, and if of
    ``less`` it is smaller: there is an effect only if the interval lies above 0, or below 0.
    """

    number: Number
    more: Test  # the runs in which the number is larger, as claimed
    less: Test  # the runs in which it is smaller
    unreached: Test = never

    def compare(self, rows: Rows) -> MeanComparison | None:
        """The two samples compared; None if one has fewer than two runs."""
        samples, _ = samples_of(self, rows, self.more, self.less)
        one, two = (values_of(sample, self.number) for sample in samples)
        return two_samples(one, two) if min(len(one), len(two)) > 1 else None

    def find(self, rows: Rows) -> Finding:
        """See the class."""
        samples, censored = samples_of(self, rows, self.more, self.less)
        found = _interval(self.compare(rows))
        more, less = (mostly(self.unreached, sample) for sample in samples)
        _, low, high, _ = found or (0.0,) * 4
        if (more and low <= 0) or (less and high >= 0):
            which = "both samples" if more and less else "a sample"
            return finding_of(samples, censored, note=f"most runs of {which} never came there")
        return finding_of(samples, censored, found)


@dataclass(frozen=True)
class Mean(Effect):
    """The mean of a number over runs, above a reference (Student's interval, sign flips)."""

    number: Number
    only: Test = every
    reference: float = 0.0

    def compare(self, rows: Rows) -> MeanComparison | None:
        """The runs compared with the reference; None if there are fewer than two."""
        (sample,), _ = samples_of(self, rows, self.only)
        values = [value - self.reference for value in values_of(sample, self.number)]
        return against_zero(values) if len(values) > 1 else None

    def find(self, rows: Rows) -> Finding:
        """See the class."""
        return finding_of(*samples_of(self, rows, self.only), _interval(self.compare(rows)))


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
class Trend(Effect):
    """Spearman's correlation of a number with a setting while other settings are held.

    It is the mean over groups of equal ``within``, weighted by their runs; a group whose number
    never changes counts as 0. For p, values change places within groups. The interval is Fisher's,
    with the degrees of freedom of the groups. ``parts`` of the finding are the runs of equal
    ``apart``, by themselves.
    """

    x: str  # the column of the setting
    y: Number
    within: tuple[str, ...] = ()  # columns that are held
    apart: tuple[str, ...] = ()  # columns whose values are also told by themselves
    only: Test = every
    sign: int = 1  # -1 where the claim is that the number falls
    unreached: Test = never  # a bound only; if more than half of the runs, there is no effect

    def find(self, rows: Rows) -> Finding:
        """See the class."""
        (sample,), censored = samples_of(self, rows, self.only, number=self.y)
        sample = [row for row in sample if value_of(row, self.x) is not None]
        groups = [
            group
            for group in grouped(sample, self.within).values()
            if len(group) > 2 and len({row[self.x] for row in group}) > 1
        ]
        used = [row for group in groups for row in group]
        n = len(used)
        if n - 3 * len(groups) < 1:
            return finding_of([used], censored)
        if 2 * (bounds := sum(map(self.unreached, used))) > n:
            return finding_of([used], censored, note=f"{bounds} of {n} runs never came there")
        ranks = [
            (standard([row[self.x] for row in group]), standard(values_of(group, self.y)))
            for group in groups
        ]
        rho = self.sign * sum(float(a @ b) * len(a) for a, b in ranks) / n
        generator = np.random.default_rng(0)
        drawn = np.zeros(DRAWN)
        for a, b in ranks:
            orders = generator.permuted(np.tile(a, (DRAWN, 1)), axis=1)
            drawn += orders @ b * len(a) / n
        z = math.atanh(max(-0.999999, min(0.999999, rho)))
        error = 1 / math.sqrt(n - 3 * len(groups))
        low, high = math.tanh(z - 1.96 * error), math.tanh(z + 1.96 * error)
        again = censored and not self.untrained
        alone = replace(self, apart=())
        whole = replace(alone, untrained=True).find(rows) if again else None
        apart = grouped(rows, self.apart) if self.apart else {}
        parts = {
            ", ".join(map(str, values)): replace(alone.find(some), runs=())
            for values, some in sorted(apart.items())
        }
        return finding_of(
            [used], censored, (rho, low, high, permutation_p(abs(rho), np.abs(drawn), exact=False)),
            parts=parts,
            with_censored=whole and whole.effect, with_censored_p=whole and whole.p_value,
        )  # fmt: skip


def runs_of(studies: Sequence[str], tables: Mapping[str, Rows]) -> Rows:
    """The runs of some studies, each once, with the ``study`` that it was first found in."""
    runs: dict[str, Row] = {}
    for name in studies:
        for row in tables[name]:
            runs.setdefault(row["run_id"], row | {"study": name})
    return tuple(runs.values())


def samples_of(
    effect: Any, rows: Rows, *tests: Test, number: Number | None = None
) -> tuple[list[list[Row]], int]:
    """The runs that pass each test and have the number; how many censored runs pass one."""
    number = effect.number if number is None else number
    kept, censored = effect.split(rows)
    samples = [[row for row in kept if test(row) and value_of(row, number) is not None]
               for test in tests]  # fmt: skip
    return samples, sum(any(test(row) for test in tests) for row in censored)


def value_of(row: Row, number: Number) -> float | None:
    """A number of a run; None if it is empty or not measured, an error if it is not finite."""
    if isinstance(number, str):
        return number_of(row, number) if number in row else None
    return finite(number(row), row, getattr(number, "__name__", "a number"))


def values_of(rows: Rows, number: Number) -> list[float]:
    """The number of every run that has it."""
    return [value for row in rows if (value := value_of(row, number)) is not None]


def mostly(test: Test, rows: Rows) -> bool:
    """Whether more than half of the runs pass."""
    return 2 * sum(map(test, rows)) > len(rows)


def grouped(rows: Rows, columns: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """Runs by the values of some columns."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[columns_of(row, columns)].append(row)
    return groups


def _interval(found: MeanComparison | None) -> Interval | None:
    return None if found is None else (found.mean, found.low, found.high, found.p_value)


def finding_of(
    samples: Sequence[Rows], censored: int, effect: Interval | None = None, **more: Any
) -> Finding:
    """A finding about samples; ``effect`` is the effect, the ends of its interval, and p."""
    value, low, high, p_value = effect or (None,) * 4
    seeds = min((len({row["seed"] for row in sample}) for sample in samples), default=0)
    runs = tuple(sorted({row["run_id"] for sample in samples for row in sample}))
    n = tuple(map(len, samples))
    return Finding(n, seeds, censored, value, low, high, p_value, runs, **more)


def standard(values: Sequence[float]) -> Floats:
    """Ranks of mean 0 and length 1; zeros where all are equal."""
    ranks: Floats = rankdata(np.array(values, dtype=np.float64))
    ranks -= ranks.mean()
    length = float(np.linalg.norm(ranks))
    return ranks / length if length else ranks
