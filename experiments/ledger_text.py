"""The ledger as pages show it: counts, a line for each of the papers' figures, every claim."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from anchor_interp._util.errors import ConfigError
from measured import table
from papers.claims import CLAIMS
from papers.figures import VERDICT_STYLES
from papers.judging import REVERSED, Claim, Judgement
from papers.page import Ledger, known_before, told

ROOT = Path(__file__).parent.parent
PICTURES, TABLES = "figures/papers", "experiments/tables/tiny"

FIGURES: Mapping[str, str] = {
    "neurips_4": "NeurIPS, figure 2",
    "neurips_5_1": "NeurIPS, figure 3",
    "neurips_5_2": "NeurIPS, figure 4",
    "neurips_5_3": "NeurIPS, figure 5",
    "neurips_6": "NeurIPS, figure 6",
    "neurips_b": "NeurIPS, figure 7",
    "neurips_rates": "NeurIPS, later version",
    "control_4": "complexity control, figure 3",
    "control_5a": "complexity control, figure 4C",
    "control_5b": "complexity control, figure 4D",
    "control_6a": "complexity control, figure 5A",
    "control_6b": "complexity control, figure 5B",
    "control_6c": "complexity control, figure 5C",
    "control_7_concepts": "complexity control, figure 6",
    "control_7": "complexity control, figure 7A-C, E",
    "control_7d": "complexity control, figure 7D",
    "control_8": "complexity control, figure 8",
    "control_c": "complexity control, figure 10",
    "across_tasks": "none: one measure on all tasks",
    "own": "none: limits, and questions of our own",
}
"""The papers' figures by the script that draws ours, or by a claim that has none."""
_DECIDED = ("supported", "not supported", "inconclusive", "nothing comparable")
_OPEN = ("not supported", "inconclusive", "nothing comparable")


def counts(ledger: Ledger) -> str:
    """How many claims have each verdict."""
    found = [f"**{_count(ledger, verdict)}** {verdict}" for verdict in VERDICT_STYLES]
    papers = [of for of in _judged(ledger) if not of[0].source.startswith("our ")]
    theirs = [f"{sum(of[1].verdict == each for of in papers)} {each}" for each in _DECIDED]
    missed = [of for of in _judged(ledger) if of[1].verdict == "not supported"]
    opposite = sum(_reversed(judged) != "" and not claim.limit for claim, judged in missed)
    weak = sum(claim.limit != "" for claim, _ in missed)
    return (
        f"{len(CLAIMS)} claims: {', '.join(found)}.\n\n{len(papers)} of these are the papers' "
        f"({', '.join(theirs)}), the others are ours. Of all that are not supported {opposite} are "
        f"reversed: the effect is the opposite. {weak} others are no evidence against the claim: "
        "on COGS, PrOntoQA and text our models are too small or learn too little.\n"
    )


def figures_table(ledger: Ledger) -> str:
    """Every figure of the papers with ours and its outcome; links in docs."""
    lines = [
        [words, _picture(key, "../"), _outcome(claims)] for key, words, claims in by_figure(ledger)
    ]
    return table(["paper figure", "ours", "outcome"], lines)


ELSEWHERE = ("control_7", "control_7_concepts", "control_7d", "neurips_4")
"""Sections whose claims stand on the page of realistic tasks, or below the table (figure 2)."""


def open_table(ledger: Ledger) -> str:
    """The claims that were run and are not supported, the clearest verdict first; links in docs.

    Those on realistic tasks have a page of their own, those on figure 2 a section.
    """
    lines = [
        [
            f"**{verdict}**{_reversed(judged)}",
            f"[{claim.short}](claims.md#{claim.name})",
            told(judged)["effect"] or judged.reason,
            f"{claim.minimum:.2g}",
        ]
        for verdict in _OPEN
        for claim, judged in _judged(ledger)
        if judged.verdict == verdict and claim.section not in ELSEWHERE
    ]
    return table(["verdict", "claim", "effect (95 %)", "least"], lines)


def _reversed(judged: Judgement) -> str:
    """Whether the effect is the opposite of the claim, in a word."""
    return ", reversed" if judged.reason == REVERSED else ""


def claims_table(ledger: Ledger) -> str:
    """Every claim with its verdict, numbers, figure and runs; links in docs."""
    order, lines = list(VERDICT_STYLES), []
    for claim, judged in sorted(_judged(ledger), key=lambda of: order.index(of[1].verdict)):
        shown = told(judged)
        tables = [_link(f"{TABLES}/{name}.csv", name) for name in claim.studies]
        seen = [_picture(claim.section or "", "../"), *tables]
        said = f"{claim.sentence}{_reason(claim, judged)}"
        lines.append([
            f'<a id="{claim.name}"></a>{judged.verdict}',
            f"**{claim.short}**<br>{said} {_details(claim, judged)}",
            shown["effect"],
            f"{claim.minimum:.2g}",
            shown["p"],
            shown["n"],
            "<br>".join(filter(None, seen)),
        ])  # fmt: skip
    head = ["verdict", "claim", "effect (95 %)", "least", "p / q", "runs", "figure and runs"]
    return table(head, lines)


def known_table(ledger: Ledger) -> str:
    """Claims that are judged, wholly or partly, on runs known before."""
    lines = [[f"`{name}`", *rest] for name, *rest in known_before(ledger)]
    return table(["name", "known runs", "effect (95 %)", "without them"], lines) or "none\n"


