"""The command line in process: data on stdout, messages on stderr, exit codes, wrong input."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import anchor_interp
from anchor_interp.cli import main
from anchor_interp.config import RunConfig, override
from anchor_interp.phase import decide
from anchor_interp.presets import MODELS, RUNS
from anchor_interp.run import Run, load
from anchor_interp.schema import to_dict
from anchor_interp.task import TASKS
from conftest import SHORT

FLAGS = [
    text for name, value in SHORT.items() for text in (f"--{name.replace('_', '-')}", str(value))
]
Capture = pytest.CaptureFixture[str]


def test_train_then_evaluate(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "run"
    command = ["train", "--gamma", "0.9", "--weight-decay", "0.5", "--seed", "1"]
    assert main([*command, *FLAGS, "--out", str(out), "--threads", "1", "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{out}: undertrained (training accuracy")
    assert "step 40/40" in captured.err  # plain progress without a terminal
    assert "sequences/s" in captured.err
    config = load(out).config
    assert (config.init.gamma, config.train.weight_decay, config.seed) == (0.9, 0.5, 1)

    assert main(["evaluate", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    wanted = {
        "phase", "train_accuracy", "id_accuracy", "ood_accuracy", "symmetric_accuracy",
        "commutativity", "stable_rank", "condensation", "pair_accuracy", "steps", "config",
    }  # fmt: skip
    assert wanted <= set(found)
    assert found["phase"] == "undertrained"
    assert found["steps"] == 40
    assert found["symmetric_accuracy"] is None
    assert found["config"] == to_dict(config)
    assert len(found["pair_accuracy"]) == 16

    assert main(["evaluate", str(out), "--step", "0", "--n", "20"]) == 0
    text = capsys.readouterr().out
    assert "at step 0: undertrained" in text
    assert "(4, 3)  unseen" in text


def test_train_from_a_config_file_gives_the_same_run(
    tmp_path: Path, finished_run: Run, capsys: Capture
) -> None:
    config = finished_run.path / "config.json"
    out = tmp_path / "again"
    command = ["train", "--config", str(config), "--out", str(out), "--quiet"]
    assert main([*command, "--threads", "1", "--device", "cpu"]) == 0
    assert capsys.readouterr().err == ""
    assert load(out).config == finished_run.config
    assert load(out).metrics == finished_run.metrics
    assert load(out).evaluation == finished_run.evaluation


def test_flags_reach_the_configuration_whatever_the_start(tmp_path: Path) -> None:
    from anchor_interp import cli

    for preset in RUNS:
        parsed = cli._parse(["train", "--preset", preset, "--out", "x", "--n-layers", "3"])
        assert isinstance(parsed, cli.Train)
        assert parsed.configuration() == override(RUNS[preset], n_layers=3)
    flags = ["--task", "neurips", "--clip", "None", "--split", "every-position", "--key-min", "30"]
    parsed = cli._parse(["train", "--out", "x", *flags])
    assert isinstance(parsed, cli.Train)
    assert parsed.configuration() == override(
        RUNS["tiny"], task=TASKS["neurips"], clip=None, split="every-position", key_min=30
    )


def test_presets(capsys: Capture) -> None:
    assert main(["presets"]) == 0
    text = capsys.readouterr().out
    for name in (*RUNS, *TASKS):
        assert name in text
    assert main(["presets", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert set(listed) == {"runs", "models", "tasks"}
    assert set(listed["models"]) == set(MODELS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "quickstart, train, evaluate, presets"),
        (["trian"], "trian"),
        (["train"], "--out"),
        (["train", "--out", "x", "--gamma", "9"], "--gamma is 9.0; expected at most 4"),
        (["train", "--out", "x", "--gamma", "abc"], "--gamma"),
        (["train", "--out", "x", "--gamm", "1"], "--gamm"),
        (["train", "--out", "x", "--steps", "1.5"], "--steps"),
        (["train", "--out", "x", "--act-fn", "elu"], "'elu'"),
        (["train", "--out", "x", "--preset", "tinny"], "did you mean 'tiny'"),
        (["train", "--out", "x", "--preset"], "--preset"),
        (["train", "--out", "x", "--task", "neurip"], "did you mean 'neurips'"),
        (["train", "--out", "x", "--config", "/missing.json"], "cannot read the configuration"),
        (["train", "--out", "x", "--config", ""], "cannot read the configuration"),
        (["train", "--out", "x", "--preset", ""], "no preset is called ''"),
        (["train", "--out", "x", "--device", "meta"], "expected cpu, cuda or mps"),
        (["train", "--out", "x", "--threads", "99999"], "expected 1 to 1024"),
        (["train", "--out", "x", "--lr", "inf"], "--lr is inf; expected a finite number"),
        (["train", "--out", "x", "--config", "a", "--preset", "tiny"], "use one of them"),
        (["train", "--out", "x", "--eval-every", "30"], "multiple of log_every"),
        (["train", "--out", "x", "--d-vocab", "50"], "need at least 110"),
        (["train", "--out", "x", "--device", "gpu"], "device is 'gpu'"),
        (["train", "--out", "x", "--threads", "0"], "threads is 0"),
        (["evaluate"], "run folder"),
        (["evaluate", "x", "--n", "many"], "--n"),
        (["quickstart", "--workers", "0"], "workers is 0"),
        (["quickstart", "--seed", "-1"], "seed is -1"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("anchor-interp: ")
    assert message in lines[0]
    assert "__" not in lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "/missing"], "/missing is no run folder"),
        (["evaluate", "{run}", "--step", "7"], "no checkpoint at step 7"),
        (["train", "--out", "{run}"], "holds another run"),
        (["train", "--out", "{run}/config.json"], "is a file"),
    ],
)
def test_trouble_at_run_time_is_one_line_and_exit_code_1(
    arguments: list[str], message: str, capsys: Capture, finished_run: Run
) -> None:
    assert main([text.format(run=finished_run.path) for text in arguments]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_usage_errors_are_one_plain_line_on_a_terminal(tmp_path: Path) -> None:
    """The parser colours and frames its messages for a terminal; the user sees one line."""
    shown, terminal = pty.openpty()
    command = [sys.executable, "-m", "anchor_interp", "train", "--gama", "1", "--out", "q"]
    done = subprocess.run(command, stdout=terminal, stderr=terminal, cwd=tmp_path, check=False)
    os.close(terminal)
    text = os.read(shown, 65536).decode()
    os.close(shown)
    assert done.returncode == 2
    expected = "Unrecognized options: --gama, 1; see anchor-interp train --help"
    assert text.strip() == f"anchor-interp: {expected}"


def test_a_full_disk_behind_standard_output_is_one_line(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "anchor_interp", "presets"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr.split("Exception ignored")[0]


def test_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == anchor_interp.__version__


def test_help_of_a_preset_shows_its_defaults(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "--preset", "paper-1head", "--help"])
    assert not stop.value.code
    text = capsys.readouterr().out
    assert "92285" in text
    assert "d-mlp" in text


def test_the_stored_phase_is_the_recomputed_one(finished_run: Run, short: RunConfig) -> None:
    assert finished_run.config == short
    assert finished_run.phase == decide(finished_run.evaluate()).phase
    result = finished_run.folder.result()
    assert result is not None
    assert (result["phase"], result["reason"]) == (finished_run.phase, finished_run.reason)
