"""Information flow: models whose mechanism is known, and single edges ablated by hand."""

import numpy as np
import pytest
import torch
from exact_edges import exact_edges
from small_models import EACH_EXACT, FEW_KEYS, exact_answers, random_model, small_exact

from anchor_interp.analysis.flow import information_flow
from anchor_interp.interventions.ablate_edges import ablate_edges, edge_outputs
from anchor_interp.interventions.ablation_bench import Ablation
from anchor_interp.interventions.masks import edge, mask_edges
from anchor_interp.models.exact import (
    Mechanism,
    Normalization,
)
from anchor_interp.tasks.examples import Examples
from anchor_interp.tasks.sequences import Sequences, aligned_sequences


def wired(mechanism: Mechanism, sequences: Sequences) -> np.ndarray:
    """The edges that a mechanism needs, [layer, head, query, key]."""
    found: np.ndarray = exact_edges(mechanism, sequences)[:, 0].numpy()
    return found


@pytest.mark.parametrize("position", [2, 6])
@EACH_EXACT
def test_only_the_wired_edges_of_an_exact_model_matter(
    mechanism: Mechanism, normalization: Normalization, position: int
) -> None:
    """At position 6 the second anchor is the last token: it attends to itself."""
    sequences = aligned_sequences(FEW_KEYS, position, 30, seed=0)
    flow = information_flow(small_exact(mechanism, normalization), sequences)
    edges = wired(mechanism, sequences)
    assert (flow.changed[edges] == 1).all()
    assert (flow.changed[~edges] == 0).all()
    assert (flow.log_probability[edges] > 3).all()  # to at most one in 20
    np.testing.assert_allclose(flow.logit_difference[edges], 30, atol=0.1)
    np.testing.assert_allclose(flow.logit_difference[~edges], 0, atol=0.1)
    assert (flow.answers == exact_answers(mechanism, FEW_KEYS, sequences)).all()
    assert (flow.outputs[:, -1] == flow.answers).all()


def test_an_effect_equals_that_of_the_edge_ablated_by_hand() -> None:
    model = random_model()
    sequences = aligned_sequences(FEW_KEYS, 2, 8, seed=0)
    references = aligned_sequences(FEW_KEYS, 2, 8, seed=1)
    tokens = torch.from_numpy(sequences.tokens.astype(np.int64))
    answers = np.arange(20, 28)
    examples = Examples(tokens, answers, places=sequences.examples().places)

    def score(logits: torch.Tensor) -> np.ndarray:
        last = logits[:, -1]
        mine = last[range(8), answers]
        others = last.clone()
        others[range(8), answers] = -torch.inf
        return np.array([
            (last.argmax(-1).numpy() == answers).mean(),
            (mine - others.amax(-1)).mean(),
            (mine - last.logsumexp(-1)).mean(),
        ])  # fmt: skip

    ways: list[tuple[Ablation, Sequences | None]] = [("zero", None), ("resample", references)]
    flows = {
        way: information_flow(model, examples, ablation=way, references=given)
        for way, given in ways
    }
    donors = edge_outputs(model, references.tokens.astype(np.int64))
    for layer, head, query, key in [(0, 1, 4, 2), (1, 0, 8, 0), (2, 1, 8, 3), (0, 0, 0, 0)]:
        cut = edge(model, 9, layer=layer, head=head, query=query, key=key)
        with torch.no_grad(), mask_edges(model, cut):
            masked = score(model(tokens))
        with torch.no_grad(), ablate_edges(model, cut, donors):
            resampled = score(model(tokens))
        with torch.no_grad():
            before = score(model(tokens))
        for flow, after in zip(flows.values(), (masked, resampled), strict=True):
            at = layer, head, query, key
            effect = flow.changed[at], flow.logit_difference[at], flow.log_probability[at]
            np.testing.assert_allclose(effect, before - after, atol=1e-12)
    for flow in flows.values():
        assert flow.reachable.sum() == 198
        assert not flow.logit_difference[~flow.reachable].any()
        assert np.abs(flow.logit_difference[flow.reachable]).min() > 0


def test_attention_is_the_mean_pattern() -> None:
    model = random_model("pre")
    sequences = aligned_sequences(FEW_KEYS, 2, 8, seed=0)
    flow = information_flow(model, sequences)
    _, cache = model.run_with_cache(torch.from_numpy(flow.tokens))
    for layer in range(3):
        expected = cache[f"blocks.{layer}.attn.hook_pattern"].mean(0).detach()
        np.testing.assert_allclose(flow.attention[layer], expected, atol=1e-12)
    np.testing.assert_allclose(flow.attention.sum(-1), 1, atol=1e-12)
    assert (flow.tokens == sequences.tokens).all()
