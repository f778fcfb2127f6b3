"""Ablation of attention edges: identities, an independent forward pass, alignment, refusals."""

from collections.abc import Iterator
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float
from small_models import FEW_KEYS, LAYOUTS, random_model, small_exact
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp.interventions import ablation
from anchor_interp.interventions.ablation import (
    Ablation,
    Bench,
    ablate_edges,
    carried,
    reachable_edges,
)
from anchor_interp.interventions.hooks import activations
from anchor_interp.interventions.masks import mask_edges, no_edges
from anchor_interp.models.exact import MECHANISMS, Mechanism, Normalization, exact_answers
from anchor_interp.models.forward import last_logits
from anchor_interp.models.transformer import HookedTransformer, token_rows
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.sequences import aligned_sequences, draw, position_roles

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


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def test_ablating_nothing_changes_nothing(model: HookedTransformer) -> None:
    rows = rows_of(model, 6)
    found = carried(model, rows_of(model, 6, seed=1))
    before = model(rows)
    for reference in (None, found, found.mean()):
        with ablate_edges(model, no_edges(model, 9), reference):
            assert torch.equal(model(rows), before)


def test_what_a_sequence_carries_itself_is_no_change(model: HookedTransformer) -> None:
    rows = rows_of(model, 6)
    before = model(rows)
    with ablate_edges(model, random_edges(model, 6, 0.4, 1), carried(model, rows)):
        torch.testing.assert_close(model(rows), before, atol=1e-12, rtol=0)
    one = carried(model, rows[:1])
    with ablate_edges(model, everything(model), one.mean()):
        torch.testing.assert_close(model(rows[:1]), before[:1], atol=1e-12, rtol=0)


def test_without_a_reference_it_is_a_mask(model: HookedTransformer) -> None:
    rows, edges = rows_of(model, 6), random_edges(model, 6, 0.4, 2)
    with mask_edges(model, edges):
        expected = model(rows)
    with ablate_edges(model, edges):
        assert torch.equal(model(rows), expected)


@pytest.mark.parametrize("way", ["mean", "resample"])
@pytest.mark.parametrize("normalization", LAYOUTS)
def test_an_independent_forward_agrees(normalization: Normalization, way: str) -> None:
    model = random_model(normalization)
    rows, others = rows_of(model, 5), rows_of(model, 5, seed=1)
    edges = random_edges(model, 5, 0.3, 3)
    reference = carried(model, others)
    with ablate_edges(model, edges, reference if way == "resample" else reference.mean()):
        found = model(rows)
    nothing = torch.zeros_like(edges)
    _, products = by_hand(model, others, nothing, None)
    if way == "mean":
        products = [product.mean(0, keepdim=True).expand_as(product) for product in products]
    expected, _ = by_hand(model, rows, edges, products)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    assert (found - model(rows)).abs().max() > 1e-3


def by_hand(
    model: HookedTransformer, rows: Tensor, edges: Tensor, instead: list[Tensor] | None
) -> tuple[Float[Tensor, "batch pos d_vocab"], list[Tensor]]:
    """A decoder from its weights, and for every layer what each edge carries through W_O.

    The latter has shape [batch, head, query, key, d_model]; ``instead`` gives that of edges.
    """
    p, post = model.state_dict(), "ln_final.w" not in model.state_dict()

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + model.cfg.eps).sqrt()
        normed: Tensor = centred / scale * p[f"{name}.w"] + p[f"{name}.b"]
        return normed

    x = p["embed.W_E"][rows] + p["pos_embed.W_pos"][: rows.shape[1]]
    found = []
    for layer in range(model.cfg.n_layers):
        at = f"blocks.{layer}"
        source = x if post else norm(x, f"{at}.ln1")
        q, k, v = (
            torch.einsum("bpm,hmd->bhpd", source, p[f"{at}.attn.W_{s}"])
            + p[f"{at}.attn.b_{s}"][:, None]
            for s in "QKV"
        )
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / model.cfg.d_head**0.5
        future = torch.ones(scores.shape[-2:]).triu(1).bool()
        pattern = scores.masked_fill(future, -torch.inf).softmax(-1)
        out = torch.einsum("bhkd,hdm->bhkm", v, p[f"{at}.attn.W_O"])
        product = pattern[..., None] * out[:, :, None]
        found.append(product)
        if instead is not None:
            product = torch.where(edges[layer][..., None], instead[layer], product)
        update = product.sum((1, 3)) + p[f"{at}.attn.b_O"]
        x = norm(x + update, f"{at}.ln1") if post else x + update
        source = x if post else norm(x, f"{at}.ln2")
        hidden = (source @ p[f"{at}.mlp.W_in"] + p[f"{at}.mlp.b_in"]).relu()
        update = hidden @ p[f"{at}.mlp.W_out"] + p[f"{at}.mlp.b_out"]
        x = norm(x + update, f"{at}.ln2") if post else x + update
    return (x if post else norm(x, "ln_final")) @ p["unembed.W_U"] + p["unembed.b_U"], found


