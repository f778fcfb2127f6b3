"""Path patching: known paths, direct effects that add up, a path from the cache."""

from typing import Any

import numpy as np
import pytest
import torch
from small_models import EACH_EXACT, FEW_KEYS, LAYOUTS, lens_model, random_model, small_exact
from torch import Tensor
from twins import ratios, twins
from versions import only_3

from anchor_interp._util.errors import ConfigError, HookError
from anchor_interp.interventions.metrics import logit_difference
from anchor_interp.interventions.patching import patch, path_patch
from anchor_interp.interventions.sites import (
    PLACES,
    Activation,
    Connection,
    Position,
    Site,
    check_path,
    site_grid,
)
from anchor_interp.models.exact import Mechanism, Normalization
from anchor_interp.models.transformer import token_rows
from anchor_interp.models.transformer_lens import HookedTransformer
from anchor_interp.tasks.counterfactuals import Perturbation
from anchor_interp.tasks.sequences import draw

pytestmark = pytest.mark.usefixtures("no_gradients")
CHANGES: list[Perturbation] = ["key", "first", "second"]


@pytest.fixture(params=LAYOUTS)
def model(request: pytest.FixtureRequest) -> HookedTransformer:
    return random_model(request.param, n_layers=2)


Known = tuple[Perturbation, Connection, float]


def last(name: Activation, layer: int) -> Site:
    return Site(name, layer, "last")


EMBEDDED = {place: Site("resid_pre", 0, place) for place in PLACES}
PATHS: dict[Mechanism, list[Known]] = {
    "symmetric": [
        ("key", Connection(EMBEDDED["key"], (Site("v", 1, "key"),)), 1),
        ("key", Connection(EMBEDDED["key"], (Site("v", 0, "key"),)), 0),
        ("key", Connection(EMBEDDED["key"], (Site("v", 0, "key"), Site("v", 1, "key"))), 1),
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


@EACH_EXACT
def test_path_patching_finds_the_known_paths(
    mechanism: Mechanism, normalization: Normalization
) -> None:
    model = small_exact(mechanism, normalization, torch.float64)
    for kind in CHANGES:
        known = [entry for entry in PATHS[mechanism] if entry[0] == kind]
        connections = [connection for _, connection, _ in known]
        pair = twins(kind, 6)
        result = path_patch(model, *pair, connections, logit_difference(*pair))
        for (_, connection, expected), values in zip(known, ratios(result), strict=True):
            np.testing.assert_allclose(values, expected, atol=1e-3, err_msg=str(connection))


def test_a_connection_stays_at_its_position() -> None:
    apart: tuple[tuple[Position, Position], ...] = (
        ("first", "key"), (3, 8), ("key", "second"), ("first", "last"), ("last", "key"),
        ("noise", "last"), ("noise", "second"),
        ("noise", -1), (-1, "first"),
    )  # fmt: skip
    same: tuple[tuple[Position, Position], ...] = (
        ("first", "first"),
        ("second", "last"),
        (8, -1),
        ("second", -1),
    )
    examples = draw(FEW_KEYS, FEW_KEYS.pairs, "all", 60, seed=0, stream="paths").examples()
    for sent, received in apart:
        receiver = Site("v", 1, received)
        with pytest.raises(ConfigError, match="is at another position than the sender"):
            check_path(Connection(Site("z", 0, sent), (receiver,)), examples)
    for sent, received in (*same, ("all", "key"), ("noise", 0), (3, "key")):
        check_path(Connection(Site("z", 0, sent), (Site("q", 1, received),)), examples)


def test_direct_effects_add_up_in_a_linear_stream() -> None:
    model, pair = lens_model(n_layers=3, normalization_type=None), twins("first", 10)
    senders = [
        Site("resid_pre", 0, "last"),
        *site_grid(model, ["z", "mlp_out"], positions=("last",)),
    ]
    connections = [Connection(sender) for sender in senders]
    assert len(connections) == 1 + 3 * 4 + 3
    result = path_patch(model, *pair, connections, logit_difference(*pair))
    direct = result.values - result.corrupted
    np.testing.assert_allclose(direct.sum(0), result.clean - result.corrupted, atol=1e-9)
    assert (np.abs(direct[1:]).max(1) > 1e-3).all()  # a token that does not change sends nothing
    other_way = path_patch(
        model, *pair, connections, logit_difference(*pair), direction="noise"
    )  # direct effects are linear in what is sent
    np.testing.assert_allclose(other_way.values - result.clean, -direct, atol=1e-9)


@only_3
def test_attention_only_models_are_patched_along_paths() -> None:
    """They have a hook for the MLP's output that never fires."""
    model, pair = lens_model(normalization_type=None, attn_only=True), twins()
    senders = [Connection(Site("resid_pre", 0)), *[Connection(Site("z", i)) for i in range(2)]]
    found = path_patch(model, *pair, senders, logit_difference(*pair))
    total = (found.values - found.corrupted).sum(0)
    np.testing.assert_allclose(total, found.clean - found.corrupted, atol=1e-9)
    with pytest.raises(HookError, match="hook_mlp_out never fires: the model has attention only"):
        patch(model, *pair, [Site("mlp_out", 0)], logit_difference(*pair))


@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_a_path_computed_from_the_cache_agrees(model: HookedTransformer, part: Any) -> None:
    """TransformerLens's split inputs take the receiver's input."""
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
