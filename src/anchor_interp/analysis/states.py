"""Reads the vectors inside a model, over sequences whose parts are drawn one by one.

Which tensor
------------
The papers name four tensors of layer l = 1, 2, ... (NeurIPS paper, equations 4 to 7). In their
post-LayerNorm model each is the residual stream *as its reader sees it*. That is what a
pre-LayerNorm model has as well, one LayerNorm further on, and so it is what is taken there:

=========  ===================  ===========================  ======================================
tensor     its reader           post-LayerNorm               pre-LayerNorm
=========  ===================  ===========================  ======================================
``X``      attention            ``hook_resid_pre``           ``ln1`` of ``hook_resid_pre``
``V``      the attending query  ``attn.hook_v``              ``attn.hook_v``
``OV``     the residual stream  ``attn.hook_v`` x ``W_O``    ``attn.hook_v`` x ``W_O``
``X_ao``   the MLP              ``hook_resid_mid``           ``ln2`` of ``hook_resid_mid``
``X_do``   the next attention   ``hook_resid_post``          next ``ln1`` (at the end ``ln_final``)
                                                             of ``hook_resid_post``
=========  ===================  ===========================  ======================================

``V`` has its heads side by side. ``OV`` is not in the papers: it is what a head would write for
this value, heads side by side again (each has its own attention, so that their sum stands for
nothing). Any basis inside a head gives the same ``OV``, while cosines of ``V`` depend on it:
W_V -> W_V R, W_O -> R^-1 W_O is the same model.

Anything that looks at vectors, by similarity (:mod:`anchor_interp.analysis.similarity`), clusters
(:mod:`anchor_interp.analysis.clusters`) or influence (:mod:`anchor_interp.analysis.sensitivity`), reads them here.
"""

from typing import Any, Literal

import numpy as np
import torch
from einops import einsum, rearrange
from jaxtyping import Float64, Integer
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.interventions.hooks import activations
from anchor_interp.models.forward import last_logits
from anchor_interp.models.transformer import HookedTransformer, layout, token_rows
from anchor_interp.tasks.factors import Floats
from anchor_interp.tasks.sequences import Place, Sequences, places

State = Literal["X", "V", "OV", "X_ao", "X_do"]


def read_state(
    model: HookedTransformer,
    state: State,
    layer: int,
    tokens: Integer[np.ndarray, "batch pos"],
    positions: Integer[np.ndarray, " batch"],
) -> Float64[np.ndarray, "batch width"]:
    """One of the papers' tensors at one position of every sequence.

    Args:
        model: any HookedTransformer; hooks attached to it act.
        state: which tensor, in the sense of the module's table.
        layer: 0-based layer; the papers' layer 2 is 1.
        tokens: token indices.
        positions: of every sequence, the 0-based position read.

    Returns:
        Vectors of d_model (``V``: heads x d_head; ``OV``: heads x d_model) numbers.

    Raises:
        ConfigError: an unknown tensor or layer, or a layer that lacks the tensor.
    """
    n_layers = checked(model, HookedTransformer, "model").cfg.n_layers
    checked(state, State, "state")
    checked(layer, int, "layer")
    if not 0 <= layer < n_layers:
        raise ConfigError(
            f"layer is {shown(layer)}; expected 0 to {n_layers - 1} (the papers' layer 2 is 1)"
        )
    block: Any = model.blocks[layer]
    if state == "X_ao" and (model.cfg.attn_only or model.cfg.parallel_attn_mlp):
        raise ConfigError(
            "X_ao is what the MLP reads after attention; this model has no such state"
        )
    name = f"blocks.{layer}.{_HOOKS[state]}"
    found = activations(model, tokens, [name])[name]
    at = torch.from_numpy(positions.astype(np.int64)).to(found.device)
    found = found[torch.arange(len(found), device=found.device), at]  # [batch, ...]
    with torch.no_grad():
        if state == "V":
            found = rearrange(found, "batch head d_head -> batch (head d_head)")
        elif state == "OV":
            written = "batch head d_head, head d_head d_model -> batch head d_model"
            found = einsum(found, block.attn.W_O, written).flatten(1)
        elif layout(model) == "pre":
            found = _reader_norm(model, state, layer)(found[:, None])[:, 0]
    return _numbers(found)


_HOOKS: dict[State, str] = {
    "X": "hook_resid_pre",
    "V": "attn.hook_v",
    "OV": "attn.hook_v",
    "X_ao": "hook_resid_mid",
    "X_do": "hook_resid_post",
}


def _reader_norm(model: HookedTransformer, state: State, layer: int) -> Any:
    """The LayerNorm through which a pre-LayerNorm stream is read."""
    blocks: list[Any] = list(model.blocks)
    if state == "X":
        return blocks[layer].ln1
    if state == "X_ao":
        return blocks[layer].ln2
    return blocks[layer + 1].ln1 if layer + 1 < len(blocks) else model.ln_final


def read_at(
    model: HookedTransformer, state: State | None, layer: int, place: Place, sequences: Sequences
) -> Floats:
    """A state at one place, or the logits at the last position if None: [n, width].

    Raises:
        ConfigError: as :func:`read_state`, or activations that are not all finite.
    """
    if state is not None:
        return finite(read_state(model, state, layer, sequences.tokens, places(sequences, place)))
    with torch.no_grad():
        return finite(_numbers(last_logits(model, token_rows(model, sequences.tokens))))


def finite(numbers: Floats) -> Floats:
    """The numbers, if all are finite: NaNs would pass for vectors without a contrast.

    Raises:
        ConfigError: some are not.
    """
    if not np.isfinite(numbers).all():
        raise ConfigError(
            "the model's activations are not all finite; expected numbers: look for NaN or "
            "infinite weights, or take an earlier checkpoint"
        )
    return numbers


def _numbers(found: Tensor) -> Floats:
    numbers: Floats = found.to("cpu", torch.float64).numpy()
    return numbers


def named(state: State | None, layer: int) -> tuple[str, int | None]:
    """The name and the layer that a result gives for what was read: logits have no layer."""
    return ("logits", None) if state is None else (state, layer)


def left_by_mask(masked: Floats, whole: Floats) -> Floats:
    """What a mask left, or zeros if what varies is no more than rounding of what varied before."""
    varies, varied = (float(found.std(0).max(initial=0)) for found in (masked, whole))
    return masked if varies > 1e-4 * varied else np.zeros_like(masked)
