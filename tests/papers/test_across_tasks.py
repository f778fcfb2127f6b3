"""One correlation on every task: on made-up runs whose order is known."""

import itertools

import numpy as np
import pytest
from findings import told
from scipy.stats import spearmanr

from claim_effects import Row
from claims import Claim, judge
from questions.across_tasks import CLAIMS, STUDIES, TASK_RUNS, AcrossTasks

CONDENSED = AcrossTasks("condensation", runs=STUDIES)
FAMILY = (*CLAIMS, Claim("across-tasks-condensation", "", CONDENSED, 0.3))
NAMES = tuple(claim.name for claim in FAMILY)
_TASKS = {"addition": ("addition-100", "addition-100-random")}


def made_up(follows: float, *, fitted: float = 1.0) -> dict[str, list[Row]]:
    """Runs whose accuracy follows complexity (1), does not (0) or is opposed to it (-1)."""
    generator, tables = np.random.default_rng(0), dict[str, list[Row]]()
    for study in dict.fromkeys(of.study for of in TASK_RUNS.values()):
        rows = tables[study] = []
        tasks = _TASKS.get(study, (study,))
        for task, size, seed in itertools.product(tasks, (1_000, 4_000), range(12)):
            order, noise = generator.normal(), generator.normal()
            about_id = task.endswith("random")
            accuracy = float(np.clip(0.5 + 0.1 * (follows * order + 0.5 * noise), 0, 1))
            rows.append({
                "run_id": f"{task}-{size}-{seed}", "status": "done", "censored": False,
                "seed": seed, "gamma": 0.5, "weight_decay": 0.1, "scale": "tiny", "task": task,
                "n_sequences": size,
                "train_accuracy": fitted, "id_accuracy": accuracy if about_id else fitted,
                "ood_accuracy": None if about_id else accuracy, "stable_rank_at_init": 10.0,
                "stable_rank": 5 - order, "condensation": 0.5 + 0.1 * order,
            })  # fmt: skip
    return tables


@pytest.mark.parametrize(("follows", "verdict"), [(1, "supported"), (-1, "reversed")])
def test_the_claims_can_be_supported_and_refuted(follows: float, verdict: str) -> None:
    found = judge(FAMILY, made_up(follows))
    assert {found[name].verdict for name in NAMES} == {verdict}
    parts = found[NAMES[0]].also
    assert set(parts) == set(TASK_RUNS)
    assert {part.verdict for part in parts.values()} == {verdict}


def test_runs_that_have_not_fitted_do_not_count() -> None:
    found = judge(FAMILY, made_up(1, fitted=0.9))[NAMES[0]]
    assert found.verdict == "not answerable here"
    assert "0 tasks have enough runs that have fitted" in found.reason


def test_a_task_is_the_mean_of_spearmans_correlation_over_its_sizes() -> None:
    rows = [row | {"study": "scan"} for row in made_up(1)["scan"]]
    found = CONDENSED.inside(TASK_RUNS["SCAN"], rows)
    alone = [
        spearmanr([row["condensation"] for row in of], [row["ood_accuracy"] for row in of])[0]
        for size in (1_000, 4_000)
        if (of := [row for row in rows if row["n_sequences"] == size])
    ]
    assert found.rho == pytest.approx(float(np.mean(alone)))
    assert (found.freedom, len(found.runs)) == (24 - 6, 24)


def test_shuffles_of_one_task_tell_nothing_of_anothers() -> None:
    """Tasks have their settings in one order, so the same shuffles would give alike values."""
    values = np.random.default_rng(2).normal(size=(24, 2))
    drawn = []
    for of in TASK_RUNS.values():
        rows = of.select([row | {"study": of.study} for row in made_up(0)[of.study]])
        alike = [
            row | {"condensation": x, of.unseen: y, of.fit: 1.0}
            for row, (x, y) in zip(rows, values.tolist(), strict=True)
        ]
        drawn.append(CONDENSED.inside(of, alike).drawn)
    between = np.corrcoef(drawn) - np.eye(len(drawn))
    assert np.abs(between).max() < 0.05


def test_each_task_counts_alike_on_fishers_scale() -> None:
    tables = made_up(1)
    rows = [row | {"study": study} for study, of in tables.items() for row in of]
    whole = CONDENSED.find(rows)
    zs = [np.arctanh(part.found.effect) for part in whole.also.values() if part.found]
    assert told(whole).effect == pytest.approx(np.tanh(np.mean(zs)))
    assert len(zs) == len(TASK_RUNS)


def test_the_interval_covers_no_correlation_as_often_as_it_says() -> None:
    """Of 100 tables without any correlation about one in twenty has an interval without 0."""
    generator, missed = np.random.default_rng(1), 0
    rows = [row | {"study": study} for study, of in made_up(0).items() for row in of]
    for _ in range(100):
        drawn = [row | {"condensation": float(generator.normal())} for row in rows]
        found = told(CONDENSED.find(drawn))
        missed += not found.low <= 0 <= found.high
    assert 1 <= missed <= 12
