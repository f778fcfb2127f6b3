"""Do identities in the training data bridge two hops (arXiv 2509.24653)?

Training on zero-hop identities is said to make two-hop answers generalise. Here a fifth anchor, all
of whose pairs are seen, adds 0; other runs have one that adds 3 or 17 in its place, or none.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp import TASKS, Affine, Anchor, AnchorTask
from anchor_interp.tasks.rules import PAPER_ANCHORS
from claim_effects import Difference, Rise, Row, among, grouped, values_of
from claims import registered
from common import Panels
from drawing import strips
from figure import main
from studies import Data, Grid, Study, override, preset

Values = tuple[float, ...]
CONDITIONS = {"none": None, "x + 0": 0, "x + 3": 3, "x + 17": 17}
"""What the fifth anchor adds."""
FAR = {"none": None, "x + 3": 3, "x + 11": 11, "x + 17": 17, "x + 25": 25}
"""What it adds in the runs that ask again what a far step does."""


def bridged(add: int | None) -> AnchorTask:
    """The complexity-control task with a fifth anchor, or without."""
    own = TASKS["complexity-control"]
    fifth = () if add is None else (Anchor(5, Affine(add)),)
    return AnchorTask(anchors=PAPER_ANCHORS + fifth, unseen=own.unseen)


def _adding(adds: Iterable[int | None], gammas: Values, decays: Values, seeds: range) -> list[Grid]:
    start = preset("tiny", steps=3_000, checkpoint_every=3_000)
    axes = {"gamma": gammas, "weight_decay": decays}
    return [Grid(override(start, task=bridged(add)), axes, seeds=(*seeds,)) for add in adds]


def condition(row: Row) -> str:
    """What the fifth anchor of a run adds."""
    functions = [f"x{each}".strip() for each in row["offsets"].split("x")[1:]]
    if len(functions) == len(PAPER_ANCHORS):
        return "none"
    return {"x": "x + 0"}.get(functions[-1], functions[-1])


def step(row: Row) -> float:
    """What the fifth anchor of a run of ``far`` adds."""
    return FAR[condition(row)] or 0


_FREE = ("task", "d_vocab")


def _more(name: str, than: str) -> Difference:
    """The OOD accuracy under one condition minus that under another, at equal settings."""
    # seeds cross settings: clusters were added after the verdicts (docs/claims.md, at its end)
    return Difference("ood_accuracy", among(condition, name), among(condition, than), _FREE,
                      runs=("bridge",), within=("gamma", "weight_decay"),
                      cluster=("seed",))  # fmt: skip


RUNS = {
    "bridge": Study("what a fifth anchor adds", lambda: _adding(
        CONDITIONS.values(), (0.5, 0.6, 0.7), (0.01, 0.1), range(1100, 1105)), ("answers",)),
    "far": Study("a fifth anchor far from the others", lambda: _adding(
        FAR.values(), (0.7,), (0.01,), range(1160, 1168))),
}  # fmt: skip
CLAIMS = [
    registered("bridge-identity", "identities: unseen pairs follow the rule",
               _more("x + 0", "none")),
    registered("bridge-step", "x + 3 does more than an identity", _more("x + 3", "x + 0")),
    registered("bridge-near", "x + 3 does more than x + 17", _more("x + 3", "x + 17")),
    registered("bridge-far", "gamma 0.7: a far step leads to the rule",
               Difference("ood_accuracy", among(condition, "x + 17"), among(condition, "none"),
                          _FREE, runs=("far",))),
    registered("bridge-distance", "gamma 0.7: the further the step, the more rule",
               Rise("ood_accuracy", step, lambda row: condition(row) != "none", runs=("far",))),
]  # fmt: skip


def draw(data: Data) -> Panels:
    """OOD accuracy under every condition, a panel a weight decay."""
    panels = []
    for (decay,), rows in grouped(data.rows("bridge"), ("weight_decay",)).items():
        found = {f"{name}\ngamma {gamma:g}": values_of(mine, "ood_accuracy")
                 for name in CONDITIONS
                 for (gamma,), mine in grouped(filter(among(condition, name), rows),
                                               ("gamma",)).items()}  # fmt: skip
        drawn = strips(found, "OOD accuracy", reference=0.5, shares=True)
        panels.append([(f"weight decay {decay:g}", drawn)])
    far = data.rows("far")
    found = {name: values_of(filter(among(condition, name), far), "ood_accuracy")
             for name in FAR}  # fmt: skip
    heads = list(CONDITIONS | FAR)  # a colour a condition in every panel
    drawn = strips(found, "OOD accuracy", reference=0.5, shares=True, heads=heads)
    return [*panels, [("gamma 0.7, weight decay 0.01, other seeds", drawn)]]


if __name__ == "__main__":
    raise SystemExit(main(__file__))
