"""Circuits: small sets of attention edges, heads or MLPs that still give the answers.

A circuit is judged by the answers of its bench, an
:class:`anchor_interp.interventions.edge_ablation.EdgeAblation`, when every part outside of it is
ablated (*faithfulness*), when the circuit itself is ablated (*completeness*), and when one of its
parts is (*minimality*); all three after Wang et al. 2022, "Interpretability in the Wild", section
4. The bench says whose answers they are and what the parts are.
"""

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.progress import deadline, reporting_one
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked
from anchor_interp.analysis.attention import attention_rollout
from anchor_interp.analysis.routes import ROUTES, Route, route_layers
from anchor_interp.interventions.ablation import edge_outputs
from anchor_interp.interventions.edge_ablation import (
    Ablation,
    EdgeAblation,
    Parts,
    reachable_edges,
    single_parts,
)
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.sequences import Place, position_roles

_NAMED = 6  # parts that a circuit's text names
_AT_ONCE = 64  # parts that are tried between two reports and looks at the clock


@dataclass(frozen=True)
class Performance:
    """How often and how clearly sequences get their answer (which one, the bench says).

    If relative, on the scale from everything ablated (0) to the full model (1), not clamped.
    """

    accuracy: float
    logit_difference: float
    """Mean of the answer's logit minus the wrong one's, or else the largest other one."""

    def __str__(self) -> str:
        return f"{self.accuracy:.2f} and {self.logit_difference:.2f}"


@dataclass(frozen=True, eq=False, repr=False)
class Circuit(Readable):
    """A set of attention edges, heads or MLPs, or of residual edges.

    One of attention edges is for sequences with the key at one position.
    """

    edges: Bool[np.ndarray, "*edge"]
    """[layer, head, query, key]; with MLPs they are the last head, whose edges lead from each
    position to itself. Residual edges: [receiver, sender]."""
    roles: tuple[str, ...]
    """The positions; of residual edges the receivers, then the senders."""
    finished: bool = True
    """False if :func:`prune` took ``max_seconds`` while parts were left that might go."""
    parts: Parts = "edges"

    @property
    def size(self) -> int:
        """Number of parts."""
        return len(self._indices)

    @property
    def names(self) -> tuple[str, ...]:
        """The parts in words, such as ``L0H0: first <- key``, ``L0H0``, ``L1 MLP: last`` or
        ``logits <- L1 MLP``."""
        if self.parts == "residual edges":
            senders = self.roles[len(self.edges) :]
            return tuple(f"{self.roles[read]} <- {senders[s]}" for read, s in self._indices)
        roles = enumerate(self.roles)
        at = [{"noise": f"noise at {i}", str(i): f"position {i}"}.get(r, r) for i, r in roles]
        mlp = None if self.parts == "edges" else self.edges.shape[1] - 1

        def name(layer: int, head: int, *edge: int) -> str:
            where = f"L{layer} MLP" if head == mlp else f"L{layer}H{head}"
            ends = [at[position] for position in edge[: 1 if head == mlp else 2]]
            return f"{where}: {' <- '.join(ends)}" if ends else where

        return tuple(name(*index) for index in self._indices)

    @property
    def _indices(self) -> list[list[int]]:
        indices: list[list[int]] = single_parts(self.edges, self.parts)[0].tolist()
        return indices

    def _summary(self) -> str:
        names, more = self.names, self.size - _NAMED
        named = "; ".join(names[:_NAMED]) + (f"; {more} more" if more > 0 else "")
        end = "" if self.finished else "; the time to prune them ended, fewer may do"
        whole = "" if self.parts == "residual edges" else f" of {self.edges.shape[0]} layers"
        return f"{self.size} {self.parts}{whole}{end}\n{named}"

    def _rows(self) -> Iterator[dict[str, Any]]:
        for name, index in zip(self.names, self._indices, strict=True):
            yield {"edge": name, **_at(index, self.parts)}


@dataclass(frozen=True)
class EdgeLoss:
    """What a circuit loses without one of its parts."""

    edge: str
    index: tuple[int, ...]
    """0-based layer and head; of an edge, query and key position too. Of a residual edge the
    numbers of receiver and sender."""
    loss: Performance
    """Faithfulness of the circuit - faithfulness of the circuit without this part."""


