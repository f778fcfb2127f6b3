"""Instruments on a user's TransformerBridge, against the model that it wraps."""

import functools
import warnings
from typing import Any

import pytest
import torch
from versions import only_4

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError, HookError
from anchor_interp.interventions.hooks import activations, hooked
from anchor_interp.models.matrices import stable_rank

SIZES = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 16,
}  # fmt: skip
TOKENS = torch.arange(5, 41).reshape(4, 9)
ARCHITECTURES = ("GPT2LMHeadModel", "LlamaForCausalLM", "Gemma2ForCausalLM", "GPTNeoXForCausalLM")


@functools.cache
def wrapped(architecture: str) -> tuple[Any, Any]:
    """A tiny random model of transformers, twice: as a bridge, and as it is."""
    import transformers
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    config = {
        "GPT2LMHeadModel": lambda: transformers.GPT2Config(
            vocab_size=60, n_positions=16, n_embd=32, n_layer=2, n_head=4
        ),
        "LlamaForCausalLM": lambda: transformers.LlamaConfig(**SIZES, num_key_value_heads=2),
        "Gemma2ForCausalLM": lambda: transformers.Gemma2Config(
            **SIZES, num_key_value_heads=2, head_dim=8, sliding_window=8
        ),
        "GPTNeoXForCausalLM": lambda: transformers.GPTNeoXConfig(**SIZES),
        "OPTForCausalLM": lambda: transformers.OPTConfig(
            vocab_size=60, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=16, word_embed_proj_dim=32,
        ),
    }[architecture]()  # fmt: skip
    models = []
    for _ in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            models.append(getattr(transformers, architecture)(config).eval())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bridge = build_bridge_from_module(models[0], architecture, hf_config=config)
    return bridge.eval(), models[1]


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "OPTForCausalLM"])
def test_logits_are_those_of_the_wrapped_model(architecture: str) -> None:
    bridge, plain = wrapped(architecture)
    with torch.no_grad():
        expected = plain(TOKENS).logits[:, -1]
    torch.testing.assert_close(ai.last_logits(bridge, TOKENS), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "OPTForCausalLM"])
def test_an_edit_of_resid_mid_reaches_the_skip_connection(architecture: str) -> None:
    bridge, plain = wrapped(architecture)
    with hooked(bridge, {"blocks.1.hook_resid_mid": torch.zeros_like}):
        edited = ai.last_logits(bridge, TOKENS)
    zero = torch.zeros(4, 9, 32)
    with torch.no_grad():
        if architecture == "GPT2LMHeadModel":
            block, final = plain.transformer.h[1], plain.transformer.ln_f
            after = block.mlp(block.ln_2(zero))
        else:
            block, final = plain.model.decoder.layers[1], plain.model.decoder.final_layer_norm
            after = block.fc2(torch.relu(block.fc1(block.final_layer_norm(zero))))
        expected = plain.lm_head(final(after))[:, -1]
    torch.testing.assert_close(edited, expected, atol=1e-5, rtol=1e-5)


def test_an_edit_of_a_pattern_acts_or_is_refused() -> None:
    bridge, plain = wrapped("GPT2LMHeadModel")
    name = "blocks.1.attn.hook_pattern"
    with hooked(bridge, {name: torch.zeros_like}):
        edited = ai.last_logits(bridge, TOKENS)
    block = plain.transformer.h[1]
    silent = block.attn.register_forward_hook(
        lambda module, _, out: (module.c_proj.bias.expand_as(out[0]), *out[1:])
    )
    with torch.no_grad():
        expected = plain(TOKENS).logits[:, -1]
    silent.remove()
    torch.testing.assert_close(edited, expected, atol=1e-5, rtol=1e-5)
    deaf, _ = wrapped("OPTForCausalLM")
    with pytest.raises(HookError, match="hook_pattern"), hooked(deaf, {name: torch.zeros_like}):
        ai.last_logits(deaf, TOKENS)


def test_grouped_values_come_once_a_group() -> None:
    bridge, plain = wrapped("LlamaForCausalLM")
    found = activations(bridge, TOKENS, ["blocks.0.attn.hook_v", "blocks.1.hook_resid_post"])
    layer = plain.model.layers[0]
    with torch.no_grad():
        states = layer.input_layernorm(plain.model.embed_tokens(TOKENS))
        expected = layer.self_attn.v_proj(states).reshape(4, 9, 2, 8)
    torch.testing.assert_close(found["blocks.0.attn.hook_v"], expected, atol=1e-5, rtol=1e-5)


