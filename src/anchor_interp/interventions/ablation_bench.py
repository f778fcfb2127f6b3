"""What a model still answers when sets of its edges, heads or MLPs are ablated.

An ablated edge carries nothing (``zero``; the other attention weights stay), its mean over
reference sequences (``mean``), or what it carries in one reference sequence (``resample``); see
:mod:`anchor_interp.interventions.ablate_edges`. The MLP at a position is ablated like an edge, if
:data:`Parts` has MLPs: it stands as one more head of its layer, with edges from each position to
itself. Residual edges are those of :mod:`anchor_interp.interventions.residual_edges`.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked
from anchor_interp.interventions.ablate_edges import (
    EdgeOutputs,
    MeanEdgeOutputs,
    ablate_edges,
    edge_outputs,
)
from anchor_interp.interventions.residual_edges import (
    Pairs,
    ResidualGraph,
    SenderOutputs,
    check_graph,
    recorded_outputs,
    run_kept,
)
from anchor_interp.models.forward import answer_logits
from anchor_interp.models.inputs import Rows, finite_rows
from anchor_interp.models.number_checks import check_finite
from anchor_interp.models.transformer import HookedTransformer, Inputs, check_causal
from anchor_interp.tasks.examples import Examples, as_examples, check_aligned, order_of

Ablation = Literal["zero", "mean", "resample"]
"""What an ablated edge carries; see the module's text."""
Parts = Literal["edges", "edges and MLPs", "heads and MLPs", "residual edges"]
"""What is ablated one by one: an attention edge, the MLP at a position; a head or MLP, or what a
receiver gets of a sender, at all positions."""
_References = Inputs | Integer[np.ndarray, "reference pos"] | Integer[Tensor, "reference pos"]
_Sets = Bool[np.ndarray, "circuit *edge"] | Bool[Tensor, "circuit *edge"]
BATCH = 1024
"""Sequences of one forward pass."""
LEAST_CHANGE = 0.1
"""A ratio needs at least this share of the answers to change in its denominator."""


def reachable_edges(
    model: HookedTransformer, length: int, *, read: int = -1, mlps: bool = False
) -> Bool[np.ndarray, "layer head query key"]:
    """The edges, and MLPs, whose information can reach the output at the position ``read``.

    These are the last layer's edges to this position, and all causal edges below it that do not lie
    behind: 54 of 90 for two layers, one head and nine positions. Raises ConfigError if attention is
    not causal.
    """
    check_causal(model)
    at = read % length
    shape = (model.cfg.n_layers, model.cfg.n_heads + mlps, length, length)
    edges = np.broadcast_to(np.tri(length, dtype=np.bool_), shape).copy()
    has_mlps = not model.cfg.attn_only
    edges[:, model.cfg.n_heads :] &= np.eye(length, dtype=np.bool_) & has_mlps
    edges[:, :, at + 1 :] = edges[-1, :, :at] = False
    return edges


def single_parts(
    edges: Bool[np.ndarray, "*edge"], parts: Parts = "edges"
) -> tuple[Int64[np.ndarray, "part index"], Bool[np.ndarray, "part *edge"]]:
    """The indices of each part of a set, and each part alone.

    An edge has a layer, a head, a query and a key; a whole head has the first two; a residual edge
    has a receiver and a sender.
    """
    depth = 2 if parts == "heads and MLPs" else 4
    indices = np.unique(np.argwhere(edges)[:, :depth], axis=0)
    alone = np.zeros((len(indices), *edges.shape), np.bool_)
    for part, index in zip(alone, map(tuple, indices), strict=True):
        part[index] = edges[index]
    return indices, alone


def other_sets(
    reachable: Bool[np.ndarray, "layer head query key"],
    given: Bool[np.ndarray, "layer head query key"],
    parts: Parts,
    n: int,
    generator: np.random.Generator,
) -> tuple[Bool[np.ndarray, "set layer head query key"], bool]:
    """At most n different sets with as many parts in every layer, and whether these are all.

    The given set is not among them.
    """
    indices, alone = single_parts(reachable, parts)
    kept = (alone & given).any((1, 2, 3, 4))
    layers = [np.flatnonzero(indices[:, 0] == layer).tolist() for layer in range(len(given))]
    own = tuple(tuple(part for part in layer if kept[part]) for layer in layers)
    sizes = list(zip(layers, map(len, own), strict=True))
    others: dict[tuple[tuple[int, ...], ...], None] = {}
    if are_all := math.prod(math.comb(len(layer), k) for layer, k in sizes) - 1 <= n:
        every = itertools.product(*(itertools.combinations(layer, k) for layer, k in sizes))
        others = dict.fromkeys(chosen for chosen in every if chosen != own)
    while not are_all and len(others) < n:
        drawn = (generator.permutation(layer)[:k].tolist() for layer, k in sizes)
        if (chosen := tuple(tuple(sorted(layer)) for layer in drawn)) != own:
            others[chosen] = None
    sets = np.zeros((len(others), *given.shape), np.bool_)
    for one, chosen in zip(sets, others, strict=True):
        one |= alone[[*itertools.chain(*chosen)]].any(0)
    return sets, are_all


