"""The examples run: a task in a file of its own, as a script, in a report and in a sweep."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from short import SHORT

import anchor_interp
import own_task
from anchor_interp._util.errors import ConfigError
from anchor_interp.runs.config import override
from anchor_interp.runs.evaluation import predict
from anchor_interp.runs.run import load
from anchor_interp.sweeps.local import LocalEngine
from anchor_interp.sweeps.spec import Grid, Sweep
from anchor_interp.sweeps.sweep import sweep
from anchor_interp.sweeps.table import read_table
from anchor_interp.tasks.task import draw_examples

FILE = Path(own_task.__file__)


def test_an_own_task_has_at_most_80_lines() -> None:
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 80


def test_its_splits_share_no_word() -> None:
    task = own_task.Reverse()
    found = {
        split.name: {row.tobytes() for row in draw_examples(task, split.name, 3_000, seed=0).tokens}
        for split in task.splits
    }
    assert not found["train"] & found["id"]
    first = draw_examples(task, "ood", 4, seed=1)
    assert np.array_equal(first.lengths, draw_examples(task, "ood", 9, seed=1).lengths[:4])
    text = task.decode(first.tokens[0, : first.lengths[0]]).removesuffix(" .")
    word, answer = text.split(" -> ")
    assert answer == word[::-1]


def test_the_script_trains_and_a_command_reports(tmp_path: Path) -> None:
    out, page = tmp_path / "reverse", tmp_path / "report.html"

    def done(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
        return subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False, env=environment
        )

    trained = done(str(FILE), str(out), "20")
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout.startswith("undertrained: ")
    report = ["-m", "anchor_interp", "report", str(out), "--out", str(page)]
    unknown = done(*report)
    assert unknown.returncode == 2
    known = "addition, cogs, prontoqa, scan"
    assert f"task.kind is 'reverse'; known: {known}. For a task of your own" in unknown.stderr
    assert done(*report, ANCHOR_INTERP_TASKS=str(FILE)).returncode == 0
    assert "Write a word backwards" in page.read_text(encoding="utf-8")


def test_workers_of_a_sweep_know_it(tmp_path: Path) -> None:
    start = override(own_task.config(), **SHORT)
    plan = Sweep((Grid(start, {"gamma": (0.3, 0.8)}),))
    found = sweep(plan, tmp_path / "sweep", engine=LocalEngine(1, "cpu"), quiet=True)
    rows = read_table(found.path)
    assert [row["status"] for row in rows] == ["done", "done"]
    run = load(found.path / "runs" / rows[0]["run_id"])
    assert run.config.task == own_task.Reverse()
    (answer,) = run.answer(["a b ->"])
    assert set(answer.split()) <= set(own_task.Reverse().words)
    with pytest.raises(ConfigError, match="'z' is not a word of the task reverse"):
        run.answer(["z ->"])


def test_an_anchor_task_is_answered_with_one_token(finished_run: anchor_interp.Run) -> None:
    task = finished_run.config.anchor_task
    sequences = anchor_interp.sample(task, "ood", 5, seed=0)
    prompts = [" ".join(map(str, row)) for row in sequences.tokens.tolist()]
    expected = predict(finished_run.model, sequences)
    assert finished_run.answer(prompts) == [
        str(token) if token < task.n_tokens else f"<{token}>" for token in expected
    ]
