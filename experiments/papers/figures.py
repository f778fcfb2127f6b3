"""The sections' figures from the studies' tables: every run a point, nothing computed but means."""

import itertools
import math
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from anchor_interp.analysis.similarity import Similarity
from anchor_interp.models.embeddings import EmbeddingStructure
from anchor_interp.pages.diagram_marks import COLOURS
from anchor_interp.pages.style import INK, frame, panel, plain_ticks, signed_map, single

from .claims import NAMED
from .effects import grouped
from .judging import Judgement
from .rows import Rows, never_came, of_three_and_four, pair_scores, steps_to_loss
from .verdict_score import GIVEN, PHASES, VerdictScore

_TASKS = {"complexity-control": "complexity control", "neurips": "NeurIPS"}
Corner = tuple[tuple[int, ...], tuple[int, ...]]  # groups of anchors along rows and columns
VERDICT_STYLES = {
    "supported": ("#009E73", "o"),
    "mixed": ("#CC79A7", "P"),
    "not supported": ("#D55E00", "X"),
    "reversed": ("#8C2D04", "v"),
    "inconclusive": ("#E69F00", "s"),
    "not answerable here": ("#0072B2", "^"),
    "nothing comparable": ("#56B4E9", "d"),
    "not run": ("#999999", "_"),
}
_SMALL = "#0072B2"
_GROUPS = ("#E69F00", _SMALL, "#009E73", "#CC79A7")
_MOST, _EDGE = 8.0, 1.1  # effects are cut at so many smallest effects, arrowheads stand beyond
_HOLLOW = Line2D(
    [], [], label="never came there (hollow)", marker="o", ls="none", color=INK, mfc="none"
)
_OURS = Line2D(
    [], [], label="hollow: our own claim", marker="o", ls="none", color=INK, mfc="white", mew=1.3
)


def forest(groups: Mapping[str, Sequence[Judgement]]) -> Figure:
    """Every claim's effect with its interval, in units of the smallest effect that counts.

    Each claim has a line, with its words on the left; ``groups`` have a heading, such as a paper's
    figure. A filled mark is a paper's claim, a hollow one our own. A claim whose smallest effect
    is 0 is shown in tenths. An arrowhead is where something goes on beyond the axis.
    """
    lines: list[tuple[str, Judgement | None]] = []  # from the top
    for heading, group in groups.items():
        shown = [one for one in group if one.finding is not None and one.finding.found is not None]
        named = [("\n".join(wrap(NAMED[one.claim].short, 30)), one) for one in shown]
        lines += [(heading, None), *named] if named else []
    heights = np.array([0.07 + 0.16 * (1 + words.count("\n")) for words, _ in lines])
    places = -np.cumsum(heights) + heights / 2
    present = {one.verdict for _, one in lines if one is not None}
    with panel(5.0, 1.3 + heights.sum()) as (figure, axes):
        for (words, judged), place, height in zip(lines, places, heights, strict=True):
            if judged is None:
                axes.axhspan(place - height / 2, place + height / 2, color=INK, alpha=0.09, lw=0)
                axes.annotate(words, (0, place), (4, 0), ("axes fraction", "data"),
                              "offset points", va="center", weight="bold", size=9)  # fmt: skip
            else:
                _effect(axes, judged, place, height)
        axes.set(ylim=(-heights.sum(), 0), xlim=(-1.15 * _MOST, 1.15 * _MOST))
        axes.set_yticks(places, [words if judged else "" for words, judged in lines])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("effect (+ as claimed) /\nsmallest that counts (dotted)")
        handles = [
            Line2D([], [], color=colour, marker=mark, linestyle="none", label=verdict)
            for verdict, (colour, mark) in VERDICT_STYLES.items()
            if verdict in present
        ]
        if any(one is not None and NAMED[one.claim].ours for _, one in lines):
            handles.append(_OURS)
        figure.legend(
            handles=handles, loc="outside upper center", ncols=2, frameon=False, fontsize=10
        )
    return figure


def _effect(axes: Axes, judged: Judgement, place: float, height: float) -> None:
    """A claim's effect and interval on its line, beside 0 and the smallest effect that counts."""
    assert judged.finding is not None
    assert judged.finding.found is not None
    found, (colour, mark) = judged.finding.found, VERDICT_STYLES[judged.verdict]
    claim = NAMED[judged.claim]
    least, inside = claim.minimum or 0.1, "white" if claim.ours else colour
    low, middle, high = (
        max(-_MOST, min(_MOST, value / least)) for value in (found.low, found.effect, found.high)
    )
    for x, style in ((0, "-"), (1, ":")):
        ends = [place - 0.45 * height, place + 0.45 * height]
        axes.plot([x, x], ends, style, color=INK, lw=0.7, alpha=0.6, zorder=0)
    axes.plot([low, high], [place, place], color=colour, linewidth=1.8, zorder=1)
    axes.plot(middle, place, mark, color=colour, mfc=inside, mew=1.3, ms=7)
    for end in {low, high} & {-_MOST, _MOST}:
        axes.plot(_EDGE * end, place, "<" if end < 0 else ">", color=colour, ms=4, clip_on=False)


