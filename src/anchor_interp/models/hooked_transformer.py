"""HookedTransformers beside a TransformerLens that has none (4.0 and later).

The two layouts of this package alone, with the names of weights, buffers, hooks and settings that
TransformerLens 3 gives its HookedTransformer. So weights, exports and analyses do not tell the
versions apart. For other architectures TransformerLens 4 has the TransformerBridge.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from torch import Tensor, nn
from transformer_lens import ActivationCache, FactoredMatrix, HookedRootModule, hook_points

from anchor_interp._util.errors import ConfigError

_Returned = Literal["logits", "loss", "both"] | None
HookPoint: Any = hook_points.HookPoint  # whose constructor has no types
_ACTIVATIONS: Mapping[str, Any] = {"relu": F.relu, "gelu": F.gelu}
_ONLY: Mapping[str, Any] = {
    "attention_dir": "causal", "positional_embedding_type": "standard", "attn_only": False,
    "parallel_attn_mlp": False, "gated_mlp": False, "n_key_value_heads": None,
    "use_attn_scale": True, "uses_rms_norm": False, "layer_norm_folding": False,
    "num_experts": None, "final_rms": False, "use_qk_norm": False, "clip_qkv": None,
    "use_logn_attn": False, "use_dynamic_ntk_rope": False, "use_local_attn": False,
    "scale_attn_by_inverse_layer_idx": False, "rotary_dim": None, "post_embedding_ln": False,
    "use_normalization_before_and_after": False, "attn_scores_soft_cap": -1.0,
    "output_logits_soft_cap": -1.0, "use_attention_sinks": False,
}  # fmt: skip
"""Settings of TransformerLens 3 that change a model's function, with the value they have here."""
_WITHOUT_INFLUENCE = {
    "NTK_by_parts_factor", "NTK_by_parts_high_freq_factor", "NTK_by_parts_low_freq_factor",
    "NTK_original_ctx_len", "attn_types", "checkpoint_index", "checkpoint_label_type",
    "checkpoint_value", "decoder_start_token_id", "default_prepend_bos", "experts_per_token",
    "from_checkpoint", "init_mode", "initializer_range", "load_in_4bit", "n_devices", "n_params",
    "norm_topk_prob", "original_architecture", "quantization_method",
    "relative_attention_max_distance", "relative_attention_num_buckets", "rotary_adjacent_pairs",
    "rotary_base", "rotary_base_local", "rotary_scaling_factor", "tie_word_embeddings",
    "tokenizer_name", "tokenizer_prepends_bos", "train_seq_length", "trust_remote_code",
    "ungroup_grouped_query_attention", "use_NTK_by_parts_rope", "use_hook_tokens", "use_yarn_rope",
    "window_size", "yarn_attention_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_factor",
    "yarn_global_attn_only", "yarn_original_max_position_embeddings", "yarn_truncate",
}  # fmt: skip
"""Settings of TransformerLens 3 that change nothing in these layouts."""


@dataclass
class _Settings:
    n_layers: int
    d_model: int
    n_ctx: int
    d_head: int
    d_vocab: int
    act_fn: str
    n_heads: int = -1
    d_mlp: Any = None
    d_vocab_out: int = -1
    normalization_type: str | None = "LN"
    eps: float = 1e-5
    use_attn_scale: bool = True
    attn_scale: float = -1.0
    attention_dir: str = "causal"
    positional_embedding_type: str = "standard"
    attn_only: bool = False
    parallel_attn_mlp: bool = False
    gated_mlp: bool = False
    n_key_value_heads: None = None
    use_attn_result: bool = False
    use_split_qkv_input: bool = False
    use_attn_in: bool = False
    use_hook_mlp_in: bool = False
    model_name: str = "custom"
    device: str | None = None
    dtype: torch.dtype = field(default=torch.float32)
    init_weights: bool = True
    seed: int | None = None


