"""NeurIPS paper, section 6: steps to fit data of growing inferential complexity (figure 6)."""

from typing import TYPE_CHECKING

from papers.figures import against, steps_or_bound
from section import Data, Panels, run_section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = {"steps_to_loss": "0.05", "steps_to_half": "0.5"}
"""Columns of steps, by the training loss that they lead to."""


def speed(data: Data, column: str) -> "Figure":
    """Steps to a training loss over complexity, one line a size of the initialisation."""
    return against(
        data.rows("complexity"),
        "complexity",
        lambda row: steps_or_bound(row, column),
        "gamma",
        labels=("groups of pairs that break the rule", f"steps to a loss of {LEVELS[column]}"),
        log=True,
        name=lambda gamma: f"gamma {gamma:g}",
        bound=lambda row: row.get(column) is None,
    )


def draw(data: Data) -> Panels:
    """Figure 6, at the paper's loss and at one that large initialisations come to as well."""
    return [[(f"to a loss of {LEVELS[column]}", speed(data, column)) for column in LEVELS]]


if __name__ == "__main__":
    raise SystemExit(run_section("neurips_6", "NeurIPS paper, section 6", ["complexity"], draw))
