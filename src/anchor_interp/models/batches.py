"""Sequences as a model reads them in one forward pass, and what it is to predict of them."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from anchor_interp.tasks.examples import Dataset

IGNORED = -100
"""The target of a place that does not count."""


@dataclass(frozen=True)
class Batch:
    """Sequences of one forward pass on the training device, and what is to be predicted."""

    tokens: Int[Tensor, "batch pos"]
    """What the model reads."""
    targets: Int[Tensor, " target"]
    """The tokens to predict."""
    share: float
    """Number of these targets / number of targets by which the loss of a step is divided."""
    places: Int[Tensor, " target"] | None = None
    """Where each target is predicted, an index of the flattened tokens; None: at the last
    positions."""


def masked_batch(
    examples: Dataset, length: int, device: torch.device, *, total: float | None = None
) -> Batch:
    """Examples as one batch of at most ``length`` positions.

    ``total`` is the number of masked tokens by which the loss of a step is divided; None for these
    examples' own. Targets are padded with :data:`IGNORED`.
    """
    mask = examples.mask[:, 1:]  # token i is predicted at position i - 1
    n_rows, n_pos = mask.shape
    rounded = n_read(n_pos + 1, length)
    tokens = np.zeros((n_rows, rounded), np.int64)
    tokens[:, :n_pos] = examples.inputs
    row, position = mask.nonzero()
    places, targets = np.zeros((2, _up(len(row), 64)), np.int64)
    places[: len(row)] = row * rounded + position
    targets[: len(row)], targets[len(row) :] = examples.tokens[:, 1:][mask], IGNORED
    arrays = (tokens, targets, places)
    read, predicted, where = (torch.from_numpy(array).to(device) for array in arrays)
    return Batch(read, predicted, 1.0 if total is None else len(row) / total, where)


def n_read(n_tokens: int, length: int) -> int:
    """Positions of sequences of up to ``n_tokens`` tokens, of which the last is not read."""
    return min(_up(n_tokens - 1, 4), length)


def _up(n: int, step: int) -> int:
    return -(-n // step) * step
