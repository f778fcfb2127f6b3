"""Measuring the mechanism of a checkpoint without a single sequence of an unseen pair.

Every number of :class:`anchor_interp.mechanism.Fingerprint` is taken of weights, or of sequences of
the pairs that the model was trained on; :func:`seen_pairs_only` watches what the model is given
and stops the measurement otherwise. So a fingerprint never looks at the answers that
:mod:`anchor_interp.phase` decides by.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from anchor_interp.clusters import key_mask_clusters, pair_clusters
from anchor_interp.complexity import complexity, first_query_matrix, measured, stable_rank
from anchor_interp.complexity import condensation as condensation_of
from anchor_interp.composition import composition
from anchor_interp.config import run_id
from anchor_interp.embeddings import EmbeddingStructure, embedding_structure, key_embeddings
from anchor_interp.errors import ConfigError
from anchor_interp.interchange import interchange, interchange_pairs
from anchor_interp.mechanism import Fingerprint, kept_fingerprint
from anchor_interp.model import HookedTransformer, check_fits
from anchor_interp.patching import Site
from anchor_interp.representations import answer_similarity, block_similarity, value_similarity
from anchor_interp.routes import RouteName, route_scores
from anchor_interp.run import ExactRun, Run, load
from anchor_interp.schema import checked, to_dict
from anchor_interp.sensitivity import order_influence, sensitivity
from anchor_interp.task import AnchorTask

T = TypeVar("T")


def fingerprint(
    run: Run | str | Path, *, step: int | None = None, device: str = "cpu", seed: int = 0
) -> Fingerprint:
    """The mechanism of a run's checkpoint in numbers; some seconds on one core.

    Args:
        run: a Run, a run folder, or the name of a model (see :func:`anchor_interp.load`).
        step: the checkpoint; the newest if None, or the Run's own.
        device: where to compute.
        seed: seed of all sequences; the same for models that are compared.

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
    numbers = _numbers(found.model, found.config.task, found.initial, seed)
    name = None if isinstance(found, ExactRun) else run_id(found.config)
    return Fingerprint(run_id=name, step=found.step, **numbers, seed=seed)


def fingerprint_model(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    initial: HookedTransformer | None = None,
    seed: int = 0,
) -> Fingerprint:
    """The same of any model of an anchor task.

    Args:
        model: the model.
        task: the task that it was trained on; its unseen pairs are never run.
        initial: the model before training, for the numbers that compare with it.
        seed: seed of all sequences.

    Raises:
        ConfigError: as :func:`fingerprint`.
    """
    return Fingerprint(run_id=None, step=None, **_numbers(model, task, initial, seed), seed=seed)


def keep_fingerprint(run: Run) -> Fingerprint:
    """The fingerprint of a run's last checkpoint, from ``fingerprint.json`` if it is there.

    Raises:
        StoreError: a damaged run, or one that cannot be written.
        LockedError: a run that another process is writing.
    """
    last = run.at(run.steps[-1])
    found = kept_fingerprint(run.path, run_id(run.config), last.step)
    if found is not None:
        return found
    found = fingerprint(last)
    with run.folder.writing(run.config) as writer:
        writer.keep_fingerprint(to_dict(found))
    return found


