"""The phase of a model from its mechanism alone.

:func:`verdict` reads five numbers of a fingerprint
(:mod:`anchor_interp.analysis.fingerprint_numbers`). Each is an effect on the answers to seen pairs
(:data:`VERDICT_NUMBERS`). A number is *high* from the end of its band on, and *low* below its
start. The first rule of :data:`RULES` that applies gives the phase.

The verdict abstains. A number is *open* if its 95 % interval over sequences reaches into the band
or across it, or if it was not measured. If the rules give different phases with the open numbers
high or low, the verdict is ``unclear`` and names them. It is ``mixture`` if the share of virtual
anchors that follow the rule lies in its band and decides alone: the model computes in part.

A line is where the rules name most phases of the fitted runs rightly, and its band is where they
err too often. ``experiments/evidence/verdict.py`` fits both; ``docs/verdict.md`` judges them.

On models of some shapes the verdict is seldom right (:data:`JUDGED`). There, and on models that are
at least as large in layers, heads and width, it is ``unclear`` too and says what it leans to. Where
no run of the shape is judged otherwise, the reason says so.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from anchor_interp._util.schema import check_name, checked, from_dict
from anchor_interp.analysis.fingerprint_numbers import Fingerprint
from anchor_interp.behaviour.phase import PAPER, PHASE_MEANINGS, Phase, not_learned

VerdictPhase = Phase | Literal["mixture", "unclear"]
MEANINGS: Mapping[str, str] = MappingProxyType(
    {str(phase): meaning for phase, meaning in PHASE_MEANINGS.items()}
    | {
        "mixture": "It follows the rule in part, and elsewhere looks answers up.",
        "unclear": "The evidence does not decide between the phases that are named.",
    }
)


@dataclass(frozen=True)
class Number:
    """A number that the verdict reads."""

    name: str
    """Its field of the fingerprint."""
    title: str
    meaning: str
    high: str
    """What it speaks for if it is high."""
    low: str


@dataclass(frozen=True)
class Line:
    """Where a number turns from low to high, and the band around it where the rules often err."""

    start: float
    line: float
    end: float


@dataclass(frozen=True)
class Rule:
    """The phases that fit, the likeliest first, if some numbers are high (True) or low (False)."""

    asks: Mapping[str, bool]
    phases: tuple[Phase, ...]

    @property
    def words(self) -> str:
        """The condition in words."""
        titles = {number.name: number.title for number in VERDICT_NUMBERS}
        parts = [f"{titles[name]} {'high' if high else 'low'}" for name, high in self.asks.items()]
        return " and ".join(parts) or "otherwise"


@dataclass(frozen=True)
class Evidence:
    """A number beside its line, and the phase that it speaks for."""

    number: Number
    value: float | None
    margin: float | None
    """Half the width of its 95 % interval over sequences."""
    line: Line
    speaks_for: str

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.number.title} not measured"
        margin = "" if self.margin is None else f" ± {self.margin:.2f}"
        return f"{self.number.title} {self.value:z.2f}{margin}: {self.speaks_for}"


@dataclass(frozen=True)
class Verdict:
    """A phase by mechanism, and why."""

    phase: VerdictPhase
    reason: str
    evidence: tuple[Evidence, ...] = ()
    """At most three numbers, those that are open first."""
    leaning: Phase | None = None
    """The phase that the numbers give without their intervals and bands."""
    rule: int | None = None
    """The place in :data:`RULES` of the rule that gave it."""


VERDICT_NUMBERS = (
    Number(
        "memory", "memory of the place",
        "share of the answers that change when the key moves from a position where training never "
        "had it to one where it did, with other noise",
        high="memorizing", low="not memorizing",
    ),
    Number(
        "exceptions", "share of exceptions",
        "share of unseen pairs whose other order was trained on an exception to the rule, times "
        "how often the model gives it",
        high="an exception", low="no exception",
    ),
    Number(
        "route_symmetric", "symmetric route",
        "share of an exchanged token's effect on the answer that goes this way: both anchors to "
        "the end first, the key later",
        high="symmetric", low="not symmetric",
    ),
    Number(
        "route_gathered", "gathered route",
        "share of an exchanged token's effect on the answer that goes this way: key and first "
        "anchor to the second anchor, and from there to the end",
        high="an order that is known", low="not the gathered route",
    ),
    Number(
        "virtual_rule", "virtual anchors with the rule",
        "share of virtual anchors, which nobody trained, that are answered with the rule",
        high="inferential", low="not inferential",
    ),
)  # fmt: skip
"""The numbers in the order in which they are asked."""
RULES = (
    Rule({"memory": True}, ("memorizing",)),
    Rule({"route_symmetric": True}, ("symmetric",)),
    Rule({"exceptions": True, "route_gathered": False}, ("symmetric",)),
    Rule({"virtual_rule": True}, ("inferential",)),
    Rule({"route_gathered": False}, ("composite", "inferential")),
    Rule({"exceptions": True}, ("composite", "symmetric")),
    Rule({}, ("composite",)),
)
"""The table that decides: the first rule that applies."""
LINES: Mapping[str, Line] = MappingProxyType(
    {
        "memory": Line(*(3 * [round(1 - PAPER.id, 9)])),  # as the phase by behaviour has it
        "exceptions": Line(0.5, 0.5, 0.5),
        "route_symmetric": Line(0.679, 0.679, 0.679),
        "route_gathered": Line(0.072, 0.072, 0.152),
        "virtual_rule": Line(0.203, 0.231, 0.259),
    }
)
_MOST_EVIDENCE = 3


@dataclass(frozen=True)
class Judged:
    """How good the verdict is on runs of one kind, none of which fitted it."""

    kind: str
    shapes: tuple[tuple[int, int, int], ...]
    """Layers, heads and width."""
    runs: int
    named: int
    """Runs for which the numbers name a phase."""
    right: float
    """Their balanced accuracy: the mean over the phases of the share that is named rightly."""


JUDGED: tuple[Judged, ...] = from_dict(
    tuple[Judged, ...],
    json.loads(Path(__file__).with_name("verdict_judged.json").read_text("utf-8")),
)
"""The judged runs, first those of the shapes that fitted the verdict (``docs/verdict.md``).
``experiments/evidence/verdict.py`` writes the file from the committed tables."""
LEAST_RIGHT = 0.8
"""Of judged runs, to name a phase of a model of their shape."""


def judged() -> str:
    """How good the verdict is on runs that it was not fitted on, as a sentence."""
    best, *others = JUDGED
    share, kinds = best.named / best.runs, " and ".join(each.kind for each in others)
    return (
        f"On runs that it was not fitted on, the verdict names a phase in {100 * share:.0f} %, and "
        f"the right one in {100 * best.right:.0f} % of these (mean over phases). They have "
        f"{best.kind} and a width of at most 128. On {kinds} it is worse and names none."
    )


def verdict(fingerprint: Fingerprint, lines: Mapping[str, Line] | None = None) -> Verdict:
    """The phase of a model from its mechanism alone, with the evidence for it.

    ``train_accuracy`` only tells whether there is anything to judge: inside, an untrained model
    looks like one that memorizes. ``lines`` go before those of :data:`LINES`; of what they are
    worth at the model's shape :data:`JUDGED` says nothing.
    """
    checked(fingerprint, Fingerprint, "fingerprint")
    for name in checked(lines or {}, dict[str, Line], "lines"):
        check_name(name, LINES, "no line")
    missed = not_learned(fingerprint.train_accuracy, fingerprint.seen_train_keys, PAPER.train)
    if missed is not None:
        return Verdict("undertrained", missed)
    found = _by_rules(fingerprint, {**LINES, **(lines or {})})
    return found if lines or fingerprint.shape is None else _at_shape(found, fingerprint.shape)


def _at_shape(found: Verdict, shape: tuple[int, int, int]) -> Verdict:
    """The verdict on a model of this shape: unclear where judged runs are seldom named rightly."""
    own = [kind for kind in JUDGED if shape in kind.shapes]
    smaller = [kind for kind in JUDGED if any(map(partial(_covers, shape), kind.shapes))]
    worst = min(own or smaller, key=lambda kind: kind.right, default=None)
    if worst is not None and worst.right < LEAST_RIGHT:
        right = f"the verdict is right in {worst.right:.2f} < {LEAST_RIGHT:g}"
        why = f"leans to {found.leaning}; of judged runs of {worst.kind} {right}"
        return replace(found, phase="unclear", reason=f"{why}: {found.reason}")
    if own:
        return found
    layers, heads, width = shape
    words = f"{layers} layers of {heads} head{'s' * (heads > 1)}, width {width}"
    return replace(found, reason=f"{found.reason}; no run of {words} is judged")


def _covers(shape: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    """Whether a shape is at least as large as another one in layers, heads and width."""
    return all(a >= b for a, b in zip(shape, other, strict=True))


def _by_rules(fingerprint: Fingerprint, lines: Mapping[str, Line]) -> Verdict:
    """The verdict on a trained model, whatever its shape."""
    values = {number.name: getattr(fingerprint, number.name) for number in VERDICT_NUMBERS}
    margins = {name: getattr(fingerprint, f"{name}_margin", None) for name in values}
    plain = _sides(values, lines)
    rule = _applying(plain)
    first, phases, deciding = RULES[rule].phases[0], dict.fromkeys(RULES[rule].phases), set[str]()
    # The verdict holds only if it does not depend on the open numbers: try them on every side.
    # Whatever other phases appear are possible too, and the numbers that were turned decide.
    unsure = [name for name in values if _is_open(values[name], margins[name], lines[name])]
    for sides in itertools.product((True, False), repeat=len(unsure)):
        turned = plain | dict(zip(unsure, sides, strict=True))
        other = RULES[_applying(turned)].phases
        if other != RULES[rule].phases:
            phases |= dict.fromkeys(other)
            deciding |= {name for name in unsure if turned[name] != plain[name]}
    # evidence: what decides first, then what the rule and those before it asked, the nearest first
    asked = [name for each in RULES[rule::-1] for name in each.asks if name != "exceptions"]
    names = [name for name in values if name in deciding - {"exceptions"}] + asked
    if rule > 0 and "memory" not in deciding:
        names.remove("memory")
    evidence = tuple(
        Evidence(
            number, values[name], margins[name], lines[name],
            number.high if plain[name] else number.low,
        )
        for name in list(dict.fromkeys(names))[:_MOST_EVIDENCE]
        for number in VERDICT_NUMBERS
        if number.name == name
    )  # fmt: skip
    reason, named = "; ".join(map(str, evidence)), " or ".join(phases)
    if len(phases) == 1:
        return Verdict(first, reason, evidence, first, rule)
    share, band = values["virtual_rule"], lines["virtual_rule"]
    if deciding == {"virtual_rule"} and share is not None and band.start <= share < band.end:
        return Verdict("mixture", f"{named}, each in part: {reason}", evidence, first, rule)
    return Verdict("unclear", f"{named}: {reason}", evidence, first, rule)


def leaning(values: Mapping[str, float | None], lines: Mapping[str, Line] = LINES) -> Phase:
    """The phase that the numbers give without their intervals and bands."""
    return RULES[_applying(_sides(values, lines))].phases[0]


def _sides(values: Mapping[str, float | None], lines: Mapping[str, Line]) -> dict[str, bool]:
    """Whether each number is high; one that is not measured counts as low."""
    return {name: (value or 0.0) >= lines[name].line for name, value in values.items()}


def _applying(high: Mapping[str, bool]) -> int:
    """The place of the first rule that applies."""
    fits = (all(high[name] == asked for name, asked in rule.asks.items()) for rule in RULES)
    return next(place for place, applies in enumerate(fits) if applies)


def _is_open(value: float | None, margin: float | None, band: Line) -> bool:
    """Whether a number is not measured, or its interval is neither high nor low."""
    reach = margin or 0.0
    return value is None or not (value + reach < band.start or value - reach >= band.end)
