"""Activation and path patching: identities, known mechanisms, independent computations."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from torch import Tensor
from transformer_lens import HookedTransformerConfig, patching

from anchor_interp._util.errors import ConfigError, HookError
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.patching import (
    Direction,
    PatchResult,
    answer_probability,
    logit_difference,
    patch,
    path_patch,
    probability,
)
from anchor_interp.interventions.sites import (
    PLACES,
    Activation,
    Connection,
    Position,
    Site,
    site_grid,
    site_mask,
)
from anchor_interp.models.exact import MECHANISMS, Mechanism, Normalization, exact_model
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer import HookedTransformer, build_model, token_rows
from anchor_interp.tasks.anchor import TASKS
from anchor_interp.tasks.counterfactuals import ContrastPairs, Perturbation, contrast_pairs
from anchor_interp.tasks.sequences import Sequences, draw

TASK = TASKS["complexity-control"]
EVERY: list[Activation] = [
    "resid_pre", "q", "k", "v", "pattern", "z", "attn_out", "resid_mid", "post", "mlp_out",
    "resid_post",
]  # fmt: skip
LAYOUTS: list[Normalization] = ["post", "pre"]
CHANGES: list[Perturbation] = ["key", "first", "second"]


def small(normalization: Normalization) -> HookedTransformer:
    shape = ModelConfig(
        n_layers=2, n_heads=2, d_model=16, d_head=5, d_mlp=12, normalization=normalization,
        d_vocab=120, n_ctx=10, bias=True,
    )  # fmt: skip
    return build_model(shape, InitConfig(gamma=0.2), seed=0, dtype=torch.float64)


@pytest.fixture(params=LAYOUTS)
def model(request: pytest.FixtureRequest) -> HookedTransformer:
    return small(request.param)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def twins(kind: Perturbation = "key", n: int = 12, seed: int = 1, **options: Any) -> ContrastPairs:
    """Pairs whose second anchor stands before the last position."""
    drawn = contrast_pairs(TASK, kind, 3 * n, seed=seed, **options)
    keep = np.flatnonzero(drawn.clean.position < 6)[:n]
    return ContrastPairs(*(rows_of(part, keep) for part in drawn))


def rows_of(sequences: Sequences, keep: Any) -> Sequences:
    columns = ("tokens", "targets", "key", "position", "pair", "role")
    return dataclasses.replace(sequences, **{c: getattr(sequences, c)[keep] for c in columns})


def everywhere(model: HookedTransformer) -> tuple[Site, ...]:
    return site_grid(model, EVERY, positions=("first", "last", "noise", "all"))


# Identities


def test_the_identity_patch_changes_nothing(model: HookedTransformer) -> None:
    clean, _ = twins()
    metric = probability(clean.targets)
    found = patch(model, clean, clean, everywhere(model), metric)
    assert len(found.sites) == 4 * 2 * (6 + 5 * 2)
    np.testing.assert_allclose(found.values, np.broadcast_to(found.clean, found.values.shape))


def test_the_whole_of_the_first_stream_is_everything(model: HookedTransformer) -> None:
    pair = twins()
    site = Site("resid_pre", 0)
    metric = logit_difference(*pair)
    for result, expected in (
        (patch(model, *pair, [site], metric), 1),
        (patch(model, *pair, [site], metric, direction="noise"), 0),
    ):
        np.testing.assert_allclose(result.recovery(1e-9), expected, atol=1e-9)


def test_a_contrast_is_antisymmetric(model: HookedTransformer) -> None:
    """Exchanging clean and corrupted exchanges the directions, and the difference its sign."""
    clean, corrupted = twins("first")
    sites = everywhere(model)
    one = patch(model, clean, corrupted, sites, logit_difference(clean, corrupted))
    other = patch(
        model, corrupted, clean, sites, logit_difference(corrupted, clean), direction="noise"
    )
    np.testing.assert_allclose(one.values, -other.values, atol=1e-12)
    np.testing.assert_allclose(one.clean, -other.corrupted, atol=1e-12)
    np.testing.assert_allclose(one.recovery(1e-9), 1 - other.recovery(1e-9), atol=1e-9)
    connections = [Connection(Site("z", 0, "first")), Connection(Site("mlp_out", 1, "last"))]
    one = path_patch(model, clean, corrupted, connections, logit_difference(clean, corrupted))
    other = path_patch(
        model, corrupted, clean, connections, logit_difference(corrupted, clean), direction="noise"
    )
    np.testing.assert_allclose(one.values, -other.values, atol=1e-12)


@pytest.mark.parametrize(("normalization", "direction"), [("post", "denoise"), ("pre", "noise")])
def test_examples_and_sites_share_passes_without_touching_each_other(
    normalization: Normalization, direction: Direction
) -> None:
    model, pair = small(normalization), twins("second", 5)
    sites = [
        *site_grid(model, ["resid_pre", "mlp_out"], positions=("second", 3)),
        *site_grid(model, ["v"], positions=("key",)),
        Site("pattern", 1, "last", 1),
    ]
    connection = Connection(Site("z", 0, "key"), (Site("v", 1, "key"), Site("q", 1, "last")))
    metric = logit_difference(*pair)
    whole = patch(model, *pair, sites, metric, direction=direction)
    paths = path_patch(model, *pair, [connection], metric, direction=direction)
    for size in (1, 3, 17):
        found = patch(model, *pair, sites, metric, direction=direction, batch_size=size)
        np.testing.assert_allclose(found.values, whole.values, atol=1e-12)
        traced = path_patch(
            model, *pair, [connection], metric, direction=direction, batch_size=size
        )
        np.testing.assert_allclose(traced.values, paths.values, atol=1e-12)
    for i in range(5):
        own = ContrastPairs(*(rows_of(part, [i]) for part in pair))
        alone = patch(model, *own, sites, logit_difference(*own), direction=direction)
        np.testing.assert_allclose(alone.values[:, 0], whole.values[:, i], atol=1e-12)


def test_all_heads_are_the_heads_together(model: HookedTransformer) -> None:
    """To one site by masks: a head's masks are disjoint, and their union is the whole."""
    clean, _ = twins()
    for name in ("q", "k", "v", "z", "pattern"):
        shape = (12, 2, 9, 9) if name == "pattern" else (12, 9, 2, 5)
        one, two = (site_mask(Site(name, 0, "first", head), clean, shape) for head in (0, 1))
        whole = site_mask(Site(name, 0, "first"), clean, shape)
        assert not (one & two).any()
        assert torch.equal(one | two, whole.expand_as(one))


