"""Models whose mechanism is known, because their weights are set by hand.

Three HookedTransformers of two layers and one head solve the same task in three ways, to check
every tool of this package against:

``symmetric``
    Layer 0 carries both anchors to the last position as a sum, which loses their order; its MLP
    turns the sum into the unordered pair. Layer 1 carries the key there; its MLP adds the pair's
    offset (NeurIPS paper, figure 3a).
``inferential``
    Layer 0 carries the key to both anchors. At the first anchor its MLP computes g(x; a1), at the
    second it keeps a2 (the key's position tells which anchor is which). Layer 1 carries both to the
    last position, where its MLP computes g(g(x; a1); a2) (NeurIPS paper, figure 3c).
``lookup``
    Layer 0 carries key and first anchor to the second anchor, where the MLP has one neuron for
    every (x, a1, a2), which holds the answer: ordered pairs by heart. Layer 1 carries the answer to
    the end.

On the complexity-control task all three answer *every* sequence correctly. On a task with
overridden pairs the symmetric model gives both orders the overridden answer, the lookup has the
right entry, and the inferential model composes without the exception (:func:`exact_answer`).

The residual stream holds features side by side, each built by name in ``_Wiring``. Two constant
directions, +C and -C, are so large that a LayerNorm divides by nearly the same number whatever the
features are; a balance direction keeps the mean at zero, and the gain undoes the division. So
LayerNorm changes nothing to about 1e-5. The constant also serves as bias of every neuron.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from anchor_interp._util.schema import checked
from anchor_interp.models.shapes import ModelConfig
from anchor_interp.models.shapes import Normalization as Normalization
from anchor_interp.models.transformer import HookedTransformer, empty_model, place
from anchor_interp.tasks.anchor import TASKS, AnchorTask
from anchor_interp.tasks.functions import Ints, Pair

K = TypeVar("K")
Mechanism = Literal["symmetric", "inferential", "lookup"]
Terms = dict[int, float]
"""A linear form in the residual stream: weights by direction."""
MECHANISMS: tuple[Mechanism, ...] = ("symmetric", "inferential", "lookup")
NAMES: Mapping[str, tuple[Mechanism, Normalization]] = MappingProxyType(
    {f"exact/{name}": (name, "post") for name in MECHANISMS}
    | {f"exact/{name}-pre": (name, "pre") for name in MECHANISMS}
)
"""The names under which :func:`anchor_interp.load` gives these models of the complexity-control
task: ``exact/inferential`` is post-LayerNorm, ``exact/inferential-pre`` pre-LayerNorm."""
_CONSTANT = 1_000.0  # C: LayerNorm's division varies by about (features)^2 / C^2
_SHARP = 60.0  # attention score of a position that a head looks at, minus that of any other
_LOGIT = 30.0  # of the answer; all others are 0


def exact_model(
    mechanism: Mechanism,
    task: AnchorTask = TASKS["complexity-control"],
    *,
    normalization: Normalization = "post",
    dtype: torch.dtype = torch.float32,
) -> HookedTransformer:
    """A HookedTransformer with hand-set weights that implements one mechanism of the module's text.

    It is on the CPU, in ``eval`` mode. On the papers' tasks its d_model is about 400 to 500.

    Raises:
        ConfigError: the mechanism, layout or dtype is unknown.
    """
    checked(mechanism, Mechanism, "mechanism")
    checked(task, AnchorTask, "task")
    model = empty_model(exact_shape(mechanism, task, normalization=normalization), dtype=dtype)
    weights = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    _wiring(mechanism, task).fill(weights)
    model.load_state_dict(weights, strict=False)  # the zero biases are buffers of the model
    return place(model, "cpu")


def exact_shape(
    mechanism: Mechanism, task: AnchorTask, *, normalization: Normalization = "post"
) -> ModelConfig:
    """The shape of :func:`exact_model`."""
    wiring = _wiring(mechanism, task)
    return ModelConfig(
        n_layers=2,
        n_heads=1,
        d_model=wiring.d_model,
        d_head=max(max(len(head.query), len(head.moves)) for head in wiring.heads),
        d_mlp=max(len(neurons) for neurons in wiring.mlps),
        act_fn="relu",
        normalization=normalization,
        d_vocab=max(task.n_tokens, 2),
        n_ctx=task.length,
    )


def exact_answer(mechanism: Mechanism, task: AnchorTask, pair: Pair, keys: Ints) -> Ints:
    """The mechanism's answer to every key before an ordered pair: [n]."""
    if mechanism == "inferential":
        return task.composed(pair, keys)
    if mechanism == "symmetric":  # one order's target stands for both: the overridden, else a seen
        ranks = {"overridden": 0, "inferential": 1, "unseen": 2}
        pair = min(sorted({pair, (pair[1], pair[0])}), key=lambda order: ranks[task.role(order)])
    return task.target(pair, keys)


