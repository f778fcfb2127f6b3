"""Whether a number of runs goes with a setting: effect, interval, p, power and a verdict.

Runs are the witnesses. They are compared inside *strata*, runs that agree in some columns, since
what tells strata apart would tell the runs apart too. An effect is Spearman's correlation of the
number with a setting (:func:`find_trend`), or a difference between two kinds of runs
(:func:`find_rise`). For p the number changes places between the runs of a stratum; runs of a
*cluster*, such as a seed, change places together in all strata. *Power* is told as the effect that
so many runs of this spread find with 80 %.
"""

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag
from scipy.stats import norm, rankdata, t

from anchor_interp._util import statistics
from anchor_interp._util.rounding import ROUNDING
from anchor_interp._util.schema import checked
from anchor_interp._util.statistics import (
    POWER,
    Estimate,
    Floats,
    largest,
    permutation_p,
    student_quantile,
)
from anchor_interp.sweeps.columns import TableRow, Value, label, word
from anchor_interp.sweeps.compared import FEWEST, Compared, compared
from anchor_interp.sweeps.effect_verdict import Support, amount, judge_effect

_LEFT = 1e-6  # smaller shares are rounding
_NAMED = 5  # runs that are left out for one reason


class Stratum(NamedTuple):
    """Runs that are compared with each other."""

    x: Floats  # [run], the setting, or 1 and 0 for two kinds
    y: Floats  # [run], the number
    clusters: Sequence[Hashable]  # [run], what changes places together
    given: Floats | None = None  # [run, column], settings that are regressed out


def find_trend(strata: Sequence[Stratum]) -> Estimate | None:
    """Spearman's correlation, the mean over strata weighted by their runs; Fisher's interval.

    A stratum whose number never changes counts as 0. None if too few runs are there.
    """
    n = sum(len(stratum.x) for stratum in strata)
    free = sum(len(set(stratum.clusters)) for stratum in strata) - 3 * len(strata)
    if free < 1:
        return None
    ranks = [(standard(stratum.x), standard(stratum.y)) for stratum in strata]
    rho = sum(float(x @ y) * len(x) for x, y in ranks) / n
    drawn = sum(x[orders] @ y * len(x) / n
                for (x, y), orders in zip(ranks, shuffles(strata), strict=True))  # fmt: skip
    z, error = math.atanh(max(-0.999999, min(0.999999, rho))), 1 / math.sqrt(free)
    reach = float(norm.ppf(0.975)) * error
    finds = math.tanh(reach + float(norm.ppf(POWER)) * error)
    p = permutation_p(abs(rho), np.abs(drawn), exact=False)
    return Estimate(rho, math.tanh(z - reach), math.tanh(z + reach), p, finds)


