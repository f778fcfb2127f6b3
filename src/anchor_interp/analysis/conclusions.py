"""What an analysis says: sentences of at most 20 words, computed from its numbers alone.

The first sentence of a section is its headline; tables and figures have the numbers. A share of one
half or more is most of something; with a quarter a position is named, as *partly*. A contrast
counts if its p is 0.05 or less.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from anchor_interp.analysis.attention import AttentionExample, SequenceAttention
from anchor_interp.analysis.circuits import CircuitScores
from anchor_interp.analysis.fingerprint_numbers import Fingerprint
from anchor_interp.analysis.mask_leakage import MaskLeakage
from anchor_interp.analysis.parts import Patched
from anchor_interp.analysis.routes import RouteScores
from anchor_interp.analysis.similarity import Similarity
from anchor_interp.analysis.verdict import Verdict
from anchor_interp.behaviour.phase import Decision
from anchor_interp.interventions.interchange import InterchangeResult
from anchor_interp.models.complexity import Complexity
from anchor_interp.tasks.sequences import position_roles

ORDER = 0.057
"""A state whose ``order_first`` is at most this counts as without order."""
_MOST = 0.5
_SOME = 0.25  # of the recovery: a place with less is not named
_LEAST = 0.05  # of the exchanges: a state that acts less often does not act
SIGNIFICANT = 0.05
_LEAST_PERMUTATIONS = 20  # with fewer, no p can be 0.05
_MOST_WORDS = 20  # of a sentence
_TAKES = {
    "symmetric": "takes both anchors to the last position first, then the key",
    "inferential": "takes the key to both anchors first, then both to the last position",
    "gathered": "gathers key and first anchor at the second anchor, then takes that to the last "
    "position",
}
_VERDICTS = {"mixture": "a mixture", "unclear": "unclear"}
_PLACES = {
    "key": "the key", "first": "the first anchor", "second": "the second anchor",
    "last": "the last position",
}  # fmt: skip


def conclude_phase(decision: Decision | None, verdict: Verdict | None) -> str | None:
    """Whether behaviour and mechanism name the same phase."""
    outside = None if decision is None else decision.phase
    inside = None if verdict is None else _VERDICTS.get(verdict.phase, verdict.phase)
    if outside is None or inside is None:
        phase, by = (inside, "mechanism") if outside is None else (outside, "answers")
        return None if phase is None else f"By its {by} the model is {phase}."
    if outside == "undertrained":
        return "By its answers the model is undertrained, so its mechanism names no phase."
    if outside == inside:
        return f"Behaviour and mechanism agree: the model is {outside}."
    if inside in _VERDICTS.values():
        return f"By its answers the model is {outside}; by its mechanism it is {inside}."
    apart = f"{outside} by its answers, {inside} by its mechanism"
    return f"Behaviour and mechanism disagree: {apart}."


def conclude_flow(routes: RouteScores | None) -> str | None:
    """The dominant route."""
    if routes is None or routes.reason is not None:
        return None
    shares: dict[str, float] = {name: getattr(routes, name) for name in _TAKES}
    best = max(shares, key=lambda name: shares[name])
    if shares[best] < _MOST:
        return "No route is dominant: each misses most of some token's effect."
    return f"The model {_TAKES[best]}."


def conclude_circuit(circuit: CircuitScores | None, *, finished: bool = True) -> str | None:
    """How small a circuit is enough; ``finished``: its pruning was."""
    if circuit is None:
        return None
    size = f"{circuit.size} of {circuit.n_edges} edges"
    cut = "" if finished else "; pruning was cut short, so fewer may be"
    if circuit.faithfulness.accuracy < _MOST:
        return f"The {size} that pruning keeps are not enough{cut}."
    if is_small(circuit):
        return f"{size} are enough for the answers{cut}."
    return f"There is no small circuit: the answers need {size}{cut}."


def is_small(circuit: CircuitScores) -> bool:
    """Whether less than half of the edges keep the answers."""
    return circuit.size < _MOST * circuit.n_edges and circuit.faithfulness.accuracy >= _MOST


def conclude_masks(leaks: Sequence[MaskLeakage]) -> str | None:
    """Which tokens the last position reads itself, and which another position passes on."""
    effects = {entry.place: entry.effect for entry in leaks if entry.paths == "direct"}
    left = {place: effect for place, effect in effects.items() if effect is not None}
    read = [place for place, effect in left.items() if abs(effect) < _MOST]
    passed = [place for place, effect in left.items() if effect >= _MOST]
    does = [f"reads {_tokens(read)} itself"] if read else []
    does += [f"gets {_tokens(passed)} from other positions"] if passed else []
    sentences = [f"The last position {' and '.join(does)}"] if does else []
    if unused := [place for place in effects if place not in left]:
        tokens = _tokens(unused, both="the anchors")
        sentences.append(f"The right answer does not measurably depend on {tokens}")
    return _joined(sentences)


def conclude_patching(
    patches: Sequence[Patched], interchanges: Sequence[InterchangeResult]
) -> str | None:
    """Where each token's information is before the last layer, and whether g(x; a1) is a state."""
    holders: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for entry in patches:
        shares = _shares_before_last_layer(entry)
        named = tuple(place for place in _PLACES if shares.get(place, 0) >= _SOME)
        partly = max(shares.values(), default=0) < _MOST
        named = ("own",) if named == (entry.contrast,) else named
        holders.setdefault((partly, named), []).append(entry.contrast)
    clauses = [
        f"{_tokens(tokens)} {'is' if len(tokens) == 1 else 'are'} {_where(named, tokens, partly)}"
        for (partly, named), tokens in holders.items()
    ]
    sentences = []
    if clauses:
        sites: Sequence[Any] = [site for entry in patches for site in entry.result.sites]
        first, *others = clauses
        first = f"Before layer {max(site.layer for site in sites)}, {first}"
        together = _listed([first, *others])
        sentences = [together] if len(together.split()) <= _MOST_WORDS else [first, *others]
    if interchanges:
        sentences.append(_acting_state(interchanges))
    return _joined(sentences)


