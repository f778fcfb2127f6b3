"""How much key, pair, key position, noise and the order of the anchors matter to a state.

The papers' pictures fix noise and position and assume that both matter little.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.analysis.read_states import State, check_state, read_state, state_name
from anchor_interp.interventions.subject import Subject, subject_of
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.functions import Pair
from anchor_interp.tasks.sequence_factors import Factor, Factors, Floats
from anchor_interp.tasks.sequences import Place


@dataclass(frozen=True)
class Influence:
    """How much one factor of a sequence, or the order of its anchors, matters to a state."""

    factor: str
    alone: float | None
    """Share of the variance that the factor alone explains (Sobol' first-order index)."""
    total: float | None
    """Share that depends on the factor (total-effect index). Both are None if nothing varies."""
    change: float | None
    """Mean length of the change: only this factor changes / all factors change."""
    agreement: float | None
    """Share of predictions that stay when only this factor changes; None for a hidden state."""
    ratio: float | None = None
    """For the order only: change when the anchors change places / change when another unordered
    pair stands there. 0 where both orders are merged; None if the pair does not matter at all."""


@dataclass(frozen=True)
class Sensitivity:
    """How much key, pair, position and noise matter to a state, over n sequences for each."""

    state: str
    layer: int | None
    factors: tuple[Influence, ...]
    n: int


def sensitivity(
    model: HookedTransformer | Subject,
    task: AnchorTask | None = None,
    *,
    state: State | None = None,
    layer: int = 1,
    place: Place = "last",
    pairs: Sequence[Pair] | None = None,
    n: int = 1_000,
    seed: int = 0,
) -> Sensitivity:
    """How much key, pair, key position and noise matter (the papers assume the last two do not).

    The four are drawn independently, and one at a time is exchanged with all else fixed: moving the
    key moves its anchors with it and leaves each noise token in its place. Shares of the variance
    are Sobol' indices by Jansen's estimators (Saltelli et al. 2010, table 2), over all dimensions
    together. A change of position can turn a training key into a test key. By default the logits
    are read, of all pairs.
    """
    checked(n, int, "n", low=2, high=100_000)
    subject = subject_of(model, task, seed)
    check_state(subject.model, state, layer)
    task = subject.anchor_task
    index = task.indices(task.pairs if pairs is None else pairs)

    def read(factors: Factors) -> Floats:
        return read_state(subject.model, state, layer, place, factors.sequences(task))

    first, second = (
        Factors.draw(task, n, subject.seed, f"sensitivity/{stream}", index=index)
        for stream in ("first", "second")
    )
    one, two = read(first), read(second)
    everything = np.concatenate([one, two])
    variance = float(((everything - everything.mean(0)) ** 2).sum(1).mean())
    unrelated = float(np.linalg.norm(one - two, axis=1).mean())
    varies = variance > 1e-9 * float((everything**2).sum(1).mean())
    influences = []
    for factor in get_args(Factor):
        own, other = getattr(first, factor), getattr(second, factor)
        moved = read(dataclasses.replace(first, **{factor: other}))
        differs = (own != other).reshape(n, -1).any(1)
        step = np.linalg.norm(moved - one, axis=1)[differs]
        stays = moved.argmax(1)[differs] == one.argmax(1)[differs]
        influences.append(
            Influence(
                factor=factor,
                alone=1 - _half_square(moved - two) / variance if varies else None,
                total=_half_square(moved - one) / variance if varies else None,
                change=float(step.mean()) / unrelated if varies and len(step) else None,
                agreement=float(stays.mean()) if state is None and len(stays) else None,
            )
        )
    return Sensitivity(*state_name(state, layer), tuple(influences), n)


def order_influence(
    model: HookedTransformer | Subject,
    task: AnchorTask | None = None,
    *,
    state: State | None = None,
    layer: int = 1,
    place: Place = "last",
    pairs: Sequence[Pair] | None = None,
    n: int = 1_000,
    seed: int = 0,
) -> Influence:
    """How much the order of the anchors matters: (a, b) becomes (b, a), all else stays.

    Pairs of equal anchors are left out, and pairs whose other order is not in ``pairs``; a pair may
    become one for the ratio. No second anchor is the last token. Order is not drawn, so it has no
    share of the variance.
    """
    checked(n, int, "n", low=2, high=100_000)
    subject = subject_of(model, task, seed)
    check_state(subject.model, state, layer)
    task, seed = subject.anchor_task, subject.seed
    known = {task.pairs[i] for i in task.indices(task.pairs if pairs is None else pairs)}
    both = sorted((a, b) for a, b in known if a != b and (b, a) in known)
    if not both:
        raise ConfigError(f"pairs are {shown(sorted(known))}; expected one in both its orders")
    first, second, third = (
        Factors.draw(task, n, seed, f"order/{stream}", index=task.indices(some), maskable=True)
        for stream, some in (("first", both), ("second", both), ("third", sorted(known)))
    )
    reverse = np.array([task.pairs.index((b, a)) for a, b in task.pairs])
    swapped = dataclasses.replace(first, pair=reverse[first.pair])
    other = dataclasses.replace(first, pair=third.pair)
    drawn = (factors.sequences(task) for factors in (first, second, swapped, other))
    one, *rest = (read_state(subject.model, state, layer, place, each) for each in drawn)
    unrelated, step, exchange = (np.linalg.norm(each - one, axis=1) for each in rest)
    differs = (other.pair != first.pair) & (other.pair != swapped.pair)
    exchanged = float(exchange[differs].mean()) if differs.any() else 0.0
    rounding = 1e-5 * float(np.linalg.norm(one, axis=1).max())
    same = float((rest[1].argmax(1) == one.argmax(1)).mean()) if state is None else None
    change = float(step.mean() / unrelated.mean()) if unrelated.mean() > rounding else None
    ratio = float(step.mean()) / exchanged if exchanged > rounding else None
    return Influence("order", None, None, change, same, ratio)


def _half_square(change: Floats) -> float:
    return float((change**2).sum(1).mean()) / 2
