"""Rows of tables, one a run: which runs they are, and the numbers that claims and figures take."""

import math
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from anchor_interp.tasks.anchor import Pair

Row = dict[str, Any]  # one run: its columns by name
Rows = Sequence[Row]
Test = Callable[[Row], bool]

# Columns that tell cells apart.
SETTINGS = (
    "task", "gamma", "gamma_qk", "weight_decay", "n_layers", "d_model", "normalization", "lr",
    "steps", "n_sequences",
)  # fmt: skip
# Seeds of ``decay`` and ``depth`` at ``tiny`` that were known when the claims were written.
KNOWN_SEEDS = frozenset((300, 301, 302))
# Phases as the complexity-control paper counts them (section IV).
_NUMBERED = {"memorizing": 1, "composite": 2, "symmetric": 2, "inferential": 3}


def phase(*names: str) -> Test:
    """Runs of these phases."""
    return lambda row: row["phase"] in names


def having(**values: Any) -> Test:
    """Runs with these settings."""
    return lambda row: all(row[name] == value for name, value in values.items())


def every(_: Row) -> bool:
    """Every run."""
    return True


def never(_: Row) -> bool:
    """No run."""
    return False


def cell(row: Row) -> tuple[Any, ...]:
    """All settings of a run but its seed."""
    return columns_of(row, SETTINGS)


def columns_of(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    """The values of some columns."""
    return tuple(row.get(name) for name in names)


def steps_to(row: Row, column: str) -> float | None:
    """The steps to a training loss, or all steps of a run that never came there."""
    if row.get("final_loss") is None:  # not measured
        return None
    return float(row.get(column) or row["steps"])


def log_steps(column: str) -> Callable[[Row], float | None]:
    """Natural logarithm of :func:`steps_to`."""
    return lambda row: None if (steps := steps_to(row, column)) is None else math.log(steps)


def never_came(column: str) -> Test:
    """Runs that never came to a training loss."""
    return lambda row: row.get(column) is None


def log_final_loss(row: Row) -> float | None:
    """Natural logarithm of the training loss at the end."""
    return math.log(row["final_loss"]) if row.get("final_loss") else None


def rank_share(row: Row) -> float | None:
    """Stable rank of W_Q(1) over its value at initialisation."""
    if row["stable_rank"] is None or not row["stable_rank_at_init"]:
        return None
    return float(row["stable_rank"] / row["stable_rank_at_init"])


def of_three_and_four(pair: Pair) -> bool:
    """Whether a pair is made of the anchors 3 and 4, whose groups ``pairs`` breaks."""
    return set(pair) <= {3, 4}


def pair_steps(row: Row) -> dict[Pair, float]:
    """The step at which each ordered pair was learned, as far as the row tells."""
    found = {re.fullmatch(r"late_pair_(\d)(\d)", name): value for name, value in row.items()}
    return {(int(m[1]), int(m[2])): float(v) for m, v in found.items() if m and v is not None}


def slowed(row: Row) -> float | None:
    """Log ratio of the steps that the pairs of 3 and 4 take to those of the others."""
    logs = [(of_three_and_four(pair), math.log(n)) for pair, n in pair_steps(row).items()]
    slow, rest = ([log for own, log in logs if own == wanted] for wanted in (True, False))
    return sum(slow) / len(slow) - sum(rest) / len(rest) if slow and rest else None


def moved(row: Row) -> float | None:
    """How much more the steps 2 and 5 stand out of the embedding than 3 and 4, in z."""
    zs = [float(z) for step in (2, 5, 3, 4) if (z := row.get(f"step_z_{step}")) is not None]
    return min(zs[:2]) - min(zs[2:]) if len(zs) == 4 else None


def initialised_small(row: Row) -> bool:
    """Whether a run starts from small weights, which a large gamma gives."""
    return bool(row["gamma"] > 0.5)


def initialised_large(row: Row) -> bool:
    """Whether a run starts from large weights."""
    return not initialised_small(row)


def fresh(rows: Rows) -> Rows:
    """The runs whose seeds were not known when the claims were written."""
    return [row for row in rows if row["seed"] not in KNOWN_SEEDS]


def with_side(rows: Rows) -> Rows:
    """The rows with the ``side`` of the middle gamma on which they stand: -1, 0 or 1."""
    middle = statistics.median(sorted({row["gamma"] for row in rows}))
    return [row | {"side": (row["gamma"] > middle) - (row["gamma"] < middle)} for row in rows]


def with_end(rows: Rows) -> Rows:
    """The rows with the ``end`` of the gammas at which they stand: smallest -1, largest 1."""
    gammas = [row["gamma"] for row in rows]
    low, high = min(gammas), max(gammas)
    return [row | {"end": (row["gamma"] == high) - (row["gamma"] == low)} for row in rows]


def with_numbered_phase(rows: Rows) -> Rows:
    """The rows of phases 1 to 3, with the phase's number."""
    return [row | {"phase": _NUMBERED[row["phase"]]} for row in rows if row["phase"] in _NUMBERED]
