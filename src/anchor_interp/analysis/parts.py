"""The settings in which an analysis patches, exchanges, traces and prunes a model.

Examples without anchors are compared with each other. A *twin* is another example, drawn by a seed
from those that are answered at the same position and have the same places. So the numbers say what
makes the model give this answer instead of another example's, and not what all examples share.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.analysis.attribution_patching import attribution_patch, rank_correlation
from anchor_interp.analysis.circuits import Circuit, CircuitCurve, prune, score_circuit
from anchor_interp.analysis.edge_attribution import EdgeAttribution, edge_attribution
from anchor_interp.analysis.flow import InformationFlow, information_flow
from anchor_interp.interventions.ablation_bench import EdgeAblation, Parts
from anchor_interp.interventions.interchange import InterchangeResult, interchange
from anchor_interp.interventions.metrics import Metric, logit_difference
from anchor_interp.interventions.patching import PatchResult, patch
from anchor_interp.interventions.residual_edges import ResidualGraph
from anchor_interp.interventions.sites import PLACES, Activation, Position, Site, site_grid
from anchor_interp.interventions.subject import Subject
from anchor_interp.models.embeddings import EmbeddingStructure, embedding_structure, key_embeddings
from anchor_interp.models.forward import last_logits
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.counterfactuals import Perturbation, contrast_pairs, interchange_pairs
from anchor_interp.tasks.examples import Examples, order_of
from anchor_interp.tasks.sequences import PROBE, PROBE_TOKENS, aligned_sequences, probe_position

MOST_EDGES = 1_000  # a circuit is pruned only if no more can reach the output
FEW_EDGES = 200  # with more, circuits of examples are made of heads and MLPs
MOST = 100  # examples that are patched, that a circuit is pruned on, and that it is judged on
_SHORT = 12  # positions that are patched one by one
ExamplePairs = tuple[Examples, Examples, Int64[np.ndarray, "n 2"]]
"""Examples, a twin of each that has another answer, and right and wrong answers."""
_PATCHED: tuple[Activation, ...] = ("resid_pre", "attn_out", "mlp_out", "v", "z")


@dataclass(frozen=True, eq=False)
class Patched:
    """Activation patching of one contrast: the logit difference of the two targets."""

    contrast: Perturbation
    result: PatchResult


@dataclass(frozen=True, eq=False)
class AttributedEdges:
    """Residual edges by attribution, and circuits of the best, judged on other sequences."""

    attribution: EdgeAttribution
    curve: CircuitCurve
    circuit: Circuit
    """The smallest faithful one of the curve, else the largest."""


def probe_flow(subject: Subject) -> InformationFlow:
    """The flow in the papers' probe if the task has its tokens, else in another sequence."""
    model, task = subject.model, subject.anchor_task
    tokens = PROBE_TOKENS
    fits = task.length == len(tokens) and set(tokens) <= {*task.tokens, *task.keys.tolist()}
    if fits and set(tokens[3:5]) <= set(task.tokens):
        return information_flow(model, PROBE)
    sequences = aligned_sequences(task, probe_position(task), 1, seed=subject.seed)
    return information_flow(model, sequences)


def right_answer(task: AnchorTask, flow: InformationFlow) -> int:
    """The target of the sequence that :func:`probe_flow` shows; of an unseen pair the rule's."""
    places = [flow.roles.index(role) for role in ("key", "first", "second")]
    key, first, second = flow.tokens[0, places].tolist()
    return int(task.target((first, second), np.array([key]))[0])


def patched(subject: Subject, contrast: Perturbation) -> Patched:
    """Patching of the streams, sublayers, values and heads at every place."""
    model = subject.model
    pairs = contrast_pairs(subject.anchor_task, contrast, 200, seed=subject.seed)
    result = patch(model, *pairs, _sites(model), logit_difference(*pairs))
    result.recovery()  # refuses contrasts that the model does not tell apart
    return Patched(contrast, result)


def attributed_edges(subject: Subject) -> AttributedEdges:
    """What makes the model answer sequences otherwise than others of the same key position."""
    model, task, seed = subject.model, subject.anchor_task, subject.seed
    drawn = [aligned_sequences(task, probe_position(task), MOST, seed=seed + i) for i in range(4)]
    own = [last_logits(model, each).argmax(-1).cpu().numpy() for each in drawn]
    answered = [Examples(e.tokens, a) for e, a in zip(drawn, own, strict=True)]
    return _attributed(model, answered, logit_difference(own[0], own[1]), seed)


def attributed_on_examples(
    model: HookedTransformer, twins: ExamplePairs, *, seed: int
) -> AttributedEdges:
    """The same of every second twin, judged on the others."""
    clean, corrupted, answers = twins
    checked(len(clean), int, "the number of examples with a twin", low=4)
    mask = clean.attention_mask
    told = Examples(clean.tokens, *answers.T, at=clean.at, attention_mask=mask)
    halves = [each[i::2] for i in (0, 1) for each in (told, corrupted)]
    return _attributed(model, halves, logit_difference(halves[0]), seed)


def _attributed(
    model: HookedTransformer, examples: Sequence[Examples], metric: Metric, seed: int
) -> AttributedEdges:
    """From the first clean and corrupted examples; judged on the second ones."""
    n_edges = int(ResidualGraph.of(model).reachable.sum())
    if n_edges > MOST_EDGES:
        most = f"their curve stops at {MOST_EDGES:,}: call ai.edge_attribution for it"
        raise ConfigError(f"the model has {n_edges:,} residual edges; {most}")
    found = edge_attribution(model, examples[0], examples[1], metric, steps=8)
    bench = EdgeAblation(model, examples[2], references=examples[3], parts="residual edges")
    sizes = np.unique(np.geomspace(1, n_edges, 12).round().astype(int)).tolist()
    circuits = [found.circuit(n) for n in sizes]
    curve = score_circuit(bench, circuits, n_random=10, seed=seed)
    return AttributedEdges(found, curve, circuits[-1 if curve.smallest is None else curve.smallest])


