"""Attribution patching: exact in a linear model, elsewhere a derivative and its integral."""

from typing import Any

import numpy as np
import pytest
import torch
from small_models import LAYOUTS, random_model
from torch import Tensor
from twins import twins

from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.attribution_patching import attribution_patch, rank_correlation
from anchor_interp.interventions.metrics import logit_difference, rank
from anchor_interp.interventions.patching import Direction, PatchResult, patch
from anchor_interp.interventions.sites import Activation, Site, site_grid
from anchor_interp.models.exact import Normalization

EVERY: list[Activation] = ["resid_pre", "q", "v", "pattern", "z", "resid_mid", "post", "mlp_out"]
DIRECTIONS: list[Direction] = ["denoise", "noise"]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_it_is_exact_where_the_answer_is_linear(direction: Direction) -> None:
    """Nothing but the unembedding follows a post-LayerNorm model's last stream.

    It takes gradients where the caller takes none.
    """
    model, (clean, corrupted) = random_model("post", n_layers=2), twins()
    sites = [Site("resid_post", 1, "last"), Site("resid_post", 1, "key")]
    metric = logit_difference(clean, corrupted)
    with torch.inference_mode():
        estimate = attribution_patch(model, clean, corrupted, sites, metric, direction=direction)
    patched = patch(model, clean, corrupted, sites, metric, direction=direction)
    for name in ("values", "clean", "corrupted"):
        np.testing.assert_allclose(getattr(estimate, name), getattr(patched, name), atol=1e-10)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_the_derivative_along_the_change(layout: Normalization) -> None:
    """By hooks: the metric after a small step of every activation towards the donor's."""
    model, (clean, corrupted) = random_model(layout, n_layers=2), twins("first")
    sites = site_grid(model, EVERY, positions=("first", "last", "all"))
    metric, step = logit_difference(clean, corrupted), 1e-6
    estimate = attribution_patch(model, clean, corrupted, sites, metric)
    rows = [torch.from_numpy(x.tokens.astype(np.int64)) for x in (clean, corrupted)]
    with torch.no_grad():
        _, cache = model.run_with_cache(rows[0])
        for i, site in enumerate(sites):
            if site.position != "all":
                continue
            head = slice(None) if site.head is None else site.head

            def move(activation: Tensor, hook: Any, head: int | slice = head) -> Tensor:
                at = (slice(None), head) if "pattern" in hook.name else (..., head, slice(None))
                activation[at] += step * (cache[hook.name] - activation)[at]
                return activation

            logits = model.run_with_hooks(rows[1], fwd_hooks=[(site.hook, move)])[:, -1]
            slope = (metric(logits).numpy() - estimate.corrupted) / step
            np.testing.assert_allclose(
                estimate.values[i] - estimate.corrupted,
                slope,
                rtol=1e-3,
                atol=1e-4,
                err_msg=str(site),
            )


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_integrated_gradients_reach_the_donor_from_the_embedding(direction: Direction) -> None:
    """The integral of the gradient along the way is the whole difference."""
    model, pair = random_model("post", n_layers=2), twins()
    arguments: Any = (model, *pair, [Site("resid_pre", 0)], logit_difference(*pair))
    off = []
    for steps in (8, 64):
        found = attribution_patch(*arguments, direction=direction, steps=steps)
        donor = found.clean if direction == "denoise" else found.corrupted
        off.append(np.abs(found.values[0] - donor).max())
    assert off[1] < 0.2 * off[0]
    assert off[1] < 0.2 * np.abs(found.clean - found.corrupted).max()
    assert found.completeness == pytest.approx(1, abs=0.2)
    nothing = attribution_patch(model, pair[0], pair[0], *arguments[3:])
    assert nothing.completeness is None  # nothing to recover


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_completeness_is_the_estimate_at_the_embedding_over_the_whole_difference(
    layout: Normalization, direction: Direction
) -> None:
    """By hooks: the metric's slope along the way from one embedding to the other, at its start."""
    model, (clean, corrupted) = random_model(layout, n_layers=2), twins("first")
    metric, step = logit_difference(clean, corrupted), 1e-6
    asked: Any = (model, clean, corrupted, [Site("z", 1)], metric)
    found = attribution_patch(*asked, direction=direction)
    rows = [torch.from_numpy(x.tokens.astype(np.int64)) for x in (clean, corrupted)]
    donor, base = rows if direction == "denoise" else rows[::-1]
    other = model.embed(donor)
    values = []
    with torch.no_grad():
        for share in (step, -step, 1.0, 0.0):
            moved: Any = [("hook_embed", lambda x, share=share, **_: x + share * (other - x))]
            values.append(metric(model.run_with_hooks(base, fwd_hooks=moved)[:, -1]).mean().item())
    slope = (values[0] - values[1]) / (2 * step)
    assert found.completeness == pytest.approx(slope / (values[2] - values[3]), rel=1e-4)
    assert f"completeness {found.completeness:.2f}" in repr(found)
    assert patch(*asked).completeness is None
    assert "completeness" not in repr(patch(*asked))


def test_a_rank_correlation_is_spearmans() -> None:
    """Ranks 1, 3, 4, 2 and 1, 2, 3, 4: 1 - 6 * (0 + 1 + 1 + 4) / (4 * 15)."""
    sites = site_grid(random_model(n_layers=2), ["mlp_out"], positions=("first", "last"))
    one, other = (
        PatchResult(sites, "denoise", np.array([shares] * 3).T, np.ones(3), np.zeros(3))
        for shares in ([0.0, 0.5, 1.0, 0.2], [0.1, 0.4, 0.9, 0.95])
    )
    assert rank_correlation(one, other) == pytest.approx(0.4)


def test_what_has_no_gradient_is_refused() -> None:
    model, (clean, corrupted) = random_model(n_layers=2), twins()
    sites = [Site("z", 0), Site("z", 1)]
    with pytest.raises(ConfigError, match="the metric has no gradient; take logit_difference"):
        attribution_patch(model, clean, corrupted, sites, rank(clean.targets))
    metric = logit_difference(clean, corrupted)
    with pytest.raises(ConfigError, match="steps is 0"):
        attribution_patch(model, clean, corrupted, sites, metric, steps=0)
    one, two = (attribution_patch(model, clean, corrupted, s, metric) for s in (sites, sites[:1]))
    with pytest.raises(ConfigError, match="the two results have other sites"):
        rank_correlation(one, two)
