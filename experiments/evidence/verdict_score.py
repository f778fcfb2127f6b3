"""How good the verdict from the mechanism is, on runs that its lines were not fitted on.

Lines and bands are fitted on random settings: on the studies ``settings`` and ``settings-judging``,
and on one half of the runs of :mod:`evidence.verdict`. The other half judges, once. Each run has
settings of its own. Beside the verdict stand rules that know less: decision trees, fitted on the
same runs and again on the judged ones, each without the run that it names; each has the size that
is best for it in hindsight, which favours them. Runs that did not converge have no phase to tell
and are left out.

The older tables lack the memory of the place, whose line is the papers' own. Their share of virtual
anchors with the rule counts the sum -6, which the exception of the NeurIPS task adds.
:data:`WITHOUT_SIX` is what is left of that number without it, the median of nine other models.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn import config_context
from sklearn.tree import DecisionTreeClassifier

from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.schema import from_dict
from anchor_interp._util.statistics import Floats
from anchor_interp.analysis.fingerprint_numbers import NUMBERS, Fingerprint
from anchor_interp.analysis.verdict import LINES, Line, Verdict, leaning, verdict
from anchor_interp.analysis.verdict import VERDICT_NUMBERS as VERDICT
from anchor_interp.behaviour.phase import NEAR, PAPER, Phase
from claim_effects import Row, Rows, value_of

PHASES: tuple[Phase, ...] = ("memorizing", "composite", "symmetric", "inferential")
GIVEN = (*PHASES, "mixture", "unclear")
WITHOUT_SIX = 0.89
_DRAWN = 2_000
_DEPTHS, _LEAVES = (2, 3, 4, 6), (1, 3)  # sizes of the decision trees that are tried
_FITTED = ("route_symmetric", "route_gathered", "virtual_rule")
_WINDOW, _RIGHT = 10, 0.85  # a band ends where of ten runs beyond it so many are named rightly

Names = npt.NDArray[np.str_]
Lines = Mapping[str, Line]
Values = Mapping[str, float | None]


@dataclass(frozen=True)
class RuleScore:
    """How well one rule names phases; intervals hold 95 %."""

    name: str
    rule: str  # what it knows
    n: int  # runs that it names
    accuracy: float  # balanced accuracy: the mean over phases of the share named rightly
    low: float
    high: float
    far: float  # the same without runs whose behaviour is near a line between phases
    without: float  # the same without memorizing runs, which the papers' own line names
    behind: float | None = None  # how much balanced accuracy it lacks to the verdict on all runs
    behind_low: float | None = None


@dataclass(frozen=True)
class Disagreement:
    """A run that the verdict names wrongly."""

    run_id: str
    settings: str
    phase: str
    verdict: str
    reason: str  # the evidence of the verdict
    behaviour: str  # the accuracies that decided the phase
    near: bool  # whether one of them is near a line


@dataclass(frozen=True)
class VerdictScore:
    """The verdict on judged runs."""

    n: Mapping[str, int]  # runs of every phase
    left_out: int  # runs without one of these phases
    coverage: float  # the share of runs that it names
    confusion: Mapping[str, Mapping[str, int]]  # for every phase, how often each verdict was given
    rules: tuple[RuleScore, ...]  # the verdict, its leaning on all runs, then rules that know less
    mixtures: tuple[float, ...]  # OOD accuracies of the runs that are called mixtures
    disagreements: tuple[Disagreement, ...]


def fingerprint_of(row: Row) -> Fingerprint:
    """The fingerprint that a row of a table holds."""
    step = row.get("steps")
    about = {"run_id": row["run_id"], "step": None if step is None else int(step), "seed": 0}
    try:
        return from_dict(Fingerprint, about | {name: row.get(name) for name in NUMBERS})
    except ConfigError as error:
        raise StoreError(f"a table's row of the run {row['run_id']} is damaged: {error}") from error


def can_be_judged(row: Row) -> bool:
    """Whether a row has a phase that a verdict names, and a fingerprint of today's numbers."""
    return row["status"] == "done" and row["phase"] in PHASES and row.get("memory") is not None


