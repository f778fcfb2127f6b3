"""The claims of figure 7 of the complexity-control paper on made-up rows, and its drawing."""

import itertools
from collections.abc import Sequence

import numpy as np

from claim_effects import Row
from claims import judge
from complexity_control.fig7_tasks import CLAIMS, RUNS, SEEDS, square

CORNERS = ("scan", "cogs", "addition", "prontoqa")  # studies of all four combinations
NAMES = {claim.name for claim in CLAIMS if claim.effect.runs}
STEPS = 1_500  # of PrOntoQA
TASKS = {"addition": ("addition-100", "addition-100-random")}
RISING = (10.0, 24.0, 10.0, 2.0)  # epochs that a large initialisation needs, by size
BOTH = ((0.5, 0.01), (0.8, 0.1))  # the corners of COGS
FLAT = (2.5, 1.5, 1.5, 2.5)


def made_up(
    study: str,
    *,
    gain: float,
    epochs: Sequence[float],
    speed: float = 1.0,
    fitted: float = 1.0,
    level: float = 0.5,
) -> list[Row]:
    """Rows in which either setting adds ``gain`` to the accuracy that the study is about.

    A small initialisation with much weight decay fits ``speed`` times as fast as a large one.
    """
    configs, generator, rows = RUNS[study].sweep().configs().values(), np.random.default_rng(0), []
    sizes = sorted({config.train.n_sequences for config in configs})
    gammas = sorted({config.init.gamma for config in configs})
    decays = sorted({config.train.weight_decay for config in configs})
    axes = (TASKS.get(study, (study,)), sizes, gammas, decays, SEEDS)
    for task, size, gamma, decay, seed in itertools.product(*axes):
        small, much = gamma == gammas[1], decay == decays[1]
        accuracy = level + gain * small + gain * much + generator.normal(0, 0.01)
        mine = epochs[sizes.index(size)] / (speed if small and much else 1)
        steps = mine * np.exp(generator.normal(0, 0.03)) * size / 32
        fits = steps <= STEPS
        about_id = study == "prontoqa" or task.endswith("random")
        rows.append({
            "run_id": f"{task}-{size}-{gamma}-{decay}-{seed}", "status": "done", "phase": None,
            "censored": False, "seed": seed, "task": task, "normalization": "pre",
            "gamma": gamma, "gamma_qk": None, "weight_decay": decay, "n_layers": 2, "d_model": 64,
            "lr": 2e-3, "steps": STEPS, "batch_size": 32, "n_sequences": size,
            "train_accuracy": fitted, "id_accuracy": accuracy if about_id else fitted,
            "ood_accuracy": None if about_id else accuracy, "final_loss": 0.01 if fits else 1.0,
            "steps_to_loss": steps if fits else None, "stable_rank": 5.0,
            "stable_rank_at_init": 10.0, "condensation": 0.3,
        })  # fmt: skip
    return rows


def scan_fitted(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of SCAN as the studies of fitted runs have them: two corners, and the others."""
    gammas, decays = {0.3: 0.5, 0.8: 0.8}, {0.01: 0.01, 1.0: 0.1}
    moved = [row | {"gamma": gammas[row["gamma"]], "weight_decay": decays[row["weight_decay"]]}
             for row in rows if row["n_sequences"] > 2_000]  # fmt: skip
    pure = [row for row in moved if (row["gamma"], row["weight_decay"]) in BOTH]
    return {"scan-fitted": pure, "scan-other-corners": [r for r in moved if r not in pure]}


def test_every_claim_can_be_supported_and_not_supported() -> None:
    for gain, epochs, speed, expected in (
        (0.15, RISING, 2.0, "supported"), (0.0, FLAT, 1.0, "not supported")
    ):  # fmt: skip
        tables = {
            study: made_up(study, gain=gain, epochs=(*epochs,), speed=speed, level=0.65)
            for study in CORNERS
        }
        tables["addition-20"] = [
            row | {"run_id": f"{row['run_id']}-{again}", "seed": row["seed"] + 100 * again}
            for again, row in itertools.product(range(4), tables["addition"])
        ]
        tables["addition-either"] = square(tables["addition-20"])
        tables |= scan_fitted(tables["scan"])
        tables["cogs-fitted"] = [
            row for row in tables["cogs"] if (row["gamma"], row["weight_decay"]) in BOTH
        ]
        found = judge(CLAIMS, tables)
        said = {name: found[name].verdict for name in NAMES}
        against = {"not supported", "reversed"} if expected != "supported" else {"supported"}
        assert {name for name in NAMES if said[name] not in against} == set()


def test_no_training_example_comes_twice() -> None:
    for study in RUNS.values():
        for config in study.sweep().configs().values():
            most = config.task.splits[0].size
            assert most is None or config.train.n_sequences <= most


def test_numbers_that_are_never_reached_are_no_measurements() -> None:
    """16,000 examples are seen three times, so a run that never fits them has a bound of three."""
    rows = made_up("prontoqa", gain=0.1, epochs=(10.0, 24.0, 10.0, 99.0), level=0.7)
    found = judge(CLAIMS, {"prontoqa": rows})["c7-prontoqa-falls"]
    assert (found.verdict, found.finding and found.finding.found) == ("not answerable here", None)
    assert "never came there" in found.reason
