"""NeurIPS paper, section 5.3: condensation of W_Q(1) and order in the embedding (figure 5)."""

from anchor_interp.models.complexity import cosine_matrix, first_query_matrix
from anchor_interp.models.embeddings import embedding_structure, key_embeddings
from anchor_interp.pages.mechanism_figures import condensation_map, embedding_plane
from papers.figures import by_phase
from section import Data, Panels, example, run_section

NUMBERS = {
    "condensation": "condensation",
    "embedding_smooth": "smooth share",
    "embedding_steps": "steps 3 and 4 (z)",
}


def draw(data: Data) -> Panels:
    """Figure 5, and the numbers of every run."""
    runs = {name: example(name) for name in ("inferential", "symmetric")}
    neurons = [
        (f"W_Q(1), {name}", condensation_map(cosine_matrix(first_query_matrix(run.model))))
        for name, run in runs.items()
    ]
    planes = [
        (
            f"embedding, {name}",
            embedding_plane(
                embedding_structure(key_embeddings(run.model, run.config.task)),
                run.config.task.keys.tolist(),
            ),
        )
        for name, run in runs.items()
    ]
    return [neurons, planes, [("every run", by_phase(data.rows("phases"), NUMBERS))]]


if __name__ == "__main__":
    raise SystemExit(run_section("neurips_5_3", "NeurIPS paper, section 5.3", ["phases"], draw))