# Where a place is


def test_places_by_meaning() -> None:
    sequences = draw(TASK, TASK.seen, "all", 60, seed=3, stream="places")
    shape = (60, 9, 16)

    def at(position: Position) -> list[list[int]]:
        mask = site_mask(Site("resid_pre", 0, position), sequences, shape)[:, :, 0]
        return [row.nonzero()[:, 0].tolist() for row in mask]

    starts = sequences.position.tolist()
    assert at("key") == [[p] for p in starts]
    assert at("first") == [[p + 1] for p in starts]
    assert at("second") == [[p + 2] for p in starts]
    assert at("last") == at(8) == at(-1) == [[8]] * 60
    assert at("noise") == [[i for i in range(8) if not p <= i <= p + 2] for p in starts]
    assert at("all") == [[*range(9)]] * 60
    assert at(-9) == [[0]] * 60


def test_a_pattern_is_patched_by_row_or_edge() -> None:
    clean, _ = twins(n=3)
    shape = (3, 2, 9, 9)
    row = site_mask(Site("pattern", 0, "last", 1), clean, shape)
    edge = site_mask(Site("pattern", 0, "last", 1, "key"), clean, shape)
    for i, p in enumerate(clean.position.tolist()):
        assert row.expand(shape)[i].nonzero().tolist() == [[1, 8, j] for j in range(9)]
        assert edge.expand(shape)[i].nonzero().tolist() == [[1, 8, p]]


