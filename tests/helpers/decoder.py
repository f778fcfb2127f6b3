"""A decoder written from a model's weights, independent of TransformerLens's forward pass."""

from collections.abc import Callable

import torch
from torch import Tensor

from anchor_interp.models.transformer import HookedTransformer, layout

Attend = Callable[[int, Tensor, Tensor], Tensor]
"""Takes a layer, its pattern [batch, head, query, key] and the values behind W_O [batch, head, key,
d_model]. Returns what each edge carries [batch, head, query, key, d_model]."""


def carry(_layer: int, pattern: Tensor, out: Tensor) -> Tensor:
    """Attention as it is."""
    return pattern[..., None] * out[:, :, None]


def decode(model: HookedTransformer, rows: Tensor, attend: Attend = carry) -> Tensor:
    """Logits at every position, with other attention where ``attend`` returns it."""
    p, post = model.state_dict(), layout(model) == "post"

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + model.cfg.eps).sqrt()
        normed: Tensor = centred / scale * p[f"{name}.w"] + p[f"{name}.b"]
        return normed

    x = p["embed.W_E"][rows] + p["pos_embed.W_pos"][: rows.shape[1]]
    for layer in range(model.cfg.n_layers):
        at = f"blocks.{layer}"
        source = x if post else norm(x, f"{at}.ln1")
        q, k, v = (
            torch.einsum("bpm,hmd->bhpd", source, p[f"{at}.attn.W_{s}"])
            + p[f"{at}.attn.b_{s}"][:, None]
            for s in "QKV"
        )
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / model.cfg.d_head**0.5
        future = torch.ones(scores.shape[-2:]).triu(1).bool()
        pattern = scores.masked_fill(future, -torch.inf).softmax(-1)
        out = torch.einsum("bhkd,hdm->bhkm", v, p[f"{at}.attn.W_O"])
        update = attend(layer, pattern, out).sum((1, 3)) + p[f"{at}.attn.b_O"]
        x = norm(x + update, f"{at}.ln1") if post else x + update
        source = x if post else norm(x, f"{at}.ln2")
        hidden = (source @ p[f"{at}.mlp.W_in"] + p[f"{at}.mlp.b_in"]).relu()
        update = hidden @ p[f"{at}.mlp.W_out"] + p[f"{at}.mlp.b_out"]
        x = norm(x + update, f"{at}.ln2") if post else x + update
    logits: Tensor = (x if post else norm(x, "ln_final")) @ p["unembed.W_U"] + p["unembed.b_U"]
    return logits
