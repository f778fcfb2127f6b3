"""Whatever takes tokens takes Sequences, an array or a tensor, and says the same of each."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small_models import FEW_KEYS, random_model
from torch import Tensor

import anchor_interp as ai
from anchor_interp.analysis.attention import attention_patterns
from anchor_interp.analysis.attribution import attribute_logits, logit_lens
from anchor_interp.analysis.flow import information_flow
from anchor_interp.interventions.ablation import Bench, carried
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.patching import patch, probability
from anchor_interp.interventions.sites import Site, site_mask
from anchor_interp.models.transformer import token_rows
from anchor_interp.runs.evaluation import accuracy, predict
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
    "carried": lambda tokens: carried(MODEL, tokens).values,
    "predict": lambda tokens: predict(MODEL, tokens),
    "accuracy": lambda tokens: np.array(accuracy(MODEL, tokens, SEQUENCES.targets)),
    "logit_lens": lambda tokens: logit_lens(MODEL, tokens).logits,
    "attribute_logits": lambda tokens: attribute_logits(MODEL, tokens).logits,
    "attention_patterns": lambda tokens: attention_patterns(MODEL, tokens).patterns,
    "information_flow": lambda tokens: information_flow(MODEL, tokens).log_probability,
    "Bench": lambda tokens: Bench(MODEL, tokens, references=tokens).full,
    "site_mask": lambda tokens: site_mask(SITES[0], tokens, (6, 9, 1)),
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


def test_sequences_bring_their_targets() -> None:
    assert accuracy(MODEL, SEQUENCES) == accuracy(MODEL, SEQUENCES.tokens, SEQUENCES.targets)
    with pytest.raises(ai.ConfigError, match="tokens without targets is"):
        accuracy(MODEL, SEQUENCES.tokens)
