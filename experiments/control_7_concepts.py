"""Complexity-control paper, section VII, figure 6: drawings of unseen concepts over gamma.

Unseen tuples drawn by a run of every initialisation, then along the training of the smallest, and
what every run draws right.
"""

from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure

import section
from anchor_interp._util.errors import StoreError
from anchor_interp.pages.style import QUALITATIVE, single
from anchor_interp.runs.run import Run, load
from concepts.drawings import Drawings, drawings
from concepts.figures import tiled
from papers.rows import Row, Rows
from papers.section_7_runs import CONCEPT_GAMMAS

N = 6  # drawings of a tuple
SHOWN = {"train_accuracy": "trained tuples", "ood_accuracy": "unseen tuples",
         "ood_shape": "shape of unseen tuples"}  # fmt: skip


def draw(data: section.Data) -> section.Panels:
    """Grids where the runs' folders are there, and the shares of right drawings of all runs."""
    rows = data.rows("concepts")
    panels: list[list[tuple[str, Figure]]] = []
    runs = {gamma: found for gamma in CONCEPT_GAMMAS if (found := first(data, rows, gamma))}
    if runs:
        grids = [
            (f"unseen tuples, gamma {gamma:g}", grid([drawings(run, N)]))
            for gamma, run in runs.items()
        ]
        panels += [grids[start : start + 2] for start in range(0, len(grids), 2)]
        along = runs[max(runs)]
        steps = along.steps[1 :: max(1, (len(along.steps) - 1) // 4)]
        drawn = [drawings(along.at(step), N // 2) for step in steps]
        words = ", ".join(f"{step:,}" for step in steps)
        panels.append([(f"gamma {max(runs):g} after {words} steps", grid(drawn))])
    panels.append([(title, over_gamma(rows, name)) for name, title in SHOWN.items()])
    return panels


def first(data: section.Data, rows: Rows, gamma: float) -> Run | None:
    """The run of this gamma and the first seed, if its folder is on this machine."""
    mine = [row for row in rows if row["gamma"] == gamma and row["status"] == "done"]
    for row in sorted(mine, key=lambda row: int(row["seed"])):
        for folder in places(data, row):
            try:
                return load(folder)
            except StoreError:
                continue
    return None


def places(data: section.Data, row: Row) -> Iterator[str]:
    """Where the folder of a run can be: beside the tables that it came from."""
    for parent in (data.place, *data.place.parents):
        yield str(parent / "sweep" / "runs" / row["run_id"])


def grid(found: list[Drawings]) -> Figure:
    """The tested nodes as rows; drawings of each as columns, one group after the other."""
    chosen = [index for index, role in enumerate(found[0].roles) if role == "tested"]
    sheet = tiled(np.concatenate([each.drawn[chosen] for each in found], axis=1))
    with single(
        0.4 * sum(each.drawn.shape[1] for each in found) + 1.6, 0.5 * len(chosen) + 0.4
    ) as figure:
        axes = figure.subplots()
        axes.imshow(sheet, interpolation="nearest")
        heights = (np.arange(len(chosen)) + 0.5) * sheet.shape[0] / len(chosen)
        axes.set_yticks(heights, [found[0].titles[index] for index in chosen], fontsize=7)
        axes.set_xticks([])
    return figure


def over_gamma(rows: Rows, name: str) -> Figure:
    """A share of every run over gamma, with the means."""
    with single(2.7, 2.7) as figure:
        axes = figure.subplots()
        points = [(row["gamma"], row[name]) for row in rows if row.get(name) is not None]
        axes.scatter(
            [g for g, _ in points], [v for _, v in points], s=16, color=QUALITATIVE[0], alpha=0.5
        )
        gammas = sorted({gamma for gamma, _ in points})
        means = [np.mean([value for g, value in points if g == gamma]) for gamma in gammas]
        axes.plot(gammas, means, color=QUALITATIVE[0])
        axes.set(ylim=(-0.03, 1.03), xlabel="initialisation rate $\\gamma$", ylabel="share right")
        axes.grid(alpha=0.25)
    return figure


if __name__ == "__main__":
    section.main(draw, "concepts")
