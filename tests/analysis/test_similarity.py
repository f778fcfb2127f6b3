"""Similarities: on models of known mechanism, and the contrast as mathematics."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from small_models import EACH_EXACT, LAYOUTS, lens_model
from thirty_keys import (
    SMALL,
    arbitrary_model,
    known_model,
    with_graded_logits,
)

import anchor_interp
from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.read_states import State, read_state
from anchor_interp.analysis.similarity import (
    PAPER_VALUES,
    answer_similarity,
    block_similarity,
    value_similarity,
)
from anchor_interp.analysis.similarity_contrast import (
    SimilarityContrast,
    centred_cosines,
    similarity_contrast,
)
from anchor_interp.interventions.hooks import activations, hooked
from anchor_interp.models.exact import Mechanism, Normalization, exact_model
from anchor_interp.tasks.anchor import TASKS
from anchor_interp.tasks.sequences import draw


@EACH_EXACT
def test_only_the_inferential_model_has_parallel_values(
    mechanism: Mechanism, normalization: Normalization
) -> None:
    states: tuple[Any, ...] = ("V", "OV")
    for state in states:
        model = known_model(mechanism, normalization)
        test = value_similarity(model, SMALL, state=state, n_contexts=2).contrast
        if mechanism == "inferential":
            # one-hot g(x; a1): 1 for equal values, -1 / 29 after centring for others
            assert test.equal == pytest.approx(1, abs=0.05)
            assert test.near == pytest.approx(-1 / 29, abs=0.02)
            assert (test.p_value, test.n_permutations, test.exact) == (1 / 48, 48, True)
        else:  # no value, or (lookup) the key, which is the same for all anchors
            assert test.difference == pytest.approx(0, abs=0.01)
            assert test.p_value > 0.2


@EACH_EXACT
def test_answers_are_parallel_if_the_model_has_them(
    mechanism: Mechanism, normalization: Normalization
) -> None:
    """Before its last MLP, inferential has g(x; a1) and a2, symmetric key and pair."""
    test = answer_similarity(known_model(mechanism, normalization), SMALL, n_contexts=2).contrast
    # 1 with 2, 3 with 4, both directions of the keys
    assert (test.n_permutations, test.exact) == (8, True)
    if mechanism == "lookup":
        assert test.difference == pytest.approx(1, abs=0.1)
        assert test.p_value == 1 / 8
    elif mechanism == "symmetric":
        assert test.difference == pytest.approx(0, abs=1e-3)
        assert test.p_value > 0.2
    else:  # one-hot g: parallel for the share of equal answers that have g in common
        pairs = [pair for pair in SMALL.pairs if pair not in SMALL.unseen]
        between = np.array([SMALL.function(a)(SMALL.keys) for a, _ in pairs])
        answers = np.array([SMALL.composed(pair, SMALL.keys) for pair in pairs])
        strata = comparisons(answers, SMALL.keys, pairs)
        assert test.n_equal == sum(len(equal) for equal, _ in strata)
        assert test.n_near == sum(len(near) for _, near in strata)
        same = [between[g, i] == between[h, j] for e, _ in strata for g, i, h, j in e]
        share = float(np.mean(same))
        assert test.equal == pytest.approx(share - (1 - share) / 29, abs=0.02)


@EACH_EXACT
def test_what_a_second_anchor_mask_leaves(
    mechanism: Mechanism, normalization: Normalization
) -> None:
    """It leaves nothing of an exact model's logits; its last state keeps g(x; a1) if it has it."""
    model = known_model(mechanism, normalization)
    logits = block_similarity(model, SMALL, n_contexts=2)
    assert not logits.cosine.any()
    assert (logits.contrast.difference, logits.contrast.p_value) == (0, 1)
    state = block_similarity(model, SMALL, state="X_ao", n_contexts=2).contrast
    if mechanism == "inferential":
        assert state.difference == pytest.approx(1, abs=0.05)
        assert state.p_value == 1 / 48
    else:
        assert state.difference == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("mechanism", ["inferential", "symmetric"])
def test_graded_logits_show_what_the_state_holds(mechanism: Mechanism) -> None:
    model = with_graded_logits(mechanism)
    test = block_similarity(model, SMALL, n_contexts=2).contrast
    if mechanism == "inferential":
        assert test.equal == pytest.approx(1, abs=0.05)
        assert test.difference > 0.5
        assert test.p_value == 1 / 48
    else:
        assert test.difference == pytest.approx(0, abs=0.01)
        assert test.p_value > 0.05


