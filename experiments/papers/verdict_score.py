"""How good the verdict from the mechanism is, on runs that it was not made on.

:func:`judge_verdict` holds :func:`anchor_interp.analysis.verdict.verdict` against the phase of every run
of a table, beside rules that know less: stable rank alone, gamma and weight decay, everything that
is set before training, and the fingerprint's numbers without those of composed states. These are
decision trees, fitted on other runs, and once more on the judged runs themselves, of every cell on
all other cells; each has the size that is best for it in hindsight, which favours them. Runs that
did not converge have no phase to be told and are left out, counted.

Runs that differ in their seed alone are not independent. Intervals of balanced accuracy add up
Jeffreys' intervals of the phases with as many witnesses as a phase has cells; what a rule lacks to
the verdict is bootstrapped over cells; and inside the cells whose seeds end in different phases,
where settings say nothing, verdicts change places for p.

:func:`judge_early` does the same along training: how early does the mechanism say what the run
becomes, and how early does its behaviour?
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.tree import DecisionTreeClassifier

from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.schema import from_dict
from anchor_interp.analysis.fingerprint import NUMBERS, Fingerprint
from anchor_interp.analysis.statistics import permutation_p
from anchor_interp.analysis.verdict import THRESHOLDS, verdict
from anchor_interp.runs.phase import PAPER, Phase

from .judging import Row, cell

PHASES: tuple[Phase, ...] = ("memorizing", "composite", "symmetric", "inferential")
"""The phases that a verdict names."""


_COMPOSED = ("composed", "commutes", "mirrored", "recomposed")


_FAITHFUL = 0.9
"""Share of seen pairs, composed and answered rightly, below which composed states are doubtful."""


_AS_YET = {"undertrained": "memorizing"}


_NEAR = 0.1
"""A number this close to a line could as well be on its other side."""


_DRAWN = 2_000


_DEPTHS, _LEAVES = (2, 3, 4, 6), (1, 3)
"""Sizes of the decision trees that are tried."""


Names = npt.NDArray[np.str_]


@dataclass(frozen=True)
class RuleScore:
    """How well one rule names phases."""

    name: str
    """A short name."""
    rule: str
    """What it knows."""
    accuracy: float
    """Balanced accuracy: the mean over phases of the share named rightly."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    """Upper end."""
    behind: float | None
    """How much balanced accuracy it lacks to the verdict; None of the verdict itself."""
    behind_low: float | None
    """Lower end of its 95 % interval."""
    mixed: float | None
    """Share named rightly within cells whose seeds end in different phases; None without one."""


@dataclass(frozen=True)
class Disagreement:
    """A run whose phase and verdict differ."""

    run_id: str
    """The run."""
    settings: str
    """Its gamma, weight decay, depth and task."""
    phase: str
    """What it is."""
    verdict: str
    """What its mechanism says."""
    reason: str
    """The rule that spoke."""
    behaviour: str
    """The accuracies that decided the phase."""
    explanation: str
    """What makes the difference likely, by a fixed rule: composed states answer seen pairs badly,
    so that they are not the model's; or a number lies near its line."""


@dataclass(frozen=True)
class VerdictScore:
    """The verdict on a table of runs."""

    n: Mapping[str, int]
    """Runs of every phase."""
    left_out: int
    """Runs without one of these phases."""
    confusion: Mapping[str, Mapping[str, int]]
    """Of every phase, how often each verdict was given."""
    rules: tuple[RuleScore, ...]
    """The verdict first, then rules that know less."""
    mixed_runs: int
    """Runs in cells whose seeds end in different phases."""
    mixed_p: float | None
    """How often verdicts that change places within these cells are right as often; None without
    one."""
    disagreements: tuple[Disagreement, ...]
    """Every run that is named wrongly."""
    faithful: tuple[int, int]
    """Of the runs whose seen pairs, composed, are answered rightly (0.9 or more): those named
    rightly, and all."""
    doubtful: tuple[int, int]
    """The same of the other runs."""

    def accuracy_of(self, name: str) -> float:
        """The balanced accuracy of the rule with this short name."""
        return next(rule.accuracy for rule in self.rules if rule.name == name)


