"""The mechanism of a checkpoint in numbers, from its weights and from seen pairs alone.

The phase (:mod:`anchor_interp.behaviour.phase`) is read off behaviour, on unseen pairs too. A
:class:`Fingerprint` describes weights and activations on seen pairs, from which
:mod:`anchor_interp.analysis.verdict` names the phase. Nothing in it comes from an unseen pair: no
sequence, no state put together from its anchors and no target (:func:`seen_pairs_only`).
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.progress import deadline, reporting_one
from anchor_interp._util.statistics import mean_margin
from anchor_interp.analysis.clusters import key_mask_clusters, pair_clusters
from anchor_interp.analysis.fingerprint_numbers import NUMBERS, Fingerprint, kept_fingerprint
from anchor_interp.analysis.read_states import State
from anchor_interp.analysis.routes import RouteName, route_scores
from anchor_interp.analysis.sensitivity import order_influence, sensitivity
from anchor_interp.analysis.similarity import answer_similarity, block_similarity, value_similarity
from anchor_interp.analysis.verdict import Verdict, verdict
from anchor_interp.behaviour.evaluation import (
    Training,
    accuracy,
    evaluate,
    is_trained,
    predict,
    trained_cells,
    training_accuracy,
)
from anchor_interp.behaviour.phase import Decision, decide
from anchor_interp.interventions.interchange import interchange
from anchor_interp.interventions.patched_passes import refusing
from anchor_interp.interventions.sites import Site
from anchor_interp.interventions.subject import Subject
from anchor_interp.interventions.virtual_anchors import virtual_anchors
from anchor_interp.models.complexity import distances, main_numbers
from anchor_interp.models.embeddings import embedding_structure, key_embeddings
from anchor_interp.models.forward import takes_fast_path
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.config import run_id
from anchor_interp.runs.run import Run, load
from anchor_interp.tasks.anchor import AnchorTask, check_anchors
from anchor_interp.tasks.counterfactuals import interchange_pairs
from anchor_interp.tasks.functions import Ints, Pair
from anchor_interp.tasks.hashing import random_integers
from anchor_interp.tasks.sequences import assemble, draw, draw_noise

Part = dict[str, Any]
"""Some numbers of a fingerprint by name."""
_N_MEMORY, _LEAST_MEMORY = 1_000, 100  # sequences
_LOGGER = logging.getLogger(__name__)


def fingerprint(
    run: Run | str | Path, *, seed: int = 0, max_seconds: float | None = None, quiet: bool = False
) -> Fingerprint:
    """The mechanism of a Run, run folder or named model in numbers, in seconds on one core.

    Of a Run it is that of its own checkpoint, otherwise of the newest. Use one seed for models to
    compare. For ``max_seconds`` and ``quiet`` see :func:`fingerprint_model`.

    Raises:
        StoreError: no such run, or a damaged file.
        ConfigError: a model in place of a run, or one that is too small or not finite.
    """
    if isinstance(run, HookedTransformer):
        raise ConfigError("run is a model; fingerprint_model measures one, given its task")
    checkpoint = run if isinstance(run, Run) else load(run)
    _ = checkpoint.transformer, checkpoint.config.anchor_task  # says what another run lacks
    numbers = fingerprint_of(
        Subject.of_run(checkpoint, seed=seed), max_seconds=max_seconds, quiet=quiet
    )
    name = None if checkpoint.path is None else run_id(checkpoint.config)
    return replace(numbers, run_id=name, step=checkpoint.step)


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
    be ``unclear``. Work of more than two seconds shows its progress, unless ``quiet``.
    """
    subject = Subject(model, task, training=training, initial=initial, seed=seed)
    return fingerprint_of(subject, max_seconds=max_seconds, quiet=quiet)


@dataclass(frozen=True)
class BothPhases:
    """A model's phase by its mechanism, beside that by its behaviour."""

    mechanism: Verdict
    behaviour: Decision
    fingerprint: Fingerprint
    """What the verdict was read from."""


