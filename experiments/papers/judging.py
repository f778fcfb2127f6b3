"""Claims, and how runs judge them: the effect as claimed, its interval, power and an adjusted p.

The verdicts are those of :func:`anchor_interp.sweeps.effects.decide`, and more. *Mixed*: parts
that both belong to the paper's stratum disagree. *Not run*: there is no study, or no table.
*Nothing comparable*: the runs to be compared do not occur. *Not answerable here* is also what runs
are that have not fitted, are at chance or are fewer than five of a kind (:mod:`papers.effects`).
Every document and page uses these words in this sense alone.

A *family* is a set of claims whose p-values are adjusted together (Benjamini and Hochberg 1995): of
the claims it supports, one in twenty is expected to be chance. Parts of a claim are adjusted by
Holm's method (1979).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from scipy.stats import false_discovery_control

from anchor_interp._util.errors import StoreError
from anchor_interp.sweeps.effects import FEWEST, LEVEL, Estimate, decide

from .effects import Effect, Finding
from .rows import Row, Rows, was_known

Verdict = Literal[
    "supported", "mixed", "not supported", "reversed", "inconclusive", "not answerable here",
    "nothing comparable", "not run",
]  # fmt: skip
_MISSED = "the limit is missed, and a limit has no other way round"


@dataclass(frozen=True)
class Claim:
    """A sentence that runs support or do not, and the statistic that judges it, in words."""

    name: str
    sentence: str
    source: str  # the figure or section
    statistic: str
    minimum: float = 0.0  # the smallest effect that counts
    section: str | None = None  # the script under ``experiments/`` that shows it
    effect: Effect | None = None  # None for a claim that no study tests
    ours: bool = False  # a statistic the paper does not use, a stricter reading, or a question
    quote: str = ""  # the paper's words
    predictor: str = ""  # what differs between the runs that are compared
    stratum: str = ""  # the task, layout and heads in which the sentence stands
    short: str = ""  # the sentence in a few words, for figures and short tables
    why: str = ""  # why the statistic measures what the sentence says
    note: str = ""  # what a reader of the verdict should know
    takes: str = ""  # what an answer would take, where there is none
    before: str = ""  # what was judged before the sentence was the paper's, if that was another
    known: tuple[str, ...] = ()  # studies whose runs were known when the claim was last changed
    planned: int = 0  # the seeds that it was written down for; fewer than half answer nothing

    @property
    def studies(self) -> tuple[str, ...]:
        """The studies that it needs."""
        return () if self.effect is None else self.effect.studies

    @property
    def tables(self) -> tuple[str, ...]:
        """These, and those of the other strata."""
        return self.studies if self.effect is None else (*self.studies, *self.effect.elsewhere)


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


def judge(family: Sequence[Claim], tables: Mapping[str, Rows]) -> dict[str, Judgement]:
    """The judgement of every claim of a family, by name; ``tables`` holds the rows by study."""
    findings = {claim.name: _found(claim, tables) for claim in family}
    p_values = {name: found.found.p for name, found in findings.items() if found and found.found}
    adjusted = map(float, false_discovery_control([*p_values.values()])) if p_values else ()
    q_values = dict(zip(p_values, adjusted, strict=True))
    judgements = {}
    for claim in family:
        name, found = claim.name, findings[claim.name]
        q = q_values.get(name)
        verdict, reason = _decide(found, claim.minimum, q)
        if found is not None and 2 * (there := sum(found.n) + found.censored) < claim.planned:
            verdict = "not answerable here"
            reason = f"{there} of {claim.planned} planned seeds count"
            found = replace(found, parts={}, also={})
        if found is None:
            judgements[name] = Judgement(name, verdict, reason, None, q)
            continue
        parts = _judged_parts(found.parts, claim.minimum)
        decided = {part.verdict: at for at, part in parts.items()}
        against = decided.get("reversed") or decided.get("not supported")
        if "supported" in decided and against is not None:
            verdict = "mixed"
            reason = f"supported in {decided['supported']}, not in {against}"
        known = _known(claim, tables)
        n_known = len(known & set(found.runs))
        rest = {n: [r for r in tables[n] if r["run_id"] not in known] for n in claim.studies}
        others = _found(claim, rest) if n_known else None
        judgements[name] = Judgement(
            name, verdict, reason, replace(found, parts={}, also={}), q,
            at_equal_settings=_holds(found.adjusted, claim.minimum),
            parts=parts,
            also=_judged_parts(found.also, claim.minimum),
            known=n_known,
            without_known=None if others is None else replace(others, runs=()),
        )  # fmt: skip
    return judgements


def _known(claim: Claim, tables: Mapping[str, Rows]) -> frozenset[str]:
    """The runs of a claim's studies that were known when it was written."""

    def counts(study: str, row: Row) -> bool:
        return study in claim.known or was_known(row)

    return frozenset(
        row["run_id"] for study in claim.studies for row in tables[study] if counts(study, row)
    )


def _holds(found: Estimate | None, minimum: float) -> bool | None:
    return None if found is None else found.effect >= minimum and found.p <= LEVEL


def _judged_parts(parts: Mapping[str, Finding], minimum: float) -> dict[str, Judgement]:
    p_values = {name: part.found.p for name, part in parts.items() if part.found is not None}
    q_values = dict(zip(p_values, holm([*p_values.values()]), strict=True))
    judged = {}
    for name, part in parts.items():
        verdict, reason = _decide(part, minimum, q_values.get(name))
        judged[name] = Judgement(name, verdict, reason, part, q_values.get(name))
    return judged


def _found(claim: Claim, tables: Mapping[str, Rows]) -> Finding | None:
    if claim.effect is None:
        return None
    try:
        return claim.effect.find_in(tables)
    except KeyError as error:
        raise StoreError(
            f"the claim {claim.name} needs the column {error.args[0]}, which the table of "
            f"{' or '.join(claim.studies)} lacks; remove the table to have it made anew"
        ) from error


def _decide(found: Finding | None, minimum: float, q: float | None) -> tuple[Verdict, str]:
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
    verdict: Verdict
    verdict, reason = decide(found.found, minimum, q)
    if verdict == "reversed" and found.is_margin:
        return "not supported", f"the interval ends below {minimum:.2g}: {_MISSED}"
    other = found.with_censored
    if other is None:
        return verdict, reason
    unless = f"{other.effect:+.2f} with the runs that did not converge"
    if verdict == "reversed" and (other.effect >= 0 or other.p > LEVEL):
        verdict, reason = decide(found.found, minimum, 1.0)
    against = verdict == "not supported" and other.effect >= minimum
    if against or (verdict == "supported" and other.effect < minimum):
        return "inconclusive", unless
    return verdict, reason


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's adjustment: p-values that hold for all tests together (Holm 1979)."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)
