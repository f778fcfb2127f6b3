"""When pairs are learned."""

import math

import numpy as np
import pytest

from anchor_interp.runs.run import Run
from anchor_interp.tasks.sequences import sample
from learning_order import LearningCurves, lateness, learning_curves


def curves(*accuracies: list[float]) -> LearningCurves:
    """Curves of some pairs at the steps 0, 10, 20, ..."""
    accuracy = np.array(accuracies).T
    pairs = tuple((1, anchor) for anchor in range(len(accuracies)))
    steps = 10 * np.arange(len(accuracy))
    return LearningCurves(pairs, steps, accuracy, 1 - accuracy)


def test_lateness_lies_between_checkpoints() -> None:
    found = lateness(curves([0, 0.2, 1, 1], [0, 0.6, 0.6, 0.6], [0.7, 0.9, 1, 1]))
    assert found == pytest.approx([15, 10, 0])


def test_lateness_counts_from_the_last_time_a_pair_is_learned() -> None:
    found = lateness(curves([0, 0.8, 0.4, 0.8], [0, 0.8, 0.8, 0.4], [0, 0, 0, 0]))
    assert found[0] == pytest.approx(25)
    assert list(found[1:]) == [math.inf, math.inf]


def test_curves_of_a_run_are_the_accuracies_of_its_checkpoints(finished_run: Run) -> None:
    found = learning_curves(finished_run)
    assert list(found.steps) == finished_run.steps
    task, train = finished_run.config.anchor_task, finished_run.config.train
    assert set(found.pairs) == set(task.seen)
    drawn = sample(task, "train", train.n_sequences, seed=finished_run.config.seed)  # all measured
    sizes = [int((drawn.pair == task.pairs.index(pair)).sum()) for pair in found.pairs]
    whole = np.average(found.accuracy[-1], weights=sizes)
    assert whole == pytest.approx(finished_run.evaluation.train_accuracy)
