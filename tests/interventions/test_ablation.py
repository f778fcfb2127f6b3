"""Ablation of attention edges: identities, an independent forward pass, alignment, refusals."""

from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from decoder import carry, decode
from jaxtyping import Bool
from small_models import FEW_KEYS, LAYOUTS, lens_model, random_model, small_exact
from torch import Tensor
from versions import only_3

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError
from anchor_interp.interventions import ablation_bench
from anchor_interp.interventions.ablate_edges import EdgeOutputs, ablate_edges, edge_outputs
from anchor_interp.interventions.ablation_bench import (
    Ablation,
    EdgeAblation,
    Parts,
    reachable_edges,
)
from anchor_interp.interventions.hooks import activations, hooked
from anchor_interp.interventions.masks import mask_edges, no_edges
from anchor_interp.models.transformer import HookedTransformer, has_hooks, token_rows
from anchor_interp.tasks.examples import Examples
from anchor_interp.tasks.sequences import aligned_sequences, draw

pytestmark = pytest.mark.usefixtures("no_gradients")
ALL: list[Ablation] = ["zero", "mean", "resample"]


@pytest.fixture(params=LAYOUTS)
def model(request: pytest.FixtureRequest) -> HookedTransformer:
    return random_model(request.param)


def rows_of(model: HookedTransformer, n: int, seed: int = 0) -> Tensor:
    return token_rows(model, aligned_sequences(FEW_KEYS, 2, n, seed=seed).tokens)


