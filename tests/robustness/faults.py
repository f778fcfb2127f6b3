"""Faults and kills, each followed by a look at what is left: a helper, run as a script.

``python faults.py [--kills N] [--every N]`` prints one JSON object. Every fault starts from a copy
of a run that was killed half-way (training) or is done (evaluation), in a forked process that goes
through the command line; then it is mended and the command given again. A fault holds if

* the exit code is the expected one and standard error is one line of ours (besides notes), without
  a traceback, and
* afterwards the run folder, or what the evaluation prints, equals the undisturbed one byte for
  byte.

A stage is a command (:data:`STAGES`); another one, such as a report, is an entry there.
"""

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from short import SHORT

import anchor_interp
from anchor_interp._util.schema import to_dict
from anchor_interp.analysis import findings
from anchor_interp.cli.main import main as command_line
from anchor_interp.pages import report
from anchor_interp.runs import evaluation, run, training
from anchor_interp.runs import train as session
from anchor_interp.runs.store import RunFolder

TRACEBACK = 70
"""Exit code of an attempt that ended in an exception."""

_TEMPORARY = rf"{re.escape(tempfile.gettempdir())}/[^/\s]+"
"""A folder of this machine alone, which no record needs."""


@dataclass(frozen=True)
class World:
    """What the faults start from and are compared with."""

    root: Path
    half: Path
    done: Path
    config: Path

    @property
    def page(self) -> Path:
        """Where reports are written."""
        return self.root / "pages" / "report.html"

    def command(self, stage: str, folder: Path) -> list[str]:
        return [*STAGES[stage](self, folder)]


STAGES: dict[str, Callable[[World, Path], list[str]]] = {
    "training": lambda world, folder: [
        *("train", "--config", str(world.config), "--out", str(folder)),
        *("--device", "cpu", "--threads", "1", "--quiet"),
    ],
    "evaluation": lambda _, folder: ["evaluate", str(folder), "--n", "50", "--json", "--quiet"],
    "report": lambda world, folder: ["report", str(folder), "--out", str(world.page), "--quiet"],
}


def nothing(_: Path) -> None:
    pass


@dataclass(frozen=True)
class Fault:
    """A fault: what is done, what the command says to it, and how it is mended."""

    kind: str
    stage: str
    what: str
    code: int
    says: str
    """Regular expression of the one line; of a note where the code is 0; empty for silence."""
    before: Callable[[Path], object] = nothing
    """Done to the folder before the command."""
    inside: Callable[[Path], object] = nothing
    """Done in the command's process before it starts."""
    mend: Callable[[Path], object] = nothing
    place: Callable[[Path], Path] = lambda folder: folder / "run"
    """Where the folder lies in one of the fault's own."""
    fresh: bool = False
    """Start without a folder."""
    adds: tuple[str, ...] = ()
    """Files that it leaves besides those of an undisturbed run."""
    lacks: tuple[str, ...] = ()
    """Files that differ from those of an undisturbed run."""


# What faults do -----------------------------------------------------------------------------------


def at_step(step: int, act: Callable[[Path, Any], object]) -> Callable[[Path], None]:
    """Act in the middle of a training."""

    def inside(folder: Path) -> None:
        original = training.train_step

        def stepping(state: Any, objective: Any) -> Any:
            if state.step == step:
                act(folder, state)
            return original(state, objective)

        training.train_step = stepping

    return inside


def when_called(owner: Any, name: str, act: Callable[[Path], object]) -> Callable[[Path], None]:
    """Act when a function is called for the first time."""

    def inside(folder: Path) -> None:
        original = getattr(owner, name)

        def called(*args: Any, **settings: Any) -> Any:
            setattr(owner, name, original)
            act(folder)
            return original(*args, **settings)

        setattr(owner, name, called)

    return inside


def both(*acts: Callable[[Path], None]) -> Callable[[Path], None]:
    def inside(folder: Path) -> None:
        for act in acts:
            act(folder)

    return inside


class Damage(TypedDict):
    """How to damage a file and how to mend it."""

    before: Callable[[Path], object]
    mend: Callable[[Path], object]


def damage(name: str, change: Callable[[Path], object]) -> Damage:
    """Change a file of the folder; mending puts the original back."""

    def before(folder: Path) -> None:
        target, kept = folder / name, folder.parent / "kept"
        if target.is_dir():
            shutil.copytree(target, kept)
        elif target.exists():
            shutil.copy2(target, kept)
        change(target)

    def mend(folder: Path) -> None:
        target, kept = folder / name, folder.parent / "kept"
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        if kept.exists():
            kept.rename(target)

    return {"before": before, "mend": mend}


