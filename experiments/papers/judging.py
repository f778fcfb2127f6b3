"""Claims, and how runs judge them: the effect as claimed, its interval and an adjusted p-value.

A *family* is a set of claims whose p-values are adjusted together. The ledger's adjustment is that
of Benjamini and Hochberg (1995): of the claims it supports, one in twenty is expected to be chance.
Families about the recipes use Holm's (1979): all of their supported claims hold together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from scipy.stats import false_discovery_control

from anchor_interp._util.errors import StoreError
from anchor_interp.analysis.statistics import holm, smallest_p

from .effects import Effect, Finding, Observation
from .rows import Rows

Verdict = Literal["supported", "not supported", "inconclusive", "not run"]

LEVEL = 0.05  # largest adjusted p of a supported claim
REVERSED = "the effect is the other way round"
TOO_FEW = "not even runs without any overlap could show it"


@dataclass(frozen=True)
class Claim:
    """A sentence that runs support or do not, and the statistic that judges it, in words."""

    name: str
    sentence: str
    source: str
    statistic: str
    minimum: float = 0.0  # the smallest effect that counts
    section: str | None = None  # the script under ``experiments/`` that shows it
    effect: Effect | None = None  # None for a claim that no study tests

    @property
    def studies(self) -> tuple[str, ...]:
        """The studies that it needs."""
        return () if self.effect is None else self.effect.studies


@dataclass(frozen=True)
class Family:
    """Claims whose p-values are adjusted together.

    A sample of a decided claim has at least ``fewest`` runs, seeds and, where cells are compared,
    cells.
    """

    claims: tuple[Claim, ...]
    adjustment: Literal["benjamini-hochberg", "holm"] = "benjamini-hochberg"
    fewest: int = 5

    def named(self, name: str) -> Claim:
        """The claim of this name."""
        return next(claim for claim in self.claims if claim.name == name)


@dataclass(frozen=True)
class Judgement:
    """What the runs say about a claim."""

    claim: str  # the claim's name
    verdict: Verdict
    reason: str
    finding: Finding | None  # the numbers; None for a claim that was not run
    q_value: float | None  # the p-value, adjusted for all claims of the family that were tested


def judge(family: Family, tables: Mapping[str, Rows]) -> dict[str, Judgement]:
    """The judgement of every claim, by name; ``tables`` holds the rows by study."""
    findings = {claim.name: _found(claim, tables) for claim in family.claims}
    p_values, smallest = {}, {}
    for name, found in findings.items():
        if isinstance(found, Finding) and found.p_value is not None:
            p_values[name], smallest[name] = found.p_value, found.n
    best: tuple[float, ...] = (0.0,) * len(p_values)
    if family.adjustment == "holm":
        adjusted = holm([*p_values.values()])
        best = holm([smallest_p(n) for n in smallest.values()])
    else:
        p = [*p_values.values()]
        adjusted = tuple(map(float, false_discovery_control(p))) if p else ()
    q_values = dict(zip(p_values, zip(adjusted, best, strict=True), strict=True))
    judgements = {}
    for claim in family.claims:
        name, found = claim.name, findings[claim.name]
        q, possible = q_values.get(name, (None, 0.0))
        verdict, reason = _decide(found, claim.minimum, q, possible, family.fewest)
        finding = found if isinstance(found, Finding) else None
        judgements[name] = Judgement(name, verdict, reason, finding, q)
    return judgements


def _found(claim: Claim, tables: Mapping[str, Rows]) -> Finding | Observation | None:
    if claim.effect is None:
        return None
    try:
        return claim.effect.find_in(tables)
    except KeyError as error:
        raise StoreError(
            f"the claim {claim.name} needs the column {error.args[0]}, which the table of "
            f"{' or '.join(claim.studies)} lacks; remove the table to have it made anew"
        ) from error


def _decide(
    found: Finding | Observation | None,
    minimum: float,
    q: float | None,
    possible: float,
    fewest: int,
) -> tuple[Verdict, str]:
    """The verdict and its reason; ``possible`` is the smallest adjusted p that so few runs give."""
    if isinstance(found, Observation):
        return "supported" if found.holds else "not supported", found.text
    if found is not None and found.note is not None:
        return "inconclusive", found.note
    if found is None or not (sum(found.n) or found.censored):
        return "not run", "no run of it is there"
    if min(found.n, default=0) < fewest or found.seeds < fewest:
        runs = " and ".join(map(str, found.n))
        return "inconclusive", f"{runs} runs, {found.seeds} seeds; {fewest} of each are needed"
    if found.cells is not None and min(found.cells) < fewest:
        cells = " and ".join(map(str, found.cells))
        return "inconclusive", f"{cells} cells of equal settings; {fewest} are needed"
    if found.effect is None or found.high is None or q is None:
        return "inconclusive", "the number does not vary between these runs"
    other = found.effect if found.with_censored is None else found.with_censored
    unless = f"{other:+.2f} with the runs that did not converge"
    if q <= LEVEL and found.effect >= minimum:
        if other < minimum:
            return "inconclusive", unless
        return "supported", f"at least {minimum:.2g}, q <= {LEVEL:g}"
    holds = found.with_censored_p is None or found.with_censored_p <= LEVEL
    if q <= LEVEL and found.effect < 0 and other < 0 and holds:
        return "not supported", REVERSED
    if possible > LEVEL:
        return "inconclusive", TOO_FEW
    if found.high < minimum:
        if other >= minimum:
            return "inconclusive", unless
        return "not supported", f"the interval ends below {minimum:.2g}"
    chance = "there" if q <= LEVEL else f"q > {LEVEL:g}"
    return "inconclusive", f"{chance}, and the interval reaches {minimum:.2g}"
