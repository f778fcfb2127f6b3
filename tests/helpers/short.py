"""The size of short runs, and the environment of scripts that tests start."""

import os
import time
from pathlib import Path

SHORT = {
    "d_model": 16,
    "d_head": 8,
    "d_mlp": 24,
    "n_sequences": 300,
    "batch_size": 32,
    "steps": 40,
    "log_every": 5,
    "eval_every": 10,
    "checkpoint_every": 10,
}
"""Changes to the tiny preset: such a run takes well under a second."""


def with_helpers() -> dict[str, str]:
    """The environment of a script that imports the tests' helpers and the experiments."""
    helpers = Path(__file__).parent
    paths = [
        str(helpers),
        str(helpers.parents[1] / "experiments"),
        os.environ.get("PYTHONPATH", ""),
    ]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def wait_for_lines(path: Path, more: int, seconds: float = 240) -> None:
    """Wait until a file has grown by some lines, which measures progress on any machine."""

    def lines() -> int:
        return path.read_bytes().count(b"\n") if path.exists() else 0

    begun, deadline = lines(), time.monotonic() + seconds
    while lines() < begun + more and time.monotonic() < deadline:
        time.sleep(0.002)
