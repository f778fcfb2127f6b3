"""Initialisation by rate gamma: every weight ~ N(0, (d_in^-gamma)^2).

d_in is the input width of a matrix; a larger gamma means smaller weights. LayerNorm starts as the
identity (NeurIPS paper, appendix A; complexity-control paper, section III-E). Weights can also be
drawn uniformly from -d_in^-gamma to d_in^-gamma.

In a network that a task brings d_in is PyTorch's fan-in: the inputs of one output, for a transposed
convolution those of its mirror image. Biases are drawn as the weights of their map are, which at
gamma 0.5 is PyTorch's default (the released code behind the complexity-control paper's figure 6).

Each parameter has its own generator, seeded by (seed, name), which draws on the CPU in float32. So
weights depend neither on device nor on dtype (torch's default one too) nor on the number of layers.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from anchor_interp._util.errors import ConfigError
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
    divided by sqrt(2 n_layers) for W_O and W_out. Of uniform weights it is the bound.
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
def initialize(module: nn.Module, model: ModelConfig | Any, init: InitConfig, *, seed: int) -> None:
    """Set every parameter of a network in place; ConfigError for one that no rule covers."""
    if not isinstance(model, ModelConfig):
        _initialize_maps(module, init, seed)
        return
    for name, parameter in module.named_parameters():
        kind = name.rsplit(".", 1)[-1]
        if kind == "w":  # LayerNorm gain
            parameter.fill_(1.0)
        elif kind == "b" or (kind.startswith("b_") and init.scheme == "paper"):
            parameter.zero_()
        else:
            generator = _generator(seed, name)
            if kind.startswith("b_"):  # PyTorch's default: +-1/sqrt(d_in) of the bias's matrix
                drawn = _uniform(parameter.shape, generator)
                parameter.copy_(drawn * _input_width(kind, model) ** -0.5)
            else:
                drawn = _drawn(parameter.shape, init, generator)
                parameter.copy_(drawn * gamma_std(name, model, init))


def _initialize_maps(module: nn.Module, init: InitConfig, seed: int) -> None:
    for place, part in module.named_modules():
        own = dict(part.named_parameters(recurse=False))
        if own and not isinstance(part, nn.Linear | nn.Conv2d | nn.ConvTranspose2d | nn.GroupNorm):
            raise ConfigError(f"no initialisation is defined for {place}, a {type(part).__name__}")
        for name, parameter in own.items():
            if isinstance(part, nn.GroupNorm):
                parameter.fill_(name == "weight")
                continue
            fan_in = own["weight"].numel() // len(own["weight"])
            drawn = _drawn(parameter.shape, init, _generator(seed, f"{place}.{name}"))
            parameter.copy_(drawn * math.pow(fan_in, -init.gamma))


def _generator(seed: int, name: str) -> torch.Generator:
    seed_of_name = int(stream_key(seed, f"init/{name}")) >> 1  # manual_seed takes 63 bits
    return torch.Generator(device="cpu").manual_seed(seed_of_name)


def _drawn(shape: torch.Size, init: InitConfig, generator: torch.Generator) -> Tensor:
    """Values of standard deviation 1, or uniform ones from -1 to 1."""
    if init.weights == "normal":
        return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
    return _uniform(shape, generator)


def _uniform(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Values from -1 to 1."""
    return 2 * torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu") - 1


def _input_width(kind: str, model: ModelConfig) -> int:
    """Input width of a matrix W_x, or of the matrix that a bias b_x belongs to."""
    widths = {"O": model.n_heads * model.d_head, "out": model.d_mlp}
    return widths.get(kind[2:], model.d_model)
