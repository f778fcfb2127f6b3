"""What a claim measures over runs: effects, signed so that above 0 agrees with the claim.

An effect is a specification: it reads no table until :meth:`Effect.find_in`. It is measured in the
paper's *stratum* (``where``: a task, a layout); runs of other strata are measured by themselves
(``also``), and so are parts that all belong to the paper (``apart``). Runs that failed or did not
converge are *censored*: they are counted and stand in no sample, unless the effect is
``unconverged``.

One rule says what is *not answerable here*, whichever way an effect points. Where a claim is about
what runs have learned, half of each kind have to be ``fitted`` and the better kind ``above``
chance; a number that most runs of a kind never reach (``bounds``) is a bound.

Trends and lines are those of :mod:`anchor_interp.sweeps.effects`; here stand means, which are
tested exactly where there are few runs: all relabellings are tried, so a sign-flip test of n runs
cannot go below 2 / 2^n. The interval of a difference is Welch's. In means the runs of a seed count
as one, and so they do in strata where ``cluster`` says it.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import t

from anchor_interp._util import statistics as stats
from anchor_interp._util.errors import StoreError
from anchor_interp._util.rounding import ROUNDING
from anchor_interp._util.schema import shown
from anchor_interp._util.statistics import DRAWN, POWER, Estimate, Floats, largest, permutation_p
from anchor_interp.sweeps.compared import FEWEST
from anchor_interp.sweeps.effects import Stratum, find_rise, find_trend

Row = dict[str, Any]  # one run: its columns by name
Rows = Sequence[Row]
Test = Callable[[Row], bool]
Number = Callable[[Row], float | None] | str  # a number of a run, or the name of its column

SETTINGS = (
    "task", "gamma", "gamma_qk", "weight_decay", "n_layers", "d_model", "normalization", "lr",
    "steps", "n_sequences",
)  # fmt: skip
# Settings whose values spread over orders of magnitude: their logarithm is what varies evenly.
_LOGARITHMIC = ("weight_decay", "lr", "steps", "n_sequences", "d_model")
_WORDS = {
    "id_accuracy": "ID accuracy", "train_accuracy": "training accuracy", "tokens_seen": "tokens",
}  # fmt: skip
EXACT_UP_TO = 200_000  # relabellings: 17 runs against zero, ten runs against ten
_BLOCK = 10_000  # relabellings in memory at once


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


@dataclass(frozen=True, kw_only=True)
class Effect(ABC):
    """An effect over the runs of some studies."""

    runs: tuple[str, ...] = ()  # the studies; a run of several counts once
    select: Callable[[Rows], Rows] = tuple  # selects runs, or adds columns
    where: Test = lambda _: True  # the runs that the paper's sentence is about
    within: tuple[str, ...] = ()  # what compared runs agree in
    cluster: tuple[str, ...] = ()  # columns of runs that belong together, with their kind
    apart: tuple[str, ...] = ()  # columns whose values all belong to the paper
    also: tuple[str, ...] = ()  # columns that tell the other strata apart
    elsewhere: tuple[str, ...] = ()  # further studies for the other strata, where they are there
    unconverged: bool = False  # also counts runs that did not converge
    fitted: tuple[str, float] | None = None  # a column, and from which value a run has fitted
    above: tuple[str, float] | None = None  # a column, and what it has to exceed in either kind
    bounds: bool = False  # runs that never came to a training loss of 0.05 have a bound only

    def find_in(self, tables: Mapping[str, Rows], *, whole: bool = True) -> Finding | None:
        """The finding of the studies' tables; None if one is missing, or all are empty.

        A row has the ``study`` that it was first found in. Without ``whole`` only the paper's
        stratum is measured.
        """
        if not all(name in tables for name in self.runs):
            return None
        runs: dict[str, Row] = {}
        for study in (*self.runs, *filter(tables.__contains__, self.elsewhere)):
            for row in tables[study]:
                runs.setdefault(row["run_id"], row | {"study": study})
        return self.find([*runs.values()], whole=whole) if runs else None

    def find(self, rows: Rows, *, whole: bool = True) -> Finding:
        """The finding in the paper's stratum, in its parts, and in the other strata."""
        theirs, others = _apart(self.select(rows), self.where)
        found = self._with_both(theirs)
        if whole and self.apart:
            found = replace(found, parts=self._by_name(grouped(theirs, self.apart)))
        if whole and others:
            found = replace(found, also=self._by_name(grouped(others, self.also)))
        return found

    def _by_name(self, groups: Mapping[tuple[Any, ...], Rows]) -> dict[str, Finding]:
        return {_name(at): replace(self._with_both(rows), runs=()) for at, rows in groups.items()}

    def _with_both(self, rows: Rows) -> Finding:
        """The finding, beside it the effect with the runs that did not converge."""
        found = self.measure(rows)
        if found.found is None or not found.censored or self.unconverged:
            return found
        return replace(found, with_censored=replace(self, unconverged=True).measure(rows).found)

    @abstractmethod
    def measure(self, rows: Rows) -> Finding:
        """The finding of runs of one stratum, or of several of the paper."""

    def samples(self, rows: Rows, number: Number, *tests: Test) -> tuple[list[list[Row]], int]:
        """The runs that pass each test and have the number; how many censored runs pass one."""
        kept, left = _apart(
            rows, lambda r: r["status"] == "done" and (self.unconverged or not r["censored"])
        )
        found = [having(filter(test, kept), number) for test in tests]
        return found, sum(any(test(row) for test in tests) for row in left)

    def unanswerable(self, *kinds: Rows) -> str:
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
        never = [sum(map(never_came, runs)) * self.bounds for runs in kinds]
        if any(2 * bound > len(runs) for bound, runs in zip(never, kinds, strict=True)):
            counts = " and ".join(f"{n} of {len(r)}" for n, r in zip(never, kinds, strict=True))
            return f"unfitted: {counts} runs never came there"
        return ""


