"""Gamma initialisation: the spread of every matrix, schemes, rates, sources of randomness."""

import dataclasses
import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from small_models import LAYOUTS

from anchor_interp._util.errors import ConfigError
from anchor_interp.models.init import gamma_std
from anchor_interp.models.networks import build_network
from anchor_interp.models.shapes import InitConfig, ModelConfig, Normalization
from anchor_interp.models.transformer import HookedTransformer, build_model
from concepts import UNetConfig

SHAPE = ModelConfig(n_layers=2, n_heads=3, d_model=96, d_head=40, d_mlp=160, bias=True)
D_IN = {
    "embed.W_E": 96,
    "pos_embed.W_pos": 96,
    "unembed.W_U": 96,
    "attn.W_Q": 96,
    "attn.W_K": 96,
    "attn.W_V": 96,
    "attn.W_O": 3 * 40,
    "mlp.W_in": 96,
    "mlp.W_out": 160,
}
"""Input width of each matrix of SHAPE."""


def d_in(name: str) -> int:
    return next(width for ending, width in D_IN.items() if name.endswith(ending))


def assert_std(weight: torch.Tensor, std: float) -> None:
    """The sample standard deviation of n normal draws has relative error 1 / sqrt(2 n)."""
    n = weight.numel()
    assert abs(float(weight.std()) / std - 1) < 5 / math.sqrt(2 * n)
    assert abs(float(weight.mean())) < 5 * std / math.sqrt(n)


def weight_matrices(model: HookedTransformer) -> dict[str, torch.Tensor]:
    named = model.named_parameters()
    return {name: weight for name, weight in named if name.rsplit(".", 1)[-1].startswith("W_")}


@pytest.mark.parametrize(("gamma", "normalization"), list(itertools.product((0.3, 0.9), LAYOUTS)))
def test_every_matrix_has_the_papers_spread(gamma: float, normalization: Normalization) -> None:
    shape = dataclasses.replace(SHAPE, normalization=normalization)
    model = build_model(shape, InitConfig(gamma), seed=1)
    matrices = weight_matrices(model)
    assert len(matrices) == 3 + 6 * shape.n_layers
    for name, weight in matrices.items():
        assert_std(weight.detach(), d_in(name) ** -gamma)


def test_spreads_of_the_released_scheme() -> None:
    init = InitConfig(0.6, scheme="released")
    model = build_model(SHAPE, init, seed=1)
    for name, weight in weight_matrices(model).items():
        halved = name.endswith(("attn.W_O", "mlp.W_out"))
        assert_std(weight.detach(), 96**-0.6 / (math.sqrt(2 * 2) if halved else 1))
    bias = model.b_out[0].detach()
    assert 0 < float(bias.abs().max()) <= 160**-0.5
    assert float(bias.std()) == pytest.approx(160**-0.5 / math.sqrt(3), rel=0.2)


def test_paper_scheme_starts_biases_at_zero_and_layernorm_at_identity() -> None:
    for name, parameter in build_model(SHAPE, InitConfig(0.5), seed=1).named_parameters():
        kind = name.rsplit(".", 1)[-1]
        if kind == "w":
            assert (parameter == 1).all()
        elif kind == "b" or kind.startswith("b_"):
            assert (parameter == 0).all()


def test_matrices_follow_their_own_rates_and_the_given_input_width() -> None:
    init = InitConfig(0.5, gamma_embed=0.3, gamma_qk=0.7, gamma_vo=0.9, gamma_mlp=1.1)
    rates = {
        "embed.W_E": 0.3,
        "pos_embed.W_pos": 0.3,
        "unembed.W_U": 0.3,
        "blocks.1.attn.W_Q": 0.7,
        "blocks.1.attn.W_K": 0.7,
        "blocks.1.attn.W_V": 0.9,
        "blocks.1.attn.W_O": 0.9,
        "blocks.1.mlp.W_in": 1.1,
        "blocks.1.mlp.W_out": 1.1,
    }
    for name, rate in rates.items():
        assert gamma_std(name, SHAPE, init) == pytest.approx(d_in(name) ** -rate)
    init = InitConfig(0.5, embed_d_in="d_vocab")
    assert gamma_std("embed.W_E", SHAPE, init) == pytest.approx(201**-0.5)
    assert gamma_std("pos_embed.W_pos", SHAPE, init) == pytest.approx(20**-0.5)
    assert gamma_std("unembed.W_U", SHAPE, init) == pytest.approx(96**-0.5)


def test_a_parameter_depends_only_on_seed_and_name() -> None:
    shallow = build_model(SHAPE, InitConfig(0.5), seed=7)
    deep = build_model(dataclasses.replace(SHAPE, n_layers=4), InitConfig(0.5), seed=7)
    for name, parameter in shallow.named_parameters():
        assert torch.equal(parameter, dict(deep.named_parameters())[name])
    other = build_model(SHAPE, InitConfig(0.5), seed=8)
    assert not torch.equal(shallow.embed.W_E, other.embed.W_E)


def test_float64_holds_the_float32_numbers() -> None:
    single = build_model(SHAPE, InitConfig(0.5), seed=7)
    double = build_model(SHAPE, InitConfig(0.5), seed=7, dtype=torch.float64)
    torch.testing.assert_close(double.W_Q, single.W_Q.double(), rtol=1e-7, atol=0)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "init"),
    [
        (SHAPE, InitConfig()),
        (dataclasses.replace(SHAPE, normalization="pre"), InitConfig(weights="uniform")),
        (dataclasses.replace(SHAPE, bias=True), InitConfig(scheme="released")),
        (UNetConfig(n_features=8, d_image=12), InitConfig(weights="uniform")),
    ],
)
def test_the_default_dtype_changes_no_weight(
    shape: ModelConfig | UNetConfig, init: InitConfig, default: torch.dtype
) -> None:
    expected = build_network(shape, init, seed=7).state_dict()
    torch.set_default_dtype(default)
    try:
        found = build_network(shape, init, seed=7)
    finally:
        torch.set_default_dtype(torch.float32)
    for name, parameter in found.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, expected[name])


def test_building_leaves_global_generators_alone() -> None:
    torch.manual_seed(3)
    random.seed(3)
    legacy: Any = np.random
    legacy.seed(3)
    before = (torch.get_rng_state(), random.getstate(), legacy.get_state())
    build_model(SHAPE, InitConfig(0.5), seed=1)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert np.array_equal(before[2][1], legacy.get_state()[1])


def test_a_parameter_without_a_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no initialisation is defined for .*b_Q"):
        gamma_std("blocks.0.attn.b_Q", ModelConfig(), InitConfig())
