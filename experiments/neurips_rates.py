"""Learning rate x weight decay (the first paper's later version)."""

from papers.figures import grid
from section import Data, Panels, run_section


def draw(data: Data) -> Panels:
    """OOD accuracy over both, and the phases of the runs."""
    labels = ("learning rate", "weight decay", "OOD accuracy")
    figure = grid(data.rows("rates"), "lr", "weight_decay", "ood_accuracy", labels=labels)
    return [[("OOD accuracy, with the runs' phases", figure)]]


if __name__ == "__main__":
    raise SystemExit(
        run_section("neurips_rates", "Learning rate and weight decay", ["rates"], draw)
    )
