"""Made-up rows of a sweep's table; no run is trained."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from anchor_interp.behaviour.phase import CellAccuracy, Evaluation, decide
from anchor_interp.sweeps.columns import TableRow


def done(
    seed: int = 0,
    *,
    train: float = 1.0,
    seen: float = 1.0,
    ood: float = 0.0,
    symmetric: float | None = None,
    commutativity: float | None = 1.0,
    rank: float | None = 20.0,
    **settings: Any,
) -> TableRow:
    """A finished run with these measurements and their phase."""
    evaluation = Evaluation(
        steps=1000, train_accuracy=train, id_accuracy=seen, ood_accuracy=ood,
        symmetric_accuracy=symmetric, commutativity=commutativity, key_dependence=1.0,
        pair_accuracy=(), unseen=(), cells=CellAccuracy(train, seen, ood, ood), stable_rank=rank,
        stable_rank_at_init=40.0, condensation=0.1, condensation_at_init=0.1, n=100, seed=0,
    )  # fmt: skip
    decision = decide(evaluation)
    return not_done("done", seed, **settings) | {
        "phase": decision.phase,
        "reason": decision.reason,
        "censored": decision.phase == "undertrained",
        "error": None,
        "train_accuracy": train,
        "id_accuracy": seen,
        "ood_accuracy": ood,
        "symmetric_accuracy": symmetric,
        "commutativity": commutativity,
        "key_dependence": 1.0,
        "stable_rank": rank,
        "stable_rank_at_init": 40.0,
        "seconds": 61.5,
    }


def not_done(status: str, seed: int = 0, **settings: Any) -> TableRow:
    """A run without measurements."""
    error = f"loss is nan at step {seed}" if status == "diverged" else None
    known: TableRow = {
        "task": "complexity-control",
        "gamma": 0.5,
        "weight_decay": 0.01,
        "n_layers": 2,
    }
    known |= {"lr": 0.001, "steps": 4000} | settings
    measured = (
        "phase", "reason", "train_accuracy", "id_accuracy", "ood_accuracy", "symmetric_accuracy",
        "commutativity", "key_dependence", "stable_rank", "stable_rank_at_init", "seconds",
    )  # fmt: skip
    identity = "-".join(f"{value}" for value in known.values())
    return {
        "run_id": f"{identity}-{seed}",
        "seed": seed,
        "status": status,
        "error": error,
        "censored": True,
        "total_decay": known["lr"] * known["steps"] / 2 * known["weight_decay"],
        **known,
        **dict.fromkeys(measured),
    }


def grid(make: Callable[..., TableRow], seeds: int = 3, **axes: Sequence[Any]) -> list[TableRow]:
    """One row per combination and seed."""
    combinations = itertools.product(*axes.values())
    return [
        make(seed, **dict(zip(axes, values, strict=True)))
        for values in combinations
        for seed in range(seeds)
    ]


def decay_sweep() -> list[TableRow]:
    """7 x 4 x 3 runs as in the complexity-control paper's diagram; some did not finish."""
    generator = random.Random(0)

    def make(seed: int, *, gamma: float, weight_decay: float) -> TableRow:
        settings: TableRow = {"gamma": gamma, "weight_decay": weight_decay}
        strength = (gamma - 0.3) / 0.1 + {0.0: 0, 0.01: 0.5, 0.1: 1.3, 1.0: 3.0}[weight_decay]
        strength += generator.gauss(0, 0.35)
        rank = 45 / (1 + max(strength, 0)) + generator.random()
        near = generator.random()
        if gamma == 0.9 and weight_decay == 1.0 and seed < 2:
            return done(seed, train=0.4 + 0.2 * near, seen=0.3, ood=0.02, rank=3.0, **settings)
        if strength < 1:
            return done(seed, seen=0.5 + 0.3 * near, ood=0.1 * near, commutativity=0.3 * near,
                        rank=rank, **settings)  # fmt: skip
        if strength < 2.2:
            return done(seed, seen=0.92 + 0.08 * near, ood=0.1 * near,
                        commutativity=0.2 + 0.4 * near, rank=rank, **settings)  # fmt: skip
        if strength < 3.2:
            return done(seed, ood=0.2 + 0.2 * near, commutativity=0.8 + 0.2 * near,
                        rank=rank, **settings)  # fmt: skip
        return done(seed, ood=0.75 + 0.25 * near, rank=rank, **settings)

    lost = {(0.3, 1.0, 0): "diverged", (0.3, 1.0, 1): "diverged", (0.4, 0.1, 1): "failed",
            (0.9, 0.01, 2): "running", (0.8, 0.0, 0): "missing", (0.8, 0.0, 1): "missing",
            (0.8, 0.0, 2): "missing"}  # fmt: skip
    gammas = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    rows = grid(make, gamma=gammas, weight_decay=(0.0, 0.01, 0.1, 1.0))
    return list(_with(rows, lost, "weight_decay"))


def depth_sweep(lrs: Sequence[float] = (0.001,)) -> list[TableRow]:
    """5 x 3 x 3 runs on the NeurIPS task: symmetric, then inferential; poor ID accuracy if deep."""
    generator = random.Random(1)

    def make(seed: int, *, gamma: float, n_layers: int, lr: float) -> TableRow:
        settings: TableRow = {"gamma": gamma, "n_layers": n_layers, "lr": lr, "task": "neurips"}
        place = (gamma - 0.3) / 0.1 + generator.gauss(0, 0.3)
        near = generator.random()
        if place < 0.4 * n_layers - 0.8:
            return done(seed, seen=0.3 + 0.5 * near, ood=0.05, symmetric=0.1 * near,
                        commutativity=0.1, rank=40.0, **settings)  # fmt: skip
        if place < 3 - 0.3 * n_layers:
            return done(seed, ood=0.1 * near, symmetric=0.8 + 0.2 * near, rank=25.0, **settings)
        return done(seed, ood=0.7 + 0.3 * near, symmetric=0.2 * near, commutativity=0.1,
                    rank=6.0, **settings)  # fmt: skip

    rows = grid(make, gamma=(0.3, 0.4, 0.5, 0.6, 0.7), n_layers=(2, 3, 4), lr=lrs)
    return list(_with(rows, {(0.3, 4, 1): "diverged"}, "n_layers"))


def _with(rows: list[TableRow], lost: dict[Any, str], second: str) -> Iterator[TableRow]:
    for row in rows:
        status = lost.get((row["gamma"], row[second], row["seed"]))
        kept = ("gamma", "weight_decay", "n_layers", "lr", "steps", "task")
        settings = {name: row[name] for name in kept}
        yield not_done(status, row["seed"], **settings) if status else row