@dataclass(frozen=True)
class Difference(Effect):
    """The mean of a number in runs of one kind minus that in runs of another.

    Without ``within`` the interval is Welch's and p exact. With it runs are compared inside strata
    of equal ``within`` with five of each kind (:func:`anchor_interp.sweeps.effects.find_rise`).
    ``adjusted`` is the effect at equal settings, but for those that are ``free``: every stratum has
    a slope for each setting that varies in it. It takes the strata with two runs for each
    coefficient; where no setting varies there is none.
    """

    of: Number
    more: Test  # the runs in which the number is larger, as claimed
    less: Test  # the runs in which it is smaller
    free: tuple[str, ...] = ()

    def measure(self, rows: Rows) -> Finding:
        """See the class."""
        samples, censored = self.samples(rows, self.of, self.more, self.less)
        if self.within:
            return self._in_strata(samples, censored)
        if min(map(len, samples)) and (problem := self.unanswerable(*samples)):
            return finding_of(samples, censored, problem="not answerable here", note=problem)
        one, two = (values_of(sample, self.of) for sample in samples)
        found = two_samples(one, two) if min(len(one), len(two)) > 1 else None
        return finding_of(samples, censored, found)

    def _in_strata(self, samples: Sequence[list[Row]], censored: int) -> Finding:
        kinds = [grouped(sample, self.within) for sample in samples]
        used: list[tuple[list[Row], list[Row]]] = []
        notes: list[str] = []
        for at in sorted({*kinds[0], *kinds[1]}, key=str):
            more, less = (kind.get(at, []) for kind in kinds)
            if min(len(more), len(less)) < FEWEST:
                notes.append(f"{_name(at)}: {len(more)} and {len(less)} runs, {FEWEST} are needed")
            elif said := self.unanswerable(more, less):
                notes.append(f"{_name(at)}: {said}")
            else:
                used.append((more, less))
        if not used:
            both_kinds = any(at in kinds[1] for at in kinds[0])
            problem = "not answerable here" if both_kinds else "nothing comparable"
            why = self.unanswerable(*samples) if min(map(len, samples)) else ""
            note = why or "; ".join(notes) or "no runs of either kind"
            return finding_of(samples, censored, problem=problem, note=note)
        found = find_rise([self._stratum(*pair, ()) for pair in used])
        left_out = ("task", "normalization", *self.within, *self.free)
        columns = [name for name in SETTINGS if name not in left_out]
        held = tuple(name for name in columns if any(_varies(name, [*a, *b]) for a, b in used))
        given = [self._stratum(*pair, columns) for pair in used]
        enough = [s for s in given if s.given is not None and len(s.x) >= 2 * (2 + _rank(s.given))]
        both = [[row for pair in used for row in pair[side]] for side in (0, 1)]
        adjusted = find_rise(enough) if held else None
        return finding_of(both, censored, found, adjusted=adjusted, held=held)

    def _stratum(self, more: Rows, less: Rows, columns: Sequence[str]) -> Stratum:
        rows = [*more, *less]
        x = np.repeat([1.0, 0.0], [len(more), len(less)])
        varying = [name for name in columns if _varies(name, rows)]
        given = np.array([[setting_of(row, name) for name in varying] for row in rows])
        clusters = [(kind, _together(row, self.cluster)) for kind, row in zip(x, rows, strict=True)]
        return Stratum(x, np.array(values_of(rows, self.of)), clusters, given)


