"""Similarities, contrasts and clusters: on models whose mechanism is known, and as mathematics."""

import itertools
from collections.abc import Sequence
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from small_models import with_offsets
from transformer_lens import HookedTransformer

import anchor_interp
from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.clusters import _tsne, key_mask_clusters, pair_clusters
from anchor_interp.analysis.sensitivity import sensitivity
from anchor_interp.analysis.similarity import (
    PAPER_VALUES,
    answer_similarity,
    block_similarity,
    contrast,
    value_similarity,
)
from anchor_interp.analysis.states import read_state
from anchor_interp.interventions.hooks import activations, hooked
from anchor_interp.interventions.masks import leak
from anchor_interp.models.exact import MECHANISMS, Mechanism, Normalization, exact_model
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer import build_model
from anchor_interp.tasks.anchor import TASKS, Affine, Anchor, AnchorTask
from anchor_interp.tasks.sequences import draw, places

TASK = TASKS["complexity-control"]
SMALL = AnchorTask(
    anchors=tuple(Anchor(token, Affine(add)) for token, add in ((1, 5), (2, 1), (3, -2), (4, -8))),
    unseen=((3, 4), (4, 3)), key_min=20, key_max=49, length=7,
)  # fmt: skip
"""The papers' anchors on 30 keys: hand-set models are a third as wide."""
LAYOUTS: list[Normalization] = ["post", "pre"]
CASES = list(itertools.product(MECHANISMS, LAYOUTS))


@pytest.fixture(scope="module")
def models() -> dict[tuple[Mechanism, Normalization], HookedTransformer]:
    return {
        (mechanism, normalization): exact_model(mechanism, SMALL, normalization=normalization)
        for mechanism, normalization in CASES
    }


def random_model(normalization: Normalization, *, n_heads: int = 2) -> HookedTransformer:
    shape = ModelConfig(
        n_heads=n_heads, d_model=12, d_head=5, d_mlp=16, bias=True, normalization=normalization
    )
    built = build_model(shape, InitConfig(), seed=0, dtype=torch.float64)
    return with_offsets(built)


@pytest.mark.parametrize("case", CASES)
def test_only_the_inferential_model_has_parallel_values(models: Any, case: Any) -> None:
    for state in ("V", "OV"):
        found = value_similarity(models[case], SMALL, state=state, n_contexts=2)
        test = found.contrast
        if case[0] == "inferential":
            # one-hot g(x; a1): 1 for equal values, -1 / 29 after centring for others
            assert test.equal == pytest.approx(1, abs=0.05)
            assert test.near == pytest.approx(-1 / 29, abs=0.02)
            assert (test.p_value, test.n_permutations, test.exact) == (1 / 48, 48, True)
        else:  # no value, or (lookup) the key, which is the same for all anchors
            assert test.difference == pytest.approx(0, abs=0.01)
            assert test.p_value > 0.2


@pytest.mark.parametrize("case", CASES)
def test_answers_are_parallel_where_the_model_has_them(models: Any, case: Any) -> None:
    """Before its last MLP, inferential has g(x; a1) and a2, symmetric key and pair."""
    found = answer_similarity(models[case], SMALL, n_contexts=2)
    test = found.contrast
    # 1 with 2, 3 with 4, both directions of the keys
    assert (test.n_permutations, test.exact) == (8, True)
    if case[0] == "lookup":
        assert test.difference == pytest.approx(1, abs=0.1)
        assert test.p_value == 1 / 8
    elif case[0] == "symmetric":
        assert test.difference == pytest.approx(0, abs=1e-3)
        assert test.p_value > 0.2
    else:  # one-hot g: parallel for the share of equal answers that have g in common
        pairs = [pair for pair in SMALL.pairs if pair not in SMALL.unseen]
        between = np.array([SMALL.function(a)(SMALL.keys) for a, _ in pairs])
        answers = np.array([SMALL.composed(pair, SMALL.keys) for pair in pairs])
        found_at = comparisons(answers, SMALL.keys, pairs)
        assert test.n_equal == sum(len(equal) for equal, _ in found_at)
        assert test.n_near == sum(len(near) for _, near in found_at)
        same = [between[g, i] == between[h, j] for e, _ in found_at for g, i, h, j in e]
        share = float(np.mean(same))
        assert test.equal == pytest.approx(share - (1 - share) / 29, abs=0.02)