def fitting_rows(older: Rows, runs: Rows) -> list[Row]:
    """The rows that lines are fitted on: runs with a phase that the memory of the place leaves.

    ``older`` are those of ``settings`` and ``settings-judging``, ``runs`` those of the half that
    fits.
    """
    rows: list[Row] = []
    for row in older:
        if row["phase"] in PHASES[1:] and row.get("exceptions") is not None:
            rule = row["virtual_rule"] * (WITHOUT_SIX if row["exceptions"] else 1)
            rows.append(row | {"virtual_rule": rule, "memory": 0.0})
    return rows + [row for row in runs if can_be_judged(row) and row["phase"] != "memorizing"]


def fit_lines(rows: Rows) -> Lines:
    """The lines with the best balanced accuracy of the verdict's leaning, and their bands.

    Each line is moved in turn, twice, to the middle of the widest range that is as good as any. Its
    band ends on both sides where, of the next ten runs whose leaning hangs on the number, 85 % are
    named rightly.
    """
    truth = _phases(rows)
    numbers = [{number.name: row.get(number.name) for number in VERDICT} for row in rows]
    found = dict(LINES)

    def score(name: str, at: float) -> float:
        return _balanced(truth, _leanings(numbers, {**found, name: Line(at, at, at)}))

    for name in (*_FITTED, *_FITTED):
        values = sorted({each[name] or 0.0 for each in numbers})
        if len(values) < 2:  # nothing to choose between
            continue
        middles = [(low + high) / 2 for low, high in itertools.pairwise(values)]
        scores = [score(name, middle) for middle in middles]
        ranges, start = [], 0
        for best, group in itertools.groupby(each == max(scores) for each in scores):
            end = start + len(list(group))
            ranges += [(values[start], values[end])] if best else []
            start = end
        low, high = max(ranges, key=lambda ends: ends[1] - ends[0])
        found[name] = Line(*(3 * [(low + high) / 2]))
    return {name: _band(name, line.line, numbers, truth, found) if name in _FITTED else line
            for name, line in found.items()}  # fmt: skip


def _leanings(numbers: Sequence[Values], lines: Lines) -> Names:
    return np.array([leaning(each, lines) for each in numbers])


def _band(name: str, line: float, numbers: Sequence[Values], truth: Names, lines: Lines) -> Line:
    """A line with its band."""
    moved = {side: {**lines, name: Line(at, at, at)} for side, at in (("high", -9.0), ("low", 9.0))}
    high, low = (_leanings(numbers, moved[side]) for side in ("high", "low"))
    values = np.array([each[name] or 0.0 for each in numbers])
    hang = (high != low) & ((truth == high) | (truth == low))
    ends = []
    for side, names in ((values >= line, high), (values < line, low)):
        mine = np.flatnonzero(hang & side)
        mine = mine[np.argsort(np.abs(values[mine] - line), kind="stable")]
        right, weights = (names == truth)[mine], _balancing(truth)[mine]
        shares = (np.average(right[i : i + _WINDOW], weights=weights[i : i + _WINDOW])
                  for i in range(len(mine)))  # fmt: skip
        starts = (i for i, share in enumerate(shares) if share >= _RIGHT)
        first = next(starts, len(mine) - 1)
        ends.append(line if first <= 0 else float(values[mine[first]]))
    return Line(round(ends[1], 3), round(line, 3), round(ends[0], 3))