def test_ablating_everything_leaves_what_a_position_knows_by_itself(
    model: HookedTransformer,
) -> None:
    """Attention's output is the reference's, so the answer depends on the last token alone."""
    rows, others = rows_of(model, 6), rows_of(model, 6, seed=1)
    rows[1, :8] = rows[0, :8].flip(0)
    rows[1, 8] = rows[0, 8]
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(model.cfg.n_layers)]
    theirs = activations(model, others, names)
    found = carried(model, others)
    with ablate_edges(model, everything(model), found):
        resampled = activations(model, rows, names)
    with ablate_edges(model, everything(model), found.mean()):
        averaged = activations(model, rows, names)
        logits = model(rows)[:, -1]
    with ablate_edges(model, everything(model)):
        zeroed = activations(model, rows, names)
    for name in names:
        torch.testing.assert_close(resampled[name], theirs[name], atol=1e-12, rtol=0)
        mean = theirs[name].mean(0, keepdim=True).expand(6, -1, -1, -1)
        torch.testing.assert_close(averaged[name], mean, atol=1e-12, rtol=0)
        assert not zeroed[name].any()
    torch.testing.assert_close(logits[0], logits[1], atol=1e-12, rtol=0)
    assert (logits[0] - logits[2]).abs().max() > 1e-6


def test_heads_that_share_their_values_have_them_once() -> None:
    from transformer_lens import HookedTransformerConfig

    cfg = HookedTransformerConfig(
        n_layers=2, d_model=16, n_ctx=9, d_head=4, n_heads=4, n_key_value_heads=2, d_mlp=8,
        d_vocab=120, act_fn="relu", seed=0, device="cpu",
    )  # fmt: skip
    with pytest.warns(DeprecationWarning, match="HookedTransformer"):
        model = HookedTransformer(cfg)
    rows = rows_of(model, 5)
    before = model(rows)
    with ablate_edges(model, random_edges(model, 5, 0.4, 1), carried(model, rows)):
        torch.testing.assert_close(model(rows), before, atol=1e-6, rtol=0)


def test_a_batch_is_ablated_sequence_by_sequence(model: HookedTransformer) -> None:
    rows, found = rows_of(model, 5), carried(model, rows_of(model, 5, seed=1))
    edges = random_edges(model, 5, 0.3, 4)
    with ablate_edges(model, edges, found):
        batched = model(rows)
    for i in range(5):
        with ablate_edges(model, edges[:, i : i + 1], found.rows(torch.tensor([i]))):
            single = model(rows[i : i + 1])
        torch.testing.assert_close(batched[i : i + 1], single, atol=1e-12, rtol=0)


def test_disjoint_blocks_compose(model: HookedTransformer) -> None:
    rows, found = rows_of(model, 5), carried(model, rows_of(model, 5, seed=1))
    one = random_edges(model, 1, 0.3, 5)
    two = random_edges(model, 1, 0.3, 6) & ~one
    with ablate_edges(model, one | two, found):
        union = model(rows)
    with ablate_edges(model, one, found), ablate_edges(model, two, found):
        torch.testing.assert_close(model(rows), union, atol=1e-12, rtol=0)


def test_hooks_are_gone_after_an_exception(model: HookedTransformer) -> None:
    rows, found = rows_of(model, 4), carried(model, rows_of(model, 4, seed=1))
    before = model(rows)
    with pytest.raises(ZeroDivisionError), ablate_edges(model, everything(model), found):
        print(model(rows).shape[0] / 0)
    with (
        pytest.raises(ConfigError, match="give each sequence its reference"),
        ablate_edges(model, everything(model), found),
    ):
        model(rows[:3])
    with (
        pytest.raises(ConfigError, match="3 sequences and there are 4 references"),
        ablate_edges(model, everything(model).expand(-1, 3, -1, -1, -1), found),
    ):
        pass
    assert torch.equal(model(rows), before)
    assert not any(point.fwd_hooks for point in model.hook_dict.values())


@pytest.mark.parametrize(("layers", "heads", "n"), [(2, 1, 54), (3, 2, 198), (1, 1, 9)])
def test_the_edges_that_can_matter_are_those_that_do(layers: int, heads: int, n: int) -> None:
    """54 of 90 for two layers, one head and nine positions; found anew by cutting each edge."""
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


