"""Judges every claim, and fills docs/claims.md, README and other pages with the verdicts.

Something stands between two comments that name it::

    <!-- table: figures --> ... <!-- end -->
    <!-- claim: c4-gamma -->supported, +0.36 [0.23, 0.48]<!-- end -->
    <!-- verdict: c4-gamma neurips, pre -->supported<!-- end -->
    <!-- papers: not supported, reversed -->1<!-- end -->
    <!-- mean answer of random; normalization=pre route=gathered -->0.62<!-- end -->

A number is a count, mean, smallest or largest value of a column over the runs of a study whose
other columns have these values; ``random`` is all random settings. Scripts have further ``TABLES``.
``python experiments/fill_pages.py`` writes the pages, docs/evidence/claims.json and forest plots
from the tables, ``--check`` only tells whether pages and verdicts are up to date.
"""

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from statistics import mean, median
from types import ModuleType
from typing import get_args

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.files import write_output, write_text
from anchor_interp._util.schema import canonical_json
from anchor_interp.analysis.routes import RouteName
from claim_effects import Row, Rows
from claims import Claim, Judgement, Verdict, archived, claims_of, family, judge_all, scripts
from common import FIGURES, effect_text, estimate_text, montage, runs_text, table
from forest import forests
from random_settings import RUNS as RANDOM
from studies import Data, Study, known

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "docs" / "evidence" / "claims.json"
_DOCS = (
    "results", "claims", "field", "verdict", "questions", "mechanism", "tasks", "own-training",
    *(f"evidence/{name}" for name in ("corners", "unanswered", "verdict", "wide")),
)  # fmt: skip
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in _DOCS)]
OPEN = ("inconclusive", "not answerable here", "nothing comparable", "not run")
_PLACE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_TEXT = re.compile(r"(<!-- (claim|papers|verdict): ([\w\-.;, ]+) -->)[^<]*(<!-- end -->)")
_NUMBER = re.compile(r"(<!-- ([a-z]+)(?: (\w+))? of ([\w-]+)(?:; ([^>]*))? -->)[^<]*(<!-- end -->)")
_SUMMARIES: Mapping[str, Callable[[list[float]], float]] = {
    "mean": mean, "smallest": min, "largest": max
}  # fmt: skip


