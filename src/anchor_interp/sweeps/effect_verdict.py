"""The verdict on an effect: whether its runs show it, exclude it or leave it open."""

from typing import Literal

from anchor_interp._util.rounding import as_large
from anchor_interp._util.statistics import POWER, Estimate

Support = Literal[
    "supported", "not supported", "reversed", "inconclusive", "nothing comparable",
    "not answerable here",
]  # fmt: skip
LEVEL = 0.05  # largest p of an effect that is there


def judge_effect(
    estimate: Estimate, least: float, p: float | None = None, unfitted: Estimate | None = None
) -> tuple[Support, str]:
    """The verdict on an effect, positive as claimed, and its reason; ``p`` may be an adjusted one.

    An effect that is there, by p and by its interval, decides, whichever way it points. Runs that
    could not find the least effect that counts decide nothing else. A least effect of 0 asks for
    the direction alone. Where ``unfitted``, the effect with the runs that did not converge, is on
    the other side of the least, or no longer there the other way round, nothing is decided.
    """
    verdict, reason = _judge(estimate, least, estimate.p if p is None else p)
    if unfitted is None:
        return verdict, reason
    small = unfitted.effect < least
    other_way = unfitted.effect < 0 and unfitted.p <= LEVEL
    if {"supported": small, "not supported": not small, "reversed": not other_way}.get(verdict):
        return "inconclusive", f"{amount(unfitted.effect)} with the runs that did not converge"
    return verdict, reason


def amount(effect: float) -> str:
    """An effect with its sign: two decimals, or two digits if that is more."""
    return f"{effect:+.2f}" if abs(effect) >= 0.1 or effect == 0 else f"{effect:+.2g}"


def _judge(estimate: Estimate, least: float, p: float) -> tuple[Support, str]:
    counts, may_count = (as_large(n, least, size=least) for n in (estimate.effect, estimate.high))
    if p <= LEVEL and counts and estimate.low > 0:
        return "supported", f"at least {least:.2g}, with p <= {LEVEL:g}"
    if p <= LEVEL and estimate.high < 0:
        return "reversed", "the effect is the other way round"
    if least and estimate.finds > least:
        return "not answerable here", (
            f"too few runs: an effect of {estimate.finds:.2g} is found with {POWER:.0%}; for "
            f"{least:.2g}, which counts, it takes {(estimate.finds / least) ** 2:.1f} times as many"
        )
    if not may_count:
        return "not supported", f"the interval ends below {least:.2g}, the least that counts"
    if p <= LEVEL:
        return "inconclusive", f"it is there, and perhaps as large as {least:.2g}, which counts"
    return "inconclusive", f"p > {LEVEL:g}, and the interval reaches {least:.2g}, which counts"
