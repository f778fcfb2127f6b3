"""Ranks, spectra and condensation of matrices with known values."""

import dataclasses
import json
import math
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from small_models import lens_model
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from versions import only_3

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import to_dict
from anchor_interp.models.complexity import (
    Complexity,
    complexity,
    first_query_matrix,
    weight_measures,
)
from anchor_interp.models.matrix_complexity import (
    condensation,
    cosine_matrix,
    effective_rank,
    gaussian_spectra,
    stable_rank,
)
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer import build_model
from anchor_interp.models.transformer_lens import HookedTransformer, HookedTransformerConfig
from anchor_interp.runs.run import load

SHAPE = ModelConfig(n_heads=3, d_model=20, d_head=8, d_mlp=24, bias=True)
RANKS = [stable_rank, effective_rank]


def gaussian(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64)


def model(seed: int = 0) -> HookedTransformer:
    built = build_model(SHAPE, InitConfig(), seed=seed, dtype=torch.float64)
    for name, parameter in built.named_parameters():
        if ".b_" in name:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    return built


def entry(found: Complexity, name: str, layer: int = 0, head: int | None = None) -> Any:
    (one,) = (
        e
        for e in (*found.matrices, *found.heads)
        if (e.name, e.layer, e.head) == (name, layer, head)
    )
    return one


@pytest.mark.parametrize("rank", RANKS)
def test_ranks_of_known_matrices(rank: Any) -> None:
    column, row = gaussian(7, 1), gaussian(1, 5)
    assert rank(column @ row) == pytest.approx(1)
    assert rank(torch.eye(6)) == pytest.approx(6)
    orthogonal = torch.linalg.qr(gaussian(9, 4)).Q
    assert rank(orthogonal) == pytest.approx(4)
    matrix = gaussian(30, 20)
    assert rank(-3 * matrix) == pytest.approx(rank(matrix))
    assert rank(matrix.T) == pytest.approx(rank(matrix))
    assert rank(torch.linalg.qr(gaussian(30, 30)).Q @ matrix) == pytest.approx(rank(matrix))
    expected = {stable_rank: 1.5, effective_rank: 2**1.5}  # entropy of (1/2, 1/4, 1/4)
    assert rank(torch.diag(torch.tensor([2.0, 1.0, 1.0]))) == pytest.approx(expected[rank])


@pytest.mark.parametrize(("m", "n", "expected"), [(640, 640, 160), (400, 200, 69), (128, 64, 22)])
def test_gaussian_matrices(m: int, n: int, expected: float) -> None:
    """m n / (sqrt m + sqrt n)^2, and a mean |cosine| of sqrt(2 / (pi m))."""
    matrix = gaussian(m, n)
    assert stable_rank(matrix) == pytest.approx(expected, rel=0.06)
    assert condensation(matrix) == pytest.approx(math.sqrt(2 / (math.pi * m)), rel=0.05)


def test_condensation_of_known_matrices() -> None:
    direction = gaussian(9, 1)
    parallel = direction @ torch.tensor([[1.0, -2.0, 3.0]], dtype=torch.float64)
    for scale in (1, 1e-20, 1e-200):  # neurons that decayed keep their directions
        assert condensation(scale * parallel) == pytest.approx(1)
    assert condensation(torch.eye(4)) == pytest.approx(0)
    two = torch.tensor([[1.0, 1.0], [0.0, 1.0]])  # columns at 45 degrees
    assert condensation(two) == pytest.approx(math.sqrt(0.5))


def test_condensation_samples_large_matrices() -> None:
    wide = gaussian(16, 5000)
    few = condensation(wide)
    columns = torch.nn.functional.normalize(wide, dim=0)
    exact = ((columns.mT @ columns).abs().sum() - 5000) / (5000 * 4999)
    assert few == pytest.approx(float(exact), rel=0.01)
    assert condensation(wide) == few