@dataclass(frozen=True)
class EarlyScore:
    """What can be told at one moment of training of the final phase; the same runs at each."""

    share: float
    """The moment, as a share of the run's steps; the mean over runs."""
    n: int
    """Runs."""
    accuracy: float
    """Balanced accuracy of the verdict at that moment."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    """Upper end."""
    behaviour: float | None
    """Balanced accuracy of the phase that the behaviour has at that moment; one that is
    undertrained as yet counts as memorizing, which is how its mechanism looks."""


def fingerprint_of(row: Row) -> Fingerprint:
    """The fingerprint that a row of a table holds.

    Raises:
        StoreError: a number outside its range.
    """
    step = row.get("at_step", row.get("steps"))
    about = {"run_id": row["run_id"], "step": None if step is None else int(step), "seed": 0}
    try:
        return from_dict(Fingerprint, about | {name: row.get(name) for name in NUMBERS})
    except ConfigError as error:
        raise StoreError(f"a table's row of the run {row['run_id']} is damaged: {error}") from error


def judge_verdict(rows: Sequence[Row], fitted_on: Sequence[Row]) -> VerdictScore:
    """The verdict on some runs, beside rules fitted on others.

    Args:
        rows: runs with fingerprints, none of which the verdict's thresholds were fixed on.
        fitted_on: the runs that the other rules learn from.

    Raises:
        ConfigError: fewer than two phases among the runs.
    """
    kept = [row for row in rows if can_be_judged(row)]
    known = [row for row in fitted_on if can_be_judged(row)]
    truth = np.array([row["phase"] for row in kept])
    if len(set(truth)) < 2 or len({row["phase"] for row in known}) < 2:
        raise ConfigError(
            "expected finished runs of two phases or more, with fingerprints, to judge and to fit "
            "other rules on"
        )
    given = np.array([verdict(fingerprint_of(row)).phase for row in kept])
    cells = [cell(row) for row in kept]
    named = {"verdict": given}
    for name, (_, features) in _RULES.items():
        named[name] = _best_tree(features, known, kept)
        named[f"{name}-here"] = _best_tree(features, kept, kept, cells)
    mixed = _mixed(kept)
    drawn = _resampled(cells)
    base = _balanced_again(truth, given, cells, drawn)
    scores = []
    for name, answers in named.items():
        samples = _balanced_again(truth, answers, cells, drawn)
        low, high = _interval(truth, answers, cells)
        is_first = name == "verdict"
        behind = _balanced(truth, given) - _balanced(truth, answers)
        scores.append(
            RuleScore(
                name=name,
                rule=_TITLES[name],
                accuracy=_balanced(truth, answers),
                low=low,
                high=high,
                behind=None if is_first else behind,
                behind_low=None if is_first else float(np.quantile(base - samples, 0.025)),
                mixed=float((truth == answers)[mixed].mean()) if mixed.any() else None,
            )
        )
    right = truth == given
    sure = np.array([(row.get("recomposed") or 0.0) >= _FAITHFUL for row in kept])
    return VerdictScore(
        n={phase: int((truth == phase).sum()) for phase in PHASES},
        left_out=len(rows) - len(kept),
        confusion={
            phase: {
                other: int(((truth == phase) & (given == other)).sum())
                for other in (*PHASES, "other")
            }
            for phase in PHASES
        },
        rules=tuple(scores),
        mixed_runs=int(mixed.sum()),
        mixed_p=_inside(truth, given, cells, mixed),
        disagreements=tuple(
            _disagreement(row)
            for row, name in zip(kept, given, strict=True)
            if name != row["phase"]
        ),
        faithful=(int(right[sure].sum()), int(sure.sum())),
        doubtful=(int(right[~sure].sum()), int((~sure).sum())),
    )


def judge_early(rows: Sequence[Row], checkpoints: Sequence[Row]) -> list[EarlyScore]:
    """The verdict along training, and the behaviour, against what the runs become.

    Args:
        rows: the runs, with their fingerprints at the end.
        checkpoints: rows of the checkpoints between, with ``at_step`` and ``at_number``.

    Returns:
        One score for each number of a checkpoint that every run has, and one for the end.
    """
    final = {row["run_id"]: row for row in rows if can_be_judged(row)}
    moments: dict[float, list[Row]] = {}
    for row in checkpoints:
        if row["run_id"] in final and row.get("noise_share") is not None:
            moments.setdefault(row["at_number"], []).append(row)
    whole = [moment for moment in moments.values() if len(moment) == len(final)]
    found = []
    for mine in [*whole, list(final.values())] if final else []:
        truth = np.array([final[row["run_id"]]["phase"] for row in mine])
        given = np.array([verdict(fingerprint_of(row)).phase for row in mine])
        shares = [row.get("at_step", row["steps"]) / final[row["run_id"]]["steps"] for row in mine]
        low, high = _interval(truth, given, [cell(final[row["run_id"]]) for row in mine])
        then = [row["behaviour"] for row in mine if row.get("behaviour") is not None]
        behaved = None
        if len(then) == len(mine):
            behaved = _balanced(truth, np.array([_AS_YET.get(name, name) for name in then]))
        found.append(
            EarlyScore(
                share=float(np.mean(shares)),
                n=len(mine),
                accuracy=_balanced(truth, given),
                low=low,
                high=high,
                behaviour=behaved,
            )
        )
    return found


def _best_tree(
    features: Callable[[Row], list[float]],
    known: Sequence[Row],
    asked: Sequence[Row],
    cells: Sequence[tuple[Any, ...]] | None = None,
) -> Names:
    """What decision trees fitted on some runs say of others, of the size that does best there.

    With the cells of the runs, which are then the same, every cell is told by a tree that was
    fitted on all others.
    """
    truth = np.array([row["phase"] for row in asked])
    x, wanted = np.array([features(row) for row in known]), [row["phase"] for row in known]
    y = np.array([features(row) for row in asked])
    found: list[Names] = []
    for depth, leaf in itertools.product(_DEPTHS, _LEAVES):
        tree = DecisionTreeClassifier(
            max_depth=depth, min_samples_leaf=leaf, class_weight="balanced", random_state=0
        )
        if cells is None:
            found.append(tree.fit(x, wanted).predict(y))
        else:
            groups = [list(dict.fromkeys(cells)).index(key) for key in cells]
            found.append(cross_val_predict(tree, x, wanted, groups=groups, cv=LeaveOneGroupOut()))
    return max(found, key=lambda answers: _balanced(truth, answers))


def can_be_judged(row: Row) -> bool:
    """Whether a row has a phase that a verdict names, and a fingerprint."""
    return row["status"] == "done" and row["phase"] in PHASES and row.get("noise_share") is not None


def _number(row: Row, name: str) -> float:
    value = row.get(name)
    return -1.0 if value is None else float(value)


def _is_neurips(row: Row) -> float:
    return float(row["task"] == "neurips")


def _settings(row: Row) -> list[float]:
    numbers = ("gamma", "gamma_qk", "weight_decay", "n_layers", "d_model", "n_sequences", "lr")
    layout = [float(row["normalization"] == "pre"), _is_neurips(row)]
    return [_number(row, name) for name in numbers] + layout


_RULES: Mapping[str, tuple[str, Callable[[Row], list[float]]]] = {
    "stable-rank": (
        "stable rank of W_Q(1), and its share of the initial one",
        lambda row: [
            _number(row, "stable_rank"),
            _number(row, "stable_rank") / max(_number(row, "stable_rank_at_init"), 1e-9),
        ],
    ),
    "gamma-and-decay": (
        "gamma and weight decay",
        lambda row: [_number(row, name) for name in ("gamma", "gamma_qk", "weight_decay")],
    ),
    "settings": ("all settings", _settings),
    "without-composed": (
        "the fingerprint without composed states",
        lambda row: [
            *(_number(row, name) for name in NUMBERS if name not in _COMPOSED),
            _is_neurips(row),
        ],
    ),
}
"""Rules that know less than the verdict: what they know, and what they see of a run."""


_TITLES = {
    "verdict": "the verdict, from the mechanism",
    **{name: title for name, (title, _) in _RULES.items()},
    **{f"{name}-here": f"{title}, fitted here" for name, (title, _) in _RULES.items()},
}


def _balanced(truth: Names, given: Names) -> float:
    return float(np.mean([(given[truth == phase] == phase).mean() for phase in np.unique(truth)]))


def _interval(truth: Names, given: Names, cells: Sequence[tuple[Any, ...]]) -> tuple[float, float]:
    """95 % of balanced accuracy, each phase's share drawn from Jeffreys' posterior of its cells."""
    generator = np.random.default_rng(0)
    shares = []
    for phase in np.unique(truth):
        mine = truth == phase
        n = len({key for key, counts in zip(cells, mine, strict=True) if counts})
        right = n * float((given[mine] == phase).mean())
        shares.append(generator.beta(right + 0.5, n - right + 0.5, _DRAWN))
    low, high = np.quantile(np.mean(shares, axis=0), [0.025, 0.975])
    return float(low), float(high)


def _resampled(cells: Sequence[tuple[Any, ...]]) -> npt.NDArray[np.int64]:
    """How often each cell is in each of the samples of as many cells: [sample, cell]."""
    n = len(dict.fromkeys(cells))
    drawn = np.random.default_rng(0).integers(n, size=(_DRAWN, n))
    return np.stack([np.bincount(sample, minlength=n) for sample in drawn])


def _balanced_again(
    truth: Names, given: Names, cells: Sequence[tuple[Any, ...]], drawn: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Balanced accuracy in every sample of cells, over the phases that are in it."""
    places = np.array([list(dict.fromkeys(cells)).index(key) for key in cells])
    runs = np.zeros((drawn.shape[1], len(np.unique(truth))))
    right = np.zeros_like(runs)
    for column, phase in enumerate(np.unique(truth)):
        np.add.at(runs[:, column], places, truth == phase)
        np.add.at(right[:, column], places, (truth == phase) & (given == phase))
    n = drawn @ runs
    shares = np.divide(drawn @ right, n, out=np.full_like(n, np.nan), where=n > 0)
    found: npt.NDArray[np.float64] = np.nanmean(shares, axis=1)
    return found


