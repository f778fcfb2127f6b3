"""What did our archived questions find, on rates, arbitrary mappings and late complexity control?

``archive.csv`` has these claims with their last results; their runs stand here, so that they can be
trained again. ``rates`` is a figure of a later version of the NeurIPS paper. Runs of gamma 0.4
memorize at a weight decay of 0.01 and infer at 1.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp import AnchorTask, Override, Table
from claim_effects import Row, grouped, never_came, values_of
from common import Panels
from complexity_control import CONTROL
from complexity_control.fig8_order import noise
from drawing import strips
from figure import main
from studies import Data, Grid, Study, override

SEEDS = tuple(range(400, 405))


def arbitrary_task(seed: int) -> AnchorTask:
    """Every ordered pair maps the keys to numbers drawn at random: there is no rule to infer."""
    generator = np.random.default_rng(seed)
    task = AnchorTask()
    low, high, n = task.key_min, task.key_max, len(task.keys)
    drawn = {pair: generator.integers(low, high + 1, n).tolist() for pair in task.pairs}
    tables = {pair: Table(low, tuple(numbers)) for pair, numbers in drawn.items()}
    return AnchorTask(overrides=tuple(Override(*entry) for entry in tables.items()))


def _rates() -> list[Grid]:
    axes = {"lr": (CONTROL.train.lr / 4, CONTROL.train.lr), "weight_decay": (0.01, 0.1, 1.0)}
    return [Grid(CONTROL, axes, seeds=SEEDS)]


def _arbitrary() -> list[Grid]:
    starts = {seed: override(CONTROL, log_every=20, task=arbitrary_task(seed)) for seed in SEEDS}
    gammas = {"gamma": (0.3, 0.5, 0.7)}
    return [Grid(start, gammas, seeds=(seed,)) for seed, start in starts.items()]


def _branches() -> list[Grid]:
    start = override(CONTROL, gamma=0.4)
    early, late = start.train.steps // 12, start.train.steps // 3
    changes: list[dict[str, Any]] = [
        {}, {"weight_decay": 1.0},
        {"branch_step": early, "branch_weight_decay": 1.0},
        {"branch_step": late, "branch_weight_decay": 1.0},
        {"branch_step": late, "branch_lr": start.train.lr / 4},
        {"weight_decay": 1.0, "branch_step": late, "branch_weight_decay": 0.01},
    ]  # fmt: skip
    return [Grid(override(start, **change), seeds=SEEDS) for change in changes]


RUNS = {
    "rates": Study("learning rate and weight decay", _rates),
    "arbitrary": Study("arbitrary mappings and gamma", _arbitrary, ("learning",)),
    "branches": Study("weight decay or learning rate changed midway", _branches),
    "noise": Study("randomly chosen broken groups", partial(noise, range(500, 520), "pre", "gelu"),
                   ("pairs",)),
}  # fmt: skip


def draw(data: Data) -> Panels:
    """Steps on mappings without a rule, and OOD accuracy where a setting changed midway."""
    steps, bounds = {}, {}
    for (gamma,), mine in grouped(data.rows("arbitrary"), ("gamma",)).items():
        steps[f"gamma {gamma:g}"] = [row["steps_to_loss"] or row["steps"] for row in mine]
        bounds[f"gamma {gamma:g}"] = [*map(never_came, mine)]
    accuracy: dict[str, list[float]] = {}
    for row in data.rows("branches"):
        accuracy.setdefault(_change(row), []).extend(values_of([row], "ood_accuracy"))
    return [
        [("arbitrary mappings", strips(steps, "steps to a training loss of 0.05", hollow=bounds))],
        [("weight decay or learning rate changed midway",
          strips(accuracy, "OOD accuracy", reference=0.5))],
    ]  # fmt: skip


def _change(row: Row) -> str:
    title = f"wd {row['weight_decay']:g}"
    if row.get("branch_step") is None:
        return title
    if row.get("branch_weight_decay") is not None:
        return f"{title}\n{row['branch_weight_decay']:g} from\n{row['branch_step']}"
    return f"{title}\nlr / {row['lr'] / row['branch_lr']:g}\nfrom {row['branch_step']}"


if __name__ == "__main__":
    raise SystemExit(main(__file__))