def confusion(score: VerdictScore) -> Figure:
    """The phase of every run against the verdict from its mechanism."""
    counts = np.array([[score.confusion[phase][other] for other in GIVEN] for phase in PHASES])
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    with panel(5.2, 3.4) as (figure, axes):
        axes.imshow(shares, vmin=0, vmax=1, cmap="Blues")
        for (row, column), n in np.ndenumerate(counts):
            if n:
                colour = "white" if shares[row, column] > 0.6 else "black"
                axes.text(column, row, str(n), ha="center", va="center", color=colour)
        axes.set_xticks(range(len(GIVEN)), GIVEN, rotation=25, ha="right", fontsize=8)
        axes.set_yticks(range(len(PHASES)), PHASES, fontsize=8)
        axes.set(xlabel="verdict, from the mechanism", ylabel="phase, from behaviour")
        for side in ("top", "right"):
            axes.spines[side].set_visible(True)
    return figure


def by_phase(rows: Rows, numbers: Mapping[str, str], *, strata: bool = True) -> Figure:
    """Numbers of every run, phase by phase, with means: a row a number, a column a task and layout.

    ``numbers`` titles the columns shown. Without ``strata`` all runs stand in one column.
    """
    groups = grouped(rows, ("task", "normalization")) if strata else {("all", "runs"): rows}
    with single(0.5 + max(2.0 * len(groups), 3.0), 0.6 + 2.0 * len(numbers)) as figure:
        panels: Any = figure.subplots(
            len(numbers), len(groups), squeeze=False, sharex=True, sharey="row"
        )
        for line, (name, title) in zip(panels, numbers.items(), strict=True):
            line[0].set_ylabel(title)
            for axes, mine in zip(line, groups.values(), strict=True):
                for place, phase in enumerate(PHASES):
                    values = [row[name] for row in mine
                              if row["phase"] == phase and row.get(name) is not None]  # fmt: skip
                    _strip(axes, place, values, COLOURS[phase])
                axes.axhline(0, color=INK, linewidth=0.6)
        for axes, (task, layout) in zip(panels[0], groups, strict=True):
            axes.set_title(f"{_TASKS.get(task, task)}, {layout}" if strata else "")
        for axes in panels[-1]:
            axes.set_xticks(range(len(PHASES)), PHASES, rotation=35, ha="right", fontsize=8)
            axes.set_xlim(-0.6, len(PHASES) - 0.4)  # also where a phase has no run
    return figure


def over_depth(rows: Rows) -> Figure:
    """Steps of every run over depth, a colour a number of broken groups (NeurIPS paper, figure 6).

    A bar is a mean. Runs that never came to the loss are hollow, at their last step.
    """
    depths, levels = (sorted({row[name] for row in rows}) for name in ("n_layers", "complexity"))
    colours = [*map(tuple, colormaps["viridis"](np.linspace(0, 0.9, len(levels))))]
    hollow = False
    with panel(4.2, 3.4) as (figure, axes):
        for (place, depth), (index, level) in itertools.product(
            enumerate(depths), enumerate(levels)
        ):
            mine = [row for row in rows if (row["n_layers"], row["complexity"]) == (depth, level)]
            values = [(n, never_came(row)) for row in mine if (n := steps_to_loss(row))]
            hollow |= any(never for _, never in values)
            at = place + 0.8 * (index + 0.5) / len(levels) - 0.4
            for shift, (number, never) in zip(itertools.cycle((-0.02, 0, 0.02)), values):
                _dot(axes, at + shift, number, colours[index], hollow=never, alpha=0.8)
            mean = _mean([number for number, _ in values])
            axes.plot([at - 0.06, at + 0.06], [mean, mean], color=colours[index], lw=2)
        axes.set_xticks(range(len(depths)), [f"{depth} layers" for depth in depths])
        axes.set(xlabel="depth", ylabel="steps to a loss of 0.05")
        axes.set(ylim=(0, None), xlim=(-0.5, len(depths) - 0.5))
        axes.grid(alpha=0.25, axis="y")
        handles = [Line2D([], [], marker="o", ls="none", color=colour, label=f"{level:g} broken")
                   for level, colour in zip(levels, colours, strict=True)]  # fmt: skip
        _legend(figure, [*handles, _HOLLOW] if hollow else handles)
    return figure


