"""The tables and numbers of the README and of pages of docs from the studies' tables.

A table stands between two comments that name it, and so does what the ledger says of a claim, or
how many claims of the papers have a verdict. A number of runs stands between two that define it::

    <!-- table: claims --> ... <!-- end -->
    <!-- claim: c4-gamma -->supported, +0.36 [0.23, 0.48]<!-- end -->
    <!-- part: c4-gamma pre -->supported<!-- end -->
    <!-- papers: not supported, reversed -->1<!-- end -->
    <!-- mean answer of random; normalization=pre route=gathered -->0.62<!-- end -->

The number is a count, mean, smallest or largest value of a column over the runs of a study
whose other columns have these values; ``random`` is all random settings. This puts them there::

    python experiments/results.py
    python experiments/results.py --check

It also writes how good the verdict is on judged runs, by their shape, where the package reads it.
"""

import argparse
import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean, median
from typing import get_args

from anchor_interp._util.files import write_text
from anchor_interp.analysis.routes import RouteName
from anchor_interp.analysis.statistics import mean_interval
from ledger_text import TEXTS, before_table, claims_table, counts, known_table, registered_table
from measured import spread, table
from papers import page, wide
from papers.claims import BETWEEN_PHASES, CLAIMS, PHASE_2, RANDOM
from papers.effects import grouped
from papers.judging import Claim, Judgement
from papers.page import Ledger
from papers.rows import Row, detection_of_unequal
from papers.studies import STUDIES
from papers.tables import read_study, read_tables
from papers.verdict_runs import half_of
from papers.verdict_score import (
    GIVEN,
    PHASES,
    VerdictScore,
    coverage_curve,
    judged_shapes,
    named_by,
)
from section_7_text import across_table, concepts_table, corners_table, language_table

ROOT = Path(__file__).parent.parent
_DOCS = (
    "results", "claims", "verdict", "questions", "mechanism", "tasks", "evidence/corners",
    "evidence/unanswered", "evidence/verdict", "evidence/wide",
)  # fmt: skip
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in _DOCS)]
TABLES = ROOT / "experiments" / "tables" / "tiny"
JUDGED = ROOT / "src" / "anchor_interp" / "analysis" / "verdict_judged.json"
_WIDTHS = (0, 0.5, 1, 1.5, 2, 3)
OPEN = ("inconclusive", "not answerable here", "nothing comparable", "not run")

_OF_ROUTES = (
    "score", "interchange", "value", "answer", "virtual_rule", "order_first", "order_logits",
)  # fmt: skip
_PLACE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_TEXT = re.compile(r"(<!-- (claim|papers|verdict|part): ([\w\-.;, ]+) -->)[^<]*(<!-- end -->)")
_NUMBER = re.compile(r"(<!-- ([a-z]+)(?: (\w+))? of ([\w-]+)(?:; ([^>]*))? -->)[^<]*(<!-- end -->)")
_SUMMARIES: Mapping[str, Callable[[list[float]], float]] = {
    "mean": mean, "smallest": min, "largest": max
}  # fmt: skip


def rules_table(ledger: Ledger) -> str:
    """The verdict beside rules that know less."""
    lines = [
        [
            rule.rule,
            str(rule.n),
            f"{rule.accuracy:.2f} ({rule.low:.2f} to {rule.high:.2f})",
            f"{rule.far:.2f}",
            "" if rule.behind is None else f"{rule.behind:.2f} (at least {rule.behind_low:.2f})",
        ]
        for rule in _verdict(ledger).rules
    ]
    head = ["what names the phase", "runs", "balanced accuracy (95 %)", "not near a line",
            "behind by"]  # fmt: skip
    return table(head, lines)


def confusion_table(ledger: Ledger) -> str:
    """Runs by phase and verdict."""
    counts = _verdict(ledger).confusion
    lines = [[phase, *(str(counts[phase][column]) for column in GIVEN)] for phase in PHASES]
    return table(["phase, from behaviour", *(f"verdict {name}" for name in GIVEN)], lines)


