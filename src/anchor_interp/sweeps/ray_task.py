"""What a task on a Ray cluster is given, does and sends; see :mod:`anchor_interp.sweeps.ray`."""

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

from anchor_interp._util.environment import describe_environment
from anchor_interp._util.errors import ConfigError
from anchor_interp._util.files import is_there
from anchor_interp.sweeps.engine import Job, RunResult
from anchor_interp.sweeps.parcel import Parcel, pack, unpack
from anchor_interp.sweeps.worker import do_job

_LOGGER = logging.getLogger("anchor_interp")


@dataclass(frozen=True)
class Order:
    """What a task is given, beside its job."""

    folder: Path
    probe: Path
    """A file that exists if the machine sees the driver's folder."""
    shared: bool | None
    device: str
    threads: int
    versions: Mapping[str, str]
    log_level: int


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


def versions() -> dict[str, str]:
    """Versions that every machine must share, without the suffix of a build."""
    found = describe_environment(torch.device("cpu"))["versions"]
    other = ("python", "anchor-interp")  # Ray checks the one and sends the other
    return {name: text.split("+")[0] for name, text in found.items() if name not in other}


@no_type_check  # Ray wants a generator function, not one that a checker of shapes has wrapped
def task(job, order, parcels):
    """The task that Ray runs; see :func:`_messages`."""
    yield from _messages(job, order, parcels)


def _messages(job: Job, order: Order, parcels: Mapping[str, Any]) -> Iterator[Begun | Ended]:
    """What a task does; yields its messages.

    Args:
        job: its job.
        order: how and where.
        parcels: Ray's references to the runs' folders, for a machine that does not see them.
    """
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
    yield Begun(host, os.getpid())
    logged = BufferingHandler(1 << 20)
    _LOGGER.addHandler(logged)
    _LOGGER.setLevel(order.log_level)
    with contextlib.ExitStack() as stack:
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
            is_sent = not seen and is_there(result.path / "config.json")
            parcel = pack(result.path) if is_sent else None
            yield Ended(RunResult(result.name, order.folder / result.name, error), parcel, said)
