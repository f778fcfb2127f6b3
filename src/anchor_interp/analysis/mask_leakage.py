"""What is left of a token's effect on the answer behind a mask of its attention edges."""

import itertools
import logging
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.interventions.masks import Paths, mask_edges, mask_position, token_edges
from anchor_interp.interventions.metrics import logit_difference
from anchor_interp.interventions.patching import SMALLEST_DIFFERENCE
from anchor_interp.interventions.subject import Subject
from anchor_interp.models.forward import last_logits
from anchor_interp.models.inputs import finite_rows
from anchor_interp.models.number_checks import rounding
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.counterfactuals import contrast_pairs
from anchor_interp.tasks.sequences import Place, Sequences, aligned_sequences, probe_position

_BATCH = 1024
_LOGGER = logging.getLogger(__name__)
_Masked = Literal["key", "first", "second"]
_MASKS: tuple[tuple[Paths, bool], ...] = (("direct", True), ("all", False), ("all", True))
"""The paths that are cut, and whether the rows are renormalised."""


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
    """What :func:`mask_leakage` gives."""


@torch.no_grad()
def mask_leakage(
    model: HookedTransformer,
    task: AnchorTask,
    sequences: Sequences,
    place: Place,
    *,
    paths: Paths = "all",
    renormalise: bool = False,
) -> float:
    """How much the logits still depend on a masked token: 0 not at all, 1 as without a mask.

    Every sequence is run with each value that the token can take: all keys, or all anchors. The
    leak is the largest range of a last-position logit over the values, with mask / without mask.
    Sequences whose token is at the last position are left out, with a warning.

    Raises:
        ConfigError: no sequence whose token can be masked, weights or logits that are not finite,
            or logits that do not depend on the token.
    """
    checked(sequences, Sequences, "sequences")
    at_end = sequences.positions(place) == sequences.tokens.shape[1] - 1
    if at_end.any() and not at_end.all():
        left_out = "left out: the %s token of %d of %d sequences is at the last position"
        _LOGGER.warning(left_out, place, at_end.sum(), len(sequences))
        sequences = sequences[~at_end]
    edges = token_edges(model, sequences, place, paths)
    rows = finite_rows(model, sequences).tokens
    values = task.tokens if place in ("first", "second") else task.keys.tolist()
    tokens = torch.tensor(values, device=rows.device)
    at = torch.from_numpy(sequences.positions(place)).to(rows.device)

    def largest_range(masked: bool) -> float:
        ranges = []
        every = torch.arange(len(rows), device="cpu")
        for part in torch.split(every, max(_BATCH // len(tokens), 1)):
            varied = rows[part].repeat_interleave(len(tokens), 0)
            where = at[part].repeat_interleave(len(tokens))[:, None]
            varied.scatter_(1, where, tokens.repeat(len(part))[:, None])
            cut = edges[:, part].repeat_interleave(len(tokens), 1)
            with mask_edges(model, cut & masked, renormalise=renormalise):
                logits = last_logits(model, varied)
            by_value = logits.view(len(part), len(tokens), -1)
            ranges.append(float((by_value.amax(1) - by_value.amin(1)).max()))
        return max(ranges)

    free, own = largest_range(masked=False), last_logits(model, rows)
    if free <= rounding(own, model.cfg.dtype) * float(own.abs().max()):
        raise ConfigError(f"the logits do not depend on the {place} token; nothing can be masked")
    return largest_range(masked=True) / free


def mask_leakages(subject: Subject) -> tuple[MaskLeakage, ...]:
    """The key and the anchors behind three masks each; no mask can hide the last token."""
    task, position = subject.anchor_task, probe_position(subject.anchor_task)
    sequences = aligned_sequences(task, position, 48, seed=subject.seed)
    hides_second = position + 2 < task.length - 1
    tokens: list[_Masked] = ["key", "first", "second"] if hides_second else ["key", "first"]
    leakages = []
    for place, (paths, renormalise) in itertools.product(tokens, _MASKS):
        left = _effect_left(subject, place, paths, renormalise)
        leak = mask_leakage(
            subject.model, task, sequences, place, paths=paths, renormalise=renormalise
        )
        leakages.append(MaskLeakage(place, paths, renormalise, *left, leak))
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
    hidden = pairs.clean.positions(place) < task.length - 1
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
    with mask_position(model, clean, place, paths=paths, renormalise=renormalise):
        masked, accuracy = changes()
    whole, error = free.mean(), free.std() / math.sqrt(len(free))
    measurable = abs(whole) >= max(SMALLEST_DIFFERENCE, 3 * error)
    return float(masked.mean() / whole) if measurable else None, accuracy, unmasked
