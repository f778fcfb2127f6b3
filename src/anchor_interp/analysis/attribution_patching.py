"""Attribution patching: an estimate of patching every site at once, from one backward pass.

Patching a site replaces its activation a in the patched run by the donor's a'. To first order the
metric then changes by (a' - a) times its gradient at a (Nanda 2023; Kramár et al. 2024), so two
forward passes and one backward pass estimate all sites. The estimate fails where the metric is not
nearly linear between a and a': behind saturated softmaxes and LayerNorms, so at early sites.

With ``steps`` the gradient is the mean over runs whose embeddings lie between those of the patched
run and the donor's, at shares 0, 1/steps, ... (integrated gradients; Sundararajan et al. 2017;
Hanna et al. 2024). At the embedding itself this converges to the effect of patching it: the
attributions add up to the whole difference, which ``completeness`` reports. At other sites the way
of the embeddings is not that of the patched activation: more steps can be further from patching
than ``steps=1``, so compare some sites with patching.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.interventions.hooks import Edit, hooked
from anchor_interp.interventions.metrics import Metric, measure
from anchor_interp.interventions.patched_passes import check_differentiable, replaced_run
from anchor_interp.interventions.patching import SMALLEST_DIFFERENCE, Direction, PatchResult, Twins
from anchor_interp.interventions.sites import Site, check_sites
from anchor_interp.models.forward import answer_logits
from anchor_interp.models.inputs import Rows
from anchor_interp.models.replaced_code import is_library_whole
from anchor_interp.models.transformer import (
    HookedTransformer,
    Inputs,
    PostLNTransformer,
    are_hooked,
)
from anchor_interp.models.transformer_lens import is_bridge

_EMBEDDING = "hook_embed"
_AFTER = ("ln_final.", "unembed.")


@torch.inference_mode(False)
def attribution_patch(
    model: HookedTransformer,
    clean: Inputs,
    corrupted: Inputs,
    sites: Sequence[Site],
    metric: Metric,
    *,
    direction: Direction = "denoise",
    steps: int = 1,
) -> PatchResult:
    """Estimate what :func:`anchor_interp.interventions.patching.patch` measures, at all sites.

    All examples share a forward pass. ``steps`` above 1 takes integrated gradients along the
    embedding, with a forward and a backward pass each. Errors as in patching; ConfigError for a
    metric without a gradient.
    """
    checked(steps, int, "steps", low=1)
    twins = Twins(model, clean, corrupted, metric, direction)
    check_differentiable(model)
    sites = check_sites(model, sites)
    hooks, n = [*dict.fromkeys(site.hook for site in sites), _EMBEDDING], len(twins.rows)
    with torch.no_grad():
        logits, given = replaced_run(model, twins.donors, (), record=hooks, batch_size=n)
    donor = measure(metric, logits)
    base, own, slopes = gradients(twins, hooks, given[_EMBEDDING], 0.0)
    for share in np.arange(1, steps) / steps:
        more = gradients(twins, hooks, given[_EMBEDDING], float(share))[2]
        slopes = {hook: slope + more[hook] for hook, slope in slopes.items()}
    changes = {hook: (given[hook] - own[hook]) * slopes[hook] / steps for hook in hooks}
    effects = [(changes[s.hook] * twins.mask(s, changes[s.hook])).flatten(1).sum(1) for s in sites]
    values = base + torch.stack(effects).double().cpu().numpy()
    runs = (donor, base) if direction == "denoise" else (base, donor)
    whole = changes[_EMBEDDING].flatten(1).sum(1).double().cpu().numpy()
    return PatchResult(sites, direction, values, *runs, completeness=_ratio(whole, donor - base))


def _ratio(estimate: np.ndarray, whole: np.ndarray) -> float | None:
    """The ratio of means over the examples that have a metric; None if hardly anything differs."""
    known = ~np.isnan(whole)
    difference = whole[known].mean() if known.any() else 0.0
    if abs(difference) < SMALLEST_DIFFERENCE:
        return None
    return float(estimate[known].mean() / difference)


def rank_correlation(estimate: PatchResult, patched: PatchResult) -> float:
    """Spearman's rank correlation of two results' recoveries over the same sites.

    Recoveries are rounded to 0.01, so that sites without an effect are ties. Raises ConfigError if
    the sites differ or there is nothing to recover.
    """
    from scipy.stats import spearmanr

    if estimate.sites != patched.sites:
        raise ConfigError("the two results have other sites; patch the same ones")
    shares = [result.recovery().round(2) for result in (estimate, patched)]
    return float(spearmanr(*shares).statistic)


def gradients(
    twins: Twins, hooks: Sequence[str], donated: Tensor, share: float, start: str = _EMBEDDING
) -> tuple[np.ndarray, dict[str, Tensor], dict[str, Tensor]]:
    """The metric of the patched run, its activations, and the gradients of the metric's sum there.

    At ``start`` the run is moved by a share of the way to the donated activation. Examples without
    a metric (NaN) have no gradient.
    """
    own: dict[str, Tensor] = {}

    def begin(stream: Tensor) -> Tensor:  # gradients start here: weights may have none
        return keep(start)(stream.detach().lerp(donated, share).requires_grad_())

    def keep(hook: str) -> Edit:
        return lambda activation: own.setdefault(hook, activation)

    edits = {start: begin} | {hook: keep(hook) for hook in hooks if hook != start}
    with torch.enable_grad(), hooked(twins.model, edits):
        logits = logits_at(twins.model, twins.rows)
        value = twins.metric(logits)
        if not value.requires_grad:
            raise ConfigError("the metric has no gradient; take logit_difference or log_prob")
        at = [own[hook] for hook in hooks]
        slopes = torch.autograd.grad(value.nansum(), at, materialize_grads=True)
    measured = measure(twins.metric, logits.detach())
    kept = {hook: own[hook].detach() for hook in hooks}
    return measured, kept, dict(zip(hooks, slopes, strict=True))


def logits_at(model: HookedTransformer, rows: Rows) -> Float[Tensor, "n *k d_vocab"]:
    """Logits where each row is answered, without unembedding the other positions if possible.

    It is not in bridges, with a soft cap of the logits, a hook after the last layer, or a forward
    pass that a user changed.
    """
    after = [point for name, point in model.hook_dict.items() if name.startswith(_AFTER)]
    capped = (getattr(model.cfg, "output_logits_soft_cap", None) or 0) > 0
    own = (HookedTransformer.forward, PostLNTransformer.forward)
    changed = "forward" in vars(model) or type(model).forward not in own
    changed = changed or not is_library_whole() or are_hooked([model])
    if is_bridge(model) or capped or changed or any(point.has_hooks() for point in after):
        return answer_logits(model, rows)
    read, at = rows.through(model, stop_at_layer=model.cfg.n_layers), rows.at
    if at is None:
        read = read[:, -1:]
    else:
        read = read[torch.arange(len(at), device=at.device)[:, None], at.view(len(at), -1)]
    norm: Any = getattr(model, "ln_final", torch.nn.Identity())
    logits = cast(Tensor, model.unembed(norm(read)))
    return logits if at is not None and at.ndim == 2 else logits[:, 0]
