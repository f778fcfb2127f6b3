"""The vectors inside a model: which tensor is read, and where.

The papers name four tensors of layer l = 1, 2, ... (NeurIPS paper, equations 4 to 7). In their
post-LayerNorm model each is the residual stream *as its reader sees it*. A pre-LayerNorm model
has the same tensor one LayerNorm later, and it is read there.

=========  ===================  ===========================  ======================================
tensor     its reader           post-LayerNorm               pre-LayerNorm
=========  ===================  ===========================  ======================================
``X``      attention            ``hook_resid_pre``           ``ln1`` of ``hook_resid_pre``
``V``      the attending query  ``attn.hook_v``              ``attn.hook_v``
``OV``     the residual stream  ``attn.hook_v`` x ``W_O``    ``attn.hook_v`` x ``W_O``
``X_ao``   the MLP              ``hook_resid_mid``           ``ln2`` of ``hook_resid_mid``
``X_do``   the next attention   ``hook_resid_post``          next ``ln1`` (``ln_final`` at the end)
                                                             of ``hook_resid_post``
=========  ===================  ===========================  ======================================

``V`` and ``OV`` hold the heads side by side. ``OV`` is not in the papers: it is what each head
would write for this value. The cosines of ``V`` depend on the basis inside a head, those of ``OV``
do not: W_V R and R^-1 W_O make the same model as W_V and W_O. A vector that is no longer than
rounding can make it is *absent*: it is read as zeros.
"""

from contextlib import AbstractContextManager
from typing import Any, Literal

import numpy as np
import torch
from einops import einsum, rearrange

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.interventions.hooks import activations
from anchor_interp.models.forward import last_logits
from anchor_interp.models.number_checks import check_finite
from anchor_interp.models.transformer import HookedTransformer, layout
from anchor_interp.tasks.sequence_factors import Floats
from anchor_interp.tasks.sequences import Place, Sequences

State = Literal["X", "V", "OV", "X_ao", "X_do"]
_HOOKS: dict[State, str] = {
    "X": "hook_resid_pre",
    "V": "attn.hook_v",
    "OV": "attn.hook_v",
    "X_ao": "hook_resid_mid",
    "X_do": "hook_resid_post",
}
_NORMED_OUTPUTS = ("Olmo2ForCausalLM", "Olmo3ForCausalLM")
"""Architectures whose attention and MLP read the stream itself; LayerNorms take what they write."""


def check_state(model: HookedTransformer, state: State | None, layer: int) -> None:
    """ConfigError if a model has no such tensor or layer."""
    if state is None:
        return
    checked(state, State, "state")
    checked(layer, int, "layer (0 is the papers' layer 1)", low=0, high=model.cfg.n_layers - 1)
    if state == "X_ao" and (model.cfg.attn_only or model.cfg.parallel_attn_mlp):
        raise ConfigError("no MLP of this model reads X_ao, the stream after attention")


def read_state(
    model: HookedTransformer, state: State | None, layer: int, place: Place, sequences: Sequences
) -> Floats:
    """One tensor at one place of every sequence: [n, width]. Hooks attached to the model act.

    None reads the logits at the last position, whatever the place and the layer, which is 0-based.
    The width is d_model (``V``: heads x d_head; ``OV``: heads x d_model). Raises ConfigError if
    activations are not finite.
    """
    with torch.no_grad():
        if state is None:
            read = last_logits(model, sequences)
        else:
            read = _hidden(model, state, layer, place, sequences)
        read = check_finite(read, "the model's activations").to("cpu", torch.float64)
        read[read.norm(dim=1) <= _rounding(model, state, layer, place, sequences)] = 0
    vectors: Floats = read.numpy()
    return vectors


def read_masked(
    model: HookedTransformer,
    state: State | None,
    layer: int,
    sequences: Sequences,
    mask: AbstractContextManager[None],
) -> Floats:
    """A tensor at the last position under a mask; zeros where it varies 10,000 times less."""
    whole = read_state(model, state, layer, "last", sequences)
    with mask:
        masked = read_state(model, state, layer, "last", sequences)
    varies, varied = (float(vectors.std(0).max(initial=0)) for vectors in (masked, whole))
    return masked if varies > 1e-4 * varied else np.zeros_like(masked)


def state_name(state: State | None, layer: int) -> tuple[str, int | None]:
    """The name and the layer in a result: logits have no layer."""
    return ("logits", None) if state is None else (state, layer)


def _rounding(
    model: HookedTransformer, state: State | None, layer: int, place: Place, sequences: Sequences
) -> float:
    """For a tensor x W the product of the dtype's eps, mean |x| and W's spectral norm; else 0."""
    if state not in (None, "V", "OV"):
        return 0.0
    part: Any = model.unembed if state is None else model.blocks[layer].attn
    weights = [part.W_U] if state is None else [part.W_V, part.W_O][: 1 + (state == "OV")]
    last: tuple[State, int, Place] = ("X_do", model.cfg.n_layers - 1, "last")
    x = _hidden(model, *(last if state is None else ("X", layer, place)), sequences)
    size = torch.finfo(x.dtype).eps * float(x.float().norm(dim=1).sum()) / max(len(x), 1)
    for weight in weights:  # heads lie side by side: the squares of their norms add up
        size *= float(torch.linalg.matrix_norm(weight.float(), 2).norm())
    return size


def _hidden(
    model: HookedTransformer, state: State, layer: int, place: Place, sequences: Sequences
) -> torch.Tensor:
    n_layers = model.cfg.n_layers
    name = f"blocks.{layer}.{_HOOKS[state]}"
    every = activations(model, sequences, [name])[name]
    at = torch.from_numpy(sequences.positions(place)).to(every.device)
    here = every[torch.arange(len(every), device=every.device), at]  # [n, ...]
    blocks: list[Any] = list(model.blocks)
    if state == "V":
        here = rearrange(here, "n head d_head -> n (head d_head)")
    elif state == "OV":
        written = "n head d_head, head d_head d_model -> n head d_model"
        here = einsum(here, blocks[layer].attn.W_O, written).flatten(1)
    elif layout(model) == "pre":
        reader = layer + (state == "X_do")
        is_last = reader == n_layers
        norm = model.ln_final if is_last else blocks[reader].ln1
        norm = blocks[layer].ln2 if state == "X_ao" else norm
        names = (getattr(model.cfg, f"{x}architecture", None) for x in ("original_", ""))
        if is_last or not {*names} & {*_NORMED_OUTPUTS}:
            here = norm(here[:, None])[:, 0]
    return here
