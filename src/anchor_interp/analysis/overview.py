"""All analyses of one checkpoint in one object: why does it answer as it does?

The module of each part says what it means and how it is measured;
:func:`anchor_interp.pages.analysis_page.write_analysis` draws the result.
"""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.progress import Progress, reporting_one
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked
from anchor_interp.analysis import circuits, similarity
from anchor_interp.analysis.attention import (
    AttentionExample,
    SequenceAttention,
    attention_examples,
    sequence_attention,
)
from anchor_interp.analysis.clusters import Clusters, key_mask_clusters, pair_clusters
from anchor_interp.analysis.conclusions import conclude
from anchor_interp.analysis.development import Development as Development
from anchor_interp.analysis.development import development_of
from anchor_interp.analysis.fingerprint import fingerprint_model
from anchor_interp.analysis.flow import InformationFlow, information_flow
from anchor_interp.analysis.mechanism import Fingerprint
from anchor_interp.analysis.routes import RouteScores, route_scores
from anchor_interp.analysis.sensitivity import Sensitivity, sensitivity
from anchor_interp.analysis.verdict import verdict
from anchor_interp.interventions.ablation import EdgeAblation
from anchor_interp.interventions.interchange import InterchangeResult, interchange
from anchor_interp.interventions.masks import Paths, mask_edges, mask_leakage, token_edges
from anchor_interp.interventions.patching import (
    SMALLEST_DIFFERENCE,
    PatchResult,
    logit_difference,
    patch,
)
from anchor_interp.interventions.sites import Activation, Site, site_grid
from anchor_interp.models.complexity import (
    Complexity,
    CosineMatrix,
    complexity,
    cosine_matrix,
    first_query_matrix,
)
from anchor_interp.models.embeddings import EmbeddingStructure, embedding_structure, key_embeddings
from anchor_interp.models.finite import check_weights
from anchor_interp.models.forward import last_logits
from anchor_interp.models.networks import as_transformer
from anchor_interp.models.transformer import HookedTransformer, check_model
from anchor_interp.runs.config import RunConfig, run_id
from anchor_interp.runs.evaluation import Training, evaluate, training_examples
from anchor_interp.runs.phase import Decision, decide, near_lines
from anchor_interp.runs.run import Run, load
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.counterfactuals import Perturbation, contrast_pairs, interchange_pairs
from anchor_interp.tasks.sequences import (
    PROBE,
    PROBE_POSITION,
    Place,
    aligned_sequences,
    places,
)

SCHEMA = 2  # of analysis.json
MOST_EDGES = 1_000  # a circuit is pruned only if no more can reach the output
_CONTRASTS: tuple[Perturbation, ...] = ("key", "first", "second")
_PATCHED: tuple[Activation, ...] = ("resid_pre", "attn_out", "mlp_out", "v", "z")
_N_PARTS = 19
"""Analyses of a mechanism."""
T = TypeVar("T")


_Masked = Literal["key", "first", "second"]


@dataclass(frozen=True)
class MaskLeak:
    """What is left of a token behind a mask of its attention edges."""

    place: Place
    paths: Paths
    renormalise: bool
    effect: float | None
    """Effect of the token on the logit difference with the mask, over that without; a mean over
    sequences of seen pairs that differ in the token. 0 if none is left; it can lie outside 0 to 1.
    None if the effect without the mask is within three standard errors of 0, or below
    ``SMALLEST_DIFFERENCE``, or no seen pairs differ in the token."""
    accuracy: float | None
    """Share of these sequences that is answered rightly with the mask."""
    unmasked: float | None
    """The same without the mask."""
    leak: float
    """Largest range of a logit with the mask, over that without. 0 proves that the token is hidden;
    it is not a share. See :func:`anchor_interp.interventions.masks.mask_leakage`."""


@dataclass(frozen=True, eq=False)
class Patched:
    """Activation patching of one contrast: the logit difference of the two targets."""

    contrast: Perturbation
    result: PatchResult


@dataclass(frozen=True, eq=False)
class MechanismAnalysis:
    """What a model of an anchor task does inside; :attr:`Analysis.left_out` explains each None."""

    fingerprint: Fingerprint | None
    flow: InformationFlow | None
    routes: RouteScores | None
    circuit: circuits.Circuit | None
    scores: circuits.CircuitScores | None
    comparison: circuits.CircuitComparison | None
    leaks: tuple[MaskLeak, ...]
    patches: tuple[Patched, ...]
    interchanges: tuple[InterchangeResult, ...]
    similarities: tuple[similarity.Similarity, ...]
    clusters: tuple[Clusters, ...]
    keys: tuple[int, ...]
    embedding: EmbeddingStructure | None
    attention: tuple[AttentionExample, ...]
    sensitivity: Sensitivity | None


