"""Instruments on a user's TransformerBridge, against the model that it wraps."""

import functools
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_modules import hooked_weights
from versions import only_4

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError, HookError
from anchor_interp.analysis.logit_attribution import logit_lens
from anchor_interp.analysis.rivals import compare_circuit
from anchor_interp.interventions.hooks import activations, hooked
from anchor_interp.interventions.residual_edges import SenderOutputs, recorded_outputs, run_kept
from anchor_interp.models.inputs import model_rows
from anchor_interp.tasks.counterfactuals import InterchangePairs

SIZES = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 16,
}  # fmt: skip
TOKENS = torch.arange(5, 41).reshape(4, 9)
SITES: list[Any] = ["resid_pre", "attn_out", "resid_mid", "mlp_out", "v", "z", "pattern"]
ARCHITECTURES = ("GPT2LMHeadModel", "LlamaForCausalLM", "Gemma2ForCausalLM", "GPTNeoXForCausalLM")


@functools.cache
def wrapped(architecture: str) -> tuple[Any, Any]:
    """A tiny random model of transformers in float64, twice: as a bridge, and as it is."""
    import transformers

    config = {
        "GPT2LMHeadModel": lambda: transformers.GPT2Config(
            vocab_size=60, n_positions=16, n_embd=32, n_layer=2, n_head=4,
            activation_function="gelu", initializer_range=0.3,
        ),
        "LlamaForCausalLM": lambda: transformers.LlamaConfig(**SIZES, num_key_value_heads=2),
        "Gemma2ForCausalLM": lambda: transformers.Gemma2Config(
            **SIZES, num_key_value_heads=2, head_dim=8, sliding_window=8
        ),
        "GPTNeoXForCausalLM": lambda: transformers.GPTNeoXConfig(**SIZES),
        "Gemma3ForCausalLM": lambda: transformers.Gemma3TextConfig(
            **SIZES, num_key_value_heads=2, head_dim=8, use_bidirectional_attention=True
        ),
        "Qwen3NextForCausalLM": lambda: transformers.Qwen3NextConfig(
            **SIZES, num_key_value_heads=2, head_dim=8, layer_types=["full_attention"] * 2,
            mlp_only_layers=[0, 1],
        ),
        "BertForMaskedLM": lambda: transformers.BertConfig(**SIZES),
        "Qwen2ForCausalLM": lambda: transformers.Qwen2Config(**SIZES, num_key_value_heads=2),
        "OPTForCausalLM": lambda: transformers.OPTConfig(
            vocab_size=60, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=16, word_embed_proj_dim=32,
        ),
    }[architecture]()  # fmt: skip
    models = []
    for _ in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            models.append(getattr(transformers, architecture)(config).eval().double())
    return ai.bridge(models[0]), models[1]


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), None], ids=["module", "None"])
def test_what_no_bridge_exists_for_is_refused(model: Any) -> None:
    with pytest.raises(ConfigError, match="expected a model of transformers"):
        ai.bridge(model)


def test_a_model_goes_into_one_bridge_also_as_a_subclass() -> None:
    import transformers

    mine = type("Mine", (transformers.GPT2LMHeadModel,), {})
    sizes = {"vocab_size": 60, "n_positions": 16, "n_embd": 32, "n_layer": 1, "n_head": 4}
    own = mine(transformers.GPT2Config(**sizes))
    expected = own.eval()(TOKENS).logits
    torch.testing.assert_close(ai.bridge(own)(TOKENS), expected)
    with pytest.raises(ConfigError, match="in a bridge already"):
        ai.bridge(own)


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "OPTForCausalLM"])
def test_logits_are_those_of_the_wrapped_model(architecture: str) -> None:
    bridge, plain = wrapped(architecture)
    with torch.no_grad():
        expected = plain(TOKENS).logits[:, -1]
    near = 1e-7 if architecture == "LlamaForCausalLM" else 1e-10  # its RMS norm is in float32
    torch.testing.assert_close(ai.last_logits(bridge, TOKENS), expected, atol=near, rtol=0)


