"""Initialisation by rate gamma: every weight ~ N(0, (d_in^-gamma)^2).

d_in is the input width of a matrix; a larger gamma means smaller weights. LayerNorm starts as the
identity (NeurIPS paper, appendix A; complexity-control paper, section III-E). Weights can also be
drawn uniformly from -d_in^-gamma to d_in^-gamma.

:func:`initialize` does so with any module. In other networks than HookedTransformers d_in is
PyTorch's fan-in: the inputs of one output, for a transposed convolution those of its mirror image.
In a network that a task brings biases are drawn as the weights of their map are, which at gamma 0.5
is PyTorch's default (the released code behind the complexity-control paper's figure 6).

Each parameter has its own generator, seeded by (seed, name), which draws on the CPU in float32. So
weights depend neither on device nor on dtype (torch's default one too) nor on the number of layers.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown, suggestion
from anchor_interp.models.number_checks import at_least_float32
from anchor_interp.models.parameters import (
    HOOKED,
    Group,
    Parameter,
    hooked_kind,
    hooked_width,
    identity,
    of_unknown_group,
    parameters,
    unwrapped,
)
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer_lens import HookedTransformer, is_bridge
from anchor_interp.tasks.hashing import stream_key

if TYPE_CHECKING:
    import pandas

Biases = Literal["zero", "pytorch", "weights"]
_FILLS: Mapping[str, float | None] = {"zero": 0.0, "one": 1.0, "keep": None}
_GPT2 = re.compile(r"(transformer\.)?(h\.(\d+)\.((attn|mlp)\.c_\w+)|(wte|wpe|lm_head))\.weight")
_GPT2_NAMES = {
    "wte": "embed.W_E", "wpe": "pos_embed.W_pos", "lm_head": "unembed.W_U",
    "attn.c_proj": "attn.W_O", "mlp.c_fc": "mlp.W_in", "mlp.c_proj": "mlp.W_out",
}  # fmt: skip


class _Filling(NamedTuple):
    """What a tensor is set to: a constant, drawn numbers or, without both, what it was."""

    constant: float | None = None
    scales: tuple[float, ...] = ()
    """Factors of the drawn numbers: one, or one for each of q, k and v."""
    uniform: bool = False
    d_in: int | None = None
    """The inputs that the factors follow from."""
    padding: int | None = None
    """The row that gets zeros."""


@torch.inference_mode()
def initialize(
    module: nn.Module,
    gamma: float | InitConfig = 0.8,
    seed: int = 0,
    *,
    rules: Mapping[str, str | int | tuple[str, int]] | None = None,
    biases: Biases = "zero",
    overwrite: bool = False,
) -> "pandas.DataFrame":
    """Set every parameter of a module in place: weights ~ N(0, (d_in^-gamma)^2), norms to identity.

    The table has a row for every tensor: names, shape, group (``kept`` if it stays), d_in if it was
    drawn, and standard deviation before and after. A HookedTransformer gets the weights of
    ``build_model``, a GPT-2 of Hugging Face the same, its tied head apart. Without a rule frozen
    parameters stay, unless all are frozen. Buffers stay, such as BatchNorm's running statistics.

    Args:
        module: made of classes that :mod:`anchor_interp.models.parameters` knows, or with rules.
            d_in is the number of inputs of one output; of an embedding its width, and its
            ``padding_idx`` gets zeros. The gain of a norm becomes such that it multiplies by 1.
        gamma: the rate (of a standard deviation that is -log(std) / log(d_in)), or an InitConfig
            that gives groups their own. Its scheme ``released`` is for HookedTransformers alone.
        rules: by name or pattern (``*.gate``), of which the first that fits counts: the group
            (``embed``, ``qk``, ``vo``, ``mlp``) or the d_in of a matrix, or both as ``("qk", 64)``;
            or ``zero``, ``one``, ``keep``.
        biases: ``pytorch`` draws uniformly from +-1/sqrt(d_in) of the bias's matrix, ``weights`` as
            its matrix is drawn, with its group and d_in.
        overwrite: needed where weights look trained: the values of a norm differ from one another,
            or no norm has values and the model names what it was loaded from (``name_or_path``;
            ``original_architecture`` in TransformerLens). Nothing else tells.

    Raises:
        ConfigError: a parameter without a rule, a shared tensor with two, a rule or a group's rate
            for no parameter, or where the group of another is unknown; a bias to be drawn whose
            matrix is unknown; weights that look trained, share memory, are quantised, in shards or
            on the device meta.
    """
    import pandas

    given = checked(gamma, InitConfig | float, "gamma")
    init = given if isinstance(given, InitConfig) else InitConfig(given)
    checked(biases, Biases, "biases")
    if is_bridge(module):
        raise ConfigError("module is a TransformerBridge; initialise its original_model")
    ruled: dict[str, Any] = {
        pattern: rule[0] if isinstance(rule, tuple | list) and len(rule) == 1 else rule
        for pattern, rule in checked(rules or {}, dict, "rules").items()
    }
    known = parameters(module, lambda name: _rule(name, ruled) == "keep")
    if init.scheme == "released" and not isinstance(module, HookedTransformer):
        other = f"a {type(module).__name__} does not tell its d_model and layers"
        raise ConfigError(f"init.scheme is 'released'; expected 'paper': {other}")
    if not overwrite and (sign := _sign_of_training(module, known)):
        raise ConfigError(f"the weights look trained: {sign}; overwrite=True replaces them")
    draw, rows = _Drawing(module, seed), list[dict[str, Any]]()
    plan = _plan(module, known, init, biases, ruled)
    _check_effects(plan, known, ruled, biases)
    _check_rates([each for each, _ in plan if each.is_matrix], init, ruled)
    for (each, filling), same in zip(plan, known, strict=True):
        others = ", ".join(x.name for x in same[1:])
        row: dict[str, Any] = {"name": each.name, "also": others, "shape": tuple(each.tensor.shape)}
        group = "kept" if each.kind == "keep" else each.group
        row |= {"group": group, "d_in": filling.d_in, "std_before": _std(each.tensor)}
        draw(each, filling)
        rows.append(row | {"std_after": _std(each.tensor)})
    return pandas.DataFrame(rows)


@torch.no_grad()
def set_weights(module: nn.Module, init: InitConfig, *, seed: int) -> None:
    """Set every parameter of a network of ours; ConfigError for one that no rule covers."""
    biases: Biases = "zero" if isinstance(module, HookedTransformer) else "weights"
    draw = _Drawing(module, seed)
    for each, filling in _plan(module, parameters(module), init, biases, {}):
        draw(each, filling)


def gamma_std(name: str, model: ModelConfig | Any, init: InitConfig) -> float:
    """Initial standard deviation of a weight matrix, such as ``blocks.0.attn.W_Q``.

    It is d_in^-gamma with the matrix's own rate. The ``released`` scheme uses d_model^-gamma,
    divided by sqrt(2 n_layers) for W_O and W_out. Of uniform weights it is the bound.
    """
    kind = hooked_kind(name)
    if kind not in HOOKED:
        raise ConfigError(f"no initialisation is defined for the parameter {name!r}")
    std = _std_of(_hooked_d_in(kind, model, init), HOOKED[kind], init)
    shrunk = init.scheme == "released" and kind in ("W_O", "W_out")
    return std / (math.sqrt(2 * model.n_layers) if shrunk else 1)


def _hooked_d_in(kind: str, model: ModelConfig | Any, init: InitConfig) -> int:
    d_in: int = model.d_model if init.scheme == "released" else hooked_width(kind, model)
    if init.embed_d_in == "d_vocab":
        d_in = {"W_E": model.d_vocab, "W_pos": model.n_ctx}.get(kind, d_in)
    return d_in


def _std_of(d_in: int, group: Group | None, init: InitConfig) -> float:
    own = None if group is None else getattr(init, f"gamma_{group}")
    return math.pow(d_in, -(init.gamma if own is None else own))


_Plan = list[tuple[Parameter, _Filling]]
_Known = list[list[Parameter]]
_Rules = dict[str, Any]


def _plan(
    module: nn.Module, known: _Known, init: InitConfig, biases: Biases, rules: _Rules
) -> _Plan:
    """Every tensor under its first name, and what it is set to."""
    names = [each.name for same in known for each in same]
    for pattern in rules:
        if not any(fnmatchcase(name, pattern) for name in names):
            close = suggestion(pattern, names)
            raise ConfigError(f"rules: no parameter is called {shown(pattern)}{close}")
    cfg, plan = module.cfg if isinstance(module, HookedTransformer) else None, []
    uncovered, trains = [], any(same[0].tensor.requires_grad for same in known)
    ruled = {x.name: found for same in known for x in same if (found := _ruled(x, rules))}
    matrices = {id(x.tensor): x for same in known for x in same if x.is_matrix}
    matrices |= {id(x.tensor): x for x in ruled.values()}
    for named in known:
        same = [_with_its_matrix(x, matrices) for x in named]
        own = [ruled[x.name] for x in same if x.name in ruled]
        if not own and trains and not same[0].tensor.requires_grad:
            own = [replace(same[0], kind="keep")]
        usual = own or [x for x in same if ".lora_" not in f".{x.name}"]  # one has to be 0
        options = [(x, _filling(x, init, biases, None if own else cfg)) for x in usual]
        covered = [(each, filling) for each, filling in options if filling is not None]
        if not covered:
            uncovered.append(same[0])
            continue
        each, filling = covered[0]
        for other, second in covered:
            if second[:3] != filling[:3]:  # the numbers that it gets
                two = f"{each.name} and {other.name} are one tensor with two rules"
                raise ConfigError(f"{two}; give both names the same in rules")
        rows = (getattr(x.owner, "padding_idx", None) for x in same if x.name.endswith("weight"))
        padding = next((row for row in rows if row is not None), None)
        plan.append((replace(each, name=same[0].name), filling._replace(padding=padding)))
    if uncovered:
        raise _uncovered(uncovered)
    return plan


def _with_its_matrix(each: Parameter, matrices: Mapping[int, Parameter]) -> Parameter:
    """A bias with the group, d_in and parts of its matrix, a rule's too."""
    own = each.name.rpartition(".")[2].replace("bias", "weight")
    matrix = matrices.get(id(each.owner._parameters.get(own)))
    if each.kind != "bias" or matrix is None or not matrix.is_matrix:
        return each
    return replace(each, d_in=matrix.d_in, group=matrix.group, parts=matrix.parts)


