"""How good the verdict from the mechanism is, on runs that it was not made on.

:func:`judge_verdict` holds :func:`anchor_interp.mechanism.verdict` against the phase of every run
of a table, beside rules that know less. Those are decision trees, fitted on other runs: one on
stable rank alone, one on gamma, weight decay and everything else that is set before training, one
on the fingerprint's numbers without those of composed states. The rule on settings is given another
chance: fitted on the judged runs themselves, of every cell on all other cells. Runs that did not
converge have no phase to be told and are left out, counted.

Intervals of balanced accuracy add up Jeffreys' intervals of the phases; what a rule lacks to the
verdict is bootstrapped over the runs of each phase.

:func:`judge_early` does the same along training: how early does the mechanism say what the run
becomes, and how early does its behaviour?
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.tree import DecisionTreeClassifier

from anchor_interp.errors import ConfigError
from anchor_interp.mechanism import NUMBERS, THRESHOLDS, Fingerprint, verdict
from anchor_interp.papers.judging import Row
from anchor_interp.papers.measures import PHASES as ALL_PHASES
from anchor_interp.phase import PAPER, Phase
from anchor_interp.schema import from_dict

PHASES: tuple[Phase, ...] = ("memorizing", "composite", "symmetric", "inferential")
"""The phases that a verdict names."""
_COMPOSED = ("composed", "commutes", "mirrored", "recomposed")
_FAITHFUL = 0.9
"""Share of seen pairs, composed and answered rightly, below which composed states are doubtful."""
_NEAR = 0.1
"""A number this close to a line could as well be on its other side."""
_DRAWN = 2_000
_DEPTH, _LEAF = 4, 3


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
    """Lower end of that, over the same resampled runs."""
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
    """What makes the difference likely, by a fixed rule: the first attention layer mixes the
    anchors, so that composed states are not the model's; or a number lies near its line."""


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
    """Balanced accuracy of the phase that the behaviour has at that moment."""


def fingerprint_of(row: Row) -> Fingerprint:
    """The fingerprint that a row of a table holds.

    Raises:
        ConfigError: a number outside its range.
    """
    step = row.get("at_step", row.get("steps"))
    about = {"run_id": row["run_id"], "step": None if step is None else int(step), "seed": 0}
    return from_dict(Fingerprint, about | {name: row.get(name) for name in NUMBERS})


def judge_verdict(rows: Sequence[Row], fitted_on: Sequence[Row]) -> VerdictScore:
    """The verdict on some runs, beside rules fitted on others.

    Args:
        rows: runs with fingerprints, none of which the verdict's thresholds were fixed on.
        fitted_on: the runs that the other rules learn from.

    Raises:
        ConfigError: fewer than two phases among the runs.
    """
    kept = [row for row in rows if _counts(row)]
    known = [row for row in fitted_on if _counts(row)]
    truth = np.array([row["phase"] for row in kept])
    if len(set(truth)) < 2 or len({row["phase"] for row in known}) < 2:
        raise ConfigError(
            "expected finished runs of two phases or more, with fingerprints, to judge and to fit "
            "other rules on"
        )
    given = np.array([verdict(fingerprint_of(row)).phase for row in kept])
    named = {"verdict": given}
    for name, (_, features) in _RULES.items():
        named[name] = _tree(features, known, kept)
    named["settings-here"] = _across_cells(_settings, kept)
    mixed = _mixed(kept)
    drawn = _resampled(truth)
    base = np.array([_balanced(truth[chosen], given[chosen]) for chosen in drawn])
    scores = []
    for name, answers in named.items():
        samples = np.array([_balanced(truth[chosen], answers[chosen]) for chosen in drawn])
        low, high = _interval(truth, answers)
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
    final = {row["run_id"]: row for row in rows if _counts(row)}
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
        low, high = _interval(truth, given)
        then = [row.get("behaviour") for row in mine]
        behaved = None
        if None not in then:
            behaved = _balanced(truth, np.array([ALL_PHASES[int(index or 0)] for index in then]))
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


