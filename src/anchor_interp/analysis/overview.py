"""All analyses of one checkpoint in one object: why does it answer as it does?

:func:`analyze` looks at a run; :func:`analyze_model` at any HookedTransformer, which needs an
anchor task for everything but the complexity of its weights. What a part means and how it is
measured stands in its own module; nothing is drawn here (see :func:`anchor_interp.pages.report.
write_analysis`).
"""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Float

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.analysis.attention import AttentionExample, attention_examples
from anchor_interp.analysis.circuits import (
    Circuit,
    CircuitScores,
    Comparison,
    compare_circuit,
    prune,
    score_circuit,
)
from anchor_interp.analysis.clusters import Clusters, key_mask_clusters, pair_clusters
from anchor_interp.analysis.flow import InformationFlow, information_flow
from anchor_interp.analysis.routes import RouteScores, route_scores
from anchor_interp.analysis.sensitivity import Sensitivity, sensitivity
from anchor_interp.analysis.similarity import (
    Similarity,
    answer_similarity,
    block_similarity,
    value_similarity,
)
from anchor_interp.interventions.ablation import Bench
from anchor_interp.interventions.interchange import InterchangeResult, interchange
from anchor_interp.interventions.masks import Paths, leak
from anchor_interp.interventions.patching import PatchResult, logit_difference, patch
from anchor_interp.interventions.sites import Activation, Site, site_grid
from anchor_interp.models.complexity import (
    Complexity,
    CosineMatrix,
    complexity,
    cosine_matrix,
    first_query_matrix,
)
from anchor_interp.models.embeddings import EmbeddingStructure, embedding_structure, key_embeddings
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.config import RunConfig, run_id
from anchor_interp.runs.phase import Decision, Evaluation, decide
from anchor_interp.runs.run import Run, load
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.counterfactuals import Contrast, contrast_pairs, interchange_pairs
from anchor_interp.tasks.sequences import PROBE, PROBE_POSITION, Place, aligned_sequences

SCHEMA = 1
"""Schema number of ``analysis.json``."""


MOST_EDGES = 1_000
"""A circuit is pruned only among at most this many edges."""


_CONTRASTS: tuple[Contrast, ...] = ("key", "first", "second")


_PATCHED: tuple[Activation, ...] = ("resid_pre", "attn_out", "mlp_out", "v", "z")


_LOGGER = logging.getLogger(__name__)


T = TypeVar("T")


@dataclass(frozen=True)
class MaskLeak:
    """How much of a masked token's effect on the logits is left; see :func:`masks.leak`."""

    place: Place
    """The token."""
    paths: Paths
    """Edges that were cut."""
    renormalise: bool
    """Whether the rest of each row was scaled up."""
    leak: float
    """0 if nothing is left, 1 if the mask does nothing."""


@dataclass(frozen=True, eq=False)
class Patched:
    """Activation patching of one contrast."""

    contrast: Contrast
    """What differs between the clean and the corrupted sequences."""
    result: PatchResult
    """Logit difference of the two targets after every patch."""


@dataclass(frozen=True, eq=False)
class Mechanism:
    """What a model of an anchor task does inside; :attr:`Analysis.left_out` explains each None."""

    flow: InformationFlow | None
    """The attention graph of the papers' probe sequence (of one like it, on another task)."""
    routes: RouteScores | None
    """How much of the information takes each mechanism's route."""
    circuit: Circuit | None
    """Edges that suffice, found on one set of sequences."""
    scores: CircuitScores | None
    """How well they do on another set."""
    comparison: Comparison | None
    """The same beside other circuits."""
    leaks: tuple[MaskLeak, ...]
    """What masks leave."""
    patches: tuple[Patched, ...]
    """Activation patching, one entry a contrast."""
    interchanges: tuple[InterchangeResult, ...]
    """The state at the first anchor after each layer put into other sequences."""
    similarities: tuple[Similarity, ...]
    """Do equal values have parallel vectors?"""
    clusters: tuple[Clusters, ...]
    """Ordered or unordered pairs?"""
    keys: tuple[int, ...]
    """The task's keys."""
    embedding: EmbeddingStructure | None
    """How the keys are embedded."""
    attention: tuple[AttentionExample, ...]
    """Attention in an unseen and a seen sequence."""
    sensitivity: Sensitivity | None
    """How much key, pair, position and noise matter to the answer."""


@dataclass(frozen=True, eq=False)
class Development:
    """Stable ranks along training."""

    steps: tuple[int, ...]
    """The checkpoints."""
    names: tuple[str, ...]
    """The matrices; layers count from 1."""
    stable_rank: Float[np.ndarray, "step matrix"]
    """Their stable ranks."""


