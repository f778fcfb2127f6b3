"""Studies: what is trained at every scale, and the tasks made for it."""

from itertools import combinations

import numpy as np
import pytest

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError
from anchor_interp.tasks.anchor import BROKEN_GROUPS
from anchor_interp.tasks.functions import Affine
from papers.section_7_runs import CORNERS
from papers.studies import (
    MOVED_ANCHORS,
    SCALES,
    STUDIES,
    arbitrary_task,
    broken_groups,
    broken_task,
    random_broken_task,
    study_sweep,
)


@pytest.mark.parametrize("scale", [*SCALES])
@pytest.mark.parametrize("name", [*STUDIES])
def test_every_study_has_runs_of_several_seeds_at_every_scale(name: str, scale: str) -> None:
    configs = study_sweep(name, scale).configs()
    assert len(configs) >= 10
    assert len({config.seed for config in configs.values()}) >= 5
    if scale == "tiny":
        most = 5_000 if name in (*CORNERS, "addition-20") else 4_000
        until = {"solutions": 12_000, "scan-fitted": 6_000, "cogs-fitted": 8_000}  # until fitted
        most = until.get(name, most)
        assert max(config.train.steps for config in configs.values()) <= most
    # the paper does not say how long the models of section VII train, or not in steps
    others = (*CORNERS, "scan-fitted", "cogs-fitted", "addition-20", "language", "concepts",
              "concepts-judging")  # fmt: skip
    shorter = (
        "noise",
        "noise-60",
        "noise-240",
        "pairs",
        "pairs-post",
        "complexity-post",
        "settings",
        "settings-judging",
        "settings-post",
        "settings-post-again",
        "settings-pre",
        "solutions",
        "deep",
        *others,
    )
    if scale == "paper" and name not in shorter:
        assert min(config.train.steps for config in configs.values()) > 90_000


def test_random_settings_that_judge_are_new() -> None:
    fitting, judging = (study_sweep(n, "tiny").configs() for n in ("settings", "settings-judging"))
    assert (len(fitting), len(judging)) == (4 * 25, 4 * 45)
    seeds = [{config.seed for config in found.values()} for found in (fitting, judging)]
    assert (len(seeds[0]), len(seeds[1]), seeds[0] & seeds[1]) == (100, 180, set())


def test_a_broken_task_breaks_both_orders_alike() -> None:
    for level in range(7):
        task = ai.TASKS[f"reasoning-complexity-{level}"]
        assert broken_groups(task) == tuple(pair for pair, _ in BROKEN_GROUPS[:level])
        assert broken_task(dict(BROKEN_GROUPS[:level])) == task
    assert (task.target((4, 3), task.keys) == task.keys - 6).all()
    assert broken_groups(ai.TASKS["neurips"]) == ()  # one order alone


def test_randomly_broken_tasks_differ_and_always_break_something() -> None:
    tasks = [random_broken_task(seed) for seed in range(500, 520)]
    assert {len(broken_groups(task)) for task in tasks} == {1, 2}
    assert len({(broken_groups(task), task.overrides) for task in tasks}) == len(tasks)
    assert set().union(*(broken_groups(task) for task in tasks)) == {
        pair for pair, _ in BROKEN_GROUPS
    }
    for task in tasks:
        for pair in broken_groups(task):
            gap = task.target(pair, task.keys) - task.composed(pair, task.keys)
            assert (np.abs(gap) >= 2).all()


def test_arbitrary_mappings_have_no_rule() -> None:
    task = arbitrary_task(0)
    answers = np.stack([task.target(pair, task.keys) for pair in task.pairs])
    assert (
        answers != np.stack([task.composed(pair, task.keys) for pair in task.pairs])
    ).mean() > 0.95
    assert abs(np.corrcoef(answers[1], answers[4])[0, 1]) < 0.4  # (1, 2) and (2, 1)
    assert arbitrary_task(0) == task != arbitrary_task(1)


def test_moved_anchors_differ_by_sums_of_two_and_five() -> None:
    def sums(a: int, b: int) -> set[int]:
        return {a * i + b * j for i in range(4) for j in range(4)}

    def gaps(anchors: tuple[ai.Anchor, ...]) -> set[int]:
        adds = [anchor.function.add for anchor in anchors if isinstance(anchor.function, Affine)]
        return {abs(one - two) for one, two in combinations(adds, 2)}

    assert gaps(MOVED_ANCHORS) <= sums(2, 5)
    assert {2, 5} <= gaps(MOVED_ANCHORS)
    assert gaps(ai.AnchorTask().anchors) <= sums(3, 4)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no study is called 'decai' \(did you mean 'decay'\?\)"):
        study_sweep("decai", "tiny")
    with pytest.raises(ConfigError, match="no scale is called 'huge'"):
        study_sweep("decay", "huge")
