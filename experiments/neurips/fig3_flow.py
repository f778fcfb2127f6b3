"""NeurIPS paper, section 5.1, figure 3: information flow in two solutions.

In a symmetric model layer 0 "combines the information from the two anchors and places it in the
last token" and layer 1 adds the key; in an inferential one "the key item information is moved to
the positions of the two anchors" first, and layer 1 brings both results to the last position (the
paper counts layers from 1).

Judged on random settings of the NeurIPS task in post-LayerNorm models of two layers and one head,
width 64 to 128 (400 in the paper): ``random_settings.py`` has the runs. The symmetric model that is
drawn is a packaged one; those from large weights often take another route. A share is 1 where the
effect takes the route of the figure and 0 where it takes none of it.
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp.analysis.clusters import pair_clusters
from anchor_interp.analysis.flow import information_flow
from anchor_interp.pages.mechanism_figures import cluster_map
from anchor_interp.pages.mechanism_figures import information_flow as flow_map
from anchor_interp.runs.run import load
from anchor_interp.tasks.sequences import PROBE
from claims import Claim
from common import Panels
from drawing import drawn_models, runs_by_phase, titled
from figure import main
from random_settings import COMPOSITE, IN_NEURIPS, INFERENTIAL, KNOWN, SYMMETRIC, between
from studies import Data

CLAIMS = [
    Claim("n51-symmetric-route", "symmetric models take the symmetric route",
        between("route_symmetric", SYMMETRIC, INFERENTIAL, IN_NEURIPS), least=0.3,
        source="N 5.1, figure 3a",
        quote="In the first layer of the network, the attention mechanism combines the "
        "information from the two anchors and places it in the last token of the sequence.",
        statistic="share of the effect on the symmetric route, symmetric minus inferential runs",
        known=KNOWN),
    Claim("n51-inferential-route", "inferential models take the inferential route",
        between("route_inferential", INFERENTIAL, SYMMETRIC, IN_NEURIPS), least=0.2,
        source="N 5.1, figure 3c",
        quote="in the first layer, the key item information is moved to the positions of the two "
        "anchors, and each anchor is combined with the key item information separately",
        statistic="share of the effect on the inferential route, inferential minus symmetric runs",
        known=KNOWN),
    Claim("n51-merged", "symmetric models merge both orders of a pair",
        between("order_first", COMPOSITE, SYMMETRIC, IN_NEURIPS), least=0.15,
        source="N 5.1, figure 3b",
        quote="symmetric anchor-key pairs (e.g., (3, 4) and (4, 3)) are clustered together in the "
        "X^ao(1) vector space, confirming that the model learns to map them to similar "
        "representations",
        statistic="change of X_ao L0 when the anchors change places over that when another pair "
        "takes their place, composite minus symmetric runs",
        note="The figure has symmetric models alone, in which the change is 0.11. By itself that "
        "shows little: it is 0.30 in memorizing runs and 0.34 in composite ones, which tell the "
        "orders apart.", known=KNOWN),
]  # fmt: skip


def draw(data: Data) -> Panels:
    """Information flow and the states of pairs after layer 0, and the routes of every run."""
    runs = data.own or [load("tiny/neurips-symmetric/1"),
                        *drawn_models(data, "neurips", "inferential")]  # fmt: skip
    panels: list[list[tuple[str, Figure]]] = []
    for run, letter in zip(runs, "ac", strict=False):
        flow = flow_map(information_flow(run.model, PROBE))
        panels.append([(f"({letter}) {titled(run)}", flow)])
        if letter == "a":
            task = run.config.anchor_task
            clusters = pair_clusters(run.model, task, n=2_000, centre=False, tsne=True)
            panels[0].append(("(b) X_ao L0, X^ao(1) in the paper", cluster_map(clusters)))
    numbers = {"route_symmetric": "symmetric route", "route_inferential": "inferential route",
               "order_first": "order in X_ao L0"}  # fmt: skip
    return [*panels, *runs_by_phase(data, numbers)]


if __name__ == "__main__":
    raise SystemExit(main(__file__))
