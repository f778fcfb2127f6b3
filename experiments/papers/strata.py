"""Runs of two kinds compared inside strata: phases among random settings, or corners of a grid.

Settings decide the phase, so phases differ in their settings, and in task and layout most of all. A
*stratum* holds the runs that agree in some columns, such as one task and layout. Inside it each run
has a seed of its own, and random settings of its own, and is a witness by itself.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t

from anchor_interp.analysis.comparisons import against_zero
from anchor_interp.analysis.statistics import DRAWN, permutation_p

from .effects import (
    FEWEST,
    Effect,
    Finding,
    Floats,
    Interval,
    Number,
    Observation,
    finding_of,
    grouped,
    mostly,
    runs_of,
    samples_of,
    value_of,
    values_of,
)
from .rows import SETTINGS, Row, Rows, Test, columns_of, every, never, setting_of

STRATUM = ("task", "normalization")
_SAID = {"normalization": "layout", "n_sequences": "data size", "weight_decay": "weight decay"}


@dataclass(frozen=True)
class Between(Effect):
    """The mean of a number in runs of one kind minus that in runs of another, inside strata.

    A stratum is compared if it has five runs of each kind. The effect is that of a linear model
    with a level for each stratum; for p, the number changes places inside strata; the interval is
    Student's with HC3 standard errors, which allow for unequal variances (MacKinnon and White
    1985). ``parts`` of the finding are the strata by themselves.

    ``adjusted`` is the effect at equal settings: every stratum has a slope for each setting as
    well, and for p the residuals change places (Freedman and Lane 1983) in the t statistic (Winkler
    and others 2014). It takes the strata with two runs for each of these coefficients. In a grid
    that varies nothing else it is the effect itself. Text has no slope: ``within`` holds it.

    Runs that are ``unreached`` have a lower bound only. A stratum in which they are more than half
    of both kinds is not compared.

    If no stratum can be compared there is no effect, only the difference over all runs of the
    studies ``elsewhere``, where phases go together with tasks and layouts.
    """

    number: Number
    more: Test  # the runs in which the number is larger, as claimed
    less: Test  # the runs in which it is smaller
    free: tuple[str, ...] = ()  # settings that the claim is about: they are not regressed out
    elsewhere: tuple[str, ...] = ()
    within: tuple[str, ...] = STRATUM  # the columns in which the runs of a stratum agree
    unreached: Test = never

    def find_in(self, tables: Mapping[str, Rows]) -> Finding | Observation | None:
        """The finding of the studies' tables; None if one of them is missing or empty."""
        found = super().find_in(tables)
        there = [name for name in self.elsewhere if tables.get(name)]
        if not isinstance(found, Finding) or found.comparable or not there:
            return found
        (more, less), _ = samples_of(self, runs_of(there, tables), self.more, self.less)
        if not (more and less):
            return found
        means = [float(np.mean(values_of(sample, self.number))) for sample in (more, less)]
        pooled = means[0] - means[1]
        note = f"{pooled:+.2f} over {len(more)} + {len(less)} runs of {', '.join(there)}"
        return replace(found, pooled=pooled, note=f"{found.note}; not within strata: {note}")

    def find(self, rows: Rows) -> Finding:
        """See the class."""
        samples, censored = samples_of(self, rows, self.more, self.less)
        runs = self.split(rows)[0]
        kept = [row for row in runs if value_of(row, self.number) is not None]
        if runs and not kept:
            return finding_of(samples, censored, note="no run has this number: it is not measured")
        parts: dict[str, Finding] = {}
        used: list[tuple[list[Row], list[Row]]] = []
        generator, single = np.random.default_rng(0), []
        for stratum, runs in sorted(grouped(kept, self.within).items()):
            more, less = ([row for row in sample if columns_of(row, self.within) == stratum]
                          for sample in samples)  # fmt: skip
            name = ", ".join(map(str, stratum))
            if min(len(more), len(less)) < FEWEST:
                phases = Counter(row["phase"] for row in runs if row["phase"]).most_common()
                note = ", ".join(f"{count} {phase}" for phase, count in phases)
                note = note or f"{len(more)} and {len(less)}"
                parts[name] = _brief([more, less], comparable=False, note=note)
                continue
            if all(mostly(self.unreached, sample) for sample in (more, less)):
                note = "most runs of both kinds never came there"
                parts[name] = _brief([more, less], comparable=False, note=note)
                continue
            used.append((more, less))
            single.append(self._shuffled(more, less, (), generator))
            parts[name] = _brief([more, less], _estimate(single[-1:]))
        if not used:
            seen = "; ".join(f"{name}: {part.note}" for name, part in parts.items()) or "no run"
            of = " and ".join(_SAID.get(name, name) for name in self.within)
            there = "" if self.unreached is never else " that came there"
            note = f"no {of} has {FEWEST} runs of both kinds{there} ({seen})"
            return finding_of(samples, censored, comparable=False, note=note, parts=parts)
        both = [[row for pair in used for row in pair[side]] for side in (0, 1)]
        adjusted = self._at_equal_settings(used)
        return finding_of(both, censored, _estimate(single), parts=parts, adjusted=adjusted)

    def _at_equal_settings(self, strata: Sequence[tuple[list[Row], list[Row]]]) -> Finding | None:
        """The effect with the settings regressed out; None if there are too few runs for it."""
        left_out = (*STRATUM, *self.within, *self.free)
        columns = [name for name in SETTINGS if name not in left_out]
        generator = np.random.default_rng(0)
        fitted = [(pair, self._shuffled(*pair, columns, generator)) for pair in strata]
        kept = [(pair, one) for pair, one in fitted if len(one.x) >= 2 * (one.rank + 1)]
        if not kept or (effect := _estimate([one for _, one in kept])) is None:
            return None
        return _brief([[row for pair, _ in kept for row in pair[i]] for i in (0, 1)], effect)

    def _shuffled(
        self, more: Rows, less: Rows, columns: Sequence[str], generator: np.random.Generator
    ) -> "_Shuffled":
        """A stratum, with some settings regressed out and its number shuffled."""
        rows = [*more, *less]
        y, x = np.array(values_of(rows, self.number)), np.repeat([1.0, 0.0], [len(more), len(less)])
        basis = _basis(np.array([[setting_of(row, name) for name in columns] for row in rows]))
        y, x = _without(basis, y), _without(basis, x)
        moved = generator.permuted(np.tile(y, (DRAWN, 1)), axis=1)
        moved -= moved @ basis @ basis.T
        squares = np.einsum("ij,ij->i", moved, moved)
        return _Shuffled(y, x, (basis**2).sum(1), basis.shape[1], moved @ x, squares)


