"""Complexity-control paper, section VI, figure 5: condensation, the embedding, the stable rank.

(A) "In Phase 2, we observe mild condensation", "in Phase 3, the input weights cluster strongly".
(B) "In Phase 1 and Phase 2, the embedding vectors do not exhibit any clear structure"; in phase 3
numbers are ordered in steps of 3 and 4, of which the anchors' differences are sums. If that is why,
anchors whose differences are sums of 2 and 5 must give steps of 2 and 5 (``steps``). (C) "As the
model transitions through phases, the stable rank gradually decreases" and stays "relatively
consistent" within one.

A and B are judged on random settings in post-LayerNorm models, C on the grid of figure 3 and random
settings, pre-LayerNorm.
"""

import math
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp import TASKS, Affine, Anchor
from anchor_interp.pages.diagram_maps import rank_map
from claim_effects import Alike, Difference, Row, Rows, equal, value_of, values_of
from claims import Claim
from common import Panels
from complexity_control import (
    AT_EQUAL_DECAY,
    CONTROL,
    IN_PRE,
    KNOWN_PRE,
    PHASE_OF,
    POST_RUNS,
    plane,
)
from drawing import by_phase, condensed, drawn_models, embedded, runs_by_phase, strips, titled
from figure import main
from measures import rank_share
from random_settings import IN_CONTROL, INFERENTIAL, KNOWN, MEMORIZING, PHASE_2, STRATUM, between
from studies import Data, Grid, Study, override

# Anchors whose differences are sums of 2 and 5 (5, 2, 4, 7, 6, 11); the papers' are of 3 and 4.
MOVED_ANCHORS = tuple(Anchor(token, Affine(add)) for token, add in enumerate((6, 1, -1, -5), 1))
# Half the smallest step between phases in figure 5C, read off its colours: the stable rank is about
# 150 in phase 1, 55 in phase 2 (100, and 30 where it commutes) and 10 in phase 3.
HALF_A_STEP = math.sqrt(150 / 55)
PHASES_1_AND_2 = equal(phase=("memorizing", "composite", "symmetric"))


def _steps() -> list[Grid]:
    task = TASKS["complexity-control"]
    axes = {"task": (task, replace(task, anchors=MOVED_ANCHORS))}
    start = override(CONTROL, gamma=0.9, weight_decay=0.5)
    return [Grid(start, axes, seeds=tuple(range(400, 405)))]


RUNS = {"steps": Study("differences of the anchors", _steps, ("embedding",))}


def log_rank_share(row: Row) -> float | None:
    """Natural logarithm of the stable rank over its initial value."""
    return math.log(share) if (share := rank_share(row)) else None


def moved(row: Row) -> float | None:
    """How much more the steps 2 and 5 stand out of the embedding than 3 and 4, in z."""
    zs = [z for step in (2, 5, 3, 4) if (z := value_of(row, f"step_z_{step}")) is not None]
    return min(zs[:2]) - min(zs[2:]) if len(zs) == 4 else None


def numbered(rows: Rows) -> list[Row]:
    """The rows of phases 1 to 3, with the phase's number."""
    return [row | {"phase": PHASE_OF[row["phase"]]} for row in rows if row["phase"] in PHASE_OF]


_PAPER_ANCHORS = equal(task="complexity-control")


def _other_anchors(row: Row) -> bool:
    return not _PAPER_ANCHORS(row)


