"""Optional tracking: a run's lines of metrics in TensorBoard.

The tracker only observes. Every session writes the event files in ``RUN/tensorboard`` anew, from
the run's first line of metrics on. If the tracker fails, one warning says so and the session goes
on without it. ``wandb sync RUN/tensorboard`` shows them in Weights & Biases.
"""

import contextlib
import importlib.util
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import canonical_json, checked
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.store import Row

Track = Literal["tensorboard"]

_LOGGER = logging.getLogger(__name__)


def check_tracker(track: str | None) -> None:
    """Raise ConfigError if a tracker is unknown or not installed."""
    if track is not None and importlib.util.find_spec(checked(track, Track, "track")) is None:
        install = f"pip install 'anchor-interp[{track}]'"
        raise ConfigError(f"track is {track!r}, a package that is not installed: {install}")


@contextlib.contextmanager
def tracking(
    track: Track | None, folder: Path, config: RunConfig, earlier: Sequence[Row]
) -> Iterator[Callable[[Row], None]]:
    """Yield what sends a line of metrics to the tracker, which gets ``earlier`` lines first."""
    tracker: _TensorBoard | None = None  # None also once it has failed

    def attempt(act: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal tracker
        try:
            return act(*arguments)
        except Exception as error:
            tracker = None
            reason = (str(error) or type(error).__name__).splitlines()[0]
            _LOGGER.warning("%s failed and is not used from here on: %s", track, reason)
            return None

    def log(row: Row) -> None:
        if tracker is not None:
            attempt(tracker.log, row)

    if track is not None:
        tracker = attempt(_TensorBoard, folder, config)
    for row in earlier:
        log(row)
    try:
        yield log
    finally:
        if tracker is not None:
            attempt(tracker.close)


class _TensorBoard:
    def __init__(self, folder: Path, config: RunConfig) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=0)
        self._writer.add_text("config", f"`{canonical_json(config)}`", 0)

    def log(self, row: Row) -> None:
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        self._writer.close()
