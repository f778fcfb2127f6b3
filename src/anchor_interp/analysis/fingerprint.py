"""The mechanism of a checkpoint in numbers, without running a sequence of an unseen pair.

The phase (:mod:`anchor_interp.runs.phase`) is read off behaviour, on unseen pairs too. A
:class:`Fingerprint` describes the same checkpoint from its weights and from its activations on
pairs that it was trained on. :mod:`anchor_interp.analysis.verdict` names the phase from it.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.schema import check_fields, checked, from_dict, to_dict
from anchor_interp.analysis.clusters import key_mask_clusters, pair_clusters
from anchor_interp.analysis.routes import RouteName, route_scores
from anchor_interp.analysis.sensitivity import order_influence, sensitivity
from anchor_interp.analysis.similarity import answer_similarity, block_similarity, value_similarity
from anchor_interp.interventions.composition import composition
from anchor_interp.interventions.interchange import interchange
from anchor_interp.interventions.sites import Site
from anchor_interp.models.complexity import (
    complexity,
    condensation,
    first_query_matrix,
    measured,
    stable_rank,
)
from anchor_interp.models.embeddings import embedding_structure, key_embeddings
from anchor_interp.models.transformer import HookedTransformer, check_fits
from anchor_interp.runs import measurements
from anchor_interp.runs.config import run_id
from anchor_interp.runs.measurements import Measure
from anchor_interp.runs.run import Run, load
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.counterfactuals import interchange_pairs

Numbers = dict[str, Any]
_SHARE = {"low": 0, "high": 1}


@dataclass(frozen=True)
class Fingerprint:
    """Numbers of the mechanism; None if the model or its task has no such number.

    Here layers count from 1 as in the papers, L is the last one, N the NeurIPS paper and C the
    complexity-control paper.
    """

    run_id: str | None
    """The run's identity; None for a model that is not a run."""
    step: int | None = field(metadata={"low": 0})
    """The checkpoint, as updates done."""
    key_share: float | None
    """Share of the logits' variance over seen pairs that the key has a part in (Sobol' total)."""
    pair_share: float | None
    """Share that the pair of anchors has a part in."""
    position_share: float | None
    """Share that the key's position has a part in."""
    noise_share: float | None
    """Share that the noise has a part in: near 0 for the rule, near 1 if it knows sequences."""
    value: float | None
    """OV at the first anchor: centred cosine of equal g(x; a1) minus that of near misses, in the
    layer from the second on where it is largest (N, figure 4c)."""
    answer: float | None
    """X^ao(L) at the last position: the same for equal answers of seen pairs (N, figure 4a, 4b)."""
    interchange: float | None = field(metadata=_SHARE)
    """Share of counterfactual answers if the state at the first anchor is exchanged; the largest
    over the layers."""
    route_symmetric: float | None
    """Share of the effect on the symmetric route (N, figure 3a)."""
    route_inferential: float | None
    """Share on the inferential route (N, figure 3c)."""
    route_gathered: float | None
    """Share that meets at the second anchor."""
    order_logits: float | None = field(metadata={"low": 0})
    """Change of the logits if the anchors of a pair seen in both orders change places, over the
    change between unrelated sequences."""
    order_first: float | None = field(metadata={"low": 0})
    """The same for X^ao(1) at the last position: near 0 if layer 1 takes the anchors together."""
    order_last: float | None = field(metadata={"low": 0})
    """The same for X^ao(L)."""
    key_mask_order: float | None = field(metadata={"low": -1, "high": 1})
    """Silhouette of (a, b) against (b, a) in the logits under a key mask (C, figure 4C)."""
    key_mask_pairs: float | None = field(metadata={"low": -1, "high": 1})
    """Silhouette of the unordered pairs there."""
    merged: float | None = field(metadata={"low": -1, "high": 1})
    """Silhouette of the unordered pairs in X^ao(1) at the last position (N, figure 3b)."""
    blocks: float | None
    """The same as ``value`` for the logits under a second-anchor mask (C, figure 4D)."""
    composed: float | None = field(metadata=_SHARE)
    """Share of unseen pairs answered by the rule if the state after the first attention layer is
    composed of other pairs' states; see :mod:`anchor_interp.interventions.composition`."""
    commutes: float | None = field(metadata=_SHARE)
    """Share of these that are answered alike in both orders."""
    mirrored: float | None = field(metadata=_SHARE)
    """Share of these answered with the target of the other order; None without such a target."""
    recomposed: float | None = field(metadata=_SHARE)
    """Share of seen pairs, composed in the same way, that are answered with their target."""
    stable_rank: float | None = field(metadata={"low": 0})
    """Stable rank of W_Q(1)."""
    rank_share: float | None = field(metadata={"low": 0})
    """Stable rank of W_Q(1) over that at initialisation."""
    condensation: float | None = field(metadata={"low": 0})
    """Mean |cosine| between the neurons of W_Q(1)."""
    embedding_dimension: float | None = field(metadata={"low": 0})
    """Participation ratio of the keys' embeddings over that of Gaussian ones."""
    embedding_smooth: float | None = field(metadata=_SHARE)
    """Share of their variance that follows a smooth curve."""
    embedding_steps: float | None
    """By how many standard deviations keys 3 and 4 apart are closer than that: the smaller one."""
    distance: float | None = field(metadata={"low": 0})
    """Distance from initialisation, relative to it; the mean over all weight matrices."""
    seed: int = field(metadata={"low": 0})
    """Seed of the sequences."""
    schema: int = 2
    """Schema number."""

    def __post_init__(self) -> None:
        check_fields(self, "fingerprint")


