"""Shared by the tests of interventions: random models in double precision, no gradients."""

from collections.abc import Iterator

import pytest
import torch
from small import LAYOUTS, random_model

from anchor_interp.models.transformer import HookedTransformer


@pytest.fixture(params=LAYOUTS)
def model(request: pytest.FixtureRequest) -> HookedTransformer:
    return random_model(request.param)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield
