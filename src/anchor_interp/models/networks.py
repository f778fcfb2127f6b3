"""The networks that a configuration can name: transformers, and U-Nets that draw pictures."""

import torch

from anchor_interp._util.environment import resolve_device
from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.models import transformer
from anchor_interp.models.init import initialize
from anchor_interp.models.shapes import InitConfig, ModelConfig, UNetConfig
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.models.unet import UNet

Network = HookedTransformer | UNet


def empty_network(
    model: ModelConfig | UNetConfig, *, dtype: torch.dtype = torch.float32
) -> Network:
    """A network of this shape on the CPU with unset weights."""
    if isinstance(model, ModelConfig):
        return transformer.empty_model(model, dtype=dtype)
    checked(model, UNetConfig, "model")
    with torch.device("meta"):  # PyTorch's own initialisation would read the global generator
        network = UNet(model).to(dtype)
    return network.to_empty(device="cpu")


def build_network(
    model: ModelConfig | UNetConfig,
    init: InitConfig,
    *,
    seed: int,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Network:
    """A gamma-initialised network in ``eval`` mode.

    No global generator is read or changed. ConfigError if the seed, device or dtype cannot be used.
    """
    target = resolve_device(device)
    network = empty_network(model, dtype=dtype)
    initialize(network, model, init, seed=seed)
    return place(network, target)


def place(network: Network, device: str | torch.device) -> Network:
    """Move a network to a device, in ``eval`` mode."""
    if isinstance(network, HookedTransformer):
        return transformer.place(network, device)
    return network.to(device).eval()


def as_transformer(network: Network) -> HookedTransformer:
    """The network itself; ConfigError if it is a U-Net, whose insides have other names."""
    if isinstance(network, UNet):
        raise ConfigError(
            "this needs a HookedTransformer; the run has a U-Net, which draws pictures"
        )
    return network