@dataclass(frozen=True)
class Mean(Effect):
    """The mean of a number over runs, above a ``reference`` (:func:`against_zero`)."""

    of: Number
    only: Test = lambda _: True
    reference: float = 0.0
    is_margin: bool = False  # a margin to a limit
    cluster: tuple[str, ...] = field(default=("seed",), kw_only=True)

    def measure(self, rows: Rows) -> Finding:
        """See the class."""
        samples, censored = self.samples(rows, self.of, self.only)
        if problem := self.unanswerable(*samples):
            return finding_of(samples, censored, problem="not answerable here", note=problem)
        together = [(0, _together(row, self.cluster)) for row in samples[0]]
        values = values_of(samples[0], self.of)
        several = len({*together}) > 1
        found = against_zero(values, self.reference, clusters=together) if several else None
        return finding_of(samples, censored, found, is_margin=self.is_margin)


@dataclass(frozen=True)
class OverSetting(Effect):
    """How a number goes with a setting while other settings are held, inside equal ``within``."""

    of: Number
    on: Number
    only: Test = lambda _: True
    sign: int = 1  # -1 where the claim is that the number falls

    find_over: ClassVar["staticmethod[[Sequence[Stratum]], Estimate | None]"]
    nothing: ClassVar[tuple[str, str]]  # the problem without an effect, and its note

    def measure(self, rows: Rows) -> Finding:
        """See the class."""
        (sample,), censored = self.samples(rows, self.of, self.only)
        groups = varied(having(sample, self.on), self.within, self.on)
        used = [row for group in groups for row in group]
        if used and (why := self.unanswerable(used)):
            return finding_of([used], censored, problem="not answerable here", note=why)
        found = self.find_over([*map(self._stratum, groups)])
        if found is not None:
            return finding_of([used], censored, found)
        problem, what = self.nothing
        note = f"{what.format(n=len(used))} at several values of {_named(self.on)}"
        return finding_of([used], censored, problem=problem if sample else "", note=note)

    def _stratum(self, rows: Rows) -> Stratum:
        clusters = [(value_of(row, self.on), _together(row, self.cluster)) for row in rows]
        x, y = (np.array(values_of(rows, number)) for number in (self.on, self.of))
        return Stratum(x, self.sign * y, clusters)


class Trend(OverSetting):
    """Spearman's correlation: the mean over groups, weighted by their runs.

    See :func:`anchor_interp.sweeps.effects.find_trend`.
    """

    find_over = staticmethod(find_trend)
    nothing = "nothing comparable", "{n} runs"


class Rise(OverSetting):
    """How far a number rises from the smallest to the largest value of a setting.

    It is the slope of a straight line times the range of the setting, with a level for each group
    (:func:`anchor_interp.sweeps.effects.find_rise`); a group with fewer than three runs or with one
    value is left out.
    """

    find_over = staticmethod(find_rise)
    nothing = "not answerable here", "no group has three runs"


@dataclass(frozen=True)
class Alike(Effect):
    """By how much runs of one phase, and of equal ``within``, stay within a factor of each other.

    ``of`` is a logarithm. A run's distance is that to the mean of the other runs of its phase and
    stratum, whose settings are others; the effect is the logarithm of ``factor`` minus the mean
    distance. Below 0 the number changes more than that. Each phase counts alike. A phase of a
    stratum counts if it has five runs.
    """

    of: Number
    factor: float
    cluster: tuple[str, ...] = field(default=("seed",), kw_only=True)

    def measure(self, rows: Rows) -> Finding:
        """See the class."""
        (sample,), censored = self.samples(rows, self.of, lambda _: True)
        margins, together = list[float](), list[tuple[Any, Any]]()
        runs, size = defaultdict[Any, list[Row]](list), 0.0
        for (phase, *_), group in grouped(sample, ("phase", *self.within)).items():
            if len(group) >= FEWEST:
                logs = np.array(values_of(group, self.of))
                others = (logs.sum() - logs) / (len(logs) - 1)
                size = max(size, largest(logs))
                margins += [*(math.log(self.factor) - np.abs(logs - others))]
                together += [(phase, _together(row, self.cluster)) for row in group]
                runs[phase] += group
        if not margins:
            note = f"no phase has {FEWEST} runs in a task and layout"
            return finding_of([sample], censored, problem="nothing comparable", note=note)
        several = min(Counter(phase for phase, _ in {*together}).values()) > 1
        found = against_zero(margins, clusters=together, size=size) if several else None
        return finding_of([*runs.values()], censored, found, is_margin=True)


