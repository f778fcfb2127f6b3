"""The phase of a model from its mechanism alone.

:func:`verdict` reads a :class:`anchor_interp.analysis.fingerprint.Fingerprint` from top to bottom.
The lines with a star are for tasks where an unseen pair's other order was trained on an exception
to the rule (``exceptions``). A model that hardly tells the orders apart answers with the exception.

=============  =====================================================================================
phase          rule
=============  =====================================================================================
undertrained   ``train_accuracy`` is low, or without it ``seen_train_keys``: the model has not
               learned what it was trained on
memorizing     ``position_share`` is high: the place of the key decides much of the logits, so the
               model knows sequences by heart
symmetric      ``order_first`` is low: layer 0 takes the anchors together, whatever their order
symmetric *    ``order_logits`` is low: the logits hardly depend on the order
inferential    ``virtual_rule`` is high: anchors that nobody trained are answered with the rule; or
               ``value`` with ``answer`` is: what the rule makes equal is parallel
symmetric *    none of these
composite      none of these: each ordered pair is looked up by itself
other          a number that is needed is missing
=============  =====================================================================================

A symmetric model must also depend on the key and on the pair, and its logits must not tell the
orders of virtual anchors apart (``virtual_alike``).

The thresholds but ``train``, ``equal`` and ``key`` were fitted on the first 25 runs of each task
and layout of the study ``settings``; ``experiments/verdict.py`` fits them again.
``docs/verdict.md`` judges later runs.
"""

from dataclasses import dataclass

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import bounded, check_fields, checked, shown
from anchor_interp.analysis.mechanism import Fingerprint
from anchor_interp.runs.phase import Decision, Phase, not_learned


@dataclass(frozen=True)
class VerdictThresholds:
    """The thresholds of :func:`verdict`."""

    train: float = bounded(0.9, low=0, high=1)
    """Least ``train_accuracy``, or ``seen_train_keys``, as for the phase by behaviour."""
    position: float = bounded(0.07, low=0)
    """Least ``position_share`` of memorizing."""
    order: float = bounded(0.057, low=0)
    """Most ``order_first`` of symmetric."""
    order_exception: float = bounded(0.06, low=0)
    """Most ``order_logits`` of symmetric where an exception was trained."""
    rule: float = bounded(0.182, low=0, high=1)
    """Least ``virtual_rule`` of inferential."""
    alike: float = bounded(0.931, low=-2, high=2)
    """Least ``virtual_alike`` of symmetric, if any virtual anchor has an answer of its own."""
    equal: float = bounded(1.1, low=-4, high=4)
    """Least sum of ``value`` and ``answer`` of inferential: hand-set values have no numbers between
    them, so no virtual anchor is answered with the rule."""
    key: float = bounded(0.5, low=0)
    """Least ``key_share`` of symmetric."""

    def __post_init__(self) -> None:
        check_fields(self, "thresholds")


@dataclass(frozen=True)
class Line:
    """A number of the fingerprint beside its line, and the phase that it speaks for."""

    name: str
    title: str
    """The name in words."""
    meaning: str
    value: float | None
    least: bool
    """Whether the phase needs at least the line, not at most."""
    line: float
    phase: Phase

    @property
    def speaks(self) -> bool:
        """Whether the number is on the phase's side of the line."""
        if self.value is None:
            return False
        return self.value >= self.line if self.least else self.value <= self.line


THRESHOLDS = VerdictThresholds()  # those that docs/verdict.md judges
ACCURACY = 0.71
"""The verdict's balanced accuracy on runs that no threshold was fitted on (docs/verdict.md)."""
FITTED_ON = "models of two layers and one head"
"""What the thresholds were fitted on, and what they were judged on."""


