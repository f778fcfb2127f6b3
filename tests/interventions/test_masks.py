"""Attention-edge masks: identities, an independent forward pass, and what they hide."""

from collections.abc import Iterator

import jaxtyping
import numpy as np
import pytest
import torch
from jaxtyping import Float
from small_models import FEW_KEYS
from torch import Tensor

from anchor_interp._util.errors import ConfigError, HookError
from anchor_interp.interventions import masks
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.masks import (
    edge,
    leak,
    mask_edges,
    mask_first_anchor,
    mask_key_token,
    mask_second_anchor,
    no_edges,
    token_edges,
)
from anchor_interp.models.exact import MECHANISMS, Mechanism, Normalization, exact_model
from anchor_interp.models.forward import last_logits
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer import HookedTransformer, build_model, token_rows
from anchor_interp.tasks.anchor import TASKS, AnchorTask
from anchor_interp.tasks.sequences import Place, Sequences, draw, places

TASK = TASKS["complexity-control"]


def small(normalization: Normalization, *, seed: int = 0) -> HookedTransformer:
    shape = ModelConfig(
        n_layers=3, n_heads=2, d_model=16, d_head=5, d_mlp=12, normalization=normalization,
        d_vocab=120, n_ctx=10, bias=True,
    )  # fmt: skip
    return build_model(shape, InitConfig(gamma=0.2), seed=seed, dtype=torch.float64)


@pytest.fixture(params=["post", "pre"])
def model(request: pytest.FixtureRequest) -> HookedTransformer:
    return small(request.param)


def drawn(n: int = 24, *, inner: bool = False, task: AnchorTask = TASK) -> Sequences:
    """Sequences of every pair; on request only those with the second anchor before the end."""
    found = draw(task, task.pairs, "all", 4 * n, seed=5, stream="masks")
    keep = np.flatnonzero(found.position < 6 if inner else found.position >= 0)[:n]
    arrays = ("tokens", "targets", "key", "position", "pair", "role")
    return Sequences(**{a: getattr(found, a)[keep] for a in arrays}, provenance={})


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def random_edges(model: HookedTransformer, n: int, share: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (model.cfg.n_layers, n, model.cfg.n_heads, 9, 9)
    return torch.rand(shape, generator=generator) < share


def test_the_empty_mask_changes_nothing(model: HookedTransformer) -> None:
    rows = token_rows(model, drawn().tokens)
    before = model(rows)
    with mask_edges(model, no_edges(model, 9)):
        assert torch.equal(model(rows), before)


def test_masks_of_a_union_are_composed_masks(model: HookedTransformer) -> None:
    rows = token_rows(model, drawn().tokens)
    one, two = (random_edges(model, len(rows), 0.2, seed) for seed in (1, 2))
    for renormalise in (False, True):
        with mask_edges(model, one | two, renormalise=renormalise):
            union = model(rows)
        with (
            mask_edges(model, one, renormalise=renormalise),
            mask_edges(model, two, renormalise=renormalise),
        ):
            torch.testing.assert_close(model(rows), union, atol=1e-12, rtol=1e-12)


def test_a_batch_is_masked_sequence_by_sequence(model: HookedTransformer) -> None:
    sequences = drawn(8, inner=True)
    rows = token_rows(model, sequences.tokens)
    edges = token_edges(model, sequences, "second")
    with mask_edges(model, edges):
        batched = model(rows)
    for i in range(len(rows)):
        with mask_edges(model, edges[:, i : i + 1]):
            single = model(rows[i : i + 1])
        torch.testing.assert_close(batched[i : i + 1], single, atol=1e-12, rtol=1e-12)


def test_one_mask_serves_any_batch(model: HookedTransformer) -> None:
    rows = token_rows(model, drawn(6).tokens)
    edges = random_edges(model, 1, 0.3, 3)
    with mask_edges(model, edges):
        one = model(rows)
    with mask_edges(model, edges.expand(-1, 6, -1, -1, -1)):
        assert torch.equal(model(rows), one)


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("normalization", ["post", "pre"])
def test_an_independent_forward_with_the_mask_inside_agrees(
    normalization: Normalization, renormalise: bool
) -> None:
    model = small(normalization)
    rows = token_rows(model, drawn(7).tokens)
    edges = random_edges(model, len(rows), 0.25, 4)
    with mask_edges(model, edges, renormalise=renormalise):
        found = model(rows)
    expected = by_hand(model, rows, edges, renormalise, post=normalization == "post")
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


def by_hand(
    model: HookedTransformer, rows: Tensor, edges: Tensor, renormalise: bool, *, post: bool
) -> Float[Tensor, "batch pos d_vocab"]:
    """A decoder written from its weights, query by query, with the mask in the attention."""
    p = model.state_dict()

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + model.cfg.eps).sqrt()
        normed: Tensor = centred / scale * p[f"{name}.w"] + p[f"{name}.b"]
        return normed

    x = p["embed.W_E"][rows] + p["pos_embed.W_pos"][: rows.shape[1]]
    for layer in range(model.cfg.n_layers):
        at = f"blocks.{layer}"
        source = x if post else norm(x, f"{at}.ln1")
        update = p[f"{at}.attn.b_O"].expand_as(x).clone()
        for head in range(model.cfg.n_heads):
            q, k, v = (
                source @ p[f"{at}.attn.W_{s}"][head] + p[f"{at}.attn.b_{s}"][head] for s in "QKV"
            )
            for i in range(rows.shape[1]):
                scores = (q[:, i : i + 1] * k[:, : i + 1]).sum(-1) / model.cfg.d_head**0.5
                weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
                kept = weights * ~edges[layer, :, head, i, : i + 1]
                if renormalise:
                    total = kept.sum(-1, keepdim=True)
                    kept = torch.where(total > 0, kept / total, kept)
                z = (kept[..., None] * v[:, : i + 1]).sum(1)
                update[:, i] += z @ p[f"{at}.attn.W_O"][head]
        x = norm(x + update, f"{at}.ln1") if post else x + update
        source = x if post else norm(x, f"{at}.ln2")
        hidden = (source @ p[f"{at}.mlp.W_in"] + p[f"{at}.mlp.b_in"]).relu()
        update = hidden @ p[f"{at}.mlp.W_out"] + p[f"{at}.mlp.b_out"]
        x = norm(x + update, f"{at}.ln2") if post else x + update
    logits: Tensor = (x if post else norm(x, "ln_final")) @ p["unembed.W_U"] + p["unembed.b_U"]
    return logits