class HookedTransformerConfig(_Settings):
    """The settings of a model, under the names of TransformerLens 3."""

    def __init__(self, **given: Any) -> None:
        allowed = {name: (value,) for name, value in _ONLY.items()} | {
            "act_fn": tuple(_ACTIVATIONS), "normalization_type": ("LN", None),
        }  # fmt: skip
        for name, values in allowed.items():
            if given.get(name, values[0]) not in values:
                expected = " or ".join(map(repr, values))
                text = f"{name} is {given[name]!r}; with TransformerLens 4 expected {expected}"
                other = "install transformer-lens<4, or open the model as a TransformerBridge"
                raise ConfigError(f"{text}: {other}")
        own = {field.name for field in fields(_Settings)}
        ignored = _WITHOUT_INFLUENCE | set(_ONLY) - own
        super().__init__(**{name: value for name, value in given.items() if name not in ignored})
        self.n_heads = self.d_model // self.d_head if self.n_heads == -1 else self.n_heads
        self.d_mlp = 4 * self.d_model if self.d_mlp is None else self.d_mlp
        self.d_vocab_out = self.d_vocab if self.d_vocab_out == -1 else self.d_vocab_out
        self.attn_scale = math.sqrt(self.d_head) if self.attn_scale == -1 else self.attn_scale


def _weight(cfg: HookedTransformerConfig, *shape: int, fill: float | None = None) -> nn.Parameter:
    empty = torch.empty(shape, dtype=cfg.dtype)
    return nn.Parameter(empty if fill is None else empty.fill_(fill))


def repeat_along_head_dimension(x: Tensor, n_heads: int) -> Tensor:
    """A copy for each head: [batch pos head d_model]."""
    return repeat(x, "batch pos d_model -> batch pos head d_model", head=n_heads).clone()


class _Part(nn.Module):
    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Embed(_Part):
    """Token embedding."""

    def __init__(self, cfg: HookedTransformerConfig) -> None:
        super().__init__()
        self.W_E = _weight(cfg, cfg.d_vocab, cfg.d_model)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch pos] -> [batch pos d_model]."""
        return self.W_E[tokens]


class PosEmbed(_Part):
    """Embedding of positions."""

    def __init__(self, cfg: HookedTransformerConfig) -> None:
        super().__init__()
        self.W_pos = _weight(cfg, cfg.n_ctx, cfg.d_model)

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[batch pos] -> [batch pos d_model]; a mask numbers the tokens that it leaves."""
        if attention_mask is None:
            return self.W_pos[: tokens.shape[1]].expand(len(tokens), -1, -1).clone()
        place = (attention_mask.long().cumsum(1) - 1).clamp(min=0)
        return self.W_pos[place] * attention_mask.bool()[..., None]