def _tree(
    features: Callable[[Row], list[float]], known: Sequence[Row], asked: Sequence[Row]
) -> npt.NDArray[np.str_]:
    """What a decision tree that was fitted on some runs says of others."""
    tree = DecisionTreeClassifier(
        max_depth=_DEPTH, min_samples_leaf=_LEAF, class_weight="balanced", random_state=0
    )
    tree.fit([features(row) for row in known], [row["phase"] for row in known])
    answers: npt.NDArray[np.str_] = tree.predict([features(row) for row in asked])
    return answers


def _across_cells(
    features: Callable[[Row], list[float]], rows: Sequence[Row]
) -> npt.NDArray[np.str_]:
    """Of every cell what a tree says that was fitted on all other cells."""
    keys = [_cell(row) for row in rows]
    answers = np.empty(len(rows), dtype=object)
    for key in dict.fromkeys(keys):
        others = [row for row, own in zip(rows, keys, strict=True) if own != key]
        mine = [index for index, own in enumerate(keys) if own == key]
        answers[mine] = _tree(features, others, [rows[index] for index in mine])
    return answers.astype(str)


def _counts(row: Row) -> bool:
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
    "settings": ("gamma, weight decay and all other settings", _settings),
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
    "settings-here": "all settings, fitted on these runs' other cells",
}


def _balanced(truth: npt.NDArray[np.str_], given: npt.NDArray[np.str_]) -> float:
    return float(np.mean([(given[truth == phase] == phase).mean() for phase in np.unique(truth)]))


def _interval(truth: npt.NDArray[np.str_], given: npt.NDArray[np.str_]) -> tuple[float, float]:
    """95 % of balanced accuracy, each phase's share drawn from Jeffreys' posterior."""
    generator = np.random.default_rng(0)
    shares = []
    for phase in np.unique(truth):
        right, n = int((given[truth == phase] == phase).sum()), int((truth == phase).sum())
        shares.append(generator.beta(right + 0.5, n - right + 0.5, _DRAWN))
    low, high = np.quantile(np.mean(shares, axis=0), [0.025, 0.975])
    return float(low), float(high)


def _resampled(truth: npt.NDArray[np.str_]) -> list[npt.NDArray[np.int64]]:
    """Indices of resampled runs, as many of each phase as there are."""
    generator = np.random.default_rng(0)
    places = [np.flatnonzero(truth == phase) for phase in np.unique(truth)]
    return [
        np.concatenate([generator.choice(mine, len(mine)) for mine in places])
        for _ in range(_DRAWN)
    ]


_SETTINGS = (
    "task", "gamma", "gamma_qk", "weight_decay", "n_layers", "d_model", "normalization", "lr",
    "steps", "n_sequences",
)  # fmt: skip


def _cell(row: Row) -> tuple[Any, ...]:
    """All settings but the seed."""
    return tuple(row.get(name) for name in _SETTINGS)


def _mixed(rows: Sequence[Row]) -> npt.NDArray[np.bool_]:
    """The runs in cells whose seeds end in different phases."""
    cells: dict[tuple[Any, ...], set[str]] = {}
    keys = [_cell(row) for row in rows]
    for key, row in zip(keys, rows, strict=True):
        cells.setdefault(key, set()).add(row["phase"])
    return np.array([len(cells[key]) > 1 for key in keys])


def _disagreement(row: Row) -> Disagreement:
    found = verdict(fingerprint_of(row))
    settings = (
        f"gamma {row['gamma']:g}, wd {row['weight_decay']:g}, {row['n_layers']} layers of "
        f"{row['d_model']}, {row['normalization']}-LN, {row['task']}"
    )
    behaviour = [f"ID {row['id_accuracy']:.2f}", f"OOD {row['ood_accuracy']:.2f}"]
    for name, title in (("symmetric_accuracy", "symmetric"), ("commutativity", "commut.")):
        if row.get(name) is not None:
            behaviour.append(f"{title} {row[name]:.2f}")
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
        return f"layer 1 mixes the anchors: of seen pairs, composed, {again:.2f} are right"
    on_the_way = {"OOD": (row["ood_accuracy"], PAPER.ood)}
    if row.get("symmetric_accuracy") is not None:
        on_the_way["symmetric"] = (row["symmetric_accuracy"], PAPER.symmetric)
    elif row["ood_accuracy"] < PAPER.ood:
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
