"""Attention-edge masks: identities, an independent forward pass, and what they hide."""

from typing import Any

import jaxtyping
import pytest
import torch
from decoder import decode
from small_models import EACH_EXACT, FEW_KEYS, LAYOUTS, lens_model, random_model, small_exact
from torch import Tensor
from versions import only_3

from anchor_interp._util.errors import ConfigError, HookError
from anchor_interp.analysis import mask_leakage as leakage
from anchor_interp.analysis.mask_leakage import mask_leakage
from anchor_interp.interventions.hooks import activations, hooked
from anchor_interp.interventions.masks import (
    edge,
    mask_edges,
    mask_position,
    no_edges,
    token_edges,
)
from anchor_interp.models.exact import Mechanism, Normalization
from anchor_interp.models.forward import last_logits
from anchor_interp.models.transformer import HookedTransformer, token_rows
from anchor_interp.tasks.sequences import Place, Sequences, draw, drawn_sequences

pytestmark = pytest.mark.usefixtures("no_gradients")
HIDDEN: list[Place] = ["key", "first", "second"]


@pytest.fixture(params=LAYOUTS)
def model(request: pytest.FixtureRequest) -> HookedTransformer:
    return random_model(request.param)


def inner(n: int) -> Sequences:
    """Sequences whose second anchor is before the last position."""
    return drawn_sequences(FEW_KEYS, lambda s: s.position < 6, n, 5, FEW_KEYS.pairs, "all")


def rows_of(model: HookedTransformer, n: int) -> Tensor:
    return token_rows(model, inner(n).tokens)


def random_edges(model: HookedTransformer, n: int, share: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(no_edges(model, 9, n).shape, generator=generator) < share


def test_the_empty_mask_changes_nothing(model: HookedTransformer) -> None:
    rows = rows_of(model, 12)
    before = model(rows)
    with mask_edges(model, no_edges(model, 9)):
        assert torch.equal(model(rows), before)


def test_nested_masks_act_as_their_union(model: HookedTransformer) -> None:
    rows = rows_of(model, 12)
    one, two = (random_edges(model, len(rows), 0.2, seed) for seed in (1, 2))
    for renormalise in (False, True):
        with mask_edges(model, one | two, renormalise=renormalise):
            union = model(rows)
        with (
            mask_edges(model, one, renormalise=renormalise),
            mask_edges(model, two, renormalise=renormalise),
        ):
            torch.testing.assert_close(model(rows), union, atol=1e-12, rtol=1e-12)


def test_one_mask_serves_any_batch(model: HookedTransformer) -> None:
    rows, edges = rows_of(model, 6), edge(model, 9, layer=1, query=8, key=3)
    assert edges.sum() == model.cfg.n_heads
    with mask_edges(model, edges):
        one = model(rows)
    with mask_edges(model, edges.expand(-1, 6, -1, -1, -1)):
        assert torch.equal(model(rows), one)


@pytest.mark.parametrize("renormalise", [False, True])
def test_an_independent_forward_with_the_mask_inside_agrees(
    model: HookedTransformer, renormalise: bool
) -> None:
    rows = rows_of(model, 7)
    edges = random_edges(model, len(rows), 0.25, 4)

    def masked(layer: int, pattern: Tensor, out: Tensor) -> Tensor:
        kept = pattern * ~edges[layer]
        if renormalise:
            total = kept.sum(-1, keepdim=True)
            kept = torch.where(total > 0, kept / total, kept)
        return kept[..., None] * out[:, :, None]

    with mask_edges(model, edges, renormalise=renormalise):
        found = model(rows)
    torch.testing.assert_close(found, decode(model, rows, masked), atol=1e-10, rtol=0)


def test_a_cache_sees_the_mask_and_gradients_pass_it(model: HookedTransformer) -> None:
    sequences = inner(5)
    rows = token_rows(model, sequences.tokens)
    name = "blocks.0.attn.hook_pattern"
    with torch.enable_grad(), mask_position(model, sequences, "key"):
        answer, cache = model.run_with_cache(rows)
        assert not cache[name][token_edges(model, sequences, "key")[0]].any()
        torch.autograd.backward(torch.as_tensor(answer).sum())
    gradient = model.embed.W_E.grad
    assert gradient is not None
    assert gradient.isfinite().all()
    assert gradient.any()


def test_the_mask_is_gone_after_an_exception_and_other_hooks_stay(model: HookedTransformer) -> None:
    rows, seen = rows_of(model, 4), list[str]()
    before = model(rows)
    model.add_hook("blocks.1.hook_resid_pre", lambda _, hook: seen.append(hook.name))
    with pytest.raises(ConfigError), mask_position(model, inner(3), "key"):
        model(rows)  # a batch of another size
    assert torch.equal(model(rows), before)
    assert len(seen) == 1
    assert sum(len(point.fwd_hooks) for point in model.hook_dict.values()) == 1


@EACH_EXACT
def test_a_full_mask_hides_a_token_from_an_exact_model(
    mechanism: Mechanism, normalization: Normalization
) -> None:
    model = small_exact(mechanism, normalization, torch.float64)
    for place in HIDDEN:
        for renormalise in (False, True):
            assert mask_leakage(model, FEW_KEYS, inner(4), place, renormalise=renormalise) < 1e-9


@EACH_EXACT
def test_the_direct_edges_do_not_hide_a_key_that_moves_first(
    mechanism: Mechanism, normalization: Normalization
) -> None:
    """In two hops, layer 0 takes the key elsewhere and layer 1 takes it from there to the end."""
    model = small_exact(mechanism, normalization, torch.float64)
    left = mask_leakage(model, FEW_KEYS, inner(12), "key", paths="direct")
    assert left < 1e-9 if mechanism == "symmetric" else left > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_renormalised_row_sums_to_1_however_sharp_it_was(dtype: torch.dtype) -> None:
    """What is left beside a large weight is scaled up; where nothing is left, the row is 0."""
    model, sequences = random_model().to(dtype), inner(40)
    for block in model.blocks:
        block.attn.W_Q.data *= 300
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(3)]
    with mask_position(model, sequences, "key", renormalise=True):
        sums = torch.stack([*activations(model, sequences, names).values()]).double().sum(-1)
        last_logits(model, sequences)  # an error if one is not finite
    assert (((sums - 1).abs() < 0.01) | (sums == 0)).all()
    assert (sums == 0).any()


