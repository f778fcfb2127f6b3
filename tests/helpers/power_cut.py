"""A training that dies at a step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from anchor_interp.runs import loop

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
