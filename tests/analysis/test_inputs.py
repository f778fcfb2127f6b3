"""Whatever takes tokens takes Sequences, an array or a tensor, and says the same of each."""

import re
from collections.abc import Callable
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from small_models import FEW_KEYS, random_model
from torch import Tensor

import anchor_interp as ai
from anchor_interp.analysis.attention import attention_patterns
from anchor_interp.analysis.clusters import key_mask_clusters, pair_clusters
from anchor_interp.analysis.fingerprint import fingerprint_model
from anchor_interp.analysis.flow import information_flow
from anchor_interp.analysis.logit_attribution import attribute_logits, logit_lens
from anchor_interp.analysis.mask_leakage import mask_leakage
from anchor_interp.analysis.routes import route_scores
from anchor_interp.analysis.sensitivity import sensitivity
from anchor_interp.analysis.similarity import answer_similarity, block_similarity, value_similarity
from anchor_interp.behaviour.evaluation import accuracy, predict
from anchor_interp.interventions.ablate_edges import edge_outputs
from anchor_interp.interventions.ablation_bench import EdgeAblation
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.metrics import probability
from anchor_interp.interventions.patching import patch, path_patch
from anchor_interp.interventions.sites import Connection, Site
from anchor_interp.models.complexity import complexity
from anchor_interp.models.transformer import HookedTransformer, token_rows
from anchor_interp.tasks.counterfactuals import interchange_pairs
from anchor_interp.tasks.sequences import aligned_sequences

MODEL = random_model()
SEQUENCES = aligned_sequences(FEW_KEYS, 2, 6, seed=0)
HOOK = "blocks.0.hook_resid_post"
SITES = (Site("resid_pre", 1, 3),)
METRIC = probability(SEQUENCES.targets)


def patched(tokens: Any) -> np.ndarray:
    other = tokens.flip(0) if isinstance(tokens, Tensor) else tokens[::-1]
    return patch(MODEL, tokens, other, SITES, METRIC).values


TAKES_TOKENS: dict[str, Callable[[Any], np.ndarray | Tensor]] = {
    "token_rows": lambda tokens: token_rows(MODEL, tokens),
    "last_logits": lambda tokens: ai.last_logits(MODEL, tokens),
    "activations": lambda tokens: activations(MODEL, tokens, [HOOK])[HOOK],
    "edge_outputs": lambda tokens: edge_outputs(MODEL, tokens).values,
    "predict": lambda tokens: predict(MODEL, tokens),
    "logit_lens": lambda tokens: logit_lens(MODEL, tokens).logits,
    "attribute_logits": lambda tokens: attribute_logits(MODEL, tokens).logits,
    "attention_patterns": lambda tokens: attention_patterns(MODEL, tokens).patterns,
    "information_flow": lambda tokens: information_flow(MODEL, tokens).log_probability,
    "EdgeAblation": lambda tokens: EdgeAblation(MODEL, tokens, references=tokens).full,
    "patch": patched,
}


@pytest.mark.parametrize("name", TAKES_TOKENS)
def test_sequences_arrays_and_tensors_are_taken_alike(name: str) -> None:
    whole, array, tensor = (
        torch.as_tensor(TAKES_TOKENS[name](tokens))
        for tokens in (SEQUENCES, SEQUENCES.tokens, SEQUENCES.tensor)
    )
    assert torch.equal(whole, array)
    assert torch.equal(whole, tensor)


WRONG: dict[str, Any] = {
    "tokens run from 999 to 999; expected 0 to 119": torch.full((6, 9), 999),
    "tokens has 90 positions; expected 1 to 10": np.tile(SEQUENCES.tokens, 10),
    "expected.* integers|not an array of integers": SEQUENCES.tensor.bfloat16(),
}
"""Another model's tokens, too many positions, tokens that are not integers."""


@pytest.mark.parametrize("message", WRONG)
@pytest.mark.parametrize("name", TAKES_TOKENS)
def test_tokens_of_another_model_are_refused(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ai.ConfigError, match=message) as caught:
        TAKES_TOKENS[name](WRONG[message])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", TAKES_TOKENS)
