"""Cosine similarity of the vectors inside a model: the papers' heatmaps and blocks.

Two values that the rule makes equal, g(x; a) = g(x'; a'), should have similar vectors (NeurIPS
paper, section 5.2; complexity-control paper, section V-B). Every result has the cosines that the
papers show and a contrast over all keys (:mod:`anchor_interp.analysis.similarity_contrast`). Noise,
key position and the anchor that is not compared are the same for all items of a *context*; cosines
are means over contexts.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64, Int64

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked
from anchor_interp.analysis.read_states import (
    State,
    check_state,
    read_masked,
    read_state,
    state_name,
)
from anchor_interp.analysis.similarity_contrast import (
    Group,
    SimilarityContrast,
    centred_cosines,
    cosines,
    similarity_contrast,
)
from anchor_interp.interventions.masks import mask_position
from anchor_interp.interventions.subject import Subject, subject_of
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.functions import Ints, Pair
from anchor_interp.tasks.sequence_factors import Factors, Floats
from anchor_interp.tasks.sequences import PROBE_POSITION, PROBE_TOKENS, Sequences, assemble

PAPER_KEYS = range(30, 41)  # of the heatmaps (NeurIPS paper, figure 4)
PAPER_PAIRS: tuple[Pair, ...] = ((3, 3), (2, 2), (1, 2), (1, 3))  # figure 4a, 4b
PAPER_VALUES = range(51, 61)  # of the blocks (complexity-control paper, figure 4D)


@dataclass(frozen=True, eq=False, repr=False)
class Similarity(Readable):
    """Cosines between the vectors of some items, and the contrast over all keys."""

    state: str
    layer: int | None
    anchors: tuple[Group, ...]
    """The anchor or the pair of anchors of each item; ``values`` are the rule's."""
    keys: Int64[np.ndarray, " item"]
    values: Int64[np.ndarray, " item"]
    cosine: Float64[np.ndarray, "item item"]
    centred: Float64[np.ndarray, "item item"]
    """Cosines of vectors whose mean over all keys is removed, anchor by anchor."""
    contrast: SimilarityContrast

    def _summary(self) -> str:
        c, where = self.contrast, "" if self.layer is None else f" of layer {self.layer} (from 0)"
        return (
            f"{self.state}{where}, {len(self.keys)} items\nequal values {c.equal:.2f}, near misses "
            f"{c.near:.2f}: difference {c.difference:.2f}, p = {c.p_value:.3f}"
        )

    def _rows(self) -> Iterator[dict[str, Any]]:
        names = [", ".join(map(str, group)) for group in self.anchors]
        for i, j in itertools.combinations(range(len(names)), 2):
            yield {"anchors": names[i], "key": self.keys[i], "value": self.values[i],
                   "other_anchors": names[j], "other_key": self.keys[j],
                   "other_value": self.values[j], "cosine": self.cosine[i, j],
                   "centred": self.centred[i, j]}  # fmt: skip


def value_similarity(
    model: HookedTransformer | Subject,
    task: AnchorTask | None = None,
    *,
    state: Literal["V", "OV"] = "V",
    layer: int = 1,
    n_contexts: int = 8,
    seed: int = 0,
) -> Similarity:
    """Similarity of the values at the first anchor (NeurIPS paper, section 5.2, figure 4c).

    ``V`` is the papers' V^(2). The items shown have :data:`PAPER_KEYS`, or the middle eleven keys
    of a task without them; the contrast takes all keys.
    """
    checked(state, Literal["V", "OV"], "state")
    subject = subject_of(model, task, seed)
    check_state(subject.model, state, layer)
    task = subject.anchor_task
    groups, values = _single_anchors(task)
    items = [(g, k) for g in range(len(groups)) for k in _shown_keys(task)]
    contexts = _contexts(subject, n_contexts)
    read = partial(read_state, subject.model, state, layer, "first")
    return _similarity(subject, contexts, groups, values, items, read, (state, layer))


def answer_similarity(
    model: HookedTransformer | Subject,
    task: AnchorTask | None = None,
    *,
    layer: int = 1,
    n_contexts: int = 8,
    seed: int = 0,
) -> Similarity:
    """Similarity of X_ao at the last position (NeurIPS paper, section 5.2, figure 4a, 4b).

    The contrast takes all keys and all ordered pairs that follow the rule, of at most four anchors
    (evenly spaced). The items shown have the keys of :func:`value_similarity` and
    :data:`PAPER_PAIRS`, or the first four of these pairs.
    """
    subject = subject_of(model, task, seed)
    check_state(subject.model, "X_ao", layer)
    task = subject.anchor_task
    some = np.linspace(0, len(task.tokens) - 1, min(len(task.tokens), 4))
    anchors = {task.tokens[i] for i in some.round().astype(int)}
    ruled = [pair for pair in task.pairs if task.role(pair) == "inferential"]
    groups = [pair for pair in ruled if set(pair) <= anchors]
    if len(groups) < 2:
        raise ConfigError("the contrast needs two pairs that follow the rule; the task has fewer")
    values = np.stack([task.composed(pair, task.keys) for pair in groups])
    pairs = PAPER_PAIRS if set(PAPER_PAIRS) <= set(groups) else groups[:4]
    items = [(groups.index(pair), k) for pair in pairs for k in _shown_keys(task)]
    contexts = _contexts(subject, n_contexts)
    read = partial(read_state, subject.model, "X_ao", layer, "last")
    return _similarity(subject, contexts, groups, values, items, read, ("X_ao", layer))


