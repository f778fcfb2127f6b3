"""The faults that :mod:`faults` injects: what is done, what the command says, how it is mended."""

import contextlib
import ctypes
import os
import pickle
import resource
import shutil
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from damaged_files import change_embedding, flip_one_bit, hole

from anchor_interp.analysis import report_data
from anchor_interp.behaviour import evaluation
from anchor_interp.pages import report
from anchor_interp.runs import loop, objectives, run, session
from anchor_interp.runs.store import RunFolder, writing


def nothing(_: Path) -> None:
    pass


@dataclass(frozen=True)
class Fault:
    """One fault of a command."""

    stage: str
    """The command, a key of :data:`faults.STAGES`."""
    kind: str
    what: str
    code: int
    """Expected exit code."""
    says: str
    """Regular expression of the error line, or of a warning if the code is 0; empty for silence."""
    before: Callable[[Path], object] = nothing
    """Done to the folder before the command."""
    inside: Callable[[Path], object] = nothing
    """Done in the command's process before it starts."""
    mend: Callable[[Path], object] = nothing
    place: Callable[[Path], Path] = lambda folder: folder / "run"
    """Where the run folder lies in the fault's own folder."""
    fresh: bool = False
    """Start without a run folder."""
    lacks: tuple[str, ...] = ()
    """Files that differ from an undisturbed run's."""


class NotPossibleError(Exception):
    """This machine or user cannot be given the fault."""


# Ways to act inside the command


def at_step(step: int, act: Callable[[Path, Any], object]) -> Callable[[Path], None]:
    """Act at one step of a training."""

    def inside(folder: Path) -> None:
        original = loop.train_step

        def stepping(state: Any, objective: Any) -> Any:
            if state.step == step:
                act(folder, state)
            return original(state, objective)

        loop.train_step = stepping

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


def kill_self(number: signal.Signals) -> Callable[..., None]:
    return lambda *_: os.kill(os.getpid(), number)


def give_up_on(error: Exception) -> Callable[..., None]:
    def act(*_: Any) -> None:
        raise error

    return act


def bind_root(_: Path) -> None:
    """Give up the capabilities by which root ignores permissions."""
    if os.geteuid() == 0:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        if ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)()):
            raise OSError("capset failed")


def lower(what: int, value: int) -> None:
    resource.setrlimit(what, (value, resource.getrlimit(what)[1]))


def exhaust_address_space(_: Path) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    lower(resource.RLIMIT_AS, pages * resource.getpagesize() + (1 << 20))
    bytearray(1 << 28)


def poison(_: Path, state: Any) -> None:
    with torch.no_grad():
        next(state.model.parameters()).fill_(float("nan"))


def day_back(*_: Any) -> None:
    clock = time.time
    time.time = lambda: clock() - 86_400


# Ways to change the folder


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