def pairs_learned(rows: Rows) -> Figure:
    """When each ordered pair is learned (complexity-control paper, figure 8B), run by run.

    Pairs of 3 and 4 are in colour; one that a run has not learned at its end is drawn hollow there.
    """
    pairs = sorted({pair for row in rows for pair in pair_scores(row)})
    gammas = sorted({row["gamma"] for row in rows})
    with single(6.4, 2.4 * len(gammas) + 0.4) as figure:
        panels: Any = figure.subplots(len(gammas), 1, squeeze=False, sharex=True)[:, 0]
        hollow = False
        for axes, gamma in zip(panels, gammas, strict=True):
            mine = [(pair_scores(row), row["steps"]) for row in rows if row["gamma"] == gamma]
            for place, pair in enumerate(pairs):
                found = [(steps[pair], end) for steps, end in mine if pair in steps]
                unreached = [step >= end for step, end in found]
                hollow |= any(unreached)
                colour = "#D55E00" if of_three_and_four(pair) else _SMALL
                _strip(axes, place, [step for step, _ in found], colour, hollow=unreached)
            axes.set_ylabel("steps to 60 %")
            axes.set_title(f"gamma {gamma:g}")
            axes.grid(alpha=0.25, axis="y")
        panels[-1].set_xticks(range(len(pairs)), map(str, pairs), rotation=60, fontsize=8)
        if hollow:
            _legend(figure, [_HOLLOW])
    return figure


def strips(
    groups: Mapping[str, Sequence[float]],
    label: str,
    *,
    reference: float | None = None,
    hollow: Mapping[str, Sequence[bool]] | None = None,
) -> Figure:
    """Values of some groups side by side, with their means; without a reference, logarithmic."""
    with panel(0.9 + 1.0 * len(groups), 3.2) as (figure, axes):
        for place, (name, values) in enumerate(groups.items()):
            _strip(axes, place, values, _GROUPS[place % 4], hollow=(hollow or {}).get(name, ()))
        if reference is None:
            axes.set_yscale("log")
            plain_ticks(axes.yaxis)
            _legend(figure, [_HOLLOW])
        else:
            axes.axhline(reference, color=INK, linewidth=0.8, linestyle=":")
        axes.set_xticks(range(len(groups)), list(groups), fontsize=8)
        axes.set_ylabel(label)
        axes.grid(alpha=0.25, axis="y")
    return figure


def grid(rows: Rows, x: str, y: str, number: str, *, labels: tuple[str, str, str]) -> Figure:
    """Means of a number over two settings, with the letters of the runs' phases."""
    across, up = (sorted({row[name] for row in rows}) for name in (x, y))
    with panel(1.5 + 1.1 * len(across), 1.3 + 0.75 * len(up)) as (figure, axes):
        means = np.full((len(up), len(across)), math.nan)
        for j, i in np.ndindex(*means.shape):
            cell = [row for row in rows if (row[x], row[y]) == (across[i], up[j])]
            mine = [row for row in cell if row.get(number) is not None]
            if mine:
                means[j, i] = np.mean([row[number] for row in mine])
                letters = "".join(sorted((row["phase"] or "?")[0].upper() for row in mine))
                colour = "white" if means[j, i] < 0.55 else "black"
                axes.text(i, j, f"{means[j, i]:.2f}\n{letters}", ha="center", va="center",
                          color=colour, fontsize=8)  # fmt: skip
        image = axes.imshow(means, vmin=0, vmax=1, cmap="cividis", origin="lower", aspect="auto")
        axes.set_xticks(range(len(across)), [f"{value:g}" for value in across])
        axes.set_yticks(range(len(up)), [f"{value:g}" for value in up])
        axes.set(xlabel=labels[0], ylabel=labels[1])
        figure.colorbar(image, ax=axes, label=labels[2])
    return figure


def spectra(lines: Mapping[int, Sequence[float]]) -> Figure:
    """Eigenvalues, largest first, at several steps of a training: the later, the darker."""
    with panel(4.4, 3.4) as (figure, axes):
        shades = colormaps["viridis_r"](np.linspace(0.1, 1, len(lines)))
        for colour, (step, values) in zip(shades, lines.items(), strict=True):
            label = f"step {step:,}" if step in (min(lines), max(lines)) else None
            axes.plot(range(1, len(values) + 1), values, color=colour, lw=1.2, label=label)
        largest = max(max(values) for values in lines.values())
        axes.set(xlabel="index", ylabel="eigenvalue", yscale="log", ylim=(largest / 1e4, None))
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
    return figure


