"""The least memory that a run needs, and one clear error when memory runs out."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from anchor_interp._util.errors import ConfigError, OutOfMemoryError
from anchor_interp._util.machine_limits import memory_limit
from anchor_interp.models.shapes import ModelConfig
from anchor_interp.runs.config import RunConfig, memory_bytes

_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")


def check_model_fits(model: ModelConfig | Any) -> None:
    """Raise ConfigError if the parameters alone exceed the memory."""
    _check(4 * model.n_parameters, memory_limit(), "this machine has", f"a model ({_sizes(model)})")


def check_training_fits(config: RunConfig, device: torch.device) -> None:
    """Raise ConfigError if a device cannot train this, before anything is allocated."""
    sizes, train = memory_bytes(config), config.train
    if train.precision == "tf32" and device.type != "cuda":
        advice = f"the device is {device.type}: take 'float32', or a GPU"
        raise ConfigError(f"train.precision is 'tf32', which only CUDA GPUs have; {advice}")
    needed, what = sum(sizes.values()), f"training ({_training(config)}, {_sizes(config.model)})"
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
        _check(needed, there, "the GPU has", what)
        needed = 4 * config.model.n_parameters + sizes["training sequences"]  # made on the CPU
    _check(needed, memory_limit(), "this machine has", what)


@contextlib.contextmanager
def explained(doing: str, advice: str) -> Iterator[None]:
    """Turn every report of too little memory inside the block into one OutOfMemoryError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        reason = f"{error}"
        is_known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not is_known and not any(sign in reason.lower() for sign in _SIGNS):
            raise
        first = f" ({reason.splitlines()[0][:200]})" if reason else ""
        raise OutOfMemoryError(f"out of memory while {doing}{first}; {advice}") from error


def memory_advice(config: RunConfig) -> str:
    """What to lower when the training of a run does not fit into memory."""
    model = f"the model ({_sizes(config.model)})"
    return f"lower {_training(config)} or {model}; the last checkpoint is kept"


def _training(config: RunConfig) -> str:
    train = config.train
    return f"batch_size {train.batch_size:,}, n_sequences {train.n_sequences:,}"


def _sizes(model: ModelConfig | Any) -> str:
    numbers = ((name, value) for name, value in vars(model).items() if type(value) is int)
    return ", ".join(f"{name} {value:,}" for name, value in numbers)


def _check(needed: int, there: int, who: str, what: str) -> None:
    if needed > there:
        has = f"{who} {there / 2**30:.1f} GiB: lower the largest of these numbers"
        raise ConfigError(f"{what} needs at least {needed / 2**30:.1f} GiB of memory; {has}")
