"""Complexity-control paper, section IV: phases over gamma and weight decay (figure 3)."""

import section
from anchor_interp.pages.diagram_curves import along_axis
from anchor_interp.pages.diagram_maps import accuracy_map, phase_map
from anchor_interp.sweeps.diagrams import phase_diagrams
from papers.figures import by_phase
from papers.rows import having

NUMBERS = {"gamma": "gamma", "commutativity": "commutativity"}


def draw(data: section.Data) -> section.Panels:
    """Figure 3A at weight decay 0.01, figure 3B, and the runs that judge the claims on phases."""
    rows = data.rows("decay")
    line = phase_diagrams(rows, x="gamma", where={"weight_decay": (0.01,)}).diagrams[0]
    plane = phase_diagrams(rows, x="gamma", y="weight_decay").diagrams[0]
    judging = [*filter(having(task="complexity-control"), data.random_settings())]
    return [
        [("weight decay 0.01", along_axis(line))],
        [("OOD accuracy", accuracy_map(plane, "ood_accuracy"))],
        [("phase of every run of this grid", phase_map(plane))],
        [("random settings, which judge the claims on phases", by_phase(judging, NUMBERS))],
    ]


if __name__ == "__main__":
    section.main(draw)
