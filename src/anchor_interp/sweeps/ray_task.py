"""What a task on a Ray cluster is given, does and sends; see :mod:`anchor_interp.sweeps.ray`.

A run folder travels as one value, a :class:`Parcel`, to and from machines that do not see it.
Configurations travel as JSON values, because a machine may lack the module of a user's task: the
driver sends the files of such tasks along.
"""

import contextlib
import importlib
import logging
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, no_type_check

import torch

import anchor_interp
from anchor_interp._util import files
from anchor_interp._util.environment import describe_environment
from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.schema import from_dict, to_dict
from anchor_interp.runs import measurements
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.store import RunFolder
from anchor_interp.runs.writer import writing
from anchor_interp.sweeps.engine import RunResult
from anchor_interp.sweeps.worker import do_job, read_job
from anchor_interp.tasks.registry import further_tasks, import_tasks, is_file

MAX_BYTES = 1 << 30
"""Largest file of a parcel, beside those of checkpoints, whose limit follows from the model."""
_FIRST = ("provenance.json", "metrics.jsonl")
_LAST = (measurements.FILE, "result.json")
_LOGGER = logging.getLogger("anchor_interp")


@dataclass(frozen=True)
class Parcel:
    """The contents of a run folder: files by name, and each checkpoint's files by step and name."""

    config: dict[str, Any]
    files: dict[str, bytes]
    checkpoints: dict[int, dict[str, bytes]]


@dataclass(frozen=True)
class Order:
    """What a task is given, beside its job.

    ``probe`` is there if it sees the driver's folder. ``tasks`` are the modules and files of a
    user's own tasks, and what the files hold; see :func:`task_files`.
    """

    folder: Path
    probe: Path
    shared: bool | None
    device: str
    threads: int
    versions: Mapping[str, str]
    log_level: int
    tasks: Mapping[str, bytes | None]


@dataclass(frozen=True)
class Begun:
    """The first message of a task."""

    host: str
    pid: int


@dataclass(frozen=True)
class Ended:
    """How a run ended, its folder if the driver does not see it, and what was logged."""

    result: RunResult
    parcel: Parcel | None
    logged: list[tuple[int, str]]


def pack(path: Path) -> Parcel:
    """Read a run folder; StoreError if a file is too large or cannot be read."""
    folder = RunFolder(path)
    names = [name for name in (*_FIRST, *_LAST) if files.is_there(path / name)]
    contents = {name: files.read_bytes(path / name, limit=MAX_BYTES) for name in names}
    checkpoints = {step: folder.checkpoint_files(step) for step in folder.steps()}
    return Parcel(to_dict(folder.config()), contents, checkpoints)


def unpack(parcel: Parcel, path: Path) -> None:
    """Write a run folder in the order in which training writes it.

    Metrics come before the checkpoints that rely on them and ``result.json`` comes last, so that a
    kill at any moment leaves a run that can be resumed. A checkpoint that is there already stays.
    StoreError if a file has a name that no run has, or the folder cannot be written.
    """
    if unknown := sorted(parcel.files.keys() - {*_FIRST, *_LAST}):
        raise StoreError(f"{path} was sent a file {unknown[0]!r:.80}, which no run has")
    config = from_dict(RunConfig, parcel.config)
    first, last = ([n for n in names if n in parcel.files] for names in (_FIRST, _LAST))
    with writing(path, config) as writer:
        for name in first:
            writer.copy_file(name, parcel.files[name])
        for step, contents in sorted(parcel.checkpoints.items()):
            writer.copy_checkpoint(step, contents, config.train.checkpoint_every)
        for name in last:
            writer.copy_file(name, parcel.files[name])


def versions() -> dict[str, str]:
    """Versions that every machine must share, without the suffix of a build."""
    found = describe_environment(torch.device("cpu"))["versions"]
    found |= {"anchor-interp": anchor_interp.__version__}  # Ray may have sent it: no metadata
    return {name: text.split("+")[0] for name, text in found.items() if name != "python"}


def task_files() -> dict[str, bytes | None]:
    """The modules and files of further tasks, with the contents of the files."""
    return {
        name: files.read_bytes(Path(name), limit=MAX_BYTES) if is_file(name) else None
        for name in further_tasks()
    }


def _import_tasks(tasks: Mapping[str, bytes | None]) -> None:
    """Import them anew: a worker that is kept from sweep to sweep may know older ones."""
    with tempfile.TemporaryDirectory() as folder:
        for name, contents in tasks.items():
            copy = None if contents is None else Path(folder, Path(name).name)
            if copy is not None and contents is not None:
                copy.write_bytes(contents)
            import_tasks(name, copy)


@no_type_check  # Ray wants a generator function, not one that a checker of shapes has wrapped
def task(job, order, parcels):
    """The task that Ray runs; it hands over to a function with types."""
    yield from _messages(job, order, parcels)


def _messages(
    plain_job: Mapping[str, Any], order: Order, parcels: Mapping[str, Any]
) -> Iterator[Begun | Ended]:
    """Do a job; ``parcels`` are Ray's references to run folders that a machine may not see."""
    host, here = socket.gethostname(), versions()
    for package, wanted in order.versions.items():
        if here[package] != wanted:
            raise ConfigError(
                f"{host} has {package} {here[package]}, the driver's machine {wanted}; install the "
                "same versions on every machine of the cluster"
            )
    seen = order.shared is not False and os.access(order.probe, os.F_OK)
    if order.shared and not seen:
        raise ConfigError(
            f"shared is True, but {host} does not see {order.folder} as the driver's machine does; "
            "mount it there under the same path, or leave shared out"
        )
    _import_tasks(order.tasks)
    job = read_job(plain_job)
    yield Begun(host, os.getpid())
    logged = BufferingHandler(1 << 20)
    level = _LOGGER.level
    _LOGGER.addHandler(logged)
    _LOGGER.setLevel(order.log_level)
    with contextlib.ExitStack() as stack:
        stack.callback(_LOGGER.setLevel, level)
        stack.callback(_LOGGER.removeHandler, logged)
        folder = order.folder
        if not seen:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for name, reference in parcels.items():
                unpack(importlib.import_module("ray").get(reference), folder / name)

        def renamed(text: str) -> str:
            return text.replace(os.fspath(folder), os.fspath(order.folder))

        for result in do_job(job, folder, device=order.device, threads=order.threads):
            error = result.error and type(result.error)(renamed(str(result.error)))
            said = [(record.levelno, renamed(record.getMessage())) for record in logged.buffer]
            logged.buffer.clear()
            is_sent = not seen and files.is_there(result.path / "config.json")
            parcel = pack(result.path) if is_sent else None
            yield Ended(RunResult(result.name, order.folder / result.name, error), parcel, said)
