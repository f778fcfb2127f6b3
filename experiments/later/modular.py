"""Does scheduled weight decay help on modular addition (arXiv 2605.04396)?

The paper says that it does not: a tuned constant decay does as well. Here a transformer adds two
numbers modulo 59; training has half of all pairs, and the others are asked afterwards. The constant
decay and the decay of a window are tuned apart, on runs that judge nothing.
"""

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import anchor_interp as ai
from anchor_interp import RunConfig
from anchor_interp.realistic.finite_sets import drawn_rows, finite_splits
from anchor_interp.tasks.functions import Ints
from anchor_interp.tasks.hashing import random_bits
from claim_effects import Row, among, values_of
from claims import registered
from common import Panels
from complexity_control import CONTROL
from drawing import strips
from figure import main
from later.windows import LITTLE, LR, QUARTERS, STEPS, WARMUP, NotWorse, quarter, window
from studies import Data, Grid, Study, override

CONSTANT, MUCH, BEST_QUARTER = 1.0, 3.0, 1  # tuned on runs of seed 9101
SEEDS = tuple(range(1140, 1148))


@dataclass(frozen=True)
class ModularAddition(ai.Task):
    """Add two numbers modulo a third; tested on the half of the pairs that training leaves out."""

    kind: Literal["modular-addition"] = "modular-addition"
    """The name of this task in files."""
    modulus: int = 59
    """How many numbers there are."""

    length = 3
    answers_last = True

    @property
    def words(self) -> tuple[str, ...]:
        """Every number, and the sign of equality."""
        return (*map(str, range(self.modulus)), "=")

    @property
    def splits(self) -> tuple[ai.Split, ...]:
        """Half of the pairs each."""
        return finite_splits(_halves(self.modulus))

    def examples(self, split: str, n: int, *, seed: int) -> ai.Dataset:
        """N sums: the whole set in random order, then again in another order."""
        rows = drawn_rows(_halves(self.modulus), split, n, seed=seed, stream="modular")
        a, b = np.divmod(rows, self.modulus)
        tokens = np.stack([a, b, np.full_like(a, self.modulus), (a + b) % self.modulus], 1)
        mask = np.zeros(tokens.shape, bool)
        mask[:, -1] = True
        return ai.Dataset(tokens.astype(np.int32), mask, np.full(n, 4))


@cache
def _halves(modulus: int) -> dict[str, Ints]:
    """The pairs of each split, (a, b) as a * modulus + b."""
    order = random_bits(modulus**2, seed=0, stream="modular/split").argsort()
    half = len(order) // 2
    return {"train": order[:half], "id": order[half:], "ood": order[:0]}


def _start() -> RunConfig:
    task = ModularAddition()
    model = {**vars(CONTROL.model), "d_vocab": task.n_tokens, "n_ctx": task.length}
    train = ai.TrainConfig(
        n_sequences=1_740, batch_size=435, steps=STEPS, lr=LR, lr_end=LR, warmup=WARMUP / STEPS,
        weight_decay=LITTLE, eval_every=250, checkpoint_every=STEPS,
    )  # fmt: skip
    return RunConfig(task, ai.ModelConfig(**model), ai.InitConfig(gamma=0.5), train)


def arms() -> dict[str, RunConfig]:
    """What trains at every seed."""
    start = _start()
    found = {f"constant {decay:g}": override(start, weight_decay=decay)
             for decay in (LITTLE, CONSTANT, MUCH)}  # fmt: skip
    return found | {f"quarter {n + 1}": window(*QUARTERS[n : n + 2], start=start, much=MUCH)
                    for n in range(4)}  # fmt: skip


def arm(row: Row) -> str:
    """The arm of a run."""
    return quarter(row) or f"constant {row['weight_decay']:g}"


def _not_worse(row: Row) -> float | None:
    accuracy: float | None = row["id_accuracy"]
    return accuracy if accuracy is None or quarter(row) else accuracy + 0.1


RUNS = {
    "modular": Study("constant and scheduled decay on modular addition",
                     lambda: [Grid(start, seeds=SEEDS) for start in arms().values()])
}  # fmt: skip
CLAIMS = [
    registered("modular-constant", "modular addition: constant decay does as well",
               NotWorse(_not_worse, among(arm, f"constant {CONSTANT:g}"),
                        among(arm, f"quarter {BEST_QUARTER}"), ("weight_decay",),
                        runs=("modular",)), note="0.1 is added"),
]  # fmt: skip


def draw(data: Data) -> Panels:
    """Accuracy on pairs that training leaves out, by arm."""
    rows = data.rows("modular")
    found = {name.replace(" ", "\n"): values_of(filter(among(arm, name), rows), "id_accuracy")
             for name in arms()}  # fmt: skip
    drawn = strips(found, "accuracy", reference=0.5, shares=True)
    return [[("pairs that training leaves out", drawn)]]


if __name__ == "__main__":
    raise SystemExit(main(__file__))
