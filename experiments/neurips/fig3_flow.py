"""NeurIPS paper, section 5.1, figure 3: information flow in two solutions.

In a symmetric model layer 0 "combines the information from the two anchors and places it in the
last token" and layer 1 adds the key; in an inferential one "the key item information is moved to
the positions of the two anchors" first, and layer 1 brings both results to the last position (the
paper counts layers from 1).

Judged on random settings of the NeurIPS task in post-LayerNorm models of two layers and one head,
width 64 to 128 (400 in the paper): ``random_settings.py`` has the runs. A share is 1 where the
effect takes the route of the figure and 0 where it takes none of it.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from claims import Claim
from common import main
from effects import Row, number_of
from random_settings import COMPOSITE, IN_NEURIPS, INFERENTIAL, KNOWN, SYMMETRIC, between, mean_of


def order_apart(row: Row) -> float | None:
    """1 where both orders of a pair are the same vector, 0 where they are as apart as two pairs."""
    ratio = number_of(row, "order_first")
    return None if ratio is None else 1 - ratio


CLAIMS = [
    Claim(
        "n51-symmetric-route", "symmetric models take the symmetric route",
        between("route_symmetric", SYMMETRIC, INFERENTIAL, IN_NEURIPS),
        least=0.3, source="N 5.1, figure 3a",
        quote="In the first layer of the network, the attention mechanism combines the "
        "information from the two anchors and places it in the last token of the "
        "sequence.",
        statistic="share of the effect on the symmetric route, symmetric minus inferential "
        "runs",
        known=KNOWN,
    ),
    Claim(
        "n51-inferential-route", "inferential models take the inferential route",
        between("route_inferential", INFERENTIAL, SYMMETRIC, IN_NEURIPS),
        least=0.2, source="N 5.1, figure 3c",
        quote="in the first layer, the key item information is moved to the positions of the "
        "two anchors, and each anchor is combined with the key item information "
        "separately",
        statistic="share of the effect on the inferential route, inferential minus symmetric "
        "runs",
        known=KNOWN,
    ),
    Claim(
        "n51-merged", "symmetric models merge both orders of a pair",
        mean_of(order_apart, SYMMETRIC, IN_NEURIPS),
        least=0.5, source="N 5.1, figure 3b",
        quote="symmetric anchor-key pairs (e.g., (3, 4) and (4, 3)) are clustered together in "
        "the X^ao(1) vector space, confirming that the model learns to map them to "
        "similar representations",
        statistic="1 minus the change of X_ao L0 when the anchors change places over that when "
        "another pair takes their place, symmetric runs",
        note="The figure has symmetric models alone. Most runs of other phases have such "
        "vectors too; n51-merged-only says how much more symmetric ones do.",
        known=KNOWN,
    ),
    Claim(
        "n51-merged-only", "symmetric models merge orders more than composite",
        between("order_first", COMPOSITE, SYMMETRIC, IN_NEURIPS),
        least=0.15, source="N 5.1, figure 3b",
        asks="Symmetric models merge both orders of a pair in X_ao L0 more than composite ones "
        "do.",
        statistic="change of X_ao L0 when the anchors change places, over that when another "
        "pair takes their place, composite minus symmetric runs",
        known=KNOWN,
    ),
]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(__file__))