def test_half_precision_gives_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    half = random_model().bfloat16()
    half.cfg.dtype = torch.bfloat16
    monkeypatch.setitem(globals(), "MODEL", half)
    numbers = torch.as_tensor(TAKES_TOKENS[name](SEQUENCES))
    assert not numbers.isnan().any()


def test_hooks_are_named_by_a_generator() -> None:
    names: Any = (name for name in [HOOK])
    (activation,) = activations(MODEL, SEQUENCES, names).values()
    assert torch.equal(activation, activations(MODEL, SEQUENCES, [HOOK])[HOOK])


def test_sequences_bring_their_targets() -> None:
    right = predict(MODEL, SEQUENCES.tokens) == SEQUENCES.targets
    assert accuracy(MODEL, SEQUENCES) == right.mean()


TWINS = SEQUENCES.tokens, SEQUENCES.tokens[::-1]
PAIRS = interchange_pairs(FEW_KEYS, 6, seed=0)
SITE = Site("resid_post", 0, "first")
TAKES_A_MODEL: dict[str, Callable[[HookedTransformer], object]] = {
    "patch": lambda model: patch(model, *TWINS, SITES, METRIC),
    "path_patch": lambda model: path_patch(model, *TWINS, [Connection(SITES[0])], METRIC),
    "interchange": lambda model: ai.interchange(model, PAIRS, SITE),
    "learn_subspace": lambda model: ai.learn_subspace(model, PAIRS, SITE, 2, seed=0, steps=1),
    "prune": lambda model: ai.prune(EdgeAblation(model, SEQUENCES)),
    "route_scores": lambda model: route_scores(model, FEW_KEYS),
    "value_similarity": lambda model: value_similarity(model, FEW_KEYS),
    "answer_similarity": lambda model: answer_similarity(model, FEW_KEYS),
    "block_similarity": lambda model: block_similarity(model, FEW_KEYS),
    "pair_clusters": lambda model: pair_clusters(model, FEW_KEYS),
    "key_mask_clusters": lambda model: key_mask_clusters(model, FEW_KEYS),
    "sensitivity": lambda model: sensitivity(model, FEW_KEYS),
    "information_flow": lambda model: information_flow(model, SEQUENCES),
    "mask_leakage": lambda model: mask_leakage(model, FEW_KEYS, SEQUENCES, "key"),
    "logit_lens": lambda model: logit_lens(model, SEQUENCES),
    "attribute_logits": lambda model: attribute_logits(model, SEQUENCES),
    "attention_patterns": lambda model: attention_patterns(model, SEQUENCES),
    "complexity": complexity,
    "evaluate": lambda model: ai.evaluate(model, FEW_KEYS, n=5),
    "fingerprint_model": lambda model: fingerprint_model(model, FEW_KEYS),
    "analyze_model": lambda model: ai.analyze_model(model, FEW_KEYS),
    "analyze_model without a task": ai.analyze_model,
}


@pytest.mark.parametrize("name", TAKES_A_MODEL)
def test_a_model_without_weights_is_refused(name: str) -> None:
    whole, part = random_model(), random_model()
    whole.to("meta", print_details=False)
    part.blocks[0].mlp.to("meta")
    for model in (whole, part):
        first = next(n for n, p in model.named_parameters() if p.is_meta)
        with pytest.raises(ai.ConfigError, match=f"^{re.escape(first)} is on the device meta"):
            TAKES_A_MODEL[name](model)


@pytest.mark.parametrize("name", TAKES_A_MODEL)
def test_a_weight_that_is_not_finite_is_named_before_any_work(name: str) -> None:
    model = random_model()
    model.blocks[0].attn.W_Q.data[0, 0, 0] = torch.inf if len(name) % 2 else torch.nan
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model was run"))
    expected = r"^blocks\.0\.attn\.W_Q holds 1 of 160 values that are not finite; restore the file"
    with pytest.raises(ai.ConfigError, match=expected) as caught:
        TAKES_A_MODEL[name](model)
    assert "\n" not in str(caught.value)
