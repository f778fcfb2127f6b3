"""One question of all tasks: do runs of lower complexity generalise better?

A panel for each task and measure of W_Q in layer 0: one point a run, with the correlation inside
the task; colours are numbers of training examples. Runs that have not fitted are hollow and do not
count. The random settings of the anchor tasks had been seen, so no claim counts them.
"""

from matplotlib.figure import Figure

import section
from anchor_interp.pages.style import INK, QUALITATIVE, legend_below, panel
from papers.across_tasks import TASK_RUNS, AcrossTasks, TaskRuns
from papers.claims import NAMED
from papers.effects import Number, value_of
from papers.rows import Rows

MEASURES = {
    "across-tasks-rank": "stable rank of W_Q / initial",
    "across-tasks-condensation": "condensation of W_Q",
}
ANCHORS = "anchor tasks"


def draw(data: section.Data) -> section.Panels:
    """A panel for every task that has runs, and for the anchor tasks: four a row, by measure."""
    rows: list[list[tuple[str, Figure]]] = []
    for name, label in MEASURES.items():
        effect = NAMED[name].effect
        assert isinstance(effect, AcrossTasks)
        panels = [
            (task, _task(effect, of, rows_of_task, label))
            for task, of in TASK_RUNS.items()
            if (rows_of_task := data.tables.get(of.study))
        ]
        if anchors := data.random_settings():
            panels.append((ANCHORS, _points(effect.x, TaskRuns(""), anchors, label, "")))
        rows += [panels[start : start + 4] for start in range(0, len(panels), 4)]
    return rows


def _task(effect: AcrossTasks, of: TaskRuns, rows: Rows, label: str) -> Figure:
    found = effect.within(of, rows).finding()
    told = effect.shown(found)
    if found.found is not None:
        told = f"rho {told},\n{found.n[0]} runs"
    return _points(effect.x, of, rows, label, told)


def _points(x: Number, of: TaskRuns, rows: Rows, label: str, told: str) -> Figure:
    """The runs of a task: those that have fitted are filled, in a colour by their examples."""
    fitted = {row["run_id"] for row in of.fitted(rows)}
    label = label.replace("of W_Q", "of layers") if of.study == "concepts" else label
    sizes = sorted({row["n_sequences"] for row in rows}) if told else []
    with panel(2.75, 2.9) as (figure, axes):
        for row in of.prepare(rows):
            at, unseen = value_of(row, x), value_of(row, of.unseen)
            if at is None or unseen is None:
                continue
            colour = QUALITATIVE[sizes.index(row["n_sequences"])] if sizes else QUALITATIVE[0]
            filled = colour if row["run_id"] in fitted else "none"
            axes.scatter(at, unseen, s=14, facecolor=filled, edgecolor=colour, linewidth=0.7)
        for size, colour in zip(sizes, QUALITATIVE, strict=False):
            axes.scatter([], [], s=14, color=colour, label=f"n = {size:,}")
        if not sizes:
            axes.scatter([], [], s=14, color=QUALITATIVE[0], label="fitted")
        axes.scatter([], [], s=14, facecolor="none", edgecolor=INK, label="not fitted")
        axes.set(ylim=(-0.03, 1.03), xlabel=label, ylabel="accuracy, left out")
        axes.set_title(told, fontsize=9)
        axes.locator_params(axis="x", nbins=4)
        axes.grid(alpha=0.25)
        legend_below(figure, axes, columns=2)
    return figure
