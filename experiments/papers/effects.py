"""Effects: what a claim measures over runs, signed so that a positive effect is what it claims.

The numbers are those of :mod:`anchor_interp.sweeps.effects`. An effect is measured in the paper's
*stratum* (task, layout); runs of other strata are measured by themselves (``also``), and so are
parts that all belong to the paper (``apart``). Runs that failed or did not converge are *censored*:
they are counted and stand in no sample, unless the effect is ``untrained``. A number that is not
finite is refused.

One rule says what is *not answerable here*, whichever way an effect points. Where a claim is about
what runs have learned, half of each kind have to be ``fitted`` and the better kind above ``chance``
by the least effect; a number that most runs of a kind never reach is a bound.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from anchor_interp.sweeps.effects import FEWEST, Estimate, Stratum, line, trend

from .comparisons import against_zero, two_samples
from .rows import SETTINGS, Row, Rows, Test, columns_of, every, finite, never, number_of, setting_of

Number = Callable[[Row], float | None] | str  # a number of a run, or the name of its column
_WORDS = {
    "id_accuracy": "ID accuracy", "train_accuracy": "training accuracy", "tokens_seen": "tokens",
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """What runs say about an effect."""

    n: tuple[int, ...]  # runs in each sample
    seeds: int  # different seeds in the sample that has fewest
    censored: int  # relevant runs that failed or did not converge
    found: Estimate | None  # the effect with its interval, p and power; None if there is none
    runs: tuple[str, ...]  # the runs in the samples
    parts: Mapping[str, "Finding"] = field(default_factory=dict)  # inside the paper's stratum
    also: Mapping[str, "Finding"] = field(default_factory=dict)  # other strata
    adjusted: Estimate | None = None  # the effect with settings that vary regressed out
    held: tuple[str, ...] = ()  # these settings
    problem: Literal["", "not answerable here", "nothing comparable"] = ""  # why there is none
    note: str | None = None  # why there is no effect
    is_margin: bool = False  # a margin to a limit: below 0 it is missed, not reversed
    with_censored: Estimate | None = None  # the effect with the censored runs, where they have one

    @property
    def effect(self) -> float | None:
        """The effect; None if there is none."""
        return None if self.found is None else self.found.effect

    @property
    def p_value(self) -> float | None:
        """Its p, two-sided."""
        return None if self.found is None else self.found.p


@dataclass(frozen=True, kw_only=True)
class Effect(ABC):
    """An effect over the runs of some studies."""

    studies: tuple[str, ...] = ()  # the studies; a run of several counts once
    prepare: Callable[[Rows], Rows] = tuple  # selects runs, or adds columns
    elsewhere: tuple[str, ...] = ()  # further studies for the other strata, where they are there
    untrained: bool = False  # also counts runs that did not converge
    stratum: Test = every  # the runs that the paper's sentence is about
    apart: tuple[str, ...] = ()  # columns whose values all belong to the paper
    also: tuple[str, ...] = ()  # columns that tell the other strata apart

    def find_in(self, tables: Mapping[str, Rows]) -> Finding | None:
        """The finding of the studies' tables; None if one is missing, or all are empty.

        A row has the ``study`` that it was first found in.
        """
        if not all(name in tables for name in self.studies):
            return None
        runs: dict[str, Row] = {}
        for study in (*self.studies, *filter(tables.__contains__, self.elsewhere)):
            for row in tables[study]:
                runs.setdefault(row["run_id"], row | {"study": study})
        return self.find([*runs.values()]) if runs else None

    def find(self, rows: Rows) -> Finding:
        """The finding in the paper's stratum, in its parts, and in the other strata."""
        theirs: list[Row] = []
        others: list[Row] = []
        for row in self.prepare(rows):
            (theirs if self.stratum(row) else others).append(row)
        whole = self.measure(theirs)
        parts = grouped(theirs, self.apart) if self.apart else {}
        also = grouped(others, self.also) if others else {}
        return replace(whole, parts=self._by_name(parts), also=self._by_name(also))

    def _by_name(self, groups: Mapping[tuple[Any, ...], Rows]) -> dict[str, Finding]:
        return {_name(at): replace(self.measure(rows), runs=()) for at, rows in groups.items()}

    @abstractmethod
    def measure(self, rows: Rows) -> Finding:
        """The finding of runs of one stratum, or of several of the paper."""

    def samples(self, rows: Rows, number: Number, *tests: Test) -> tuple[list[list[Row]], int]:
        """The runs that pass each test and have the number; how many censored runs pass one."""
        parts: tuple[list[Row], list[Row]] = ([], [])
        for row in rows:
            parts[row["status"] != "done" or (row["censored"] and not self.untrained)].append(row)
        kept, censored = parts
        samples = [
            [row for row in kept if test(row) and value_of(row, number) is not None]
            for test in tests
        ]
        return samples, sum(any(test(row) for test in tests) for row in censored)


