"""Complexity-control paper, section VII, figure 7: SCAN, COGS, addition and PrOntoQA.

Every run over the number of training examples, with the means of both settings' four combinations.
The paper shows the first and the last of them, and PrOntoQA's epochs to fit (7E).
"""

import math
from collections.abc import Callable
from operator import itemgetter
from statistics import mean

from matplotlib.figure import Figure

import section
from anchor_interp._util.errors import ConfigError
from anchor_interp.pages.style import INK, QUALITATIVE, legend_below, plain_ticks, single
from papers.rows import (
    Row,
    Rows,
    Test,
    having,
    log_epochs,
    never,
    never_came,
    pairs_at_random,
    square_alone,
)
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
    for (study, shown), letter in zip(SHOWN.items(), "ABC ", strict=True):
        if not (rows := data.tables.get(study, ())):
            continue
        of_task = {title: (square_alone(rows) if study == "addition" else rows, column)
                   for title, column in shown.items()}  # fmt: skip
        if study == "addition":
            of_task["at random (ID)"] = (pairs_at_random(rows), "id_accuracy")
        begin = f"({letter}) {TITLES[study]}" if letter.strip() else TITLES[study]
        panels.append([
            (f"{begin}, {title}", over_data(study, mine, itemgetter(column)))
            for title, (mine, column) in of_task.items()
        ])  # fmt: skip
        if study == "prontoqa":
            panels[-1].append(("(E) epochs to fit", epochs(rows)))
    if not panels:
        raise ConfigError(f"{data.place} has no table of {', '.join(SHOWN)}; run without --judge")
    return panels


def epochs(rows: Rows) -> Figure:
    """Passes over the data until the training loss is 0.05 (figure 7E)."""

    def passes(row: Row) -> float | None:
        return None if (found := log_epochs(row)) is None else math.exp(found)

    return over_data(
        "prontoqa", rows, passes, never_came("steps_to_loss"), "epochs to a loss of 0.05"
    )


def over_data(
    study: str, rows: Rows, value: Callable[[Row], float | None], bound: Test = never,
    label: str = "accuracy",
) -> Figure:  # fmt: skip
    """A number of every run over the training examples, by gamma and weight decay.

    A bar is a mean. Runs whose number is a lower ``bound`` are hollow, and have no mean.
    """
    of, sizes = CORNERS[study], sorted({row["n_sequences"] for row in rows})
    corners = [(gamma, decay) for gamma in of.gammas for decay in of.decays]
    with single(3.5, 3.3) as figure:
        axes = figure.subplots()
        for index, ((gamma, decay), colour) in enumerate(zip(corners, QUALITATIVE, strict=False)):
            label_of = f"$\\gamma$ {gamma:g}, decay {decay:g}"
            axes.plot([], [], "o", color=colour, label=label_of)
            for place, size in enumerate(sizes):
                mine = filter(having(gamma=gamma, weight_decay=decay, n_sequences=size), rows)
                points = [(v, bound(row)) for row in mine if (v := value(row)) is not None]
                at = place + 0.19 * (index - 1.5)
                for number, is_bound in points:
                    face = "none" if is_bound else colour
                    axes.plot(at, number, "o", color=colour, mfc=face, ms=4, alpha=0.7)
                if points and not any(is_bound for _, is_bound in points):
                    middle = mean(number for number, _ in points)
                    axes.plot([at - 0.08, at + 0.08], [middle] * 2, color=colour, lw=2)
        if any(bound(row) for row in rows):
            axes.plot([], [], "o", color=INK, mfc="none", label="hollow: lower bound")
        axes.set(xlabel="training examples", ylabel=label)
        if label == "accuracy":
            axes.set(ylim=(-0.03, 1.03))
        else:
            axes.set(yscale="log")
            plain_ticks(axes.yaxis)
        axes.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes], fontsize=8)
        axes.grid(alpha=0.25, axis="y")
        legend_below(figure, axes, columns=2)
    return figure
