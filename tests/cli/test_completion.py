"""Shell completion: scripts that the shells accept and that complete commands, flags, values."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from anchor_interp.cli.commands import COMMANDS
from anchor_interp.cli.completion import Shell, completion
from anchor_interp.cli.flags import flags_of

from anchor_interp.runs.presets import RUNS

FLAGS = {
    name: {t for flag in flags_of(kind) if not flag.positional for t in flag.spellings} | {"--help"}
    for name, kind in COMMANDS.items()
}
CASES = [
    ("", {*COMMANDS, "--help", "--version"}),
    ("tra", {"train"}),
    ("train --gamma-", {"--gamma-embed", "--gamma-qk", "--gamma-vo", "--gamma-mlp"}),
    ("train --", FLAGS["train"]),
    ("evaluate --", FLAGS["evaluate"]),
    ("train --act-fn ", {"relu", "gelu"}),
    ("train --preset ", set(RUNS)),
    ("train --out x --preset mem", {"memorizing"}),
    ("completion ", {"bash", "zsh", "fish"}),
    ("doctor --j", {"--json"}),
    ("nonsense --", set()),
]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_accepts_its_script(shell: Shell, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(completion(shell, COMMANDS))
    done = subprocess.run([shell, "-n", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_bash_completes() -> None:
    cases = [*CASES, ("train --preset = inf", {"inferential"}), ("train --seed ", set())]
    answers = _bash([case for case, _ in cases])
    for (case, expected), answer in zip(cases, answers, strict=True):
        assert answer == expected, case


def test_fish_completes(tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    script = completion("fish", COMMANDS)
    for case, expected in CASES:
        if case and not case.endswith("--"):  # after -- and nothing, fish offers what it likes
            line = shlex.quote(f"anchor-interp {case}")
            command = ["fish", "--no-config", "-c", f"{script}\ncomplete -C {line}"]
            done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
            assert {text.split("\t")[0] for text in done.stdout.splitlines()} == expected, case


def _bash(cases: list[str]) -> list[set[str]]:
    """What bash's own machinery hands back for each command line, its last word unfinished."""
    lines = [completion("bash", COMMANDS)]
    for case in cases:
        *words, last = case.split(" ")
        typed = " ".join(map(shlex.quote, ["anchor-interp", *words, last]))
        lines += [
            f"COMP_WORDS=({typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))",
            '_anchor_interp; echo "${COMPREPLY[*]}"',
        ]
    command = ["bash", "--norc", "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [set(line.split()) for line in done.stdout.splitlines()]
