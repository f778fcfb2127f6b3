"""What a recipe promises of a run, and the seeds that judge it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anchor_interp.behaviour.phase import Evaluation, Phase, decide

# The search saw 0 to 5, 100, 101, 109, 201, 203, 205 and 207. Earlier recipes were judged on 200
# to 209, so these are known. Studies of the claims have 300 to 305, 400 to 409 and 500 to 519.
FRESH_SEEDS = range(600, 610)


@dataclass(frozen=True)
class Margin:
    """What a recipe promises of a run."""

    phase: Phase
    text: str  # what it promises beyond the phase, in words
    holds: Callable[[Any], bool]  # of an evaluation

    def kept(self, evaluation: Evaluation) -> bool:
        """Whether a run has the phase and keeps within the margin."""
        return decide(evaluation).phase == self.phase and self.holds(evaluation)


_MEMORIZING = Margin(
    "memorizing", "train >= 0.99 and ID <= 0.5",
    lambda e: e.train_accuracy >= 0.99 and e.id_accuracy <= 0.5,
)  # fmt: skip
_INFERENTIAL = Margin("inferential", "OOD >= 0.95", lambda e: e.ood_accuracy >= 0.95)
_COMPOSITE = Margin(
    "composite", "ID >= 0.95, OOD <= 0.3 and commutativity <= 0.6",
    lambda e: e.id_accuracy >= 0.95 and e.ood_accuracy <= 0.3 and e.commutativity <= 0.6,
)  # fmt: skip
_SYMMETRIC = Margin("symmetric", "OOD <= 0.2 and commutativity >= 0.95",
                    lambda e: e.ood_accuracy <= 0.2 and e.commutativity >= 0.95)  # fmt: skip
_X_MINUS_6 = Margin("symmetric", "x - 6 on >= 0.9", lambda e: e.symmetric_accuracy >= 0.9)
MARGINS: Mapping[str, Margin] = {
    "memorizing": _MEMORIZING, "composite": _COMPOSITE, "symmetric": _SYMMETRIC,
    "inferential": _INFERENTIAL, "neurips-memorizing": _MEMORIZING,
    "neurips-symmetric": _X_MINUS_6, "neurips-inferential": _INFERENTIAL,
}  # fmt: skip
"""The margins by recipe."""
