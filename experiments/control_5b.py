"""Complexity-control paper, section V-B: outputs while the second anchor is masked (figure 4D)."""

import section
from anchor_interp.analysis.similarity import block_similarity
from anchor_interp.pages.mechanism_figures import similarity_map
from papers.figures import by_phase


def draw(data: section.Data) -> section.Panels:
    """Figure 4D, and the blocks' contrast of every run."""
    maps = []
    for recipe in ("composite", "symmetric", "inferential"):
        run = section.example(recipe)
        found = block_similarity(run.model, run.config.anchor_task)
        maps.append((recipe, similarity_map(found, centred=False)))
    runs = by_phase(data.random_settings(), {"blocks": "blocks: contrast"})
    return [maps, [("every run", runs)]]


if __name__ == "__main__":
    section.main(draw)