def both_phases(
    model: Run | HookedTransformer, task: AnchorTask | None = None, *, quiet: bool = False
) -> BothPhases:
    """Both phases of a run, as far as it keeps them, or of a model, given its task."""
    if isinstance(model, Run):
        kept = model.path and not model.is_edited and kept_fingerprint(model.path, model.step)
        numbers = kept or fingerprint(model, quiet=quiet)
        return BothPhases(verdict(numbers), model.judged(n=200)[1], numbers)
    task = check_anchors(task, "ai.analyze_model takes examples")
    numbers = fingerprint_model(model, task, quiet=quiet)
    return BothPhases(verdict(numbers), decide(evaluate(model, task, n=200)), numbers)


def fingerprint_of(
    subject: Subject, *, max_seconds: float | None = None, quiet: bool = False
) -> Fingerprint:
    """:func:`fingerprint_model` of a subject."""
    ends = deadline(max_seconds)
    model, seed, trained_on = subject.model, subject.seed, subject.trained_on
    numbers: Part = dict.fromkeys(NUMBERS)
    if trained_on is not None:
        numbers["train_accuracy"] = training_accuracy(model, trained_on)
    with seen_pairs_only(model, subject.anchor_task) as seen:
        if trained_on is None:
            fresh = draw(seen, seen.seen, "train", 500, seed=seed, stream="fresh")
            numbers["seen_train_keys"] = accuracy(model, fresh)
        on_seen = replace(subject, task=seen)
        factors = sensitivity(on_seen, pairs=seen.seen, n=500).factors
        numbers |= {f"{one.factor}_share": one.total for one in factors}
        with reporting_one("fingerprint", len(_OF_SEEN_PAIRS), quiet=quiet) as progress:
            for done, measure in enumerate(_OF_SEEN_PAIRS, 1):
                if time.monotonic() >= ends:
                    left = len(_OF_SEEN_PAIRS) - done + 1
                    _LOGGER.warning("max_seconds ended the fingerprint: %d numbers left", left)
                    break
                with contextlib.suppress(ConfigError):  # the model or the task has no such number
                    numbers |= measure(on_seen)
                progress.update(done, {})
    numbers |= _of_weights(model, subject.initial)
    with contextlib.suppress(ConfigError):  # too few keys
        numbers |= _of_embedding(model, subject.anchor_task, seed)
    shape = (model.cfg.n_layers, model.cfg.n_heads, model.cfg.d_model)
    about: dict[str, Any] = {"run_id": None, "step": None, "seed": seed, "shape": shape}
    return Fingerprint(**about, **numbers)


@contextlib.contextmanager
def seen_pairs_only(model: HookedTransformer, task: AnchorTask) -> Iterator[AnchorTask]:
    """Within the ``with`` block, what comes from an unseen pair raises an AssertionError.

    That is a sequence of the pair that the model runs, an intervention that brings its anchors
    together (:func:`anchor_interp.interventions.patched_passes.declare`), and a target of the pair,
    asked of the task that the block gives.
    """

    def watch(_: Any, given: tuple[Any, ...]) -> None:
        tokens = given[0]
        for first, second in task.unseen:
            if bool(((tokens[:, :-1] == first) & (tokens[:, 1:] == second)).any()):
                raise AssertionError(f"a sequence of the unseen pair {(first, second)} was run")

    takes_fast_path(model)  # compares both paths, on tokens that nobody watches
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


def _value(subject: Subject) -> Part:
    layers = range(1, subject.model.cfg.n_layers)
    contrasts = [value_similarity(subject, state="OV", layer=layer).contrast for layer in layers]
    return {"value": max(contrast.difference for contrast in contrasts)} if contrasts else {}


def _answer(subject: Subject) -> Part:
    last = subject.model.cfg.n_layers - 1
    return {"answer": answer_similarity(subject, layer=last).contrast.difference}


def _interchange(subject: Subject) -> Part:
    pairs = interchange_pairs(subject.anchor_task, 300, seed=subject.seed)
    sites = [Site("resid_post", at, "first") for at in range(subject.model.cfg.n_layers - 1)]
    shares = [interchange(subject, pairs, site).counterfactual for site in sites]
    return {"interchange": max(shares)} if shares else {}


def _routes(subject: Subject) -> Part:
    scores = route_scores(subject, seen_only=True)
    if scores.reason is not None:
        return {}
    margins: tuple[RouteName, ...] = ("symmetric", "gathered")
    return {f"route_{name}": getattr(scores, name) for name in get_args(RouteName)} | {
        f"route_{name}_margin": scores.margin(name) for name in margins
    }


