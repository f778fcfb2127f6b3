"""The examples run: a user's own task, measure, anchors and model."""

import dataclasses
import json
import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from in_process_engine import Here
from short import SHORT

import anchor_interp
import own_task
from anchor_interp._util.errors import ConfigError
from anchor_interp.behaviour.evaluation import predict
from anchor_interp.cli.main import main
from anchor_interp.runs.config import override
from anchor_interp.runs.export import load_transformer
from anchor_interp.runs.run import load
from anchor_interp.sweeps import sweep as driver
from anchor_interp.sweeps.folder import read_table
from anchor_interp.sweeps.local import LocalEngine
from anchor_interp.sweeps.spec import Grid, Sweep, read_sweep
from anchor_interp.sweeps.sweep import sweep
from anchor_interp.tasks.contract import draw_examples

FILE = Path(own_task.__file__)
EXAMPLES = FILE.parent


def run_script(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run an example as a script in this process; sweeps train here too."""
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 25
    monkeypatch.setattr(driver, "LocalEngine", Here)
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TransformerLens's own class
        runpy.run_path(str(path), run_name="__main__")
    return path


def test_an_own_task_is_short_and_its_splits_share_no_word() -> None:
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 80
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


@pytest.mark.slow
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
    known = "addition, cogs, corpus, prontoqa, scan"
    assert (
        f"task.kind is 'reverse'; known: {known}; import the module of your own" in unknown.stderr
    )
    assert done(*report, ANCHOR_INTERP_TASKS=str(FILE)).returncode == 0
    assert "Write a word backwards" in page.read_text(encoding="utf-8")


@pytest.mark.slow
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


@pytest.mark.usefixtures("judged_on_few", "undrawn")
def test_an_own_measure_is_a_column_and_a_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = str(tmp_path / "sweep"), str(tmp_path / "page")
    small = anchor_interp.preset("tiny", **SHORT)
    monkeypatch.setattr("anchor_interp.preset", lambda _, steps: override(small, steps=steps))
    path = run_script("own_measure", out, "20", monkeypatch=monkeypatch)
    assert "key_at_first" in capsys.readouterr().out
    for row in read_table(out):
        run = load(Path(out) / "runs" / row["run_id"])
        measured = runpy.run_path(str(path))["key_at_first"](run)
        assert row["key_at_first"] == pytest.approx(measured)
        assert 0 < measured < 1
    assert main(["diagram", out, "--out", page, "--map", "key_at_first"]) == 0
    assert (Path(page) / "figures" / "map-key_at_first.svg").is_file()
    assert main(["diagram", out, "--out", page, "--map", "key_at_frist"]) == 2
    assert "did you mean 'key_at_first'?" in capsys.readouterr().err
    assert main(["diagram", out, "--out", page, "--map", "phase"]) == 2
    assert "map is 'phase'; expected one of" in capsys.readouterr().err
    assert main(["effect", out, "--of", "key_at_first", "--on", "gamma", "--least", "0.3"]) == 0
    assert "key at first rises with initialisation rate" in capsys.readouterr().out


@pytest.mark.usefixtures("judged_on_few")
def test_own_anchors_train_and_change_in_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_script("own_anchors", str(tmp_path / "run"), "20", monkeypatch=monkeypatch)
    assert "undertrained: " in (said := capsys.readouterr().out)
    assert "(2, 1) unseen" in said
    plan, brief = read_sweep(EXAMPLES / "own_anchors.yaml"), SHORT | {"steps": 5, "eval_every": 5}
    short = [dataclasses.replace(grid, start=override(grid.start, **brief)) for grid in plan.grids]
    folder = sweep(Sweep(tuple(short)), tmp_path / "sweep", engine=Here(), quiet=True)
    rows = read_table(folder.path)
    assert {row["status"] for row in rows} == {"done"}
    tasks = [load(folder.runs / row["run_id"]).config.anchor_task for row in rows]
    assert [int(task.function(1)(np.array([98]))[0]) for task in tasks] == [103, 103, 107, 107, 23]
    assert folder.spec().configs().keys() == {row["run_id"] for row in rows}


@pytest.mark.usefixtures("evidence_alone", "undrawn")
def test_an_own_model_is_analysed_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "own"
    run_script("own_model", str(out), monkeypatch=monkeypatch)
    weights, task = str(out / "weights.safetensors"), str(out / "task.json")
    model = load_transformer(weights, to_run=True)
    assert (model.cfg.n_layers, model.cfg.n_heads, model.cfg.act_fn) == (3, 4, "gelu")
    budget = ["--max-seconds", "0.01", "--out", str(out / "page")]
    assert main(["analyze", weights, "--task", task, *budget]) == 0
    assert "left out: circuit: max_seconds was over before it began" in capsys.readouterr().err
    assert main(["verdict", weights, "--task", task]) == 0
    told = capsys.readouterr().out
    assert "by behaviour  undertrained" in told
    assert "its mechanism names no phase" in told
    for arguments, message in (
        ([weights], "is a file; expected a run, or weights and their --task"),
        (["tiny/inferential/1", "--task", task], "a run knows its own, so leave it out"),
    ):
        assert main(["verdict", *arguments]) == 2
        assert message in capsys.readouterr().err
    told = json.loads((out / "page" / "analysis.json").read_text())
    assert told["decision"]["phase"] == "undertrained"
    assert told["mechanism"]["keys"] == list(range(30, 80))
