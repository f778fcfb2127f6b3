"""The settings in which an analysis patches, exchanges, traces and prunes a model."""

import math
import time
from dataclasses import dataclass

import numpy as np

from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.circuits import Circuit, prune
from anchor_interp.analysis.flow import InformationFlow, information_flow
from anchor_interp.interventions.ablation import EdgeAblation
from anchor_interp.interventions.interchange import InterchangeResult, interchange
from anchor_interp.interventions.metrics import logit_difference
from anchor_interp.interventions.patching import PatchResult, patch
from anchor_interp.interventions.sites import Activation, Site, site_grid
from anchor_interp.interventions.subject import Subject
from anchor_interp.models.embeddings import EmbeddingStructure, embedding_structure, key_embeddings
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.counterfactuals import Perturbation, contrast_pairs, interchange_pairs
from anchor_interp.tasks.sequences import (
    PROBE,
    PROBE_POSITION,
    PositionRole,
    aligned_sequences,
    probe_position,
)

MOST_EDGES = 1_000  # a circuit is pruned only if no more can reach the output
_TASK_ROLES: tuple[PositionRole, ...] = ("key", "first", "second")
_PATCHED: tuple[Activation, ...] = ("resid_pre", "attn_out", "mlp_out", "v", "z")


@dataclass(frozen=True, eq=False)
class Patched:
    """Activation patching of one contrast: the logit difference of the two targets."""

    contrast: Perturbation
    result: PatchResult


def probe_flow(subject: Subject) -> InformationFlow:
    """The flow in the papers' probe if the task has its tokens, else in another sequence."""
    model, task = subject.model, subject.anchor_task
    fits = task.length == len(PROBE) and set(PROBE) <= {*task.tokens, *task.keys.tolist()}
    if fits and set(PROBE[3:5]) <= set(task.tokens):
        return information_flow(model, PROBE, position=PROBE_POSITION)
    sequences = aligned_sequences(task, probe_position(task), 1, seed=subject.seed)
    return information_flow(model, sequences)


def right_answer(task: AnchorTask, flow: InformationFlow) -> int:
    """The target of the sequence that :func:`probe_flow` shows; of an unseen pair the rule's."""
    key, first, second = (int(flow.tokens[0, flow.roles.index(role)]) for role in _TASK_ROLES)
    return int(task.target((first, second), np.array([key]))[0])


def patched(subject: Subject, contrast: Perturbation) -> Patched:
    """Patching of the streams, sublayers, values and heads at every place."""
    model = subject.model
    pairs = contrast_pairs(subject.anchor_task, contrast, 200, seed=subject.seed)
    sites = site_grid(model, [at for at in _PATCHED if at != "mlp_out" or not model.cfg.attn_only])
    result = patch(model, *pairs, sites, logit_difference(*pairs))
    result.recovery()  # refuses contrasts that the model does not tell apart
    return Patched(contrast, result)


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
        raise ConfigError(
            f"{n_edges:,} edges can reach the output; pruning tries each and stops at "
            f"{MOST_EDGES:,}: call anchor_interp.analysis.circuits.prune for it"
        )
    half = (ends - time.monotonic()) / 2
    return others, prune(own, max_seconds=half if half < math.inf else None)