def _rule(name: str, rules: _Rules) -> Any:
    """The first rule whose pattern fits; None without one."""
    return next((rule for pattern, rule in rules.items() if fnmatchcase(name, pattern)), None)


def _ruled(each: Parameter, rules: _Rules) -> Parameter | None:
    """The parameter as a rule of the user describes it; None without one."""
    if (rule := _rule(each.name, rules)) is None:
        return None
    words = rule if isinstance(rule, tuple | list) else (rule,)
    group = next((word for word in words if word in get_args(Group)), None)
    fill = next((word for word in words if isinstance(word, str) and word in _FILLS), None)
    d_in = next((word for word in words if type(word) is int and word > 0), None)
    n_words = sum(x is not None for x in (group, fill, d_in))
    if not 0 < len(words) == n_words or (fill and n_words > 1):
        names = ", ".join((*get_args(Group), *_FILLS))
        expected = f"expected one of {names}, a d_in such as 64, or ('qk', 64)"
        raise ConfigError(f"the rule for {each.name} is {shown(rule)}; {expected}")
    if each.kind == "norm" and d_in and each.tensor.ndim < 2:
        expected = f"a norm has no inputs; expected one of {', '.join(_FILLS)}"
        raise ConfigError(f"the rule for {each.name} is {shown(rule)}; {expected}")
    kind = fill or ("matrix" if d_in and each.kind != "bias" else each.kind)
    if kind is None:
        raise ConfigError(f"the rule for {each.name} is {shown(rule)}; its d_in is unknown: add it")
    return replace(each, kind=kind, d_in=d_in or each.d_in, group=group or each.group, parts=())