def equal(**wanted: Any) -> Test:
    """Runs whose columns have these values, or one of a tuple: ``equal(phase=PHASE_2)``."""

    def holds(row: Row) -> bool:
        found = ((row.get(name), value) for name, value in wanted.items())
        return all(v in value if isinstance(value, tuple) else v == value for v, value in found)

    return holds


def among(of: Callable[[Row], Any], *values: Any) -> Test:
    """Runs of which ``of`` says one of these values."""
    return lambda row: of(row) in values


def number_of(row: Row, column: str) -> float | None:
    """A column as a number; None if it is empty. A missing column is a KeyError."""
    return _finite(row[column], row, column)


def value_of(row: Row, number: Number) -> float | None:
    """A number of a run; None if it is empty or not measured, an error if it is not finite."""
    if isinstance(number, str):
        return number_of(row, number) if number in row else None
    return _finite(number(row), row, _named(number))


def values_of(rows: Iterable[Row], number: Number) -> list[float]:
    """The number of every run that has it."""
    return [value for row in rows if (value := value_of(row, number)) is not None]


def having(rows: Iterable[Row], number: Number) -> list[Row]:
    """The runs that have a number."""
    return [row for row in rows if value_of(row, number) is not None]


def _apart(rows: Rows, test: Test) -> tuple[list[Row], list[Row]]:
    """The rows that pass a test, and the others."""
    return [row for row in rows if test(row)], [row for row in rows if not test(row)]


def setting_of(row: Row, name: str) -> float:
    """A setting on the scale on which it varies evenly; gamma_qk is gamma where it is empty."""
    own = name != "gamma_qk" or row.get(name) is not None
    value = number_of(row, name if own else "gamma")
    if value is None or (name in _LOGARITHMIC and value <= 0):
        raise StoreError(
            f"{name} of the run {row['run_id']} is {value}; expected a number"
            f"{' above 0' if name in _LOGARITHMIC else ''}; leave the run out of its table"
        )
    return math.log(value) if name in _LOGARITHMIC else value


def never_came(row: Row) -> bool:
    """Whether a run never came to a training loss of 0.05."""
    return row.get("steps_to_loss") is None