_FALLS = (
    "As the model transitions through phases, the stable rank gradually decreases with increasing "
    "phase index"
)
_SETTINGS = ("gamma", "gamma_qk", "weight_decay")
_DESIGN = ("task", "normalization", "design")
CLAIMS = [
    Claim("c6a-mild", "W_Q L0 condenses more in phase 2 than in phase 1",
        between("condensation", PHASE_2, MEMORIZING, IN_CONTROL, within=(*STRATUM, "study")),
        least=0.05, source="C VI-A, figure 5A",
        quote="In Phase 2, we observe mild condensation, where neurons begin clustering along a "
        "limited number of orientations",
        statistic="mean |cosine| between neurons, runs of phase 2 minus of phase 1", known=KNOWN),
    Claim("c6a-strong", "W_Q L0 condenses more in phase 3 than in phase 2",
        between("condensation", INFERENTIAL, PHASE_2, IN_CONTROL), least=0.05,
        source="C VI-A, figure 5A",
        quote="in Phase 3, the input weights cluster strongly into a few isolated directions, "
        "forming distinct groups of neurons with high intra-group similarity",
        statistic="mean |cosine| between neurons, inferential minus phase 2 runs",
        note="Against composite runs +0.32, against symmetric ones +0.03 (at equal gamma more: "
        "+0.19 below 0.5, +0.13 above).", known=KNOWN),
    Claim("c6b-structure", "only phase 3 embeds numbers in a clear structure",
        between("embedding_smooth", INFERENTIAL, PHASES_1_AND_2, IN_CONTROL), least=0.1,
        source="C VI-B, figure 5B",
        quote="In Phase 1 and Phase 2, the embedding vectors do not exhibit any clear structure "
        "... in Phase 3, the PCA visualization reveals a highly structured pattern",
        statistic="share of the embedding's variance on a smooth curve, inferential minus other "
        "runs", known=KNOWN),
    Claim("c6c-first", "the stable rank falls from phase 1 to phase 2",
        Difference(rank_share, MEMORIZING, PHASE_2, _SETTINGS, within=_DESIGN, **AT_EQUAL_DECAY),
        least=0.1, source="C VI-C, figure 5C", quote=_FALLS,
        statistic="stable rank over its initial value, phase 1 minus phase 2",
        note="In the grid most of phase 2 lies beyond phase 3, at gamma 0.7 and more.",
        known=KNOWN_PRE),
    Claim("c6c-second", "the stable rank falls from phase 2 to phase 3",
        Difference(rank_share, PHASE_2, INFERENTIAL, _SETTINGS, within=_DESIGN, **AT_EQUAL_DECAY),
        least=0.1, source="C VI-C, figure 5C", quote=_FALLS,
        statistic="stable rank over its initial value, phase 2 minus phase 3", known=KNOWN_PRE),
    Claim("c6c-within", "the stable rank is alike within a phase",
        Alike(log_rank_share, HALF_A_STEP, within=STRATUM, **IN_PRE | {"select": numbered}),
        least=0.0, source="C VI-C, figure 5C",
        quote="Within the same phase, the stable rank values remain relatively consistent across "
        "different setups",
        statistic="log of 1.65 minus the log ratio of a run's stable rank (over its initial value) "
        "to that of the other runs of its phase, task and layout; each phase counts alike",
        note="150, 55 and 10 are read off the colours of figure 5C.", known=KNOWN_PRE),
    Claim("moved-steps", "other anchors move the embedding's steps",
        Difference(moved, _other_anchors, _PAPER_ANCHORS, runs=("steps",)), least=4.0,
        source="our prediction, from C VI-B",
        asks="With anchors whose differences are sums of 2 and 5 the embedding has steps of 2 and "
        "5.",
        statistic="z of the steps 2 and 5 over 3 and 4, such anchors minus the papers'"),
]  # fmt: skip


def draw(data: Data) -> Panels:
    """Both maps of a model of each phase in one layout, stable ranks, and moved anchors."""
    runs = drawn_models(data, "complexity_control", "memorizing", "symmetric", "inferential")
    panels = [
        [(f"(A) {titled(run)}", condensed(run)) for run in runs],
        [(f"(B) {titled(run)}", embedded(run)) for run in runs],
    ]
    if data.own:
        return panels
    numbers = {"condensation": "mean |cosine|", "embedding_smooth": "smooth share"}
    ranks = by_phase(data.rows("decay"), {"rank_share": "stable rank / initial"}, strata=False)
    found = data.rows("steps")
    steps = ("differences of 3 and 4", _PAPER_ANCHORS), ("differences of 2 and 5", _other_anchors)
    return [
        *panels,
        *runs_by_phase(data, numbers, **POST_RUNS),
        [("(C) stable rank, pre-LayerNorm", rank_map(plane(data), "stable_rank")),
         ("runs of this grid by phase", ranks)],
        [(title, strips({f"step {n}": values_of(filter(anchors, found), f"step_z_{n}")
                         for n in (2, 3, 4, 5)}, "closeness beyond smooth (z)", reference=0))
         for title, anchors in steps],
    ]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(__file__))
