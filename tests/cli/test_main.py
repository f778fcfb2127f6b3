"""The command line in process: data on stdout, messages on stderr, exit codes, wrong input."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from short import SHORT

import anchor_interp
from anchor_interp._util.progress import reporting
from anchor_interp._util.schema import to_dict
from anchor_interp.cli import main as cli
from anchor_interp.cli.commands import COMMANDS, Evaluate, Presets, Train
from anchor_interp.cli.flags import flags_of
from anchor_interp.cli.main import main
from anchor_interp.models.shapes import MODELS
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.phase import decide
from anchor_interp.runs.presets import RUNS
from anchor_interp.runs.run import Run, load
from anchor_interp.sweeps.spec import SWEEPS, parse_sweep, read_sweep
from anchor_interp.tasks.anchor import TASKS

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
        "run", "run_id", "phase", "train_accuracy", "id_accuracy", "ood_accuracy",
        "symmetric_accuracy",
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
    config = finished_run.folder.path / "config.json"
    out = tmp_path / "again"
    command = ["train", "--config", str(config), "--out", str(out), "--quiet"]
    assert main([*command, "--threads", "1", "--device", "cpu"]) == 0
    assert capsys.readouterr().err == ""
    assert load(out).config == finished_run.config
    assert load(out).metrics == finished_run.metrics
    assert load(out).evaluation == finished_run.evaluation


def test_flags_reach_the_configuration_whatever_the_start(tmp_path: Path) -> None:
    for preset in RUNS:
        parsed = cli._parse(["train", "--preset", preset, "--out", "x", "--n-layers", "3"])
        assert isinstance(parsed, Train)
        assert parsed.configuration() == override(RUNS[preset], n_layers=3)
    flags = ["--task", "neurips", "--clip", "None", "--split", "every-position", "--key-min", "30"]
    parsed = cli._parse(["train", "--out", "x", *flags])
    assert isinstance(parsed, Train)
    assert parsed.configuration() == override(
        RUNS["tiny"], task=TASKS["neurips"], clip=None, split="every-position", key_min=30
    )


def test_presets(capsys: Capture) -> None:
    assert main(["presets"]) == 0
    text = capsys.readouterr().out
    for name in (*RUNS, *TASKS, *SWEEPS):
        assert name in text
    assert main(["presets", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert set(listed) == {"runs", "models", "tasks", "sweeps"}
    assert set(listed["models"]) == set(MODELS)
    tiny = parse_sweep(listed["sweeps"]["tiny-decay"])
    assert tiny == read_sweep(SWEEPS["tiny-decay"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no command; commands: quickstart, train, evaluate"),
        (["trian"], "no command is called 'trian' (did you mean 'train'?)"),
        (["--quiet", "train"], "no command is called '--quiet'"),
        (["train"], "--out is missing; expected a path; see anchor-interp train --help"),
        (["train", "--out"], "--out has no value; expected a path"),
        (["train", "--out", "--quiet"], "--out has no value"),
        (["train", "--out="], "--out is ''; expected a path"),
        (["train", "--out", "a\0b"], "expected a path"),
        (["train", "--out", "x", "--gama", "1"], "unknown option --gama (did you mean '--gamma'?)"),
        (["train", "--out", "x", "-gamma", "1"], "unknown option -gamma (did you mean '--gamma'?)"),
        (["train", "--out", "x", "--\x1b[31mred"], "unknown option '--\\x1b[31mred'"),
        (["train", "--out", "x", "--gamma", "1", "--gamma", "2"], "--gamma is given twice"),
        (["train", "--out", "x", "--bias", "--no-bias"], "--no-bias is given twice"),
        (["train", "--out", "x", "--gamma", "9"], "--gamma is 9.0; expected at most 4"),
        (["train", "--out", "x", "--gamma", "abc"], "--gamma is 'abc'; expected a number"),
        (["train", "--out", "x", "--steps", "abc"], "--steps is 'abc'; expected an integer"),
        (["train", "--out", "x", "--steps", "1.5"], "--steps is '1.5'; expected an integer"),
        (["train", "--out", "x", "--steps", "9" * 5000], "expected an integer"),
        (["train", "--out", "x", "--seed="], "--seed is ''; expected an integer"),
        (["train", "--out", "x", "--n_sequences", "0"], "--n-sequences is 0; expected at least 1"),
        (["train", "--out", "x", "--clip", "lots"], "--clip is 'lots'; expected a number or none"),
        (["train", "--out", "x", "--clip", "0"], "--clip is 0.0; expected more than 0"),
        (["train", "--out", "x", "--act-fn", "elu"], "--act-fn is 'elu'; expected one of 'relu'"),
        (["train", "--out", "x", "--bias", "yes"], "unexpected argument 'yes'"),
        (["train", "--out", "x", "--bias=yes"], "--bias takes no value"),
        (["train", "--out", "x", "--preset", "tinny"], "did you mean 'tiny'"),
        (["train", "--out", "x", "--preset"], "--preset has no value; expected a name"),
        (["train", "--out", "x", "--preset", ""], "--preset is ''; expected a name"),
        (["train", "--out", "x", "--task", "neurip"], "did you mean 'neurips'"),
        (["train", "--out", "x", "--config", "/missing.json"], "cannot read the configuration"),
        (["train", "--out", "x", "--config", ""], "--config is ''; expected a path or none"),
        (["train", "--out", "x", "--config", "a", "--preset", "tiny"], "use one of them"),
        (["train", "--out", "x", "--device", "meta"], "expected auto, cpu, cuda"),
        (["train", "--out", "x", "--device", "gpu"], "--device is 'gpu'"),
        (["train", "--out", "x", "--threads", "0"], "--threads is 0; expected 1 to 1024"),
        (["train", "--out", "x", "--threads", "99999"], "--threads is 99999; expected 1 to 1024"),
        (["train", "--out", "x", "--lr", "inf"], "--lr is inf; expected a finite number"),
        (["train", "--out", "x", "--eval-every", "30"], "expected a multiple of --log-every (20)"),
        (["train", "--out", "x", "--d-vocab", "50"], "--d-vocab is 50; the task's tokens"),
        (["train", "--out", "x", "--key-min", "200"], "--key-max is 99; expected more than"),
        (["train", "--out", "x", "--track", "tensorbord"], "did you mean 'tensorboard'"),
        (["train", "--out", "x", "--quiet", "--verbose"], "contradict each other"),
        (["evaluate"], "RUN is missing; expected a path"),
        (["evaluate", "x", "y"], "unexpected argument 'y'"),
        (["evaluate", "x", "--n", "many"], "--n is 'many'; expected an integer"),
        (["evaluate", "{run}", "--n", "0", "--quiet"], "--n is 0; expected 1 to"),
        (["export", "x"], "--out is missing"),
        (["presets", "--json=1"], "--json takes no value"),
        (["completion", "ksh"], "SHELL is 'ksh'; expected one of 'bash', 'zsh', 'fish'"),
        (["quickstart", "--workers", "0"], "--workers is 0; expected at least 1"),
        (["quickstart", "--workers", "1.5"], "--workers is '1.5'; expected an integer or none"),
        (["quickstart", "--seed", "-1"], "seed is -1"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    finished_run: Run,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([text.format(run=finished_run.folder.path) for text in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert captured.err.isascii()
    assert captured.err.strip().isprintable()
    assert len(captured.err) < 400
    assert lines[0].startswith("anchor-interp: ")
    assert message in lines[0]
    assert not re.search(r"__|\b[A-Z]\w+Config\b", lines[0])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "/missing"], "/missing is not a run folder"),
        (["evaluate", "{run}", "--step", "7"], "no checkpoint at step 7"),
        (["train", "--out", "{run}"], "holds another run"),
        (["train", "--out", "{run}/config.json"], "is a file"),
    ],
)
def test_trouble_at_run_time_is_one_line_and_exit_code_1(
    arguments: list[str], message: str, capsys: Capture, finished_run: Run
) -> None:
    assert main([text.format(run=finished_run.folder.path) for text in arguments]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_usage_errors_are_one_plain_line_on_a_terminal(tmp_path: Path) -> None:
    """A terminal invites libraries to colour and frame their messages."""
    shown, terminal = pty.openpty()
    command = [sys.executable, "-m", "anchor_interp", "train", "--gama", "1", "--out", "q"]
    done = subprocess.run(command, stdout=terminal, stderr=terminal, cwd=tmp_path, check=False)
    os.close(terminal)
    text = os.read(shown, 65536).decode()
    os.close(shown)
    assert done.returncode == 2
    expected = "unknown option --gama (did you mean '--gamma'?); see anchor-interp train --help"
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
    assert main(["train", "--preset", "paper-1head", "--help"]) == 0
    text = capsys.readouterr().out
    assert "92285" in text
    assert "d-mlp" in text


def test_the_stored_phase_is_the_recomputed_one(finished_run: Run, short: RunConfig) -> None:
    assert finished_run.config == short
    assert finished_run.phase == decide(finished_run.evaluate()).phase
    result = finished_run.folder.result()
    assert result is not None
    assert (result["phase"], result["reason"]) == (finished_run.phase, finished_run.reason)


def _json(capsys: Capture) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_none_and_null_mean_the_same(tmp_path: Path) -> None:
    for text in ("None", "none", "null"):
        parsed = cli._parse(["train", "--out", "x", "--clip", text, "--task", text])
        assert isinstance(parsed, Train)
        assert parsed.configuration() == override(RUNS["tiny"], clip=None)


def test_values_may_look_like_flags() -> None:
    parsed = cli._parse(["train", "--out=--odd", "--gamma_qk", "-1e-3", "--gamma", "-.5"])
    assert isinstance(parsed, Train)
    assert parsed.out == Path("--odd")
    assert (parsed.init.gamma_qk, parsed.init.gamma) == (-0.001, -0.5)
    found = cli._parse(["evaluate", "--n", "5", "--", "--run"])
    assert isinstance(found, Evaluate)
    assert (found.run, found.n) == (Path("--run"), 5)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lists_the_flags_that_are_parsed(name: str, capsys: Capture) -> None:
    assert main([name, "--help"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "\x1b" not in captured.out
    listed = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", captured.out.split("options", 1)[1]))
    flags = [flag for flag in flags_of(COMMANDS[name]) if not flag.positional]
    assert listed - {"--help"} == {text for flag in flags for text in flag.spellings}


def test_help_of_the_program_lists_the_commands(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


def test_json_is_one_object_alone(
    tmp_path: Path, finished_run: Run, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(finished_run.folder.path)
    again = ["--config", f"{out}/config.json", "--device", "cpu", "--out", out]
    assert main(["train", *again, "--json"]) == 0
    trained = _json(capsys)
    assert main(["evaluate", out, "--json"]) == 0
    assert _json(capsys) == trained
    assert trained["run_id"] == anchor_interp.run_id(finished_run.config)
    monkeypatch.setattr(
        "anchor_interp.cli.quickstart.quickstart", lambda *_, **__: {"a": finished_run}
    )
    assert main(["quickstart", "--out", "q", "--json"]) == 0
    files = {"picture": "q/overview.png", "report": "q/report.html"}
    assert _json(capsys) == {"runs": {"a": trained}, **files}
    assert main(["export", out, "--out", str(tmp_path / "w"), "--json"]) == 0
    written = {"run": out, "run_id": trained["run_id"], "step": 40, "weights": str(tmp_path / "w")}
    assert _json(capsys) == written


def test_an_error_under_json_is_one_line_on_standard_error(capsys: Capture) -> None:
    assert main(["evaluate", "/missing", "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("anchor-interp: /missing is not a run folder")


def test_the_documented_json_keys_are_the_printed_ones(finished_run: Run, capsys: Capture) -> None:
    page = (Path(__file__).parents[2] / "docs/command-line.md").read_text()
    for name, arguments in {
        "evaluate": ["evaluate", str(finished_run.folder.path)],
        "presets": ["presets"],
        "doctor": ["doctor", "--out", str(finished_run.folder.path)],
    }.items():
        main([*arguments, "--json"])
        section = page.split(f"### {name}\n", 1)[1].split("\n### ", 1)[0]
        documented = re.findall(r"^\| `(\w+)`", section, re.MULTILINE)
        assert documented == list(_json(capsys)), name


def test_quiet_and_verbose_choose_the_messages(
    tmp_path: Path, finished_run: Run, capsys: Capture
) -> None:
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


def test_the_library_says_nothing_unless_asked(tmp_path: Path, short: RunConfig) -> None:
    code = (
        "import sys, anchor_interp as ai; from anchor_interp.runs.config import read_config;"
        "from pathlib import Path; config = read_config(Path(sys.argv[1]));"
        "ai.train(config, sys.argv[2], threads=2, quiet=True)"
    )
    out = tmp_path / "run"
    anchor_interp.train(short, out, device="cpu", threads=1, quiet=True)
    (out / "result.json").unlink()
    command = [sys.executable, "-c", code, str(out / "config.json"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert len(load(out).folder.provenance()) == 2


def test_an_unexpected_error_is_one_line_and_its_place_on_request(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_command: object) -> None:
        raise RuntimeError("two\nlines \x1b[31m")

    monkeypatch.setitem(cli._RUN, Presets, broken)
    assert main(["presets"]) == 1
    error = capsys.readouterr().err
    assert error.splitlines() == [
        "anchor-interp: unexpected RuntimeError: two lines \\x1b[31m; --verbose shows where"
    ]
    assert main(["presets", "--verbose"]) == 1
    assert "in broken" in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    for arguments in (["presets", "--json"], ["train", "--help"], ["completion", "bash"]):
        command = [sys.executable, "-m", "anchor_interp", *arguments]
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
        os.close(writer)
        assert (done.returncode, done.stderr) == (1, b""), arguments


def test_closed_standard_streams_are_no_error() -> None:
    command = f"{sys.executable} -m anchor_interp presets >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 0


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals_that_want_them(
    variables: dict[str, str], coloured: bool
) -> None:
    shown, terminal = pty.openpty()
    command = [sys.executable, "-m", "anchor_interp", "presets", "--help"]
    environment = {**os.environ, "TERM": "xterm-256color", **variables}
    subprocess.run(command, stdout=terminal, stderr=terminal, check=True, env=environment)
    os.close(terminal)
    text = os.read(shown, 65536).decode()
    os.close(shown)
    assert "--json" in text
    assert ("\x1b[" in text) == coloured


def test_progress_is_bars_on_a_terminal_and_lines_on_a_dumb_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kind(term: str, *, terminal: bool = True, quiet: bool = False) -> str:
        with monkeypatch.context() as patch:
            patch.setenv("TERM", term)
            patch.setattr("sys.stderr.isatty", lambda: terminal)
            with reporting({"a": (10, 2)}, quiet=quiet) as progress:
                return type(progress["a"]).__name__

    assert kind("xterm") == "Bar"
    assert kind("dumb") == "Plain"
    assert kind("xterm", terminal=False) == "Plain"
    assert kind("xterm", quiet=True) == "Silent"
