"""NeurIPS paper, appendix B: eigenvalues of the embedding's covariance (figure 7)."""

import section
from anchor_interp.models.embeddings import covariance_eigenvalues, key_embeddings
from papers.figures import by_phase, curves

NUMBERS = {"embedding_dimension": "dimension / Gaussian's", "embedding_smooth": "smooth share"}


def draw(data: section.Data) -> section.Panels:
    """Figure 7: eigenvalues before and after training, and the dimension of every run."""
    panels = []
    for name in ("inferential", "symmetric"):
        run = section.example(name)
        lines = {}
        for when, model in (("before training", run.initial), ("after", run.model)):
            if model is not None:
                found = covariance_eigenvalues(key_embeddings(model, run.config.anchor_task))
                lines[when] = (found / found.sum())[:40]
        panels.append((name, curves(lines, "eigenvalue (sorted)", "share of the variance")))
    return [panels, [("every run", by_phase(data.random_settings(), NUMBERS))]]


if __name__ == "__main__":
    section.main(draw)
