"""Clusters and sensitivity on models of known mechanism, and what the analyses refuse."""

from functools import partial
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from small_models import EACH_EXACT, LAYOUTS
from thirty_keys import (
    SMALL,
    arbitrary_model,
    known,
    known_model,
    with_graded_logits,
)

from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.clusters import _tsne, key_mask_clusters, pair_clusters
from anchor_interp.analysis.read_states import read_state
from anchor_interp.analysis.sensitivity import order_influence, sensitivity
from anchor_interp.analysis.similarity import (
    value_similarity,
)
from anchor_interp.analysis.similarity_contrast import centred_cosines
from anchor_interp.interventions.hooks import hooked
from anchor_interp.models.exact import Mechanism, Normalization, exact_model
from anchor_interp.tasks.sequences import draw


@pytest.mark.parametrize("normalization", LAYOUTS)
def test_clusters_of_exact_models(normalization: Normalization) -> None:
    symmetric = known_model("symmetric", normalization)
    for pairs, n_unordered in ((None, 6), (SMALL.pairs, 10)):
        found = key_mask_clusters(symmetric, SMALL, state="X_ao", pairs=pairs, n=30)
        assert found.n_clusters == n_unordered
        assert found.agreement_unordered == pytest.approx(1)
        assert found.silhouette_order == pytest.approx(0, abs=0.02)
        assert known(found.silhouette_unordered) > 0.25 > abs(known(found.silhouette_ordered))
    first = pair_clusters(symmetric, SMALL, state="X_do", layer=0, n=500)
    assert first.n_clusters == 10
    assert first.agreement_unordered == pytest.approx(1)
    # at the second anchor the lookup model has collected the ordered pair
    lookup = pair_clusters(known_model("lookup", normalization), SMALL, place="second", n=500)
    assert known(lookup.silhouette_order) > 0.1
    # inferential models have no pair: at the end of layer 0 nothing is left but rounding
    inferential = pair_clusters(known_model("inferential", normalization), SMALL, n=500)
    assert inferential.n_clusters == 1
    assert inferential.agreement_unordered == inferential.silhouette_unordered == 0


@pytest.mark.parametrize("mechanism", ["inferential", "symmetric"])
def test_graded_logits_cluster_only_if_the_state_holds_the_pair(mechanism: Mechanism) -> None:
    clusters = key_mask_clusters(with_graded_logits(mechanism), SMALL, n=30)
    if mechanism == "symmetric":
        assert clusters.agreement_unordered > 0.5
        assert known(clusters.silhouette_unordered) > 0.2
        assert clusters.silhouette_order == pytest.approx(0, abs=0.02)
    else:
        assert clusters.agreement_unordered == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("ordered", [True, False])
