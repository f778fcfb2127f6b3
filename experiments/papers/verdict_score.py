"""How good the verdict from the mechanism is, on runs that its thresholds were not fixed on.

It is judged on the runs of the study ``settings`` after the first 25 of each task and layout, which
its thresholds were fitted on. Beside it stand rules that know less: decision trees, fitted on those
first runs and again on the judged runs, each cell on all other cells; each has the size that is
best for it in hindsight, which favours them. Runs that did not converge have no phase to tell and
are left out, and so are runs whose table lacks a number of the verdict.

Runs that differ in their seed alone are not independent. Intervals of balanced accuracy add up
Jeffreys' intervals of the phases with as many witnesses as a phase has cells; what a rule lacks to
the verdict is bootstrapped over cells; in *mixed cells*, whose seeds end in different phases,
settings say nothing, and verdicts change places for p. Runs in *familiar cells* differ from runs
that the rules (and the verdict's thresholds) were fitted on in their seed alone; they are scored
apart from the others.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn import config_context
from sklearn.tree import DecisionTreeClassifier

from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.progress import reporting_one
from anchor_interp._util.schema import from_dict
from anchor_interp.analysis.mechanism import NUMBERS, Fingerprint
from anchor_interp.analysis.statistics import Floats, permutation_p
from anchor_interp.analysis.verdict import THRESHOLDS, VerdictThresholds, verdict
from anchor_interp.runs.phase import PAPER, Phase

from .effects import value_of
from .rows import Row, Rows, cell
from .studies import NEW

PHASES: tuple[Phase, ...] = ("memorizing", "composite", "symmetric", "inferential")
_NEAR = 0.1  # an accuracy this close to a line could as well be on its other side
_DRAWN = 2_000
_DEPTHS, _LEAVES = (2, 3, 4, 6), (1, 3)  # sizes of the decision trees that are tried

Names = npt.NDArray[np.str_]
Cells = Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class RuleScore:
    """How well one rule names phases; intervals hold 95 %."""

    name: str
    rule: str  # what it knows
    accuracy: float  # balanced accuracy: the mean over phases of the share named rightly
    low: float
    high: float
    behind: float | None  # how much balanced accuracy it lacks to the verdict; None for the verdict
    behind_low: float | None
    mixed: float | None  # share named rightly in mixed cells; None if there are none
    familiar: float | None  # balanced accuracy in familiar cells; None if there are none
    unfamiliar: float | None  # that in all other cells


@dataclass(frozen=True)
class Disagreement:
    """A run whose phase and verdict differ."""

    run_id: str
    settings: str
    phase: str
    verdict: str
    reason: str  # the rule of the verdict that spoke
    behaviour: str  # the accuracies that decided the phase
    explanation: str  # what makes the difference likely, by the fixed rule of _explanation


@dataclass(frozen=True)
class VerdictScore:
    """The verdict on a table of runs."""

    n: Mapping[str, int]  # runs of every phase
    left_out: int  # runs without one of these phases
    confusion: Mapping[str, Mapping[str, int]]  # for every phase, how often each verdict was given
    rules: tuple[RuleScore, ...]  # the verdict first, then rules that know less
    familiar: tuple[int, int]  # familiar cells and their runs
    unfamiliar: tuple[int, int]  # all other cells and their runs
    mixed_runs: int  # runs in mixed cells
    mixed_p: float | None  # how often verdicts that change places within them are right as often
    disagreements: tuple[Disagreement, ...]  # every run that is named wrongly

    def accuracy_of(self, name: str) -> float:
        """The balanced accuracy of the rule with this short name."""
        return next(rule.accuracy for rule in self.rules if rule.name == name)


@dataclass(frozen=True)
class EarlyScore:
    """What one moment of training tells of the final phase; the same runs at each moment.

    ``behaviour`` is the balanced accuracy of the phase by behaviour. An undertrained model counts
    as memorizing, which is how its mechanism looks.
    """

    share: float  # the moment, as a share of the run's steps; the mean over runs
    n: int
    accuracy: float  # balanced accuracy of the verdict at that moment
    low: float
    high: float
    behaviour: float | None


def fingerprint_of(row: Row) -> Fingerprint:
    """The fingerprint that a row of a table holds."""
    step = row.get("at_step", row.get("steps"))
    about = {"run_id": row["run_id"], "step": None if step is None else int(step), "seed": 0}
    try:
        return from_dict(Fingerprint, about | {name: row.get(name) for name in NUMBERS})
    except ConfigError as error:
        raise StoreError(f"a table's row of the run {row['run_id']} is damaged: {error}") from error


def can_be_judged(row: Row) -> bool:
    """Whether a row has a phase that a verdict names, and a fingerprint of today's numbers."""
    return row["status"] == "done" and row["phase"] in PHASES and row.get("exceptions") is not None