class EdgeAblation(Readable):
    """A model on aligned examples, ready to be measured with sets of edges ablated.

    Args:
        sequences: examples whose positions mean the same in all, such as
            :func:`anchor_interp.tasks.sequences.aligned_sequences`; for heads and MLPs only the
            last one has to, and masked padding. Examples that have answers keep those, against
            their wrong ones if given; others, and anchor sequences, the unedited model's own
            (``sequences.examples()`` keeps the targets).
        references: for ``mean`` and ``resample``. Sequence i is resampled from reference i, over
            and over; a single sequence from each reference in turn. If None, the references are
            the sequences themselves: equal ones are resampled from the next different one, in an
            order of the different ones that is drawn from ``seed``. The order of the rows given
            changes nothing.
        parts: what is ablated besides edges, or in place of single ones. Residual edges are
            resampled alone; references of theirs lie where their sequences do, row by row.

    Raises:
        ConfigError: sequences, references or answers that do not fit, or a model that is damaged
            or not causal.
    """

    def __init__(
        self,
        model: HookedTransformer,
        sequences: Inputs,
        ablation: Ablation = "resample",
        *,
        references: _References | None = None,
        parts: Parts = "edges",
        seed: int = 0,
    ) -> None:
        self.ablation: Ablation = checked(ablation, Ablation, "ablation")
        self.parts: Parts = checked(parts, Parts, "parts")
        checked(seed, int, "seed", low=0)
        residual = self.parts == "residual edges"
        if residual:
            checked(ablation, Literal["resample"], "the ablation of residual edges")
        self._by_row = residual and references is not None
        self._by_place = parts != "heads and MLPs"  # these are ablated at all positions
        examples = as_examples(sequences) if self._by_row else self._aligned(sequences)
        self.model = model
        self.rows = finite_rows(model, examples)
        self.tokens = self.rows.tokens
        self.at = int(examples.single().at[0])
        self._examples, self.roles = examples, examples.names
        self.reachable: Bool[np.ndarray, "*edge"]
        self.graph = ResidualGraph.of(model) if residual else None
        if self.graph is not None:
            self.reachable, self.roles = self.graph.reachable, self.graph.names
            check_graph(model, self.rows)
        else:
            length, mlps = self.tokens.shape[1], parts != "edges"
            self.reachable = reachable_edges(model, length, read=self.at, mlps=mlps)
            hidden = examples.unread.all(0)  # padding sends and receives nothing
            self.reachable[..., hidden] = self.reachable[..., hidden, :] = False
        # rows are computed in an order of theirs, so that no rounding depends on the given one
        order, place = order_of(examples)
        self.answers, self._wrong, self._whose = self._answers(order)
        own = self._outputs(self.rows[order])
        if isinstance(own, EdgeOutputs):
            self.attention: np.ndarray = own.patterns.double().mean(1).cpu().numpy()
        self._reference, self._pairs = self._references(own, order, place, references, seed)
        none = np.zeros_like(self.reachable)
        self.full, self.nothing = self.measure(np.stack([none, self.reachable])).T

    @property
    def n_parts(self) -> int:
        """How many parts can reach the output."""
        return len(single_parts(self.reachable, self.parts)[0])

    def _summary(self) -> str:
        n, length = self.tokens.shape
        return (
            f"{self.ablation} ablation in {n} sequences of {length} tokens; "
            f"{self.n_parts} {self.parts} can reach the output\n"
            f"{self._whose}: {self.full[0]:.2f}, with all {self.parts} ablated "
            f"{self.nothing[0]:.2f}"
        )

    def _rows(self) -> Iterator[dict[str, Any]]:
        names = ("accuracy", "logit_difference", "log_probability")
        for ablated, means in (("none", self.full), ("every part", self.nothing)):
            yield {"ablated": ablated, **dict(zip(names, means.tolist(), strict=True))}

    def measure(self, ablated: _Sets) -> Float[np.ndarray, "3 circuit"]:
        """Accuracy, logit difference and log-probability with each set of edges ablated.

        The logit difference is the answer's logit minus the wrong answer's, if the examples have
        one, else minus the largest other one. All three are means over the sequences. Raises
        ConfigError if a set has another shape than :attr:`reachable`.
        """
        ablated = self._sets(ablated)

        def score(logits: Tensor, rows: Tensor) -> Tensor:
            check_finite(logits, "the model's logits, or those with parts ablated,")
            answer = self.answers[rows, None]
            correct = logits.argmax(-1, keepdim=True) == answer
            rest = logits.scatter(1, answer, -torch.inf).amax(-1, keepdim=True)
            if self._wrong is not None:
                rest = logits.gather(1, self._wrong[rows, None])
            difference = logits.gather(1, answer) - rest
            if self._wrong is not None:  # not of a right answer that is also the wrong one
                difference = difference.where(self._wrong[rows, None] != answer, torch.nan)
            return torch.cat([correct, difference, logits.log_softmax(-1).gather(1, answer)], 1)

        pairs, reference = self._pairs, self._reference
        if isinstance(reference, SenderOutputs):
            kept = torch.from_numpy(self.reachable & ~ablated).to(self.tokens.device)
            scores = run_kept(self.model, self.rows, kept, pairs, reference, score)
        else:
            edges = torch.from_numpy(ablated)[:, None]
            scores = run_ablated(self.model, self.rows, edges, pairs, reference, score)
        means: Float[np.ndarray, "3 circuit"] = np.nanmean(scores, 1).T
        return means

    def faithfulness(self, circuits: _Sets) -> Float[np.ndarray, "2 circuit"]:
        """Accuracy and logit difference with everything outside each circuit ablated.

        On the scale from everything ablated (0) to the full model (1), not clamped. Raises
        ConfigError as :meth:`measure`, or if the model with all ablated answers almost as the full
        one.
        """
        scale = (self.full - self.nothing)[:2]
        if scale[0] < LEAST_CHANGE or scale[1] <= 0:
            right = f"{self.nothing[0]:.2f} of the answers are right, with none {self.full[0]:.2f}"
            apart = f"the logit difference is {self.nothing[1]:.2f}, with none {self.full[1]:.2f}"
            why = right if scale[0] < LEAST_CHANGE else apart
            raise ConfigError(f"with all {self.parts} ablated {why}: too few depend on them")
        left = self.measure(self.reachable & ~self._sets(circuits))[:2] - self.nothing[:2, None]
        relative: Float[np.ndarray, "2 circuit"] = left / scale[:, None]
        return relative

    def _sets(self, sets: _Sets) -> Bool[np.ndarray, "circuit *edge"]:
        """Sets of edges as an array."""
        given = np.asarray(sets.cpu() if isinstance(sets, Tensor) else sets)
        if given.dtype != np.bool_ or given.shape[1:] != self.reachable.shape or not len(given):
            expected = f"expected bool (n, *{self.reachable.shape}), at least one"
            raise ConfigError(f"sets are {given.dtype} {given.shape}; {expected}")
        return given

    def _aligned(self, sequences: Inputs) -> Examples:
        """Examples; ConfigError if a position that counts does not mean the same in all."""
        examples = as_examples(sequences)
        if self.ablation != "zero" and (examples.unread != examples.unread[0]).any():
            raise ConfigError("masked padding is elsewhere in some rows; take rows of one length")
        places = examples.places if self._by_place else {}
        for name, where in {"last": examples.at, **places}.items():
            if (n := len(np.unique(where))) > 1:
                one = f"examples[examples.positions({name!r}) == {where[0]}]"
                raise ConfigError(f"{name!r} is at {n} positions; take examples of one: {one}")
        return examples

    def _answers(
        self, order: Int64[np.ndarray, " n"]
    ) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"] | None, str]:
        """Right answers (or the model's own), wrong ones, and what the right ones are."""
        with torch.no_grad():
            logits = answer_logits(self.model, self.rows[order])
        right, wrong = (
            None if given is None else torch.from_numpy(given).to(logits.device)
            for given in self._examples.explained
        )
        if right is None:
            return logits.argmax(-1)[np.argsort(order)], None, "the model's own answers"
        if wrong is not None and bool((right == wrong).all()):
            raise ConfigError(f"right and wrong are the same in all {len(right)} examples")
        return right, wrong, "answers as given" if wrong is None else "answers against wrong ones"

    def _outputs(self, rows: Inputs | Rows) -> EdgeOutputs | SenderOutputs:
        """What all edges carry."""
        if self.parts == "residual edges":
            return recorded_outputs(self.model, rows)
        return edge_outputs(self.model, rows, mlps=self.parts != "edges")

    def _references(
        self,
        own: EdgeOutputs | SenderOutputs,
        order: Int64[np.ndarray, " n"],
        place: Int64[np.ndarray, " n"],
        references: _References | None,
        seed: int,
    ) -> tuple[EdgeOutputs | MeanEdgeOutputs | SenderOutputs | None, Pairs]:
        """What ablated edges carry, and which reference each sequence takes."""
        if self.ablation == "zero":
            checked(references, type(None), "the references of zero ablation")
            return None, (order, order)
        if references is None:
            tokens = np.where(self._examples.unread, -1, self.tokens.cpu().numpy())
            read = tokens[order, : self.at + 1]
            _, first, which = np.unique(read, axis=0, return_index=True, return_inverse=True)
            if len(first) < 2:
                raise ConfigError(f"{self.ablation}: one or only equal sequences need references")
            cycle = np.random.default_rng(seed).permutation(len(first))
            following = np.empty_like(cycle)
            following[cycle] = np.roll(cycle, -1)
            outputs, pairs = own, (order, first[following[which.ravel()]])
        else:
            donors = as_examples(references) if self._by_row else self._aligned(references)
            if self._by_row:
                check_aligned(sequences=self._examples, references=donors)
            unnamed = not (donors.places and self._by_place)
            plain = self._by_row or (unnamed and len(donors.names) == len(self.roles))
            if donors.names != self.roles and not plain:
                there, here = ", ".join(donors.names), ", ".join(self.roles)
                raise ConfigError(f"the references have the positions {there}; expected {here}")
            if not np.array_equal(donors.unread[0], self._examples.unread[0]):
                raise ConfigError("references have masked padding elsewhere; take some as long")
            theirs, at = order_of(donors)
            outputs = self._outputs(donors[theirs])
            around = np.arange(max(len(order), len(donors)))
            sequence, donor = around % len(order), at[around % len(donors)]
            sorting = np.lexsort((donor, place[sequence]))
            pairs = sequence[sorting], donor[sorting]
        if isinstance(outputs, SenderOutputs) or self.ablation == "resample":
            return outputs, pairs
        return outputs.mean(), (order, order)


