"""Stable rank and condensation against matrices whose answer is known."""

import math

import pytest
import torch

from anchor_interp.complexity import condensation, first_query_matrix, stable_rank
from anchor_interp.config import InitConfig, ModelConfig
from anchor_interp.errors import ConfigError
from anchor_interp.model import build_model


def gaussian(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def test_stable_rank_of_known_matrices() -> None:
    column, row = gaussian(7, 1), gaussian(1, 5)
    assert stable_rank(column @ row) == pytest.approx(1)
    assert stable_rank(torch.eye(6)) == pytest.approx(6)
    assert stable_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0]))) == pytest.approx(1.5)
    matrix = gaussian(30, 20)
    assert stable_rank(-3 * matrix) == pytest.approx(stable_rank(matrix), rel=1e-6)
    assert stable_rank(matrix.T) == pytest.approx(stable_rank(matrix), rel=1e-6)


@pytest.mark.parametrize(("m", "n", "expected"), [(640, 640, 160), (400, 200, 69), (128, 64, 22)])
def test_fresh_gaussian_matrices(m: int, n: int, expected: float) -> None:
    """m n / (sqrt m + sqrt n)^2, and a mean |cosine| of sqrt(2 / (pi m))."""
    matrix = gaussian(m, n)
    assert stable_rank(matrix) == pytest.approx(expected, rel=0.06)
    assert condensation(matrix) == pytest.approx(math.sqrt(2 / (math.pi * m)), rel=0.05)


def test_condensation_of_known_matrices() -> None:
    direction = gaussian(9, 1)
    assert condensation(direction @ torch.tensor([[1.0, -2.0, 3.0]])) == pytest.approx(1)
    assert condensation(torch.eye(4)) == pytest.approx(0)
    two = torch.tensor([[1.0, 1.0], [0.0, 1.0]])  # columns at 45 degrees
    assert condensation(two) == pytest.approx(math.sqrt(0.5))


def test_heads_are_merged() -> None:
    shape = ModelConfig(n_heads=3, d_model=20, d_head=8)
    model = build_model(shape, InitConfig(), seed=0)
    merged = first_query_matrix(model)
    assert merged.shape == (20, 24)
    torch.testing.assert_close(merged[:, 8:16], model.W_Q[0, 1])


def test_wrong_matrices_are_refused() -> None:
    with pytest.raises(ConfigError, match="not finite"):
        stable_rank(torch.tensor([[math.nan, 1.0]]))
    with pytest.raises(ConfigError, match="zero matrix"):
        stable_rank(torch.zeros(3, 3))
    with pytest.raises(ConfigError, match="has 1 column"):
        condensation(torch.ones(3, 1))
