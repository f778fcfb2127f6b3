"""NeurIPS paper, section 5.3: condensation of W_Q(1) and order in the embedding (figure 5)."""

import section
from control_6a import condensation_panel
from control_6b import embedding_panel
from papers.figures import by_phase

NUMBERS = {
    "condensation": "condensation",
    "embedding_smooth": "smooth share",
    "embedding_steps": "steps 3 and 4 (z)",
}


def draw(data: section.Data) -> section.Panels:
    """Figure 5, and the numbers of every run."""
    names = ("inferential", "symmetric")
    return [
        [(f"W_Q L0, W_Q(1) in the paper, {name}", condensation_panel(name)) for name in names],
        [(f"embedding, {name}", embedding_panel(name)) for name in names],
        [("every run", by_phase(data.random_settings(), NUMBERS))],
    ]


if __name__ == "__main__":
    section.main(draw)