def disagreements_table(ledger: Ledger) -> str:
    """Every run that the verdict names otherwise than its behaviour."""
    lines = [
        [
            run.settings,
            run.phase,
            run.verdict,
            run.reason.partition(";")[0],
            run.behaviour,
            "yes" * run.near,
        ]
        for run in _verdict(ledger).disagreements
    ]
    return table(["run", "phase", "verdict", "because", "behaviour", "near a line"], lines)


def _verdict(ledger: Ledger) -> VerdictScore:
    """The verdict's score, which the committed tables have."""
    assert ledger.verdict is not None
    return ledger.verdict


@functools.cache
def _kinds() -> dict[str, list[Row]]:
    """Runs that judge the verdict, and kinds of runs that it was not fitted for."""
    rows = read_study(TABLES / "verdict.csv")
    halves = {"judge": "judged", "deeper": "3 and 4 layers of two heads"}
    kinds = {kind: [r for r in rows if half_of(r) == half] for half, kind in halves.items()}
    return kinds | {"width 400": _tables()["solutions"]}


def coverage_table(_: Ledger) -> str:
    """Accuracy against coverage."""
    lines = [
        [score.name, f"{share:.0%}", f"{score.accuracy:.2f} ({score.low:.2f} to {score.high:.2f})"]
        for share, score in coverage_curve(_kinds()["judged"], _WIDTHS)
    ]
    return table(["width", "named", "balanced accuracy (95 %)"], lines)


def shapes_table(_: Ledger) -> str:
    """Verdicts by phase, on runs of other shapes than those that fitted it."""
    lines = []
    for kind, rows in list(_kinds().items())[1:]:
        for phase, given in named_by(rows).items():
            others = ", ".join(f"{n} {name}" for name, n in given.most_common() if name != phase)
            lines.append([kind, phase, str(given.total()), str(given[phase]), others])
    return table(["runs", "phase", "of these", "named rightly", "other verdicts"], lines)


def judged_text() -> str:
    """What the package knows of its verdict: how good it is on judged runs, by their shape."""
    judged, *others = _kinds().items()
    kinds = judged_shapes({"two layers of one head": judged[1], **dict(others)})
    return "[\n" + ",\n".join(map(json.dumps, kinds)) + "\n]\n"


def pure_table(_: Ledger) -> str:
    """Claims between phases, on all runs that have a map of answers, and on those of one thing."""
    mapped = {name: [row for row in rows if row.get("mixed") is not None]
              for name, rows in _tables().items()}  # fmt: skip
    pure = {name: [row for row in rows if not row["mixed"]] for name, rows in mapped.items()}
    lines = []
    for claim in BETWEEN_PHASES:
        found = [claim.effect.find_in(rows) for rows in (mapped, pure) if claim.effect]
        shown = [f"{page.estimate_text(f.found) or f.problem}, {' + '.join(map(str, f.n))} runs"
                 for f in found if f is not None]  # fmt: skip
        if len(shown) == 2 and any(sum(f.n) for f in found if f):
            lines.append(
                [f"[`{claim.name}`](claims.md#{claim.name})", f"{claim.minimum:.2g}", *shown]
            )
    return table(["claim", "least", "all runs with a map", "runs of one function"], lines)


def studies_table(_: Ledger) -> str:
    """What was trained."""
    lines = []
    titles = {name: study.title for name, study in STUDIES.items()}
    for name, title in (titles | {wide.STUDY: wide.TITLE}).items():
        if (rows := _tables().get(name)) is None:
            continue
        phases = [row["phase"] for row in rows if row["phase"] is not None]
        found = ", ".join(f"{phases.count(phase)} {phase}" for phase in sorted(set(phases)))
        runs, censored = len(rows), sum(row["censored"] for row in rows)
        if name == wide.STUDY:  # a row is a seed
            runs = sum(row["rates"] for row in rows)
            censored = runs - sum(row["fitted"] for row in rows)
        seconds = sum(row.get("seconds") or 0.0 for row in rows)
        minutes = f"{seconds / 60:.0f}" if seconds else ""
        counts = [str(runs), str(len({row["seed"] for row in rows})), str(censored), minutes]
        shape = [_values(rows, "normalization"), _values(rows, "gamma")]
        lines.append([name, title, *shape, *counts, found])
    head = ["study", "what is varied", "layout", "gamma", "runs", "seeds", "censored"]
    head += ["core-minutes", "phases"]
    return table(head, lines)


