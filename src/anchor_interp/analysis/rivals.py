"""Circuits beside others: random ones of equal size, the attention rollout, published routes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked
from anchor_interp._util.statistics import permutation_p
from anchor_interp.analysis.attention import attention_rollout
from anchor_interp.analysis.circuits import Circuit, Performance, random_circuits, reachable_circuit
from anchor_interp.analysis.routes import ROUTES, route_edges
from anchor_interp.interventions.ablate_edges import edge_outputs
from anchor_interp.interventions.ablation_bench import Ablation, EdgeAblation, Parts

_LARGE = 1e6  # rounds in double precision as a faithfulness does in single precision


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
    """Faithfulness, by accuracy, of :func:`anchor_interp.analysis.circuits.random_circuits`."""
    random_logit_difference: Float[np.ndarray, " circuit"]
    p_accuracy: float
    """(1 + random circuits at least as faithful) / (1 + random circuits), by accuracy."""
    p_logit_difference: float
    others: tuple[RivalCircuit, ...]
    """The attention rollout with as many edges, and the published routes."""
    rollouts: tuple[RivalCircuit, ...]
    """The attention rollout with one edge fewer, as many, one and two more, and twice as many."""
    parts: Parts = "edges"
    all_others: bool = False
    """Whether the random circuits are known to be all others of their kind."""

    @property
    def drawn(self) -> str:
        """The random circuits in words; empty if there is no other circuit of this size."""
        n = len(self.random_accuracy)
        known = f"the {n} other circuit" if self.all_others else f"{n} random circuit"
        return f"{known}{'s' * (n > 1)}" * (n > 0)

    def _summary(self) -> str:
        rivals = "; ".join(f"{one.name} {one.faithfulness.accuracy:.2f}" for one in self.others)
        about = f"{self.size} {self.parts}, {self.ablation}; faithfulness by accuracy "
        shown, best = self.drawn, "no other circuit has as many parts in every layer"
        best = f"best of {shown} {self.random_accuracy.max():.2f}" if shown else best
        best += f" (p = {self.p_accuracy:.3f}); {rivals}".removesuffix("; ")
        return f"{about}{self.faithfulness.accuracy:.2f}\n{best}"

    def _rows(self) -> Iterator[dict[str, Any]]:
        random = (self.random_accuracy, self.random_logit_difference)
        yield {"circuit": "the circuit", "size": self.size, **vars(self.faithfulness)}
        if self.drawn:
            best = Performance(*(float(shares.max()) for shares in random))
            yield {"circuit": f"best of {self.drawn}", "size": self.size, **vars(best)}
        for one in (*self.others, *(one for one in self.rollouts if one.size != self.size)):
            yield {"circuit": one.name, "size": one.size, **vars(one.faithfulness)}


def compare_circuit(
    bench: EdgeAblation, circuit: Circuit, *, n_random: int = 100, seed: int = 0
) -> CircuitComparison:
    """A circuit's faithfulness beside random circuits, attention rollout and the routes.

    Random circuits are different others with as many parts in every layer that can reach the
    output, all of them if there are no more than ``n_random``; of residual edges see
    :func:`anchor_interp.analysis.circuits.random_circuits`. The rollout has as many in all, and is
    shown with other sizes too (:func:`rollouts`). The routes are left out if there is only one
    layer, or no key right before both anchors, and both if parts are not edges alone. Errors as in
    :func:`anchor_interp.analysis.circuits.score_circuit`.
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
            wired = route_edges(bench.model, route, len(roles), position, last=bench.at)
            routes.append((f"{route.name} route", bench.reachable & wired))
    random, all_others = random_circuits(bench, circuit, n_random, generator)
    scores = bench.faithfulness(np.stack([circuit.edges, *random]))
    own, by_chance = scores[:, 0].tolist(), scores[:, 1:]
    tested = zip(own, by_chance, strict=True) if len(random) else ()
    p_values = [permutation_p(*each, exact=False, size=_LARGE) for each in tested] or [1.0, 1.0]
    return CircuitComparison(
        size=size,
        ablation=bench.ablation,
        faithfulness=Performance(*own),
        random_accuracy=by_chance[0],
        random_logit_difference=by_chance[1],
        p_accuracy=p_values[0],
        p_logit_difference=p_values[1],
        others=(*(one for one in by_size if one.size == size), *_rivals(bench, routes)),
        rollouts=by_size,
        parts=circuit.parts,
        all_others=all_others,
    )


def rollouts(bench: EdgeAblation, sizes: Iterable[int]) -> tuple[RivalCircuit, ...]:
    """The faithfulness of the edges with the largest :func:`attention_rollout`, for each size.

    A size below 1 or above the number of edges that can reach the output is left out.
    """
    share = attention_rollout(edge_outputs(bench.model, bench.rows).patterns, bench.at)
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