def test_the_cosine_matrix_shows_blocks() -> None:
    """Neurons of three mixed directions end up sorted by direction."""
    directions = torch.linalg.qr(gaussian(12, 3)).Q
    group = torch.tensor([0, 1, 2, 1, 0, 2, 1, 1, 0, 2, 2, 0])
    matrix = directions[:, group] + 0.01 * gaussian(12, 12)
    found = cosine_matrix(matrix)
    ordered = group[torch.from_numpy(found.neurons)]
    assert len(torch.unique_consecutive(ordered)) == 3
    columns = torch.nn.functional.normalize(matrix[:, found.neurons], dim=0)
    torch.testing.assert_close(torch.from_numpy(found.cosines), columns.mT @ columns)
    off_diagonal = abs(found.cosines).sum() - 12
    assert condensation(matrix) == pytest.approx(off_diagonal / (12 * 11))
    assert cosine_matrix(torch.zeros(3, 2)).cosines.tolist() == [[0, 0], [0, 0]]


def test_heads_are_merged() -> None:
    built = model()
    merged = first_query_matrix(built)
    assert merged.shape == (20, 24)
    torch.testing.assert_close(merged[:, 8:16], built.W_Q[0, 1])


def test_a_layer_that_stands_twice_is_measured_once() -> None:
    built: Any = model()
    built.blocks[1] = built.blocks[0]
    found = complexity(built)
    assert {one.layer for one in (*found.matrices, *found.heads)} == {None, 0}
    assert sum(each.startswith("norm/") for each in weight_measures(built)) == 3 + 6


