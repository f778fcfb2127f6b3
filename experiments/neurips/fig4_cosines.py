"""NeurIPS paper, section 5.2, figure 4: are vectors of equal answers and of equal values parallel?

In inferential models equal answers to different pairs have nearly parallel vectors at the last
position; "for symmetric solutions, the pairwise similarity ... is always low even for those with
the same output". In inferential ones equal values g(x; a1) at the first anchor are parallel too.

The figure has raw cosines. Ours beside them are centred, against near misses: 1 where equal answers
are parallel and near misses are not, 0 where equality says nothing. Judged on random settings of
the NeurIPS task in post-LayerNorm models of two layers, width 64 to 128.
"""

import itertools
import math
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp.analysis.similarity import Similarity, answer_similarity, value_similarity
from anchor_interp.pages.style import INK, frame, panel, signed_map
from claims import Claim
from common import Panels
from drawing import drawn_models, runs_by_phase, titled
from figure import main
from random_settings import IN_NEURIPS, INFERENTIAL, KNOWN, RAW, SYMMETRIC, between
from studies import Data

Corner = tuple[tuple[int, ...], tuple[int, ...]]  # groups of anchors along rows and columns
LOW, UP = ((3, 3), (2, 2)), ((1, 2), (1, 3))  # figure 4a and 4b, below and above the diagonal

CLAIMS = [
    Claim("n52-answers", "inferential models have parallel equal answers",
        between("answer", INFERENTIAL, SYMMETRIC, IN_NEURIPS), least=0.15,
        source="N 5.2, figure 4a, 4b",
        asks="In inferential models equal answers to different pairs have parallel X_ao in the "
        "last layer (X^ao(2) in the paper). In symmetric models they do not.",
        statistic="contrast of equal answers against near misses, inferential minus symmetric runs",
        note="The paper shows raw cosines; ours are centred, against near misses. Raw, the "
        "symmetric specimen is the more parallel one, so the paper's own statistic points the "
        "other way there; it was not kept of these runs.", known=KNOWN),
    Claim("n52-raw", "raw cosines of equal answers: high only where inferred",
        between("answer_raw", INFERENTIAL, SYMMETRIC, IN_NEURIPS, runs=RAW, elsewhere=()),
        least=0.15, source="N 5.2, figure 4a, 4b",
        quote="In contrast, for symmetric solutions, the pairwise similarity between vectors "
        "v_(x;a1,a2) is always low even for those with the same output",
        statistic="mean raw cosine of X_ao L1 at the last position between equal answers of "
        "different pairs, inferential minus symmetric runs",
        note="Judged on narrow models (width 64 to 128), whose inferential runs mostly start from "
        "large weights: 16 of 19 have a gamma below 0.5; the others have cosines of 0.88 to 0.92. "
        "The mean of all is 0.76, that of 96 symmetric runs 0.69. Two models of width 400 differ "
        "more (docs/evidence/wide.md). Of (3, 3) with (2, 2) and of (1, 2) with (1, 3) alone, as "
        "in the two halves of the figure, the difference is +0.06 [-0.10, 0.22] in settings-post.",
        known=("settings-post",)),
    Claim("n52-values", "inferential models have parallel equal values",
        between("value", INFERENTIAL, SYMMETRIC, IN_NEURIPS), least=0.2, source="N 5.2, figure 4c",
        asks="In inferential models the output of V L1 and W_O at the first anchor (V^(2) in the "
        "paper) is parallel for equal g(x; a1), more than in symmetric ones.",
        statistic="contrast of equal values against near misses in OV, the largest of the layers "
        "from the second on, inferential minus symmetric runs",
        note="The figure has raw cosines of V in inferential models alone; n52-values-raw asks "
        "for these.", known=KNOWN),
    Claim("n52-values-raw", "raw cosines of equal values are high where inferred",
        between("value_raw", INFERENTIAL, SYMMETRIC, IN_NEURIPS, runs=RAW, elsewhere=()), least=0.1,
        source="N 5.2, figure 4c",
        quote="for single anchor mappings, the information fusion process of single anchors and "
        "key items during the inferential solution's information fusion and the explicitly "
        "defined single anchor operations align well",
        statistic="mean raw cosine of V L1 at the first anchor between equal g(x; a1) of "
        "different keys, inferential minus symmetric runs",
        note="The figure has an inferential model alone. High cosines by themselves show little: "
        "unequal values of an anchor have as high ones (0.81), so symmetric runs are the "
        "contrast, and n52-values tests equal values against near misses.", known=RAW),
]  # fmt: skip


def draw(data: Data) -> Panels:
    """Raw and centred cosines of answers and values, and the contrasts of every run."""
    panels, runs = [], drawn_models(data, "neurips", "inferential", "symmetric")
    for centred, letters in ((False, ("(a) ", "(b) ", "(c) ")), (True, ("", "", ""))):
        found = []
        for run in runs:
            last = run.model.cfg.n_layers - 1
            answers = answer_similarity(run.model, run.config.anchor_task, layer=last)
            found.append((titled(run), triangles(answers, LOW, UP, centred=centred)))
        values = value_similarity(runs[0].model, runs[0].config.anchor_task)
        drawn = triangles(values, ((3,), (2,)), ((1,), (2,)), centred=centred)
        found.append((f"V L1, {titled(runs[0])}", drawn))
        named = zip(letters, found, strict=False)
        panels.append([(letter + title, drawing) for letter, (title, drawing) in named])
    numbers = {"answer": "X_ao, last layer:\ncontrast", "value": "OV from L1 on:\ncontrast"}
    return [*panels, *runs_by_phase(data, numbers)]


def triangles(similarity: Similarity, low: Corner, up: Corner, *, centred: bool) -> Figure:
    """Cosines over key x key: below the diagonal of two groups of anchors, above it of two others.

    A corner names the groups along the rows and along the columns. Red boxes have equal values by
    the rule. Source: NeurIPS paper, figure 4.
    """
    matrix = similarity.centred if centred else similarity.cosine
    keys = sorted(set(similarity.keys.tolist()))
    at = {item: i for i, item in enumerate(zip(similarity.anchors, similarity.keys, strict=True))}
    shown = np.full((len(keys), len(keys)), math.nan)
    with panel(4.1, 3.4) as (figure, axes):
        for (row, one), (column, two) in itertools.product(enumerate(keys), repeat=2):
            if row != column:
                rows, columns = low if row > column else up
                i, j = at[rows, one], at[columns, two]
                shown[row, column] = matrix[i, j]
                if similarity.values[i] == similarity.values[j]:
                    frame(axes, (column - 0.5, row - 0.5), 1, edgecolor="red", lw=1.6, zorder=3)
        signed_map(axes, shown, "centred cosine" if centred else "cosine")
        axes.plot([-0.5, len(keys) - 0.5], [-0.5, len(keys) - 0.5], color=INK, lw=0.8)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(range(0, len(keys), 2), [str(key) for key in keys[::2]])
        named = [[", ".join(map(str, group)) for group in corner] for corner in (low, up)]
        axes.set_xlabel(f"key; below with ({named[0][1]}), above with ({named[1][1]})", size=9)
        axes.set_ylabel(f"key; below with ({named[0][0]}), above with ({named[1][0]})", size=9)
    return figure


if __name__ == "__main__":
    raise SystemExit(main(__file__))