@pytest.mark.parametrize("place", HIDDEN)
def test_only_a_renormalised_full_mask_hides_a_token_from_any_model(
    model: HookedTransformer, place: Place
) -> None:
    """Without renormalising, the denominator of the softmax still depends on the token."""
    sequences = inner(12)
    assert mask_leakage(model, FEW_KEYS, sequences, place, renormalise=True) < 1e-12
    assert mask_leakage(model, FEW_KEYS, sequences, place, paths="direct", renormalise=True) > 1e-3
    assert mask_leakage(model, FEW_KEYS, sequences, place) > 1e-6


@only_3
def test_a_renormalised_mask_hides_a_token_beside_a_sink() -> None:
    """As if the token had no score at all: the sink takes its share of what is left."""
    model, sequences = lens_model(use_attention_sinks=True), inner(12)
    assert mask_leakage(model, FEW_KEYS, sequences, "first", renormalise=True) < 1e-12
    hidden = torch.from_numpy(sequences.tokens == FEW_KEYS.tokens[0])[:, None, None]

    def unscored(scores: Tensor) -> Tensor:
        own = torch.eye(scores.shape[-1], dtype=torch.bool)  # which no mask hides
        return scores.masked_fill(hidden & ~own, -torch.inf)

    names = [f"blocks.{layer}.attn.hook_attn_scores" for layer in range(2)]
    with hooked(model, dict.fromkeys(names, unscored)):
        expected = last_logits(model, sequences)
    with mask_position(model, sequences, hidden[:, 0, 0], renormalise=True):
        torch.testing.assert_close(last_logits(model, sequences), expected)


