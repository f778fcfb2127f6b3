"""Complexity-control paper, section VII, figure 7: SCAN, COGS, addition and PrOntoQA.

Every run over the number of training examples, with means: first the paper's two corners, on which
the claims on SCAN, COGS and a held-out square are judged, then all four combinations of both
settings. The paper shows the first and the last of these, and PrOntoQA's epochs to fit (7E).
"""

import math
from collections.abc import Callable
from operator import itemgetter
from statistics import mean

from matplotlib.figure import Figure

import section
from anchor_interp._util.errors import ConfigError
from anchor_interp.pages.style import INK, QUALITATIVE, legend_below, panel, plain_ticks
from papers.rows import (
    Row,
    Rows,
    Test,
    log_epochs,
    matching,
    never,
    never_came,
    pairs_at_random,
    square_alone,
)
from papers.section_7_runs import FITTED

_SCAN = {"ID": "id_accuracy", "turn left held out (OOD)": "ood_accuracy"}
_COGS = {"ID": "id_accuracy", "OOD": "ood_accuracy"}
_SQUARE = {"square: ID": "id_accuracy", "in the square (OOD)": "ood_accuracy"}
SHOWN = {
    "scan-fitted": ("(A) SCAN until fitted", _SCAN),
    "scan": ("(A) SCAN", _SCAN),
    "cogs-fitted": ("(B) COGS until fitted", _COGS),
    "cogs": ("(B) COGS", _COGS),
    "addition-20": ("(C) addition, 20 seeds", _SQUARE),
    "addition": ("(C) addition", _SQUARE),
    "prontoqa": ("PrOntoQA", {"training": "train_accuracy", "new worlds (ID)": "id_accuracy"}),
}


def draw(data: section.Data) -> section.Panels:
    """A row for each study that has runs; ``addition`` has a panel more, for random pairs.

    Of the twenty seeds, those count inside the square that have fitted, as in the claim.
    """
    panels = []
    for study, (begin, shown) in SHOWN.items():
        if not (rows := data.tables.get(study, ())):
            continue
        of_task = {title: (square_alone(rows), column) for title, column in shown.items()}
        if study == "addition":
            of_task["at random (ID)"] = (pairs_at_random(rows), "id_accuracy")
        if study == "addition-20":
            fitted = [row for row in rows if row["id_accuracy"] >= FITTED]
            of_task["in the square (OOD)"] = (fitted, "ood_accuracy")
        panels.append([
            (f"{begin}, {title}", over_data(mine, itemgetter(column)))
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

    return over_data(rows, passes, never_came, "epochs to a loss of 0.05")


def over_data(
    rows: Rows, value: Callable[[Row], float | None], bound: Test = never,
    label: str = "accuracy",
) -> Figure:  # fmt: skip
    """A number of every run over the training examples, by gamma and weight decay.

    A bar is a mean. Runs whose number is a lower ``bound`` are hollow, and have no mean.
    """
    sizes = sorted({row["n_sequences"] for row in rows})
    corners = sorted({(row["gamma"], row["weight_decay"]) for row in rows})
    colours = QUALITATIVE if len(corners) > 2 else QUALITATIVE[::3]  # the paper's two corners
    with panel(3.5, 3.3) as (figure, axes):
        for index, ((gamma, decay), colour) in enumerate(zip(corners, colours, strict=False)):
            label_of = f"$\\gamma$ {gamma:g}, decay {decay:g}"
            axes.plot([], [], "o", color=colour, label=label_of)
            for place, size in enumerate(sizes):
                corner = {"gamma": gamma, "weight_decay": decay, "n_sequences": size}
                mine = filter(matching(corner), rows)
                points = [(v, bound(row)) for row in mine if (v := value(row)) is not None]
                at = place + 0.19 * (index - (len(corners) - 1) / 2)
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
        axes.set_xlim(-0.5, len(sizes) - 0.5)
        axes.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes], fontsize=8)
        axes.grid(alpha=0.25, axis="y")
        legend_below(figure, axes, columns=2)
    return figure
