"""Logit lens and direct logit attribution: the sums are the logits, in both layouts."""

import functools
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from small_models import LAYOUTS, lens_model, with_offsets
from versions import only_3

from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.logit_attribution import attribute_logits, logit_lens
from anchor_interp.interventions.hooks import activations, hooked
from anchor_interp.interventions.masks import mask_position
from anchor_interp.models.exact import Mechanism, Normalization, exact_model
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer import build_model
from anchor_interp.models.transformer_lens import HookedTransformer
from anchor_interp.tasks.anchor import TASKS
from anchor_interp.tasks.sequences import draw

TASK = TASKS["complexity-control"]
SEQUENCES = draw(TASK, TASK.pairs, "all", 6, seed=3, stream="attribution")


def model(normalization: Normalization, n_layers: int = 3) -> HookedTransformer:
    """Random weights, biases and LayerNorm gains in float64."""
    shape = ModelConfig(
        n_layers=n_layers, n_heads=3, d_model=20, d_head=8, d_mlp=24, bias=True,
        normalization=normalization,
    )  # fmt: skip
    built = build_model(shape, InitConfig(), seed=0, dtype=torch.float64)
    return with_offsets(built)


def logits(built: HookedTransformer) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = built(torch.from_numpy(SEQUENCES.tokens).long())[:, -1].numpy()
    return found


@pytest.mark.parametrize("normalization", LAYOUTS)
def test_the_components_sum_to_the_logits(normalization: Normalization) -> None:
    built = model(normalization)
    found = attribute_logits(built, SEQUENCES.tokens)
    np.testing.assert_allclose(found.logits.sum(0), logits(built), rtol=0, atol=1e-10)
    per_layer = 5 + 2 * (normalization == "post")
    assert len(found.components) == 3 * per_layer + 3 + (normalization == "pre")
    assert len(set(found.components)) == len(found.components) == len(found.logits)
    # with a mask attached the sum is the masked model's
    with mask_position(built, SEQUENCES, "key"):
        masked = attribute_logits(built, SEQUENCES.tokens)
        np.testing.assert_allclose(masked.logits.sum(0), logits(built), rtol=0, atol=1e-10)
    assert abs(masked.logits.sum(0) - found.logits.sum(0)).max() > 1e-3


@pytest.mark.parametrize("normalization", LAYOUTS)
@pytest.mark.parametrize("component", ["L0H1", "L1H2", "L1 MLP", "L2 attention bias"])
def test_a_component_is_the_slope_along_its_own_size(
    normalization: Normalization, component: str
) -> None:
    """Logits are linear in a component if every scale and every other component is held fixed."""
    built = model(normalization)
    found = attribute_logits(built, SEQUENCES.tokens)
    layer = int(component[1])
    block: Any = built.blocks[layer]
    seen = activations(built, SEQUENCES.tokens, [f"blocks.{layer}.attn.hook_z"])
    kept = [f"blocks.{i}.hook_{kind}_out" for i in range(layer, 3) for kind in ("attn", "mlp")]
    post = normalization == "post"
    kept += [f"blocks.{i}.ln{k}.hook_scale" for i in range(layer, 3) for k in (1, 2)] * post
    kept += ["ln_final.hook_scale"] * (not post)
    frozen = activations(built, SEQUENCES.tokens, kept)
    with torch.no_grad():
        if "MLP" in component:
            name, change = f"blocks.{layer}.hook_mlp_out", frozen[f"blocks.{layer}.hook_mlp_out"]
        else:
            name = f"blocks.{layer}.hook_attn_out"
            if "H" in component:
                head = int(component[3])
                z = seen[f"blocks.{layer}.attn.hook_z"][:, :, head]
                change = z @ block.attn.W_O[head]
            else:
                change = block.attn.b_O.expand_as(frozen[name])
    frozen[name] += change
    edits = {k: functools.partial(lambda value, _: value, value) for k, value in frozen.items()}
    with hooked(built, edits):
        moved = logits(built)
    slope = found.logits[found.components.index(component)]
    np.testing.assert_allclose(moved - logits(built), slope, rtol=0, atol=1e-10)
    assert abs(slope).max() > 1e-3


@pytest.mark.parametrize(
    ("normalization", "dtype"), [("post", torch.bfloat16), ("pre", torch.float16)]
)
def test_half_precision_is_summed_in_single(
    normalization: Normalization, dtype: torch.dtype
) -> None:
    built = model(normalization).to(torch.float32)
    half = model(normalization).to(dtype)
    with torch.no_grad():
        expected = half(torch.from_numpy(SEQUENCES.tokens).long())[:, -1].float().numpy()
    found = attribute_logits(half, SEQUENCES.tokens).logits
    exact = attribute_logits(built, SEQUENCES.tokens).logits
    rounding = 4 * torch.finfo(dtype).eps * np.abs(exact).max()
    np.testing.assert_allclose(found.sum(0), expected, rtol=0, atol=rounding)
    np.testing.assert_allclose(found, exact, rtol=0, atol=rounding)
    lens = logit_lens(half, SEQUENCES.tokens)
    np.testing.assert_allclose(lens.logits[-1], expected, rtol=0, atol=rounding)