def _filling(each: Parameter, init: InitConfig, biases: Biases, cfg: Any) -> _Filling | None:
    """What a parameter is set to; None if no rule covers it. ``cfg`` is a HookedTransformer's."""
    uniform = init.weights == "uniform"
    if each.kind is None:
        return None
    if each.kind in _FILLS:
        return _Filling(_FILLS[each.kind])
    if each.kind == "norm":
        unit = identity(each) if cfg is None else float(hooked_kind(each.name) == "w")
        return None if unit is None else _Filling(unit)
    if each.kind == "bias":
        if each.d_in is None or (biases == "zero" and init.scheme == "paper"):
            return _Filling(0.0)
        if biases != "weights":
            return _Filling(None, (each.d_in**-0.5,), True, each.d_in)
    elif cfg is not None:
        d_in = _hooked_d_in(hooked_kind(each.name), cfg, init)
        return _Filling(None, (gamma_std(each.name, cfg, init),), uniform, d_in)
    is_table = each.kind == "table" and init.embed_d_in == "d_vocab"
    d_in = len(each.tensor) if is_table else each.d_in or 1
    groups = [part.group for part in each.parts] if each.parts else [each.group]
    return _Filling(None, tuple(_std_of(d_in, group, init) for group in groups), uniform, d_in)