@torch.no_grad()
def run_ablated(
    model: HookedTransformer,
    rows: Rows,
    ablated: Bool[Tensor, "circuit batch layer head query key"],
    pairs: Pairs,
    reference: EdgeOutputs | MeanEdgeOutputs | None,
    score: Callable[[Tensor, Tensor], Tensor],
) -> Float[np.ndarray, "circuit pair metric"]:
    """Score every pair of a sequence and a reference under every set of ablated edges.

    ``score`` takes logits in float64, where each sequence is answered, with the number of each
    sequence, and returns (sequence, metric). A batch of 1 in ``ablated`` stands for every sequence.
    """
    device = rows.tokens.device
    sequence, other = (torch.from_numpy(index).to(device) for index in pairs)
    n = len(sequence)
    parts = []
    every = torch.arange(len(ablated) * n, device="cpu")
    for chunk in torch.split(every, BATCH):  # sets share passes
        circuit, pair = chunk // n, (chunk % n).to(device)
        chosen = sequence[pair]
        edges = ablated[circuit, chosen.cpu() if ablated.shape[1] > 1 else 0].movedim(0, 1)
        donors = None if reference is None else reference.rows(other[pair])
        # without edges to ablate no hook is attached, and the fast path is taken
        heads, mlps = edges[:, :, : model.cfg.n_heads], edges[:, :, model.cfg.n_heads :]
        ablated_mlps = mlps.diagonal(dim1=-2, dim2=-1).any(2)  # [layer, batch, position]
        with ablate_edges(model, heads, donors, mlps=ablated_mlps):
            logits = answer_logits(model, rows[chosen])
        parts.append(score(logits.double(), chosen).double().cpu())
    return torch.cat(parts).view(len(ablated), n, -1).numpy()
