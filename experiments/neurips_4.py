"""NeurIPS paper, section 4: which answer the unseen pair gets, over gamma and depth (figure 2).

Above, runs of the paper's width: their best answers along training, as the paper keeps them, the
answers at the end of runs that have fitted, and the course of every run. Below, the study
``depth``: narrow models, fewer data.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import section
from anchor_interp.pages.diagram_maps import accuracy_map, phase_map
from anchor_interp.pages.style import INFERENTIAL, INK, SYMMETRIC, legend_below, panel, single
from anchor_interp.sweeps.diagrams import phase_diagrams
from papers import wide
from papers.effects import grouped
from papers.rows import Row, Rows

ANSWERS = {
    "symmetric_accuracy": "symmetric answers",
    "ood_accuracy": "inferential (OOD)",
}
_SHARES = {"symmetric": ("symmetric", SYMMETRIC), "ood": ("inferential", INFERENTIAL)}
_COURSES = (("x-10", "the rule", INFERENTIAL), ("x-6", "the other order's", SYMMETRIC))


def best_and_end(rows: Rows, best: str, end: str, colour: str) -> Figure:
    """A share of the answers over gamma: a mark a seed, a line through the means."""
    with panel(2.6, 3.4) as (figure, axes):
        kinds = ((best, colour, "-", "best along training"),
                 (end, "none", "--", "at the end, if fitted"))  # fmt: skip
        for side, (column, filled, line, label) in zip((-1, 1), kinds, strict=True):
            having = [row for row in rows if row[column] is not None]
            xs = [row["gamma"] + 0.012 * side for row in having]
            axes.scatter(xs, [row[column] for row in having], 22, filled, edgecolors=colour)
            means = [
                (gamma, statistics.mean(row[column] for row in cell))
                for (gamma,), cell in grouped(having, ("gamma",)).items()
            ]
            axes.plot(*zip(*means, strict=True), line, color=INK, linewidth=1)
            axes.plot([], [], line, color=INK, marker="o", mfc=filled, mec=colour, label=label)
        axes.set(xlabel="gamma", ylabel="share of (4, 3)", ylim=(-0.03, 1.03))
        axes.set_xticks(sorted({row["gamma"] for row in rows}))
        axes.margins(x=0.1)
        legend_below(figure, axes, columns=1)
    return figure


def courses(curves: Sequence[Row], depth: float) -> Figure:
    """Answers to (4, 3) over ID accuracy along training: a panel a gamma, a line a run."""
    gammas = grouped(curves, ("gamma",))
    with single(2.1 * len(gammas), 2.9) as figure:
        panels: Any = figure.subplots(1, len(gammas), squeeze=False, sharey=True)[0]
        for axes, ((gamma,), rows) in zip(panels, gammas.items(), strict=True):
            for run in grouped(rows, ("run_id",)).values():
                run.sort(key=lambda row: row["step"])
                for column, _, colour in _COURSES:
                    xs, ys = ([row[name] for row in run] for name in ("id", column))
                    axes.plot(xs, ys, color=colour, linewidth=0.8, alpha=0.7)
                    axes.plot(xs[-1], ys[-1], "o", color=colour, markersize=4)
            axes.set(title=f"gamma {gamma:g}", xlabel="ID accuracy", ylim=(-0.03, 1.03))
        panels[0].set_ylabel(f"share of (4, 3), {depth:g} layers")
        handles = [Line2D([], [], color=colour, label=name) for _, name, colour in _COURSES]
        handles.append(Line2D([], [], color=INK, marker="o", linestyle="none", label="the end"))
        figure.legend(handles=handles, loc="outside lower left", ncols=3, frameon=False)
    return figure


def draw(data: section.Data) -> section.Panels:
    """Figure 2 at the paper's width, the course of its runs, and the study ``depth``."""
    panels: list[list[tuple[str, Figure]]] = []
    if rows := data.tables.get(wide.STUDY):
        panels.append([
            (f"({letter}) {name}, {depth:g} layers",
             best_and_end(mine, f"best_{column}", f"end_{column}", colour))
            for letter, (column, (name, colour)) in zip("ab", _SHARES.items(), strict=True)
            for (depth,), mine in grouped(rows, ("n_layers",)).items()
        ])  # fmt: skip
        curves = grouped(wide.read_curves(wide.curves_table(data.place)), ("n_layers",))
        panels += [
            [(f"along training, {depth:g} layers", courses(of, depth))]
            for (depth,), of in curves.items()
        ]
    diagram = phase_diagrams(data.rows("depth"), x="gamma", y="n_layers").diagrams[0]
    maps = [
        (f"narrow: {title}", accuracy_map(diagram, column)) for column, title in ANSWERS.items()
    ]
    return [*panels, [*maps, ("narrow: phase", phase_map(diagram))]]
