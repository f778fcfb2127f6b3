"""Optional tracking: a run's lines of metrics in TensorBoard or Weights & Biases.

A tracker only observes, and writes into its own folder inside the run folder. If it fails, one
warning says so and the session goes on without it. It receives the run from its first line of
metrics, even if it starts later, and a resumed session repeats no step. Both packages are optional.
"""

import contextlib
import importlib.util
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from anchor_interp._util import files
from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import canonical_json, checked, to_dict
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.store import Row

Track = Literal["tensorboard", "wandb"]

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
    tracker: _TensorBoard | _WandB | None = None  # None also once it has failed

    @contextlib.contextmanager
    def observing() -> Iterator[None]:
        nonlocal tracker
        try:
            yield
        except Exception as error:
            tracker = None
            reason = (str(error) or type(error).__name__).splitlines()[0]
            _LOGGER.warning("%s failed and is not used from here on: %s", track, reason)

    def log(row: Row) -> None:
        with observing():
            if tracker is not None:
                tracker.log(row)

    with observing():
        if track is not None:
            tracker = (_TensorBoard if track == "tensorboard" else _WandB)(folder, config)
        for row in earlier:
            log(row)
    try:
        yield log
    finally:
        with observing():
            if tracker is not None:
                tracker.close()


class _TensorBoard:
    """Event files in ``RUN/tensorboard``, written anew from the run's metrics by every session."""

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


class _WandB:
    """One W&B run for all sessions; ``RUN/wandb/session.json`` has its id and the last step sent.

    W&B's history only grows, and offline it cannot be asked how far it is.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        import wandb

        self._file = folder / "wandb/session.json"
        if not self._file.exists():
            self._file.parent.mkdir(exist_ok=True)
            self._note(secrets.token_hex(8), -1)
        session = files.read_json(self._file)
        self._id, self._sent = session["id"], session["last_step"]
        self._run = wandb.init(
            project="anchor-interp", dir=str(folder), name=folder.absolute().name,
            id=self._id, resume="allow", config=to_dict(config),
            settings=wandb.Settings(silent=True, console="off"),
        )  # fmt: skip
        if not self._run.offline:
            _LOGGER.info("tracked at %s", self._run.url)

    def log(self, row: Row) -> None:
        if row["step"] > self._sent:
            self._run.log({k: v for k, v in row.items() if k != "step"}, step=row["step"])
            self._note(self._id, row["step"])

    def close(self) -> None:
        self._run.finish()

    def _note(self, identifier: str, last_step: int) -> None:
        self._sent = last_step
        files.write_json(self._file, {"id": identifier, "last_step": last_step})
