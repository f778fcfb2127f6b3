"""Forest plots of the claims of all scripts, in units of the smallest effect that counts."""

import itertools
import re
from collections.abc import Mapping, Sequence
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from anchor_interp.pages.style import INK, panel
from claims import Claim, Judgement, claims_of, scripts
from common import Panels

REALISTIC = ("fig6_concepts", "fig7_tasks", "fig7d_language", "across_tasks")
STYLES = {
    "supported": ("#009E73", "o"), "mixed": ("#CC79A7", "P"), "not supported": ("#D55E00", "X"),
    "reversed": ("#8C2D04", "v"), "inconclusive": ("#E69F00", "s"),
    "not answerable here": ("#0072B2", "^"), "nothing comparable": ("#56B4E9", "d"),
}  # fmt: skip
_MOST, _EDGE = 8.0, 1.1  # effects are cut at so many smallest effects, arrowheads stand beyond
_OURS = Line2D(
    [], [], label="hollow: our own claim", marker="o", ls="none", color=INK, mfc="white", mew=1.3
)


def forests(judged: Mapping[str, Judgement]) -> dict[str, Panels]:
    """The forest plots by name, in two columns: anchor tasks, and realistic ones."""
    anchors, realistic = list[tuple[str, Claim]](), list[tuple[str, Claim]]()
    for name, script in scripts().items():
        for claim in claims_of(script):
            finding = judged[claim.name].finding
            # what follows from something is true by definition
            if finding and finding.found and not (claim.later or claim.follows):
                shown = realistic if name.endswith(REALISTIC) else anchors
                shown.append((_heading(name, script.__doc__ or ""), claim))

    def plot(title: str, claims: Sequence[tuple[str, Claim]]) -> Panels:
        half = -(-len(claims) // 2)
        return [[(title, forest(claims[:half], judged)), ("", forest(claims[half:], judged))]]

    return {"forest_anchors": plot("anchor tasks", anchors),
            "forest_realistic": plot("realistic tasks", realistic)}  # fmt: skip


def _heading(name: str, about: str) -> str:
    """Such as ``NeurIPS, figure 3``; a question by its script's name."""
    figure = re.search(r"figure \d+", about.partition("\n\n")[0])
    paper = "NeurIPS" if name.startswith("neurips") else "complexity control"
    if name.startswith("questions") or figure is None:
        return name.partition("/")[2].replace("_", " ")
    return f"{paper}, {figure[0]}"


def forest(claims: Sequence[tuple[str, Claim]], judged: Mapping[str, Judgement]) -> Figure:
    """Every claim's effect with its interval, in units of the smallest effect that counts.

    Each claim has a line, with its words on the left, below its heading, such as a paper's figure.
    A filled mark is a paper's claim, a hollow one our own. An arrowhead is where something goes on
    beyond the axis.
    """
    lines: list[tuple[str, Claim | None]] = []  # from the top
    for heading, group in itertools.groupby(claims, lambda one: one[0]):
        lines += [(heading, None), *(("\n".join(wrap(c.short, 30)), c) for _, c in group)]
    heights = np.array([0.07 + 0.16 * (1 + words.count("\n")) for words, _ in lines])
    places = -np.cumsum(heights) + heights / 2
    present = {judged[claim.name].verdict for _, claim in claims}
    with panel(5.0, 1.3 + heights.sum()) as (figure, axes):
        for (words, claim), place, height in zip(lines, places, heights, strict=True):
            if claim is None:
                axes.axhspan(place - height / 2, place + height / 2, color=INK, alpha=0.09, lw=0)
                axes.annotate(words, (0, place), (4, 0), ("axes fraction", "data"),
                              "offset points", va="center", weight="bold", size=9)  # fmt: skip
            else:
                _effect(axes, claim, judged[claim.name], place, height)
        axes.set(ylim=(-heights.sum(), 0), xlim=(-1.15 * _MOST, 1.15 * _MOST))
        axes.set_yticks(places, [words if claim else "" for words, claim in lines])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("0: no effect\n1 (dotted): as large as counts")
        handles = [Line2D([], [], color=colour, marker=mark, linestyle="none", label=verdict)
                   for verdict, (colour, mark) in STYLES.items() if verdict in present]  # fmt: skip
        handles += [_OURS] * any(claim.ours for _, claim in claims)
        figure.legend(
            handles=handles, loc="outside upper center", ncols=2, frameon=False, fontsize=10
        )
    return figure


def _effect(axes: Axes, claim: Claim, judged: Judgement, place: float, height: float) -> None:
    """A claim's effect and interval on its line, beside 0 and the smallest effect that counts."""
    assert judged.finding is not None
    assert judged.finding.found is not None
    found, (colour, mark) = judged.finding.found, STYLES[judged.verdict]
    low, middle, high = (
        max(-_MOST, min(_MOST, value / (claim.least or 0.1)))
        for value in (found.low, found.effect, found.high)
    )
    for x, style in ((0, "-"), (1, ":")):
        ends = [place - 0.45 * height, place + 0.45 * height]
        axes.plot([x, x], ends, style, color=INK, lw=0.7, alpha=0.6, zorder=0)
    axes.plot([low, high], [place, place], color=colour, linewidth=1.8, zorder=1)
    face = "white" if claim.ours else colour
    axes.plot(middle, place, mark, color=colour, mfc=face, mew=1.3, ms=7)
    for end in {low, high} & {-_MOST, _MOST}:
        axes.plot(_EDGE * end, place, "<" if end < 0 else ">", color=colour, ms=4, clip_on=False)
