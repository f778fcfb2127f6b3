"""The command line: flags reach the work, data on stdout, messages on stderr, exit codes."""

import contextlib
import json
import logging
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from short import SHORT

import anchor_interp
from anchor_interp._util import progress
from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import to_dict
from anchor_interp.cli.main import command_line, main
from anchor_interp.models.shapes import MODELS
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.presets import RUNS
from anchor_interp.runs.run import Run, load
from anchor_interp.sweeps.spec import SWEEPS, parse_sweep, read_sweep
from anchor_interp.tasks.anchor import TASKS
from anchor_interp.tasks.catalog import NAMED_TASKS

FLAGS = [
    text for name, value in SHORT.items() for text in (f"--{name.replace('_', '-')}", str(value))
]
NAMES = [name for name in command_line() if not name.startswith("-")]
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def _json(capsys: Capture) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def asked_for(patch: Patch, arguments: Sequence[str]) -> tuple[RunConfig, Path]:
    """The configuration and the folder that a command line of ``train`` asks for."""
    seen: list[tuple[RunConfig, Path]] = []

    def record(config: RunConfig, out: Path, **_: Any) -> None:
        seen.append((config, out))
        raise ConfigError("recorded")

    patch.setattr("anchor_interp.runs.train.train", record)
    assert main(["train", *arguments]) == 2
    ((config, out),) = seen
    return config, out


