"""What an analysis says: one sentence a section, computed from its numbers alone.

A share of one half or more is most of something; with a quarter a position is named, as *partly*.
A contrast counts if its p is 0.05 or less.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from anchor_interp.analysis.attention import AttentionExample, SequenceAttention
from anchor_interp.analysis.circuits import CircuitScores
from anchor_interp.analysis.mask_leakage import MaskLeakage
from anchor_interp.analysis.mechanism import Fingerprint
from anchor_interp.analysis.probes import Patched
from anchor_interp.analysis.routes import RouteScores
from anchor_interp.analysis.similarity import Similarity
from anchor_interp.analysis.verdict import THRESHOLDS
from anchor_interp.interventions.interchange import InterchangeResult
from anchor_interp.models.complexity import Complexity
from anchor_interp.runs.phase import Decision

_MOST = 0.5
_SOME = 0.25  # of the recovery: a place with less is not named
_LEAST = 0.05  # of the exchanges: a state that acts less often does not act
SIGNIFICANT = 0.05
_LEAST_PERMUTATIONS = 20  # with fewer, no p can be 0.05
_TAKES = {
    "symmetric": "takes both anchors to the last position first, then the key",
    "inferential": "takes the key to both anchors first, then both to the last position",
    "gathered": "gathers key and first anchor at the second anchor first, then takes that to the "
    "last position",
}
_PLACES = {
    "key": "the key", "first": "the first anchor", "second": "the second anchor",
    "last": "the last position",
}  # fmt: skip


def conclude_phase(decision: Decision | None, verdict: Decision | None) -> str | None:
    """Whether behaviour and mechanism name the same phase."""
    if decision is None or verdict is None:
        one, by = (verdict, "mechanism") if decision is None else (decision, "answers")
        return None if one is None else f"By its {by} the model is {one.phase}."
    if decision.phase == "undertrained":
        return "By its answers the model is undertrained, so its mechanism names no phase."
    if decision.phase == verdict.phase:
        return f"Behaviour and mechanism agree: the model is {decision.phase}."
    return (
        f"Behaviour and mechanism disagree: {decision.phase} by its answers, {verdict.phase} by "
        "its mechanism."
    )


def conclude_flow(
    routes: RouteScores | None, circuit: CircuitScores | None, *, finished: bool = True
) -> str | None:
    """The dominant route, and how small a circuit is enough; ``finished``: its pruning was."""
    said = [] if routes is None else [_route(routes)]
    if circuit is not None:
        kept = circuit.faithfulness.accuracy
        enough = "are enough" if kept >= _MOST else "are not enough"
        cut = "" if finished else "; pruning was cut short, so fewer may be"
        size = f"{circuit.size} of {circuit.n_edges} edges"
        said.append(f"{size} {enough} (faithfulness {kept:.2f}){cut}")
    return _sentence("; ".join(said))


def _route(routes: RouteScores) -> str:
    shares: dict[str, float] = {name: getattr(routes, name) for name in _TAKES}
    best, *others = sorted(shares, key=lambda name: -shares[name])
    rest = " and ".join(f"the {name} one {shares[name]:z.2f}" for name in others)
    numbers = (
        f"the {best} route carries at least {shares[best]:z.2f} of every token's effect, {rest}"
    )
    if shares[best] < _MOST:
        return f"No route is dominant: {numbers}"
    return f"The model {_TAKES[best]}: {numbers}"


def conclude_masks(leaks: Sequence[MaskLeakage]) -> str | None:
    """Which tokens the last position reads itself, and which another position passes on."""
    direct = [entry for entry in leaks if entry.paths == "direct"]
    left = {entry.place: entry.effect for entry in direct if entry.effect is not None}
    unused = [_PLACES[entry.place] for entry in direct if entry.effect is None]
    read = [_PLACES[place] for place, effect in left.items() if abs(effect) < _MOST]
    passed = [_PLACES[place] for place, effect in left.items() if effect >= _MOST]
    said = [f"reads {_listed(read)} itself"] if read else []
    said += [f"gets {_listed(passed)} from other positions"] if passed else []
    found = []
    if left:
        start = f"The last position {' and '.join(said)}: the" if said else "The"
        numbers = _listed([f"{effect:z.2f} for {_PLACES[p]}" for p, effect in left.items()])
        found.append(
            f"{start} share of a token's effect on the logit difference that is left without the "
            f"last position's edge to it is {numbers}"
        )
    if unused:
        found.append(f"the right answer does not measurably depend on {_listed(unused)}")
    return _sentence("; ".join(found))


def conclude_patching(
    patches: Sequence[Patched], interchanges: Sequence[InterchangeResult]
) -> str | None:
    """Where each token's information is before the last layer, and whether g(x; a1) is a state."""
    said = [_whereabouts(entry) for entry in patches]
    sites: Sequence[Any] = [site for entry in patches for site in entry.result.sites]
    last = max((site.layer for site in sites), default=0)
    start = [f"Before layer {last}, {_listed(said)}"] if said else []
    if interchanges:
        best = max(interchanges, key=lambda entry: entry.counterfactual)
        share, layer = best.counterfactual, best.site.layer
        acts = f"the state at the first anchor after layer {layer} acts"
        if share < _LEAST:
            acts = "no state at the first anchor acts"
        elif share < _MOST:
            acts = acts.removesuffix("acts") + "partly acts"
        start.append(
            f"{acts} as g(x; a1) (put into another sequence, it makes {share:.2f} of the answers)"
            + (", so g(x; a1) is not held there alone" if _LEAST <= share < _MOST else "")
        )
    return _sentence("; ".join(start))