def test_a_cache_sees_the_mask_and_gradients_pass_it(model: HookedTransformer) -> None:
    sequences = drawn(5)
    rows = token_rows(model, sequences.tokens)
    edges = token_edges(model, sequences, "key")
    with torch.enable_grad(), mask_key_token(model, sequences):
        answer, cache = model.run_with_cache(rows)
        pattern = cache["blocks.0.attn.hook_pattern"]
        assert not pattern[edges[0]].any()
        torch.autograd.backward(torch.as_tensor(answer).sum())
    # the masked key's row of the embedding has no say but through the softmax's denominator
    gradient = model.embed.W_E.grad
    assert gradient is not None
    assert gradient.isfinite().all()
    assert gradient.any()
    assert torch.equal(
        activations(model, rows, ["blocks.0.attn.hook_pattern"])["blocks.0.attn.hook_pattern"],
        model.run_with_cache(rows)[1]["blocks.0.attn.hook_pattern"],
    )


def test_the_mask_is_gone_after_an_exception(model: HookedTransformer) -> None:
    rows = token_rows(model, drawn(4).tokens)
    before = model(rows)
    edges = edge(model, 9, layer=0, query=8, key=2)
    with pytest.raises(ZeroDivisionError), mask_edges(model, edges):
        print(model(rows).shape[0] / 0)
    with pytest.raises(ConfigError), mask_key_token(model, drawn(3)):
        model(rows)  # of another batch
    assert torch.equal(model(rows), before)
    assert not any(point.fwd_hooks for point in model.hook_dict.values())


def test_other_hooks_stay(model: HookedTransformer) -> None:
    rows = token_rows(model, drawn(4).tokens)
    seen = []
    model.add_hook("blocks.1.hook_resid_pre", lambda _, hook: seen.append(hook.name))
    with mask_edges(model, edge(model, 9, layer=0, query=8, key=2)):
        model(rows)
    model(rows)
    assert len(seen) == 2
    model.reset_hooks()


def test_single_edges(model: HookedTransformer) -> None:
    rows = token_rows(model, drawn(4).tokens)
    name = "blocks.1.attn.hook_pattern"
    before = activations(model, rows, [name])[name]
    with mask_edges(model, edge(model, 9, layer=1, query=5, key=3, head=1)):
        after = activations(model, rows, [name])[name]
    changed = (before != after).nonzero()
    assert {tuple(place) for place in changed[:, 1:].tolist()} == {(1, 5, 3)}
    assert not after[:, 1, 5, 3].any()
    assert edge(model, 9, layer=2, query=5, key=3).sum() == model.cfg.n_heads


HIDDEN: list[Place] = ["key", "first", "second"]


