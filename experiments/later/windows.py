"""When does weight decay have to act (arXiv 2605.04396)?

A later paper says that decay in one quarter of the training does what decay throughout does, that
the middle does more than the beginning, and that an onset has a sharp edge. Here the decay is 0.01,
and 1 in a window; the rate is constant, so equal windows have equal sums of decay.

``figures/papers/later/window_maps.png`` shows answers of one run, trained from
``override(window(500), gamma=0.4, seed=1130, checkpoint_every=250)``: with ``experiments`` in the
PYTHONPATH ``python -m evidence.pictures RUN@500 RUN@1000 ... --out PICTURE`` draws its checkpoints.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp import RunConfig
from claim_effects import Difference, Finding, Mean, Rise, Row, Rows, among, grouped, values_of
from claims import registered
from common import Panels
from complexity_control import CONTROL
from drawing import strips
from figure import main
from studies import Data, Grid, Study, override

STEPS, LR, LITTLE, MUCH = 3_000, 1e-3, 0.01, 1.0
GAMMAS = (0.4, 0.55, 0.7, 0.85)
WARMUP = 100
QUARTERS = [WARMUP + (STEPS - WARMUP) * n // 4 for n in range(5)]
# a constant decay with the sum of a quarter; a warm-up has half the sum of rates
EQUAL = round(LITTLE + (MUCH - LITTLE) * (QUARTERS[1] - WARMUP) / (STEPS - WARMUP / 2), 4)
ONSETS = (250, 500, 750, 1_000, 1_500, 2_000)
EDGE = tuple(range(500, 1_200, 100))  # onsets where those of gamma 0.4 fall from 0.73 to below 0.31
_START = override(CONTROL, steps=STEPS, lr=LR, lr_end=LR, warmup=WARMUP / STEPS)


def window(
    begin: int, end: int = STEPS, *, start: RunConfig = _START, much: float = MUCH
) -> RunConfig:
    """The start with much decay from a step to another."""
    pieces = ((begin, LR, much), *([(end, LR, LITTLE)] if end < STEPS else []))
    if begin:
        return override(start, schedule=pieces)
    return override(start, weight_decay=much, schedule=pieces[1:])


ARMS = {
    "none": _START,
    **{f"quarter {n + 1}": window(*QUARTERS[n : n + 2]) for n in range(4)},
    "equal sum": override(_START, weight_decay=EQUAL),
    "throughout": window(0),
}
"""What trains at every gamma."""


def _swept(starts: Sequence[RunConfig], first_seed: int) -> list[Grid]:
    seeds = tuple(range(first_seed, first_seed + 5))
    return [Grid(start, {"gamma": GAMMAS}, seeds=seeds) for start in starts]


RUNS = {
    "windows": Study("a quarter with much decay", lambda: _swept([*ARMS.values()], 1120)),
    "onsets": Study("when much decay begins",
                    lambda: _swept([window(onset) for onset in ONSETS], 1130)),
    "edge": Study("onsets 100 steps apart", lambda: [
        Grid(window(onset), {"gamma": (0.4,)}, seeds=tuple(range(1150, 1160))) for onset in EDGE
    ]),
}  # fmt: skip


def quarter(row: Row) -> str:
    """The quarter that is the window of a run; empty without a window."""
    begin = (row["schedule"] or "").split()[:1]
    return f"quarter {1 + QUARTERS.index(int(begin[0]))}" if begin else ""


def arm(row: Row) -> str:
    """The arm of a run of ``windows``."""
    by_decay = {LITTLE: "none", MUCH: "throughout"}
    return quarter(row) or by_decay.get(row["weight_decay"], "equal sum")


def _not_worse(row: Row) -> float | None:
    accuracy: float | None = row["ood_accuracy"]
    return accuracy if accuracy is None or arm(row) == "throughout" else accuracy + 0.1


def basins(rows: Rows) -> list[Row]:
    """A row for each gamma and seed whose runs are all there: the share that led to the rule."""
    done = grouped([row for row in rows if row["status"] == "done"], ("gamma", "seed"))
    return [
        mine[0] | {"censored": False, "run_id": f"{gamma}-{seed}",
                   "basin": mean(row["ood_accuracy"] >= 0.5 for row in mine)}
        for (gamma, seed), mine in done.items() if len(mine) == len(ONSETS)
    ]  # fmt: skip


def onset(row: Row) -> str:
    """After which step the decay of a run of ``onsets`` begins."""
    begin: str = row["schedule"].split()[0]
    return f"after {begin}"


def drops(rows: Rows) -> list[Row]:
    """A row for each seed whose runs are all there: its fall of OOD accuracy at the others' edge.

    The edge of the others is the pair of onsets 100 steps apart where their mean falls most: a
    seed's own noise does not choose the place where it is measured.
    """
    done = grouped([row for row in rows if row["status"] == "done"], ("seed",))
    falls = {}
    for (seed,), mine in done.items():
        by_onset = {onset(row): row["ood_accuracy"] for row in mine}
        if len(by_onset) == len(EDGE):
            curve = [by_onset[f"after {step}"] for step in EDGE]
            falls[seed] = [early - late for early, late in pairwise(curve)]
    found = []
    for seed, own in falls.items():
        others = [fall for other, fall in falls.items() if other != seed]
        means = [mean(place) for place in zip(*others, strict=True)]
        if means:
            place = means.index(max(means))
            found.append(done[seed,][0] | {"censored": False, "run_id": str(seed),
                                           "drop": own[place], "place": EDGE[place]})  # fmt: skip
    return found


class NotWorse(Difference):
    """A difference plus what it may be worse by: a margin, which is missed and not reversed."""

    def measure(self, rows: Rows) -> Finding:
        """See the class."""
        return replace(super().measure(rows), is_margin=True)


_SECOND = among(arm, "quarter 2")
_AT_GAMMA: dict[str, Any] = {
    "free": ("weight_decay",), "runs": ("windows",), "within": ("gamma",), "cluster": ("seed",),
}  # fmt: skip
# the clusters of the first two were added after their verdicts, which stayed: seeds cross gammas
CLAIMS = [
    registered("windows-quarter", "decay in a quarter does as much as throughout",
               NotWorse(_not_worse, _SECOND, among(arm, "throughout"), **_AT_GAMMA),
               note="the second quarter; 0.1 is added"),
    registered("windows-equal-sum", "equal sum of decay: a window does better",
               Difference("ood_accuracy", _SECOND, among(arm, "equal sum"), **_AT_GAMMA)),
    registered("windows-middle", "equal sum of decay: the middle does better",
               Difference("ood_accuracy", among(arm, "quarter 2", "quarter 3"),
                          among(arm, "quarter 1"), **_AT_GAMMA)),
    registered("windows-edge", "the edge: an onset 100 steps later does far less",
               Mean("drop", runs=("edge",), select=drops)),
    registered("windows-basin", "small weights: fewer onsets lead to the rule",
               Rise("basin", "gamma", sign=-1, runs=("onsets",), select=basins),
               note="from gamma 0.7 on every onset does: no fall can show"),
]  # fmt: skip


def draw(data: Data) -> Panels:
    """OOD accuracy by arm and by onset, a panel a gamma."""
    studies = {"windows": ("by quarter", arm), "onsets": ("by onset", onset),
               "edge": ("by onset, closer", onset)}  # fmt: skip
    decays = {"none": LITTLE, "equal sum": EQUAL, "throughout": MUCH}
    names = {
        "windows": {name: f"decay {decays[name]:.2g}\nthroughout" if name in decays
                    else f"decay {MUCH:g}\nin {name}" for name in ARMS},
        "onsets": {f"after {step}": f"decay {MUCH:g}\nfrom {step} on" for step in ONSETS},
        "edge": {f"after {step}": f"decay {MUCH:g}\nfrom {step} on" for step in EDGE},
    }  # fmt: skip
    heads = [f"decay {decay:.2g}" for decay in decays.values()]
    panels = []
    for study, (what, of) in studies.items():
        for (gamma,), rows in grouped(data.rows(study), ("gamma",)).items():
            found = {name: values_of(filter(among(of, place), rows), "ood_accuracy")
                     for place, name in names[study].items()}  # fmt: skip
            drawn = strips(found, "OOD accuracy", reference=0.5, shares=True, heads=heads)
            panels.append([(f"gamma {gamma:g}, {what}", drawn)])
    return panels


if __name__ == "__main__":
    raise SystemExit(main(__file__))
