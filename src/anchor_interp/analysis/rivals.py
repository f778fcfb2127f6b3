"""Circuits beside others: random ones of equal size, the attention rollout, published routes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked
from anchor_interp.analysis.attention import attention_rollout
from anchor_interp.analysis.circuits import (
    Circuit,
    Performance,
    random_circuits,
    reachable_circuit,
)
from anchor_interp.analysis.routes import ROUTES, Route, route_layers
from anchor_interp.interventions.ablation import edge_outputs
from anchor_interp.interventions.edge_ablation import (
    Ablation,
    EdgeAblation,
    Parts,
    reachable_edges,
)
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.sequences import Place, position_roles


@dataclass(frozen=True)
class RivalCircuit:
    """The faithfulness of another circuit."""

    name: str
    """``attention rollout`` (as many edges) or a published route."""
    size: int
    faithfulness: Performance


@dataclass(frozen=True, eq=False, repr=False)
class CircuitComparison(Readable):
    """A circuit's faithfulness beside the faithfulness of other circuits."""

    size: int
    ablation: Ablation
    faithfulness: Performance
    random_accuracy: Float[np.ndarray, " circuit"]
    """Faithfulness, by accuracy, of random circuits with as many parts in every layer."""
    random_logit_difference: Float[np.ndarray, " circuit"]
    p_accuracy: float
    """(1 + random circuits at least as faithful) / (1 + random circuits), by accuracy."""
    p_logit_difference: float
    others: tuple[RivalCircuit, ...]
    """The attention rollout with as many edges, and the published routes."""
    rollouts: tuple[RivalCircuit, ...]
    """The attention rollout with one edge fewer, as many, one and two more, and twice as many."""
    parts: Parts = "edges"

    def _summary(self) -> str:
        rivals = "; ".join(f"{one.name} {one.faithfulness.accuracy:.2f}" for one in self.others)
        n, best = len(self.random_accuracy), self.random_accuracy.max()
        return (
            f"{self.size} {self.parts}, {self.ablation}; faithfulness by accuracy "
            f"{self.faithfulness.accuracy:.2f}\nbest of {n} random circuits {best:.2f} "
            f"(p = {self.p_accuracy:.3f}); {rivals}".removesuffix("; ")
        )

    def _rows(self) -> Iterator[dict[str, Any]]:
        random = (self.random_accuracy, self.random_logit_difference)
        best = Performance(*(float(shares.max()) for shares in random))
        yield {"circuit": "the circuit", "size": self.size, **vars(self.faithfulness)}
        name = f"best of {len(self.random_accuracy)} random circuits"
        yield {"circuit": name, "size": self.size, **vars(best)}
        for one in (*self.others, *(one for one in self.rollouts if one.size != self.size)):
            yield {"circuit": one.name, "size": one.size, **vars(one.faithfulness)}


def route_circuit(model: HookedTransformer, route: Route, *, length: int, position: int) -> Circuit:
    """A route's edges, in every head, for sequences with the key at a 0-based position.

    Raises ConfigError if the model has one layer, or no second anchor fits behind the position.
    """
    roles = position_roles(length, checked(position, int, "position", low=0, high=length - 3))
    edges = np.zeros_like(reachable_edges(model, length))
    at: dict[Place, int] = {
        "key": position, "first": position + 1, "second": position + 2, "last": length - 1
    }  # fmt: skip
    for layers, hops in route_layers(model, route):
        for hop in hops:
            edges[list(layers), :, at[hop.query], at[hop.key]] = True
    return Circuit(edges, roles)


def compare_circuit(
    bench: EdgeAblation, circuit: Circuit, *, n_random: int = 100, seed: int = 0
) -> CircuitComparison:
    """A circuit's faithfulness beside random circuits, attention rollout and the routes.

    Random circuits: :func:`anchor_interp.analysis.circuits.random_circuits`. The rollout has as
    many edges, and is shown with fewer and more too (:func:`rollouts`).
    The routes are left out if there is only one layer, or no key right before both anchors, and
    both if parts are not edges alone. Errors as in :func:`score_circuit`.
    """
    checked(n_random, int, "n_random", low=1)
    generator = np.random.default_rng(checked(seed, int, "seed", low=0))
    circuit = reachable_circuit(bench, circuit)
    size, of_edges = circuit.size, circuit.parts == "edges"
    by_size = rollouts(bench, (size - 1, size, size + 1, size + 2, 2 * size)) if of_edges else ()
    routes, roles = [], circuit.roles
    position = roles.index("key") if "key" in roles else 0
    in_a_row = roles[position : position + 3] == ("key", "first", "second")
    if of_edges and in_a_row and bench.model.cfg.n_layers > 1:
        for route in ROUTES.values():
            wired = route_circuit(bench.model, route, length=len(roles), position=position)
            routes.append((f"{route.name} route", bench.reachable & wired.edges))
    random = random_circuits(bench, circuit, n_random, generator)
    scores = bench.faithfulness(np.stack([circuit.edges, *random]))
    own, by_chance = scores[:, :1], scores[:, 1:]
    p_accuracy, p_difference = ((1 + (by_chance >= own).sum(1)) / (1 + n_random)).tolist()
    return CircuitComparison(
        size=size,
        ablation=bench.ablation,
        faithfulness=Performance(*own[:, 0].tolist()),
        random_accuracy=by_chance[0],
        random_logit_difference=by_chance[1],
        p_accuracy=p_accuracy,
        p_logit_difference=p_difference,
        others=(*(one for one in by_size if one.size == size), *_rivals(bench, routes)),
        rollouts=by_size,
        parts=circuit.parts,
    )


def rollouts(bench: EdgeAblation, sizes: Iterable[int]) -> tuple[RivalCircuit, ...]:
    """The faithfulness of the edges with the largest :func:`attention_rollout`, for each size.

    A size below 1 or above the number of edges that can reach the output is left out.
    """
    checked(bench, EdgeAblation, "bench")
    share = attention_rollout(edge_outputs(bench.model, bench.tokens).patterns, bench.at)
    by_share = np.argsort(-np.where(bench.reachable, share, -1), axis=None, kind="stable")
    fitting = [n for n in dict.fromkeys(sizes) if 1 <= n <= bench.reachable.sum()]
    circuits = np.zeros((len(fitting), *bench.reachable.shape), np.bool_)
    for circuit, n in zip(circuits, fitting, strict=True):
        circuit.flat[by_share[:n]] = True
    return _rivals(bench, [("attention rollout", circuit) for circuit in circuits])


def _rivals(
    bench: EdgeAblation, circuits: Sequence[tuple[str, np.ndarray]]
) -> tuple[RivalCircuit, ...]:
    if not circuits:
        return ()
    scores = bench.faithfulness(np.stack([edges for _, edges in circuits])).T.tolist()
    return tuple(
        RivalCircuit(name, int(edges.sum()), Performance(*score))
        for (name, edges), score in zip(circuits, scores, strict=True)
    )