class _Head(NamedTuple):
    """An attention head: linear forms whose products are its scores, and what it moves."""

    query: Sequence[Terms]
    key: Sequence[Terms]
    moves: dict[int, int]  # from the direction read to the direction written


class _Neuron(NamedTuple):
    """ReLU(reads - threshold), written with the weights of ``writes``."""

    reads: Terms
    threshold: float
    writes: Terms


class _Wiring:
    """Features of a residual stream by name, and the heads and neurons that use them."""

    _PLUS, _MINUS, _BALANCE = 0, 1, 2

    def __init__(self, mechanism: Mechanism, task: AnchorTask) -> None:
        self.task = task
        self.d_model = 3
        keys = task.keys.tolist()
        self.token = self.features([*task.tokens, *keys])
        self.position = self.features(range(task.length))
        (self.place,) = self.features(["place"]).values()  # 1 + position, as a number
        answers = np.stack([exact_answer(mechanism, task, pair, task.keys) for pair in task.pairs])
        self.answer = self.features(np.unique(answers).tolist())
        self.keys = {key: self.token[key] for key in keys}
        self.anchors = {anchor: self.token[anchor] for anchor in task.tokens}
        self.is_anchor: Terms = dict.fromkeys(self.anchors.values(), 1.0)
        self.heads: list[_Head] = []
        self.mlps: tuple[list[_Neuron], list[_Neuron]] = ([], [])

    def features(self, names: Iterable[K]) -> dict[K, int]:
        """New directions, one for each name."""
        directions = {name: self.d_model + i for i, name in enumerate(names)}
        self.d_model += len(directions)
        return directions

    def looks_at(self, terms: Terms, moves: dict[int, int]) -> None:
        """Add a head whose score depends on the key position only."""
        self.heads.append(_Head([{self._PLUS: 1 / _CONSTANT}], [_scaled(terms)], moves))

    def fill(self, weights: dict[str, Tensor]) -> None:
        """Set a model's weights, which are zero before."""
        for name, weight in weights.items():
            if name.endswith(("ln1.w", "ln2.w", "ln_final.w")):
                weight.fill_((2 * _CONSTANT**2 / self.d_model) ** 0.5)
        for token, direction in self.token.items():
            self._write(weights["embed.W_E"][token], {direction: 1.0})
        for position, direction in self.position.items():
            row = weights["pos_embed.W_pos"][position]
            self._write(row, {direction: 1.0, self.place: position + 1.0})
            row[self._PLUS], row[self._MINUS] = _CONSTANT, -_CONSTANT
        for layer, (head, neurons) in enumerate(zip(self.heads, self.mlps, strict=True)):
            W_Q, W_K, W_V, W_O = (weights[f"blocks.{layer}.attn.W_{x}"][0] for x in "QKVO")
            for index, (query, key) in enumerate(zip(head.query, head.key, strict=True)):
                self._read(W_Q[:, index], query)
                self._read(W_K[:, index], key)
            W_Q *= W_Q.shape[1] ** 0.5  # attention divides by this
            for index, (source, target) in enumerate(head.moves.items()):
                W_V[source, index] = 1
                self._write(W_O[index], {target: 1.0})
            for index, neuron in enumerate(neurons):
                column = weights[f"blocks.{layer}.mlp.W_in"][:, index]
                self._read(column, neuron.reads | {self._PLUS: -neuron.threshold / _CONSTANT})
                self._write(weights[f"blocks.{layer}.mlp.W_out"][index], neuron.writes)
        for answer, direction in self.answer.items():
            weights["unembed.W_U"][direction, answer] = _LOGIT

    @staticmethod
    def _read(column: Tensor, terms: Terms) -> None:
        for direction, weight in terms.items():
            column[direction] = weight

    def _write(self, row: Tensor, terms: Terms) -> None:
        self._read(row, terms)
        row[self._BALANCE] = -sum(terms.values())


@lru_cache(maxsize=8)
def _wiring(mechanism: Mechanism, task: AnchorTask) -> _Wiring:
    wiring = _Wiring(mechanism, task)
    {"symmetric": _symmetric, "inferential": _inferential, "lookup": _lookup}[mechanism](wiring)
    return wiring