def zip_bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(1 << 24))


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def embedding(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    return lambda checkpoint: change_embedding(checkpoint / "weights.safetensors", change)


def fill_disk(folder: Path) -> None:
    with contextlib.suppress(OSError), open(folder.parent / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(512))


def free_disk(folder: Path) -> None:
    (folder.parent / "filler").unlink()


def own_file_system(folder: Path) -> Path:
    disk = folder / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        raise NotPossibleError("this user cannot mount a file system")
    return disk / "run"


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
    """Start another process that writes the folder until it is mended."""
    ready, told = os.pipe()
    process = os.fork()
    if process == 0:
        with writing(folder, RunFolder(folder).config()):
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


# The faults

CHMOD_BACK = partial(Path.chmod, mode=0o755)
HUGE = b'{"embed.W_E":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'
NO_FILES_LEFT = (resource.RLIMIT_NOFILE, 3)
GPU_REPORT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
NO_MEMORY = "out of memory while"
GONE = "moved, removed or replaced"


def damaged_line(path: Path) -> None:
    path.write_text("{}\n" + path.read_text())


def hostile_files(stage: str, folder: str) -> Iterator[Fault]:
    """Files that are not what they seem, for every stage that reads a checkpoint."""
    weights, state, config = f"{folder}/weights.safetensors", f"{folder}/state.json", "config.json"
    written = "was changed since it was written|is too large"
    write = Path.write_bytes
    for kind, what, name, change, says in (
        ("damaged file", "weights cut in half", weights, cut_in_half, written),
        ("damaged file", "one bit of the weights", weights, flip_one_bit, "SHA-256 differs"),
        ("damaged file", "no weights", weights, Path.unlink, "No such file"),
        ("hostile file", "a pickle", weights, lambda p: write(p, pickle.dumps({})), written),
        ("hostile file", "a zip bomb", weights, zip_bomb, written),
        ("hostile file", "a header of 4 TiB", weights,
         lambda p: write(p, len(HUGE).to_bytes(8, "little") + HUGE), written),
        ("hostile file", "weights of 1 TiB", weights, hole, "expected at most"),
        ("hostile file", "NaN weights", folder, embedding(lambda w: w / 0 * 0), "not finite"),
        ("hostile file", "a wrong shape", folder, embedding(lambda w: w[:3].clone()), "has shape"),
        ("special file", "a device for weights", weights,
         replaced_by(lambda p: p.symlink_to("/dev/zero")), "expected at most"),
        ("bad JSON", "a name twice", state, lambda p: p.write_text('{"step":1,"step":1}'),
         "occurs 2 times"),
        ("bad JSON", "nested 100,000 deep", config, lambda p: p.write_text("[" * 100_000),
         "is damaged"),
        ("bad JSON", "not UTF-8", config, lambda p: write(p, b'{"\xff":1}'), "is damaged"),
        ("bad JSON", "1 TiB", config, hole, "expected at most"),
        ("other schema", "a later one", state, lambda p: p.write_text('{"schema":2}'),
         "has schema 2"),
    ):  # fmt: skip
        yield Fault(stage, kind, what, 1, says, **damage(name, change))


def training_faults() -> list[Fault]:
    fault = partial(Fault, "training")
    return [
        fault("disk full", "at step 25", 1, "No space left", place=own_file_system,
              inside=at_step(25, lambda f, _: fill_disk(f)), mend=free_disk),
        fault("disk full", "from the start", 1, "No space left", place=own_file_system,
              before=fill_disk, mend=free_disk),
        fault("disk full", "file size limit at step 25", 1, "File too large",
              inside=at_step(25, lambda *_: lower(resource.RLIMIT_FSIZE, 2000))),
        fault("read-only", "the folder", 1, "Permission denied",
              before=lambda f: f.chmod(0o555), inside=bind_root, mend=CHMOD_BACK),
        fault("permission lost", "checkpoints at step 25", 1, "Permission denied",
              inside=both(bind_root, at_step(25, lambda f, _: (f / "checkpoints").chmod(0))),
              mend=lambda f: (f / "checkpoints").chmod(0o755)),
        fault("permission lost", "the folder at step 25", 1, "Permission denied",
              inside=both(bind_root, at_step(25, lambda f, _: f.chmod(0))), mend=CHMOD_BACK),
        fault("out of memory", "torch's allocator at step 25", 1,
              f"{NO_MEMORY} training.*lower batch_size",
              inside=at_step(25, lambda *_: torch.empty(1 << 55))),
        fault("out of memory", "numpy's allocator at step 25", 1, f"{NO_MEMORY} training",
              inside=at_step(25, lambda *_: np.empty(1 << 58))),
        fault("out of memory", "a GPU's report at step 25", 1, f"{NO_MEMORY} training",
              inside=at_step(25, give_up_on(GPU_REPORT))),
        fault("out of memory", "address space while drawing sequences", 1, f"{NO_MEMORY} training",
              inside=when_called(objectives, "draw_training", exhaust_address_space)),
        fault("NaN", "weights at step 21", 1, "step 25: loss nan.*lower the learning rate",
              inside=at_step(21, poison)),
        fault("NaN", "weights at step 21, SIGTERM at 22", 1, "weights are no longer finite",
              inside=both(at_step(21, poison), at_step(22, kill_self(signal.SIGTERM)))),
        fault("clock set back", "by a day at step 25", 0, "", inside=at_step(25, day_back)),
        fault("Ctrl-C", "before the first step", 130, "stopped before training began",
              inside=when_called(objectives, "draw_training", kill_self(signal.SIGINT))),
        fault("Ctrl-C", "at step 25", 130, "stopped at step 26",
              inside=at_step(25, kill_self(signal.SIGINT))),
        fault("Ctrl-C", "in the final judging", 130, "while judging",
              inside=when_called(session, "evaluate_run", kill_self(signal.SIGINT))),
        fault("SIGTERM", "at step 25", 130, "stopped at step 26",
              inside=at_step(25, kill_self(signal.SIGTERM))),
        fault("SIGTERM", "in the final judging", 130, "while judging",
              inside=when_called(session, "evaluate_run", kill_self(signal.SIGTERM))),
        fault("second process", "on the same folder", 1,
              "is being written by process [0-9]+ on",
              before=hold_the_lock, mend=end_the_holder),
        fault("folder gone", "moved at step 25", 1, GONE,
              inside=at_step(25, move_away), mend=move_back),
        fault("folder gone", "replaced by another at step 25", 1, GONE,
              inside=at_step(25, replace_folder), mend=move_back),
        fault("folder gone", "lock removed at step 25", 1, GONE,
              inside=at_step(25, lambda f, _: (f / ".lock").unlink())),
        fault("open files", "none left at step 25", 1, "Too many open files",
              inside=at_step(25, lambda *_: lower(*NO_FILES_LEFT))),
        fault("metrics lost", "deleted", 0, "warning: .* lacks 5 of 5 lines",
              before=lambda f: (f / "metrics.jsonl").unlink(), lacks=("metrics.jsonl",)),
        fault("metrics lost", "cut in half", 0, "warning: .* lacks [0-9] of 5 lines",
              before=lambda f: cut_in_half(f / "metrics.jsonl"), lacks=("metrics.jsonl",)),
        fault("metrics lost", "a damaged line", 1, "damaged in line 1",
              **damage("metrics.jsonl", damaged_line)),
        fault("provenance lost", "damaged", 1, "provenance.json is damaged.*or remove it",
              **damage("provenance.json", lambda p: p.write_text("{"))),
        fault("provenance lost", "deleted", 0, "",
              before=lambda f: (f / "provenance.json").unlink()),
        fault("foreign result", "result.json of another run", 1, "does not belong",
              **damage("result.json", lambda p: p.write_text('{"schema":1,"run_id":"0"}'))),
        fault("name", "too long", 1, "File name too long",
              place=lambda f: f / ("a" * 300), fresh=True),
        fault("name", "a broken link", 1, "is a broken link; name a folder",
              before=lambda f: f.symlink_to("nowhere"), fresh=True, mend=Path.unlink),
        fault("name", "not UTF-8", 0, "", place=lambda f: f / "r\udcff\n<b>"),
        *hostile_files("training", "checkpoints/00000020"),
    ]  # fmt: skip


def evaluation_faults() -> list[Fault]:
    fault = partial(Fault, "evaluation")
    first_logits = partial(when_called, evaluation, "last_logits")
    return [
        fault("read-only", "the folder", 0, "",
              before=lambda f: f.chmod(0o555), inside=bind_root, mend=CHMOD_BACK),
        fault("out of memory", "torch's allocator", 1, f"{NO_MEMORY} evaluating.*lower n",
              inside=first_logits(lambda _: torch.empty(1 << 55))),
        fault("out of memory", "numpy's allocator", 1, f"{NO_MEMORY} evaluating",
              inside=when_called(evaluation, "draw", lambda _: np.empty(1 << 58))),
        fault("Ctrl-C", "in the middle", 130, "interrupted",
              inside=first_logits(kill_self(signal.SIGINT))),
        fault("SIGTERM", "in the middle", 130, "interrupted",
              inside=first_logits(kill_self(signal.SIGTERM))),
        fault("open files", "none left when the checkpoint is opened", 1, "Too many open files",
              inside=when_called(run, "load", lambda _: lower(*NO_FILES_LEFT))),
        *hostile_files("evaluation", "checkpoints/00000040"),
    ]  # fmt: skip


def report_faults() -> list[Fault]:
    """Faults while a report is made; an earlier page must stay as it is."""
    fault = partial(Fault, "report")
    return [
        fault("disk full", "while the page is written", 1, "No space left",
              inside=when_called(os, "fsync", give_up_on(OSError(28, os.strerror(28))))),
        fault("signal", "Ctrl-C while figures are drawn", 130, "interrupted",
              inside=when_called(report, "render", kill_self(signal.SIGINT))),
        fault("out of memory", "while runs are analysed", 1, "out of memory",
              inside=when_called(report_data, "complexity", give_up_on(MemoryError("no room")))),
        fault("hostile weights", "one bit changed", 1, "SHA-256 differs",
              **damage("checkpoints/00000040/weights.safetensors", flip_one_bit)),
        fault("metrics lost", "a damaged line", 1, "damaged in line 1",
              **damage("metrics.jsonl", damaged_line)),
    ]  # fmt: skip


def all_faults() -> list[Fault]:
    return training_faults() + evaluation_faults() + report_faults()
