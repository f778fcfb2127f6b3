"""What a task on a Ray cluster is given, does and sends; see :mod:`anchor_interp.sweeps.ray`.

Configurations travel as JSON values, because a machine first has to import a user's own tasks.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, no_type_check

import torch

import anchor_interp
from anchor_interp._util.environment import describe_environment
from anchor_interp._util.errors import ConfigError
from anchor_interp.sweeps.engine import RunResult
from anchor_interp.sweeps.worker import do_job, read_job
from anchor_interp.tasks.registry import import_tasks, is_file

_LOGGER = logging.getLogger("anchor_interp")


@dataclass(frozen=True)
class Order:
    """What every task of a sweep is given, beside its job."""

    folder: Path
    probe: Path
    """A file in the folder: a machine without it sees another folder than the driver."""
    device: str
    threads: int
    log_level: int
    versions: Mapping[str, str]
    tasks: tuple[str, ...]
    """The modules and files of a user's own tasks, which every machine sees."""


@dataclass(frozen=True)
class Begun:
    """The first message of a task: the process that holds the locks of its runs."""

    host: str
    pid: int


@dataclass(frozen=True)
class Ended:
    """How a run ended, and what was logged since the last message."""

    result: RunResult
    logged: list[tuple[int, str]]


def versions() -> dict[str, str]:
    """Versions that every machine must share, without the suffix of a build."""
    known = describe_environment(torch.device("cpu"))["versions"]
    known |= {"anchor-interp": anchor_interp.__version__}  # Ray may have sent it: no metadata
    return {name: text.split("+")[0] for name, text in known.items() if name != "python"}


@no_type_check  # Ray wants a generator function, not one that a checker of shapes has wrapped
def task(plain_job: Mapping[str, Any], order: Order) -> Iterator[Begun | Ended]:
    """The task that Ray runs: do a job in the driver's folder."""
    _check_machine(order)
    for name in order.tasks:  # anew: a worker that is kept from sweep to sweep may know older ones
        import_tasks(name)
    job = read_job(plain_job)
    yield Begun(socket.gethostname(), os.getpid())
    with _collected(order.log_level) as logged:
        for result in do_job(job, order.folder, device=order.device, threads=order.threads):
            messages = [(record.levelno, record.getMessage()) for record in logged.buffer]
            logged.buffer.clear()
            yield Ended(result, messages)


def _check_machine(order: Order) -> None:
    """Refuse a machine with other versions, or one that does not see the driver's folder."""
    host, here = socket.gethostname(), versions()
    for package, wanted in order.versions.items():
        if here[package] != wanted:
            text = f"{host} has {package} {here[package]}, the driver's machine {wanted}"
            raise ConfigError(f"{text}; install the same versions on every machine")
    if not os.access(order.probe, os.F_OK):
        text = f"{host} does not see {order.folder} as the driver's machine does"
        raise ConfigError(f"{text}; give a folder that all machines share, such as one on NFS")
    for name in order.tasks:
        if is_file(name) and not os.access(name, os.F_OK):
            text = f"{host} does not see {name}, a file with tasks"
            raise ConfigError(f"{text}; put it where all machines see it")


@contextlib.contextmanager
def _collected(level: int) -> Iterator[BufferingHandler]:
    """Collect what is logged at this level or above inside the block."""
    logged, before = BufferingHandler(1 << 20), _LOGGER.level
    _LOGGER.addHandler(logged)
    _LOGGER.setLevel(level)
    try:
        yield logged
    finally:
        _LOGGER.setLevel(before)
        _LOGGER.removeHandler(logged)