def is_new(row: Row) -> bool:
    """Whether a run of random settings was trained after the thresholds had been committed."""
    return bool(row["seed"] % 10_000 >= NEW)


def fit_thresholds(rows: Rows) -> VerdictThresholds:
    """The thresholds of order, rule and likeness with the best balanced accuracy on some runs.

    Each is moved in turn, twice, to the middle of the widest range that is as good as any.
    """
    kept = list(filter(can_be_judged, rows))
    truth, numbers = np.array([row["phase"] for row in kept]), list(map(fingerprint_of, kept))
    found = THRESHOLDS

    def score(**moved: float) -> float:
        tried = replace(found, **moved)
        return _balanced(truth, np.array([verdict(each, tried).phase for each in numbers]))

    for name, number in (*_FITTED.items(), *_FITTED.items()):
        values = sorted({v for each in numbers if (v := getattr(each, number)) is not None})
        if len(values) < 2:  # nothing to choose between
            continue
        scores = [score(**{name: (low + high) / 2}) for low, high in itertools.pairwise(values)]
        ranges, start = [], 0
        for best, group in itertools.groupby(each == max(scores) for each in scores):
            end = start + len(list(group))
            ranges += [(values[start], values[end])] if best else []
            start = end
        low, high = max(ranges, key=lambda ends: ends[1] - ends[0])
        found = replace(found, **{name: (low + high) / 2})
    return found


def fitted_accuracy(rows: Rows) -> tuple[float, float]:
    """Balanced accuracy of the verdict on the rows that its thresholds are fitted on.

    The second number judges each row by thresholds that are fitted on the others.
    """
    kept = list(filter(can_be_judged, rows))
    truth, numbers = np.array([row["phase"] for row in kept]), list(map(fingerprint_of, kept))
    left_out = []
    with reporting_one("leaving out each run", len(kept)) as progress:
        for i, each in enumerate(numbers):
            others = fit_thresholds(kept[:i] + kept[i + 1 :])
            left_out.append(verdict(each, others).phase)
            progress.update(i + 1, {})
    found = (np.array([verdict(each).phase for each in numbers]), np.array(left_out))
    return _balanced(truth, found[0]), _balanced(truth, found[1])


def judge_verdict(rows: Rows, fitted_on: Rows) -> VerdictScore:
    """The verdict on some runs, beside rules fitted on others.

    The verdict's thresholds must not have been fixed on any of ``rows``.
    """
    kept, known = (list(filter(can_be_judged, part)) for part in (rows, fitted_on))
    truth = np.array([row["phase"] for row in kept])
    cells = [cell(row) for row in kept]
    if min(len(set(truth)), len({row["phase"] for row in known}), len(set(cells))) < 2:
        raise ConfigError(
            "expected finished runs of two phases or more, with fingerprints, to judge and to fit "
            "other rules on; those to judge in two cells or more"
        )
    given = np.array([verdict(fingerprint_of(row)).phase for row in kept])
    answers = {("verdict", "the verdict, from the mechanism"): given}
    for name, (title, features) in _RULES.items():
        answers[name, title] = _best_tree(features, known, kept)
        answers[f"{name}-here", f"{title}, fitted here"] = _best_tree(features, kept, kept, cells)
    mixed, known_cells = _mixed(truth, cells), {cell(row) for row in known}
    familiar = np.array([key in known_cells for key in cells])
    base = _bootstrapped(truth, given, cells)
    scores = []
    for (name, title), named in answers.items():
        accuracy, behind, behind_low = _balanced(truth, named), None, None
        if name != "verdict":
            behind = _balanced(truth, given) - accuracy
            behind_low = float(np.quantile(base - _bootstrapped(truth, named, cells), 0.025))
        right = float((truth == named)[mixed].mean()) if mixed.any() else None
        apart = [_balanced(truth[part], named[part]) if part.any() else None
                 for part in (familiar, ~familiar)]  # fmt: skip
        interval = _interval(truth, named, cells)
        scores.append(
            RuleScore(name, title, accuracy, *interval, behind, behind_low, right, *apart)
        )
    return VerdictScore(
        n={phase: int((truth == phase).sum()) for phase in PHASES},
        left_out=len(rows) - len(kept),
        confusion={
            one: {two: int(((truth == one) & (given == two)).sum()) for two in (*PHASES, "other")}
            for one in PHASES
        },
        rules=tuple(scores),
        familiar=_counted(cells, familiar),
        unfamiliar=_counted(cells, ~familiar),
        mixed_runs=int(mixed.sum()),
        mixed_p=_within_mixed(truth, given, cells, mixed),
        disagreements=tuple(map(_disagreement, itertools.compress(kept, truth != given))),
    )