def find_rise(strata: Sequence[Stratum]) -> Estimate | None:
    """The rise of the number over the range of the setting; of two kinds, their difference.

    A linear model with a level for each stratum, and a slope for each setting that is ``given``.
    The interval is Student's with HC3 standard errors, which allow for unequal variances (MacKinnon
    and White 1985). Runs of a cluster count as one: their residuals are corrected together (CR3),
    with the degrees of freedom of Bell and McCaffrey (2002). p compares effect / error with its
    values in shuffled runs (Freedman and Lane 1983; Janssen 1997). None if levels and given
    settings determine the setting in all strata, if there are too few clusters, or if the setting
    varies through one alone.
    """
    # Levels and given settings go out of setting and number first: the slope through what is left,
    # x'y / x'x, is that of the whole model (Frisch, Waugh and Lovell).
    ends = [(s.x.min(), s.x.max()) for s in strata]
    span = max(high for _, high in ends) - min(low for low, _ in ends) if strata else 0.0
    bases = [_basis(s.given if s.given is not None else np.zeros((len(s.x), 0))) for s in strata]
    rests = [(_without(b, s.x), _without(b, s.y)) for b, s in zip(bases, strata, strict=True)]
    power = sum(float(x @ x) for x, _ in rests) / span**2 if span else 0.0
    if not power:
        return None
    x, y = (np.concatenate(column) for column in zip(*rests, strict=True))
    x /= span
    clusters = _numbered(strata)
    places = np.array([clusters[c] for s in strata for c in s.clusters])
    together = np.zeros((len(x), len(clusters)))
    together[np.arange(len(x)), places] = 1
    alone = len(clusters) == len(x)
    # Without a cluster the rest of x is shorter by x'u (HC3 or CR3 divide by what is left). Where
    # next to nothing is left the setting varies through this cluster alone; a run by itself that
    # the line goes through has no residual.
    u = _beside_levels(x, bases, None if alone else places)
    left = (power - (x * u) @ together) / power
    if not alone and left.min() < _LEFT:
        return None
    weights = u / np.maximum(left, _LEFT)[places]
    if alone:
        df = float(len(x) - sum(basis.shape[1] for basis in bases) - 1)
    else:
        df = _freedom(together * weights[:, None], x / math.sqrt(power), bases)
    if df < 0.5:  # at least 1, but for rounding
        return None
    numbers = _in_other_orders(strata, [number for _, number in rests], bases)
    effects = numbers @ x / power  # [order]
    numbers -= np.outer(effects, x)  # residuals [order, run]
    numbers *= weights
    # the scores of a cluster add up before they are squared, so that its runs count as one
    scores = numbers if alone else numbers @ together
    errors = np.linalg.norm(scores, axis=1) / power
    effect, error = float(effects[0]), float(errors[0])
    reach = student_quantile(df) * error
    finds = reach + float(t.ppf(POWER, df)) * error
    if not (y @ y):  # the number is the same in all runs of a stratum
        return Estimate(effect, effect, effect, 1.0, finds)
    # effect / error may divide by 0; effect / hypot(effect, error) orders the same way and does not
    sines = np.abs(effects) / np.maximum(np.hypot(effects, errors), 1e-300)
    size = max(largest(s.y) for s in strata) / largest(y)
    p = permutation_p(float(sines[0]), sines[1:], exact=False, size=size)
    return Estimate(effect, effect - reach, effect + reach, p, finds)


def _beside_levels(x: Floats, bases: Sequence[Floats], places: Floats | None) -> Floats:
    """x, divided by what levels and given settings leave of the numbers of its cluster: [run].

    Each run is a cluster without ``places``. What they take up whole counts as nothing.
    """
    if places is None:
        left = 1 - np.concatenate([(basis**2).sum(1) for basis in bases])
        return np.where(left > _LEFT, x / np.maximum(left, _LEFT), 0)
    fit, divided = block_diag(*bases), np.empty_like(x)
    for place in range(places.max() + 1):
        own = places == place
        shares, turn = np.linalg.eigh(np.eye(own.sum()) - fit[own] @ fit[own].T)
        parts = np.where(shares > _LEFT, turn.T @ x[own] / np.maximum(shares, _LEFT), 0)
        divided[own] = turn @ parts
    return divided


def _freedom(scores: Floats, x: Floats, bases: Sequence[Floats]) -> float:
    """Degrees of freedom of a variance that is a sum of squared scores ([run, cluster]).

    Those of the scaled chi-squared variable that has its mean and variance, if runs scatter alike.
    Levels that clusters cross cost no clusters.
    """
    parts = np.split(scores - np.outer(x, x @ scores), np.cumsum([*map(len, bases)])[:-1])
    left = np.concatenate([_without(*pair) for pair in zip(bases, parts, strict=True)])
    shared = left.T @ left
    size = float(np.trace(shared))
    if size <= ROUNDING * float((scores**2).sum()):  # clusters are told apart by levels alone
        return 0.0
    return size**2 / float((shared**2).sum())


def _in_other_orders(
    strata: Sequence[Stratum], numbers: Sequence[Floats], bases: Sequence[Floats]
) -> Floats:
    """The numbers of all strata as they are, then shuffled: [1 + draw, run].

    What levels and given settings leave is shuffled, and these are taken out again (Freedman and
    Lane 1983).
    """
    rows, start = np.empty((1 + statistics.DRAWN, sum(map(len, numbers)))), 0
    rows[0] = np.concatenate(numbers)
    for number, basis, orders in zip(numbers, bases, shuffles(strata), strict=True):
        moved = rows[1:, start : (start := start + len(number))]
        moved[:] = number[orders]
        if basis.shape[1] > 1:  # a level alone is 0 in any order
            moved -= moved @ basis @ basis.T
    return rows


