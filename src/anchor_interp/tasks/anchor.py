"""Anchor tasks: what the sequences of the two papers mean.

A *key* x is followed by two *anchors* a1, a2. Each anchor stands for a function of the key, and the
target is both functions applied in turn, g(g(x; a1); a2) (NeurIPS paper, equation 1). All other
tokens are noise. Each ordered pair of anchors has a *role*: ``inferential`` (its training target is
the composition), ``overridden`` (its training target is another function, the paper's
"non-inferential" mapping) or ``unseen`` (never in the training data). The answer of a trained model
to an unseen pair tells how it works. The *inferential* answer is the composition; the *symmetric*
answer is the training target of the other order, where that was seen and differs from it.

The position p of a key decides whether it is training or test data (complexity-control paper,
appendix B): x is a test key at p when ``x mod length == p``. So every number is trained on
somewhere, and no (pair, key, position) of the training data is ever tested.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.tasks.examples import Dataset, Examples, Split
from anchor_interp.tasks.functions import Affine, Anchor, Override
from anchor_interp.tasks.rules import AnchorRules
from anchor_interp.tasks.sequences import SplitName, sample
from anchor_interp.tasks.task import Task


@dataclass(frozen=True)
class AnchorTask(AnchorRules, Task, untagged=True):
    """A task that composes the functions of two anchors.

    Its fields and rules are those of :class:`anchor_interp.tasks.rules.AnchorRules`.
    """

    @property
    def splits(self) -> tuple[Split, ...]:
        """Training data, test keys of seen pairs (ID) and, if there are any, unseen pairs (OOD)."""
        seen = (Split("train", "train"), Split("id", "id"))
        return (*seen, Split("ood", "ood")) if self.unseen else seen

    def examples(self, split: str, n: int, *, seed: int) -> Dataset:
        """N sequences (:func:`anchor_interp.tasks.sequences.sample`), each with its target."""
        return sample(self, checked(split, SplitName, "split"), n, seed=seed).dataset()


def check_anchors(task: Any, advice: str) -> AnchorTask:
    """The task; ConfigError if it is not one of anchors, with advice on what takes examples."""
    if isinstance(task, Examples):
        raise ConfigError(f"task is {shown(task)}; expected an AnchorTask: {advice}")
    return cast(AnchorTask, checked(task, AnchorTask, "task"))


BROKEN_GROUPS = (((1, 2), 4), ((1, 3), 1), ((1, 4), -5), ((2, 3), 5), ((2, 4), -9), ((3, 4), -6))
"""Unordered pairs, each with the offset that breaks its rule, in the order in which
:func:`reasoning_complexity` breaks them (released code of the complexity-control paper)."""


def reasoning_complexity(level: int) -> AnchorTask:
    """The task whose first ``level`` unordered pairs break the rule in both orders.

    Training shows all 16 pairs (NeurIPS paper, section 6; complexity-control paper, section VIII).
    """
    checked(level, int, "reasoning complexity", low=0, high=len(BROKEN_GROUPS))
    broken = [(order, add) for (a, b), add in BROKEN_GROUPS[:level] for order in ((a, b), (b, a))]
    return AnchorTask(overrides=tuple(Override(order, Affine(add)) for order, add in broken))


_RING = tuple(
    Anchor(token, Affine(add, mul, modulus=80, origin=20))
    for token, (add, mul) in enumerate(((5, 1), (1, 1), (0, -1), (-8, 1)), 1)
)
"""Shifts and a reflection of a ring of 80 numbers: the orders of 3 and 4 differ by 16 for every
key, so the symmetric answer shows without an overridden pair."""

TASKS: Mapping[str, AnchorTask] = MappingProxyType(
    {
        # complexity-control paper, section III-B
        "complexity-control": AnchorTask(unseen=((3, 4), (4, 3))),
        # NeurIPS paper, section 4: (3, 4) is trained on x - 6 instead of x - 10
        "neurips": AnchorTask(overrides=(Override((3, 4), Affine(-6)),), unseen=((4, 3),)),
        "non-commuting": AnchorTask(anchors=_RING, unseen=((4, 3),)),
        **{f"reasoning-complexity-{level}": reasoning_complexity(level) for level in range(7)},
    }
)
"""The named anchor tasks."""
