"""What the papers say, and how runs judge it: claims, verdicts and an adjusted p.

A figure's script has a list ``CLAIMS``: the paper's words, the effect that would show them, and the
least effect that counts. A claim loads no table until it is judged. All claims are one *family*:
their p-values are adjusted together (Benjamini and Hochberg 1995), so that of the claims it
supports one in twenty is expected to be chance. Whatever was ever judged stays in the family:
``archive.csv`` holds those that no figure shows, with their last result; *withdrawn* are those that
could hardly fail, or whose runs their own sentence excludes.

The verdicts are those of :func:`anchor_interp.sweeps.effect_verdict.judge_effect`, and more.
*Mixed*: parts that both belong to the paper's stratum disagree. *Not run*: there is no study, or
no table.
*Nothing comparable*: the runs to be compared do not occur. *Not answerable here* is also what runs
are that have not fitted, are at chance, are fewer than five of a kind or than half of those
planned. Parts of a claim are adjusted by Holm's method (1979).

Claims were written down before their runs, but for those on ``known`` studies and seeds. Those of
``registered.toml`` were committed before any run of theirs was trained.
"""

import csv
import importlib
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from scipy.stats import false_discovery_control

from anchor_interp._util.errors import StoreError
from anchor_interp.sweeps.compared import FEWEST
from anchor_interp.sweeps.effect_verdict import LEVEL, judge_effect
from claim_effects import Effect, Finding, Rows

HERE = Path(__file__).parent
FOLDERS = ("neurips", "complexity_control", "questions", "later")
ARCHIVE = HERE / "archive.csv"
REGISTERED: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    (HERE / "registered.toml").read_text(encoding="utf-8")
)
"""Claims that were written down before their runs, word for word."""
# Seeds of ``decay`` and ``depth`` whose runs were known when the claims were written.
KNOWN_SEEDS = frozenset((300, 301, 302))
Verdict = Literal[
    "supported", "mixed", "not supported", "reversed", "inconclusive", "not answerable here",
    "nothing comparable", "not run",
]  # fmt: skip
_MISSED = "the limit is missed, and a limit has no other way round"


@dataclass(frozen=True)
class Claim:
    """What a paper says, or what we ask, and what judges it."""

    name: str
    short: str  # in at most 55 letters, for forest plots
    effect: Effect
    least: float  # the smallest effect that counts
    quote: str = ""  # the paper's words
    asks: str = ""  # our own question, or what a later paper says, in our words
    source: str = ""  # where in the paper, such as "figure 2b"
    statistic: str = ""  # what is measured, in words
    note: str = ""  # what a reader of the verdict should know
    takes: str = ""  # what an answer would take, where there is none
    follows: str = ""  # from what it follows: such a claim can hardly fail and is not counted
    known: tuple[str, ...] = ()  # studies whose runs were known when the claim was last changed
    planned: int = 0  # the seeds that it was written down for; fewer than half answer nothing
    later: bool = False  # whether a later paper says it, or a control beside one

    @property
    def ours(self) -> bool:
        """Whether no paper says it."""
        return bool(self.asks) and not self.later


def registered(name: str, short: str, effect: Effect, /, **more: Any) -> Claim:
    """A claim of ``registered.toml``, in the words that were written down."""
    said = REGISTERED[name]
    words: dict[str, Any] = {
        "name": name, "short": short, "effect": effect, "planned": said["n"],
        "asks": "" if said["by"] == "paper" else said["sentence"], "source": said["figure"],
        "later": said["by"] == "later",
        **{key: said[key] for key in ("quote", "statistic", "least", "note") if key in said},
    }  # fmt: skip
    return Claim(**words | more)


@dataclass(frozen=True)
class Judgement:
    """What the runs say about a claim."""

    claim: str  # the claim's name
    verdict: Verdict
    reason: str
    finding: Finding | None  # the numbers; None for a claim that was not run
    q_value: float | None  # the p-value, adjusted for all claims of the family that were tested
    at_equal_settings: bool | None = None
    """Whether the effect also counts, with p <= 0.05, when the settings are regressed out."""
    parts: Mapping[str, "Judgement"] = field(default_factory=dict)
    """The same in parts of the paper's stratum; q is Holm's over these."""
    also: Mapping[str, "Judgement"] = field(default_factory=dict)
    """The same in other strata; q is Holm's over these."""
    known: int = 0  # runs that were known when the claim was written
    without_known: Finding | None = None  # what the other runs say, if there are known ones


@cache
def scripts() -> Mapping[str, ModuleType]:
    """The scripts of all figures and questions, by ``folder/name``."""
    files = [file for folder in FOLDERS for file in sorted((HERE / folder).glob("[a-z]*.py"))]
    names = [f"{file.parent.name}/{file.stem}" for file in files]
    return {name: importlib.import_module(name.replace("/", ".")) for name in names}


def claims_of(script: ModuleType) -> Sequence[Claim]:
    """The claims that a script shows."""
    return tuple(getattr(script, "CLAIMS", ()))


