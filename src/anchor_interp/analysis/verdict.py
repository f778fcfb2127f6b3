"""The phase of a model from its mechanism alone.

:func:`verdict` reads a :class:`anchor_interp.analysis.fingerprint.Fingerprint` from top to bottom:

=============  =====================================================================================
phase          rule
=============  =====================================================================================
memorizing     ``noise_share`` is high: the noise tokens decide much of the logits, so the model
               knows whole sequences by heart
inferential    ``value`` is there, g(x; a1) at the first anchor, and with ``answer`` it is high:
               equal answers of different seen pairs have parallel X^ao(L)
symmetric      ``order_last`` is low: X^ao(L) keeps no trace of the order of the anchors
composite      neither: each ordered pair is looked up by itself
other          a number that is needed is missing
=============  =====================================================================================

The thresholds were fitted on the studies ``decay`` and ``depth``; ``docs/results.md`` judges other
runs.
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
    value: float = bounded(0.3, low=-2, high=2)
    """Least ``value`` of inferential; a table set by hand has 0.00."""
    alike: float = bounded(1.0, low=-4, high=4)
    """Least sum of ``value`` and ``answer`` of inferential."""
    order: float = bounded(0.04, low=0)
    """Most ``order_last`` of symmetric."""

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
    if f.answer is None or f.value is None or f.order_last is None:
        return Decision("other", f"noise_share {f.noise_share:.2f}; no states to compare")
    found = f"value {f.value:.2f}, answer {f.answer:.2f}"
    if f.value >= t.value and f.value + f.answer >= t.alike:
        return Decision("inferential", f"{found}: equal values and equal answers are alike")
    found += f", order_last {f.order_last:.3f}"
    if f.order_last <= t.order:
        return Decision("symmetric", f"{found} <= {t.order:g}")
    return Decision("composite", f"{found} > {t.order:g}")
