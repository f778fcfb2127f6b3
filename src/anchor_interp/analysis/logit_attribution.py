"""The logits read off the residual stream, and what each component of the model adds to them.

:func:`logit_lens` reads the stream where an example is answered (the last position by default)
after every sublayer as if the model ended there (nostalgebraist 2020): through the final LayerNorm,
if there is one, and the unembedding.

:func:`attribute_logits` splits the logits into a sum over components (direct logit attribution;
Elhage et al. 2021, "Logit attributions"). The sum is exact, because a LayerNorm is linear once its
scale is held fixed: with scale s, gain w and bias b it turns a sum of components c into

    sum of (c - mean(c)) / s * w,  and b as a component of its own.

A pre-LayerNorm stream passes one such LayerNorm before the unembedding. A component of a
post-LayerNorm stream passes the LayerNorm of its sublayer and all later ones, which
TransformerLens's ``decompose_resid`` does not do. What is held fixed is not attributed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float64, Int64, Integer
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.readable import Readable
from anchor_interp.interventions.hooks import activations
from anchor_interp.models.forward import last_logits
from anchor_interp.models.inputs import Rows, finite_rows
from anchor_interp.models.number_checks import at_least_float32, check_answers, rounding
from anchor_interp.models.transformer import HookedTransformer, Inputs, layout
from anchor_interp.tasks.examples import as_examples, as_integers

CENTRED = {"LN": True, "LNPre": True, "RMS": False, "RMSPre": False}
"""Whether a LayerNorm takes the mean away, by ``normalization_type``."""
_MOST_COLUMNS = 8  # answers that a table shows one by one
Terms = dict[str, Tensor]
"""Components of a stream where it is read by name, each (batch, d_model)."""


@dataclass(frozen=True, eq=False, repr=False)
class LogitLens(Readable):
    """Logits read after every sublayer."""

    points: tuple[str, ...]
    """``0_pre`` (the sum of embeddings), then ``0_mid`` and ``0_post`` of every layer."""
    logits: Float64[np.ndarray, "point batch d_vocab"]
    """Those of the last point are the model's."""

    def _summary(self) -> str:
        points, n, width = self.logits.shape
        return f"logits of {width} tokens at {points} points in {n} sequences"

    def _rows(self) -> list[dict[str, Any]]:
        best = self.logits.argmax(-1)
        same = (best == best[-1]).mean(1)
        return [{"point": p, "final_answer": s} for p, s in zip(self.points, same, strict=True)]


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(Readable):
    """What every component adds directly to the logits of an answer."""

    components: tuple[str, ...]
    """``embed``, ``pos_embed``; of every layer its heads (``L0H0``), ``L0 attention bias`` and
    ``L0 MLP``; biases of the LayerNorms passed (``L0 LayerNorm 1 bias``) and of the unembedding."""
    logits: Float64[np.ndarray, "component batch answer"]
    """Their parts of the logits; the sum over components is the model's logits."""

    def _summary(self) -> str:
        components, n, answers = self.logits.shape
        return f"{components} components, {n} sequences, {answers} answers each"

    def _rows(self) -> list[dict[str, Any]]:
        means = self.logits.mean(1)
        if means.shape[1] > _MOST_COLUMNS:  # then how much a component tells answers apart
            spread = self.logits.std(2).mean(1)
            rows = zip(self.components, spread, strict=True)
            return [{"component": name, "spread_of_answers": value} for name, value in rows]
        return [
            {"component": name, **{f"answer_{i}": logit for i, logit in enumerate(logits)}}
            for name, logits in zip(self.components, means, strict=True)
        ]


@torch.no_grad()
def logit_lens(model: HookedTransformer, tokens: Inputs) -> LogitLens:
    """An answer's logits as if the model ended after each sublayer; attached hooks act.

    Raises ConfigError if the model does more after its last stream or a weight is not finite.
    """
    rows, at = finite_rows(model, tokens), as_examples(tokens).single().at
    has_mid = not (model.cfg.attn_only or model.cfg.parallel_attn_mlp)
    names = {"0_pre": "blocks.0.hook_resid_pre"}
    for layer in range(model.cfg.n_layers):
        for point in ("mid", "post") if has_mid else ("post",):
            names[f"{layer}_{point}"] = f"blocks.{layer}.hook_resid_{point}"
    seen = activations(model, rows, list(names.values()))
    streams = torch.stack([_read(x, at) for x in seen.values()])  # [point, batch, d]
    read = model.ln_final(streams) if model.cfg.normalization_type in CENTRED else streams
    logits = read @ model.unembed.W_U.to(read.dtype) + model.unembed.b_U
    _check_sum(model, last_logits(model, rows), logits[-1], logits)
    return LogitLens(tuple(names), logits.double().cpu().numpy())


