"""Attention-edge masks: cut information paths after the softmax and see what still works.

An *edge* is one entry of an attention pattern: layer, head, query position (which receives) and
key position (which sends). :func:`mask_edges` zeroes any set of edges, sequence by sequence
(complexity-control paper, section VI-A, figure 4).

To hide a token, cut every edge that leaves its position, in every layer (``paths="all"``). Cutting
only the edges into the last position (``paths="direct"``) leaves open every path that first goes
elsewhere.

Zeroing after the softmax leaves one more path open: the other weights were divided by a sum that
includes the masked token's score. ``renormalise=True`` scales each row back to its former sum, and
beside an attention sink to what the sink leaves. The denominator then cancels. The papers do not
renormalise; :func:`anchor_interp.analysis.mask_leakage.mask_leakage` measures what remains.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.interventions.hooks import Edit, hooked
from anchor_interp.interventions.sites import position_mask
from anchor_interp.models.transformer import Edges, Inputs, check_causal, check_model, device
from anchor_interp.models.transformer_lens import HookedTransformer
from anchor_interp.tasks.examples import Integers, as_examples

Paths = Literal["all", "direct"]
"""The edges from the token's position to every later one, or to the last one alone."""
Hidden = str | int | Integers | Bool[np.ndarray, "n pos"] | Bool[Tensor, "n pos"]
"""Positions to hide; see :func:`token_edges`."""


@contextlib.contextmanager
def mask_edges(
    model: HookedTransformer, edges: Edges, *, renormalise: bool = False
) -> Iterator[None]:
    """Zero attention edges after the softmax in every forward pass within the ``with`` block.

    Nested masks act as the mask of their union. The batch dimension of ``edges`` is the forward
    pass's, or 1 to cut the same edges in every sequence. ``renormalise`` scales what remains of a
    row, see the module's text; where nothing remains, as beside an attention weight of 1, it is 0.

    Raises:
        ConfigError: edges of the wrong shape or type, or a forward pass of another size.
        HookError: no forward pass reached a layer that has edges to cut.
    """
    check_model(model)
    n_layers, n_heads, given = model.cfg.n_layers, model.cfg.n_heads, cast(Any, edges)
    is_mask = isinstance(given, Tensor) and given.dtype == torch.bool and given.ndim == 5
    if not is_mask or given.shape[::2] != (n_layers, n_heads, given.shape[3]):
        axes = f"({n_layers} layers, batch, {n_heads} heads, query, key)"
        raise ConfigError(f"edges is {shown(given)}; expected a tensor of booleans {axes}")
    edges = edges.to(device(model))
    has_sink = getattr(model.cfg, "use_attention_sinks", False)  # a bridge's cfg does not say it
    has_sink = has_sink or any(name.endswith("sinks") for name, _ in model.named_parameters())
    edits = {
        f"blocks.{layer}.attn.hook_pattern": _zeroing(cut, renormalise, has_sink)
        for layer, cut in enumerate(edges)
        if cut.any()
    }
    with hooked(model, edits):
        yield


def mask_position(
    model: HookedTransformer,
    examples: Inputs,
    positions: Hidden,
    *,
    paths: Paths = "all",
    renormalise: bool = False,
) -> contextlib.AbstractContextManager[None]:
    """Hide positions of every example from all later ones, in forward passes of these examples.

    For anchor sequences ``"key"`` is the key-token mask, ``"second"`` the second-anchor mask
    (complexity-control paper, figure 4), ``"first"`` hides the first anchor.
    See :func:`token_edges` and :func:`mask_edges` for the options and errors.
    """
    edges = token_edges(model, examples, positions, paths)
    return mask_edges(model, edges, renormalise=renormalise)