@only_3
def test_folded_gains_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Folded gains scale the rows of W_Q; the model answers as before."""
    shape = dataclasses.replace(SHAPE, normalization="pre")
    built: Any = build_model(shape, InitConfig(), seed=0, dtype=torch.float64)
    gain, plain = gaussian(20, 1), first_query_matrix(built).clone()
    built.blocks[0].ln1.w.data.copy_(gain[:, 0])
    assert not caplog.records
    built.process_weights_()
    scaled = gain * plain
    torch.testing.assert_close(first_query_matrix(built), scaled - scaled.mean(0))
    assert ["LNPre: if TransformerLens" in x.getMessage() for x in caplog.records] == [True]


def test_the_basis_inside_a_head_changes_only_basis_dependent_numbers() -> None:
    plain, turned = model(), model()
    tokens = torch.randint(0, 200, (4, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for layer, block in enumerate(turned.blocks):
            attn = block.attn
            for head in range(3):
                R = gaussian(8, 8, seed=10 * layer + head) + 2 * torch.eye(8)
                inverse = torch.linalg.inv(R)
                for query, key in ((attn.W_Q, attn.W_K), (attn.b_Q, attn.b_K)):
                    query[head], key[head] = query[head] @ R, key[head] @ inverse.mT
                attn.W_V[head], attn.b_V[head] = attn.W_V[head] @ R, attn.b_V[head] @ R
                attn.W_O[head] = inverse @ attn.W_O[head]
        torch.testing.assert_close(turned(tokens), plain(tokens), rtol=1e-9, atol=1e-9)
    before, after = complexity(plain, model(1)), complexity(turned, model(1))
    for mine, other in zip(
        (*before.matrices, *before.heads), (*after.matrices, *after.heads), strict=True
    ):
        names = ["stable_rank", "effective_rank", "distance"]
        names += [] if mine.condensation is None else ["condensation"]
        same = all(
            getattr(mine, name) == pytest.approx(getattr(other, name), rel=1e-9) for name in names
        )
        assert same != mine.basis_dependent, (mine.name, mine.layer, mine.head)
    assert {e.name for e in before.matrices if e.basis_dependent} == {"W_Q", "W_K", "W_V", "W_O"}
    assert not any(e.basis_dependent for e in before.heads)
    assert before.effective == pytest.approx(after.effective, rel=1e-9)


def test_a_dead_head_changes_no_effective_number() -> None:
    """With its W_O zero, a head's queries act on W_Q's number alone."""
    alive, dead = (model() for _ in range(2))
    with torch.no_grad():
        for each in (alive, dead):
            for layer in (0, 1):
                each.blocks[layer].attn.W_O[2] = 0
        for layer in (0, 1):
            dead.blocks[layer].attn.W_Q[2] *= 20
    one, other = complexity(alive), complexity(dead)
    assert entry(one, "W_Q").stable_rank > 1.5 * entry(other, "W_Q").stable_rank
    assert one.effective == pytest.approx(other.effective, rel=1e-12)
    assert {head for head, norm in one.head_norms.items() if not norm} == {(0, 2), (1, 2)}
    assert max(one.head_norms.values()) == 1
    with torch.no_grad():
        for layer in (0, 1):
            dead.blocks[layer].attn.W_O.zero_()
            dead.blocks[layer].attn.W_O[1] = gaussian(8, 20)
            dead.blocks[layer].attn.W_V[1] = gaussian(20, 1) @ gaussian(1, 8)
    assert complexity(dead).effective["OV"] == pytest.approx(1)  # the one head left has rank 1


def test_products_agree_with_the_multiplied_matrices() -> None:
    now, start = model(), model(1)
    found = complexity(now, start)
    for name, pair in (("QK", ("W_Q", "W_K")), ("OV", ("W_V", "W_O"))):
        full = [getattr(m, pair[0])[1, 2].detach() for m in (now, start)]
        right = [getattr(m, pair[1])[1, 2].detach() for m in (now, start)]
        product, before = (
            a @ (b.mT if name == "QK" else b) for a, b in zip(full, right, strict=True)
        )
        one = entry(found, name, 1, 2)
        assert one.shape == (20, 20)
        expected = torch.linalg.svdvals(product)[:8]
        torch.testing.assert_close(torch.from_numpy(one.spectrum), expected, rtol=1e-9, atol=1e-12)
        assert one.stable_rank == pytest.approx(stable_rank(product))
        assert one.at_init.stable_rank == pytest.approx(stable_rank(before))
        assert one.distance == pytest.approx(float((product - before).norm() / before.norm()))
        assert one.condensation is None
    norms = torch.stack([(b.attn.W_V @ b.attn.W_O).norm(dim=(1, 2)) for b in now.blocks]).detach()
    for name in ("QK", "OV"):
        ranks = [e.stable_rank or 0 for e in found.heads if e.name == name]
        mean = float(np.average(ranks, weights=norms.flatten().numpy() ** 2))
        assert found.effective[name] == pytest.approx(mean)
    largest = norms / norms.max()
    assert found.head_norms == pytest.approx(
        {(layer, head): float(largest[layer, head]) for layer in (0, 1) for head in range(3)}
    )


def test_distance_from_the_start() -> None:
    still = complexity(model(), model())
    assert all(e.distance == pytest.approx(0) for e in (*still.matrices, *still.heads))
    now = model()
    with torch.no_grad():
        now.blocks[0].mlp.W_in *= 3
    moved = complexity(now, model())
    assert entry(moved, "W_in").distance == pytest.approx(2)
    before = entry(moved, "W_in").at_init
    assert entry(moved, "W_in").stable_rank == pytest.approx(before.stable_rank)
    alone = entry(complexity(now), "W_in")
    assert alone.distance is None
    assert alone.at_init is None


def test_a_fresh_model_looks_like_the_gaussian_reference() -> None:
    found = complexity(build_model(ModelConfig(n_heads=2), InitConfig(), seed=3))
    for one in (*found.matrices, *found.heads):
        for name in ("stable_rank", "effective_rank", "condensation"):
            value, mean = getattr(one, name), getattr(one.gaussian, name)
            assert value is mean is None or value == pytest.approx(mean, rel=0.1), (one.name, name)


def test_gaussian_spectra_agree_with_drawn_matrices() -> None:
    """E ||W||_F^2 = m n, E ||A B||_F^2 = m n k, and the mean largest value agrees."""
    drawn = gaussian_spectra((40, 60))
    assert drawn.shape == (8, 40)
    assert (drawn**2).sum(1).mean() == pytest.approx(2400, rel=0.04)
    direct = [float(torch.linalg.svdvals(gaussian(40, 60, seed))[0]) for seed in range(20)]
    assert drawn[:, 0].mean() == pytest.approx(sum(direct) / 20, rel=0.05)
    product = gaussian_spectra((40, 60), inner=10)
    assert product.shape == (8, 10)
    assert (product**2).sum(1).mean() == pytest.approx(24000, rel=0.1)
    assert gaussian_spectra((60, 40)).tolist() == drawn.tolist()


@only_3
@pytest.mark.filterwarnings("ignore:HookedTransformer is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "changes",
    [
        {"attn_only": True},
        {"n_key_value_heads": 2, "gated_mlp": True},
        {"positional_embedding_type": "rotary", "rotary_dim": 4},
        {"dtype": torch.bfloat16},
    ],
)
def test_transformers_of_other_architectures(changes: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"d_mlp": 24, "act_fn": "relu", "device": "cpu"} | changes
    cfg = HookedTransformerConfig(
        n_layers=2, n_heads=4, d_model=16, d_head=4, n_ctx=6, d_vocab=30, **arguments
    )
    found = complexity(HookedTransformer(cfg))
    names = {one.name for one in found.matrices}
    assert ("W_in" in names) != cfg.attn_only
    assert ("W_gate" in names) == bool(cfg.gated_mlp)
    assert len(found.heads) == 2 * 2 * 4
    grouped = "n_key_value_heads" in changes
    assert entry(found, "W_K").shape == (16, 8 if grouped else 16)
    assert json.loads(json.dumps(to_dict(found)))["heads"][0]["name"] == "QK"


def test_zero_matrices_and_single_neurons_have_no_numbers() -> None:
    shape = ModelConfig(n_heads=1, d_model=6, d_head=1, d_mlp=4)
    built = build_model(shape, InitConfig(), seed=0)
    with torch.no_grad():
        built.blocks[0].attn.W_K.zero_()
    found = complexity(built, built)
    assert entry(found, "W_Q").condensation is None
    for one in (entry(found, "W_K"), entry(found, "QK", head=0)):
        assert (one.stable_rank, one.effective_rank, one.distance) == (None, None, None)


@pytest.mark.parametrize("layout", ["", pytest.param("-pre", marks=pytest.mark.slow)])
def test_exact_models_have_the_ranks_of_their_wiring(layout: str) -> None:
    """W_V has one rank per feature that the head carries; QK has one per reason to look."""
    symmetric = complexity(load(f"exact/symmetric{layout}").model)
    assert entry(symmetric, "W_V", 1).stable_rank == pytest.approx(80)  # the 80 keys
    assert entry(symmetric, "W_V", 1).effective_rank == pytest.approx(80)
    inferential = complexity(load(f"exact/inferential{layout}").model)
    assert entry(inferential, "QK", 0, 0).stable_rank == pytest.approx(1)
    lookup = complexity(load(f"exact/lookup{layout}").model)
    assert entry(lookup, "W_in", 1).stable_rank is None  # it does not use its second MLP
    for one in (symmetric, inferential, lookup):
        assert one.matrices[-1].name == "W_U"  # one-hot answers: orthogonal directions
        assert one.matrices[-1].condensation == pytest.approx(0)
        assert one.matrices[-1].stable_rank == pytest.approx(one.matrices[-1].effective_rank)


def tied(first: str) -> nn.Module:
    layers = {"head": nn.Linear(8, 50, bias=False), "table": nn.Embedding(50, 8)}
    layers["head"].weight = layers["table"].weight
    return nn.ModuleDict({name: layers[name] for name in sorted(layers, key=lambda x: x != first)})


def test_a_tied_table_is_measured_as_a_table_whatever_comes_first() -> None:
    weight = gaussian(50, 8).float()
    for first in ("head", "table"):
        module = tied(first)
        with torch.no_grad():
            next(module.parameters()).copy_(weight)
        (found,) = complexity(module).matrices
        assert found.name == "table"
        assert found.condensation == pytest.approx(condensation(weight))
        assert weight_measures(module)["condensation/table"] == found.condensation


BUFFERS = {
    "mask": torch.full((3,), -math.inf), "placeholder": torch.full((3,), math.nan),
    "rotations": torch.ones(3, dtype=torch.complex64), "graph": torch.eye(3).to_sparse(),
    "codes": torch.ones(3).to(torch.float8_e4m3fn),
}  # fmt: skip


@pytest.mark.parametrize("case", BUFFERS)
def test_no_buffer_of_an_own_module_is_measured_or_refused(case: str) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    expected = weight_measures(module)
    module.register_buffer(case, BUFFERS[case])
    assert weight_measures(module) == expected
    assert complexity(module).matrices[0].stable_rank == expected["stable_rank/0"]


@pytest.mark.parametrize("measure", [complexity, weight_measures])
def test_what_is_not_finite_is_named(measure: Any) -> None:
    module = nn.Sequential(nn.Linear(4, 4))
    next(module.parameters()).data[1, 2] = math.inf
    with pytest.raises(ConfigError, match="the values of 0 are not finite"):
        measure(module)
    hooked: Any = model()
    hooked.blocks[1].attn.W_O.data[:] = math.nan
    with pytest.raises(ConfigError, match=r"1\.(attn\.)?W_O .* not finite"):
        measure(hooked)
    assert "stable_rank/0.W_Q" in weight_measures(hooked, "0.W_Q")  # which is finite
    hooked.register_buffer("scale", torch.full((3,), math.nan))
    with pytest.raises(ConfigError, match=r"W_O holds .* not finite"):
        complexity(hooked)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: spectral_norm(nn.Linear(4, 4)), "0.parametrizations.weight.original"),
        (lambda: nn.Embedding(0, 4), "0.weight"),
        (lambda: nn.Linear(0, 4), "0.weight"),
    ],
)
def test_what_is_left_out_is_told(make: Any, name: str) -> None:
    module = nn.Sequential(make(), nn.Linear(4, 4))
    found = complexity(module, module)
    assert ([one.name for one in found.matrices], found.left_out) == (["1"], (name,))
    assert f"; 1 left out: [{name!r}]" in str(found)
    assert {key.split("/")[1] for key in weight_measures(module)} == {"1"}


def test_invalid_matrices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ConfigError, match="not finite"):
        stable_rank(torch.tensor([[math.nan, 1.0]]))
    for rank in RANKS:
        with pytest.raises(ConfigError, match="zero matrix"):
            rank(torch.zeros(3, 3))
    given: Any
    for given in (np.eye(3), torch.ones(3), torch.ones(1, 3, 3), [[1.0]]):
        for measure in (*RANKS, condensation):
            with pytest.raises(ConfigError, match="expected a tensor of two dimensions"):
                measure(given)
    given = "tiny"
    with pytest.raises(ConfigError, match="model is 'tiny'; expected a HookedTransformer"):
        complexity(given)
    with pytest.raises(ConfigError, match="has 1 column"):
        condensation(torch.ones(3, 1))
    other = build_model(dataclasses.replace(SHAPE, n_layers=1), InitConfig(), seed=0)
    with pytest.raises(ConfigError, match=r"1\.W_Q is \(20, 24\) and missing"):
        complexity(model(), other)
    wider = build_model(dataclasses.replace(SHAPE, d_mlp=30), InitConfig(), seed=0)
    with pytest.raises(ConfigError, match=r"0\.W_in is \(20, 24\) and \(20, 30\)"):
        complexity(model(), wider)


@only_3
def test_experts_of_a_hooked_transformer_are_told_as_left_out() -> None:
    found = complexity(lens_model(num_experts=2, experts_per_token=1, n_layers=1, gated_mlp=True))
    experts = [
        f"blocks.0.mlp.experts.{i}.W_{x}.weight" for i in (0, 1) for x in ("in", "out", "gate")
    ]
    assert sorted(found.left_out) == sorted([*experts, "blocks.0.mlp.W_gate.weight"])
    assert complexity(lens_model(n_layers=1)).left_out == ()