@torch.no_grad()
def attribute_logits(
    model: HookedTransformer,
    tokens: Inputs,
    answers: Integer[np.ndarray, "batch answer"] | None = None,
) -> Attribution:
    """Split an answer's logits into the direct contributions of the components.

    Attached hooks act. ``answers`` are the output tokens of every sequence whose logits are split;
    if None the right and wrong answers of examples that have them, otherwise all tokens in order.

    Raises:
        ConfigError: no token indices, an answer that is not an output token, or a model (or hook)
            whose logits are not the sum of these components, or weights that are not finite.
    """
    rows, examples = finite_rows(model, tokens), as_examples(tokens)
    n, d_vocab = len(rows), model.cfg.d_vocab_out
    if answers is None:
        known = [each for each in examples.explained if each is not None]
        answers = np.stack(known, 1) if known else np.tile(np.arange(d_vocab), (n, 1))
    chosen = as_integers(answers, "answers", "batch, answer")
    if len(chosen) != n:
        raise ConfigError(f"answers has shape {chosen.shape}; expected one row for each of {n}")
    check_answers(chosen, d_vocab)
    index = torch.from_numpy(chosen.astype(np.int64)).to(rows.tokens.device)
    parts = _components(model, rows, examples.single().at)
    streams = torch.stack(list(parts.values()))
    bias = at_least_float32(model.unembed.b_U).expand(1, n, -1)
    every = torch.cat([streams @ model.unembed.W_U.to(streams.dtype), bias])
    logits = every.gather(2, index.expand(len(every), -1, -1))  # [component, batch, answer]
    _check_sum(model, last_logits(model, rows).gather(1, index), logits.sum(0), logits)
    return Attribution((*parts, "unembedding bias"), logits.double().cpu().numpy())


def _read(activation: Tensor, at: Int64[np.ndarray, " batch"]) -> Tensor:
    """An activation where each sequence is answered."""
    return at_least_float32(activation[np.arange(len(activation)), at])


def _components(model: HookedTransformer, rows: Rows, where: Int64[np.ndarray, " batch"]) -> Terms:
    """What the unembedding reads where each sequence is answered, as a sum of components."""
    post, attn_only = layout(model) == "post", model.cfg.attn_only
    embeds = ["embed"] + ["pos_embed"] * (model.cfg.positional_embedding_type == "standard")
    kinds = ["attn.hook_z"] + ["hook_mlp_out"] * (not attn_only)
    kinds += ["ln1.hook_scale", "ln2.hook_scale"] * post
    names = [f"hook_{name}" for name in embeds]
    names += [f"blocks.{layer}.{kind}" for layer in range(model.cfg.n_layers) for kind in kinds]
    normed = model.cfg.normalization_type in CENTRED  # not so with post-LayerNorm or none
    whole = activations(model, rows, names + ["ln_final.hook_scale"] * normed)
    seen = {name: _read(activation, where) for name, activation in whole.items()}
    parts: Terms = {name: seen[f"hook_{name}"] for name in embeds}
    blocks: Any = model.blocks
    for layer, block in enumerate(blocks):
        at = f"blocks.{layer}."
        written = "batch head d_head, head d_head d_model -> head batch d_model"
        heads = einsum(seen[at + "attn.hook_z"], at_least_float32(block.attn.W_O), written)
        parts |= {f"L{layer}H{head}": wrote for head, wrote in enumerate(heads)}
        if block.attn.b_O is not None:
            bias = at_least_float32(block.attn.b_O)
            parts[f"L{layer} attention bias"] = bias.expand(len(rows), -1)
        if post:
            parts = _normed(parts, block.ln1, seen[at + "ln1.hook_scale"], f"L{layer} LayerNorm 1")
        if not attn_only:
            parts[f"L{layer} MLP"] = seen[at + "hook_mlp_out"]
        if post:
            parts = _normed(parts, block.ln2, seen[at + "ln2.hook_scale"], f"L{layer} LayerNorm 2")
    if normed:
        centred = CENTRED[model.cfg.normalization_type or ""]
        scale = seen["ln_final.hook_scale"]
        parts = _normed(parts, model.ln_final, scale, "final LayerNorm", centred=centred)
    return parts


def _normed(parts: Terms, norm: Any, scale: Tensor, name: str, *, centred: bool = True) -> Terms:
    """The components after a LayerNorm whose scale is held fixed, with its bias as one of them."""
    gain = getattr(norm, "w", 1.0)
    normed = {
        component: (part - part.mean(-1, keepdim=True) * centred) / scale * gain
        for component, part in parts.items()
    }
    if getattr(norm, "b", None) is not None:
        normed[f"{name} bias"] = norm.b.expand_as(normed["embed"])
    return normed


def _check_sum(model: HookedTransformer, logits: Tensor, total: Tensor, parts: Tensor) -> None:
    """The model's own logits must come back, up to rounding of the largest part."""
    off = float((total - logits).abs().max()) if logits.numel() else 0.0
    largest = float(parts.abs().max()) if parts.numel() else 0.0
    if not off <= rounding(logits, model.cfg.dtype) * max(largest, 1.0):
        more = "the model, or a hook attached to it, does more than this analysis covers"
        raise ConfigError(f"the parts differ from the model's logits by {off:.3g}: {more}")