@dataclass(frozen=True, eq=False, repr=False)
class Analysis(Readable):
    """Everything measured of one checkpoint.

    A model that is not a run has no identity, configuration and step, and one without an anchor
    task neither decision nor mechanism; ``left_out`` says why. ``neurons`` are those of W_Q in
    layer 0.
    ``attention`` is of a run on a task without anchors.
    """

    name: str
    run_id: str | None
    config: RunConfig | None
    step: int | None
    decision: Decision | None
    """The phase by behaviour."""
    near: tuple[str, ...]
    """The measurements that lie near a line of its rule."""
    verdict: Decision | None
    """The phase by mechanism."""
    mechanism: MechanismAnalysis | None
    complexity: Complexity
    neurons: CosineMatrix | None
    development: Development | None
    left_out: tuple[str, ...]
    attention: tuple[SequenceAttention, ...] = ()
    schema: int = SCHEMA

    def _summary(self) -> str:
        at = "" if self.step is None else f" at step {self.step}"
        parts = f"{self.name}{at}; left out: {len(self.left_out)}"
        said = conclude(self).get("phase")
        return parts if said is None else f"{parts}\n{said}"

    def _rows(self) -> list[dict[str, str]]:
        return [{"section": name, "conclusion": text} for name, text in conclude(self).items()]


def analyze(
    path: str | Path | Run,
    *,
    step: int | None = None,
    device: str = "cpu",
    max_seconds: float | None = None,
    quiet: bool = False,
) -> Analysis:
    """Analyse a run folder, a named model or a Run (on its own device) at one checkpoint.

    Without ``step`` the checkpoint is the newest, or the Run's own. For ``max_seconds`` and
    ``quiet`` see :func:`analyze_model`.

    Raises:
        StoreError: no such run or checkpoint, or a damaged file.
        ConfigError: a model or task that an analysis refuses.
    """
    if isinstance(path, HookedTransformer):
        raise ConfigError("path is a model; analyze_model analyses one, given its task")
    if isinstance(path, Run):
        run, name = path if step is None else path.at(step), path.folder.path.name
    else:
        run = load(path, step=step, device=device)
        folder = run.folder.path  # a named model's lies elsewhere
        is_path = folder.is_dir() and folder == Path(str(path))
        name = folder.resolve().name if is_path else str(path)
    model = run.transformer
    initial = None if run.initial is None else as_transformer(run.initial)
    stored = run.folder.result() is not None and run.evaluation.steps == run.step
    evaluation = run.evaluation if stored else run.evaluate(n=200)
    task = run.config.task.anchored
    training = None if task is None else run.training
    found = _analyze(model, task, name, training, initial, 0, max_seconds, quiet)
    if task is None:
        left_out = f"the mechanism: the task {run.config.task.kind} has no anchors"
        attention = sequence_attention(model, run.config.task)
        found = replace(found, left_out=(left_out,), attention=attention)
    return replace(
        found,
        run_id=None if run.path is None else run_id(run.config),
        config=run.config,
        step=run.step,
        decision=decide(evaluation),
        near=near_lines(evaluation),
        development=development_of(run) if len(run.steps) > 1 else None,
    )


def analyze_model(
    model: HookedTransformer,
    task: AnchorTask | None = None,
    *,
    name: str = "model",
    training: Training = None,
    initial: HookedTransformer | None = None,
    seed: int = 0,
    max_seconds: float | None = None,
    quiet: bool = False,
) -> Analysis:
    """Analyse any HookedTransformer; without its anchor task only the complexity is measured.

    ``training`` holds the sequences that it was trained on; without them a model that knows nothing
    else looks untrained. ``initial`` is the model at initialisation, to compare the complexity
    with. Analyses that have
    not begun after ``max_seconds`` are left out, the circuit first: it is pruned last, in half of
    the time that is left. Work of more than two seconds shows its progress, unless ``quiet``.

    Raises:
        ConfigError: a model too small for the task, or weights that are not finite.
    """
    found = _analyze(model, task, name, training, initial, seed, max_seconds, quiet)
    if task is None:
        return found
    evaluation = evaluate(model, task, n=200, training=training)
    return replace(found, decision=decide(evaluation), near=near_lines(evaluation))


