"""Which function a model applies where: its answers by pair, key and position of the key.

A phase is one word for a whole run, and most runs are mixtures: at some keys and positions they
follow the rule, at others they answer an unseen pair as if it were a seen one. A *cell* is one pair
with one key at one position; its sequences differ in their noise tokens alone. A function *holds*
in a cell if it gives at least half of the model's answers there.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int64

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.behaviour.answer_map_numbers import EXCEPTION, NONE, OTHER_ORDER, RULE, AnswerMap
from anchor_interp.behaviour.evaluation import predict
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.anchor import AnchorTask, check_anchors
from anchor_interp.tasks.functions import Pair
from anchor_interp.tasks.rules import require_anchors
from anchor_interp.tasks.sequences import assemble, draw_noise

_MOST_PER_CELL = 1_000


class Answering(Protocol):
    """A run (:class:`anchor_interp.runs.run.Run`) with its model."""

    @property
    def config(self) -> Any:
        """Its configuration, which has the ``task``."""

    @property
    def transformer(self) -> HookedTransformer:
        """Its model."""


def answer_map(
    model: Answering | HookedTransformer | Any,
    task: AnchorTask | None = None,
    *,
    pairs: Sequence[Pair] | None = None,
    n: int = 10,
    seed: int = 0,
) -> AnswerMap:
    """The function that a model applies, for each pair, key and position of the key.

    Args:
        model: a run; or a model with its task, as :func:`anchor_interp.models.forward.last_logits`
            takes it.
        pairs: ordered pairs; if None, the unseen ones. ``task.pairs`` shows as well what is not
            learned yet.
        n: sequences a cell, 2 to 1,000; they differ in their noise tokens.

    Raises:
        ConfigError: a task without anchors or without unseen pairs, or n out of range.
    """
    asked: Any = model
    if hasattr(type(asked), "transformer"):
        task, asked = require_anchors(asked.config.task, "a map of answers"), asked.transformer
    task = check_anchors(task, "ai.last_logits answers examples")
    n = checked(n, int, "n", low=2, high=_MOST_PER_CELL)
    chosen = task.unseen if pairs is None else checked(pairs, tuple[Pair, ...], "pairs")
    if not chosen:
        missing = "the task has no unseen pair" if pairs is None else "pairs is empty"
        raise ConfigError(f"{missing}; name pairs, such as task.pairs")
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"pairs is {chosen}; expected each pair once")
    names, values = known_functions(task, chosen)
    shape = len(chosen), len(task.keys), task.length - 2, n
    pair, key, position, _ = (axis.ravel() for axis in np.indices(shape))
    index = task.indices(chosen)
    every = (*task.unseen, *task.seen)  # a pair's noise does not depend on the other pairs chosen
    size = len(pair) // len(chosen) * len(every)
    noise = draw_noise(task, size, keys="all", seed=seed, stream="answers")
    noise = noise.reshape(len(every), -1, task.length)[[every.index(each) for each in chosen]]
    tokens = noise.reshape(-1, task.length)
    sequences = assemble(task, tokens, index[pair], task.keys[key], position)
    answers = predict(asked, sequences)
    given = values[pair, :, key] == answers[:, None]  # [n, function]
    first = np.where(given.any(1), given.argmax(1), len(names) - 1)
    counts = np.zeros((*shape[:3], len(names)))
    np.add.at(counts, (pair, key, position, first), 1)
    return AnswerMap(chosen, names, task.keys, n, counts / n)


def mixture(run: Answering) -> dict[str, float]:
    """Shares of an answer map's cells: ``--measure anchor_interp.behaviour.answer_map:mixture``."""
    return answer_map(run).mixture


def known_functions(
    task: AnchorTask, pairs: Sequence[Pair]
) -> tuple[tuple[str, ...], Int64[np.ndarray, "pair function key"]]:
    """Names of the functions, and their values for each pair; -1 where a pair has no such one."""
    missing = np.full(len(task.keys), -1)
    seen: dict[str, np.ndarray] = {}
    for each in task.seen:
        target = task.target(each, task.keys)
        if not any(np.array_equal(target, other) for other in seen.values()):
            seen[f"{each}{_offset(target - task.keys)}"] = target
    table = []
    for pair in pairs:
        own = task.override(pair)
        symmetric = task.symmetric(pair, task.keys)
        rows = [
            task.composed(pair, task.keys),
            missing if own is None else own(task.keys),
            missing if symmetric is None else symmetric,
        ]
        table.append([*rows, *seen.values(), missing])
    values = np.array(table)
    used = [i for i in range(len(values[0])) if i in (0, len(values[0]) - 1) or _new(values, i)]
    ruled = [task.composed(pair, task.keys) for pair in pairs if pair in task.unseen]
    also = [name for name, target in seen.items()
            if any(np.array_equal(rule, target) for rule in ruled)]  # fmt: skip
    names = (" or ".join([RULE, *also]), EXCEPTION, OTHER_ORDER, *seen, NONE)
    return tuple(names[i] for i in used), values[:, used]


def _new(values: Int64[np.ndarray, "pair function key"], index: int) -> bool:
    """Whether a function differs from all before it, for some pair that has it."""
    return any(
        (rows[index] >= 0).any() and not (rows[:index] == rows[index]).all(1).any()
        for rows in values
    )


def _offset(differences: np.ndarray) -> str:
    """``: x - 7`` for a shift of the key, else nothing."""
    shift = int(differences[0])
    if (differences != shift).any():
        return ""
    return f": x {'-' if shift < 0 else '+'} {abs(shift)}"
