"""How a model arranges the numbers: the shape of its embedding, and arithmetic steps in it.

Both papers draw the embedded keys of inferential models on their first two principal components and
see them "ordered with intervals of 3 and 4 from two directions" (NeurIPS paper, section 5.3 and
figure 5c; complexity-control paper, section VI-B and figure 5B): x + 3 and x + 4 lie near x, in two
directions, nearer than x + 2 or x + 5. Anchors differ by sums of 3 and 4.

:func:`arithmetic_steps` measures and tests this. The closeness of a step s,::

    closeness(s) = 1 - mean_x |e(x) - e(x + s)|^2 / mean over all pairs |e(x) - e(y)|^2

is 1 for equal embeddings and 0 for unrelated ones; rotation, shift and scale do not change it. Any
smooth arrangement brings small steps close, so the test looks at what a step has beyond that. It
splits the embedding into a smooth curve through the numbers and the rest. The curve is made of
waves whose period is at least twice the largest claimed step: they fall over all these steps and
cannot favour one. Under the null hypothesis the rest belongs to any number as well as to any other.
So the test permutes its rows at random, removes the smooth part that arises, and compares the
closeness of the rest at every step (a permutation of residuals, Freedman and Lane 1983). White
noise, curves and their sums keep the test's level; a rest that is still correlated at short steps
makes the test cautious.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.models.complexity import gaussian_spectra
from anchor_interp.models.finite import check_finite
from anchor_interp.tasks.anchor import AnchorTask

COMPONENTS = 4
"""Principal components whose coordinates are kept."""
STEPS = (3, 4)
"""The steps that the papers claim."""
PERMUTATIONS = 999
"""Random permutations of a test; the smallest p is 0.001."""


@dataclass(frozen=True, eq=False)
class StepTest:
    """How close the embeddings of numbers a step apart are, beyond what a smooth curve explains."""

    steps: Int64[np.ndarray, " step"]
    """All steps compared: 1 to a quarter of the numbers."""
    closeness: Float[np.ndarray, " step"]
    """Closeness of every step; see the module's docstring."""
    expected: Float[np.ndarray, " step"]
    """The closeness that the smooth curve explains: the mean over permutations of the rest."""
    spread: Float[np.ndarray, " step"]
    """Standard deviation over these permutations; (closeness - expected) / spread is a z score."""
    p_values: Float[np.ndarray, " step"]
    """For every step alone: how often a permutation brings it as close; one-sided."""
    claimed: tuple[int, ...]
    """The steps that are tested together."""
    p_value: float
    """The largest p of the claimed steps: small only if each of them stands out."""
    ranks: tuple[int, ...]
    """Rank of each claimed step among all steps by z score; 1 stands out most."""
    smooth_share: float
    """The smooth curve's share of the variance."""
    permutations: int
    """Number of permutations drawn."""


@dataclass(frozen=True, eq=False)
class EmbeddingStructure:
    """Principal components, spectrum and steps of embedded numbers."""

    coordinates: Float[np.ndarray, "number leading"]
    """Coordinates on the leading principal components, at most :data:`COMPONENTS`; coordinates
    tend to grow with the number."""
    eigenvalues: Float[np.ndarray, " component"]
    """Eigenvalues of the covariance matrix, descending, without those that must be zero."""
    dimension: float
    """Participation ratio (sum of eigenvalues)^2 / sum of squares: 1 on a line, d if d are equal
    and the others zero."""
    gaussian_eigenvalues: Float[np.ndarray, " component"]
    """Mean eigenvalues of Gaussian embeddings of the same shape and total variance."""
    gaussian_dimension: float
    """Mean participation ratio of these Gaussian embeddings."""
    steps: StepTest
    """The test of the arithmetic steps."""
    at_init: "EmbeddingStructure | None"
    """The structure of the initial embedding, if given."""


def key_embeddings(model: Any, task: AnchorTask) -> Float[Tensor, "key d_model"]:
    """The rows of W_E for a task's keys, ascending.

    Raises:
        ConfigError: the model's vocabulary lacks a key.
    """
    checked(task, AnchorTask, "task")
    rows: Tensor = model.embed.W_E.detach()
    if len(rows) <= task.key_max:
        raise ConfigError(
            f"the model embeds {len(rows)} tokens; the task has keys up to {task.key_max}"
        )
    return rows[task.key_min : task.key_max + 1]


def embedding_structure(
    rows: Float[Tensor, "number d_model"],
    initial: Float[Tensor, "_ _"] | None = None,
    *,
    steps: tuple[int, ...] = STEPS,
    seed: int = 0,
) -> EmbeddingStructure:
    """Describe the embeddings of successive numbers, such as :func:`key_embeddings`.

    ``initial`` holds the same embeddings before training, ``steps`` the claimed steps.

    Raises:
        ConfigError: as :func:`arithmetic_steps`, or ``initial`` has another shape.
    """
    vectors = _vectors(rows)
    if initial is not None and initial.shape != rows.shape:
        raise ConfigError(
            f"the initial embedding has shape {tuple(initial.shape)}; expected {tuple(rows.shape)}"
        )
    centred = vectors - vectors.mean(0)
    left, singular, _ = np.linalg.svd(centred, full_matrices=False)
    eigenvalues = covariance_eigenvalues(rows)
    kept = min(COMPONENTS, len(eigenvalues))
    order = np.arange(len(vectors)) - (len(vectors) - 1) / 2
    signs = np.where(order @ left[:, :kept] < 0, -1.0, 1.0)
    spectra = gaussian_spectra((len(vectors) - 1, vectors.shape[1])) ** 2
    spectra *= eigenvalues.sum() / spectra.sum(1, keepdims=True)
    return EmbeddingStructure(
        coordinates=left[:, :kept] * singular[:kept] * signs,
        eigenvalues=eigenvalues,
        dimension=_participation(eigenvalues),
        gaussian_eigenvalues=spectra.mean(0),
        gaussian_dimension=float(np.mean([_participation(spectrum) for spectrum in spectra])),
        steps=arithmetic_steps(rows, steps, seed=seed),
        at_init=None if initial is None else embedding_structure(initial, steps=steps, seed=seed),
    )