def test_an_edit_of_resid_mid_reaches_the_skip_connection() -> None:
    """Also where the bridge runs an MLP within its block; of GPT-2 :data:`INSTRUMENTS` asks it."""
    bridge, plain = wrapped("OPTForCausalLM")
    with hooked(bridge, {"blocks.1.hook_resid_mid": torch.zeros_like}):
        edited = ai.last_logits(bridge, TOKENS)
    zero = torch.zeros(4, 9, 32, dtype=torch.float64)
    with torch.no_grad():
        block, final = plain.model.decoder.layers[1], plain.model.decoder.final_layer_norm
        after = block.fc2(torch.relu(block.fc1(block.final_layer_norm(zero))))
        expected = plain.lm_head(final(after))[:, -1]
    torch.testing.assert_close(edited, expected, atol=1e-10, rtol=0)


def test_an_edit_of_a_pattern_that_nothing_reads_is_refused() -> None:
    deaf, name = wrapped("OPTForCausalLM")[0], "blocks.1.attn.hook_pattern"
    with pytest.raises(HookError, match="hook_pattern"), hooked(deaf, {name: torch.zeros_like}):
        ai.last_logits(deaf, TOKENS)
    with pytest.raises(HookError, match="hook_pattern"):  # whose gradient would be 0
        INSTRUMENTS["attribution_patch"](deaf)


def test_grouped_values_come_once_a_group() -> None:
    bridge, plain = wrapped("LlamaForCausalLM")
    found = activations(bridge, TOKENS, ["blocks.0.attn.hook_v", "blocks.1.hook_resid_post"])
    layer = plain.model.layers[0]
    with torch.no_grad():
        states = layer.input_layernorm(plain.model.embed_tokens(TOKENS))
        expected = layer.self_attn.v_proj(states).reshape(4, 9, 2, 8)
    torch.testing.assert_close(found["blocks.0.attn.hook_v"], expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "OPTForCausalLM"])
def test_masked_padding_is_not_read(architecture: str) -> None:
    """In float32: with left padding some models of transformers are NaN in float64."""
    bridge = wrapped.__wrapped__(architecture)[0].float()
    mask = torch.ones_like(TOKENS)
    mask[0, :3] = mask[1, 6:] = 0
    padded = ai.Examples(TOKENS, attention_mask=mask)
    expected = torch.cat(
        [ai.last_logits(bridge, TOKENS[row, mask[row] == 1][None]) for row in range(4)]
    )
    torch.testing.assert_close(ai.last_logits(bridge, padded), expected, atol=1e-5, rtol=0)
    stream = activations(bridge, padded, ["blocks.0.hook_resid_post"])["blocks.0.hook_resid_post"]
    (alone,) = activations(bridge, TOKENS[:1, 3:], ["blocks.0.hook_resid_post"]).values()
    torch.testing.assert_close(stream[:1, 3:], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "GPTNeoXForCausalLM"])
def test_residual_edges_of_a_bridge(architecture: str) -> None:
    """By groups of heads, and in parallel blocks: scores are effects of a small difference."""
    bridge, _ = wrapped(architecture)
    found = ai.edge_attribution(bridge, CLEAN, CORRUPTED, METRIC)
    bench = ai.EdgeAblation(bridge, CLEAN, references=CORRUPTED, parts="residual edges")
    groups = sum(" group " in name for name in found.graph.receivers)
    assert groups == (8 if architecture == "LlamaForCausalLM" else 0)
    edges = np.argwhere(bench.reachable)
    kept = np.repeat(bench.reachable[None], len(edges), axis=0)
    kept[np.arange(len(edges)), *edges.T] = False
    own, given = (recorded_outputs(bridge, each) for each in (CLEAN, CORRUPTED))
    near = SenderOutputs(own.written + 1e-2 * (given.written - own.written), own.biases)
    rows, each = model_rows(bridge, CLEAN.tokens), np.arange(6)
    sets = torch.from_numpy(np.stack([bench.reachable, *kept]))
    logits = run_kept(bridge, rows, sets, (each, each), near, lambda logits, _: logits)
    values = np.array([METRIC(torch.from_numpy(one)).mean().item() for one in logits])
    effects = (values[1:] - values[0]) / 1e-2
    near_zero = 0.02 * np.abs(effects).max()
    np.testing.assert_allclose(found.scores[tuple(edges.T)], effects, rtol=0.05, atol=near_zero)


