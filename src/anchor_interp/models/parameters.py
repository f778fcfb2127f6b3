"""What every parameter of a module is: a matrix with its inputs, an embedding, a bias, a norm.

:mod:`anchor_interp.models.init` draws by it, :mod:`anchor_interp.models.complexity` measures by it.
The class that owns a parameter tells; a norm's class has ``norm`` in its name. The group whose rate
an InitConfig may set follows from the names that PyTorch and Hugging Face give to layers.
"""

import copy
import itertools
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.models.number_checks import placed
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
    r"(attn|attention)|mlp|ffn|feed_?forward|intermediate|(fc|linear)\d+$"
    r"|(?<!attention\.)(?<!attn\.)output\.dense$",
    re.IGNORECASE,
)  # the last one in a matrix's name tells whether it is of an attention or of an MLP
_READS = re.compile(r"(^|\.)(to_|w_?)?((q|k|query|key)|v|value)(_proj|_lin|_attn)?$", re.IGNORECASE)
_WRITES = re.compile(
    r"(^|\.)((to_|w_?)?o(ut|utput)?(_proj|_lin)?(\.\d+|\.dense)?|dense|proj|c_proj)$", re.IGNORECASE
)
_FUSED = re.compile(
    r"(^|\.)(c_attn|query_key_value|(to_|w)?q?kv(_proj)?|(?<=attn\.|tion\.)in_proj)$", re.IGNORECASE
)
_WRAPPERS = re.compile(
    r"^((_orig_mod\.)?module|base_model\.model)(?=\.)"
    r"|(^|\.)(_orig_mod|_fsdp_wrapped_module|base_layer)(?=\.|$)"
)  # of DDP, torch.compile, FSDP and PEFT
_SPLIT = {
    ("GPT2Attention", "c_attn"): False,
    ("CausalSelfAttention", "c_attn"): False,  # nanoGPT
    ("MultiheadAttention", "in_proj"): False,
    ("GPTNeoXAttention", "query_key_value"): True,
}
"""Queries, keys and values in one matrix, by the attention's class and the matrix's name: head by
head (q, k and v of a head, then of the next), or else one after another."""
_TABLES, _TRANSPOSED = nn.Embedding | nn.EmbeddingBag, nn.modules.conv._ConvTransposeNd
_LINEAR = nn.Linear | nn.modules.conv._ConvNd
_NORMS = nn.LayerNorm | nn.GroupNorm | nn.RMSNorm | nn.modules.batchnorm._NormBase
_ADDED: Mapping[str, Group] = {"bias_k": "qk", "bias_v": "vo"}  # of nn.MultiheadAttention
_OFFSETS = ("bias", "b", "beta", "shift", "offset")
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
    """``matrix``, ``table`` (an embedding), ``bias``, ``norm``, ``keep`` (empty); None: unknown."""
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


def parameters(
    module: nn.Module, is_kept: Callable[[str], bool] = lambda _: False
) -> list[list[Parameter]]:
    """Every tensor of a module, under each of its names.

    Raises:
        ConfigError: a tensor is on the device meta or in shards, or quantised or complex and not
            kept; a tensor is expanded, or two share memory; the module is scripted, or has none.
    """
    found = _found(module)
    for each, *_ in found:
        if hasattr(each.tensor, "full_tensor") or (_is_flat(each) and not each.tensor.numel()):
            raise ConfigError(f"{each.name} is in shards (a DTensor, or empty): gather it first")
    named = [name or "the model" for name, x in module.named_modules()
             if hasattr(x, "_packed_params")
             or getattr(x, "is_quantized", None) is True]  # fmt: skip
    named += [f"{x.name} ({x.tensor.dtype})" for x, *_ in found if not is_kept(x.name)
              if not x.tensor.is_floating_point() or x.tensor.element_size() < 2]  # fmt: skip
    if named:
        what = f"{named[0]} is {'complex' if 'torch.complex' in named[0] else 'quantised'}"
        need = "expected floating-point numbers of 16 bits or more"
        raise ConfigError(f"{what}; {need}: load the model so, or keep it by a rule")
    return found


def _found(module: nn.Module) -> list[list[Parameter]]:
    list(placed(checked(module, nn.Module, "module")))
    if isinstance(module, torch.jit.ScriptModule):
        raise ConfigError("module is a ScriptModule; expected the module that it was made from")
    tables = {id(part.weight) for part in module.modules() if isinstance(part, _TABLES)}
    cfg = module.cfg if isinstance(module, HookedTransformer) else None
    found: dict[int, list[Parameter]] = {}
    for name, tensor in nn.Module.named_parameters(module, remove_duplicate=False):
        if isinstance(tensor, nn.parameter.UninitializedParameter):
            raise ConfigError(f"{name} has no shape yet: run the module once first")
        place = name.rpartition(".")[0]
        owner, above = module.get_submodule(place), module.get_submodule(place.rpartition(".")[0])
        each = _hooked(name, tensor, owner, cfg) if cfg else _known(name, tensor, owner, above)
        if each.kind == "matrix" and id(tensor) in tables:
            each = replace(each, group="embed", parts=())
        found.setdefault(id(tensor), []).append(each)
    if not found:
        raise ConfigError(f"the {type(module).__name__} has no parameters")
    _check_apart([same[0] for same in found.values()])
    return list(found.values())


