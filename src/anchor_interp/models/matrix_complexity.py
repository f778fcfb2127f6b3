"""Ranks, spectra and condensation of one matrix, and those of Gaussian matrices of its shape."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import shown
from anchor_interp.models.number_checks import check_finite

MAX_NEURONS = 2048  # most that cosines compare: the unembedding of a language model has 50,000
GAUSSIAN_DRAWS = 8


@dataclass(frozen=True, eq=False)
class Numbers:
    """The measures of a matrix, where they are defined."""

    stable_rank: float | None
    effective_rank: float | None
    condensation: float | None


@dataclass(frozen=True, eq=False)
class CosineMatrix:
    """Cosines between the input weights (columns) of neurons, with similar neurons side by side."""

    cosines: Float[np.ndarray, "neuron neuron"]
    neurons: Int64[np.ndarray, " neuron"]


def measured(measure: Callable[[Tensor], float], matrix: Tensor | None) -> float | None:
    """A measure of a matrix, or None where it is not defined."""
    if matrix is None or not matrix.any() or (measure is condensation and matrix.shape[1] < 2):
        return None
    return measure(matrix)


def numbers(spectrum: Float[Tensor, " rank"], neurons: Tensor | None) -> Numbers:
    """The measures of a matrix with these singular values; a product has no neurons."""
    if not spectrum.any():
        return Numbers(None, None, None)
    cosine = measured(condensation, neurons)
    return Numbers(_stable_rank(spectrum), _effective_rank(spectrum), cosine)


def stable_rank(matrix: Float[Tensor, "rows columns"]) -> float:
    """||W||_F^2 / ||W||_2^2: 1 for rank one, n for an orthogonal n x n matrix.

    Source: complexity-control paper, section VI (figure 5C).
    """
    return _stable_rank(_spectrum(matrix, "stable rank"))


def effective_rank(matrix: Float[Tensor, "rows columns"]) -> float:
    """e^(entropy of the singular values, scaled to sum 1): 1 for rank one, n for I_n.

    It also depends on small singular values. Source: Roy and Vetterli, EUSIPCO 2007.
    """
    return _effective_rank(_spectrum(matrix, "effective rank"))


def condensation(matrix: Float[Tensor, "d_in neuron"]) -> float:
    """Mean |cosine| between the input weights of different neurons; 1 if all are parallel.

    Random ones have about sqrt(2 / (pi d_in)). A neuron is an output of x @ W (of an embedding a
    dimension); its weights are a column (NeurIPS paper, section 5.3). A zero column is orthogonal
    to all others. At most :data:`MAX_NEURONS` neurons are compared, drawn with a fixed seed.

    Raises:
        ConfigError: the matrix has fewer than two columns or is not finite.
    """
    cosines = _cosines(matrix)[0].abs()
    n = len(cosines)
    return float((cosines.sum() - cosines.diagonal().sum()) / (n * (n - 1)))


def cosine_matrix(matrix: Float[Tensor, "d_in neuron"]) -> CosineMatrix:
    """The cosines behind :func:`condensation`, by the leaves of a clustering (average linkage).

    Source: NeurIPS paper, figures 5a and 5b; complexity-control paper, figures 5A and 10.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    raw, neurons = _cosines(matrix)
    cosines = raw.numpy().clip(-1, 1)
    apart = 1 - cosines
    np.fill_diagonal(apart, 0)  # zero columns too
    order = leaves_list(linkage(squareform(apart, checks=False), "average"))
    return CosineMatrix(cosines[np.ix_(order, order)], neurons.numpy()[order])


@lru_cache(maxsize=64)
def gaussian_spectra(
    shape: tuple[int, int], inner: int | None = None
) -> Float[np.ndarray, "draw rank"]:
    """Singular values of :data:`GAUSSIAN_DRAWS` Gaussian matrices, drawn with a fixed seed.

    Drawn is the triangular factor R of an m x n matrix (m >= n): on its diagonal square roots of
    chi-squared variables with m, m - 1, ... degrees of freedom, normal above it (Bartlett 1933).
    With ``inner``, of products of two Gaussian matrices summed over that dimension.
    """
    generator = np.random.default_rng(0)

    def factor(rows: int, columns: int) -> Tensor:
        k = min(rows, columns)
        triangle = np.triu(generator.standard_normal((k, columns)), 1)
        np.fill_diagonal(triangle, np.sqrt(generator.chisquare(rows - np.arange(k))))
        return torch.from_numpy(triangle)

    spectra = []
    for _ in range(GAUSSIAN_DRAWS):
        if inner is None:
            core = factor(max(shape), min(shape))
        else:
            core = factor(shape[0], inner) @ factor(shape[1], inner).mT
        spectra.append(torch.linalg.svdvals(core).numpy())
    return np.stack(spectra)


def gaussian_numbers(shape: tuple[int, int], inner: int | None = None) -> Numbers:
    """Mean over Gaussian matrices; ``inner`` as above."""
    spectra = [torch.from_numpy(s) for s in gaussian_spectra(shape, inner)]
    ranks = np.array([(_stable_rank(spectrum), _effective_rank(spectrum)) for spectrum in spectra])
    d_in, cosine = shape[0], None
    if inner is None and shape[1] > 1:  # |cos| of two random directions in d_in dimensions
        cosine = math.exp(math.lgamma(d_in / 2) - math.lgamma((d_in + 1) / 2)) / math.sqrt(math.pi)
    stable, effective = ranks.mean(0).tolist()
    return Numbers(stable, effective, cosine)


def exact(matrix: Tensor) -> Tensor:
    """The matrix on the CPU in float64, if it is finite."""
    return check_finite(matrix, "the matrix's values").detach().to("cpu", torch.float64)


def _check_is_matrix(given: object) -> None:
    if not isinstance(given, Tensor) or given.ndim != 2:
        shape = tuple(given.shape) if isinstance(given, Tensor) else shown(given)
        expected = "expected a tensor of two dimensions, such as one head's: model.W_Q[0, 0]"
        raise ConfigError(f"the matrix is {shape}; {expected}")


def _spectrum(matrix: Tensor, measure: str) -> Float[Tensor, " rank"]:
    _check_is_matrix(matrix)
    singular: Tensor = torch.linalg.svdvals(exact(matrix))
    if not singular.any():
        raise ConfigError(f"the {measure} of a zero matrix is not defined")
    return singular


def _stable_rank(singular: Float[Tensor, " rank"]) -> float:
    return float((singular / singular[0]).square().sum())


def _effective_rank(singular: Float[Tensor, " rank"]) -> float:
    return math.exp(float(torch.special.entr(singular / singular.sum()).sum()))


def _cosines(
    matrix: Float[Tensor, "d_in neuron"],
) -> tuple[Float[Tensor, "chosen chosen"], Int64[Tensor, " chosen"]]:
    """Cosines between the neurons to compare, and which these are."""
    _check_is_matrix(matrix)
    n = matrix.shape[1]
    if n < 2:
        raise ConfigError(f"condensation compares neurons; the matrix has {n} column")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0), device="cpu")
    neurons = order[:MAX_NEURONS].sort().values
    columns = exact(matrix[:, neurons.to(matrix.device)])
    exponents = torch.frexp(columns.abs().amax(0)).exponent.to(columns.dtype).clamp(min=-1000)
    columns = columns * 2.0**-exponents  # rounds nothing, and small norms do not underflow
    columns = columns / columns.norm(dim=0).clamp(min=torch.finfo(columns.dtype).tiny)
    return columns.mT @ columns, neurons
