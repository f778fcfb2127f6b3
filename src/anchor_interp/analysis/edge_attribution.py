"""Edge attribution patching: an estimate of cutting every residual edge, from one backward pass.

The edge from sender u to receiver v carries what u writes to what v reads
(:mod:`anchor_interp.interventions.residual_edges`). With u' what u writes in the corrupted run, to
first order the metric of the clean run changes by

    (u' - u) . gradient of the metric at v's input

if the edge is cut (Syed et al. 2023, section 3; with ``steps`` the gradient is the mean over runs
whose embedding lies between both: EAP-IG, Hanna et al. 2024, section 3). The gradient is taken
where queries, keys and values are computed and pulled back through their weights and LayerNorm. A
post-LayerNorm stream also passes the LayerNorms between u and v: u' - u is multiplied by their
Jacobians, the outputs of other senders held.

With ever more steps the scores of the edges that leave the embedding add up to the whole change of
the metric. Those of no other set do.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked
from anchor_interp.analysis.attribution_patching import gradients, logits_at
from anchor_interp.analysis.circuits import Circuit
from anchor_interp.interventions.hooks import hooked, recording
from anchor_interp.interventions.metrics import Metric, measure
from anchor_interp.interventions.passes import check_differentiable
from anchor_interp.interventions.patching import Twins
from anchor_interp.interventions.residual_edges import (
    ResidualGraph,
    output_hooks,
    read_weights,
    reading_norm,
    sender_outputs,
)
from anchor_interp.models.finite import at_least_float32
from anchor_interp.models.transformer import HookedTransformer, Inputs, layout

_START = "blocks.0.hook_resid_pre"
_NAMED = 3


@dataclass(frozen=True, eq=False, repr=False)
class EdgeAttribution(Readable):
    """The estimated effect of every residual edge."""

    graph: ResidualGraph
    scores: Float[np.ndarray, "receiver sender"]
    """Change of the mean metric if the edge is cut; 0 where there is no edge."""
    steps: int
    clean: float
    """The mean metric of the clean examples."""
    corrupted: float

    def circuit(self, n: int) -> Circuit:
        """The n edges of the largest \\|score\\| that are connected to the logits.

        From the logits on, always the best edge into a node of the circuit, which its sender then
        joins (Hanna et al. 2024, section 3). So a smaller circuit is part of a larger one. Raises
        ConfigError if there are fewer edges.
        """
        checked(n, int, "n", low=1, high=int(self.graph.reachable.sum()))
        edges = self.graph.best(np.abs(self.scores), n)
        return Circuit(edges, self.graph.names, parts="residual edges")

    def _summary(self) -> str:
        n, rows = self.graph.reachable.sum(), [*self._rows()][:_NAMED]
        first = ", ".join(f"{row['score']:.2g} {row['edge']}" for row in rows)
        means = f"metric {self.clean:.2f} clean, {self.corrupted:.2f} corrupted"
        return f"{n} residual edges, steps {self.steps}; {means}\nlargest: {first}"

    def _rows(self) -> Iterator[dict[str, Any]]:
        for index in np.argsort(-np.abs(self.scores), axis=None, kind="stable").tolist():
            read, sent = divmod(index, len(self.graph.senders))
            if self.graph.reachable[read, sent]:
                receiver, sender = self.graph.receivers[read], self.graph.senders[sent]
                row = {"edge": f"{receiver} <- {sender}", "receiver": receiver, "sender": sender}
                yield {**row, "score": float(self.scores[read, sent])}


@torch.inference_mode(False)
def edge_attribution(
    model: HookedTransformer, clean: Inputs, corrupted: Inputs, metric: Metric, *, steps: int = 1
) -> EdgeAttribution:
    """Score every residual edge by the estimated change of the mean metric if it is cut.

    All examples share a forward pass. One step costs a forward pass of the corrupted examples, and
    one of the clean ones with its gradient; each further step a forward pass with its gradient.
    Nothing has to be folded or split in the model.

    Raises:
        ConfigError: as :func:`anchor_interp.interventions.patching.patch`; a metric without a
            gradient, or of which it is 0 in the clean run; or a model in which something else
            reads or writes the residual stream.
    """
    checked(steps, int, "steps", low=1)
    twins = Twins(model, clean, corrupted, metric, "noise")
    check_differentiable(model)
    graph = ResidualGraph.of(model)
    outputs = output_hooks(graph)
    given: dict[str, Tensor] = {}
    with torch.no_grad(), hooked(model, recording(outputs, given)):
        donor = measure(metric, logits_at(model, twins.donors, twins.at))
    hooks = [*dict.fromkeys([*outputs, *_read_hooks(graph)])]
    total = np.zeros(graph.reachable.shape)
    for share in np.arange(steps) / steps:
        base, own, slopes = gradients(twins, hooks, given[_START], float(share), _START)
        if share == 0:
            clean_metric = base
            change = sender_outputs(model, graph, given).written
            change -= sender_outputs(model, graph, own).written
        total += _scores(model, graph, own, slopes, change)
    n = int((~np.isnan(clean_metric)).sum())
    total /= n * steps
    means = [float(np.nanmean(each)) for each in (clean_metric, donor)]
    if np.abs(total).max() < 1e-6 * abs(means[0] - means[1]):
        why = "the metric's gradient is 0 in the clean run, as that of a divergence from it is"
        raise ConfigError(f"{why}; take steps=5 or more")
    return EdgeAttribution(graph, total, steps, *means)


def _read_hooks(graph: ResidualGraph) -> Iterator[str]:
    """Hooks at which :func:`_scores` needs the gradient, besides those of the outputs."""
    kinds = ["hook_resid_pre", *(f"attn.hook_{kind}" for kind in "qkv")]
    kinds += ["hook_resid_mid"] * (graph.has_mlps and not graph.parallel)
    yield from (f"blocks.{layer}.{kind}" for layer in range(graph.n_layers) for kind in kinds)
    yield f"blocks.{graph.n_layers - 1}.hook_resid_post"


@torch.no_grad()
def _scores(
    model: HookedTransformer,
    graph: ResidualGraph,
    own: Mapping[str, Tensor],
    slopes: Mapping[str, Tensor],
    change: Float[Tensor, "sender n pos d_model"],
) -> Float[np.ndarray, "receiver sender"]:
    """Gradients at the receivers' inputs times the change of what reaches them of each sender."""
    scores = np.zeros(graph.reachable.shape)
    change = change.clone() if layout(model) == "post" else change

    def score(receivers: slice, slope: Tensor, n_senders: int) -> None:
        reached = change[:n_senders].flatten(1).mT
        found = at_least_float32(slope).flatten(1) @ at_least_float32(reached)
        scores[receivers, :n_senders] = found.double().cpu().numpy()

    def pass_on(norm: Any, stream: Tensor, n_senders: int) -> None:
        if layout(model) == "post":
            wide = stream.expand_as(change[:n_senders]).contiguous()
            change[:n_senders] = torch.func.jvp(norm, (wide,), (change[:n_senders],))[1]

    blocks: Any = model.blocks
    for nodes, block, layer in zip(graph.layers, blocks, range(graph.n_layers), strict=True):
        at = f"blocks.{layer}."
        stream, slope = own[f"{at}hook_resid_pre"], slopes[f"{at}hook_resid_pre"]
        norm = reading_norm(model, block.ln1)
        read = [
            _pulled(norm, stream, torch.einsum("nphe,hde->hnpd", slopes[f"{at}attn.hook_{kind}"],
                                               read_weights(block, kind, slots.stop - slots.start)[0]))
            for kind, slots in zip("qkv", nodes[:3], strict=True)
        ]  # fmt: skip
        attention = torch.cat(read)
        score(slice(nodes.q.start, nodes.v.stop), attention, nodes.heads.start)
        rest = slope - slopes[f"{at}hook_attn_out"] - attention.sum(0)
        mlp_out = f"{at}hook_mlp_out"
        if graph.parallel and graph.has_mlps:
            mlp_norm = getattr(block, "ln2", block.ln1)
            mlp = _pulled(lambda x: block.mlp(mlp_norm(x)), stream, slopes[mlp_out][None])
            score(nodes.mlp_in, mlp, nodes.heads.start)
            rest = rest - mlp[0]
        _check_rest(rest, slope, layer)
        pass_on(block.ln1, stream + own[f"{at}hook_attn_out"], nodes.heads.stop)
        if graph.has_mlps and not graph.parallel:
            middle = f"{at}hook_resid_mid"
            score(nodes.mlp_in, (slopes[middle] - slopes[mlp_out])[None], nodes.heads.stop)
            pass_on(block.ln2, own[middle] + own[mlp_out], nodes.mlp_out.stop)
    last = slopes[f"blocks.{graph.n_layers - 1}.hook_resid_post"]
    score(slice(len(scores) - 1, None), last[None], len(change))
    return scores


def _pulled(function: Callable[[Tensor], Tensor], x: Tensor, slopes: Tensor) -> Tensor:
    """Gradients at what a function returns, each pulled back to x."""
    with torch.enable_grad():
        start = x.detach().requires_grad_()
        value = function(start)
        each = [torch.autograd.grad(value, start, slope, retain_graph=True)[0] for slope in slopes]
    return torch.stack(each)


def _check_rest(rest: Tensor, slope: Tensor, layer: int) -> None:
    """The gradients at a layer's inputs must explain the change of the gradient across them."""
    off, eps = float(rest.abs().max()), torch.finfo(slope.dtype).eps
    if not off <= max(eps, 1e-7) ** 0.5 * float(slope.abs().max()):
        why = f"something else than its queries, keys, values and MLP reads the stream, by {off:.2g}"
        raise ConfigError(f"in layer {layer} {why}; residual edges do not cover this model")
