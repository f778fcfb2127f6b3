"""NeurIPS paper, section 5.1: information flow in symmetric and inferential models (figure 3)."""

from anchor_interp.analysis.clusters import pair_clusters
from anchor_interp.analysis.flow import information_flow
from anchor_interp.pages import mechanism_figures as plotting
from anchor_interp.tasks.sequences import PROBE, PROBE_POSITION
from papers.figures import by_phase
from section import Data, Panels, example, run_section

NUMBERS = {
    "route_symmetric": "symmetric route",
    "route_inferential": "inferential route",
    "order_first": "order in X^ao(1)",
}


def draw(data: Data) -> Panels:
    """Figure 3, and the routes of every run."""
    symmetric, inferential = example("neurips-symmetric"), example("inferential")
    flows = [
        (
            title,
            plotting.information_flow(information_flow(run.model, PROBE, position=PROBE_POSITION)),
        )
        for title, run in (("symmetric", symmetric), ("inferential", inferential))
    ]
    points = pair_clusters(symmetric.model, symmetric.config.task, n=2_000, centre=False, tsne=True)
    clusters = ("X^ao(1), t-SNE, symmetric", plotting.cluster_map(points))
    return [
        [flows[0], clusters],
        [flows[1]],
        [("every run", by_phase(data.rows("phases"), NUMBERS))],
    ]


if __name__ == "__main__":
    raise SystemExit(run_section("neurips_5_1", "NeurIPS paper, section 5.1", ["phases"], draw))