def verdict(fingerprint: Fingerprint, thresholds: VerdictThresholds = THRESHOLDS) -> Decision:
    """The phase of a model from its mechanism alone, with the rule that gave it.

    The phases are those of the module's table. ``train_accuracy`` only tells whether there is
    anything to judge: inside, an untrained model looks like one that memorizes.
    """
    given: object = fingerprint
    if not isinstance(given, Fingerprint):
        made = "ai.fingerprint(run), or fingerprint_model(model, task)"
        raise ConfigError(f"fingerprint is {shown(given)}; expected a Fingerprint: {made}")
    f = fingerprint
    t: VerdictThresholds = checked(thresholds, VerdictThresholds, "thresholds")
    missed = not_learned(f.train_accuracy, f.seen_train_keys, t.train)
    if missed is not None:
        return Decision("undertrained", missed)
    if f.position_share is None or f.key_share is None:
        return Decision("other", "the logits do not vary")
    if f.position_share >= t.position:
        return Decision("memorizing", f"position_share {f.position_share:.2f} >= {t.position:g}")
    if f.virtual_rule is None or f.value is None or f.answer is None or f.order_logits is None:
        return Decision("other", "there are no virtual anchors to ask, or no states to compare")
    if f.exceptions is None:
        return Decision("other", "the fingerprint ended before its last number, exceptions")
    first, alike = f.order_first, f.virtual_alike
    found = f"order_first {'-' if first is None else f'{first:.3f}'}"
    commutes = first is not None and f.key_share >= t.key and (alike is None or alike >= t.alike)
    if first is not None and first <= t.order and commutes:
        return Decision("symmetric", f"{found} <= {t.order:g}")
    exception = commutes and alike is not None and bool(f.exceptions)
    if f.exceptions:
        found += f", order_logits {f.order_logits:.3f}"
    if exception and f.order_logits <= t.order_exception:
        return Decision("symmetric", f"{found} <= {t.order_exception:g} beside an exception")
    found += f", virtual_rule {f.virtual_rule:.2f}"
    if f.virtual_rule >= t.rule:
        return Decision("inferential", f"{found} >= {t.rule:g}")
    if (equal := f.value + f.answer) >= t.equal:
        return Decision("inferential", f"{found}, value and answer {equal:.2f} >= {t.equal:g}")
    found += f" < {t.rule:g}, virtual_alike {'-' if alike is None else f'{alike:.3f}'}"
    return Decision("symmetric" if exception else "composite", found)


def lines(fingerprint: Fingerprint, thresholds: VerdictThresholds = THRESHOLDS) -> tuple[Line, ...]:
    """The numbers that :func:`verdict` reads, in its order; the first that speaks decides.

    They come after the check of what the model has learned. A symmetric model has to meet further
    conditions (see the module).
    """
    f, t = fingerprint, thresholds
    equal = None if f.value is None or f.answer is None else f.value + f.answer

    def line(name: str, value: float | None, least: bool, at: float, phase: Phase) -> Line:
        return Line(name, *_WORDS[name], value, least, at, phase)

    exception = line("order_logits", f.order_logits, False, t.order_exception, "symmetric")
    return (
        line("position_share", f.position_share, True, t.position, "memorizing"),
        line("order_first", f.order_first, False, t.order, "symmetric"),
        *((exception,) if f.exceptions else ()),
        line("virtual_rule", f.virtual_rule, True, t.rule, "inferential"),
        line("value + answer", equal, True, t.equal, "inferential"),
    )


_WORDS = {
    "position_share": (
        "influence of the key's place",
        "share of the logits' variance that the key's place has a part in",
    ),
    "order_first": (
        "change with the order, layer 0",
        "change of the state after attention of layer 0 when the anchors change places, over that "
        "when another pair comes",
    ),
    "order_logits": (
        "change with the order, logits",
        "change of the logits when the anchors change places, over that between unrelated "
        "sequences; beside an exception to the rule",
    ),
    "virtual_rule": (
        "virtual anchors follow the rule",
        "share of virtual anchors, which nobody trained, that are answered with the rule",
    ),
    "value + answer": (
        "equal values are parallel",
        "how much more parallel states of equal g(x; a1), and of equal answers, are than those of "
        "near misses",
    ),
}
"""Title and meaning of every number."""