@dataclass(frozen=True)
class Answerable:
    """Where what two kinds of runs have learned can be compared."""

    fitted: tuple[str, float] | None = None  # a column, and from which value a run has fitted
    above: tuple[str, float] | None = None  # a column, and what it has to exceed in either kind
    unreached: Test = never  # runs that have a bound only, such as the last step

    def problem(self, *kinds: Rows) -> str:
        """Why some kinds of runs cannot be compared; empty if they can."""
        if self.fitted is not None:
            column, least = self.fitted
            shares = [[(row[column] or 0.0) >= least for row in runs] for runs in kinds]
            if any(2 * sum(share) < len(share) for share in shares):
                counts = " and ".join(f"{sum(share)} of {len(share)}" for share in shares)
                reach = f"{least:,.10g} {_WORDS.get(column, column)}"
                return f"unfitted: {counts} runs reach {reach}"
        if self.above is not None:
            column, least = self.above
            best = max(float(np.mean([row[column] or 0.0 for row in runs])) for runs in kinds)
            if best < least:
                word = _WORDS.get(column, column)
                return f"at chance: the better kind has {best:.2f} {word}, below {least:g}"
        bounds = [sum(map(self.unreached, runs)) for runs in kinds]
        if any(2 * bound > len(runs) for bound, runs in zip(bounds, kinds, strict=True)):
            counts = " and ".join(f"{n} of {len(r)}" for n, r in zip(bounds, kinds, strict=True))
            return f"unfitted: {counts} runs never came there"
        return ""


