"""What several figures draw from tables: every run a point, nothing computed but means."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from anchor_interp.models.complexity import first_query_matrix
from anchor_interp.models.embeddings import embedding_structure, key_embeddings
from anchor_interp.models.matrix_complexity import cosine_matrix
from anchor_interp.pages.diagram_marks import COLOURS
from anchor_interp.pages.mechanism_figures import condensation_map
from anchor_interp.pages.style import INK, panel, plain_ticks, single
from anchor_interp.runs.run import Run, load
from claim_effects import Rows, Test, grouped, having, never_came, value_of, values_of
from measures import log_steps
from random_settings import RUNS as RANDOM
from studies import TABLES, Data

PHASES = ("memorizing", "composite", "symmetric", "inferential")
SMALL = "#0072B2"
GROUPS = ("#E69F00", SMALL, "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
HOLLOW = Line2D(
    [], [], label="never came there (hollow)", marker="o", ls="none", color=INK, mfc="none"
)
_TASKS = {"complexity-control": "complexity control", "neurips": "NeurIPS"}


def drawn_models(data: Data, paper: str, *phases: str) -> list[Run]:
    """Runs to look into: the user's, or one of each phase (``tables/README.md`` says which)."""
    return [*data.own] or [load(TABLES / "models" / paper / phase) for phase in phases]


def titled(run: Run) -> str:
    """A run's phase and gamma, and in a second line its shape."""
    model = run.config.model
    shape = f"width {model.width}, {model.n_layers} layers, {getattr(model, 'normalization', 'no')}"
    return f"{run.phase}, gamma {run.config.init.gamma:.2g}\n{shape}"


def condensed(run: Run) -> Figure:
    """Cosines between the neurons of W_Q L0."""
    return condensation_map(cosine_matrix(first_query_matrix(run.model)))


def embedded(run: Run) -> Figure:
    """Keys, dark to light, at their first two components; arrows of 3 (red) and 4 (blue) from one.

    Source: NeurIPS paper, figures 5c and 5d.
    """
    task, arrows = run.config.anchor_task, {3: "#D00000", 4: "#0050D0"}
    structure, keys = embedding_structure(key_embeddings(run.model, task)), task.keys.tolist()
    points = structure.coordinates[:, :2]
    share = structure.eigenvalues / structure.eigenvalues.sum()
    with panel(4.2, 3.9) as (figure, axes):
        axes.scatter(points[:, 0], points[:, 1], s=24, c=keys, cmap="cividis", lw=0.4, ec=INK)
        first = len(keys) // 2 - 6
        for place, beside in ((first, (4, 4)), (first + 12, (4, -11))):
            axes.annotate(str(keys[place]), points[place], beside, textcoords="offset points",
                          size=9, zorder=4,
                          path_effects=[withStroke(linewidth=2, foreground="white")])  # fmt: skip
        for step, colour in arrows.items():
            for one in range(first, first + 12, step):
                axes.annotate("", points[one + step], points[one], arrowprops={
                    "arrowstyle": "->", "color": colour, "lw": 1.5, "shrinkA": 5, "shrinkB": 5
                })  # fmt: skip
        axes.set(xlabel=f"component 1 ({share[0]:.0%} of the variance)",
                 ylabel=f"component 2 ({share[1]:.0%})")  # fmt: skip
        way = f"{keys[first]} to {keys[first + 12]}"
        handles = [Line2D([], [], color=colour, label=f"steps of {step}, {way}")
                   for step, colour in arrows.items()]  # fmt: skip
        legend(figure, handles)
    return figure


def runs_by_phase(
    data: Data,
    numbers: Mapping[str, str],
    title: str = "random settings, runs by phase",
    studies: Iterable[str] = RANDOM,
    where: Test = lambda _: True,
    *,
    strata: bool = True,
) -> list[list[tuple[str, Figure]]]:
    """Numbers of the runs of some studies by phase; none beside the user's runs."""
    if data.own:
        return []
    rows = [*filter(where, data.rows(*studies))]
    return [[(title, by_phase(rows, numbers, strata=strata))]]


def by_phase(rows: Rows, numbers: Mapping[str, str], *, strata: bool = True) -> Figure:
    """Numbers of every run, phase by phase, with means: a row a number, a column a task and layout.

    ``numbers`` titles the columns shown. Without ``strata`` all runs stand in one column.
    """
    groups = grouped(rows, ("task", "normalization")) if strata else {("all", "runs"): rows}
    with single(0.5 + max(2.0 * len(groups), 3.0), 0.6 + 2.0 * len(numbers)) as figure:
        shape = len(numbers), len(groups)
        panels: Any = figure.subplots(*shape, squeeze=False, sharex=True, sharey="row")
        for line, (name, title) in zip(panels, numbers.items(), strict=True):
            line[0].set_ylabel(title)
            for axes, mine in zip(line, groups.values(), strict=True):
                for place, phase in enumerate(PHASES):
                    of_phase = [row for row in mine if row["phase"] == phase]
                    strip(axes, place, values_of(of_phase, name), COLOURS[phase])
                axes.axhline(0, color=INK, linewidth=0.6)
        for axes, (task, layout) in zip(panels[0], groups, strict=True):
            axes.set_title(f"{_TASKS.get(task, task)}, {layout}" if strata else "")
        for axes in panels[-1]:
            axes.set_xticks(range(len(PHASES)), PHASES, rotation=35, ha="right", fontsize=8)
            axes.set_xlim(-0.6, len(PHASES) - 0.4)  # also where a phase has no run
    return figure