@contextlib.contextmanager
def seen_pairs_only(model: HookedTransformer, task: AnchorTask) -> Iterator[None]:
    """Within the ``with`` block, refuse to run a sequence of a pair that the task holds out.

    Raises:
        AssertionError: a sequence with an unseen pair of anchors side by side.
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


def _numbers(
    model: HookedTransformer, task: AnchorTask, initial: HookedTransformer | None, seed: int
) -> dict[str, Any]:
    """Every number by its name in :class:`Fingerprint`."""
    checked(task, AnchorTask, "task")
    check_fits(model, task)
    with seen_pairs_only(model, task):
        return {**_of_activations(model, task, seed), **_of_weights(model, task, initial, seed)}


def _of_activations(
    model: HookedTransformer, task: AnchorTask, seed: int
) -> dict[str, float | None]:
    last, seen = model.cfg.n_layers - 1, task.seen
    unequal = [pair for pair in seen if pair[0] != pair[1]]

    def values() -> float:
        found = [
            value_similarity(model, task, state="OV", layer=layer, seed=seed)
            for layer in range(1, model.cfg.n_layers)
        ]
        return max((one.contrast.difference for one in found), default=0.0)

    def counterfactual() -> float:
        pairs = interchange_pairs(task, 300, seed=seed)
        sites = [Site("resid_post", layer, "first") for layer in range(last)]
        return max((interchange(model, pairs, site).counterfactual for site in sites), default=0.0)

    def order(**where: Any) -> Callable[[], float | None]:
        return lambda: order_influence(model, task, pairs=seen, n=500, seed=seed, **where).change

    shares = {
        one.factor: one.total
        for one in sensitivity(model, task, pairs=seen, n=500, seed=seed).factors
    }
    routes = _or_none(lambda: route_scores(model, task, seed=seed, seen_only=True))
    masked = _or_none(lambda: key_mask_clusters(model, task, pairs=unequal, seed=seed))
    blocks = _or_none(lambda: block_similarity(model, task, seed=seed).contrast.difference)
    states = _or_none(lambda: composition(model, task, seed=seed))
    early = _or_none(lambda: pair_clusters(model, task, pairs=seen, n=800, seed=seed))

    def route(name: RouteName) -> float | None:
        return None if routes is None else float(getattr(routes, name))

    return {
        **{f"{name}_share": shares[name] for name in ("key", "pair", "position", "noise")},
        "value": _or_none(values),
        "answer": _or_none(
            lambda: answer_similarity(model, task, layer=last, seed=seed).contrast.difference
        ),
        "interchange": _or_none(counterfactual),
        "route_symmetric": route("symmetric"),
        "route_inferential": route("inferential"),
        "route_gathered": route("gathered"),
        "order_logits": _or_none(order()),
        "order_first": _or_none(order(state="X_ao", layer=0)),
        "order_last": _or_none(order(state="X_ao", layer=last)),
        "key_mask_order": None if masked is None else masked.silhouette_order,
        "key_mask_pairs": None if masked is None else masked.silhouette_unordered,
        "merged": None if early is None else early.silhouette_unordered,
        "blocks": blocks,
        **{
            name: None if states is None else getattr(states, name)
            for name in ("composed", "commutes", "mirrored", "recomposed")
        },
    }


def _of_weights(
    model: HookedTransformer, task: AnchorTask, initial: HookedTransformer | None, seed: int
) -> dict[str, float | None]:
    query = first_query_matrix(model)
    start = None if initial is None else measured(stable_rank, first_query_matrix(initial))
    rank = measured(stable_rank, query)
    embedded = _or_none(lambda: embedding_structure(key_embeddings(model, task), seed=seed))
    distances = [
        entry.distance
        for entry in (() if initial is None else complexity(model, initial).matrices)
        if entry.distance is not None
    ]
    return {
        "stable_rank": rank,
        "rank_share": rank / start if rank is not None and start else None,
        "condensation": measured(condensation_of, query),
        "distance": float(np.mean(distances)) if distances else None,
        **_of_embedding(embedded),
    }


def _of_embedding(embedded: EmbeddingStructure | None) -> dict[str, float | None]:
    if embedded is None:  # too few keys
        return dict.fromkeys(("embedding_dimension", "embedding_smooth", "embedding_steps"))
    steps = embedded.steps
    scores = (steps.closeness - steps.expected) / steps.spread
    return {
        "embedding_dimension": embedded.dimension / embedded.gaussian_dimension,
        "embedding_smooth": steps.smooth_share,
        "embedding_steps": float(scores[np.isin(steps.steps, steps.claimed)].min()),
    }


def _or_none(measure: Callable[[], T]) -> T | None:
    """A measurement, or None where the model or the task has no such number."""
    try:
        return measure()
    except ConfigError:
        return None