def test_the_number_of_clusters(ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points that lie together by ordered pair, or by unordered pair."""
    pairs = np.array(SMALL.pairs)
    unordered = np.unique(np.sort(pairs, axis=1), axis=0, return_inverse=True)[1].ravel()
    label, count = (np.arange(16), 16) if ordered else (unordered, 10)
    generator = np.random.default_rng(0)

    def points(*arguments: Any) -> np.ndarray:
        scatter = 0.05 * generator.standard_normal((len(arguments[-1]), 16))
        found: np.ndarray = np.eye(16)[label[arguments[-1].pair]] + scatter
        return found

    monkeypatch.setattr("anchor_interp.analysis.clusters.read_state", points)
    found = pair_clusters(arbitrary_model(), SMALL, n=500, centre=False)
    assert found.n_clusters == count
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


def test_up_to_four_more_clusters_than_pairs_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The points of the first pairs lie in two places each, by the key."""
    generator = np.random.default_rng(0)

    def points(*arguments: Any, twofold: int) -> np.ndarray:
        pair, key = arguments[-1].pair, arguments[-1].key
        at = np.where((pair < twofold) & (key % 2 == 1), 16 + pair, pair)
        found: np.ndarray = np.eye(32)[at] + 0.05 * generator.standard_normal((len(at), 32))
        return found

    for twofold in (3, 4):
        read = partial(points, twofold=twofold)
        monkeypatch.setattr("anchor_interp.analysis.clusters.read_state", read)
        found = pair_clusters(arbitrary_model(), SMALL, n=500, centre=False)
        assert found.n_clusters == len(SMALL.pairs) + twofold


@EACH_EXACT
def test_logits_of_exact_models_are_constant_without_the_key(
    mechanism: Mechanism, normalization: Normalization
) -> None:
    model = known_model(mechanism, normalization)
    assert key_mask_clusters(model, SMALL, n=10).n_clusters == 1


def test_t_sne_maps_coinciding_points_together() -> None:
    generator = np.random.default_rng(0)
    distinct = generator.standard_normal((30, 5))
    index = np.arange(90) % 30
    mapped = _tsne(distinct[index] + 1e-9 * generator.standard_normal((90, 5)), 1e-5, seed=0)
    assert (mapped[:30] == mapped[30:60]).all()
    assert len(np.unique(mapped, axis=0)) == 30
    triangle = np.array([[0.0, 0, 3], [0, 4, 0], [0, 0, 0]])
    few = _tsne(triangle[[0, 1, 2, 1, 0]], 1e-5, seed=0)
    assert (few[0] == few[4]).all()
    sides = [np.linalg.norm(few[i] - few[j]) for i, j in ((0, 1), (1, 2), (0, 2))]
    np.testing.assert_allclose(np.array(sides) / sides[0], [1, 0.8, 0.6], rtol=1e-3)
    assert not _tsne(np.full((6, 3), 2.0), 1e-5, seed=0).any()


def test_factors_that_add_up_have_their_shares_of_the_variance() -> None:
    """The first residual stream at the key is W_E[key] + W_pos[position]: a closed form."""
    model = arbitrary_model()
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


def test_a_model_of_the_rule_ignores_position_and_noise() -> None:
    for one in sensitivity(known_model("inferential", "pre"), SMALL, n=300).factors:
        if one.factor in ("position", "noise"):
            assert one.total == pytest.approx(0, abs=1e-3)
            assert one.agreement == 1
        else:
            assert known(one.total) > known(one.alone) + 0.3  # key and pair act together
            assert known(one.agreement) < 0.2


def test_states_that_do_not_vary_have_no_shares() -> None:
    """In double precision the values of the lookup at the first anchor are 1e-17, not 0."""
    silent, lookup = arbitrary_model(), exact_model("lookup", SMALL, dtype=torch.float64)
    block: Any = silent.blocks[1]
    with torch.no_grad():
        block.attn.W_V.zero_()
    for model in (silent, lookup):
        nothing = sensitivity(model, SMALL, state="V", place="first", n=50)
        assert all(one.total is None and one.change is None for one in nothing.factors)


@pytest.mark.parametrize("normalization", LAYOUTS)
def test_merged_anchors_are_told_from_absent_ones(normalization: Normalization) -> None:
    """After layer 0 the end has both anchors in no order, no anchor, or one of them."""
    symmetric, inferential, lookup = (
        order_influence(known_model(m, normalization), SMALL, state="X_ao", layer=0, n=400)
        for m in ("symmetric", "inferential", "lookup")
    )
    assert symmetric.ratio == pytest.approx(0, abs=1e-3)
    assert inferential.ratio is None
    assert known(lookup.ratio) > 0.3
    # the change alone says 0 of both
    assert symmetric.change == pytest.approx(0, abs=1e-3)
    assert inferential.change == pytest.approx(0, abs=1e-3)


def test_the_ratio_of_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 if each ordered pair has a code of its own, 0 if each unordered one has, None without."""
    codes = np.random.default_rng(0).standard_normal((len(SMALL.pairs), 2_000))
    first = [SMALL.pairs.index((min(pair), max(pair))) for pair in SMALL.pairs]
    rounding = codes[:1] + 1e-9 * codes  # not of the pair
    for table, expected in ((codes, 1.0), (codes[first], 0.0), (rounding, None)):
        monkeypatch.setattr(
            "anchor_interp.analysis.sensitivity.read_state", lambda *at, t=table: t[at[-1].pair]
        )
        found = order_influence(known_model("lookup", "post"), SMALL, state="X_ao", n=100)
        assert found.ratio == (None if expected is None else pytest.approx(expected, abs=0.05))
        assert (found.change is None) == (table is rounding)


def test_activations_that_are_not_finite_are_refused() -> None:
    drawn, calls = draw(SMALL, SMALL.pairs, "all", 4, seed=0, stream="states"), arbitrary_model()
    breaks = {"blocks.0.hook_resid_mid": lambda stream: stream * np.nan}
    with hooked(calls, breaks), pytest.raises(ConfigError, match="activations are not finite"):
        read_state(calls, "X_ao", 0, "last", drawn)
    with pytest.raises(ConfigError, match="activations are not finite"):
        centred_cosines(np.full((1, 4, 24, 3), np.inf))


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (value_similarity, {"layer": 2}, "expected at most 1"),
    (value_similarity, {"n_contexts": 0}, "n_contexts"),
    (value_similarity, {"state": "X"}, "state"),
    (key_mask_clusters, {"pairs": [(1, 2)]}, "at least two"),
    (key_mask_clusters, {"n": 1}, "n is 1"),
    (key_mask_clusters, {"position": 4}, "position"),
    (pair_clusters, {"n": 10}, "n is 10"),
    (sensitivity, {"n": 1}, "n is 1"),
]


@pytest.mark.parametrize(("analysis", "arguments", "message"), REFUSED)
def test_arguments_out_of_range_are_refused(
    analysis: Any, arguments: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ConfigError, match=message):
        analysis(arbitrary_model(), SMALL, **arguments)


def test_sequences_of_an_analysis_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is given sequences of the task: key, anchors, and noise from the key range."""
    seen: list[np.ndarray] = []
    model = arbitrary_model()
    original = model.forward

    def spying(tokens: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(tokens.numpy())
        return original(tokens, *args, **kwargs)

    monkeypatch.setattr(model, "forward", spying)
    key_mask_clusters(model, SMALL, n=10, state="X_ao")
    tokens = np.concatenate(seen)
    test_keys = {int(key) for key in SMALL.keys if key % 7 == 1}
    assert set(tokens[:, 1].tolist()) <= test_keys
    assert set(map(tuple, tokens[:, 2:4].tolist())) == {
        pair for pair in SMALL.pairs if pair[0] != pair[1]
    }
    noise = np.delete(tokens, [2, 3], axis=1)
    assert SMALL.key_min <= noise.min() <= noise.max() <= SMALL.key_max