def test_complexity_reads_the_weights_of_the_wrapped_model() -> None:
    bridge, plain = wrapped("LlamaForCausalLM")
    rows = ai.complexity(bridge).to_frame()
    w_in = plain.model.layers[0].mlp.up_proj.weight.detach()
    row = rows[(rows["name"] == "W_in") & (rows["layer"] == 0)]
    assert row["stable_rank"].item() == pytest.approx(stable_rank(w_in), rel=1e-4)


def test_a_bridge_in_training_mode_is_refused() -> None:
    bridge, _ = wrapped("GPT2LMHeadModel")
    bridge.train()
    try:
        with pytest.raises(ConfigError, match=r"training mode; call model\.eval\(\)"):
            ai.complexity(bridge)
    finally:
        bridge.eval()


def test_a_bridge_is_not_saved_under_its_own_names(tmp_path: Any) -> None:
    bridge, _ = wrapped("GPT2LMHeadModel")
    with pytest.raises(ConfigError, match="other names of weights"):
        ai.save_transformer(bridge, tmp_path / "model.safetensors")


@only_4
@pytest.mark.parametrize(
    "name", ["attn.hook_pattern", "attn.hook_z", "hook_resid_mid", "mlp.hook_post"]
)
def test_a_native_bridge_answers_as_a_model_of_equal_weights(name: str) -> None:
    from transformer_lens.model_bridge import TransformerBridge

    sizes = {"n_layers": 2, "d_model": 32, "n_heads": 4, "d_head": 8, "d_mlp": 64, "d_vocab": 60}
    native: Any = TransformerBridge.boot_native(
        {**sizes, "n_ctx": 16, "act_fn": "relu", "normalization_type": "LN", "seed": 0}
    ).eval()
    config = ai.ModelConfig(**sizes, n_ctx=16, act_fn="relu", normalization="pre", bias=True)
    model = ai.build_model(config, ai.InitConfig(gamma=0.5), seed=0)
    missing = model.load_state_dict(_weights_of_native(native.state_dict()), strict=False)
    assert not missing.unexpected_keys
    assert all(key.endswith(("mask", "IGNORE")) for key in missing.missing_keys)
    edit = {f"blocks.1.{name}": torch.tanh}
    with hooked(native, edit):
        edited = ai.last_logits(native, TOKENS)
    with hooked(model, edit):
        expected = ai.last_logits(model, TOKENS)
    torch.testing.assert_close(edited, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(expected, ai.last_logits(model, TOKENS))


def _weights_of_native(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of a native bridge of four heads under HookedTransformer's names."""
    renamed = {
        "embed.W_E": weights["embed.weight"],
        "pos_embed.W_pos": weights["pos_embed.weight"],
        "unembed.W_U": weights["unembed.weight"].T,
        "unembed.b_U": weights["unembed.bias"],
        "ln_final.w": weights["ln_final.weight"],
        "ln_final.b": weights["ln_final.bias"],
    }
    for block in ("blocks.0", "blocks.1"):
        for norm in ("ln1", "ln2"):
            renamed[f"{block}.{norm}.w"] = weights[f"{block}.{norm}.weight"]
            renamed[f"{block}.{norm}.b"] = weights[f"{block}.{norm}.bias"]
        for each in "qkv":
            matrix, bias = (weights[f"{block}.attn.{each}.{kind}"] for kind in ("weight", "bias"))
            renamed[f"{block}.attn.W_{each.upper()}"] = matrix.reshape(4, 8, 32).transpose(1, 2)
            renamed[f"{block}.attn.b_{each.upper()}"] = bias.reshape(4, 8)
        renamed[f"{block}.attn.W_O"] = weights[f"{block}.attn.o.weight"].T.reshape(4, 8, 32)
        renamed[f"{block}.attn.b_O"] = weights[f"{block}.attn.o.bias"]
        for each in ("in", "out"):
            renamed[f"{block}.mlp.W_{each}"] = weights[f"{block}.mlp.{each}.weight"].T
            renamed[f"{block}.mlp.b_{each}"] = weights[f"{block}.mlp.{each}.bias"]
    return renamed