def _brief(samples: Sequence[Rows], effect: Interval | None = None, **more: Any) -> Finding:
    """A finding about part of the runs that another one names."""
    return replace(finding_of(samples, 0, effect, **more), runs=())


class _Shuffled(NamedTuple):
    """The number and the label of a stratum's runs, without its level and the settings' slopes."""

    y: Floats  # [run]
    x: Floats  # [run]
    leverage: Floats  # [run], of what was regressed out
    rank: int  # its coefficients
    products: Floats  # [draw], of the label and the shuffled number
    squares: Floats  # [draw], of the shuffled number


def _estimate(strata: Sequence[_Shuffled]) -> Interval | None:
    """The effect of the label over strata; None if settings tell the label in all of them."""
    y, x, leverage = (np.concatenate(parts) for parts in list(zip(*strata, strict=True))[:3])
    power = float(x @ x)
    if not power:
        return None
    effect = float(x @ y) / power
    rest = (y - effect * x) / np.maximum(1 - leverage - x**2 / power, 1e-6)
    error = math.sqrt(float((x * rest) @ (x * rest))) / power
    df = len(y) - sum(one.rank for one in strata) - 1
    reach = float(t.ppf(0.975, df)) * error
    if not (y @ y):  # the number is the same in all runs
        return effect, effect, effect, 1.0
    # the partial correlation, which grows with the t statistic
    products = np.sum([one.products for one in strata], axis=0)
    squares = np.sum([one.squares for one in strata], axis=0)
    drawn = products / np.sqrt(power * np.maximum(squares, 1e-300))
    seen = abs(float(x @ y)) / math.sqrt(power * float(y @ y))
    return effect, effect - reach, effect + reach, permutation_p(seen, np.abs(drawn), exact=False)


