"""Circuits: small sets of attention edges, heads or MLPs that still give the answers.

A circuit is judged by the answers of its bench, an
:class:`anchor_interp.interventions.ablation_bench.EdgeAblation`, when every part outside of it is
ablated (*faithfulness*), when the circuit itself is ablated (*completeness*), and when one of its
parts is (*minimality*); all three after Wang et al. 2022, "Interpretability in the Wild", section
4. The bench says whose answers they are and what the parts are.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from jaxtyping import Bool, Float

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.progress import deadline, reporting_one
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked
from anchor_interp.interventions.ablation_bench import (
    Ablation,
    EdgeAblation,
    Parts,
    other_sets,
    single_parts,
)

_NAMED = 6  # parts that a circuit's text names
_FAITHFUL = 0.9  # of the logit difference and the accuracy: what a curve's text looks for
_DRAWS = 10  # of random circuits for each that is asked for
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
        """In words: ``L0H0: first <- key``, ``L0H0``, ``L1 MLP: last``, ``logits <- L1 MLP``."""
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


@dataclass(frozen=True, eq=False, repr=False)
class AblatedParts(Readable):
    """What a bench's model still answers without each of its parts."""

    names: tuple[str, ...]
    ablation: Ablation
    full: Float[np.ndarray, "3"]
    """Accuracy, logit difference and log-probability of the whole model."""
    without: Float[np.ndarray, "3 part"]
    """The same with one part ablated."""

    def _summary(self) -> str:
        least = np.argsort(self.without[1])[:3]
        named = ", ".join(f"{self.names[i]} {self.without[1, i]:.2f}" for i in least)
        about = f"{len(self.names)} parts, {self.ablation} ablation one by one"
        return f"{about}; logit difference {self.full[1]:.2f}\nleast without: {named}"

    def _rows(self) -> Iterator[dict[str, Any]]:
        for name, (right, difference, log_probability) in zip(
            self.names, self.without.T.tolist(), strict=True
        ):
            yield {"part": name, "accuracy": right, "logit_difference": difference,
                   "log_probability": log_probability}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class CircuitCurve(Readable):
    """Faithfulness of circuits, each beside random ones of equal size."""

    sizes: tuple[int, ...]
    n_edges: int
    """All parts that can reach the output."""
    ablation: Ablation
    accuracy: Float[np.ndarray, " circuit"]
    """Faithfulness, as of :class:`CircuitScores`."""
    logit_difference: Float[np.ndarray, " circuit"]
    random_accuracy: Float[np.ndarray, "circuit draw"]
    """NaN behind the last one, if there are fewer other circuits than were asked for."""
    random_logit_difference: Float[np.ndarray, "circuit draw"]
    parts: Parts = "edges"

    def _summary(self) -> str:
        sizes, least = ", ".join(map(str, self.sizes)), self.smallest
        first = "no circuit has" if least is None else f"{self.sizes[least]} have"
        about = f"{sizes} of {self.n_edges} {self.parts}, {self.ablation}"
        return f"{about}\n{first} a faithfulness of {_FAITHFUL} by accuracy and logit difference"

    @property
    def smallest(self) -> int | None:
        """The index of the first circuit whose faithfulness is 0.9 by both measures."""
        both = np.minimum(self.accuracy, self.logit_difference) >= _FAITHFUL
        return int(both.argmax()) if both.any() else None

    def _rows(self) -> Iterator[dict[str, Any]]:
        for i, size in enumerate(self.sizes):
            row = {"size": size}
            for name in ("accuracy", "logit_difference"):
                drawn = getattr(self, f"random_{name}")[i]
                drawn = drawn[~np.isnan(drawn)] if np.isfinite(drawn).any() else drawn
                row |= {name: getattr(self, name)[i], f"{name}_random": drawn.mean()}
                row |= {f"{name}_best_random": drawn.max()}
            yield row


def ablate_each(bench: EdgeAblation) -> AblatedParts:
    """Ablate every part of a bench by itself: each edge, or ``parts`` such as heads and MLPs.

    ``zero`` and ``mean`` ablation show what all examples share, which resampling keeps.
    """
    checked(bench, EdgeAblation, "bench")
    alone = single_parts(bench.reachable, bench.parts)[1]
    names = Circuit(bench.reachable, bench.roles, parts=bench.parts).names
    return AblatedParts(names, bench.ablation, bench.full, bench.measure(alone))


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