def judge_early(rows: Rows, checkpoints: Rows) -> list[EarlyScore]:
    """The verdict along training, and the behaviour, against what the runs become.

    One score for each number of a checkpoint that every run has, and one for the end.
    """
    final = {row["run_id"]: row for row in rows if can_be_judged(row)}
    moments: dict[float, list[Row]] = defaultdict(list)
    for row in checkpoints:
        if row["run_id"] in final and row.get("exceptions") is not None:
            moments[row["at_number"]].append(row)
    whole = [moment for moment in moments.values() if len(moment) == len(final)]
    found = []
    for mine in [*whole, list(final.values())] if final else []:
        ends = [final[row["run_id"]] for row in mine]
        truth = np.array([end["phase"] for end in ends])
        inside = [
            replace(fingerprint_of(row), train_accuracy=None, seen_train_keys=None) for row in mine
        ]
        given = np.array([verdict(each).phase for each in inside])  # without the check of learning
        share = np.mean([r.get("at_step", r["steps"]) / final[r["run_id"]]["steps"] for r in mine])
        behaved = None
        if all(row.get("behaviour") is not None for row in mine):
            then = [row["behaviour"].replace("undertrained", "memorizing") for row in mine]
            behaved = _balanced(truth, np.array(then))
        interval = _interval(truth, given, [cell(end) for end in ends])
        accuracy = _balanced(truth, given)
        found.append(EarlyScore(float(share), len(mine), accuracy, *interval, behaved))
    return found


def _best_tree(
    features: Callable[[Row], list[float]], known: Rows, asked: Rows, cells: Cells | None = None
) -> Names:
    """What decision trees fitted on ``known`` say of ``asked``, of the size that does best there.

    With ``cells`` the runs are the same, and a tree fitted on all other cells judges each cell.
    """
    truth = np.array([row["phase"] for row in asked])
    wanted = np.array([row["phase"] for row in known])
    x, new = (
        np.array([features(row) for row in rows], dtype=np.float32) for rows in (known, asked)
    )
    # which runs a tree is fitted on, and which it judges
    folds: list[tuple[Any, Any]] = [(slice(None), slice(None))]
    if cells is not None:
        places = np.array(_places(cells))
        folds = [(places != place, places == place) for place in range(max(places) + 1)]
    found: list[Names] = []
    # thousands of fits of a few rows: without this, checks take most of the time
    with config_context(assume_finite=True, skip_parameter_validation=True):
        for depth, leaf in itertools.product(_DEPTHS, _LEAVES):
            tree = DecisionTreeClassifier(max_depth=depth, min_samples_leaf=leaf, random_state=0)
            answers = np.empty(len(asked), dtype=wanted.dtype)
            for fitted, judged in folds:
                weights = _balancing(wanted[fitted])
                tree.fit(x[fitted], wanted[fitted], sample_weight=weights, check_input=False)
                answers[judged] = tree.predict(new[judged], check_input=False)
            found.append(answers)
    return max(found, key=lambda answers: _balanced(truth, answers))


def _balancing(names: Names) -> Floats:
    """Weights with which every name counts the same."""
    _, which, counts = np.unique(names, return_inverse=True, return_counts=True)
    weights: Floats = len(names) / (len(counts) * counts[which])
    return weights


def _numbers(row: Row, names: Iterable[str]) -> list[float]:
    """Some numbers of a run, -1 for one that it lacks."""
    return [-1.0 if (value := value_of(row, name)) is None else value for name in names]


def _ranks(row: Row) -> list[float]:
    rank, at_init = _numbers(row, ("stable_rank", "stable_rank_at_init"))
    return [rank, rank / max(at_init, 1e-9)]


def _settings(row: Row) -> list[float]:
    kinds = float(row["normalization"] == "pre"), float(row["task"] == "neurips")
    return [*_numbers(row, _GAMMAS), *_numbers(row, _SHAPE), *kinds]


_FITTED = {
    "position": "position_share",
    "order": "order_first",
    "order_exception": "order_logits",
    "rule": "virtual_rule",
    "alike": "virtual_alike",
}  # thresholds and their numbers
_GAMMAS = ("gamma", "gamma_qk", "weight_decay")
_SHAPE = ("n_layers", "d_model", "n_sequences", "lr")
# Rules that know less than the verdict: what they know, and what they see of a run.
_RULES: Mapping[str, tuple[str, Callable[[Row], list[float]]]] = {
    "stable-rank": ("stable rank of W_Q L0, and its share of the initial one", _ranks),
    "gamma-and-decay": ("gamma and weight decay", lambda row: _numbers(row, _GAMMAS)),
    "settings": ("all settings", _settings),
}


def _balanced(truth: Names, given: Names) -> float:
    return float(np.mean([(given[truth == phase] == phase).mean() for phase in np.unique(truth)]))