@pytest.mark.parametrize("case", CASES)
def test_what_a_second_anchor_mask_leaves(models: Any, case: Any) -> None:
    """Of the hand-set models' logits nothing; of the last state g(x; a1) if it is there."""
    logits = block_similarity(models[case], SMALL, n_contexts=2)
    assert not logits.cosine.any()
    assert (logits.contrast.difference, logits.contrast.p_value) == (0, 1)
    state = block_similarity(models[case], SMALL, state="X_ao", n_contexts=2).contrast
    if case[0] == "inferential":
        assert state.difference == pytest.approx(1, abs=0.05)
        assert state.p_value == 1 / 48
    else:
        assert state.difference == pytest.approx(0, abs=0.01)


def test_graded_logits_show_what_the_state_holds() -> None:
    """Hand-set states through an unembedding that gives neighbouring answers similar logits."""
    for mechanism in ("inferential", "symmetric"):
        model = exact_model(mechanism, SMALL)
        d_model, d_vocab = model.W_U.shape
        answers = torch.arange(d_vocab)
        overlap = torch.exp(-((answers[:, None] - answers) ** 2) / (2 * 1.5**2))
        reads = torch.randn(d_model, d_vocab, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            model.W_U.copy_(reads @ overlap)
            model.W_U[:3] = 0  # the constants of the stream
        for renormalise in (False, True):
            test = block_similarity(model, SMALL, n_contexts=2, renormalise=renormalise).contrast
            if mechanism == "inferential":  # near misses go their own ways
                assert test.equal == pytest.approx(1, abs=0.05)
                assert test.difference > 0.5
                assert test.p_value == 1 / 48
            else:
                assert test.difference == pytest.approx(0, abs=0.01)
                assert test.p_value > 0.05
        clusters = key_mask_clusters(model, SMALL, n=30)
        if mechanism == "symmetric":
            assert clusters.agreement_unordered > 0.5
            assert known(clusters.silhouette_unordered) > 0.2
            assert clusters.silhouette_order == pytest.approx(0, abs=0.02)
        else:  # the pairs leave noise alone
            assert clusters.agreement_unordered == pytest.approx(0, abs=0.05)


def test_the_papers_items() -> None:
    model = anchor_interp.load("tiny/inferential/1").model
    values = value_similarity(model, TASK, n_contexts=1)
    assert values.anchors == tuple((a,) for a in (1, 2, 3, 4) for _ in range(11))
    assert values.keys.tolist() == list(range(30, 41)) * 4
    assert (values.values == values.keys + np.repeat([5, 1, -2, -8], 11)).all()
    blocks = block_similarity(model, TASK)
    assert blocks.values.tolist() == np.repeat(list(PAPER_VALUES), 4).tolist()
    assert blocks.contrast.difference > 0.3
    answers = answer_similarity(model, TASK, n_contexts=1, keys=[30, 36], pairs=[(3, 3), (2, 2)])
    assert answers.values.tolist() == [26, 32, 32, 38]
    for found in (values, blocks, answers):
        np.testing.assert_allclose(found.cosine, found.cosine.T, atol=1e-12)
        np.testing.assert_allclose(np.diag(found.cosine), 1)
    again = value_similarity(model, TASK, n_contexts=1)
    assert again.contrast == values.contrast
    other = value_similarity(model, TASK, n_contexts=1, seed=1)
    assert other.contrast != values.contrast


def test_ov_space_does_not_depend_on_the_basis_inside_a_head() -> None:
    plain, turned = random_model("pre"), random_model("pre")
    generator = torch.Generator().manual_seed(3)
    block: Any = turned.blocks[1]
    with torch.no_grad():
        for head in range(2):
            R = torch.randn(5, 5, generator=generator, dtype=torch.float64) + 2 * torch.eye(5)
            for part in (block.attn.W_V, block.attn.b_V):
                part[head] = part[head] @ R
            block.attn.W_O[head] = torch.linalg.inv(R) @ block.attn.W_O[head]
    for state, same in (("OV", True), ("V", False)):
        before, after = (
            value_similarity(model, SMALL, state=state, n_contexts=1)  # type: ignore[arg-type]
            for model in (plain, turned)
        )
        assert np.allclose(before.cosine, after.cosine, atol=1e-9) == same
        assert np.isclose(before.contrast.difference, after.contrast.difference) == same


@pytest.mark.parametrize("normalization", LAYOUTS)
def test_each_tensor_is_what_its_reader_sees(normalization: Normalization) -> None:
    model = random_model(normalization)
    sequences = draw(SMALL, SMALL.pairs, "all", 5, seed=0, stream="states")
    tokens, at = sequences.tokens, places(sequences, "first")
    rows = torch.arange(5), torch.from_numpy(at)

    def seen(name: str) -> np.ndarray:
        activation: np.ndarray = activations(model, tokens, [name])[name][rows].numpy()
        return activation

    def state(name: Any, layer: int) -> np.ndarray:
        return read_state(model, name, layer, tokens, at)

    for layer in (0, 1):
        block: Any = model.blocks[layer]
        with torch.no_grad():
            W_V, b_V, W_O = (w.numpy() for w in (block.attn.W_V, block.attn.b_V, block.attn.W_O))
            W_in, b_in = block.mlp.W_in.numpy(), block.mlp.b_in.numpy()
        values = np.einsum("bd,hde->bhe", state("X", layer), W_V) + b_V
        np.testing.assert_allclose(state("V", layer), values.reshape(5, -1), atol=1e-12)
        written = np.einsum("bhe,hed->bhd", values, W_O)
        np.testing.assert_allclose(state("OV", layer), written.reshape(5, -1), atol=1e-12)
        hidden = seen(f"blocks.{layer}.mlp.hook_pre")
        np.testing.assert_allclose(state("X_ao", layer) @ W_in + b_in, hidden, atol=1e-12)
    np.testing.assert_allclose(state("X_do", 0), state("X", 1), atol=1e-12)
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens).long())[rows].numpy()
        W_U, b_U = model.unembed.W_U.numpy(), model.unembed.b_U.numpy()
    np.testing.assert_allclose(state("X_do", 1) @ W_U + b_U, logits, atol=1e-12)


