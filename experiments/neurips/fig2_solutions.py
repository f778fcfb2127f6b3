"""NeurIPS paper, section 4, figure 2: the answer to the unseen pair (4, 3), over gamma and depth.

"For small initialization scale [large gamma], the model tends to learn the inferential solution for
the anchor pair (4,3)", x - 10; with large weights "the model learns the symmetric solution", x - 6,
unless they are "too large and the model is deep (shadow zone)".

For each seed the paper keeps the best of nine learning rates, once by inferential and once by
symmetric answers; its code keeps the best along training. So do we at its width, over five rates
or, with three layers, two: a seed at all its rates is one witness. What is said of the end is that
of runs that have fitted.
"""

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp import RunConfig
from anchor_interp.pages import style
from anchor_interp.pages.diagram_maps import accuracy_map, phase_map
from anchor_interp.pages.style import INFERENTIAL, INK, SYMMETRIC, panel
from anchor_interp.sweeps.diagrams import phase_diagrams
from claim_effects import Difference, Mean, Rise, Row, Rows, equal, grouped
from claims import registered
from common import Panels, spread, table
from curves import FITTED, by_run, curve_study, read_curves
from figure import main
from neurips import PAPER, at_rate, until_fitted
from studies import Data, Study, diagram, override

# half the paper's rates by layers, the batch being a quarter of the paper's: the noise is equal
RATES = {2: (1.5e-4, 1e-4, 5e-5, 1.25e-4, 7.5e-5), 3: (1.5e-4, 7.5e-5)}
GAMMAS = (0.35, 0.5, 0.65, 0.8, 0.95)
CELL = ("n_layers", "gamma")
_ANSWERS = (("x-10", "the rule", INFERENTIAL), ("x-6", "the other order's", SYMMETRIC))
ONE_RATE = 1e-4  # of runs of equal length
_SEEDS = 3


def wide() -> list[RunConfig]:
    """All runs in the order of training, the shortest first; a cell has seeds of its own.

    111 runs take 30 hours of one core. Those of the table that have ``tf32`` were trained on a GPU.
    """
    configs = []
    for nth, depth in itertools.product(range(5), RATES):
        for rate in RATES[depth][nth : nth + 1]:
            for (place, gamma), seed in itertools.product(enumerate(GAMMAS), range(_SEEDS)):
                number = 1_000_000 + 100 * (10 * depth + place) + seed
                configs.append(_config(depth, gamma, rate, number))
    # as many seeds again of the smallest gammas, with two layers, at the first rate alone
    for place, seed in itertools.product(range(2), range(_SEEDS, 2 * _SEEDS)):
        configs.append(_config(2, GAMMAS[place], RATES[2][0], 1_002_000 + 100 * place + seed))
    return configs


def _config(depth: int, gamma: float, rate: float, seed: int) -> RunConfig:
    return at_rate(rate, until_accuracy=FITTED, n_layers=depth, gamma=gamma, seed=seed,
                   checkpoint_every=1_500)  # fmt: skip


def equal_length() -> list[RunConfig]:
    """Three runs of each gamma that go on when they have fitted."""
    return [at_rate(ONE_RATE, gamma=gamma, seed=1_040_000 + 100 * place + seed)
            for place, gamma in enumerate((0.35, 0.5, 0.8, 0.95)) for seed in range(3)]  # fmt: skip


def whole_training() -> list[RunConfig]:
    """The paper's schedule and its 92,285 updates, four minutes of a GPU each."""
    return [override(PAPER, gamma=gamma, precision="bf16", seed=1_100_000 + place)
            for place, gamma in enumerate((0.8, 0.5))]  # fmt: skip


