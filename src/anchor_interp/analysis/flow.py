"""Information flow: the attention graph of a sequence, with the causal effect of every edge.

The NeurIPS paper draws attention weights between the positions of successive layers and marks by
hand what "significantly contributes to the output of the last token" (section 5.1, figure 3). Here
every edge is ablated by itself (:mod:`anchor_interp.interventions.ablation`), and its effect on the answer is
what it contributes.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from anchor_interp.interventions.ablation import BATCH, Ablation, Bench, Tokens
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.sequences import PositionRole


@dataclass(frozen=True, eq=False)
class InformationFlow:
    """The attention graph of one sequence, or the mean over aligned ones, with causal effects.

    An effect is the mean change that ablating this edge alone makes; positive: the edge helps.
    Edges that cannot reach the last position's output have the effect 0.
    """

    tokens: Int64[np.ndarray, "n length"]
    """The sequences."""
    outputs: Int64[np.ndarray, "n length"]
    """What the model predicts at every position; the last one is its answer."""
    answers: Int64[np.ndarray, " n"]
    """The answers that the effects are on."""
    roles: tuple[PositionRole, ...]
    """The role of every position; see :func:`anchor_interp.tasks.sequences.position_roles`."""
    attention: Float[np.ndarray, "layer head query key"]
    """Mean attention weight of every edge."""
    reachable: Bool[np.ndarray, "layer head query key"]
    """Edges that can reach the last position's output."""
    ablation: Ablation
    """What ablated edges carry."""
    logit_difference: Float[np.ndarray, "layer head query key"]
    """Fall of the answer's logit minus the largest other one."""
    log_probability: Float[np.ndarray, "layer head query key"]
    """Fall of the answer's log-probability, in nats."""
    changed: Float[np.ndarray, "layer head query key"]
    """Share of sequences that are no longer given their answer (minus those that were not)."""


def information_flow(
    model: HookedTransformer,
    sequences: Tokens,
    *,
    position: int | None = None,
    ablation: Ablation = "zero",
    references: Tokens | None = None,
    answers: np.ndarray | None = None,
) -> InformationFlow:
    """The attention graph with the causal effect of every edge (NeurIPS paper, figure 3).

    Every edge that can reach the output is ablated by itself, many at a time.

    Args:
        model: any HookedTransformer with causal attention.
        sequences: one sequence, such as :data:`PROBE`, or aligned ones.
        position: 0-based position of the key, where ``sequences`` are tokens and have one.
        ablation: what an ablated edge carries.
        references: as in :class:`anchor_interp.interventions.ablation.Bench`.
        answers: the answer of every sequence; the unedited model's own if None.

    Raises:
        ConfigError: as :class:`anchor_interp.interventions.ablation.Bench`.
    """
    bench = Bench(
        model, sequences, ablation, references=references, answers=answers, position=position
    )
    edges = np.argwhere(bench.reachable)
    alone = np.zeros((len(edges), *bench.reachable.shape), np.bool_)
    alone[(np.arange(len(edges)), *edges.T)] = True
    effects = np.zeros((3, *bench.reachable.shape))
    effects[(slice(None), *edges.T)] = bench.full[:, None] - bench.measure(alone)
    outputs = _predictions(model, bench.tokens)
    return InformationFlow(
        tokens=bench.tokens.cpu().numpy(),
        outputs=outputs,
        answers=bench.answers.cpu().numpy(),
        roles=bench.roles,
        attention=bench.attention,
        reachable=bench.reachable,
        ablation=ablation,
        changed=effects[0],
        logit_difference=effects[1],
        log_probability=effects[2],
    )


@torch.no_grad()
def _predictions(
    model: HookedTransformer, tokens: Int64[Tensor, "n length"]
) -> Int64[np.ndarray, "n length"]:
    """The prediction at every position."""
    chunks = [tokens[start : start + BATCH] for start in range(0, len(tokens), BATCH)]
    outputs: Int64[np.ndarray, "n length"]
    outputs = torch.cat([model(rows).argmax(-1) for rows in chunks]).cpu().numpy()
    return outputs
