"""How a claim is judged: an effect in the claimed direction, its interval and a p-value.

Every effect is turned so that a positive one is what the claim says. Tests are permutation tests
(:mod:`anchor_interp.statistics`), two-sided. Runs that did not converge are censored: they are
counted and stand in no sample. All p-values of a ledger are adjusted together (Benjamini and
Hochberg 1995), so that of the claims called supported one in twenty at most is expected to be
chance.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import false_discovery_control, rankdata, t

from anchor_interp.statistics import against_zero, two_samples

Row = Mapping[str, Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Test = Callable[[Row], bool]
ClaimVerdict = Literal["supported", "not supported", "inconclusive", "not run"]

LEVEL = 0.05
"""Largest adjusted p of a supported claim."""
FEWEST = 5
"""Fewest runs, and fewest seeds, in each sample of a claim that is decided."""
_DRAWN = 9_999


@dataclass(frozen=True)
class Finding:
    """What the runs say to one claim."""

    n: tuple[int, ...]
    """Runs in each sample."""
    seeds: int
    """Different seeds in the sample that has fewest."""
    censored: int
    """Runs of the study that did not converge or end, and are in no sample."""
    effect: float | None
    """The effect, positive as claimed; None where it cannot be computed."""
    low: float | None
    """Lower end of its 95 % interval."""
    high: float | None
    """Upper end."""
    p_value: float | None
    """Two-sided, of a permutation test."""
    runs: tuple[str, ...]
    """The runs in the samples."""
    pooled: float | None = None
    """Of an effect within strata, what it would be without them."""
    note: str | None = None
    """Why there is no effect."""


@dataclass(frozen=True)
class Judgement:
    """The verdict on one claim."""

    claim: str
    """The claim's name."""
    verdict: ClaimVerdict
    """What our runs say."""
    reason: str
    """Why."""
    finding: Finding | None
    """The numbers; None of a claim that was not run."""
    q_value: float | None
    """The p-value, adjusted for all claims that were tested."""


def phase(*names: str) -> Test:
    """Runs of these phases."""
    return lambda row: row["phase"] in names


def having(**values: Any) -> Test:
    """Runs with these settings."""
    return lambda row: all(row[name] == value for name, value in values.items())


def difference(
    rows: Sequence[Row],
    of: Callable[[Row], float | None] | str,
    more: Test,
    less: Test,
    *,
    sign: int = 1,
    within: tuple[str, ...] = (),
    untrained: bool = False,
    unreached: Test = lambda _: False,
) -> Finding:
    """The mean of a number in some runs minus that in others.

    With ``within`` runs are compared with runs of equal settings only: the effect is that of a
    linear model with a level for each stratum (its interval is Student's), labels change places
    inside strata for p, and a stratum without runs of both kinds says nothing. Without it the
    interval is Welch's.

    Args:
        rows: the runs.
        of: the number, or its column.
        more: the runs in which it is larger, as claimed.
        less: those in which it is smaller.
        sign: -1 where the claim is that ``more`` has less of it.
        within: columns that tell the strata apart.
        untrained: keep runs that did not converge, where that is what is measured.
        unreached: runs whose number is a bound only, such as a time that was never reached; where
            they are more than half of a sample there is no effect to tell.
    """
    value = _column(of) if isinstance(of, str) else of
    kept, censored = _kept(rows, untrained)
    samples = [
        [row for row in kept if test(row) and value(row) is not None] for test in (more, less)
    ]
    pooled = None
    if within:
        strata = [{_key(row, within) for row in sample} for sample in samples]
        both = strata[0] & strata[1]
        if all(samples):
            pooled = sign * float(
                np.mean([value(row) for row in samples[0]])
                - np.mean([value(row) for row in samples[1]])
            )
        samples = [[row for row in sample if _key(row, within) in both] for sample in samples]
    bounds = [sum(map(unreached, sample)) for sample in samples]
    for bound, sample in zip(bounds, samples, strict=True):
        if 2 * bound > len(sample):
            note = f"{bound} of {len(sample)} runs of a sample never came there"
            return _finding(samples, censored, pooled=pooled, note=note)
    if min(map(len, samples)) < 2:
        few = "too few runs of both kinds under equal settings" if within else None
        return _finding(samples, censored, pooled=pooled, note=few)
    numbers = [np.array([sign * float(value(row) or 0.0) for row in s]) for s in samples]
    if not within:
        found = two_samples(*numbers)
        return _finding(samples, censored, (found.mean, found.low, found.high, found.p_value))
    keys = [_key(row, within) for sample in samples for row in sample]
    known = list(dict.fromkeys(keys))
    stratum = np.array([known.index(key) for key in keys])
    label = np.repeat([1.0, 0.0], [len(sample) for sample in samples])
    effect = _within(np.concatenate(numbers), label, stratum)
    return _finding(samples, censored, effect, pooled=pooled)


