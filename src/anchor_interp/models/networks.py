"""Builds the network of a configuration: a transformer, or one that a task brings."""

from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from anchor_interp._util.environment import resolve_device
from anchor_interp._util.errors import ConfigError
from anchor_interp.models import transformer
from anchor_interp.models.init import set_weights
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer import HookedTransformer

if TYPE_CHECKING:  # code about transformers need not ask which of the two it has
    Network: TypeAlias = HookedTransformer | Any
else:
    Network = nn.Module
"""A HookedTransformer, or a network that a task brings (:mod:`anchor_interp.tasks.network`)."""


def empty_network(model: ModelConfig | Any, *, dtype: torch.dtype = torch.float32) -> Network:
    """A network of this configuration on the CPU with unset weights."""
    if isinstance(model, ModelConfig):
        return transformer.empty_model(model, dtype=dtype)
    with torch.device("meta"):  # PyTorch's own initialisation would read the global generator
        network: Network = model.network().to(dtype)
    return network.to_empty(device="cpu")


def build_network(
    model: ModelConfig | Any,
    init: InitConfig,
    *,
    seed: int,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Network:
    """A gamma-initialised network in ``eval`` mode; no global generator is read or changed."""
    target = resolve_device(device)
    network = empty_network(model, dtype=dtype)
    set_weights(network, init, seed=seed)
    return transformer.place(network, target)


def as_transformer(network: Network) -> HookedTransformer:
    """The network itself; ConfigError if it is one that a task brings."""
    if not transformer.is_transformer(network):
        text = f"this needs a HookedTransformer; the run has a {type(network).__name__}"
        raise ConfigError(f"{text}, the network that its task brings")
    return network