def replaced_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink(missing_ok=True)
        make(path)

    return change


def bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(1 << 24))


def flip_one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def tensors(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    """Change a weight and the checkpoint's record of its file, as one who means harm would."""

    def rewrite(path: Path) -> None:
        found = load_file(path)
        save_file(found | {"embed.W_E": change(found["embed.W_E"])}, path)
        state = json.loads((path.parent / "state.json").read_text())
        data = path.read_bytes()
        record = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        state["files"][path.name] = record
        (path.parent / "state.json").write_text(json.dumps(state))

    return lambda folder: rewrite(folder / "weights.safetensors")


def hole(path: Path) -> None:
    """A file of a tebibyte that takes no room."""
    with open(path, "ab") as file:
        file.truncate(1 << 40)


def bind_root(_: Path) -> None:
    """Give up the capabilities by which permissions do not bind root."""
    if os.geteuid() == 0:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        if ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)()):
            raise OSError("capset failed")


def lower(what: int, value: int) -> None:
    resource.setrlimit(what, (value, resource.getrlimit(what)[1]))


def address_space_left(size: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    lower(resource.RLIMIT_AS, pages * resource.getpagesize() + size)


def exhaust_address_space(_: Path) -> None:
    address_space_left(1 << 20)
    bytearray(1 << 28)


def fill(folder: Path) -> None:
    """Use every byte that the file system has left."""
    with contextlib.suppress(OSError), open(folder.parent / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(512))


def poison(_: Path, state: Any) -> None:
    with torch.no_grad():
        next(state.model.parameters()).fill_(float("nan"))


def day_back(*_: Any) -> None:
    clock = time.time
    time.time = lambda: clock() - 86_400


def kill_self(number: signal.Signals) -> Callable[..., None]:
    return lambda *_: os.kill(os.getpid(), number)


def give_up_on(error: Exception) -> Callable[..., None]:
    def act(*_: Any) -> None:
        raise error

    return act


def move_away(folder: Path, *_: Any) -> None:
    folder.rename(folder.with_name("away"))


def move_back(folder: Path) -> None:
    precious = folder / "thesis.tex"
    if folder.exists():
        assert [*folder.iterdir()] == [precious], "something was written into a foreign folder"
        assert precious.read_text() == "precious"
        shutil.rmtree(folder)
    folder.with_name("away").rename(folder)


def replace_folder(folder: Path, *_: Any) -> None:
    move_away(folder)
    folder.mkdir()
    (folder / "thesis.tex").write_text("precious")


def hold_the_lock(folder: Path) -> None:
    """Another process that is writing the folder, until it is mended."""
    ready, told = os.pipe()
    process = os.fork()
    if process == 0:
        with RunFolder(folder).writing(RunFolder(folder).config()):
            os.write(told, b"x")
            time.sleep(600)
        os._exit(0)
    os.read(ready, 1)
    for descriptor in (ready, told):
        os.close(descriptor)
    (folder.parent / "holder").write_text(str(process))


def end_the_holder(folder: Path) -> None:
    process = int((folder.parent / "holder").read_text())
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def mounted(folder: Path) -> Path:
    """A small file system of its own, if this user may mount one."""
    disk = folder / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        raise NotPossibleError("a file system of its own cannot be mounted here")
    return disk / "run"


class NotPossibleError(Exception):
    """A fault that this machine or user cannot be given."""


STEP_20, STEP_40 = "checkpoints/00000020", "checkpoints/00000040"
HUGE = b'{"embed.W_E":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'


def hostile_files(stage: str, folder: str) -> Iterator[Fault]:
    """Files that are not what they seem; the same for every stage that reads a checkpoint."""
    weights = f"{folder}/weights.safetensors"
    write = Path.write_bytes
    for kind, what, name, change, says in (
        ("damaged file", "weights cut in half", weights, cut_in_half, "was written with"),
        ("damaged file", "one bit of the weights", weights, flip_one_bit, "SHA-256 differs"),
        ("damaged file", "no weights", weights, Path.unlink, "does not exist"),
        (
            "hostile file",
            "a pickle for weights",
            weights,
            lambda p: write(p, pickle.dumps({})),
            "pickle|written with",
        ),
        ("hostile file", "a zip bomb for weights", weights, bomb, "written with"),
        (
            "hostile file",
            "a header of 4 TiB",
            weights,
            lambda p: write(p, len(HUGE).to_bytes(8, "little") + HUGE),
            "written with",
        ),
        ("hostile file", "weights of 1 TiB", weights, hole, "expected at most"),
        ("hostile file", "NaN weights", folder, tensors(lambda w: w / 0 * 0), "not finite"),
        ("hostile file", "a wrong shape", folder, tensors(lambda w: w[:3].clone()), "has shape"),
        ("hostile file", "a wrong dtype", folder, tensors(lambda w: w.double()), "float64"),
        ("special file", "a FIFO for weights", weights, replaced_by(os.mkfifo), "is a FIFO"),
        (
            "special file",
            "a FIFO for the configuration",
            "config.json",
            replaced_by(os.mkfifo),
            "is a FIFO",
        ),
        (
            "link out",
            "weights elsewhere",
            weights,
            replaced_by(lambda p: p.symlink_to("/dev/zero")),
            "symbolic link",
        ),
        (
            "bad JSON",
            "a name twice",
            f"{folder}/state.json",
            lambda p: p.write_text('{"step":1,"step":1}'),
            "occurs 2 times",
        ),
        (
            "bad JSON",
            "nested 100,000 deep",
            "config.json",
            lambda p: p.write_text("[" * 100_000),
            "is damaged",
        ),
        ("bad JSON", "no UTF-8", "config.json", lambda p: write(p, b'{"\xff":1}'), "is damaged"),
        ("bad JSON", "1 TiB", "config.json", hole, "expected at most"),
        (
            "other schema",
            "a later one",
            f"{folder}/state.json",
            lambda p: p.write_text('{"schema":2}'),
            "has schema 2",
        ),
    ):
        yield Fault(kind, stage, what, 1, says, **damage(name, change))


def faults() -> list[Fault]:
    """All of them."""
    train = [
        Fault(
            "disk full",
            "training",
            "at step 25",
            1,
            "No space left",
            inside=at_step(25, lambda f, _: fill(f)),
            mend=lambda f: (f.parent / "filler").unlink(),
            place=mounted,
        ),
        Fault(
            "disk full",
            "training",
            "from the start",
            1,
            "No space left",
            before=fill,
            mend=lambda f: (f.parent / "filler").unlink(),
            place=mounted,
        ),
        Fault(
            "disk full",
            "training",
            "file size limit at step 25",
            1,
            "File too large",
            inside=at_step(25, lambda *_: lower(resource.RLIMIT_FSIZE, 2000)),
        ),
        Fault(
            "read-only",
            "training",
            "the folder",
            1,
            "Permission denied",
            before=lambda f: f.chmod(0o555),
            inside=bind_root,
            mend=lambda f: f.chmod(0o755),
        ),
        Fault(
            "permission lost",
            "training",
            "checkpoints at step 25",
            1,
            "Permission denied",
            inside=both(bind_root, at_step(25, lambda f, _: (f / "checkpoints").chmod(0))),
            mend=lambda f: (f / "checkpoints").chmod(0o755),
        ),
        Fault(
            "permission lost",
            "training",
            "the folder at step 25",
            1,
            "Permission denied",
            inside=both(bind_root, at_step(25, lambda f, _: f.chmod(0))),
            mend=lambda f: f.chmod(0o755),
        ),
        Fault(
            "out of memory",
            "training",
            "torch's allocator at step 25",
            1,
            "out of memory while training.*lower batch_size",
            inside=at_step(25, lambda *_: torch.empty(1 << 55)),
        ),
        Fault(
            "out of memory",
            "training",
            "numpy's allocator at step 25",
            1,
            "out of memory while training",
            inside=at_step(25, lambda *_: np.empty(1 << 58)),
        ),
        Fault(
            "out of memory",
            "training",
            "a GPU's report at step 25",
            1,
            "out of memory while training",
            inside=at_step(
                25,
                give_up_on(
                    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
                ),
            ),
        ),
        Fault(
            "out of memory",
            "training",
            "address space while drawing sequences",
            1,
            "out of memory while training",
            inside=when_called(run, "AnchorObjective", exhaust_address_space),
        ),
        Fault(
            "NaN",
            "training",
            "weights at step 21",
            1,
            "step 25: loss nan.*lower the learning rate",
            inside=at_step(21, poison),
        ),
        Fault(
            "NaN",
            "training",
            "weights at step 21, SIGTERM at 22",
            1,
            "weights are no longer finite",
            inside=both(at_step(21, poison), at_step(22, kill_self(signal.SIGTERM))),
        ),
        Fault(
            "clock set back", "training", "by a day at step 25", 0, "", inside=at_step(25, day_back)
        ),
        Fault(
            "Ctrl-C",
            "training",
            "before the first step",
            130,
            "stopped before training began",
            inside=when_called(run, "AnchorObjective", kill_self(signal.SIGINT)),
        ),
        Fault(
            "Ctrl-C",
            "training",
            "at step 25",
            130,
            "stopped at step 26",
            inside=at_step(25, kill_self(signal.SIGINT)),
        ),
        Fault(
            "Ctrl-C",
            "training",
            "in the final judging",
            130,
            "while judging",
            inside=when_called(session, "evaluate", kill_self(signal.SIGINT)),
        ),
        Fault(
            "SIGTERM",
            "training",
            "at step 25",
            130,
            "stopped at step 26",
            inside=at_step(25, kill_self(signal.SIGTERM)),
        ),
        Fault(
            "SIGTERM",
            "training",
            "in the final judging",
            130,
            "while judging",
            inside=when_called(session, "evaluate", kill_self(signal.SIGTERM)),
        ),
        Fault(
            "second process",
            "training",
            "on the same folder",
            1,
            "is being written by process [0-9]+ on",
            before=hold_the_lock,
            mend=end_the_holder,
        ),
        Fault(
            "folder gone",
            "training",
            "moved at step 25",
            1,
            "moved, removed or replaced",
            inside=at_step(25, move_away),
            mend=move_back,
        ),
        Fault(
            "folder gone",
            "training",
            "replaced by another at step 25",
            1,
            "moved, removed or replaced",
            inside=at_step(25, replace_folder),
            mend=move_back,
        ),
        Fault(
            "folder gone",
            "training",
            "lock removed at step 25",
            1,
            "moved, removed or replaced",
            inside=at_step(25, lambda f, _: (f / ".lock").unlink()),
        ),
        Fault(
            "open files",
            "training",
            "no more at step 25",
            1,
            "Too many open files",
            inside=at_step(25, lambda *_: lower(resource.RLIMIT_NOFILE, 3)),
        ),
        Fault(
            "metrics lost",
            "training",
            "deleted",
            0,
            "warning: .* lacks 5 of 5 lines",
            before=lambda f: (f / "metrics.jsonl").unlink(),
            lacks=("metrics.jsonl",),
        ),
        Fault(
            "metrics lost",
            "training",
            "cut in half",
            0,
            "warning: .* lacks [0-9] of 5 lines",
            before=lambda f: cut_in_half(f / "metrics.jsonl"),
            lacks=("metrics.jsonl",),
        ),
        Fault(
            "metrics lost",
            "training",
            "a damaged line",
            1,
            "damaged in line 1",
            **damage("metrics.jsonl", lambda p: p.write_text("{}\n" + p.read_text())),
        ),
        Fault(
            "provenance lost",
            "training",
            "damaged",
            0,
            "warning: .* is kept as provenance.damaged-1.json",
            before=lambda f: (f / "provenance.json").write_text("{"),
            adds=("provenance.damaged-1.json",),
        ),
        Fault(
            "provenance lost",
            "training",
            "deleted",
            0,
            "",
            before=lambda f: (f / "provenance.json").unlink(),
        ),
        Fault(
            "foreign result",
            "training",
            "result.json of another run",
            1,
            "does not belong",
            **damage("result.json", lambda p: p.write_text('{"schema":1,"run_id":"0"}')),
        ),
        Fault(
            "name",
            "training",
            "longer than a name can be",
            1,
            "File name too long",
            place=lambda f: f / ("a" * 300),
            fresh=True,
            mend=nothing,
        ),
        Fault(
            "name",
            "training",
            "a link that leads nowhere",
            1,
            "leads nowhere",
            before=lambda f: f.symlink_to("nowhere"),
            fresh=True,
            mend=Path.unlink,
        ),
        Fault("name", "training", "no UTF-8", 0, "", place=lambda f: f / "r\udcff\n<b>"),
        *hostile_files("training", STEP_20),
    ]
    stage = "evaluation"
    evaluate = [
        Fault(
            "read-only",
            stage,
            "the folder",
            0,
            "",
            before=lambda f: f.chmod(0o555),
            inside=bind_root,
            mend=lambda f: f.chmod(0o755),
        ),
        Fault(
            "out of memory",
            stage,
            "torch's allocator",
            1,
            "out of memory while evaluating.*lower n",
            inside=when_called(evaluation, "last_logits", lambda _: torch.empty(1 << 55)),
        ),
        Fault(
            "out of memory",
            stage,
            "numpy's allocator",
            1,
            "out of memory while evaluating",
            inside=when_called(evaluation, "draw", lambda _: np.empty(1 << 58)),
        ),
        Fault(
            "Ctrl-C",
            stage,
            "in the middle",
            130,
            "interrupted",
            inside=when_called(evaluation, "last_logits", kill_self(signal.SIGINT)),
        ),
        Fault(
            "SIGTERM",
            stage,
            "in the middle",
            130,
            "interrupted",
            inside=when_called(evaluation, "last_logits", kill_self(signal.SIGTERM)),
        ),
        Fault(
            "open files",
            stage,
            "no more before the checkpoint is opened",
            1,
            "Too many open files",
            inside=when_called(run, "load", lambda _: lower(resource.RLIMIT_NOFILE, 3)),
        ),
        *hostile_files(stage, STEP_40),
    ]
    return train + evaluate + report_faults()


def report_faults() -> list[Fault]:
    """Faults while a page about a finished run is made; an earlier page must stay as it is."""
    stage = "report"
    weights = f"{STEP_40}/weights.safetensors"
    return [
        Fault(
            "disk full",
            stage,
            "while the page is written",
            1,
            "No space left",
            inside=when_called(os, "fsync", give_up_on(OSError(28, os.strerror(28)))),
        ),
        Fault(
            "signal",
            stage,
            "Ctrl-C while figures are drawn",
            130,
            "interrupted",
            inside=when_called(report, "render", kill_self(signal.SIGINT)),
        ),
        Fault(
            "out of memory",
            stage,
            "while runs are looked into",
            1,
            "out of memory",
            inside=when_called(findings, "complexity", give_up_on(MemoryError("no room"))),
        ),
        Fault(
            "hostile weights",
            stage,
            "one bit changed",
            1,
            "SHA-256 differs",
            **damage(weights, flip_one_bit),
        ),
        Fault(
            "metrics lost",
            stage,
            "a damaged line",
            1,
            "damaged in line 1",
            **damage("metrics.jsonl", lambda p: p.write_text("{}\n" + p.read_text())),
        ),
    ]


# How they are injected and judged -----------------------------------------------------------------


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
            code = command_line(arguments)
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
    """Every file with its digest; of those that name times or processes, the name alone."""
    volatile = {".lock", "provenance.json"}
    return {
        str(path.relative_to(folder)): ""
        if path.name in volatile or not path.is_file()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
    }


def build_world(root: Path) -> World:
    """An undisturbed run and one that was cut off at step 26 of 40."""
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
    """What is wrong with the way that the command ended."""
    if code != fault.code:
        return f"exit code {code}, expected {fault.code}"
    ours = [line for line in lines if not line.startswith("anchor-interp: warning: ")]
    if len(ours) != (code != 0) or not all(line.startswith("anchor-interp: ") for line in ours):
        return f"{len(ours)} lines on standard error"
    if not re.search(fault.says, "\n".join(lines)) or (not fault.says and lines):
        return f"the line does not say {fault.says!r}"
    return ""


def _left_behind(world: World, fault: Fault, folder: Path, home: Path) -> str:
    """How the folder or the output, after the same command once more, differs."""
    if finished(attempt(world.command(fault.stage, folder), lambda: None, home)):
        return f"the command cannot be repeated: {(home / 'stderr').read_text()}"
    mine, expected = contents(folder), contents(world.done)
    unequal = {name for name in mine | expected if mine.get(name) != expected.get(name)}
    if unequal != set(fault.adds) | set(fault.lacks):
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
    """Kill a training again and again (see :mod:`killed_training`); it must end undisturbed."""
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
    parser.add_argument("--every", type=int, default=1, help="inject every n-th fault only")
    asked = parser.parse_args()
    kills = asked.kills
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        world = build_world(Path(root))
        found = []
        for number, fault in enumerate(faults()[:: asked.every]):
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