def _check_apart(found: list[Parameter]) -> None:
    """ConfigError if two tensors share memory: to set one would change the other."""
    before: list[tuple[str, int, int, Parameter]] = []
    for each in found:
        t = each.tensor
        is_plain = type(t).__torch_dispatch__ is nn.Parameter.__torch_dispatch__
        if not (is_plain and t.layout is torch.strided and t.numel()):
            continue
        steps = [*zip(t.shape, t.stride(), strict=True)]
        if any(n > 1 and not step for n, step in steps):
            raise ConfigError(f"{each.name} is expanded, its values share memory: clone it")
        last = t.data_ptr() + sum((n - 1) * step for n, step in steps) * t.element_size()
        before.append((str(t.device), t.data_ptr(), last, each))
    before.sort(key=lambda span: span[:3])
    for index, (device, _, last, one) in enumerate(before):
        for other_device, start, _, two in before[index + 1 :]:
            if (device, last) < (other_device, start):
                break
            if torch.isin(_addresses(one.tensor), _addresses(two.tensor)).any():
                raise ConfigError(
                    f"{one.name} and {two.name} share memory: tie them as one Parameter"
                )


def _addresses(tensor: Tensor) -> Int64[Tensor, " value"]:
    """Where the values lie in memory, in bytes."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    grid = torch.zeros((), dtype=torch.int64, device="cpu")
    for n, step in steps:
        grid = grid[..., None] + torch.arange(n, device="cpu") * step
    return grid.flatten() * tensor.element_size() + tensor.data_ptr()


def unwrapped(name: str) -> str:
    """The name without what DDP, FSDP, torch.compile and PEFT put into it."""
    return _WRAPPERS.sub("", name).lstrip(".")


@torch.random.fork_rng(devices=[])
def identity(each: Parameter) -> float | None:
    """What a norm's parameter is where it changes nothing: 0 for an offset, 1 for most gains.

    Gemma's RMSNorm multiplies by 1 + weight. So the norm is tried, unless it is one of PyTorch's:
    on vectors, then on images. A gain of one element, such as a temperature, has no such value.
    """
    if each.name.rpartition(".")[2] in _OFFSETS:
        return 0.0
    forward: Any = type(each.owner).forward
    if isinstance(each.owner, _NORMS) and forward.__module__.startswith("torch."):
        return 1.0
    norm = copy.deepcopy(each.owner).cpu().float()
    norm._forward_hooks.clear()
    norm._forward_pre_hooks.clear()
    torch.default_generator.manual_seed(0)
    for behind, gain in itertools.product(((), (5, 7)), (1.0, 0.0)):
        for name, parameter in norm.named_parameters():
            parameter.fill_(0.0 if name in _OFFSETS else gain)
        x = torch.randn((4, *each.tensor.shape, *behind), dtype=torch.float32, device="cpu")
        try:
            size = float(norm(x).square().mean())
        except Exception:  # a norm that takes something else
            continue
        if abs(size - 1) < 0.05 and each.tensor.numel() > 1:
            return gain
    return None


def of_unknown_group(found: list[Parameter]) -> list[Parameter]:
    """Matrices of an attention that do not tell if they are queries, keys, values or outputs."""
    places = [unwrapped(x.place) for x in found]
    around = [re.sub(r"(^|\.)(heads\.\d+\.)?[^.]+$", "", place) for place in places]
    beside = {at for x, at in zip(found, around, strict=True) if x.group in ("qk", "vo")}
    return [x for x, place, at in zip(found, places, around, strict=True)
            if not x.group and not x.parts and (is_fused(place) or at in beside
            or _attends(".".join(place.split(".")[-3:])))]  # fmt: skip


def _attends(place: str) -> bool | None:
    """Whether the last block in a path is an attention; None without a block."""
    blocks = list(_BLOCK.finditer(place))
    return bool(blocks[-1][1]) if blocks else None


def is_fused(name: str) -> bool:
    """Whether a matrix is called as one of queries, keys and values together."""
    return _FUSED.search(unwrapped(name)) is not None


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
    ``norms_and_biases`` those of norms, biases and other vectors do not decay.

    Raises:
        ConfigError: a coefficient that is negative or not finite, tensors that share memory, or
            without ``norms_and_biases`` a matrix that a wrapper has flattened.
    """
    weight_decay = checked(weight_decay, float, "weight_decay", low=0)
    groups: dict[float, list[Tensor]] = {weight_decay: [], 0.0: []}
    for each, *_ in _found(module):
        if not norms_and_biases and _is_flat(each):
            raise ConfigError(
                f"{each.name} is flattened: make the groups before wrapping the model"
            )
        is_spared = not norms_and_biases and (each.kind in ("norm", "bias") or each.tensor.ndim < 2)
        if each.tensor.requires_grad:
            groups[0.0 if is_spared else weight_decay].append(each.tensor)
    return [{"params": of, "weight_decay": decay} for decay, of in groups.items() if of]


