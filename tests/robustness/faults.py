"""Inject faults and kills, and look at what is left: a helper, run as a script.

``python faults.py [--kills N] [--every N]`` prints one JSON object. Every fault
(:mod:`fault_list`) starts from a copy of a run that was killed half-way (training) or is done
(evaluation, report). A forked process runs the command line; then the fault is mended and the
command given again. The fault holds if

* the exit code is the expected one, and standard error is one line of ours (besides warnings)
  without a traceback, and
* afterwards the run folder, or what the evaluation prints, equals the undisturbed one byte for
  byte.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fault_list import Fault, NotPossibleError, all_faults, at_step, kill_self
from short import SHORT

import anchor_interp
from anchor_interp.__main__ import main as program
from anchor_interp._util.schema import to_dict

TRACEBACK = 70
"""Exit code of an attempt that ended in an exception."""

_TEMPORARY = rf"{re.escape(tempfile.gettempdir())}/[^/\s]+"
"""A temporary folder, whose name the record leaves out."""


@dataclass(frozen=True)
class World:
    """What the faults start from and are compared with."""

    root: Path
    half: Path
    """A run that was killed at step 26 of 40."""
    done: Path
    """The undisturbed run."""
    config: Path

    @property
    def page(self) -> Path:
        """Where reports are written."""
        return self.root / "pages" / "report.html"

    def command(self, stage: str, folder: Path) -> list[str]:
        return STAGES[stage](self, folder)


STAGES: dict[str, Callable[[World, Path], list[str]]] = {
    "training": lambda world, folder: [
        *("train", "--config", str(world.config), "--out", str(folder)),
        *("--device", "cpu", "--threads", "1", "--quiet"),
    ],
    "evaluation": lambda _, folder: ["evaluate", str(folder), "--n", "50", "--json", "--quiet"],
    "report": lambda world, folder: ["report", str(folder), "--out", str(world.page), "--quiet"],
}


def attempt(arguments: list[str], inside: Callable[[], object], output: Path) -> int:
    """Fork a process that runs the command line; returns its id."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        code = TRACEBACK
        try:
            for number, name in ((1, "stdout"), (2, "stderr")):
                opened = os.open(output / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
                os.dup2(opened, number)
                os.close(opened)
            torch.set_num_threads(1)
            inside()
            sys.argv[1:] = arguments
            code = program()  # with the handlers of the command
        except BaseException:
            traceback.print_exc()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    return process


def finished(process: int) -> int:
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


def contents(folder: Path) -> dict[str, str]:
    """The digest of every file; only the name if the file holds times or processes."""
    volatile = {".lock", ".lock.json", "provenance.json"}
    return {
        str(path.relative_to(folder)): ""
        if path.name in volatile or not path.is_file()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
    }


def build_world(root: Path) -> World:
    config = anchor_interp.preset("tiny", **SHORT)
    world = World(root, root / "half", root / "done", root / "config.json")
    world.config.write_text(json.dumps(to_dict(config)))
    stop = at_step(26, kill_self(signal.SIGKILL))
    code = finished(attempt(world.command("training", world.half), lambda: stop(root), root))
    assert code == -signal.SIGKILL
    assert finished(attempt(world.command("training", world.done), lambda: None, root)) == 0
    produced(world, "report", world.done)  # the earlier page, which no fault may touch
    return world


def inject(world: World, fault: Fault, number: int) -> dict[str, Any]:
    """Inject one fault; returns what happened, with ``held`` and, if not, why."""
    home = world.root / f"fault-{number}"
    home.mkdir()
    home.chmod(0o777)
    start = world.half if fault.stage == "training" else world.done
    found: dict[str, Any] = {"kind": fault.kind, "stage": fault.stage, "what": fault.what}
    try:
        folder = fault.place(home)
        if not fault.fresh:
            shutil.copytree(start, folder)
        fault.before(folder)
        command = world.command(fault.stage, folder)
        page = world.page.read_text() if world.page.exists() else ""
        found["code"] = finished(attempt(command, lambda: fault.inside(folder), home))
        lines = (home / "stderr").read_text(errors="backslashreplace").splitlines()
        found["lines"] = [
            re.sub(_TEMPORARY, "...", line.replace(str(home), "...")) for line in lines
        ]
        fault.mend(folder)
        why = _unexpected(fault, found["code"], lines)
        if page and world.page.read_text() != page:
            why = "the earlier page has changed"
        if not why and not (fault.fresh and found["code"]):
            why = _left_behind(world, fault, folder, home)
        found |= {"held": not why} | ({"why": why} if why else {})
    except NotPossibleError as error:
        found |= {"held": None, "why": str(error)}
    finally:
        if (home / "disk").is_mount():
            subprocess.run(["umount", str(home / "disk")], check=True)
        shutil.rmtree(home)
    return found


def _unexpected(fault: Fault, code: int, lines: list[str]) -> str:
    """What is wrong with the way the command ended."""
    if code != fault.code:
        return f"exit code {code}, expected {fault.code}"
    ours = [line for line in lines if not line.startswith("anchor-interp: warning: ")]
    if len(ours) != (code != 0) or not all(line.startswith("anchor-interp: ") for line in ours):
        return f"{len(ours)} lines on standard error"
    if not re.search(fault.says, "\n".join(lines)) or (not fault.says and lines):
        return f"the line does not say {fault.says!r}"
    return ""


def _left_behind(world: World, fault: Fault, folder: Path, home: Path) -> str:
    """How the folder or the output differs after the same command was given once more."""
    if finished(attempt(world.command(fault.stage, folder), lambda: None, home)):
        return f"the command cannot be repeated: {(home / 'stderr').read_text()}"
    mine, expected = contents(folder), contents(world.done)
    unequal = {name for name in mine | expected if mine.get(name) != expected.get(name)}
    if unequal != set(fault.lacks):
        return f"these files differ: {sorted(unequal)}"
    if fault.stage == "report" and not world.page.read_text().endswith("</html>"):
        return "the page is not whole"
    if fault.stage == "evaluation":
        output = json.loads((home / "stdout").read_text())
        undisturbed = json.loads(produced(world, "evaluation", world.done))
        if output | {"run": undisturbed["run"]} != undisturbed:
            return "the evaluation differs"
    return ""


def produced(world: World, stage: str, folder: Path) -> str:
    """What an undisturbed evaluation prints, or an undisturbed report holds."""
    assert finished(attempt(world.command(stage, folder), lambda: None, world.root)) == 0
    return (world.page if stage == "report" else world.root / "stdout").read_text()


def kill_readers(world: World, stage: str, kills: int, seed: int) -> list[dict[str, Any]]:
    """Kill a command that reads a finished run at random times; it must change nothing."""
    chance, before = random.Random(seed), contents(world.done)
    began = time.monotonic()
    undisturbed = produced(world, stage, world.done)
    whole = time.monotonic() - began
    deaths: list[dict[str, Any]] = []
    while len(deaths) < kills:
        process = attempt(world.command(stage, world.done), lambda: None, world.root)
        wait = chance.uniform(0, whole)
        time.sleep(wait)
        os.kill(process, signal.SIGKILL)
        if finished(process) == -signal.SIGKILL:
            deaths.append({"stage": stage, "where": f"after {wait / whole:.0%} of its time"})
        assert contents(world.done) == before
        if stage == "report":  # the earlier page or the new one, never a part
            assert world.page.read_text() == undisturbed
        assert produced(world, stage, world.done) == undisturbed
    return deaths


def kill_training(world: World, kills: int, seed: int) -> list[dict[str, Any]]:
    """Kill a training again and again (:mod:`killed_training`); it must end undisturbed."""
    script = Path(__file__).with_name("killed_training.py")
    outs = []
    for name, count in (("undisturbed", 0), ("killed", kills)):
        out = world.root / name
        out.mkdir()
        command = [sys.executable, str(script), str(out), str(count), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outs.append(contents(out / "run"))
    assert outs[0] == outs[1]
    return [{"stage": "training", "where": where} for where in json.loads(done.stdout)]


def main() -> int:
    parser = argparse.ArgumentParser(description="inject kills and faults; print what happened")
    parser.add_argument(
        "--kills", type=int, default=40, help="an eighth of them in evaluation, another in report"
    )
    parser.add_argument("--every", type=int, default=1, help="inject only every n-th fault")
    asked = parser.parse_args()
    kills = asked.kills
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        world = build_world(Path(root))
        found = []
        for number, fault in enumerate(all_faults()[:: asked.every]):
            found.append(inject(world, fault, number))
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
        reading = kills // 8
        deaths = kill_readers(world, "evaluation", reading, seed=0)
        deaths += kill_readers(world, "report", reading, seed=1)
        if kills > 2 * reading + 2:  # two more die in the final judging and before the result
            deaths += kill_training(world, kills - 2 * reading - 2, seed=0)
    broken = [fault for fault in found if fault["held"] is False]
    injected = [fault for fault in found if fault["held"] is not None]
    summary = {
        "schema": 1,
        "kills": len(deaths),
        "faults": len(injected),
        "kinds": len({fault["kind"] for fault in injected}),
        "held": len(injected) - len(broken),
        "every_kill": deaths,
        "every_fault": found,
    }
    print(json.dumps(summary, indent=1))
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
