"""Edges of the residual graph: which output reaches which input, and runs with some of them cut.

A *sender* adds to the residual stream: the embedding (the stream before layer 0), a head, an MLP. A
*receiver* reads it: the queries of a head, the keys or values of a head or of a group of heads, an
MLP, the logits. An edge is all that a receiver gets of a sender, at every position. A cut edge
carries what the sender wrote in a reference run, so each receiver has a stream of its own; the
LayerNorms on its way are computed anew, in post-LayerNorm models those between the blocks too.
Nothing needs to be folded into the weights. Nodes as in Syed et al. 2023 (arXiv:2310.10348).
"""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from anchor_interp._util.errors import ConfigError, raising
from anchor_interp.interventions.hooks import Edit, activations, hooked
from anchor_interp.models.forward import answer_logits
from anchor_interp.models.transformer import HookedTransformer, Inputs, check_causal, layout

Pairs = tuple[Int64[np.ndarray, " pair"], Int64[np.ndarray, " pair"]]
"""Indices of sequences and of the reference of each."""
_MOST = 1 << 27  # numbers in the streams of one forward pass


class Layer(NamedTuple):
    """The receivers and senders of a layer, as slices."""

    q: slice
    k: slice
    v: slice
    mlp_in: slice
    heads: slice
    mlp_out: slice


@dataclass(frozen=True)
class ResidualGraph:
    """The residual graph of a model."""

    n_layers: int
    n_heads: int
    n_groups: int
    """Keys and values of a layer: groups of heads, or as many as heads."""
    has_mlps: bool
    parallel: bool
    """Whether a layer's MLP reads the stream before its attention."""

    @classmethod
    def of(cls, model: HookedTransformer) -> "ResidualGraph":
        """The graph; ConfigError if attention is not causal."""
        check_causal(model)
        cfg: Any = model.cfg
        apart = getattr(cfg, "ungroup_grouped_query_attention", False)
        n_groups = (None if apart else cfg.n_key_value_heads) or cfg.n_heads
        parallel = bool(getattr(cfg, "parallel_attn_mlp", False))
        return cls(cfg.n_layers, cfg.n_heads, n_groups, not cfg.attn_only, parallel)

    @cached_property
    def senders(self) -> tuple[str, ...]:
        """Their names: ``embedding``, ``L0H0``, ``L0 MLP``."""
        layers = (
            [*(f"L{layer}H{h}" for h in range(self.n_heads)), *[f"L{layer} MLP"] * self.has_mlps]
            for layer in range(self.n_layers)
        )
        return ("embedding", *chain(*layers))

    @cached_property
    def receivers(self) -> tuple[str, ...]:
        """Their names: ``L0H0 q``, ``L0H0 k`` (or ``L0 group 0 k``), ``L0 MLP``, ``logits``."""
        shared = "H" if self.n_groups == self.n_heads else " group "
        layers = (
            [*(f"L{layer}H{h} q" for h in range(self.n_heads)),
             *(f"L{layer}{shared}{g} {kind}" for kind in "kv" for g in range(self.n_groups)),
             *[f"L{layer} MLP"] * self.has_mlps]
            for layer in range(self.n_layers)
        )  # fmt: skip
        return (*chain(*layers), "logits")

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Where the nodes of every layer stand."""
        sizes = (self.n_heads, self.n_groups, self.n_groups, int(self.has_mlps))
        found, read, wrote = [], 0, 1
        for _ in range(self.n_layers):
            ends = np.cumsum([read, *sizes]).tolist()
            q, k, v, mlp = (slice(*each) for each in pairwise(ends))
            heads = slice(wrote, wrote + self.n_heads)
            read, wrote = ends[-1], heads.stop + self.has_mlps
            found.append(Layer(q, k, v, mlp, heads, slice(heads.stop, wrote)))
        return tuple(found)

    @property
    def names(self) -> tuple[str, ...]:
        """Receivers, then senders."""
        return *self.receivers, *self.senders

    def first(self, layer: Layer) -> int:
        """The first receiver of what the layer's heads write; those after it get it too."""
        return layer.mlp_in.stop if self.parallel else layer.mlp_in.start

    @cached_property
    def reachable(self) -> Bool[np.ndarray, "receiver sender"]:
        """The edges that there are."""
        edges = np.zeros((len(self.receivers), len(self.senders)), np.bool_)
        edges[:, 0] = True
        for layer in self.layers:
            edges[self.first(layer) :, layer.heads] = True
            edges[layer.mlp_in.stop :, layer.mlp_out] = True
        return edges

    def best(
        self, scores: Float[np.ndarray, "receiver sender"], n: int
    ) -> Bool[np.ndarray, "receiver sender"]:
        """The n edges of the largest scores that are connected to the logits.

        From the logits on, always the best edge whose receiver belongs to a node in the circuit,
        which its sender then joins (the greedy search of Hanna et al. 2024, section 3).
        """
        edges = np.zeros_like(self.reachable)
        open_edges: list[tuple[float, int, int]] = []
        joined = set[int]()

        def join(receivers: list[int]) -> None:
            for receiver in receivers:
                for sender in np.flatnonzero(self.reachable[receiver]).tolist():
                    heapq.heappush(open_edges, (-scores[receiver, sender], receiver, sender))

        join([len(edges) - 1])
        for _ in range(n):
            _, receiver, sender = heapq.heappop(open_edges)
            edges[receiver, sender] = True
            if sender not in joined:
                joined.add(sender)
                join(self._inputs(sender))
        return edges

    def _inputs(self, sender: int) -> list[int]:
        """The receivers of a sender's own node."""
        for layer in self.layers:
            if sender in range(layer.heads.start, layer.heads.stop):
                head = sender - layer.heads.start
                group = head * self.n_groups // self.n_heads
                return [layer.q.start + head, layer.k.start + group, layer.v.start + group]
            if layer.mlp_out.start == sender < layer.mlp_out.stop:
                return [layer.mlp_in.start]
        return []


