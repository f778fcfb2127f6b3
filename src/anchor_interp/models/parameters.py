"""What every parameter of a module is: a matrix with its inputs, an embedding, a bias, a norm.

:mod:`anchor_interp.models.init` draws by it, :mod:`anchor_interp.models.complexity` measures by it.
A parameter is known by the class that owns it, a norm by ``norm`` in the class's name. The group,
whose rate :class:`anchor_interp.models.shapes.InitConfig` may set, follows from the names that
PyTorch and Hugging Face give to layers.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.models.finite import placed
from anchor_interp.models.lens import HookedTransformer

Group = Literal["embed", "qk", "vo", "mlp"]
"""Whose rate a matrix has: ``InitConfig.gamma_embed``, ``gamma_qk``, ``gamma_vo``, ``gamma_mlp``."""
Kind = Literal["matrix", "embedding", "bias", "norm"]
HOOKED: dict[str, Group] = {
    **dict.fromkeys(("W_E", "W_pos", "W_U"), "embed"),
    **dict.fromkeys(("W_Q", "W_K"), "qk"),
    **dict.fromkeys(("W_V", "W_O"), "vo"),
    **dict.fromkeys(("W_in", "W_gate", "W_out"), "mlp"),
}  # type: ignore[assignment]
"""The matrices of a HookedTransformer."""
_OUTPUTS_FIRST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_INPUTS_FIRST = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NAMED: tuple[tuple[str, Group], ...] = (
    (r"(^|\.)(lm_head|embed_out|unembed)$", "embed"),
    (r"(^|\.)(q|k|query|key)(_proj|_lin)?$", "qk"),
    (r"(^|\.)(v|value)(_proj|_lin)?$|attn|attention", "vo"),
    (r"mlp|ffn|feed_?forward|intermediate|output\.dense$|(fc|linear)[12]$", "mlp"),
)  # the first that is found in a matrix's name
_FUSED = re.compile(r"(^|\.)(c_attn|query_key_value|w?qkv(_proj)?)$", re.IGNORECASE)
_SPLIT = {
    ("GPT2Attention", "c_attn"): False,
    ("MultiheadAttention", "in_proj"): False,
    ("GPTNeoXAttention", "query_key_value"): True,
}
"""Queries, keys and values in one matrix, by the class of the attention and the name of the matrix:
head by head (q, k and v of a head, then of the next), or else all q, all k, all v."""


class Part(NamedTuple):
    """Queries, keys or values in a matrix that holds all three."""

    name: str
    group: Group
    units: Int64[Tensor, " unit"]
    """Which of the matrix's outputs they are."""


@dataclass(frozen=True, eq=False)
class Parameter:
    """A parameter and what it is."""

    name: str
    tensor: nn.Parameter
    owner: nn.Module
    kind: Kind | None = None
    """None where nothing is known about it."""
    d_in: int | None = None
    """Inputs of one output of a matrix, or of the matrix that a bias belongs to; the width of an
    embedding."""
    group: Group | None = None
    inputs_first: bool = False
    """Whether the tensor is [d_in, d_out], as an embedding is, or else [d_out, d_in]."""
    parts: tuple[Part, ...] = ()

    @property
    def matrix_name(self) -> str:
        """The name without ``weight``."""
        return re.sub(r"[._]weight$", "", self.name)

    @property
    def matrix(self) -> Tensor:
        """[d_in, d_out], a column for each output; of an embedding a row for each token."""
        flat = self.tensor.detach().flatten(1)
        return flat if self.inputs_first else flat.mT


def is_fused(name: str) -> bool:
    """Whether a matrix is called as one of queries, keys and values together."""
    return _FUSED.search(name) is not None


def parameters(module: nn.Module) -> list[Parameter]:
    """Every parameter of a module under each of its names.

    Raises:
        ConfigError: a tensor is on the device meta, or a weight is quantised.
    """
    checked(module, nn.Module, "module")
    list(placed(module))
    _check_not_quantised(module)
    parts = dict(module.named_modules())
    embedded = {id(part.weight) for part in parts.values() if _is_embedding(part)}
    found: list[Parameter] = []
    cfg = module.cfg if isinstance(module, HookedTransformer) else None
    for place, part in module.named_modules(remove_duplicate=False):
        above = parts.get(place.rpartition(".")[0])
        for own, tensor in part.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{place}.{own}" if place else own
            if cfg is not None:
                found.append(_hooked(name, tensor, part, cfg))
            else:
                found.append(_known(name, tensor, part, above, tied=id(tensor) in embedded))
    if not found:
        raise ConfigError(f"the {type(module).__name__} has no parameters")
    return found


def matrices(module: nn.Module) -> Iterator[Parameter]:
    """The matrices and embeddings of a module, a shared one once."""
    return (each for each in _once(module) if each.kind in ("matrix", "embedding"))


def decay_groups(
    module: nn.Module, weight_decay: float, *, norms_and_biases: bool = True
) -> list[dict[str, Any]]:
    """A module's parameters for a PyTorch optimizer: ``AdamW(decay_groups(module, 0.1), lr=1e-3)``.

    AdamW of both papers (appendix A) and of this package decays every parameter.

    Args:
        module: its parameters that need a gradient.
        weight_decay: AdamW's decoupled coefficient.
        norms_and_biases: False decays neither norms nor biases, as Hugging Face's ``Trainer``.

    Raises:
        ConfigError: the coefficient is negative or not finite; or, where norms and biases are left
            out, it is not known whether a parameter is one of them.
    """
    weight_decay = checked(weight_decay, float, "weight_decay", low=0)
    trained = [each for each in _once(module) if each.tensor.requires_grad]
    if norms_and_biases:
        return [{"params": [each.tensor for each in trained], "weight_decay": weight_decay}]
    for each in trained:
        if each.kind is None and each.tensor.ndim < 2:
            about = f"a {type(each.owner).__name__}'s parameter of shape {tuple(each.tensor.shape)}"
            raise ConfigError(f"{each.name} is {about}: a norm, a bias or neither; group it by hand")
    spared = [each.tensor for each in trained if each.kind in ("norm", "bias")]
    decayed = [each.tensor for each in trained if each.kind not in ("norm", "bias")]
    coefficients = ((decayed, weight_decay), (spared, 0.0))
    return [{"params": group, "weight_decay": decay} for group, decay in coefficients if group]


