"""Complexity-control paper, appendix C: condensation over gamma and weight decay (figure 10).

The paper shows one matrix of cosines a cell and seed; this shows their mean absolute value, which
is what the claim is about, over all seeds.
"""

from papers.figures import grid
from section import Data, Panels, run_section


def draw(data: Data) -> Panels:
    """Mean condensation of every cell, with the phases of its runs."""
    labels = ("gamma", "weight decay", "condensation of W_Q(1)")
    figure = grid(data.rows("decay"), "gamma", "weight_decay", "condensation", labels=labels)
    return [[("condensation, with the runs' phases", figure)]]


if __name__ == "__main__":
    raise SystemExit(
        run_section("control_c", "Complexity-control paper, appendix C", ["decay"], draw)
    )
