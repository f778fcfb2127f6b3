"""Edges of the residual graph: which output reaches which input, and runs with some of them cut.

A *sender* adds to the residual stream: the embedding (the stream before layer 0), a head, an MLP. A
*receiver* reads it: the queries of a head, the keys or values of a head or of a group of heads, an
MLP, the logits. An edge is all that a receiver gets of a sender, at every position (Syed et al.
2023). A cut edge carries what the sender wrote in a reference run. So each receiver has a stream of
its own, whose LayerNorms are computed anew; nothing needs to be folded into the weights.
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from anchor_interp._util.errors import ConfigError, raising
from anchor_interp.interventions.hooks import Edit, activations, hooked
from anchor_interp.interventions.sites import heads_of
from anchor_interp.models.forward import answer_logits
from anchor_interp.models.inputs import Rows
from anchor_interp.models.transformer import HookedTransformer, Inputs, check_causal, layout

Pairs = tuple[Int64[np.ndarray, " pair"], Int64[np.ndarray, " pair"]]
"""Indices of sequences and of the reference of each."""
_MOST = 1 << 27  # numbers in the streams of one forward pass


class Layer(NamedTuple):
    """Which receivers (four slices) and which senders belong to a layer."""

    q: slice
    k: slice
    v: slice
    mlp_in: slice
    heads: slice
    mlp_out: slice
    gets_heads: int
    """The first receiver of what its heads write; those after it get that too."""


@dataclass(frozen=True)
class ResidualGraph:
    """The residual graph of a model."""

    n_layers: int
    n_heads: int
    n_groups: int
    """Keys and values of a layer: groups of heads, or as many as heads."""
    n_mlps: int
    """1, or 0 in attention-only models."""
    parallel: bool
    """Whether a layer's MLP reads the stream before its attention."""

    @classmethod
    def of(cls, model: HookedTransformer) -> "ResidualGraph":
        """The graph; ConfigError if attention is not causal, or reads more than the stream."""
        check_causal(model)
        cfg: Any = model.cfg
        if getattr(cfg, "positional_embedding_type", None) == "shortformer":
            raise ConfigError("queries and keys read positions beside the stream (shortformer)")
        parallel, n_mlps = bool(getattr(cfg, "parallel_attn_mlp", False)), int(not cfg.attn_only)
        return cls(cfg.n_layers, cfg.n_heads, heads_of(model, "k"), n_mlps, parallel)

    @cached_property
    def senders(self) -> tuple[str, ...]:
        """Their names: ``embedding``, ``L0H0``, ``L0 MLP``."""
        nodes = [*(f"H{head}" for head in range(self.n_heads)), *[" MLP"] * self.n_mlps]
        return "embedding", *(f"L{at}{node}" for at in range(self.n_layers) for node in nodes)

    @cached_property
    def receivers(self) -> tuple[str, ...]:
        """Their names: ``L0H0 q``, ``L0H0 k`` (or ``L0 group 0 k``), ``L0 MLP``, ``logits``."""
        shared = "H" if self.n_groups == self.n_heads else " group "
        nodes = [f"H{head} q" for head in range(self.n_heads)]
        nodes += [f"{shared}{group} {kind}" for kind in "kv" for group in range(self.n_groups)]
        nodes += [" MLP"] * self.n_mlps
        return *(f"L{at}{node}" for at in range(self.n_layers) for node in nodes), "logits"

    @property
    def names(self) -> tuple[str, ...]:
        """Receivers, then senders."""
        return *self.receivers, *self.senders

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Where the nodes of every layer stand."""
        sizes = (self.n_heads, self.n_groups, self.n_groups, self.n_mlps)
        found, read, wrote = [], 0, 1
        for _ in range(self.n_layers):
            ends = np.cumsum([read, *sizes]).tolist()
            out = np.cumsum([wrote, self.n_heads, self.n_mlps]).tolist()
            q, k, v, mlp = (slice(*each) for each in pairwise(ends))
            heads, mlp_out = (slice(*each) for each in pairwise(out))
            found.append(Layer(q, k, v, mlp, heads, mlp_out, ends[-1 if self.parallel else -2]))
            read, wrote = ends[-1], out[-1]
        return tuple(found)

    @cached_property
    def reachable(self) -> Bool[np.ndarray, "receiver sender"]:
        """The edges that there are."""
        edges = np.zeros((len(self.receivers), len(self.senders)), np.bool_)
        edges[:, 0] = True
        for layer in self.layers:
            edges[layer.gets_heads :, layer.heads] = True
            edges[layer.mlp_in.stop :, layer.mlp_out] = True
        return edges

    def best(
        self, scores: Float[np.ndarray, "receiver sender"], n: int
    ) -> Bool[np.ndarray, "receiver sender"]:
        """The n edges of the largest scores that are connected to the logits.

        From the logits on, always the best edge into a node of the circuit, which its sender then
        joins (the greedy search of Hanna et al. 2024).
        """
        edges = np.zeros_like(self.reachable)
        inputs: dict[int, list[int]] = {0: []}  # of a sender's own node
        for layer in self.layers:
            for head in range(self.n_heads):
                group = head * self.n_groups // self.n_heads
                own = [layer.q.start + head, layer.k.start + group, layer.v.start + group]
                inputs[layer.heads.start + head] = own
            inputs[layer.mlp_out.start] = [layer.mlp_in.start]  # unless the next layer's head
        into, candidates = [len(edges) - 1], list[tuple[float, int, int]]()
        for _ in range(n):
            for receiver in into:
                for sender in np.flatnonzero(self.reachable[receiver]).tolist():
                    heapq.heappush(candidates, (-scores[receiver, sender], receiver, sender))
            _, receiver, sender = heapq.heappop(candidates)
            edges[receiver, sender] = True
            into = inputs.pop(sender, [])
        return edges


@dataclass(frozen=True, eq=False)
class SenderOutputs:
    """What the senders write in some sequences, and the biases of attention, which nobody sends."""

    written: Float[Tensor, "sender n pos d_model"]
    biases: Float[Tensor, "layer d_model"]

    def rows(self, index: Int64[Tensor, " n"]) -> "SenderOutputs":
        """The same in some of the sequences."""
        return SenderOutputs(self.written[:, index], self.biases)


def output_hooks(graph: ResidualGraph) -> list[str]:
    """The hooks that :func:`sender_outputs` needs."""
    kinds = ["attn.hook_z", "hook_attn_out"] + ["hook_mlp_out"] * graph.n_mlps
    layers = [f"blocks.{layer}.{kind}" for layer in range(graph.n_layers) for kind in kinds]
    return ["blocks.0.hook_resid_pre", *layers]


@torch.no_grad()
def sender_outputs(
    model: HookedTransformer, graph: ResidualGraph, seen: Mapping[str, Tensor]
) -> SenderOutputs:
    """What the senders write, of activations at :func:`output_hooks`.

    Raises ConfigError if a layer does more with its heads than add them up.
    """
    stream, blocks = seen["blocks.0.hook_resid_pre"], _blocks(model)
    outputs, biases = stream.new_empty(len(graph.senders), *stream.shape), []
    outputs[0] = stream
    for layer, (nodes, block) in enumerate(zip(graph.layers, blocks, strict=True)):
        z, out = (seen[f"blocks.{layer}.{kind}"] for kind in ("attn.hook_z", "hook_attn_out"))
        here = outputs[nodes.heads]
        torch.bmm(z.flatten(0, 1).transpose(0, 1), block.attn.W_O, out=here.flatten(1, 2))
        rest = out - here.sum(0)
        spread = (rest - rest[:1, :1]).abs().max()
        if spread > _rounding(rest) * out.abs().max():
            why = f"layer {layer} does more with its heads than add them up, by {spread:.2g}"
            raise ConfigError(f"{why} (a norm after attention?); residual edges need a plain sum")
        biases.append(rest[0, 0])
        if graph.n_mlps:
            outputs[nodes.mlp_out] = seen[f"blocks.{layer}.hook_mlp_out"]
    return SenderOutputs(outputs, torch.stack(biases))


def recorded_outputs(model: HookedTransformer, tokens: Inputs | Rows) -> SenderOutputs:
    """:func:`sender_outputs` of an unedited run; hooks attached to the model act."""
    graph = ResidualGraph.of(model)
    return sender_outputs(model, graph, activations(model, tokens, output_hooks(graph)))


def read_weights(block: Any, kind: str, slots: slice) -> tuple[Tensor, Tensor | float]:
    """Matrices [slot, d_model, d_head] and biases of a layer's q, k or v, once a group."""
    weight: Tensor = getattr(block.attn, f"W_{kind.upper()}")
    bias: Tensor | None = getattr(block.attn, f"b_{kind.upper()}", None)
    every = len(weight) // (slots.stop - slots.start)
    return weight[::every], 0.0 if bias is None else bias[::every]


