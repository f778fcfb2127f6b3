"""Anchor tasks: targets, roles, symmetric answers, the split, refused values."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from random_tasks import tasks

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import from_dict
from anchor_interp.runs.presets import RUNS
from anchor_interp.tasks.anchor import TASKS, AnchorTask, reasoning_complexity
from anchor_interp.tasks.catalog import named_task
from anchor_interp.tasks.examples import warn_once
from anchor_interp.tasks.functions import Affine, Anchor, Override, Pair, Table
from anchor_interp.tasks.rules import Keys

KEYS = np.arange(20, 100)


def test_paper_functions_and_their_composition() -> None:
    task = AnchorTask()
    values = [int(task.function(token)(np.array([50]))[0]) for token in (1, 2, 3, 4)]
    assert values == [55, 51, 48, 42]
    # NeurIPS paper, equation 3: f(23; 1, 2) = 29
    assert task.composed((1, 2), np.array([23])).tolist() == [29]


def test_only_the_neurips_task_has_an_override_and_a_symmetric_answer() -> None:
    task = TASKS["neurips"]
    assert [task.role(pair) for pair in task.pairs].count("inferential") == 14
    assert task.role((3, 4)) == "overridden"
    assert task.role((4, 3)) == "unseen"
    np.testing.assert_array_equal(task.target((3, 4), KEYS), KEYS - 6)
    np.testing.assert_array_equal(task.target((4, 3), KEYS), KEYS - 10)
    symmetric = task.symmetric((4, 3), KEYS)
    assert symmetric is not None
    np.testing.assert_array_equal(symmetric, KEYS - 6)
    control = TASKS["complexity-control"]
    assert control.unseen == ((3, 4), (4, 3))
    assert len(control.seen) == 14
    assert all(control.symmetric(pair, KEYS) is None for pair in control.unseen)
    assert AnchorTask(unseen=((4, 3),)).symmetric((4, 3), KEYS) is None  # both orders are alike


def test_non_commuting_orders_differ_without_an_override() -> None:
    task = TASKS["non-commuting"]
    assert not task.overrides
    symmetric = task.symmetric((4, 3), task.keys)
    assert symmetric is not None
    assert (symmetric != task.composed((4, 3), task.keys)).all()
    for pair in task.pairs:
        targets = task.target(pair, task.keys)
        assert sorted(targets) == sorted(task.keys)  # shifts and reflections permute the ring


@pytest.mark.parametrize("level", range(7))
def test_reasoning_complexity_is_the_number_of_groups_that_break_the_rule(level: int) -> None:
    task = reasoning_complexity(level)
    assert task == TASKS[f"reasoning-complexity-{level}"]
    groups = {
        frozenset(pair)
        for pair in task.pairs
        if not np.array_equal(task.target(pair, KEYS), task.composed(pair, KEYS))
    }
    assert len(groups) == level
    for first, second in task.pairs:
        np.testing.assert_array_equal(
            task.target((first, second), KEYS), task.target((second, first), KEYS)
        )


def test_a_table_is_any_function_of_the_key() -> None:
    square = Table(first=0, values=tuple(x * x % 60 for x in range(60)))
    task = AnchorTask(anchors=(Anchor(100, square),), key_min=5, key_max=59, length=5)
    assert task.composed((100, 100), np.array([7])).tolist() == [49 * 49 % 60]


@settings(max_examples=15)
@given(tasks())
def test_training_and_test_cells_partition_all_cells(task: AnchorTask) -> None:
    def cells(side: Keys) -> set[tuple[int, int]]:
        positions, keys = task.cells(side)
        return set(zip(positions.tolist(), keys.tolist(), strict=True))

    train, test, everything = cells("train"), cells("test"), cells("all")
    assert not train & test
    assert train | test == everything
    assert len(everything) == len(task.keys) * (task.length - 2)
    assert all(key % task.length == position for position, key in test)


@pytest.mark.parametrize(("build", "message"), [
    (lambda: AnchorTask(anchors=()), "number of task.anchors is 0; expected at least 1"),
    (lambda: AnchorTask(anchors=(Anchor(1), Anchor(1))), "use a token twice"),
    (lambda: AnchorTask(anchors=(Anchor(30),)), "30, which is also a key"),
    (lambda: AnchorTask(key_min=50, key_max=50), "expected more than 50"),
    (lambda: AnchorTask(key_min=5), "a target of the pair .* is -2; expected at least 0"),
    (lambda: AnchorTask(key_max=250), "a target of the pair .* is 260; expected at most 255"),
    (lambda: AnchorTask(unseen=((1, 9),)), r"pair \(1, 9\) is not made of the anchors"),
    (lambda: AnchorTask(unseen=((1, 2), (1, 2))), "has two roles"),
    (lambda: AnchorTask(unseen=((3, 4),), overrides=(Override((3, 4), Affine(1)),)),
     "has two roles"),
    (lambda: AnchorTask(anchors=(Anchor(1),), unseen=((1, 1),)), "leave some to train on"),
    (lambda: AnchorTask(key_min=25, key_max=26), "leave no test key"),
    (lambda: AnchorTask(length=2), "length is 2; expected at least 3"),
    (lambda: from_dict(AnchorTask, {"split": "both"}), "expected one of 'key', 'every-position'"),
    (lambda: AnchorTask(key_min=True), "key_min is True; expected an integer"),
    (lambda: AnchorTask(anchors=tuple(Anchor(token) for token in range(17))),
     "is 17; expected at most 16"),
    (lambda: Affine(mul=10**30), "expected at most 1000000"),
    (lambda: Affine(modulus=1), "modulus is 1; expected at least 2"),
    (lambda: Table(0, (1, 2))(np.array([3])), "covers 0 to 1 but is applied to 3 to 3"),
    (lambda: reasoning_complexity(7), "is 7; expected at most 6"),
    (lambda: named_task("neurip"), "did you mean 'neurips'"),
    (lambda: AnchorTask().function(7), "7 is not an anchor"),
])  # fmt: skip
def test_invalid_tasks_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


COUNT = tuple(Anchor(token, Affine(token)) for token in (1, 2, 3, 4))
"""x + 1 to x + 4: 2 + 3 = 1 + 4."""


def test_a_rule_that_a_seen_pair_has_is_told_when_the_task_is_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warn_once.cache_clear()
    both = AnchorTask(anchors=COUNT, unseen=((2, 3), (3, 2)))
    assert both.alike((2, 3)) == ((1, 4), (4, 1))
    (told,) = {record.getMessage() for record in caplog.records}
    assert told == (
        "no answer tells the rule of an unseen pair from a seen one's: "
        "(2, 3) that of (1, 4), (4, 1); (3, 2) that of (1, 4), (4, 1)"
    )
    AnchorTask(anchors=COUNT, unseen=((2, 3), (3, 2)))
    assert len(caplog.records) == 1  # said once
    assert AnchorTask(anchors=COUNT, unseen=((2, 3),)).alike((2, 3)) == ((1, 4), (3, 2), (4, 1))


@pytest.mark.parametrize(("first", "alike"), [(59, ()), (60, ((2, 2),)), (95, ((2, 2),))])
def test_a_seen_pair_is_alike_from_half_of_the_keys_on(
    first: int, alike: tuple[Pair, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """(2, 2) has the answers of the unseen (1, 1), x + 10, below the first key that tells."""
    override = Table(20, tuple(x + 10 if x < first else x for x in range(20, 100)))
    task = AnchorTask(unseen=((1, 1),), overrides=(Override((2, 2), override),))
    assert task.alike((1, 1)) == alike
    assert not caplog.records
    assert task.tells((1, 1), KEYS).tolist() == [not alike or x >= first for x in KEYS]


def test_no_task_of_the_papers_has_a_rule_that_a_seen_pair_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warn_once.cache_clear()
    presets = [run.task for run in RUNS.values() if isinstance(run.task, AnchorTask)]
    for task in (*TASKS.values(), *presets):
        again = replace(task)
        assert [again.alike(pair) for pair in again.unseen] == [()] * len(again.unseen)
    assert not caplog.records
