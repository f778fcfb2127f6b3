"""The ledger as pages show it: counts and every claim."""

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from anchor_interp._util.errors import ConfigError
from measured import table
from papers import wide
from papers.claims import CLAIMS, JUDGED_AS, REGISTERED
from papers.figures import VERDICT_STYLES
from papers.judging import Claim, Judgement
from papers.page import Ledger, known_before, told

BEFORE = Path(__file__).parent / "papers" / "before.csv"
PICTURES, TABLES = "figures/papers", "experiments/tables/tiny"


def counts(ledger: Ledger) -> str:
    """How many claims have each verdict, the papers' and ours."""

    def counted(ours: bool) -> str:
        found: list[str] = [of[1].verdict for of in _judged(ledger) if of[0].ours == ours]
        return ", ".join(f"**{n}** {each}" for each in VERDICT_STYLES if (n := found.count(each)))

    ours = sum(claim.ours for claim in CLAIMS)
    waiting = sum(name not in JUDGED_AS for name in REGISTERED)
    return (
        f"{len(CLAIMS)} claims. {len(CLAIMS) - ours} are the papers': {counted(ours=False)}.\n\n"
        f"{ours} are ours: {counted(ours=True)}. {waiting} more are "
        "[written down](claims.md#written-down-before-their-runs), and their runs are to come.\n"
    )


def claims_table(ledger: Ledger) -> str:
    """Every claim with its verdict, numbers, figure and runs; links in docs."""
    order, lines = list(VERDICT_STYLES), []
    for claim, judged in sorted(_judged(ledger), key=lambda of: order.index(of[1].verdict)):
        shown = told(judged)
        seen = [f"[{name}](../{_place(name)}/{name}.csv)" for name in claim.tables]
        if claim.section:
            seen.insert(0, f"[{claim.section}](../{PICTURES}/{claim.section}.png)")
        said = claim.sentence
        if judged.verdict not in ("supported", "not run"):
            said += f"<br>*{judged.reason}*"
        whose = "ours" if claim.ours else "the paper's"
        lines.append([
            f'<a id="{claim.name}"></a>{judged.verdict}',
            f"**{claim.short}** ({whose})<br>{said} {_details(claim, judged)}",
            shown["effect"],
            f"{claim.minimum:.2g}",
            shown["power"],
            shown["p"],
            shown["n"],
            "<br>".join(seen),
        ])  # fmt: skip
    head = ["verdict", "claim", "effect (95 %)", "least", "finds", "p / q", "runs"]
    head.append("figure and runs")
    return table(head, lines)


def before_table(ledger: Ledger) -> str:
    """Every claim before and after its wording was the paper's; links in docs."""
    was = {row["claim"]: row for row in csv.DictReader(
        BEFORE.read_text(encoding="utf-8").splitlines())}  # fmt: skip
    kept = [
        [
            f"[`{claim.name}`](claims.md#{claim.name})<br>{claim.sentence}",
            f"{before['verdict']} {before['effect']}" if (before := was.get(claim.name)) else "",
            f"**{judged.verdict}** {told(judged)['effect']}",
            f"{told(judged)['power'] or '-'} / {claim.minimum:.2g}",
            "ours" if claim.ours else "paper",
            claim.predictor,
            claim.stratum,
            _changed(claim, judged, before["n"]) if before else "new claim",
            claim.before,
        ]
        for claim, judged in _judged(ledger)
    ]
    head = ["claim", "before", "now", "finds / least", "whose", "predictor", "stratum", "changed"]
    return table([*head, "judged before"], kept) + _dropped(was)


def _changed(claim: Claim, judged: Judgement, runs_before: str) -> str:
    """Whether the sentence, the runs or both are others than before."""
    runs = 0 if judged.finding is None else len(judged.finding.runs)
    is_new = runs > judged.known and told(judged)["n"] != runs_before
    new = f"{runs - judged.known} of {runs} runs are new" * is_new
    return "; ".join(filter(None, ("sentence" * bool(claim.before), new)))


