"""The size of runs in tests, and the environment of scripts that tests start."""

import os
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
"""Changes that make a run of the tiny preset last well under a second."""


def with_helpers() -> dict[str, str]:
    """This environment, in which a script of its own also finds the tests' helpers."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
