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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked
from anchor_interp.analysis.attribution_patching import gradients, logits_at
from anchor_interp.analysis.circuits import Circuit
from anchor_interp.analysis.logit_attribution import CENTRED
from anchor_interp.interventions.hooks import hooked, recording
from anchor_interp.interventions.metrics import Metric, measure
from anchor_interp.interventions.patched_passes import check_differentiable
from anchor_interp.interventions.patching import Twins
from anchor_interp.interventions.residual_edges import (
    Layer,
    ResidualGraph,
    output_hooks,
    read_weights,
    sender_outputs,
)
from anchor_interp.models.number_checks import at_least_float32
from anchor_interp.models.transformer import HookedTransformer, Inputs, layout

_START = "blocks.0.hook_resid_pre"
_NAMED = 3
_MORE = "does more than read its stream by queries, keys, values and MLP"
_FOLD = "fold its LayerNorms (bridge.enable_compatibility_mode()), or take ai.path_patch"


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
        """The n edges whose scores are largest in size and that are connected to the logits.

        A smaller circuit is part of a larger one, see :meth:`ResidualGraph.best`. Raises
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

    A step is a forward pass of all clean examples with its gradient; the corrupted ones take one.

    Raises:
        ConfigError: as :func:`anchor_interp.interventions.patching.patch`; a metric without a
            gradient, or of which it is 0 in the clean run; or a model in which something else
            reads or writes the residual stream.
    """
    checked(steps, int, "steps", low=1)
    twins = Twins(model, clean, corrupted, metric, "noise")
    check_differentiable(model)
    dtype = next(model.parameters()).dtype
    if dtype.itemsize < 4:
        raise ConfigError(f"the model is in {dtype}; expected model.to(torch.float32)")
    points, copies = model.hook_dict.items(), ("use_split_qkv_input", "use_attn_in")
    on = [f"cfg.{name}" for name in copies if getattr(model.cfg, name, False)]
    on += [f"a hook on {name}" for name, x in points if "hook_resid" in name and x.has_hooks()]
    if on:
        raise ConfigError(f"{on[0]} is between the stream and its readers; turn it off")
    graph = ResidualGraph.of(model)
    outputs = output_hooks(graph)
    given: dict[str, Tensor] = {}
    with torch.no_grad(), hooked(model, recording(outputs, given)):
        donor = measure(metric, logits_at(model, twins.donors))
    hooks = [*dict.fromkeys([*outputs, *_read_hooks(model, graph)])]
    total = np.zeros(graph.reachable.shape)
    for share in np.arange(steps) / steps:
        base, own, slopes = gradients(twins, hooks, given[_START], float(share), _START)
        if share == 0:
            clean_metric = base
            changed = {hook: given[hook] - own[hook] for hook in outputs}
            change = sender_outputs(model, graph, changed).written
        total += _scores(model, graph, own, slopes, change)
    n = int((~np.isnan(clean_metric)).sum())
    total /= max(n, 1) * steps
    means = [float(np.nanmean(each)) for each in (clean_metric, donor)]
    if not n:
        raise ConfigError("the metric is NaN in every clean example; give examples that have one")
    if np.abs(total).max() < 1e-6 * abs(means[0] - means[1]):
        why = "the metric's gradient is 0 in the clean run, as that of a divergence from it is"
        raise ConfigError(f"{why}; take steps=5 or more")
    return EdgeAttribution(graph, total, steps, *means)


