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

from collections.abc import Sequence
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
    applies: bool = True
    """Whether the phase's further conditions hold."""

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


@dataclass(frozen=True)
class _Rule:
    """A line of the module's table: the phase of a number on its side of a threshold."""

    name: str
    """The number as the page shows it; ``reason`` as the decision does."""
    title: str
    meaning: str
    phase: Phase
    least: bool
    threshold: str
    reason: str
    remark: str = ""
    """Stands behind the threshold in the decision's reason."""


_RULES = (
    _Rule(
        "position_share", "influence of the key's place",
        "share of the logits' variance that changes with the place of the key",
        "memorizing", least=True, threshold="position", reason="position_share {:.2f}",
    ),
    _Rule(
        "order_first", "change with the order, layer 0",
        "change of the state after attention of layer 0: anchors change places / another pair "
        "stands there",
        "symmetric", least=False, threshold="order", reason="order_first {:.3f}",
    ),
    _Rule(
        "order_logits", "change with the order, logits",
        "change of the logits: anchors change places / another sequence; on a task with an "
        "exception to the rule",
        "symmetric", least=False, threshold="order_exception", reason="order_logits {:.3f}",
        remark=" beside an exception",
    ),
    _Rule(
        "virtual_rule", "virtual anchors follow the rule",
        "share of virtual anchors, which nobody trained, that are answered with the rule",
        "inferential", least=True, threshold="rule", reason="virtual_rule {:.2f}",
    ),
    _Rule(
        "value + answer", "equal values are parallel",
        "cosine of states of equal g(x; a1), and of equal answers, minus the cosine of near misses",
        "inferential", least=True, threshold="equal", reason="value and answer {:.2f}",
    ),
)  # fmt: skip
"""The lines that decide between phases, in their order: the first that speaks and applies."""


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
    by_heart, *asked = lines(f, t)
    if by_heart.speaks:
        return Decision(by_heart.phase, _reason([by_heart]))
    if f.virtual_rule is None or f.value is None or f.answer is None or f.order_logits is None:
        return Decision("other", "there are no virtual anchors to ask, or no states to compare")
    if f.exceptions is None:
        return Decision("other", "the fingerprint ended before its last number, exceptions")
    for place, line in enumerate(asked, 1):
        if line.speaks and line.applies:
            return Decision(line.phase, _reason(asked[:place]))
    alike = "-" if f.virtual_alike is None else f"{f.virtual_alike:.3f}"
    phase: Phase = "symmetric" if _beside_exception(f, t) else "composite"
    return Decision(phase, f"{_reason(asked[:-1], sign='<')}, virtual_alike {alike}")


def lines(fingerprint: Fingerprint, thresholds: VerdictThresholds = THRESHOLDS) -> tuple[Line, ...]:
    """The numbers that :func:`verdict` reads, in its order; the first that decides.

    They come after the check of what the model has learned. A symmetric model has to meet further
    conditions (see the module).
    """
    f, t = fingerprint, thresholds
    equal = None if f.value is None or f.answer is None else f.value + f.answer
    applies = {"order_first": _commutes(f, t), "order_logits": _beside_exception(f, t)}
    return tuple(
        Line(
            rule.name,
            rule.title,
            rule.meaning,
            value=equal if rule.name == "value + answer" else getattr(f, rule.name),
            least=rule.least,
            line=getattr(t, rule.threshold),
            phase=rule.phase,
            applies=applies.get(rule.name, True),
        )
        for rule in _RULES
        if rule.name != "order_logits" or f.exceptions
    )


def _commutes(f: Fingerprint, t: VerdictThresholds) -> bool:
    """Whether the logits depend on pair and key, and virtual anchors do not contradict."""
    depends = f.order_first is not None and f.key_share is not None and f.key_share >= t.key
    return depends and (f.virtual_alike is None or f.virtual_alike >= t.alike)


def _beside_exception(f: Fingerprint, t: VerdictThresholds) -> bool:
    """Whether the order of the logits tells, because an exception to the rule was trained."""
    return _commutes(f, t) and f.virtual_alike is not None and bool(f.exceptions)


def _reason(read: Sequence[Line], sign: str | None = None) -> str:
    """The numbers read, and the line of the last one."""
    rules = {rule.name: rule for rule in _RULES}
    last, rule = read[-1], rules[read[-1].name]
    numbers = (
        rules[line.name].reason.format(line.value) if line.value is not None else f"{line.name} -"
        for line in read
    )
    side = sign or (">=" if last.least else "<=")
    return f"{', '.join(numbers)} {side} {last.line:g}{rule.remark}"
