"""Scripts on later papers: what trains, what is measured along training, and what judges."""

import math

import numpy as np
import pytest
import torch

import anchor_interp as ai
import measures
from anchor_interp.interventions.subject import subject_of
from anchor_interp.runs.schedule import total_decay
from anchor_interp.sweeps.rows import planned_row
from anchor_interp.tasks.contract import draw_examples
from claim_effects import Row, grouped
from later import bridge, memory, modular, windows
from questions import routes_first
from studies import task_columns


@pytest.mark.parametrize(
    ("values", "n", "step"),
    [
        ({0: 0.9, 5: 0.4, 10: 0.5, 15: 0.6}, 2, 10.0),
        ({0: 0.9, 5: 0.4, 10: 0.5, 15: 0.6}, 3, None),
        ({0: math.nan, 5: 0.5, 10: 0.5, 15: 0.4}, 2, 5.0),
    ],
)
def test_a_number_has_passed_when_it_stays(
    values: dict[int, float], n: int, step: float | None
) -> None:
    assert measures.passed(values, n) == step


def test_a_fifth_anchor_is_told_from_the_table() -> None:
    for name, add in (bridge.CONDITIONS | bridge.FAR).items():
        task = bridge.bridged(add)
        assert bridge.condition(task_columns(task)) == name
        assert task.unseen == ((3, 4), (4, 3))
        assert len(task.seen) == (14 if add is None else 23)


def test_quarters_have_equal_sums_of_decay_and_arms_are_told_from_the_table() -> None:
    totals = {}
    for name, config in windows.ARMS.items():
        assert windows.arm(planned_row("run", config)) == name
        totals[name] = total_decay(config.train)
    equal = [totals[name] for name in totals if name.startswith(("quarter", "equal"))]
    assert equal == pytest.approx([equal[0]] * 5, rel=1e-3)
    for begin in windows.ONSETS:
        config = windows.window(begin)
        assert windows.onset(planned_row("run", config)) == f"after {begin}"
        assert config.train.rates(begin - 1)[1] == windows.LITTLE
        assert config.train.rates(begin)[1] == windows.MUCH


def test_a_basin_is_the_share_of_onsets_that_led_to_the_rule() -> None:
    rows: list[Row] = [
        {"run_id": f"{gamma}-{place}", "gamma": gamma, "seed": 1, "ood_accuracy": accuracy,
         "status": "done"}
        for gamma, good in ((0.4, 3), (0.7, 6))
        for place, accuracy in enumerate([0.5] * good + [0.49] * (6 - good))
    ]  # fmt: skip
    assert [row["basin"] for row in windows.basins(rows)] == [0.5, 1.0]
    assert not windows.basins(rows[1:6])
    rows[0] |= {"status": "failed", "ood_accuracy": None}
    assert [row["gamma"] for row in windows.basins(rows)] == [0.7]


def test_a_seed_falls_where_the_others_fall_most() -> None:
    falls = {1: (1.0, 1.0), 2: (0.5, 0.5), 3: (0.0, 0.0)}
    curves = {seed: [1.0, *middle, 0.0, 0.0, 0.0, 0.0] for seed, middle in falls.items()}
    rows: list[Row] = [
        {"run_id": f"{seed}-{step}", "seed": seed, "schedule": f"{step} 0.001 1.0",
         "ood_accuracy": accuracy, "status": "done"}
        for seed, curve in curves.items()
        for step, accuracy in zip(windows.EDGE, curve, strict=True)
    ]  # fmt: skip
    # of two other seeds that fall at two places the first place counts
    found = windows.drops(rows)
    assert [(row["place"], row["drop"]) for row in found] == [(500, 0.0), (500, 0.5), (700, 0.0)]
    assert [row["seed"] for row in windows.drops(rows[1:])] == [2, 3]


def test_reasoning_follows_the_rule_and_memory_a_table() -> None:
    task = memory.two_parts(1)
    kinds = grouped([{"memory": any(token in memory.MEMORY for token in pair), "pair": pair}
                     for pair in task.seen], ("memory",))  # fmt: skip
    assert [len(rows) for rows in kinds.values()] == [16, 16]
    for row in kinds[False,]:
        assert np.array_equal(
            task.target(row["pair"], task.keys), task.composed(row["pair"], task.keys)
        )
    targets = np.array([task.target(row["pair"], task.keys) for row in kinds[True,]])
    assert np.abs(np.corrcoef(targets)[np.triu_indices(16, 1)]).mean() < 0.2
    other = memory.two_parts(2)
    assert task.override((5, 5)) != other.override((5, 5))
    assert task.override((5, 5)) == memory.two_parts(1).override((5, 5))


def test_parts_are_measured_as_by_hand() -> None:
    task = memory.two_parts(1)
    model = ai.build_model(ai.ModelConfig(), ai.InitConfig(), seed=3)
    found = measures.two_parts(subject_of(model, task, 0))
    rows, v, o = (w.detach() for w in (model.W_E[1:9], model.W_V[0, 0], model.W_O[0, 0]))
    for name, vectors in (("embedding", rows), ("value", rows @ v @ o)):
        cosine = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
        within = (cosine[:4, :4].sum() + cosine[4:, 4:].sum() - 8) / 24
        assert found[f"{name}_apart"] == pytest.approx(
            float(within - cosine[:4, 4:].mean()), abs=1e-5
        )
    assert found["reasoning"] < 0.1
    assert found["memory"] < 0.1


def test_half_of_the_sums_are_trained_on_and_arms_are_told_from_the_table() -> None:
    task = modular.ModularAddition()
    drawn = {
        split.name: task.examples(split.name, split.size or 0, seed=3) for split in task.splits
    }
    pairs = {name: set(map(tuple, examples.tokens[:, :2])) for name, examples in drawn.items()}
    assert [len(each) for each in pairs.values()] == [1_740, 1_741]
    assert not pairs["train"] & pairs["id"]
    a, b, equals, total = drawn["id"].tokens.T
    assert np.array_equal(total, (a + b) % 59)
    assert (equals == 59).all()
    for name, config in modular.arms().items():
        assert modular.arm(planned_row("run", config)) == name
        assert draw_examples(config.task, "train", 5, seed=0).tokens.shape == (5, 4)
    for name, config in routes_first.SETTINGS.items():
        assert routes_first.setting(planned_row("run", config)) == name
