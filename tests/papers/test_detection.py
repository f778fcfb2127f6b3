"""How well a ranking finds the pairs that break the rule."""

import numpy as np
import pytest

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError
from learning_order import broken_pairs, detection


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
    with pytest.raises(ConfigError, match=f"{n} of 2 groups are broken"):
        detection(np.zeros(2), [(1, 1), (1, 2)], broken)


def test_broken_pairs_are_trained_against_the_rule() -> None:
    assert broken_pairs(ai.TASKS["neurips"]) == ((3, 4),)
    assert broken_pairs(ai.TASKS["complexity-control"]) == ()