def _within(values: Floats, label: Floats, stratum: Ints) -> tuple[float, float, float, float]:
    """Effect of a label beside the levels of strata, its interval, and p of labels that move."""
    levels = np.eye(int(stratum.max()) + 1)[stratum]
    means = levels.T @ np.stack([values, label], axis=1) / levels.sum(0)[:, None]
    y, x = (np.stack([values, label], axis=1) - means[stratum]).T
    power = float(x @ x)
    effect = float(x @ y) / power
    df = len(values) - levels.shape[1] - 1
    rest = y - effect * x
    error = math.sqrt(float(rest @ rest) / max(df, 1) / power)
    reach = float(t.ppf(0.975, max(df, 1))) * error
    generator = np.random.default_rng(0)
    drawn = np.zeros(_DRAWN)
    for level in range(levels.shape[1]):
        mine = stratum == level
        drawn += generator.permuted(np.tile(x[mine], (_DRAWN, 1)), axis=1) @ y[mine] / power
    reached = int((np.abs(drawn) >= abs(effect) - 1e-9).sum())
    return effect, effect - reach, effect + reach, (1 + reached) / (1 + _DRAWN)


def mean(
    rows: Sequence[Row],
    of: Callable[[Row], float | None] | str,
    only: Test = lambda _: True,
    *,
    at_least: float = 0.0,
) -> Finding:
    """The mean of a number over runs, above a reference (Student's interval, sign flips)."""
    value = _column(of) if isinstance(of, str) else of
    kept, censored = _kept(rows)
    used = [row for row in kept if only(row) and value(row) is not None]
    if len(used) < 2:
        return _finding([used], censored)
    found = against_zero([float(value(row) or 0.0) - at_least for row in used])
    return _finding([used], censored, (found.mean, found.low, found.high, found.p_value))


def trend(
    rows: Sequence[Row],
    x: Callable[[Row], float | None] | str,
    y: Callable[[Row], float | None] | str,
    *,
    within: tuple[str, ...] = (),
    only: Test = lambda _: True,
    sign: int = 1,
    untrained: bool = False,
    unreached: Test = lambda _: False,
) -> Finding:
    """Spearman's correlation of a number with a setting, with other settings held.

    It is the mean over the groups of equal settings, weighted by their runs; a group whose number
    never changes has none. Values change places within groups for p, and the interval is Fisher's
    with the degrees of freedom of the groups.

    Args:
        rows: the runs.
        x: the setting, or its column.
        y: the number, or its column.
        within: columns held fixed.
        only: which runs.
        sign: -1 where the claim is that it falls.
        untrained: keep runs that did not converge, where that is what is measured.
        unreached: as in :func:`difference`.
    """
    value = _column(y) if isinstance(y, str) else y
    setting = _column(x) if isinstance(x, str) else x
    kept, censored = _kept(rows, untrained)
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in kept:
        if only(row) and value(row) is not None and setting(row) is not None:
            groups.setdefault(_key(row, within), []).append(row)
    told = [g for g in groups.values() if len(g) > 2 and len({setting(row) for row in g}) > 1]
    used = [row for group in told for row in group]
    if len(used) - 3 * len(told) < 1:
        return _finding([used], censored)
    if 2 * (bound := sum(map(unreached, used))) > len(used):
        return _finding([used], censored, note=f"{bound} of {len(used)} runs never came there")
    ranks = [
        (_standard([setting(row) for row in group]), _standard([value(row) for row in group]))
        for group in told
    ]
    n = len(used)
    rho = sign * sum(float(a @ b) * len(a) for a, b in ranks) / n
    generator = np.random.default_rng(0)
    drawn = np.zeros(_DRAWN)
    for a, b in ranks:
        orders = generator.permuted(np.tile(a, (_DRAWN, 1)), axis=1)
        drawn += orders @ b * len(a) / n
    p = (1 + int((np.abs(drawn) >= abs(rho) - 1e-9).sum())) / (1 + _DRAWN)
    z, error = math.atanh(max(-0.999999, min(0.999999, rho))), 1 / math.sqrt(n - 3 * len(told))
    low, high = math.tanh(z - 1.96 * error), math.tanh(z + 1.96 * error)
    return _finding([used], censored, (rho, low, high, p))