def test_the_papers_items() -> None:
    task = TASKS["complexity-control"]
    model = anchor_interp.load("tiny/inferential/1").model
    values = value_similarity(model, task, n_contexts=1)
    assert values.keys.tolist() == list(range(30, 41)) * 4
    assert (values.values == values.keys + np.repeat([5, 1, -2, -8], 11)).all()
    blocks = block_similarity(model, task)
    assert blocks.values.tolist() == np.repeat(list(PAPER_VALUES), 4).tolist()
    assert blocks.contrast.difference > 0.3
    answers = answer_similarity(model, task, n_contexts=1)
    assert answers.values[[0, 6, 11, 17]].tolist() == [26, 32, 32, 38]
    assert value_similarity(model, task, n_contexts=1).contrast == values.contrast
    assert value_similarity(model, task, n_contexts=1, seed=1).contrast != values.contrast


def test_ov_does_not_depend_on_the_basis_inside_a_head() -> None:
    plain, turned = arbitrary_model("pre"), arbitrary_model("pre")
    generator = torch.Generator().manual_seed(3)
    block: Any = turned.blocks[1]
    with torch.no_grad():
        for head in range(2):
            R = torch.randn(5, 5, generator=generator, dtype=torch.float64) + 2 * torch.eye(5)
            for part in (block.attn.W_V, block.attn.b_V):
                part[head] = part[head] @ R
            block.attn.W_O[head] = torch.linalg.inv(R) @ block.attn.W_O[head]
    cases: tuple[tuple[Any, bool], ...] = (("OV", True), ("V", False))
    for state, same in cases:
        before, after = (
            value_similarity(model, SMALL, state=state, n_contexts=1) for model in (plain, turned)
        )
        assert np.allclose(before.cosine, after.cosine, atol=1e-9) == same
        assert np.isclose(before.contrast.difference, after.contrast.difference) == same


@pytest.mark.parametrize("normalization", [*LAYOUTS, None])
def test_each_tensor_is_what_its_reader_sees(normalization: Normalization | None) -> None:
    """Weights applied to a tensor by hand give what the model computes from it."""
    olmo = lens_model(original_architecture="Olmo2ForCausalLM")
    model = olmo if normalization is None else arbitrary_model(normalization)
    sequences = draw(SMALL, SMALL.pairs, "all", 5, seed=0, stream="states")
    rows = torch.arange(5), torch.from_numpy(sequences.positions("first"))

    def state(name: State, layer: int) -> np.ndarray:
        return read_state(model, name, layer, "first", sequences)

    for layer in (0, 1):
        block: Any = model.blocks[layer]
        with torch.no_grad():
            W_V, b_V, W_O = (w.numpy() for w in (block.attn.W_V, block.attn.b_V, block.attn.W_O))
            W_in, b_in = block.mlp.W_in.numpy(), block.mlp.b_in.numpy()
        values = np.einsum("bd,hde->bhe", state("X", layer), W_V) + b_V
        np.testing.assert_allclose(state("V", layer), values.reshape(5, -1), atol=1e-12)
        written = np.einsum("bhe,hed->bhd", values, W_O)
        np.testing.assert_allclose(state("OV", layer), written.reshape(5, -1), atol=1e-12)
        name = f"blocks.{layer}.mlp.hook_pre"
        hidden = activations(model, sequences.tokens, [name])[name][rows].numpy()
        np.testing.assert_allclose(state("X_ao", layer) @ W_in + b_in, hidden, atol=1e-12)
    np.testing.assert_allclose(state("X_do", 0), state("X", 1), atol=1e-12)
    with torch.no_grad():
        logits = model(torch.from_numpy(sequences.tokens).long())[rows].numpy()
        W_U, b_U = model.unembed.W_U.numpy(), model.unembed.b_U.numpy()
    np.testing.assert_allclose(state("X_do", 1) @ W_U + b_U, logits, atol=1e-12)


