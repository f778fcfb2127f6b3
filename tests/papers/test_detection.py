"""How well a ranking finds the pairs that break the rule."""

from typing import Any

import numpy as np
import pytest

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError
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


def test_broken_pairs_are_trained_against_the_rule() -> None:
    assert broken_pairs(ai.TASKS["neurips"]) == ((3, 4),)
    assert broken_pairs(ai.TASKS["complexity-control"]) == ()