def _whereabouts(patched: Patched) -> str:
    """Where in the residual stream before the last layer one token's information is."""
    sites: Sequence[Any] = patched.result.sites
    last = max(site.layer for site in sites)
    shares = {
        site.position: float(row[np.isfinite(row)].mean())
        for site, row in zip(sites, patched.result.recovery(), strict=True)
        if (site.activation, site.layer) == ("resid_pre", last) and np.isfinite(row).any()
    }
    ranked = sorted(shares, key=lambda position: -shares[position])
    token, named = _PLACES[patched.contrast], [p for p in ranked if shares[p] >= _SOME]
    if not named:
        most = f" (recovery {shares[ranked[0]]:.2f} at most)" if ranked else ""
        return f"{token} is at no position{most}"

    def said(place: str) -> str:
        return "its own position" if place == patched.contrast else _PLACES[place]

    first, *others = named
    where = "at" if shares[first] >= _MOST else "partly at"
    also = "".join(f"; {shares[place]:.2f} at {said(place)}" for place in others)
    return f"{token} is {where} {said(first)} (recovery {shares[first]:.2f}{also})"


def conclude_representations(
    similarities: Sequence[Similarity],
    fingerprint: Fingerprint | None,
    interchanges: Sequence[InterchangeResult] = (),
) -> str | None:
    """Whether equal values are parallel at the first anchor, and whether the order is merged."""
    said = []
    most = max((one.counterfactual for one in interchanges), default=1.0)
    unused = (
        "" if most >= _MOST
        else ", but no state there acts as g(x; a1): similar does not mean used" if most < _LEAST
        else f", and a state there partly acts as g(x; a1) ({most:.2f} of the exchanges)"
    )  # fmt: skip
    for entry in similarities:
        if entry.state == "OV":
            c = entry.contrast
            tested = c.n_permutations >= _LEAST_PERMUTATIONS
            alike = tested and c.p_value <= SIGNIFICANT and c.difference > 0
            more = "more" if alike else "no more"
            p = f", p = {c.p_value:.2g}" if tested else ""
            said.append(
                f"at the first anchor, equal g(x; a1) are {more} parallel than near misses "
                f"(difference of the cosines {c.difference:z.2f}{p})"
                f"{unused if alike else ''}"
            )
    if fingerprint is not None:
        said.append(f"after attention of layer 0 the last position {_order(fingerprint)}")
    return _sentence("; ".join(said))


def _order(fingerprint: Fingerprint) -> str:
    change = fingerprint.order_first
    if change is None:
        return "does not hold the pair"
    how, sign = ("without", "<=") if change <= THRESHOLDS.order else ("with", ">")
    return (
        f"holds the pair {how} its order (exchanging the anchors changes it by {change:.2f} of "
        f"what another pair does, {sign} {THRESHOLDS.order:g})"
    )


def conclude_complexity(complexity: Complexity) -> str | None:
    """Whether the first query matrix uses few directions."""
    entry = next((e for e in complexity.matrices if (e.name, e.layer) == ("W_Q", 0)), None)
    if entry is None or entry.stable_rank is None:
        return None
    start, when = entry.at_init, "at initialisation"
    if start is None or start.stable_rank is None:
        start, when = entry.gaussian, "of random weights"
    if start.stable_rank is None:
        return None
    few = entry.stable_rank < _MOST * start.stable_rank
    return (
        f"W_Q of layer 0 uses {'few' if few else 'many'} directions: its stable rank is "
        f"{entry.stable_rank:.1f}, {when} {start.stable_rank:.1f}."
    )


def conclude_attention(examples: Sequence[AttentionExample]) -> str | None:
    """What the last position attends to most in every layer, on average over the examples."""
    if not examples:
        return None
    said = []
    for layer in range(len(examples[0].patterns)):
        shares = dict.fromkeys(("key", "first", "second", "noise", "last"), 0.0)
        for example in examples:
            row = example.patterns[layer, :, -1].mean(0)
            roles = dict(
                zip(range(example.position, len(row)), ("key", "first", "second"), strict=False)
            )
            for at, share in enumerate(row.tolist()):
                place = roles.get(at, "last" if at == len(row) - 1 else "noise")
                shares[place] += share / len(examples)
        place = max(shares, key=lambda name: shares[name])
        to = {"noise": "noise", "last": "itself"}.get(place) or _PLACES[place]
        said.append(f"{to} in layer {layer} ({shares[place]:.2f})")
    return (
        f"In the {len(examples)} examples below the last position attends most to {_listed(said)}."
    )


def conclude_predictions(examples: Sequence[SequenceAttention]) -> str:
    """How many tokens of the examples are predicted."""
    pairs = [pair for one in examples for pair in zip(one.answer, one.predicted, strict=True)]
    right = sum(answer == predicted for answer, predicted in pairs)
    return f"The model predicts {right} of the {len(pairs)} tokens to predict."


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + " and " * (len(words) > 1) + words[-1] if words else ""


def _sentence(text: str) -> str | None:
    return f"{text[0].upper()}{text[1:]}." if text else None
