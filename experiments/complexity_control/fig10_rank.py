"""Complexity-control paper, appendix C, figure 10: condensation over gamma and weight decay.

"As the initialization rate and weight decay coefficients increase, the model exhibits greater
condensation and reduced parameter complexity", "highly consistent with our stable rank findings".

The paper shows one matrix of cosines a cell and seed; this shows their mean absolute value over all
seeds, which is what the claim is about. The runs are those of figure 3 (``fig3_phases.py``).
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp.pages.style import panel
from claim_effects import Trend, values_of
from claims import Claim
from common import Panels
from complexity_control import AT_EQUAL_DECAY, KNOWN_PRE, over
from figure import main
from studies import Data

_GREATER = (
    "as the initialization rate and weight decay coefficients increase, the model exhibits greater "
    "condensation and reduced parameter complexity"
)
CLAIMS = [
    Claim("cc-gamma", "condensation grows with gamma",
        over("gamma", "condensation"), least=0.3, source="C appendix C, figure 10", quote=_GREATER,
        statistic="Spearman's correlation of gamma with condensation at equal weight decay in the "
        "grid, and over random settings", known=KNOWN_PRE),
    Claim("cc-decay", "condensation grows with weight decay",
        over("weight_decay", "condensation"), least=0.3, source="C appendix C, figure 10",
        quote=_GREATER,
        statistic="Spearman's correlation of weight decay with condensation at equal gamma in the "
        "grid, and over random settings", known=KNOWN_PRE),
    Claim("cc-rank", "condensation goes with a low stable rank",
        Trend("condensation", "rank_share", sign=-1, within=("normalization", "design"),
            **AT_EQUAL_DECAY | {"cluster": ()}), least=0.3, source="C VI-C, appendix C, figure 10",
        quote="the degree of parameter condensation under various configurations ... is highly "
        "consistent with our stable rank findings",
        statistic="Spearman's correlation of the stable rank over its initial value with "
        "condensation, signed as a fall, in the grid and over random settings",
        note="Added when these runs were known. The runs of a seed count as independent here.",
        follows="the definitions: both measure in how few directions neurons read",
        known=KNOWN_PRE),
]  # fmt: skip


def draw(data: Data) -> Panels:
    """Mean condensation of the cells of the grid, with the letters of the runs' phases."""
    return [[("condensation of W_Q L0, with the runs' phases", grid(data))]]


def grid(data: Data) -> Figure:
    """The grid's means."""
    rows = data.rows("decay")
    across, up = (sorted({row[name] for row in rows}) for name in ("gamma", "weight_decay"))
    means = np.zeros((len(up), len(across)))
    with panel(1.5 + 1.1 * len(across), 1.3 + 0.75 * len(up)) as (figure, axes):
        for j, i in np.ndindex(*means.shape):
            cell = [
                row for row in rows if (row["gamma"], row["weight_decay"]) == (across[i], up[j])
            ]
            means[j, i] = np.mean(values_of(cell, "condensation"))
            letters = "".join(sorted((row["phase"] or "?")[0].upper() for row in cell))
            axes.text(i, j, f"{means[j, i]:.2f}\n{letters}", ha="center", va="center", fontsize=8,
                      color="white" if means[j, i] < 0.55 else "black")  # fmt: skip
        image = axes.imshow(means, vmin=0, vmax=1, cmap="cividis", origin="lower", aspect="auto")
        axes.set_xticks(range(len(across)), [f"{value:g}" for value in across])
        axes.set_yticks(range(len(up)), [f"{value:g}" for value in up])
        axes.set(xlabel="gamma", ylabel="weight decay")
        figure.colorbar(image, ax=axes, label="condensation of W_Q L0, W_Q(1) in the paper")
    return figure


if __name__ == "__main__":
    raise SystemExit(main(__file__))
