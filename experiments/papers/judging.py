"""How a claim is judged: an effect in the claimed direction, its interval and a p-value.

Every effect is turned so that a positive one is what the claim says. Tests are permutation tests
(:mod:`anchor_interp.analysis.statistics`), two-sided. Runs that did not converge are censored: they are
counted and stand in no sample, and a trend that is another one with them decides nothing. Runs that
differ in their seed alone are no independent witnesses where phases are compared, because settings
decide the phase: there each *cell* of equal settings counts once in a sample. All p-values of a
ledger are adjusted together (Benjamini and Hochberg 1995), so that of the claims called supported
one in twenty at most is expected to be chance.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import false_discovery_control, rankdata, t

from anchor_interp.analysis.statistics import against_zero, two_samples

Row = Mapping[str, Any]


Floats = npt.NDArray[np.float64]


Ints = npt.NDArray[np.int64]


Test = Callable[[Row], bool]


ClaimVerdict = Literal["supported", "not supported", "inconclusive", "not run"]


LEVEL = 0.05
"""Largest adjusted p of a supported claim."""


FEWEST = 5
"""Fewest runs, fewest seeds and fewest cells, where these are compared, in each sample of a claim
that is decided."""


_DRAWN = 9_999


@dataclass(frozen=True)
class Finding:
    """What the runs say to one claim."""

    n: tuple[int, ...]
    """Runs in each sample."""
    seeds: int
    """Different seeds in the sample that has fewest."""
    censored: int
    """Runs in question that did not converge or end, and are in no sample."""
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
    cells: tuple[int, ...] | None = None
    """Cells of equal settings in each sample, where they are what is compared."""
    pooled: float | None = None
    """Of an effect within strata, what it would be run by run and without them."""
    with_censored: float | None = None
    """The effect with the runs that did not converge, where they have one."""
    with_censored_p: float | None = None
    """Its two-sided p."""
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


SETTINGS = (
    "task", "gamma", "gamma_qk", "weight_decay", "n_layers", "d_model", "normalization", "lr",
    "steps", "n_sequences",
)  # fmt: skip
"""Columns that tell cells apart."""


def cell(row: Row) -> tuple[Any, ...]:
    """All settings of a run but its seed."""
    return tuple(row.get(name) for name in SETTINGS)


def difference(
    rows: Sequence[Row],
    of: Callable[[Row], float | None] | str,
    more: Test,
    less: Test,
    *,
    sign: int = 1,
    untrained: bool = False,
    unreached: Test = lambda _: False,
) -> Finding:
    """The mean of a number in some runs minus that in others, with Welch's interval.

    Args:
        rows: the runs.
        of: the number, or its column.
        more: the runs in which it is larger, as claimed.
        less: those in which it is smaller.
        sign: -1 where the claim is that ``more`` has less of it.
        untrained: keep runs that did not converge, where that is what is measured.
        unreached: runs whose number is a bound only, such as the last step of a time that was never
            reached. The same last step for all is taken as their time: p stays valid, and where
            they are in one sample alone the difference is larger than the effect. Where they are
            more than half of both there is no effect to tell.
    """
    value = _column(of) if isinstance(of, str) else of
    kept, dropped = _kept(rows, untrained)
    samples = [
        [row for row in kept if test(row) and value(row) is not None] for test in (more, less)
    ]
    censored = sum(more(row) or less(row) for row in dropped)
    bounds = [sum(map(unreached, sample)) for sample in samples]
    if all(2 * bound > len(sample) for bound, sample in zip(bounds, samples, strict=True)):
        return _finding(samples, censored, note="most runs of both samples never came there")
    if min(map(len, samples)) < 2:
        return _finding(samples, censored)
    found = two_samples(*([sign * _number(value, row) for row in sample] for sample in samples))
    return _finding(samples, censored, (found.mean, found.low, found.high, found.p_value))


def between_cells(
    rows: Sequence[Row],
    of: Callable[[Row], float | None] | str,
    more: Test,
    less: Test,
    *,
    within: tuple[str, ...],
    sign: int = 1,
) -> Finding:
    """The mean of a number in runs of some phases minus that in others, cell by cell.

    Settings decide phases, so that the seeds of a cell are no independent witnesses: runs of equal
    settings and of the same sample count as their mean. Cells are compared with those of their
    stratum, which has equal values of ``within`` and two cells of each kind at least: the effect
    is that of a linear model with a level for each stratum, labels change places inside strata for
    p, and the interval is Student's with standard errors that allow for unequal variances (HC3:
    MacKinnon and White 1985).

    Args:
        rows: the runs.
        of: the number, or its column.
        more: the runs in which it is larger, as claimed.
        less: those in which it is smaller.
        within: columns that tell the strata apart.
        sign: -1 where the claim is that ``more`` has less of it.
    """
    value = _column(of) if isinstance(of, str) else of
    kept, dropped = _kept(rows)
    samples = [
        [row for row in kept if test(row) and value(row) is not None] for test in (more, less)
    ]
    one, two = ([sign * _number(value, row) for row in sample] for sample in samples)
    pooled = float(np.mean(one) - np.mean(two)) if one and two else None
    strata = [_strata(sample, within) for sample in samples]
    told = [key for key in strata[0] if min(len(side.get(key, ())) for side in strata) > 1]
    samples = [[row for row in sample if _key(row, within) in told] for sample in samples]
    units = [
        (sign * float(np.mean([_number(value, row) for row in mine])), label, place)
        for place, key in enumerate(told)
        for label, side in zip((1.0, 0.0), strata, strict=True)
        for mine in side[key].values()
    ]
    if not units:
        note = "fewer than two cells of both kinds under equal settings"
        return _finding(samples, len(dropped), pooled=pooled, note=note)
    numbers, labels, places = map(np.array, zip(*units, strict=True))
    cells = (int(labels.sum()), int((1 - labels).sum()))
    effect = _within(numbers, labels, places)
    return _finding(samples, len(dropped), effect, pooled=pooled, cells=cells)


def _strata(
    sample: Sequence[Row], within: tuple[str, ...]
) -> dict[tuple[Any, ...], dict[tuple[Any, ...], list[Row]]]:
    """Runs by stratum and, in it, by cell."""
    found: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Row]]] = {}
    for row in sample:
        found.setdefault(_key(row, within), {}).setdefault(cell(row), []).append(row)
    return found


def _within(values: Floats, label: Floats, stratum: Ints) -> tuple[float, float, float, float]:
    """Effect of a label beside the levels of strata, its interval, and p of labels that move."""
    levels = np.eye(int(stratum.max()) + 1)[stratum]
    sizes = levels.sum(0)
    means = levels.T @ np.stack([values, label], axis=1) / sizes[:, None]
    y, x = (np.stack([values, label], axis=1) - means[stratum]).T
    power = float(x @ x)
    effect = float(x @ y) / power
    df = len(values) - levels.shape[1] - 1
    leverage = 1 / sizes[stratum] + x**2 / power
    rest = (y - effect * x) / (1 - leverage)
    error = math.sqrt(float((x * rest) @ (x * rest))) / power
    reach = float(t.ppf(0.975, df)) * error
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
    kept, dropped = _kept(rows)
    censored = sum(map(only, dropped))
    used = [row for row in kept if only(row) and value(row) is not None]
    if len(used) < 2:
        return _finding([used], censored)
    found = against_zero([_number(value, row) - at_least for row in used])
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
        unreached: runs whose number is a bound only; where they are more than half there is no
            effect to tell.
    """
    value = _column(y) if isinstance(y, str) else y
    setting = _column(x) if isinstance(x, str) else x
    kept, dropped = _kept(rows, untrained)
    censored = sum(map(only, dropped))
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
    whole = None
    if censored and not untrained:
        options: Any = {"within": within, "only": only, "sign": sign, "unreached": unreached}
        whole = trend(rows, x, y, untrained=True, **options)
    return _finding(
        [used],
        censored,
        (rho, low, high, p),
        with_censored=whole.effect if whole else None,
        with_censored_p=whole.p_value if whole else None,
    )


