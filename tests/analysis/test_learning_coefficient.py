"""The local learning coefficient against a closed form."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anchor_interp as ai
from anchor_interp.analysis.learning_coefficient import sampled_coefficient

pytest.importorskip("devinterp")
RATE = 0.5


class Quadratic(nn.Module):
    """Weights of which the loss depends on the first ``d``, with different curvatures."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.full((12,), 3.0, dtype=torch.float64))
        self.curvature = torch.cat([torch.linspace(0.5, 2, d), torch.zeros(12 - d)])

    def loss(self) -> Tensor:
        return 0.5 * (self.curvature * (self.weights - 3) ** 2).sum()


def test_a_quadratic_loss_has_half_the_number_of_its_curved_parameters() -> None:
    """At curvature h a chain has variance 1 / (n_beta h (1 - lr n_beta h / 4))."""
    d = 4  # of 12
    objective: Any = SimpleNamespace(parts=lambda _: (None,), loss=lambda model, _: model.loss())
    model = Quadratic(d)
    each = [
        sampled_coefficient(
            model, objective, steps=4_000, seed=seed, n_beta=100, localization=1e-9, lr=RATE / 100
        )
        for seed in range(2)
    ]
    expected = (0.5 / (1 - RATE * model.curvature[:d] / 4)).sum()
    assert np.mean(each) == pytest.approx(float(expected), rel=0.1)
    assert (model.weights == 3).all(), "the model itself is not moved"


def test_a_trained_run(finished_run: ai.Run) -> None:
    one, two = (ai.learning_coefficient(finished_run, steps=10, seed=0) for _ in range(2))
    assert one.tolist() == two.tolist()
    assert len(set(one)) == 2
    wrong: dict[str, Any] = {"chains": 0, "steps": 1.5, "seed": "a", "lr": 0.0, "n_beta": np.nan}
    for name, value in wrong.items():
        with pytest.raises(ai.ConfigError, match=f"{name} is {value!r}; expected"):
            ai.learning_coefficient(finished_run, **{name: value})
    with pytest.raises(ai.ConfigError, match="the losses of the chain are not finite"):
        ai.learning_coefficient(finished_run, steps=10, lr=1e9)
