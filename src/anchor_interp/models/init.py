"""Initialisation by rate gamma: every weight ~ N(0, (d_in^-gamma)^2).

NeurIPS paper, appendix A; complexity-control paper, section III-E. d_in is the width of a matrix's
input; a larger gamma means smaller weights. LayerNorm starts as the identity.

Each parameter has a generator of its own, seeded by (seed, name), drawn on the CPU in float32 and
then converted: neither the device, nor the dtype, nor the number of other layers changes it.
"""

import math

import torch
from torch import Tensor, nn

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.tasks.hashing import stream_key

_OUTPUT_PROJECTIONS = ("attn.W_O", "mlp.W_out")


def gamma_std(name: str, model: ModelConfig, init: InitConfig) -> float:
    """Standard deviation at which a weight matrix is initialised.

    Args:
        name: the parameter's TransformerLens name, such as ``blocks.0.attn.W_Q``.
        model: the shape.
        init: the initialisation.

    Returns:
        d_in^-gamma with the matrix's own rate; under the ``released`` scheme d_model^-gamma,
        divided by sqrt(2 n_layers) for W_O and W_out.

    Raises:
        ConfigError: no weight matrix of that name.
    """
    std = math.pow(_d_in(name, model, init), -_rate(name, init))
    if init.scheme == "released" and name.endswith(_OUTPUT_PROJECTIONS):
        std /= math.sqrt(2 * model.n_layers)
    return std


@torch.no_grad()
def initialize(module: nn.Module, model: ModelConfig, init: InitConfig, *, seed: int) -> None:
    """Set every parameter of a HookedTransformer in place.

    Args:
        module: a HookedTransformer of the given shape.
        model: the shape.
        init: the initialisation.
        seed: seed of the draw; no global generator is read or changed.

    Raises:
        ConfigError: a parameter that the rules do not cover.
    """
    checked(module, nn.Module, "module")
    checked(model, ModelConfig, "model")
    checked(init, InitConfig, "init")
    for name, parameter in module.named_parameters():
        kind = name.rsplit(".", 1)[-1]
        if kind == "w":  # LayerNorm gain
            parameter.fill_(1.0)
        elif kind == "b" or (kind.startswith("b_") and init.scheme == "paper"):
            parameter.zero_()
        elif kind.startswith("b_"):
            bound = _bias_d_in(name, model) ** -0.5
            drawn = torch.rand(parameter.shape, generator=_generator(name, seed))
            parameter.copy_((2 * drawn - 1) * bound)
        else:
            drawn = torch.randn(parameter.shape, generator=_generator(name, seed))
            parameter.copy_(drawn * gamma_std(name, model, init))


def _generator(name: str, seed: int) -> torch.Generator:
    key = int(stream_key(seed, f"init/{name}")) >> 1  # manual_seed takes 63 bits
    return torch.Generator(device="cpu").manual_seed(key)


def _rate(name: str, init: InitConfig) -> float:
    kind = name.rsplit(".", 1)[-1]
    own = {
        "W_E": init.gamma_embed,
        "W_pos": init.gamma_embed,
        "W_U": init.gamma_embed,
        "W_Q": init.gamma_qk,
        "W_K": init.gamma_qk,
        "W_V": init.gamma_vo,
        "W_O": init.gamma_vo,
        "W_in": init.gamma_mlp,
        "W_out": init.gamma_mlp,
    }
    if kind not in own:
        raise ConfigError(f"no initialisation is defined for the parameter {name!r}")
    rate = own[kind]
    return init.gamma if rate is None else rate


def _d_in(name: str, model: ModelConfig, init: InitConfig) -> int:
    if name in ("embed.W_E", "pos_embed.W_pos") and init.embed_d_in == "d_vocab":
        return model.d_vocab if name == "embed.W_E" else model.n_ctx
    if init.scheme == "released":
        return model.d_model
    if name.endswith("attn.W_O"):
        return model.n_heads * model.d_head
    return model.d_mlp if name.endswith("mlp.W_out") else model.d_model


def _bias_d_in(name: str, model: ModelConfig) -> int:
    """Input width of the matrix that a bias belongs to (PyTorch's default bias bound)."""
    if name.endswith("attn.b_O"):
        return model.n_heads * model.d_head
    return model.d_mlp if name.endswith("mlp.b_out") else model.d_model


def weight_matrices(module: nn.Module) -> dict[str, Tensor]:
    """The weight matrices of a HookedTransformer by name: everything that gamma sets."""
    return {
        name: parameter
        for name, parameter in module.named_parameters()
        if name.rsplit(".", 1)[-1].startswith("W_")
    }