def triangles(similarity: Similarity, low: Corner, up: Corner, *, centred: bool) -> Figure:
    """Cosines over key x key: below the diagonal of two groups of anchors, above it of two others.

    A corner names the groups along the rows and along the columns. Red boxes have equal values by
    the rule. Source: NeurIPS paper, figure 4.
    """
    matrix = similarity.centred if centred else similarity.cosine
    keys = sorted(set(similarity.keys.tolist()))
    at = {item: i for i, item in enumerate(zip(similarity.anchors, similarity.keys, strict=True))}
    shown = np.full((len(keys), len(keys)), math.nan)
    with panel(4.1, 3.4) as (figure, axes):
        for (row, one), (column, two) in itertools.product(enumerate(keys), repeat=2):
            if row != column:
                rows, columns = low if row > column else up
                i, j = at[rows, one], at[columns, two]
                shown[row, column] = matrix[i, j]
                if similarity.values[i] == similarity.values[j]:
                    frame(axes, (column - 0.5, row - 0.5), 1, edgecolor="red", lw=1.6, zorder=3)
        signed_map(axes, shown, "centred cosine" if centred else "cosine")
        axes.plot([-0.5, len(keys) - 0.5], [-0.5, len(keys) - 0.5], color=INK, lw=0.8)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(range(0, len(keys), 2), [str(key) for key in keys[::2]])
        named = [[", ".join(map(str, group)) for group in corner] for corner in (low, up)]
        axes.set_xlabel(f"key; below with ({named[0][1]}), above with ({named[1][1]})", size=9)
        axes.set_ylabel(f"key; below with ({named[0][0]}), above with ({named[1][0]})", size=9)
    return figure


def embedded_numbers(structure: EmbeddingStructure, keys: Sequence[int]) -> Figure:
    """Keys, dark to light, at their first two components; arrows of 3 (red) and 4 (blue) from one.

    Source: NeurIPS paper, figures 5c and 5d.
    """
    arrows = {3: "#D00000", 4: "#0050D0"}
    points = structure.coordinates[:, :2]
    share = structure.eigenvalues / structure.eigenvalues.sum()
    with panel(4.2, 3.9) as (figure, axes):
        axes.scatter(points[:, 0], points[:, 1], s=24, c=list(keys), cmap="cividis", lw=0.4, ec=INK)
        first = len(keys) // 2 - 6
        ends = {first + place for step in arrows for place in range(0, 13, step)}
        for place in sorted(ends):
            beside = 4, 4 if (place - first) % 3 == 0 else -11
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
        handles = [Line2D([], [], color=colour, label=f"steps of {step} from {keys[first]}")
                   for step, colour in arrows.items()]  # fmt: skip
        _legend(figure, handles)
    return figure


def mask_drawing(hidden: int) -> Figure:
    """What a mask cuts: the attention edges out of a token's place, in both layers.

    ``hidden`` is the place of the token in noise, key, two anchors, noise (complexity-control
    paper, figures 4A and 4B).
    """
    names = ("noise", "x", "a1", "a2", "noise")
    with panel(4.0, 2.9) as (figure, axes):
        for layer, query in itertools.product(range(2), range(len(names))):
            for key in range(query + 1):
                style: dict[str, Any] = {"color": INK, "lw": 0.9, "alpha": 0.35}
                if key == hidden and query != key:
                    style = {"color": "#D55E00", "ls": "--", "lw": 1.6}
                axes.plot((key, query), (layer + 0.12, layer + 0.88), **style)
        for place, layer in itertools.product(range(len(names)), range(3)):
            fill = "#D55E00" if place == hidden else "white"
            axes.scatter(place, layer, s=80, facecolor=fill, edgecolor=INK, zorder=3)
        for place, name in enumerate(names):
            axes.text(place, -0.22, name, ha="center", va="top")
        axes.text(len(names) - 1, 2.2, "output", ha="center", va="bottom")
        axes.set(xlim=(-0.9, len(names) - 0.4), ylim=(-0.6, 2.6), xticks=[])
        axes.set_yticks([0.5, 1.5], ["L0", "L1"])
        axes.tick_params(length=0)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        _legend(figure, [Line2D([], [], color="#D55E00", ls="--", label="set to 0")])
    return figure


def _legend(figure: Figure, handles: Sequence[Any]) -> None:
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _dot(axes: Axes, x: float, y: float, colour: Any, *, hollow: bool, alpha: float) -> None:
    face = "none" if hollow else colour
    axes.plot(x, y, "o", color=colour, markerfacecolor=face, markersize=4, alpha=alpha)


def _strip(
    axes: Axes, place: float, values: Sequence[float], colour: str, *, hollow: Sequence[bool] = ()
) -> None:
    """Points side by side, and their mean as a line."""
    if not values:
        return
    for index, value in enumerate(values):
        shift = (index % 5 - 2) * 0.06 if len(values) > 1 else 0.0
        is_hollow = bool(hollow) and hollow[index]
        _dot(axes, place + shift, value, colour, hollow=is_hollow, alpha=0.75)
    middle = _mean(values)
    axes.plot([place - 0.3, place + 0.3], [middle, middle], color=INK, linewidth=1.4)