def witnesses(rows: Rows) -> list[Row]:
    """One row for each depth, gamma and seed, from the curves of all its rates.

    What is best along training is the largest value in any row of a curve and the best of the
    rates, each number by itself.
    """
    found = []
    for (depth, gamma, seed), mine in grouped(rows, (*CELL, "seed")).items():
        runs = by_run(mine)
        one: Row = next((run for run in runs if run["lr"] == ONE_RATE), {})
        fitted = [run for run in runs if run["fitted_step"] is not None]
        row: Row = {
            "run_id": f"{depth:g}-{gamma:g}-{int(seed)}", "status": "done", "censored": not fitted,
            "seed": int(seed), "n_layers": int(depth), "gamma": gamma, "task": "neurips",
            "normalization": "post", "phase": None, "rates": len(runs), "fitted": len(fitted),
            "unfitted": len(runs) - len(fitted),
        }  # fmt: skip
        for name in ("best_ood", "best_symmetric", "best_id"):
            row[name] = max(run[name] for run in runs)
            row[f"{name}_at_one_rate"] = one.get(name)
        for name, count in (("ood", "by_rule"), ("symmetric", "by_other")):
            ends = [run[f"last_{name}"] for run in fitted]
            row |= {f"end_{name}": max(ends, default=None), count: sum(end > 0.5 for end in ends)}
        found.append(row)
    return found


def judged(rows: Rows) -> list[Row]:
    """The seeds all of whose rates are there, without the shaded zone.

    The zone is cells whose best ID accuracy is below 0.9 on average.
    """
    rows = [row for row in rows if row["rates"] == len(RATES[row["n_layers"]])]
    cells = grouped(rows, CELL).values()
    return [row for cell in cells if mean(row["best_id"] for row in cell) >= 0.9 for row in cell]


RUNS = {
    "figure2-wide": curve_study("gamma and depth at the paper's width", wide, witnesses),
    "equal-length": curve_study("large and small initialisation, 12,000 steps at the paper's width",
                                equal_length, by_run),
    "paper-run": curve_study("the paper's whole training", whole_training, by_run),
    "deep": Study("large initialisation in four layers at the paper's width", lambda: until_fitted(
        {0.2: 6, 0.3: 6, 0.5: 8}, 1_020_000, 4_000, n_layers=4), folder="wide"),
    "depth": Study("gamma and depth on the NeurIPS task", lambda: diagram("tiny-depth", 5),
                   ("mechanism",)),
}  # fmt: skip
_SEEN: dict[str, Any] = {"runs": ("figure2-wide",), "select": judged}
_DEPTHS: dict[str, Any] = _SEEN | {"within": ("n_layers",), "apart": ("n_layers",)}
_SMALL, _LARGE = equal(gamma=(0.8, 0.95)), equal(gamma=(0.35, 0.5))
_TO_LENGTH = (
    "The six runs of gamma 0.8 and 0.95, which were not trained: 3 minutes of an H100 "
    "(`--train --device cuda`). Those of 0.35 and 0.5 are drawn."
)

