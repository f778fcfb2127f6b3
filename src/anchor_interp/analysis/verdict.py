"""The phase of a model from its mechanism alone.

:func:`verdict` reads a :class:`anchor_interp.analysis.fingerprint.Fingerprint` from top to bottom:

=============  =====================================================================================
phase          rule
=============  =====================================================================================
memorizing     ``noise_share`` is high: the noise tokens decide much of the logits, so the model
               knows whole sequences by heart
inferential    ``composed`` is high: states composed of other pairs' get the rule's answer; and
               ``value`` is high: the intermediate g(x; a1) stands at the first anchor
symmetric      ``composed`` is high without that value: a table; ``order_first`` is low: layer 1
               takes both anchors together, whatever their order (otherwise composite)
symmetric      ``mirrored`` is high: composed states get the other order's target; or, if the task
               has no such target, ``commutes`` is high: both orders get the same answer
composite      none of these: each ordered pair is looked up by itself
other          a number that is needed is missing, or the task has no unseen pair
=============  =====================================================================================

The thresholds of composed states are those of the phases (complexity-control paper, section IV),
except that for ``commutes``. It and those for ``noise_share`` and ``value`` were fixed on other
runs than those on which ``docs/results.md`` judges.
"""

from dataclasses import dataclass

from anchor_interp._util.schema import bounded, check_fields, checked
from anchor_interp.analysis.mechanism import Fingerprint
from anchor_interp.runs.phase import Decision


@dataclass(frozen=True)
class VerdictThresholds:
    """The thresholds of :func:`verdict`."""

    noise: float = bounded(0.11, low=0)
    """Least ``noise_share`` of memorizing; in the diagrams' runs generalising ones have <= 0.09."""
    composed: float = bounded(0.5, low=0, high=1)
    """Least ``composed`` of inferring, as of the OOD accuracy in the phases."""
    value: float = bounded(0.15, low=-2, high=2)
    """Least ``value`` with g(x; a1) at the first anchor. The least of an inferential run of the
    diagrams' seeds 300 to 302 was 0.36, later 0.29; a table set by hand has 0.00."""
    order: float = bounded(0.03, low=0)
    """Most ``order_first`` of a symmetric table (0.00 by hand; an ordered one has 0.06)."""
    mirrored: float = bounded(0.5, low=0, high=1)
    """Least ``mirrored`` of symmetric, as of the symmetric accuracy in the phases."""
    commutes: float = bounded(0.82, low=0, high=1)
    """Least ``commutes`` of symmetric; 0.7 in the phases, as composed states commute more."""

    def __post_init__(self) -> None:
        check_fields(self, "thresholds")


THRESHOLDS = VerdictThresholds()  # those that docs/results.md judges


def verdict(fingerprint: Fingerprint, thresholds: VerdictThresholds = THRESHOLDS) -> Decision:
    """The phase of a trained model from its mechanism alone, with the rule that gave it.

    A model that has not learned its training data looks like one that memorizes. Check its training
    accuracy first. The phases are those of the module's table.
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
        found += f", order_first {f.order_first:.2f}"
        return Decision("symmetric" if f.order_first <= t.order else "composite", found)
    # without a target of the other order, both orders must get the same answer
    name = "commutes" if f.mirrored is None else "mirrored"
    share, threshold = getattr(f, name), getattr(t, name)
    if share is None:
        return Decision("other", f"{found}; no unseen pair has two orders to compare")
    if share >= threshold:
        return Decision("symmetric", f"{found}, {name} {share:.2f} >= {threshold:g}")
    return Decision("composite", f"{found}, {name} {share:.2f} < {threshold:g}")