def test_chosen_answers_are_columns_of_all_answers() -> None:
    built = model("post")
    every = attribute_logits(built, SEQUENCES.tokens)
    answers = np.stack([SEQUENCES.targets, SEQUENCES.key], axis=1)
    found = attribute_logits(built, torch.from_numpy(SEQUENCES.tokens.astype(int)), answers)
    assert found.components == every.components
    rows = np.arange(len(answers))[:, None]
    np.testing.assert_array_equal(found.logits, every.logits[:, rows, answers])


@pytest.mark.parametrize("normalization", LAYOUTS)
def test_the_lens_reads_a_shorter_model(normalization: Normalization) -> None:
    built = model(normalization)
    found = logit_lens(built, SEQUENCES.tokens)
    assert found.points == ("0_pre", *(f"{i}_{at}" for i in range(3) for at in ("mid", "post")))
    np.testing.assert_allclose(found.logits[-1], logits(built), rtol=0, atol=1e-12)
    shorter = model(normalization, n_layers=2)
    shorter.load_state_dict(built.state_dict(), strict=False)
    at = found.points.index("1_post")
    np.testing.assert_allclose(found.logits[at], logits(shorter), rtol=0, atol=1e-12)
    # after attention: the model without its last MLP
    hook = "blocks.2.hook_resid_mid"
    stream = activations(built, SEQUENCES.tokens, [hook])[hook]
    with torch.no_grad():
        normed = built.ln_final(stream) if normalization == "pre" else stream
        read = built.unembed(normed)[:, -1].numpy()
    np.testing.assert_allclose(found.logits[-2], read, rtol=0, atol=1e-12)


@pytest.mark.parametrize("normalization", LAYOUTS)
@pytest.mark.parametrize(
    ("mechanism", "component", "point"),
    [("lookup", "L1H0", "1_mid"), ("inferential", "L1 MLP", "1_post")],
)
def test_hand_set_models_answer_by_the_wired_components(
    normalization: Normalization, mechanism: Mechanism, component: str, point: str
) -> None:
    """Lookup finds the answer in the first MLP and moves it; inferential computes it last."""
    answers = SEQUENCES.targets[:, None]
    others = (SEQUENCES.targets[:, None] - 20 + 7) % 80 + 20
    built = exact_model(mechanism, normalization=normalization, dtype=torch.float64)
    found = attribute_logits(built, SEQUENCES.tokens, np.concatenate([answers, others], axis=1))
    lead = found.logits[..., 0] - found.logits[..., 1]
    held = lead[found.components.index(component)]
    np.testing.assert_allclose(held, lead.sum(0), rtol=1e-3)
    assert (held > 20).all()
    lens = logit_lens(built, SEQUENCES.tokens)
    knows = (lens.logits.argmax(-1) == SEQUENCES.targets).all(1)
    assert lens.points[int(knows.argmax())] == point


@only_3
@pytest.mark.parametrize("changes", [
    {"normalization_type": "LNPre", "attn_only": True},
    {"normalization_type": "RMS", "n_key_value_heads": 2, "gated_mlp": True},
    {"normalization_type": "RMSPre", "positional_embedding_type": "rotary", "rotary_dim": 4},
    {"normalization_type": None, "parallel_attn_mlp": True},
    {"normalization_type": "LN", "d_vocab_out": 7},
])  # fmt: skip
def test_other_transformers(changes: dict[str, Any]) -> None:
    built = lens_model(d_vocab=30, n_ctx=6, **changes)
    tokens = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        expected = built(tokens)[:, -1].numpy()
    found = attribute_logits(built, tokens)
    np.testing.assert_allclose(found.logits.sum(0), expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(logit_lens(built, tokens).logits[-1], expected, rtol=0, atol=1e-10)


@only_3
def test_logits_that_are_not_the_sum_are_refused() -> None:
    built = model("pre")
    with (
        pytest.raises(ConfigError, match="differ from the model's logits"),
        hooked(built, {"blocks.1.hook_resid_mid": lambda stream: stream * 2}),
    ):
        attribute_logits(built, SEQUENCES.tokens)
    single = model("pre").to(torch.float32)
    single.cfg.dtype = torch.bfloat16  # of a model converted since
    edit = {"ln_final.hook_normalized": lambda normalized: normalized * 1.01}
    with pytest.raises(ConfigError, match="differ from the model's"), hooked(single, edit):
        attribute_logits(single, SEQUENCES.tokens)
    capped = lens_model(d_vocab=30, n_ctx=6, output_logits_soft_cap=0.01)
    for analysis in (attribute_logits, logit_lens):
        with pytest.raises(ConfigError, match="does more than this analysis covers"):
            analysis(capped, torch.arange(12).reshape(2, 6))


@pytest.mark.parametrize(("answers", "message"), [
    (np.zeros((5, 1), int), r"shape \(5, 1\)"),
    (np.full((6, 1), 300), "answers run from 300"),
    (np.full((6, 2), -1), "answers run from -1"),
])  # fmt: skip
def test_answers_that_do_not_exist_are_refused(
    answers: np.ndarray, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ConfigError, match=message):
        attribute_logits(model("pre"), SEQUENCES.tokens, answers)
