"""Activation patching: identities, known mechanisms, TransformerLens's own patching."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from small_models import EACH_EXACT, LAYOUTS, lens_model, random_model, small_exact
from torch import Tensor
from transformer_lens import patching
from twins import ratios, subset, twins
from versions import only_3

from anchor_interp._util.errors import ConfigError
from anchor_interp.interventions.metrics import (
    log_prob,
    logit_difference,
    probability,
    rank,
)
from anchor_interp.interventions.patching import Direction, PatchResult, patch, path_patch
from anchor_interp.interventions.sites import (
    PLACES,
    Activation,
    Connection,
    Position,
    Site,
    site_grid,
)
from anchor_interp.models.exact import MECHANISMS, Mechanism, Normalization
from anchor_interp.models.transformer import token_rows
from anchor_interp.models.transformer_lens import HookedTransformer
from anchor_interp.tasks.anchor import TASKS
from anchor_interp.tasks.counterfactuals import ContrastPairs, Perturbation
from anchor_interp.tasks.examples import Examples
from anchor_interp.tasks.sequences import draw

EVERY: list[Activation] = [
    "resid_pre", "q", "k", "v", "pattern", "z", "attn_out", "resid_mid", "post", "mlp_out",
    "resid_post",
]  # fmt: skip
pytestmark = pytest.mark.usefixtures("no_gradients")
CHANGES: list[Perturbation] = ["key", "first", "second"]


@pytest.fixture(params=LAYOUTS)
def model(request: pytest.FixtureRequest) -> HookedTransformer:
    return random_model(request.param, n_layers=2)


def everywhere(model: HookedTransformer) -> tuple[Site, ...]:
    return site_grid(model, EVERY, positions=("first", "last", "noise", "all"))


def refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


# Identities


def test_patching_a_sequence_into_itself_changes_nothing(model: HookedTransformer) -> None:
    clean = twins().clean
    found = patch(model, clean, clean, everywhere(model), probability(clean.targets))
    assert len(found.sites) == 4 * 2 * (6 + 5 * 2)
    np.testing.assert_allclose(found.values, np.broadcast_to(found.clean, found.values.shape))
    refused(found.recovery, "nothing to recover")


@pytest.fixture
def all_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anchor_interp.interventions.patching.SMALLEST_DIFFERENCE", 1e-9)


@pytest.mark.usefixtures("all_told_apart")
def test_patching_the_whole_first_stream_exchanges_the_runs(model: HookedTransformer) -> None:
    pair, site = twins(), Site("resid_pre", 0)
    directions: dict[Direction, int] = {"denoise": 1, "noise": 0}
    for direction, expected in directions.items():
        result = patch(model, *pair, [site], logit_difference(*pair), direction=direction)
        np.testing.assert_allclose(ratios(result), expected, atol=1e-9)


@pytest.mark.usefixtures("all_told_apart")
def test_exchanging_clean_and_corrupted_exchanges_the_directions(model: HookedTransformer) -> None:
    clean, corrupted = twins("first")
    one_way, other_way = logit_difference(clean, corrupted), logit_difference(corrupted, clean)
    sites = everywhere(model)
    one = patch(model, clean, corrupted, sites, one_way)
    other = patch(model, corrupted, clean, sites, other_way, direction="noise")
    np.testing.assert_allclose(one.values, -other.values, atol=1e-12)
    np.testing.assert_allclose(one.clean, -other.corrupted, atol=1e-12)
    np.testing.assert_allclose(ratios(one), 1 - ratios(other), atol=1e-9)
    connections = [Connection(Site("z", 0, "first")), Connection(Site("mlp_out", 1, "last"))]
    one = path_patch(model, clean, corrupted, connections, one_way)
    other = path_patch(model, corrupted, clean, connections, other_way, direction="noise")
    np.testing.assert_allclose(one.values, -other.values, atol=1e-12)


@pytest.mark.parametrize(("normalization", "direction"), [("post", "denoise"), ("pre", "noise")])
def test_examples_and_sites_share_passes_without_touching_each_other(
    normalization: Normalization, direction: Direction
) -> None:
    model, pair = random_model(normalization, n_layers=2), twins("second", 4)
    sites = [
        *site_grid(model, ["resid_pre", "v"], positions=("second", 3)),
        Site("pattern", 1, "last", 1),
    ]
    connection = Connection(Site("z", 0, "key"), (Site("v", 1, "key"), Site("q", 1, "key")))
    run = functools.partial(patch, model, direction=direction)
    trace = functools.partial(path_patch, model, direction=direction)
    metric = logit_difference(*pair)
    whole, paths = run(*pair, sites, metric), trace(*pair, [connection], metric)
    for size in (3, 9):
        found = run(*pair, sites, metric, batch_size=size)
        np.testing.assert_allclose(found.values, whole.values, atol=1e-12)
        traced = trace(*pair, [connection], metric, batch_size=size)
        np.testing.assert_allclose(traced.values, paths.values, atol=1e-12)
    for i in range(4):
        own = ContrastPairs(*(subset(part, [i]) for part in pair))
        alone = run(*own, sites, logit_difference(*own))
        np.testing.assert_allclose(alone.values[:, 0], whole.values[:, i], atol=1e-12)


# TransformerLens's own patching

GENERIC: dict[Activation, Callable[..., Tensor]] = {
    "resid_pre": patching.get_act_patch_resid_pre,
    "resid_mid": patching.get_act_patch_resid_mid,
    "attn_out": patching.get_act_patch_attn_out,
    "mlp_out": patching.get_act_patch_mlp_out,
    "q": patching.get_act_patch_attn_head_q_by_pos,
    "k": patching.get_act_patch_attn_head_k_by_pos,
    "v": patching.get_act_patch_attn_head_v_by_pos,
    "z": patching.get_act_patch_attn_head_out_by_pos,
    "pattern": patching.get_act_patch_attn_head_pattern_dest_src_pos,
}


@pytest.mark.parametrize(
    ("name", "layout"), [*zip(GENERIC, itertools.cycle(LAYOUTS), strict=False)]
)
def test_transformer_lens_agrees(name: Activation, layout: Normalization) -> None:
    model, (clean, corrupted) = random_model(layout, n_layers=2), twins(n=3)
    metric = logit_difference(clean, corrupted)
    _, cache = model.run_with_cache(token_rows(model, clean.tokens))
    theirs = []  # what it returns is rounded to float32

    def measured(logits: Tensor) -> Tensor:
        theirs.append(float(metric(logits[:, -1]).mean()))
        return logits.sum()

    GENERIC[name](model, token_rows(model, corrupted.tokens), cache, measured)
    numbers = tuple(range(9))
    sites = site_grid(model, [name], positions=numbers)
    if name == "pattern":
        edges = itertools.product(sites, numbers)
        sites = tuple(dataclasses.replace(site, key_position=key) for site, key in edges)
    ours = patch(model, clean, corrupted, sites, metric).values.mean(1)
    if name == "pattern":  # theirs have the order layer, head, query, key
        ours = ours.reshape(2, 9, 2, 9).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(ours.ravel(), theirs, atol=1e-10, rtol=0)
    assert np.ptp(ours) > 1e-3


# Models whose mechanism is known

CARRIERS: dict[Mechanism, dict[Perturbation, dict[Activation, tuple[str, ...]]]] = {
    "symmetric": {
        "key": {"resid_pre": ("key", "key"), "v": ("", "key"), "z": ("", "last")},
        "first": {"resid_pre": ("first", "last"), "v": ("first", ""), "z": ("last", "")},
        "second": {"resid_pre": ("second", "last"), "v": ("second", ""), "z": ("last", "")},
    },
    "inferential": {
        "key": {"resid_pre": ("key", "first"), "v": ("key", "first"), "z": ("first", "last")},
        "first": {"resid_pre": ("first", "first"), "v": ("", "first"), "z": ("", "last")},
        "second": {"resid_pre": ("second", "second"), "v": ("", "second"), "z": ("", "last")},
    },
    "lookup": {
        "key": {"resid_pre": ("key", "second"), "v": ("key", "second"), "z": ("second", "last")},
        "first": {
            "resid_pre": ("first", "second"), "v": ("first", "second"), "z": ("second", "last"),
        },
        "second": {"resid_pre": ("second", "second"), "v": ("", "second"), "z": ("", "last")},
    },
}  # fmt: skip
"""The place that holds a changed token's information in each layer, from each model's text."""


@pytest.mark.parametrize("kind", CHANGES)
@EACH_EXACT
def test_patching_finds_the_known_carriers_and_nothing_else(
    mechanism: Mechanism, normalization: Normalization, kind: Perturbation
) -> None:
    model, pair = small_exact(mechanism, normalization, torch.float64), twins(kind, 6)
    sites = site_grid(model, ["resid_pre", "v", "z"])
    for direction in ("denoise", "noise"):
        result = patch(model, *pair, sites, logit_difference(*pair), direction=direction)
        assert result.told_apart().all()
        for site, values in zip(sites, ratios(result), strict=True):
            carries = CARRIERS[mechanism][kind][site.activation][site.layer] == site.position
            expected = carries if direction == "denoise" else not carries
            np.testing.assert_allclose(values, expected, atol=1e-3, err_msg=str(site))


@pytest.mark.parametrize("kind", ["order", "noise"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_negative_controls_have_no_effect(mechanism: Mechanism, kind: Perturbation) -> None:
    """All offsets commute and noise means nothing, so whole streams do not move the answer.

    A single place can: with the key of order (1, 2) at the first anchor and that of (2, 1) at the
    second, the model sees (1, 1).
    """
    model, pair = small_exact(mechanism, "post", torch.float64), twins(kind, 8)
    refused(lambda: logit_difference(*pair), "the same in all 8")
    metric = probability(pair.clean)
    places: tuple[Position, ...] = ("all",) if kind == "order" else (*PLACES, "noise", "all")
    sites = site_grid(model, ["resid_pre", "resid_post"], positions=places)
    result = patch(model, *pair, sites, metric)
    np.testing.assert_allclose(result.values, 1, atol=1e-4)
    refused(result.recovery, "nothing to recover: the metric is on average 1.00 in clean and 1.00")


# Metrics and results


def test_the_metrics_follow_from_the_logits() -> None:
    task = TASKS["neurips"]
    clean = draw(task, [(4, 3)], "all", 5, seed=0, stream="metrics")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 120, generator=generator, dtype=torch.float64)
    shares = (logits.exp() / logits.exp().sum(1, keepdim=True)).numpy()
    rows, x = np.arange(5), clean.key.astype(int)
    np.testing.assert_allclose(probability(clean)(logits), shares[rows, x - 10])
    np.testing.assert_allclose(probability(x - 6)(logits), shares[rows, x - 6])
    log = log_prob(clean)(logits)
    np.testing.assert_allclose(log, np.log(shares[rows, clean.targets]))
    ahead = (logits.numpy() > logits.numpy()[rows, clean.targets][:, None]).sum(1)
    assert rank(clean)(logits).tolist() == (-ahead).tolist()
    twin = dataclasses.replace(clean, targets=(x - 6).astype(np.uint8))
    difference = logit_difference(clean, twin)(logits)
    picked = logits.numpy()[rows[:, None], np.stack([x - 10, x - 6], 1)]
    np.testing.assert_allclose(difference, picked[:, 0] - picked[:, 1])
    both = Examples(clean.tokens, clean.targets, twin.targets)
    for same in (logit_difference(both), logit_difference(x - 10, torch.from_numpy(x - 6))):
        assert torch.equal(same(logits), difference)
    for half in (torch.float16, torch.bfloat16):
        assert probability(clean.targets)(logits.to(half)).dtype == torch.float32


def result_of(values: list[list[float]], clean: list[float], corrupted: list[float]) -> PatchResult:
    each, one, other = (np.array(x, dtype=np.float64) for x in (values, clean, corrupted))
    return PatchResult((Site("resid_pre", 0),) * len(values), "denoise", each, one, other)


def test_the_recovery_follows_from_the_metric_and_is_not_clamped() -> None:
    result = result_of([[6, 2, -3], [0, 1, 7]], [4, 3, 1], [-4, 1, -1])
    np.testing.assert_allclose(result.recovery(), [(5 + 4) / (8 + 4), (8 + 4) / (8 + 4)])
    table = result.to_frame()
    np.testing.assert_allclose(table["recovery"], [0.75, 1])


def test_a_recovery_needs_a_difference() -> None:
    result = result_of([[1, 2, 3]], [1, 2, 0.05], [0, 1, 0])
    np.testing.assert_array_equal(result.told_apart(), [True, True, False])
    worse = result_of([[1, 2, 3]], [0.47] * 3, [0.57] * 3)
    refused(worse.recovery, "nothing to recover: the metric is on average 0.47 in clean and 0.57")
    assert "nothing to recover" in repr(worse)
    assert worse.to_frame()["recovery"].isna().all()


def test_an_interval_is_that_of_the_mean() -> None:
    """With clean 1 and corrupted 0 a recovery is a mean, whose standard error is known."""
    values = np.random.default_rng(0).normal(0.5, 0.2, 400)
    result = result_of([values.tolist(), [0.3] * 400], [1.0] * 400, [0.0] * 400)
    (low, constant), (high, same) = result.interval()
    error = values.std() / 20
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.3 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.3 * error)
    assert constant == pytest.approx(0.3) == same
    assert (result.interval() == result.interval(seed=0)).all()
    assert (result.interval() != result.interval(seed=1))[:, 0].all()


# Hooks, other models, bad input


def test_hooks_of_the_user_act_in_every_run_and_stay(model: HookedTransformer) -> None:
    pair, sites = twins(n=6), [Site("resid_pre", 1, "key")]
    plain = patch(model, *pair, sites, logit_difference(*pair))

    def ablate(tensor: Tensor, *, hook: Any) -> Tensor:
        return torch.zeros_like(tensor)

    model.add_hook("blocks.0.hook_mlp_out", ablate)
    ablated = patch(model, *pair, sites, logit_difference(*pair))
    for name in ("values", "clean", "corrupted"):
        assert not np.allclose(getattr(plain, name), getattr(ablated, name))
    assert len(model.hook_dict["blocks.0.hook_mlp_out"].fwd_hooks) == 1


@only_3
def test_grouped_heads_of_keys_and_values() -> None:
    model = lens_model(n_layers=1, n_key_value_heads=2, attn_only=True)
    grid = site_grid(model, ["q", "k", "v", "z"], positions=("last",))
    heads = [sum(site.activation == name for site in grid) for name in ("q", "k", "v", "z")]
    assert heads == [4, 2, 2, 4]
    pair = twins(n=3)
    assert patch(model, *pair, grid, logit_difference(*pair)).values.shape == (12, 3)
    with pytest.raises(ConfigError, match="2 heads for k"):
        patch(model, *pair, [Site("k", 0, "last", 2)], logit_difference(*pair))
    model.set_ungroup_grouped_query_attention(True)  # then every head has its own values
    grid = site_grid(model, ["k", "v"], positions=("last",))
    assert [site.head for site in grid] == [0, 1, 2, 3] * 2
    result = patch(model, *pair, grid, logit_difference(*pair))
    clean, corrupted = (torch.from_numpy(each.tokens.astype(np.int64)) for each in pair)
    _, cache = model.run_with_cache(clean)
    for site, values in zip(grid, result.values, strict=True):

        def put(activation: torch.Tensor, hook: Any, head: Any = site.head) -> torch.Tensor:
            activation[:, -1, head] = cache[hook.name][:, -1, head]
            return activation

        expected = model.run_with_hooks(corrupted, fwd_hooks=[(site.hook, put)])[:, -1]
        np.testing.assert_allclose(values, logit_difference(*pair)(expected).detach(), atol=1e-5)


@pytest.mark.usefixtures("all_told_apart")
def test_an_example_with_one_target_is_left_out_of_the_panel() -> None:
    model, (clean, corrupted) = random_model(), twins(n=6)
    same = dataclasses.replace(
        corrupted, targets=np.where(np.arange(6) == 2, clean.targets, corrupted.targets)
    )
    sites = [Site("resid_pre", 1, "first"), Site("resid_pre", 0)]
    whole = patch(model, clean, corrupted, sites, logit_difference(clean, corrupted))
    found = patch(model, clean, same, sites, logit_difference(clean, same))
    kept = np.arange(6) != 2
    np.testing.assert_array_equal(found.values[:, kept], whole.values[:, kept])
    assert np.isnan(found.values[:, 2]).all()
    assert found.told_apart().tolist() == kept.tolist()


def test_bad_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    model, pair = random_model(), twins(n=4)
    clean, corrupted = pair
    metric, sites = logit_difference(*pair), [Site("z", 0)]
    moved = dataclasses.replace(corrupted, position=corrupted.position + np.uint8(1))
    fewer = twins(n=3).corrupted
    nothing: Any = None
    number: Any = len
    refused(lambda: patch(model, *pair, [Site("z", 3)], metric), "3 layers")
    refused(lambda: patch(model, clean, moved, sites, metric), "elsewhere in 4 of 4")
    paths = [Connection(sites[0])]
    logit: Any = "logit"
    refused(lambda: path_patch(model, *pair, paths, logit), "metric is 'logit'; expected a Call")
    narrow = torch.zeros(4, 20)
    for each in (metric, probability(clean)):
        refused(functools.partial(each, narrow), "output tokens are 0 to 19")
    refused(lambda: patch(model, clean, fewer, sites, metric), r"\(4, 9\) and corrupted \(3, 9\)")
    refused(lambda: patch(model, *pair, sites, metric, batch_size=0), "batch_size is 0")
    refused(lambda: patch(model, *pair, sites, metric, direction=nothing), "direction")
    refused(lambda: patch(model, *pair, sites, lambda x: x.sum()), r"returned \(\)")
    refused(lambda: patch(model, *pair, sites, number), "metric returned 4")
    habits: list[Any] = [lambda x: x[:, -1], lambda x: x[:, -1, 3], lambda x: x[..., -1, :]]
    for habit in habits:  # of [batch, pos, d_vocab]
        refused(
            functools.partial(patch, model, *pair, sites, habit),
            r"reads the last token of the vocabulary.*where each example is answered, \(4, 120\)",
        )
    refused(lambda: patch(model, *pair, sites, lambda x: x[:, 0, 0]), r"too many.*\(4, 120\)")
    refused(lambda: patch(model, *pair, sites, lambda x: x[:, 0] * torch.nan), "is NaN in all 4")
    refused(lambda: logit_difference(pair.clean), "have no wrong; give Examples")