def _memory(subject: Subject) -> Part:
    """A key is test data at one position at most; it moves from there to another one."""
    task, n_places = subject.anchor_task, subject.anchor_task.length - 2
    if n_places < 2:
        raise ConfigError("the task has one position for the key, so no key can move")
    here = draw(task, task.seen, "test", _N_MEMORY, seed=subject.seed, stream="memory")
    steps = 1 + random_integers(len(here), n_places - 1, seed=subject.seed, stream="memory/place")
    noise = draw_noise(task, len(here), keys="all", seed=subject.seed, stream="memory/noise")
    position = (here.position + steps) % n_places
    there = assemble(task, noise, here.pair.astype(int), here.key.astype(int), position)
    trained = subject.trained_on
    if trained is not None and (held := trained_cells(task, trained)) is not None:
        moved = ~is_trained(task, here, held) & is_trained(task, there, held)
        here, there = here[moved], there[moved]
        if len(here) < _LEAST_MEMORY:
            raise ConfigError(f"{len(here)} keys move from a position that training lacks")
    changed = predict(subject.model, here) != predict(subject.model, there)
    return {"memory": float(changed.mean()), "memory_margin": mean_margin(changed.astype(float))}


def _order(number: str, measure: str, state: State | None, layer: int, subject: Subject) -> Part:
    """What the order of the anchors changes in a state; layer -1 is the last one."""
    seen, layer = subject.anchor_task.seen, layer % subject.model.cfg.n_layers
    influence = order_influence(subject, state=state, layer=layer, pairs=seen, n=500)
    return {number: getattr(influence, measure)}


def _key_mask(subject: Subject) -> Part:
    unequal = [pair for pair in subject.anchor_task.seen if pair[0] != pair[1]]
    clusters = key_mask_clusters(subject, pairs=unequal)
    order, pairs = clusters.silhouette_order, clusters.silhouette_unordered
    return {"key_mask_order": order, "key_mask_pairs": pairs}


def _merged(subject: Subject) -> Part:
    clusters = pair_clusters(subject, pairs=subject.anchor_task.seen, n=800)
    return {"merged": clusters.silhouette_unordered}


def _blocks(subject: Subject) -> Part:
    return {"blocks": block_similarity(subject).contrast.difference}


def _virtual(subject: Subject) -> Part:
    anchors = virtual_anchors(subject)
    margin = mean_margin(anchors.rules[np.isfinite(anchors.rules)])
    return {"virtual_rule": anchors.rule, "virtual_rule_margin": margin}


def _exceptions(subject: Subject) -> Part:
    task = subject.anchor_task
    others = [(b, a) for a, b in task.unseen if task.override((b, a)) is not None]
    if not others:
        return {"exceptions": 0.0}
    known = draw(task, others, "train", 200, seed=subject.seed, stream="exceptions")
    return {"exceptions": len(others) / len(task.unseen) * accuracy(subject.model, known)}


_OF_SEEN_PAIRS: tuple[Callable[[Subject], Part], ...] = (
    _memory, _routes, _virtual, _exceptions, _value, _answer, _interchange,
    partial(_order, "order_logits", "change", None, 0),
    partial(_order, "order_first", "ratio", "X_ao", 0),
    partial(_order, "order_last", "change", "X_ao", -1),
    _key_mask, _merged, _blocks,
)  # fmt: skip
"""Measurements of the activations on seen pairs, in their order."""


def _of_weights(model: HookedTransformer, initial: HookedTransformer | None) -> Part:
    last, first = main_numbers(model, initial)
    rank, start = last.stable_rank, first.stable_rank
    apart = [] if initial is None else distances(model, initial)
    return {
        "stable_rank": rank,
        "condensation": last.condensation,
        "rank_share": rank / start if rank and start else None,
        "distance": float(np.mean(apart)) if apart else None,
    }


def _of_embedding(model: HookedTransformer, task: AnchorTask, seed: int) -> Part:
    structure = embedding_structure(key_embeddings(model, task), seed=seed)
    steps = structure.steps
    least = None if steps.z is None else float(steps.z[np.isin(steps.steps, steps.claimed)].min())
    return {
        "embedding_dimension": structure.dimension / structure.gaussian_dimension,
        "embedding_smooth": steps.smooth_share,
        "embedding_steps": least,
    }