def covariance_eigenvalues(
    rows: Float[Tensor, "number d_model"],
) -> Float[np.ndarray, " component"]:
    """Eigenvalues of the (unbiased) covariance matrix of embeddings, descending.

    n rows span at most n - 1 dimensions; the eigenvalues that are always zero are left out. Source:
    NeurIPS paper, appendix B (figure 7).

    Raises:
        ConfigError: there are fewer than two rows, all rows are equal, or a value is not finite.
    """
    vectors = _vectors(rows)
    singular = np.linalg.svd(vectors - vectors.mean(0), compute_uv=False)
    values: Float[np.ndarray, " component"] = singular**2 / (len(vectors) - 1)
    return values[: len(vectors) - 1]


def arithmetic_steps(
    rows: Float[Tensor, "number d_model"], steps: tuple[int, ...] = STEPS, *, seed: int = 0
) -> StepTest:
    """Test whether numbers that are certain steps apart are closer than smoothness explains.

    The rows are the embeddings of successive numbers, or coordinates of them such as the first two
    principal components.

    Raises:
        ConfigError: a step is below 2, there are fewer numbers than four times the largest step,
            all embeddings are equal, or a value is not finite.
    """
    vectors = _vectors(rows)
    n, claimed = len(vectors), checked(steps, tuple[int, ...], "steps")
    if not claimed or min(claimed) < 2:
        raise ConfigError(f"steps is {shown(claimed)}; expected one or more, each at least 2")
    if n < 4 * max(claimed):
        raise ConfigError(
            f"{n} numbers are too few for a step of {max(claimed)}; expected "
            f"{4 * max(claimed)} or more"
        )
    every = np.arange(1, n // 4 + 1)
    places = [step - 1 for step in claimed]
    rough = np.eye(n) - _smooth_part(n, max(claimed))
    centred = vectors - vectors.mean(0)
    whole, rest = centred @ centred.T, rough @ centred @ centred.T @ rough
    share = float(np.trace(rest) / np.trace(whole))
    if share < 1e-12:  # the rest is rounding
        share, rest = 0.0, rough
    found = _closeness(rest, every)
    generator = np.random.default_rng(seed)
    drawn = np.stack(
        [
            _closeness(rough @ rest[np.ix_(order, order)] @ rough, every)
            for order in (generator.permutation(n) for _ in range(PERMUTATIONS))
        ]
    )
    spread = drawn.std(0, ddof=1)
    excess, p_values = found - drawn.mean(0), (1 + (drawn >= found).sum(0)) / (1 + PERMUTATIONS)
    ranking = np.argsort(-excess / spread).tolist()
    closeness = _closeness(whole, every)
    return StepTest(
        steps=every,
        closeness=closeness,
        expected=closeness - share * excess,
        spread=share * spread,
        p_values=p_values,
        claimed=claimed,
        p_value=float(p_values[places].max()),
        ranks=tuple(ranking.index(place) + 1 for place in places),
        smooth_share=1 - share,
        permutations=PERMUTATIONS,
    )


def _smooth_part(n: int, largest: int) -> Float[np.ndarray, "number number"]:
    """Projection onto the waves over n numbers whose period is at least twice the largest step."""
    waves = np.cos(np.pi * np.outer(np.arange(n) + 0.5, np.arange(n // largest + 1)) / n)
    basis = np.linalg.qr(waves).Q
    projection: Float[np.ndarray, "number number"] = basis @ basis.T
    return projection


def _closeness(
    products: Float[np.ndarray, "number number"], steps: Int64[np.ndarray, " step"]
) -> Float[np.ndarray, " step"]:
    """Closeness of every step from the scalar products of all embeddings."""
    n, squares = len(products), np.diagonal(products)
    all_pairs = 2 * (squares.sum() - products.sum() / n) / (n - 1)
    return np.array(
        [
            1 - (squares[s:] + squares[:-s] - 2 * np.diagonal(products, s)).mean() / all_pairs
            for s in steps
        ]
    )


def _participation(eigenvalues: Float[np.ndarray, " component"]) -> float:
    return float(eigenvalues.sum() ** 2 / (eigenvalues**2).sum())


def _vectors(rows: Float[Tensor, "number d_model"]) -> Float[np.ndarray, "number d_model"]:
    found = check_finite(rows, "the embedding's values").detach().to("cpu", torch.float64)
    vectors: Float[np.ndarray, "number d_model"] = found.numpy()
    if len(vectors) < 2 or (vectors == vectors[0]).all():
        raise ConfigError(
            f"{len(vectors)} embeddings that do not differ have no structure to describe"
        )
    return vectors