CLAIMS = [
    registered("fig2-inferential", "smaller weights: higher best OOD accuracy",
        Rise("best_ood", "gamma", unconverged=True, **_DEPTHS)),
    registered("fig2-symmetric", "larger weights: higher best symmetric accuracy",
        Rise("best_symmetric", "gamma", sign=-1, unconverged=True, **_DEPTHS)),
    registered("fig2-inferential-level", "small weights: most answers infer at their best",
        Mean("best_ood", lambda row: row["gamma"] > 0.7, 0.5, unconverged=True, **_SEEN),
        note="Models pass through the rule: at the end 15 of 42 runs of gamma 0.8 and 0.95 answer "
        "mostly by it, of those that have fitted 11 of 26. At gamma 0.8 with two layers the best "
        "share of symmetric answers is 0.87. The paper's appendix A gives gamma = 0.8 for "
        "symmetric models of two layers: in its figures a gamma can be called small or large."),
    registered("fig2-symmetric-level", "large weights: most are symmetric at their best",
        Mean("best_symmetric", lambda row: row["gamma"] < 0.6, 0.5, unconverged=True, **_SEEN)),
    registered("fig2-shadow-deep", "four layers, very large weights: seen pairs fail",
        Difference("best_id_accuracy", lambda row: row["gamma"] > 0.4, lambda row: row["gamma"] <
            0.4, runs=("deep",)), name="fig2-shadow",
        note="As registered, with runs that have not fitted: +0.48 [0.18, 0.79], supported. It is "
        "withheld because all of it is gamma 0.2, where training stops after 4,000 steps with 7 "
        "to 9 % of the data learned. At gamma 0.3 no run is below the 90 % of the caption.",
        takes="Runs at gamma 0.2 that fit their data; after 4,000 steps they have learned 7 to 9 "
        "% of it. The paper's 92,285 updates for 14 runs: half an hour of an H100 as one batch of "
        "models, two hours one after the other with the paper's 2,048 sequences an update."),
    registered("fig2-inferential-end", "smaller weights infer at the end",
        Rise("end_ood", "gamma", **_DEPTHS)),
    registered("fig2-symmetric-end", "larger weights are symmetric at the end",
        Rise("end_symmetric", "gamma", sign=-1, **_DEPTHS)),
    registered("equal-length-best", "equal length: small weights come to the rule",
        Difference("best_ood", _SMALL, _LARGE, runs=("equal-length",)), takes=_TO_LENGTH),
    registered("equal-length-end", "equal length: small weights infer at the end",
        Difference("end_ood", _SMALL, _LARGE, runs=("equal-length",)), takes=_TO_LENGTH),
    registered("equal-length-symmetric", "equal length: large weights end symmetric",
        Difference("end_symmetric", _LARGE, _SMALL, runs=("equal-length",)), takes=_TO_LENGTH),
    registered("paper-run-inferential", "the paper's whole training: gamma 0.8 infers",
        Mean("best_ood", equal(gamma=0.8), 0.5, runs=("paper-run",)),
        note="One run, which does not: 0.36 of its answers follow the rule at its best, after "
        "2,000 of 92,285 updates, and none at the end, where 0.98 are the other order's. One run "
        "cannot decide a claim by p.",
        takes="Four more runs of gamma 0.8, 4 minutes of an H100 each (`--train --device cuda`)."),
    registered("paper-run-symmetric", "the paper's whole training: gamma 0.5 is symmetric",
        Mean("last_symmetric", equal(gamma=0.5), 0.5, runs=("paper-run",)),
        takes="Five runs of gamma 0.5, 4 minutes of an H100 each (`--train --device cuda`)."),
]  # fmt: skip


def draw(data: Data) -> Panels:
    """The figure at the paper's width, the course of its runs, and narrow models."""
    shares = {"symmetric": ("symmetric", SYMMETRIC), "ood": ("inferential", INFERENTIAL)}
    panels = [[
        (f"({letter}) {name}, {depth:g} layers",
         best_and_end(mine, f"best_{column}", f"end_{column}", colour))
        for letter, (column, (name, colour)) in zip("ab", shares.items(), strict=True)
        for (depth,), mine in grouped(data.rows("figure2-wide"), ("n_layers",)).items()
    ]]  # fmt: skip
    names = ("figure2-wide", "equal-length", "paper-run")
    curves, longer, whole = (read_curves(RUNS[n].table(data.tables, n)) for n in names)
    for (depth,), of in grouped(curves, ("n_layers",)).items():
        panels.append([(f"along training, {depth:g} layers", courses(of, "id"))])
    kinds = (("train", "training", INK), *_ANSWERS)
    panels.append([("12,000 steps, 2 layers", courses(longer, "step", kinds)),
                   ("the paper's 92,285 updates", courses(whole, "step", kinds))])  # fmt: skip
    rows = data.rows("figure2-wide")
    panels.append([
        (f"({letter}) {name}, best, width 400", depth_map(rows, f"best_{column}"))
        for letter, (column, (name, _)) in zip("ab", shares.items(), strict=True)
    ])  # fmt: skip
    narrow = phase_diagrams(data.rows("depth"), x="gamma", y="n_layers").diagrams[0]
    titles = {"symmetric_accuracy": "symmetric, end", "ood_accuracy": "inferential, end"}
    maps = {title: accuracy_map(narrow, name) for name, title in titles.items()}
    maps["phase"] = phase_map(narrow)
    return [*panels, [(f"narrow models: {title}", figure) for title, figure in maps.items()]]