def _places(cells: Cells) -> list[int]:
    """The number of each run's cell, in the order in which cells appear."""
    order = {key: place for place, key in enumerate(dict.fromkeys(cells))}
    return [order[key] for key in cells]


def _interval(truth: Names, given: Names, cells: Cells) -> tuple[float, float]:
    """95 % of balanced accuracy, each phase's share drawn from Jeffreys' posterior of its cells."""
    generator = np.random.default_rng(0)
    shares = []
    for phase in np.unique(truth):
        mine = truth == phase
        n = len(set(itertools.compress(cells, mine)))
        right = n * float((given[mine] == phase).mean())
        shares.append(generator.beta(right + 0.5, n - right + 0.5, _DRAWN))
    low, high = np.quantile(np.mean(shares, axis=0), [0.025, 0.975])
    return float(low), float(high)


def _bootstrapped(truth: Names, given: Names, cells: Cells) -> Floats:
    """Balanced accuracy in samples of cells, over the phases that are in each: [sample]."""
    places = _places(cells)
    n_cells = max(places) + 1
    drawn = np.random.default_rng(0).integers(n_cells, size=(_DRAWN, n_cells))
    times = np.stack([np.bincount(sample, minlength=n_cells) for sample in drawn])
    runs = np.zeros((n_cells, len(np.unique(truth))))
    right = np.zeros_like(runs)
    for column, phase in enumerate(np.unique(truth)):
        np.add.at(runs[:, column], places, truth == phase)
        np.add.at(right[:, column], places, (truth == phase) & (given == phase))
    n = times @ runs
    shares = np.divide(times @ right, n, out=np.full_like(n, np.nan), where=n > 0)
    found: Floats = np.nanmean(shares, axis=1)
    return found


def _mixed(truth: Names, cells: Cells) -> npt.NDArray[np.bool_]:
    """The runs in mixed cells."""
    phases = defaultdict(set)
    for key, phase in zip(cells, truth, strict=True):
        phases[key].add(phase)
    return np.array([len(phases[key]) > 1 for key in cells])


def _counted(cells: Cells, part: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """The cells and the runs of a part of the runs."""
    return len(set(itertools.compress(cells, part))), int(part.sum())


def _within_mixed(
    truth: Names, given: Names, cells: Cells, mixed: npt.NDArray[np.bool_]
) -> float | None:
    """One-sided p of as many right verdicts, which change places within each mixed cell."""
    if not mixed.any():
        return None
    generator = np.random.default_rng(0)
    drawn = np.zeros(_DRAWN)
    for key in dict.fromkeys(itertools.compress(cells, mixed)):
        mine = np.array([own == key for own in cells])
        moved = generator.permuted(np.tile(given[mine], (_DRAWN, 1)), axis=1)
        drawn += (moved == truth[mine]).sum(1)
    return permutation_p(float((truth == given)[mixed].sum()), drawn, exact=False)


def _disagreement(row: Row) -> Disagreement:
    found = verdict(fingerprint_of(row))
    settings = (
        f"gamma {row['gamma']:g}, wd {row['weight_decay']:g}, {row['n_layers']} layers of "
        f"{row['d_model']}, {row['normalization']}-LN, {row['task']}"
    )
    titles = {"id_accuracy": "ID", "ood_accuracy": "OOD", "symmetric_accuracy": "symmetric",
              "commutativity": "commut."}  # fmt: skip
    behaviour = ", ".join(
        f"{title} {row[name]:.2f}" for name, title in titles.items() if row.get(name) is not None
    )
    about = (found.phase, found.reason, behaviour, _explanation(row))
    return Disagreement(row["run_id"], settings, row["phase"], *about)


def _explanation(row: Row) -> str:
    """Accuracies near a line between phases, and thresholds that give the phase if they move.

    A threshold moves by a quarter, at most by 0.1.
    """
    ood, symmetric = row.get("ood_accuracy"), row.get("symmetric_accuracy")
    lines = {"OOD": (ood, PAPER.ood)}
    if symmetric is not None:
        lines["symmetric"] = (symmetric, PAPER.symmetric)
    elif ood is not None and ood < PAPER.ood:
        lines["commut."] = (row.get("commutativity"), PAPER.commutativity)
    near = [
        f"{name} {value:.2f} is near {line:g}"
        for name, (value, line) in lines.items()
        if value is not None and abs(value - line) < _NEAR
    ]
    numbers = fingerprint_of(row)
    for name, line in vars(THRESHOLDS).items():
        for way in (-1, 1):
            moved = line + way * min(line / 4, _NEAR)
            if name == "alike" and moved > 1:  # of a cosine: nothing could be symmetric
                continue
            if verdict(numbers, replace(THRESHOLDS, **{name: moved})).phase == row["phase"]:
                near.append(f"{row['phase']} if the threshold of {name} were {moved:.3g}")
    return "; ".join(near) or "none known"