class Pages:
    """What pages show of the tables and of the verdicts on them."""

    def __init__(self, data: Data, judged: Mapping[str, Judgement]) -> None:
        self.data, self.judged = data, judged
        self.claims: Sequence[Claim] = family()

    @cached_property
    def tables(self) -> Mapping[str, Callable[[], str]]:
        """The tables by name: those of claims, and those of the scripts."""
        tables: dict[str, Callable[[], str]] = {
            "counts": self.counts, "figures": self.figures, "later": self.later,
            "unanswered": self.unanswered, "studies": self.studies,
            "later-studies": partial(self.studies, later=True),
        }  # fmt: skip
        from evidence import verdict

        for script in (*scripts().values(), verdict):
            for name, of in getattr(script, "TABLES", {}).items():
                tables[name] = partial(of, self.data)
        return tables

    def filled(self, text: str) -> str:
        """A page with every table and number made anew."""
        texts: Mapping[str, Callable[[str], str]] = {
            "claim": self.claim, "papers": self.papers, "verdict": self.verdict
        }  # fmt: skip
        text = _PLACE.sub(lambda m: f"{m[1]}\n{self.tables[m[2]]()}\n{m[3]}", text)
        text = _TEXT.sub(lambda m: f"{m[1]}{texts[m[2]](m[3])}{m[4]}", text)
        return _NUMBER.sub(lambda m: f"{m[1]}{self.number(*m.groups()[1:5])}{m[6]}", text)

    def counts(self) -> str:
        """How many claims have each verdict, the two papers' and ours."""
        here = [claim for claim in self.claims if not claim.later]

        def counted(ours: bool) -> str:
            found = [self.judged[c.name].verdict for c in here if c.ours == ours and not c.follows]
            return ", ".join(f"**{n}** {v}" for v in get_args(Verdict) if (n := found.count(v)))

        ours = sum(claim.ours for claim in here)
        follow = sum(bool(claim.follows) for claim in here)
        return (
            f"{len(here)} claims. {len(here) - ours - follow} are the papers': "
            f"{counted(False)}. {follow} more can hardly fail, and no count has them.\n\n"
            f"{ours} are ours: {counted(True)}. {len(archived())} others are "
            "[archived](../experiments/archive.csv) with their last results.\n"
        )

    def figures(self) -> str:
        """A section for every script: what it is about, its figure, claims and runs."""
        here = {n: script for n, script in scripts().items() if not n.startswith("later")}
        return "\n".join(map(self._section, here, here.values()))

    def later(self) -> str:
        """What later papers say, and what our runs say of it."""
        claims = sorted((claim for claim in self.claims if claim.later), key=lambda c: c.source)
        head = ["paper", "in our words", "verdict", "effect (95 %)", "least", "runs"]
        lines = []
        for claim in claims:
            verdict, _, effect, least, _, runs = self._line(claim)
            least = least.partition(" /")[0]
            words = f"{claim.asks} *({claim.note})*" if claim.note else claim.asks
            lines.append([claim.source, words, verdict, effect, least, runs])
        return table(head, lines)

    def _section(self, name: str, script: ModuleType) -> str:
        title, _, about = (script.__doc__ or "").strip().partition("\n\n")
        title = " ".join(title.rstrip(".").split())
        claims = claims_of(script)
        own: Mapping[str, Study] = getattr(script, "RUNS", {})
        judging = dict.fromkeys(run for claim in claims for run in claim.effect.runs)
        more = [study for study in own if study not in judging]
        shown = {"judged on": judging, "runs": more}
        runs = "; ".join(
            f"{what}: " + ", ".join(_study_link(study, f"`{study}`") for study in studies)
            for what, studies in shown.items() if studies
        )  # fmt: skip
        lines = [self._line(claim) for claim in claims]
        head = ["verdict", "claim", "effect (95 %)", "least / finds", "p / q", "runs"]
        return (
            f"## {title}\n\n{about.replace('``', '`').replace('*', chr(92) + '*')}\n\n"
            f"[Figure](../figures/papers/{name}.png), [script](../experiments/{name}.py); "
            f"{runs}.\n\n{table(head, lines) if claims else ''}"
        )

    def _line(self, claim: Claim) -> list[str]:
        judged = self.judged[claim.name]
        whose, words = ("ours", claim.asks) if claim.ours else (claim.source, f"“{claim.quote}”")
        said = f"**{claim.short}** ({whose})<br>{words}"
        if claim.follows:
            said += f"<br>*Not counted: it follows from {claim.follows}.*"
        elif judged.verdict not in ("supported", "not run"):
            said += f"<br>*{judged.reason}*"
        found = judged.finding.found if judged.finding else None
        return [
            f'<a id="{claim.name}"></a>{judged.verdict}',
            f"{said} {self._details(claim, judged)}",
            effect_text(judged),
            f"{claim.least:.2g}" + (f" / {found.finds:.2g}" if found else ""),
            f"{_p(found.p)} / {_p(judged.q_value or 0.0)}" if found else "",
            runs_text(judged).replace(" runs", ""),
        ]

    def _details(self, claim: Claim, judged: Judgement) -> str:
        """What judges a claim, and the same in parts, folded away."""
        equal = ""
        if judged.finding and (adjusted := judged.finding.adjusted):
            equal = f"{estimate_text(adjusted)}, p {_p(adjusted.p)}: "
            equal += "yes" if judged.at_equal_settings else "no"
        said = {
            f"`{claim.name}`": claim.statistic, "note": claim.note, "at equal settings": equal,
            "in parts": _parts(judged.parts), "other strata": _parts(judged.also),
            "known before": _known(judged),
        }  # fmt: skip
        lines = "<br>".join(f"{title}: {text}" for title, text in said.items() if text)
        return f"<details><summary>details</summary>{lines}</details>"

    def studies(self, *, later: bool = False) -> str:
        """What was trained: for the two papers and us, or on later papers."""
        lines = [["study", "what is varied", "runs", "seeds", "censored", "core-minutes"]]
        theirs = {study for name, script in scripts().items() if name.startswith("later")
                  for study in script.RUNS}  # fmt: skip
        for name, study in known().items():
            if (name in theirs) != later:
                continue
            rows = self.data.get(name, [])
            alone = _own_seconds(rows)
            open_ends = "unfitted" if "unfitted" in next(iter(rows), {}) else "censored"
            counts = [sum(row.get("rates", 1) for row in rows), len({row["seed"] for row in rows}),
                      sum(row[open_ends] for row in rows)]  # fmt: skip
            lines.append([_study_link(name, name), study.title, *map(str, counts),
                          f"{len(rows) * mean(alone) / 60:.0f}" if alone else ""])  # fmt: skip
        if later:  # claims of the page have the rest
            lines = [[line[n] for n in (0, 2, 5)] for line in lines]
        return table(lines[0], lines[1:])

    def unanswered(self) -> str:
        """The claims that have no answer, the papers' first, and what each would take."""
        lines = []
        for claim in sorted(self.claims, key=lambda claim: (claim.later, claim.ours)):
            judged = self.judged[claim.name]
            if judged.verdict in OPEN:
                why = judged.reason.partition(";")[0]
                page = "../field.md" if claim.later else "../claims.md"
                link = f"[`{claim.name}`]({page}#{claim.name})"
                takes = " ".join(filter(None, (claim.takes, self._more_runs(claim, judged))))
                whose = "later" if claim.later else "ours" if claim.ours else "paper"
                lines.append([link, whose, claim.short,
                              f"{judged.verdict}: {why}", takes])  # fmt: skip
        return table(["claim", "whose", "in short", "verdict", "what an answer would take"], lines)

    def _more_runs(self, claim: Claim, judged: Judgement) -> str:
        """How many runs of the same kind would find the least effect, and how long they train."""
        if judged.finding is None or (found := judged.finding.found) is None:
            return ""
        # a limit has no least effect to be found: a narrower interval settles it
        times, why = (found.finds / claim.least) ** 2 if claim.least else 0.0, ""
        if times <= 1:  # the interval reaches the least effect
            if claim.takes:
                return ""
            times, why = 4.0, " for an interval half as wide"
        runs = math.ceil(times * len(judged.finding.runs))
        rows = [row for name in claim.effect.runs for row in self.data[name]]
        judging = [row for row in rows if row["run_id"] in judged.finding.runs]
        seconds = _own_seconds(judging)
        hours = runs * mean(seconds) / 3600 if seconds else 0.0
        cost = f", {hours:,.{int(hours < 10)}f} core-hours" if hours else ""
        return f"{times:.2g} times as many runs{why}: {runs:,}{cost}."

    def verdict(self, name_and_part: str) -> str:
        """The verdict on a claim, or on a part: another task and layout, ``c4-id neurips, post``.

        The claim may be archived.
        """
        name, _, part = name_and_part.partition(" ")
        if name not in self.judged:
            return _archived(name)["verdict"]
        judged = self.judged[name]
        if not part or judged.finding is None:
            return judged.verdict
        found = {**judged.parts, **judged.also}
        if part not in found:
            known = "; ".join(found) or "none"
            raise ConfigError(f"the claim {name} has no part {part!r}; expected one of: {known}")
        return found[part].verdict

    def claim(self, name: str) -> str:
        """A claim's verdict and effect."""
        if name in self.judged:
            effect = effect_text(self.judged[name])
        else:
            row = _archived(name)
            numbers = [float(row[key]) for key in ("effect", "low", "high") if row[key]]
            effect = "{:+.2f} [{:.2f}, {:.2f}]".format(*numbers) if numbers else ""
        return ", ".join(filter(None, (self.verdict(name), effect)))

    def papers(self, verdicts: str) -> str:
        """How many claims of the papers have one of these verdicts."""
        theirs = [claim.name for claim in self.claims if not (claim.asks or claim.follows)]
        return str(sum(self.judged[name].verdict in verdicts.split(", ") for name in theirs))

    def number(self, summary: str, column: str | None, study: str, only: str | None) -> str:
        """A count, or another summary of a column, of the runs that have these values."""
        rows = routed(self.data) if study == "random" else self.data[study]
        for name, _, values in (one.partition("=") for one in (only or "").split()):
            rows = [row for row in rows if str(row[name]) in values.split(",")]
        if column is None:  # a count
            return str(len(rows))
        return f"{_SUMMARIES[summary]([v for r in rows if (v := r.get(column)) is not None]):.2f}"


