"""HookedTransformers of the papers: gamma-initialised, pre- or post-LayerNorm.

The papers' single-head models normalise *after* each residual sum (NeurIPS paper, equation 7)::

    X^ao = LN(X + attn(X))        X^do = LN(X^ao + mlp(X^ao))

TransformerLens has no such layout, so :class:`PostLNTransformer` supplies it as a HookedTransformer
with the same hook names. What each hook holds (l is the layer):

=============================  ====================================================================
hook                           post-LayerNorm meaning
=============================  ====================================================================
``hook_resid_pre``             X, the block's input: X^em + X^pos, or
                               ``hook_resid_post`` of the layer below
``attn.hook_q/k/v/z/pattern``  as in TransformerLens; computed from X itself (no LayerNorm)
``hook_attn_out``              attn(X), before the sum and its LayerNorm
``ln1.hook_scale/normalized``  of LN(X + attn(X)), before gain and bias
``hook_resid_mid``             X^ao = LN(X + attn(X)), the MLP's input
``mlp.hook_pre/post``          as in TransformerLens
``hook_mlp_out``               mlp(X^ao), before the sum and its LayerNorm
``ln2.hook_scale/normalized``  of LN(X^ao + mlp(X^ao)), before gain and bias
``hook_resid_post``            X^do = LN(X^ao + mlp(X^ao)), the next block's X
=============================  ====================================================================

So ``unembed(resid_post[-1])`` equals the logits, and the gated hooks (``hook_q_input``,
``hook_mlp_in``, ...) work as in TransformerLens. A post-LayerNorm stream is *not* linear in its
components: ``ActivationCache.decompose_resid`` and ``get_full_resid_decomposition`` do not apply.
"""

import functools
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from anchor_interp._util.environment import resolve_device
from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.models.init import set_weights
from anchor_interp.models.number_checks import check_answers, placed
from anchor_interp.models.shapes import InitConfig, ModelConfig, Normalization
from anchor_interp.models.transformer_lens import HookedTransformer as HookedTransformer
from anchor_interp.models.transformer_lens import (
    HookedTransformerConfig,
    LayerNorm,
    TransformerBlock,
    asked_once,
    is_bridge,
    repeat_along_head_dimension,
)
from anchor_interp.tasks.examples import Examples
from anchor_interp.tasks.task import Task

Inputs = Examples | Integer[np.ndarray, "n pos"] | Integer[Tensor, "n pos"]
"""Examples of any task, such as the sequences of an anchor task, or token indices."""
Edges = Bool[Tensor, "layer batch head query key"]
"""Chosen edges of a model's attention; a batch of 1 stands for all sequences."""
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_INTEGERS = {
    getattr(torch, f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)
}
AnyModule = TypeVar("AnyModule", bound=nn.Module)
_BIASES = ("b_Q", "b_K", "b_V", "b_O", "b_in", "b_out")


