"""NeurIPS paper, section 4: which answer the unseen pair gets, over gamma and depth (figure 2)."""

import section
from anchor_interp.pages.diagram_maps import accuracy_map, phase_map
from anchor_interp.sweeps.diagrams import phase_diagrams


def draw(data: section.Data) -> section.Panels:
    """Figure 2, and the phase of every run."""
    diagram = phase_diagrams(data.rows("depth"), x="gamma", y="n_layers").diagrams[0]
    return [
        [("symmetric answers", accuracy_map(diagram, "symmetric_accuracy"))],
        [("inferential answers", accuracy_map(diagram, "ood_accuracy"))],
        [("phase of every run", phase_map(diagram))],
    ]


if __name__ == "__main__":
    section.main(draw)
