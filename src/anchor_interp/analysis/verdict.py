"""The phase of a model from its mechanism alone.

:func:`verdict` reads a :class:`anchor_interp.analysis.fingerprint.Fingerprint` from top to bottom:

=============  =====================================================================================
phase          rule
=============  =====================================================================================
memorizing     ``noise_share`` is high: the noise tokens decide much of the logits, so the model
               knows whole sequences by heart
symmetric      ``order_first`` is low: layer 1 takes the anchors together, whatever their order
inferential    ``virtual_rule`` is high: anchors that nobody trained are answered with the rule; or
               ``value`` with ``answer`` is: what the rule makes equal is parallel
symmetric      ``virtual_alike`` is high: such anchors have the same logits in both orders
composite      neither: each ordered pair is looked up by itself
other          a number that is needed is missing
=============  =====================================================================================

How low ``order_first`` must be depends on the task. Where an unseen pair's other order was trained
on an exception to the rule (``exceptions``), a model that hardly tells the orders apart answers
with that exception. Without one it can merge the orders in part and still compose. A symmetric
model must also depend on the key.

Four thresholds (of order, rule and alike) were fitted on the first 25 runs of each task and layout
of the study ``settings``; ``experiments/verdict.py`` fits them again. ``docs/results.md`` judges
later runs.
"""

from dataclasses import dataclass

from anchor_interp._util.schema import bounded, check_fields, checked
from anchor_interp.analysis.mechanism import Fingerprint
from anchor_interp.runs.phase import Decision


@dataclass(frozen=True)
class VerdictThresholds:
    """The thresholds of :func:`verdict`."""

    noise: float = bounded(0.11, low=0)
    """Least ``noise_share`` of memorizing."""
    order: float = bounded(0.05, low=0)
    """Most ``order_first`` of symmetric."""
    order_exception: float = bounded(0.2, low=0)
    """The same where the other order of an unseen pair was trained on an exception."""
    rule: float = bounded(0.2, low=0, high=1)
    """Least ``virtual_rule`` of inferential."""
    equal: float = bounded(1.1, low=-4, high=4)
    """Least sum of ``value`` and ``answer`` of inferential: hand-set values have no numbers between
    them, so no virtual anchor is answered with the rule."""
    alike: float = bounded(0.956, low=-1, high=1)
    """Least ``virtual_alike`` of symmetric, where layer 1 tells the orders apart."""
    key: float = bounded(0.5, low=0)
    """Least ``key_share`` of symmetric."""

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
    if f.noise_share is None or f.key_share is None:
        return Decision("other", "the logits do not vary")
    if f.noise_share >= t.noise:
        return Decision("memorizing", f"noise_share {f.noise_share:.2f} >= {t.noise:g}")
    if f.virtual_rule is None or f.value is None or f.answer is None:
        return Decision("other", f"noise_share {f.noise_share:.2f}; no virtual anchors to ask")
    merges = f.order_first is not None and f.key_share >= t.key  # if so, it can be symmetric
    most = t.order_exception if f.exceptions else t.order
    found = f"order_first {f.order_first:.3f}" if f.order_first is not None else "no order_first"
    if merges and f.order_first <= most:
        return Decision("symmetric", f"{found} <= {most:g}")
    found += f", virtual_rule {f.virtual_rule:.2f}"
    if f.virtual_rule >= t.rule:
        return Decision("inferential", f"{found} >= {t.rule:g}")
    if f.value + f.answer >= t.equal:
        return Decision("inferential", f"{found}; equal values and equal answers are alike")
    if f.virtual_alike is None:
        return Decision("composite", f"{found}; each virtual anchor gets a trained answer")
    found += f", virtual_alike {f.virtual_alike:.3f}"
    if merges and f.virtual_alike >= t.alike:
        return Decision("symmetric", f"{found} >= {t.alike:g}")
    return Decision("composite", f"{found} < {t.alike:g}")
