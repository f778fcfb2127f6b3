"""Wrong usage: one line, exit code 2, nothing written, and no torch where it is not needed."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anchor_interp._util.schema import to_dict
from anchor_interp.cli.main import main
from anchor_interp.runs.presets import RUNS
from anchor_interp.runs.run import Run


def _with(**changes: Any) -> str:
    return json.dumps(to_dict(RUNS["tiny"]) | changes)


FILES = {
    "empty.json": "",
    "field.json": _with(train={"stepz": 3}),
    "escape.json": _with(train={"precision": "\x1b[31m\nfp8"}),
}

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
TRAIN = ["train", "--out", "run"]
SWEEP = ["sweep", "tiny", "--out", "x"]

WITHOUT_TORCH: list[tuple[list[str], str]] = [
    ([], "no command; expected one of quickstart, train, evaluate"),
    (["trian"], 'Unknown command "trian". Did you mean "train"?'),
    ([*TRAIN, "--quiet", "--verbose"], "Mutually exclusive arguments: {--quiet, --verbose}"),
    (["--quiet", "train"], 'Unknown command "--quiet"'),
    (["train"], "--out is missing. Expected: --out OUT. See anchor-interp train --help."),
    (["evaluate"], "RUN is missing. Expected: The run folder, or a name of the zoo"),
    (["train", "--out"], "--out requires an argument"),
    (["train", "--out", "--quiet"], "--out requires an argument"),
    (["train", "--out="], "--out is ''; expected a value"),
    (["train", "--out", "a\0b"], r"--out is 'a\x00b'; expected a value"),
    ([*TRAIN, "--gama", "1"], "Unknown option: --gama. Did you mean --gamma?"),
    ([*TRAIN, "-gamma", "1"], "Unknown option: -gamma."),
    ([*TRAIN, "--\x1b[31mred"], r"Unknown option: --\x1b[31mred."),
    ([*TRAIN, "--gamma", "1", "--gamma", "2"], "--gamma specified multiple times"),
    ([*TRAIN, "--bias", "--no-bias"], "--no-bias specified multiple times"),
    ([*TRAIN, "--gamma", "9"], "--gamma is 9.0; expected at most 4"),
    ([*TRAIN, "--gamma=nan"], "--gamma is nan; expected a finite number"),
    ([*TRAIN, "--lr", "0"], "--lr is 0.0; expected more than 0"),
    ([*TRAIN, "--gamma", "abc"], '--gamma: unable to convert "abc" into float'),
    ([*TRAIN, "--steps", "1.5"], "--steps is '1.5'; expected an integer"),
    ([*TRAIN, "--steps", "9" * 5000], "expected an integer"),
    ([*TRAIN, "--lr", "9" * 5000], "--lr is inf; expected a finite number"),
    ([*TRAIN, "--lr", "x" * 5000], "--lr: unable to convert"),
    ([*TRAIN, "--clip", "lots"], '--clip: unable to convert "lots" into float'),
    ([*TRAIN, "--schedule", "5", "1e-3"], "--schedule requires 3 positional arguments. Only got 2"),
    ([*TRAIN, *["--schedule", "5", "1e-3", "1"] * 2], "schedule[1].step is 5; expected more than"),
    ([*TRAIN, "--act-fn", "elu"], '"elu" for --act-fn. Choose from: "relu", "gelu".'),
    ([*TRAIN, "--bias", "yes"], "Unexpected argument 'yes'"),
    ([*TRAIN, "--bias=maybe"], '--bias: unable to convert "maybe" into bool'),
    ([*TRAIN, "--preset", "tinny"], 'Did you mean "tiny"?'),
    ([*TRAIN, "--preset"], "--preset requires an argument. See anchor-interp train --help."),
    ([*TRAIN, "--preset", ""], "--preset is ''; expected a value"),
    ([*TRAIN, "--task", "neurip"], 'Did you mean "neurips"?'),
    ([*TRAIN, "--track", "tensorbord"], 'Did you mean "tensorboard"?'),
    ([*TRAIN, "--d-vocab", "50"], "--d-vocab is 50; the task's tokens and targets need at least"),
    ([*TRAIN, "--preset", "scan", "--n-ctx", "20"], "--n-ctx is 20; the task's sequences have 58"),
    ([*TRAIN, "--key-min", "200"], "--key-max is 99; expected more than 200"),
    ([*TRAIN, "--config", "a", "--preset", "tiny"], "use one of them"),
    ([*TRAIN, "--config", ""], "--config is ''; expected a value"),
    ([*TRAIN, "--config", "missing.json"], "missing.json: No such file or directory"),
    ([*TRAIN, "--config", "."], "cannot read .: Is a directory"),
    ([*TRAIN, "--config", "empty.json"], "not valid JSON: Expecting value"),
    ([*TRAIN, "--config", "field.json"], "train has no field 'stepz' (did you mean 'steps'?)"),
    ([*TRAIN, "--config", "escape.json"], r"precision is '\x1b[31m\nfp8'"),
    (["evaluate", "x", "y"], "Unexpected argument 'y'"),
    (["evaluate", "x", "--n", "many"], "--n is 'many'; expected an integer"),
    (["export", "x"], "--out is missing. Expected: --out OUT. See"),
    (["report"], "RUNS is missing. Expected: The run folder"),
    (["status"], "SWEEP is missing. Expected: The sweep folder."),
    (["completion", "ksh"], '"ksh" for SHELL. Choose from: "bash", "zsh", "fish".'),
    ([*SWEEP, "--batch", "-1"], "--batch is -1; expected at least 0"),
    ([*SWEEP, "--gpus", "1"], "--gpus is for the ray engine"),
    ([*SWEEP, "gama=1"], "(did you mean 'gamma'?)"),
    ([*SWEEP, "gamma=0.5,-3"], "init.gamma is -3.0; expected at least -1"),
    ([*SWEEP, "steps=1:5,300"], "train.steps is '1:5'; expected an integer"),
    ([*SWEEP, "--seeds", "0"], "seeds is 0; expected at least 1"),
    ([*SWEEP, "--workers", "0"], "--workers is 0; expected at least 1"),
    ([*SWEEP, "--engine", "ray", "--gpus", "nan"], "--gpus is nan"),
    (["quickstart", "--workers", "1.5"], "--workers is '1.5'; expected an integer"),
    (["quickstart", "--seed", "-1"], "--seed is -1; expected at least 0"),
]

SCRIPT = """
import contextlib, io, json, sys
from anchor_interp.cli.main import main
def answer(arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()
print(json.dumps([answer(arguments) for arguments in json.load(sys.stdin)]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """The answers to all command lines in one process, where importing torch is an error."""
    stub = tmp_path_factory.mktemp("path")
    (stub / "torch.py").write_text("raise AssertionError('torch is not needed here')\n")
    folder = tmp_path_factory.mktemp("work")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    before = sorted(folder.rglob("*"))
    paths = [str(stub), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([arguments for arguments, _ in WITHOUT_TORCH]),
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "error"},
        check=True,
    )
    assert done.stderr == ""
    assert sorted(folder.rglob("*")) == before
    found = json.loads(done.stdout)
    return {repr(a): answer for (a, _), answer in zip(WITHOUT_TORCH, found, strict=True)}


def check(code: int, out: str, err: str, message: str, expected: int = 2) -> None:
    assert code == expected
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.isascii()
    assert err.strip().isprintable()
    assert len(err) < 700
    assert err.startswith("anchor-interp: ")
    assert message in err
    assert not re.search(r"__|\b[A-Z]\w+Config\b", err)


@pytest.mark.parametrize(("arguments", "message"), WITHOUT_TORCH)
def test_wrong_usage_is_one_line_and_needs_no_torch(
    arguments: list[str], message: str, answers: dict[str, tuple[int, str, str]]
) -> None:
    check(*answers[repr(arguments)], message)


@pytest.mark.parametrize(
    ("code", "arguments", "message"),
    [
        (2, [*TRAIN, "--device", "meta"], "--device is 'meta'"),
        (2, [*TRAIN, "--device", "gpu"], "--device is 'gpu', which cannot be used"),
        (2, [*TRAIN, "--threads", "0"], "--threads is 0; expected at least 1"),
        (2, [*TRAIN, "--threads", "99999"], "--threads is 99999; expected at most 1024"),
        (2, ["evaluate", "{run}", "--n", "0", "--quiet"], "--n is 0; expected at least 1"),
        (2, ["analyze", "{run}", "--out", "x", "--max-seconds", "-1"], "--max-seconds is -1.0"),
        (2, ["analyze", "{run}", "--out", "x", "--max-seconds", "nan"], "--max-seconds is nan"),
        (2, ["evaluate", "{run}", "--seed", "-1", "--quiet"], "--seed is -1; expected at least 0"),
        (2, ["quickstart", "--workers", "0"], "--workers is 0; expected at least 1"),
        (2, ["table", "{run}", "--csv", "--json"], "two forms of one output; use one of them"),
        (2, [*SWEEP, "--dry-run", "--workers", "0"], "--workers is 0"),
        (2, [*SWEEP, "--engine", "rya"], 'Choose from: "local", "ray"'),
        (2, [*SWEEP, "--engine", "ray", "--batch", "0"], "batch 0 is for"),
        (2, [*SWEEP, "--measure", "no_such:f"], "import the measure no_such:f"),
        (2, [*SWEEP, "--measure", "f"], "such as my_measures.py:norm"),
        (2, [*SWEEP, "unseen=[[3, 4]]"], "in a sweep file write [[3, 4], ...]"),
        (2, ["sweep", "tiny"], "--out is missing. Expected: --out OUT."),
        (1, ["evaluate", "/missing"], "/missing is"),
        (1, ["evaluate", "{run}", "--step", "7"], "no checkpoint at step 7"),
        (1, ["status", "nowhere"], "nowhere is not a sweep folder"),
        (1, ["evaluate", "{damaged}"], "config.json is damaged: not valid JSON"),
        (1, ["train", "--out", "{run}"], "holds another run"),
    ],
)
def test_what_only_torch_or_a_run_can_tell_is_one_line(
    code: int,
    arguments: list[str],
    message: str,
    capsys: Capture,
    monkeypatch: Patch,
    tmp_path: Path,
    finished_run: Run,
) -> None:
    """Exit code 2 is for wrong values, 1 for trouble at run time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    places = {"run": finished_run.folder.path, "damaged": tmp_path / "damaged"}
    found = main([text.format(**places) for text in arguments])
    check(found, *capsys.readouterr(), message, code)
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]


PLACES = [
    (["train"], "{file}", "is a file; name a folder for the run"),
    (["train"], "{file}/new", "lies in {file}, which is a file; name a folder for the run"),
    (["train"], "{run}/config.json", "is a file; name a folder for the run"),
    (["train"], "{sweep}", "is a sweep's folder; name another one for the run"),
    (["sweep", "tiny"], "{file}", "is a file; name a folder for the sweep"),
    (["sweep", "tiny"], "{file}/new", "lies in {file}, which is a file; name a folder for the swe"),
    (["sweep", "tiny"], "{run}", "is a run's folder; name another one for the sweep"),
    (["sweep", "tiny", "--dry-run"], "{run}", "is a run's folder; name another one for the sweep"),
    (["quickstart"], "{file}", "is a file; name a folder for the quickstart"),
    (["quickstart"], "{file}/new", "lies in {file}, which is a file; name a folder for the quick"),
    (["quickstart"], "{run}", "is a run's folder; name another one for the quickstart"),
    (["quickstart"], "{sweep}", "is a sweep's folder; name another one for the quickstart"),
    (["analyze", "{run}"], "{file}", "is a file; name a folder for the analysis"),
    (["analyze", "{run}"], "{file}/new", "lies in {file}, which is a file; name a folder for the"),
    (["diagram", "{sweep}"], "{file}", "is a file; name a folder for the diagrams"),
    (["diagram", "{sweep}"], "{run}", "is a run's folder; name another one for the diagrams"),
    (["ask", "{run}"], "{file}/new", "lies in {file}, which is a file; name another"),
    (["export", "{run}"], "{file}/new", "lies in {file}, which is a file; name another"),
    (["export", "{run}"], "{sweep}", "is a folder; name a file"),
    (["report", "{run}"], "{file}/new", "lies in {file}, which is a file; name another"),
    (["report", "{run}", "--pictures", "{file}"], "new", "is a file; name a folder for the pict"),
]


@pytest.mark.parametrize(("command", "out", "message"), PLACES)
def test_what_cannot_hold_the_output_is_refused_before_the_work(
    command: list[str],
    out: str,
    message: str,
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: Patch,
    finished_run: Run,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("file", "sweep/spec.yaml", "run/config.json"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("schema: 1\ngrids: [{preset: tiny}]")
    shutil.copytree(finished_run.folder.path, "finished")
    before = sorted(tmp_path.rglob("*"))
    for work in ("anchor_interp.runs.train.draw_training", "anchor_interp.pages.report.render"):
        monkeypatch.setattr(work, lambda *_: pytest.fail("work was begun"))
    names = {"file": "file", "run": "finished", "sweep": "sweep"}
    place = out.format(**names)
    arguments = [text.format(**names) for text in command]
    assert main([*arguments, "--out", place, "--quiet"]) == 1
    told = capsys.readouterr()
    named = arguments[-1] if "--pictures" in arguments else place
    assert told.err.startswith(f"anchor-interp: {named} {message.format(**names)}")
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert sorted(tmp_path.rglob("*")) == before