def _analyze(
    model: HookedTransformer,
    task: AnchorTask | None,
    name: str,
    training: Training,
    initial: HookedTransformer | None,
    seed: int,
    max_seconds: float | None,
    quiet: bool,
) -> Analysis:
    """Everything but the behaviour."""
    check_model(model)
    checked(task, AnchorTask | None, "task")
    check_weights(model)  # before the work of minutes, as what follows
    if task is not None:
        training_examples(task, training)
    checked(max_seconds, float | None, "max_seconds", above=0)
    ends = math.inf if max_seconds is None else time.monotonic() + max_seconds
    mechanism = None
    left_out = ["everything but the complexity: the model has no anchor task"]
    if task is not None:
        with reporting_one(f"analyze {name}", _N_PARTS, quiet=quiet) as progress:
            mechanism, left_out = _mechanism(model, task, training, initial, seed, ends, progress)
    query = first_query_matrix(model)
    kept = None if mechanism is None else mechanism.fingerprint
    return Analysis(
        name=name,
        run_id=None,
        config=None,
        step=None,
        decision=None,
        near=(),
        verdict=None if kept is None else verdict(kept),
        mechanism=mechanism,
        complexity=complexity(model, initial),
        neurons=cosine_matrix(query) if query.shape[1] > 1 else None,
        development=None,
        left_out=tuple(left_out),
    )


def _mechanism(
    model: HookedTransformer,
    task: AnchorTask,
    training: Training,
    initial: HookedTransformer | None,
    seed: int,
    ends: float,
    progress: Progress,
) -> tuple[MechanismAnalysis, list[str]]:
    """All analyses, and the reasons of those that refused the model."""
    left_out = []
    part = itertools.count()

    def attempt(what: str, measure: Callable[[], T]) -> T | None:
        progress.update(next(part), {"doing": what})
        try:
            if time.monotonic() >= ends:
                raise ConfigError("max_seconds was over before it began; give more")
            return measure()
        except ConfigError as error:
            left_out.append(f"{what}: {error}")
            return None

    def ask(what: str, measure: Callable[..., T], **options: Any) -> T | None:
        return attempt(what, lambda: measure(model, task, seed=seed, **options))

    def embedding() -> EmbeddingStructure:
        start = None if initial is None else key_embeddings(initial, task)
        return embedding_structure(key_embeddings(model, task), start)

    analysis = MechanismAnalysis(
        fingerprint=ask(
            "fingerprint", fingerprint_model, training=training, initial=initial, quiet=True
        ),
        flow=ask("information flow", _flow),
        routes=ask("routes", route_scores),
        circuit=None,
        scores=None,
        comparison=None,
        leaks=ask("masks", _leaks) or (),
        patches=_done(*(ask(f"patching, {kind}", _patched, contrast=kind) for kind in _CONTRASTS)),
        interchanges=ask("interchange", _interchanges) or (),
        similarities=_done(
            ask("similarity, V", similarity.value_similarity),
            ask("similarity, OV", similarity.value_similarity, state="OV"),
            ask("similarity, X_ao at the last position", similarity.answer_similarity),
            ask("similarity, second anchor masked", similarity.block_similarity),
        ),
        clusters=_done(
            ask("clusters, key masked", key_mask_clusters, tsne=True),
            ask("clusters, X_ao of layer 0", pair_clusters, n=800, tsne=True),
        ),
        keys=tuple(task.keys.tolist()),
        embedding=attempt("embedding", embedding),
        attention=attention_examples(model, task),
        sensitivity=ask("sensitivity", sensitivity),
    )
    found = ask("circuit", _circuit, ends=ends)  # last, because it can take long
    if found is not None:
        circuit = found[1]
        if not circuit.finished:
            left_out.append("circuit, the end of its pruning: max_seconds was over; give more")
        analysis = replace(
            analysis,
            circuit=circuit,
            scores=attempt("circuit, scores", lambda: circuits.score_circuit(*found, seed=seed)),
            comparison=attempt(
                "circuit, rivals", lambda: circuits.compare_circuit(*found, seed=seed)
            ),
        )
    progress.update(_N_PARTS, {"doing": "done"})
    return analysis, left_out


def _done(*found: T | None) -> tuple[T, ...]:
    return tuple(one for one in found if one is not None)


def _probe_position(task: AnchorTask) -> int:
    return min(PROBE_POSITION, task.length - 3)


