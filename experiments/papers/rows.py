"""Rows of tables, one a run: which runs they are, and the numbers that claims and figures take."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anchor_interp._util.errors import StoreError
from anchor_interp._util.schema import shown
from anchor_interp.tasks.functions import Pair
from detection import Detection, detection

Row = dict[str, Any]  # one run: its columns by name
Rows = Sequence[Row]
Test = Callable[[Row], bool]

# Columns that tell cells apart.
SETTINGS = (
    "task", "gamma", "gamma_qk", "weight_decay", "n_layers", "d_model", "normalization", "lr",
    "steps", "n_sequences",
)  # fmt: skip
# Seeds of ``decay`` and ``depth`` at ``tiny`` whose runs were known when the claims were written.
KNOWN_SEEDS = frozenset((300, 301, 302))
# Settings whose values spread over orders of magnitude: their logarithm is what varies evenly.
_LOGARITHMIC = ("weight_decay", "lr", "steps", "n_sequences", "d_model")
# Phases as the complexity-control paper counts them (section IV).
_NUMBERED = {"memorizing": 1, "composite": 2, "symmetric": 2, "inferential": 3}
_PAIR = re.compile(r"(late|loss)_pair_(\d)(\d)")


def every(_: Row) -> bool:
    """Every run."""
    return True


def never(_: Row) -> bool:
    """No run."""
    return False


def columns_of(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    """The values of some columns."""
    return tuple(row.get(name) for name in names)


def finite(value: Any, row: Row, name: str) -> float | None:
    """A number of a run, None if it is None; anything else that is not finite is a StoreError."""
    if value is None:
        return None
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise StoreError(
            f"{name} of the run {row['run_id']} is {shown(value)}; expected a finite number; "
            "remove the run from its table to have it measured anew"
        )
    return float(value)


def number_of(row: Row, column: str) -> float | None:
    """A column as a number; None if it is empty. A missing column is a KeyError."""
    return finite(row[column], row, column)


def setting_of(row: Row, name: str) -> float:
    """A setting on the scale on which it varies evenly; gamma_qk is gamma where it is empty."""
    own = name != "gamma_qk" or row.get(name) is not None
    value = number_of(row, name if own else "gamma")
    if value is None or (name in _LOGARITHMIC and value <= 0):
        raise StoreError(
            f"{name} of the run {row['run_id']} is {value}; expected a number"
            f"{' above 0' if name in _LOGARITHMIC else ''}; leave the run out of its table"
        )
    return math.log(value) if name in _LOGARITHMIC else value


def never_came(row: Row) -> bool:
    """Whether a run never came to a training loss of 0.05."""
    return row.get("steps_to_loss") is None


def steps_to_loss(row: Row) -> float | None:
    """The steps to a training loss of 0.05, or all steps of a run that never came there."""
    if row.get("final_loss") is None:  # not measured
        return None
    return number_of(row, "steps" if never_came(row) else "steps_to_loss")


def log_steps(row: Row) -> float | None:
    """Natural logarithm of :func:`steps_to_loss`."""
    return None if (steps := steps_to_loss(row)) is None else math.log(steps)


def log_final_loss(row: Row) -> float | None:
    """Natural logarithm of the training loss at the end."""
    loss = number_of(row, "final_loss") if row.get("final_loss") else None
    return None if loss is None else math.log(loss)


def alike_ratio(row: Row) -> float:
    """By how much the log ratio of steps stays within a factor of 1.2."""
    return math.log(1.2) - abs(float(row["ratio"]))


def rank_share(row: Row) -> float | None:
    """Stable rank of W_Q(1) over its value at initialisation."""
    rank, at_init = number_of(row, "stable_rank"), number_of(row, "stable_rank_at_init")
    return rank / at_init if rank is not None and at_init else None


def log_rank_share(row: Row) -> float | None:
    """Natural logarithm of :func:`rank_share`."""
    return math.log(share) if (share := rank_share(row)) else None


def of_three_and_four(pair: Pair) -> bool:
    """Whether a pair is made of the anchors 3 and 4, whose groups ``pairs`` breaks."""
    return set(pair) <= {3, 4}


def pair_scores(row: Row, score: str = "late") -> dict[Pair, float]:
    """A number of each ordered pair, as far as the row tells: the step at which it was learned."""
    found = {m: number_of(row, m[0]) for m in map(_PAIR.fullmatch, row) if m and m[1] == score}
    return {(int(m[2]), int(m[3])): value for m, value in found.items() if value is not None}


def slowed(row: Row) -> float | None:
    """Log ratio of the steps that the pairs of 3 and 4 take to those of the others."""
    return _slowed(pair_scores(row))


def slowed_unequal(row: Row) -> float | None:
    """:func:`slowed` of pairs of unequal anchors alone, which have equal data."""
    return _slowed(_of_unequal(row, "late"))


def _slowed(steps: Mapping[Pair, float]) -> float | None:
    logs = [(of_three_and_four(pair), math.log(n)) for pair, n in steps.items()]
    slow, rest = ([log for own, log in logs if own == wanted] for wanted in (True, False))
    return sum(slow) / len(slow) - sum(rest) / len(rest) if slow and rest else None


def moved(row: Row) -> float | None:
    """How much more the steps 2 and 5 stand out of the embedding than 3 and 4, in z."""
    names = [f"step_z_{step}" for step in (2, 5, 3, 4)]
    zs = [z for n in names if n in row and (z := number_of(row, n)) is not None]
    return min(zs[:2]) - min(zs[2:]) if len(zs) == 4 else None


def was_known(row: Row) -> bool:
    """Whether a run was known when the claims were written: a known seed at the scale ``tiny``."""
    return row["seed"] in KNOWN_SEEDS and row.get("scale") == "tiny"


def with_end(rows: Rows) -> Rows:
    """The rows with the ``end`` of the gammas at which they stand: smallest -1, largest 1."""
    gammas = [number_of(row, "gamma") or 0.0 for row in rows]
    low, high = min(gammas, default=0.0), max(gammas, default=0.0)
    ends = [(gamma == high) - (gamma == low) for gamma in gammas]
    return [row | {"end": end} for row, end in zip(rows, ends, strict=True)]


def with_numbered_phase(rows: Rows) -> Rows:
    """The rows of phases 1 to 3, with the phase's number."""
    return [row | {"phase": _NUMBERED[row["phase"]]} for row in rows if row["phase"] in _NUMBERED]


