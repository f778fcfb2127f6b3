"""The HookedTransformer that takes the place of the one that TransformerLens 4 lacks."""

import warnings
from typing import Any

import pytest
import torch
from branches import assert_own_branches
from versions import only_3

from anchor_interp._util.errors import ConfigError
from anchor_interp.interventions.hooks import _GATES
from anchor_interp.models import hooked_transformer as hooked
from anchor_interp.models.transformer_lens import HookedTransformer, HookedTransformerConfig

SHAPE: dict[str, Any] = {
    "n_layers": 2, "d_model": 12, "n_heads": 3, "d_head": 5, "d_mlp": 20, "d_vocab": 30,
    "d_vocab_out": 17, "n_ctx": 9, "act_fn": "gelu", "device": "cpu", "dtype": torch.float64,
}  # fmt: skip
GATES = ("use_split_qkv_input", "use_attn_in", "use_attn_result", "use_hook_mlp_in")
TOKENS = torch.arange(28).reshape(4, 7)


def twins(**changes: Any) -> tuple[Any, Any]:
    """TransformerLens's model and ours with the same random weights."""
    settings = SHAPE | changes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TransformerLens 3
        one = HookedTransformer(HookedTransformerConfig(**settings))
    two = hooked.HookedTransformer(hooked.HookedTransformerConfig(**settings))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.normal_(std=0.3, generator=generator)
    two.load_state_dict(one.state_dict())
    return one.eval(), two.eval()


@only_3
@pytest.mark.parametrize("gate", [None, *GATES])
@pytest.mark.parametrize("normalization", ["LN", None])
def test_names_activations_logits_and_gradients_are_equal(
    gate: str | None, normalization: str | None
) -> None:
    changes = {} if gate is None else {gate: True}
    one, two = twins(normalization_type=normalization, **changes)
    assert list(one.state_dict()) == list(two.state_dict())
    assert [name for name, _ in one.named_parameters()] == [
        name for name, _ in two.named_parameters()
    ]
    logits, cache = one.run_with_cache(TOKENS)
    own_logits, own_cache = two.run_with_cache(TOKENS)
    torch.testing.assert_close(own_logits, logits, atol=1e-11, rtol=1e-11)
    assert set(cache) == set(own_cache)
    for name, value in cache.items():
        torch.testing.assert_close(own_cache[name], value, atol=1e-11, rtol=1e-11)
    for model in (one, two):
        model(TOKENS)[:, -1].square().sum().backward()
    for (name, parameter), other in zip(one.named_parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(other.grad, parameter.grad, atol=1e-9, rtol=1e-9, msg=name)


@pytest.mark.parametrize("gate", [None, *GATES])
@pytest.mark.parametrize("normalization", ["LN", None])
def test_what_a_hook_holds_has_the_gradient_of_its_own_branch(
    gate: str | None, normalization: str | None
) -> None:
    changes = {} if gate is None else {gate: True}
    own = hooked.HookedTransformerConfig(**SHAPE, normalization_type=normalization, **changes)
    model = hooked.HookedTransformer(own)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)
    fired = assert_own_branches(model, TOKENS)
    silent = {n for n in model.hook_dict if _GATES.get(n.rpartition(".")[2], gate) != gate}
    assert fired == set(model.hook_dict) - silent


@only_3
def test_stacked_weights_and_stopping_are_equal() -> None:
    one, two = twins()
    for name in ("W_E", "W_pos", "W_U", "b_U", "W_Q", "W_K", "W_V", "W_O", "b_O", "W_in", "W_out"):
        torch.testing.assert_close(getattr(two, name), getattr(one, name))
    few = TOKENS % 17
    torch.testing.assert_close(two(TOKENS, stop_at_layer=1), one(TOKENS, stop_at_layer=1))
    torch.testing.assert_close(two(few, return_type="loss"), one(few, return_type="loss"))


@only_3
def test_an_attention_mask_acts_alike() -> None:
    """Left and right padding, a gap, nothing masked: activations, logits and the loss."""
    mask = torch.tensor(
        [[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [0, 1, 1, 0, 1, 1, 1], [1] * 7]
    )
    one, two = twins()
    for given in (mask, mask.bool()):
        (logits, cache), (own_logits, own_cache) = (
            model.run_with_cache(TOKENS, attention_mask=given) for model in (one, two)
        )
        torch.testing.assert_close(own_logits, logits, atol=1e-11, rtol=1e-11)
        for name, value in cache.items():
            torch.testing.assert_close(own_cache[name], value, atol=1e-11, rtol=1e-11)
    few = TOKENS % 17
    losses = [model(few, return_type="loss", attention_mask=mask) for model in (one, two)]
    torch.testing.assert_close(*losses)


@only_3
def test_decompositions_differ_by_the_sum_of_biases_alone() -> None:
    """TransformerLens 3 sums them in float32, whatever the model's precision."""
    (mine, names), (other, same) = (
        model.run_with_cache(TOKENS)[1].get_full_resid_decomposition(return_labels=True)
        for model in reversed(twins())
    )
    assert list(names) == list(same)
    parts = [i for i, name in enumerate(names) if name != "bias"]
    torch.testing.assert_close(mine[parts], other[parts], atol=1e-11, rtol=0)
    torch.testing.assert_close(mine, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("act_fn", "silu"), ("attn_only", True), ("normalization_type", "RMS"), ("rotary_dim", 4)],
)
def test_other_architectures_are_refused_with_a_remedy(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is .*install transformer-lens<4"):
        hooked.HookedTransformerConfig(**SHAPE | {name: value})