class _Streams:
    """The stream of every receiver in a forward pass with edges cut, as edits of its hooks."""

    def __init__(
        self,
        model: HookedTransformer,
        kept: Bool[Tensor, "n receiver sender"],
        reference: SenderOutputs,
    ) -> None:
        graph, (_, n, pos, d) = ResidualGraph.of(model), reference.written.shape
        self.kept, self.reference, self.post = kept, reference, layout(model) == "post"
        self.value = reference.written.new_zeros(n, kept.shape[1], pos, d)
        self.edits: dict[str, Edit] = {"blocks.0.hook_resid_pre": self._embed}
        for layer, (block, nodes) in enumerate(zip(_blocks(model), graph.layers, strict=True)):
            at = f"blocks.{layer}."
            for kind, slots in zip("qkv", nodes[:3], strict=True):
                self.edits[f"{at}attn.hook_{kind}"] = self._reads(block, kind, slots)
            self.edits[f"{at}attn.hook_z"] = self._heads(block, nodes, reference.biases[layer])
            if graph.n_mlps:
                self.edits[f"{at}hook_mlp_out"] = self._mlp(block, nodes)
        self.edits[f"blocks.{graph.n_layers - 1}.hook_resid_post"] = lambda _: self.value[:, -1]

    def _write(self, own: Tensor, senders: slice, first: int) -> None:
        """To all receivers from the first on."""
        reference = self.reference.written[senders]
        keeps = self.kept[:, first:, senders].to(own)
        change = torch.einsum("nrs,snpd->nrpd", keeps, own - reference)
        self.value[:, first:] += change + reference.sum(0)[:, None]

    def _read(self, norm: Any, receivers: slice) -> Tensor:
        stream = self.value[:, receivers]
        return stream if self.post else norm(stream)

    def _embed(self, stream: Tensor) -> Tensor:
        self._write(stream[None], slice(0, 1), 0)
        return stream

    def _reads(self, block: Any, kind: str, slots: slice) -> Edit:
        weight, bias = read_weights(block, kind, slots)
        read = "nhpd,hde->nphe"
        return lambda _: torch.einsum(read, self._read(block.ln1, slots), weight) + bias

    def _heads(self, block: Any, nodes: Layer, bias: Tensor) -> Edit:
        first = nodes.gets_heads

        def edit(z: Tensor) -> Tensor:
            written = torch.einsum("nphe,hed->hnpd", z, block.attn.W_O)
            self._write(written, nodes.heads, first)
            self.value[:, first:] += bias
            if self.post:
                self.value[:, first:] = block.ln1(self.value[:, first:])
            return z

        return edit

    def _mlp(self, block: Any, nodes: Layer) -> Edit:
        first, inside = nodes.mlp_in.stop, False
        norm = getattr(block, "ln2", block.ln1)

        def edit(written: Tensor) -> Tensor:
            nonlocal inside
            if inside:  # a bridge's hook fires within its MLP: this is the call below
                return written
            inside, read = True, self._read(norm, nodes.mlp_in)[:, 0].contiguous()
            why = "an MLP of this bridge runs only in its block: "
            with raising(ConfigError, why, of=RuntimeError):
                written = block.mlp(read)
            inside = False
            self._write(written[None], nodes.mlp_out, first)
            if self.post:
                self.value[:, first:] = norm(self.value[:, first:])
            return written

        return edit


