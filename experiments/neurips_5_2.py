"""NeurIPS paper, section 5.2: are vectors of equal answers and values parallel? (figure 4)."""

from anchor_interp.analysis.similarity import answer_similarity, value_similarity
from anchor_interp.pages.mechanism_figures import similarity_map
from papers.figures import by_phase
from section import Data, Panels, example, run_section

NUMBERS = {"answer": "X^ao(L): contrast", "value": "OV from layer 2: contrast"}


def draw(data: Data) -> Panels:
    """Figure 4, and the contrasts of every run."""
    inferential, symmetric = example("inferential"), example("symmetric")
    maps = [
        (title, similarity_map(answer_similarity(run.model, run.config.task), centred=False))
        for title, run in (("X^ao(2), inferential", inferential), ("X^ao(2), symmetric", symmetric))
    ]
    values = value_similarity(inferential.model, inferential.config.task)
    return [
        [*maps, ("V^(2), inferential", similarity_map(values, centred=False))],
        [("every run", by_phase(data.rows("phases"), NUMBERS))],
    ]


if __name__ == "__main__":
    raise SystemExit(run_section("neurips_5_2", "NeurIPS paper, section 5.2", ["phases"], draw))
