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
from scipy.stats import false_discovery_control, rankdata

from anchor_interp.statistics import against_zero, two_samples

Row = Mapping[str, Any]
Test = Callable[[Row], bool]
ClaimVerdict = Literal["supported", "not supported", "inconclusive", "not run"]

LEVEL = 0.05
"""Largest adjusted p of a supported claim."""
FEWEST = 5
"""Fewest runs of each sample, and fewest seeds, of a claim that is decided."""
_DRAWN = 9_999


@dataclass(frozen=True)
class Finding:
    """What the runs say to one claim."""

    n: tuple[int, ...]
    """Runs in each sample."""
    seeds: int
    """Different seeds among them."""
    censored: int
    """Runs of the study that did not converge or end, and are in no sample."""
    effect: float | None
    """The effect, positive as claimed; None without runs enough to compute it."""
    low: float | None
    """Lower end of its 95 % interval."""
    high: float | None
    """Upper end."""
    p_value: float | None
    """Two-sided, of a permutation test."""
    runs: tuple[str, ...]
    """The runs in the samples."""


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
    untrained: bool = False,
) -> Finding:
    """The mean of a number in some runs minus that in others (Welch's interval).

    Args:
        rows: the runs.
        of: the number, or its column.
        more: the runs in which it is larger, as claimed.
        less: those in which it is smaller.
        sign: -1 where the claim is that ``more`` has less of it.
        untrained: keep runs that did not converge, where that is what is measured.
    """
    value = _column(of) if isinstance(of, str) else of
    kept, censored = _kept(rows, untrained)
    samples = [
        [row for row in kept if test(row) and value(row) is not None] for test in (more, less)
    ]
    numbers = [[sign * float(value(row) or 0.0) for row in sample] for sample in samples]
    used = [row for sample in samples for row in sample]
    if min(map(len, numbers)) < 2:
        return _nothing(numbers, used, censored)
    found = two_samples(*numbers)
    return _finding(numbers, used, censored, found.mean, found.low, found.high, found.p_value)


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
    numbers = [float(value(row) or 0.0) - at_least for row in used]
    if len(numbers) < 2:
        return _nothing([numbers], used, censored)
    found = against_zero(numbers)
    return _finding([numbers], used, censored, found.mean, found.low, found.high, found.p_value)


def trend(
    rows: Sequence[Row],
    x: str,
    y: Callable[[Row], float | None] | str,
    *,
    within: tuple[str, ...] = (),
    only: Test = lambda _: True,
    sign: int = 1,
    untrained: bool = False,
) -> Finding:
    """Spearman's correlation of a number with a setting, with other settings held.

    It is the mean over the groups of equal settings, weighted by their runs; values change places
    within groups for p, and the interval is Fisher's with the degrees of freedom of the groups.

    Args:
        rows: the runs.
        x: the column of the setting.
        y: the number, or its column.
        within: columns held fixed.
        only: which runs.
        sign: -1 where the claim is that it falls.
        untrained: keep runs that did not converge, where that is what is measured.
    """
    value = _column(y) if isinstance(y, str) else y
    kept, censored = _kept(rows, untrained)
    used = [row for row in kept if only(row) and value(row) is not None]
    groups: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for row in used:
        key = tuple(row[name] for name in within)
        groups.setdefault(key, []).append((float(row[x]), float(value(row) or 0.0)))
    points = [np.array(group) for group in groups.values() if len(group) > 2]
    points = [group for group in points if np.ptp(group[:, 0]) and np.ptp(group[:, 1])]
    n = sum(map(len, points))
    if not points or n - 3 * len(points) < 1:
        return _nothing([[0.0] * len(used)], used, censored)
    ranks = [(_standard(group[:, 0]), _standard(group[:, 1])) for group in points]
    rho = sign * sum(float(a @ b) * len(a) for a, b in ranks) / n
    generator = np.random.default_rng(0)
    drawn = np.zeros(_DRAWN)
    for a, b in ranks:
        orders = generator.permuted(np.tile(a, (_DRAWN, 1)), axis=1)
        drawn += orders @ b * len(a) / n
    p = (1 + int((np.abs(drawn) >= abs(rho) - 1e-9).sum())) / (1 + _DRAWN)
    z, error = math.atanh(max(-0.999999, min(0.999999, rho))), 1 / math.sqrt(n - 3 * len(points))
    low, high = math.tanh(z - 1.96 * error), math.tanh(z + 1.96 * error)
    return _finding([[0.0] * n], used, censored, rho, low, high, p)