@dataclass(frozen=True)
class Difference(Effect):
    """The mean of a number in runs of one kind minus that in runs of another.

    Without ``within`` the interval is Welch's and p exact. With it runs are compared inside strata
    of equal ``within`` that have five of each kind (:func:`anchor_interp.sweeps.effects.line`).
    ``adjusted`` is the effect at equal settings, but for those that are ``free``: every stratum has
    a slope for each setting that varies in it. It takes the strata with two runs for each
    coefficient; where no setting varies there is none.
    """

    number: Number
    more: Test  # the runs in which the number is larger, as claimed
    less: Test  # the runs in which it is smaller
    within: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()  # columns of runs that belong together, with their kind
    answerable: Answerable = Answerable()

    def measure(self, rows: Rows) -> Finding:
        """See the class."""
        samples, censored = self.samples(rows, self.number, self.more, self.less)
        if self.within:
            return self._in_strata(samples, censored)
        if min(map(len, samples)) and (problem := self.answerable.problem(*samples)):
            return finding_of(samples, censored, problem="not answerable here", note=problem)
        again = censored and not self.untrained
        whole = replace(self, untrained=True).measure(rows) if again else None
        one, two = (values_of(sample, self.number) for sample in samples)
        found = two_samples(one, two) if min(len(one), len(two)) > 1 else None
        return finding_of(samples, censored, found, with_censored=whole and whole.found)

    def _in_strata(self, samples: Sequence[list[Row]], censored: int) -> Finding:
        kinds = [grouped(sample, self.within) for sample in samples]
        used: list[tuple[list[Row], list[Row]]] = []
        notes: list[str] = []
        both_kinds = any(at in kinds[1] for at in kinds[0])
        problem = "not answerable here" if both_kinds else "nothing comparable"
        for at in sorted({*kinds[0], *kinds[1]}, key=str):
            more, less = (kind.get(at, []) for kind in kinds)
            if min(len(more), len(less)) < FEWEST:
                notes.append(f"{_name(at)}: {len(more)} and {len(less)} runs, {FEWEST} are needed")
            elif said := self.answerable.problem(more, less):
                notes.append(f"{_name(at)}: {said}")
            else:
                used.append((more, less))
        if not used:
            whole = self.answerable.problem(*samples) if min(map(len, samples)) else ""
            note = whole or "; ".join(notes) or "no runs of either kind"
            return finding_of(samples, censored, problem=problem, note=note)
        found = line([self._stratum(*pair, ()) for pair in used])
        left_out = ("task", "normalization", *self.within, *self.free)
        columns = [name for name in SETTINGS if name not in left_out]
        held = tuple(name for name in columns if any(_varies(name, [*a, *b]) for a, b in used))
        given = [self._stratum(*pair, columns) for pair in used]
        enough = [s for s in given if s.given is not None and len(s.x) >= 2 * (2 + _rank(s.given))]
        both = [[row for pair in used for row in pair[side]] for side in (0, 1)]
        adjusted = line(enough) if held else None
        return finding_of(both, censored, found, adjusted=adjusted, held=held)

    def _stratum(self, more: Rows, less: Rows, columns: Sequence[str]) -> Stratum:
        rows = [*more, *less]
        x = np.repeat([1.0, 0.0], [len(more), len(less)])
        varying = [name for name in columns if _varies(name, rows)]
        given = np.array([[setting_of(row, name) for name in varying] for row in rows])
        clusters = [(kind, clustered(row, self.cluster)) for kind, row in zip(x, rows, strict=True)]
        return Stratum(x, np.array(values_of(rows, self.number)), clusters, given)


@dataclass(frozen=True)
class Mean(Effect):
    """The mean of a number over runs, above a reference (Student's interval, sign flips)."""

    number: Number
    only: Test = every
    reference: float = 0.0
    answerable: Answerable = Answerable()
    is_margin: bool = False  # a margin to a limit

    def measure(self, rows: Rows) -> Finding:
        """See the class."""
        samples, censored = self.samples(rows, self.number, self.only)
        if problem := self.answerable.problem(*samples):
            return finding_of(samples, censored, problem="not answerable here", note=problem)
        values = values_of(samples[0], self.number)
        found = against_zero(values, self.reference) if len(values) > 1 else None
        return finding_of(samples, censored, found, is_margin=self.is_margin)


@dataclass(frozen=True)
class Trend(Effect):
    """Spearman's correlation of a number with a setting while other settings are held.

    It is the mean over groups of equal ``within``, weighted by their runs
    (:func:`anchor_interp.sweeps.effects.trend`).
    """

    x: str  # the column of the setting
    y: Number
    within: tuple[str, ...] = ()  # columns that are held
    only: Test = every
    sign: int = 1  # -1 where the claim is that the number falls
    cluster: tuple[str, ...] = ()  # columns of runs that belong together, with their setting
    answerable: Answerable = Answerable()

    def measure(self, rows: Rows) -> Finding:
        """See the class."""
        (sample,), censored = self.samples(rows, self.y, self.only)
        sample = [row for row in sample if value_of(row, self.x) is not None]
        groups = varied(sample, self.within, self.x)
        used = [row for group in groups for row in group]
        if used and (problem := self.answerable.problem(used)):
            return finding_of([used], censored, problem="not answerable here", note=problem)
        found = trend([self._stratum(group) for group in groups])
        if found is None:
            note = f"{len(used)} runs at several values of {self.x}"
            return finding_of([used], censored, problem="nothing comparable", note=note)
        again = censored and not self.untrained
        whole = replace(self, untrained=True).measure(rows) if again else None
        return finding_of([used], censored, found, with_censored=whole and whole.found)

    def _stratum(self, group: Rows) -> Stratum:
        x = np.array(values_of(group, self.x))
        y = self.sign * np.array(values_of(group, self.y))
        return Stratum(x, y, [(row[self.x], clustered(row, self.cluster)) for row in group])


