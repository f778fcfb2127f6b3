"""Circuits: small sets of attention edges that still give a model's answers.

A circuit is judged by what the model answers when every edge outside of it is ablated
(*faithfulness*), when the circuit itself is (*completeness*), and when one of its edges is
(*minimality*); all three after Wang et al. 2022, "Interpretability in the Wild", section 4. What an
ablated edge carries: :mod:`anchor_interp.interventions.ablation`.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.analysis.routes import ROUTES, Route, RouteName, route_layers
from anchor_interp.interventions.ablation import Ablation, Bench, carried, reachable_edges
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.sequences import Place, PositionRole, position_roles

_PUBLISHED: tuple[RouteName, ...] = ("symmetric", "inferential")


@dataclass(frozen=True)
class Performance:
    """How well the answers of the unedited model (or others that were asked for) come out."""

    accuracy: float
    """Share of sequences that are given their answer."""
    logit_difference: float
    """Mean of the answer's logit minus the largest other one."""


@dataclass(frozen=True)
class Relative:
    """A performance on the scale from everything ablated (0) to the full model (1).

    Neither number is clamped: a circuit can do better than its model, or worse than none.
    """

    accuracy: float
    """By accuracy."""
    logit_difference: float
    """By logit difference."""


@dataclass(frozen=True, eq=False)
class Circuit:
    """A set of attention edges, for sequences with the key at one position."""

    edges: Bool[np.ndarray, "layer head query key"]
    """True for the edges of the circuit."""
    roles: tuple[PositionRole, ...]
    """The role of every position."""

    @property
    def size(self) -> int:
        """Number of edges."""
        return int(self.edges.sum())

    @property
    def names(self) -> tuple[str, ...]:
        """The edges in words, such as ``layer 1: first <- key`` (layers and heads from 1 on)."""
        return tuple(self._name(*map(int, edge)) for edge in np.argwhere(self.edges))

    def _name(self, layer: int, head: int, query: int, key: int) -> str:
        def at(position: int) -> str:
            role = self.roles[position]
            return f"noise at {position}" if role == "noise" else role

        which = f" head {head + 1}" if self.edges.shape[1] > 1 else ""
        return f"layer {layer + 1}{which}: {at(query)} <- {at(key)}"


@dataclass(frozen=True)
class EdgeLoss:
    """What a circuit loses with one of its edges."""

    edge: str
    """The edge in words."""
    index: tuple[int, int, int, int]
    """Layer, head, query and key position, from 0 on."""
    loss: Relative
    """Faithfulness of the circuit minus that of the circuit without this edge."""


@dataclass(frozen=True)
class CircuitScores:
    """How well a circuit explains a model (Wang et al. 2022, section 4)."""

    size: int
    """Edges of the circuit that can reach the output."""
    n_edges: int
    """All edges that can: 54 for two layers, one head and nine positions."""
    ablation: Ablation
    """What ablated edges carry."""
    full: Performance
    """Of the unedited model."""
    nothing: Performance
    """With every edge ablated."""
    faithfulness: Relative
    """With everything outside the circuit ablated; 1 for a circuit that explains the model."""
    remaining: Relative
    """With the circuit ablated; 0 for a circuit without which nothing is left."""
    incompleteness: Relative
    """Largest \\|F(C without K) - F(M without K)\\| over subsets K of the circuit C, relative: each
    edge, all of them, and random halves; 0 if the circuit fails where the model M fails."""
    minimality: tuple[EdgeLoss, ...]
    """Every edge of the circuit; none should be without loss."""


@dataclass(frozen=True)
class Baseline:
    """The faithfulness of another circuit."""

    name: str
    """``attention rollout`` (:func:`attention_rollout`; as many edges) or a published route."""
    size: int
    """Its edges."""
    faithfulness: Relative
    """Its faithfulness."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """A circuit's faithfulness against that of others."""

    size: int
    """Edges of the circuit."""
    ablation: Ablation
    """What ablated edges carry."""
    faithfulness: Relative
    """Of the circuit."""
    random_accuracy: Float[np.ndarray, " circuit"]
    """Faithfulness, by accuracy, of random circuits with as many edges in every layer."""
    random_logit_difference: Float[np.ndarray, " circuit"]
    """The same by logit difference."""
    p_accuracy: float
    """(1 + random circuits at least as faithful) / (1 + random circuits), by accuracy."""
    p_logit_difference: float
    """The same by logit difference."""
    others: tuple[Baseline, ...]
    """Attention rollout and the published routes."""


