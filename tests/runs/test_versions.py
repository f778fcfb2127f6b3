"""TransformerLens 3 and 4 side by side: equal numbers, and runs that go on under the other one.

The tests run with version 4. Run as a script, this file does the same with version 3.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from power_cut import power_cut
from short import SHORT
from versions import only_4

import anchor_interp as ai
from anchor_interp.models.transformer_lens import VERSION_3
from anchor_interp.runs import zoo
from anchor_interp.tasks.sequences import sample

RESUMED = 20
"""The step of the checkpoint that an interrupted run goes on from."""


def numbers(name: str) -> dict[str, np.ndarray]:
    """All activations and logits of a specimen in float64, by hook, on two sequences."""
    run = ai.load(name, dtype=torch.float64)
    logits: Any
    tokens = sample(run.config.anchor_task, "id", 2, seed=0).tensor.long()
    with torch.no_grad():
        logits, cache = run.model.run_with_cache(tokens)
    activations = {f"{name} {hook}": value.numpy() for hook, value in cache.items()}
    return activations | {f"{name} logits": logits.numpy()}


def trained(out: Path, *, stop: int | None = None) -> None:
    """Train a short run, or go on with one; it dies at step ``stop``."""
    with power_cut(stop):
        ai.train(ai.preset("tiny", **SHORT), out, device="cpu", threads=1, quiet=True)


def weights(out: Path) -> dict[str, torch.Tensor]:
    return ai.load(out).folder.weights(SHORT["steps"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole runs, runs that one version began and the other ended, and version 3's numbers."""
    out = tmp_path_factory.mktemp("versions")
    trained(out / "begun by 4", stop=RESUMED + 5)
    paths = [path for path in sys.path if path and not Path(path, "transformer_lens").is_dir()]
    with_3 = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, __file__, str(out)]
    subprocess.run(command, env=with_3, check=True)
    if not (out / "numbers.npz").exists():
        pytest.skip("this environment has no TransformerLens 3 beside version 4")
    trained(out / "whole by 4")
    trained(out / "begun by 3")
    return out


@only_4
@pytest.mark.parametrize("name", zoo.names())
def test_a_specimen_has_the_same_activations(name: str, folder: Path) -> None:
    mine = numbers(name)
    with np.load(folder / "numbers.npz") as others:
        assert mine.keys() == {key for key in others if key.startswith(f"{name} ")}
        for key, value in mine.items():
            np.testing.assert_allclose(value, others[key], rtol=0, atol=1e-10, err_msg=key)


@only_4
@pytest.mark.parametrize("run", ["begun by 3", "begun by 4", "whole by 3"])
def test_a_run_ends_in_the_same_weights(run: str, folder: Path) -> None:
    expected, given = weights(folder / "whole by 4"), weights(folder / run)
    assert given.keys() == expected.keys()
    assert all(torch.equal(given[name], expected[name]) for name in expected)


if __name__ == "__main__" and VERSION_3:
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    trained(out / "begun by 3", stop=RESUMED + 5)
    trained(out / "begun by 4")
    trained(out / "whole by 3")
    every: dict[str, Any] = {}
    for name in zoo.names():
        every |= numbers(name)
    np.savez(out / "numbers.npz", **every)