def judge_verdict(
    rows: Rows, fitted_on: Rows, apart: Mapping[str, Rows] | None = None
) -> VerdictScore:
    """The verdict on some runs, beside rules fitted on others, and on other kinds of models.

    The runs to judge and those to fit on have two phases or more.
    """
    kept = list(filter(can_be_judged, rows))
    known = [row for row in fitted_on if row["phase"] in PHASES]
    truth = _phases(kept)
    verdicts = [verdict(fingerprint_of(row)) for row in kept]
    given = np.array([each.phase for each in verdicts])
    leans = np.array([each.leaning for each in verdicts])
    scores = [
        _where_named("verdict", "the verdict, where it names a phase", kept, given),
        _scored("leaning", "what it leans to, on all runs", kept, leans),
    ]
    base = _bootstrapped(truth, leans)
    for name, (title, features) in _RULES.items():
        for end, where, answers in (
            ("", "", _best_tree(features, known, kept)),
            ("-here", ", fitted here", _best_tree(features, kept, kept, alone=True)),
        ):
            one = _scored(name + end, title + where, kept, answers)
            behind_low = float(np.quantile(base - _bootstrapped(truth, answers), 0.025))
            behind = scores[1].accuracy - one.accuracy
            scores.append(replace(one, behind=behind, behind_low=behind_low))
    for kind, others in (apart or {}).items():
        judged, named = _given(others)
        title = f"the verdict on {len(judged)} runs of {kind}, where it names a phase"
        scores.append(_where_named(kind, title, judged, named))
    mixed = [row["ood_accuracy"] for row, v in zip(kept, given, strict=True) if v == "mixture"]
    wrong = [_disagreement(row, found) for row, found in zip(kept, verdicts, strict=True)
             if found.phase in PHASES and found.phase != row["phase"]]  # fmt: skip
    counts = {one: Counter(given[truth == one].tolist()) for one in PHASES}
    return VerdictScore(
        n={phase: counts[phase].total() for phase in PHASES},
        left_out=len(rows) - len(kept),
        coverage=float(np.isin(given, PHASES).mean()),
        confusion={one: {two: counts[one][two] for two in GIVEN} for one in PHASES},
        rules=tuple(scores), mixtures=tuple(sorted(mixed)), disagreements=tuple(wrong),
    )  # fmt: skip


def coverage_curve(rows: Rows, widths: Sequence[float]) -> list[tuple[float, RuleScore]]:
    """Coverage, and the score there, if all bands and intervals are so many times as wide."""
    kept, points = list(filter(can_be_judged, rows)), []
    margins = [name for name in NUMBERS if name.endswith("_margin")]
    for width in widths:
        lines = {
            name: Line(*(at.line + width * (end - at.line) for end in vars(at).values()))
            for name, at in LINES.items()
        }
        wide = [row | {n: width * row[n] for n in margins if row.get(n)} for row in kept]
        given = np.array([verdict(fingerprint_of(row), lines).phase for row in wide])
        score = _where_named(f"{width:g}", "", kept, given)
        points.append((score.n / len(kept), score))
    return points


def named_by(rows: Rows) -> dict[str, Counter[str]]:
    """How often each verdict is given, for every phase that the runs have."""
    kept, given = _given(rows)
    truth = _phases(kept)
    return {phase: Counter(given[truth == phase].tolist()) for phase in PHASES if phase in truth}


def judged_shapes(kinds: Mapping[str, Rows]) -> list[dict[str, Any]]:
    """The verdict on kinds of runs that did not fit it, with their shapes."""
    found: list[dict[str, Any]] = []
    for kind, rows in kinds.items():
        kept, given = _given(rows)
        score = _where_named(kind, "", kept, given)
        shapes = sorted({(row["n_layers"], row["n_heads"], row["d_model"]) for row in kept})
        about = {"kind": kind, "shapes": shapes, "runs": len(kept), "named": score.n}
        found.append(about | {"right": round(score.accuracy, 4)})
    return found


def _given(rows: Rows) -> tuple[list[Row], Names]:
    """The runs that can be judged, and their verdicts."""
    kept = list(filter(can_be_judged, rows))
    return kept, np.array([verdict(fingerprint_of(row)).phase for row in kept], np.str_)


def _where_named(name: str, title: str, rows: Rows, given: Names) -> RuleScore:
    named = np.isin(given, PHASES)
    return _scored(name, title, [*itertools.compress(rows, named)], given[named])


