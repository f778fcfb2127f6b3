"""Is it width, or the scale of the initial weights?

Narrow post-LayerNorm models went the other way than figure 2 (NeurIPS paper, section 4): large
weights led to the rule. The standard deviation of a weight is d^-gamma, so one gamma is two scales
at two widths. Here width 128 is matched to each gamma of width 400 in two ways: by the *standard
deviation*, and by the *relative scale*, which is the standard deviation times the root of the input
width. W_V W_O and W_in W_out, whose input widths differ, have rates of their own, for which the
product of their two is matched. All runs have two layers, one head and 12,000 steps.
"""

import itertools
import math
import operator
import sys
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp import ModelConfig, RunConfig
from anchor_interp.pages.style import INFERENTIAL, INK, SYMMETRIC, legend_below, panel
from anchor_interp.runs.schedule import last_step
from claim_effects import Rise, Row, Rows, equal
from claims import registered
from common import Panels
from curves import by_run, curve_study
from figure import main
from neurips import PAPER, at_rate
from studies import Data

GAMMAS = (0.35, 0.5, 0.65, 0.8, 0.95)  # at width 400, as in figure 2
NARROW, WIDE = ModelConfig(), PAPER.model
DEVIATION, RELATIVE = "standard deviation", "relative scale"
AT_400 = "width 400"
MATCHINGS = {DEVIATION: 0.0, RELATIVE: 0.5}
"""The exponent c of what is matched: d_in^c times the standard deviation d_in^-gamma."""


def matched(gamma: float, matching: str) -> dict[str, float]:
    """Rates at width 128 that are matched to one at width 400: d^(c - gamma) is the same."""
    c = MATCHINGS[matching]

    def rate(narrow: int, wide: int) -> float:
        return round(c + (gamma - c) * math.log(wide) / math.log(narrow), 4)

    return {
        "gamma": rate(NARROW.d_model, WIDE.d_model),
        "gamma_vo": rate(NARROW.d_model * NARROW.d_head, WIDE.d_model * WIDE.d_head),
        "gamma_mlp": rate(NARROW.d_model * NARROW.d_mlp, WIDE.d_model * WIDE.d_mlp),
    }


def narrow() -> list[RunConfig]:
    """Three seeds for each gamma of width 400, the same for both matchings."""
    shape = {name: getattr(NARROW, name) for name in ("d_model", "d_head", "d_mlp")}
    return [
        at_rate(3e-4, **shape, **matched(gamma, matching), seed=1_030_000 + 100 * place + seed)
        for matching, (place, gamma), seed in itertools.product(
            MATCHINGS, enumerate(GAMMAS), range(3)
        )
    ]


_MATCHED = {matched(gamma, of)["gamma"]: (of, gamma) for of in MATCHINGS for gamma in GAMMAS}


def witnesses(rows: Rows) -> list[Row]:
    """One row for each run, with what it is matched to, and the same up to where figure 2 ends."""
    whole = by_run(rows)
    ends = {row["run_id"]: last_step(12_000, row["fitted_step"]) for row in whole}
    cut = by_run([row for row in rows if row["step"] <= ends[row["run_id"]]])
    return [
        row | dict(zip(("matching", "at_400"), _MATCHED[row["gamma"]], strict=True))
        | {"cut_ood": until["best_ood"], "cut_symmetric": until["best_symmetric"]}
        for row, until in zip(whole, cut, strict=True)
    ]  # fmt: skip


def with_wide(rows: Rows) -> list[Row]:
    """Also the runs of figure 2 at width 400, two layers and one rate."""
    wide = [
        row | {"matching": AT_400, "at_400": row["gamma"]}
        | {f"cut_{name}": row[f"best_{name}_at_one_rate"] for name in ("ood", "symmetric")}
        for row in filter(equal(study="figure2-wide", n_layers=2), rows)
    ]  # fmt: skip
    return [row for row in (*rows, *wide) if row.get("cut_ood") is not None]


RUNS = {"width-or-scale": curve_study("width 128 matched to width 400 in two ways", narrow,
                                      witnesses, "tiny")}  # fmt: skip
CLAIMS = [
    registered("width-relative-best", "equal relative scale: small weights come to the rule",
        Rise("best_ood", "at_400", runs=("width-or-scale",), where=equal(matching=RELATIVE)),
        note="At equal standard deviations the line is +0.33 [-0.10, 0.76], which tells nothing "
        "(`width-std-best`, archived): weights as large as those of gamma 0.35 at width 400, "
        "0.12, come to the rule at width 128."),
]  # fmt: skip


def draw(data: Data) -> Panels:
    """Best shares of both answers over either scale, at both widths."""
    rows = with_wide([row | {"study": of} for of in ("width-or-scale", "figure2-wide")
                      for row in data.rows(of)])  # fmt: skip
    return [
        [(f"({letter}) {title} by {scale}", over(rows, column, colour, scale))
         for letter, scale in zip(letters, MATCHINGS, strict=True)]
        for letters, title, column, colour in (
            ("ab", "the rule", "cut_ood", INFERENTIAL),
            ("cd", "other order", "cut_symmetric", SYMMETRIC),
        )
    ]  # fmt: skip


def over(rows: Rows, column: str, colour: str, scale: str) -> Figure:
    """A share over the scale that is matched: a mark a run, a line through the means."""
    with panel(3.4, 3.2) as (figure, axes):
        for width, marker, line, fill in ((400, "s", "--", "none"), (128, "o", "-", colour)):
            mine = equal(matching=AT_400 if width == 400 else scale)
            points = sorted((width ** (MATCHINGS[scale] - row["gamma"]), row[column])
                            for row in rows if mine(row))  # fmt: skip
            xs, ys = zip(*points, strict=True)
            axes.scatter(xs, ys, 20, marker=marker, c=fill, edgecolors=colour)
            means = [(x, mean(y for _, y in at))
                     for x, at in itertools.groupby(points, operator.itemgetter(0))]  # fmt: skip
            axes.plot(*zip(*means, strict=True), line, color=INK, linewidth=1)
            axes.plot([], [], line, color=INK, marker=marker, mfc=fill, mec=colour,
                      label=f"width {width}")  # fmt: skip
        best = "best share in figure 2's steps"
        axes.set(xscale="log", xlabel=scale, ylabel=best, ylim=(-0.03, 1.03))
        low, high = axes.get_xlim()
        ticks = [x for x in (0.003, 0.01, 0.03, 0.1, 0.3, 1.0) if low < x < high]
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.minorticks_off()
        legend_below(figure, axes, columns=2)
    return figure


if __name__ == "__main__":
    raise SystemExit(main(__file__))