def _read_hooks(model: HookedTransformer, graph: ResidualGraph) -> Iterator[str]:
    """Hooks at which :func:`_scores` needs the gradient, besides those of the outputs."""
    kinds = ["hook_resid_pre", *(f"attn.hook_{kind}" for kind in "qkv")]
    kinds += ["hook_resid_mid"] * (graph.n_mlps and not graph.parallel)
    kinds += ["ln1.hook_scale"] * (model.cfg.normalization_type in CENTRED)
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
        reached = at_least_float32(change[:n_senders]).flatten(1)
        found = reached @ at_least_float32(slope).flatten(1).mT
        scores[receivers, :n_senders] = found.mT.double().cpu().numpy()

    def pass_on(block: Any, norm: str, summed: list[str], n_senders: int) -> None:
        if layout(model) == "post":
            stream = own[summed[0]] + own[summed[1]]
            change[:n_senders] = _through_norm(getattr(block, norm), stream, change[:n_senders])

    blocks: Any = model.blocks
    for nodes, block, layer in zip(graph.layers, blocks, range(graph.n_layers), strict=True):
        at, mlp_out = f"blocks.{layer}.", f"blocks.{layer}.hook_mlp_out"
        slope = slopes[f"{at}hook_resid_pre"]
        attention = _attention(model, nodes, layer, own, slopes)
        score(slice(nodes.q.start, nodes.v.stop), attention, nodes.heads.start)
        rest = slope - slopes[f"{at}hook_attn_out"] - attention.sum(0)
        if graph.n_mlps and graph.parallel:
            mlp = _through_mlp(block, own[f"{at}hook_resid_pre"], slopes[mlp_out])
            score(nodes.mlp_in, mlp[None], nodes.heads.start)
            rest = rest - mlp
        off, eps = rest.abs().max(), max(torch.finfo(slope.dtype).eps, 1e-7)
        if not off <= eps**0.5 * slope.abs().max():
            raise ConfigError(f"layer {layer} {_MORE}: the gradient is off by {off:.2g}; {_FOLD}")
        pass_on(block, "ln1", [f"{at}hook_resid_pre", f"{at}hook_attn_out"], nodes.heads.stop)
        if graph.n_mlps and not graph.parallel:
            middle = f"{at}hook_resid_mid"
            score(nodes.mlp_in, (slopes[middle] - slopes[mlp_out])[None], nodes.heads.stop)
            pass_on(block, "ln2", [middle, mlp_out], nodes.mlp_out.stop)
    last = slopes[f"blocks.{graph.n_layers - 1}.hook_resid_post"]
    score(slice(len(scores) - 1, None), last[None], len(change))
    return scores


def _attention(
    model: HookedTransformer,
    nodes: Layer,
    layer: int,
    own: Mapping[str, Tensor],
    slopes: Mapping[str, Tensor],
) -> Float[Tensor, "receiver n pos d_model"]:
    """Gradients at q, k and v, pulled back through their weights and the LayerNorm before them.

    With gain w, scale s and normalised stream z of d numbers, the Jacobian of a LayerNorm is
    w / s (1 - 1/d - z z / d), that of an RMS norm has no 1/d.
    """
    block: Any = model.blocks[layer]
    at, kind = f"blocks.{layer}.", model.cfg.normalization_type or ""
    stream, normed = own[f"{at}hook_resid_pre"], kind in CENTRED
    if normed:
        stream = stream - stream.mean(-1, keepdim=True) * CENTRED[kind]
        stream = stream / own[f"{at}ln1.hook_scale"]
    pulled = stream.new_empty(nodes.v.stop - nodes.q.start, *stream.shape)
    for name, slots in zip("qkv", nodes[:3], strict=True):
        weight, _ = read_weights(block, name, slots)
        slope = slopes[f"{at}attn.hook_{name}"]
        if normed:
            weight = weight * getattr(block.ln1, "w", weight.new_ones(())).to(weight)[..., None]
            weight = weight - weight.mean(1, keepdim=True) * CENTRED[kind]
            slope = slope / own[f"{at}ln1.hook_scale"][..., None]
        here = pulled[slots.start - nodes.q.start : slots.stop - nodes.q.start]
        torch.bmm(slope.flatten(0, 1).transpose(0, 1), weight.mT, out=here.flatten(1, 2))
        if normed:
            along = (torch.einsum("npd,hde->nphe", stream, weight) * slope).mean(-1)
            along *= slope.shape[-1] / stream.shape[-1]
            here.addcmul_(along.movedim(-1, 0)[..., None], stream, value=-1)
    return pulled


def _through_norm(norm: Any, stream: Tensor, change: Tensor) -> Tensor:
    """What a small change of a stream is after its LayerNorm, whose Jacobian is above."""
    stream = stream - stream.mean(-1, keepdim=True)
    scale = (stream.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt()
    stream, change = stream / scale, change - change.mean(-1, keepdim=True)
    change = (change - stream * (change * stream).mean(-1, keepdim=True)) / scale
    return change * cast(Tensor, norm.w)


def _through_mlp(block: Any, stream: Tensor, slope: Tensor) -> Tensor:
    """The gradient at an MLP's output, pulled back to the stream that it reads."""
    with torch.enable_grad():
        start = stream.requires_grad_()
        written = block.mlp(getattr(block, "ln2", block.ln1)(start))
        return torch.autograd.grad(written, start, slope)[0]