def explained(rows: Sequence[Row], of: str, by: str, *, chance: float = 0.0) -> Finding:
    """Share of a number's variance that groups of runs explain (eta squared), above a reference.

    The interval is the bootstrap's over runs; p is of shuffled groups.
    """
    kept, censored = _kept(rows)
    used = [row for row in kept if row.get(of) is not None and row.get(by) is not None]
    groups = [row[by] for row in used]
    sizes = [groups.count(name) for name in dict.fromkeys(groups)]
    if len(sizes) < 2 or min(sizes) < 2:
        return _nothing([[0.0] * size for size in sizes], used, censored)
    values, labels = np.array([float(row[of]) for row in used]), np.array(groups)
    found = _eta(values, labels)
    generator = np.random.default_rng(0)
    shuffled = np.array([_eta(values, generator.permutation(labels)) for _ in range(_DRAWN // 5)])
    p = (1 + int((shuffled >= found - 1e-9).sum())) / (1 + len(shuffled))
    again = []
    for _ in range(_DRAWN // 5):
        chosen = generator.integers(len(values), size=len(values))
        again.append(_eta(values[chosen], labels[chosen]))
    low, high = np.quantile(again, [0.025, 0.975])
    numbers = [[0.0] * size for size in sizes]
    return _finding(numbers, used, censored, found - chance, low - chance, high - chance, p)


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

    if found is None or not sum(found.n):
        return verdict("not run", "no run of it is there")
    if min(found.n) < FEWEST or found.seeds < FEWEST:
        fewest = f"{' and '.join(map(str, found.n))} runs of {found.seeds} seeds"
        return verdict("inconclusive", f"{fewest}; {FEWEST} of each are needed")
    if found.effect is None or q is None or found.low is None or found.high is None:
        return verdict("inconclusive", "the number does not vary between these runs")
    if q <= LEVEL and found.effect >= minimum:
        return verdict("supported", f"at least {minimum:g}, q <= {LEVEL:g}")
    if q <= LEVEL and found.effect < 0:
        return verdict("not supported", "the effect is the other way round")
    if found.high < minimum:
        return verdict("not supported", f"the interval ends below {minimum:g}")
    chance = "there" if q <= LEVEL else f"q > {LEVEL:g}"
    return verdict("inconclusive", f"{chance}, and the interval reaches {minimum:g}")


def _kept(rows: Iterable[Row], untrained: bool = False) -> tuple[list[Row], int]:
    rows = list(rows)
    done = [row for row in rows if row["status"] == "done"]
    kept = [row for row in done if untrained or not row["censored"]]
    return kept, len(rows) - len(kept)


def _column(name: str) -> Callable[[Row], float | None]:
    return lambda row: row.get(name)


def _nothing(numbers: Sequence[Sequence[float]], used: Sequence[Row], censored: int) -> Finding:
    return _finding(numbers, used, censored, None, None, None, None)


def _finding(
    numbers: Sequence[Sequence[float]],
    used: Sequence[Row],
    censored: int,
    effect: float | None,
    low: float | None,
    high: float | None,
    p: float | None,
) -> Finding:
    seeds = len({row["seed"] for row in used})
    runs = tuple(sorted({row["run_id"] for row in used}))
    return Finding(tuple(map(len, numbers)), seeds, censored, effect, low, high, p, runs)


def _standard(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Ranks of mean 0 and length 1."""
    ranks = rankdata(values)
    ranks -= ranks.mean()
    found: npt.NDArray[np.float64] = ranks / np.linalg.norm(ranks)
    return found


def _eta(values: npt.NDArray[np.float64], labels: npt.NDArray[np.str_]) -> float:
    centred = values - values.mean()
    total = float((centred**2).sum())
    if not total:
        return 0.0
    between = sum(
        (labels == name).sum() * centred[labels == name].mean() ** 2 for name in np.unique(labels)
    )
    return float(between) / total