def known(value: float | None) -> float:
    assert value is not None
    return value


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
VALUES = KEYS + np.array(list(OFFSETS.values()))[:, None]
PAIRS = list(itertools.product(OFFSETS, repeat=2))
ANSWERS = KEYS + np.array([OFFSETS[a] + OFFSETS[b] for a, b in PAIRS])[:, None]


def test_the_contrast_in_loops() -> None:
    vectors = np.random.default_rng(0).standard_normal((2, 4, 24, 6))
    found = contrast(vectors, VALUES, KEYS)
    assert found.difference == pytest.approx(
        by_hand(vectors, VALUES, KEYS, [(a,) for a in OFFSETS])
    )
    assert found.difference == pytest.approx(found.equal - found.near)
    # differences of the offsets; 13 has no near misses
    assert found.distances == (3, 4, 6, 7, 9)
    assert found.n_equal == sum(24 - d for d in found.distances)


def test_the_contrast_of_pairs_in_loops() -> None:
    vectors = np.random.default_rng(0).standard_normal((1, 14, 24, 6))
    found = contrast(vectors, ANSWERS[:14], KEYS, groups=PAIRS[:14])
    expected = by_hand(vectors, ANSWERS[:14], KEYS, PAIRS[:14])
    assert found.difference == pytest.approx(expected)
    # (4, 3) and (4, 4) left out: 1 and 2 may change places, and the keys' direction
    assert (found.n_permutations, found.exact) == (4, True)


def test_pairs_that_share_an_anchor_are_no_rule() -> None:
    """Smooth u(a1, x) + w(a2, x), as in a model that composes nothing: (1, 2) is like (1, 3)."""
    generator = np.random.default_rng(3)
    smooth = np.exp(-(np.subtract.outer(KEYS, KEYS) ** 2) / (2 * 8**2))
    draws = np.linalg.cholesky(smooth + 1e-6 * np.eye(len(KEYS)))
    first, second = (np.array(PAIRS) - 1).T
    p_values, differences = [], []
    for _ in range(100):
        u, w = draws @ generator.standard_normal((2, 4, len(KEYS), 8))
        found = contrast((u[first] + w[second])[None], ANSWERS, KEYS, groups=PAIRS)
        assert (found.n_permutations, found.exact) == (48, True)
        p_values.append(found.p_value)
        differences.append(found.difference)
    for level in (1 / 24, 0.25, 0.5):  # 100 draws scatter by 0.02 to 0.05
        assert np.mean(np.array(p_values) <= level) == pytest.approx(
            level, abs=0.15 if level > 0.1 else 0.06
        )
    assert abs(np.mean(differences)) < 4 * np.std(differences) / 10


