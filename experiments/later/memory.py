"""Do small weights learn a reasoning part before a memory part (ICML 2025, reasoning bias)?

Training data have the papers' four anchors, whose pairs follow the rule, and four memory anchors,
each of whose pairs has an answer of its own, drawn at random, for every key. Both parts have as
many sequences.
"""

import itertools
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp import AnchorTask
from anchor_interp.tasks.functions import Anchor, Override, Pair, Table
from anchor_interp.tasks.rules import PAPER_ANCHORS
from claim_effects import Mean, Rise, Row, equal, grouped, number_of, values_of
from claims import registered
from common import Panels
from drawing import strips
from figure import main
from studies import Data, Grid, Study, override, preset

MEMORY = (5, 6, 7, 8)  # tokens of the memory anchors
SMALL, LARGE = (0.75, 0.9), (0.3, 0.45)


def two_parts(seed: int) -> AnchorTask:
    """Reasoning pairs follow the rule, memory pairs a table of each; no pair has one of both."""
    plain = AnchorTask()
    tokens = [anchor.token for anchor in PAPER_ANCHORS]
    generator = np.random.default_rng(seed)

    def table() -> Table:
        drawn = generator.integers(plain.key_min, plain.key_max + 1, len(plain.keys))
        return Table(plain.key_min, tuple(drawn.tolist()))

    memory: list[Pair] = [*itertools.product(MEMORY, MEMORY)]
    mixed: list[Pair] = [*itertools.product(tokens, MEMORY), *itertools.product(MEMORY, tokens)]
    return AnchorTask(
        anchors=PAPER_ANCHORS + tuple(map(Anchor, MEMORY)),
        overrides=tuple(Override(pair, table()) for pair in memory), unseen=tuple(mixed),
    )  # fmt: skip


def _memory(seeds: range, gammas: tuple[float, ...]) -> list[Grid]:
    start = preset("tiny", steps=4_000, lr_end=1e-3, warmup=200 / 4_000)
    start = override(start, eval_every=1_000, checkpoint_every=100)
    return [Grid(override(start, task=two_parts(seed)), {"gamma": gammas}, seeds=(seed,))
            for seed in seeds]  # fmt: skip


RUNS = {
    "memory": Study("a reasoning and a memory part", lambda: _memory(
        range(1110, 1115), (*LARGE, 0.6, *SMALL)), ("parts",)),
    "memory-again": Study("a reasoning and a memory part, small weights", lambda: _memory(
        range(1170, 1178), SMALL), ("parts",)),
}  # fmt: skip


def lead(row: Row) -> float | None:
    """Log ratio of the steps at which memory and reasoning are half right."""
    if not row.get("reasoning_step"):
        return None
    return math.log(row["memory_step"] / row["reasoning_step"])


def _apart(row: Row) -> float | None:
    value, embedding = row.get("value_apart_step"), row.get("embedding_apart_step")
    return math.log(value / embedding) if value and embedding else None


REASONING_FIRST = 0.4  # the log ratio from which reasoning counts as earlier
CLAIMS = [
    registered("memory-order", "smaller weights: reasoning earlier, beside memory",
               Rise(lead, "gamma", runs=("memory",))),
    registered("memory-small-again", "small weights: reasoning before memory",
               Mean(lead, equal(gamma=SMALL), runs=("memory-again",)), name="memory-small"),
    registered("memory-large", "large weights: reasoning not before memory",
               Mean(lambda row: None if (value := lead(row)) is None else REASONING_FIRST - value,
                    equal(gamma=LARGE), is_margin=True, runs=("memory",))),
    registered("memory-embedding", "the embedding tells kinds apart before attention",
               Mean(_apart, runs=("memory",))),
]  # fmt: skip


def draw(data: Data) -> Panels:
    """Steps at which both parts are half right, and the log ratio of either pair of steps."""
    by_gamma = grouped(data.rows("memory", "memory-again"), ("gamma",))
    steps, bounds = {}, {}
    for (gamma,), rows in by_gamma.items():
        for part in ("reasoning", "memory"):
            name = f"{part}\ngamma {gamma:g}"
            steps[name] = values_of(rows, f"{part}_step")
            bounds[name] = [not number_of(row, f"{part}_half") for row in rows]
    first, second = (
        strips({f"gamma\n{gamma:g}": values_of(rows, of) for (gamma,), rows in by_gamma.items()},
               "log ratio", reference=0) for of in (lead, _apart)
    )  # fmt: skip
    return [
        [("(A) steps until half right", strips(steps, "steps", hollow=bounds))],
        [("(B) ln(memory / reasoning)", first), ("(C) ln(attention / embedding)", second)],
    ]


if __name__ == "__main__":
    raise SystemExit(main(__file__))
