"""Routes: how much of the key's and the anchors' information takes which way to the answer.

A *route* is a mechanism as edges between roles. :func:`route_scores` exchanges the key or an anchor
and lets the change out along a route's edges only (path patching: Goldowsky-Dill et al. 2023). The
two published routes: NeurIPS paper, section 5.1 and figure 3.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.readable import Readable
from anchor_interp._util.schema import checked
from anchor_interp._util.statistics import mean_margin
from anchor_interp.interventions.ablate_edges import edge_outputs
from anchor_interp.interventions.ablation_bench import LEAST_CHANGE, reachable_edges, run_ablated
from anchor_interp.interventions.patched_passes import declare
from anchor_interp.interventions.subject import Subject, subject_of
from anchor_interp.models.forward import last_logits
from anchor_interp.models.inputs import model_rows
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.counterfactuals import replace_anchors, replace_keys
from anchor_interp.tasks.sequences import Place, Sequences, drawn_sequences

RouteName = Literal["symmetric", "inferential", "gathered"]


class Hop(NamedTuple):
    """Attention of one role (``query``, which receives) to another (``key``, which sends)."""

    query: Place
    key: Place


@dataclass(frozen=True)
class Route:
    """A mechanism as hops in earlier and in later layers."""

    name: RouteName
    early: tuple[Hop, ...]
    late: tuple[Hop, ...]


@dataclass(frozen=True)
class LegScore:
    """How much of an exchanged token's effect on the answer a route carries."""

    route: RouteName
    split: int
    source: Place
    effect: float
    """Share of the change of the logit difference: 1 all, 0 none, not clamped."""
    margin: float | None
    """Half the width of its 95 % interval over the sequences; None if there is one sequence."""
    answers: float
    """Share of sequences that get the answer of the exchanged token."""


@dataclass(frozen=True, repr=False)
class RouteScores(Readable):
    """How much of the information each route carries: 1 all of it, 0 none.

    A route's score is the effect of its weakest leg (key, first or second anchor), at the split of
    the layers that is best for it.
    """

    symmetric: float
    """Anchors to the last position early, then the key (NeurIPS paper, figure 3a)."""
    inferential: float
    """Key to the anchors early, then both to the last position (NeurIPS paper, figure 3c)."""
    gathered: float
    """Key and first anchor to the second anchor early, then that to the last position: not
    published; taken by ``exact/lookup`` and by a model that composes at the second anchor."""
    n: tuple[tuple[Place, int], ...]
    """Sequences measured for each token: those whose answer changes with the exchange."""
    details: tuple[LegScore, ...]
    reason: str | None = None
    """Why there is no score: the scores are NaN. None if there are scores."""

    def _summary(self) -> str:
        if self.reason is not None:
            return f"no route has a score: {self.reason}"
        counts = ", ".join(f"{place} {count}" for place, count in self.n)
        return (
            f"symmetric {self.symmetric:.2f}, inferential {self.inferential:.2f}, "
            f"gathered {self.gathered:.2f}\nsequences whose answer changes: {counts}"
        )

    def _rows(self) -> list[dict[str, Any]]:
        return [vars(leg) for leg in self.details]

    def margin(self, route: RouteName) -> float | None:
        """Half the width of the 95 % interval of the leg that gave the score; None without any."""
        of = ((leg.route, leg.effect) == (route, getattr(self, route)) for leg in self.details)
        return next((leg.margin for leg, own in zip(self.details, of, strict=True) if own), None)


_LAST_FROM_ANCHORS = (Hop("last", "first"), Hop("last", "second"))
ROUTES: Mapping[RouteName, Route] = MappingProxyType({route.name: route for route in (
    Route("symmetric", early=_LAST_FROM_ANCHORS, late=(Hop("last", "key"),)),
    Route("inferential", (Hop("first", "key"), Hop("second", "key")), late=_LAST_FROM_ANCHORS),
    Route("gathered", (Hop("second", "key"), Hop("second", "first")), (Hop("last", "second"),)),
)})  # fmt: skip
"""The routes of ``exact/symmetric``, ``exact/inferential`` and ``exact/lookup``, in this order
(:mod:`anchor_interp.models.exact`). The NeurIPS paper publishes the first two (section 5.1)."""


def route_layers(
    model: HookedTransformer, route: Route, split: int | None = None
) -> tuple[tuple[range, tuple[Hop, ...]], tuple[range, tuple[Hop, ...]]]:
    """The layers of a route's early and of its late hops.

    The first ``split`` layers are early, the others late. If it is None, every layer but the last
    is early and every layer but the first is late, which is the same for two layers.
    """
    layers = model.cfg.n_layers
    if layers < 2:
        raise ConfigError(f"the model has {layers} layer; expected at least two, early and late")
    split = checked(split, int | None, "split", low=1, high=layers - 1)
    end, start = (layers - 1, 1) if split is None else (split, split)
    return (range(end), route.early), (range(start, layers), route.late)


def route_edges(
    model: HookedTransformer, route: Route, length: int, position: int, *, last: int = -1
) -> Bool[np.ndarray, "layer head query key"]:
    """A route's edges in every head, with the key at a position and the anchors behind it.

    The answer is read at the position ``last``.
    """
    edges = np.zeros_like(reachable_edges(model, length))
    at: dict[Place, int] = {
        "key": position, "first": position + 1, "second": position + 2, "last": last
    }  # fmt: skip
    for layers, hops in route_layers(model, route):
        for hop in hops:
            edges[list(layers), :, at[hop.query], at[hop.key]] = True
    return edges