def _scored(name: str, title: str, rows: Rows, given: Names) -> RuleScore:
    truth, near = _phases(rows), np.array([*map(is_near, rows)], bool)
    exact = (_balanced(truth, given), *_interval(truth, given))
    others = truth != PHASES[0]
    parts = (_balanced(truth[kept], given[kept]) for kept in (~near, others))
    return RuleScore(name, title, len(truth), *exact, *parts)


def _phases(rows: Rows) -> Names:
    return np.array([row["phase"] for row in rows], np.str_)


def is_near(row: Row) -> bool:
    """Whether an accuracy that the phase hangs on is near its line."""
    lines = {"id_accuracy": PAPER.id, "ood_accuracy": PAPER.ood}
    if row["ood_accuracy"] is not None and row["ood_accuracy"] < PAPER.ood:
        if row.get("symmetric_accuracy") is not None:
            lines["symmetric_accuracy"] = PAPER.symmetric
        else:
            lines["commutativity"] = PAPER.commutativity
    values = ((row.get(name), line) for name, line in lines.items())
    return any(value is not None and abs(value - line) < NEAR for value, line in values)


def _best_tree(
    features: Callable[[Row], list[float]], known: Rows, asked: Rows, *, alone: bool = False
) -> Names:
    """What decision trees fitted on ``known`` say of ``asked``, of the size that does best there.

    With ``alone`` the runs are the same, and a tree fitted on all others names each.
    """
    truth, wanted = _phases(asked), _phases(known)
    x, new = (np.array([*map(features, rows)], dtype=np.float32) for rows in (known, asked))
    # which runs a tree is fitted on, and which it judges
    each, whole = np.arange(len(asked)), slice(None)
    folds: list[Any] = [(each != n, each == n) for n in each] if alone else [(whole, whole)]
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


_GAMMAS = ("gamma", "gamma_qk", "weight_decay")
_SHAPE = ("n_layers", "d_model", "n_sequences", "lr")
# Rules that know less than the verdict: what they know, and what they see of a run.
_RULES: Mapping[str, tuple[str, Callable[[Row], list[float]]]] = {
    "stable-rank": ("stable rank of W_Q L0, and its share of the initial one", _ranks),
    "gamma-and-decay": ("gamma and weight decay", lambda row: _numbers(row, _GAMMAS)),
    "settings": ("all settings", _settings),
}


def _balanced(truth: Names, given: Names) -> float:
    shares = [(given[truth == phase] == phase).mean() for phase in np.unique(truth)]
    return float(np.mean(shares)) if shares else math.nan


def _interval(truth: Names, given: Names) -> tuple[float, float]:
    """95 % of balanced accuracy, each phase's share drawn from Jeffreys' posterior."""
    generator = np.random.default_rng(0)
    shares = []
    for phase in np.unique(truth):
        right = (given == phase)[truth == phase]
        shares.append(generator.beta(right.sum() + 0.5, (~right).sum() + 0.5, _DRAWN))
    low, high = np.quantile(np.mean(shares, axis=0), [0.025, 0.975])
    return float(low), float(high)


def _bootstrapped(truth: Names, given: Names) -> Floats:
    """Balanced accuracy in samples of the runs, over the phases that are in each: [sample]."""
    drawn = np.random.default_rng(0).integers(len(truth), size=(_DRAWN, len(truth)))
    return np.array([_balanced(truth[sample], given[sample]) for sample in drawn])


def _disagreement(row: Row, found: Verdict) -> Disagreement:
    shape = f"{row['n_layers']} layers of {row['d_model']}, {row['normalization']}-LN"
    settings = f"gamma {row['gamma']:g}, wd {row['weight_decay']:g}, {shape}, {row['task']}"
    titles = {"id_accuracy": "ID", "ood_accuracy": "OOD", "symmetric_accuracy": "symmetric",
              "commutativity": "commut."}  # fmt: skip
    told = [f"{title} {row[n]:.2f}" for n, title in titles.items() if row.get(n) is not None]
    about = (found.phase, found.reason, ", ".join(told), is_near(row))
    return Disagreement(row["run_id"], settings, row["phase"], *about)
