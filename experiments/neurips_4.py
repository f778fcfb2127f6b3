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
from anchor_interp.pages.style import INFERENTIAL, INK, SYMMETRIC, single
from anchor_interp.sweeps.diagrams import phase_diagrams
from papers import wide
from papers.effects import grouped
from papers.rows import Row, Rows

ANSWERS = {
    "symmetric_accuracy": ("symmetric answers", SYMMETRIC),
    "ood_accuracy": ("inferential answers", INFERENTIAL),
}
_MARKS = {2: "o", 3: "s"}
_COURSES = (("x-10", "the rule", INFERENTIAL), ("x-6", "the other order's", SYMMETRIC))


def best_and_end(rows: Rows, best: str, end: str, colour: str) -> Figure:
    """A share of the answers over gamma: a mark a seed, a line a depth through the means."""
    with single(4.8, 3.4) as figure:
        axes = figure.subplots()
        for column, filled, line in ((best, colour, "-"), (end, "none", "--")):
            for (depth,), mine in grouped(rows, ("n_layers",)).items():
                having = [row for row in mine if row[column] is not None]
                xs, ys = ([row[name] for row in having] for name in ("gamma", column))
                axes.scatter(xs, ys, 22, filled, marker=_MARKS[depth], edgecolors=colour)
                means = [
                    (gamma, statistics.mean(row[column] for row in cell))
                    for (gamma,), cell in grouped(having, ("gamma",)).items()
                ]
                axes.plot(*zip(*means, strict=True), line, color=INK, linewidth=1)
        axes.set(xlabel="gamma", ylabel="share of (4, 3)", ylim=(-0.03, 1.03))
        depths = sorted({row["n_layers"] for row in rows})
        handles = [
            Line2D([], [], color=INK, label="best along training"),
            Line2D([], [], color=INK, linestyle="--", label="at the end, if fitted"),
            *(
                Line2D([], [], color=colour, marker=_MARKS[depth], linestyle="none",
                       label=f"{depth} layers, a seed")
                for depth in depths
            ),
        ]  # fmt: skip
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def courses(curves: Sequence[Row]) -> Figure:
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
        panels[0].set_ylabel("share of (4, 3)")
        handles = [Line2D([], [], color=colour, label=name) for _, name, colour in _COURSES]
        handles.append(Line2D([], [], color=INK, marker="o", linestyle="none", label="the end"))
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def draw(data: section.Data) -> section.Panels:
    """Figure 2 at the paper's width, the course of its runs, and the study ``depth``."""
    panels: list[list[tuple[str, Figure]]] = []
    if rows := data.tables.get(wide.STUDY):
        symmetric = best_and_end(rows, "best_symmetric", "end_symmetric", SYMMETRIC)
        inferential = best_and_end(rows, "best_ood", "end_ood", INFERENTIAL)
        panels.append(
            [("(a) symmetric answers", symmetric), ("(b) inferential answers", inferential)]
        )
        curves = grouped(wide.read_curves(wide.curves_table(data.place)), ("n_layers",))
        panels += [
            [(f"along training, {depth:g} layers", courses(of))] for (depth,), of in curves.items()
        ]
    diagram = phase_diagrams(data.rows("depth"), x="gamma", y="n_layers").diagrams[0]
    maps = [
        (f"{title}, narrow models", accuracy_map(diagram, column))
        for column, (title, _) in ANSWERS.items()
    ]
    return [*panels, [*maps, ("phase, narrow models", phase_map(diagram))]]
