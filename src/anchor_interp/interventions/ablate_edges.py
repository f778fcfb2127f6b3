"""Ablation of attention edges: what a model still answers when edges carry something else.

An *edge* (layer, head, query position, key position) adds ``pattern[query, key] * v[key]`` to the
query's position: this product is what it *carries*. An *ablated* edge carries something else, and
every other edge works as before. What it carries instead is nothing, its mean over reference
sequences, or what it carries in one reference sequence.

The reference's whole product comes from an unedited forward pass. References must have the key at
the same position, so that an edge means the same in them. Residual streams are never ablated, so a
position keeps what it knows without attention.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp.interventions.hooks import Edit, activations, hooked
from anchor_interp.interventions.masks import mask_edges
from anchor_interp.models.inputs import Rows
from anchor_interp.models.number_checks import at_least_float32, rounding
from anchor_interp.models.transformer import Edges, HookedTransformer, Inputs


@dataclass(frozen=True, eq=False)
class EdgeOutputs:
    """What edges carry in reference sequences; see :func:`edge_outputs`."""

    patterns: Float[Tensor, "layer batch head query key"]
    values: Float[Tensor, "layer batch key head d_head"]
    mlps: Float[Tensor, "layer batch pos d_model"] | None = None
    """What the MLPs write, if it was recorded."""

    def __len__(self) -> int:
        return self.patterns.shape[1]

    def rows(self, index: Int64[Tensor, " n"]) -> "EdgeOutputs":
        """The same in some of the sequences."""
        mlps = None if self.mlps is None else self.mlps[:, index]
        return EdgeOutputs(self.patterns[:, index], self.values[:, index], mlps)

    def through(
        self, layer: int, edges: Bool[Tensor, "#batch head query key"]
    ) -> Float[Tensor, "batch query head d_head"]:
        """The sum of what a layer's chosen edges carry to every query."""
        patterns = self.patterns[layer]
        return torch.einsum("bhqk,bkhd->bqhd", patterns * edges.to(patterns), self.values[layer])

    def mean(self) -> "MeanEdgeOutputs":
        """The mean over the sequences, edge by edge."""
        patterns, values = map(at_least_float32, (self.patterns, self.values))  # sums overflow
        products = torch.einsum("lbhqk,lbkhd->lhqkd", patterns, values) / len(self)
        mlps = None if self.mlps is None else self.mlps.mean(1, keepdim=True)
        return MeanEdgeOutputs(products.to(self.values), mlps)


@dataclass(frozen=True, eq=False)
class MeanEdgeOutputs:
    """What edges carry on average; see :meth:`EdgeOutputs.mean`."""

    products: Float[Tensor, "layer head query key d_head"]
    mlps: Float[Tensor, "layer 1 pos d_model"] | None = None

    def rows(self, _index: Int64[Tensor, " n"]) -> "MeanEdgeOutputs":
        """The same for every sequence."""
        return self

    def through(
        self, layer: int, edges: Bool[Tensor, "batch head query key"]
    ) -> Float[Tensor, "batch query head d_head"]:
        """As :meth:`EdgeOutputs.through`."""
        products = self.products[layer]
        return torch.einsum("bhqk,hqkd->bqhd", edges.to(products), products)


def edge_outputs(
    model: HookedTransformer, tokens: Inputs | Rows, *, mlps: bool = False
) -> EdgeOutputs:
    """Record what every edge carries in some sequences; hooks attached to the model act.

    Raises ConfigError if heads write something else than the sum of these products.
    """
    blocks = [f"blocks.{layer}." for layer in range(model.cfg.n_layers)]
    kinds = ["attn.hook_pattern", "attn.hook_v", "attn.hook_z"]
    kinds += ["hook_mlp_out"] * (mlps and not model.cfg.attn_only)
    recorded = activations(model, tokens, [block + kind for block in blocks for kind in kinds])
    patterns, values, z, *wrote = (
        torch.stack([recorded[block + kind] for block in blocks]) for kind in kinds
    )
    n_sharing = model.cfg.n_heads // values.shape[3]  # grouped heads share their values
    outputs = EdgeOutputs(patterns, values.repeat_interleave(n_sharing, dim=3), *wrote)
    every = torch.ones_like(patterns[0, :1], dtype=torch.bool)
    for layer in range(model.cfg.n_layers):
        off = (outputs.through(layer, every) - z[layer]).abs().amax()
        if not off <= rounding(z, model.cfg.dtype) * z[layer].abs().amax():
            more = "its attention was changed or is gated, and no edge can be ablated by itself"
            raise ConfigError(f"layer {layer} does not write the sum over its edges: {more}")
    return outputs


@contextlib.contextmanager
def ablate_edges(
    model: HookedTransformer,
    edges: Edges,
    reference: EdgeOutputs | MeanEdgeOutputs | None = None,
    *,
    mlps: Bool[Tensor, "layer #batch pos"] | None = None,
) -> Iterator[None]:
    """Ablate attention edges, and MLPs, in every forward pass within the ``with`` block.

    Ablated edges carry what the reference of each sequence carries (:func:`edge_outputs`),
    its mean (:meth:`EdgeOutputs.mean`), or nothing if there is no reference. All other products
    stay, so a row's attention weights need not sum to 1. Blocks can be nested if no edge is chosen
    twice. Errors are those of :func:`anchor_interp.interventions.masks.mask_edges`.
    """
    with mask_edges(model, edges):
        edits, wrote = {}, None
        if reference is not None:
            wrote = reference.mlps
            edits = {
                f"blocks.{layer}.attn.hook_z": _adding(reference, layer, cut)
                for layer, cut in enumerate(edges)
                if cut.any() or (mlps is not None and mlps[layer].any())  # checks them
            }
        for layer, at in enumerate(() if mlps is None else mlps):
            if at.any():
                instead = 0.0 if wrote is None else wrote[layer]
                edits[f"blocks.{layer}.hook_mlp_out"] = _replacing(at, instead)
        with hooked(model, edits):
            yield


def _adding(
    reference: EdgeOutputs | MeanEdgeOutputs,
    layer: int,
    edges: Bool[Tensor, "#batch head query key"],
) -> Edit:
    def add(z: Tensor) -> Tensor:
        if isinstance(reference, EdgeOutputs) and len(reference) not in (1, len(z)):
            given = f"there are {len(z)} sequences and {len(reference)} references"
            raise ConfigError(f"{given}; give each sequence its reference")
        return z + reference.through(layer, edges)

    return add


def _replacing(
    at: Bool[Tensor, "#batch pos"], instead: Float[Tensor, "#batch pos d_model"] | float
) -> Edit:
    return lambda wrote: torch.where(at[..., None].to(wrote.device), instead, wrote)
