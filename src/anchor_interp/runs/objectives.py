"""What training minimises: the cross-entropy of the tokens that a task predicts.

A task whose examples are asked at their last position alone, as anchor tasks are, takes its batches
straight from the order of the epoch. Sequences of several lengths are *bucketed*: the rows of
:data:`WINDOW` successive batches are sorted by length and cut into batches of similar length, which
are taken in random order. So little is computed on padding, and a batch stays a function of (seed,
step) alone. The loss of a step is a sum over tokens, divided by the tokens of an average batch: so
a token counts alike in a batch of short answers and in one of long ones. A batch of more than
``MOST_POSITIONS`` positions is worked through in parts whose gradients add up (gradient
accumulation). Sizes are rounded up a little, because oneDNN prepares a product of a new shape for
about as long as it computes one.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from anchor_interp.models.batches import IGNORED, Batch, masked_batch, n_read
from anchor_interp.models.forward import place_logits, takes_fast_path
from anchor_interp.models.number_checks import at_least_float32
from anchor_interp.models.shapes import most_positions
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.distributed import ALONE, Processes
from anchor_interp.runs.loop import Objective
from anchor_interp.tasks.contract import check_repeats, draw_examples
from anchor_interp.tasks.examples import Dataset
from anchor_interp.tasks.hashing import (
    GOLDEN,
    MIX1,
    MIX2,
    batch_indices,
    epoch_key,
    epoch_keys,
    epoch_parts,
    random_bits,
)

_LOGGER = logging.getLogger(__name__)
WINDOW = 16
"""Batches that are sorted by length together."""


class EpochOrders:
    """:func:`anchor_interp.tasks.hashing.epoch_order` on a device, where a GPU makes it."""

    def __init__(self, n: int, seed: int, device: torch.device) -> None:
        self._n, self._seed, self._device = n, seed, device
        self._orders: dict[int, Int64[Tensor, " n"]] = {}

    def rows(self, start: int, stop: int) -> Int64[Tensor, " row"]:
        """The training sequences from ``start`` to ``stop`` of all epochs, one after another."""
        parts = epoch_parts(start, stop, self._n)
        used = {e: self._orders[e] if e in self._orders else self._order(e) for e, _ in parts}
        self._orders = used  # forget past epochs
        return torch.cat([used[epoch][part] for epoch, part in parts])

    def _order(self, epoch: int) -> Int64[Tensor, " n"]:
        if self._device.type == "cuda":
            return epoch_order_on(self._device, self._n, epoch, seed=self._seed)
        order = np.argsort(epoch_keys(self._n, epoch, seed=self._seed))
        return torch.from_numpy(order).to(self._device)


def epoch_order_on(device: torch.device, n: int, epoch: int, *, seed: int) -> Int64[Tensor, " n"]:
    """:func:`anchor_interp.tasks.hashing.epoch_order`, hashed and sorted on a device.

    Tensors are signed. Their products and sums wrap around like unsigned ones; a shift to the right
    drags the sign along, which is cut off; flipping the largest bit orders them as unsigned ones.
    """

    def shifted(z: Tensor, by: int) -> Tensor:
        return (z >> by) & ((1 << 64 - by) - 1)

    constants = epoch_key(epoch, seed=seed), GOLDEN, MIX1, MIX2
    key, golden, mix1, mix2 = (int(number.astype(np.int64)) for number in constants)
    z = torch.arange(1, n + 1, device=device) * golden + key
    z = (z ^ shifted(z, 30)) * mix1
    z = (z ^ shifted(z, 27)) * mix2
    z = z ^ shifted(z, 31)
    return (z ^ torch.iinfo(torch.int64).min).argsort()


def draw_training(config: RunConfig) -> Dataset:
    """The run's training set, drawn once; warns if examples have to repeat."""
    n, sizes = config.train.n_sequences, {each.name: each.size for each in config.task.splits}
    if (size := sizes.get("train")) is not None and n > size:
        _LOGGER.warning(
            "n_sequences is %s; the task %s has %s training examples, which repeat",
            f"{n:,}", config.task.kind, f"{size:,}",
        )  # fmt: skip
    training = draw_examples(config.task, "train", n, seed=config.seed)
    check_repeats(config.task, training, seed=config.seed)
    return training