def _once(module: nn.Module) -> list[Parameter]:
    """Every parameter under its first name."""
    unique: dict[int, Parameter] = {}
    for each in parameters(module):
        unique.setdefault(id(each.tensor), each)
    return list(unique.values())


def hooked_kind(name: str) -> str:
    """``W_Q`` of ``blocks.0.attn.W_Q``; of grouped keys, ``W_K`` of ``blocks.0.attn._W_K``."""
    return name.rpartition(".")[2].removeprefix("_")


def hooked_width(kind: str, model: Any) -> int:
    """Input width of a matrix W_x, or of the matrix that a bias b_x belongs to."""
    widths: dict[str, int] = {"O": model.n_heads * model.d_head, "out": model.d_mlp}
    return widths.get(kind[2:], model.d_model)


def _hooked(name: str, tensor: nn.Parameter, part: nn.Module, cfg: Any) -> Parameter:
    kind = hooked_kind(name)
    if kind in ("w", "b"):  # of LayerNorm
        return Parameter(name, tensor, part, "norm")
    if kind.startswith("b_"):
        return Parameter(name, tensor, part, "bias", hooked_width(kind, cfg))
    if kind not in HOOKED:
        return Parameter(name, tensor, part)
    is_table = kind in ("W_E", "W_pos")
    width = hooked_width(kind, cfg)
    return Parameter(
        name, tensor, part, "embedding" if is_table else "matrix", width, HOOKED[kind], True
    )


def _known(
    name: str, tensor: nn.Parameter, part: nn.Module, above: nn.Module | None, *, tied: bool
) -> Parameter:
    own, place = name.rpartition(".")[2], re.sub(r"[._]weight$", "", name)
    if "norm" in type(part).__name__.lower():
        return Parameter(name, tensor, part, "norm")
    if _is_embedding(part):
        return Parameter(name, tensor, part, "embedding", part.embedding_dim, "embed", True)
    weight = part._parameters.get("weight" if own == "bias" else own)
    d_in, inputs_first = _inputs(part, weight)
    if own.endswith("bias") or (own.startswith("bias_") and d_in):
        return Parameter(name, tensor, part, "bias", d_in)
    if d_in is None:
        return Parameter(name, tensor, part)
    attention = part if isinstance(part, nn.MultiheadAttention) else above
    parts = _parts(tensor, d_in, place, attention)
    group: Group | None = "embed" if tied else None if parts else _group(place)
    return Parameter(name, tensor, part, "matrix", d_in, group, inputs_first, parts)


def _inputs(part: Any, weight: Tensor | None) -> tuple[int | None, bool]:
    """The inputs of one output of this matrix, if the class is known, and whether they are first.

    For a transposed convolution they are those of its mirror image.
    """
    if isinstance(part, nn.MultiheadAttention):
        return (weight.shape[1] if weight is not None and weight.ndim == 2 else part.embed_dim), False
    if weight is None or weight.ndim < 2:
        return None, False
    if _is_conv1d(part):
        return weight.shape[0], True
    if isinstance(part, _OUTPUTS_FIRST + _INPUTS_FIRST):
        return weight.numel() // len(weight), isinstance(part, _INPUTS_FIRST)
    return None, False


def _group(place: str) -> Group | None:
    if is_fused(place):
        return None
    return next((group for pattern, group in _NAMED if re.search(pattern, place)), None)


def _parts(tensor: Tensor, d_in: int, place: str, above: nn.Module | None) -> tuple[Part, ...]:
    by_head = _SPLIT.get((type(above).__name__, place.rpartition(".")[2]))
    if by_head is None or tensor.numel() != 3 * d_in**2:
        return ()
    config: Any = getattr(above, "config", None)
    units = torch.arange(3 * d_in).view(config.num_attention_heads if by_head else 1, 3, -1)
    groups: tuple[tuple[str, Group], ...] = ("q", "qk"), ("k", "qk"), ("v", "vo")
    return tuple(Part(name, to, units[:, i].flatten()) for i, (name, to) in enumerate(groups))


def _is_embedding(part: Any) -> bool:
    return isinstance(part, nn.Embedding | nn.EmbeddingBag)


def _is_conv1d(part: nn.Module) -> bool:
    """Whether it is Hugging Face's ``Conv1D``, a linear map stored as [d_in, d_out]."""
    module: Any = sys.modules.get("transformers.pytorch_utils")
    return module is not None and isinstance(part, module.Conv1D)


def _check_not_quantised(module: nn.Module) -> None:
    loaded = getattr(module, "is_quantized", False)
    packed = (name for name, part in module.named_modules() if hasattr(part, "_packed_params"))
    narrow = (
        f"{name} ({tensor.dtype})"
        for name, tensor in module.named_parameters()
        if not tensor.is_floating_point() or tensor.element_size() < 2
    )
    name = "the model" if loaded else next(packed, next(narrow, None))
    if name is not None:
        need = "expected floating-point numbers of 16 bits or more"
        raise ConfigError(f"{name} is quantised; {need}: load the model without quantisation")
