"""Examples, aspects and baselines of a task, checked against its contract once they are drawn."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Bool

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import check_name, checked, shown
from anchor_interp.tasks.examples import Dataset, warn_once
from anchor_interp.tasks.task import Task

MAX_EXAMPLES = 1 << 31
"""Most examples of one request."""
_BLOCK, _MOST_BLOCKS = 1 << 22, 16  # tokens that are checked at a time, and how often at most


def draw_examples(task: Task, split: str, n: int, *, seed: int) -> Dataset:
    """The task's own examples; ConfigError if they break the contract of a task."""
    checked(n, int, "n", low=0, high=MAX_EXAMPLES)
    checked(task.chance, float, f"the chance of the task {task.kind}", low=0, high=1)
    check_name(split, [each.name for each in task.splits], f"no split of the task {task.kind}")
    drawn: Dataset = checked(task.examples(split, n, seed=seed), Dataset, "examples")
    shapes = drawn.tokens.shape, drawn.mask.shape, drawn.lengths.shape
    wanted = (n, *shapes[0][1:2])
    where = f"the split {split} of the task {task.kind}"
    if shapes != (wanted, wanted, (n,)) or len(wanted) != 2:
        expected = f"({n}, pos) twice and ({n},)"
        raise ConfigError(f"{where} has tokens, mask and lengths of {shapes}; expected {expected}")
    size = max(1, _BLOCK // wanted[1])
    for start in range(0, n, max(size, n // _MOST_BLOCKS)):  # of a very large set, only blocks
        rows = slice(start, start + size)
        part = Dataset(drawn.tokens[rows], drawn.mask[rows], drawn.lengths[rows])
        for wrong, what in _faults(task, part):
            if wrong.any():
                raise ConfigError(f"{where} {what} in example {start + int(wrong.argmax())}")
    return drawn


def check_repeats(task: Task, drawn: Dataset, *, seed: int) -> None:
    """ConfigError if the first of these training examples change with how many are drawn."""
    few = draw_examples(task, "train", min(len(drawn), 16), seed=seed)
    what = f"the first {len(few)} of {len(drawn):,} training examples of the task {task.kind}"
    need = "draw an example from its seed and index alone (anchor_interp.tasks.hashing)"
    if [*_rows(few)] != [*_rows(drawn.rows(slice(len(few))))]:
        raise ConfigError(f"{what} are not those of a request for {len(few)}; {need}")


def untrained(task: Task, split: str, drawn: Dataset, training: Dataset | None) -> Dataset:
    """The examples of a split that are not among the first 10,000 of training.

    ConfigError if all are. Windows of a text may repeat: of a ``mapped`` task all stay.
    """
    if training is None or task.mapped:
        return drawn
    held = set(_rows(training.rows(slice(10_000))))
    new = np.array([row not in held for row in _rows(drawn)], bool)
    if new.all():
        return drawn
    what = f"training holds {(~new).sum()} of {len(new)} examples of the split {split}"
    if not new.any():
        raise ConfigError(f"{what} of the task {task.kind}; an example belongs into one split")
    warn_once(f"{what} of the task {task.kind}: they are left out")
    return drawn.rows(new)


def _rows(examples: Dataset) -> Iterator[bytes]:
    rows = zip(examples.tokens.astype(np.int64), examples.lengths, strict=True)
    return (row[:length].tobytes() for row, length in rows)


def _faults(task: Task, part: Dataset) -> Iterator[tuple[Any, str]]:
    """For each clause of the contract which examples break it ([n]), and how they do."""
    tokens, mask, lengths = part.tokens, part.mask, part.lengths
    n_tokens, n_input_tokens, position = task.n_tokens, task.n_input_tokens, np.arange(len(mask.T))
    inside = position < lengths[:, None]
    outside = (tokens < 0) | (tokens >= n_tokens) | (tokens % 1 != 0)
    yield outside.any(1), f"has a token outside its vocabulary of {n_tokens}"
    unread = part.inputs >= n_input_tokens
    bound = f"n_input_tokens ({n_input_tokens})"
    yield unread.any(1), f"has a token before the last position that is not below {bound}"
    longest = min(task.length + 1, tokens.shape[1])
    yield lengths > longest, f"has more than {longest} tokens"
    yield (
        ~mask.any(1) | mask[:, 0] | (mask & ~inside).any(1),
        "predicts no token, the first one or padding",
    )
    if task.answers_last:
        yield mask.sum(1) != mask[:, -1], "predicts other tokens than the last (answers_last)"
    if task.end is not None:
        answer = inside & (position >= part.starts[:, None])
        ends = answer & (tokens == task.end)
        last = tokens[np.arange(len(tokens)), lengths - 1]
        yield (
            (mask != answer).any(1) | (ends.sum(1) != 1) | (last != task.end),
            f"has an answer that is not one stretch of tokens up to its only end ({task.end})",
        )


def draw_aspects(task: Task, examples: Dataset) -> dict[str, list[str] | list[int]]:
    """The task's own aspects of examples, a text or a whole number each; else ConfigError."""
    aspects: dict[str, list[str] | list[int]] = {}
    for name, values in task.aspects(examples).items():
        plain: list[Any] = [v.item() if isinstance(v, np.generic) else v for v in values]
        kinds = set(map(type, plain))
        if len(plain) != len(examples) or not (kinds <= {str} or kinds <= {int}):
            expected = f"expected {len(examples):,} values, str alone or int alone"
            what = f"the aspect {shown(name)} of the task {task.kind}"
            raise ConfigError(f"{what} is {shown(plain)}; {expected}")
        aspects[name] = plain
    for name in (task.plane.x, task.plane.y) if task.plane else ():
        if any(isinstance(value, str) or value < 0 for value in aspects.get(name, [""])):
            known = ", ".join(aspects)
            expected = f"expected one of its aspects ({known}) with whole numbers from 0"
            raise ConfigError(f"the plane of the task {task.kind} names {shown(name)}; {expected}")
    return aspects


def draw_baselines(task: Task, examples: Dataset) -> dict[str, float]:
    """The accuracies of the task's own baselines on examples; ConfigError if one is not bool[n]."""
    accuracies = {}
    for name, right in task.baselines(examples).items():
        what = f"the baseline {shown(name)} of the task {task.kind}"
        accuracies[name] = float(right_or_wrong(right, what, len(examples)).mean())
    return accuracies


def right_or_wrong(given: Any, what: str, n: int) -> Bool[np.ndarray, " n"]:
    """What a task's own score or baseline says of n examples; ConfigError if it is not bool[n]."""
    values = np.asarray(given)
    if values.shape != (n,) or values.dtype != bool:
        found = f"{values.dtype} values of shape {values.shape}"
        raise ConfigError(f"{what} has {found}; expected bool and {(n,)}")
    return values
