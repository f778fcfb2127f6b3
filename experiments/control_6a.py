"""Complexity-control paper, section VI-A: condensation of W_Q(1), phase by phase (figure 5A)."""

from anchor_interp.models.complexity import cosine_matrix, first_query_matrix
from anchor_interp.pages.mechanism_figures import condensation_map
from papers.figures import by_phase
from section import Data, Panels, example, run_section


def draw(data: Data) -> Panels:
    """Figure 5A, and the condensation of every run."""
    maps = [
        (recipe, condensation_map(cosine_matrix(first_query_matrix(example(recipe).model))))
        for recipe in ("memorizing", "symmetric", "inferential")
    ]
    numbers = {"condensation": "mean |cosine|", "rank_share": "stable rank / initial"}
    return [maps, [("every run", by_phase(data.rows("phases"), numbers))]]


if __name__ == "__main__":
    raise SystemExit(
        run_section("control_6a", "Complexity-control paper, section VI-A", ["phases"], draw)
    )
