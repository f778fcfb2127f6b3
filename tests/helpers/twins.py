"""Clean and corrupted sequences of the task with few keys."""

import dataclasses
from typing import Any

import numpy as np
from small_models import FEW_KEYS

from anchor_interp.interventions.patching import PatchResult
from anchor_interp.tasks.counterfactuals import ContrastPairs, Perturbation, contrast_pairs
from anchor_interp.tasks.sequences import Sequences

COLUMNS = ("tokens", "targets", "key", "position", "pair", "role")


def subset(sequences: Sequences, keep: Any) -> Sequences:
    """Some of the sequences, by index."""
    return dataclasses.replace(sequences, **{c: getattr(sequences, c)[keep] for c in COLUMNS})


def twins(kind: Perturbation = "key", n: int = 12, seed: int = 1, **options: Any) -> ContrastPairs:
    """Pairs whose second anchor is before the last position."""
    drawn = contrast_pairs(FEW_KEYS, kind, 3 * n, seed=seed, **options)
    keep = np.flatnonzero(drawn.clean.position < 6)[:n]
    return ContrastPairs(*(subset(part, keep) for part in drawn))


def ratios(result: PatchResult) -> Any:
    """How far each patch goes from the corrupted run to the clean one, example by example."""
    return (result.values - result.corrupted) / (result.clean - result.corrupted)
