"""Complexity-control paper, section VII, figure 7: SCAN, COGS, addition and PrOntoQA.

Every run over the number of training examples, with the means of both settings' four combinations.
The paper shows the first and the last of them.
"""

from collections.abc import Sequence
from statistics import mean

from matplotlib.figure import Figure

import section
from anchor_interp._util.errors import ConfigError
from anchor_interp.pages.style import QUALITATIVE, single
from papers.rows import Row, Rows, pairs_at_random, square_alone
from papers.section_7_runs import CORNERS

SHOWN = {
    "scan": {"ID": "id_accuracy", "turn left held out (OOD)": "ood_accuracy"},
    "cogs": {"ID": "id_accuracy", "lexical and structural (OOD)": "ood_accuracy"},
    "addition": {"square: ID": "id_accuracy", "inside the square (OOD)": "ood_accuracy"},
    "prontoqa": {"training": "train_accuracy", "new worlds (ID)": "id_accuracy"},
}
TITLES = {"scan": "SCAN", "cogs": "COGS", "addition": "addition", "prontoqa": "PrOntoQA"}


def draw(data: section.Data) -> section.Panels:
    """A row for each task that has runs; addition has a panel more, for random pairs."""
    panels = []
    for study, shown in SHOWN.items():
        rows = data.tables.get(study, ())
        of_task = {title: (square_alone(rows) if study == "addition" else rows, column)
                   for title, column in shown.items()}  # fmt: skip
        if study == "addition":
            of_task["pairs held out at random"] = (pairs_at_random(rows), "id_accuracy")
        if rows:
            panels.append(
                [
                    (f"{TITLES[study]}, {title}", over_data(study, *of))
                    for title, of in of_task.items()
                ]
            )
    if not panels:
        raise ConfigError(f"{data.place} has no table of {', '.join(SHOWN)}; run without --judge")
    return panels


def over_data(study: str, rows: Rows, column: str) -> Figure:
    """An accuracy of every run over the training examples, by gamma and weight decay."""
    of = CORNERS[study]
    corners = [(gamma, decay) for gamma in of.gammas for decay in of.decays]
    with single(3.4, 3.0) as figure:
        axes = figure.subplots()
        for (gamma, decay), colour in zip(corners, QUALITATIVE, strict=False):
            mine = [row for row in rows if (row["gamma"], row["weight_decay"]) == (gamma, decay)]
            points = [row for row in mine if row[column] is not None]
            sizes, values = ([row[name] for row in points] for name in ("n_sequences", column))
            axes.scatter(sizes, values, s=14, color=colour, alpha=0.5)
            label = f"$\\gamma$ {gamma:g}, decay {decay:g}"
            axes.plot(*_means(mine, column), color=colour, label=label)
        axes.set(xscale="log", ylim=(-0.03, 1.03), xlabel="training examples", ylabel="accuracy")
        axes.minorticks_off()
        ticks = sorted({row["n_sequences"] for row in rows})
        axes.set_xticks(ticks, [f"{size:,}" for size in ticks], fontsize=8)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=7)
    return figure


def _means(rows: Sequence[Row], column: str) -> tuple[list[int], list[float]]:
    """The sizes, and the means there."""
    values: dict[int, list[float]] = {}
    for row in rows:
        if row[column] is not None:
            values.setdefault(row["n_sequences"], []).append(row[column])
    return sorted(values), [mean(values[size]) for size in sorted(values)]


if __name__ == "__main__":
    section.main(draw)