def _dropped(was: Mapping[str, Mapping[str, str]]) -> str:
    gone = [f"`{name}` ({row['verdict']})" for name, row in was.items()
            if name not in {claim.name for claim in CLAIMS}]  # fmt: skip
    why = "[why](#appendix-what-was-changed-after-runs-had-been-seen)"
    return f"\nDropped ({why}): {', '.join(gone)}.\n"


def registered_table(_: Ledger) -> str:
    """The claims that were written down before, with a link to what is judged elsewhere."""
    lines = [
        [
            f"[`{name}`]({place})" if (place := JUDGED_AS.get(name)) else f"`{name}`",
            "<br>".join(filter(None, (said["sentence"], f"*{said['figure']}*", said.get("note")))),
            said["predictor"],
            said["statistic"],
            said["stratum"],
            f"{said['least']:g}",
            f"{said['n']}",
            f"{said['finds']:g}",
            said["by"],
        ]
        for name, said in REGISTERED.items()
    ]
    head = ["name", "claim", "predictor", "statistic", "stratum", "least", "n", "finds", "whose"]
    return table(head, lines)


def known_table(ledger: Ledger) -> str:
    """Claims that are judged, wholly or partly, on runs known before."""
    lines = [[f"`{name}`", *rest] for name, *rest in known_before(ledger)]
    return table(["name", "known runs", "effect (95 %)", "without them"], lines)


def claim_text(ledger: Ledger, name: str) -> str:
    """A claim's verdict and effect."""
    judged = ledger.judgements[name]
    return ", ".join(filter(None, (judged.verdict, told(judged)["effect"])))


def part_text(ledger: Ledger, name_and_part: str) -> str:
    """The verdict on a claim in another task and layout: ``c4-gamma neurips, post``."""
    name, _, part = name_and_part.partition(" ")
    judged = ledger.judgements[name]
    if judged.finding is None:
        return judged.verdict
    found = {**judged.parts, **judged.also}
    if part not in found:
        known = "; ".join(found) or "none"
        raise ConfigError(f"the claim {name} has no part {part!r}; expected one of: {known}")
    return found[part].verdict


def papers_text(ledger: Ledger, verdicts: str) -> str:
    """How many claims of the papers have one of these verdicts."""
    theirs = [judged.verdict for claim, judged in _judged(ledger) if not claim.ours]
    return str(sum(verdict in verdicts.split(", ") for verdict in theirs))


TEXTS: Mapping[str, Callable[[Ledger, str], str]] = {
    "claim": claim_text,
    "verdict": lambda ledger, name: ledger.judgements[name].verdict,
    "part": part_text,
    "papers": papers_text,
}
"""What stands inside a sentence: a claim by name, how many claims have a verdict."""


def _judged(ledger: Ledger) -> Iterator[tuple[Claim, Judgement]]:
    return ((claim, ledger.judgements[claim.name]) for claim in CLAIMS)


def _details(claim: Claim, judged: Judgement) -> str:
    """What judges a claim and why, and the same in parts, folded away."""
    shown = told(judged)
    said = {
        "name": f"`{claim.name}`",
        "figure": claim.source,
        "the paper": f"“{claim.quote}”" if claim.quote else "",
        "predictor": claim.predictor,
        "statistic": claim.statistic,
        "stratum": claim.stratum,
        "why this statistic": claim.why,
        "note": claim.note,
        "judged before": claim.before,
        "at equal settings": shown["equal"],
        "in parts of the stratum": shown["parts"],
        "also tested in": shown["also"],
    }
    lines = "".join(f"<br>{title}: {text}" for title, text in said.items() if text)
    return f"<details><summary>how it is judged</summary>{lines.removeprefix('<br>')}</details>"


def _place(study: str) -> str:
    return wide.curves_table(Path(TABLES)).parent.as_posix() if study == wide.STUDY else TABLES