def standard(values: Floats) -> Floats:
    """Ranks of mean 0 and length 1; zeros where all are equal, or differ by rounding alone."""
    rising = np.sort(values)
    apart = np.diff(rising) > ROUNDING * np.maximum(abs(rising[1:]), abs(rising[:-1]))
    level = np.concatenate([[0], np.cumsum(apart)])[np.searchsorted(rising, values)]
    ranks: Floats = rankdata(level)
    ranks -= ranks.mean()
    length = float(np.linalg.norm(ranks))
    return ranks / length if length else ranks


def _numbered(strata: Sequence[Stratum]) -> Mapping[Hashable, int]:
    """The clusters of all strata, numbered in their order."""
    return {c: i for i, c in enumerate(dict.fromkeys(c for s in strata for c in s.clusters))}


def shuffles(strata: Sequence[Stratum], *, seed: int = 0) -> Sequence[Any]:
    """For each stratum orders of its runs ([draw, run]), in which clusters move together."""
    names = _numbered(strata)
    places = tuple(tuple(names[c] for c in stratum.clusters) for stratum in strata)
    return _shuffles(places, len(names), seed, statistics.DRAWN)


@functools.lru_cache(maxsize=8)  # several effects of the same runs follow each other
def _shuffles(
    places: tuple[tuple[int, ...], ...], n_clusters: int, seed: int, n_drawn: int
) -> Sequence[Any]:
    keys = np.random.default_rng(seed).random((n_drawn, n_clusters))
    orders = []
    for at in map(np.array, places):
        if np.array_equal(at, at[0] + np.arange(len(at))):  # each run by itself
            orders.append(np.argsort(keys[:, at], axis=1).astype(np.int32))
            continue
        in_order = np.argsort(at, kind="stable")  # the same place in every stratum
        moved = in_order[np.argsort(keys[:, at[in_order]], axis=1, kind="stable")]
        orders.append(moved[:, np.argsort(in_order)].astype(np.int32))
    return orders


def _basis(columns: Floats) -> Floats:
    """Orthonormal columns that span a level and these columns ([run, column]): [run, rank]."""
    n = len(columns)
    level = np.full((n, 1), 1 / math.sqrt(n))
    centred = columns - columns.mean(0)
    lengths = np.linalg.norm(centred, axis=0)
    varying = lengths > 1e-9 * np.abs(columns).max(0, initial=1e-300)
    u, s, _ = np.linalg.svd(np.hstack([level, centred[:, varying] / lengths[varying]]), False)
    basis: Floats = u[:, s > 1e-9 * s[0]]
    return basis


def _without(basis: Floats, values: Floats) -> Floats:
    """What a basis leaves of values; zeros if that is rounding alone."""
    rest: Floats = values - basis @ (basis.T @ values)
    return rest if np.linalg.norm(rest) > ROUNDING * np.linalg.norm(values) else np.zeros_like(rest)


