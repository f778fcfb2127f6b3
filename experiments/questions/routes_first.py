"""Does the inferential route come before the answers by the rule?

Settings that infer; the route is measured on seen pairs alone. Eight fresh seeds judge, in three of
four settings: in the fourth no run of five seeds took the route.
"""

import math
import sys
from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp.pages.style import INK, panel
from claim_effects import Mean, Row, Rows, among, having, values_of
from claims import registered
from common import Panels
from drawing import GROUPS, strips
from figure import main
from studies import Data, Grid, Study, override, preset

SETTINGS = {
    "pre, 5,000 sequences": preset("inferential"),
    "pre, 100,000 sequences": override(preset("inferential"), n_sequences=100_000, lr=1e-3,
                                       gamma=0.8, weight_decay=0.1),
    "post, 15,000 sequences": preset("tiny", n_sequences=15_000, lr=1.5e-3, gamma=0.45,
                                     weight_decay=0.7),
    "NeurIPS task, 4 layers": preset("neurips-inferential"),
}  # fmt: skip
"""What trains; each comes to the rule in most seeds."""


def _routes(seeds: range, names: Iterable[str] = SETTINGS) -> list[Grid]:
    often = {"eval_every": 50, "checkpoint_every": 50}
    return [Grid(override(SETTINGS[name], **often), seeds=tuple(seeds)) for name in names]


RUNS = {
    "routes-first": Study("four settings that infer, along training",
                          lambda: _routes(range(1090, 1095)), ("routes",)),
    "routes-again": Study("three of these settings, along training",
                          lambda: _routes(range(1180, 1188), [*SETTINGS][:3]), ("routes",)),
}  # fmt: skip


def lead(row: Row) -> float | None:
    """Log ratio of the steps at which the answers and the route pass one half."""
    answers, route = row.get("answers_step"), row.get("route_step")
    return math.log(answers / route) if answers and route else None


CLAIMS = [
    registered("routes-first-again", "the route, where taken, precedes the answers",
               Mean(lead, runs=("routes-again",)), name="routes-first",
               note="In three settings; in a fourth, of four layers, no run took the route."),
]  # fmt: skip


def setting(row: Row) -> str:
    """Which of the settings a run has."""
    for name, of in SETTINGS.items():
        own = (of.model.normalization, of.train.n_sequences, of.model.n_layers)
        if own == (row["normalization"], row["n_sequences"], row["n_layers"]):
            return name
    raise KeyError("setting")


def draw(data: Data) -> Panels:
    """The steps of both in every run, and the log ratio by setting."""
    rows = data.rows("routes-first", "routes-again")
    names = {name: name.replace(" seq", "\nseq").replace(", 4", ",\n4") for name in SETTINGS}
    found = {shown: values_of(filter(among(setting, name), rows), lead)
             for name, shown in names.items()}  # fmt: skip
    return [
        [("steps at which both pass one half", both(rows)),
         ("ln(answers / route)", strips(found, "log ratio", reference=0))],
    ]  # fmt: skip


def both(rows: Rows) -> Figure:
    """The step of the answers over that of the route: a mark a run, a colour a setting."""
    with panel(3.4, 3.2) as (figure, axes):
        for place, name in enumerate(SETTINGS):
            mine = having(filter(among(setting, name), rows), lead)
            x, y = ([row[of] for row in mine] for of in ("route_step", "answers_step"))
            axes.scatter(x, y, 18, color=GROUPS[place])
        low, high = axes.get_xlim()
        axes.axline((low, low), (high, high), color=INK, linewidth=0.8, linestyle=":")
        axes.set(xlabel="step of the inferential route", ylabel="step of the answers by the rule")
    return figure


if __name__ == "__main__":
    raise SystemExit(main(__file__))