def token_edges(
    model: HookedTransformer, inputs: Inputs, positions: Hidden, paths: Paths = "all"
) -> Edges:
    """The edges of every layer that carry information away from hidden positions.

    ``positions`` is a place of the examples by its name, ``noise`` (every position without a name),
    one position for all or one each, or booleans [n, pos], such as ``examples.tokens == 5`` for a
    token wherever it stands.

    Raises:
        ConfigError: the position where an answer is read, which no mask can hide, or attention
            that is not causal.
    """
    check_causal(model)
    checked(paths, Paths, "paths")
    examples = as_examples(inputs)
    given: Any = positions.detach().cpu().numpy() if isinstance(positions, Tensor) else positions
    is_mask = getattr(given, "dtype", None) == np.bool_
    hidden: Bool[np.ndarray, "n pos"] = given if is_mask else position_mask(examples, given)
    if hidden.shape != examples.tokens.shape:
        raise ConfigError(f"positions is {hidden.shape}; expected {examples.tokens.shape}")
    read = np.zeros(hidden.shape, np.bool_)
    read[np.arange(len(examples))[:, None], examples.each_at] = True
    bare: Any = (hidden & read).any(1)
    if bare.any():
        kept = f"leave these out: examples[examples.positions({shown(positions)}) < examples.at]"
        kept = "hide positions before it" if is_mask or bare.all() else kept
        where = f"where the answer is read, in {bare.sum()} of {len(bare)} examples"
        raise ConfigError(f"no attention mask hides {shown(positions)} {where}; {kept}")
    away = np.tri(hidden.shape[1], k=-1, dtype=np.bool_)  # [query, key]: the key is earlier
    cut = hidden[:, None, :] & (away if paths == "all" else away & read[:, :, None])
    edges = torch.from_numpy(cut)[None, :, None]
    return edges.repeat(model.cfg.n_layers, 1, model.cfg.n_heads, 1, 1)


def edge(
    model: HookedTransformer,
    n_pos: int,
    *,
    layer: int,
    query: int,
    key: int,
    head: int | None = None,
) -> Edges:
    """One edge, the same in every sequence; join edges with ``|``.

    ``query`` receives and ``key``, at most ``query``, sends, in a forward pass of ``n_pos``
    positions. All numbers are 0-based. If ``head`` is None, the edge of every head.
    """
    check_model(model)
    cfg, one = model.cfg, 0 if head is None else head
    given = {"layer": (layer, cfg.n_layers - 1), "head": (one, cfg.n_heads - 1)}
    given |= {"n_pos": (n_pos, cfg.n_ctx), "query": (query, n_pos - 1), "key": (key, query)}
    for name, (value, most) in given.items():
        checked(value, int, name, low=0, high=most)
    edges = no_edges(model, n_pos)
    edges[layer, 0, slice(None) if head is None else head, query, key] = True
    return edges


def no_edges(model: HookedTransformer, n_pos: int, batch: int = 1) -> Edges:
    """The empty set of edges."""
    shape = (model.cfg.n_layers, batch, model.cfg.n_heads, n_pos, n_pos)
    return torch.zeros(shape, dtype=torch.bool, device="cpu")


def _zeroing(
    edges: Bool[Tensor, "batch head query key"], renormalise: bool, has_sink: bool
) -> Edit:
    def zero(pattern: Tensor) -> Tensor:
        if pattern.shape[1:] != edges.shape[1:] or len(edges) not in (1, len(pattern)):
            masked, run = tuple(edges.shape), tuple(pattern.shape)  # batch, head, query, key
            raise ConfigError(f"the mask is for patterns {masked}; this forward pass has {run}")
        kept = pattern.masked_fill(edges, 0)
        if not renormalise:
            return kept
        rest, whole = kept.sum(-1, keepdim=True), pattern.sum(-1, keepdim=True)
        if has_sink:  # it has the rest of 1 and stays in the denominator
            rest, whole = rest + (1 - whole).clamp(min=0), torch.ones_like(whole)
        shares = kept / torch.where(rest > 0, rest, 1)  # first: the inverse of rest can overflow
        return torch.where(edges.any(-1, keepdim=True), shares * whole, pattern)

    return zero