def family() -> tuple[Claim, ...]:
    """The claims of all scripts."""
    return tuple(claim for script in scripts().values() for claim in claims_of(script))


@cache
def archived() -> Sequence[Mapping[str, str]]:
    """The claims that no script shows any more, with their last results."""
    return tuple(csv.DictReader(ARCHIVE.read_text(encoding="utf-8").splitlines()))


def judge(
    claims: Sequence[Claim],
    tables: Mapping[str, Rows],
    *,
    shown: Collection[str] | None = None,
    others: Sequence[float] = (),
) -> dict[str, Judgement]:
    """The judgement of every claim, by name, as one family; ``tables`` holds the rows by study.

    ``others`` are p-values of further claims of the family. With ``shown`` only these claims are
    judged, and of the others as much is measured as the adjustment needs.
    """
    wanted = {claim.name for claim in claims} if shown is None else {*shown}
    findings = {claim.name: _found(claim, tables, claim.name in wanted) for claim in claims}
    p_values = {name: found.found.p for name, found in findings.items() if found and found.found}
    every = [*p_values.values(), *others]
    adjusted = map(float, false_discovery_control(every)) if every else iter(())
    q_values = dict(zip(p_values, adjusted, strict=False))
    return {
        claim.name: _judged(claim, findings[claim.name], q_values.get(claim.name), tables)
        for claim in claims
        if claim.name in wanted
    }


def judge_all(
    tables: Mapping[str, Rows], shown: Collection[str] | None = None
) -> dict[str, Judgement]:
    """What :func:`judge` says of the claims of all scripts, beside those of the archive."""
    others = [float(row["p"]) for row in archived() if row["p"]]
    return judge(family(), tables, shown=shown, others=others)


def _judged(
    claim: Claim, found: Finding | None, q: float | None, tables: Mapping[str, Rows]
) -> Judgement:
    verdict, reason = _decide(found, claim.least, q)
    if found is None:
        return Judgement(claim.name, verdict, reason, None, q)
    if 2 * (there := sum(found.n) + found.censored) < claim.planned:
        verdict = "not answerable here"
        reason = f"{there} of {claim.planned} planned seeds count"
        found = replace(found, parts={}, also={})
    parts = _judged_parts(found.parts, claim.least)
    decided = {part.verdict: at for at, part in parts.items()}
    against = decided.get("reversed") or decided.get("not supported")
    if "supported" in decided and against is not None:
        verdict, reason = "mixed", f"supported in {decided['supported']}, not in {against}"
    runs = claim.effect.runs
    known = frozenset(
        row["run_id"] for study in runs for row in tables[study]
        if study in claim.known or row["seed"] in KNOWN_SEEDS
    )  # fmt: skip
    n_known, equal = len(known & set(found.runs)), found.adjusted
    rest = {name: [r for r in tables[name] if r["run_id"] not in known] for name in runs}
    others = _found(claim, rest, False) if n_known else None
    return Judgement(
        claim.name, verdict, reason, replace(found, parts={}, also={}), q,
        at_equal_settings=None if equal is None
        else equal.effect >= claim.least and equal.p <= LEVEL,
        parts=parts,
        also=_judged_parts(found.also, claim.least),
        known=n_known,
        without_known=None if others is None else replace(others, runs=()),
    )  # fmt: skip


def _judged_parts(parts: Mapping[str, Finding], least: float) -> dict[str, Judgement]:
    p_values = {name: part.found.p for name, part in parts.items() if part.found is not None}
    q_values = dict(zip(p_values, holm([*p_values.values()]), strict=True))
    return {
        name: Judgement(name, *_decide(part, least, q := q_values.get(name)), part, q)
        for name, part in parts.items()
    }


def _found(claim: Claim, tables: Mapping[str, Rows], whole: bool) -> Finding | None:
    try:
        return claim.effect.find_in(tables, whole=whole)
    except KeyError as error:
        raise StoreError(
            f"the claim {claim.name} needs the column {error.args[0]}, which the table of "
            f"{' or '.join(claim.effect.runs)} lacks; remove the table to have it made anew"
        ) from error


def _decide(found: Finding | None, least: float, q: float | None) -> tuple[Verdict, str]:
    """The verdict and its reason."""
    compares = found is not None and found.problem == "not answerable here"
    if found is None or not (sum(found.n) or found.censored or compares):
        return "not run", "no run of it is there"
    if found.problem:
        return found.problem, found.note or ""
    if min(found.n, default=0) < FEWEST or found.seeds < FEWEST:
        runs = " and ".join(map(str, found.n))
        return "not answerable here", f"{runs} runs, {found.seeds} seeds; {FEWEST} are needed"
    if found.found is None or q is None:
        return "nothing comparable", "the number does not vary between these runs"
    if found.is_margin and judge_effect(found.found, least, q)[0] == "reversed":
        return "not supported", f"the interval ends below {least:.2g}: {_MISSED}"
    return judge_effect(found.found, least, q, found.with_censored)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's adjustment: p-values that hold for all tests together (Holm 1979)."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)
