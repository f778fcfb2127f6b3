"""Embeddings with planted steps, and smooth, random and one-hot ones."""

import dataclasses
import json
from collections.abc import Callable

import numpy as np
import pytest
import torch

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import to_dict
from anchor_interp.models.embeddings import arithmetic_steps, embedding_structure, key_embeddings
from anchor_interp.runs.run import load
from anchor_interp.tasks.anchor import TASKS

N, D = 80, 32
X = torch.arange(N, dtype=torch.float64)


def noise(seed: int, d: int = D) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, d, generator=generator, dtype=torch.float64)


def helix(seed: int) -> torch.Tensor:
    """Period 3.5: x + 3 and x + 4 are next to x, on two sides, as in the papers' figures."""
    angle = 2 * np.pi * X / 3.5
    curve = torch.stack([X / 10, angle.cos(), angle.sin()], 1)
    return curve @ noise(seed)[:3] + noise(seed + 1)


def residues(seed: int) -> torch.Tensor:
    """One direction for each x mod 3 and one for each x mod 4."""
    directions = noise(seed)
    return directions[(X % 3).long()] + directions[(10 + X % 4).long()] + noise(seed + 1)


def line(seed: int) -> torch.Tensor:
    return X[:, None] / 20 * noise(seed)[0] + noise(seed + 1)


def smooth(length: float) -> Callable[[int], torch.Tensor]:
    """A Gaussian process with a length scale."""
    covariance = torch.exp(-0.5 * ((X[:, None] - X) / length) ** 2) + 1e-8 * torch.eye(N)
    root = torch.linalg.cholesky(covariance)
    return lambda seed: root @ noise(seed)


def circle(seed: int) -> torch.Tensor:
    angle = 2 * np.pi * X / 12
    return torch.stack([angle.cos(), angle.sin()], 1) @ noise(seed)[:2] + 0.3 * noise(seed + 1)


@pytest.mark.parametrize("planted", [helix, residues])
@pytest.mark.parametrize("seed", [0, 10])
def test_planted_steps_are_found(planted: Callable[[int], torch.Tensor], seed: int) -> None:
    found = arithmetic_steps(planted(seed))
    assert found.p_value <= 0.01
    excess = dict(zip(found.steps.tolist(), found.closeness - found.expected, strict=True))
    assert min(excess[3], excess[4]) > max(excess[1], excess[2], excess[5])
    assert max(found.ranks) < len(found.steps) / 2


def test_one_of_two_claimed_steps_is_not_enough() -> None:
    triples = noise(0)[(X % 3).long()] + noise(1)
    found = arithmetic_steps(triples)
    assert found.p_values[3 - 1] <= 0.01
    assert found.p_value > 0.2
    assert arithmetic_steps(triples, (3,)).p_value <= 0.01


@pytest.mark.parametrize("family", [line, circle, smooth(2), smooth(20)])
def test_smooth_embeddings_have_no_step(
    monkeypatch: pytest.MonkeyPatch, family: Callable[[int], torch.Tensor]
) -> None:
    """At most 4 of 25 p-values are at or below 0.05."""
    monkeypatch.setattr("anchor_interp.models.embeddings.PERMUTATIONS", 99)
    p_values = [arithmetic_steps(family(100 * seed)).p_value for seed in range(25)]
    assert np.median(p_values) > 0.3
    assert sum(p <= 0.05 for p in p_values) <= 4


def test_every_step_keeps_its_level_on_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anchor_interp.models.embeddings.PERMUTATIONS", 99)
    p_values = np.array([arithmetic_steps(noise(seed)).p_values for seed in range(30)])
    assert p_values.shape == (30, 20)
    assert np.mean(p_values <= 0.1) == pytest.approx(0.1, abs=0.05)
    assert p_values.mean() == pytest.approx(0.5, abs=0.05)


