"""When groups of training data are learned."""

import math

import numpy as np
import pytest

from anchor_interp._util.errors import ConfigError
from anchor_interp.runs.run import Run
from papers.learning_order import LearningCurves, lateness, learning_curves, ranked


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
