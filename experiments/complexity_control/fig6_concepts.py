"""Complexity-control paper, section VII, figure 6: drawings of unseen concepts over gamma.

"When the initialization scale is smaller, the interesting failure mode disappears, and the model
achieves robust compositional generalization." The network is a U-Net that draws pictures
(``concepts/``); the shape is what the paper's default gets wrong. Only runs that draw the trained
combinations right are compared, 0.9 of them or more.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp.runs.config import override
from anchor_interp.sweeps.spec import Grid, Sweep
from claims import Claim
from common import main
from concepts import PRESETS
from effects import Difference, equal
from studies import Study

# PyTorch's default, then smaller weights. 1.0 reduces the standard deviation of a layer of 16
# features as much as the paper's 0.8 does one of 256: 144^-0.5 is 0.083 and 2304^-0.3 is 0.098.
# Chosen when single runs of the seeds 900 to 902, one each at 0.5, 0.8 and 1.0, had drawn the
# trained combinations right and the unseen ones wrong. In ``concepts`` the runs at the paper's 0.8
# drew most unseen combinations right.
GAMMAS = (0.5, 0.65, 0.8, 1.0)


def _drawing(gammas: tuple[float, ...], first_seed: int, n_seeds: int) -> Sweep:
    start = override(PRESETS["concepts"], checkpoint_every=500)
    seeds = tuple(range(first_seed, first_seed + n_seeds))
    return Sweep((Grid(start, {"gamma": gammas}, seeds=seeds),))


RUNS = {
    "concepts": Study("gamma on concepts", lambda: _drawing(GAMMAS, 1000, 5), ("attributes",)),
    "concepts-judging": Study(
        "the paper's gamma on concepts, other seeds", lambda: _drawing((0.5, 0.8), 1005, 10),
        ("attributes",),
    ),
}  # fmt: skip
CLAIMS = [
    Claim(
        "c7-concepts-again", "concepts: the shape, gamma 0.8 against 0.5",
        Difference(
            "ood_shape", equal(gamma=0.8), equal(gamma=0.5), runs=("concepts-judging",),
            fitted=("train_accuracy", 0.9),
        ),
        least=0.1, source="C VII, figure 6",
        quote="We discover that when the initialization scale is smaller, the interesting "
        "failure mode disappears, and the model achieves robust compositional "
        "generalization.",
        statistic="share of right shapes on the unseen combinations, gamma 0.8 minus 0.5, ten "
        "seeds of each that no other claim has used",
    ),
]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(__file__))