def _uncovered(found: list[Parameter]) -> ConfigError:
    first, more = found[0], f"; all without one: {_patterns(found)}" if len(found) > 1 else ""
    about = f"{first.name}, {tuple(first.tensor.shape)} of a {type(first.owner).__name__}"
    rule = f"rules={{{first.name!r}: D_IN}} with the number of its inputs, or 'zero', 'one', 'keep'"
    return ConfigError(f"no initialisation is defined for {about}; give one: {rule}{more}")


def _patterns(found: list[Parameter]) -> str:
    """Their names, of the layers of a model once."""
    return ", ".join(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.)", "*", x.name) for x in found))


class _Drawing:
    """Fills parameters with numbers that are a function of seed and name."""

    def __init__(self, module: Any, seed: int) -> None:
        stream_key(seed, "init")  # checks it
        inner = getattr(module, "module", module)  # of DDP
        self.seed, config = seed, getattr(inner, "config", None)
        is_gpt2 = getattr(config, "model_type", "") == "gpt2"
        self.gpt2_heads: int = getattr(config, "n_head", 0) if is_gpt2 else 0
        names = {name: unwrapped(name) for name, _ in module.named_parameters()}
        self.names = names if len(set(names.values())) == len(names) else {}

    def __call__(self, each: Parameter, filling: _Filling) -> None:
        """Set a parameter in place."""
        if filling.constant is not None:
            each.tensor.fill_(filling.constant)
        elif filling.scales:
            drawn = self._drawn(each, filling.uniform)
            each.tensor.copy_(drawn * _factors(each, filling.scales))
            if filling.padding is not None:
                each.tensor[filling.padding] = 0

    def _drawn(self, each: Parameter, uniform: bool) -> Tensor:
        """Numbers by the parameter's name; of GPT-2 by a HookedTransformer's."""
        shape, name = each.tensor.shape, self.names.get(each.name, each.name)
        found = _GPT2.fullmatch(name) if self.gpt2_heads else None
        if found is None or (found[3] and not each.inputs_first):  # nanoGPT's maps are Linear
            return self._numbers(name, shape, uniform)
        layer, matrix, outside = found.group(3, 4, 6)
        if outside == "lm_head":
            return self._numbers(_GPT2_NAMES[outside], shape[::-1], uniform).mT
        block = f"blocks.{layer}." if matrix else ""
        if matrix != "attn.c_attn":
            return self._numbers(block + _GPT2_NAMES[matrix or outside], shape, uniform)
        heads = self.gpt2_heads, shape[0], shape[0] // self.gpt2_heads
        qkv = [self._numbers(f"{block}attn.W_{x}", heads, uniform) for x in "QKV"]
        return torch.cat([x.transpose(0, 1).flatten(1) for x in qkv], 1)

    def _numbers(self, name: str, shape: tuple[int, ...], uniform: bool) -> Tensor:
        """Values of standard deviation 1, or uniform ones from -1 to 1."""
        seed_of_name = int(stream_key(self.seed, f"init/{name}")) >> 1  # manual_seed takes 63 bits
        generator = torch.Generator(device="cpu").manual_seed(seed_of_name)
        draw: Any = torch.rand if uniform else torch.randn
        drawn: Tensor = draw(shape, generator=generator, dtype=torch.float32, device="cpu")
        return 2 * drawn - 1 if uniform else drawn


