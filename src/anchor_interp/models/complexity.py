"""How complex a model's weights are: ranks, spectra, condensation, distance from the start.

Both papers read a model's complexity off W_Q of layer 0, their W_Q(1), with all heads merged into
one d_model x (n_heads d_head) matrix. :func:`complexity` measures every matrix, and for every head
the two products that act on the residual stream, QK = W_Q W_K^T and OV = W_V W_O. Beside each
number stand its value at initialisation (if given) and that of a Gaussian matrix of the same shape.

Some numbers depend on the basis inside a head: W_Q -> W_Q R and W_K -> W_K R^-T (W_V -> W_V R and
W_O -> R^-1 W_O), with any invertible R for each head, change neither the model's outputs nor QK and
OV, but they change the numbers of W_Q, W_K, W_V and W_O
(:attr:`MatrixComplexity.basis_dependent`). With rotary positions only rotations that commute with
them are free, and QK is the map between equal positions. No LayerNorm gain is folded in.

The matrices of a network that a task brings are those of its convolutions and linear maps: a row
for each number that an output is a sum over, a column for each output, which a transposed
convolution has for each pixel.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor, nn

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.readable import Readable, number
from anchor_interp._util.schema import shown
from anchor_interp.models.finite import check_finite, check_weights
from anchor_interp.models.transformer import HookedTransformer, check_model, is_transformer

MAX_NEURONS = 2048  # most that cosines compare: the unembedding of a language model has 50,000
GAUSSIAN_DRAWS = 8
_INSIDE_A_HEAD = ("W_Q", "W_K", "W_V", "W_O")


@dataclass(frozen=True, eq=False)
class Numbers:
    """The measures of a matrix, where they are defined."""

    stable_rank: float | None
    effective_rank: float | None
    condensation: float | None


@dataclass(frozen=True, eq=False)
class MatrixComplexity(Numbers):
    """The complexity of one weight matrix, its heads merged, or of one head's QK or OV product.

    Layer and head are 0-based; the embeddings have no layer, a matrix no head.
    """

    name: str
    layer: int | None
    head: int | None
    shape: tuple[int, int]
    basis_dependent: bool
    """Whether the numbers depend on the basis inside a head, which no output does."""
    spectrum: Float[np.ndarray, " rank"]
    """Singular values, descending."""
    at_init: Numbers | None
    distance: float | None
    """||W - W_0||_F / ||W_0||_F from the initial W_0; None without one or if it is zero."""
    gaussian: Numbers
    """Mean over Gaussian matrices of this shape (for a product, of Gaussian factors)."""
    gaussian_spread: Numbers
    """Their standard deviation."""


@dataclass(frozen=True, eq=False, repr=False)
class Complexity(Readable):
    """The complexity of every weight matrix of a model, and of every head's QK and OV."""

    matrices: tuple[MatrixComplexity, ...]
    heads: tuple[MatrixComplexity, ...]

    def _summary(self) -> str:
        query = next((m for m in self.matrices if m.name == "W_Q"), self.matrices[0])
        counts = f"{len(self.matrices)} matrices, {len(self.heads)} products of heads"
        ranks = (
            getattr(each, "stable_rank", None) for each in (query, query.at_init, query.gaussian)
        )
        return "{}\nfirst {}: stable rank {} (at init {}, Gaussian {})".format(
            counts, query.name, *map(number, ranks)
        )

    def _rows(self) -> Iterator[dict[str, Any]]:
        measures = tuple(field.name for field in fields(Numbers))
        for entry in (*self.matrices, *self.heads):
            row = {name: getattr(entry, name) for name in ("name", "layer", "head", *measures)}
            row |= {f"{name}_at_init": getattr(entry.at_init, name, None) for name in measures}
            row |= {f"{name}_gaussian": getattr(entry.gaussian, name) for name in measures}
            yield row | {"distance": entry.distance, "basis_dependent": entry.basis_dependent}


