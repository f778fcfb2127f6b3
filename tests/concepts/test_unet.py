"""The U-Net's initial weights, the diffusion against its closed form, and the judge."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anchor_interp._util.errors import ConfigError
from anchor_interp.models.complexity import complexity, main_numbers
from anchor_interp.models.matrix_complexity import stable_rank
from anchor_interp.models.networks import build_network
from anchor_interp.models.shapes import InitConfig
from concepts import Concepts, UNetConfig, pictures
from concepts.diffusion import betas, noised, sample_pictures, signal_left
from concepts.judge import LEAST, judge_of
from concepts.pictures import bits_of, every_node
from concepts.unet import UNet

SMALL = UNetConfig(n_features=8, n_times=4, d_image=12)
EVERY = bits_of(every_node(3))
TASK = Concepts()


def build(cfg: UNetConfig, init: InitConfig, **more: Any) -> UNet:
    network = build_network(cfg, init, **more)
    assert isinstance(network, UNet)
    return network


def layers(network: nn.Module) -> list[nn.Linear | nn.Conv2d | nn.ConvTranspose2d]:
    kinds = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)
    return [part for part in network.modules() if isinstance(part, kinds)]


@pytest.mark.parametrize("cfg", [SMALL, UNetConfig(), UNetConfig(16, 10, 64, d_told=(1, 5))])
def test_the_count_of_parameters(cfg: UNetConfig) -> None:
    assert cfg.n_parameters == sum(part.numel() for part in UNet(cfg).parameters())


@pytest.mark.parametrize("gamma", [0.5, 0.8])
def test_initial_weights_lie_within_the_bound_of_gamma(gamma: float) -> None:
    wide = UNetConfig(n_features=64)
    for weights in ("uniform", "normal"):
        network = build(wide, InitConfig(gamma=gamma, weights=weights), seed=1)
        for layer in layers(network):
            fan_in, _ = nn.init._calculate_fan_in_and_fan_out(layer.weight)
            bound = fan_in**-gamma
            assert layer.bias is not None
            values = layer.weight.detach().flatten()
            if weights == "uniform":
                assert max(values.abs().max(), layer.bias.abs().max()) <= bound
            scale = bound / math.sqrt(3) if weights == "uniform" else bound
            error = 5 / math.sqrt(2 * len(values))  # five standard errors of a normal's deviation
            assert values.std() == pytest.approx(scale, rel=max(error, 1e-3))
            assert abs(values.mean()) < 5 * scale / math.sqrt(len(values))
        for name, parameter in network.named_parameters():
            if "norm" in name:  # the identity
                assert (parameter == name.endswith("weight")).all()


def test_weights_follow_the_seed_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, same, other = (build(SMALL, InitConfig(), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    pairs = zip(one.parameters(), same.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(one.out.weight, other.out.weight)


def test_a_picture_does_not_depend_on_others_of_its_batch() -> None:
    network = build(SMALL, InitConfig(), seed=0, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3, 12, 12, generator=generator, dtype=torch.float64)
    times, told = torch.rand(5, dtype=torch.float64), torch.rand(5, 6, dtype=torch.float64)
    with torch.no_grad():
        whole, alone = network(x, times, told), network(x[:1], times[:1], told[:1])
        assert torch.allclose(whole[:1], alone, atol=1e-12)
        for change in ((x, times, told + 1), (x, 1 - times, told), (-x, times, told)):
            assert not torch.allclose(network(*change), whole, atol=1e-6)


def test_the_forward_process_is_its_closed_form() -> None:
    """Adding noise step by step gives the mean and the variance that ``noised`` jumps to."""
    for n_timesteps in (4, 100, 500):
        beta, left = betas(n_timesteps), signal_left(n_timesteps)
        mean, variance = 1.0, 0.0
        for t in range(1, n_timesteps + 1):
            added = float(beta[t])
            mean *= math.sqrt(1 - added)
            variance = (1 - added) * variance + added
            assert mean**2 == pytest.approx(float(left[t]))
            assert variance == pytest.approx(1 - float(left[t]))
    assert betas(500)[[1, -1]].tolist() == pytest.approx([1e-4, 0.02])
    assert 0.005 < signal_left(100)[-1] < signal_left(500)[-1] < 0.007
    x, noise = torch.full((3, 3, 2, 2), 0.7), torch.full((3, 3, 2, 2), -2.0)
    found = noised(x, noise, torch.tensor([0, 50, 100]), 100)
    for picture, t in zip(found, (0, 50, 100), strict=True):
        share = float(signal_left(100)[t])
        expected = math.sqrt(share) * 0.7 - math.sqrt(1 - share) * 2
        assert picture.unique().tolist() == pytest.approx([expected], abs=1e-6)


def test_an_oracle_of_normal_data_reproduces_its_mean_and_spread() -> None:
    """The best denoiser of pixels ~ N(mean, spread^2) is linear, and told the mean."""
    n_timesteps, spread = 100, 0.3
    left = signal_left(n_timesteps).float()

    def oracle(x: Tensor, times: Tensor, told: Tensor) -> Tensor:
        share = left[(times * n_timesteps).round().long()][:, None, None, None]
        mean = told.view(-1, 1, 1, 1)
        total = share * spread**2 + 1 - share  # the variance of x
        return (x - share.sqrt() * mean) * (1 - share).sqrt() / total

    told = torch.tensor([[-0.5], [0.8]]).repeat(400, 1)
    generator = torch.Generator().manual_seed(0)
    found = sample_pictures(oracle, told, side=8, n_timesteps=n_timesteps, generator=generator)
    for group, mean in ((found[::2], -0.5), (found[1::2], 0.8)):
        assert group.mean() == pytest.approx(mean, abs=0.01)
        assert group.std() == pytest.approx(spread, rel=0.05)


@pytest.mark.slow
def test_the_judge_reads_fresh_pictures_with_and_without_noise() -> None:
    judge = judge_of(TASK)
    assert (judge.accuracy(4000, seed=2) >= LEAST).all()
    assert (judge.accuracy(4000, seed=2, noise=0.2) >= LEAST).all()
    assert judge_of(Concepts()) is judge
    blank = torch.full((8, 3, 28, 28), 0.9)
    assert not judge.right(blank, EVERY).any()  # of an empty picture nothing is sure
    assert judge.right(blank[:0], EVERY[:0]).shape == (0, 3)


def test_the_judge_refuses_what_it_cannot_tell_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that vary by 60 % overlap."""
    monkeypatch.setattr(pictures, "_SIZE", 0.6)
    monkeypatch.setattr("concepts.judge._MOST_STEPS", 400)
    task = Concepts(attributes=(("large", "small"),), trained=("0",), tested=("1",), pixels=12)
    with pytest.raises(
        ConfigError, match=r"tells large from small in \d\d\.\d% of real pictures of 12"
    ):
        judge_of.__wrapped__(task)


