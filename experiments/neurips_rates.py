"""Learning rate x weight decay (the first paper's later version)."""

import section
from papers.figures import grid


def draw(data: section.Data) -> section.Panels:
    """OOD accuracy over both, and the phases of the runs."""
    labels = ("learning rate", "weight decay", "OOD accuracy")
    figure = grid(data.rows("rates"), "lr", "weight_decay", "ood_accuracy", labels=labels)
    return [[("OOD accuracy, with the runs' phases", figure)]]


if __name__ == "__main__":
    section.main(draw)
