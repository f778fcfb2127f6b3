"""What a run needs of memory at the very least, and one clear line when it does not get it."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import torch

from anchor_interp.config import ModelConfig, RunConfig
from anchor_interp.errors import ConfigError, OutOfMemoryError

_GIB = 1 << 30
_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def parameter_count(model: ModelConfig) -> int:
    """Number of trained parameters of a shape."""
    heads, norm = model.n_heads * model.d_head, 2 * model.d_model
    block = 4 * heads * model.d_model + 2 * model.d_model * model.d_mlp + 2 * norm
    if model.bias:
        block += 3 * heads + model.d_model + model.d_mlp + model.d_model
    last = norm if model.normalization == "pre" else 0
    tables = (model.d_vocab + model.n_ctx) * model.d_model
    return tables + model.n_layers * block + last + (model.d_model + 1) * model.d_vocab


def check_model_fits(model: ModelConfig) -> None:
    """Refuse a shape whose parameters alone are larger than the memory.

    Raises:
        ConfigError: names what the shape needs and what there is.
    """
    needed = 4 * parameter_count(model)
    _check(needed, memory_limit(), f"a model of {_shape(model)}", "this machine has")


def check_training_fits(config: RunConfig, device: torch.device) -> None:
    """Refuse a training that cannot fit, before any of it is allocated.

    Counts a lower bound: weights, gradients and both moments in float32, one residual stream and
    the logits of a batch, the sequences (one byte each for tokens and what they mean) and the order
    of an epoch.

    Raises:
        ConfigError: names what the run needs and what there is.
    """
    model, train, length = config.model, config.train, config.task.length
    sequences = train.n_sequences * (length + 5 + 16)
    batch = train.batch_size * (length * (8 + 4 * model.d_model) + 4 * model.d_vocab)
    work = 16 * parameter_count(model) + batch
    what = (
        f"training {_shape(model)} with batch_size {train.batch_size:,} and n_sequences "
        f"{train.n_sequences:,}"
    )
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
        _check(work + train.n_sequences * (length + 1), there, what, "the GPU has")
        work = 4 * parameter_count(model)  # drawn on the CPU first
    _check(work + sequences, memory_limit(), what, "this machine has")


def memory_limit() -> int:
    """Bytes that this process may use at most: the machine's, or less by a limit set on it."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    for path in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # no such limit, or the text "max"
            limits.append(int(Path(path).read_text(encoding="ascii")))
    return min(limits)


@contextlib.contextmanager
def explained(doing: str, advice: str) -> Iterator[None]:
    """Turn a lack of memory inside the block, whoever reports it, into one clear error.

    Raises:
        OutOfMemoryError: says what was being done and what to lower.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said = str(error)
        lacking = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not lacking and not any(sign in said.lower() for sign in _SIGNS):
            raise
        reason = f" ({said.splitlines()[0][:200]})" if said else ""
        raise OutOfMemoryError(f"out of memory while {doing}{reason}; {advice}") from error


def _shape(model: ModelConfig) -> str:
    return (
        f"{parameter_count(model):,} parameters (n_layers {model.n_layers}, n_heads "
        f"{model.n_heads}, d_model {model.d_model}, d_head {model.d_head}, d_mlp {model.d_mlp}, "
        f"d_vocab {model.d_vocab}, n_ctx {model.n_ctx})"
    )


def _check(needed: int, there: int, what: str, who: str) -> None:
    if needed > there:
        raise ConfigError(
            f"{what} needs at least {needed / _GIB:.1f} GiB of memory; {who} "
            f"{there / _GIB:.1f} GiB: lower the largest of these numbers"
        )
