"""Complexity-control paper, appendix C: condensation over gamma and weight decay (figure 10).

The paper shows one matrix of cosines a cell and seed; this shows their mean absolute value, which
is what the claim is about, over all seeds.
"""

import section
from papers.figures import grid


def draw(data: section.Data) -> section.Panels:
    """Mean condensation of every cell, with the phases of its runs."""
    labels = ("gamma", "weight decay", "condensation of W_Q L0, W_Q(1) in the paper")
    figure = grid(data.rows("decay"), "gamma", "weight_decay", "condensation", labels=labels)
    return [[("condensation, with the runs' phases", figure)]]


if __name__ == "__main__":
    section.main(draw)