@pytest.mark.parametrize(
    ("mechanism", "normalization"),
    [("inferential", "pre"), ("lookup", "post")],
)
def test_double_precision_has_the_contrasts_of_single(
    mechanism: Mechanism, normalization: Normalization
) -> None:
    """Where a model has nothing, rounding leaves something of another size."""
    single = known_model(mechanism, normalization)
    double = exact_model(mechanism, SMALL, normalization=normalization, dtype=torch.float64)
    measures: list[tuple[Any, dict[str, Any]]] = [
        (value_similarity, {"state": "V"}), (value_similarity, {"state": "OV"}),
        (answer_similarity, {}), (block_similarity, {}), (block_similarity, {"state": "X_ao"}),
    ]  # fmt: skip
    for measure, options in measures:
        one, two = (measure(m, SMALL, n_contexts=1, **options) for m in (single, double))
        assert one.contrast.difference == pytest.approx(two.contrast.difference, abs=0.01)
        np.testing.assert_allclose(one.cosine, two.cosine, atol=0.01)
        np.testing.assert_allclose(one.centred, two.centred, atol=0.01)
    if mechanism == "lookup":  # no value at the first anchor in layer 1
        found = value_similarity(double, SMALL, n_contexts=1)
        assert not found.cosine.any()
        contrast = found.contrast
        assert (contrast.difference, contrast.effect, contrast.p_value) == (0, None, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_of_rounding_are_absent(dtype: torch.dtype) -> None:
    """Without the values of layer 1 the lookup has no answer: its logits are rounding."""
    model = exact_model("lookup", SMALL, dtype=dtype)
    with hooked(model, {"blocks.1.attn.hook_v": torch.zeros_like}):
        found = block_similarity(model, SMALL, n_contexts=1)
    assert not found.cosine.any()
    assert not found.centred.any()
    assert (found.contrast.difference, found.contrast.p_value) == (0, 1)


def test_small_values_are_not_absent() -> None:
    """Only the weights that they are made with say what rounding is."""
    model = exact_model("inferential", SMALL)
    block: Any = model.blocks[1]
    before = value_similarity(model, SMALL, n_contexts=1)
    with torch.no_grad():
        block.attn.W_V.mul_(2.0**-30)
    after = value_similarity(model, SMALL, n_contexts=1)
    np.testing.assert_allclose(after.cosine, before.cosine, atol=1e-6)
    assert after.contrast.difference == pytest.approx(before.contrast.difference)


Item = tuple[int, int, int, int]


def comparisons(
    values: np.ndarray, keys: np.ndarray, groups: Sequence[tuple[int, ...]]
) -> list[tuple[list[Item], list[Item]]]:
    """Equal values and near misses of each stratum that has both, in loops."""
    anchors = sorted({anchor for group in groups for anchor in group})
    renamings = [
        dict(zip(anchors, renamed, strict=True)) for renamed in itertools.permutations(anchors)
    ]
    found: dict[Any, tuple[list[Item], list[Item]]] = {}
    for g, h in itertools.combinations(range(len(groups)), 2):
        alike = min(  # the first of all names that these groups could have
            sorted(tuple(new[a] for a in groups[of]) for of in (g, h)) for new in renamings
        )
        for i, j in itertools.product(range(len(keys)), repeat=2):
            missed = abs(int(values[g, i] - values[h, j]))
            if missed <= 2:
                at = (*alike, abs(int(keys[i] - keys[j])))
                found.setdefault(at, ([], []))[missed > 0].append((g, i, h, j))
    return [both for both in found.values() if all(both)]


def by_hand(
    vectors: np.ndarray, values: np.ndarray, keys: np.ndarray, groups: Sequence[tuple[int, ...]]
) -> float:
    """The contrast in loops: mean cosine of either kind in each stratum."""
    centred = vectors - vectors.mean(2, keepdims=True)

    def mean(items: list[Item]) -> float:
        return float(np.mean([
            u[g, i] @ u[h, j] / np.linalg.norm(u[g, i]) / np.linalg.norm(u[h, j])
            for u in centred for g, i, h, j in items
        ]))  # fmt: skip

    strata = comparisons(values, keys, groups)
    differences = [mean(equal) - mean(near) for equal, near in strata]
    return float(np.average(differences, weights=[len(equal) for equal, _ in strata]))


KEYS = np.arange(20, 44)
OFFSETS = {1: 5, 2: 1, 3: -2, 4: -8}
ANCHORS = [(anchor,) for anchor in OFFSETS]
VALUES = KEYS + np.array(list(OFFSETS.values()))[:, None]
PAIRS = list(itertools.product(OFFSETS, repeat=2))
ANSWERS = KEYS + np.array([OFFSETS[a] + OFFSETS[b] for a, b in PAIRS])[:, None]


def contrast_of(
    vectors: np.ndarray,
    groups: Sequence[tuple[int, ...]] = ANCHORS,
    values: np.ndarray = VALUES,
    seed: int = 0,
) -> SimilarityContrast:
    return similarity_contrast(centred_cosines(vectors), groups, values, KEYS, seed=seed)


def test_the_contrast_of_anchors_in_loops() -> None:
    vectors = np.random.default_rng(0).standard_normal((2, 4, 24, 6))
    found = contrast_of(vectors)
    assert found.difference == pytest.approx(by_hand(vectors, VALUES, KEYS, ANCHORS))
    assert found.difference == pytest.approx(found.equal - found.near)
    # differences of the offsets; 13 has no near misses
    assert found.n_equal == sum(24 - d for d in (3, 4, 6, 7, 9))


def test_the_contrast_of_pairs_in_loops() -> None:
    vectors = np.random.default_rng(0).standard_normal((1, 14, 24, 6))
    found = contrast_of(vectors, PAIRS[:14], ANSWERS[:14])
    assert found.difference == pytest.approx(by_hand(vectors, ANSWERS[:14], KEYS, PAIRS[:14]))
    # without (4, 3) and (4, 4): 1 and 2 may change places, and the keys' direction
    assert (found.n_permutations, found.exact) == (4, True)


def test_vectors_that_depend_on_each_anchor_separately_have_no_contrast() -> None:
    """Smooth u(a1, x) + w(a2, x), as in a model that does not compose: (1, 2) is like (1, 3)."""
    generator = np.random.default_rng(3)
    smooth = np.exp(-(np.subtract.outer(KEYS, KEYS) ** 2) / (2 * 8**2))
    draws = np.linalg.cholesky(smooth + 1e-6 * np.eye(len(KEYS)))
    first, second = (np.array(PAIRS) - 1).T
    p_values, differences = [], []
    for _ in range(100):
        u, w = draws @ generator.standard_normal((2, 4, len(KEYS), 8))
        found = contrast_of((u[first] + w[second])[None], PAIRS, ANSWERS)
        assert (found.n_permutations, found.exact) == (48, True)
        p_values.append(found.p_value)
        differences.append(found.difference)
    for level in (1 / 24, 0.25, 0.5):  # 100 draws scatter by 0.02 to 0.05
        assert np.mean(np.array(p_values) <= level) == pytest.approx(
            level, abs=0.15 if level > 0.1 else 0.06
        )
    assert abs(np.mean(differences)) < 4 * np.std(differences) / 10


def test_what_an_anchor_adds_to_all_its_vectors_does_not_count() -> None:
    generator = np.random.default_rng(1)
    vectors = generator.standard_normal((1, 4, 24, 6))
    found = contrast_of(vectors)
    moved = contrast_of(vectors + 9 * generator.standard_normal((1, 4, 1, 6)))
    assert moved.difference == pytest.approx(found.difference)
    assert moved.p_value == found.p_value
    scaled = contrast_of(vectors * generator.uniform(1, 5, (1, 1, 24, 1)))
    assert scaled.difference != pytest.approx(found.difference)  # centring comes first


def test_smooth_keys_alone_have_no_contrast() -> None:
    """On a circle of keys |x - x'| determines the cosine."""
    angle = 2 * np.pi * (KEYS - KEYS[0]) / len(KEYS)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    found = contrast_of(np.broadcast_to(circle, (1, 4, 24, 2)))
    assert found.difference == pytest.approx(0, abs=1e-12)
    assert found.effect is None  # nothing scatters at one |x - x'|
    assert found.p_value == 1
    # values on a slow curve: near misses are nearly as similar as equal values
    curve = np.stack([np.cos(VALUES / 4), np.sin(VALUES / 4)], axis=-1)[None]
    assert 0 < contrast_of(curve).difference < 0.2
    # one-hot values: the rule alone
    found = contrast_of(np.eye(60)[VALUES][None])
    assert found.difference == pytest.approx(1, abs=0.1)
    assert found.p_value == 1 / 48


def test_relabellings_are_drawn_if_there_are_too_many() -> None:
    anchors = [(a,) for a in range(8)]
    values = KEYS + np.arange(8)[:, None] * 2
    found = contrast_of(np.eye(80)[values][None], anchors, values, seed=3)
    assert (found.n_permutations, found.exact) == (999, False)
    assert found.p_value == 1 / 1000
    noise = np.random.default_rng(0).standard_normal((1, 8, 24, 5))
    first, second = (contrast_of(noise, anchors, values, seed=3) for _ in range(2))
    assert first == second


def test_a_rule_without_near_misses_is_refused() -> None:
    far = VALUES[:1].repeat(2, 0) + np.array([[0], [50]])
    with pytest.raises(ConfigError, match="have no contrast"):
        contrast_of(np.zeros((1, 2, 24, 3)), ANCHORS[:2], far)
