"""How a model arranges the numbers: the shape of its embedding, and arithmetic steps in it.

On the first two principal components of inferential models both papers see the embedded keys
"ordered with intervals of 3 and 4 from two directions" (NeurIPS paper, section 5.3 and figure 5c;
complexity-control paper, section VI-B and figure 5B): x + 3 and x + 4 lie nearer x than x + 2 does.

:func:`arithmetic_steps` measures and tests this. The closeness of a step s,::

    closeness(s) = 1 - mean_x |e(x) - e(x + s)|^2 / mean over all pairs |e(x) - e(y)|^2

is 1 for equal embeddings and 0 for unrelated ones. Any smooth arrangement brings small steps close,
so the test splits the embedding into a smooth curve through the numbers and the rest. The curve is
made of waves whose period is at least twice the largest claimed step: they fall over all these
steps and cannot favour one. Under the null hypothesis the rest belongs to any number as well as to
any other. So the test permutes its rows at random, removes the smooth part that arises, and
compares the closeness of the rest at every step (a permutation of residuals, Freedman and Lane
1983). A rest that is still correlated at short steps makes the test cautious.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int64
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.rounding import as_large
from anchor_interp._util.schema import checked, shown
from anchor_interp.models.matrix_complexity import gaussian_spectra
from anchor_interp.models.number_checks import check_finite
from anchor_interp.tasks.anchor import AnchorTask

COMPONENTS = 4  # principal components whose coordinates are kept
STEPS = (3, 4)  # claimed by the papers
PERMUTATIONS = 999  # so the smallest p is 0.001


@dataclass(frozen=True, eq=False)
class StepTest:
    """How close the embeddings of numbers a step apart are, beyond what a smooth curve explains."""

    steps: Int64[np.ndarray, " step"]
    """All steps compared: 1 to a quarter of the numbers."""
    closeness: Float[np.ndarray, " step"]
    expected: Float[np.ndarray, " step"]
    """The closeness that the smooth curve explains: the mean over permutations of the rest."""
    spread: Float[np.ndarray, " step"]
    """Standard deviation over these permutations; see ``z``."""
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

    @property
    def z(self) -> Float[np.ndarray, " step"] | None:
        """The z score of every step; None where the smooth curve explains everything."""
        if not self.spread.all():
            return None
        scores: Float[np.ndarray, " step"] = (self.closeness - self.expected) / self.spread
        return scores


@dataclass(frozen=True, eq=False)
class EmbeddingStructure:
    """Principal components, spectrum and steps of embedded numbers."""

    coordinates: Float[np.ndarray, "number leading"]
    """Coordinates on the leading principal components; they tend to grow with the number."""
    eigenvalues: Float[np.ndarray, " component"]
    """Eigenvalues of the (unbiased) covariance matrix, descending, without those that must be zero:
    n rows span at most n - 1 dimensions (NeurIPS paper, appendix B, figure 7)."""
    dimension: float
    """Participation ratio (sum of eigenvalues)^2 / sum of squares: 1 on a line, d if d are equal
    and the others zero."""
    gaussian_eigenvalues: Float[np.ndarray, " component"]
    """Mean over Gaussian embeddings of the same shape and total variance."""
    gaussian_dimension: float
    steps: StepTest
    at_init: "EmbeddingStructure | None"


def key_embeddings(model: Any, task: AnchorTask) -> Float[Tensor, "key d_model"]:
    """The rows of W_E for a task's keys, ascending; ConfigError if the vocabulary lacks one."""
    rows: Tensor = model.embed.W_E.detach()
    if len(rows) <= task.key_max:
        text = f"the model embeds {len(rows)} tokens"
        raise ConfigError(f"{text}; the task has keys up to {task.key_max}")
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
    """
    vectors = _vectors(rows)
    if initial is not None and initial.shape != rows.shape:
        given, fitting = tuple(initial.shape), tuple(rows.shape)
        raise ConfigError(f"the initial embedding has shape {given}; expected {fitting}")
    centred = vectors - vectors.mean(0)
    left, singular, _ = np.linalg.svd(centred, full_matrices=False)
    eigenvalues = singular[: len(vectors) - 1] ** 2 / (len(vectors) - 1)
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
    if not claimed or min(claimed) < 2 or 4 * max(claimed) > n:
        limits = f"each from 2 to a quarter of the {n} numbers"
        raise ConfigError(f"steps is {shown(claimed)}; expected one or more, {limits}")
    every = np.arange(1, n // 4 + 1)
    places = [step - 1 for step in claimed]
    # waves over the numbers whose period is at least twice the largest step
    waves = np.cos(np.pi * np.outer(np.arange(n) + 0.5, np.arange(n // max(claimed) + 1)) / n)
    smooth = np.linalg.qr(waves).Q
    rough = np.eye(n) - smooth @ smooth.T
    centred = vectors - vectors.mean(0)
    whole, rest = centred @ centred.T, rough @ centred @ centred.T @ rough
    share = float(np.trace(rest) / np.trace(whole))
    if share < 1e-12:  # the rest is rounding
        share, rest = 0.0, rough
    distances = _distances(n, every)
    observed = _closeness(rest, distances)
    generator = np.random.default_rng(seed)
    orders = (generator.permutation(n) for _ in range(PERMUTATIONS))
    # of the permuted rest its own smooth part is taken away too: <R D R, P> = <D, R P R>
    of_rest = rough @ distances @ rough
    drawn = np.stack([_closeness(rest[np.ix_(order, order)], of_rest) for order in orders])
    spread = drawn.std(0, ddof=1)
    reached = as_large(drawn, observed, size=1).sum(0)
    excess, p_values = observed - drawn.mean(0), (1 + reached) / (1 + PERMUTATIONS)
    ranking = np.argsort(-excess / spread).tolist()
    closeness = _closeness(whole, distances)
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


def _distances(
    n: int, steps: Int64[np.ndarray, " step"]
) -> Float[np.ndarray, "distance number number"]:
    """Squared distances as factors of all scalar products: of every step, then of any two numbers.

    The mean over i of |x_(i+s) - x_i|^2 is the sum of D'D / (n - s) times the products of x, where
    D takes the differences.
    """
    moves = [np.eye(n)[step:] - np.eye(n)[:-step] for step in steps]
    return np.stack([*(move.T @ move / len(move) for move in moves),
                     2 * (np.eye(n) - 1 / n) / (n - 1)])  # fmt: skip


def _closeness(
    products: Float[np.ndarray, "number number"],
    distances: Float[np.ndarray, "distance number number"],
) -> Float[np.ndarray, " step"]:
    """Closeness of every step from the scalar products of all embeddings."""
    *apart, any_two = distances.reshape(len(distances), -1) @ products.ravel()
    return np.array(1 - np.array(apart) / any_two)


def _participation(eigenvalues: Float[np.ndarray, " component"]) -> float:
    return float(eigenvalues.sum() ** 2 / (eigenvalues**2).sum())


def _vectors(rows: Float[Tensor, "number d_model"]) -> Float[np.ndarray, "number d_model"]:
    check_finite(rows, "the embedding's values")
    vectors: Float[np.ndarray, "number d_model"] = rows.detach().double().cpu().numpy()
    if len(vectors) < 2 or (vectors == vectors[0]).all():
        raise ConfigError(f"{len(vectors)} embeddings that do not differ have no structure")
    return vectors