@dataclass(frozen=True, eq=False)
class SenderOutputs:
    """What the senders write in some sequences, and the biases of attention, which nobody sends."""

    written: Float[Tensor, "sender n pos d_model"]
    biases: Float[Tensor, "layer d_model"]

    def __len__(self) -> int:
        return self.written.shape[1]

    def rows(self, index: Int64[Tensor, " n"]) -> "SenderOutputs":
        """The same in some of the sequences; a single one stands for all."""
        return SenderOutputs(self.written[:, index if len(self) > 1 else index * 0], self.biases)

    def mean(self) -> "SenderOutputs":
        """The mean over the sequences."""
        return SenderOutputs(self.written.mean(1, keepdim=True), self.biases)

    def zero(self) -> "SenderOutputs":
        """Nothing."""
        return SenderOutputs(torch.zeros_like(self.written[:, :1]), self.biases)


def output_hooks(graph: ResidualGraph) -> list[str]:
    """The hooks that :func:`sender_outputs` needs."""
    kinds = ["attn.hook_z", "hook_attn_out"] + ["hook_mlp_out"] * graph.has_mlps
    layers = [f"blocks.{layer}.{kind}" for layer in range(graph.n_layers) for kind in kinds]
    return ["blocks.0.hook_resid_pre", *layers]


@torch.no_grad()
def sender_outputs(
    model: HookedTransformer, graph: ResidualGraph, seen: Mapping[str, Tensor]
) -> SenderOutputs:
    """What the senders write, of activations at :func:`output_hooks`.

    Raises ConfigError if a layer does more with its heads than add them up.
    """
    stream = seen["blocks.0.hook_resid_pre"]
    outputs, biases = stream.new_empty(len(graph.senders), *stream.shape), []
    outputs[0] = stream
    for nodes, block, layer in zip(
        graph.layers, _blocks(model), range(graph.n_layers), strict=True
    ):
        z, out = (seen[f"blocks.{layer}.{kind}"] for kind in ("attn.hook_z", "hook_attn_out"))
        here = outputs[nodes.heads]
        torch.bmm(z.flatten(0, 1).transpose(0, 1), block.attn.W_O, out=here.flatten(1, 2))
        rest = out - here.sum(0)
        spread = (rest - rest[:1, :1]).abs().max()
        if spread > _rounding(rest) * out.abs().max():
            why = f"layer {layer} does more with its heads than add them up, by {spread:.2g}"
            raise ConfigError(f"{why} (a norm after attention?); residual edges need a plain sum")
        biases.append(rest[0, 0])
        if graph.has_mlps:
            outputs[nodes.mlp_out] = seen[f"blocks.{layer}.hook_mlp_out"]
    return SenderOutputs(outputs, torch.stack(biases))


