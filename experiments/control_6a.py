"""Complexity-control paper, section VI-A: condensation of W_Q(1), phase by phase (figure 5A)."""

from matplotlib.figure import Figure

import section
from anchor_interp.models.complexity import first_query_matrix
from anchor_interp.models.matrices import cosine_matrix
from anchor_interp.pages.mechanism_figures import condensation_map
from papers.figures import by_phase

NUMBERS = {"condensation": "mean |cosine|", "rank_share": "stable rank / initial"}


def condensation_panel(recipe: str) -> Figure:
    """The cosines between the neurons of W_Q(1) in a specimen."""
    return condensation_map(cosine_matrix(first_query_matrix(section.example(recipe).model)))


def draw(data: section.Data) -> section.Panels:
    """Figure 5A, and the condensation of every run."""
    recipes = ("memorizing", "symmetric", "inferential")
    maps = [(recipe, condensation_panel(recipe)) for recipe in recipes]
    return [maps, [("every run", by_phase(data.random_settings(), NUMBERS))]]


if __name__ == "__main__":
    section.main(draw)