@dataclass(frozen=True, eq=False)
class CosineMatrix:
    """Cosines between the input weights (columns) of neurons, with similar neurons side by side."""

    cosines: Float[np.ndarray, "neuron neuron"]
    neurons: Int64[np.ndarray, " neuron"]


class _Weight(NamedTuple):
    """A matrix, or the product left @ right of a head, which is never multiplied out."""

    name: str
    layer: int | None
    head: int | None
    left: Tensor
    right: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.left.shape[0], (self.left if self.right is None else self.right).shape[1]

    def spectrum(self) -> Float[Tensor, " rank"]:
        """Singular values; those of A B are those of R_A R_B^T, with A = Q_A R_A, B^T = Q_B R_B."""
        matrix = _exact(self.left)
        product = matrix if self.right is None else _core(matrix, _exact(self.right))
        singular: Tensor = torch.linalg.svdvals(product)
        return singular

    def numbers(self, spectrum: Float[Tensor, " rank"]) -> Numbers:
        if not spectrum.any():
            return Numbers(None, None, None)
        cosine = measured(condensation, None if self.right is not None else self.left)
        return Numbers(_stable_rank(spectrum), _effective_rank(spectrum), cosine)

    def distance(self, start: "_Weight") -> float | None:
        """||self - start||_F / ||start||_F."""
        left, before = _exact(self.left), _exact(start.left)
        if self.right is None or start.right is None:
            difference, scale = left - before, before
        else:
            right, other = _exact(self.right), _exact(start.right)
            scale = _core(before, other)
            difference = _core(torch.cat([left, -before], 1), torch.cat([right, other], 0))
        return float(difference.norm() / scale.norm()) if scale.any() else None


def complexity(
    model: HookedTransformer | nn.Module, initial: HookedTransformer | nn.Module | None = None
) -> Complexity:
    """Measure every matrix of a network; GPT-2 takes a minute on one core.

    ``initial`` is the model before training, such as :attr:`anchor_interp.runs.run.Run.initial`.

    Raises:
        ConfigError: not such a model, a weight that is not finite, or an ``initial`` with other
            matrices.
    """
    for each in (model,) if initial is None else (model, initial):
        if is_transformer(each) or not isinstance(each, nn.Module):
            check_model(each)
        check_weights(each)
    starts = {} if initial is None else {weight[:3]: weight for weight in _weights(initial)}
    entries: list[MatrixComplexity] = []
    for weight in _weights(model):
        start = starts.get(weight[:3])  # name, layer, head
        if initial is not None and (start is None or start.shape != weight.shape):
            where = "" if weight.layer is None else f" of layer {weight.layer}"
            other = "missing" if start is None else start.shape
            raise ConfigError(
                f"{weight.name}{where} is {weight.shape} and {other} in the initial model; "
                "expected the same model before training"
            )
        spectrum = weight.spectrum()
        gaussian, spread = _gaussian(weight)
        entries.append(
            MatrixComplexity(
                **vars(weight.numbers(spectrum)),
                name=weight.name,
                layer=weight.layer,
                head=weight.head,
                shape=weight.shape,
                basis_dependent=weight.name in _INSIDE_A_HEAD,
                spectrum=spectrum.numpy(),
                at_init=None if start is None else start.numbers(start.spectrum()),
                distance=None if start is None else weight.distance(start),
                gaussian=gaussian,
                gaussian_spread=spread,
            )
        )
    matrices = tuple(entry for entry in entries if entry.head is None)
    return Complexity(matrices, tuple(entry for entry in entries if entry.head is not None))


def measured(measure: Callable[[Tensor], float], matrix: Tensor | None) -> float | None:
    """A measure of a matrix, or None where it is not defined."""
    if matrix is None or not matrix.any() or (measure is condensation and matrix.shape[1] < 2):
        return None
    return measure(matrix)