def explained(rows: Sequence[Row], of: str, by: str, *, more_than: float) -> Finding:
    """Share of a number's variance that groups of runs explain (eta squared), above a reference.

    Interval and p are the bootstrap's over the runs of each group: p is twice the share of
    resampled runs on the other side of the reference.
    """
    kept, censored = _kept(rows)
    used = [row for row in kept if row.get(of) is not None and row.get(by) is not None]
    names = list(dict.fromkeys(row[by] for row in used))
    samples = [[row for row in used if row[by] == name] for name in names]
    if len(samples) < 2 or min(map(len, samples)) < 2:
        return _finding(samples, censored)
    values = [np.array([float(row[of]) for row in sample]) for sample in samples]
    generator = np.random.default_rng(0)
    again = np.array(
        [_eta([generator.choice(mine, len(mine)) for mine in values]) for _ in range(_DRAWN // 5)]
    )
    below = int((again <= more_than).sum())
    p = min(1.0, 2 * (1 + min(below, len(again) - below)) / (1 + len(again)))
    low, high = (float(end) - more_than for end in np.quantile(again, [0.025, 0.975]))
    return _finding(samples, censored, (_eta(values) - more_than, low, high, p))


def judge(
    findings: Mapping[str, Finding | None], minima: Mapping[str, float]
) -> dict[str, Judgement]:
    """The verdicts on claims, their p-values adjusted together.

    Args:
        findings: of every claim, by name; None of one that was not run.
        minima: of every claim, the smallest effect that counts.
    """
    tested = {
        name: found.p_value
        for name, found in findings.items()
        if found is not None and found.p_value is not None
    }
    adjusted = (
        dict(zip(tested, false_discovery_control(list(tested.values())), strict=True))
        if tested
        else {}
    )
    return {
        name: _judged(name, found, minima[name], adjusted.get(name))
        for name, found in findings.items()
    }


def _judged(name: str, found: Finding | None, minimum: float, q: float | None) -> Judgement:
    def verdict(what: ClaimVerdict, reason: str) -> Judgement:
        return Judgement(name, what, reason, found, None if q is None else float(q))

    if found is not None and found.note is not None:
        return verdict("inconclusive", found.note)
    if found is None or not (sum(found.n) or found.censored):
        return verdict("not run", "no run of it is there")
    if min(found.n, default=0) < FEWEST or found.seeds < FEWEST:
        fewest = f"{' and '.join(map(str, found.n))} runs, {found.seeds} seeds"
        return verdict("inconclusive", f"{fewest}; {FEWEST} of each are needed")
    if found.effect is None or q is None or found.low is None or found.high is None:
        return verdict("inconclusive", "the number does not vary between these runs")
    if q <= LEVEL and found.effect >= minimum:
        return verdict("supported", f"at least {minimum:.2g}, q <= {LEVEL:g}")
    if q <= LEVEL and found.effect < 0:
        return verdict("not supported", "the effect is the other way round")
    if found.high < minimum:
        return verdict("not supported", f"the interval ends below {minimum:.2g}")
    chance = "there" if q <= LEVEL else f"q > {LEVEL:g}"
    return verdict("inconclusive", f"{chance}, and the interval reaches {minimum:.2g}")


def _kept(rows: Iterable[Row], untrained: bool = False) -> tuple[list[Row], int]:
    rows = list(rows)
    done = [row for row in rows if row["status"] == "done"]
    kept = [row for row in done if untrained or not row["censored"]]
    return kept, len(rows) - len(kept)


def _column(name: str) -> Callable[[Row], float | None]:
    return lambda row: row.get(name)


def _key(row: Row, within: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in within)


def _finding(
    samples: Sequence[Sequence[Row]],
    censored: int,
    effect: tuple[float, float, float, float] | None = None,
    *,
    pooled: float | None = None,
    note: str | None = None,
) -> Finding:
    """A finding about samples; the effect with its interval's ends and p."""
    value, low, high, p = (None,) * 4 if effect is None else effect
    return Finding(
        n=tuple(map(len, samples)),
        seeds=min((len({row["seed"] for row in sample}) for sample in samples), default=0),
        censored=censored,
        effect=value,
        low=low,
        high=high,
        p_value=p,
        runs=tuple(sorted({row["run_id"] for sample in samples for row in sample})),
        pooled=pooled,
        note=note,
    )


def _standard(values: Sequence[float | None]) -> Floats:
    """Ranks of mean 0 and length 1; zeros where all are equal."""
    ranks: Floats = rankdata(np.array(values, dtype=np.float64))
    ranks -= ranks.mean()
    length = float(np.linalg.norm(ranks))
    return ranks / length if length else ranks


def _eta(groups: Sequence[Floats]) -> float:
    values = np.concatenate(groups)
    centre = values.mean()
    total = float(((values - centre) ** 2).sum())
    between = sum(len(group) * float(group.mean() - centre) ** 2 for group in groups)
    return between / total if total else 0.0