def make_objective(
    config: RunConfig,
    device: torch.device,
    training: Dataset | None = None,
    processes: Processes = ALONE,
) -> "LastObjective | MaskedObjective | Any":
    """The objective of a run on its training set, which is drawn if None."""
    examples = draw_training(config) if training is None else training
    if (own := config.task.objective(config, examples, device)) is not None:
        return own
    kind = LastObjective if config.task.answers_last else MaskedObjective
    return kind(config, examples, device, processes)


@dataclass(eq=False, repr=False)
class _OnTraining(Objective):
    """An objective on the training set of a run, or on this process's share of it."""

    config: RunConfig
    training: Dataset
    device: torch.device
    processes: Processes = ALONE
    _seen: tuple[Any, bool] = field(default=(None, False), init=False)

    def __post_init__(self) -> None:
        self._n_input_tokens = self.config.task.n_input_tokens

    def loss(self, module: HookedTransformer, batch: Batch) -> Float[Tensor, ""]:
        """See :func:`batch_loss`."""
        if self._seen[0] is not module:  # asked once: training changes nothing but weights
            self._seen = module, takes_fast_path(module)
        return batch_loss(module, batch, n_input_tokens=self._n_input_tokens, fast=self._seen[1])


@dataclass(eq=False, repr=False)
class LastObjective(_OnTraining):
    """Mean cross-entropy at the last position, in nats (both papers).

    Each epoch has another order of the training set.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        arrays = (self.training.inputs, self.training.last)
        self._tokens, self._targets = (
            torch.from_numpy(np.ascontiguousarray(array)).to(self.device) for array in arrays
        )
        self._orders = EpochOrders(len(self.training), self.config.seed, self.device)

    def parts(self, step: int) -> Sequence[Batch]:
        """The training sequences of a step, or this process's share of them, whole."""
        size = self.config.train.batch_size
        rows = self.processes.own(self._orders.rows(step * size, (step + 1) * size))
        share = len(rows) / size
        return (Batch(self._tokens[rows].long(), self._targets[rows].long(), share),)


@dataclass(eq=False, repr=False)
class MaskedObjective(_OnTraining):
    """Cross-entropy, in nats, of a bucketed batch; on average over steps, the mean over tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._batch_size, self._length = self.config.train.batch_size, self.config.task.length
        self._n_expected = self._batch_size * float(self.training.n_predicted.mean())
        self._window: tuple[int, list[Int64[np.ndarray, " batch"]]] = (-1, [])

    def rows(self, step: int) -> Int64[np.ndarray, " batch"]:
        """The rows of the training set that a step takes."""
        window, place = divmod(step, WINDOW)
        if self._window[0] != window:
            size, seed = WINDOW * self._batch_size, self.config.seed
            rows = batch_indices(window, size, len(self.training), seed=seed)
            rows = rows[np.argsort(self.training.lengths[rows], kind="stable")]
            order = random_bits(WINDOW, seed=seed, stream=f"window-{window}").argsort()
            self._window = window, [np.split(rows, WINDOW)[i] for i in order]
        return self._window[1][place]

    def parts(self, step: int) -> Sequence[Batch]:
        """The batch, cut where a forward pass would have too many positions."""
        rows = self.processes.own(self.rows(step))
        n_positions = n_read(int(self.training.lengths[rows].max()), self._length)
        n_rows = max(1, most_positions(self.config.model.d_vocab) // n_positions)
        chosen = np.array_split(rows, -(-len(rows) // n_rows))
        return [
            masked_batch(
                self.training.rows(part), self._length, self.device, total=self._n_expected
            )
            for part in chosen
        ]


def batch_loss(
    module: HookedTransformer, batch: Batch, *, n_input_tokens: int, fast: bool
) -> Float[Tensor, ""]:
    """Mean cross-entropy of a batch's targets, in nats, times its share of the step."""
    tokens, places = batch.tokens, batch.places
    logits = place_logits(module, tokens, places, n_input_tokens=n_input_tokens, fast=fast)
    loss = F.cross_entropy(at_least_float32(logits), batch.targets, ignore_index=IGNORED)
    return loss if batch.share == 1 else batch.share * loss