def routed(data: Data) -> list[Row]:
    """All runs of random settings; ``route`` is the one that carries most."""

    def route(row: Row) -> str | None:
        if row.get("route_gathered") is None:
            return None
        names: Sequence[str] = get_args(RouteName)
        return max(names, key=lambda name: float(row[f"route_{name}"]))

    return [row | {"route": route(row)} for row in data.rows(*RANDOM)]


def _parts(parts: Mapping[str, Judgement]) -> str:
    effects = {name: judged.finding and judged.finding.found for name, judged in parts.items()}
    told = {name: f"{found.effect:+.2f}, " if found else "" for name, found in effects.items()}
    return "; ".join(f"{name}: {told[name]}{judged.verdict}" for name, judged in parts.items())


def _known(judged: Judgement) -> str:
    """On which runs a claim is judged that were known before it, and what the others say."""
    if not judged.known or judged.finding is None:
        return ""
    others = judged.without_known
    rest = "no others" if others is None else "too few others"
    if others is not None and others.found is not None:
        rest = f"without them {estimate_text(others.found)}, p {_p(others.found.p)}"
    return f"{judged.known} of {len(judged.finding.runs)} runs; {rest}"


def _archived(name: str) -> Mapping[str, str]:
    return next(row for row in archived() if row["claim"] == name)