@dataclass(frozen=True)
class Effect:
    """What the runs of a table say about a number and a setting."""

    of: str
    on: str
    kind: str
    """``Spearman's correlation``, or the two kinds of runs whose difference it is."""
    n: int
    left_out: int
    """Runs that do not count, or that nothing can be compared with."""
    found: Estimate | None
    least: float
    verdict: Support
    reason: str
    strata: Mapping[str, "Effect"] = field(default_factory=dict)
    """The same inside each stratum, by its values."""
    left_out_runs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The runs that are left out, by why: their status if not done, ``undertrained``, ``without`` a
    value, of another kind, or in a stratum with too few. A run without a run_id is a row's number.
    """
    with_unfitted: Estimate | None = None
    """The effect with the runs that did not converge, where these have the number."""

    @property
    def sentence(self) -> str:
        """The claim that the number goes with the setting, its verdict and why."""
        how = f" ({self.kind})" if "minus" in self.kind else ""
        claim = f"{label(self.of)} rises with {label(self.on)}{how}"
        start = f"That {claim} is {self.verdict}" if self.found else f"Whether {claim} is open"
        return f"{start}: {self.reason}."

    def __str__(self) -> str:
        n = f"n: {self.n} runs, {self.left_out} left out"
        n += "".join(f"\n  {why}: {_some(names)}" for why, names in self.left_out_runs.items())
        if self.found is None:
            return f"{n}\n{self.sentence}"
        found, other = self.found, self.with_unfitted
        low, high, finds = (amount(x).lstrip("+") for x in (found.low, found.high, found.finds))
        also = f" ({amount(other.effect)} with runs that did not converge)" if other else ""
        return (
            f"effect: {self.kind} {amount(found.effect)} [{low}, {high}]{also}\n"
            f"p: {found.p:.2g}\n{n}\n"
            f"power: an effect of {finds} is found with {POWER:.0%}; {self.least:g} "
            f"counts\n{self.sentence}"
        )


def effect(
    table: str | Path | Sequence[TableRow] | Any,
    /,
    *,
    of: str,
    on: str,
    within: Sequence[str] = (),
    least: float = 0.3,
    between: Sequence[Value] | None = None,
    cluster: Sequence[str] = (),
    where: Mapping[str, Any] | None = None,
) -> Effect:
    """Whether a number of runs goes with a setting, inside strata.

    The effect is Spearman's correlation; with ``between``, or if the setting has two values, it is
    the mean of the number at the second value minus that at the first (the larger minus the
    smaller). Runs that failed or did not converge are left out; where the effect with those that
    did not converge speaks against the verdict, it is inconclusive. Rows of one ``run_id`` are one
    run (:func:`anchor_interp.sweeps.compared.distinct_runs`). p is of 9,999 shuffles inside strata.

    Args:
        table: A sweep folder, its .parquet table, any .csv table, a DataFrame, or rows. Runs that
            did not converge have ``censored`` (true, yes, 1) or the ``phase`` undertrained, those
            that failed another ``status`` than ``done``; without these columns every row counts.
        of: The column of the number.
        on: The column of the setting, or another column whose values tell runs apart.
        within: Columns in which the runs of a stratum agree.
        least: The smallest effect that counts, 0 or more: a rise. A fall is one of the negative.
        between: Two values of the setting; give them the other way round to ask for a fall.
        cluster: Columns, such as seed, whose equal values keep runs of one setting together.
        where: The value, or a list of values, to keep, by column.
    """
    checked(least, float, "least", low=0)
    within, cluster = ([x] if isinstance(x, str | int) else [*x] for x in (within, cluster))
    asked: dict[str, Any] = {"within": within, "between": between, "cluster": cluster}
    found = compared(table, of, on, where=where or {}, **asked)
    kinds, every = found.between, found.every
    kind = f"{word(kinds[1])} minus {word(kinds[0])}" if kinds else "Spearman's correlation"

    def stratum(rows: Sequence[TableRow], kinds: Sequence[Value] | None) -> Stratum:
        x = [row[on] == kinds[1] if kinds else row[on] for row in rows]
        together = [(row[on], *map(row.get, cluster)) if cluster else (id(row),) for row in rows]
        y = [row[of] for row in rows]
        return Stratum(np.array(x, np.float64), np.array(y, np.float64), together)

    def estimated(these: Compared, at: str | None) -> Estimate | None:
        strata = these.strata if at is None else {at: these.strata.get(at, [])}
        find = find_rise if these.between else find_trend
        return find([stratum(rows, these.between) for rows in strata.values() if rows])

    def judged(at: str | None, parts: Mapping[str, Effect]) -> Effect:
        """Of a stratum; of all if None."""
        estimate = estimated(found, at)
        other = None if every is None or estimate is None else estimated(every, at)
        out = found.left_out(*(() if at is None else (at,)))
        n = sum(len(rows) for name, rows in found.strata.items() if at in (None, name))
        n_out = sum(map(len, out.values()))
        why = ", ".join(f"{len(names)} {why}" for why, names in out.items())
        verdict: Support = "nothing comparable"
        reason = f"a stratum needs {FEWEST} runs{' of either kind' if kinds else ''}; "
        reason += f"{n_out} of {n + n_out} runs are left out" + (f": {why}" if why else "")
        if estimate is not None:
            verdict, reason = judge_effect(estimate, least, unfitted=other)
        return Effect(of, on, kind, n, n_out, estimate, least, verdict, reason, parts, out, other)

    whole = judged(None, {at: judged(at, {}) for at in found.strata} if within else {})
    _shuffles.cache_clear()  # of many runs they are large
    return whole


def _some(names: Sequence[str]) -> str:
    """How many there are, and the first by name."""
    return f"{len(names)} ({', '.join(names[:_NAMED])}{', ...' * (len(names) > _NAMED)})"
