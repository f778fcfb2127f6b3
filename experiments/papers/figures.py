"""The sections' figures from the studies' tables: nothing is computed here but means.

Phases have the colours and letters of :mod:`anchor_interp.pages.diagram_marks`; every run is a point.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anchor_interp.pages.diagram_marks import COLOURS
from anchor_interp.pages.style import INK, NEITHER, plain_ticks, single
from anchor_interp.runs.phase import Phase
from anchor_interp.tasks.anchor import Pair

from .claims import CLAIMS
from .judging import Judgement, Row
from .measures import pair_steps
from .verdict_score import PHASES, EarlyScore, VerdictScore

VERDICT_COLOURS = {
    "supported": "#009E73",
    "not supported": "#D55E00",
    "inconclusive": "#E69F00",
    "not run": "#999999",
}
"""Colours of the verdicts on claims."""


VERDICT_MARKS = {"supported": "o", "not supported": "X", "inconclusive": "s", "not run": "_"}
"""Their marks."""


_LARGE, _SMALL = "#E69F00", "#0072B2"


_MOST, _EDGE = 8.0, 1.04
"""Effects are shown up to so many times the smallest that counts, on an axis a little longer."""


def forest(judgements: Mapping[str, Judgement]) -> "Figure":
    """Every claim's effect with its interval, in units of the smallest effect that counts.

    The one claim without such an effect, of a share above one half, is shown in tenths. Arrowheads
    are where something goes on beyond the axis.
    """
    minima = {claim.name: claim.minimum for claim in CLAIMS}
    shown = [
        j for j in judgements.values() if j.finding is not None and j.finding.effect is not None
    ]
    with single(6.6, 1.1 + 0.27 * len(shown)) as figure:
        axes = figure.subplots()
        for place, found in enumerate(reversed(shown)):
            assert found.finding is not None
            unit = minima[found.claim] or 0.1
            low, middle, high = (
                max(-_MOST, min(_MOST, (value or 0.0) / unit))
                for value in (found.finding.low, found.finding.effect, found.finding.high)
            )
            colour = VERDICT_COLOURS[found.verdict]
            axes.plot([low, high], [place, place], color=colour, linewidth=1.6, zorder=1)
            axes.plot(middle, place, VERDICT_MARKS[found.verdict], color=colour, markersize=6)
            for end in {low, high} & {-_MOST, _MOST}:  # it goes on beyond the axis
                mark = "<" if end < 0 else ">"
                axes.plot(_EDGE * end, place, mark, color=colour, markersize=4, clip_on=False)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
        names = [found.claim for found in reversed(shown)]
        axes.set_yticks(range(len(shown)), names, fontsize=8)
        axes.set_ylim(-0.7, len(shown) - 0.3)
        axes.set_xlim(-_MOST * _EDGE, _MOST * _EDGE)
        axes.set_xlabel("effect as claimed, in units of the smallest that counts (dotted)")
        handles = [
            _handle(VERDICT_COLOURS[name], name, VERDICT_MARKS[name])
            for name in VERDICT_COLOURS
            if any(found.verdict == name for found in shown)
        ]
        figure.legend(
            handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=8
        )
    return figure


def confusion(score: VerdictScore) -> "Figure":
    """The phase of every run against the verdict from its mechanism."""
    columns = (*PHASES, "other")
    counts = np.array([[score.confusion[phase][other] for other in columns] for phase in PHASES])
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    with single(5.2, 3.4) as figure:
        axes = figure.subplots()
        axes.imshow(shares, vmin=0, vmax=1, cmap="Blues")
        for row, column in np.ndindex(*counts.shape):
            if counts[row, column]:
                colour = "white" if shares[row, column] > 0.6 else "black"
                axes.text(
                    column, row, str(counts[row, column]), ha="center", va="center", color=colour
                )
        axes.set_xticks(range(len(columns)), columns, rotation=25, ha="right", fontsize=8)
        axes.set_yticks(range(len(PHASES)), PHASES, fontsize=8)
        axes.set(xlabel="verdict, from the mechanism", ylabel="phase, from behaviour")
        for side in ("top", "right"):
            axes.spines[side].set_visible(True)
    return figure


def early(scores: Sequence[EarlyScore], reference: float | None = None) -> "Figure":
    """Balanced accuracy of the verdict along training, against the final phase."""
    with single(4.8, 3.2) as figure:
        axes = figure.subplots()
        at = [score.share for score in scores]
        axes.fill_between(
            at,
            [s.low for s in scores],
            [s.high for s in scores],
            color=_SMALL,
            alpha=0.2,
            linewidth=0,
        )
        axes.plot(at, [s.accuracy for s in scores], "o-", color=_SMALL, label="verdict then")
        behaved = [(s.share, s.behaviour) for s in scores if s.behaviour is not None]
        if behaved:
            axes.plot(*zip(*behaved, strict=True), "s--", color=_LARGE, label="behaviour then")
        if reference is not None:
            axes.axhline(reference, color=NEITHER, linestyle="--", label="from the settings alone")
        axes.axhline(1 / len(PHASES), color=INK, linewidth=0.8, linestyle=":", label="chance")
        axes.set(
            xlabel="share of the training done", ylabel="balanced accuracy\nof the final phase"
        )
        axes.set_ylim(0, 1.02)
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def by_phase(
    rows: Sequence[Row], numbers: Mapping[str, str], *, phases: Sequence[Phase] = PHASES
) -> "Figure":
    """Numbers of every run, phase by phase, with means.

    Args:
        rows: the runs.
        numbers: columns to show, with what to call them.
        phases: the phases, in order.
    """
    with single(2.5 * len(numbers) + 0.4, 3.2) as figure:
        panels: Any = figure.subplots(1, len(numbers), squeeze=False)[0]
        for axes, (name, title) in zip(panels, numbers.items(), strict=True):
            for place, phase in enumerate(phases):
                values = [
                    row[name] for row in rows if row["phase"] == phase and row.get(name) is not None
                ]
                _strip(axes, place, values, COLOURS[phase])
            axes.axhline(0, color=INK, linewidth=0.6)
            axes.set_xticks(range(len(phases)), phases, rotation=35, ha="right", fontsize=8)
            axes.set_title(title)
    return figure


def against(
    rows: Sequence[Row],
    x: str,
    y: Callable[[Row], float | None],
    by: str,
    *,
    labels: tuple[str, str],
    log: bool = False,
    name: Callable[[Any], str] = str,
    bound: Callable[[Row], bool] = lambda _: False,
) -> "Figure":
    """A number of every run over a setting, in groups, with the groups' means.

    Args:
        rows: the runs.
        x: the setting's column.
        y: the number.
        by: the column of the groups.
        labels: of the axes.
        log: whether the number's axis is logarithmic.
        name: what to call a group.
        bound: runs whose number is a lower bound, drawn hollow.
    """
    groups = sorted({row[by] for row in rows if row[by] is not None})
    with single(5.0, 3.6) as figure:
        axes = figure.subplots()
        places = sorted({row[x] for row in rows})
        hollow = False
        for index, group in enumerate(groups):
            colour = _group_colour(index, len(groups))
            means = []
            for place, value in enumerate(places):
                mine = [row for row in rows if row[by] == group and row[x] == value]
                shift = (index - (len(groups) - 1) / 2) * 0.16
                for row in mine:
                    if (found := y(row)) is not None:
                        face = "none" if bound(row) else colour
                        hollow |= bound(row)
                        axes.plot(place + shift, found, "o", color=colour, markerfacecolor=face,
                                  alpha=0.6, markersize=4)  # fmt: skip
                values = [found for row in mine if (found := y(row)) is not None]
                means.append((place + shift, float(np.mean(values)) if values else math.nan))
            axes.plot(*zip(*means, strict=True), "-", color=colour, label=name(group))
        axes.set_xticks(range(len(places)), [f"{place:g}" for place in places])
        axes.set(xlabel=labels[0], ylabel=labels[1])
        if log:
            axes.set_yscale("log")
            plain_ticks(axes.yaxis)
        axes.grid(alpha=0.25)
        handles = axes.get_legend_handles_labels()[0]
        if hollow:
            handles.append(_hollow())
        figure.legend(
            handles=handles, loc="outside lower center", frameon=False, fontsize=8, ncols=3
        )
    return figure


def _hollow() -> Any:
    from matplotlib.lines import Line2D

    label = "never came there (hollow)"
    return Line2D([], [], label=label, marker="o", ls="none", color=INK, markerfacecolor="none")


def steps_or_bound(row: Row, column: str) -> float | None:
    """The steps to something; of a run that never came there, all; None of one not measured."""
    if row.get("final_loss") is None:
        return None
    return float(row.get(column) or row["steps"])


def pairs_learned(rows: Sequence[Row], marked: Callable[[Pair], bool]) -> "Figure":
    """When each ordered pair is learned (complexity-control paper, figure 8B), run by run.

    Args:
        rows: the runs; pairs that one has not learned at its end are drawn hollow there.
        marked: which pairs are in colour.
    """
    pairs = sorted({pair for row in rows for pair in pair_steps(row)})
    gammas = sorted({row["gamma"] for row in rows})
    with single(6.4, 2.4 * len(gammas) + 0.4) as figure:
        panels: Any = figure.subplots(len(gammas), 1, squeeze=False, sharex=True)[:, 0]
        hollow = False
        for axes, gamma in zip(panels, gammas, strict=True):
            mine = [(pair_steps(row), row["steps"]) for row in rows if row["gamma"] == gamma]
            for place, pair in enumerate(pairs):
                found = [(steps[pair], end) for steps, end in mine if pair in steps]
                values, never = [step for step, _ in found], [step >= end for step, end in found]
                hollow |= any(never)
                _strip(axes, place, values, "#D55E00" if marked(pair) else _SMALL, hollow=never)
            axes.set_ylabel("steps to 60 %")
            axes.set_title(f"gamma {gamma:g}")
            axes.grid(alpha=0.25, axis="y")
        panels[-1].set_xticks(range(len(pairs)), map(str, pairs), rotation=60, fontsize=8)
        if hollow:
            figure.legend(
                handles=[_hollow()], loc="outside lower center", frameon=False, fontsize=8
            )
    return figure


def strips(
    groups: Mapping[str, Sequence[float]], label: str, *, reference: float | None = None
) -> "Figure":
    """Values of some groups side by side, with their means."""
    with single(0.9 + 1.0 * len(groups), 3.2) as figure:
        axes = figure.subplots()
        for place, values in enumerate(groups.values()):
            _strip(axes, place, values, _group_colour(place, len(groups)))
        if reference is not None:
            axes.axhline(reference, color=INK, linewidth=0.8, linestyle=":")
        axes.set_xticks(range(len(groups)), list(groups), fontsize=8)
        axes.set_ylabel(label)
        axes.grid(alpha=0.25, axis="y")
    return figure


def grid(
    rows: Sequence[Row], x: str, y: str, number: str, *, labels: tuple[str, str, str]
) -> "Figure":
    """Means of a number over two settings, with how many runs are of each phase."""
    across, up = (sorted({row[name] for row in rows}) for name in (x, y))
    with single(1.5 + 1.1 * len(across), 1.3 + 0.75 * len(up)) as figure:
        axes = figure.subplots()
        means = np.full((len(up), len(across)), math.nan)
        for j, i in np.ndindex(*means.shape):
            mine = [
                r for r in rows if r[x] == across[i] and r[y] == up[j] and r.get(number) is not None
            ]
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


def development(
    rows: Sequence[Row], checkpoints: Sequence[Row], numbers: Mapping[str, str]
) -> "Figure":
    """Numbers of the mechanism along training: every run a point, the mean of each final phase.

    Args:
        rows: the runs with their numbers at the end.
        checkpoints: rows of the checkpoints between, with ``at_step`` and ``at_number``.
        numbers: columns to show, with what to call them.
    """
    steps = {row["run_id"]: row["steps"] for row in rows}
    last = 1 + max((row["at_number"] for row in checkpoints), default=0.0)
    moments: dict[float, list[Row]] = {}
    for row in (*checkpoints, *rows):
        moments.setdefault(row.get("at_number") or last, []).append(row)
    shares = {
        number: float(np.mean([r.get("at_step", r["steps"]) / steps[r["run_id"]] for r in mine]))
        for number, mine in sorted(moments.items())
    }
    with single(2.9 * len(numbers) + 0.4, 3.2) as figure:
        panels: Any = figure.subplots(1, len(numbers), squeeze=False)[0]
        for axes, (name, title) in zip(panels, numbers.items(), strict=True):
            for index, phase in enumerate(PHASES):
                colour, means = COLOURS[phase], []
                for number, share in shares.items():
                    values = [
                        row[name]
                        for row in moments[number]
                        if row["phase"] == phase and row.get(name) is not None
                    ]
                    place = share + (index - 1.5) * 0.012
                    axes.plot([place] * len(values), values, ".", color=colour, alpha=0.35)
                    means.append((place, float(np.mean(values)) if values else math.nan))
                axes.plot(*zip(*means, strict=True), "-", color=colour, linewidth=2, label=phase)
            axes.set_title(title)
            axes.set_xlabel("share of the training done (mean)")
            axes.grid(alpha=0.25)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", frameon=False, fontsize=8, ncols=4
        )
    return figure


def curves(lines: Mapping[str, Sequence[float]], x: str, y: str) -> "Figure":
    """Some series over their index, from 1 on, on a logarithmic axis."""
    with single(4.4, 3.2) as figure:
        axes = figure.subplots()
        for index, (name, values) in enumerate(lines.items()):
            colour = _group_colour(index, len(lines))
            axes.plot(range(1, len(values) + 1), values, ".-", color=colour, label=name)
        axes.set(xlabel=x, ylabel=y, yscale="log")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
    return figure


def _strip(
    axes: "Axes",
    place: float,
    values: Sequence[float],
    colour: str,
    *,
    hollow: Sequence[bool] = (),
) -> None:
    """Points side by side, and their mean as a line."""
    if not len(values):
        return
    shifts = (np.arange(len(values)) % 5 - 2) * 0.06 if len(values) > 1 else np.zeros(1)
    for index, (shift, value) in enumerate(zip(shifts, values, strict=True)):
        face = "none" if hollow and hollow[index] else colour
        axes.plot(place + shift, value, "o", color=colour, markerfacecolor=face, markersize=4,
                  alpha=0.75)  # fmt: skip
    middle = float(np.mean(values))
    axes.plot([place - 0.3, place + 0.3], [middle, middle], color=INK, linewidth=1.4)


def _group_colour(index: int, n: int) -> str:
    return (
        (_LARGE, _SMALL)[index]
        if n == 2
        else ("#E69F00", "#0072B2", "#009E73", "#CC79A7")[index % 4]
    )


def _handle(colour: str, label: str, mark: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, marker=mark, linestyle="none", label=label)