def with_held(setting: str) -> Callable[[Rows], Rows]:
    """The rows with their design, and what is held in a grid: a setting, nothing at random."""

    def held(rows: Rows) -> Rows:
        grids = [row["study"] == "decay" for row in rows]
        return [
            row | ({"design": "grid", "held": row[setting]} if grid
                   else {"design": "random settings", "held": None})
            for row, grid in zip(rows, grids, strict=True)
        ]  # fmt: skip

    return held


def with_ratio(rows: Rows) -> Rows:
    """A row for each depth, gamma and seed: the log ratio of steps at complexity 6 and 0.

    The column of the steps is empty where one of the two never came there.
    """
    ends = [row for row in rows if row["status"] == "done" and row["complexity"] in (0, 6)]
    cell = operator.itemgetter("n_layers", "gamma", "seed")
    at = {(*cell(row), row["complexity"]): row for row in ends}
    found = []
    for one in dict.fromkeys(map(cell, ends)):
        simple, broken = at.get((*one, 0), {}), at.get((*one, 6), {})
        first, last = log_steps(simple), log_steps(broken)
        if first is not None and last is not None:
            reached = None if never_came(simple) else broken.get("steps_to_loss")
            own = {"censored": False, "steps_to_loss": reached, "ratio": last - first}
            found.append(simple | own)
    return found


def with_place(rows: Rows) -> Rows:
    """The rows with the place of their number of examples, smallest first, and of the largest."""
    sizes = sorted({row["n_sequences"] for row in rows})
    return [row | {"place": sizes.index(row["n_sequences"]),
                   "largest": row["n_sequences"] == sizes[-1]} for row in rows]  # fmt: skip


