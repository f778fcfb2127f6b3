"""The ledger and its lines, from the studies' tables alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from anchor_interp.sweeps.effects import Estimate

from .claims import judge_ledger
from .judging import Claim, Judgement
from .rows import Rows
from .tables import read_study, read_tables
from .verdict_runs import half_of
from .verdict_score import VerdictScore, can_be_judged, fitting_rows, judge_verdict


@dataclass(frozen=True)
class Ledger:
    """Everything that the tables of one scale say."""

    scale: str
    judgements: Mapping[str, Judgement]  # the judgement of every claim, by name
    verdict: VerdictScore | None  # how good the verdict from the mechanism is
    runs: Mapping[str, int]  # runs of every study
    seconds: float  # wall time of training them one after the other
    schema: int = 4


def make_ledger(scale: str, tables: Mapping[str, Rows], verdict_runs: Rows = ()) -> Ledger:
    """Judge every claim, and the verdict from the mechanism on its own runs."""
    seconds = {row["run_id"]: row.get("seconds") or 0.0 for rows in tables.values() for row in rows}
    judged = [row for row in verdict_runs if half_of(row) == "judge"]
    deeper = [row for row in verdict_runs if half_of(row) == "deeper"]
    apart = {"3 and 4 layers of two heads": deeper, "width 400": tables.get("solutions", ())}
    apart = {kind: rows for kind, rows in apart.items() if any(map(can_be_judged, rows))}
    fitted = fitting_rows(tables, verdict_runs)
    known = (filter(can_be_judged, judged), fitted)
    has_kinds = min(len({row["phase"] for row in part}) for part in known) > 1
    return Ledger(
        scale=scale,
        judgements=judge_ledger(tables),
        verdict=judge_verdict(judged, fitted, apart) if has_kinds else None,
        runs={name: len(found) for name, found in tables.items()},
        seconds=sum(seconds.values()),
    )


def read_ledger(scale: str, tables: Path) -> Ledger:
    """The ledger of a folder of tables."""
    own = tables / "verdict.csv"
    verdict_runs = read_study(own) if own.is_file() else ()
    return make_ledger(scale, read_tables(tables, scale=scale), verdict_runs)


def line(claim: Claim, judged: Judgement) -> str:
    """A claim with its verdict and numbers."""
    shown = told(judged)
    numbers = "; ".join(filter(None, (shown["effect"], shown["n"])))
    return f"{claim.name}: {judged.verdict}{numbers and f' ({numbers})'}"


def told(judged: Judgement) -> dict[str, str]:
    """The numbers of a judgement as text."""
    found = judged.finding
    if found is None:
        return dict.fromkeys(("n", "effect", "p", "power", "equal", "parts", "also"), "")
    censored = f", {found.censored} censored" if found.censored else ""
    seeds = f", {found.seeds} seeds" if found.seeds else ""  # none where a sample is empty
    p, equal = "", ""
    if found.found is not None:
        p = f"{_p(found.found.p)} / {_p(judged.q_value or 0.0)}"
    if found.adjusted is not None:
        holds = "yes" if judged.at_equal_settings else "no"
        equal = f"{estimate_text(found.adjusted)}, p {_p(found.adjusted.p)}: {holds} "
        equal += f"(regressed out: {', '.join(found.held)})"
    return {
        "n": f"{' + '.join(map(str, found.n))} runs{seeds}{censored}",
        "effect": estimate_text(found.found),
        "p": p,
        "power": "" if found.found is None else f"{found.found.finds:.2g}",
        "equal": equal,
        "parts": "; ".join(f"{name}: {_part(part)}" for name, part in judged.parts.items()),
        "also": "; ".join(f"{name}: {_part(part)}" for name, part in judged.also.items()),
    }


def estimate_text(found: Estimate | None) -> str:
    """An effect with its interval; empty if there is none."""
    return "" if found is None else f"{found.effect:+.2f} [{found.low:.2f}, {found.high:.2f}]"


def known_before(ledger: Ledger) -> list[tuple[str, str, str, str]]:
    """The claims judged on runs known before: name, runs, effect, and that of the other runs."""
    lines = []
    for name, judged in ledger.judgements.items():
        if judged.known and judged.finding is not None:
            others, runs = judged.without_known, f"{judged.known} of {len(judged.finding.runs)}"
            rest = "no other runs" if others is None else "too few runs"
            if others is not None and others.found is not None:
                p, seeds = _p(others.found.p), others.seeds
                rest = f"{estimate_text(others.found)}, p {p}, {seeds} seeds"
            lines.append((name, runs, estimate_text(judged.finding.found), rest))
    return lines


def _part(judged: Judgement) -> str:
    found = judged.finding
    if found is None or found.found is None:
        return f"{judged.verdict} ({judged.reason})"
    runs = " + ".join(map(str, found.n))
    return f"{found.found.effect:+.2f} of {runs} runs, {judged.verdict}"


def _p(value: float) -> str:
    return f"{value:.4f}" if value >= 0.0001 else "< 0.0001"