def test_roles_of_positions() -> None:
    noise = "noise"
    assert position_roles(9, 1) == (noise, "key", "first", "second", *[noise] * 4, "last")
    assert position_roles(9, 6) == (*[noise] * 6, "key", "first", "second")
    assert position_roles(3, None) == (noise, noise, "last")
    with pytest.raises(ConfigError, match="position is 7"):
        position_roles(9, 7)
    with pytest.raises(ConfigError, match="length is 0"):
        position_roles(0, None)


@pytest.mark.parametrize("position", [0, 2, 6])
def test_aligned_sequences_keep_positions(position: int) -> None:
    pairs = ((1, 2), (3, 4))
    found = aligned_sequences(FEW_KEYS, position, 40, seed=3, pairs=pairs, keys="test")
    assert len(found) == len(found.tokens) == 40
    assert (found.position == position).all()
    assert (found.tokens[:, position] == found.key).all()
    anchors = found.tokens[:, position + 1 : position + 3]
    assert {tuple(pair) for pair in anchors.tolist()} == set(pairs)
    assert (found.key % 9 == position).all()  # what a test key is
    fewer = aligned_sequences(FEW_KEYS, position, 7, seed=3, pairs=pairs, keys="test")
    assert (fewer.tokens == found.tokens[:7]).all()
    others = aligned_sequences(FEW_KEYS, position, 40, seed=4, pairs=pairs, keys="test")
    assert (others.tokens != found.tokens).any()


def test_no_pairs_are_not_all_pairs() -> None:
    with pytest.raises(ConfigError, match="no pair to draw from"):
        aligned_sequences(FEW_KEYS, 2, 3, seed=0, pairs=[])


def test_a_position_without_keys_is_refused() -> None:
    task = AnchorTask(key_min=20, key_max=21, unseen=())  # test keys stand at 2 and 3 alone
    assert len(aligned_sequences(task, 2, 3, seed=0, keys="test"))
    with pytest.raises(ConfigError, match="no test key stands at position 4; choose another"):
        aligned_sequences(task, 4, 3, seed=0, keys="test")
    with pytest.raises(ConfigError, match="position is 7; expected at most 6"):
        aligned_sequences(task, 7, 3, seed=0)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("normalization", LAYOUTS)
def test_an_exact_model_needs_its_attention(
    mechanism: Mechanism, normalization: Normalization
) -> None:
    model = small_exact(mechanism, normalization)
    sequences = aligned_sequences(FEW_KEYS, 2, 60, seed=0)
    answers = exact_answers(mechanism, FEW_KEYS, sequences)
    most_frequent = np.bincount(answers).max() / 60
    for way in ALL:
        bench = Bench(model, sequences, way)
        assert (bench.answers.numpy() == answers).all()
        assert bench.full[0] == 1
        assert bench.nothing[0] <= 2 * most_frequent
        assert bench.roles.index("key") == 2
        both = bench.faithfulness(np.stack([bench.reachable, np.zeros_like(bench.reachable)]))
        np.testing.assert_allclose(both, [[1, 0], [1, 0]], atol=1e-9)


def random_circuits(bench: Bench, n: int) -> Bool[np.ndarray, "circuit layer head query key"]:
    shape = (n, *bench.reachable.shape)
    return bench.reachable & (np.random.default_rng(1).random(shape) < 0.3)


