"""NeurIPS paper, section 4: which factor moves the boundary between the two answers (our question).

From an inferential and a symmetric cell of figure 2's runs, one factor at a time is changed
(:func:`papers.figure2_runs.factor_levels`). The effect of a level is the mean of an accuracy over
its five seeds minus that over the five of the base cell, with Welch's interval. Written down before
the runs: a level *moves* the boundary if in either cell one of the two accuracies changes by 0.3 or
more and its interval leaves out 0. It *holds* it if all four intervals lie within 0.3 of 0.
Otherwise it is *open*. The intervals hold one by one: in one of twenty, 0 is left out by chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import section
from anchor_interp.analysis.comparisons import MeanComparison, two_samples
from anchor_interp.pages.style import INFERENTIAL, INK, SYMMETRIC, single
from papers.figure2_runs import BASES, factor_levels, factor_runs
from papers.rows import Row, Rows
from papers.studies import SCALES

LEAST = 0.3
ANSWERS = {
    "ood_accuracy": ("inferential", INFERENTIAL),
    "symmetric_accuracy": ("symmetric", SYMMETRIC),
}


@dataclass(frozen=True)
class Level:
    """A factor at a level, against both base cells."""

    factor: str
    level: str
    effects: dict[tuple[str, str], MeanComparison]  # by base cell and accuracy
    phases: dict[str, str]  # the letters of the runs' phases, by base cell

    @property
    def says(self) -> str:
        """Whether it moves the boundary; see the module."""
        found = self.effects.values()
        if not found:
            return ""
        if any(abs(e.mean) >= LEAST and not e.low <= 0 <= e.high for e in found):
            return "moves"
        still = all(e.low > -LEAST and e.high < LEAST for e in found)
        return "holds" if still and len(self.effects) == len(BASES) * len(ANSWERS) else "open"


def levels(rows: Rows, scale: str) -> list[Level]:
    """The effect of every level whose runs the rows have; the base cells come first."""
    start, by_run = SCALES[scale].figure2, {row["run_id"]: row for row in rows}
    asked: dict[tuple[str, str], dict[str, Any]] = {("base", "runs"): {}} | {
        (factor, level): changes
        for factor, of in factor_levels(start).items()
        for level, changes in of.items()
    }
    found = []
    for (factor, level), changes in asked.items():
        effects, phases = {}, {}
        for base in BASES:
            here, there = (
                [by_run[run] for run in factor_runs(start, base, what) if run in by_run]
                for what in (changes, {})
            )
            phases[base] = "".join(sorted((row["phase"] or "?")[0].upper() for row in here))
            for answer in ANSWERS:
                samples = [_numbers(sample, answer) for sample in (here, there)]
                if here != there and min(map(len, samples)) > 1:
                    effects[base, answer] = two_samples(*samples)
        if effects or factor == "base":  # a level can be the base itself
            found.append(Level(factor, level, effects, phases))
    return found


def _numbers(rows: Sequence[Row], column: str) -> list[float]:
    return [row[column] for row in rows if row[column] is not None]


def effects_figure(found: Sequence[Level]) -> Figure:
    """Every level's effect on both answers with its interval, a panel a base cell."""
    with single(9.5, 1.4 + 0.27 * len(found)) as figure:
        panels: Any = figure.subplots(1, len(BASES), sharex=True, sharey=True)
        for axes, (base, settings) in zip(panels, BASES.items(), strict=True):
            for place, level in enumerate(reversed(found)):
                for (answer, (_, colour)), shift in zip(
                    ANSWERS.items(), (0.13, -0.13), strict=True
                ):
                    if effect := level.effects.get((base, answer)):
                        at = [place + shift] * 2
                        axes.plot([effect.low, effect.high], at, color=colour, linewidth=1.6)
                        axes.plot(effect.mean, at[0], "o", color=colour, markersize=5)
                axes.text(1.22, place, level.phases[base], fontsize=7, va="center",
                          family="monospace")  # fmt: skip
            axes.axvline(0, color=INK, linewidth=0.8)
            for edge in (-LEAST, LEAST):
                axes.axvline(edge, color=INK, linewidth=0.8, linestyle=":")
            axes.set(xlim=(-1.2, 1.2), ylim=(-0.7, len(found) - 0.3), xlabel="change of accuracy")
            depth, gamma = settings["n_layers"], settings["gamma"]
            axes.set_title(f"from the {base} cell ({depth} layers, gamma {gamma:g})")
        names = [
            f"{each.factor} {each.level}" + (f" ({each.says})" if each.says else "")
            for each in found
        ]
        panels[0].set_yticks(range(len(found)), names[::-1], fontsize=8)
        handles = [
            Line2D([], [], color=colour, marker="o", label=f"{title} answers to (4, 3)")
            for title, colour in ANSWERS.values()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw(data: section.Data) -> section.Panels:
    """The effect of every level; the letters are the phases of its runs."""
    found = levels(data.rows("factors"), data.scale)
    for row in data.rows("paper-width"):
        print(
            f"paper-width, gamma {row['gamma']:g}: {row['phase'] or row['status']}, "
            f"ID {row['id_accuracy']}, OOD {row['ood_accuracy']}, "
            f"symmetric {row['symmetric_accuracy']}"
        )
    return [[("one factor at a time", effects_figure(found))]]


if __name__ == "__main__":
    section.main(draw, "factors", "paper-width")
