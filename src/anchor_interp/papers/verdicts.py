"""How good the verdict from the mechanism is, on runs that it was not made on.

:func:`judge_verdict` holds :func:`anchor_interp.mechanism.verdict` against the phase of every run
of a table, beside rules that know less. Those are decision trees, fitted on other runs: one on
stable rank alone, one on gamma and weight decay (with the depth and the task, which a user knows as
well), one on the fingerprint's numbers without those of composed states. Runs that did not converge
have no phase to be told and are left out, counted.

:func:`judge_early` does the same at every checkpoint of a run: how early does the mechanism say
what the run becomes?
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
from anchor_interp.phase import PAPER
from anchor_interp.schema import from_dict

PHASES = ("memorizing", "composite", "symmetric", "inferential")
"""The phases that a verdict names."""
_COMPOSED = ("composed", "commutes", "mirrored", "recomposed", "blocks")
_FAITHFUL = 0.9
"""Share of seen pairs, composed and answered rightly, below which composed states are doubtful."""
_NEAR = 0.1
"""A number this close to a line could as well be on its other side."""
_DRAWN = 2_000
_DEPTH, _LEAF = 4, 3


@dataclass(frozen=True)
class RuleScore:
    """How well one rule names phases."""

    rule: str
    """What it knows."""
    accuracy: float
    """Balanced accuracy: the mean over phases of the share named rightly."""
    low: float
    """Lower end of its 95 % interval: a bootstrap over the runs of each phase."""
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


@dataclass(frozen=True)
class EarlyScore:
    """The verdict at one moment of training against the final phase."""

    share: float
    """The moment, as a share of the run's steps."""
    n: int
    """Runs."""
    accuracy: float
    """Balanced accuracy."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    """Upper end."""


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
    kept = [row for row in rows if _counts(row) and row.get("noise_share") is not None]
    given = np.array([verdict(fingerprint_of(row)).phase for row in kept])
    truth = np.array([row["phase"] for row in kept])
    if len(set(truth)) < 2:
        raise ConfigError("expected finished runs of two phases or more, with fingerprints")
    known = [row for row in fitted_on if _counts(row) and row.get("noise_share") is not None]
    named = {"the verdict, from the mechanism": given}
    for title, features in _RULES.items():
        tree = DecisionTreeClassifier(
            max_depth=_DEPTH, min_samples_leaf=_LEAF, class_weight="balanced", random_state=0
        )
        tree.fit([features(row) for row in known], [row["phase"] for row in known])
        named[title] = tree.predict([features(row) for row in kept])
    mixed = _mixed(kept)
    drawn = _resampled(truth)
    first = next(iter(named.values()))
    base = np.array([_balanced(truth[chosen], first[chosen]) for chosen in drawn])
    scores = []
    for title, answers in named.items():
        samples = np.array([_balanced(truth[chosen], answers[chosen]) for chosen in drawn])
        low, high = np.quantile(samples, [0.025, 0.975])
        is_first = answers is first
        behind = _balanced(truth, first) - _balanced(truth, answers)
        scores.append(
            RuleScore(
                rule=title,
                accuracy=_balanced(truth, answers),
                low=float(low),
                high=float(high),
                behind=None if is_first else behind,
                behind_low=None if is_first else float(np.quantile(base - samples, 0.025)),
                mixed=float((truth == answers)[mixed].mean()) if mixed.any() else None,
            )
        )
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
    )


def judge_early(rows: Sequence[Row], checkpoints: Sequence[Row]) -> list[EarlyScore]:
    """The verdict along training against what the runs become.

    Args:
        rows: the runs, with their fingerprints at the end.
        checkpoints: rows of the checkpoints between, with ``at_step``.
    """
    steps = {row["run_id"]: row["steps"] for row in rows}
    moments: dict[float, list[Row]] = {}
    for row in checkpoints:
        if _counts(row) and row.get("noise_share") is not None and row["run_id"] in steps:
            moments.setdefault(round(row["at_step"] / steps[row["run_id"]], 2), []).append(row)
    moments[1.0] = [row for row in rows if _counts(row) and row.get("noise_share") is not None]
    found = []
    for share, mine in sorted(moments.items()):
        truth = np.array([row["phase"] for row in mine])
        given = np.array([verdict(fingerprint_of(row)).phase for row in mine])
        samples = [_balanced(truth[chosen], given[chosen]) for chosen in _resampled(truth)]
        low, high = np.quantile(samples, [0.025, 0.975])
        found.append(EarlyScore(share, len(mine), _balanced(truth, given), float(low), float(high)))
    return found


def _counts(row: Row) -> bool:
    return row["status"] == "done" and row["phase"] in PHASES


def _number(row: Row, name: str) -> float:
    value = row.get(name)
    return -1.0 if value is None else float(value)


def _is_neurips(row: Row) -> float:
    return float(row["task"] == "neurips")


_RULES: Mapping[str, Callable[[Row], list[float]]] = {
    "stable rank of W_Q(1), and its share of the initial one": lambda row: [
        _number(row, "stable_rank"),
        _number(row, "stable_rank") / max(_number(row, "stable_rank_at_init"), 1e-9),
    ],
    "gamma, weight decay, depth, layout and task": lambda row: [
        _number(row, "gamma"),
        _number(row, "weight_decay"),
        _number(row, "n_layers"),
        float(row["normalization"] == "pre"),
        _is_neurips(row),
    ],
    "the fingerprint without composed states": lambda row: (
        [_number(row, name) for name in NUMBERS if name not in _COMPOSED] + [_is_neurips(row)]
    ),
}
"""Rules that know less than the verdict: their name, and what they see of a run."""


def _balanced(truth: npt.NDArray[np.str_], given: npt.NDArray[np.str_]) -> float:
    return float(np.mean([(given[truth == phase] == phase).mean() for phase in np.unique(truth)]))


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


def _mixed(rows: Sequence[Row]) -> npt.NDArray[np.bool_]:
    """The runs in cells whose seeds end in different phases."""
    cells: dict[tuple[Any, ...], set[str]] = {}
    keys = [tuple(row.get(name) for name in _SETTINGS) for row in rows]
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
    lines = {
        "OOD": (row["ood_accuracy"], PAPER.ood),
        "symmetric": (row.get("symmetric_accuracy"), PAPER.symmetric),
        "commut.": (row.get("commutativity"), PAPER.commutativity),
        "composed": (row.get("composed"), THRESHOLDS.composed),
        "commutes": (row.get("commutes"), THRESHOLDS.commutes),
    }
    near = [
        f"{name} {value:.2f} is near {line:g}"
        for name, (value, line) in lines.items()
        if value is not None and abs(value - line) < _NEAR
    ]
    return "; ".join(near) or "none known"
