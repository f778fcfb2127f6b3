"""One question of all tasks: do runs of lower complexity generalise better?

A column of panels for each measure of W_Q in layer 0, a row for each task: one point a run, with
the correlation inside the task. Runs that have not fitted are hollow and do not count. The random
settings of the anchor tasks stand last; they had been seen, so no claim counts them.
"""

from matplotlib.figure import Figure

import section
from anchor_interp._util.errors import ConfigError
from anchor_interp.pages.style import QUALITATIVE, single
from papers.across_tasks import TASK_RUNS, AcrossTasks, TaskRuns
from papers.claims import LEDGER
from papers.effects import Number, value_of
from papers.rows import Rows

MEASURES = {
    "across-tasks-rank": "stable rank of W_Q / at initialisation",
    "across-tasks-condensation": "condensation of W_Q",
}
ANCHORS = "anchor tasks"


def draw(data: section.Data) -> section.Panels:
    """Every measure on every task that has runs, and on the anchor tasks."""
    columns = []
    for name, label in MEASURES.items():
        effect = LEDGER.named(name).effect
        assert isinstance(effect, AcrossTasks)
        column = [
            (task, _task(effect, of, _of_study(data, of.study), label))
            for task, of in TASK_RUNS.items()
            if data.tables.get(of.study)
        ]
        if anchors := data.random_settings():
            column.append((ANCHORS, _points(effect.x, TaskRuns(""), anchors, label, "")))
        columns.append(column)
    if not columns[0]:
        raise ConfigError(f"{data.place} has no table to draw; run this without --judge")
    return [list(row) for row in zip(*columns, strict=True)]


def _of_study(data: section.Data, study: str) -> Rows:
    return [row | {"study": study} for row in data.tables[study]]


def _task(effect: AcrossTasks, of: TaskRuns, rows: Rows, label: str) -> Figure:
    found = effect.within(of, rows).finding()
    if found.found is None:
        return _points(effect.x, of, rows, label, str(found.note))
    one = found.found
    low, high = sorted((effect.sign * one.low, effect.sign * one.high))
    told = f"rho {effect.sign * one.effect:.2f} ({low:.2f} to {high:.2f}), {found.n[0]} runs"
    return _points(effect.x, of, rows, label, told)


def _points(x: Number, of: TaskRuns, rows: Rows, label: str, told: str) -> Figure:
    """The runs of a task: those that have fitted are filled, in a colour by their examples."""
    fitted = {row["run_id"] for row in of.fitted(rows)}
    label = label.replace("of W_Q", "of layers") if of.study == "concepts" else label
    sizes = sorted({row["n_sequences"] for row in rows}) if told else []
    with single(3.4, 3.0) as figure:
        axes = figure.subplots()
        for row in of.prepare(rows):
            at, unseen = value_of(row, x), value_of(row, of.unseen)
            if at is None or unseen is None:
                continue
            colour = QUALITATIVE[sizes.index(row["n_sequences"])] if sizes else QUALITATIVE[0]
            filled = colour if row["run_id"] in fitted else "none"
            axes.scatter(at, unseen, s=14, facecolor=filled, edgecolor=colour, linewidth=0.7)
        for size, colour in zip(sizes, QUALITATIVE, strict=False):
            axes.scatter([], [], s=14, color=colour, label=f"{size:,} examples")
        axes.set(ylim=(-0.03, 1.03), xlabel=label, ylabel="accuracy, left out in training")
        axes.set_title(told, fontsize=8)
        axes.grid(alpha=0.25)
        if sizes:
            axes.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.25))
    return figure


if __name__ == "__main__":
    section.main(draw)
