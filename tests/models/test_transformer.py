"""The post-LayerNorm layout against an independent decoder; hooks, biases, weights."""

import itertools

import pytest
import torch
from branches import assert_own_branches
from decoder import decode
from small_models import LAYOUTS, with_offsets
from torch import Tensor

from anchor_interp.models.shapes import InitConfig, ModelConfig, Normalization
from anchor_interp.models.transformer import PostLNTransformer, build_model


def random_tokens(n: int) -> Tensor:
    return torch.randint(0, 100, (n, 9), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("n_layers", "n_heads", "bias"), list(itertools.product((1, 2, 3), (1, 2), (False, True)))
)
def test_post_layernorm_agrees_with_an_independent_decoder(
    n_layers: int, n_heads: int, bias: bool
) -> None:
    """The decoder of the NeurIPS paper, equations 4 to 7."""
    shape = ModelConfig(
        n_layers=n_layers, n_heads=n_heads, d_model=20, d_head=12, d_mlp=28, bias=bias
    )
    model = with_offsets(build_model(shape, InitConfig(0.4), seed=0, dtype=torch.float64))
    tokens = random_tokens(4)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), decode(model, tokens), rtol=0, atol=1e-10)


@pytest.mark.parametrize("normalization", LAYOUTS)
def test_hooks_hold_what_the_table_says(normalization: Normalization) -> None:
    shape = ModelConfig(n_layers=3, d_model=20, d_head=12, d_mlp=28, normalization=normalization)
    model = with_offsets(build_model(shape, InitConfig(0.4), seed=0, dtype=torch.float64))
    logits, cache = model.run_with_cache(random_tokens(5))
    torch.testing.assert_close(
        cache["resid_pre", 0], cache["hook_embed"] + cache["hook_pos_embed"], rtol=0, atol=1e-12
    )
    for layer in range(3):
        if layer:
            assert torch.equal(cache["resid_pre", layer], cache["resid_post", layer - 1])
        block = model.blocks[layer]
        mid = cache["resid_pre", layer] + cache["attn_out", layer]
        post = cache["resid_mid", layer] + cache["mlp_out", layer]
        if normalization == "post":
            mid = block.ln1(mid)
            post = block.ln2(post)
        torch.testing.assert_close(cache["resid_mid", layer], mid, rtol=0, atol=1e-12)
        torch.testing.assert_close(cache["resid_post", layer], post, rtol=0, atol=1e-12)
    final = cache["resid_post", 2]
    final = final if normalization == "post" else model.ln_final(final)
    torch.testing.assert_close(model.unembed(final), logits, rtol=0, atol=1e-12)


def test_post_layernorm_has_the_hook_names_of_pre_layernorm() -> None:
    post, pre = (
        build_model(ModelConfig(normalization=layout), InitConfig(), seed=0)
        for layout in ("post", "pre")
    )
    assert isinstance(post, PostLNTransformer)
    missing = set(pre.hook_dict) - set(post.hook_dict)
    assert missing == {"ln_final.hook_scale", "ln_final.hook_normalized"}
    assert not set(post.hook_dict) - set(pre.hook_dict)


@pytest.mark.parametrize("gates", [
    (), ("use_split_qkv_input", "use_attn_result", "use_hook_mlp_in"), ("use_attn_in",),
])  # fmt: skip
@pytest.mark.parametrize("normalization", LAYOUTS)
def test_what_a_hook_holds_has_the_gradient_of_its_own_branch(
    normalization: Normalization, gates: tuple[str, ...]
) -> None:
    shape = ModelConfig(
        n_heads=2, d_model=20, d_head=12, d_mlp=28, normalization=normalization, bias=True
    )
    model = with_offsets(build_model(shape, InitConfig(0.4), seed=0, dtype=torch.float64))
    with torch.no_grad():
        expected = model(random_tokens(3))
        for gate in gates:
            getattr(model, f"set_{gate}")(True)
        torch.testing.assert_close(model(random_tokens(3)), expected, rtol=0, atol=1e-12)
    fired = assert_own_branches(model, random_tokens(3))
    names = {"use_split_qkv_input": ("q_input", "k_input", "v_input"), "use_attn_in": ("attn_in",),
             "use_attn_result": (), "use_hook_mlp_in": ("mlp_in",)}  # fmt: skip
    always = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
    hooks = (*always, *(name for gate in gates for name in names[gate]))
    assert {f"blocks.1.hook_{name}" for name in hooks} < fired


def test_without_biases_no_optimizer_sees_one() -> None:
    model = build_model(ModelConfig(), InitConfig(), seed=0)
    names = [name for name, _ in model.named_parameters()]
    assert not [n for n in names if "attn.b_" in n or "mlp.b_" in n]
    assert "unembed.b_U" in names
    assert torch.equal(model.b_Q, torch.zeros(2, 1, 64))
    assert "blocks.0.mlp.b_in" in model.state_dict()
