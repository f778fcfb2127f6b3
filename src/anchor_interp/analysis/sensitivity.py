"""How much key, pair, key position, noise and the anchors' order matter to a state or the logits.

The papers' pictures fix noise and position and assume that they matter little; here it is measured.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.analysis.states import State, named, read_at
from anchor_interp.models.transformer import HookedTransformer, check_fits
from anchor_interp.tasks.anchor import AnchorTask, Pair
from anchor_interp.tasks.factors import Factor, Factors, Floats, pair_indices
from anchor_interp.tasks.sequences import Place


@dataclass(frozen=True)
class Influence:
    """How much one factor of a sequence matters to a state or the logits."""

    factor: str
    """Key, pair, position or noise; or the order of the anchors."""
    alone: float | None
    """Share of the variance that the factor explains by itself (Sobol' first-order index)."""
    total: float | None
    """Share that it has a part in, interactions included (total-effect index); None for both where
    nothing varies, and for the order."""
    change: float | None
    """Mean length of the change when this factor alone changes, over that when all do."""
    agreement: float | None
    """Share of predictions that stay when this factor alone changes; None for a hidden state."""


@dataclass(frozen=True)
class Sensitivity:
    """How much key, pair, position and noise matter."""

    state: str
    """The tensor, as in :mod:`anchor_interp.analysis.states`, or ``logits``."""
    layer: int | None
    """0-based layer; None for logits."""
    factors: tuple[Influence, ...]
    """One for each factor."""
    n: int
    """Sequences for each factor."""


def sensitivity(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    state: State | None = None,
    layer: int = 1,
    place: Place = "last",
    pairs: Sequence[Pair] | None = None,
    n: int = 1_000,
    seed: int = 0,
) -> Sensitivity:
    """How much key, pair, key position and noise matter (the papers assume the last two do not).

    The four are drawn independently: pairs, all keys, all positions, a noise token for every
    place that key and anchors leave free. One at a time is exchanged with all else fixed, so that
    moving the key moves its anchors with it and leaves each noise token in its place. Shares of the
    variance are Sobol' indices by Jansen's estimators (Saltelli et al. 2010, table 2), over all
    dimensions together. They scatter by a few hundredths at n = 1,000, and the shares of factors
    that interact add up to less than 1 alone and to more in total.

    A change of position can turn a training key into a test key: a model that has memorized answers
    differently there.

    Args:
        model: a model of the task.
        task: the task.
        state: the tensor, in the sense of :mod:`anchor_interp.analysis.states`; the logits if None.
        layer: 0-based layer of the state.
        place: where the state is read: in each sequence at its own position of that token.
        pairs: the ordered pairs that sequences have; all if None.
        n: sequences for each factor.
        seed: seed of the sequences.

    Raises:
        ConfigError: an n below 2, no pairs or an unknown one, an unknown state or layer, or a model
            too small for the task.
    """
    check_fits(model, task)
    n = checked(n, int, "n", low=2, high=100_000)
    index = pair_indices(task, task.pairs if pairs is None else pairs)

    def read(factors: Factors) -> Floats:
        return read_at(model, state, layer, place, factors.sequences(task))

    first = Factors.draw(task, n, seed, "sensitivity/first", index=index)
    second = Factors.draw(task, n, seed, "sensitivity/second", index=index)
    one, two = read(first), read(second)
    everything = np.concatenate([one, two])
    variance = float(((everything - everything.mean(0)) ** 2).sum(1).mean())
    unrelated = float(np.linalg.norm(one - two, axis=1).mean())
    varies = variance > 1e-9 * float((everything**2).sum(1).mean())
    found = []
    for factor in get_args(Factor):
        changed = first.exchanged(factor, second)
        moved = read(changed)
        differs = first.differs(factor, second)
        step = np.linalg.norm(moved - one, axis=1)[differs]
        stays = moved.argmax(1)[differs] == one.argmax(1)[differs]
        found.append(
            Influence(
                factor=factor,
                alone=1 - _half_square(moved - two) / variance if varies else None,
                total=_half_square(moved - one) / variance if varies else None,
                change=float(step.mean()) / unrelated if varies and len(step) else None,
                agreement=float(stays.mean()) if state is None and len(stays) else None,
            )
        )
    return Sensitivity(*named(state, layer), tuple(found), n)


def order_influence(
    model: HookedTransformer,
    task: AnchorTask,
    *,
    state: State | None = None,
    layer: int = 1,
    place: Place = "last",
    pairs: Sequence[Pair] | None = None,
    n: int = 1_000,
    seed: int = 0,
) -> Influence:
    """How much the order of the anchors matters: (a, b) becomes (b, a), all else stays.

    Where both orders have one target, a model that maps each ordered pair by itself still holds
    them apart, a commutative one does not. It has no share of the variance: order is no factor
    that is drawn.

    Args:
        model: a model of the task.
        task: the task.
        state: the tensor, in the sense of :mod:`anchor_interp.analysis.states`; the logits if None.
        layer: 0-based layer of the state.
        place: where the state is read.
        pairs: the ordered pairs that sequences have before and after; all if None. Pairs of equal
            anchors, and those whose other order is not among them, are left out.
        n: sequences, whose second anchor is not the last token.
        seed: seed of the sequences.

    Raises:
        ConfigError: as :func:`sensitivity`, or no pair in both orders.
    """
    check_fits(model, task)
    n = checked(n, int, "n", low=2, high=100_000)
    index = pair_indices(task, task.pairs if pairs is None else pairs)
    known = {task.pairs[i] for i in index}
    both = sorted((a, b) for a, b in known if a != b and (b, a) in known)
    if not both:
        raise ConfigError(f"pairs are {shown(sorted(known))}; expected one in both its orders")
    drawn = [
        Factors.draw(task, n, seed, f"order/{name}", index=pair_indices(task, both), maskable=True)
        for name in ("first", "second")
    ]
    reverse = np.array([task.pairs.index((b, a)) for a, b in task.pairs])
    swapped = dataclasses.replace(drawn[0], pair=reverse[drawn[0].pair])
    one, two, moved = (
        read_at(model, state, layer, place, factors.sequences(task))
        for factors in (*drawn, swapped)
    )
    unrelated = float(np.linalg.norm(one - two, axis=1).mean())
    step = float(np.linalg.norm(moved - one, axis=1).mean())
    return Influence(
        factor="order",
        alone=None,
        total=None,
        change=step / unrelated if unrelated > 0 else None,
        agreement=float((moved.argmax(1) == one.argmax(1)).mean()) if state is None else None,
    )


def _half_square(change: Floats) -> float:
    return float((change**2).sum(1).mean()) / 2