@overload
def score_circuit(
    bench: EdgeAblation, circuit: Circuit, *, n_subsets: int = 20, n_random: int = 20, seed: int = 0
) -> CircuitScores: ...
@overload
def score_circuit(
    bench: EdgeAblation,
    circuit: Sequence[Circuit],
    *,
    n_subsets: int = 20,
    n_random: int = 20,
    seed: int = 0,
) -> CircuitCurve: ...
def score_circuit(
    bench: EdgeAblation,
    circuit: Circuit | Sequence[Circuit],
    *,
    n_subsets: int = 20,
    n_random: int = 20,
    seed: int = 0,
) -> CircuitScores | CircuitCurve:
    """Faithfulness, completeness and minimality of a circuit (Wang et al. 2022, section 4).

    Completeness is tried on ``n_subsets`` random subsets, which hold each part with probability
    1/2. Several circuits give their faithfulness alone, each beside ``n_random`` different random
    ones of equal size, or fewer where there are no more (:func:`random_circuits`). The bench
    should have other sequences than the circuits were found on.

    Raises:
        ConfigError: as :func:`prune`, or a circuit that does not fit model and sequences.
    """
    checked(bench, EdgeAblation, "bench")
    checked(n_subsets, int, "n_subsets", low=0)
    generator = np.random.default_rng(checked(seed, int, "seed", low=0))
    if not isinstance(circuit, Circuit):
        checked(n_random, int, "n_random", low=1)
        circuits = [reachable_circuit(bench, each) for each in circuit]
        return _curve(bench, circuits, n_random, generator)
    circuit = reachable_circuit(bench, circuit)
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
        minimality=tuple(EdgeLoss(n, tuple(at), Performance(*loss)) for n, at, loss in each_loss),
        parts=circuit.parts,
    )


def _curve(
    bench: EdgeAblation, circuits: Sequence[Circuit], n_random: int, generator: np.random.Generator
) -> CircuitCurve:
    checked(len(circuits), int, "the number of circuits", low=1)
    accuracy, difference = scores = np.full((2, len(circuits), 1 + n_random), np.nan)
    for i, each in enumerate(circuits):
        random, _ = random_circuits(bench, each, n_random, generator)
        scores[:, i, : 1 + len(random)] = bench.faithfulness(np.stack([each.edges, *random]))
    return CircuitCurve(
        sizes=tuple(each.size for each in circuits),
        n_edges=bench.n_parts,
        ablation=bench.ablation,
        accuracy=accuracy[:, 0],
        logit_difference=difference[:, 0],
        random_accuracy=accuracy[:, 1:],
        random_logit_difference=difference[:, 1:],
        parts=bench.parts,
    )


def random_circuits(
    bench: EdgeAblation, circuit: Circuit, n: int, generator: np.random.Generator
) -> tuple[Bool[np.ndarray, "circuit *edge"], bool]:
    """At most n different others of a circuit's size, and whether these are known to be all.

    They have as many parts in every layer (:func:`other_sets`). Those of residual edges are
    connected to the logits, as
    :meth:`anchor_interp.analysis.edge_attribution.EdgeAttribution.circuit` is: what 10 n draws
    give.
    """
    given, reachable = circuit.edges, bench.reachable
    if bench.graph is None:
        return other_sets(reachable, given, circuit.parts, n, generator)
    others: dict[bytes, Bool[np.ndarray, "*edge"]] = {}
    is_whole = circuit.size == reachable.sum()
    for _ in range(0 if is_whole else _DRAWS * n):
        drawn = bench.graph.best(generator.random(given.shape), circuit.size)
        if (drawn != given).any():
            others[drawn.tobytes()] = drawn
        if len(others) == n:
            break
    return np.array([*others.values()], np.bool_).reshape(-1, *given.shape), bool(is_whole)


def _at(index: Sequence[int], parts: Parts) -> dict[str, int | None]:
    """The columns of a part."""
    graph = ("receiver", "sender")
    names = graph if parts == "residual edges" else ("layer", "head", "query", "key")
    return dict(itertools.zip_longest(names, index))


def reachable_circuit(bench: EdgeAblation, circuit: Circuit) -> Circuit:
    """The part of a circuit that can reach the output; ConfigError if it is not the bench's."""
    checked(bench, EdgeAblation, "bench")
    checked(circuit, Circuit, "circuit")
    needs = bench.reachable.shape, bench.roles, bench.parts
    if (circuit.edges.shape, circuit.roles, circuit.parts) != needs:
        own = f"{circuit.parts}, shape {circuit.edges.shape}, positions {', '.join(circuit.roles)}"
        expected = f"{bench.reachable.shape}, {', '.join(bench.roles)} and {bench.parts}"
        raise ConfigError(f"the circuit has {own}; model and sequences have {expected}")
    return replace(circuit, edges=bench.reachable & circuit.edges)