@pytest.mark.parametrize("place", HIDDEN)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("normalization", ["post", "pre"])
def test_a_full_mask_hides_a_token_of_an_exact_model(
    mechanism: Mechanism, normalization: Normalization, place: Place
) -> None:
    model = exact_model(mechanism, normalization=normalization, dtype=torch.float64)
    sequences = drawn(4, inner=True)
    assert leak(model, TASK, sequences, place) < 1e-9
    assert leak(model, TASK, sequences, place, renormalise=True) < 1e-9


@pytest.mark.parametrize("normalization", ["post", "pre"])
def test_the_direct_edges_do_not_hide_a_key_that_moves_first(normalization: Normalization) -> None:
    """Two hops: layer 1 takes the key elsewhere, layer 2 from there to the end."""
    sequences = drawn(12, inner=True, task=FEW_KEYS)
    outcomes: dict[Mechanism, bool] = {"symmetric": True, "inferential": False, "lookup": False}
    for mechanism, hidden in outcomes.items():
        model = exact_model(mechanism, FEW_KEYS, normalization=normalization, dtype=torch.float64)
        left = leak(model, FEW_KEYS, sequences, "key", paths="direct")
        assert (left < 1e-9) == hidden
        assert hidden or left > 0.9


@pytest.mark.parametrize("place", HIDDEN)
def test_a_renormalised_full_mask_hides_a_token_of_any_model(
    model: HookedTransformer, place: Place
) -> None:
    """All 80 keys, all four anchors: the logits are the same to rounding."""
    sequences = drawn(12, inner=True)
    assert leak(model, TASK, sequences, place, renormalise=True) < 1e-12
    assert leak(model, TASK, sequences, place, paths="direct", renormalise=True) > 1e-3


def test_without_renormalising_the_denominator_still_tells(model: HookedTransformer) -> None:
    sequences = drawn(12, inner=True)
    assert leak(model, TASK, sequences, "key") > 1e-6


def test_a_leak_is_the_largest_range_value_by_value(
    model: HookedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = drawn(5, inner=True)
    monkeypatch.setattr(masks, "_BATCH", 12)  # forward passes of two values each, or of one
    rows, at = token_rows(model, sequences.tokens), places(sequences, "second")

    def logits(value: int) -> Tensor:
        varied = rows.clone()
        varied[range(5), at] = value
        return last_logits(model, varied)

    free = torch.stack([logits(value) for value in TASK.tokens])
    with mask_second_anchor(model, sequences, paths="direct"):
        hidden = torch.stack([logits(value) for value in TASK.tokens])
    largest = [(found.amax(0) - found.amin(0)).max() for found in (hidden, free)]
    found = leak(model, TASK, sequences, "second", paths="direct")
    assert found == pytest.approx(float(largest[0] / largest[1]), abs=1e-12)


def test_masking_replaces_the_answer_by_one_that_ignores_the_token() -> None:
    model = exact_model("inferential")
    sequences = drawn(40, inner=True)
    rows = token_rows(model, sequences.tokens)
    targets = torch.from_numpy(sequences.targets.astype(np.int64))
    assert (last_logits(model, rows).argmax(-1) == targets).all()
    for mask in (mask_key_token, mask_first_anchor, mask_second_anchor):
        with mask(model, sequences):
            assert (last_logits(model, rows).argmax(-1) == targets).double().mean() < 0.3


def test_a_token_at_the_last_position_cannot_be_hidden(model: HookedTransformer) -> None:
    sequences = drawn(60)
    assert (places(sequences, "second") == 8).any()
    with pytest.raises(ConfigError, match="last position, 8, whose own residual stream"):
        mask_second_anchor(model, sequences)
    mask_key_token(model, sequences)
    mask_first_anchor(model, sequences)


def test_wrong_masks_are_refused(model: HookedTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    rows = token_rows(model, drawn(4).tokens)
    with pytest.raises(ConfigError, match="expected booleans of shape"):
        mask_edges(model, torch.zeros(3, 1, 2, 9, 9)).__enter__()
    with pytest.raises(ConfigError, match="2 layers, 2 heads and 9 x 9"):
        mask_edges(model, torch.zeros(2, 1, 2, 9, 9, dtype=torch.bool)).__enter__()
    with pytest.raises(ConfigError, match="this forward pass has"), mask_edges(
        model, edge(model, 8, layer=0, query=7, key=2)
    ):  # fmt: skip
        model(rows)
    with pytest.raises(HookError, match="did not fire"), mask_edges(
        model, edge(model, 9, layer=2, query=8, key=2)
    ):  # fmt: skip
        model(rows, stop_at_layer=1)
    for wrong in ({"layer": 3}, {"head": 2}, {"query": 9}, {"key": 6}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            edge(model, 9, **({"layer": 0, "query": 5, "key": 1} | wrong))
    with pytest.raises(ConfigError, match="paths is 'some'"):
        mask_key_token(model, drawn(3), paths="some")  # type: ignore[arg-type]