@dataclass(frozen=True, repr=False)
class CircuitScores(Readable):
    """How well a circuit explains a model (Wang et al. 2022, section 4)."""

    size: int
    """Parts of the circuit that can reach the output."""
    n_edges: int
    """All that can reach it."""
    ablation: Ablation
    full: Performance
    nothing: Performance
    """With every part ablated."""
    faithfulness: Performance
    """Relative, with everything outside the circuit ablated; 1 if it explains the model."""
    remaining: Performance
    """Relative, with the circuit ablated; 0 if nothing is left without it."""
    incompleteness: Performance
    """Largest \\|F(C without K) - F(M without K)\\| over subsets K of the circuit C: each part, all
    of them, and random halves; 0 if the circuit fails where the model M fails."""
    minimality: tuple[EdgeLoss, ...]
    parts: Parts = "edges"

    def _summary(self) -> str:
        kept, left, lacks = self.faithfulness, self.remaining, self.incompleteness
        return (
            f"{self.size} of {self.n_edges} {self.parts}, {self.ablation}; by accuracy and logit "
            f"difference\nfaithfulness {kept}, remaining {left}, incompleteness {lacks}"
        )

    def _rows(self) -> Iterator[dict[str, Any]]:
        for one in self.minimality:
            lost = {f"{name}_lost": value for name, value in vars(one.loss).items()}
            yield {"edge": one.edge, **_at(one.index, self.parts), **lost}


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