def _basis(columns: Floats) -> Floats:
    """Orthonormal columns that span a level and these columns ([run, column]): [run, rank]."""
    n = len(columns)
    level = np.full((n, 1), 1 / math.sqrt(n))
    centred = columns - columns.mean(0)
    lengths = np.linalg.norm(centred, axis=0)
    varying = lengths > 1e-9 * np.abs(columns).max(0, initial=1e-300)
    u, s, _ = np.linalg.svd(np.hstack([level, centred[:, varying] / lengths[varying]]), False)
    found: Floats = u[:, s > 1e-9 * s[0]]
    return found


def _without(basis: Floats, values: Floats) -> Floats:
    """What a basis leaves of values; zeros if that is rounding alone."""
    rest: Floats = values - basis @ (basis.T @ values)
    return rest if np.linalg.norm(rest) > 1e-9 * np.linalg.norm(values) else np.zeros_like(rest)


@dataclass(frozen=True)
class Alike(Effect):
    """By how much runs of one phase and stratum stay within a factor of each other.

    ``number`` is a logarithm. A run's distance is that to the mean of the other runs of its phase
    and stratum, whose settings are others; the effect is the logarithm of ``factor`` minus the mean
    distance. Below 0 the number changes more than that. Each phase counts alike. A phase of a
    stratum counts if it has five runs. For p, margins change sign; the interval is Student's, with
    Welch's degrees of freedom. ``parts`` of the finding are the phases by themselves.
    """

    number: Number
    factor: float

    def find(self, rows: Rows) -> Finding:
        """See the class."""
        (sample,), censored = samples_of(self, rows, every)
        margins: dict[Any, list[float]] = defaultdict(list)
        runs: dict[Any, list[Row]] = defaultdict(list)
        for (phase, *_), group in sorted(grouped(sample, ("phase", *STRATUM)).items()):
            if len(group) >= FEWEST:
                logs = np.array(values_of(group, self.number))
                others = (logs.sum() - logs) / (len(logs) - 1)
                margins[phase] += [*(math.log(self.factor) - np.abs(logs - others))]
                runs[phase] += group
        if not margins:
            note = f"no phase has {FEWEST} runs in a task and layout"
            return finding_of([sample], censored, comparable=False, note=note)
        alone = {phase: against_zero(values) for phase, values in margins.items()}
        parts = {
            f"phase {phase}": _brief(
                [runs[phase]], (one.mean, one.low, one.high, one.p_value), is_margin=True
            )
            for phase, one in alone.items()
        }
        found = _mean_of_means([*margins.values()])
        return finding_of([*runs.values()], censored, found, parts=parts, is_margin=True)


def _mean_of_means(groups: Sequence[Sequence[float]]) -> Interval:
    """The mean over groups of their means, with Welch's interval and the p of sign flips."""
    weighted = [np.array(group) / (len(group) * len(groups)) for group in groups]
    effect = float(sum(values.sum() for values in weighted))
    variances = np.array([len(values) * values.var(ddof=1) for values in weighted])
    error, reach = math.sqrt(variances.sum()), 0.0
    if error:
        df = error**4 / (variances**2 / [len(values) - 1 for values in weighted]).sum()
        reach = float(t.ppf(0.975, df)) * error
    together = np.concatenate(weighted)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (DRAWN, len(together)))
    p = permutation_p(abs(effect), np.abs(signs @ together), exact=False)
    return effect, effect - reach, effect + reach, p