@pytest.mark.parametrize("way", ALL)
def test_many_circuits_are_measured_as_each_by_itself(
    way: Ablation, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model()
    bench = Bench(model, aligned_sequences(FEW_KEYS, 2, 10, seed=0), way)
    circuits = random_circuits(bench, 6)
    together = bench.measure(circuits)
    alone = np.concatenate([bench.measure(circuit[None]) for circuit in circuits], axis=1)
    np.testing.assert_allclose(together, alone, atol=1e-12)
    monkeypatch.setattr(ablation, "BATCH", 7)  # circuits and sequences share forward passes
    np.testing.assert_allclose(together, bench.measure(circuits), atol=1e-12)
    assert np.unique(together[1].round(9)).size == 6


def test_the_numbers_are_those_of_the_logits() -> None:
    model = random_model()
    sequences = aligned_sequences(FEW_KEYS, 2, 10, seed=0)
    references = aligned_sequences(FEW_KEYS, 2, 10, seed=1)
    answers = np.arange(20, 30)
    bench = Bench(model, sequences, references=references, answers=answers)
    (circuit,) = random_circuits(bench, 1)
    edges = torch.from_numpy(circuit)[:, None]
    with ablate_edges(model, edges, carried(model, references.tokens.astype(np.int64))):
        logits = last_logits(model, bench.tokens)
    accuracy, difference, log_probability = bench.measure(circuit[None])[:, 0]
    differences = []
    for row, answer in zip(logits.numpy(), answers, strict=True):
        differences.append(row[answer] - max(np.delete(row, answer)))
    assert accuracy == (logits.argmax(-1).numpy() == answers).mean()
    assert difference == pytest.approx(np.mean(differences), abs=1e-12)
    chosen = logits.log_softmax(-1)[range(10), answers]
    assert log_probability == pytest.approx(float(chosen.mean()), abs=1e-12)


def test_references_go_around() -> None:
    """Sequence i takes the i-th reference, over and over; one sequence takes each of them."""
    model = random_model()
    few = aligned_sequences(FEW_KEYS, 2, 3, seed=1).tokens
    many = aligned_sequences(FEW_KEYS, 2, 6, seed=0)
    circuits = random_circuits(Bench(model, many), 4)

    def found(sequences: np.ndarray, references: np.ndarray | None) -> np.ndarray:
        return Bench(model, sequences, references=references, position=2).measure(circuits)

    around = found(many.tokens, few)
    np.testing.assert_allclose(around, found(many.tokens, np.concatenate([few, few])), atol=1e-12)
    np.testing.assert_allclose(
        found(many.tokens, None), found(many.tokens, np.roll(many.tokens, -1, 0)), atol=1e-12
    )
    one = many.tokens[:1]
    each = np.mean([found(one, reference[None]) for reference in few], axis=0)
    np.testing.assert_allclose(found(one, few), each, atol=1e-12)


def test_the_mean_is_over_the_references() -> None:
    model = random_model()
    sequences = aligned_sequences(FEW_KEYS, 2, 6, seed=0)
    references = aligned_sequences(FEW_KEYS, 2, 4, seed=1)
    circuits = random_circuits(Bench(model, sequences), 4)
    own = Bench(model, sequences, "mean").measure(circuits)
    same = Bench(model, sequences, "mean", references=sequences).measure(circuits)
    np.testing.assert_allclose(own, same, atol=1e-12)
    other = Bench(model, sequences, "mean", references=references).measure(circuits)
    assert np.abs(other - own)[1].min() > 1e-6


SEQUENCES = aligned_sequences(FEW_KEYS, 2, 4, seed=0)
BETWEEN = aligned_sequences(FEW_KEYS, 3, 4, seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ablation": "none"}, "ablation is 'none'"),
        ({"sequences": draw(FEW_KEYS, FEW_KEYS.pairs, "all", 40, seed=0, stream="x")},
         "the key at 7 positions; expected one"),
        ({"position": 2}, "know their key's position; leave position out"),
        ({"sequences": SEQUENCES.tokens[0]}, "resample ablation of one sequence needs references"),
        ({"sequences": SEQUENCES.tokens[0], "ablation": "mean"}, "mean ablation of one sequence"),
        ({"sequences": np.ones((2, 9))}, r"expected token indices \(n, length\)"),
        ({"sequences": np.ones((0, 9), np.int64)}, r"expected token indices \(n, length\)"),
        ({"sequences": SEQUENCES.tokens + 100}, "expected 0 to 119"),
        ({"references": BETWEEN}, "key at position 3; the sequences have 9 and 2"),
        ({"references": SEQUENCES.tokens[:, :8]}, "the references have 8 tokens"),
        ({"references": SEQUENCES, "ablation": "zero"}, "zero ablation takes no references"),
        ({"answers": np.zeros(4)}, "expected 4 integers"),
        ({"answers": np.zeros(3, np.int64)}, "expected 4 integers"),
        ({"answers": np.array([0, 1, 2, 120])}, "answers run up to 120; expected 0 to 119"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(
    arguments: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ConfigError, match=message) as caught:
        Bench(random_model(), **({"sequences": SEQUENCES} | arguments))
    assert "\n" not in str(caught.value)


def test_models_that_cannot_be_measured_are_refused() -> None:
    damaged = random_model()
    damaged.blocks[1].attn.W_V.data[0, 0] = torch.nan
    with pytest.raises(ConfigError, match="logits are not finite; its weights are damaged"):
        Bench(damaged, SEQUENCES)
    with pytest.raises(ConfigError, match="logits are not finite; its weights are damaged"):
        Bench(damaged, SEQUENCES, answers=np.array([20, 21, 22, 23]))
    looking_ahead = random_model()
    looking_ahead.cfg.attention_dir = "bidirectional"
    with pytest.raises(ConfigError, match="attention is bidirectional; expected causal"):
        Bench(looking_ahead, SEQUENCES)
    without = random_model()
    for block in without.blocks:
        block.attn.W_O.data.zero_()
    bench = Bench(without, SEQUENCES)
    with pytest.raises(ConfigError, match=r"1\.00 of the answers stay, in place of 1\.00"):
        bench.faithfulness(bench.reachable[None])