def claim_text(ledger: Ledger, name: str) -> str:
    """A claim's verdict and effect."""
    judged = ledger.judgements[name]
    return ", ".join(filter(None, (judged.verdict, told(judged)["effect"])))


def part_text(ledger: Ledger, name_and_part: str) -> str:
    """The verdict on a claim in one layout, or in one task and layout: ``c4-gamma pre``."""
    name, _, part = name_and_part.partition(" ")
    judged = ledger.judgements[name]
    if judged.verdict == "not run":
        return judged.verdict
    if part not in judged.parts:
        known = "; ".join(judged.parts) or "none"
        raise ConfigError(f"the claim {name} has no part {part!r}; expected one of: {known}")
    return judged.parts[part].verdict


def accuracy_text(ledger: Ledger, rule: str) -> str:
    """The balanced accuracy of the verdict, or of a rule that knows less."""
    return "not run" if ledger.verdict is None else f"{ledger.verdict.accuracy_of(rule):.2f}"


TEXTS: Mapping[str, Callable[[Ledger, str], str]] = {
    "claim": claim_text,
    "verdict": lambda ledger, name: ledger.judgements[name].verdict,
    "part": part_text,
    "accuracy": accuracy_text,
    "claims": lambda ledger, verdict: str(_count(ledger, verdict)),
}
"""What stands inside a sentence: a claim by name, claims by verdict, a rule's score."""


def _judged(ledger: Ledger) -> Iterator[tuple[Claim, Judgement]]:
    return ((claim, ledger.judgements[claim.name]) for claim in CLAIMS)


def by_figure(ledger: Ledger) -> Iterator[tuple[str, str, list[tuple[Claim, Judgement]]]]:
    """The papers' figures: key and words of :data:`FIGURES`, and the claims about each."""
    for key, words in FIGURES.items():
        yield key, words, [of for of in _judged(ledger) if _figure_of(of[0]) == key]


def _figure_of(claim: Claim) -> str:
    is_ours = claim.source.startswith(("our prediction", "our question"))
    return "own" if is_ours else claim.section or claim.name


def _count(ledger: Ledger, verdict: str) -> int:
    return sum(judged.verdict == verdict for judged in ledger.judgements.values())


def _outcome(claims: list[tuple[Claim, Judgement]]) -> str:
    """One line: every verdict with its first claim, and how many more there are."""
    parts = []
    for verdict in VERDICT_STYLES:
        mine = [of for of in claims if of[1].verdict == verdict]
        if not mine:
            continue
        said, more = mine[0][0].short, len(mine) - 1
        fails = [name for name, part in mine[0][1].parts.items() if part.verdict == _OPEN[0]]
        if verdict == "supported" and fails:
            said += f" (not in {' and '.join(fails)})"
        if verdict == "not run":
            said, more = f"{len(mine)} claim{'s' * (more > 0)}", 0
        if pooled := told(mine[0][1])["effect"] if verdict == "nothing comparable" else "":
            said += f" ({pooled})"
        said += f", and {more} more" if more else ""
        limits = " and ".join(filter(None, (_partly(mine[1:]), _ours(mine), _weak(mine))))
        said += f" ({limits})" if limits else ""
        parts.append(f"**{verdict}**: {said}")
    return "; ".join(parts)


def _partly(others: list[tuple[Claim, Judgement]]) -> str:
    """How many of the supported claims that are counted as more fail in a task or layout."""
    found = sum(
        judged.verdict == "supported" and any(p.verdict == _OPEN[0] for p in judged.parts.values())
        for _, judged in others
    )
    return f"{found} of these not everywhere" if found else ""


def _ours(claims: list[tuple[Claim, Judgement]]) -> str:
    """How many of the claims on a figure of the papers are our own."""
    found = sum(claim.source.startswith("our claim") for claim, _ in claims)
    return (
        "" if not found else f"{found} of {len(claims)} our own" if found < len(claims) else "ours"
    )


def _weak(claims: list[tuple[Claim, Judgement]]) -> str:
    """How many of the claims that are not supported are no evidence against the paper."""
    found = sum(claim.limit != "" and judged.verdict == _OPEN[0] for claim, judged in claims)
    of = "" if found == len(claims) else f"{found} of {len(claims)} "
    return f"{of}no evidence against the paper" if found else ""


def _reason(claim: Claim, judged: Judgement) -> str:
    if judged.verdict not in ("not supported", "inconclusive"):
        return ""
    limit = f"; no evidence against it: {claim.limit}" if claim.limit else ""
    return f"<br>*{judged.reason}{limit}*"


def _details(claim: Claim, judged: Judgement) -> str:
    """What judges a claim and why, and the same in parts, folded away."""
    shown = told(judged)
    said = {
        "name": f"`{claim.name}`",
        "source": claim.source,
        "statistic": claim.statistic,
        "why this statistic": claim.why,
        "note": claim.note,
        "because": judged.reason if judged.verdict == "nothing comparable" else "",
        "at equal settings": shown["equal"],
        "parts": ". ".join(filter(None, (shown["where"], shown["parts"]))),
    }
    lines = "".join(f"<br>{title}: {text}" for title, text in said.items() if text)
    return f"<details><summary>how it is judged</summary>{lines.removeprefix('<br>')}</details>"


def _picture(section: str, up: str) -> str:
    path = f"{PICTURES}/{section}.png"
    return f"[{section}]({up}{path})" if (ROOT / path).is_file() else ""


def _link(path: str, name: str) -> str:
    return f"[{name}](../{path})" if (ROOT / path).is_file() else name
