"""When pairs are learned, and how well a ranking finds the pairs that break the rule."""

import math

import numpy as np
import pytest

import anchor_interp as ai
from learning_order import LearningCurves, broken_pairs, detection, lateness, learning_curves


def curves(*accuracies: list[float]) -> LearningCurves:
    """Curves of some pairs at the steps 0, 10, 20, ..."""
    accuracy = np.array(accuracies).T
    pairs = tuple((1, anchor) for anchor in range(len(accuracies)))
    steps = 10 * np.arange(len(accuracy))
    return LearningCurves(pairs, steps, accuracy, 1 - accuracy)


def test_lateness_lies_between_checkpoints() -> None:
    found = lateness(curves([0, 0.2, 1, 1], [0, 0.6, 0.6, 0.6], [0.7, 0.9, 1, 1]))
    assert found == pytest.approx([15, 10, 0])
    # from the last time that a pair is learned
    found = lateness(curves([0, 0.8, 0.4, 0.8], [0, 0.8, 0.8, 0.4], [0, 0, 0, 0]))
    assert found[0] == pytest.approx(25)
    assert list(found[1:]) == [math.inf, math.inf]


def test_curves_of_a_run_are_the_accuracies_of_its_checkpoints(finished_run: ai.Run) -> None:
    found = learning_curves(finished_run)
    assert list(found.steps) == finished_run.steps
    task, train = finished_run.config.anchor_task, finished_run.config.train
    assert set(found.pairs) == set(task.seen)
    drawn = ai.sample(
        task, "train", train.n_sequences, seed=finished_run.config.seed
    )  # all measured
    sizes = [int((drawn.pair == task.pairs.index(pair)).sum()) for pair in found.pairs]
    whole = np.average(found.accuracy[-1], weights=sizes)
    assert whole == pytest.approx(finished_run.evaluation.train_accuracy)


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


@pytest.mark.parametrize(("broken", "n"), [([(3, 4)], 0), ([(1, 1), (1, 2)], 2)])
def test_detection_needs_broken_and_innocent_groups(broken: list[tuple[int, int]], n: int) -> None:
    with pytest.raises(ai.ConfigError, match=f"{n} of 2 groups are broken"):
        detection(np.zeros(2), [(1, 1), (1, 2)], broken)


def test_broken_pairs_are_trained_against_the_rule() -> None:
    assert broken_pairs(ai.TASKS["neurips"]) == ((3, 4),)
    assert broken_pairs(ai.TASKS["complexity-control"]) == ()