def depth_map(rows: Rows, column: str) -> Figure:
    """The mean of a share over depth and gamma."""
    depths = sorted({row["n_layers"] for row in rows})
    cells = grouped(rows, CELL)
    means = np.array([
        [mean(row[column] for row in cells[depth, gamma]) for gamma in GAMMAS] for depth in depths
    ])  # fmt: skip
    with panel(4.4, 2.0) as (figure, axes):
        image = axes.imshow(means, vmin=0, vmax=1, cmap="cividis", origin="lower", aspect="auto")
        style.cell_values(axes, means, white=means < 0.5)
        axes.set_xticks(range(len(GAMMAS)), [f"{gamma:g}" for gamma in GAMMAS])
        axes.set_yticks(range(len(depths)), [f"{depth} layers" for depth in depths])
        axes.set_xlabel("gamma")
        figure.colorbar(image, ax=axes, label="share of (4, 3)")
    return figure


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
                (gamma, mean(row[column] for row in cell))
                for (gamma,), cell in grouped(having, ("gamma",)).items()
            ]
            axes.plot(*zip(*means, strict=True), line, color=INK, linewidth=1)
            axes.plot([], [], line, color=INK, marker="o", mfc=filled, mec=colour, label=label)
        axes.set(xlabel="gamma", ylabel="share of (4, 3)", ylim=(-0.03, 1.03))
        axes.set_xticks(sorted({row["gamma"] for row in rows}))
        axes.margins(x=0.1)
        style.legend_below(figure, axes, columns=1)
    return figure


def courses(curves: Rows, x: str, kinds: Sequence[Any] = _ANSWERS) -> Figure:
    """Answers to (4, 3) over ID accuracy or the step: a panel a gamma, a line a run."""
    gammas, over_steps = grouped(curves, ("gamma",)), x == "step"
    width = 2.6 * max(len(gammas), 2) if over_steps else 2.1 * len(gammas)
    with style.single(width, 2.9) as figure:
        panels: Any = figure.subplots(1, len(gammas), squeeze=False, sharey=True)[0]
        for axes, ((gamma,), rows) in zip(panels, gammas.items(), strict=True):
            for run in grouped(rows, ("run_id",)).values():
                run.sort(key=lambda row: row["step"])
                for column, _, colour in kinds:
                    told = [(row[x], row[column]) for row in run if row[column] is not None]
                    axes.plot(*zip(*told, strict=True), color=colour, linewidth=0.8, alpha=0.7)
                    axes.plot(*told[-1], "o", color=colour, markersize=4)
            axes.set(title=f"gamma {gamma:g}", ylim=(-0.03, 1.03),
                     xlabel="step" if over_steps else "ID accuracy",
                     xscale="log" if over_steps else "linear")  # fmt: skip
        panels[0].set_ylabel("share" if over_steps else "share of (4, 3)")
        handles = [Line2D([], [], color=colour, label=name) for _, name, colour in kinds]
        handles.append(Line2D([], [], color=INK, marker="o", linestyle="none", label="the end"))
        figure.legend(handles=handles, loc="outside lower left", ncols=4, frameon=False,
                      columnspacing=1.0, handlelength=1.5)  # fmt: skip
    return figure


def answers_table(data: Data) -> str:
    """What the runs at the paper's width answer to (4, 3), a line a depth and gamma."""
    lines = []
    for (depth, gamma), rows in grouped(data.rows("figure2-wide"), CELL).items():
        counts = [sum(row[name] for row in rows)
                  for name in ("rates", "fitted", "by_rule", "by_other")]  # fmt: skip
        shown = ("best_ood", "best_symmetric", "end_ood", "end_symmetric")
        shares = [spread([row[name] for row in rows if row[name] is not None]) for name in shown]
        lines.append([str(depth), f"{gamma:g}", *map(str, (len(rows), *counts)), *shares])
    head = ["layers", "gamma", "seeds", "runs", "fitted", "end by rule", "end symmetric"]
    return table([*head, "rule, best", "symmetric, best", "rule, end", "symmetric, end"], lines)


TABLES = {"figure2": answers_table}


if __name__ == "__main__":
    raise SystemExit(main(__file__))