def route_circuit(
    model: HookedTransformer,
    route: Route,
    *,
    length: int,
    position: int,
    split: int | None = None,
) -> Circuit:
    """A route's edges, in every head, as a circuit of one model.

    Args:
        model: any HookedTransformer.
        route: the route, such as :func:`anchor_interp.analysis.routes.published_route` gives.
        length: tokens of the sequences.
        position: 0-based position of the key.
        split: as in :func:`anchor_interp.analysis.routes.route_layers`.

    Raises:
        ConfigError: fewer than two layers, or a position or split that does not exist.
    """
    roles = position_roles(length, position)
    edges = np.zeros_like(reachable_edges(model, length))
    at: dict[Place, int] = {
        "key": position, "first": position + 1, "second": position + 2, "last": length - 1
    }  # fmt: skip
    for layers, hops in route_layers(model, route, split):
        for hop in hops:
            edges[list(layers), :, at[hop.query], at[hop.key]] = True
    return Circuit(edges, roles)


def prune(bench: Bench, *, tolerance: float = 0.1) -> Circuit:
    """A small circuit that still gives the model's answers, by backward elimination.

    In each round the removal of every edge that is left is tried by itself. Then the less harmful
    half is removed at once if the circuit stays faithful, else half of that half, and so on down to
    the least harmful single edge; it ends when no single edge can go. Faithful: at least
    ``1 - tolerance`` by accuracy and by logit difference.

    Args:
        bench: the model with the sequences and the ablation to judge by.
        tolerance: the loss of faithfulness that is allowed, 0 to 1.

    Returns:
        A circuit of which no edge can be left out within the tolerance.

    Raises:
        ConfigError: a tolerance out of range, or answers that hardly depend on attention, so that
            faithfulness is not defined.
    """
    checked(bench, Bench, "bench")
    checked(tolerance, float, "tolerance", low=0, high=1)
    kept = bench.reachable.copy()
    while kept.any():
        edges = np.argwhere(kept)
        trials = np.broadcast_to(kept, (len(edges), *kept.shape)).copy()
        trials[(np.arange(len(edges)), *edges.T)] = False
        scores = bench.faithfulness(trials)
        faithful = _faithful(scores, tolerance)
        least_harmful_first = edges[np.lexsort((-scores[1], ~faithful))]
        n = max(len(edges) // 2, 1) if faithful.any() else 0
        while n:
            smaller = kept.copy()
            smaller[tuple(least_harmful_first[:n].T)] = False
            # one edge by itself has been tried already
            if n == 1 or _faithful(bench.faithfulness(smaller[None]), tolerance)[0]:
                kept = smaller
                break
            n //= 2
        if not n:
            break
    return Circuit(kept, bench.roles)


def score_circuit(
    bench: Bench, circuit: Circuit, *, n_subsets: int = 20, seed: int = 0
) -> CircuitScores:
    """Faithfulness, completeness and minimality of a circuit (Wang et al. 2022, section 4).

    With F(S) the performance when every edge outside S is ablated, M all edges and C the circuit, a
    relative performance is (F - F(nothing)) / (F(M) - F(nothing)).

    Args:
        bench: the model with the sequences and the ablation to judge by; best with other sequences
            than the circuit was pruned on.
        circuit: the circuit.
        n_subsets: random subsets, each edge with probability 1/2, that completeness is tried on.
        seed: which subsets.

    Raises:
        ConfigError: as :func:`prune`, or a circuit that does not fit model and sequences.
    """
    checked(n_subsets, int, "n_subsets", low=0)
    generator = np.random.default_rng(checked(seed, int, "seed", low=0))
    inside = _fitting(bench, circuit)
    edges = np.argwhere(inside)
    each = np.zeros((len(edges), *inside.shape), np.bool_)
    each[(np.arange(len(edges)), *edges.T)] = True
    halves = inside & generator.integers(0, 2, (n_subsets, *inside.shape), np.uint8).astype(bool)
    subsets = np.concatenate([inside[None], each, halves])
    of_model = bench.faithfulness(bench.reachable & ~subsets)  # [metric, subset]
    of_circuit = bench.faithfulness(inside & ~subsets)
    whole = bench.faithfulness(inside[None])[:, 0]
    losses = whole[:, None] - of_circuit[:, 1 : 1 + len(edges)]
    names = Circuit(inside, circuit.roles).names
    return CircuitScores(
        size=len(edges),
        n_edges=int(bench.reachable.sum()),
        ablation=bench.ablation,
        full=Performance(*bench.full[:2].tolist()),
        nothing=Performance(*bench.nothing[:2].tolist()),
        faithfulness=Relative(*whole.tolist()),
        remaining=Relative(*of_model[:, 0].tolist()),
        incompleteness=Relative(*np.abs(of_circuit - of_model).max(1).tolist()),
        minimality=tuple(
            EdgeLoss(name, (int(a), int(b), int(c), int(d)), Relative(*loss.tolist()))
            for name, (a, b, c, d), loss in zip(names, edges, losses.T, strict=True)
        ),
    )


def compare_circuit(
    bench: Bench, circuit: Circuit, *, n_random: int = 100, seed: int = 0
) -> Comparison:
    """A circuit's faithfulness against random ones, attention rollout and the published routes.

    Random circuits have as many edges in every layer, drawn from those that can reach the output;
    the rollout's has as many in all, those of the largest share (:func:`attention_rollout`).

    Args:
        bench: as in :func:`score_circuit`.
        circuit: the circuit.
        n_random: number of random circuits, at least 1.
        seed: which random circuits.

    Raises:
        ConfigError: as :func:`score_circuit`. Published routes are left out where there is one
            layer only or no key.
    """
    checked(n_random, int, "n_random", low=1)
    generator = np.random.default_rng(checked(seed, int, "seed", low=0))
    inside = _fitting(bench, circuit)
    rivals = {"attention rollout": _most_attended(bench, int(inside.sum()))}
    if "key" in circuit.roles and bench.model.cfg.n_layers > 1:
        length, position = len(circuit.roles), circuit.roles.index("key")
        for name in _PUBLISHED:
            route = route_circuit(bench.model, ROUTES[name], length=length, position=position)
            rivals[f"{name} route"] = bench.reachable & route.edges
    random = np.stack([_shuffled(bench.reachable, inside, generator) for _ in range(n_random)])
    scores = bench.faithfulness(np.stack([inside, *rivals.values(), *random]))
    mine, others, drawn = np.split(scores, [1, 1 + len(rivals)], axis=1)
    at_least = (1 + (drawn >= mine).sum(1)) / (1 + n_random)
    return Comparison(
        size=int(inside.sum()),
        ablation=bench.ablation,
        faithfulness=Relative(*mine[:, 0].tolist()),
        random_accuracy=drawn[0],
        random_logit_difference=drawn[1],
        p_accuracy=float(at_least[0]),
        p_logit_difference=float(at_least[1]),
        others=tuple(
            Baseline(name, int(edges.sum()), Relative(*score.tolist()))
            for (name, edges), score in zip(rivals.items(), others.T, strict=True)
        ),
    )


def attention_rollout(
    patterns: Float[Tensor, "layer batch head query key"],
) -> Float[np.ndarray, "layer head query key"]:
    """How much attention runs through every edge to the last position.

    An edge's weight times the weight of all ways from its query on to the last position of the
    last layer. From layer to layer a way goes along the mean attention of the heads or stays where
    it is, in the residual stream, which has weight 1 (attention rollout: Abnar and Zuidema 2020,
    "Quantifying Attention Flow in Transformers", section 3, here by edge and from the end on).
    It knows nothing of values: attention that a model makes no use of counts as well.

    Args:
        patterns: attention weights of n sequences, such as :attr:`Carried.patterns
            <anchor_interp.interventions.ablation.Carried.patterns>`.

    Returns:
        The mean over the sequences; 0 for edges that cannot reach the last position.
    """
    weights = patterns.double()
    onward = torch.zeros_like(weights[0, :, 0, 0])  # [batch, position]
    onward[:, -1] = 1
    through = []
    for layer in reversed(weights):
        flow = layer * onward[:, None, :, None]
        through.append(flow.mean(0))
        onward = onward + flow.mean(1).sum(1)
    found: Float[np.ndarray, "layer head query key"] = torch.stack(through[::-1]).cpu().numpy()
    return found


def _fitting(bench: Bench, circuit: Circuit) -> Bool[np.ndarray, "layer head query key"]:
    """The circuit's edges that can reach the output."""
    checked(bench, Bench, "bench")
    checked(circuit, Circuit, "circuit")
    if circuit.edges.shape != bench.reachable.shape or circuit.roles != bench.roles:
        raise ConfigError(
            f"the circuit has shape {circuit.edges.shape} (layer, head, query, key) and positions "
            f"{', '.join(circuit.roles)}; model and sequences have {bench.reachable.shape} and "
            f"{', '.join(bench.roles)}"
        )
    inside: Bool[np.ndarray, "layer head query key"] = bench.reachable & circuit.edges
    return inside


def _most_attended(bench: Bench, size: int) -> Bool[np.ndarray, "layer head query key"]:
    """The edges of the largest attention rollout."""
    share = attention_rollout(carried(bench.model, bench.tokens).patterns)
    edges = np.zeros_like(bench.reachable)
    edges.flat[
        np.argsort(-np.where(bench.reachable, share, -1), axis=None, kind="stable")[:size]
    ] = 1
    return edges


def _shuffled(
    reachable: Bool[np.ndarray, "layer head query key"],
    circuit: Bool[np.ndarray, "layer head query key"],
    generator: np.random.Generator,
) -> Bool[np.ndarray, "layer head query key"]:
    """Random edges, as many in every layer as the circuit has."""
    edges = np.zeros_like(circuit)
    for layer in range(len(edges)):
        known = np.flatnonzero(reachable[layer])
        edges[layer].flat[generator.permutation(known)[: circuit[layer].sum()]] = True
    return edges


def _faithful(
    scores: Float[np.ndarray, "2 circuit"], tolerance: float
) -> Bool[np.ndarray, " circuit"]:
    enough: Bool[np.ndarray, " circuit"] = np.all(scores >= 1 - tolerance, axis=0)
    return enough