NUMBERS: tuple[str, ...] = tuple(
    entry.name
    for entry in fields(Fingerprint)
    if entry.name not in ("run_id", "step", "seed", "schema")
)
"""The names of the numbers."""


FINGERPRINT = Measure("fingerprint", f"{__name__}:fingerprint", version=2)
"""The fingerprint as a measure that a run keeps; its version is the schema of Fingerprint."""


def kept_fingerprint(run: Path, run_id: str, step: int) -> Fingerprint | None:
    """The fingerprint that a run folder keeps of a checkpoint; None if it has to be measured.

    Args:
        run: the run folder.
        run_id: the run's identity.
        step: the checkpoint.
    """
    try:
        found = from_dict(Fingerprint, measurements.kept(run, FINGERPRINT, step))
    except ConfigError:
        return None
    return found if (found.run_id, found.step) == (run_id, step) else None


def fingerprint(
    run: Run | str | Path, *, step: int | None = None, device: str = "cpu", seed: int = 0
) -> Fingerprint:
    """The mechanism of a run's checkpoint in numbers. Takes some seconds on one core.

    ``run`` is a Run, a run folder or the name of a model (see :func:`anchor_interp.load`). Without
    ``step`` the checkpoint is the newest, or the Run's own. Use one seed for models to compare.

    Raises:
        StoreError: no such run or checkpoint, or a damaged file.
        ConfigError: a model in place of a run, one too small for its task, or weights that are not
            finite.
    """
    if isinstance(run, HookedTransformer):
        raise ConfigError("run is a model; fingerprint_model measures one, given its task")
    if isinstance(run, Run):
        found = run if step is None else run.at(step)
    else:
        found = load(run, step=step, device=device)
    numbers = fingerprint_model(found.model, found.config.task, initial=found.initial, seed=seed)
    name = None if found.path is None else run_id(found.config)
    return replace(numbers, run_id=name, step=found.step)


def fingerprint_model(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    initial: HookedTransformer | None = None,
    seed: int = 0,
) -> Fingerprint:
    """The fingerprint of any model of an anchor task.

    ``task`` is the one that it was trained on; its unseen pairs are never run. Some numbers compare
    with ``initial``, the model before training.

    Raises:
        ConfigError: as :func:`fingerprint`.
    """
    checked(task, AnchorTask, "task")
    check_fits(model, task)
    numbers: Numbers = dict.fromkeys(NUMBERS)
    with seen_pairs_only(model, task):
        factors = sensitivity(model, task, pairs=task.seen, n=500, seed=seed).factors
        numbers |= {f"{one.factor}_share": one.total for one in factors}
        for measure in _of_activations(model, task, seed):
            with contextlib.suppress(ConfigError):  # the model or the task has no such number
                numbers |= measure()
    numbers |= _of_weights(model, initial)
    with contextlib.suppress(ConfigError):  # too few keys
        numbers |= _of_embedding(model, task, seed)
    about: dict[str, Any] = {"run_id": None, "step": None, "seed": seed}
    return Fingerprint(**about, **numbers)


