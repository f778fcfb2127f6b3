"""Complexity-control paper, section VI-B: order in the embedding (figure 5B), and moved anchors.

The paper sees steps of 3 and 4, of which the anchors' differences are sums. If that is why, anchors
whose differences are sums of 2 and 5 must give steps of 2 and 5.
"""

from anchor_interp.models.embeddings import embedding_structure, key_embeddings
from anchor_interp.pages.mechanism_figures import embedding_plane
from papers.figures import by_phase, strips
from section import Data, Panels, example, run_section

STEPS = (2, 3, 4, 5)


def draw(data: Data) -> Panels:
    """Figure 5B, the steps of every run, and the steps that moved."""
    planes = []
    for recipe in ("memorizing", "symmetric", "inferential"):
        run = example(recipe)
        found = embedding_structure(key_embeddings(run.model, run.config.task))
        planes.append((recipe, embedding_plane(found, run.config.task.keys.tolist())))
    rows = data.rows("steps")
    moved = []
    for title, own in (("differences of 3 and 4", True), ("differences of 2 and 5", False)):
        mine = [row for row in rows if (row["task"] == "complexity-control") == own]
        values = {
            f"step {n}": [z for row in mine if (z := row.get(f"step_z_{n}")) is not None]
            for n in STEPS
        }
        moved.append((title, strips(values, "closeness beyond smooth (z)", reference=0)))
    numbers = {"embedding_steps": "steps 3 and 4 (z)", "embedding_smooth": "smooth share"}
    return [planes, [("every run", by_phase(data.rows("phases"), numbers)), *moved]]


if __name__ == "__main__":
    title = "Complexity-control paper, section VI-B"
    raise SystemExit(run_section("control_6b", title, ["phases", "steps"], draw))
