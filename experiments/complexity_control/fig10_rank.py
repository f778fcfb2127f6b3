"""Complexity-control paper, appendix C, figure 10: condensation over gamma and weight decay.

"As the initialization rate and weight decay coefficients increase, the model exhibits greater
condensation and reduced parameter complexity", "highly consistent with our stable rank findings".

The paper shows one matrix of cosines a cell and seed; this shows their mean absolute value over all
seeds, which is what the claim is about. The runs are those of figure 3 (``fig3_phases.py``).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from claims import Claim
from common import main
from complexity_control import AT_EQUAL_DECAY, AT_EQUAL_GAMMA, KNOWN_PRE
from effects import Trend

CLAIMS = [
    Claim(
        "cc-gamma", "condensation grows with gamma",
        Trend("condensation", "gamma", within=("normalization", "held"), **AT_EQUAL_DECAY),
        least=0.3, source="C appendix C, figure 10",
        quote="as the initialization rate and weight decay coefficients increase, the model "
        "exhibits greater condensation and reduced parameter complexity",
        statistic="Spearman's correlation of gamma with condensation at equal weight decay in "
        "the grid, and over random settings",
        known=KNOWN_PRE,
    ),
    Claim(
        "cc-decay", "condensation grows with weight decay",
        Trend("condensation", "weight_decay", within=("normalization", "held"), **AT_EQUAL_GAMMA),
        least=0.3, source="C appendix C, figure 10",
        quote="as the initialization rate and weight decay coefficients increase, the model "
        "exhibits greater condensation and reduced parameter complexity",
        statistic="Spearman's correlation of weight decay with condensation at equal gamma in "
        "the grid, and over random settings",
        known=KNOWN_PRE,
    ),
    Claim(
        "cc-rank", "condensation goes with a low stable rank",
        Trend("condensation", "rank_share", sign=-1, within=("normalization", "design"),
              **AT_EQUAL_DECAY | {"cluster": ()}),
        least=0.3, source="C VI-C, appendix C, figure 10",
        quote="the degree of parameter condensation under various configurations ... is highly "
        "consistent with our stable rank findings",
        statistic="Spearman's correlation of the stable rank over its initial value with "
        "condensation, signed as a fall, in the grid and over random settings",
        note="Added when these runs were known. The runs of a seed count as independent here.",
        known=KNOWN_PRE,
    ),
]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(__file__))