def test_one_hot_embeddings_have_known_numbers() -> None:
    """All distances are equal, so no step is close; N - 1 eigenvalues are 1 / (N - 1)."""
    found = embedding_structure(torch.eye(N))
    assert found.steps.closeness == pytest.approx(np.zeros(20), abs=1e-12)
    assert found.steps.p_value > 0.2
    assert found.eigenvalues == pytest.approx(np.full(N - 1, 1 / (N - 1)))
    assert found.dimension == pytest.approx(N - 1)
    assert found.gaussian_dimension < N / 1.5


def test_a_line_has_one_dimension_and_ascending_coordinates() -> None:
    found = embedding_structure((X[:, None] + 3) @ noise(0)[:1])
    assert found.dimension == pytest.approx(1)
    assert (np.diff(found.coordinates[:, 0]) > 0).all()
    assert found.steps.closeness[0] == pytest.approx(1 - 1 / (N * (N + 1) / 6))
    assert found.steps.smooth_share > 0.99
    assert found.steps.p_value > 0.05


def test_an_entirely_smooth_curve_leaves_no_rest() -> None:
    found = arithmetic_steps(torch.cos(np.pi * (X[:, None] + 0.5) * torch.tensor([1, 2]) / N))
    assert found.smooth_share == 1
    assert found.closeness == pytest.approx(found.expected)


def test_eigenvalues_and_coordinates_agree_with_numpy() -> None:
    rows = line(5)
    found = embedding_structure(rows, noise(6))
    covariance = np.cov(rows.numpy(), rowvar=False)
    expected, axes = np.linalg.eigh(covariance)
    assert found.eigenvalues == pytest.approx(expected[::-1])
    along = (rows.numpy() - rows.numpy().mean(0)) @ axes[:, ::-1][:, :4]
    assert abs(found.coordinates) == pytest.approx(abs(along))
    assert found.gaussian_eigenvalues.sum() == pytest.approx(expected.sum())
    assert found.at_init is not None
    assert found.at_init.eigenvalues == pytest.approx(embedding_structure(noise(6)).eigenvalues)
    assert found.at_init.dimension == pytest.approx(found.at_init.gaussian_dimension, rel=0.1)


def test_rotation_shift_and_scale_change_nothing() -> None:
    rows = helix(0)
    moved = 7 * rows @ torch.linalg.qr(noise(3)[:D]).Q + noise(4)[0]
    one, other = arithmetic_steps(rows), arithmetic_steps(moved)
    assert one.closeness == pytest.approx(other.closeness)
    assert one.p_values == pytest.approx(other.p_values)


def test_embeddings_of_exact_and_trained_models() -> None:
    task = TASKS["complexity-control"]
    rows = key_embeddings(load("exact/inferential").model, task)
    assert len(rows) == N
    assert embedding_structure(rows).dimension == pytest.approx(N - 1)  # one feature for each key
    run = load("tiny/inferential/1")
    assert run.initial is not None
    mine, start = (key_embeddings(m, run.config.anchor_task) for m in (run.model, run.initial))
    found = embedding_structure(mine, start)
    assert found.at_init is not None
    assert found.dimension < found.at_init.dimension / 4
    assert json.loads(json.dumps(to_dict(found)))["at_init"]["steps"]["claimed"] == [3, 4]


def test_invalid_embeddings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"steps is .* a quarter of the 15 numbers"):
        arithmetic_steps(noise(0)[:15])
    with pytest.raises(ConfigError, match=r"steps is \(1, 3\); expected one or more, each from 2"):
        arithmetic_steps(noise(0), (1, 3))
    with pytest.raises(ConfigError, match="not finite"):
        embedding_structure(torch.full((3, 2), torch.nan))
    with pytest.raises(ConfigError, match="80 embeddings that do not differ"):
        embedding_structure(torch.ones(80, 2))
    model, task = load("tiny/symmetric/1").model, TASKS["complexity-control"]
    longer = dataclasses.replace(task, key_max=203)
    with pytest.raises(ConfigError, match="embeds 201 tokens; the task has keys up to 203"):
        key_embeddings(model, longer)
    with pytest.raises(ConfigError, match=r"shape \(79, 32\); expected \(80, 32\)"):
        embedding_structure(noise(0), noise(0)[:79])