def test_a_pattern_edge_reaches_the_model(model: HookedTransformer) -> None:
    """The edit is made where the mask says, with the donor's value."""
    clean, corrupted = twins(n=4)
    name = "blocks.1.attn.hook_pattern"
    donor, base = (activations(model, s.tokens, [name])[name] for s in (clean, corrupted))
    expected = base.clone()
    rows = torch.arange(4)
    key = torch.from_numpy(clean.position.astype(np.int64))
    expected[rows, 1, 8, key] = donor[rows, 1, 8, key]
    rows_in = token_rows(model, corrupted.tokens)
    logits = model.run_with_hooks(rows_in, fwd_hooks=[(name, lambda *_, **__: expected)])
    site = Site("pattern", 1, "last", 1, "key")
    found = patch(model, clean, corrupted, [site], logit_difference(clean, corrupted))
    expected_values = logit_difference(clean, corrupted)(torch.as_tensor(logits)[:, -1])
    np.testing.assert_allclose(found.values[0], expected_values, atol=1e-12)
    assert not np.allclose(found.values[0], found.corrupted)


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


@pytest.mark.parametrize("name", GENERIC)
def test_transformer_lens_agrees(model: HookedTransformer, name: Activation) -> None:
    clean, corrupted = twins(n=6)
    metric = logit_difference(clean, corrupted)
    _, cache = model.run_with_cache(token_rows(model, clean.tokens))
    theirs = []  # what it returns is rounded to float32

    def measured(logits: Tensor) -> Tensor:
        theirs.append(float(metric(logits[:, -1]).mean()))
        return logits.sum()

    GENERIC[name](model, token_rows(model, corrupted.tokens), cache, measured)
    numbers = tuple(range(9))
    key_positions: tuple[Position, ...] = numbers if name == "pattern" else ("all",)
    sites = site_grid(model, [name], positions=numbers, key_positions=key_positions)
    ours = patch(model, clean, corrupted, sites, metric).values.mean(1)
    if name == "pattern":  # they order layer, head, query, key
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
"""Where the news of a changed token is, layer by layer, by what each model's text says."""


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("normalization", LAYOUTS)
def test_patching_finds_the_known_carriers_and_nothing_else(
    mechanism: Mechanism, normalization: Normalization, kind: Perturbation
) -> None:
    model = exact_model(mechanism, normalization=normalization, dtype=torch.float64)
    pair = twins(kind, 8)
    for direction in ("denoise", "noise"):
        sites = site_grid(model, ["resid_pre", "v", "z"])
        result = patch(model, *pair, sites, logit_difference(*pair), direction=direction)
        assert result.told_apart().all()
        for site, values in zip(sites, result.recovery(), strict=True):
            carries = CARRIERS[mechanism][kind][site.activation][site.layer] == site.position
            expected = carries if direction == "denoise" else not carries
            np.testing.assert_allclose(values, expected, atol=1e-3, err_msg=str(site))


