"""NeurIPS paper, appendix B, figure 7: eigenvalues of the embedding's covariance.

"For small initialization scales, the covariance matrix has a small number of large eigenvalues ...
for large initialization scales, the eigenvalues are more evenly distributed."

The participation ratio counts the eigenvalues that are large; that of a Gaussian is what even ones
give at this width. Judged on random settings of the NeurIPS task in post-LayerNorm models of two
layers, width 64 to 128; the runs of figure 5 (``solutions``) have the paper's width.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp.models.embeddings import embedding_structure, key_embeddings
from anchor_interp.pages.style import panel
from claims import Claim
from common import Panels
from drawing import drawn_models, runs_by_phase, titled
from figure import main
from random_settings import IN_NEURIPS, KNOWN, over_gamma
from studies import Data

CLAIMS = [
    Claim("nb-eigenvalues", "few large eigenvalues from smaller initial weights",
        over_gamma("embedding_dimension", IN_NEURIPS, sign=-1), least=0.3,
        source="N appendix B, figure 7",
        quote="For small initialization scales, the covariance matrix has a small number of large "
        "eigenvalues ... for large initialization scales, the eigenvalues are more evenly "
        "distributed",
        statistic="Spearman's correlation of gamma with the participation ratio over a "
        "Gaussian's, signed as a fall, fitted runs", known=KNOWN),
]  # fmt: skip


def draw(data: Data) -> Panels:
    """The spectra of the pair before and after training, and the dimension in every run."""
    panels, runs = [], drawn_models(data, "neurips", "inferential", "symmetric")
    sizes = ("", "") if data.own else ("small initialisation: ", "large initialisation: ")
    for run, letter, size in zip(runs, "ab", sizes, strict=False):
        models = {0: run.initial, **{step: run.at(step).model for step in run.steps}}
        task = run.config.anchor_task
        lines = {step: embedding_structure(key_embeddings(model, task)).eigenvalues.tolist()
                 for step, model in models.items()}  # fmt: skip
        panels.append((f"({letter}) {size}{titled(run)}", spectra(lines)))
    numbers = {"embedding_dimension": "dimension / Gaussian's"}
    wide = "gamma 0.35 to 0.95, width 400:\ndimension of every run by phase"
    narrow = "gamma 0.3 to 1, width 64 to 128: dimension of every run by phase"
    return [
        panels,
        *runs_by_phase(data, numbers, wide, ("solutions",), strata=False),
        *runs_by_phase(data, numbers, narrow),
    ]


def spectra(lines: Mapping[int, Sequence[float]]) -> Figure:
    """Eigenvalues, largest first, at several steps of a training: the later, the darker."""
    with panel(4.4, 3.4) as (figure, axes):
        shades = colormaps["viridis_r"](np.linspace(0.1, 1, len(lines)))
        for colour, (step, values) in zip(shades, lines.items(), strict=True):
            label = f"step {step:,}" if step in (min(lines), max(lines)) else None
            axes.plot(range(1, len(values) + 1), values, color=colour, lw=1.2, label=label)
        largest = max(max(values) for values in lines.values())
        axes.set(xlabel="index", ylabel="eigenvalue", yscale="log", ylim=(largest / 1e4, None))
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    raise SystemExit(main(__file__))
