"""Attention-edge masks: cut information paths after the softmax and see what still works.

An *edge* is one entry of an attention pattern: layer, head, query position (which receives) and
key position (which sends). :func:`mask_edges` zeroes any set of them, sequence by sequence, and
leaves the others as they are (complexity-control paper, section VI-A, figure 4); the functions
below name the sets that the papers use.

To hide a token from all other positions it is enough and necessary to cut every edge that leaves
its position, in every layer (``paths="all"``): its own residual stream then stays the only place
that knows it. Cutting the edges into the last position alone (``paths="direct"``) leaves open
every path that first goes elsewhere. A token at the last position cannot be hidden this way.

There is one more way out, which zeroing after the softmax does not close: the weights that remain
were divided by a sum over *all* positions, the masked one too, so they still depend, a little, on
the masked token's score. With ``renormalise=True`` the rest of each row is scaled to the row's
former sum, this denominator cancels, and the logits do not depend on the masked token at all (to
rounding). The papers do not renormalise, so the default does not; :func:`leak` measures what is
left.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.interventions.hooks import Edit, hooked
from anchor_interp.models.forward import last_logits
from anchor_interp.models.transformer import Edges, HookedTransformer, device, token_rows
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.sequences import Place, Sequences, places

Paths = Literal["all", "direct"]
"""``all``: every edge that carries the token's information, at any depth; ``direct``: those into
the last position."""


_BATCH = 1024
"""Sequences of one forward pass, where one is run with many values of a token."""


@contextlib.contextmanager
def mask_edges(
    model: HookedTransformer, edges: Edges, *, renormalise: bool = False
) -> Iterator[None]:
    """Zero attention edges after the softmax in every forward pass within the ``with`` block.

    Masks compose (together they are the mask of the union) and are removed at the end of the
    block, also after an exception. They act under ``run_with_cache`` and under gradients.

    Args:
        model: any HookedTransformer.
        edges: True where an edge is to be cut. The batch dimension is the forward pass's, or 1 to
            cut the same edges in every sequence. Edges from the future are never there and may
            be named all the same.
        renormalise: scale what remains of a row to the row's former sum; a row of which nothing
            remains stays zero.

    Raises:
        ConfigError: edges of the wrong shape or type, or a forward pass of another size.
        HookError: no forward pass reached a layer that has edges to cut.

    Source: complexity-control paper, section VI-A.
    """
    edges = _checked_edges(model, edges).to(device(model))
    checked(renormalise, bool, "renormalise")
    cut = [layer for layer in range(len(edges)) if edges[layer].any()]
    with hooked(
        model,
        {f"blocks.{layer}.attn.hook_pattern": _zeroing(edges[layer], renormalise) for layer in cut},
    ):
        yield


def mask_key_token(
    model: HookedTransformer,
    sequences: Sequences,
    *,
    paths: Paths = "all",
    renormalise: bool = False,
) -> contextlib.AbstractContextManager[None]:
    """Hide the key of every sequence (complexity-control paper, figures 4A and 4C).

    The forward pass must be given these sequences in this order; see :func:`token_edges` for
    ``paths`` and the errors, :func:`mask_edges` for ``renormalise``.
    """
    return _masked(model, sequences, "key", paths, renormalise)


def mask_first_anchor(
    model: HookedTransformer,
    sequences: Sequences,
    *,
    paths: Paths = "all",
    renormalise: bool = False,
) -> contextlib.AbstractContextManager[None]:
    """Hide the first anchor of every sequence, as :func:`mask_key_token` hides the key."""
    return _masked(model, sequences, "first", paths, renormalise)


def mask_second_anchor(
    model: HookedTransformer,
    sequences: Sequences,
    *,
    paths: Paths = "all",
    renormalise: bool = False,
) -> contextlib.AbstractContextManager[None]:
    """Hide the second anchor of every sequence (complexity-control paper, figures 4B and 4D).

    A sequence whose second anchor stands at the last position is refused.
    """
    return _masked(model, sequences, "second", paths, renormalise)


def token_edges(
    model: HookedTransformer, sequences: Sequences, place: Place, paths: Paths = "all"
) -> Edges:
    """The edges that carry one token's information away from its position.

    Args:
        model: any HookedTransformer.
        sequences: n sequences.
        place: which token of each sequence.
        paths: ``all`` (every layer, every later position) or ``direct`` (every layer, into the
            last position only).

    Returns:
        Edges with a batch of n.

    Raises:
        ConfigError: a token at the last position, which no attention mask can hide, because the
            residual stream that the answer is read from starts with it.
    """
    checked(model, HookedTransformer, "model")
    checked(paths, Paths, "paths")
    position = torch.from_numpy(places(sequences, place))
    length = sequences.tokens.shape[1]
    at_end = np.flatnonzero(position.numpy() == length - 1)
    if len(at_end):
        raise ConfigError(
            f"the {place} token of sequence {at_end[0]} (and of {len(at_end) - 1} more) is at the "
            f"last position, {length - 1}, whose own residual stream carries it: no attention mask "
            "hides it; leave these sequences out"
        )
    edges = torch.zeros(
        model.cfg.n_layers, len(position), model.cfg.n_heads, length, length, dtype=torch.bool
    )
    row = torch.arange(len(position))
    if paths == "all":
        for query in range(length):
            edges[:, row, :, query, position] = (query > position)[:, None, None]
    else:
        edges[:, row, :, length - 1, position] = True
    return edges


def edge(
    model: HookedTransformer,
    n_pos: int,
    *,
    layer: int,
    query: int,
    key: int,
    head: int | None = None,
) -> Edges:
    """One edge, the same in every sequence, for :func:`mask_edges`; edges join with ``|``.

    Args:
        model: any HookedTransformer.
        n_pos: positions of the forward pass.
        layer: 0-based layer.
        query: position that receives.
        key: position that sends, at most ``query``.
        head: 0-based head; every head if None.

    Raises:
        ConfigError: a layer, head or position that does not exist.
    """
    checked(model, HookedTransformer, "model")
    checked(layer, int, "layer", low=0, high=model.cfg.n_layers - 1)
    checked(head, int | None, "head", low=0, high=model.cfg.n_heads - 1)
    checked(n_pos, int, "n_pos", low=1, high=model.cfg.n_ctx)
    checked(query, int, "query", low=0, high=n_pos - 1)
    checked(key, int, "key", low=0, high=query)
    edges = no_edges(model, n_pos)
    edges[layer, 0, slice(None) if head is None else head, query, key] = True
    return edges


def no_edges(model: HookedTransformer, n_pos: int, batch: int = 1) -> Edges:
    """The empty set of edges."""
    shape = (model.cfg.n_layers, batch, model.cfg.n_heads, n_pos, n_pos)
    return torch.zeros(shape, dtype=torch.bool)


@torch.no_grad()
def leak(
    model: HookedTransformer,
    task: AnchorTask,
    sequences: Sequences,
    place: Place,
    *,
    paths: Paths = "all",
    renormalise: bool = False,
) -> float:
    """How much the logits still depend on a masked token.

    Every sequence is run with each value that the token can take (all keys, or all anchors) while
    the token is masked.

    Args:
        model: any HookedTransformer.
        task: gives the keys and the anchors.
        sequences: n sequences.
        place: the token that is masked and varied; a noise token at ``last`` cannot be masked.
        paths: see :func:`token_edges`.
        renormalise: see :func:`mask_edges`.

    Returns:
        The largest range of a last-position logit over the values, divided by the largest range
        without a mask: 0 if the mask isolates the token, 1 if it does nothing.

    Raises:
        ConfigError: no sequences, a token that cannot be masked, or logits that do not depend on
            the token in the first place or are not finite.
    """
    checked(task, AnchorTask, "task")
    values = task.tokens if place in ("first", "second") else tuple(task.keys.tolist())
    edges = token_edges(model, sequences, place, paths)
    if not len(sequences):
        raise ConfigError("there are no sequences; expected at least one")
    rows = token_rows(model, sequences.tokens)
    at = torch.from_numpy(places(sequences, place)).to(rows.device)
    tokens = torch.tensor(values, device=rows.device)

    def largest_range(masked: bool) -> float:
        low: Tensor | None = None
        high: Tensor | None = None
        for some in torch.split(tokens, max(_BATCH // len(rows), 1)):
            varied = rows.repeat(len(some), 1)
            varied[torch.arange(len(varied)), at.repeat(len(some))] = some.repeat_interleave(
                len(rows)
            )
            with contextlib.ExitStack() as stack:
                if masked:
                    everywhere = edges.repeat(1, len(some), 1, 1, 1)
                    stack.enter_context(mask_edges(model, everywhere, renormalise=renormalise))
                found = last_logits(model, varied)
            if not found.isfinite().all():
                raise ConfigError(
                    "the model's logits are not all finite; expected numbers: look for NaN or "
                    "infinite weights, or take an earlier checkpoint"
                )
            logits = found.view(len(some), len(rows), -1)
            least, most = logits.aminmax(dim=0)
            low = least if low is None else torch.minimum(low, least)
            high = most if high is None else torch.maximum(high, most)
        assert low is not None
        assert high is not None
        return float((high - low).max())

    free = largest_range(masked=False)
    if free == 0:
        raise ConfigError(
            f"the logits do not depend on the {place} token; there is nothing to mask"
        )
    return largest_range(masked=True) / free


def _masked(
    model: HookedTransformer, sequences: Sequences, place: Place, paths: Paths, renormalise: bool
) -> contextlib.AbstractContextManager[None]:
    return mask_edges(model, token_edges(model, sequences, place, paths), renormalise=renormalise)


def _zeroing(edges: Bool[Tensor, "batch head query key"], renormalise: bool) -> Edit:
    def zero(pattern: Tensor) -> Tensor:
        if pattern.shape[1:] != edges.shape[1:] or len(edges) not in (1, len(pattern)):
            raise ConfigError(
                f"the mask is for patterns {tuple(edges.shape)} (batch, head, query, key); this "
                f"forward pass has {tuple(pattern.shape)}: mask the sequences that are run"
            )
        kept = pattern.masked_fill(edges, 0)
        if not renormalise:
            return kept
        rest = kept.sum(-1, keepdim=True)
        scale = pattern.sum(-1, keepdim=True) / torch.where(rest > 0, rest, 1)
        return torch.where(edges.any(-1, keepdim=True), kept * scale, pattern)

    return zero


def _checked_edges(model: HookedTransformer, edges: Any) -> Edges:
    checked(model, HookedTransformer, "model")
    if not isinstance(edges, Tensor) or edges.dtype != torch.bool or edges.ndim != 5:
        found = f"{tuple(edges.shape)} {edges.dtype}" if isinstance(edges, Tensor) else shown(edges)
        raise ConfigError(
            f"edges is {found}; expected booleans of shape (layer, batch, head, query, key)"
        )
    layers, _, heads, query, key = edges.shape
    if (layers, heads) != (model.cfg.n_layers, model.cfg.n_heads) or query != key:
        raise ConfigError(
            f"edges has {layers} layers, {heads} heads and {query} x {key} positions; expected "
            f"{model.cfg.n_layers} layers and {model.cfg.n_heads} heads, as the model has, and as "
            "many query as key positions"
        )
    return edges