def with_branch(rows: Rows) -> Rows:
    """The rows of weight decay 1 from a third of the steps on (late), and of little throughout."""

    def branch(row: Row) -> str | None:
        if row["branch_step"] is None:
            return "none" if row["weight_decay"] < 1 else None
        late = row["branch_weight_decay"] == 1.0 and row["branch_step"] * 4 > row["steps"]
        return "late" if late else None

    return [row | {"branch": branch(row)} for row in rows]


def with_tokens(rows: Rows) -> Rows:
    """The rows with the tokens that a language model has seen in training."""
    return [row | {"tokens_seen": row["steps"] * row["batch_size"] * row["length"]} for row in rows]


def on_control(rows: Rows) -> Rows:
    """The runs on the complexity-control task."""
    return [row for row in rows if row["task"] == "complexity-control"]


def square_alone(rows: Rows) -> Rows:
    """Runs on addition without a square of operands."""
    return [row for row in rows if not row["task"].endswith("random")]


def pairs_at_random(rows: Rows) -> Rows:
    """Runs on addition without pairs drawn at random."""
    return [row for row in rows if row["task"].endswith("random")]


def log_epochs(row: Row) -> float | None:
    """Natural logarithm of the passes over the training set until its loss is at most 0.05."""
    steps = log_steps(row)
    return None if steps is None else steps + math.log(row["batch_size"] / row["n_sequences"])


def found_late(row: Row) -> float | None:
    """How well lateness finds broken pairs among those of unequal anchors, above chance.

    Innocent pairs are not made of the broken pairs' anchors alone.
    """
    areas = detection_of_unequal(row, "late")
    return None if areas is None or areas.strangers is None else areas.strangers - 0.5


def detection_of_unequal(row: Row, score: str) -> Detection | None:
    """How well a score finds broken pairs among those of unequal anchors; None without any.

    A pair of equal anchors, such as (3, 3), has half the data and is learned late for that reason.
    """
    scores = _of_unequal(row, score)
    broken = [(int(word[0]), int(word[1])) for word in (row.get("broken") or "").split()]
    broken = [pair for pair in scores if pair in broken or pair[::-1] in broken]
    return detection(np.array([*scores.values()]), [*scores], broken) if broken else None


def _of_unequal(row: Row, score: str) -> dict[Pair, float]:
    return {pair: n for pair, n in pair_scores(row, score).items() if pair[0] != pair[1]}


def matching(wanted: Mapping[str, Any]) -> Test:
    """Runs whose columns have these values, or one of a list.

    ``gamma>`` and ``gamma<`` are larger and smaller values, and ``task!`` is any other.
    """

    def holds(row: Row, name: str, value: Any) -> bool:
        there = row.get(name.rstrip("<>!"))
        if name[-1] in "<>":
            return there is not None and (there > value if name[-1] == ">" else there < value)
        if name[-1] == "!":
            return bool(there != value)
        return there in value if isinstance(value, list) else bool(there == value)

    return lambda row: all(holds(row, name, value) for name, value in wanted.items())


NUMBERS: Mapping[str, Callable[[Row], float | None]] = {
    "rank_share": rank_share,
    "log_rank_share": log_rank_share,
    "order_apart": lambda row: _from_one(row, "order_first"),
    "embedding_small": lambda row: _from_one(row, "embedding_dimension"),
    "log_steps_to_loss": log_steps,
    "log_epochs": log_epochs,
    "log_final_loss": log_final_loss,
    "slowed": slowed,
    "slowed_unequal": slowed_unequal,
    "found_late": found_late,
    "alike_ratio": alike_ratio,
    "moved": moved,
}
"""Numbers that are computed from a row's columns."""


def _from_one(row: Row, column: str) -> float | None:
    value = number_of(row, column) if column in row else None
    return None if value is None else 1 - value


PREPARED: Mapping[str, Callable[[Rows], Rows]] = {
    "numbered": with_numbered_phase,
    "ends": with_end,
    "branch": with_branch,
    "place": with_place,
    "ratio": with_ratio,
    "tokens": with_tokens,
    "on-control": on_control,
    "square": square_alone,
    "at-random": pairs_at_random,
    "held:gamma": with_held("gamma"),
    "held:weight_decay": with_held("weight_decay"),
}
"""What is done to rows before they are compared."""