def grouped(rows: Iterable[Row], columns: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """Runs by the values of some columns, in the order of the values."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(map(row.get, columns))].append(row)
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


def against_zero(
    values: Sequence[float] | Floats,
    reference: float = 0.0,
    *,
    clusters: Sequence[tuple[Any, Any]] = (),
    size: float = 0.0,
) -> Estimate:
    """The mean over kinds of the means of their values, less a reference, with a sign-flip test.

    ``clusters`` has the kind of each value, and in it what the value shares with others, such as
    the seed; without it each of two values or more is an independent run. A cluster counts as one:
    for p it changes sign as a whole, and the interval corrects its residuals together (CR3, as a
    jackknife; Student's where each has one value). Over kinds the degrees of freedom are Welch's.
    ``size`` is the largest number that the values were computed from, if larger than they are.
    """
    given, kinds = np.asarray(values, dtype=float), defaultdict[Any, dict[Any, list[float]]](dict)
    alone = [(0, i) for i in range(len(given))]
    for (kind, name), value in zip(clusters or alone, given - reference, strict=True):
        kinds[kind].setdefault(name, []).append(float(value))
    parts, variances, freedom = list[float](), list[float](), list[float]()
    for each in kinds.values():
        n, sums = (np.array([*map(of, each.values())], float) for of in (len, sum))
        weight, left = 1 / (n.sum() * len(kinds)), 1 - n / n.sum()
        parts += [*(weight * sums)]
        rest = sums - n * sums.sum() / n.sum()
        rest *= largest(rest / n) > ROUNDING * largest(given)
        scores = weight * rest / left
        shared = (np.diag(n) - np.outer(n, n) / n.sum()) / np.outer(left, left)
        variances.append((1 - 1 / len(n)) * float(scores @ scores))
        freedom.append(float(np.trace(shared) ** 2 / (shared**2).sum()))
    error = math.sqrt(sum(variances))
    welch = error**4 / (np.array(variances) ** 2 / freedom).sum() if error else sum(freedom)
    together = np.array(parts)
    if exact := 2 ** len(together) <= EXACT_UP_TO:
        count = np.arange(2 ** len(together))[:, None]
        signs = 1 - 2 * (count >> np.arange(len(together))[::-1] & 1)
    else:
        drawn = np.tile([1, -1], (DRAWN, len(together), 1))
        signs = np.random.default_rng(0).permuted(drawn, axis=-1)[..., 0]
    scale = largest(together) or 1.0
    sizes = np.abs((np.vstack([np.ones(len(together)), signs]) * (together / scale)).mean(1))
    size = max(size, largest(given), abs(reference)) / (scale * len(given))
    p = permutation_p(float(sizes[0]), sizes[1:], exact=exact, size=size)
    return estimate(float(together.sum()), error, welch, p)


def two_samples(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> Estimate:
    """The mean of the first minus that of the second, with a permutation test of Welch's t.

    Each has two values or more, one for each independent run. Where spreads and numbers of runs are
    unequal, p is approximate (Janssen 1997): 6 runs that scatter five times as much as 18 others
    have p <= 0.05 in about 7.5 % of samples without a difference.
    """
    one, two = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    n, m = len(one), len(two)
    exact = math.comb(n + m, n) <= EXACT_UP_TO
    pooled = np.concatenate([one, two])
    centred = pooled - pooled.mean()
    scale = largest(centred) or 1.0
    blocks = _orders(n, m) if exact else [_drawn_orders(n + m)]
    sines = np.concatenate([_sines(centred[orders] / scale, n) for orders in blocks])
    drawn, size = sines if exact else sines[1:], largest(pooled) / scale
    p = permutation_p(float(sines[0]), drawn, exact=exact, size=size)
    parts = np.array([stats.spread_of(one) ** 2 / n, stats.spread_of(two) ** 2 / m])
    error, df = math.sqrt(parts.sum()), n + m - 2
    # the interval of the difference: Welch's standard error with Satterthwaite's degrees of freedom
    welch = parts.sum() ** 2 / (parts**2 / (n - 1, m - 1)).sum() if error else df
    return estimate(float(one.mean() - two.mean()), error, welch, p)


def estimate(mean: float, error: float, df: float, p: float) -> Estimate:
    """A mean with its standard error, the degrees of freedom of that, and p."""
    quantile = stats.student_quantile(float(df))
    reach = quantile * error
    finds = error * (quantile + float(t.ppf(POWER, df)))
    return Estimate(mean, mean - reach, mean + reach, p, finds)


def _orders(n: int, m: int) -> Iterator[npt.NDArray[np.intp]]:
    """All divisions into n and m, the given one first, in blocks of [relabelling, run]."""
    divisions = itertools.combinations(range(n + m), n)
    while chosen := list(itertools.islice(divisions, _BLOCK)):
        is_second = np.ones((len(chosen), n + m), dtype=bool)
        np.put_along_axis(is_second, np.array(chosen), False, axis=1)
        yield np.argsort(is_second, axis=1, kind="stable")


def _drawn_orders(n: int) -> npt.NDArray[np.intp]:
    """The given order, then the drawn ones, [relabelling, run]."""
    generator = np.random.default_rng(0)
    return np.array([np.arange(n), *(generator.permutation(n) for _ in range(DRAWN))])


def _sines(runs: Floats, n: int) -> Floats:
    """What orders as Welch's t does, of the first n runs against the others: [relabelling]."""
    x, y = runs[:, :n], runs[:, n:]
    difference = np.abs(x.mean(1) - y.mean(1))
    error = np.sqrt(x.var(1, ddof=1) / n + y.var(1, ddof=1) / y.shape[1])
    sines: Floats = difference / np.maximum(np.hypot(difference, error), 1e-300)
    return sines


def _finite(value: Any, row: Row, name: str) -> float | None:
    """A number of a run, None if it is None; anything else that is not finite is a StoreError."""
    if value is None:
        return None
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise StoreError(
            f"{name} of the run {row['run_id']} is {shown(value)}; expected a finite number; "
            "remove the run from its table to have it measured anew"
        )
    return float(value)


def _together(row: Row, columns: Sequence[str]) -> Any:
    """What a run shares with those that belong to it; the run itself without columns."""
    return tuple(map(row.get, columns)) if columns else row["run_id"]


def _varies(name: str, rows: Rows) -> bool:
    return len({row.get(name) for row in rows}) > 1


def _rank(given: Any) -> int:
    return int(np.linalg.matrix_rank(given - given.mean(0))) if given.size else 0


def _named(number: Number) -> str:
    return number if isinstance(number, str) else getattr(number, "__name__", "a number")


def _name(values: Sequence[Any]) -> str:
    shown = (f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    return ", ".join(shown) or "elsewhere"