def test_what_no_instrument_can_take_is_refused(tmp_path: Path) -> None:
    gemma, opt = wrapped("Gemma2ForCausalLM")[0], wrapped("OPTForCausalLM")[0]
    with pytest.raises(ConfigError, match=r"more with its heads than add them up.*a norm after"):
        ai.edge_attribution(gemma, CLEAN, CORRUPTED, METRIC)
    with pytest.raises(ConfigError, match="an MLP of this bridge runs only in its block"):
        ai.EdgeAblation(opt, CLEAN, references=CORRUPTED, parts="residual edges")
    with pytest.raises(ConfigError, match="other names of weights"):
        ai.save_transformer(gemma, tmp_path / "model.safetensors")
    gemma.train()
    try:
        with pytest.raises(ConfigError, match=r"training mode; call model\.eval\(\)"):
            ai.complexity(gemma)
    finally:
        gemma.eval()


@functools.cache
def pair_of(kind: str) -> tuple[Any, Any]:
    """A bridge and a HookedTransformer of equal weights, in float64."""
    sizes = {"n_layers": 2, "d_model": 32, "n_heads": 4, "d_head": 8, "n_ctx": 16, "d_vocab": 60}
    if kind == "native":
        from transformer_lens.model_bridge import TransformerBridge

        norm = {"act_fn": "gelu", "normalization_type": "LN"}
        bridge: Any = TransformerBridge.boot_native({**sizes, **norm, "d_mlp": 64, "seed": 0})
        with torch.no_grad():
            for weight in bridge.parameters():
                weight.mul_(4 if weight.ndim > 1 else 1)  # so that answers depend on attention
        bridge, weights, d_mlp = bridge.eval(), _weights_of_native(bridge.state_dict()), 64
    else:
        bridge, plain = wrapped("GPT2LMHeadModel")
        weights, d_mlp = hooked_weights(plain), 128
    config = ai.ModelConfig(**sizes, d_mlp=d_mlp, act_fn="gelu", normalization="pre", bias=True)
    model = ai.build_model(config, ai.InitConfig(), seed=0, dtype=torch.float64)
    missing = model.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    assert all(key.endswith(("mask", "IGNORE")) for key in missing.missing_keys)
    return bridge.to(torch.float64), model


def _edited(*names: str) -> Callable[[Any], Any]:
    def logits(model: Any) -> Any:
        with hooked(model, {f"blocks.1.{name}": torch.tanh for name in names}):
            return ai.last_logits(model, TOKENS)

    return logits


def _masked(model: Any) -> Any:
    with ai.mask_position(model, CLEAN, "start", renormalise=True):
        return ai.last_logits(model, CLEAN)


def _pruned(model: Any) -> Any:
    bench = ai.EdgeAblation(model, CLEAN.tokens, parts="heads and MLPs")
    circuit = ai.prune(bench, quiet=True)
    scores = ai.score_circuit(bench, circuit, n_subsets=2)
    rivals = compare_circuit(bench, circuit, n_random=3)
    return [*circuit.edges.ravel(), *astuple(scores.faithfulness), *rivals.random_accuracy]


