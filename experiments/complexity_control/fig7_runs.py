"""More runs for figure 7 (complexity-control paper): SCAN and addition, corner by corner."""

from dataclasses import replace

from anchor_interp.runs.config import override
from anchor_interp.sweeps.spec import Grid, Sweep

from papers.section_7_runs import CORNERS, addition_judging, scan_fitted


def scan_other_corners() -> Sweep:
    """The two corners that ``scan-fitted`` lacks, on its seeds: one setting of each corner."""
    (grid,) = scan_fitted("tiny").grids
    other = {"gamma": (0.5, 0.8), "weight_decay": (0.1, 0.01)}
    return Sweep((replace(grid, together=(other,)),))


def addition_matched(first: int = 1065, n: int = 20) -> Sweep:
    """All four corners on addition with a held-out square, seed by seed, evaluated often."""
    start = addition_judging("tiny").grids[0].start
    start = override(start, steps=8_000, eval_every=100, checkpoint_every=8_000)
    corners = CORNERS["addition"].both
    return Sweep(tuple(Grid(start, corners, seeds=(seed,)) for seed in range(first, first + n)))