@pytest.mark.parametrize("kind", ["order", "noise"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_negative_controls_have_no_effect(mechanism: Mechanism, kind: Perturbation) -> None:
    """All offsets commute and noise means nothing: whole rows of the model do not move the answer.

    One activation alone is another matter: with the key of order (1, 2) at the first anchor and
    that of (2, 1) at the second, the model sees (1, 1).
    """
    model = exact_model(mechanism, dtype=torch.float64)
    pair = twins(kind, 8)
    with pytest.raises(ConfigError, match="same target in 8 of 8"):
        logit_difference(*pair)
    metric = answer_probability(TASK, pair.clean, "inferential")
    places: tuple[Position, ...] = ("all",) if kind == "order" else (*PLACES, "noise", "all")
    sites = site_grid(model, ["resid_pre", "resid_post"], positions=places)
    result = patch(model, *pair, sites, metric)
    np.testing.assert_allclose(result.values, 1, atol=1e-4)
    with pytest.raises(ConfigError, match=r"at least 0\.1 in only 0 of 8"):
        result.recovery()


# Metrics and results


def test_metrics_are_what_they_are_called() -> None:
    task = TASKS["neurips"]
    clean = draw(task, [(4, 3)], "all", 5, seed=0, stream="metrics")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 120, generator=generator, dtype=torch.float64)
    shares = (logits.exp() / logits.exp().sum(1, keepdim=True)).numpy()
    rows, x = np.arange(5), clean.key.astype(int)
    inferential = answer_probability(task, clean, "inferential")(logits)
    symmetric = answer_probability(task, clean, "symmetric")(logits)
    np.testing.assert_allclose(inferential, shares[rows, x - 10])
    np.testing.assert_allclose(symmetric, shares[rows, x - 6])
    twin = dataclasses.replace(clean, targets=(x - 6).astype(np.uint8))
    difference = logit_difference(clean, twin)(logits)
    picked = logits.numpy()[rows[:, None], np.stack([x - 10, x - 6], 1)]
    np.testing.assert_allclose(difference, picked[:, 0] - picked[:, 1])
    for half in (torch.float16, torch.bfloat16):
        assert probability(clean.targets)(logits.to(half)).dtype == torch.float32


def test_a_pair_without_a_symmetric_answer_has_no_probability_of_it() -> None:
    clean, _ = twins(n=3, pairs=[(1, 2)])
    with pytest.raises(ConfigError, match=r"\(1, 2\) \(inferential\) has no symmetric answer"):
        answer_probability(TASK, clean, "symmetric")


def result_of(values: list[list[float]], clean: list[float], corrupted: list[float]) -> PatchResult:
    arrays = (np.array(x, dtype=np.float64) for x in (values, clean, corrupted))
    return PatchResult((Site("resid_pre", 0),) * len(values), "denoise", *arrays)


def test_a_recovery_is_a_ratio_that_nothing_clamps() -> None:
    result = result_of([[6, 2, -3], [0, 1, 7]], [4, 3, 1], [-4, 1, -1])
    np.testing.assert_allclose(result.recovery(), [[1.25, 0.5, -1], [0.5, 0, 4]])


def test_a_recovery_needs_a_difference() -> None:
    result = result_of([[1, 2, 3]], [1, 2, 0.05], [0, 1, 0])
    np.testing.assert_array_equal(result.told_apart(), [True, True, False])
    np.testing.assert_allclose(result.recovery(), [[1, 1, np.nan]])
    np.testing.assert_allclose(result.recovery(0.01)[0, 2], 60)
    with pytest.raises(ConfigError, match=r"at least 0\.1 in only 1 of 3"):
        result_of([[1, 2, 3]], [1, 2, 0.05], [0, 1.95, 0]).recovery()
    with pytest.raises(ConfigError, match="smallest is 0"):
        result.recovery(0.0)


# Path patching

Known = tuple[Perturbation, Connection, float]


def last(name: Activation, layer: int) -> Site:
    return Site(name, layer, "last")


EMBEDDED = {place: Site("resid_pre", 0, place) for place in PLACES}
PATHS: dict[Mechanism, list[Known]] = {
    "symmetric": [
        ("key", Connection(EMBEDDED["key"], (Site("v", 1, "key"),)), 1),
        ("key", Connection(EMBEDDED["key"], (Site("v", 0, "key"),)), 0),
        ("key", Connection(last("z", 1), (last("post", 1),)), 1),
        ("key", Connection(last("z", 1)), 0),
        ("first", Connection(EMBEDDED["first"], (Site("v", 0, "first"),)), 1),
        ("first", Connection(last("z", 0), (last("post", 0),)), 1),
        ("first", Connection(last("mlp_out", 0), (last("post", 1),)), 1),
        ("first", Connection(last("mlp_out", 0), (last("q", 1),)), 0),
        ("second", Connection(last("mlp_out", 1)), 1),
    ],
    "inferential": [
        ("key", Connection(EMBEDDED["key"], (Site("v", 0, "key"),)), 1),
        ("key", Connection(EMBEDDED["key"], (Site("v", 1, "key"),)), 0),
        ("key", Connection(Site("z", 0, "first"), (Site("post", 0, "first"),)), 1),
        ("key", Connection(Site("z", 0, "first"), (Site("v", 1, "first"),)), 0),
        ("key", Connection(Site("mlp_out", 0, "first"), (Site("v", 1, "first"),)), 1),
        ("key", Connection(Site("mlp_out", 0, "second"), (Site("v", 1, "second"),)), 0),
        ("first", Connection(EMBEDDED["first"], (Site("post", 0, "first"),)), 1),
        ("second", Connection(Site("mlp_out", 0, "second"), (Site("v", 1, "second"),)), 1),
        ("second", Connection(last("z", 1), (last("post", 1),)), 1),
        ("second", Connection(last("z", 1)), 0),
        ("second", Connection(last("mlp_out", 1)), 1),
    ],
    "lookup": [
        ("key", Connection(EMBEDDED["key"], (Site("v", 0, "key"),)), 1),
        ("second", Connection(EMBEDDED["second"], (Site("post", 0, "second"),)), 1),
        ("first", Connection(Site("mlp_out", 0, "second"), (Site("v", 1, "second"),)), 1),
        ("first", Connection(last("z", 1)), 1),
        ("first", Connection(last("z", 1), (last("post", 1),)), 0),
    ],
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("normalization", LAYOUTS)
def test_path_patching_finds_the_known_paths(
    mechanism: Mechanism, normalization: Normalization
) -> None:
    model = exact_model(mechanism, normalization=normalization, dtype=torch.float64)
    for kind in CHANGES:
        known = [entry for entry in PATHS[mechanism] if entry[0] == kind]
        connections = [connection for _, connection, _ in known]
        pair = twins(kind, 6)
        result = path_patch(model, *pair, connections, logit_difference(*pair))
        for (_, connection, expected), values in zip(known, result.recovery(), strict=True):
            np.testing.assert_allclose(values, expected, atol=1e-3, err_msg=str(connection))


def linear_stream() -> HookedTransformer:
    """Attention and MLPs, no LayerNorm."""
    cfg = HookedTransformerConfig(
        n_layers=3, n_heads=2, d_model=12, d_head=4, d_mlp=10, act_fn="relu", d_vocab=120, n_ctx=9,
        normalization_type=None, init_weights=False, device="cpu", dtype=torch.float64,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        model = HookedTransformer(cfg, move_to_device=False)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 3)
    return model.eval()


def test_direct_effects_add_up_where_the_stream_is_linear() -> None:
    model = linear_stream()
    pair = twins("first", 10)
    senders = [
        Site("resid_pre", 0, "last"),
        *site_grid(model, ["z", "mlp_out"], positions=("last",)),
    ]
    connections = [Connection(sender) for sender in senders]
    assert len(connections) == 1 + 3 * 2 + 3
    result = path_patch(model, *pair, connections, logit_difference(*pair))
    direct = result.values - result.corrupted
    np.testing.assert_allclose(direct.sum(0), result.clean - result.corrupted, atol=1e-9)
    assert (np.abs(direct[1:]).max(1) > 1e-3).all()  # a token that does not change sends nothing
    other_way = path_patch(
        model, *pair, connections, logit_difference(*pair), direction="noise"
    )  # direct effects are linear in what is sent
    np.testing.assert_allclose(other_way.values - result.clean, -direct, atol=1e-9)


@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_a_path_by_hand(model: HookedTransformer, part: Any) -> None:
    """The receiver's input, formed from the cache and put in at TransformerLens's split inputs."""
    clean, corrupted = twins("key", 5)
    metric = logit_difference(clean, corrupted)
    rows = token_rows(model, corrupted.tokens)
    _, given = model.run_with_cache(token_rows(model, clean.tokens))
    _, own = model.run_with_cache(rows)
    sender, receiver = 1, 0
    difference = (given["z", 0] - own["z", 0])[:, :, sender] @ model.W_O[0, sender]
    position = torch.from_numpy(clean.position.astype(np.int64)) + 1
    there = torch.arange(9) == position[:, None]
    stream = own["resid_pre", 0] + own["attn_out", 0] + difference * there[:, :, None]
    block: Any = model.blocks[0]
    if model.cfg.normalization_type is None:  # post-LayerNorm
        stream = block.ln2(block.ln1(stream) + own["mlp_out", 0])
    else:
        stream = stream + own["mlp_out", 0]

    def put(value: Tensor, hook: Any) -> Tensor:
        value = value.clone()
        value[:, :, receiver] = torch.where(there[:, :, None], stream, value[:, :, receiver])
        return value

    model.set_use_split_qkv_input(True)
    logits = model.run_with_hooks(rows, fwd_hooks=[(f"blocks.1.hook_{part}_input", put)])
    expected = metric(torch.as_tensor(logits)[:, -1]).numpy()
    model.set_use_split_qkv_input(False)
    connection = Connection(Site("z", 0, "first", sender), (Site(part, 1, "first", receiver),))
    result = path_patch(model, clean, corrupted, [connection], metric)
    np.testing.assert_allclose(result.values[0], expected, atol=1e-10)
    if part != "q":  # the query at the first anchor has no say in the answer at the end
        assert np.abs(result.values[0] - result.corrupted).max() > 1e-6


def test_receivers_of_one_connection_act_together(model: HookedTransformer) -> None:
    """From the embedding to all that reads it is the whole effect, where nothing else reads it."""
    pair = twins("key", 6)
    readers = tuple(Site(name, 0, "key") for name in ("q", "k", "v", "post"))
    first = Site("resid_pre", 0, "key")
    to_layer = Connection(first, readers)
    later = tuple(Site(name, 1, "key") for name in ("q", "k", "v", "post"))
    to_all = Connection(first, (*readers, *later))
    metric = logit_difference(*pair)
    one, both = path_patch(model, *pair, [to_layer, to_all], metric).values
    assert np.abs(one - both).max() > 1e-6
    named = str(to_all)
    assert named.startswith("resid_pre 0 key -> q 0 key, k 0 key")
    assert str(Connection(first)) == "resid_pre 0 key -> logits"


# What happens around it


def test_hooks_are_gone_after_an_exception(model: HookedTransformer) -> None:
    pair = twins(n=4)

    def fails(value: Tensor, hook: Any) -> Tensor:
        raise ZeroDivisionError(hook.name)

    with model.hooks(fwd_hooks=[("blocks.1.hook_mlp_out", fails)]):
        with pytest.raises(ZeroDivisionError):
            patch(model, *pair, [Site("z", 1)], logit_difference(*pair))
        with pytest.raises(ZeroDivisionError):
            path_patch(model, *pair, [Connection(Site("z", 0))], logit_difference(*pair))
    with pytest.raises(ConfigError, match="position 9"):
        patch(model, *pair, [Site("z", 1), Site("z", 1, 9)], logit_difference(*pair))
    assert not any(point.fwd_hooks for point in model.hook_dict.values())


def test_one_example_at_a_position_by_number(model: HookedTransformer) -> None:
    pair = twins(n=1)
    at = int(pair.clean.position[0])
    sites = [Site("resid_pre", 0, "key"), Site("resid_pre", 0, at), Site("resid_pre", 0, at - 9)]
    values = patch(model, *pair, sites, logit_difference(*pair)).values
    np.testing.assert_allclose(values, np.broadcast_to(values[0], (3, 1)), atol=1e-12)


def test_hooks_of_the_user_act_in_every_run_and_stay(model: HookedTransformer) -> None:
    pair = twins(n=6)
    metric = logit_difference(*pair)
    plain = patch(model, *pair, [Site("resid_pre", 1, "key")], metric)

    def ablate(tensor: Tensor, *, hook: Any) -> Tensor:
        return torch.zeros_like(tensor)

    model.add_hook("blocks.0.hook_mlp_out", ablate)
    ablated = patch(model, *pair, [Site("resid_pre", 1, "key")], metric)
    for name in ("values", "clean", "corrupted"):
        assert not np.allclose(getattr(plain, name), getattr(ablated, name))
    assert len(model.hook_dict["blocks.0.hook_mlp_out"].fwd_hooks) == 1
    model.reset_hooks()


def test_a_model_without_a_task_is_patched_by_number(model: HookedTransformer) -> None:
    pair = twins(n=5)
    metric = logit_difference(*pair)
    clean, corrupted = pair.clean.tokens, pair.corrupted.tokens
    sites = [Site("resid_pre", 1, 3), Site("attn_out", 0, "last"), Site("v", 1, "all", 1)]
    named = patch(model, *pair, sites, metric)
    bare = patch(model, clean, corrupted, sites, metric)
    rows = (torch.from_numpy(part.astype(np.int64)) for part in (clean, corrupted))
    tensors = patch(model, next(rows), next(rows), sites, metric)
    assert np.array_equal(named.values, bare.values)
    assert np.array_equal(tensors.values, bare.values)
    with pytest.raises(ConfigError, match="position 'key' needs Sequences"):
        patch(model, clean, corrupted, [Site("z", 0, "key")], metric)


def test_grouped_keys_and_values_have_heads_of_their_own() -> None:
    cfg = HookedTransformerConfig(
        n_layers=1, n_heads=4, n_key_value_heads=2, d_model=16, d_head=4, attn_only=True,
        d_vocab=120, n_ctx=9, normalization_type="LN", seed=0, device="cpu",
    )  # fmt: skip
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        model = HookedTransformer(cfg, move_to_device=False).eval()
    grid = site_grid(model, ["q", "k", "v", "z"], positions=("last",))
    heads = [sum(site.activation == name for site in grid) for name in ("q", "k", "v", "z")]
    assert heads == [4, 2, 2, 4]
    pair = twins(n=3)
    assert patch(model, *pair, grid, logit_difference(*pair)).values.shape == (12, 3)
    with pytest.raises(ConfigError, match="2 heads for k"):
        patch(model, *pair, [Site("k", 0, "last", 2)], logit_difference(*pair))


def test_attention_only_models_are_patched_along_paths() -> None:
    """The unused hook of their MLP's output is there, and named if it is asked for."""
    cfg = HookedTransformerConfig(
        n_layers=2, n_heads=2, d_model=16, d_head=4, attn_only=True, d_vocab=120, n_ctx=9,
        normalization_type=None, seed=0, device="cpu", dtype=torch.float64,
    )  # fmt: skip
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        model = HookedTransformer(cfg, move_to_device=False).eval()
    pair = twins(n=5)
    metric = logit_difference(*pair)
    senders = [Connection(Site("resid_pre", 0)), *[Connection(Site("z", i)) for i in range(2)]]
    found = path_patch(model, *pair, senders, metric)
    # without LayerNorms and MLPs the direct ways add up to all of the difference
    total = (found.values - found.corrupted).sum(0)
    np.testing.assert_allclose(total, found.clean - found.corrupted, atol=1e-9)
    assert np.abs(total).max() > 1e-3
    with pytest.raises(HookError, match="hook_mlp_out never fires: the model has attention only"):
        patch(model, *pair, [Site("mlp_out", 0)], metric)


def test_answers_that_the_model_does_not_have_are_refused() -> None:
    pair = twins(n=4)
    narrow = torch.zeros(4, 25)
    for metric in (
        logit_difference(*pair),
        probability(pair.clean.targets),
        answer_probability(TASK, pair.clean, "inferential"),
    ):
        refused(functools.partial(metric, narrow), "output tokens are 0 to 24")


def refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_what_cannot_be_patched_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    model, pair = small("post"), twins(n=4)
    clean, corrupted = pair
    metric, site = logit_difference(*pair), Site("z", 0)
    moved = dataclasses.replace(corrupted, position=corrupted.position + np.uint8(1))
    anything: Any = None
    refused(lambda: Site("resid_pre", 0, head=0), "resid_pre has no heads")
    refused(lambda: Site("z", 0, key_position="key"), "only a pattern has one")
    refused(lambda: Site("zz", 0), "activation")  # type: ignore[arg-type]
    refused(lambda: Site("z", -1), "layer")
    refused(lambda: Connection(Site("v", 0)), "connection.sender is v 0 all")
    refused(lambda: Connection(site, ()), "connection.receivers is empty")
    refused(lambda: Connection(site, (Site("attn_out", 1),)), "expected q, k, v or post")
    refused(lambda: Connection(Site("z", 1), (Site("v", 0),)), "computed before the sender")
    refused(lambda: patch(model, *pair, [Site("z", 2)], metric), "2 layers")
    refused(lambda: patch(model, *pair, [Site("z", 0, head=2)], metric), "2 heads for z")
    refused(lambda: patch(model, *pair, [Site("z", 0, 9)], metric), "-9 to 8")
    refused(lambda: patch(model, clean, clean.tokens, [site], metric), "of two kinds")
    refused(lambda: patch(model, clean, moved, [site], metric), "elsewhere in 4 of 4")
    refused(
        lambda: patch(model, clean, twins(n=3).corrupted, [site], metric),
        r"shape \(4, 9\) and corrupted \(3, 9\)",
    )
    refused(lambda: patch(model, *pair, [site], metric, batch_size=0), "batch_size is 0")
    refused(lambda: patch(model, *pair, [site], metric, direction=anything), "direction")
    refused(lambda: patch(model, *pair, [site], lambda x: x.sum()), r"returned \(\)")
    refused(lambda: patch(model, *pair, [site], lambda _: 3), "metric returned 3")  # type: ignore[arg-type,return-value]
    refused(lambda: site_grid(model, ["zz"]), "names")  # type: ignore[list-item]
    model.unembed.W_U[:] = np.nan
    refused(lambda: patch(model, *pair, [site], metric), "not finite")
