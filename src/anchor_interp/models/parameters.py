"""What every parameter of a module is: a matrix with its inputs, an embedding, a bias, a norm.

:mod:`anchor_interp.models.init` draws by it, :mod:`anchor_interp.models.complexity` measures by it.
The class that owns a parameter tells; a norm's class has ``norm`` in its name. The group whose rate
an InitConfig may set follows from the names that PyTorch and Hugging Face give to layers.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.models.finite import placed
from anchor_interp.models.transformer_lens import HookedTransformer

Group = Literal["embed", "qk", "vo", "mlp"]
"""Matrices that may have a rate of their own, such as ``InitConfig.gamma_qk``."""
HOOKED: Mapping[str, Group] = {
    "W_E": "embed", "W_pos": "embed", "W_U": "embed", "W_Q": "qk", "W_K": "qk", "W_V": "vo",
    "W_O": "vo", "W_in": "mlp", "W_gate": "mlp", "W_out": "mlp",
}  # fmt: skip
"""The matrices of a HookedTransformer."""
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out|unembed)$")
_BLOCK = re.compile(
    r"(attn|attention)|mlp|ffn|feed_?forward|intermediate|(fc|linear)[12]$"
    r"|(?<!attention\.)(?<!attn\.)output\.dense$",
    re.IGNORECASE,
)  # the last one in a matrix's name tells whether it is of an attention or of an MLP
_READS = re.compile(r"(^|\.)(to_|w_?)?((q|k|query|key)|v|value)(_proj|_lin|_attn)?$", re.IGNORECASE)
_WRITES = re.compile(
    r"(^|\.)((to_|w_?)?o(ut|utput)?(_proj|_lin)?(\.\d+|\.dense)?|dense|proj|c_proj)$", re.IGNORECASE
)
_FUSED = re.compile(r"(^|\.)(c_attn|query_key_value|(to_|w)?qkv(_proj)?)$", re.IGNORECASE)
_SPLIT = {
    ("GPT2Attention", "c_attn"): False,
    ("MultiheadAttention", "in_proj"): False,
    ("GPTNeoXAttention", "query_key_value"): True,
}
"""Queries, keys and values in one matrix, by the attention's class and the matrix's name: head by
head (q, k and v of a head, then of the next), or else one after another."""
_TABLES, _TRANSPOSED = nn.Embedding | nn.EmbeddingBag, nn.modules.conv._ConvTransposeNd
_LINEAR = nn.Linear | nn.modules.conv._ConvNd
_OF_A_NORM = ("weight", "bias", "w", "b", "g", "scale", "shift", "gain", "offset", "gamma", "beta")


class Part(NamedTuple):
    """Queries, keys or values in a matrix that holds all three, by the outputs that they are."""

    name: str
    group: Group
    units: Int64[Tensor, " unit"]


@dataclass(frozen=True, eq=False)
class Parameter:
    """A parameter and what it is."""

    name: str
    tensor: Tensor
    owner: nn.Module
    kind: str | None = None
    """``matrix``, ``table`` (an embedding), ``bias``, ``norm``; None where nothing is known."""
    d_in: int | None = None
    """Inputs of one output of a matrix, or of a bias's matrix; the width of an embedding."""
    group: Group | None = None
    inputs_first: bool = False
    """Whether the tensor is [d_in, d_out], as embeddings are, and not [d_out, d_in]."""
    parts: tuple[Part, ...] = ()

    @property
    def place(self) -> str:
        """The name without ``weight``."""
        return re.sub(r"[._]weight$", "", self.name)

    @property
    def is_matrix(self) -> bool:
        """Whether it is measured."""
        return self.kind in ("matrix", "table")

    @property
    def matrix(self) -> Tensor:
        """[d_in, d_out], a column for each output; of an embedding a row for each token."""
        flat = self.tensor.detach().flatten(1)
        return flat if self.inputs_first else flat.mT


def parameters(module: nn.Module) -> list[list[Parameter]]:
    """Every tensor of a module, under each of its names.

    Raises:
        ConfigError: a tensor is on the device meta, a weight is quantised, or there is none.
    """
    list(placed(checked(module, nn.Module, "module")))
    _check_not_quantised(module)
    tables = {id(part.weight) for part in module.modules() if isinstance(part, _TABLES)}
    cfg = module.cfg if isinstance(module, HookedTransformer) else None
    found: dict[int, list[Parameter]] = {}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        place = name.rpartition(".")[0]
        owner, above = module.get_submodule(place), module.get_submodule(place.rpartition(".")[0])
        each = (
            _known(name, tensor, owner, above) if cfg is None else _hooked(name, tensor, owner, cfg)
        )
        if each.kind == "matrix" and id(tensor) in tables:
            each = Parameter(name, tensor, owner, "matrix", each.d_in, "embed", each.inputs_first)
        found.setdefault(id(tensor), []).append(each)
    if not found:
        raise ConfigError(f"the {type(module).__name__} has no parameters")
    return list(found.values())


def is_fused(name: str) -> bool:
    """Whether a matrix is called as one of queries, keys and values together."""
    return _FUSED.search(name) is not None


def hooked_kind(name: str) -> str:
    """``W_Q`` of ``blocks.0.attn.W_Q``, ``W_K`` of ``blocks.0.attn._W_K`` (grouped keys)."""
    return name.rpartition(".")[2].removeprefix("_")


