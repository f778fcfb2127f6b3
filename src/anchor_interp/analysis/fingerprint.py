"""The mechanism of a checkpoint in numbers, none of which needs an answer on an unseen pair.

The phase of :mod:`anchor_interp.runs.phase` is read off behaviour, and on unseen pairs at that. A
:class:`Fingerprint` is what can be said of the same checkpoint without ever running a sequence of
an unseen pair: from its weights, and from its activations on pairs that it was trained on.

The measuring itself is in :mod:`anchor_interp.analysis.fingerprint`; this module imports no torch.

The verdict
-----------
:func:`verdict` names the phase from six of these numbers:

1. the noise tokens decide much of the logits: *memorizing*, whole sequences are known by heart;
2. states composed of other pairs' get the rule's answer, and the intermediate value g(x; a1)
   stands at the first anchor: *inferential*. Without that value the answers come out of a table,
   which is *symmetric* if layer 1 takes both anchors together whatever their order;
3. composed states get the other order's target, or (without such a target) both orders the same
   answer: *symmetric*, a pair is looked up whatever its order;
4. otherwise *composite*: each ordered pair is looked up.

The thresholds of composed states are those of the phases (complexity-control paper, section IV),
but for the one of equal answers; that one and those of the noise and the value were fixed on the
diagrams' runs and on models of known mechanism, before any fingerprint of the runs that
``docs/results.md`` judges the verdict on was taken.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import check_fields, checked, from_dict, to_dict
from anchor_interp.analysis.clusters import key_mask_clusters, pair_clusters
from anchor_interp.analysis.routes import RouteName, route_scores
from anchor_interp.analysis.sensitivity import order_influence, sensitivity
from anchor_interp.analysis.similarity import (
    answer_similarity,
    block_similarity,
    value_similarity,
)
from anchor_interp.interventions.composition import composition
from anchor_interp.interventions.interchange import interchange
from anchor_interp.interventions.sites import Site
from anchor_interp.models.complexity import complexity, first_query_matrix, measured, stable_rank
from anchor_interp.models.complexity import condensation as condensation_of
from anchor_interp.models.embeddings import EmbeddingStructure, embedding_structure, key_embeddings
from anchor_interp.models.transformer import HookedTransformer, check_fits
from anchor_interp.runs import measurements
from anchor_interp.runs.config import run_id
from anchor_interp.runs.measurements import Measure
from anchor_interp.runs.run import ExactRun, Run, load
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.counterfactuals import interchange_pairs

_SHARE = {"low": 0, "high": 1}


@dataclass(frozen=True)
class Fingerprint:
    """Numbers of the mechanism of one checkpoint; None where a model or a task has no such number.

    Layers in the descriptions are the papers', counted from 1.
    """

    run_id: str | None
    """The run's identity; None of a model that is no run."""
    step: int | None = field(metadata={"low": 0})
    """The checkpoint, as updates done."""
    key_share: float | None
    """Share of the logits' variance over seen pairs that the key has a part in (Sobol' total)."""
    pair_share: float | None
    """The same of the pair of anchors."""
    position_share: float | None
    """The same of the key's position."""
    noise_share: float | None
    """The same of the noise tokens: near 0 in a model of the rule, near 1 in one that knows whole
    sequences."""
    value: float | None
    """OV at the first anchor: centred cosine of equal g(x; a1) minus that of near misses, in the
    layer from the second on where it is largest (NeurIPS paper, figure 4c)."""
    answer: float | None
    """X^ao(L) at the last position of the last layer L: the same for equal answers of different
    seen pairs (NeurIPS paper, figure 4a, 4b)."""
    interchange: float | None = field(metadata=_SHARE)
    """Share of counterfactual answers when the state at the first anchor is exchanged, after the
    layer where it is largest."""
    route_symmetric: float | None
    """Share of the effect that takes the symmetric route (NeurIPS paper, figure 3a)."""
    route_inferential: float | None
    """Share that takes the inferential route (figure 3c)."""
    route_gathered: float | None
    """Share that meets at the second anchor."""
    order_logits: float | None = field(metadata={"low": 0})
    """Change of the logits when the anchors of a pair that was seen in both orders change places,
    over that between unrelated sequences."""
    order_first: float | None = field(metadata={"low": 0})
    """The same of X^ao(1) at the last position: near 0 if layer 1 takes the anchors together."""
    order_last: float | None = field(metadata={"low": 0})
    """The same of X^ao(L)."""
    key_mask_order: float | None = field(metadata={"low": -1, "high": 1})
    """Silhouette of (a, b) against (b, a) in the logits under a key mask (complexity-control paper,
    figure 4C)."""
    key_mask_pairs: float | None = field(metadata={"low": -1, "high": 1})
    """Silhouette of the unordered pairs there."""
    merged: float | None = field(metadata={"low": -1, "high": 1})
    """Silhouette of the unordered pairs in X^ao(1) at the last position (NeurIPS paper,
    figure 3b)."""
    blocks: float | None
    """Logits while the second anchor is masked: centred cosine of equal g(x; a1) minus that of near
    misses (complexity-control paper, figure 4D)."""
    composed: float | None = field(metadata=_SHARE)
    """Share answered by the rule when the state after the first attention layer is composed, for
    the unseen pairs, of states of other pairs; see :mod:`anchor_interp.interventions.composition`."""
    commutes: float | None = field(metadata=_SHARE)
    """Share of these that are answered alike in both orders."""
    mirrored: float | None = field(metadata=_SHARE)
    """Share of these answered with the target of the other order; None without such a target."""
    recomposed: float | None = field(metadata=_SHARE)
    """Share of seen pairs, composed in this way, that are answered with their target."""
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
    """How far the embeddings of keys 3 and 4 apart are closer than that curve explains, in standard
    deviations: the smaller of the two."""
    distance: float | None = field(metadata={"low": 0})
    """Mean over all weight matrices of the distance from initialisation, relative to it."""
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
    """The fingerprint of a run's last checkpoint: the kept one, or a new one, which is then kept.

    Raises:
        StoreError: the run is damaged or cannot be written; LockedError if another process writes
            it.
    """
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