@dataclass(frozen=True)
class Rise(Effect):
    """How far a number rises from the smallest to the largest value of a setting, others held.

    It is the slope of a straight line times the range of the setting, with a level for each group
    of equal ``within`` (:func:`anchor_interp.sweeps.effects.line`); a group with fewer than three
    runs or with one value is left out.
    """

    x: str  # the column of the setting
    y: Number
    within: tuple[str, ...] = ()  # columns that are held
    sign: int = 1  # -1 where the claim is that the number falls

    def measure(self, rows: Rows) -> Finding:
        """See the class."""
        (sample,), censored = self.samples(rows, self.y, every)
        groups = varied(sample, self.within, self.x)
        used = [row for group in groups for row in group]
        found = line([self._stratum(group) for group in groups])
        if found is None:
            note = f"no group has three runs at several values of {self.x}"
            problem = "not answerable here" if sample else ""
            return finding_of([used], censored, problem=problem, note=note)
        return finding_of([used], censored, found)

    def _stratum(self, group: Rows) -> Stratum:
        x, y = np.array(values_of(group, self.x)), np.array(values_of(group, self.y))
        return Stratum(x, self.sign * y, [row["run_id"] for row in group])


def clustered(row: Row, columns: Sequence[str]) -> Any:
    """What a run shares with those that belong to it; the run itself without columns."""
    return columns_of(row, columns) if columns else row["run_id"]


def value_of(row: Row, number: Number) -> float | None:
    """A number of a run; None if it is empty or not measured, an error if it is not finite."""
    if isinstance(number, str):
        return number_of(row, number) if number in row else None
    return finite(number(row), row, getattr(number, "__name__", "a number"))


def values_of(rows: Rows, number: Number) -> list[float]:
    """The number of every run that has it."""
    return [value for row in rows if (value := value_of(row, number)) is not None]


def grouped(rows: Rows, columns: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """Runs by the values of some columns, in the order of the values."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[columns_of(row, columns)].append(row)
    return dict(sorted(groups.items(), key=lambda item: [(v is None, v) for v in item[0]]))


def varied(rows: Rows, within: Sequence[str], x: Number) -> list[list[Row]]:
    """The groups of equal ``within`` that have three runs or more and several values of x."""
    groups = grouped(rows, within).values()
    return [group for group in groups if len(group) > 2 and len({*values_of(group, x)}) > 1]


def finding_of(
    samples: Sequence[Rows], censored: int, found: Estimate | None = None, **more: Any
) -> Finding:
    """A finding about samples."""
    seeds = min((len({row["seed"] for row in sample}) for sample in samples), default=0)
    runs = tuple(sorted({row["run_id"] for sample in samples for row in sample}))
    return Finding(tuple(map(len, samples)), seeds, censored, found, runs, **more)


def _varies(name: str, rows: Rows) -> bool:
    return len({row.get(name) for row in rows}) > 1


def _rank(given: Any) -> int:
    return int(np.linalg.matrix_rank(given - given.mean(0))) if given.size else 0


def _name(values: Sequence[Any]) -> str:
    shown = (f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    return ", ".join(shown) or "elsewhere"
