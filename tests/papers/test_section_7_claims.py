"""The claims of section VII of the complexity-control paper, on made-up rows of their studies."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from papers.claims import LEDGER
from papers.judging import REVERSED, Judgement, judge
from papers.rows import Row
from papers.section_7_runs import CORNERS, SEEDS
from papers.studies import SCALES

CLAIMS = {claim.name for claim in LEDGER.claims if claim.section == "control_7"}
STEPS = {"tiny": 1_500, "small": 6_000}  # of PrOntoQA
TASKS = {"addition": ("addition-100", "addition-100-random")}
RISING = (10.0, 24.0, 10.0, 2.0)  # epochs that a large initialisation needs, by size
FLAT = (2.5, 1.5, 1.5, 2.5)


def made_up(
    study: str, *, gain: float, epochs: Sequence[float], speed: float = 1.0, scale: str = "tiny"
) -> list[Row]:
    """Rows in which either setting adds ``gain`` to the accuracy that the study is about.

    A small initialisation with much weight decay fits ``speed`` times as fast as a large one.
    """
    of, generator, rows = CORNERS[study], np.random.default_rng(0), []
    axes = (TASKS.get(study, (study,)), of.sizes_at(scale), of.gammas, of.decays, SEEDS)
    for task, size, gamma, decay, seed in itertools.product(*axes):
        small, much = gamma == of.gammas[1], decay == of.decays[1]
        accuracy = 0.3 + gain * small + gain * much + generator.normal(0, 0.02)
        mine = epochs[of.sizes_at(scale).index(size)] / (speed if small and much else 1)
        steps = mine * np.exp(generator.normal(0, 0.03)) * size / 32
        fits = steps <= STEPS[scale]
        about_id = study == "prontoqa" or task.endswith("random")
        rows.append({
            "run_id": f"{task}-{size}-{gamma}-{decay}-{seed}", "status": "done", "phase": None,
            "censored": False, "seed": seed, "scale": scale, "task": task, "normalization": "pre",
            "gamma": gamma, "gamma_qk": None, "weight_decay": decay, "n_layers": 2, "d_model": 64,
            "lr": 2e-3, "steps": STEPS[scale], "batch_size": 32, "n_sequences": size,
            "train_accuracy": 1.0, "id_accuracy": accuracy if about_id else 1.0,
            "ood_accuracy": None if about_id else accuracy, "final_loss": 0.01 if fits else 1.0,
            "steps_to_loss": steps if fits else None, "stable_rank": 5.0,
            "stable_rank_at_init": 10.0, "condensation": 0.3,
        })  # fmt: skip
    return rows


def judged(epochs: Sequence[float], speed: float = 1.0) -> dict[str, Judgement]:
    rows = made_up("prontoqa", gain=0.0, epochs=epochs, speed=speed)
    return judge(LEDGER, {"prontoqa": rows})


@pytest.mark.parametrize("scale", [*STEPS])
def test_every_claim_can_be_supported_and_not_supported(scale: str) -> None:
    for gain, epochs, speed, expected in (
        (0.25, RISING, 2.0, "supported"), (0.0, FLAT, 1.0, "not supported")
    ):  # fmt: skip
        tables = {
            study: made_up(study, gain=gain, epochs=(*epochs,), speed=speed, scale=scale)
            for study in CORNERS
        }
        found = judge(LEDGER, tables)
        said = {name: found[name].verdict for name in CLAIMS}
        assert said == dict.fromkeys(CLAIMS, expected)
        # a grid varies nothing but what the claim is about
        held = {found[name].at_equal_settings for name in CLAIMS} - {None}
        assert held == {expected == "supported"}


def test_examples_that_are_never_fitted_are_not_fitted_in_few_epochs() -> None:
    """16,000 examples are seen three times, so a run that never fits them has a bound of three."""
    found = judged((10.0, 24.0, 10.0, 99.0))["c7-prontoqa-falls"]
    assert (found.verdict, found.finding and found.finding.effect) == ("inconclusive", None)
    assert "never came there" in found.reason
    slower = judged((10.0, 1.5, 10.0, 99.0))["c7-prontoqa-falls"]
    assert (slower.verdict, slower.reason) == ("not supported", REVERSED)  # more than three


def test_a_bound_of_more_data_supports_a_rise_and_never_reverses_it() -> None:
    """1,000 examples are seen 48 times, and 250 are 192 times."""
    rises = [judged((first, 99.0, 99.0, 99.0))["c7-prontoqa-rises"] for first in (60.0, 10.0)]
    assert [found.verdict for found in rises] == ["inconclusive", "supported"]
    assert [found.finding and found.finding.effect is None for found in rises] == [True, False]


def test_sizes_that_neither_corner_fits_are_not_equally_fast() -> None:
    found = judged((10.0, 20.0, 99.0, 99.0), speed=1.5)["c7-prontoqa-faster"]
    assert found.verdict == "supported"
    assert found.finding is not None
    assert found.finding.effect == pytest.approx(np.log(1.5), abs=0.05)
    assert {part.verdict for part in found.parts.values()} >= {"nothing comparable"}
    never = judged((999.0,) * 4)["c7-prontoqa-faster"]
    assert never.verdict == "nothing comparable"
    assert "never came there" in never.reason


@pytest.mark.parametrize("scale", SCALES)
def test_no_training_example_comes_twice(scale: str) -> None:
    for study in CORNERS.values():
        for config in study.sweep(scale).configs().values():
            most = config.task.splits[0].size
            assert most is None or config.train.n_sequences <= most
