"""When groups of training data are learned, and how well that finds broken ones."""

import math
from typing import Any

import numpy as np
import pytest

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.learning_order import (
    LearningCurves,
    broken_pairs,
    detection,
    lateness,
    learning_curves,
    ranked,
)
from anchor_interp.runs.run import Run


def curves(*accuracies: list[float]) -> LearningCurves:
    """Curves of groups a, b, ... at the steps 0, 10, 20, ..."""
    accuracy = np.array(accuracies).T
    names = tuple("abcdefg"[: len(accuracies)])
    steps = 10 * np.arange(len(accuracy))
    return LearningCurves(names, (5,) * len(names), steps, accuracy, 1 - accuracy)


def test_lateness_lies_between_checkpoints() -> None:
    found = lateness(curves([0, 0.2, 1, 1], [0, 0.6, 0.6, 0.6], [0.7, 0.9, 1, 1]))
    assert found == pytest.approx([15, 10, 0])


def test_lateness_counts_from_the_last_time_a_group_is_learned() -> None:
    found = lateness(curves([0, 0.8, 0.4, 0.8], [0, 0.8, 0.8, 0.4], [0, 0, 0, 0]))
    assert found[0] == pytest.approx(25)
    assert list(found[1:]) == [math.inf, math.inf]


def test_the_latest_group_is_first_and_the_loss_breaks_ties() -> None:
    order = ranked(curves([0, 1, 1], [0, 0, 0], [0, 0.1, 0.2], [0, 0, 1]))
    assert [name for name, _ in order] == ["b", "c", "d", "a"]
    assert order[0][1] == math.inf


def test_detection_scores_neighbours_apart() -> None:
    groups = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 3), (3, 4)]
    broken = [(1, 2), (2, 1)]
    found = detection(np.array([3.0, 4, 5, 6, 1, 2]), groups, broken)
    assert found.strangers == 1  # both broken ones are later than (3, 3) and (3, 4)
    assert found.neighbours == 0.5  # later than (1, 1), earlier than (2, 2)
    assert found.auroc == 0.75
    never = detection(np.array([3.0, np.inf, np.inf, 6, 1, 2]), groups, broken)
    assert never.auroc == 1
    assert detection(np.zeros(6), groups, broken).auroc == 0.5


def test_detection_needs_both_kinds() -> None:
    with pytest.raises(ConfigError, match="expected some of the groups"):
        detection(np.zeros(2), [(1, 1), (1, 2)], [(3, 4)])
    with pytest.raises(ConfigError, match="NaN"):
        detection(np.array([1.0, np.nan]), [(1, 1), (1, 2)], [(1, 2)])
    names: Any = ["a", "b"]
    with pytest.raises(ConfigError, match="expected ordered pairs"):
        detection(np.zeros(2), names, [(1, 2)])
    with pytest.raises(ConfigError, match="2 groups with 3 scores"):
        detection(np.zeros(3), [(1, 1), (1, 2)], [(1, 2)])


def test_curves_of_a_run_are_the_accuracies_of_its_checkpoints(finished_run: Run) -> None:
    found = learning_curves(finished_run)
    assert list(found.steps) == finished_run.steps
    assert set(found.groups) == set(finished_run.config.anchor_task.seen)
    assert sum(found.sizes) == finished_run.config.train.n_sequences
    whole = np.average(found.accuracy[-1], weights=found.sizes)
    assert whole == pytest.approx(finished_run.evaluation.train_accuracy)


def test_training_sequences_can_be_grouped_in_any_way(finished_run: Run) -> None:
    n = finished_run.config.train.n_sequences
    found = learning_curves(finished_run, ["even" if i % 2 else "odd" for i in range(n)], n=50)
    assert found.groups == ("odd", "even")  # in the order in which they come
    assert found.sizes == (50, 50)
    with pytest.raises(
        ConfigError, match=r"groups has 3 entries; expected one for each of the 300"
    ):
        learning_curves(finished_run, ["a", "b", "c"])


def test_broken_pairs_are_trained_against_the_rule() -> None:
    assert broken_pairs(ai.TASKS["neurips"]) == ((3, 4),)
    assert broken_pairs(ai.TASKS["complexity-control"]) == ()
