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
except the one for ``commutes``. That one and those for ``noise_share`` and ``value`` were fixed on
the diagrams' runs and on models of known mechanism, before any fingerprint was taken of the runs on
which ``docs/results.md`` judges the verdict.
"""

from dataclasses import dataclass

from anchor_interp._util.schema import bounded, check_fields, checked
from anchor_interp.analysis.fingerprint import Fingerprint
from anchor_interp.runs.phase import Decision


@dataclass(frozen=True)
class VerdictThresholds:
    """The thresholds of :func:`verdict`."""

    noise: float = bounded(0.11, low=0)
    """A model memorizes from this ``noise_share`` on. In the diagrams' 129 trained runs, the most
    of a run that generalises is 0.09 and the least of a memorizing one 0.13."""
    composed: float = bounded(0.5, low=0, high=1)
    """A model infers from this ``composed`` on, as from this OOD accuracy in the phases."""
    value: float = bounded(0.15, low=-2, high=2)
    """g(x; a1) stands at the first anchor from this ``value`` on. The least of an inferential run
    of the diagrams' seeds 300 to 302 was 0.36 when the threshold was set (0.29 after two of the
    seeds were trained once more); a table set by hand has 0.00."""
    order: float = bounded(0.03, low=0)
    """Layer 1 takes the anchors together up to this ``order_first``: 0.00 in a symmetric table set
    by hand, 0.06 in an ordered one. No trained run needed it."""
    mirrored: float = bounded(0.5, low=0, high=1)
    """A model is symmetric from this ``mirrored`` on, as from this symmetric accuracy in the
    phases."""
    commutes: float = bounded(0.82, low=0, high=1)
    """A model is symmetric from this ``commutes`` on. Composed states commute a little more than a
    model's own: 0.82, where the phases have 0.7."""

    def __post_init__(self) -> None:
        check_fields(self, "thresholds")


THRESHOLDS = VerdictThresholds()
"""The thresholds that ``docs/results.md`` judges."""


def verdict(fingerprint: Fingerprint, thresholds: VerdictThresholds = THRESHOLDS) -> Decision:
    """The phase of a trained model from its mechanism alone, with the rule that gave it.

    A model that has not learned its training data looks like one that memorizes. Check its training
    accuracy first.

    Returns:
        memorizing, inferential, symmetric, composite or other; see the module's table.
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
    share = f.commutes if f.mirrored is None else f.mirrored
    threshold = t.commutes if f.mirrored is None else t.mirrored
    if share is None:
        return Decision("other", f"{found}; no unseen pair has two orders to compare")
    if share >= threshold:
        return Decision("symmetric", f"{found}, {name} {share:.2f} >= {threshold:g}")
    return Decision("composite", f"{found}, {name} {share:.2f} < {threshold:g}")
