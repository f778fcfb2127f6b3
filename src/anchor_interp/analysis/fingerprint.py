"""The mechanism of a checkpoint in numbers, from its weights and from seen pairs alone.

The phase (:mod:`anchor_interp.runs.phase`) is read off behaviour, on unseen pairs too. A
:class:`Fingerprint` describes weights and activations on seen pairs, from which
:mod:`anchor_interp.analysis.verdict` names the phase. Nothing in it comes from an unseen pair: no
sequence, no state put together from its anchors and no target (:func:`seen_pairs_only`).
"""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.progress import reporting_one
from anchor_interp._util.schema import checked, to_dict
from anchor_interp.analysis import similarity
from anchor_interp.analysis.clusters import key_mask_clusters, pair_clusters
from anchor_interp.analysis.mechanism import FINGERPRINT, NUMBERS, Fingerprint, kept_fingerprint
from anchor_interp.analysis.routes import RouteName, route_scores
from anchor_interp.analysis.sensitivity import Influence, order_influence, sensitivity
from anchor_interp.interventions.composition import virtual_anchors
from anchor_interp.interventions.interchange import interchange
from anchor_interp.interventions.passes import refusing
from anchor_interp.interventions.sites import Site
from anchor_interp.models import complexity
from anchor_interp.models.embeddings import embedding_structure, key_embeddings
from anchor_interp.models.networks import as_transformer
from anchor_interp.models.transformer import HookedTransformer, check_fits
from anchor_interp.runs import measurements
from anchor_interp.runs.config import run_id
from anchor_interp.runs.evaluation import (
    Training,
    accuracy,
    training_accuracy,
    training_examples,
)
from anchor_interp.runs.run import Run, load
from anchor_interp.tasks.anchor import AnchorTask, Ints, Pair
from anchor_interp.tasks.counterfactuals import interchange_pairs
from anchor_interp.tasks.sequences import draw

Numbers = dict[str, Any]
_LOGGER = logging.getLogger(__name__)


def fingerprint(
    run: Run | str | Path,
    *,
    step: int | None = None,
    device: str = "cpu",
    seed: int = 0,
    max_seconds: float | None = None,
    quiet: bool = False,
) -> Fingerprint:
    """The mechanism of a Run, run folder or named model in numbers, in seconds on one core.

    Without ``step`` the checkpoint is the newest, or the Run's own. Use one seed for models to
    compare. For ``max_seconds`` and ``quiet`` see :func:`fingerprint_model`.

    Raises:
        StoreError: no such run or checkpoint, or a damaged file.
        ConfigError: a model in place of a run, or one that is too small or not finite.
    """
    if isinstance(run, HookedTransformer):
        raise ConfigError("run is a model; fingerprint_model measures one, given its task")
    if isinstance(run, Run):
        found = run if step is None else run.at(step)
    else:
        found = load(run, step=step, device=device)
    numbers = fingerprint_model(
        found.transformer,
        found.config.anchor_task,
        training=found.training,
        initial=None if found.initial is None else as_transformer(found.initial),
        seed=seed,
        max_seconds=max_seconds,
        quiet=quiet,
    )
    name = None if found.path is None else run_id(found.config)
    return replace(numbers, run_id=name, step=found.step)


def fingerprint_model(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    training: Training = None,
    initial: HookedTransformer | None = None,
    seed: int = 0,
    max_seconds: float | None = None,
    quiet: bool = False,
) -> Fingerprint:
    """The fingerprint of any model of an anchor task.

    ``task`` is the one that it was trained on; nothing of its unseen pairs is used. ``training``
    holds the sequences that it was trained on. Without them a model that knows nothing else looks
    untrained. Some numbers compare with ``initial``, the model before training. Measurements that
    have not begun after ``max_seconds`` are None, and a warning says how many; the verdict may then
    be ``other``. Work of more than two seconds shows its progress, unless ``quiet``.
    """
    checked(max_seconds, float | None, "max_seconds", above=0)
    ends = math.inf if max_seconds is None else time.monotonic() + max_seconds
    checked(task, AnchorTask, "task")
    check_fits(model, task)
    numbers: Numbers = dict.fromkeys(NUMBERS)
    own = training_examples(task, training)
    if own is not None:
        numbers["train_accuracy"] = training_accuracy(model, own)
    with seen_pairs_only(model, task) as seen:
        if own is None:
            fresh = draw(seen, seen.seen, "train", 500, seed=seed, stream="fresh")
            numbers["seen_train_keys"] = accuracy(model, fresh)
        factors = sensitivity(model, seen, pairs=seen.seen, n=500, seed=seed).factors
        numbers |= {f"{one.factor}_share": one.total for one in factors}
        measures = list(_of_activations(model, seen, seed))
        with reporting_one("fingerprint", len(measures), quiet=quiet) as progress:
            for done, measure in enumerate(measures, 1):
                if time.monotonic() >= ends:
                    left = len(measures) - done + 1
                    _LOGGER.warning("max_seconds ended the fingerprint: %d numbers left", left)
                    break
                with contextlib.suppress(ConfigError):  # the model or the task has no such number
                    numbers |= measure()
                progress.update(done, {})
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
def seen_pairs_only(model: HookedTransformer, task: AnchorTask) -> Iterator[AnchorTask]:
    """Within the ``with`` block, what comes from an unseen pair raises an AssertionError.

    That is a sequence of the pair that the model runs, an intervention that brings its anchors
    together (:func:`anchor_interp.interventions.passes.declare`), and a target of the pair, asked
    of the task that the block gives.
    """

    def watch(_: Any, given: tuple[Any, ...]) -> None:
        tokens = given[0]
        for first, second in task.unseen:
            if bool(((tokens[:, :-1] == first) & (tokens[:, 1:] == second)).any()):
                raise AssertionError(f"a sequence of the unseen pair {(first, second)} was run")

    handle = model.embed.register_forward_pre_hook(watch)
    try:
        with refusing(task.unseen):
            yield _SeenTask(**{each.name: getattr(task, each.name) for each in fields(task)})
    finally:
        handle.remove()


