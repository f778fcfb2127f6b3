"""What a sweep will cost before it is started: runs, time and disk."""

import logging
import math
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from statistics import mean
from typing import Any

import torch

from anchor_interp._util.environment import limited_threads, resolve_device
from anchor_interp.models.shapes import ModelConfig, n_parameters
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.loop import AnchorObjective, TrainState, train_step
from anchor_interp.runs.memory import check_training_fits
from anchor_interp.sweeps.folder import ENDED, SweepFolder
from anchor_interp.sweeps.settings import TableRow
from anchor_interp.sweeps.table import rows

_LOGGER = logging.getLogger(__name__)


_STEPS = 3


_SEQUENCES = 128
"""How many sequences these steps have at most on a CPU, where a larger batch takes so much longer:
a step of the papers' own size would take some ten seconds."""


_LINE_BYTES = 200


_REST_BYTES = 40_000
"""About what configuration, provenance, states and result take of a run folder."""


_START_SECONDS = 5.0
"""About how long a run takes beside its steps: loading, drawing its data, judging."""


@dataclass(frozen=True)
class Estimate:
    """What is left of a sweep, and what it will take."""

    runs: int
    """Runs that were asked for."""
    todo: int
    """Runs that are not done."""
    core_seconds: float
    """Time that they take one after the other, on one core or one device."""
    seconds: float
    """Time that they take with this many workers."""
    disk_bytes: int
    """What their folders will hold at most: while a run trains, two optimizer states more."""
    free_bytes: int
    """What the disk has left."""
    basis: str
    """What the times are taken from."""


def estimate(
    configs: Mapping[str, RunConfig], folder: SweepFolder, *, workers: int, device: str = "auto"
) -> Estimate:
    """What the runs that are not done will take.

    Times are those of finished runs of the same shape in the folder, too long where these shared a
    batch; for other shapes a few steps are trained, seconds each: on a CPU with at most 128
    sequences, whose time is taken times what the batch has more of them, which is rather too long.
    Batches of models are not considered.

    Raises:
        ConfigError: a device that cannot be used, or a run that does not fit into its memory.
    """
    states = folder.states(configs)
    todo = {name: config for name, config in configs.items() if states[name] not in ENDED}
    target = resolve_device(device)
    found = rows(folder) if folder.spec_file.exists() else []
    known = _known_rates(row for row in found if (row["device"] == "cpu") == (target.type == "cpu"))
    measured: dict[_Shape, float] = {}
    total, from_runs = 0.0, 0
    for config in todo.values():
        shape = _shape(config)
        if shape in known:
            rate, from_runs = known[shape], from_runs + 1
            total += rate * config.train.steps
            continue
        if shape not in measured:
            model = config.model
            _LOGGER.info("timing a model of %d layers, width %d", model.n_layers, model.d_model)
            measured[shape] = _seconds_per_step(config, target)
        total += _START_SECONDS + measured[shape] * config.train.steps
    parts = (
        f"finished runs for {from_runs}" if from_runs else "",
        f"{_STEPS} steps of each of {len(measured)} shapes" if measured else "",
    )
    return Estimate(
        runs=len(configs),
        todo=len(todo),
        core_seconds=total,
        seconds=total / max(1, min(workers, len(todo))),
        disk_bytes=sum(map(disk_bytes, todo.values())),
        free_bytes=_free_bytes(folder),
        basis=", ".join(part for part in parts if part) or "nothing is left to do",
    )


def disk_bytes(config: RunConfig) -> int:
    """What a finished run's folder holds, about.

    Weights of every checkpoint that is kept, 4 bytes a parameter, the optimizer's state of the
    last, 8 bytes, and a line of metrics for every logged step.
    """
    train = config.train
    checkpoints = 1 + math.ceil(train.steps / train.checkpoint_every)
    lines = 2 + train.steps // train.log_every
    return n_parameters(config.model) * (4 * checkpoints + 8) + lines * _LINE_BYTES + _REST_BYTES


_MODEL = tuple(field.name for field in fields(ModelConfig))


_Shape = tuple[Any, ...]


def _shape(config: RunConfig) -> _Shape:
    """What decides how long a step takes."""
    shape = (getattr(config.model, name) for name in _MODEL)
    return (*shape, config.task.length, config.train.batch_size, config.train.precision)


def _known_rates(found: Iterable[TableRow]) -> dict[_Shape, float]:
    """Mean seconds a step of the runs that were done in one session, by their shape."""
    rates: dict[_Shape, list[float]] = {}
    for row in found:
        if row["status"] == "done" and row["sessions"] == 1 and row["seconds"]:
            shape = (*(row[name] for name in _MODEL), row["length"], row["batch_size"])
            rate = row["seconds"] / row["steps"]
            rates.setdefault((*shape, row["precision"]), []).append(rate)
    return {shape: mean(values) for shape, values in rates.items()}


def _seconds_per_step(config: RunConfig, device: torch.device) -> float:
    check_training_fits(config, device)
    batch = config.train.batch_size
    part = min(batch, _SEQUENCES) if device.type == "cpu" else batch
    short = override(config, n_sequences=part, batch_size=part)
    with limited_threads(1):
        state, objective = TrainState.fresh(short, device), AnchorObjective(short, device)
        train_step(state, objective).loss.item()
        began = time.perf_counter()
        for _ in range(_STEPS):
            event = train_step(state, objective)
        event.loss.item()  # waits for a GPU
        return (time.perf_counter() - began) / _STEPS * batch / part


def _free_bytes(folder: SweepFolder) -> int:
    place = folder.path.absolute()
    while not place.exists():
        place = place.parent
    disk = os.statvfs(place)
    return disk.f_bavail * disk.f_frsize