class LayerNorm(_Part):
    """LayerNorm with hooks on its scale and on what it normalised."""

    def __init__(self, cfg: HookedTransformerConfig) -> None:
        super().__init__()
        self.cfg, self.eps = cfg, cfg.eps
        self.w, self.b = _weight(cfg, cfg.d_model, fill=1), _weight(cfg, cfg.d_model, fill=0)
        self.hook_scale, self.hook_normalized = HookPoint(), HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        """[... d_model] -> [... d_model]."""
        if x.dtype not in (torch.float32, torch.float64):
            x = x.float()
        x = x - x.mean(-1, keepdim=True)
        scale = self.hook_scale((x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt())
        normalized: Tensor = self.hook_normalized(x / scale).to(self.cfg.dtype)
        return normalized * self.w + self.b


class Attention(_Part):
    """Causal attention whose weights are stored by head."""

    def __init__(self, cfg: HookedTransformerConfig) -> None:
        super().__init__()
        self.cfg, self.attn_scale = cfg, cfg.attn_scale
        read = (cfg.n_heads, cfg.d_model, cfg.d_head)
        self.W_Q = _weight(cfg, *read)
        self.W_O = _weight(cfg, cfg.n_heads, cfg.d_head, cfg.d_model)
        self.b_Q = _weight(cfg, *read[::2], fill=0)
        self.b_O = _weight(cfg, cfg.d_model, fill=0)
        self.W_K, self.W_V = _weight(cfg, *read), _weight(cfg, *read)
        self.b_K, self.b_V = (_weight(cfg, *read[::2], fill=0) for _ in range(2))
        self.register_buffer("mask", torch.empty((0, 0), dtype=torch.bool))  # as in version 3
        self.register_buffer("IGNORE", torch.tensor(-torch.inf))
        for name in ("k", "q", "v", "z", "attn_scores", "pattern", "result"):
            self.add_module(f"hook_{name}", HookPoint())

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        attention_mask: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Inputs [batch pos d_model], or with a head dimension -> [batch pos d_model]."""
        read = "batch pos d, head d d_head -> batch pos head d_head"
        if query.ndim == 4:
            read = read.replace("pos d,", "pos head d,")
        q = self.hook_q(einsum(query, self.W_Q, read) + self.b_Q)
        k = self.hook_k(einsum(key, self.W_K, read) + self.b_K)
        v = self.hook_v(einsum(value, self.W_V, read) + self.b_V)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / self.attn_scale
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        if attention_mask is not None:
            hidden = hidden | ~attention_mask.bool()[:, None, None]
        scores = self.hook_attn_scores(scores.masked_fill(hidden, -torch.inf))
        pattern = scores.softmax(-1)
        pattern = self.hook_pattern(torch.where(pattern.isnan(), 0, pattern)).to(v.dtype)
        z = self.hook_z(torch.einsum("bhqk,bkhd->bqhd", pattern, v))
        if self.cfg.use_attn_result:
            result = self.hook_result(torch.einsum("bqhd,hdm->bqhm", z, self.W_O))
            return cast(Tensor, result.sum(2) + self.b_O)
        return F.linear(z.flatten(2), self.W_O.flatten(0, 1).mT, self.b_O)


class MLP(_Part):
    """The MLP of a block."""

    def __init__(self, cfg: HookedTransformerConfig) -> None:
        super().__init__()
        self.W_in, self.b_in = _weight(cfg, cfg.d_model, cfg.d_mlp), _weight(cfg, cfg.d_mlp, fill=0)
        self.W_out = _weight(cfg, cfg.d_mlp, cfg.d_model)
        self.b_out = _weight(cfg, cfg.d_model, fill=0)
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()
        self.act_fn = _ACTIVATIONS[cfg.act_fn]

    def forward(self, x: Tensor) -> Tensor:
        """[batch pos d_model] -> [batch pos d_model]."""
        pre = self.hook_pre(x @ self.W_in + self.b_in)
        out: Tensor = self.hook_post(self.act_fn(pre)) @ self.W_out + self.b_out
        return out


class TransformerBlock(_Part):
    """A pre-LayerNorm block."""

    def __init__(self, cfg: HookedTransformerConfig, _block_index: int) -> None:
        super().__init__()
        self.cfg = cfg
        norm = LayerNorm if cfg.normalization_type == "LN" else lambda _: nn.Identity()
        self.ln1, self.ln2 = norm(cfg), norm(cfg)
        self.attn, self.mlp = Attention(cfg), MLP(cfg)
        names = "attn_in q_input k_input v_input mlp_in attn_out mlp_out"
        for name in [*names.split(), "resid_pre", "resid_mid", "resid_post"]:
            self.add_module(f"hook_{name}", HookPoint())

    def forward(
        self, resid_pre: Tensor, *, attention_mask: Tensor | None = None, **_: Any
    ) -> Tensor:
        """[batch pos d_model] -> [batch pos d_model]."""
        resid_pre = self.hook_resid_pre(resid_pre)
        inputs, n_heads = [resid_pre] * 3, self.cfg.n_heads
        if self.cfg.use_attn_in:
            inputs = [self.hook_attn_in(repeat_along_head_dimension(resid_pre, n_heads))] * 3
        if self.cfg.use_split_qkv_input:
            hooks = (self.hook_q_input, self.hook_k_input, self.hook_v_input)
            inputs = [hook(repeat_along_head_dimension(resid_pre, n_heads)) for hook in hooks]
        normed = (self.ln1(x) for x in inputs)
        attn_out = self.hook_attn_out(self.attn(*normed, attention_mask=attention_mask))
        resid_mid = self.hook_resid_mid(resid_pre + attn_out)
        mlp_in = self.hook_mlp_in(resid_mid.clone()) if self.cfg.use_hook_mlp_in else resid_mid
        resid_post: Tensor = self.hook_resid_post(resid_mid + self.apply_mlp(self.ln2(mlp_in)))
        return resid_post

    def apply_mlp(self, x: Tensor) -> Tensor:
        """The MLP and its hook."""
        return cast(Tensor, self.hook_mlp_out(self.mlp(x)))


class Unembed(_Part):
    """The map from the residual stream to logits."""

    def __init__(self, cfg: HookedTransformerConfig) -> None:
        super().__init__()
        self.W_U = _weight(cfg, cfg.d_model, cfg.d_vocab_out)
        self.b_U = _weight(cfg, cfg.d_vocab_out, fill=0)
        self.hook_in, self.hook_out = HookPoint(), HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        """[batch pos d_model] -> [batch pos d_vocab_out]."""
        return cast(Tensor, self.hook_out(self.hook_in(x) @ self.W_U + self.b_U))


class HookedTransformer(HookedRootModule):
    """A decoder with hooks, as TransformerLens 3 had it, for this package's layouts."""

    def __init__(self, cfg: Any, **_: bool) -> None:
        super().__init__()
        self.cfg = cfg = HookedTransformerConfig(**cfg) if isinstance(cfg, dict) else cfg
        self.embed, self.hook_embed = Embed(cfg), HookPoint()
        self.pos_embed, self.hook_pos_embed = PosEmbed(cfg), HookPoint()
        self.blocks = nn.ModuleList(TransformerBlock(cfg, i) for i in range(cfg.n_layers))
        self.ln_final = LayerNorm(cfg) if cfg.normalization_type == "LN" else nn.Identity()
        self.unembed = Unembed(cfg)
        cast(Any, self).setup()  # names the hooks
        if cfg.init_weights:
            for name, weight in self.named_parameters():
                if ".W_" in name:  # as TransformerLens 3 draws them by default
                    nn.init.normal_(weight, std=0.8 / math.sqrt(cfg.d_model))

    def forward(
        self,
        input: Tensor,
        return_type: _Returned = "logits",
        *,
        stop_at_layer: int | None = None,
        attention_mask: Tensor | None = None,
    ) -> Any:
        """Logits [batch pos d_vocab_out], the loss of the next token, both, or the stream.

        The mask is 1 for a token and 0 for padding [batch pos].
        """
        mask = None if attention_mask is None else attention_mask.to(input.device)
        x = self.hook_embed(self.embed(input)) + self.hook_pos_embed(self.pos_embed(input, mask))
        for block in self.blocks[:stop_at_layer]:
            x = block(x, attention_mask=mask)
        if stop_at_layer is not None:
            return x
        logits = self.unembed(self.ln_final(x))
        if return_type in ("logits", None):
            return logits if return_type else None
        targets = input[:, 1:]
        if mask is not None:  # both tokens must be real
            targets = targets.masked_fill(~(mask[:, :-1].bool() & mask[:, 1:].bool()), -100)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten())
        return loss if return_type == "loss" else (logits, loss)

    def run_with_cache(
        self,
        *args: Any,
        return_cache_object: bool = True,
        remove_batch_dim: bool = False,
        **kw: Any,
    ) -> Any:
        """What the model returns, and its activations by the names of their hooks."""
        out, cache = super().run_with_cache(*args, remove_batch_dim=remove_batch_dim, **kw)
        if return_cache_object:
            cache = ActivationCache(cache, self, has_batch_dim=not remove_batch_dim)
        return out, cache

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Move or cast the model; its configuration follows."""
        kwargs.pop("print_details", None)  # TransformerLens 3 prints where a model goes
        moved = super().to(*args, **kwargs)
        weight = self.embed.W_E
        self.cfg.device, self.cfg.dtype = str(weight.device), weight.dtype
        return moved

    def to_tokens(self, input: Tensor) -> Tensor:
        """The tokens themselves: there is no tokenizer."""
        return input

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Tensor:
        """The biases that the first layers add to the residual stream."""
        blocks: list[Any] = list(self.blocks)
        total = torch.zeros_like(blocks[0].attn.b_O)
        for block in blocks[:layer]:
            total = total + block.attn.b_O + block.mlp.b_out * include_mlp_biases
        return cast(Tensor, total + blocks[layer].attn.b_O if mlp_input else total)

    def __getattr__(self, name: str) -> Any:
        part = {"W_E": "embed", "W_pos": "pos_embed", "W_U": "unembed", "b_U": "unembed"}.get(name)
        if part is not None:
            return getattr(getattr(self, part), name)
        owner = {**dict.fromkeys("QKVO", "attn"), "in": "mlp", "out": "mlp"}.get(name[2:])
        if owner is not None and name[:2] in ("W_", "b_"):
            return torch.stack([getattr(getattr(block, owner), name) for block in self.blocks])
        if name.startswith("set_use_"):  # such as set_use_attn_result(True)
            return functools.partial(setattr, self.cfg, name.removeprefix("set_"))
        if name == "OV":
            return FactoredMatrix(self.W_V, self.W_O)
        if name == "QK":
            return FactoredMatrix(self.W_Q, rearrange(self.W_K, "l h m d -> l h d m"))
        return super().__getattr__(name)