class PostLNBlock(TransformerBlock):
    """A TransformerBlock whose LayerNorms act on the residual sums."""

    def __init__(self, cfg: HookedTransformerConfig, block_index: int) -> None:
        super().__init__(cfg, block_index)
        self.ln1 = LayerNorm(cfg)
        self.ln2 = LayerNorm(cfg)

    def forward(
        self,
        resid_pre: Float[Tensor, "batch pos d_model"],
        shortformer_pos_embed: Tensor | None = None,
        past_kv_cache_entry: Any = None,
        attention_mask: Int[Tensor, "batch offset_pos"] | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """One block, with the arguments of TransformerLens's."""
        if shortformer_pos_embed is not None:
            raise ConfigError("a post-LayerNorm block takes no shortformer_pos_embed")
        resid_pre = self.hook_resid_pre(resid_pre)
        attn_out = self.attn(
            *self._attention_inputs(resid_pre),
            past_kv_cache_entry=past_kv_cache_entry,
            attention_mask=attention_mask,
        )
        attn_out = self.hook_attn_out(attn_out)  # [batch, pos, d_model]
        resid_mid = self.hook_resid_mid(self.ln1(resid_pre + attn_out))
        mlp_in = self.hook_mlp_in(resid_mid.clone()) if self.cfg.use_hook_mlp_in else resid_mid
        mlp_out = self.apply_mlp(mlp_in)  # [batch, pos, d_model]
        resid_post: Tensor = self.hook_resid_post(self.ln2(resid_mid + mlp_out))
        return resid_post

    def _attention_inputs(self, resid_pre: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value input, with a head dimension where a gated hook asks for one."""
        if not (self.cfg.use_split_qkv_input or self.cfg.use_attn_in):
            return resid_pre, resid_pre, resid_pre
        per_head = repeat_along_head_dimension(resid_pre, n_heads=self.cfg.n_heads)
        if self.cfg.use_split_qkv_input:  # a copy each: what q's hook holds has q's gradient alone
            hooks = (self.hook_q_input, self.hook_k_input, self.hook_v_input)
            query, key, value = (hook(per_head.clone()) for hook in hooks)
            return query, key, value
        per_head = self.hook_attn_in(per_head)
        return per_head, per_head, per_head


class PostLNTransformer(HookedTransformer):
    """A HookedTransformer of :class:`PostLNBlock`; hooks as in the module's table."""

    def __init__(self, cfg: HookedTransformerConfig) -> None:
        super().__init__(cfg, move_to_device=False)
        for index in range(cfg.n_layers):
            self.blocks[index] = PostLNBlock(self.cfg, index)
        cast(Any, self).setup()  # names the hooks of the new blocks


def build_model(
    model: ModelConfig,
    init: InitConfig,
    *,
    seed: int,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> HookedTransformer:
    """A gamma-initialised HookedTransformer in ``eval`` mode.

    No global generator is read or changed; weights are always drawn on the CPU in float32. Without
    biases, ``b_Q``, ``b_in`` and the others are zero buffers under their usual names.

    Raises:
        ConfigError: the configuration, seed, device or dtype cannot be used.
    """
    checked(init, InitConfig, "init")
    target = resolve_device(device)
    module = empty_model(checked(model, ModelConfig, "model"), dtype=dtype)
    set_weights(module, init, seed=seed)
    return place(module, target)


def is_transformer(model: Any) -> bool:
    """Whether this is a HookedTransformer or a TransformerBridge."""
    return is_bridge(model) or isinstance(model, HookedTransformer)


def check_model(model: Any, name: str = "model") -> None:
    """Raise a ConfigError if the model is not a HookedTransformer or a TransformerBridge."""
    if is_bridge(model):
        if model.training:  # then dropout may act
            raise ConfigError("the TransformerBridge is in training mode; call model.eval() first")
    elif not isinstance(model, HookedTransformer):
        expected = "expected a HookedTransformer or a TransformerBridge (ai.bridge makes one)"
        raise ConfigError(f"{name} is {shown(model)}; {expected}")
    check_dropout(model)
    list(placed(model))


def check_dropout(model: nn.Module) -> None:
    """ConfigError if a part of a model drops numbers at random."""
    for name, part in model.named_modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.training and part.p:
            raise ConfigError(f"{name} drops numbers at random; call model.eval() first")


def check_causal(model: HookedTransformer) -> None:
    """Raise a ConfigError if a position of the model can attend to later ones."""
    check_model(model)
    if (not has_hooks(model) and _looks_ahead(model)) or model.cfg.attention_dir != "causal":
        raise ConfigError("the model's attention is bidirectional; expected causal attention")


@asked_once
@torch.no_grad()
def _looks_ahead(bridge: Any) -> bool:
    """Whether the first of two tokens gets other logits if the second changes (BERT)."""
    pairs = torch.tensor([[0, 0], [0, 1]], device=device(bridge))
    one, other = (bridge(pair[None])[0, 0] for pair in pairs)
    rounding = 100 * torch.finfo(one.dtype).eps * any("expert" in x for x in bridge.state_dict())
    return bool((one - other).abs().amax() > rounding * one.abs().amax())


def check_fits(model: HookedTransformer, task: Task) -> None:
    """ConfigError if a model cannot read a task's sequences, reads its answers, or lacks them."""
    if task.config_class is not None:
        return  # its own network, which fitted the task when it was configured
    (check_model if task.answers_last else check_causal)(model)  # a later token is an answer's
    sizes = model.cfg.d_vocab, model.cfg.d_vocab_out, model.cfg.n_ctx
    needed = task.n_input_tokens, task.n_tokens, task.length
    if any(has < needs for has, needs in zip(sizes, needed, strict=True)):
        has, needs = "{} tokens, {} outputs and {} positions".format(*sizes), "{}, {} and {}"
        raise ConfigError(f"the model has {has}; the task needs {needs.format(*needed)}")


def place(network: AnyModule, device: str | torch.device) -> AnyModule:
    """Move a network to a device, in ``eval`` mode; TransformerLens prints no note."""
    quiet = {"print_details": False} if isinstance(network, HookedTransformer) else {}
    cast(Any, network).to(device, **quiet)
    return network.eval()


def empty_model(model: ModelConfig, *, dtype: torch.dtype = torch.float32) -> HookedTransformer:
    """A HookedTransformer of this shape on the CPU with unset weights."""
    if checked(dtype, torch.dtype, "dtype") not in _DTYPES:
        known = ", ".join(map(str, _DTYPES))
        raise ConfigError(f"dtype is {shown(dtype)}; expected one of {known}")
    post = model.normalization == "post"
    named_alike = {k: v for k, v in vars(model).items() if k not in ("normalization", "bias")}
    cfg = HookedTransformerConfig(
        **named_alike,
        # Post-LayerNorm blocks own their LayerNorms. None tells TransformerLens to make the final
        # LayerNorm and the cache's LayerNorm helpers identities.
        normalization_type=None if post else "LN",
        init_weights=False,
        device="cpu",
        dtype=dtype,
        seed=None,  # a seed here would reseed torch, numpy and random globally
    )
    with torch.device("cpu"):
        module = _built(cfg, post=post)
    parts: list[Any] = [] if model.bias else list(module.blocks.modules())
    for part in parts:  # zero buffers stay in the state dict, and no optimizer sees them
        for name in [name for name in _BIASES if name in part._parameters]:
            part.register_buffer(name, torch.zeros_like(part._parameters.pop(name)))
    return module


def _built(cfg: HookedTransformerConfig, *, post: bool = False) -> HookedTransformer:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        return PostLNTransformer(cfg) if post else HookedTransformer(cfg, move_to_device=False)


_LOADED = {
    "init_weights": False,
    "device": "cpu",
    "seed": None,  # a seed here would reseed torch, numpy and random globally
    "n_devices": 1,
    "tokenizer_name": None,  # which would be fetched
}
_FOREIGN = (ValueError, LookupError, TypeError, AssertionError, RuntimeError)


def model_of_weights(
    weights: Mapping[str, Tensor], settings: Mapping[str, Any] | None = None
) -> HookedTransformer:
    """A HookedTransformer of any shape around its ``state_dict``.

    Args:
        weights: a state dict, which tells neither the activation function nor the normalisation.
        settings: the arguments of its ``HookedTransformerConfig``. Without them look at the weights
            but do *not* run the model: LayerNorms are left out.

    Raises:
        ConfigError: a weight is missing, does not fit or, given settings, has no place in the
            model; or TransformerLens refuses a setting.
    """
    expected = "expected a HookedTransformer's state dict"
    try:
        # a setting that the weights show overrides a given one, and that overrides the usual one
        kind = "standard" if "pos_embed.W_pos" in weights else "alibi"
        usual = {"n_ctx": 1, "positional_embedding_type": kind}
        looked_at = {"act_fn": "relu", "normalization_type": None, "attn_only": True}
        arguments = {**usual, **(settings or looked_at), **_shape_of(weights), **_LOADED}
        constants = (".mask", ".IGNORE")  # buffers, which other programs do not write
        whole = all("blocks.0.attn" + name in weights for name in constants)
        with torch.device("meta" if whole else "cpu"):
            model = _built(HookedTransformerConfig(**arguments))
        missing, unknown = model.load_state_dict(weights, strict=False, assign=True)
        for name in (n for n in missing if whole or not n.endswith(constants)):
            raise KeyError(name)
        if settings and unknown:  # LayerNorms of blocks of another kind
            raise ValueError(f"the model of these settings has no {unknown[0]!r}")
    except KeyError as error:
        raise ConfigError(f"the weights have no {error}; {expected}") from error
    except _FOREIGN as error:
        reason = str(error).splitlines()[-1].strip()
        raise ConfigError(f"the weights do not fit: {reason}; {expected}") from error
    return model.eval()


def _shape_of(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The arguments of a HookedTransformerConfig that a state dict tells."""
    first = "blocks.0."
    n_heads, d_model, d_head = weights[first + "attn.W_Q"].shape
    grouped, mlp = weights.get(first + "attn._W_K"), weights.get(first + "mlp.W_in")
    positions = weights.get("pos_embed.W_pos")
    shape = {
        "n_layers": 1 + max(int(n.split(".")[1]) for n in weights if "blocks." in n),
        "n_heads": n_heads, "d_model": d_model, "d_head": d_head,
        "n_key_value_heads": None if grouped is None else len(grouped),
        "d_vocab": len(weights["embed.W_E"]), "d_vocab_out": weights["unembed.W_U"].shape[1],
        "dtype": weights["embed.W_E"].dtype,
    }  # fmt: skip
    if not any(n.startswith(first + "mlp.experts.") for n in weights):
        shape |= {
            "d_mlp": None if mlp is None else mlp.shape[1], "attn_only": mlp is None,
            "gated_mlp": first + "mlp.W_gate" in weights,
        }  # fmt: skip
    return shape if positions is None else shape | {"n_ctx": len(positions)}


@functools.cache
def reference_model(post: bool) -> HookedTransformer:
    """A small model of this package, whose parts and settings other models are compared with."""
    norm: Normalization = "post" if post else "pre"
    return empty_model(ModelConfig(d_model=8, d_head=4, d_mlp=8, normalization=norm))


def token_rows(model: HookedTransformer, tokens: Inputs) -> Int[Tensor, "batch pos"]:
    """Sequences, examples or token indices as the model takes them: 64-bit integers on its device.

    Raises:
        ConfigError: no integers [batch, pos], too many positions, or a token or an answer of
            examples outside the vocabulary.
    """
    check_model(model)
    if isinstance(tokens, Examples):
        for answers in (tokens.each_answer, tokens.each_wrong):
            check_answers(answers, model.cfg.d_vocab_out)
        tokens = tokens.tokens
    if isinstance(tokens, np.ndarray) and tokens.dtype.kind in "iu":
        tokens = torch.from_numpy(tokens.astype(np.int64))
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.dtype not in _INTEGERS:
        raise ConfigError(f"tokens is {shown(tokens)}; expected an array of integers (batch, pos)")
    n_pos, most = tokens.shape[1], model.cfg.n_ctx
    if not 1 <= n_pos <= most:
        raise ConfigError(f"tokens has {n_pos} positions; expected 1 to {most}")
    rows = tokens.long().to(device(model))
    low, high = (int(rows.min()), int(rows.max())) if len(rows) else (0, 0)
    if low < 0 or high >= model.cfg.d_vocab:
        raise ConfigError(f"tokens run from {low} to {high}; expected 0 to {model.cfg.d_vocab - 1}")
    return rows


def layout(model: HookedTransformer) -> Normalization:
    """Where the model's LayerNorms sit."""
    return "post" if isinstance(model, PostLNTransformer) else "pre"


def has_hooks(model: HookedTransformer) -> bool:
    """Whether a hook, TransformerLens's or torch's, is attached to the model or to all modules."""
    if is_bridge(model):  # whose own parts hang on torch's hooks
        return any(point.has_hooks() for point in model.hook_dict.values()) or are_hooked(())
    return are_hooked(model.modules())


def are_hooked(parts: Iterable[nn.Module]) -> bool:
    """Whether a hook of torch is attached to one of these parts of a model or to all modules."""
    of_all = torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks
    backward = torch_module._global_backward_hooks or torch_module._global_backward_pre_hooks
    return bool(of_all or backward) or any(
        part._forward_hooks or part._forward_pre_hooks or part._backward_hooks
        or part._backward_pre_hooks
        for part in parts
    )  # fmt: skip


def device(model: HookedTransformer) -> torch.device:
    """The device of the model's embedding."""
    embedding: Tensor = model.embed.W_E
    return embedding.device
