"""Bad input to whole commands: one line, the right exit code, and nothing left behind.

Where torch is not needed to see what is wrong, a torch that cannot be imported stands in its place.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anchor_interp._util.schema import to_dict
from anchor_interp.cli.main import main
from anchor_interp.runs.presets import RUNS


@pytest.fixture(scope="module")
def no_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("path")
    (folder / "torch.py").write_text("raise AssertionError('torch is not needed here')\n")
    return folder


def refused(arguments: list[str], code: int, message: str, folder: Path, *first: Path) -> None:
    """Run a command and check that it is refused in one line and creates nothing."""
    before = sorted(folder.rglob("*"))
    paths = [*map(str, first), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-m", "anchor_interp", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("anchor-interp: ")
    assert message in lines[0]
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--n-sequences", "0", "is 0; expected at least 1"),
        ("--steps", "ten", "ten"),
        ("--lr", "nan", "is nan; expected a finite number"),
        ("--gamma", "9", "is 9.0; expected at most 4"),
        ("--batch-size", "999999999", "expected at most 16777216"),
        ("--weight-decay", "-1", "is -1.0; expected at least 0"),
        ("--d-vocab", "50", "is 50; the task's tokens and targets need at least 110"),
        ("--n-layers", "1" + "0" * 5_000, "n-layers"),
        ("--seed", "-1", "seed is -1; expected at least 0"),
        ("--key-max", "10", "is 10; expected more than"),
        ("--eval-every", "7", "is 7; expected a multiple of"),
        ("--preset", "tinny", "did you mean 'tiny'"),
        ("--task", "neurip", "did you mean 'neurips'"),
        ("--config", "missing.json", "missing.json: No such file or directory"),
        ("--config", ".", "not a regular file"),
    ],
)
def test_a_wrong_flag(flag: str, value: str, message: str, tmp_path: Path, no_torch: Path) -> None:
    refused(["train", "--out", "run", flag, value], 2, message, tmp_path, no_torch)


def _with(**changes: Any) -> str:
    return json.dumps(to_dict(RUNS["tiny"]) | changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is empty"),
        ("[" * 50_000, "nested too deeply"),
        (_with(seed=0)[:-1] + ', "seed": 1}', "the name 'seed' stands 2 times"),
        (_with(schema=2), "schema is 2; this version"),
        (_with(train={"stepz": 3}), "train has no field 'stepz' (did you mean 'steps'?)"),
        (_with(model={"d_model": 1 << 16, "n_layers": 1000}), "TiB of memory"),
        (_with(train={"precision": "\x1b[31m\nfp8"}), r"precision is '\x1b[31m\nfp8'"),
    ],
)
def test_a_wrong_configuration_file(
    text: str, message: str, tmp_path: Path, no_torch: Path
) -> None:
    (tmp_path / "wrong.json").write_text(text)
    arguments = ["train", "--out", "run", "--config", "wrong.json"]
    refused(arguments, 2, message, tmp_path, no_torch)


def test_a_pipe_is_not_waited_for(tmp_path: Path, no_torch: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    arguments = ["train", "--out", "run", "--config", "pipe"]
    refused(arguments, 2, "not a regular file", tmp_path, no_torch)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["evaluate", "missing"], 1, "missing is not a run folder"),
        (["train", "--out", "new", "--threads", "0"], 2, "threads is 0; expected 1 to 1024"),
        (["train", "--out", "new", "--device", "gpu"], 2, "device is 'gpu', which cannot be used"),
        (["evaluate", "run"], 1, "run/config.json is damaged: not valid JSON: Expecting property"),
    ],
)
def test_what_is_wrong_with_a_run(
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process: what is wrong shows only when torch is there, which takes long to load."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(arguments) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert told.err.startswith("anchor-interp: ")
    assert message in told.err
    assert sorted(tmp_path.rglob("*")) == before