def _where(places: Sequence[str], tokens: Sequence[str], partly: bool) -> str:
    """Where these tokens' information is."""
    if not places:
        return "at no position"
    own = "its own position" if len(tokens) == 1 else "their own positions"
    words = {**_PLACES, "own": own} | ({tokens[0]: own} if len(tokens) == 1 else {})
    at = _listed([words[place] for place in places])
    return f"{'partly ' * partly}at {at}"


def _shares_before_last_layer(patched: Patched) -> dict[str, float]:
    """How much of one token's effect each place in the residual stream restores."""
    sites: Sequence[Any] = patched.result.sites
    last = max(site.layer for site in sites)
    return {
        site.position: share
        for site, share in zip(sites, patched.result.recovery().tolist(), strict=True)
        if (site.activation, site.layer) == ("resid_pre", last) and math.isfinite(share)
    }


def _acting_state(interchanges: Sequence[InterchangeResult]) -> str:
    """Whether a state at the first anchor, put into another sequence, acts as g(x; a1)."""
    best = max(interchanges, key=lambda entry: entry.counterfactual)
    if best.counterfactual < _LEAST:
        return "No state at the first anchor acts as g(x; a1)"
    state = f"The state at the first anchor after layer {best.site.layer}"
    if best.counterfactual < _MOST:
        return f"{state} partly acts as g(x; a1), which is not held there alone"
    return f"{state} acts as g(x; a1)"


def conclude_representations(
    similarities: Sequence[Similarity],
    fingerprint: Fingerprint | None,
    interchanges: Sequence[InterchangeResult] = (),
) -> str | None:
    """Whether equal values are parallel at the first anchor, and whether the order is merged."""
    sentences = []
    for contrast in (entry.contrast for entry in similarities if entry.state == "OV"):
        tested = contrast.n_permutations >= _LEAST_PERMUTATIONS
        alike = tested and contrast.p_value <= SIGNIFICANT and contrast.difference > 0
        more = "more" if alike else "no more"
        states = f"states of equal g(x; a1) are {more} parallel than those of near misses"
        sentences.append(f"At the first anchor, {states}")
        most = max((entry.counterfactual for entry in interchanges), default=1.0)
        if alike and most < _LEAST:
            sentences.append("No state there acts as g(x; a1): similar does not mean used")
        elif alike and most < _MOST:
            sentences.append("A state there partly acts as g(x; a1)")
    if fingerprint is not None:
        change = fingerprint.order_first
        order = "with" if change is None or change > ORDER else "without"
        holds = "does not hold the pair" if change is None else f"holds the pair {order} its order"
        sentences.append(f"After attention of layer 0 the last position {holds}")
    return _joined(sentences)


def conclude_complexity(complexity: Complexity) -> str | None:
    """Whether the first query matrix uses few directions."""
    entry = next((e for e in complexity.matrices if (e.name, e.layer) == ("W_Q", 0)), None)
    if entry is None or entry.stable_rank is None:
        return None
    start, whose = entry.at_init, "at initialisation"
    if start is None or start.stable_rank is None:
        start, whose = entry.gaussian, "of random weights"
    if start.stable_rank is None:
        return None
    few = "few" if entry.stable_rank < _MOST * start.stable_rank else "many"
    ranks = f"stable rank {entry.stable_rank:.1f}, {whose} {start.stable_rank:.1f}"
    return f"W_Q of layer 0 uses {few} directions: {ranks}."


def conclude_attention(examples: Sequence[AttentionExample]) -> str | None:
    """What the last position attends to most, in layers where all examples agree."""
    layers: dict[str, list[str]] = {}
    for layer in range(len(examples[0].patterns) if examples else 0):
        attended = set[str]()
        for example in examples:
            row, shares = example.patterns[layer, :, -1].mean(0), Counter[str]()
            for role, share in zip(position_roles(len(row), example.position), row, strict=True):
                shares[role] += share
            attended.add(shares.most_common(1)[0][0])
        if len(attended) == 1:
            layers.setdefault(attended.pop(), []).append(str(layer))
    to = {**_PLACES, "noise": "noise", "last": "itself"}
    most = [f"{to[at]} in layer{'s' * (len(n) > 1)} {_listed(n)}" for at, n in layers.items()]
    return f"The last position attends most to {_listed(most)}." if most else None


def conclude_predictions(examples: Sequence[SequenceAttention]) -> str:
    """How many tokens of the examples are predicted."""
    pairs = [pair for one in examples for pair in zip(one.answer, one.predicted, strict=True)]
    right = sum(answer == predicted for answer, predicted in pairs)
    what = "tokens to predict" if any(one.split for one in examples) else "answers shown"
    return f"The model predicts {right} of the {len(pairs)} {what}."


def _tokens(places: Sequence[str], both: str = "both anchors") -> str:
    """Tokens in words; ``both`` are two anchors."""
    two = {"first", "second"} <= set(places)
    single = [place for place in places if not two or place not in ("first", "second")]
    return _listed([_PLACES[place] for place in single] + [both] * two)


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + " and " * (len(words) > 1) + words[-1] if words else ""


def _joined(sentences: Sequence[str]) -> str | None:
    """Sentences, each with a capital letter and a full stop; None without any."""
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences) or None