def _values(rows: list[Row], column: str) -> str:
    """The values of a column, or their range where there are many."""
    found = sorted({row[column] for row in rows if row.get(column) is not None})
    if len(found) > 4:
        return f"{found[0]:.2g} to {found[-1]:.2g}"
    return ", ".join(f"{v:.2g}" if isinstance(v, float) else str(v) for v in found)


def noise_table(_: Ledger) -> str:
    """Areas under the ROC curve over the tasks with broken groups."""
    rows = [row for name in ("noise-60", "noise-240") for row in _tables().get(name, [])]
    lines = []
    for score, title in (
        ("late", "how late it is learned"),
        ("loss", "mean loss along training"),
        ("final", "loss at the end"),
    ):
        areas = [
            [v for row in rows if (v := row.get(f"auroc_{score}{end}")) is not None]
            for end in ("", "_neighbours", "_strangers")
        ]
        again = [detection_of_unequal(row, score) for row in rows] if score != "final" else []
        areas.append([area.auroc for area in again if area is not None])
        lines.append([title, *map(_mean_of, areas)])
    head = ["ranked by", "against all others", "innocent neighbours", "the rest", "as much data"]
    return table(head, lines)


def _mean_of(values: list[float]) -> str:
    if len(values) < 2:
        return ""
    low, high = mean_interval(values)
    return f"{sum(values) / len(values):.2f} ({low:.2f} to {high:.2f}), n = {len(values)}"


@functools.cache
def _tables() -> dict[str, list[Row]]:
    """The committed tables, read once."""
    return read_tables(TABLES)


def random_settings() -> list[Row]:
    """All runs of random settings; ``route`` is the one that carries most."""
    tables = _tables()
    return [row | {"route": _route(row)} for name in RANDOM for row in tables.get(name, [])]


def _route(row: Row) -> str | None:
    if row.get("route_gathered") is None:
        return None
    shares: dict[str, float] = {name: row[f"route_{name}"] for name in get_args(RouteName)}
    return max(shares, key=shares.__getitem__)


def routes_table(_: Ledger) -> str:
    """Runs by layout, route, task and phase: a run takes the route that carries most."""
    by = ("normalization", "route", "task", "phase")
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in random_settings():
        if row["phase"] in (*PHASE_2, "inferential") and row["route"] is not None:
            key = tuple(row[name] for name in by)
            groups.setdefault(key, []).append(row | {"score": row[f"route_{row['route']}"]})
    lines = []
    for key, rows in sorted(groups.items()):
        values = [[v for row in rows if (v := row[name]) is not None] for name in _OF_ROUTES]
        numbers = [f"{median(v):.2f}" if v else "" for v in values]
        lines.append([*key, str(len(rows)), *numbers])
    numbers = [name.replace("_", "_<wbr>") for name in _OF_ROUTES]  # narrow columns
    return table(["layout", *by[1:], "runs", *numbers], lines)


def unanswered_table(ledger: Ledger) -> str:
    """The claims that have no answer, the papers' first, and what each would take."""
    lines = []
    for claim in sorted(CLAIMS, key=lambda claim: claim.ours):
        judged = ledger.judgements[claim.name]
        if judged.verdict in OPEN:
            why = judged.reason.partition(";")[0]
            whose = "ours" if claim.ours else "paper"
            link = f"[`{claim.name}`](../claims.md#{claim.name})"
            takes = " ".join(filter(None, (claim.takes, _more_runs(claim, judged))))
            lines.append([link, whose, claim.short, f"{judged.verdict}: {why}", takes])
    return table(["claim", "whose", "in short", "verdict", "what an answer would take"], lines)