def block_similarity(
    model: HookedTransformer | Subject,
    task: AnchorTask | None = None,
    *,
    state: State | None = None,
    layer: int = 1,
    n_contexts: int | None = None,
    seed: int = 0,
) -> Similarity:
    """Similarity of the logits, or of a state at the last position, under a second-anchor mask.

    In a model that works step by step the mask leaves g(x; a1), so the (x, a1) of one value form a
    block of similar outputs (complexity-control paper, section V-B, figure 4B, 4D). The items shown
    have :data:`PAPER_VALUES`, block by block, or the middle ten values that every anchor reaches;
    the contrast takes all keys. Without ``n_contexts`` the context is the
    released code's one sequence, (35, 63, x, a1, 2, 38, 42, 36, 62), or 8 are drawn on a task
    without it.
    """
    subject = subject_of(model, task, seed)
    task = subject.anchor_task
    check_state(subject.model, state, layer)
    groups, table = _single_anchors(task)
    contexts = _probe(task) if n_contexts is None else None
    if contexts is None:
        contexts = _contexts(subject, 8 if n_contexts is None else n_contexts, maskable=True)
    reached = sorted(set.intersection(*(set(row.tolist()) for row in table)))
    middle = max(0, len(reached) // 2 - 5)
    inside = set(PAPER_VALUES) <= set(reached)
    values = PAPER_VALUES if inside else reached[middle : middle + 10]
    items = [(int(g), int(k)) for value in values for g, k in np.argwhere(table == value)]
    if not items:
        raise ConfigError("no value g(x; a) is reached by every anchor")

    def read(sequences: Sequences) -> Floats:
        mask = mask_position(subject.model, sequences, "second")
        return read_masked(subject.model, state, layer, sequences, mask)

    return _similarity(subject, contexts, groups, table, items, read, state_name(state, layer))


def _contexts(subject: Subject, n: int, *, maskable: bool = False) -> Factors:
    checked(n, int, "n_contexts", low=1, high=1_000)
    task = subject.anchor_task
    # second anchors that were seen after every first one, if there are any
    second = [b for b in task.tokens if all((a, b) in task.seen for a in task.tokens)]
    index = [i for i, pair in enumerate(task.pairs) if pair[1] in second or not second]
    return Factors.draw(task, n, subject.seed, "contexts", index=np.array(index), maskable=maskable)


def _probe(task: AnchorTask) -> Factors | None:
    """The released code's sequence (35, 63, x, a1, 2, 38, 42, 36, 62); None on other tasks."""
    at = PROBE_POSITION
    noise = {*PROBE_TOKENS[: at + 1], *PROBE_TOKENS[at + 3 :]}
    fits = len(PROBE_TOKENS) == task.length and (2, 2) in task.pairs
    if not fits or not noise <= set(task.keys.tolist()):
        return None
    pair = np.array([task.pairs.index((2, 2))])
    return Factors(np.array([PROBE_TOKENS[at]]), pair, np.array([at]), np.array([PROBE_TOKENS]))


def _single_anchors(task: AnchorTask) -> tuple[list[Group], Ints]:
    values = np.stack([task.function(anchor)(task.keys) for anchor in task.tokens])
    return [(anchor,) for anchor in task.tokens], values


def _shown_keys(task: AnchorTask) -> range:
    """Indices in ``task.keys``."""
    inside = task.key_min <= PAPER_KEYS[0] and PAPER_KEYS[-1] <= task.key_max
    first = PAPER_KEYS[0] - task.key_min if inside else max(0, len(task.keys) // 2 - 5)
    return range(len(task.keys))[first : first + len(PAPER_KEYS)]


def _pair_index(task: AnchorTask, group: Group, second: int) -> int:
    """The index of a group's pair; a single anchor takes the context's or another seen second."""
    seen = [b for a, b in task.seen if a == group[0]]
    if len(group) == 1 and second not in seen:
        if not seen:
            raise ConfigError(f"the anchor {group[0]} is first in no seen pair; expected one")
        second = seen[0]
    return task.pairs.index((*group, second)[:2])


def _similarity(
    subject: Subject,
    contexts: Factors,
    groups: Sequence[Group],
    values: Ints,
    items: Sequence[tuple[int, int]],
    read: Callable[[Sequences], Floats],
    name: tuple[str, int | None],
) -> Similarity:
    """The contrast over all items, and the cosines of the items (group, key index) shown."""
    task = subject.anchor_task
    n_keys, read_vectors = len(task.keys), []
    total = len(groups) * n_keys
    for c in range(len(contexts.key)):
        second = task.pairs[contexts.pair[c]][1]
        sequences = assemble(
            task,
            np.repeat(contexts.noise[c : c + 1], total, axis=0),
            np.repeat([_pair_index(task, group, second) for group in groups], n_keys),
            np.tile(task.keys, len(groups)),
            np.repeat(contexts.position[c : c + 1], total),
        )
        read_vectors.append(read(sequences).reshape(len(groups), n_keys, -1))
    vectors = np.stack(read_vectors)  # [context, group, key, width]
    group, key = np.array(items).T
    centred = centred_cosines(vectors)
    return Similarity(
        *name,
        anchors=tuple(groups[g] for g in group),
        keys=task.keys[key],
        values=values[group, key],
        cosine=cosines(vectors[:, group, key][:, None])[0, :, 0],
        centred=centred[group, key][:, group, key],
        contrast=similarity_contrast(centred, groups, values, task.keys, seed=subject.seed),
    )
