"""The post-LayerNorm layout against an independent decoder; hooks, biases, weights."""

import itertools
import math
import warnings

import pytest
import torch
from branches import assert_own_branches
from small_models import LAYOUTS
from torch import Tensor
from transformer_lens import patching

from anchor_interp.models.shapes import InitConfig, ModelConfig, Normalization
from anchor_interp.models.transformer import HookedTransformer, PostLNTransformer, build_model


def handwritten_decoder(model: HookedTransformer, tokens: Tensor) -> Tensor:
    """The decoder of the NeurIPS paper, equations 4 to 7, with loops over sequences and heads."""
    p: dict[str, Tensor] = {name: value.detach() for name, value in model.state_dict().items()}

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred**2).sum(-1, keepdim=True) / x.shape[-1]
        return centred / torch.sqrt(variance + 1e-5) * p[f"{name}.w"] + p[f"{name}.b"]

    logits = []
    for sequence in tokens:
        x = (
            torch.stack([p["embed.W_E"][t] for t in sequence])
            + p["pos_embed.W_pos"][: len(sequence)]
        )
        for layer in range(model.cfg.n_layers):
            block, update = f"blocks.{layer}", torch.zeros_like(x)
            for head in range(model.cfg.n_heads):
                w = {k: p[f"{block}.attn.W_{k}"][head] for k in "QKVO"}
                b = {k: p[f"{block}.attn.b_{k}"][head] for k in "QKV"}
                q, k, v = (x @ w[name] + b[name] for name in "QKV")
                for i in range(len(sequence)):
                    scores = torch.stack(
                        [q[i] @ k[j] / math.sqrt(q.shape[-1]) for j in range(i + 1)]
                    )
                    weights = torch.exp(scores) / torch.exp(scores).sum()
                    update[i] += (weights[:, None] * v[: i + 1]).sum(0) @ w["O"]
            x = norm(x + update + p[f"{block}.attn.b_O"], f"{block}.ln1")
            hidden = (x @ p[f"{block}.mlp.W_in"] + p[f"{block}.mlp.b_in"]).clamp(min=0)
            x = norm(x + hidden @ p[f"{block}.mlp.W_out"] + p[f"{block}.mlp.b_out"], f"{block}.ln2")
        logits.append(x @ p["unembed.W_U"] + p["unembed.b_U"])
    return torch.stack(logits)


def random_tokens(n: int) -> Tensor:
    return torch.randint(0, 100, (n, 9), generator=torch.Generator().manual_seed(0))


def scrambled(model: HookedTransformer) -> HookedTransformer:
    """Move every parameter away from its initial value, where gains of 1 and biases of 0 hide."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(0.1 * noise)
    return model


@pytest.mark.parametrize(
    ("n_layers", "n_heads", "bias"), list(itertools.product((1, 2, 3), (1, 2), (False, True)))
)
def test_post_layernorm_agrees_with_an_independent_decoder(
    n_layers: int, n_heads: int, bias: bool
) -> None:
    shape = ModelConfig(
        n_layers=n_layers, n_heads=n_heads, d_model=20, d_head=12, d_mlp=28, bias=bias
    )
    model = scrambled(build_model(shape, InitConfig(0.4), seed=0, dtype=torch.float64))
    tokens = random_tokens(4)
    with torch.no_grad():
        difference = (model(tokens) - handwritten_decoder(model, tokens)).abs().max()
    assert float(difference) < 1e-10


@pytest.mark.parametrize("normalization", LAYOUTS)
def test_hooks_hold_what_the_table_says(normalization: Normalization) -> None:
    shape = ModelConfig(n_layers=3, d_model=20, d_head=12, d_mlp=28, normalization=normalization)
    model = scrambled(build_model(shape, InitConfig(0.4), seed=0, dtype=torch.float64))
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


@pytest.mark.parametrize("flag", ["use_split_qkv_input", "use_attn_in", "use_hook_mlp_in"])
def test_gated_hooks_fire_without_effect(flag: str) -> None:
    shape = ModelConfig(n_heads=2, d_model=20, d_head=12, d_mlp=28)
    model = scrambled(build_model(shape, InitConfig(0.4), seed=0, dtype=torch.float64))
    tokens = random_tokens(3)
    expected = model(tokens)
    getattr(model, f"set_{flag}")(True)
    logits, cache = model.run_with_cache(tokens)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
    names = {
        "use_split_qkv_input": ("hook_q_input", "hook_k_input", "hook_v_input"),
        "use_attn_in": ("hook_attn_in",),
        "use_hook_mlp_in": ("hook_mlp_in",),
    }
    for name in names[flag]:
        assert f"blocks.1.{name}" in cache


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
    model = scrambled(build_model(shape, InitConfig(0.4), seed=0, dtype=torch.float64))
    for gate in gates:
        getattr(model, f"set_{gate}")(True)
    fired = assert_own_branches(model, random_tokens(3))
    names = {"use_split_qkv_input": ("q_input", "k_input", "v_input"), "use_attn_in": ("attn_in",),
             "use_attn_result": (), "use_hook_mlp_in": ("mlp_in",)}  # fmt: skip
    always = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
    expected = (*always, *(name for gate in gates for name in names[gate]))
    assert {f"blocks.1.hook_{name}" for name in expected} < fired


@torch.no_grad()
def test_transformer_lens_patching_restores_the_clean_run() -> None:
    model = scrambled(
        build_model(ModelConfig(d_model=20, d_head=12, d_mlp=28), InitConfig(0.4), seed=0)
    )
    clean, place = random_tokens(1), 4
    corrupted = clean.clone()
    corrupted[0, place] = (clean[0, place] + 7) % 80
    clean_logits = model(clean)
    _, cache = model.run_with_cache(clean)

    def metric(logits: Tensor) -> Tensor:
        distance: Tensor = torch.linalg.vector_norm(logits[0, -1] - clean_logits[0, -1])
        return distance

    effects = patching.get_act_patch_resid_pre(model, corrupted, cache, metric)
    assert effects.shape == (2, 9)
    distance = metric(model(corrupted))
    assert float(distance) > 0.1
    first = effects[0]  # before the first block only the changed position differs
    torch.testing.assert_close(first[place], torch.zeros(()), rtol=0, atol=1e-5)
    elsewhere = first[[p for p in range(9) if p != place]]
    torch.testing.assert_close(elsewhere, distance.expand(8), rtol=1e-5, atol=0)


def test_without_biases_no_optimizer_sees_one() -> None:
    model = build_model(ModelConfig(), InitConfig(), seed=0)
    names = [name for name, _ in model.named_parameters()]
    assert not [n for n in names if "attn.b_" in n or "mlp.b_" in n]
    assert "unembed.b_U" in names
    assert torch.equal(model.b_Q, torch.zeros(2, 1, 64))
    assert "blocks.0.mlp.b_in" in model.state_dict()


def test_state_dict_round_trip() -> None:
    first = scrambled(build_model(ModelConfig(), InitConfig(0.5), seed=0))
    second = build_model(ModelConfig(), InitConfig(0.9), seed=1)
    second.load_state_dict(first.state_dict())
    tokens = random_tokens(3)
    assert torch.equal(first(tokens), second(tokens))


def test_building_neither_warns_nor_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = build_model(ModelConfig(), InitConfig(), seed=0)
    assert not model.training
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