def _more_runs(claim: Claim, judged: Judgement) -> str:
    """How many runs of the same kind would find the least effect, and how long they train."""
    if judged.finding is None or (estimate := judged.finding.found) is None:
        return ""
    times, why = (estimate.finds / claim.minimum) ** 2, ""
    if times <= 1:  # the interval reaches the least effect
        if claim.takes:
            return ""
        times, why = 4.0, " for an interval half as wide"
    runs = math.ceil(times * len(judged.finding.runs))
    rows = [row for name in claim.studies for row in _tables()[name]]
    judging = [row for row in rows if row["run_id"] in judged.finding.runs]
    seconds = [row["seconds"] for row in judging if row.get("seconds")]
    hours = runs * mean(seconds) / 3600 if seconds else 0.0
    cost = f", {hours:,.{int(hours < 10)}f} core-hours" if hours else ""
    return f"{times:.2g} times as many runs{why}: {runs:,}{cost}."


def figure2_table(_: Ledger) -> str:
    """What the runs at the paper's width answer to (4, 3), a line a depth and gamma."""
    shown = ("best_ood", "best_symmetric", "best_id", "end_ood", "end_symmetric")
    lines = []
    for (depth, gamma), rows in grouped(_tables().get(wide.STUDY, []), wide.CELL).items():
        names = ("rates", "fitted", "by_rule", "by_other")
        counts = (len(rows), *(sum(row[name] for row in rows) for name in names))
        values = ([row[name] for row in rows if row[name] is not None] for name in shown)
        shares = [spread(of) for of in values]
        lines.append([str(depth), f"{gamma:g}", *map(str, counts), *shares])
    heads = ("rule, best", "symmetric, best", "ID, best", "rule, end", "symmetric, end")
    first = ["layers", "gamma", "seeds", "runs", "fitted", "end by rule", "end symmetric"]
    return table([*first, *heads], lines)


MADE: Mapping[str, Callable[[Ledger], str]] = {
    "counts": counts,
    "claims": claims_table,
    "known": known_table,
    "before": before_table,
    "registered": registered_table,
    "routes": routes_table,
    "rules": rules_table,
    "confusion": confusion_table,
    "coverage": coverage_table,
    "pure": pure_table,
    "shapes": shapes_table,
    "disagreements": disagreements_table,
    "studies": studies_table,
    "noise": noise_table,
    "figure2": figure2_table,
    "unanswered": unanswered_table,
    "corners": lambda _: corners_table(_tables()),
    "concepts": lambda _: concepts_table(_tables()),
    "language": lambda _: language_table(_tables()),
    "across-tasks": lambda _: across_table(_tables()),
}
"""The tables by name."""


def filled(text: str, ledger: Ledger) -> str:
    """A page with every table and number made anew."""
    text = _PLACE.sub(lambda place: f"{place[1]}\n{MADE[place[2]](ledger)}\n{place[3]}", text)
    text = _TEXT.sub(lambda place: f"{place[1]}{TEXTS[place[2]](ledger, place[3])}{place[4]}", text)
    return _NUMBER.sub(lambda place: f"{place[1]}{_number(*place.groups()[1:5])}{place[6]}", text)


def _number(summary: str, column: str | None, study: str, only: str | None) -> str:
    """A count, or another summary of a column, of the runs that have these values."""
    rows = random_settings() if study == "random" else _tables()[study]
    for name, _, values in (one.partition("=") for one in (only or "").split()):
        rows = [row for row in rows if str(row[name]) in values.split(",")]
    if column is None:  # a count
        return str(len(rows))
    return f"{_SUMMARIES[summary]([v for row in rows if (v := row[column]) is not None]):.2f}"


def main() -> None:
    """Write the pages, or with ``--check`` only tell whether they are up to date."""
    parser = argparse.ArgumentParser(description="Fill in the tables and numbers of docs.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    asked = parser.parse_args()
    ledger = page.read_ledger("tiny", TABLES)
    for file in (*PAGES, JUDGED):
        before = file.read_text(encoding="utf-8")
        after = judged_text() if file == JUDGED else filled(before, ledger)
        if asked.check and after != before:
            parser.error(
                f"{file.relative_to(ROOT)} is out of date; run: python experiments/results.py"
            )
        if not asked.check:
            write_text(file, after)


if __name__ == "__main__":
    main()