@dataclass(frozen=True, eq=False)
class Analysis:
    """Everything measured of one checkpoint."""

    name: str
    """What it is called."""
    run_id: str | None
    """The run's identity; None of a model that is no run."""
    config: RunConfig | None
    """The run's configuration."""
    step: int | None
    """The checkpoint, as updates done."""
    decision: Decision | None
    """The phase by behaviour, and why; None of a model that is no run."""
    mechanism: Mechanism | None
    """None without an anchor task."""
    complexity: Complexity
    """Of every weight matrix, and of every head's QK and OV."""
    neurons: CosineMatrix | None
    """Cosines between the input weights of W_Q(1)'s neurons."""
    development: Development | None
    """Of a run with several checkpoints."""
    left_out: tuple[str, ...]
    """What was not done, and why."""
    schema: int = SCHEMA
    """Schema number."""


def analyze(path: str | Path | Run, *, step: int | None = None, device: str = "cpu") -> Analysis:
    """Analyse a run at one checkpoint.

    Args:
        path: a run folder, the name of a model (see :func:`anchor_interp.load`) or a Run.
        step: the checkpoint; the newest if None.
        device: where to compute.

    Raises:
        StoreError: no such run or checkpoint, or a damaged file.
        ConfigError: a model or task that an analysis refuses.
    """
    run = path if isinstance(path, Run) else load(path, step=step, device=device)
    folder = run.folder.path
    name = folder.resolve().name if folder.is_dir() and folder == Path(str(path)) else str(path)
    if isinstance(path, Run):
        name = folder.name
    _LOGGER.info("%s: behaviour", name)
    decision = decide(_evaluation(run))
    found = analyze_model(run.model, run.config.task, name=name, initial=run.initial)
    return replace(
        found,
        run_id=None if run.path is None else run_id(run.config),
        config=run.config,
        step=run.step,
        decision=decision,
        development=_development(run) if len(run.steps) > 1 else None,
    )


def analyze_model(
    model: HookedTransformer,
    task: AnchorTask | None = None,
    *,
    name: str = "model",
    initial: HookedTransformer | None = None,
    seed: int = 0,
) -> Analysis:
    """Analyse any HookedTransformer.

    Args:
        model: the model.
        task: the anchor task that it was trained on; without one the complexity alone is measured.
        name: what to call it.
        initial: the model at initialisation, for the complexity's reference.
        seed: seed of all sequences.

    Raises:
        ConfigError: a model too small for the task, or weights that are not finite.
    """
    checked(model, HookedTransformer, "model")
    checked(task, AnchorTask | None, "task")
    left_out: list[str] = []
    mechanism = None
    if task is None:
        left_out.append("everything but the complexity: the model has no anchor task")
    else:
        mechanism = _mechanism(model, task, initial, seed, _Attempts(name, left_out))
    _LOGGER.info("%s: complexity of the weights", name)
    query = first_query_matrix(model)
    return Analysis(
        name=name,
        run_id=None,
        config=None,
        step=None,
        decision=None,
        mechanism=mechanism,
        complexity=complexity(model, initial),
        neurons=cosine_matrix(query) if query.shape[1] > 1 else None,
        development=None,
        left_out=tuple(left_out),
    )


def _evaluation(run: Run) -> Evaluation:
    """The stored one, where it is about this checkpoint."""
    if run.folder.result() is not None and run.evaluation.steps == run.step:
        return run.evaluation
    return run.evaluate(n=200)


def _development(run: Run) -> Development:
    found = run.at_every_step(_stable_ranks)
    names = tuple(dict.fromkeys(name for ranks in found.values() for name in ranks))
    ranks = [[of_step.get(name, np.nan) for name in names] for of_step in found.values()]
    return Development(tuple(found), names, np.array(ranks))


def _stable_ranks(model: HookedTransformer) -> dict[str, float]:
    return {
        entry.name if entry.layer is None else f"{entry.name}, layer {entry.layer + 1}": rank
        for entry in complexity(model).matrices
        if (rank := entry.stable_rank) is not None
    }


class _Attempts:
    """Runs analyses one after the other; one that refuses a model is left out, with its reason."""

    def __init__(self, name: str, left_out: list[str]) -> None:
        self._name, self._left_out = name, left_out

    def __call__(self, what: str, measure: Callable[[], T]) -> T | None:
        _LOGGER.info("%s: %s", self._name, what)
        try:
            return measure()
        except ConfigError as error:
            self._left_out.append(f"{what}: {error}")
            return None

    def each(self, what: str, measures: dict[str, Callable[[], T]]) -> tuple[T, ...]:
        tried = [self(f"{what}, {name}", measure) for name, measure in measures.items()]
        return tuple(found for found in tried if found is not None)


