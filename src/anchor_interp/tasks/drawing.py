"""Examples, aspects and baselines of a task, checked: whatever comes from a task is drawn here."""

from collections.abc import Mapping

import numpy as np

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown, suggestion
from anchor_interp.tasks.examples import Dataset, Split
from anchor_interp.tasks.task import Task

MAX_EXAMPLES = 1 << 31
"""Most examples of one request."""
_BLOCK, _MOST_BLOCKS = 1 << 22, 16  # tokens that are checked at a time, and how often at most


def draw_examples(task: Task, split: str, n: int, *, seed: int) -> Dataset:
    """The task's own examples, after a check.

    Raises:
        ConfigError: an unknown split, n or seed out of range, or examples that break the contract:
            a token outside the vocabulary or ``n_input_tokens``, a sequence longer than the
            context, nothing to predict, an answer without its end token.
    """
    checked(task, Task, "task")
    checked(n, int, "n", low=0, high=MAX_EXAMPLES)
    checked(seed, int, "seed", low=0)
    checked(task.chance, float, f"the chance of the task {task.kind}", low=0, high=1)
    find_split(task, split)
    found: Dataset = checked(task.examples(split, n, seed=seed), Dataset, "examples")
    where = f"the split {split} of the task {task.kind}"
    if len(found) != n:
        raise ConfigError(f"{where} gives {len(found):,} examples; expected {n:,}")
    shapes = found.tokens.shape, found.mask.shape, found.lengths.shape
    if found.tokens.ndim != 2 or shapes[1:] != (shapes[0], (n,)):
        raise ConfigError(
            f"{where} has tokens, mask and lengths of shapes {shapes[0]}, {shapes[1]} and "
            f"{shapes[2]}; expected (n, pos) twice and (n)"
        )
    for rows in _checked_blocks(*found.tokens.shape):
        part = Dataset(found.tokens[rows], found.mask[rows], found.lengths[rows])
        _check_examples(task, part, where, rows.start)
    return found


def _checked_blocks(n: int, n_pos: int) -> list[slice]:
    """All rows in blocks; of a very large set, which lies in files, blocks all over it."""
    size = max(1, _BLOCK // n_pos)
    starts = range(0, n, size)
    if len(starts) > _MOST_BLOCKS:
        starts = range(0, n, n // _MOST_BLOCKS)
    return [slice(start, min(start + size, n)) for start in starts]


def _check_examples(task: Task, found: Dataset, where: str, first: int) -> None:
    """Refuse examples that break the contract; the first of them has this number."""
    low, high = int(found.tokens.min()), int(found.tokens.max())
    if low < 0 or high >= task.n_tokens:
        row = first + int(((found.tokens < 0) | (found.tokens >= task.n_tokens)).any(1).argmax())
        wrong = high if high >= task.n_tokens else low
        raise ConfigError(
            f"{where} has the token {wrong} in example {row}; expected 0 to {task.n_tokens - 1}, "
            "the vocabulary"
        )
    if (wrong := int(found.inputs.max(initial=0))) >= task.n_input_tokens:
        row = first + int((found.inputs == wrong).any(1).argmax())
        raise ConfigError(
            f"{where} has the token {wrong} before the last position of example {row}; "
            f"n_input_tokens of the task is {task.n_input_tokens}: make it {wrong + 1} or more"
        )
    longest = int(found.lengths.max())
    if longest > task.length + 1 or longest > found.tokens.shape[1]:
        row = first + int(found.lengths.argmax())
        most = min(task.length + 1, found.tokens.shape[1])
        raise ConfigError(f"{where} has {longest} tokens in example {row}; expected at most {most}")
    asked, position = found.mask.any(1), np.arange(found.mask.shape[1])
    wrong_mask = found.mask[:, 0] | (found.mask & (position >= found.lengths[:, None])).any(1)
    if not asked.all() or wrong_mask.any():
        row = first + int((wrong_mask | ~asked).argmax())
        raise ConfigError(
            f"{where} predicts no token, the first one or padding in example {row}; expected a "
            "mask on some tokens after the first"
        )
    n = len(found)
    if task.answers_last and (found.mask[:, -1].sum(), found.mask.sum()) != (n, n):
        raise ConfigError(f"{where} predicts other tokens than the last; answers_last is true")
    if task.end is not None:
        _check_answers(found, task.end, where, first)


def _check_answers(found: Dataset, end: int, where: str, first: int) -> None:
    """Refuse an answer that is not one stretch of tokens up to its only end token."""
    position = np.arange(found.tokens.shape[1])
    inside = (position >= found.starts[:, None]) & (position < found.lengths[:, None])
    is_end = inside & (found.tokens == end)
    last = found.tokens[np.arange(len(found)), found.lengths - 1]
    wrong = (found.mask != inside).any(1) | (is_end.sum(1) != 1) | (last != end)
    if wrong.any():
        raise ConfigError(
            f"{where} has an answer in example {first + int(wrong.argmax())} that is not one "
            f"stretch of predicted tokens up to its only end token ({end}); decoding could not "
            "give it"
        )


def draw_aspects(task: Task, examples: Dataset) -> dict[str, list[str] | list[int]]:
    """The task's own aspects of examples, after a check.

    Raises:
        ConfigError: an aspect lacks the value of an example, or has neither texts nor whole
            numbers; or the plane names an aspect that is absent, texts or negative somewhere.
    """
    found: dict[str, list[str] | list[int]] = {}
    for name, values in checked(task.aspects(examples), Mapping, "aspects").items():
        what = f"the aspect {shown(name)} of the task {task.kind}"
        plain = [value.item() if isinstance(value, np.generic) else value for value in values]
        if len(plain) != len(examples):
            raise ConfigError(f"{what} has {len(plain):,} values; expected {len(examples):,}")
        kinds = {type(value) for value in plain}
        if not (kinds <= {str} or kinds <= {int}):
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise ConfigError(f"{what} has values of type {names}; expected str alone or int alone")
        found[checked(name, str, "the name of an aspect")] = plain
    plane = task.plane
    for name in () if plane is None else (plane.x, plane.y):
        if name not in found:
            known = ", ".join(found) or "none"
            raise ConfigError(
                f"the plane of the task {task.kind} names {shown(name)}; its aspects are {known}"
            )
        for value in found[name]:
            if isinstance(value, str) or value < 0:
                raise ConfigError(
                    f"the aspect {shown(name)} of the task {task.kind} has the value "
                    f"{shown(value)}; an axis of its plane needs whole numbers from 0"
                )
    return found


def draw_baselines(task: Task, examples: Dataset) -> dict[str, float]:
    """The accuracies of the task's own baselines on examples, after a check.

    Raises:
        ConfigError: a baseline does not say of every example whether it is right.
    """
    found = {}
    for name, right in checked(task.baselines(examples), Mapping, "baselines").items():
        rights = np.asarray(right)
        if rights.shape != (len(examples),) or rights.dtype != bool:
            raise ConfigError(
                f"the baseline {shown(name)} of the task {task.kind} has {rights.dtype} values of "
                f"shape {rights.shape}; expected bool and {(len(examples),)}"
            )
        found[checked(name, str, "the name of a baseline")] = float(rights.mean())
    return found


def find_split(task: Task, name: str) -> Split:
    """A task's split by its name; ConfigError if there is none."""
    names = [split.name for split in task.splits]
    if checked(name, str, "split") not in names:
        close, known = suggestion(name, names), ", ".join(names)
        raise ConfigError(f"the task {task.kind} has no split {shown(name)}{close}; known: {known}")
    return task.splits[names.index(name)]
