"""The phase of a model by its mechanism alone."""

from dataclasses import dataclass

from anchor_interp._util.schema import bounded, check_fields, checked
from anchor_interp.analysis.fingerprint import Fingerprint
from anchor_interp.runs.phase import Decision, Phase


@dataclass(frozen=True)
class VerdictThresholds:
    """Where :func:`verdict` draws its lines."""

    noise: float = bounded(0.11, low=0)
    """``noise_share`` from which on a model knows sequences: between 0.09, the most of a run that
    generalises, and 0.13, the least of a memorizing one, in the diagrams' 129 trained runs."""
    composed: float = bounded(0.5, low=0, high=1)
    """``composed`` from which on it infers, as OOD accuracy in the phases."""
    value: float = bounded(0.15, low=-2, high=2)
    """``value`` from which on g(x; a1) stands at the first anchor: 0.36 was the least of an
    inferential run of the diagrams' seeds 300 to 302 when the line was drawn (0.29 since two of the
    seeds were trained once more), a table set by hand has 0.00."""
    order: float = bounded(0.03, low=0)
    """``order_first`` up to which layer 1 takes the anchors together: 0.00 and 0.06 in a symmetric
    and an ordered table set by hand. No trained run needed it."""
    mirrored: float = bounded(0.5, low=0, high=1)
    """``mirrored`` from which on it is symmetric, as the symmetric accuracy in the phases."""
    commutes: float = bounded(0.82, low=0, high=1)
    """``commutes`` from which on it is symmetric. Composed states commute a little more than
    a model's own: 0.82 where the phases have 0.7."""

    def __post_init__(self) -> None:
        check_fields(self, "thresholds")


THRESHOLDS = VerdictThresholds()
"""The thresholds that are judged in ``docs/results.md``."""


def verdict(fingerprint: Fingerprint, thresholds: VerdictThresholds = THRESHOLDS) -> Decision:
    """The phase of a trained model by its mechanism alone, with the rule that gave it.

    A model that has not learned its training data looks like one that memorizes: whether it has is
    for the training accuracy to say.

    Args:
        fingerprint: the numbers of the mechanism.
        thresholds: where the lines are.

    Returns:
        memorizing, inferential, symmetric or composite; ``other`` where a number is missing that
        is needed, or on a task without unseen pairs.
    """
    f: Fingerprint = checked(fingerprint, Fingerprint, "fingerprint")
    t: VerdictThresholds = checked(thresholds, VerdictThresholds, "thresholds")
    if f.noise_share is None:
        return Decision("other", "the logits do not vary")
    if f.noise_share >= t.noise:
        return Decision("memorizing", f"noise_share {f.noise_share:.2f} >= {t.noise:g}")
    if f.composed is None:
        return Decision("other", f"noise_share {f.noise_share:.2f}; no composed states")
    found = f"composed {f.composed:.2f}"
    if f.composed >= t.composed:
        if f.value is None:
            return Decision("other", f"{found}, and no value at the first anchor to tell")
        found += f" >= {t.composed:g}, value {f.value:.2f}"
        if f.value >= t.value:
            return Decision("inferential", found)
        found += f" < {t.value:g}: a table"
        if f.order_first is None:
            return Decision("other", f"{found}, and no change of layer 1 to tell of which kind")
        phase: Phase = "symmetric" if f.order_first <= t.order else "composite"
        return Decision(phase, f"{found}, order_first {f.order_first:.2f}")
    if f.mirrored is not None and f.mirrored >= t.mirrored:
        return Decision("symmetric", f"{found}, mirrored {f.mirrored:.2f} >= {t.mirrored:g}")
    if f.mirrored is not None:
        return Decision("composite", f"{found}, mirrored {f.mirrored:.2f} < {t.mirrored:g}")
    if f.commutes is None:
        return Decision("other", f"{found}; no unseen pair has two orders to compare")
    if f.commutes >= t.commutes:
        return Decision("symmetric", f"{found}, commutes {f.commutes:.2f} >= {t.commutes:g}")
    return Decision("composite", f"{found}, commutes {f.commutes:.2f} < {t.commutes:g}")