def over_depth(rows: Rows) -> Figure:
    """Steps of every run over depth, a colour a number of broken groups (NeurIPS paper, figure 6).

    A bar is a mean, of cells all of whose runs came to the loss. Runs that never came
    there are hollow, at their last step.
    """
    depths, levels = (sorted({row[name] for row in rows}) for name in ("n_layers", "complexity"))
    colours = [*map(tuple, colormaps["viridis"](np.linspace(0, 0.9, len(levels))))]
    with panel(4.2, 3.4) as (figure, axes):
        cells = itertools.product(enumerate(depths), enumerate(levels))
        for (place, depth), (index, level) in cells:
            at = place + 0.8 * (index + 0.5) / len(levels) - 0.4
            cell = [row for row in rows if (row["n_layers"], row["complexity"]) == (depth, level)]
            mine = having(cell, log_steps)
            steps = [math.exp(value_of(row, log_steps) or 0.0) for row in mine]
            for shift, number, row in zip(itertools.cycle((-0.02, 0, 0.02)), steps, mine):
                dot(axes, at + shift, number, colours[index], hollow=never_came(row), alpha=0.8)
            if not any(map(never_came, mine)):
                axes.plot([at - 0.06, at + 0.06], [_mean(steps)] * 2, color=colours[index], lw=2)
        axes.set_xticks(range(len(depths)), [f"{depth} layers" for depth in depths])
        axes.set(xlabel="depth", ylabel="steps to a loss of 0.05")
        axes.set(ylim=(0, None), xlim=(-0.5, len(depths) - 0.5))
        axes.grid(alpha=0.25, axis="y")
        handles = [Line2D([], [], marker="o", ls="none", color=colour, label=f"{level:g} broken")
                   for level, colour in zip(levels, colours, strict=True)]  # fmt: skip
        legend(figure, [*handles, HOLLOW] if any(map(never_came, rows)) else handles)
    return figure


def strips(
    groups: Mapping[str, Sequence[float]],
    label: str,
    *,
    reference: float | None = None,
    hollow: Mapping[str, Sequence[bool]] | None = None,
    shares: bool = False,
    heads: Sequence[str] = (),
) -> Figure:
    """Values of some groups side by side, with their means; without a reference, logarithmic.

    The first line of a group's name gives its colour, by its place among ``heads``, if given.
    Shares have an axis from 0 to 1.
    """
    heads = heads or list(dict.fromkeys(name.split("\n")[0] for name in groups))
    with panel(0.9 + 1.0 * len(groups), 3.2) as (figure, axes):
        for place, (name, values) in enumerate(groups.items()):
            colour = GROUPS[heads.index(name.split("\n")[0]) % len(GROUPS)]
            strip(axes, place, values, colour, hollow=(hollow or {}).get(name, ()))
        if reference is None:
            axes.set_yscale("log")
            plain_ticks(axes.yaxis)
            legend(figure, [HOLLOW])
        else:
            axes.axhline(reference, color=INK, linewidth=0.8, linestyle=":")
        if shares:
            axes.set_ylim(-0.03, 1.03)
        axes.set_xlim(-0.6, len(groups) - 0.4)
        axes.set_xticks(range(len(groups)), list(groups), fontsize=8)
        axes.set_ylabel(label)
        axes.grid(alpha=0.25, axis="y")
    return figure


def legend(figure: Figure, handles: Sequence[Any]) -> None:
    """A legend below a figure."""
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)


def strip(
    axes: Axes, place: float, values: Sequence[float], colour: str, *, hollow: Sequence[bool] = ()
) -> None:
    """Points side by side, and their mean as a line; none where a point is a bound."""
    if not values:
        return
    for index, (value, is_hollow) in enumerate(itertools.zip_longest(values, hollow)):
        shift = (index % 5 - 2) * 0.06 if len(values) > 1 else 0.0
        dot(axes, place + shift, value, colour, hollow=bool(is_hollow), alpha=0.75)
    if not any(hollow):
        axes.plot([place - 0.3, place + 0.3], [_mean(values)] * 2, color=INK, linewidth=1.4)


def dot(axes: Axes, x: float, y: float, colour: Any, *, hollow: bool, alpha: float) -> None:
    """A run."""
    face = "none" if hollow else colour
    axes.plot(x, y, "o", color=colour, markerfacecolor=face, markersize=4, alpha=alpha)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan
