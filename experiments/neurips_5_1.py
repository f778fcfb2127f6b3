"""NeurIPS paper, section 5.1: information flow in symmetric and inferential models (figure 3)."""

from matplotlib.figure import Figure

import section
from anchor_interp.analysis.clusters import pair_clusters
from anchor_interp.analysis.flow import information_flow
from anchor_interp.pages import mechanism_figures as plotting
from anchor_interp.runs.run import Run
from anchor_interp.tasks.sequences import PROBE, PROBE_POSITION
from papers.figures import by_phase

NUMBERS = {
    "route_symmetric": "symmetric route",
    "route_inferential": "inferential route",
    "order_first": "order in X_ao L0\n(X^ao(1) in the paper)",
}


def flow(run: Run) -> Figure:
    """The information flow of the papers' probe sequence."""
    return plotting.information_flow(information_flow(run.model, PROBE, position=PROBE_POSITION))


def draw(data: section.Data) -> section.Panels:
    """Figure 3, and the routes of every run."""
    symmetric, inferential = section.example("neurips-symmetric"), section.example("inferential")
    points = pair_clusters(
        symmetric.model, symmetric.config.anchor_task, n=2_000, centre=False, tsne=True
    )
    clusters = ("X_ao L0 (X^ao(1) in the paper), symmetric", plotting.cluster_map(points))
    return [
        [("symmetric", flow(symmetric)), clusters],
        [("inferential", flow(inferential))],
        [("every run", by_phase(data.random_settings(), NUMBERS))],
    ]


if __name__ == "__main__":
    section.main(draw)
