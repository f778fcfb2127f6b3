"""Complexity-control paper, section VI-B: order in the embedding (figure 5B), and moved anchors.

The paper sees steps of 3 and 4, of which the anchors' differences are sums. If that is why, anchors
whose differences are sums of 2 and 5 must give steps of 2 and 5.
"""

from matplotlib.figure import Figure

import section
from anchor_interp.models.embeddings import embedding_structure, key_embeddings
from anchor_interp.pages.mechanism_figures import embedding_plane
from papers.figures import by_phase, strips

NUMBERS = {"embedding_steps": "steps 3 and 4 (z)", "embedding_smooth": "smooth share"}


def embedding_panel(recipe: str) -> Figure:
    """The embedded keys of a specimen in their first two components."""
    run = section.example(recipe)
    found = embedding_structure(key_embeddings(run.model, run.config.anchor_task))
    return embedding_plane(found, run.config.anchor_task.keys.tolist())


def draw(data: section.Data) -> section.Panels:
    """Figure 5B, the steps of every run, and the steps that moved."""
    recipes = ("memorizing", "symmetric", "inferential")
    moved = []
    for title, own in (("differences of 3 and 4", True), ("differences of 2 and 5", False)):
        mine = [r for r in data.rows("steps") if (r["task"] == "complexity-control") == own]
        values = {
            f"step {n}": [z for row in mine if (z := row.get(f"step_z_{n}")) is not None]
            for n in (2, 3, 4, 5)
        }
        moved.append((title, strips(values, "closeness beyond smooth (z)", reference=0)))
    drawn = [(recipe, embedding_panel(recipe)) for recipe in recipes]
    drawn += [("every run", by_phase(data.random_settings(), NUMBERS)), *moved]
    return [drawn[:2], drawn[2:4], drawn[4:]]


if __name__ == "__main__":
    section.main(draw)
