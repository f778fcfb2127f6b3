"""Figure 2 (NeurIPS paper) at equal length: runs of width 400 that go on when they have fitted."""

from anchor_interp.runs.config import override
from anchor_interp.sweeps.spec import Grid, Sweep
from questions import curves
from questions.width_or_scale import WIDE, start

GAMMAS = (0.35, 0.5, 0.8, 0.95)


def runs(*gammas: float) -> Sweep:
    """Three runs of each gamma at the rate 1e-4."""
    wide = start(WIDE, 1e-4)
    return Sweep(tuple(
        Grid(override(wide, gamma=gamma),
             seeds=tuple(1_040_000 + 100 * GAMMAS.index(gamma) + k for k in range(3)))
        for gamma in gammas
    ))  # fmt: skip


RUNS = runs(*GAMMAS)


if __name__ == "__main__":
    curves.main(lambda *gammas: runs(*(gammas or GAMMAS)), "equal-length", weights=False)
