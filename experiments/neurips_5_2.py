"""NeurIPS paper, section 5.2: are vectors of equal answers and values parallel? (figure 4)."""

import section
from anchor_interp.analysis.similarity import answer_similarity, value_similarity
from anchor_interp.pages.mechanism_figures import similarity_map
from papers.figures import by_phase

NUMBERS = {"answer": "X_ao, last layer: contrast", "value": "OV from L1 on: contrast"}


def draw(data: section.Data) -> section.Panels:
    """Figure 4, and the contrasts of every run."""
    maps = []
    for name in ("inferential", "symmetric"):
        run = section.example(name)
        found = answer_similarity(run.model, run.config.anchor_task)
        maps.append(
            (f"X_ao L1, X^ao(2) in the paper, {name}", similarity_map(found, centred=False))
        )
    run = section.example("inferential")
    values = value_similarity(run.model, run.config.anchor_task)
    return [
        [*maps, ("V L1, V^(2) in the paper, inferential", similarity_map(values, centred=False))],
        [("every run", by_phase(data.random_settings(), NUMBERS))],
    ]


if __name__ == "__main__":
    section.main(draw)
