"""Shell completion: the shells accept the scripts, which complete commands, flags and values."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from anchor_interp.cli.main import command_line, main
from anchor_interp.runs.presets import RUNS
from anchor_interp.tasks.catalog import NAMED_TASKS

Capture = pytest.CaptureFixture[str]
SHELLS = ("bash", "zsh", "fish")
COMMANDS = {name for name in command_line() if not name.startswith("-")}
HELP = {"--help", "-h", "--version"}


def flags(name: str) -> set[str]:
    arguments = command_line()[name].assemble_argument_collection()
    return {flag for a in arguments for flag in a.names if flag.startswith("--")} | HELP


CASES = [
    ("tra", {"train"}),
    ("train --gamma-", {"--gamma-embed", "--gamma-qk", "--gamma-vo", "--gamma-mlp"}),
    ("train -", flags("train")),
    ("evaluate -", flags("evaluate")),
    ("train --act-fn ", {"relu", "gelu"}),
    ("train --preset ", set(RUNS)),
    ("train --task ", set(NAMED_TASKS)),
    ("train --out x --preset mem", {"memorizing"}),
    ("completion ", set(SHELLS)),
    ("doctor --j", {"--json"}),
]


def script(shell: str, capsys: Capture) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_accepts_its_script(shell: str, tmp_path: Path, capsys: Capture) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script(shell, capsys))
    command = [shell, "-n", str(tmp_path / "script")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_sourcing_the_zsh_script_registers_it(capsys: Capture) -> None:
    text = script("zsh", capsys)
    assert text.startswith("#compdef anchor-interp\n")
    name = text.splitlines()[-1].split()[1]
    assert text.endswith(f"\ncompdef {name} anchor-interp\n")
    assert f"\n{name}() {{\n" in text


def test_bash_completes(capsys: Capture) -> None:
    cases = [*CASES, ("", COMMANDS), ("train --preset = inf", {"inferential"}), ("no --", set())]
    lines = [script("bash", capsys), "function=$(complete -p anchor-interp | cut -d' ' -f3)"]
    for case, _ in cases:
        typed = " ".join(map(shlex.quote, ["anchor-interp", *case.split(" ")]))
        lines += [
            f"COMP_WORDS=({typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()",
            '$function; echo "${COMPREPLY[*]}"',
        ]
    command = ["bash", "--norc", "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    answers = [set(line.split()) for line in done.stdout.splitlines()]
    for (case, expected), answer in zip(cases, answers, strict=True):
        assert answer - HELP == expected - HELP, case


def test_fish_completes(tmp_path: Path, capsys: Capture) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    text = script("fish", capsys)
    for case, expected in CASES:
        line = shlex.quote(f"anchor-interp {case}")
        command = ["fish", "--no-config", "-c", f"{text}\ncomplete -C {line}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        answer = {text.split("\t")[0] for text in done.stdout.splitlines()}
        assert answer - HELP == expected - HELP, case