def test_train_then_evaluate(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr(progress, "LATE_SECONDS", -1)
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
    found = _json(capsys)
    assert found["phase"] == "undertrained"
    assert found["steps"] == 40
    assert found["symmetric_accuracy"] is None
    assert found["config"] == to_dict(config)
    assert len(found["pair_accuracy"]) == 16

    assert main(["evaluate", str(out), "--step", "0", "--n", "20"]) == 0
    text = capsys.readouterr().out
    assert "at step 0: undertrained" in text
    assert re.search(r"  unseen test keys       [\d.]+\n", text)
    assert re.search(r"\(4, 3\) +unseen +\d\.\d{3} +\d\.\d{3}$", text, re.M)


def test_flags_change_any_start(monkeypatch: Patch, finished_run: Run) -> None:
    # the experiments name two more, if a test loads them
    for preset in sorted(set(RUNS) - {"concepts", "paper-concepts"}):
        config, _ = asked_for(monkeypatch, ["--preset", preset, "--out", "x", "--gamma", "0.61"])
        assert config == override(RUNS[preset], gamma=0.61)
    flags = ["--task", "neurips", "--clip", "None", "--split", "every-position", "--key-min", "30"]
    config, _ = asked_for(monkeypatch, ["--out", "x", *flags])
    assert config == override(
        RUNS["tiny"], task=TASKS["neurips"], clip=None, split="every-position", key_min=30
    )
    flags = ["--schedule", "900", "1e-3", "1", "--schedule", "1800", "5e-4", "1e-2"]
    config, _ = asked_for(monkeypatch, ["--out", "x", *flags])
    assert config == override(RUNS["tiny"], schedule=((900, 1e-3, 1.0), (1800, 5e-4, 0.01)))
    config, _ = asked_for(monkeypatch, ["--preset=paper-gpt2", "--out", "x", "--no-bias"])
    assert config == override(RUNS["paper-gpt2"], bias=False)
    own = str(finished_run.folder.path / "config.json")
    assert asked_for(monkeypatch, ["--config", own, "--out", "x"])[0] == finished_run.config


@pytest.mark.parametrize("none", ["None", "none", "null"])
def test_every_spelling_of_none_is_none(none: str, monkeypatch: Patch) -> None:
    flags = ["--clip", none, "--task", none, "--preset", none, "--config", none, "--threads", none]
    config, _ = asked_for(monkeypatch, ["--out", "x", *flags])
    assert config == override(RUNS["tiny"], clip=None)


def test_values_may_look_like_flags(monkeypatch: Patch) -> None:
    config, out = asked_for(monkeypatch, ["--out=--odd", "--gamma_qk", "-1e-3", "--gamma", "-.5"])
    assert out == Path("--odd")
    assert (config.init.gamma_qk, config.init.gamma) == (-0.001, -0.5)
    arguments = ["evaluate", "--n", "5", "--", "--run"]
    _, bound, _ = command_line(arguments).parse_args(arguments)
    assert bound.arguments == {"run": Path("--run"), "n": 5}


def test_axes_may_stand_before_and_after_flags() -> None:
    arguments = ["sweep", "tiny", "gamma=0.3,0.5", "--out", "x", "lr=0.01", "--seeds", "2"]
    _, bound, _ = command_line(arguments).parse_args(arguments)
    expected = {"spec": "tiny", "axes": ("gamma=0.3,0.5", "lr=0.01"), "out": Path("x"), "seeds": 2}
    assert bound.arguments == expected


def test_presets(capsys: Capture) -> None:
    assert main(["presets"]) == 0
    text = capsys.readouterr().out
    for name in (*RUNS, *NAMED_TASKS, *SWEEPS):
        assert name in text
    assert main(["presets", "--json"]) == 0
    listed = _json(capsys)
    assert set(listed["models"]) == set(MODELS)
    assert parse_sweep(listed["sweeps"]["tiny-decay"]) == read_sweep(SWEEPS["tiny-decay"])


def test_help_of_the_program_lists_the_commands(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    assert re.findall(r"^│ ([a-z]+) ", capsys.readouterr().out, re.MULTILINE) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_help_lists_every_flag_once(name: str, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([name, "--help"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "\x1b" not in captured.out
    listed = re.findall(r"^│ [* ]*(--[a-z].*?)(?=  |$)", captured.out, re.MULTILINE)
    shown = re.findall(r"--[a-z][a-z0-9-]*", " ".join(listed))
    arguments = command_line([name])[name].assemble_argument_collection()
    flags = {n for a in arguments if a.show for n in a.names if n.startswith("--")}
    assert len(shown) == len(set(shown))
    assert set(shown) == flags


@pytest.mark.parametrize(("columns", "width"), [("0", 80), ("1", 20), ("30", 30), ("9" * 12, 1000)])
def test_help_ends_at_any_width(
    columns: str, width: int, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["sweep", "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) == width


def test_help_of_train_shows_the_defaults_of_its_start(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["train", "--preset", "paper-gpt2", "--help"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"--d-model INT +Width of the residual stream\. \[default: 640\]", text)
    assert "[default: 92285]" in text
    fields = [f for part in (RUNS["tiny"].model, RUNS["tiny"].train) for f in to_dict(part)]
    assert all(f"--{field.replace('_', '-')} " in text for field in fields)


def test_json_is_one_object_alone(
    tmp_path: Path, finished_run: Run, capsys: Capture, monkeypatch: Patch
) -> None:
    out = str(finished_run.folder.path)
    again = ["--config", f"{out}/config.json", "--device", "cpu", "--out", out]
    assert main(["train", *again, "--json"]) == 0
    trained = _json(capsys)
    assert main(["evaluate", out, "--json"]) == 0
    assert _json(capsys) == trained
    assert trained["run_id"] == anchor_interp.run_id(finished_run.config)
    monkeypatch.setattr(
        "anchor_interp.cli.quickstart.train_phases", lambda *_, **__: {"a": finished_run}
    )
    assert main(["quickstart", "--out", "q", "--json"]) == 0
    files = {"picture": "q/answers.png", "report": "q/report.html", "ask": "q/ask.html"}
    assert _json(capsys) == {"runs": {"a": trained}, **files}
    path = tmp_path / "deep/w"
    assert main(["export", out, "--out", str(path), "--step", "10", "--json"]) == 0
    written = {"run": out, "run_id": trained["run_id"], "step": 10, "weights": str(path)}
    assert _json(capsys) == written
    exported = anchor_interp.load_transformer(path)
    assert torch.equal(exported.W_E, finished_run.at(10).model.W_E)


def test_the_documented_json_keys_are_the_printed_ones(finished_run: Run, capsys: Capture) -> None:
    page = (Path(__file__).parents[2] / "docs/command-line.md").read_text()
    for name, arguments in {
        "evaluate": ["evaluate", str(finished_run.folder.path)],
        "presets": ["presets"],
        "doctor": ["doctor", "--out", str(finished_run.folder.path)],
    }.items():
        main([*arguments, "--json"])
        if row := re.search(rf"^\| `{name}` \| (.+) \|$", page, re.MULTILINE):
            documented = re.findall(r"`(\w+)`", row[1])
        else:
            section = page.split(f"### {name}\n", 1)[1].split("\n### ", 1)[0]
            documented = re.findall(r"^\| `(\w+)`", section, re.MULTILINE)
        assert documented == list(_json(capsys)), name


def test_quiet_and_verbose_choose_the_messages(
    tmp_path: Path, finished_run: Run, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setattr(progress, "LATE_SECONDS", -1)

    def resumed(*flags: str) -> str:
        out = tmp_path / "-".join(["run", *flags])
        shutil.copytree(finished_run.folder.path, out)
        (out / "result.json").unlink()
        shutil.rmtree(out / "checkpoints/00000040")  # the only one to go on from
        config = str(out / "config.json")
        common = ["--config", config, "--out", str(out), "--device", "cpu", "--threads", "1"]
        assert main(["train", *common, *flags]) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith(f"{out}: undertrained")
        return captured.err

    plain, quiet, verbose = resumed(), resumed("--quiet"), resumed("--verbose")
    warning = "anchor-interp: warning: the checkpoint at step 30 lacks its optimizer state"
    assert quiet.startswith(warning)
    assert quiet.count("\n") == 1
    assert warning in plain
    assert "continuing at step 0 of 40" in plain
    assert "checkpoint at step 20" not in plain
    assert "checkpoint at step 20" in verbose


def test_the_library_prints_nothing_unless_asked(
    tmp_path: Path, finished_run: Run, capfd: pytest.CaptureFixture[str], monkeypatch: Patch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # as in a user's program
    out = tmp_path / "run"
    shutil.copytree(finished_run.folder.path, out)
    (out / "result.json").unlink()
    anchor_interp.train(finished_run.config, out, threads=1, quiet=True)
    assert capfd.readouterr() == ("", "")
    assert len(load(out).folder.provenance()) == 2


def test_an_unexpected_error_is_one_line_and_verbose_shows_its_place(
    capsys: Capture, monkeypatch: Patch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("two\nlines \x1b[31m")

    monkeypatch.setattr("anchor_interp.cli.doctor._machine", broken)
    assert main(["doctor"]) == 1
    error = capsys.readouterr().err
    assert error.splitlines() == [
        "anchor-interp: unexpected RuntimeError: two lines \\x1b[31m; --verbose shows where"
    ]
    assert main(["doctor", "--verbose"]) == 1
    assert "in broken" in capsys.readouterr().err


def on_a_terminal(arguments: list[str], patch: Patch) -> tuple[int, str]:
    """What a command shows on a terminal, which invites libraries to colour and to frame."""
    shown, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream, patch.context() as streams:
        streams.setattr("sys.stdout", stream)
        streams.setattr("sys.stderr", stream)
        code = main(arguments)
    parts = []
    with contextlib.suppress(OSError):  # EIO: all has been read
        while part := os.read(shown, 65536):
            parts.append(part)
    os.close(shown)
    return code, b"".join(parts).decode()


def test_wrong_usage_is_one_plain_line_on_a_terminal(monkeypatch: Patch) -> None:
    code, text = on_a_terminal(["train", "--out", "q", "--gama", "1"], monkeypatch)
    assert code == 2
    expected = "Unknown option: --gama. Did you mean --gamma? See anchor-interp train --help."
    assert text.strip() == f"anchor-interp: {expected}"


@pytest.mark.parametrize(
    ("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_are_for_terminals_that_want_them(
    variables: dict[str, str], coloured: bool, monkeypatch: Patch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in ({"TERM": "xterm-256color"} | variables).items():
        monkeypatch.setenv(name, value)
    code, text = on_a_terminal(["presets", "--help"], monkeypatch)
    assert code == 0
    assert "--json" in text
    assert ("\x1b[" in text) == coloured


def test_a_full_disk_behind_standard_output_is_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    command = [sys.executable, "-m", "anchor_interp", "presets"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == b"anchor-interp: [Errno 28] No space left on device\n"


def test_a_reader_that_leaves_early_is_not_an_error() -> None:
    for arguments, unbuffered in ((["presets", "--json"], ""), (["completion", "bash"], "1")):
        command = [sys.executable, "-m", "anchor_interp", *arguments]
        environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment)
        os.close(writer)
        assert (done.returncode, done.stderr) == (1, b""), arguments


def test_closed_standard_streams_are_not_an_error() -> None:
    command = f"{sys.executable} -m anchor_interp presets >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 0


def test_the_program_lets_idle_threads_sleep() -> None:
    code = "import os; os.environ.pop('OMP_WAIT_POLICY', None); import sys; sys.argv[1:] = "
    code += "['--version']; import anchor_interp.__main__ as program; program.main();"
    code += "print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [anchor_interp.__version__, "PASSIVE", "False"]


@pytest.mark.parametrize(
    ("term", "shown"),
    [("xterm", r"40/40.*loss .*sequences/s"), ("dumb", r"^run: step 40/40  loss .*/s\r$")],
)
def test_progress_is_bars_on_a_terminal_and_lines_on_a_dumb_one(
    term: str, shown: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(progress, "LATE_SECONDS", -1)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "120")
    out = ["--out", str(tmp_path / "run"), "--threads", "1", "--device", "cpu"]
    code, text = on_a_terminal(["train", *FLAGS, *out], monkeypatch)
    assert code == 0
    assert ("\x1b[" in text) == (term == "xterm")
    assert re.search(shown, text, re.M)