class _SeenTask(AnchorTask):
    """A task without the targets of its unseen pairs."""

    @property
    def answered(self) -> tuple[Pair, ...]:
        return self.seen

    def composed(self, pair: Pair, keys: Ints) -> Ints:
        if pair in self.unseen:
            raise AssertionError(f"a target of the unseen pair {pair} was asked for")
        return super().composed(pair, keys)


def _of_activations(
    model: HookedTransformer, task: AnchorTask, seed: int
) -> Iterator[Callable[[], Numbers]]:
    """Measurements of the activations on seen pairs."""
    last, seen = model.cfg.n_layers - 1, task.seen

    def contrast(measure: Callable[..., similarity.Similarity], **options: Any) -> float:
        return measure(model, task, seed=seed, **options).contrast.difference

    def order(**where: Any) -> Influence:
        return order_influence(model, task, pairs=seen, n=500, seed=seed, **where)

    def value() -> Numbers:
        layers = range(1, last + 1)
        found = [contrast(similarity.value_similarity, state="OV", layer=layer) for layer in layers]
        return {"value": max(found, default=0.0)}

    def exchanged() -> Numbers:
        pairs = interchange_pairs(task, 300, seed=seed)
        sites = [Site("resid_post", layer, "first") for layer in range(last)]
        found = [interchange(model, pairs, site).counterfactual for site in sites]
        return {"interchange": max(found, default=0.0)}

    def routes() -> Numbers:
        found = route_scores(model, task, seed=seed, seen_only=True)
        return {f"route_{name}": getattr(found, name) for name in get_args(RouteName)}

    def key_mask() -> Numbers:
        unequal = [pair for pair in seen if pair[0] != pair[1]]
        found = key_mask_clusters(model, task, pairs=unequal, seed=seed)
        order, pairs = found.silhouette_order, found.silhouette_unordered
        return {"key_mask_order": order, "key_mask_pairs": pairs}

    def merged() -> Numbers:
        found = pair_clusters(model, task, pairs=seen, n=800, seed=seed)
        return {"merged": found.silhouette_unordered}

    def virtual() -> Numbers:
        found = [virtual_anchors(model, task, layer=layer, seed=seed) for layer in range(last + 1)]
        rules = [one.rule for one in found if one.rule is not None]
        return {"virtual_rule": max(rules, default=None), "virtual_alike": found[-1].alike}

    def exceptions() -> Numbers:
        found = [task.override((b, a)) is not None for a, b in task.unseen]
        return {"exceptions": float(np.mean(found or [False]))}

    yield value
    yield lambda: {"answer": contrast(similarity.answer_similarity, layer=last)}
    yield from (exchanged, routes)
    yield lambda: {"order_logits": order().change}
    yield lambda: {"order_first": order(state="X_ao", layer=0).ratio}
    yield lambda: {"order_last": order(state="X_ao", layer=last).change}
    yield from (
        key_mask,
        merged,
        lambda: {"blocks": contrast(similarity.block_similarity)},
        virtual,
        exceptions,
    )


def _of_weights(model: HookedTransformer, initial: HookedTransformer | None) -> Numbers:
    query = complexity.first_query_matrix(model)
    rank = complexity.measured(complexity.stable_rank, query)
    numbers = {
        "stable_rank": rank,
        "condensation": complexity.measured(complexity.condensation, query),
    }
    if initial is None:
        return numbers
    start = complexity.measured(complexity.stable_rank, complexity.first_query_matrix(initial))
    found = [entry.distance for entry in complexity.complexity(model, initial).matrices]
    distances = [distance for distance in found if distance is not None]
    return numbers | {
        "rank_share": rank / start if rank is not None and start else None,
        "distance": float(np.mean(distances)) if distances else None,
    }


def _of_embedding(model: HookedTransformer, task: AnchorTask, seed: int) -> Numbers:
    found = embedding_structure(key_embeddings(model, task), seed=seed)
    steps = found.steps
    return {
        "embedding_dimension": found.dimension / found.gaussian_dimension,
        "embedding_smooth": steps.smooth_share,
        "embedding_steps": None
        if steps.z is None
        else float(steps.z[np.isin(steps.steps, steps.claimed)].min()),
    }