def main_numbers(model: Any) -> Numbers:
    """Stable rank and condensation by which runs are compared; None without a model.

    They are those of W_Q in layer 0 of a HookedTransformer, and means over another
    network's layers.
    """
    if model is None:
        return Numbers(None, None, None)
    if is_transformer(model):
        layers = [first_query_matrix(model)]
    else:
        layers = [weight.left for weight in _weights(model)]
    ranks = [rank for layer in layers if (rank := measured(stable_rank, layer)) is not None]
    cosines = [cosine for layer in layers if (cosine := measured(condensation, layer)) is not None]
    return Numbers(fmean(ranks) if ranks else None, None, fmean(cosines) if cosines else None)


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

    A neuron is an output of the map x @ W; its input weights are a column of TransformerLens's
    layout (NeurIPS paper, section 5.3). A zero column counts as orthogonal to all others. At most
    :data:`MAX_NEURONS` neurons are compared, drawn with a fixed seed.

    Raises:
        ConfigError: the matrix has fewer than two columns or is not finite.
    """
    cosines = _cosines(matrix)[0].abs()
    n = len(cosines)
    return float((cosines.sum() - cosines.diagonal().sum()) / (n * (n - 1)))


def cosine_matrix(matrix: Float[Tensor, "d_in neuron"]) -> CosineMatrix:
    """The cosines behind :func:`condensation`, ordered so that blocks show.

    Neurons are in the order of the leaves of a hierarchical clustering by cosine (average linkage).
    Source: NeurIPS paper, figures 5a and 5b; complexity-control paper, figures 5A and 10.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    found, neurons = _cosines(matrix)
    cosines = found.numpy().clip(-1, 1)
    apart = 1 - cosines
    np.fill_diagonal(apart, 0)  # zero columns too
    order = leaves_list(linkage(squareform(apart, checks=False), "average"))
    return CosineMatrix(cosines[np.ix_(order, order)], neurons.numpy()[order])


def first_query_matrix(model: Any) -> Float[Tensor, "d_model neuron"]:
    """W_Q in layer 0 of a HookedTransformer with its heads merged."""
    return _merged(model.blocks[0].attn.W_Q)


@lru_cache(maxsize=64)
def gaussian_spectra(
    shape: tuple[int, int], inner: int | None = None
) -> Float[np.ndarray, "draw rank"]:
    """Singular values of :data:`GAUSSIAN_DRAWS` Gaussian matrices, drawn with a fixed seed.

    The triangular factor R of an m x n Gaussian matrix (m >= n) has independent entries: on the
    diagonal square roots of chi-squared variables with m, m - 1, ... degrees of freedom, normal
    ones above it (Bartlett 1933). So drawing R, an n x n matrix, is enough. With ``inner`` the
    matrices are products of two Gaussian ones, summed over that dimension.
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


def _gaussian(weight: _Weight) -> tuple[Numbers, Numbers]:
    """Mean and standard deviation over Gaussian matrices of a weight's shape."""
    inner = None if weight.right is None else weight.right.shape[0]
    spectra = [torch.from_numpy(s) for s in gaussian_spectra(weight.shape, inner)]
    stable = np.array([_stable_rank(spectrum) for spectrum in spectra])
    effective = np.array([_effective_rank(spectrum) for spectrum in spectra])
    d_in, n = weight.shape[0], min(weight.shape[1], MAX_NEURONS)
    mean = spread = None
    if weight.right is None and n > 1:
        # |cos| of two random directions in d_in dimensions; different pairs are independent, even
        # if they share a neuron
        mean = math.exp(math.lgamma(d_in / 2) - math.lgamma((d_in + 1) / 2)) / math.sqrt(math.pi)
        spread = math.sqrt(max(0.0, 1 / d_in - mean**2) / (n * (n - 1) / 2))
    return (
        Numbers(float(stable.mean()), float(effective.mean()), mean),
        Numbers(float(stable.std(ddof=1)), float(effective.std(ddof=1)), spread),
    )