def keep_fingerprint(run: Run) -> Fingerprint:
    """The fingerprint of a run's last checkpoint: the kept one, or a new one, which is then kept.

    Raises:
        StoreError: the run is damaged or cannot be written; LockedError if another process writes
            it.
    """
    if run.path is None:
        raise StoreError(f"{run.name} has no run folder to keep a fingerprint in")
    last = run.at(run.steps[-1])
    found = kept_fingerprint(run.path, run_id(run.config), last.step)
    if found is not None:
        return found
    found = fingerprint(last)
    measurements.keep(last, FINGERPRINT, to_dict(found))
    return found


@contextlib.contextmanager
def seen_pairs_only(model: HookedTransformer, task: AnchorTask) -> Iterator[None]:
    """Within the ``with`` block, refuse to run a sequence of a pair that the task holds out.

    Raises:
        AssertionError: a sequence has an unseen pair of anchors side by side.
    """

    def watch(_: Any, given: tuple[Any, ...]) -> None:
        tokens = given[0]
        for first, second in task.unseen:
            if bool(((tokens[:, :-1] == first) & (tokens[:, 1:] == second)).any()):
                raise AssertionError(f"a sequence of the unseen pair {(first, second)} was run")

    handle = model.embed.register_forward_pre_hook(watch)
    try:
        yield
    finally:
        handle.remove()


def _of_activations(
    model: HookedTransformer, task: AnchorTask, seed: int
) -> Iterator[Callable[[], Numbers]]:
    """Measurements of the activations on seen pairs."""
    last, seen = model.cfg.n_layers - 1, task.seen

    def value() -> Numbers:
        found = [
            value_similarity(model, task, state="OV", layer=layer, seed=seed).contrast.difference
            for layer in range(1, last + 1)
        ]
        return {"value": max(found, default=0.0)}

    def answer() -> Numbers:
        found = answer_similarity(model, task, layer=last, seed=seed)
        return {"answer": found.contrast.difference}

    def exchanged() -> Numbers:
        pairs = interchange_pairs(task, 300, seed=seed)
        sites = [Site("resid_post", layer, "first") for layer in range(last)]
        found = [interchange(model, pairs, site).counterfactual for site in sites]
        return {"interchange": max(found, default=0.0)}

    def routes() -> Numbers:
        found = route_scores(model, task, seed=seed, seen_only=True)
        return {f"route_{name}": getattr(found, name) for name in get_args(RouteName)}

    def order(name: str, **where: Any) -> Callable[[], Numbers]:
        given: dict[str, Any] = {"pairs": seen, "n": 500, "seed": seed} | where
        return lambda: {name: order_influence(model, task, **given).change}

    def key_mask() -> Numbers:
        unequal = [pair for pair in seen if pair[0] != pair[1]]
        found = key_mask_clusters(model, task, pairs=unequal, seed=seed)
        return {
            "key_mask_order": found.silhouette_order,
            "key_mask_pairs": found.silhouette_unordered,
        }

    def merged() -> Numbers:
        found = pair_clusters(model, task, pairs=seen, n=800, seed=seed)
        return {"merged": found.silhouette_unordered}

    def blocks() -> Numbers:
        return {"blocks": block_similarity(model, task, seed=seed).contrast.difference}

    def composed() -> Numbers:
        found = composition(model, task, seed=seed)
        names = ("composed", "commutes", "mirrored", "recomposed")
        return {name: getattr(found, name) for name in names}

    yield from (value, answer, exchanged, routes)
    yield order("order_logits")
    yield order("order_first", state="X_ao", layer=0)
    yield order("order_last", state="X_ao", layer=last)
    yield from (key_mask, merged, blocks, composed)


def _of_weights(model: HookedTransformer, initial: HookedTransformer | None) -> Numbers:
    query = first_query_matrix(model)
    rank = measured(stable_rank, query)
    numbers = {"stable_rank": rank, "condensation": measured(condensation, query)}
    if initial is None:
        return numbers
    start = measured(stable_rank, first_query_matrix(initial))
    found = [entry.distance for entry in complexity(model, initial).matrices]
    distances = [distance for distance in found if distance is not None]
    return numbers | {
        "rank_share": rank / start if rank is not None and start else None,
        "distance": float(np.mean(distances)) if distances else None,
    }


def _of_embedding(model: HookedTransformer, task: AnchorTask, seed: int) -> Numbers:
    found = embedding_structure(key_embeddings(model, task), seed=seed)
    steps = found.steps
    scores = (steps.closeness - steps.expected) / steps.spread
    return {
        "embedding_dimension": found.dimension / found.gaussian_dimension,
        "embedding_smooth": steps.smooth_share,
        "embedding_steps": float(scores[np.isin(steps.steps, steps.claimed)].min()),
    }
