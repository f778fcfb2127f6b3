"""Initialisation by rate gamma: every weight ~ N(0, (d_in^-gamma)^2).

d_in is the input width of a matrix; a larger gamma means smaller weights. LayerNorm starts as the
identity (NeurIPS paper, appendix A; complexity-control paper, section III-E).

Each parameter has its own generator, seeded by (seed, name), which draws on the CPU in float32. So
weights depend neither on device nor on dtype nor on the number of layers.
"""

import math

import torch
from torch import nn

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.tasks.hashing import stream_key

_RATES = {
    **dict.fromkeys(("W_E", "W_pos", "W_U"), "gamma_embed"),
    **dict.fromkeys(("W_Q", "W_K"), "gamma_qk"),
    **dict.fromkeys(("W_V", "W_O"), "gamma_vo"),
    **dict.fromkeys(("W_in", "W_out"), "gamma_mlp"),
}


def gamma_std(name: str, model: ModelConfig, init: InitConfig) -> float:
    """Initial standard deviation of a weight matrix, such as ``blocks.0.attn.W_Q``.

    It is d_in^-gamma with the matrix's own rate. The ``released`` scheme uses d_model^-gamma,
    divided by sqrt(2 n_layers) for W_O and W_out. Another name is a ConfigError.
    """
    kind = name.rsplit(".", 1)[-1]
    if kind not in _RATES:
        raise ConfigError(f"no initialisation is defined for the parameter {name!r}")
    own = getattr(init, _RATES[kind])
    rate = init.gamma if own is None else own
    d_in = model.d_model if init.scheme == "released" else _input_width(kind, model)
    if init.embed_d_in == "d_vocab":
        d_in = {"W_E": model.d_vocab, "W_pos": model.n_ctx}.get(kind, d_in)
    shrunk = init.scheme == "released" and kind in ("W_O", "W_out")
    return math.pow(d_in, -rate) / (math.sqrt(2 * model.n_layers) if shrunk else 1)


@torch.no_grad()
def initialize(module: nn.Module, model: ModelConfig, init: InitConfig, *, seed: int) -> None:
    """Set every parameter of a HookedTransformer in place; no global generator is read or changed.

    A parameter that no rule covers is a ConfigError.
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
        else:
            seed_of_name = int(stream_key(seed, f"init/{name}")) >> 1  # manual_seed takes 63 bits
            generator = torch.Generator(device="cpu").manual_seed(seed_of_name)
            if kind.startswith("b_"):  # PyTorch's default: +-1/sqrt(d_in) of the bias's matrix
                drawn = 2 * torch.rand(parameter.shape, generator=generator) - 1
                parameter.copy_(drawn * _input_width(kind, model) ** -0.5)
            else:
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(drawn * gamma_std(name, model, init))


def _input_width(kind: str, model: ModelConfig) -> int:
    """Input width of a matrix W_x, or of the matrix that a bias b_x belongs to."""
    widths = {"O": model.n_heads * model.d_head, "out": model.d_mlp}
    return widths.get(kind[2:], model.d_model)
