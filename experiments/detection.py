"""How well a ranking of ordered pairs finds those that break the rule.

*Neighbours* are innocent pairs that share their anchors with broken ones; they come late as well
(:mod:`learning_order`), so they are scored apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from anchor_interp._util.errors import ConfigError
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.functions import Pair


@dataclass(frozen=True)
class Detection:
    """How well a score tells broken groups from innocent ones: areas under the ROC curve."""

    auroc: float
    """Broken groups against all others."""
    neighbours: float | None
    """Against those of the broken ones' anchors alone, such as (3, 3) if (3, 4) is broken."""
    strangers: float | None
    """Against all other innocent groups; None without one."""


def detection(
    scores: Float[np.ndarray, " group"], groups: Sequence[Pair], broken: Sequence[Pair]
) -> Detection:
    """Areas under the ROC curve of a score that should be larger for broken pairs, or infinite.

    Groups that are all broken, or all innocent, are a ConfigError.
    """
    is_broken = np.array([pair in set(broken) for pair in groups])
    if is_broken.all() or not is_broken.any():
        raise ConfigError(
            f"{is_broken.sum()} of {len(groups)} groups are broken; expected some, not all"
        )
    anchors = {token for pair in broken for token in pair}
    near = np.array([set(pair) <= anchors for pair in groups])
    largest = scores[np.isfinite(scores)].max(initial=0.0)
    ranks = np.where(np.isfinite(scores), scores, largest + 1)

    def area(innocent: Bool[np.ndarray, " group"]) -> float:
        """How often a broken group has the larger score of two; ties count half."""
        apart = ranks[is_broken, None] - ranks[innocent]
        return float(np.mean((1 + np.sign(apart)) / 2))

    neighbours, strangers = ~is_broken & near, ~is_broken & ~near
    return Detection(
        auroc=area(~is_broken),
        neighbours=area(neighbours) if neighbours.any() else None,
        strangers=area(strangers) if strangers.any() else None,
    )


def broken_pairs(task: AnchorTask) -> tuple[Pair, ...]:
    """The ordered pairs whose training target is not the composition."""
    return tuple(pair for pair in task.seen if task.role(pair) == "overridden")