@torch.no_grad()
def run_kept(
    model: HookedTransformer,
    rows: Rows,
    kept: Bool[Tensor, "circuit receiver sender"],
    pairs: Pairs,
    reference: SenderOutputs,
    score: Callable[[Tensor, Tensor], Tensor],
) -> Float[np.ndarray, "circuit pair metric"]:
    """Score every pair of a sequence and a reference with all edges but some cut.

    As :func:`anchor_interp.interventions.ablation_bench.run_ablated`, given what is kept.
    """
    sequence, other = (torch.from_numpy(index).to(rows.tokens.device) for index in pairs)
    size = max(1, _MOST // (kept.shape[1] * reference.written[0, 0].numel()))
    n, parts = len(sequence), []
    for chunk in torch.split(torch.arange(len(kept) * n, device=sequence.device), size):
        chosen, donors = sequence[chunk % n], reference.rows(other[chunk % n])
        with hooked(model, _Streams(model, kept[chunk // n], donors).edits):
            logits = answer_logits(model, rows[chosen])
        parts.append(score(logits.double(), chosen).double().cpu())
    return torch.cat(parts).view(len(kept), n, -1).numpy()


@torch.no_grad()
def check_graph(model: HookedTransformer, given: Rows) -> None:
    """ConfigError if a model is more than its residual graph.

    With every edge two sequences keep their logits; without those from the embedding they get each
    other's.
    """
    places = torch.arange(given.tokens.shape[1], device=given.tokens.device)
    tokens = torch.stack([7919 * places, 7919 * places + 1]) % model.cfg.d_vocab
    # padding counts as tokens
    rows = Rows(tokens, None, None if given.attention_mask is None else torch.ones_like(tokens))
    kept = torch.from_numpy(ResidualGraph.of(model).reachable).to(tokens.device).repeat(2, 1, 1)
    kept[1, :, 0] = False
    own, order = answer_logits(model, rows).cpu(), np.arange(2)
    pairs, reference = (order, order[::-1].copy()), recorded_outputs(model, rows)
    found = run_kept(model, rows, kept, pairs, reference, lambda logits, _: logits)
    off = np.abs(found - torch.stack([own, own.flip(0)]).double().numpy()).max()
    near = max(_rounding(own), 0.01)  # streams can be much larger than what tells them apart
    if not off <= near * float(own.abs().max()):
        why = f"runs with all edges and with none from the embedding miss their logits by {off:.2g}"
        raise ConfigError(f"the model, or a hook attached to it, is more than its graph: {why}")


def _blocks(model: HookedTransformer) -> list[Any]:
    blocks: Any = model.blocks
    return list(blocks)


def _rounding(value: Tensor) -> float:
    """The relative difference that rounding explains; some norms compute in float32."""
    return float(max(torch.finfo(each).eps for each in (value.dtype, torch.float32)) ** 0.5)