def _sites(model: HookedTransformer, positions: tuple[Position, ...] = PLACES) -> tuple[Site, ...]:
    names = [name for name in _PATCHED if name != "mlp_out" or not model.cfg.attn_only]
    return site_grid(model, names, positions=positions)


def interchanges(subject: Subject) -> tuple[InterchangeResult, ...]:
    """Interchange of the stream at the first anchor after every layer."""
    pairs = interchange_pairs(subject.anchor_task, 500, seed=subject.seed)
    sites = [Site("resid_post", layer, "first") for layer in range(subject.model.cfg.n_layers)]
    return tuple(interchange(subject, pairs, site) for site in sites)


def key_structure(subject: Subject) -> EmbeddingStructure:
    """The embeddings of the keys, beside those before training."""
    task, initial = subject.anchor_task, subject.initial
    start = None if initial is None else key_embeddings(initial, task)
    return embedding_structure(key_embeddings(subject.model, task), start)


def pruned_circuit(subject: Subject, *, ends: float) -> tuple[EdgeAblation, Circuit]:
    """Sequences to judge a circuit on, and one pruned on others in half of the time left."""
    model, task = subject.model, subject.anchor_task

    def bench(seed: int) -> EdgeAblation:
        sequences, references = (
            aligned_sequences(task, probe_position(task), 200, seed=each)
            for each in (seed, seed + 1)
        )
        return EdgeAblation(model, sequences, "resample", references=references)

    others, own = bench(subject.seed + 2), bench(subject.seed)
    n_edges = int(own.reachable.sum())
    if n_edges > MOST_EDGES:
        most = f"pruning tries each and stops at {MOST_EDGES:,}: call ai.prune for it"
        raise ConfigError(f"{n_edges:,} edges can reach the output; {most}")
    return others, _pruned(own, ends)


def _pruned(bench: EdgeAblation, ends: float) -> Circuit:
    half = (ends - time.monotonic()) / 2
    return prune(bench, max_seconds=half if half < math.inf else None)


def find_twins(examples: Examples, *, seed: int) -> ExamplePairs:
    """Twins of the first examples; a wrong answer is the twin's if the examples have none."""
    if examples.answers is None:
        raise ConfigError("the examples have no answers; give Examples(tokens, answers)")
    answers, places = examples.answers, np.stack([examples.at, *examples.places.values()])
    shuffled = np.random.default_rng(seed).permutation(len(examples))
    for where in (np.vstack([places, examples.unread.T]), places):  # of one length, if there are
        order = shuffled[np.lexsort(where[:, shuffled])]  # equal places stand together
        other = np.empty_like(order)
        other[order] = np.roll(order, -1)
        theirs, alike = answers[other], (where == where[:, other]).all(0)
        wrong = theirs if examples.wrong is None else examples.wrong
        kept = np.flatnonzero(alike & (answers != [theirs, wrong]).all(0))[:MOST]
        if len(kept):
            return examples[kept], examples[other[kept]], np.stack([answers, wrong], 1)[kept]
    same = " and ".join(("last", *examples.places))
    two = f"no two examples with different answers have {same} at the same positions"
    raise ConfigError(f"{two} (or their wrong answers are right); give more, or fewer places")


def patched_examples(model: HookedTransformer, twins: ExamplePairs) -> tuple[PatchResult, float]:
    """Patching at every place, and the rank correlation of integrated gradients with it."""
    clean, corrupted, answers = twins
    length = int(clean.at.max()) + 1
    places: tuple[Position, ...] = (*clean.places, "last")
    if length <= _SHORT and all(each.inside[:, :length].all() for each in (clean, corrupted)):
        each = [i if name == str(i) else name for i, name in enumerate(clean.names[:length])]
        places = (*(place for place in places if place not in each), *each)
    elif length > len(places):
        places += ("other",)
    sites, metric = _sites(model, places), logit_difference(*answers.T)
    result = patch(model, clean, corrupted, sites, metric)
    estimate = attribution_patch(model, clean, corrupted, sites, metric, steps=8)
    return result, rank_correlation(estimate, result)


def aligned_examples(examples: Examples) -> Examples:
    """Different ones of the most frequent answer position and places, up to there.

    At most ``2 * MOST``. Copies would stand on both sides when a circuit is judged on other ones.
    """
    where = np.stack([examples.at, *examples.places.values(), *examples.unread.T])
    _, which, n = np.unique(where, axis=1, return_inverse=True, return_counts=True)
    kept = examples[which.ravel() == n.argmax()]
    cut = kept.until(int(kept.at[0]) + 1)
    _, first = np.unique(order_of(cut)[1], return_index=True)
    return cut[np.sort(first)[: 2 * MOST]]


def pruned_on_examples(
    model: HookedTransformer, aligned: Examples, parts: Parts, *, seed: int, ends: float
) -> tuple[EdgeAblation, Circuit]:
    """Examples to judge a circuit on, and one pruned on as many others."""
    checked(len(aligned), int, "the number of examples with the same places", low=4)
    own, others = (EdgeAblation(model, aligned[i::2], parts=parts, seed=seed) for i in (0, 1))
    return others, _pruned(own, ends)