def test_a_common_part_of_an_anchor_does_not_count() -> None:
    generator = np.random.default_rng(1)
    vectors = generator.standard_normal((1, 4, 24, 6))
    found = contrast(vectors, VALUES, KEYS)
    moved = contrast(vectors + 9 * generator.standard_normal((1, 4, 1, 6)), VALUES, KEYS)
    assert moved.difference == pytest.approx(found.difference)
    assert moved.p_value == found.p_value
    scaled = contrast(vectors * generator.uniform(1, 5, (1, 1, 24, 1)), VALUES, KEYS)
    assert scaled.difference != pytest.approx(found.difference)  # only after centring


def test_smooth_keys_are_no_rule() -> None:
    """Vectors on a circle of keys, alike for near keys: |x - x'| says it all."""
    angle = 2 * np.pi * (KEYS - KEYS[0]) / len(KEYS)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    smooth = np.broadcast_to(circle, (1, 4, 24, 2))
    found = contrast(smooth, VALUES, KEYS)
    assert found.difference == pytest.approx(0, abs=1e-12)
    assert found.effect is None  # nothing scatters at one |x - x'|
    assert found.p_value == 1
    # values on a line that bends slowly: near misses are nearly as similar as equal ones
    ruled = np.stack([np.cos(VALUES / 4), np.sin(VALUES / 4)], axis=-1)[None]
    assert 0 < contrast(ruled, VALUES, KEYS).difference < 0.2
    # values without any neighbourhood: the rule alone
    onehot = np.eye(60)[VALUES][None]
    found = contrast(onehot, VALUES, KEYS)
    assert found.difference == pytest.approx(1, abs=0.1)
    assert found.p_value == 1 / 48


def test_p_is_uniform_without_a_rule() -> None:
    generator = np.random.default_rng(2)
    p_values = np.array(
        [
            contrast(generator.standard_normal((1, 4, 24, 5)), VALUES, KEYS).p_value
            for _ in range(200)
        ]
    )
    for level in (1 / 12, 0.25, 0.5, 0.75):  # steps of 1/48, 200 draws scatter by 0.035
        assert np.mean(p_values <= level) == pytest.approx(level, abs=0.1)


def test_relabellings_are_drawn_where_there_are_too_many() -> None:
    values = KEYS + np.arange(8)[:, None] * 2
    vectors = np.eye(80)[values][None]
    found = contrast(vectors, values, KEYS, seed=3)
    assert (found.n_permutations, found.exact) == (999, False)
    assert found.p_value == 1 / 1000
    noise = np.random.default_rng(0).standard_normal((1, 8, 24, 5))
    assert contrast(noise, values, KEYS, seed=3) == contrast(noise, values, KEYS, seed=3)


@pytest.mark.parametrize("normalization", LAYOUTS)
def test_clusters_of_hand_set_models(models: Any, normalization: Normalization) -> None:
    symmetric = models["symmetric", normalization]
    for pairs, n_ordered, n_unordered in ((None, 12, 6), (SMALL.pairs, 16, 10)):
        found = key_mask_clusters(symmetric, SMALL, state="X_ao", pairs=pairs, n=30)
        assert (found.n_ordered, found.n_unordered) == (n_ordered, n_unordered)
        assert found.n_clusters == n_unordered
        assert found.agreement_unordered == pytest.approx(1)
        assert found.silhouette_order == pytest.approx(0, abs=0.02)
        assert known(found.silhouette_unordered) > 0.25 > abs(known(found.silhouette_ordered))
    first = pair_clusters(symmetric, SMALL, state="X_do", layer=0, n=500)
    assert first.n_clusters == 10
    assert first.agreement_unordered == pytest.approx(1)
    # at the second anchor the lookup model has collected the ordered pair
    lookup = pair_clusters(models["lookup", normalization], SMALL, place="second", n=500)
    assert known(lookup.silhouette_order) > 0.1
    # composing models have no pair: at the end of layer 1 there is noise alone
    inferential = pair_clusters(models["inferential", normalization], SMALL, n=500)
    assert abs(inferential.agreement_unordered) < 0.05
    assert known(inferential.silhouette_unordered) < 0