def _inside(
    truth: Names, given: Names, cells: Sequence[tuple[Any, ...]], mixed: npt.NDArray[np.bool_]
) -> float | None:
    """One-sided p of as many right verdicts, which change places within each mixed cell."""
    if not mixed.any():
        return None
    generator = np.random.default_rng(0)
    drawn = np.zeros(_DRAWN)
    for key in dict.fromkeys(own for own, counts in zip(cells, mixed, strict=True) if counts):
        mine = np.array([own == key for own in cells])
        moved = generator.permuted(np.tile(given[mine], (_DRAWN, 1)), axis=1)
        drawn += (moved == truth[mine]).sum(1)
    observed = float((truth == given)[mixed].sum())
    return permutation_p(observed, drawn, exact=False)


def _mixed(rows: Sequence[Row]) -> npt.NDArray[np.bool_]:
    """The runs in cells whose seeds end in different phases."""
    cells: dict[tuple[Any, ...], set[str]] = {}
    keys = [cell(row) for row in rows]
    for key, row in zip(keys, rows, strict=True):
        cells.setdefault(key, set()).add(row["phase"])
    return np.array([len(cells[key]) > 1 for key in keys])


def _disagreement(row: Row) -> Disagreement:
    found = verdict(fingerprint_of(row))
    settings = (
        f"gamma {row['gamma']:g}, wd {row['weight_decay']:g}, {row['n_layers']} layers of "
        f"{row['d_model']}, {row['normalization']}-LN, {row['task']}"
    )
    titles = {
        "id_accuracy": "ID",
        "ood_accuracy": "OOD",
        "symmetric_accuracy": "symmetric",
        "commutativity": "commut.",
    }
    behaviour = [
        f"{title} {row[name]:.2f}" for name, title in titles.items() if row.get(name) is not None
    ]
    return Disagreement(
        run_id=row["run_id"],
        settings=settings,
        phase=row["phase"],
        verdict=found.phase,
        reason=found.reason,
        behaviour=", ".join(behaviour),
        explanation=_explanation(row),
    )


def _explanation(row: Row) -> str:
    again = row.get("recomposed")
    if again is not None and again < _FAITHFUL:
        return f"composed states are doubtful: of seen pairs {again:.2f} are right"
    ood = row.get("ood_accuracy")
    on_the_way = {"OOD": (ood, PAPER.ood)}
    if row.get("symmetric_accuracy") is not None:
        on_the_way["symmetric"] = (row["symmetric_accuracy"], PAPER.symmetric)
    elif ood is not None and ood < PAPER.ood:
        on_the_way["commut."] = (row.get("commutativity"), PAPER.commutativity)
    on_the_way["composed"] = (row.get("composed"), THRESHOLDS.composed)
    if row.get("mirrored") is None and (row.get("composed") or 0.0) < THRESHOLDS.composed:
        on_the_way["commutes"] = (row.get("commutes"), THRESHOLDS.commutes)
    near = [
        f"{name} {value:.2f} is near {line:g}"
        for name, (value, line) in on_the_way.items()
        if value is not None and abs(value - line) < _NEAR
    ]
    return "; ".join(near) or "none known"