def hooked_width(kind: str, model: Any) -> int:
    """Input width of a matrix W_x, or of the matrix that a bias b_x belongs to."""
    widths: dict[str, int] = {"O": model.n_heads * model.d_head, "out": model.d_mlp}
    return widths.get(kind[2:], int(model.d_model))


def decay_groups(
    module: nn.Module, weight_decay: float, *, norms_and_biases: bool = True
) -> list[dict[str, Any]]:
    """What a PyTorch optimizer takes: ``torch.optim.AdamW(decay_groups(module, 0.1), lr=1e-3)``.

    AdamW of both papers (appendix A), and of this package, decays every parameter. Without
    ``norms_and_biases`` no vector decays, as in Hugging Face's ``Trainer``.

    Raises:
        ConfigError: a coefficient that is negative or not finite.
    """
    weight_decay = checked(weight_decay, float, "weight_decay", low=0)
    groups: dict[float, list[Tensor]] = {weight_decay: [], 0.0: []}
    for each, *_ in parameters(module):
        is_spared = not norms_and_biases and (each.kind in ("norm", "bias") or each.tensor.ndim < 2)
        if each.tensor.requires_grad:
            groups[0.0 if is_spared else weight_decay].append(each.tensor)
    return [{"params": of, "weight_decay": decay} for decay, of in groups.items() if of]


def _hooked(name: str, tensor: Tensor, owner: nn.Module, cfg: Any) -> Parameter:
    kind = hooked_kind(name)
    if kind in ("w", "b"):  # of LayerNorm
        return Parameter(name, tensor, owner, "norm")
    if kind.startswith("b_"):
        group = HOOKED.get(f"W_{kind[2:]}")
        return Parameter(name, tensor, owner, "bias", hooked_width(kind, cfg), group)
    if kind not in HOOKED:
        return Parameter(name, tensor, owner)
    what = "table" if kind in ("W_E", "W_pos") else "matrix"
    return Parameter(name, tensor, owner, what, hooked_width(kind, cfg), HOOKED[kind], True)


def _known(name: str, tensor: Tensor, owner: Any, above: nn.Module) -> Parameter:
    own, plain = name.rpartition(".")[2], Parameter(name, tensor, owner)
    is_other = isinstance(owner, _TABLES | _LINEAR)  # such as a linear map that normalises
    if "norm" in type(owner).__name__.lower() and not is_other and own in _OF_A_NORM:
        return Parameter(name, tensor, owner, "norm")
    if isinstance(owner, _TABLES) and own == "weight":
        return Parameter(name, tensor, owner, "table", owner.embedding_dim, "embed", True)
    weight, library = owner._parameters.get("weight"), sys.modules.get("transformers.pytorch_utils")
    d_in, inputs_first = None, isinstance(owner, _TRANSPOSED)
    if isinstance(owner, nn.MultiheadAttention):
        above, d_in = owner, tensor.shape[1] if tensor.ndim == 2 else owner.embed_dim
    elif weight is None:  # computed from others, as weight norm, spectral norm and pruning do
        pass
    elif isinstance(owner, _LINEAR):  # transposed: of the mirror image
        d_in = weight.numel() // len(weight)
    elif library is not None and isinstance(owner, library.Conv1D):  # a linear map [d_in, d_out]
        d_in, inputs_first = len(weight), True
    if own.endswith("bias") or own.startswith("bias_"):
        group = _group(name.removesuffix(".bias")) if weight is not None else None
        return Parameter(name, tensor, owner, "bias", d_in, group)
    is_weight = own == "weight" or (above is owner and own.endswith("_weight"))
    if d_in is None or not is_weight or tensor.ndim < 2:
        return plain
    parts = _parts(tensor, d_in, plain.place, above)
    group = None if parts else _group(plain.place)
    return Parameter(name, tensor, owner, "matrix", d_in, group, inputs_first, parts)


def _group(place: str) -> Group | None:
    """The group of a matrix by its name; None of an attention's matrix that has another name."""
    if is_fused(place):
        return None
    if _HEAD.search(place):
        return "embed"
    blocks = list(_BLOCK.finditer(place))
    if blocks and blocks[-1][1] is None:
        return "mlp"
    if (reads := _READS.search(place)) is not None:
        return "vo" if reads[4] is None else "qk"
    return "vo" if blocks and _WRITES.search(place) else None


def _parts(tensor: Tensor, d_in: int, place: str, attention: Any) -> tuple[Part, ...]:
    by_head = _SPLIT.get((type(attention).__name__, place.rpartition(".")[2]))
    if by_head is None or tensor.numel() != 3 * d_in**2:
        return ()
    n_heads = attention.config.num_attention_heads if by_head else 1
    q, k, v = torch.arange(3 * d_in, device="cpu").view(n_heads, 3, -1).unbind(1)
    return Part("q", "qk", q.flatten()), Part("k", "qk", k.flatten()), Part("v", "vo", v.flatten())


def _check_not_quantised(module: nn.Module) -> None:
    named = ["the model"] if getattr(module, "is_quantized", False) else []
    named += [name for name, part in module.named_modules() if hasattr(part, "_packed_params")]
    named += [f"{name} ({tensor.dtype})" for name, tensor in module.named_parameters()
              if not tensor.is_floating_point() or tensor.element_size() < 2]  # fmt: skip
    if named:
        need = "expected floating-point numbers of 16 bits or more"
        raise ConfigError(f"{named[0]} is quantised; {need}: load the model without quantisation")
