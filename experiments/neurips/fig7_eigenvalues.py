"""NeurIPS paper, appendix B, figure 7: eigenvalues of the embedding's covariance.

"For small initialization scales, the covariance matrix has a small number of large eigenvalues ...
for large initialization scales, the eigenvalues are more evenly distributed."

The participation ratio counts the eigenvalues that are large; that of a Gaussian is what even ones
give at this width. Judged on random settings of the NeurIPS task in post-LayerNorm models of two
layers, width 64 to 128; the runs of figure 5 (``solutions``) have the paper's width.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from claims import Claim
from common import main
from random_settings import IN_NEURIPS, KNOWN, over_gamma

CLAIMS = [
    Claim(
        "nb-eigenvalues", "few large eigenvalues from smaller initial weights",
        over_gamma("embedding_dimension", IN_NEURIPS, sign=-1),
        least=0.3, source="N appendix B, figure 7",
        quote="For small initialization scales, the covariance matrix has a small number of "
        "large eigenvalues ... for large initialization scales, the eigenvalues are more "
        "evenly distributed",
        statistic="Spearman's correlation of gamma with the participation ratio over a "
        "Gaussian's, signed as a fall, fitted runs",
        known=KNOWN,
    ),
]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(__file__))