def _circuit(
    model: HookedTransformer, task: AnchorTask, *, seed: int, ends: float
) -> tuple[EdgeAblation, circuits.Circuit]:
    """Sequences to judge a circuit on, and one pruned on others."""
    position = _probe_position(task)

    def bench(seed: int) -> EdgeAblation:
        sequences = aligned_sequences(task, position, 200, seed=seed)
        references = aligned_sequences(task, position, 200, seed=seed + 1)
        return EdgeAblation(model, sequences, "resample", references=references)

    others, own = bench(seed + 2), bench(seed)
    n_edges = int(own.reachable.sum())
    if n_edges > MOST_EDGES:
        raise ConfigError(
            f"{n_edges:,} edges can reach the output; pruning tries each and stops at "
            f"{MOST_EDGES:,}: call anchor_interp.analysis.circuits.prune for it"
        )
    half = (ends - time.monotonic()) / 2
    return others, circuits.prune(own, max_seconds=half if half < math.inf else None)


def _flow(model: HookedTransformer, task: AnchorTask, *, seed: int) -> InformationFlow:
    """The papers' probe if the task has its tokens, else another sequence."""
    fits = task.length == len(PROBE) and set(PROBE) <= {*task.tokens, *task.keys.tolist()}
    if fits and set(PROBE[3:5]) <= set(task.tokens):
        return information_flow(model, PROBE, position=PROBE_POSITION)
    return information_flow(model, aligned_sequences(task, _probe_position(task), 1, seed=seed))


def _leaks(model: HookedTransformer, task: AnchorTask, *, seed: int) -> tuple[MaskLeak, ...]:
    position = _probe_position(task)
    sequences = aligned_sequences(task, position, 48, seed=seed)
    modes: tuple[tuple[Paths, bool], ...] = (("direct", True), ("all", False), ("all", True))
    hides_second = position + 2 < task.length - 1  # no mask can hide the last token
    tokens: list[_Masked] = ["key", "first", "second"] if hides_second else ["key", "first"]
    found = []
    for place, (paths, renormalise) in itertools.product(tokens, modes):
        range_left = mask_leakage(
            model, task, sequences, place, paths=paths, renormalise=renormalise
        )
        left = _effect_left(model, task, place, seed=seed, paths=paths, renormalise=renormalise)
        found.append(MaskLeak(place, paths, renormalise, *left, range_left))
    return tuple(found)


@torch.no_grad()
def _effect_left(
    model: HookedTransformer, task: AnchorTask, place: _Masked, *, seed: int, paths: Paths,
    renormalise: bool,
) -> tuple[float | None, float | None, float | None]:  # fmt: skip
    """The effect, the accuracy with the mask and that without of :class:`MaskLeak`."""
    try:
        pairs = contrast_pairs(task, place, 200, seed=seed)
    except ConfigError:  # no seen pairs differ in this token alone
        return None, None, None
    hidden = places(pairs.clean, place) < task.length - 1
    clean, corrupted = pairs.clean[hidden], pairs.corrupted[hidden]
    if not len(clean):
        return None, None, None
    difference = logit_difference(clean, corrupted)

    def changes() -> tuple[np.ndarray, float]:
        logits = [last_logits(model, sequences) for sequences in (clean, corrupted)]
        right = logits[0].argmax(-1).cpu().numpy() == clean.targets
        change = (difference(logits[0]) - difference(logits[1])).double().cpu().numpy()
        return change, float(right.mean())

    free, unmasked = changes()
    with mask_edges(model, token_edges(model, clean, place, paths), renormalise=renormalise):
        masked, accuracy = changes()
    whole, error = free.mean(), free.std() / math.sqrt(len(free))
    told = abs(whole) >= max(SMALLEST_DIFFERENCE, 3 * error)
    return float(masked.mean() / whole) if told else None, accuracy, unmasked


def _patched(
    model: HookedTransformer, task: AnchorTask, *, contrast: Perturbation, seed: int
) -> Patched:
    pairs = contrast_pairs(task, contrast, 200, seed=seed)
    sites = site_grid(model, [at for at in _PATCHED if at != "mlp_out" or not model.cfg.attn_only])
    result = patch(model, *pairs, sites, logit_difference(*pairs))
    result.recovery()  # refuses contrasts that the model does not tell apart
    return Patched(contrast, result)


def _interchanges(
    model: HookedTransformer, task: AnchorTask, *, seed: int
) -> tuple[InterchangeResult, ...]:
    pairs = interchange_pairs(task, 500, seed=seed)
    sites = [Site("resid_post", layer, "first") for layer in range(model.cfg.n_layers)]
    return tuple(interchange(model, pairs, site) for site in sites)
