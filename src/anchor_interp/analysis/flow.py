"""Information flow: the attention graph of a sequence, with the causal effect of every edge.

The NeurIPS paper draws attention weights between the positions of successive layers and marks by
hand what "significantly contributes to the output of the last token" (section 5.1, figure 3). Here
each edge is ablated alone, and its contribution is the effect on the answer.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64

from anchor_interp.interventions.ablation_bench import BATCH, Ablation, EdgeAblation, single_parts
from anchor_interp.models.transformer import HookedTransformer, Inputs


@dataclass(frozen=True, eq=False)
class InformationFlow:
    """The attention graph of one sequence, or the mean over aligned ones, with causal effects.

    An effect is the mean change from ablating this edge alone; it is positive if the edge helps.
    Edges that cannot reach the last position's output have effect 0.
    """

    tokens: Int64[np.ndarray, "n length"]
    outputs: Int64[np.ndarray, "n length"]
    """The model's prediction at every position; the last one is its answer."""
    answers: Int64[np.ndarray, " n"]
    """The answers that the effects refer to."""
    roles: tuple[str, ...]
    attention: Float[np.ndarray, "layer head query key"]
    reachable: Bool[np.ndarray, "layer head query key"]
    ablation: Ablation
    logit_difference: Float[np.ndarray, "layer head query key"]
    """Fall of the answer's logit minus the wrong one's, or else the largest other one."""
    log_probability: Float[np.ndarray, "layer head query key"]
    """Fall of the answer's log-probability, in nats."""
    changed: Float[np.ndarray, "layer head query key"]
    """Fall of the share of sequences that get their answer."""


@torch.no_grad()
def information_flow(
    model: HookedTransformer,
    sequences: Inputs,
    *,
    ablation: Ablation = "zero",
    references: Inputs | None = None,
) -> InformationFlow:
    """The attention graph with the causal effect of every edge (NeurIPS paper, figure 3).

    Arguments and errors are those of
    :class:`anchor_interp.interventions.ablation_bench.EdgeAblation`. One sequence to begin with is
    :data:`anchor_interp.tasks.sequences.PROBE`.
    """
    bench = EdgeAblation(model, sequences, ablation, references=references)
    edges, alone = single_parts(bench.reachable)
    effects = np.zeros((3, *bench.reachable.shape))
    effects[(slice(None), *edges.T)] = bench.full[:, None] - bench.measure(alone)
    rows = bench.rows
    parts = (rows[start : start + BATCH] for start in range(0, len(rows), BATCH))
    outputs = torch.cat([part.through(model).argmax(-1) for part in parts])
    return InformationFlow(
        tokens=rows.tokens.cpu().numpy(),
        outputs=outputs.cpu().numpy(),
        answers=bench.answers.cpu().numpy(),
        roles=bench.roles,
        attention=bench.attention,
        reachable=bench.reachable,
        ablation=ablation,
        changed=effects[0],
        logit_difference=effects[1],
        log_probability=effects[2],
    )
