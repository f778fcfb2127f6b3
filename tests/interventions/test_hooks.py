"""Hooks that cannot fail silently."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from anchor_interp._util.errors import HookError
from anchor_interp.interventions import hooks
from anchor_interp.interventions.hooks import activations, hooked
from anchor_interp.interventions.patched_passes import replaced_run
from anchor_interp.models.shapes import InitConfig, ModelConfig, Normalization
from anchor_interp.models.transformer import HookedTransformer, build_model

SHAPE = ModelConfig(d_model=8, d_head=4, d_mlp=8, d_vocab=30, n_ctx=6)
ROWS = torch.arange(12).reshape(2, 6)
NAME = "blocks.0.hook_resid_mid"


@pytest.fixture
def model() -> HookedTransformer:
    return build_model(SHAPE, InitConfig(), seed=0)


def test_the_outer_edit_acts_first(model: HookedTransformer) -> None:
    with (
        hooked(model, {NAME: lambda x: x * 0 + 1}),
        hooked(model, {NAME: lambda x: x * 3}),
    ):
        assert (activations(model, ROWS, [NAME])[NAME] == 3).all()


def test_hooks_that_cannot_fire_are_refused(model: HookedTransformer) -> None:
    with pytest.raises(HookError, match=r"no hook 'blocks.0.hook_resid_middle'.*resid_mid"):
        activations(model, ROWS, ["blocks.0.hook_resid_middle"])
    with pytest.raises(HookError, match=r"fires only with model.cfg.use_attn_result"):
        activations(model, ROWS, ["blocks.0.attn.hook_result"])
    with pytest.raises(HookError, match="did not fire"), hooked(model, {NAME: lambda x: x}):
        pass
    model.cfg.use_attn_result = True
    assert activations(model, ROWS, ["blocks.0.attn.hook_result"])


@pytest.mark.parametrize("normalization", ["pre", "post"])
def test_a_hook_that_nothing_reads_is_refused(normalization: Normalization) -> None:
    model = build_model(
        dataclasses.replace(SHAPE, normalization=normalization), InitConfig(), seed=0
    )
    model.cfg.use_attn_in = model.cfg.use_split_qkv_input = True
    message = r"hook_attn_in acts only without model.cfg.use_split_qkv_input; unset it first"
    with pytest.raises(HookError, match=message):
        activations(model, ROWS, ["blocks.0.hook_attn_in"])
    assert activations(model, ROWS, ["blocks.0.hook_q_input"])


@pytest.mark.parametrize("wrong", [lambda x: x[:, :1], lambda x: x.double(), lambda _: None])
def test_an_edit_keeps_the_shape(model: HookedTransformer, wrong: Any) -> None:
    with (
        pytest.raises(HookError, match=r"returned .*; expected \(2, 6, 8\) torch.float32"),
        hooked(model, {NAME: wrong}),
    ):
        model(ROWS)
    assert not any(point.fwd_hooks for point in model.hook_dict.values())


def test_activations_need_no_later_layer_unless_it_has_hooks(
    model: HookedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = "blocks.1.hook_resid_post"
    with hooked(model, {later: lambda x: x}):  # a hook that does not fire is an error
        whole = activations(model, ROWS, [NAME])[NAME]
    monkeypatch.setattr(model.blocks[1], "forward", None)
    torch.testing.assert_close(activations(model, ROWS, [NAME])[NAME], whole, rtol=0, atol=0)
    with pytest.raises(TypeError):
        activations(model, ROWS, [NAME, later])


def test_activations_are_copies_in_order(model: HookedTransformer) -> None:
    whole = activations(model, ROWS, [NAME])[NAME]
    parts = activations(model, ROWS.numpy().astype(np.uint8), [NAME], batch=1)[NAME]
    torch.testing.assert_close(parts, whole)
    with hooked(model, {NAME: lambda x: x.zero_()}):  # in place, as a user's hook may do
        model(ROWS)
    assert whole.any()
    assert activations(model, ROWS[:0], [NAME])[NAME].shape == (0, 6, 8)


@pytest.mark.parametrize("name", ["blocks.1.ln1.hook_normalized", "blocks.0.ln1.hook_scale"])
def test_a_hook_that_fires_for_queries_keys_and_values_gives_one_row_a_sequence(name: str) -> None:
    """TransformerLens calls ln1 three times in a forward pass of a pre-LayerNorm model."""
    pre = dataclasses.replace(SHAPE, normalization="pre")
    model = build_model(pre, InitConfig(), seed=0)
    rows = torch.arange(24).reshape(4, 6)
    _, cache = model.run_with_cache(rows)
    found = activations(model, rows, [name], batch=2)[name]
    torch.testing.assert_close(found, cache[name])
    _, recorded = replaced_run(model, rows, (), record=[name], batch_size=3)
    torch.testing.assert_close(recorded[name], cache[name])


def test_a_large_vocabulary_takes_more_passes(
    model: HookedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence has 180 logits, of 6 positions and 30 tokens."""
    rows, sizes = ROWS.repeat(5, 1), []
    whole = activations(model, rows, [NAME])[NAME]
    for limit in (1 << 26, 400, 1):
        monkeypatch.setattr(hooks, "_LOGITS", limit)
        seen: list[int] = []

        def watch(x: torch.Tensor, seen: list[int] = seen) -> torch.Tensor:
            seen.append(len(x))
            return x

        with hooked(model, {NAME: watch}):
            found = activations(model, rows, [NAME])[NAME]
        torch.testing.assert_close(found, whole)
        sizes.append(seen)
    assert sizes == [[10], [2] * 5, [1] * 10]