def _weights(model: Any) -> Iterator[_Weight]:
    """Every matrix of a model in its order; the heads' products follow their layer's matrices."""
    if not is_transformer(model):
        for name, part in model.named_modules():
            if isinstance(part, nn.ConvTranspose2d):  # [in, out, row, column]
                yield _Weight(name, None, None, part.weight.detach().flatten(1))
            elif isinstance(part, nn.Linear | nn.Conv2d):
                yield _Weight(name, None, None, part.weight.detach().flatten(1).mT)
        return
    yield _Weight("W_E", None, None, model.embed.W_E.detach())
    if hasattr(model, "pos_embed"):
        yield _Weight("W_pos", None, None, model.pos_embed.W_pos.detach())
    for layer, block in enumerate(model.blocks):
        attn = block.attn
        for name in ("W_Q", "W_K", "W_V"):
            # grouped queries store keys and values once a group, under _W_K and _W_V
            merged = _merged(getattr(attn, f"_{name}", getattr(attn, name)))
            yield _Weight(name, layer, None, merged)
        # each head reads its own rows of W_O
        yield _Weight("W_O", layer, None, attn.W_O.detach().flatten(0, 1))
        for name in ("W_in", "W_gate", "W_out"):
            weight = getattr(getattr(block, "mlp", None), name, None)
            if isinstance(weight, Tensor):
                yield _Weight(name, layer, None, weight.detach())
        parts = [getattr(attn, name).detach() for name in _INSIDE_A_HEAD]
        most = max(map(len, parts))  # a bridge has grouped keys and values once a group
        heads = zip(*(x.repeat_interleave(most // len(x), 0) for x in parts), strict=True)
        for head, (W_Q, W_K, W_V, W_O) in enumerate(heads):
            yield _Weight("QK", layer, head, W_Q, W_K.mT)
            yield _Weight("OV", layer, head, W_V, W_O)
    yield _Weight("W_U", None, None, model.unembed.W_U.detach())


def _merged(weight: Tensor) -> Tensor:
    return rearrange(weight.detach(), "head d_model d_head -> d_model (head d_head)")


def _exact(matrix: Tensor) -> Tensor:
    """The matrix on the CPU in float64, if it is finite."""
    return check_finite(matrix, "the matrix's values").detach().to("cpu", torch.float64)


def _check_is_matrix(given: object) -> None:
    if not isinstance(given, Tensor) or given.ndim != 2:
        shape = tuple(given.shape) if isinstance(given, Tensor) else shown(given)
        raise ConfigError(
            f"the matrix is {shape}; expected a tensor of two dimensions: one head's, "
            "such as model.W_Q[0, 0], or torch.from_numpy(...)"
        )


def _spectrum(matrix: Tensor, measure: str) -> Float[Tensor, " rank"]:
    _check_is_matrix(matrix)
    singular: Tensor = torch.linalg.svdvals(_exact(matrix))
    if singular[0] == 0:
        raise ConfigError(f"the {measure} of a zero matrix is not defined")
    return singular


def _stable_rank(singular: Float[Tensor, " rank"]) -> float:
    return float((singular / singular[0]).square().sum())


def _effective_rank(singular: Float[Tensor, " rank"]) -> float:
    return math.exp(float(torch.special.entr(singular / singular.sum()).sum()))


def _core(left: Tensor, right: Tensor) -> Tensor:
    """A small matrix with the singular values of left @ right."""
    core: Tensor = torch.linalg.qr(left, "r").R @ torch.linalg.qr(right.mT, "r").R.mT
    return core


def _cosines(
    matrix: Float[Tensor, "d_in neuron"],
) -> tuple[Float[Tensor, "chosen chosen"], Int64[Tensor, " chosen"]]:
    """Cosines between the neurons to compare, and which these are."""
    _check_is_matrix(matrix)
    n = matrix.shape[1]
    if n < 2:
        raise ConfigError(f"condensation compares neurons; the matrix has {n} column")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    neurons = order[:MAX_NEURONS].sort().values
    columns = torch.nn.functional.normalize(_exact(matrix[:, neurons.to(matrix.device)]), dim=0)
    return columns.mT @ columns, neurons