@torch.no_grad()
def route_scores(
    model: HookedTransformer | Subject,
    task: AnchorTask | None = None,
    *,
    n: int = 200,
    seed: int = 0,
    seen_only: bool = False,
) -> RouteScores:
    """How much of the key's and the anchors' information each route carries.

    One token (the key, the first or the second anchor) of a sequence is exchanged. In a forward
    pass on the exchanged sequence, every edge between positions carries what it carries in the
    original one, except the route's own edges. So the change leaves the token's position along the
    route or not at all. With d = logit(answer to the original) - logit(answer to the exchanged
    sequence), the leg's effect is::

        (mean d(original) - mean d(route)) / (mean d(original) - mean d(exchanged))

    Both answers are the unedited model's own, and only sequences whose answers differ are measured.
    A position's attention to itself stays free. The ``n`` sequences have seen pairs, keys of both
    sides and a token after the anchors. With ``seen_only`` an exchanged anchor makes a seen pair.
    Where fewer than a tenth of the answers change with a token, such as before training, the scores
    are NaN, and :attr:`RouteScores.reason` says why.

    Raises:
        ConfigError: a model that is not causal or has fewer than two layers, a task without anchors
            to exchange or room after them, or weights that are not finite.
    """
    checked(n, int, "n", low=1)
    subject = subject_of(model, task, seed)
    model, task, seed = subject.model, subject.anchor_task, subject.seed
    route_layers(model, ROUTES["symmetric"])  # refuses a single layer
    if task.length < 4 or len(task.anchors) < 2:
        has = f"{len(task.anchors)} anchors and length {task.length}"
        raise ConfigError(f"the task has {has}; expected at least 2 anchors and 4 tokens")
    clean = drawn_sequences(task, lambda s: s.position < task.length - 3, n, seed, task.seen, "all")
    exchanged: dict[Place, np.ndarray] = {
        "key": replace_keys(task, clean, seed=seed),
        "first": replace_anchors(task, clean, "first", seed, seen_only),
        "second": replace_anchors(task, clean, "second", seed, seen_only),
    }
    measured = {source: _legs(model, clean, tokens, source) for source, tokens in exchanged.items()}
    details = tuple(leg for legs, _ in measured.values() for leg in legs)
    counts = tuple((source, count) for source, (_, count) in measured.items())
    if lacking := [(count, source) for source, (legs, count) in measured.items() if not legs]:
        change = " and ".join(f"{count} of {n} with the {source}" for count, source in lacking)
        reason = f"too few answers change, {change}: the effect of a token has no shares"
        return RouteScores(math.nan, math.nan, math.nan, counts, details, reason)

    def weakest(route: RouteName, split: int) -> float:
        return min(x.effect for x in details if (x.route, x.split) == (route, split))

    splits = range(1, model.cfg.n_layers)

    def best(route: RouteName) -> float:
        return max(weakest(route, split) for split in splits)

    return RouteScores(best("symmetric"), best("inferential"), best("gathered"), counts, details)


def _legs(
    model: HookedTransformer, clean: Sequences, tokens: np.ndarray, source: Place
) -> tuple[list[LegScore], int]:
    """One exchanged token's legs of every route at every split, and the sequences measured.

    There are no legs if the token changes too few answers.
    """
    every, at = np.arange(len(tokens)), clean.positions("first")
    for each in (clean.tokens, tokens):  # they differ in one token, so no route makes another pair
        declare(zip(each[every, at].tolist(), each[every, at + 1].tolist(), strict=True))
    rows, before = model_rows(model, tokens), model_rows(model, clean)
    original, exchanged = (last_logits(model, each) for each in (before, rows))
    answer, other = original.argmax(-1), exchanged.argmax(-1)
    (used,) = torch.nonzero(answer != other, as_tuple=True)
    if len(used) < LEAST_CHANGE * len(rows):
        return [], len(used)

    def difference(logits: Tensor, row: Tensor) -> Tensor:
        return logits.gather(1, answer[row, None]) - logits.gather(1, other[row, None])

    def score(logits: Tensor, row: Tensor) -> Tensor:
        flipped = logits.argmax(-1, keepdim=True) == other[row, None]
        return torch.cat([difference(logits, row), flipped], 1)

    splits = [(r, split) for r in ROUTES.values() for split in range(1, model.cfg.n_layers)]
    frozen = torch.stack([_off_route(model, clean, route, split) for route, split in splits])
    # one head stands for all, so that many heads take no more memory
    frozen = frozen.expand(-1, -1, -1, model.cfg.n_heads, -1, -1)
    pairs = used.cpu().numpy(), used.cpu().numpy()
    measured = run_ablated(model, rows, frozen, pairs, edge_outputs(model, before), score)
    high, low = (
        difference(logits.double()[used], used)[:, 0].cpu().numpy()
        for logits in (original, exchanged)
    )
    whole = high - low  # of each sequence, as all that follows
    legs = []
    for (route, split), each in zip(splits, measured, strict=True):
        moved, answers = high - each[:, 0], float(each[:, 1].mean())
        effect = float(moved.mean() / whole.mean())
        margin = mean_margin((moved - effect * whole) / whole.mean())  # of a ratio of means
        legs.append(LegScore(route.name, split, source, effect, margin, answers))
    return legs, len(used)


def _off_route(
    model: HookedTransformer, clean: Sequences, route: Route, split: int
) -> Bool[Tensor, "batch layer 1 query key"]:
    """Every edge between two positions but the route's own, the same in all heads."""
    length = clean.tokens.shape[1]
    between = reachable_edges(model, length)[:, :1] & ~np.eye(length, dtype=np.bool_)
    edges = torch.from_numpy(between).repeat(len(clean), 1, 1, 1, 1)
    row = torch.arange(len(clean), device="cpu")
    for layers, hops in route_layers(model, route, split):
        for hop in hops:
            query, key = (torch.from_numpy(clean.positions(place)) for place in hop)
            for layer in layers:
                edges[row, layer, 0, query, key] = False
    return edges