def prune(
    bench: EdgeAblation,
    *,
    tolerance: float = 0.1,
    max_seconds: float | None = None,
    quiet: bool = False,
) -> Circuit:
    """A small circuit that still gives the bench's answers, by backward elimination.

    Each round tries the removal of every remaining part alone. It then removes the less harmful
    half at once if the circuit stays faithful, else half of that half, and so on down to the least
    harmful part. Pruning ends when no single part can go. A circuit is faithful if its faithfulness
    is at least ``1 - tolerance`` by accuracy and by logit difference.

    After ``max_seconds`` the smallest faithful circuit so far comes back, with ``finished`` False.
    Raises ConfigError if the answers hardly depend on the parts.
    """
    checked(bench, EdgeAblation, "bench")
    least = 1 - checked(tolerance, float, "tolerance", low=0, high=1)
    ends = deadline(max_seconds)
    kept, n = bench.reachable, 1
    with reporting_one("prune", bench.n_parts, quiet=quiet) as progress:
        while n and kept.any():
            _, alone = single_parts(kept, bench.parts)
            tried = []
            for start in range(0, len(alone), _AT_ONCE):
                doing = f"{len(alone)} {bench.parts} left, {start} of them tried"
                progress.update(bench.n_parts - len(alone), {"doing": doing})
                if time.monotonic() >= ends:
                    return Circuit(kept, bench.roles, finished=False, parts=bench.parts)
                tried.append(bench.faithfulness(kept & ~alone[start : start + _AT_ONCE]))
            scores = np.concatenate(tried, axis=1)
            faithful = np.all(scores >= least, axis=0)
            least_harmful_first = alone[np.lexsort((-scores[1], ~faithful))]
            n = max(len(alone) // 2, 1) if faithful.any() else 0
            while n:
                smaller = kept & ~least_harmful_first[:n].any(0)
                # a single part has been tried already
                if n == 1 or np.all(bench.faithfulness(smaller[None]) >= least):
                    kept = smaller
                    break
                n //= 2
        circuit = Circuit(kept, bench.roles, parts=bench.parts)
        progress.update(bench.n_parts, {"doing": f"{circuit.size} {bench.parts} left"})
    return circuit


def score_circuit(
    bench: EdgeAblation, circuit: Circuit, *, n_subsets: int = 20, seed: int = 0
) -> CircuitScores:
    """Faithfulness, completeness and minimality of a circuit (Wang et al. 2022, section 4).

    Completeness is tried on ``n_subsets`` random subsets, which hold each part with probability
    1/2. The bench should have other sequences than the circuit was pruned on.

    Raises:
        ConfigError: as :func:`prune`, or a circuit that does not fit model and sequences.
    """
    checked(n_subsets, int, "n_subsets", low=0)
    generator = np.random.default_rng(checked(seed, int, "seed", low=0))
    circuit = _reachable(bench, circuit)
    inside = circuit.edges
    indices, each = single_parts(inside, circuit.parts)
    depth = indices.shape[1]  # a whole head is in or out
    shape = (n_subsets, *inside.shape[:depth], *(1,) * (inside.ndim - depth))
    halves = inside & generator.integers(0, 2, shape, np.uint8).astype(bool)
    subsets = np.concatenate([inside[None], each, halves])
    of_model = bench.faithfulness(bench.reachable & ~subsets)  # [metric, subset]
    of_circuit = bench.faithfulness(inside & ~subsets)
    whole = bench.faithfulness(inside[None])[:, 0]
    losses = whole[:, None] - of_circuit[:, 1 : 1 + len(each)]
    each_loss = zip(circuit.names, indices.tolist(), losses.T.tolist(), strict=True)
    return CircuitScores(
        size=len(each),
        n_edges=len(single_parts(bench.reachable, circuit.parts)[0]),
        ablation=bench.ablation,
        full=Performance(*bench.full[:2].tolist()),
        nothing=Performance(*bench.nothing[:2].tolist()),
        faithfulness=Performance(*whole.tolist()),
        remaining=Performance(*of_model[:, 0].tolist()),
        incompleteness=Performance(*np.abs(of_circuit - of_model).max(1).tolist()),
        minimality=tuple(
            EdgeLoss(name, tuple(index), Performance(*loss)) for name, index, loss in each_loss
        ),
        parts=circuit.parts,
    )


def compare_circuit(
    bench: EdgeAblation, circuit: Circuit, *, n_random: int = 100, seed: int = 0
) -> CircuitComparison:
    """A circuit's faithfulness beside random circuits, attention rollout and the routes.

    Random circuits have as many parts in every layer, drawn from those that can reach the output.
    The rollout has as many in all, and is shown with fewer and more edges too (:func:`rollouts`).
    The routes are left out if there is only one layer, or no key right before both anchors, and
    both if parts are not edges alone. Errors as in :func:`score_circuit`.
    """
    checked(n_random, int, "n_random", low=1)
    generator = np.random.default_rng(checked(seed, int, "seed", low=0))
    inside = _reachable(bench, circuit).edges
    in_layer = np.bincount(single_parts(inside, circuit.parts)[0][:, 0], minlength=len(inside))
    size, of_edges = int(in_layer.sum()), circuit.parts == "edges"
    by_size = rollouts(bench, (size - 1, size, size + 1, size + 2, 2 * size)) if of_edges else ()
    routes, roles = [], circuit.roles
    position = roles.index("key") if "key" in roles else 0
    in_a_row = roles[position : position + 3] == ("key", "first", "second")
    if of_edges and in_a_row and bench.model.cfg.n_layers > 1:
        for route in ROUTES.values():
            wired = route_circuit(bench.model, route, length=len(roles), position=position)
            routes.append((f"{route.name} route", bench.reachable & wired.edges))
    random = np.zeros((n_random, *inside.shape), np.bool_)
    indices, alone = single_parts(bench.reachable, circuit.parts)
    for drawn in random:
        for layer, n in enumerate(in_layer):
            known = np.flatnonzero(indices[:, 0] == layer)
            drawn |= alone[generator.permutation(known)[:n]].any(0)
    scores = bench.faithfulness(np.stack([inside, *random]))
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


def _at(index: Sequence[int], parts: Parts) -> dict[str, int | None]:
    """The columns of a part."""
    graph = ("receiver", "sender")
    names = graph if parts == "residual edges" else ("layer", "head", "query", "key")
    return dict(itertools.zip_longest(names, index))


def _reachable(bench: EdgeAblation, circuit: Circuit) -> Circuit:
    """The part of a circuit that can reach the output; ConfigError if it is not the bench's."""
    checked(bench, EdgeAblation, "bench")
    checked(circuit, Circuit, "circuit")
    if (circuit.edges.shape, circuit.roles) != (bench.reachable.shape, bench.roles):
        own = f"shape {circuit.edges.shape} and positions {', '.join(circuit.roles)}"
        expected = f"{bench.reachable.shape} and {', '.join(bench.roles)}"
        raise ConfigError(f"the circuit has {own}; model and sequences have {expected}")
    return replace(circuit, edges=bench.reachable & circuit.edges)
