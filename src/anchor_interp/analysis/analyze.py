"""All analyses of one checkpoint in one object: why does it answer as it does?

:func:`anchor_interp.pages.analysis_page.write_analysis` draws the result.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.progress import Progress, deadline, reporting_one
from anchor_interp._util.schema import checked
from anchor_interp.analysis.attention import (
    attention_examples,
    examples_attention,
    sequence_attention,
)
from anchor_interp.analysis.circuits import score_circuit
from anchor_interp.analysis.clusters import key_mask_clusters, pair_clusters
from anchor_interp.analysis.development import development_of
from anchor_interp.analysis.fingerprint import fingerprint_of
from anchor_interp.analysis.flow import information_flow
from anchor_interp.analysis.logit_attribution import attribute_logits
from anchor_interp.analysis.mask_leakage import mask_leakages
from anchor_interp.analysis.parts import (
    FEW_EDGES,
    aligned_examples,
    attributed_edges,
    attributed_on_examples,
    find_twins,
    interchanges,
    key_structure,
    patched,
    patched_examples,
    probe_flow,
    pruned_circuit,
    pruned_on_examples,
    right_answer,
)
from anchor_interp.analysis.results import Analysis, ExamplesAnalysis, MechanismAnalysis
from anchor_interp.analysis.rivals import compare_circuit
from anchor_interp.analysis.routes import RouteScores, route_scores
from anchor_interp.analysis.sensitivity import sensitivity
from anchor_interp.analysis.similarity import answer_similarity, block_similarity, value_similarity
from anchor_interp.analysis.verdict import verdict
from anchor_interp.behaviour.answer_map import answer_map
from anchor_interp.behaviour.evaluation import Training, evaluate, predict
from anchor_interp.behaviour.phase import Decision, Evaluation, decide, near_lines
from anchor_interp.interventions.ablation_bench import Parts, reachable_edges
from anchor_interp.interventions.subject import Subject
from anchor_interp.models.complexity import complexity, first_query_matrix
from anchor_interp.models.matrix_complexity import cosine_matrix
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.config import run_id
from anchor_interp.runs.run import Run, load
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.examples import Dataset, Examples, order_of


def _routes(subject: Subject) -> RouteScores:
    """The routes of a model that answers."""
    scores = route_scores(subject)
    if scores.reason is not None:
        raise ConfigError(scores.reason)
    return scores


_PARTS: tuple[tuple[str, str, Callable[[Subject], Any]], ...] = (
    ("fingerprint", "fingerprint", partial(fingerprint_of, quiet=True)),
    ("information flow", "flow", probe_flow),
    ("routes", "routes", _routes),
    ("masks", "leaks", mask_leakages),
    ("patching, key", "patches", partial(patched, contrast="key")),
    ("patching, first", "patches", partial(patched, contrast="first")),
    ("patching, second", "patches", partial(patched, contrast="second")),
    ("residual edges", "edges", attributed_edges),
    ("interchange", "interchanges", interchanges),
    ("similarity, V", "similarities", partial(value_similarity, state="V")),
    ("similarity, OV", "similarities", partial(value_similarity, state="OV")),
    ("similarity, X_ao at the last position", "similarities", answer_similarity),
    ("similarity, second anchor masked", "similarities", block_similarity),
    ("clusters, key masked", "clusters", partial(key_mask_clusters, tsne=True)),
    ("clusters, X_ao of layer 0", "clusters", partial(pair_clusters, n=800, tsne=True)),
    ("embedding", "embedding", key_structure),
    ("sensitivity", "sensitivity", sensitivity),
)
"""Each analysis by its name in the progress, with the field of :class:`MechanismAnalysis` that it
is for; analyses of one field make a tuple."""
_N_PARTS = len(_PARTS) + 3  # a circuit, its scores and its rivals come last
_N_ON_EXAMPLES = 8
_MOST_TRAINING = 10_000
_ONE = ("fingerprint", "flow", "routes", "edges", "embedding", "sensitivity")
"""Fields of one analysis."""


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
        is_path = run.path == Path(str(path))  # a named model's folder lies elsewhere
        name = run.folder.path.resolve().name if is_path else str(path)
    judged = run.judged(n=200)
    subject = Subject.of_run(run)
    analysis = _analyze(subject, judged, name, max_seconds, quiet)
    about: dict[str, Any] = {}
    if subject.task is None:
        about["left_out"] = (f"the mechanism: the task {run.config.task.kind} has no anchors",)
        about["attention"] = sequence_attention(subject.model, run.config.task)
    return replace(
        analysis,
        **about,
        run_id=None if run.path is None else run_id(run.config),
        config=run.config,
        step=run.step,
        development=development_of(run) if len(run.steps) > 1 else None,
    )


def analyze_model(
    model: HookedTransformer,
    task: AnchorTask | Examples | None = None,
    *,
    name: str = "model",
    training: Training = None,
    initial: HookedTransformer | None = None,
    seed: int = 0,
    max_seconds: float | None = None,
    quiet: bool = False,
) -> Analysis:
    """Analyse a HookedTransformer or a bridge: by its anchor task, by examples, or its weights.

    Examples give everything that needs no anchors (:mod:`anchor_interp.analysis.parts`); without
    a task or examples only the complexity is measured. ``training`` holds the sequences that it was
    trained on; without them a model that knows nothing else looks untrained. ``initial`` is the
    model at initialisation, to compare the complexity with. Analyses that have not begun after
    ``max_seconds`` are left out, the circuit first: it is pruned last, in half of the time that is
    left. Work of more than two seconds shows its progress, unless ``quiet``.

    Raises:
        ConfigError: a model too small for the task, weights that are not finite, or examples
            without answers, or of which no two with different answers have the same places.
    """
    checked(task, AnchorTask | Examples | None, "task")
    examples, task = (task, None) if isinstance(task, Examples) else (None, task)
    subject = Subject(model, task, examples, training=training, initial=initial, seed=seed)
    judged = None
    if task is not None:
        evaluation = evaluate(model, task, n=200, training=training)
        judged = evaluation, decide(evaluation)
    return _analyze(subject, judged, name, max_seconds, quiet)


def _analyze(
    subject: Subject,
    judged: tuple[Evaluation, Decision] | None,
    name: str,
    max_seconds: float | None,
    quiet: bool,
) -> Analysis:
    ends = deadline(max_seconds)
    mechanism = on_examples = None
    left_out = ["everything but the complexity: give a task, or examples to ai.analyze_model"]
    examples = subject.examples
    if subject.task is not None or examples is not None:
        n_parts = _N_PARTS if examples is None else _N_ON_EXAMPLES
        with reporting_one(f"analyze {name}", n_parts, quiet=quiet) as progress:
            attempts = _Attempts(ends, progress)
            left_out = attempts.left_out
            if examples is None:
                mechanism = _mechanism(subject, attempts)
            else:
                on_examples = _on_examples(subject, examples, attempts)
            progress.update(n_parts, {"doing": "done"})
    task, query = subject.task, first_query_matrix(subject.model)
    fingerprint = None if mechanism is None else mechanism.fingerprint
    return Analysis(
        name=name,
        verdict=None if fingerprint is None else verdict(fingerprint),
        mechanism=mechanism,
        complexity=complexity(subject.model, subject.initial),
        neurons=cosine_matrix(query) if query.shape[1] > 1 else None,
        left_out=tuple(left_out),
        decision=None if judged is None else judged[1],
        near=() if judged is None else near_lines(judged[0]),
        answers=answer_map(subject.model, task) if task is not None and task.unseen else None,
        attention=() if examples is None else examples_attention(subject.model, examples),
        examples=on_examples,
    )


class _Attempts:
    """Runs analyses until a time; keeps the reasons of those that refuse the model."""

    def __init__(self, ends: float, progress: Progress) -> None:
        self.ends, self.left_out = ends, list[str]()
        self._progress, self._n_tried = progress, 0

    def attempt(self, what: str, measure: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """What the analysis gives; None if it refuses the model or the time is over."""
        self._progress.update(self._n_tried, {"doing": what})
        self._n_tried += 1
        try:
            if time.monotonic() >= self.ends:
                raise ConfigError("max_seconds was over before it began; give more")
            return measure(*args, **options)
        except ConfigError as error:
            self.left_out.append(f"{what}: {error}")
            return None


def _mechanism(subject: Subject, attempts: _Attempts) -> MechanismAnalysis:
    """All analyses; the circuit is last, because it can take long."""
    results: defaultdict[str, list[Any]] = defaultdict(list)
    for what, field, measure in _PARTS:
        result = attempts.attempt(what, measure, subject)
        results[field] += result if isinstance(result, tuple) else [result]
    judged = _judged_circuit(attempts, subject.seed, partial(pruned_circuit, subject))
    fields: dict[str, Any] = {
        name: values[0] if name in _ONE else tuple(one for one in values if one is not None)
        for name, values in results.items()
    }
    task, flow = subject.anchor_task, fields["flow"]
    return MechanismAnalysis(
        **fields,
        right_answer=None if flow is None else right_answer(task, flow),
        **judged,
        keys=tuple(task.keys.tolist()),
        attention=attention_examples(subject),
    )


def _judged_circuit(attempts: _Attempts, seed: int, prune: Callable[..., Any]) -> dict[str, Any]:
    """A circuit, its scores and its rivals."""
    pruned = attempts.attempt("circuit", prune, ends=attempts.ends)
    if pruned is None:
        return {"circuit": None, "scores": None, "comparison": None}
    if not pruned[1].finished:
        over = "circuit, the end of its pruning: max_seconds was over; give more"
        attempts.left_out.append(over)
    scores = attempts.attempt("circuit, scores", score_circuit, *pruned, seed=seed)
    comparison = attempts.attempt("circuit, rivals", compare_circuit, *pruned, seed=seed)
    return {"circuit": pruned[1], "scores": scores, "comparison": comparison}


def _on_examples(subject: Subject, examples: Examples, attempts: _Attempts) -> ExamplesAnalysis:
    """Everything that needs no anchors."""
    model, seed, attempt = subject.model, subject.seed, attempts.attempt
    # analyses take the first examples: sort, so that the given order changes nothing, then shuffle,
    # so that the first ones are a random sample; copies would be judged on what they were found on
    order, place = order_of(examples)
    distinct = examples[np.random.default_rng(seed).permutation(order[np.unique(place)])]
    twins, aligned = find_twins(distinct, seed=seed), aligned_examples(distinct)
    patches, agreement = attempt("patching", patched_examples, model, twins) or (None, None)
    attribution = attempt("attribution", attribute_logits, model, twins[0], twins[2])
    own = subject.training
    trained = own.prompts() if isinstance(own, Dataset) else own
    few = reachable_edges(model, aligned.tokens.shape[1]).sum() <= FEW_EDGES
    parts: Parts = "edges" if few else "heads and MLPs"
    pruning = partial(pruned_on_examples, model, aligned, parts, seed=seed)
    return ExamplesAnalysis(
        n=len(examples),
        accuracy=_share_right(model, examples),
        train_accuracy=None
        if trained is None
        else attempt("training accuracy", _share_right, model, trained[:_MOST_TRAINING]),
        wrong_given=examples.wrong is not None,
        patches=patches,
        agreement=agreement,
        attribution=attribution,
        edges=attempt("residual edges", attributed_on_examples, model, twins, seed=seed),
        flow=attempt("information flow", information_flow, model, aligned[0]) if few else None,
        n_aligned=len(aligned),
        **_judged_circuit(attempts, seed, pruning),
    )


def _share_right(model: HookedTransformer, examples: Examples) -> float:
    if examples.each_answer is None:
        raise ConfigError("they have no answers; give them")
    return float((predict(model, examples) == examples.answers).mean())
