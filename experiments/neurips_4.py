"""NeurIPS paper, section 4: which answer the unseen pair gets, over gamma and depth (figure 2).

The paper keeps the best of nine learning rates for each seed and shows the mean of three seeds. The
same runs are shown with every run counted. Below is the study ``depth``: fewer data, one rate.
"""

import itertools
import statistics
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

import section
from anchor_interp.pages.diagram_maps import accuracy_map, phase_map
from anchor_interp.pages.style import INFERENTIAL, INK, SYMMETRIC, single
from anchor_interp.sweeps.diagrams import phase_diagrams
from papers.effects import grouped
from papers.figure2_runs import SEEDS_A_CELL
from papers.rises import SEED, best, in_zone, mean
from papers.rows import Rows, having

ANSWERS = {
    "symmetric_accuracy": ("symmetric answers", SYMMETRIC),
    "ood_accuracy": ("inferential answers", INFERENTIAL),
}
_GREY = "#DDDDDD"


def zone_text(rows: Rows) -> str:
    """Where the shaded zone lies, by the best rates and by every run."""
    found = {"the best of nine rates": in_zone(rows, best), "every run": in_zone(rows, mean)}
    told = {}
    for how, zone in found.items():
        gammas: dict[int, list[str]] = {}
        for depth, gamma in zone:
            gammas.setdefault(depth, []).append(f"{gamma:g}")
        told[how] = "; ".join(
            f"gamma {', '.join(those)} with {depth} layers" for depth, those in gammas.items()
        )
    return ". By ".join(f"{how}: {where or 'nowhere'}" for how, where in told.items())


def every_run(rows: Rows) -> Figure:
    """Both answers of every run over gamma, a column a depth, with the best and the mean."""
    depths = sorted({row["n_layers"] for row in rows})
    with single(3.1 * len(depths), 5.6) as figure:
        panels: Any = figure.subplots(2, len(depths), squeeze=False, sharex=True, sharey=True)
        for line, (column, (title, colour)) in zip(panels, ANSWERS.items(), strict=True):
            line[0].set_ylabel(title)
            for axes, depth in zip(line, depths, strict=True):
                axes.set_title(f"{depth} layers")
                _draw_runs(axes, list(filter(having(n_layers=depth), rows)), column, colour)
        for axes in panels[-1]:
            axes.set_xlabel("gamma")
        handles = [
            Line2D([], [], color=INK, label="best of nine rates, mean of three seeds"),
            Line2D([], [], color=INK, linestyle="--", label="mean of every run"),
            Line2D([], [], color=INK, marker=".", linestyle="none", label="a run"),
            Patch(color=_GREY, label="shaded zone, by every run"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _draw_runs(axes: Any, rows: Rows, column: str, colour: str) -> None:
    """The runs of one depth, slower rates to the left, and what they make together."""
    rows = [row for row in rows if row[column] is not None]
    gammas, rates = (sorted({row[name] for row in rows}) for name in ("gamma", "lr"))
    width = 0.6 * min((b - a for a, b in itertools.pairwise(gammas)), default=0.1)
    for row in rows:
        shift = width * (rates.index(row["lr"]) / max(1, len(rates) - 1) - 0.5)
        axes.plot(row["gamma"] + shift, row[column], ".", color=colour, alpha=0.5, markersize=4)
    for summary, style in ((best(column), "-"), (mean(column), "--")):
        means = [
            statistics.mean(summary(runs) for runs in grouped(mine, SEED).values())
            for mine in grouped(rows, ("gamma",)).values()
        ]
        axes.plot(gammas, means, style, color=INK)
    for _, gamma in in_zone(rows, mean):
        axes.axvspan(gamma - 0.6 * width, gamma + 0.6 * width, color=_GREY, zorder=0)
    axes.set_ylim(-0.03, 1.03)


def draw(data: section.Data) -> section.Panels:
    """Figure 2 as the paper measured it, every run of it, and the study ``depth``."""
    panels: list[list[tuple[str, Figure]]] = []
    if rows := data.tables.get("figure2"):
        # seeds of their own in every cell have the same place in it
        placed = [row | {"seed": row["seed"] % SEEDS_A_CELL} for row in rows]
        found = phase_diagrams(placed, x="gamma", y="n_layers", best_over="lr")
        maps = [
            (title, accuracy_map(found.diagrams[0], column, best_over=found.best_over))
            for column, (title, _) in ANSWERS.items()
        ]
        panels += [maps, [("every run", every_run(rows))]]
        print(f"shaded zone: {zone_text(rows)}")
    diagram = phase_diagrams(data.rows("depth"), x="gamma", y="n_layers").diagrams[0]
    maps = [
        (f"{title}, one rate", accuracy_map(diagram, column))
        for column, (title, _) in ANSWERS.items()
    ]
    return [*panels, [*maps, ("phase of every run, one rate", phase_map(diagram))]]
