"""What a sweep will cost before it starts: runs, time and disk."""

import logging
import math
import shutil
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import torch

from anchor_interp._util.environment import limited_threads, resolve_device
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.cuda_graph import WARM_UP
from anchor_interp.runs.loop import TrainState, train_step
from anchor_interp.runs.memory import check_training_fits
from anchor_interp.runs.objectives import make_objective
from anchor_interp.sweeps.folder import ENDED, SweepFolder

_STEPS = 3
_SEQUENCES = 128
"""Most sequences of these steps on a CPU, where a batch of the papers takes about ten seconds."""
_LINE_BYTES = 200
_REST_BYTES = 40_000  # about what configuration, provenance, states and result take
_START_SECONDS = 5.0  # about what loading, drawing the data and judging take
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class SweepEstimate:
    """What is left of a sweep, and what it will take with this many workers."""

    runs: int
    todo: int
    core_seconds: float
    """Time of these runs one after another, on one core or one device."""
    seconds: float
    disk_bytes: int
    """Largest size of their folders; a run in training takes two optimizer states more."""
    free_bytes: int
    basis: str
    """What the times are taken from."""


def estimate(
    configs: Mapping[str, RunConfig], folder: SweepFolder, *, workers: int, device: str = "auto"
) -> SweepEstimate:
    """What missing runs will take, by a few timed steps of each shape.

    A CPU takes at most 128 sequences: the time for a larger batch is in proportion, which
    overestimates it. ConfigError if memory is too small.
    """
    path = folder.path.absolute()
    place = next(place for place in (path, *path.parents) if place.exists())
    states = folder.states(configs)
    todo = {name: config for name, config in configs.items() if states[name] not in ENDED}
    target, timed, total = resolve_device(device), dict[Hashable, float](), 0.0
    for config in todo.values():
        train = config.train
        shape = config.model, config.task.length, train.batch_size, train.precision
        if shape not in timed:
            _LOGGER.info("timing a model: %s", config.model)
            timed[shape] = _seconds_per_step(config, target)
        total += _START_SECONDS + timed[shape] * train.steps
    return SweepEstimate(
        runs=len(configs),
        todo=len(todo),
        core_seconds=total,
        seconds=total / max(1, min(workers, len(todo))),
        disk_bytes=sum(map(disk_bytes, todo.values())),
        free_bytes=shutil.disk_usage(place).free,
        basis=f"{_STEPS} steps of each of {len(timed)} shapes",
    )


def disk_bytes(config: RunConfig) -> int:
    """The approximate size of a finished run's folder: checkpoints, optimizer state and metrics.

    A parameter takes 4 bytes in every kept checkpoint, and 8 in the last one's optimizer state.
    """
    train, n = config.train, config.train.steps - 1
    log, every, checkpoints = train.log_every, train.eval_every, 2 + n // train.checkpoint_every
    lines = 2 + n // log + n // every - n // math.lcm(log, every)
    return config.model.n_parameters * (4 * checkpoints + 8) + lines * _LINE_BYTES + _REST_BYTES


def _seconds_per_step(config: RunConfig, device: torch.device) -> float:
    check_training_fits(config, device)
    batch = config.train.batch_size
    part = min(batch, _SEQUENCES) if device.type == "cpu" else batch
    short = override(config, n_sequences=part, batch_size=part)
    with limited_threads(1):
        state, objective = TrainState.fresh(short, device), make_objective(short, device)
        for _ in range(1 if device.type == "cpu" else WARM_UP + 1):
            train_step(state, objective).loss.item()
        began = time.perf_counter()
        for _ in range(_STEPS):
            event = train_step(state, objective)
        event.loss.item()  # waits for a GPU
        return (time.perf_counter() - began) / _STEPS * batch / part
