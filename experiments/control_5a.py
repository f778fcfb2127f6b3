"""Complexity-control paper, section V-A: outputs while the key is masked (figure 4C)."""

import section
from anchor_interp.analysis.clusters import key_mask_clusters
from anchor_interp.pages.mechanism_figures import cluster_map
from papers.figures import by_phase

NUMBERS = {"key_mask_pairs": "silhouette of pairs", "key_mask_order": "silhouette of orders"}


def draw(data: section.Data) -> section.Panels:
    """Figure 4C, and the silhouettes of every run."""
    clusters = []
    for recipe in ("memorizing", "composite", "symmetric"):
        run = section.example(recipe)
        found = key_mask_clusters(run.model, run.config.anchor_task, tsne=True)
        clusters.append((recipe, cluster_map(found)))
    return [clusters, [("every run", by_phase(data.random_settings(), NUMBERS))]]


if __name__ == "__main__":
    section.main(draw)