def unexplained(
    rows: Sequence[Row], of: Callable[[Row], float | None] | str, within: str, *, more_than: float
) -> Finding:
    """Share of a number's variance within groups that settings do not explain, above a reference.

    That is the variance within the cells of equal settings of a group over that within the group.
    Interval and p are the bootstrap's over the runs of each cell: p is twice the share of resampled
    runs on the other side of the reference. A cell with a single run in a group is left out.
    """
    value = _column(of) if isinstance(of, str) else of
    kept, dropped = _kept(rows)
    groups = _strata([row for row in kept if value(row) is not None], (within,))
    told = [[mine for mine in by_cell.values() if len(mine) > 1] for by_cell in groups.values()]
    told = [cells for cells in told if len(cells) > 1]
    samples = [[row for mine in cells for row in mine] for cells in told]
    if not told:
        return _finding(samples, len(dropped))
    values = [[np.array([_number(value, row) for row in mine]) for mine in cells] for cells in told]
    generator = np.random.default_rng(0)
    again = np.array([
        _share_within([[generator.choice(mine, len(mine)) for mine in cells] for cells in values])
        for _ in range(_DRAWN // 5)
    ])  # fmt: skip
    below = int((again <= more_than).sum())
    p = min(1.0, 2 * (1 + min(below, len(again) - below)) / (1 + len(again)))
    low, high = (float(end) - more_than for end in np.quantile(again, [0.025, 0.975]))
    return _finding(samples, len(dropped), (_share_within(values) - more_than, low, high, p))


def _share_within(groups: Sequence[Sequence[Floats]]) -> float:
    """Squares within cells over squares within groups."""
    inner = sum(float(((mine - mine.mean()) ** 2).sum()) for cells in groups for mine in cells)
    whole = [np.concatenate(cells) for cells in groups]
    outer = sum(float(((values - values.mean()) ** 2).sum()) for values in whole)
    return inner / outer if outer else 0.0


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
    if found.cells is not None and min(found.cells) < FEWEST:
        fewest = " and ".join(map(str, found.cells))
        return verdict("inconclusive", f"{fewest} cells of equal settings; {FEWEST} are needed")
    if found.effect is None or q is None or found.low is None or found.high is None:
        return verdict("inconclusive", "the number does not vary between these runs")
    other = found.effect if found.with_censored is None else found.with_censored
    if q <= LEVEL and found.effect >= minimum:
        if other < minimum:
            return verdict("inconclusive", f"{other:+.2f} with the runs that did not converge")
        return verdict("supported", f"at least {minimum:.2g}, q <= {LEVEL:g}")
    holds = found.with_censored_p is None or found.with_censored_p <= LEVEL
    if q <= LEVEL and found.effect < 0 and other < 0 and holds:
        return verdict("not supported", "the effect is the other way round")
    if found.high < minimum:
        if other >= minimum:
            return verdict("inconclusive", f"{other:+.2f} with the runs that did not converge")
        return verdict("not supported", f"the interval ends below {minimum:.2g}")
    chance = "there" if q <= LEVEL else f"q > {LEVEL:g}"
    return verdict("inconclusive", f"{chance}, and the interval reaches {minimum:.2g}")


def _kept(rows: Iterable[Row], untrained: bool = False) -> tuple[list[Row], list[Row]]:
    """The runs that count, and those that did not converge or end."""
    kept: list[Row] = []
    dropped: list[Row] = []
    for row in rows:
        counts = row["status"] == "done" and (untrained or not row["censored"])
        (kept if counts else dropped).append(row)
    return kept, dropped


def _number(value: Callable[[Row], float | None], row: Row) -> float:
    """A number that is there."""
    return float(value(row) or 0.0)


def _column(name: str) -> Callable[[Row], float | None]:
    return lambda row: row.get(name)


def _key(row: Row, within: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in within)


def _finding(
    samples: Sequence[Sequence[Row]],
    censored: int,
    effect: tuple[float, float, float, float] | None = None,
    **more: Any,
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
        **more,
    )


def _standard(values: Sequence[float | None]) -> Floats:
    """Ranks of mean 0 and length 1; zeros where all are equal."""
    ranks: Floats = rankdata(np.array(values, dtype=np.float64))
    ranks -= ranks.mean()
    length = float(np.linalg.norm(ranks))
    return ranks / length if length else ranks