def test_layers_are_measured_as_matrices() -> None:
    network = build(UNetConfig(), InitConfig(), seed=0)
    found = complexity(network)
    assert len(found.matrices) == len(layers(network)) == 35
    shapes = {entry.name: entry.shape for entry in found.matrices}
    assert shapes["first.conv2"] == (16 * 9, 16)
    assert shapes["up1.widen"] == (64, 16 * 4)
    assert shapes["told1.2.one"] == (3, 32)
    row, column = torch.rand(144, generator=torch.Generator().manual_seed(0)), torch.ones(16)
    with torch.no_grad():
        network.first.conv2.weight.copy_((column[:, None] * row).view(16, 16, 3, 3))
    (entry,) = (e for e in complexity(network).matrices if e.name == "first.conv2")
    assert entry.stable_rank == pytest.approx(1)
    assert entry.condensation == pytest.approx(1)
    ranks = [
        stable_rank(entry_of)
        for entry_of in (w.weight.detach().flatten(1) for w in layers(network))
    ]
    assert main_numbers(network)[0].stable_rank == pytest.approx(np.mean(ranks))


@pytest.mark.parametrize(("fields", "message"), [
    ({"n_features": 12}, "model.n_features is 12; expected a multiple of 8"),
    ({"d_told": (2, 0)}, r"model.d_told is \(2, 0\); expected the width of every attribute"),
])  # fmt: skip
def test_a_wrong_shape_has_one_clear_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        UNetConfig(**fields)
