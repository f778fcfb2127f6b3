"""A training that dies at a step, and what it must end in when it is started again."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from anchor_interp.runs import loop
from anchor_interp.runs.run import Run

train_step = loop.train_step


@contextmanager
def power_cut(at: int | None) -> Iterator[None]:
    """Within, a step from step ``at`` raises a KeyboardInterrupt, which ends here."""

    def dying(state: Any, objective: Any) -> Any:
        if state.step == at:
            raise KeyboardInterrupt("power cut")
        return train_step(state, objective)

    died = False
    with patch.object(loop, "train_step", dying):
        try:
            yield
        except KeyboardInterrupt:
            died = True
    assert died == (at is not None)


def assert_same_run(found: Run, expected: Run) -> None:
    """All weights, metrics, results and names of files are equal."""
    assert found.steps == expected.steps
    for step in expected.steps:
        mine, other = found.folder.weights(step), expected.folder.weights(step)
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) for name in other)
    assert found.metrics == expected.metrics
    assert found.folder.result() == expected.folder.result()
    files = {path.relative_to(expected.folder.path) for path in expected.folder.path.rglob("*")}
    assert {path.relative_to(found.folder.path) for path in found.folder.path.rglob("*")} == files