def random_edges(model: HookedTransformer, n: int, share: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (model.cfg.n_layers, n, model.cfg.n_heads, 9, 9)
    return torch.rand(shape, generator=generator) < share


def everything(model: HookedTransformer) -> Tensor:
    return ~no_edges(model, 9)


def test_ablating_nothing_changes_nothing(model: HookedTransformer) -> None:
    rows = rows_of(model, 6)
    found = edge_outputs(model, rows_of(model, 6, seed=1))
    before = model(rows)
    for reference in (None, found, found.mean()):
        with ablate_edges(model, no_edges(model, 9), reference):
            assert torch.equal(model(rows), before)


def test_a_sequence_as_its_own_reference_changes_nothing(model: HookedTransformer) -> None:
    rows = rows_of(model, 6)
    before = model(rows)
    with ablate_edges(model, random_edges(model, 6, 0.4, 1), edge_outputs(model, rows)):
        torch.testing.assert_close(model(rows), before, atol=1e-12, rtol=0)
    one = edge_outputs(model, rows[:1])
    with ablate_edges(model, everything(model), one.mean()):
        torch.testing.assert_close(model(rows[:1]), before[:1], atol=1e-12, rtol=0)


def test_without_a_reference_it_is_a_mask(model: HookedTransformer) -> None:
    rows, edges = rows_of(model, 6), random_edges(model, 6, 0.4, 2)
    with mask_edges(model, edges):
        expected = model(rows)
    with ablate_edges(model, edges):
        assert torch.equal(model(rows), expected)


@pytest.mark.parametrize("way", ["mean", "resample"])
def test_an_independent_forward_agrees(model: HookedTransformer, way: str) -> None:
    rows, others = rows_of(model, 5), rows_of(model, 5, seed=1)
    edges = random_edges(model, 5, 0.3, 3)
    products: list[Tensor] = []

    def record(layer: int, pattern: Tensor, out: Tensor) -> Tensor:
        product = carry(layer, pattern, out)
        mean = product.mean(0, keepdim=True).expand_as(product)
        products.append(mean if way == "mean" else product)
        return product

    def replace(layer: int, pattern: Tensor, out: Tensor) -> Tensor:
        own = carry(layer, pattern, out)
        return torch.where(edges[layer][..., None], products[layer], own)

    decode(model, others, record)
    reference = edge_outputs(model, others)
    with ablate_edges(model, edges, reference if way == "resample" else reference.mean()):
        found = model(rows)
    torch.testing.assert_close(found, decode(model, rows, replace), atol=1e-10, rtol=0)
    assert (found - model(rows)).abs().max() > 1e-3


@only_3
def test_grouped_heads_share_their_values() -> None:
    model = lens_model(n_key_value_heads=2)
    rows = rows_of(model, 5)
    before = model(rows)
    with ablate_edges(model, random_edges(model, 5, 0.4, 1), edge_outputs(model, rows)):
        torch.testing.assert_close(model(rows), before, atol=1e-6, rtol=0)


def test_nested_blocks_of_disjoint_edges_act_as_their_union(model: HookedTransformer) -> None:
    rows, found = rows_of(model, 5), edge_outputs(model, rows_of(model, 5, seed=1))
    one = random_edges(model, 1, 0.3, 5)
    two = random_edges(model, 1, 0.3, 6) & ~one
    with ablate_edges(model, one | two, found):
        union = model(rows)
    with ablate_edges(model, one, found), ablate_edges(model, two, found):
        torch.testing.assert_close(model(rows), union, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("layers", "heads", "n"), [(2, 1, 54), (3, 2, 198), (1, 1, 9)])
def test_the_reachable_edges_are_those_that_matter(layers: int, heads: int, n: int) -> None:
    """54 of 90 for two layers, one head and nine positions; checked by cutting each edge."""
    model = random_model(n_layers=layers, n_heads=heads)
    reachable = reachable_edges(model, 9)
    assert reachable.sum() == n
    causal = np.argwhere(np.broadcast_to(np.tri(9, dtype=bool), reachable.shape))
    rows = rows_of(model, 1).repeat(len(causal), 1)
    edges = no_edges(model, 9, len(causal))
    layer, head, query, key = torch.from_numpy(causal).T
    edges[layer, torch.arange(len(causal)), head, query, key] = True
    before = model(rows)[:, -1]
    with ablate_edges(model, edges):
        matter = (model(rows)[:, -1] - before).abs().amax(-1) > 0
    assert (matter.numpy() == reachable[tuple(causal.T)]).all()


def random_circuits(
    bench: EdgeAblation, n: int
) -> Bool[np.ndarray, "circuit layer head query key"]:
    shape = (n, *bench.reachable.shape)
    return bench.reachable & (np.random.default_rng(1).random(shape) < 0.3)


@pytest.mark.parametrize("way", ALL)
def test_measuring_many_circuits_equals_measuring_each_alone(
    way: Ablation, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model()
    bench = EdgeAblation(model, aligned_sequences(FEW_KEYS, 2, 10, seed=0), way)
    circuits = random_circuits(bench, 6)
    together = bench.measure(circuits)
    alone = np.concatenate([bench.measure(circuit[None]) for circuit in circuits], axis=1)
    np.testing.assert_allclose(together, alone, atol=1e-12)
    monkeypatch.setattr(ablation_bench, "BATCH", 7)  # circuits and sequences share forward passes
    np.testing.assert_allclose(together, bench.measure(circuits), atol=1e-12)
    assert np.unique(together[1].round(9)).size == 6


def test_references_repeat() -> None:
    """Sequence i takes reference i, over and over; a single sequence takes each reference."""
    model = random_model()
    few = aligned_sequences(FEW_KEYS, 2, 3, seed=1).tokens
    many = aligned_sequences(FEW_KEYS, 2, 6, seed=0)
    circuits = random_circuits(EdgeAblation(model, many), 4)

    def found(sequences: np.ndarray, references: np.ndarray | None) -> np.ndarray:
        return EdgeAblation(model, sequences, references=references).measure(circuits)

    around = found(many.tokens, few)
    np.testing.assert_allclose(around, found(many.tokens, np.concatenate([few, few])), atol=1e-12)
    one = many.tokens[:1]
    each = np.mean([found(one, reference[None]) for reference in few], axis=0)
    np.testing.assert_allclose(found(one, few), each, atol=1e-12)


def test_without_references_every_sequence_takes_another_one() -> None:
    """Sorted sequences do not change what stands in for each: neighbours may be equal here."""
    sequences = aligned_sequences(FEW_KEYS, 2, 40, seed=0)
    model = small_exact("inferential", "pre")
    for tokens in (sequences.tokens, np.repeat(sequences.tokens[:20], 2, axis=0)):
        bench = EdgeAblation(model, tokens)
        assert bench.nothing[0] < 0.3
        again, other = (EdgeAblation(model, tokens, seed=seed) for seed in (0, 1))
        assert (again.nothing == bench.nothing).all()
        assert (other.nothing != bench.nothing).any()
    two = EdgeAblation(model, sequences.tokens[:2])
    swapped = EdgeAblation(model, sequences.tokens[:2], references=sequences.tokens[[1, 0]])
    assert (two.nothing == swapped.nothing).all()


@pytest.mark.parametrize("parts", ["edges", "edges and MLPs"])
@pytest.mark.parametrize("way", ALL)
def test_the_order_of_rows_changes_no_bit(way: Ablation, parts: Parts) -> None:
    """Some rows are there twice, with one answer or with two; so are some references."""
    model = random_model().to(torch.float32, print_details=False)
    tokens = aligned_sequences(FEW_KEYS, 2, 30, seed=0).tokens[np.arange(40) % 30]
    answers, wrong = np.arange(40) // 3, 20 + np.arange(40) % 4
    others = aligned_sequences(FEW_KEYS, 2, 40, seed=1).tokens[np.arange(40) % 37]
    generator, circuits = np.random.default_rng(0), None
    for order in (np.arange(40), np.arange(40)[::-1], generator.permutation(40)):
        examples = Examples(tokens[order], answers[order], wrong[order])
        given = [None] if way == "zero" else [None, others[order]]
        benches = [EdgeAblation(model, examples, way, references=r, parts=parts) for r in given]
        benches += [EdgeAblation(model, tokens[order], way, parts=parts)]
        if circuits is None:
            circuits = random_circuits(benches[0], 5)
            expected = [bench.measure(circuits) for bench in benches]
        for bench, scores in zip(benches, expected, strict=True):
            np.testing.assert_array_equal(bench.measure(circuits), scores)
            np.testing.assert_array_equal(bench.attention, benches[0].attention)


def test_no_row_is_exchanged_with_its_copy() -> None:
    """Copies of two rows are exchanged with each other; tokens behind the answer do not count."""
    model, two = random_model(), aligned_sequences(FEW_KEYS, 2, 2, seed=0).tokens
    circuits = random_circuits(EdgeAblation(model, two), 4)
    expected = EdgeAblation(model, two, references=two[::-1]).measure(circuits)
    alone = [EdgeAblation(model, two[[i]], references=two[[1 - i]]).measure(circuits)
             for i in (0, 1)]  # fmt: skip
    np.testing.assert_allclose(expected, np.mean(alone, axis=0), atol=1e-9)
    for times in ((1, 1), (5, 5), (9, 3)):
        found = EdgeAblation(model, np.repeat(two, times, axis=0)).measure(circuits)
        np.testing.assert_allclose(found, np.average(alone, axis=0, weights=times), atol=1e-9)
    later = np.repeat(two, 4, axis=0)
    later[:, 8] = np.arange(8)
    read = EdgeAblation(model, Examples(later, at=7))
    cut = EdgeAblation(model, later[:, :8])
    inside = random_circuits(cut, 4)
    whole = np.zeros((4, *read.reachable.shape), bool)
    whole[..., :8, :8] = inside
    np.testing.assert_allclose(read.measure(whole), cut.measure(inside), atol=1e-9)
    for way in ("mean", "resample"):
        with pytest.raises(ConfigError, match=f"{way}: one or only equal sequences"):
            EdgeAblation(model, np.repeat(two[:1], 4, axis=0), way)


@pytest.mark.parametrize("way", ALL)
def test_heads_and_mlps_are_ablated_as_by_hooks(model: HookedTransformer, way: Ablation) -> None:
    """A head that is ablated whole writes the reference's z; an MLP its output at a position."""
    sequences = aligned_sequences(FEW_KEYS, 2, 6, seed=0)
    others = None if way == "zero" else aligned_sequences(FEW_KEYS, 2, 6, seed=1)
    bench = EdgeAblation(model, sequences, way, references=others, parts="heads and MLPs")
    assert bench.n_parts == 3 * 3
    names = ["blocks.0.attn.hook_z", "blocks.1.hook_mlp_out"]
    instead = activations(model, sequences if others is None else others, names)
    ablated = np.zeros((1, *bench.reachable.shape), bool)
    ablated[:, 0, 1], ablated[:, 1, 2, 4, 4] = np.tri(9), True

    def write(name: str, part: tuple[slice | int, ...]) -> Any:
        value = instead[name]
        new = {"zero": value * 0, "mean": value.mean(0, keepdim=True), "resample": value}[way]

        def edit(activation: Tensor, hook: Any) -> Tensor:
            activation[part] = new.expand_as(activation)[part]
            return activation

        return name, edit

    every = slice(None)
    hooks = [write(names[0], (every, every, 1)), write(names[1], (every, 4))]
    logits = model.run_with_hooks(bench.tokens, fwd_hooks=hooks)[:, -1]
    chosen = logits.log_softmax(-1)[range(6), bench.answers]
    assert bench.measure(ablated)[2, 0] == pytest.approx(float(chosen.mean()), abs=1e-10)
    logits = model.run_with_hooks(bench.tokens, fwd_hooks=hooks[:1])[:, -1]
    row = ai.ablate_each(bench).to_frame().set_index("part").loc["L0H1"]
    chosen = logits.log_softmax(-1)[range(6), bench.answers]
    assert row.log_probability == pytest.approx(float(chosen.mean()), abs=1e-10)
    assert row.accuracy == float((logits.argmax(-1) == bench.answers).double().mean())


def test_a_mean_of_many_sequences_does_not_overflow_in_half_precision() -> None:
    n, carried = 3_000, 32.0
    patterns = torch.ones(1, n, 1, 2, 2, dtype=torch.float16)
    values = torch.full((1, n, 2, 1, 3), carried, dtype=torch.float16)
    assert (EdgeOutputs(patterns, values).mean().products == carried).all()


def test_each_sequence_needs_its_reference() -> None:
    model = random_model()
    none, mlps = no_edges(model, 9), torch.ones(3, 1, 9, dtype=torch.bool)
    references = edge_outputs(model, rows_of(model, 3), mlps=True)
    for edges, given in ((everything(model), {}), (everything(model).expand(-1, 4, -1, -1, -1), {}),
                         (none, {"mlps": mlps})):  # fmt: skip
        with (
            pytest.raises(ConfigError, match="there are 4 sequences and 3 references"),
            ablate_edges(model, edges, references, **given),
        ):
            model(rows_of(model, 4))
    assert not has_hooks(model)


SEQUENCES = aligned_sequences(FEW_KEYS, 2, 4, seed=0)
BETWEEN = aligned_sequences(FEW_KEYS, 3, 4, seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ablation": "none"}, "ablation is 'none'"),
        ({"sequences": draw(FEW_KEYS, FEW_KEYS.pairs, "all", 40, seed=0, stream="x")},
         r"'key' is at 7 positions; take .* examples\[examples\.positions\('key'\) == \d\]"),
        ({"sequences": SEQUENCES[0]}, "resample: one or only equal sequences need references"),
        ({"sequences": SEQUENCES[0], "ablation": "mean"}, "mean: one or only equal sequences"),
        ({"sequences": np.ones((2, 9))}, r"expected integers \[n, pos\]"),
        ({"sequences": np.ones((0, 9), np.int64)}, r"expected integers \[n, pos\]"),
        ({"sequences": SEQUENCES.tokens + 100}, "expected 0 to 119"),
        ({"ablation": "zero", "references": BETWEEN}, "the references of zero ablation is Seq"),
        ({"references": BETWEEN}, "have the positions noise, noise, noise, key"),
        ({"references": SEQUENCES.tokens[:, :8]}, "the references have the positions 0, 1, 2"),
        ({"sequences": Examples(SEQUENCES.tokens, [0, 1, 2, 120])}, "answers run from 0 to 120"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(
    arguments: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ConfigError, match=message) as caught:
        EdgeAblation(random_model(), **({"sequences": SEQUENCES} | arguments))
    assert "\n" not in str(caught.value)


def test_logits_that_are_not_finite_without_edges_are_refused() -> None:
    """A norm without an epsilon divides by 0 where attention writes nothing."""
    model = random_model("pre")
    norm = {"blocks.0.hook_attn_out": lambda out: out / out.norm(dim=-1, keepdim=True)}
    with hooked(model, norm), pytest.raises(ConfigError, match="with parts ablated, are not"):
        EdgeAblation(model, aligned_sequences(FEW_KEYS, 2, 6, seed=0), "zero")


def test_bad_models_are_refused() -> None:
    looking_ahead = random_model()
    looking_ahead.cfg.attention_dir = "bidirectional"
    with pytest.raises(ConfigError, match="attention is bidirectional; expected causal"):
        EdgeAblation(looking_ahead, SEQUENCES)
    without = random_model()
    for block in without.blocks:
        block.attn.W_O.data.zero_()
    bench = EdgeAblation(without, SEQUENCES)
    with pytest.raises(ConfigError, match=r"1\.00 of the answers are right, with none 1\.00"):
        bench.faithfulness(bench.reachable[None])
