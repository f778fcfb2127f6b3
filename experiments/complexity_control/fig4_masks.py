"""Complexity-control paper, section V, figure 4: outputs while a token's information is masked.

With the key masked (figures 4A, 4C) the pairs of a memorizing model are "poorly organized", those
of phase 2 are clusters: one for each order of a pair, then "symmetric pairs are successfully merged
into single clusters". With the second anchor masked (4B, 4D) phase 3 "shows significantly higher
correlations among inputs with the same value".

Judged on random settings of the complexity-control task in post-LayerNorm models of two layers and
one head, width 64 to 128 (400 in the paper).
"""

import itertools
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp.analysis.clusters import key_mask_clusters
from anchor_interp.analysis.similarity import block_similarity
from anchor_interp.pages.mechanism_figures import cluster_map, similarity_map
from anchor_interp.pages.style import INK, panel
from claims import Claim
from common import Panels
from complexity_control import POST_RUNS
from drawing import drawn_models, legend, runs_by_phase, titled
from figure import main
from random_settings import (
    COMPOSITE,
    IN_CONTROL,
    INFERENTIAL,
    KNOWN,
    MEMORIZING,
    PHASE_2,
    RAW,
    STRATUM,
    SYMMETRIC,
    between,
)
from studies import Data

CLAIMS = [
    Claim("c5a-disorder", "with the key masked, memorized pairs form no clusters",
        between("key_mask_pairs", PHASE_2, MEMORIZING, IN_CONTROL, within=(*STRATUM, "study")),
        least=0.1, source="C V-A, figure 4C left",
        quote="In Phase 1 ... the representations of different anchor pairs are poorly organized, "
        "with significant overlap between clusters.",
        statistic="silhouette of unordered pairs, runs of phase 2 minus of phase 1",
        note="Composite models, whose clusters are ordered pairs, score lower by this measure than "
        "symmetric ones. Runs are compared within a study; those of settings-post and "
        "settings-post-again decide, where nearly all memorizing runs and few others have at most "
        "5,000 sequences.", known=KNOWN),
    Claim("c5a-orders", "composite models tell the orders of a pair apart",
        between("key_mask_order", COMPOSITE, SYMMETRIC, IN_CONTROL), least=0.15,
        source="C V-A, figure 4C middle, right",
        quote="In the middle panel, the model treats symmetric anchor pairs ... as independent "
        "clusters ... the right panel demonstrates a more advanced model state, where symmetric "
        "pairs are successfully merged into single clusters.",
        statistic="silhouette of (a, b) against (b, a), composite minus symmetric runs",
        note="Inferential runs tell them apart as much as composite ones (0.34, 0.31).",
        known=KNOWN),
    Claim("c5b-raw", "raw cosines of masked outputs rise with phase 3",
        between("blocks_raw", INFERENTIAL, PHASE_2, IN_CONTROL, runs=RAW, elsewhere=()), least=0.1,
        source="C V-B, figure 4D",
        quote="the middle panel, representing Phase 3, shows significantly higher correlations "
        "among inputs with the same value, as indicated by the more prominent red regions in the "
        "diagonal blocks",
        statistic="mean raw cosine of the masked outputs of equal g(x; a1), inferential minus "
        "phase 2 runs",
        note="The runs are fresh random settings: the others' weights were not kept.",
        known=("settings-post",)),
]  # fmt: skip


def draw(data: Data) -> Panels:
    """What is masked, outputs of a model of each phase, and every run; cosines are the plain ones.

    The phases' models are those of one layout, in which the claims are judged.
    """
    clusters = [
        (f"(C) {titled(run)}",
         cluster_map(key_mask_clusters(run.model, run.config.anchor_task, tsne=True)))
        for run in drawn_models(data, "complexity_control", "memorizing", "composite", "symmetric")
    ]  # fmt: skip
    blocks = [
        (f"(D) {titled(run)}",
         similarity_map(block_similarity(run.model, run.config.anchor_task), centred=False))
        for run in drawn_models(data, "complexity_control", "composite", "symmetric", "inferential")
    ]  # fmt: skip
    masks = [(f"({x}) the {token}'s information is masked", mask_drawing(place))
             for x, token, place in (("A", "key", 1), ("B", "second anchor", 3))]  # fmt: skip
    numbers = {"key_mask_pairs": "silhouette\nof pairs", "key_mask_order": "silhouette\nof orders",
               "blocks_raw": "cosines of\nequal values"}  # fmt: skip
    return [masks, clusters, blocks, *runs_by_phase(data, numbers, **POST_RUNS)]


def mask_drawing(hidden: int) -> Figure:
    """What a mask cuts: the attention edges out of a token's place, in both layers.

    ``hidden`` is the place of the token in noise, key, two anchors, noise (figures 4A and 4B).
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
        axes.spines[["left", "bottom"]].set_visible(False)
        legend(figure, [Line2D([], [], color="#D55E00", ls="--", label="set to 0")])
    return figure


if __name__ == "__main__":
    raise SystemExit(main(__file__))
