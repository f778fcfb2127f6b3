"""The claims of section VII of the complexity-control paper, on made-up rows of their studies."""

import itertools
import re
from collections.abc import Sequence

import numpy as np
import pytest

from papers.claims import CLAIMS
from papers.judging import judge
from papers.rows import Row
from papers.section_7_runs import CORNERS, SEEDS
from papers.studies import SCALES

NAMES = {claim.name for claim in CLAIMS if claim.section == "control_7"}
STEPS = {"tiny": 1_500, "small": 6_000}  # of PrOntoQA
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
    scale: str = "tiny",
    fitted: float = 1.0,
    level: float = 0.5,
) -> list[Row]:
    """Rows in which either setting adds ``gain`` to the accuracy that the study is about.

    A small initialisation with much weight decay fits ``speed`` times as fast as a large one.
    """
    of, generator, rows = CORNERS[study], np.random.default_rng(0), []
    axes = (TASKS.get(study, (study,)), of.sizes_at(scale), of.gammas, of.decays, SEEDS)
    for task, size, gamma, decay, seed in itertools.product(*axes):
        small, much = gamma == of.gammas[1], decay == of.decays[1]
        accuracy = level + gain * small + gain * much + generator.normal(0, 0.01)
        mine = epochs[of.sizes_at(scale).index(size)] / (speed if small and much else 1)
        steps = mine * np.exp(generator.normal(0, 0.03)) * size / 32
        fits = steps <= STEPS[scale]
        about_id = study == "prontoqa" or task.endswith("random")
        rows.append({
            "run_id": f"{task}-{size}-{gamma}-{decay}-{seed}", "status": "done", "phase": None,
            "censored": False, "seed": seed, "scale": scale, "task": task, "normalization": "pre",
            "gamma": gamma, "gamma_qk": None, "weight_decay": decay, "n_layers": 2, "d_model": 64,
            "lr": 2e-3, "steps": STEPS[scale], "batch_size": 32, "n_sequences": size,
            "train_accuracy": fitted, "id_accuracy": accuracy if about_id else fitted,
            "ood_accuracy": None if about_id else accuracy, "final_loss": 0.01 if fits else 1.0,
            "steps_to_loss": steps if fits else None, "stable_rank": 5.0,
            "stable_rank_at_init": 10.0, "condensation": 0.3,
        })  # fmt: skip
    return rows


def scan_fitted(rows: Sequence[Row]) -> list[Row]:
    """The rows of the two corners of SCAN, as the study of fitted runs has them."""
    corners = {(0.3, 0.01): 0.5, (0.8, 1.0): 0.8}
    return [row | {"gamma": corners[at]} for row in rows
            if (at := (row["gamma"], row["weight_decay"])) in corners]  # fmt: skip


@pytest.mark.parametrize("scale", [*STEPS])
def test_every_claim_can_be_supported_and_not_supported(scale: str) -> None:
    for gain, epochs, speed, expected in (
        (0.15, RISING, 2.0, "supported"), (0.0, FLAT, 1.0, "not supported")
    ):  # fmt: skip
        tables = {
            study: made_up(study, gain=gain, epochs=(*epochs,), speed=speed, scale=scale,
                           level=0.65)
            for study in CORNERS
        }  # fmt: skip
        tables["addition-20"] = [
            row | {"run_id": f"{row['run_id']}-{again}", "seed": row["seed"] + 100 * again}
            for again, row in itertools.product(range(4), tables["addition"])
        ]
        tables["scan-fitted"] = scan_fitted(tables["scan"])
        tables["cogs-fitted"] = [
            row for row in tables["cogs"] if (row["gamma"], row["weight_decay"]) in BOTH
        ]
        found = judge(CLAIMS, tables)
        said = {name: found[name].verdict for name in NAMES}
        against = {"not supported", "reversed"} if expected != "supported" else {"supported"}
        assert {name for name in NAMES if said[name] not in against} == set()


@pytest.mark.parametrize("gain", [0.2, -0.2])
def test_unfitted_runs_and_runs_at_chance_answer_nothing_whichever_way_they_point(
    gain: float,
) -> None:
    accuracies = {"c7-scan", "c7-scan-gamma", "c7-scan-decay", "c7-prontoqa", "c7-prontoqa-gamma"}
    unfitted = {study: made_up(study, gain=gain, epochs=RISING, fitted=0.9, level=0.5)
                for study in CORNERS}  # fmt: skip
    unfitted["scan-fitted"] = scan_fitted(unfitted["scan"])
    found = judge(CLAIMS, unfitted)
    assert {found[name].verdict for name in accuracies} == {"not answerable here"}
    assert re.match("unfitted: 0 of .* and 0 of .* runs reach", found["c7-scan"].reason)
    chance = {"prontoqa": made_up("prontoqa", gain=gain / 10, epochs=RISING, level=0.5)}
    found = judge(CLAIMS, chance)
    names = {name for name in NAMES if "prontoqa" in name}
    assert {found[name].verdict for name in names} == {"not answerable here"}
    assert "at chance" in found["c7-prontoqa-faster"].reason


def test_numbers_that_are_never_reached_are_no_measurements() -> None:
    """16,000 examples are seen three times, so a run that never fits them has a bound of three."""
    rows = made_up("prontoqa", gain=0.1, epochs=(10.0, 24.0, 10.0, 99.0), level=0.7)
    found = judge(CLAIMS, {"prontoqa": rows})["c7-prontoqa-falls"]
    assert (found.verdict, found.finding and found.finding.effect) == ("not answerable here", None)
    assert "never came there" in found.reason


@pytest.mark.parametrize("scale", SCALES)
def test_no_training_example_comes_twice(scale: str) -> None:
    for study in CORNERS.values():
        for config in study.sweep(scale).configs().values():
            most = config.task.splits[0].size
            assert most is None or config.train.n_sequences <= most
