"""Small models: exact models of a task with few keys, and narrow random ones."""

import warnings
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from anchor_interp.models.exact import MECHANISMS, Mechanism, exact_answer, exact_model, exact_shape
from anchor_interp.models.shapes import InitConfig, ModelConfig, Normalization
from anchor_interp.models.transformer import HookedTransformer, build_model, empty_model, place
from anchor_interp.models.transformer_lens import HookedTransformerConfig
from anchor_interp.tasks.anchor import TASKS, AnchorTask
from anchor_interp.tasks.sequences import Sequences

LAYOUTS: list[Normalization] = ["post", "pre"]
EACH_EXACT = pytest.mark.parametrize(("mechanism", "normalization"), [
    pytest.param(mechanism, layout, marks=[] if (i + j) % 2 else [pytest.mark.slow])
    for i, mechanism in enumerate(MECHANISMS) for j, layout in enumerate(LAYOUTS)
])  # fmt: skip
"""Each mechanism in one layout; in the other its states are equal (test_exact.py): that is slow."""
FEW_KEYS = AnchorTask(key_max=31, unseen=TASKS["complexity-control"].unseen)
"""The complexity-control task with 12 keys, which makes its exact models narrow."""


@lru_cache
def small_exact(
    mechanism: Mechanism, normalization: Normalization, dtype: torch.dtype = torch.float32
) -> HookedTransformer:
    """The exact model of :data:`FEW_KEYS`. All tests share it, so none may change it."""
    return exact_model(mechanism, FEW_KEYS, normalization=normalization, dtype=dtype)


def exact_answers(mechanism: Mechanism, task: AnchorTask, sequences: Sequences) -> np.ndarray:
    """A mechanism's answer to every sequence."""
    rows = zip(sequences.pair, sequences.key.astype(np.int64), strict=True)
    return np.concatenate(
        [exact_answer(mechanism, task, task.pairs[pair], np.array([key])) for pair, key in rows]
    )


def random_model(
    normalization: Normalization = "post", *, n_layers: int = 3, n_heads: int = 2, seed: int = 0
) -> HookedTransformer:
    """A narrow random model in float64; each of its edges has a small effect."""
    shape = ModelConfig(
        n_layers=n_layers, n_heads=n_heads, d_model=16, d_head=5, d_mlp=12,
        normalization=normalization, d_vocab=120, n_ctx=10, bias=True,
    )  # fmt: skip
    return build_model(shape, InitConfig(gamma=0.2), seed=seed, dtype=torch.float64)


def lens_model(**settings: Any) -> HookedTransformer:
    """A random model in float64 with TransformerLens's settings, also those that no run has."""
    usual: dict[str, Any] = {
        "n_layers": 2, "n_heads": 4, "d_model": 16, "d_head": 4, "d_mlp": 12, "d_vocab": 120,
        "n_ctx": 10, "act_fn": "gelu", "normalization_type": "LN", "init_weights": False,
        "seed": None, "device": "cpu", "dtype": torch.float64,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        cfg = HookedTransformerConfig(**usual | settings)
        model = HookedTransformer(cfg, move_to_device=False).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.copy_(drawn / 3 + name.endswith(".w"))
    return model


def with_idle_layer(mechanism: Mechanism, at: int) -> HookedTransformer:
    """An exact pre-LayerNorm model with an additional layer of zeros, which does nothing."""
    shape = exact_shape(mechanism, FEW_KEYS, normalization="pre")
    model = empty_model(replace(shape, n_layers=3), dtype=torch.float32)
    weights = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for name, value in small_exact(mechanism, "pre").named_parameters():
        parts = name.split(".")
        if parts[0] == "blocks":
            layer = int(parts[1])
            parts[1] = str(layer + (layer >= at))
        weights[".".join(parts)] = value.detach()
    model.load_state_dict(weights, strict=False)
    return place(model, "cpu")


def with_offsets(model: HookedTransformer, *, seed: int = 1) -> HookedTransformer:
    """The same model after random changes to its biases and LayerNorm parameters.

    They start at 0 or 1, where mistakes do not show.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".b" in name or ".w" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator))
    return model
