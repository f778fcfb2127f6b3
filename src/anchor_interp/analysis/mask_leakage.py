"""What is left of a token's effect on the answer behind a mask of its attention edges."""

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from anchor_interp._util.errors import ConfigError
from anchor_interp.interventions.masks import Paths, mask_edges, mask_leakage, token_edges
from anchor_interp.interventions.metrics import logit_difference
from anchor_interp.interventions.patching import SMALLEST_DIFFERENCE
from anchor_interp.interventions.subject import Subject
from anchor_interp.models.forward import last_logits
from anchor_interp.tasks.counterfactuals import contrast_pairs
from anchor_interp.tasks.sequences import Place, aligned_sequences, places, probe_position

_Masked = Literal["key", "first", "second"]
_MASKS: tuple[tuple[Paths, bool], ...] = (("direct", True), ("all", False), ("all", True))
"""Which edges are cut, and whether the other ones of the row are scaled to its former sum."""


@dataclass(frozen=True)
class MaskLeakage:
    """What is left of a token behind a mask of its attention edges."""

    place: Place
    paths: Paths
    renormalise: bool
    effect: float | None
    """Effect of the token on the logit difference, with mask / without mask; a mean over
    sequences of seen pairs that differ in the token. 0 if none is left; it can lie outside 0 to 1.
    None if the effect without the mask is within three standard errors of 0, or below
    ``SMALLEST_DIFFERENCE``, or no seen pairs differ in the token."""
    accuracy: float | None
    """Share of these sequences that is answered rightly with the mask."""
    unmasked: float | None
    """Share of these sequences that is answered rightly without the mask."""
    leak: float
    """Largest range of a logit, with mask / without mask. At 0 the token is hidden; it can
    exceed 1. See :func:`anchor_interp.interventions.masks.mask_leakage`."""


def mask_leakages(subject: Subject) -> tuple[MaskLeakage, ...]:
    """The key and the anchors behind three masks each; no mask can hide the last token."""
    model, task = subject.model, subject.anchor_task
    position = probe_position(task)
    sequences = aligned_sequences(task, position, 48, seed=subject.seed)
    hides_second = position + 2 < task.length - 1
    tokens: list[_Masked] = ["key", "first", "second"] if hides_second else ["key", "first"]
    leakages = []
    for place, (paths, renormalise) in itertools.product(tokens, _MASKS):
        range_left = mask_leakage(
            model, task, sequences, place, paths=paths, renormalise=renormalise
        )
        left = _effect_left(subject, place, paths, renormalise)
        leakages.append(MaskLeakage(place, paths, renormalise, *left, range_left))
    return tuple(leakages)


@torch.no_grad()
def _effect_left(
    subject: Subject, place: _Masked, paths: Paths, renormalise: bool
) -> tuple[float | None, float | None, float | None]:
    """The effect, the accuracy with the mask and that without of :class:`MaskLeakage`."""
    model, task = subject.model, subject.anchor_task
    try:
        pairs = contrast_pairs(task, place, 200, seed=subject.seed)
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
    measurable = abs(whole) >= max(SMALLEST_DIFFERENCE, 3 * error)
    return float(masked.mean() / whole) if measurable else None, accuracy, unmasked