def _factors(each: Parameter, scales: tuple[float, ...]) -> float | Tensor:
    """One factor, or one for each output of a matrix whose parts have rates of their own."""
    if len(set(scales)) == 1:
        return scales[0]
    n_units = sum(len(part.units) for part in each.parts)
    factors = torch.empty(n_units, dtype=torch.float32, device="cpu")
    for part, scale in zip(each.parts, scales, strict=True):
        factors[part.units] = scale
    return factors if each.inputs_first or each.kind == "bias" else factors[:, None]


def _sign_of_training(module: Any, known: list[list[Parameter]]) -> str:
    """What shows that weights were trained; empty if nothing does."""
    norms = [same[0] for same in known if same[0].kind == "norm" and same[0].tensor.requires_grad]
    for each in norms:
        if (each.tensor != each.tensor.flatten()[0]).any():
            return f"the values of {each.name} differ from one another"
    cfg = getattr(module, "cfg", None)
    loaded = getattr(module, "name_or_path", "") or getattr(cfg, "original_architecture", "")
    return f"it was loaded from {loaded}" if loaded and not norms else ""


def _check_effects(plan: _Plan, known: _Known, rules: _Rules, biases: Biases) -> None:
    """ConfigError if a group is given to no matrix, or a bias to be drawn has no known matrix."""
    for pattern, rule in rules.items():
        mine = [x for same in known for x in same if fnmatchcase(x.name, pattern)]
        spared = ("norm",) if biases == "weights" else ("norm", "bias")
        if rule in get_args(Group) and all(x.kind in spared for x in mine):
            what = f"{mine[0].name} is a {mine[0].kind}"
            raise ConfigError(f"the rule {shown(pattern)}: {shown(rule)} changes nothing: {what}")
    for each, _ in plan:
        if each.kind == "bias" and each.d_in is None and biases != "zero":
            what = f"biases is {biases!r}, and the inputs of the matrix of {each.name} are unknown"
            raise ConfigError(f"{what}; give rules={{{each.name!r}: D_IN}}, or 'zero'")


def _check_rates(drawn: list[Parameter], init: InitConfig, rules: _Rules) -> None:
    """ConfigError if a group has a rate of its own and no matrix, or perhaps not all of its own."""
    parts = [part for each in drawn for part in each.parts]
    groups = {each.group for each in drawn} | {part.group for part in parts}
    rates = {group: getattr(init, f"gamma_{group}") for group in get_args(Group)}
    for group, rate in rates.items():
        if rate is not None and group not in groups:
            none = f"no parameter is known to be in the group {group}"
            raise ConfigError(f"init.gamma_{group} is {rate}; {none}: name them in rules")
    of_attention = of_unknown_group(drawn)
    others = [x for x in drawn if not x.group and not x.parts and x not in of_attention]
    for (one, two), perhaps in {("qk", "vo"): of_attention, ("embed", "mlp"): others}.items():
        unknown = [x for x in perhaps if _rule(x.name, rules) is None]
        if unknown and (rates[one], rates[two]) != (None, None):
            what = f"gamma_{one} is {rates[one]}, gamma_{two} {rates[two]}; no group is known for "
            give = f"rules={{{_patterns(unknown[:1])!r}: {one!r}}}, {two!r}, or its D_IN"
            raise ConfigError(f"{what}{_patterns(unknown)}: give {give} for init.gamma")


def _std(tensor: Tensor) -> float:
    return float(at_least_float32(tensor).std(correction=0)) if tensor.numel() else math.nan
