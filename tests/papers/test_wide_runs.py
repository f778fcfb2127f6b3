"""Which runs figure 2 has at the paper's width, and their table."""

from itertools import groupby
from pathlib import Path

import pytest
import torch
from short import SHORT

import anchor_interp as ai
from anchor_interp.runs.config import run_id
from papers import wide_runs


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


def test_a_run_that_was_stopped_ends_with_the_same_curve(tmp_path: Path) -> None:
    config = ai.preset("tiny", task="neurips", **{**SHORT, "eval_every": 10, "log_every": 10})
    cpu, signals = torch.device("cpu"), iter([False, True])
    whole = wide_runs.train(config, tmp_path / "whole", cpu, lambda: False)
    assert [row["step"] for row in whole] == [*range(10, config.train.steps + 1, 10)]
    assert wide_runs.train(config, tmp_path / "parts", cpu, lambda: next(signals)) == []
    assert wide_runs.train(config, tmp_path / "parts", cpu, lambda: False) == whole


def test_the_committed_table_has_every_run_and_is_written_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, committed = wide_runs.table(), wide_runs.TABLE.read_bytes()
    assert {*found} == {wide_runs.key(run) for run in wide_runs.runs()}
    monkeypatch.setattr(wide_runs, "TABLE", tmp_path / "figure2-wide.csv")
    wide_runs.write_table(found)
    assert wide_runs.TABLE.read_bytes() == committed