def read_weights(block: Any, kind: str, n: int) -> tuple[Tensor, Tensor | float]:
    """The n matrices [n, d_model, d_head] and biases of a layer's q, k or v."""
    weight, bias = (getattr(block.attn, f"{name}_{kind.upper()}", None) for name in "Wb")
    once = [None if each is None else each[:: len(each) // n] for each in (weight, bias)]
    return once[0], 0.0 if once[1] is None else once[1]


def reading_norm(model: HookedTransformer, norm: Any) -> Callable[[Tensor], Tensor]:
    """What the stream passes before a block reads it: its LayerNorm, in post models nothing."""
    return norm if layout(model) == "pre" else lambda stream: stream


class _Streams:
    """The stream of every receiver in a forward pass with edges cut, as edits of its hooks."""

    def __init__(
        self,
        model: HookedTransformer,
        graph: ResidualGraph,
        kept: Bool[Tensor, "n receiver sender"],
        reference: SenderOutputs,
    ) -> None:
        self.model, self.graph, self.kept, self.reference = model, graph, kept, reference
        _, n, pos, d = reference.written.shape
        self.value = reference.written.new_zeros(n, kept.shape[1], pos, d)
        self.edits: dict[str, Edit] = {"blocks.0.hook_resid_pre": self._embed}
        for layer, block in enumerate(_blocks(model)):
            at, nodes = f"blocks.{layer}.", graph.layers[layer]
            self.edits |= {
                f"{at}attn.hook_{kind}": self._reads(block, kind, receivers)
                for kind, receivers in zip("qkv", nodes[:3], strict=True)
            }
            self.edits[f"{at}attn.hook_z"] = self._attention(block, layer)
            if graph.has_mlps:
                self.edits[f"{at}hook_mlp_out"] = self._mlp(block, nodes)
        self.edits[f"blocks.{graph.n_layers - 1}.hook_resid_post"] = lambda _: self.value[:, -1]

    def _write(self, own: Tensor, senders: slice, first: int) -> None:
        reference = self.reference.written[senders]
        keeps = self.kept[:, first:, senders].to(own)
        self.value[:, first:] += torch.einsum("nrs,snpd->nrpd", keeps, own - reference)
        self.value[:, first:] += reference.sum(0)[:, None]

    def _norm(self, block: Any, name: str, first: int) -> None:
        if layout(self.model) == "post":
            self.value[:, first:] = getattr(block, name)(self.value[:, first:])

    def _embed(self, stream: Tensor) -> Tensor:
        self._write(stream[None], slice(0, 1), 0)
        return stream

    def _reads(self, block: Any, kind: str, receivers: slice) -> Edit:
        weight, bias = read_weights(block, kind, receivers.stop - receivers.start)
        norm = reading_norm(self.model, block.ln1)

        def edit(_: Tensor) -> Tensor:
            read = norm(self.value[:, receivers])
            return torch.einsum("nhpd,hde->nphe", read, weight) + bias

        return edit

    def _attention(self, block: Any, layer: int) -> Edit:
        nodes = self.graph.layers[layer]
        first = self.graph.first(nodes)

        def edit(z: Tensor) -> Tensor:
            written = torch.einsum("nphe,hed->hnpd", z, block.attn.W_O)
            self._write(written, nodes.heads, first)
            self.value[:, first:] += self.reference.biases[layer]
            self._norm(block, "ln1", first)
            return z

        return edit

    def _mlp(self, block: Any, nodes: Layer) -> Edit:
        norm = reading_norm(self.model, getattr(block, "ln2", block.ln1))
        inside = False  # a bridge's hook fires within its MLP: then it is this call's

        def edit(written: Tensor) -> Tensor:
            nonlocal inside
            if inside:
                return written
            inside, read = True, norm(self.value[:, nodes.mlp_in.start]).contiguous()
            with raising(
                ConfigError, "an MLP of this bridge runs only in its block: ", of=RuntimeError
            ):
                written = block.mlp(read)
            inside = False
            self._write(written[None], nodes.mlp_out, nodes.mlp_in.stop)
            self._norm(block, "ln2", nodes.mlp_in.stop)
            return written

        return edit


def recorded_outputs(model: HookedTransformer, tokens: Inputs) -> SenderOutputs:
    """:func:`sender_outputs` of an unedited run; hooks attached to the model act."""
    graph = ResidualGraph.of(model)
    return sender_outputs(model, graph, activations(model, tokens, output_hooks(graph)))


@torch.no_grad()
def run_kept(
    model: HookedTransformer,
    tokens: Int64[Tensor, "n pos"],
    kept: Bool[Tensor, "circuit receiver sender"],
    pairs: Pairs,
    reference: SenderOutputs,
    score: Callable[[Tensor, Tensor], Tensor],
    *,
    at: Int64[Tensor, " n"] | None = None,
) -> Float[np.ndarray, "circuit pair metric"]:
    """Score every pair of a sequence and a reference with all edges but some cut.

    As :func:`anchor_interp.interventions.edge_ablation.run_ablated`, given what is kept.
    """
    graph = ResidualGraph.of(model)
    sequence, other = (torch.from_numpy(index).to(tokens.device) for index in pairs)
    n = len(sequence)
    size = max(1, _MOST // (kept.shape[1] * reference.written[0, 0].numel()))
    parts = []
    for chunk in torch.split(torch.arange(len(kept) * n), size):
        circuit, pair = (chunk // n).to(kept.device), (chunk % n).to(tokens.device)
        rows = sequence[pair]
        streams = _Streams(model, graph, kept[circuit], reference.rows(other[pair]))
        with hooked(model, streams.edits):
            logits = answer_logits(model, tokens[rows], None if at is None else at[rows])
        parts.append(score(logits.double(), rows).double().cpu())
    return torch.cat(parts).view(len(kept), n, -1).numpy()


@torch.no_grad()
def check_graph(model: HookedTransformer, rows: Int64[Tensor, "n pos"]) -> None:
    """ConfigError if a model is more than its residual graph.

    With every edge the first two sequences keep their logits; without those from the embedding
    they get each other's.
    """
    graph, rows = ResidualGraph.of(model), torch.cat([rows[:1], rows[-1:].roll(1, 1)])
    kept = torch.from_numpy(np.stack([graph.reachable, graph.reachable])).to(rows.device)
    kept[1, :, 0] = False
    own = answer_logits(model, rows, None).double()
    order = np.arange(2), np.array([1, 0])
    reference = recorded_outputs(model, rows)
    found = run_kept(model, rows, kept, order, reference, lambda logits, _: logits)
    off = np.abs(found - torch.stack([own, own.flip(0)]).cpu().numpy()).max()
    if not off <= _rounding(answer_logits(model, rows[:1], None)) * max(float(own.abs().max()), 1):
        why = f"runs with all edges and with none from the embedding miss their logits by {off:.2g}"
        raise ConfigError(f"the model, or a hook attached to it, is more than its graph: {why}")


def _blocks(model: HookedTransformer) -> list[Any]:
    blocks: Any = model.blocks
    return list(blocks)


def _rounding(value: Tensor) -> float:
    """The relative difference that rounding explains; some norms compute in float32."""
    return float(max(torch.finfo(each).eps for each in (value.dtype, torch.float32)) ** 0.5)
