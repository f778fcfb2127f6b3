"""How long a run trains, and its learning rate and weight decay at every step. Imports no torch."""

import itertools
import math

from anchor_interp.runs.config import TrainConfig

_MOST_AFTER_FIT = 1_000


def last_step(steps: int, fitted_step: int | None) -> int:
    """The last step, of ``steps``, of a training that is fitted at ``fitted_step``."""
    if fitted_step is None:
        return steps
    return min(steps, fitted_step + min(fitted_step, _MOST_AFTER_FIT))


def learning_rate(config: TrainConfig, step: int) -> float:
    """Learning rate of the update after ``step`` updates.

    It rises linearly from ``lr_start`` to ``lr`` over the warm-up, then follows a cosine to
    ``lr_end`` (both papers, appendix A). From a branch or piece on its peak replaces ``lr``.
    """
    (peak, _), warmup = config.rates(step), config.warmup_steps
    if step < warmup:
        return config.lr_start + (peak - config.lr_start) * (step + 1) / warmup
    progress = (step - warmup) / max(1, config.steps - warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return config.lr_end + (peak - config.lr_end) * cosine


def total_decay(config: TrainConfig, until: int | None = None) -> float:
    """The sum of learning rate x weight decay over the first ``until`` steps; over all if None.

    AdamW shrinks a weight without gradient by exp(-total_decay).
    """
    last = config.steps if until is None else until
    total, pieces = 0.0, config.pieces
    starts = [min(start, last) for start, _, _ in pieces]
    for (_, lr, decay), (start, end) in zip(
        pieces, itertools.pairwise((*starts, last)), strict=True
    ):
        total += decay * (_sum_of_rates(config, lr, end) - _sum_of_rates(config, lr, start))
    return total


def _sum_of_rates(config: TrainConfig, lr: float, steps: int) -> float:
    """The sum of the first ``steps`` learning rates of a schedule with this peak."""
    warmup, rest = min(steps, config.warmup_steps), max(0, steps - config.warmup_steps)
    total = 0.0
    if warmup:
        climb = (lr - config.lr_start) * (warmup + 1) / (2 * config.warmup_steps)
        total = warmup * (config.lr_start + climb)
    if rest:
        # the sum of cos(pi k / n) over k = 0 ... rest - 1 (Dirichlet's kernel); 1 for rest = n
        half = math.pi / (2 * (config.steps - config.warmup_steps))
        cosines = 0.5 + math.sin((2 * rest - 1) * half) / (2 * math.sin(half))
        total = total + rest * config.lr_end + (lr - config.lr_end) * (rest + cosines) / 2
    return total
