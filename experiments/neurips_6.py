"""NeurIPS paper, section 6: steps to fit data of growing inferential complexity (figure 6)."""

from functools import partial

from matplotlib.figure import Figure

import section
from papers.figures import against
from papers.measures import LEVELS
from papers.rows import never_came, steps_to


def speed(data: section.Data, column: str) -> Figure:
    """Steps to a training loss over complexity, one line a size of the initialisation."""
    return against(
        data.rows("complexity"),
        "complexity",
        partial(steps_to, column=column),
        "gamma",
        labels=("groups of pairs that break the rule", f"steps to a loss of {LEVELS[column]}"),
        name=lambda gamma: f"gamma {gamma:g}",
        bound=never_came(column),
    )


def draw(data: section.Data) -> section.Panels:
    """Figure 6, at the paper's loss and at one that large initialisations come to as well."""
    return [[(f"to a loss of {level}", speed(data, column)) for column, level in LEVELS.items()]]


if __name__ == "__main__":
    section.main(draw)
