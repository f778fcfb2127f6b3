"""How complex a weight matrix is: stable rank and condensation.

Both papers read a model's complexity off its first query matrix W_Q(1), with all heads merged into
one d_model x (n_heads d_head) matrix. A fresh Gaussian m x n matrix has a stable rank of about
m n / (sqrt m + sqrt n)^2 and a mean |cosine| of about sqrt(2 / (pi m)) between its columns, so a
number means little without its value at initialisation.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from anchor_interp.errors import ConfigError


@dataclass(frozen=True)
class MatrixComplexity:
    """The complexity of one weight matrix."""

    name: str
    """TransformerLens's name of it, such as ``W_Q``."""
    layer: int | None
    """0-based layer; None for the embeddings and the unembedding."""
    stable_rank: float | None
    """See :func:`stable_rank`; None for a zero matrix."""
    condensation: float | None
    """See :func:`condensation`; None where there is one neuron only."""


@dataclass(frozen=True)
class Complexity:
    """The complexity of every weight matrix of a model."""

    matrices: tuple[MatrixComplexity, ...]
    """Embeddings, then layer by layer, then unembedding."""


def complexity(model: Any) -> Complexity:
    """Stable rank and condensation of every weight matrix of a HookedTransformer.

    The heads of a matrix are merged as in :func:`first_query_matrix`; a layer without MLP has none
    of its matrices.

    Raises:
        ConfigError: a matrix holds a value that is not finite.
    """
    return Complexity(
        tuple(
            MatrixComplexity(
                name, layer, measured(stable_rank, matrix), measured(condensation, matrix)
            )
            for name, layer, matrix in _matrices(model)
        )
    )


def measured(measure: Callable[[Tensor], float], matrix: Tensor | None) -> float | None:
    """A measure of a matrix, or None where it is not defined."""
    if matrix is None or not matrix.any() or (measure is condensation and matrix.shape[1] < 2):
        return None
    return measure(matrix)


def stable_rank(matrix: Float[Tensor, "rows columns"]) -> float:
    """||W||_F^2 / ||W||_2^2: 1 for rank one, n for an orthogonal n x n matrix.

    Source: complexity-control paper, section VI (figure 5C).

    Raises:
        ConfigError: the matrix is zero or holds a value that is not finite.
    """
    singular = torch.linalg.svdvals(_finite(matrix))
    if singular[0] == 0:
        raise ConfigError("the stable rank of a zero matrix is not defined")
    return float((singular / singular[0]).square().sum())


def condensation(matrix: Float[Tensor, "d_in neuron"]) -> float:
    """Mean |cosine| between the input weights of different neurons; 1 if all are parallel.

    A neuron is an output unit of the map x @ W, so its input weights are a column of
    TransformerLens's layout (NeurIPS paper, section 5.3). Columns that are zero count as
    orthogonal to all others.

    Raises:
        ConfigError: fewer than two columns, or a value that is not finite.
    """
    n = matrix.shape[1]
    if n < 2:
        raise ConfigError(f"condensation compares neurons; the matrix has {n} column")
    columns = torch.nn.functional.normalize(_finite(matrix), dim=0)
    cosines = (columns.mT @ columns).abs()
    return float((cosines.sum() - cosines.diagonal().sum()) / (n * (n - 1)))


def first_query_matrix(model: Any) -> Float[Tensor, "d_model neuron"]:
    """W_Q(1) of a HookedTransformer with its heads merged."""
    return _merged(model.blocks[0].attn.W_Q)


def _matrices(model: Any) -> Iterator[tuple[str, int | None, Tensor]]:
    yield "W_E", None, model.embed.W_E
    if hasattr(model, "pos_embed"):
        yield "W_pos", None, model.pos_embed.W_pos
    for layer, block in enumerate(model.blocks):
        for name in ("W_Q", "W_K", "W_V"):
            yield name, layer, _merged(getattr(block.attn, name))
        # each head reads its own rows of W_O
        yield (
            "W_O",
            layer,
            rearrange(block.attn.W_O, "head d_head d_model -> (head d_head) d_model"),
        )
        for name in ("W_in", "W_gate", "W_out"):
            weight = getattr(getattr(block, "mlp", None), name, None)
            if weight is not None:
                yield name, layer, weight
    yield "W_U", None, model.unembed.W_U


def _merged(weight: Tensor) -> Tensor:
    return rearrange(weight.detach(), "head d_model d_head -> d_model (head d_head)")


def _finite(matrix: Tensor) -> Tensor:
    if not torch.isfinite(matrix).all():
        raise ConfigError("the matrix holds values that are not finite numbers")
    return matrix.detach().to("cpu", torch.float64)
