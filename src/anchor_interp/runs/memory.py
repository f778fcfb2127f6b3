"""The least memory that a run needs, and one clear error when memory runs out."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from anchor_interp._util.errors import ConfigError, OutOfMemoryError
from anchor_interp._util.limits import memory_limit
from anchor_interp.models.shapes import ModelConfig
from anchor_interp.runs.config import RunConfig, memory_bytes

_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")


def check_model_fits(model: ModelConfig | Any) -> None:
    """Raise ConfigError if the parameters alone exceed the memory."""
    needed = 4 * model.n_parameters
    _check(needed, memory_limit(), f"a model of {_shape(model)}", "this machine has")


def check_training_fits(config: RunConfig, device: torch.device) -> None:
    """Raise ConfigError if a training cannot fit, before anything is allocated."""
    sizes, train = memory_bytes(config), config.train
    needed = sum(sizes.values())
    data = f"batch_size {train.batch_size:,} and n_sequences {train.n_sequences:,}"
    what = f"training {_shape(config.model)} with {data}"
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
        _check(needed, there, what, "the GPU has")
        needed = 4 * config.model.n_parameters + sizes["training sequences"]  # made on the CPU
    _check(needed, memory_limit(), what, "this machine has")


@contextlib.contextmanager
def explained(doing: str, advice: str) -> Iterator[None]:
    """Turn every report of too little memory inside the block into one OutOfMemoryError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said = str(error)
        lacking = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not lacking and not any(sign in said.lower() for sign in _SIGNS):
            raise
        reason = f" ({said.splitlines()[0][:200]})" if said else ""
        raise OutOfMemoryError(f"out of memory while {doing}{reason}; {advice}") from error


def memory_advice(config: RunConfig) -> str:
    """What to lower when the training of a run does not fit into memory."""
    train, model = config.train, config.model
    sizes = f"batch_size ({train.batch_size:,}), n_sequences ({train.n_sequences:,})"
    return f"lower {sizes} or the model ({_sizes(model)}); the last checkpoint is kept"


def _shape(model: ModelConfig | Any) -> str:
    return f"{model.n_parameters:,} parameters ({_sizes(model)})"


def _sizes(model: ModelConfig | Any) -> str:
    numbers = ((name, value) for name, value in vars(model).items() if type(value) is int)
    return ", ".join(f"{name} {value}" for name, value in numbers)


def _check(needed: int, there: int, what: str, who: str) -> None:
    if needed > there:
        has = f"{who} {there / 2**30:.1f} GiB: lower the largest of these numbers"
        raise ConfigError(f"{what} needs at least {needed / 2**30:.1f} GiB of memory; {has}")