def test_how_many_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points that lie together by ordered pair, by unordered pair, and all in one."""
    pairs = np.array(SMALL.pairs)
    unordered = np.unique(np.sort(pairs, axis=1), axis=0, return_inverse=True)[1].ravel()
    generator = np.random.default_rng(0)
    for label, ordered, count in ((np.arange(16), 1, 16), (unordered, None, 10)):

        def points(*arguments: Any, label: np.ndarray = label) -> np.ndarray:
            scatter = 0.05 * generator.standard_normal((len(arguments[-1]), 16))
            found: np.ndarray = np.eye(16)[label[arguments[-1].pair]] + scatter
            return found

        monkeypatch.setattr("anchor_interp.analysis.clusters.read_at", points)
        found = pair_clusters(random_model("post"), SMALL, n=500, centre=False)
        assert found.n_clusters == found.counts[int(np.argmax(found.silhouettes))] == count
        assert (found.counts[0], found.counts[-1], found.at_limit) == (2, 20, False)
        assert found.pairs == SMALL.pairs
        if ordered:
            assert found.agreement_ordered == pytest.approx(1)
            assert found.agreement_unordered < 0.9
            assert min(known(found.silhouette_ordered), known(found.silhouette_order)) > 0.7
        else:
            assert found.agreement_unordered == pytest.approx(1)
            assert found.silhouette_order == pytest.approx(0, abs=0.05)
            assert known(found.silhouette_unordered) > 0.7
        assert known(found.silhouette_key) < 0


@pytest.mark.parametrize("case", CASES)
def test_logits_of_hand_set_models_say_nothing_without_the_key(models: Any, case: Any) -> None:
    found = key_mask_clusters(models[case], SMALL, n=10, tsne=True)
    assert (found.n_clusters, found.counts, found.at_limit) == (1, (), False)
    assert found.embedding is not None
    assert not found.embedding.any()
    # states that are nearly constant, or repeat, can be drawn
    for state in ("V", "X_ao"):
        drawn = key_mask_clusters(models[case], SMALL, n=10, state=state, tsne=True).embedding
        assert drawn is not None
        assert np.isfinite(drawn).all()


def test_t_sne_maps_what_coincides_together() -> None:
    generator = np.random.default_rng(0)
    distinct = generator.standard_normal((30, 5))
    index = np.arange(90) % 30
    mapped = _tsne(distinct[index] + 1e-9 * generator.standard_normal((90, 5)), seed=0)
    assert (mapped[:30] == mapped[30:60]).all()
    assert len(np.unique(mapped, axis=0)) == 30
    triangle = np.array([[0.0, 0, 3], [0, 4, 0], [0, 0, 0]])
    few = _tsne(triangle[[0, 1, 2, 1, 0]], seed=0)
    assert (few[0] == few[4]).all()
    sides = [np.linalg.norm(few[i] - few[j]) for i, j in ((0, 1), (1, 2), (0, 2))]
    np.testing.assert_allclose(np.array(sides) / sides[0], [1, 0.8, 0.6], rtol=1e-3)
    assert not _tsne(np.full((6, 3), 2.0), seed=0).any()


def test_factors_that_add_up_have_their_shares_of_the_variance() -> None:
    """The first residual stream at the key is W_E[key] + W_pos[position]: a closed form."""
    model = random_model("post")
    with torch.no_grad():
        parts = model.W_E[20:50].numpy(), model.W_pos[:5].numpy()
    key, position = (float(part.var(0).sum()) for part in parts)
    found = sensitivity(model, SMALL, state="X", layer=0, place="key", n=4_000)
    shares = {one.factor: one for one in found.factors}
    assert found.n == 4_000
    for name, share in (("key", key), ("position", position), ("pair", 0), ("noise", 0)):
        expected = share / (key + position)
        assert shares[name].alone == pytest.approx(expected, abs=0.05)
        assert shares[name].total == pytest.approx(expected, abs=0.05)
    assert shares["noise"].change == 0
    assert 0 < known(shares["position"].change) < known(shares["key"].change) < 1.1


def test_a_rule_without_position_and_noise(models: Any) -> None:
    logits = sensitivity(models["inferential", "pre"], SMALL, n=300)
    for one in logits.factors:
        assert one.alone is not None
        assert one.total is not None
        if one.factor in ("position", "noise"):
            assert one.total == pytest.approx(0, abs=1e-3)
            assert one.agreement == 1
        else:
            assert one.total > one.alone + 0.3  # key and pair act together
            assert one.agreement is not None
            assert one.agreement < 0.2
    silent = random_model("post")
    block: Any = silent.blocks[1]
    with torch.no_grad():
        block.attn.W_V.zero_()
    nothing = sensitivity(silent, SMALL, state="V", place="first", n=50)
    assert all(one.total is None and one.change is None for one in nothing.factors)


def test_a_mask_in_force_acts_on_every_analysis(models: Any) -> None:
    """Hooks act: with the first anchor's values zeroed nothing is parallel any more."""
    model = models["inferential", "post"]
    silent = value_similarity(model, SMALL, n_contexts=1)
    with hooked(model, {"blocks.1.attn.hook_v": torch.zeros_like}):
        found = value_similarity(model, SMALL, n_contexts=1)
    assert silent.contrast.difference > 0.9
    assert (found.contrast.difference, found.contrast.effect) == (0, None)


