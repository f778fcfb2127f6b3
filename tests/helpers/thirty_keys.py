"""The complexity-control task on 30 keys, with models whose mechanism is known."""

from functools import lru_cache

import torch
from small_models import with_offsets

from anchor_interp.models.exact import Mechanism, Normalization, exact_model
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer import HookedTransformer, build_model
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.functions import Affine, Anchor

SMALL = AnchorTask(
    anchors=tuple(Anchor(token, Affine(add)) for token, add in ((1, 5), (2, 1), (3, -2), (4, -8))),
    unseen=((3, 4), (4, 3)), key_min=20, key_max=49, length=7,
)  # fmt: skip
"""The papers' anchors on 30 keys: exact models are a third as wide."""


@lru_cache
def known_model(mechanism: Mechanism, normalization: Normalization) -> HookedTransformer:
    """The exact model of :data:`SMALL`, shared by the tests: leave it as it is."""
    return exact_model(mechanism, SMALL, normalization=normalization)


def with_graded_logits(mechanism: Mechanism) -> HookedTransformer:
    """An exact model whose unembedding gives neighbouring answers similar logits."""
    model = exact_model(mechanism, SMALL)
    d_model, d_vocab = model.W_U.shape
    answers = torch.arange(d_vocab)
    overlap = torch.exp(-((answers[:, None] - answers) ** 2) / (2 * 1.5**2))
    reads = torch.randn(d_model, d_vocab, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.W_U.copy_(reads @ overlap)
        model.W_U[:3] = 0  # the constants of the stream
    return model


def arbitrary_model(normalization: Normalization = "post") -> HookedTransformer:
    """A narrow model of random weights, biases and LayerNorms in double precision."""
    shape = ModelConfig(
        n_heads=2, d_model=12, d_head=5, d_mlp=16, bias=True, normalization=normalization
    )
    return with_offsets(build_model(shape, InitConfig(), seed=0, dtype=torch.float64))


def known(value: float | None) -> float:
    """A number that must be there."""
    assert value is not None
    return value
