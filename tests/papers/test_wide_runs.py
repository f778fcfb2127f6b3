"""When a run of figure 2 at the paper's width ends, and which runs there are."""

from itertools import groupby

import pytest

from anchor_interp.runs.config import run_id
from papers import wide_runs


def curve(*accuracies: float) -> list[wide_runs.Row]:
    return [{"step": 50 * i, "train": value} for i, value in enumerate(accuracies, 1)]


@pytest.mark.parametrize(
    ("accuracies", "is_over"),
    [
        ([], False),
        ([0.5, 0.99], False),  # once
        ([0.99, 0.5, 0.99, 0.99], False),  # twice at step 200, and not yet as long again
        ([0.5, 0.5, 0.99, 0.99, 0.9, 0.9, 0.9, 0.9], True),  # at step 400
        ([0.5] * 39 + [1.0] * 2 + [0.9] * 19, False),
        ([0.5] * 39 + [1.0] * 2 + [0.9] * 20, True),  # 1,000 steps after 2,050
        ([0.5] * 240, True),  # 12,000 steps
    ],
)
def test_a_run_ends_as_long_again_after_it_is_fitted(
    accuracies: list[float], is_over: bool
) -> None:
    assert wide_runs._is_over(curve(*accuracies)) == is_over


def test_a_cell_has_three_seeds_of_its_own_at_all_its_rates_and_some_at_one() -> None:
    runs = wide_runs.runs()
    assert len({run_id(run) for run in runs}) == 105 + 6
    by_seed = sorted(runs, key=lambda run: run.seed)
    cells = [
        {(run.model.n_layers, run.init.gamma) for run in group}
        for _, group in groupby(by_seed, key=lambda run: run.seed)
    ]
    assert all(len(cell) == 1 for cell in cells)
    assert len(cells) == 3 * 10 + 6
