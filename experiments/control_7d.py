"""Complexity-control paper, section VII, figure 7D: language models of code, and code with prose.

Perplexity on held-out documents by the tokens that training has seen, for a large and a small
initialisation: every run, their means, and where these cross.
"""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

import section
from anchor_interp.pages.style import QUALITATIVE, panel
from papers.language_runs import GAMMAS, by_text, crossing, curve
from papers.rows import Rows


def draw(data: section.Data) -> section.Panels:
    """A panel for each text and number of its windows, two a row."""
    found = [
        (f"(D) {text}, {size:,} windows", curves(mine))
        for text, size, mine in by_text(data.rows("language"))
    ]
    return [found[start : start + 2] for start in range(0, len(found), 2)]


def curves(rows: Rows) -> Figure:
    """Perplexity by tokens seen at both initialisations."""
    found = crossing(rows)
    with panel(4.0, 3.4) as (figure, axes):
        for gamma, colour in zip(GAMMAS, QUALITATIVE, strict=False):
            mine = [curve(row) for row in rows if row["gamma"] == gamma]
            for tokens, losses in mine:
                axes.plot(tokens / 1e6, np.exp(losses), color=colour, alpha=0.3, linewidth=0.8)
            if mine:
                mean = np.exp(np.mean([losses for _, losses in mine], axis=0))
                axes.plot(mine[0][0] / 1e6, mean, color=colour, label=f"$\\gamma$ {gamma:g}")
        if found is not None:
            axes.axvline(found / 1e6, color="0.4", linewidth=0.8, label="the last crossing")
        axes.set(xscale="log", yscale="log", ylabel="perplexity, held out")
        axes.set_xlabel("tokens seen (millions)")
        axes.minorticks_off()
        for axis, digits in ((axes.xaxis, (1, 3)), (axes.yaxis, (1, 1.5, 2, 3, 5, 7))):
            axis.set_major_locator(LogLocator(subs=digits))
            axis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
    return figure