def _is_flat(each: Parameter) -> bool:
    """Whether a matrix has become a vector, as in shards."""
    is_matrix = isinstance(each.owner, _TABLES | _LINEAR) and each.name.endswith("weight")
    return each.tensor.ndim < 2 and (is_matrix or each.name.endswith("_flat_param"))


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
    place = re.sub(r"[._]weight$|\.bias$", "", unwrapped(name))
    if not tensor.numel():
        return replace(plain, kind="keep")
    is_other = isinstance(owner, _TABLES | _LINEAR)  # such as a linear map that normalises
    is_norm = isinstance(owner, _NORMS) or "norm" in type(owner).__name__.lower()
    if is_norm and not is_other and own in _OF_A_NORM:
        return Parameter(name, tensor, owner, "norm")
    if isinstance(owner, _TABLES) and own == "weight":
        return Parameter(name, tensor, owner, "table", owner.embedding_dim, "embed", True)
    weight, library = owner._parameters.get("weight"), sys.modules.get("transformers.pytorch_utils")
    d_in, inputs_first = None, isinstance(owner, _TRANSPOSED)
    if isinstance(owner, nn.MultiheadAttention):
        one_width = owner.embed_dim if owner._qkv_same_embed_dim else None
        above, d_in = owner, tensor.shape[1] if tensor.ndim == 2 else one_width
    elif weight is None or weight.ndim < 2 or not weight.numel():
        pass  # computed from others, as weight norm, spectral norm and pruning do; or in shards
    elif isinstance(owner, _LINEAR):
        d_in = weight.numel() // len(weight)  # transposed: of the mirror image
        if isinstance(owner, nn.Linear) and d_in != owner.in_features:
            inputs_first = weight.shape == (owner.in_features, owner.out_features)
            d_in = len(weight) if inputs_first else None
    elif library is not None and isinstance(owner, library.Conv1D):  # a linear map [d_in, d_out]
        d_in, inputs_first = len(weight), True
    if own.endswith("bias") or own.startswith("bias_"):
        group = _group(place, above) if weight is not None else _ADDED.get(own)
        return Parameter(name, tensor, owner, "bias", d_in, group)
    is_weight = own == "weight" or (above is owner and own.endswith("_weight"))
    if d_in is None or not is_weight or tensor.ndim < 2:
        return plain
    parts = _parts(tensor, d_in, place, above)
    group = None if parts else _group(place, above)
    return Parameter(name, tensor, owner, "matrix", d_in, group, inputs_first, parts)


def _group(place: str, above: nn.Module) -> Group | None:
    """The group of a matrix by its name; None of an attention's matrix that has another name."""
    if is_fused(place):
        return None
    if _HEAD.search(place):
        return "embed"
    attends = isinstance(above, nn.MultiheadAttention) or _attends(place)
    if attends is False:
        return "mlp"
    if (reads := _READS.search(place)) is None:
        return "vo" if attends and _WRITES.search(place) else None
    beside = [x for name in above._modules if (x := _READS.search(name))]
    is_v, is_whole = reads[4] is None, len(beside) > 1 and any(x[4] for x in beside)
    if attends or is_whole or (reads[4] and (reads[2] or reads[5])):
        return "vo" if is_v else "qk"
    return None  # a critic has a ``value`` or a ``q`` alone


def _parts(tensor: Tensor, d_in: int, place: str, attention: Any) -> tuple[Part, ...]:
    own = place.rpartition(".")[2]
    names = ((kind.__name__, own) for kind in type(attention).__mro__)
    by_head = next((_SPLIT[name] for name in names if name in _SPLIT), None)
    if by_head is None or tensor.numel() != 3 * d_in**2:
        return ()
    n_heads = attention.config.num_attention_heads if by_head else 1
    q, k, v = torch.arange(3 * d_in, device="cpu").view(n_heads, 3, -1).unbind(1)
    return Part("q", "qk", q.flatten()), Part("k", "qk", k.flatten()), Part("v", "vo", v.flatten())