@cache
def _study_link(study: str, shown: str) -> str:
    """A study's name, with a link if its table is there."""
    there = (ROOT / _place(study)).exists()
    return f"[{shown}](../{_place(study)})" if there else shown


def _own_seconds(rows: Rows) -> list[float]:
    """The seconds of runs that trained on a core of their own, at most ten times the median.

    A GPU, where PyTorch is not built for CPUs alone, trains runs as batches, which share theirs.
    """
    alone = [row["seconds"] for row in rows
             if row.get("seconds") and str(row.get("torch")).endswith("+cpu")]  # fmt: skip
    return [min(seconds, 10 * median(alone)) for seconds in alone]


def _place(study: str) -> str:
    return known()[study].table(Path("experiments/tables"), study).as_posix()


def _p(value: float) -> str:
    return f"{value:.4f}" if value >= 0.0001 else "< 0.0001"


def main() -> None:
    """Write the pages and forest plots, or only tell whether the pages are up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    parser.add_argument("--json", action="store_true", help="only print docs/evidence/claims.json")
    asked = parser.parse_args()
    data = Data()
    judged = judge_all(data)
    kept = {name: replace(j, finding=j.finding and replace(j.finding, runs=()))
            for name, j in judged.items()}  # fmt: skip
    runs = {name: len(data[name]) for name in data}
    evidence = canonical_json({"judgements": kept, "runs": runs, "schema": 5}) + "\n"
    if asked.json:
        print(evidence, end="")
        return
    shown = Pages(data, judged)
    texts = {page: shown.filled(page.read_text(encoding="utf-8")) for page in PAGES}
    for file, text in {**texts, EVIDENCE: evidence}.items():
        if asked.check and text != file.read_text(encoding="utf-8"):
            parser.error(f"{file.relative_to(ROOT)} is out of date; run: python {__file__}")
        if not asked.check:
            write_text(file, text)
    if not asked.check:
        for name, panels in forests(judged).items():
            write_output(FIGURES / f"{name}.png", montage(panels))


if __name__ == "__main__":
    main()