def _mechanism(
    model: HookedTransformer,
    task: AnchorTask,
    initial: HookedTransformer | None,
    seed: int,
    attempt: "_Attempts",
) -> Mechanism:
    position = min(PROBE_POSITION, task.length - 3)

    def bench(stream: int) -> Bench:
        sequences = aligned_sequences(task, position, 200, seed=seed + 2 * stream)
        references = aligned_sequences(task, position, 200, seed=seed + 2 * stream + 1)
        return Bench(model, sequences, "resample", references=references)

    circuit, scores, comparison = None, None, None
    found = attempt("circuit", lambda: (bench(1), _pruned(bench(0))))  # judged on others
    if found is not None:
        circuit = found[1]
        scores = attempt("circuit, scores", lambda: score_circuit(*found, seed=seed))
        comparison = attempt("circuit, rivals", lambda: compare_circuit(*found, seed=seed))
    return Mechanism(
        flow=attempt("information flow", lambda: _probe(model, task, position, seed)),
        routes=attempt("routes", lambda: route_scores(model, task, seed=seed)),
        circuit=circuit,
        scores=scores,
        comparison=comparison,
        leaks=attempt("masks", lambda: _leaks(model, task, position, seed)) or (),
        patches=attempt.each(
            "patching",
            {kind: functools.partial(_patched, model, task, kind, seed) for kind in _CONTRASTS},
        ),
        interchanges=attempt("interchange", lambda: _interchanges(model, task, seed)) or (),
        similarities=attempt.each(
            "similarity",
            {
                "V": lambda: value_similarity(model, task, seed=seed),
                "OV": lambda: value_similarity(model, task, state="OV", seed=seed),
                "X_ao at the last position": lambda: answer_similarity(model, task, seed=seed),
                "second anchor masked": lambda: block_similarity(model, task, seed=seed),
            },
        ),
        clusters=attempt.each(
            "clusters",
            {
                "key masked": lambda: key_mask_clusters(model, task, tsne=True, seed=seed),
                "X_ao of layer 1": lambda: pair_clusters(model, task, tsne=True, n=800, seed=seed),
            },
        ),
        keys=tuple(task.keys.tolist()),
        embedding=attempt("embedding", lambda: _embedding(model, task, initial)),
        attention=attention_examples(model, task),
        sensitivity=attempt("sensitivity", lambda: sensitivity(model, task, seed=seed)),
    )


def _probe(model: HookedTransformer, task: AnchorTask, position: int, seed: int) -> InformationFlow:
    """The papers' probe where the task has its tokens, else one test-key sequence."""
    fits = task.length == len(PROBE) and set(PROBE) <= {*task.tokens, *task.keys.tolist()}
    if fits and set(PROBE[3:5]) <= set(task.tokens):
        return information_flow(model, PROBE, position=PROBE_POSITION)
    return information_flow(model, aligned_sequences(task, position, 1, seed=seed))


def _pruned(bench: Bench) -> Circuit:
    n_edges = int(bench.reachable.sum())
    if n_edges > MOST_EDGES:
        raise ConfigError(
            f"{n_edges:,} edges can reach the output; pruning tries each and stops at "
            f"{MOST_EDGES:,}: call anchor_interp.analysis.circuits.prune for it"
        )
    return prune(bench)


def _leaks(
    model: HookedTransformer, task: AnchorTask, position: int, seed: int
) -> tuple[MaskLeak, ...]:
    sequences = aligned_sequences(task, position, 48, seed=seed)
    modes: tuple[tuple[Paths, bool], ...] = (("direct", True), ("all", False), ("all", True))
    places: tuple[Place, ...] = ("key", "first", "second")
    found = []
    for place in places if position + 2 < task.length - 1 else places[:2]:
        for paths, renormalise in modes:
            left = leak(model, task, sequences, place, paths=paths, renormalise=renormalise)
            found.append(MaskLeak(place, paths, renormalise, left))
    return tuple(found)


def _patched(model: HookedTransformer, task: AnchorTask, kind: Contrast, seed: int) -> Patched:
    pairs = contrast_pairs(task, kind, 200, seed=seed)
    patched = [name for name in _PATCHED if name != "mlp_out" or not model.cfg.attn_only]
    sites = site_grid(model, patched)
    found = Patched(kind, patch(model, *pairs, sites, logit_difference(*pairs)))
    found.result.recovery()  # refuses contrasts that the model does not tell apart
    return found


def _embedding(
    model: HookedTransformer, task: AnchorTask, initial: HookedTransformer | None
) -> EmbeddingStructure:
    start = None if initial is None else key_embeddings(initial, task)
    return embedding_structure(key_embeddings(model, task), start)


def _interchanges(
    model: HookedTransformer, task: AnchorTask, seed: int
) -> tuple[InterchangeResult, ...]:
    pairs = interchange_pairs(task, 500, seed=seed)
    sites = [Site("resid_post", layer, "first") for layer in range(model.cfg.n_layers)]
    return tuple(interchange(model, pairs, site) for site in sites)