def _symmetric(w: _Wiring) -> None:
    task = w.task
    # Layer 0 averages both anchors and their positions.
    seen, seen_at = w.features(w.anchors), w.features(w.position)
    moves = {w.anchors[a]: seen[a] for a in seen} | {w.position[i]: seen_at[i] for i in seen_at}
    w.looks_at(w.is_anchor, moves)
    # The same anchor twice gives a sum of 1, two different anchors 1/2 each.
    pairs = w.features(itertools.combinations_with_replacement(task.tokens, 2))
    twice = {a: {pairs[a, a]: 4.0} | {pairs[p]: -4.0 for p in pairs if a in p and p != (a, a)}
             for a in task.tokens}  # fmt: skip
    w.mlps[0].extend(_Neuron({seen[a]: 1.0}, 0.75, twice[a]) for a in task.tokens)
    w.mlps[0].extend(
        _Neuron({seen[a]: 1.0, seen[b]: 1.0}, 0.75, {pairs[a, b]: 4.0}) for a, b in pairs if a != b
    )
    # Layer 1 looks at the key: the position with anchors 1 and 2 places after it.
    after = [{seen_at[j]: 2 * _SHARP for j in (i + 1, i + 2) if j in seen_at} for i in w.position]
    key = w.features(w.keys)
    moves = {w.keys[x]: key[x] for x in key}
    w.heads.append(_Head(after, [{at: 1.0} for at in w.position.values()], moves))
    for pair, direction in pairs.items():
        answers = exact_answer("symmetric", task, pair, task.keys).tolist()
        for x, y in zip(key, answers, strict=True):
            w.mlps[1].append(_Neuron({key[x]: 2.0, direction: 2.0}, 3.0, {w.answer[y]: 1.0}))


def _inferential(w: _Wiring) -> None:
    task = w.task
    # Layer 0 looks at the latest token that is not an anchor; for both anchors that is the key.
    key = w.features(w.keys)
    (key_place,) = w.features(["key's place"]).values()
    latest = {w.place: 1.0} | dict.fromkeys(w.anchors.values(), -float(task.length))
    w.looks_at(latest, {w.keys[x]: key[x] for x in key} | {w.place: key_place})
    # The first anchor is 1 place behind the key, the second 2; every other token is 0.
    distance = {w.place: 1.0, key_place: -1.0}
    results = {a: task.function(a)(task.keys).tolist() for a in w.anchors}
    after = {a: dict(zip(key, results[a], strict=True)) for a in w.anchors}
    value = w.features(sorted({v for table in after.values() for v in table.values()}))
    second = w.features(w.anchors)
    has_key = 8.0 + 2 * task.length  # without the key the distance would be the place itself
    for a, table in after.items():
        is_a = {w.anchors[a]: 8.0}
        reads = is_a | _scaled(distance, 2.0) | dict.fromkeys(key.values(), has_key)
        w.mlps[0].append(_Neuron(reads, 11.0 + has_key, {second[a]: 1.0}))
        for x, v in table.items():
            reads = is_a | {key[x]: 2.0} | _scaled(distance, -2.0)
            w.mlps[0].append(_Neuron(reads, 7.0, {value[v]: 1.0}))
    # Layer 1 averages g(x; a1) from the first anchor and a2 from the second.
    got_value, got_second = w.features(value), w.features(second)
    moves = {value[v]: got_value[v] for v in value} | {second[a]: got_second[a] for a in second}
    w.looks_at(w.is_anchor, moves)
    values = np.array(list(value))
    for a in task.tokens:
        for v, y in zip(value, task.function(a)(values).tolist(), strict=True):
            reads = {got_value[v]: 4.0, got_second[a]: 4.0}
            w.mlps[1].append(_Neuron(reads, 3.0, {w.answer[y]: 1.0}))


def _lookup(w: _Wiring) -> None:
    task = w.task
    # Layer 0 averages the two tokens before.
    recent = w.features(w.token)
    before = [{w.position[j]: _SHARP for j in (i - 1, i - 2) if j >= 0} for i in w.position]
    moves = {w.token[t]: recent[t] for t in recent}
    w.heads.append(_Head([{at: 1.0} for at in w.position.values()], before, moves))
    looked_up = w.features(w.answer)
    for first, second in task.pairs:
        anchors = {recent[first]: 16.0, w.token[second]: 16.0}
        answers = exact_answer("lookup", task, (first, second), task.keys).tolist()
        for x, y in zip(w.keys, answers, strict=True):
            w.mlps[0].append(_Neuron(anchors | {recent[x]: 4.0}, 25.0, {looked_up[y]: 1.0}))
    # Layer 1 looks at the latest anchor, which is the second one.
    latest = {w.place: 1.0} | dict.fromkeys(w.anchors.values(), float(task.length))
    w.looks_at(latest, {looked_up[y]: w.answer[y] for y in looked_up})


def _scaled(terms: Terms, factor: float = _SHARP) -> Terms:
    return {direction: factor * weight for direction, weight in terms.items()}