def _residual_circuit(model: Any) -> Any:
    bench = ai.EdgeAblation(model, CLEAN, references=CORRUPTED, parts="residual edges")
    found = ai.edge_attribution(model, CLEAN, CORRUPTED, METRIC)
    return bench.measure(bench.reachable[None] & ~found.circuit(60).edges)


_GENERATOR = np.random.default_rng(0)
CLEAN, CORRUPTED = (
    ai.Examples(
        _GENERATOR.integers(0, 60, (6, 7)), _GENERATOR.integers(0, 60, 6), places={"start": 1}
    )
    for _ in range(2)
)
METRIC = ai.logit_difference(CLEAN, CORRUPTED)
PAIRS = InterchangePairs(CLEAN, CORRUPTED, _GENERATOR.integers(0, 60, 6))
MIDDLE = ai.Site("resid_mid", 1, "start")
CONNECTION = ai.Connection(ai.Site("z", 0, "start"), (ai.Site("v", 1, "start"),))


def _sites(model: Any) -> Any:
    return ai.site_grid(model, SITES, positions=CLEAN)


INSTRUMENTS: dict[str, Callable[[Any], Any]] = {
    **{name: _edited(name) for name in
       ("attn.hook_pattern", "attn.hook_z", "hook_resid_mid", "mlp.hook_post")},
    "hook_resid_mid before what it reads":
        _edited("hook_resid_mid", "hook_resid_pre", "hook_attn_out"),
    "patch": lambda m: ai.patch(m, CLEAN, CORRUPTED, _sites(m), METRIC).values,
    "attribution_patch":
        lambda m: ai.attribution_patch(m, CLEAN, CORRUPTED, _sites(m), METRIC, steps=2).values,
    "path_patch": lambda m: ai.path_patch(m, CLEAN, CORRUPTED, [CONNECTION], METRIC).values,
    "edge_attribution": lambda m: ai.edge_attribution(m, CLEAN, CORRUPTED, METRIC, steps=2).scores,
    "residual circuit": _residual_circuit,
    "mask": _masked,
    "attribute_logits": lambda m: ai.attribute_logits(m, CLEAN).logits,
    "logit_lens": lambda m: logit_lens(m, CLEAN).logits,
    "interchange": lambda m: ai.interchange(m, PAIRS, MIDDLE).cross_entropy,
    "learn_subspace":
        lambda m: ai.learn_subspace(m, PAIRS, MIDDLE, 2, seed=0, steps=2, quiet=True).basis,
    "circuit": _pruned,
    "attention": lambda m: activations(m, CLEAN, ["blocks.1.attn.hook_pattern"]).popitem()[1],
    "complexity": lambda m: ai.complexity(m).to_frame()["stable_rank"],
}  # fmt: skip


@pytest.mark.parametrize("name", INSTRUMENTS)
@pytest.mark.parametrize("kind", ["GPT-2", pytest.param("native", marks=only_4)])
def test_an_instrument_says_of_a_bridge_what_it_says_of_equal_weights(kind: str, name: str) -> None:
    bridge, model = pair_of(kind)
    with torch.no_grad():
        given, expected = (np.asarray(INSTRUMENTS[name](each)) for each in (bridge, model))
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-10)
    assert expected.std() > 0 or expected.ndim == 0


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


