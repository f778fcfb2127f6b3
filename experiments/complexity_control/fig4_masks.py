"""Complexity-control paper, section V, figure 4: outputs while a token's information is masked.

With the key masked (figures 4A, 4C) the pairs of a memorizing model are "poorly organized", those
of phase 2 are clusters: one for each order of a pair, then "symmetric pairs are successfully merged
into single clusters". With the second anchor masked (4B, 4D) phase 3 "shows significantly higher
correlations among inputs with the same value".

Judged on random settings of the complexity-control task in post-LayerNorm models of two layers and
one head, width 64 to 128 (400 in the paper).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from claims import Claim
from common import main
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

CLAIMS = [
    Claim(
        "c5a-disorder", "with the key masked, memorized pairs form no clusters",
        between("key_mask_pairs", PHASE_2, MEMORIZING, IN_CONTROL, within=(*STRATUM, "study")),
        least=0.1, source="C V-A, figure 4C left",
        quote="In Phase 1 ... the representations of different anchor pairs are poorly "
        "organized, with significant overlap between clusters.",
        statistic="silhouette of unordered pairs, runs of phase 2 minus of phase 1",
        note="Composite models, whose clusters are ordered pairs, score lower by this measure "
        "than symmetric ones. Runs are compared within a study; those of settings-post "
        "and settings-post-again decide, where nearly all memorizing runs and few others "
        "have at most 5,000 sequences.",
        known=KNOWN,
    ),
    Claim(
        "c5a-orders", "only composite models tell the orders of a pair apart",
        between("key_mask_order", COMPOSITE, SYMMETRIC, IN_CONTROL),
        least=0.15, source="C V-A, figure 4C middle, right",
        quote="In the middle panel, the model treats symmetric anchor pairs ... as independent "
        "clusters ... the right panel demonstrates a more advanced model state, where "
        "symmetric pairs are successfully merged into single clusters.",
        statistic="silhouette of (a, b) against (b, a), composite minus symmetric runs",
        known=KNOWN,
    ),
    Claim(
        "c5b-raw", "raw cosines of masked outputs rise with phase 3",
        between("blocks_raw", INFERENTIAL, PHASE_2, IN_CONTROL, runs=RAW, elsewhere=()),
        least=0.1, source="C V-B, figure 4D",
        quote="the middle panel, representing Phase 3, shows significantly higher correlations "
        "among inputs with the same value, as indicated by the more prominent red "
        "regions in the diagonal blocks",
        statistic="mean raw cosine of the masked outputs of equal g(x; a1), inferential minus "
        "phase 2 runs",
        note="The runs are fresh random settings: the others' weights were not kept.",
        known=("settings-post",),
    ),
]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(__file__))