UNDERCUT: list[tuple[Any, dict[str, Any], str]] = [
    (value_similarity, {"layer": 2}, "expected 0 to 1"),
    (value_similarity, {"keys": [10]}, "keys"),
    (value_similarity, {"n_contexts": 0}, "n_contexts"),
    (value_similarity, {"state": "X"}, "state"),
    (answer_similarity, {"pairs": [(4, 3)]}, "not in the contrast"),
    (answer_similarity, {"pairs": [(9, 3)]}, "pair"),
    (block_similarity, {"values": [500]}, "no key has"),
    (key_mask_clusters, {"pairs": [(1, 2)]}, "at least two"),
    (key_mask_clusters, {"n": 1}, "n is 1"),
    (key_mask_clusters, {"position": 4}, "position"),
    (pair_clusters, {"n": 10}, "n is 10"),
    (sensitivity, {"n": 1}, "n is 1"),
]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_activations_that_are_not_finite_are_refused(value: float) -> None:
    model = random_model("post")
    with torch.no_grad():
        model.W_U[:, 3] = value
    of_logits: list[Any] = [block_similarity, key_mask_clusters, sensitivity]
    for analysis in of_logits:
        with pytest.raises(ConfigError, match="not all finite"):
            analysis(model, SMALL)
    with pytest.raises(ConfigError, match="not all finite"):
        leak(model, SMALL, draw(SMALL, SMALL.pairs, "all", 4, seed=0, stream="leak"), "key")
    block: Any = model.blocks[0]
    with torch.no_grad():
        block.attn.W_O[0, 0, 0] = value
    of_states: list[Any] = [value_similarity, answer_similarity, pair_clusters]
    for analysis in of_states:
        with pytest.raises(ConfigError, match="not all finite"):
            analysis(model, SMALL)
    with pytest.raises(ConfigError, match="not all finite"):
        contrast(np.full((1, 4, 24, 3), value), VALUES, KEYS)


@pytest.mark.parametrize(("analysis", "arguments", "message"), UNDERCUT)
def test_what_cannot_be_measured_is_refused(
    analysis: Any, arguments: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ConfigError, match=message):
        analysis(random_model("post"), SMALL, **arguments)


def test_models_and_tasks_without_the_contrast_are_refused() -> None:
    short = build_model(ModelConfig(n_ctx=7, d_vocab=45), InitConfig(), seed=0)
    with pytest.raises(ConfigError, match="45 tokens"):
        value_similarity(short, SMALL)
    mute = random_model("post")
    mute.cfg.d_vocab_out = SMALL.n_tokens - 1
    for analysis in (answer_similarity, block_similarity, key_mask_clusters, sensitivity):
        with pytest.raises(ConfigError, match=f"{SMALL.n_tokens - 1} output tokens"):
            analysis(mute, SMALL)
    brief = random_model("post")
    brief.cfg.n_ctx = SMALL.length - 1
    with pytest.raises(ConfigError, match="6 positions"):
        pair_clusters(brief, SMALL)
    with pytest.raises(ConfigError, match="has both"):
        contrast(np.zeros((1, 2, 24, 3)), VALUES[:1].repeat(2, 0) + np.array([[0], [50]]), KEYS)


def test_sequences_of_an_analysis_are_valid() -> None:
    """What hooks see are sequences of the task: key, anchors, and noise from the key range."""
    seen: list[np.ndarray] = []
    model = random_model("post")

    original = model.forward

    def spying(tokens: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(tokens.numpy())
        return original(tokens, *args, **kwargs)

    model.forward = spying  # type: ignore[method-assign, assignment]
    key_mask_clusters(model, SMALL, n=10, state="X_ao")
    tokens = np.concatenate(seen)
    assert (tokens[:, 1] >= SMALL.key_min).all()
    test = [key for key in SMALL.keys if key % 7 == 1]
    assert set(tokens[:, 1].tolist()) <= set(test)
    assert set(map(tuple, tokens[:, 2:4].tolist())) == {
        pair for pair in SMALL.pairs if pair[0] != pair[1]
    }
    noise = np.delete(tokens, [2, 3], axis=1)
    assert SMALL.key_min <= noise.min() <= noise.max() <= SMALL.key_max