def test_values_of_two_layers_are_exchanged_from_the_places_of_each_source() -> None:
    """Against hooks of PyTorch on the wrapped model's own projections; two heads share values."""
    bridge, plain = wrapped("Qwen2ForCausalLM")
    base = ai.Examples(TOKENS.numpy(), places={"x": [1, 2, 3, 4]})
    source = ai.Examples(TOKENS.flip(1).numpy(), places={"x": [6, 3, 2, 0]})
    pairs = InterchangePairs(base, source, np.arange(4))
    sites = [ai.Site("v", layer, "x") for layer in (0, 1)]
    found = ai.interchange(bridge, pairs, sites)
    projections = [block.self_attn.v_proj for block in plain.model.layers]
    answers = []
    for row in range(4):
        seen: list[Any] = []

        def record(_module: Any, _inputs: Any, out: torch.Tensor, seen: list[Any] = seen) -> None:
            seen.append(out)

        recording = [projection.register_forward_hook(record) for projection in projections]
        with torch.no_grad():
            plain(torch.from_numpy(source.tokens[row : row + 1]))
        for hook in recording:
            hook.remove()

        def put(vector: torch.Tensor, row: int = row) -> Any:
            def edit(_module: Any, _inputs: Any, out: torch.Tensor) -> torch.Tensor:
                out = out.clone()
                out[0, base.places["x"][row]] = vector
                return out

            return edit

        edits = [p.register_forward_hook(put(out[0, source.places["x"][row]]))
                 for p, out in zip(projections, seen, strict=True)]  # fmt: skip
        with torch.no_grad():
            answers.append(plain(TOKENS[row : row + 1]).logits[0, -1].argmax().item())
        for hook in edits:
            hook.remove()
    assert found.answers.tolist() == answers


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "Qwen2ForCausalLM"])
def test_several_answers_of_a_row_are_read_at_their_positions(architecture: str) -> None:
    bridge, plain = wrapped(architecture)
    at, answers = np.array([[1, 8], [3, 5], [0, 2], [6, 7]]), np.arange(8).reshape(4, 2)
    twice = ai.Examples(TOKENS.numpy(), answers, at=at)
    with torch.no_grad():
        expected = plain(TOKENS).logits[torch.arange(4)[:, None], torch.from_numpy(at)]
    torch.testing.assert_close(ai.last_logits(bridge, twice), expected, atol=1e-7, rtol=0)
    donors = ai.Examples(TOKENS.flip(1).numpy(), at=at)
    whole = ai.patch(
        bridge, twice, donors, [ai.Site("resid_pre", 0)], ai.log_prob(twice, over="sum")
    )
    chosen = expected.log_softmax(-1).gather(-1, torch.from_numpy(answers)[..., None])
    np.testing.assert_allclose(whole.values[0], chosen.sum((1, 2)), atol=1e-6)


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "Gemma3ForCausalLM"])
def test_a_bridge_that_looks_ahead_is_not_causal(architecture: str) -> None:
    """Its settings say that it is (BERT's since TransformerLens 4 not)."""
    bridge, plain = wrapped(architecture)
    with torch.no_grad():
        first = plain(TOKENS).logits[:, 0]
        changed = plain(torch.cat([TOKENS[:, :-1], 1 + TOKENS[:, -1:]], 1)).logits[:, 0]
    assert not torch.allclose(first, changed, rtol=0, atol=1e-9)
    for asked in (
        lambda: ai.mask_position(bridge, TOKENS, 2),
        lambda: ai.EdgeAblation(bridge, TOKENS),
        lambda: ai.EdgeAblation(bridge, TOKENS, parts="residual edges"),
    ):
        with pytest.raises(ConfigError, match="attention is bidirectional; expected causal"):
            asked()


def test_edges_of_gated_attention_are_not_ablated() -> None:
    """Its heads write less than their edges carry: the gate comes after them."""
    bridge, _ = wrapped("Qwen3NextForCausalLM")
    with pytest.raises(ConfigError, match="layer 0 does not write the sum over its edges: its att"):
        ai.EdgeAblation(bridge, TOKENS)


def test_half_precision_and_hooks_hide_no_direction() -> None:
    """An answer found while a hook acts is not kept; one in bfloat16 is as sure."""
    bridge, _ = wrapped.__wrapped__("Gemma3ForCausalLM")
    bridge.to(torch.bfloat16)
    with bridge.hooks(fwd_hooks=[("blocks.0.hook_resid_post", lambda x, **_: x * 0)]):
        ai.mask_position(bridge, TOKENS, 2)
    with pytest.raises(ConfigError, match="attention is bidirectional"):
        ai.mask_position(bridge, TOKENS, 2)
