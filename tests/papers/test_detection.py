"""How well a ranking finds the pairs that break the rule."""

import numpy as np

import anchor_interp as ai
from papers.detection import broken_pairs, detection


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


def test_broken_pairs_are_trained_against_the_rule() -> None:
    assert broken_pairs(ai.TASKS["neurips"]) == ((3, 4),)
    assert broken_pairs(ai.TASKS["complexity-control"]) == ()
