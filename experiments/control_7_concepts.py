"""Complexity-control paper, section VII, figure 6: drawings of unseen concepts over gamma.

The unseen tuples as every run draws them whose folder is on this machine, a row a seed, and what
every run draws right.
"""

import contextlib

import numpy as np
from matplotlib.figure import Figure

import section
from anchor_interp._util.errors import StoreError
from anchor_interp.pages.style import QUALITATIVE, panel
from anchor_interp.runs.run import Run, load
from concepts.drawings import drawings
from concepts.figures import tiled
from papers.effects import grouped
from papers.rows import Row, Rows

N = 4  # drawings of a tuple
SHOWN = {"train_accuracy": "trained tuples", "ood_accuracy": "unseen tuples",
         "ood_shape": "shape of unseen tuples"}  # fmt: skip


def draw(data: section.Data) -> section.Panels:
    """Drawings where the runs' folders are there, and the shares of right drawings of all runs."""
    if data.own:
        return [[("(B) unseen tuples", grid({run.name: run for run in data.own}))]]
    rows = data.rows("concepts")
    panels = []
    for (gamma,), mine in grouped(rows, ("gamma",)).items():
        runs = {f"seed {row['seed']}": run for row in mine if (run := _run(data, row))}
        if runs:
            panels.append((f"(B) gamma {gamma:g}", grid(runs)))
    shares = [(title, over_gamma(rows, name)) for name, title in SHOWN.items()]
    return [*(panels[start : start + 2] for start in range(0, len(panels), 2)), shares]


def _run(data: section.Data, row: Row) -> Run | None:
    """The run of a row, if its folder is on this machine, beside the tables that it came from."""
    for parent in (data.out, data.place, *data.place.parents):
        with contextlib.suppress(StoreError):
            return load(parent / "sweep" / "runs" / row["run_id"])
    return None


def grid(runs: dict[str, Run]) -> Figure:
    """Drawings of every unseen tuple side by side, a row a run."""
    found = [drawings(run, N) for run in runs.values()]
    chosen = [index for index, role in enumerate(found[0].roles) if role == "tested"]
    sheet = tiled(np.stack([np.concatenate([*each.drawn[chosen]]) for each in found]))
    with panel(0.32 * N * len(chosen) + 0.9, 0.34 * len(runs) + 0.6) as (figure, axes):
        axes.imshow(sheet, interpolation="nearest")
        heights = (np.arange(len(runs)) + 0.5) * sheet.shape[0] / len(runs)
        axes.set_yticks(heights, list(runs), fontsize=8)
        middles = (np.arange(len(chosen)) + 0.5) * sheet.shape[1] / len(chosen)
        axes.set_xticks(middles, [found[0].titles[index] for index in chosen], fontsize=8)
        axes.tick_params(length=0)
    return figure


def over_gamma(rows: Rows, name: str) -> Figure:
    """A share of every run over gamma, with the means."""
    with panel(2.7, 2.7) as (figure, axes):
        having = [row for row in rows if row.get(name) is not None]
        gammas, shares = ([row[column] for row in having] for column in ("gamma", name))
        axes.scatter(gammas, shares, s=16, color=QUALITATIVE[0], alpha=0.5)
        means = [
            (gamma, np.mean([row[name] for row in mine]))
            for (gamma,), mine in grouped(having, ("gamma",)).items()
        ]
        axes.plot(*zip(*means, strict=True), color=QUALITATIVE[0])
        axes.set(ylim=(-0.03, 1.03), xlabel="initialisation rate $\\gamma$", ylabel="share right")
        axes.grid(alpha=0.25)
    return figure