def test_a_leak_is_the_largest_range_value_by_value(
    model: HookedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = inner(5)
    monkeypatch.setattr(leakage, "_BATCH", 8)  # two sequences with four values each
    rows, at = token_rows(model, sequences.tokens), sequences.positions("second")

    def logits(value: int) -> Tensor:
        varied = rows.clone()
        varied[range(5), at] = value
        return last_logits(model, varied)

    free = torch.stack([logits(value) for value in FEW_KEYS.tokens])
    with mask_position(model, sequences, "second", paths="direct"):
        hidden = torch.stack([logits(value) for value in FEW_KEYS.tokens])
    largest = [(found.amax(0) - found.amin(0)).max() for found in (hidden, free)]
    found = mask_leakage(model, FEW_KEYS, sequences, "second", paths="direct")
    assert found == pytest.approx(float(largest[0] / largest[1]), abs=1e-12)


def test_nothing_leaks_from_a_token_that_only_rounding_tells() -> None:
    """Values that are the same everywhere: the pattern's sum is 1 up to rounding."""
    model = random_model()
    for block in model.blocks:
        block.attn.W_V.data.zero_()
        block.attn.b_V.data.fill_(1)
    with pytest.raises(ConfigError, match="the logits do not depend on the first token"):
        mask_leakage(model, FEW_KEYS, inner(12), "first")


def test_a_token_at_the_last_position_cannot_be_hidden() -> None:
    model = random_model()
    sequences = draw(FEW_KEYS, FEW_KEYS.pairs, "all", 60, seed=5, stream="masks")
    assert (sequences.positions("second") == 8).any()
    said = r"no attention mask hides .* answer is read, in \d+ of 60"
    with pytest.raises(ConfigError, match=said) as caught:
        mask_position(model, sequences, "second")
    remedy = str(caught.value).rpartition("leave these out: ")[2]
    mended = eval(remedy, {"examples": sequences.examples()})
    assert 0 < len(mended) < 60
    mask_position(model, mended, "second")
    mask_position(model, sequences, "key")
    mask_position(model, sequences, "first")


def test_a_leak_leaves_out_tokens_at_the_end_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model = random_model()
    sequences = draw(FEW_KEYS, FEW_KEYS.pairs, "all", 30, seed=5, stream="masks")
    found = mask_leakage(model, FEW_KEYS, sequences, "second")
    at_end = int((sequences.position == 6).sum())
    assert f"left out: the second token of {at_end} of 30 sequences" in caplog.text
    assert found == mask_leakage(model, FEW_KEYS, sequences[sequences.position < 6], "second")
    with pytest.raises(ConfigError, match="no attention mask hides"):
        mask_leakage(model, FEW_KEYS, sequences[sequences.position == 6], "second")


def test_wrong_masks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    model = random_model()
    rows = rows_of(model, 4)
    expected = r"expected a tensor of booleans \(3 layers, batch, 2 heads"
    for wrong in (torch.zeros(3, 1, 2, 9, 9), torch.zeros(3, 1, 2, 9, 8, dtype=torch.bool)):
        with pytest.raises(ConfigError, match=expected), mask_edges(model, wrong):
            pass
    with (
        pytest.raises(ConfigError, match="this forward pass has"),
        mask_edges(model, edge(model, 8, layer=0, query=7, key=2)),
    ):
        model(rows)
    with (
        pytest.raises(HookError, match="did not fire"),
        mask_edges(model, edge(model, 9, layer=2, query=8, key=2)),
    ):
        model(rows, stop_at_layer=1)
    for name, value in {"layer": 3, "head": 2, "query": 9, "key": 6}.items():
        given: dict[str, Any] = {"layer": 0, "query": 5, "key": 1} | {name: value}
        with pytest.raises(ConfigError, match=name):
            edge(model, 9, **given)
    model.cfg.attention_dir = "bidirectional"
    with pytest.raises(ConfigError, match="attention is bidirectional"):
        mask_position(model, inner(3), "key")
    model.cfg.attention_dir = "causal"
    some: Any = "some"
    with pytest.raises(ConfigError, match="paths is 'some'"):
        mask_position(model, inner(3), "key", paths=some)
