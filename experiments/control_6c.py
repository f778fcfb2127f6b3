"""Complexity-control paper, section VI-C: stable rank over gamma and weight decay (figure 5C)."""

import section
from anchor_interp.pages.diagram_maps import rank_map
from anchor_interp.sweeps.diagrams import phase_diagrams
from papers.figures import by_phase

NUMBERS = {"stable_rank": "stable rank", "rank_share": "over the initial one"}


def draw(data: section.Data) -> section.Panels:
    """Figure 5C, and the stable rank by phase: on the grid, and of the runs that judge."""
    rows = data.rows("decay")
    plane = phase_diagrams(rows, x="gamma", y="weight_decay").diagrams[0]
    return [
        [("stable rank of W_Q L0, W_Q(1) in the paper", rank_map(plane, "stable_rank"))],
        [("every run of this grid", by_phase(rows, NUMBERS))],
        [("random settings, which judge the claims", by_phase(data.random_settings(), NUMBERS))],
    ]


if __name__ == "__main__":
    section.main(draw, "decay")
