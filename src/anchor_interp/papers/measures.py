"""What is measured of a study's run beside its evaluation: plain numbers by name.

``python -m anchor_interp.papers.measures OUT`` reads jobs as JSON from standard input and keeps
each result as a file of its own under ``OUT/measured``, so that several such processes share the
work and none of it is lost when they are stopped; :mod:`anchor_interp.papers.tables` starts them.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from anchor_interp import files
from anchor_interp.errors import AnchorInterpError, StoreError

Numbers = dict[str, float | None]

FITTED = 0.05
"""Training loss, in nats, at which data count as fitted (NeurIPS paper, section 6)."""
_LOGGED = 5
_STEPS = range(2, 7)
SCHEMA = 1


def mechanism(run: Any) -> Numbers:
    """The fingerprint of the checkpoint."""
    from anchor_interp.fingerprints import fingerprint, keep_fingerprint
    from anchor_interp.mechanism import NUMBERS

    found = keep_fingerprint(run) if run.step == run.steps[-1] else fingerprint(run)
    return {name: getattr(found, name) for name in NUMBERS}


def learning(run: Any) -> Numbers:
    """The step from which the training loss is fitted: first mean of five logged ones that is.

    None of a run that never came there.
    """
    logged = [(row["step"], row["loss"]) for row in run.metrics if "loss" in row]
    steps, losses = map(np.array, zip(*logged, strict=True))
    means = np.convolve(losses, np.full(_LOGGED, 1 / _LOGGED), mode="valid")
    fitted = np.flatnonzero(means <= FITTED)
    step = float(steps[fitted[0] + _LOGGED - 1]) if len(fitted) else None
    return {"steps_to_loss": step, "final_loss": float(means[-1])}


def pairs(run: Any) -> Numbers:
    """Of every ordered pair when it is learned and its mean loss; how well these find broken ones.

    A pair that is not learned at the end counts as learned then.
    """
    from anchor_interp.noise import broken_pairs, detection, lateness, learning_curves

    curves = learning_curves(run)
    late, loss = lateness(curves), curves.loss.mean(0)
    found: Numbers = {"never_learned": float(np.isinf(late).sum())}
    for (a, b), step, value in zip(curves.groups, late, loss, strict=True):
        found[f"late_pair_{a}{b}"] = float(min(step, curves.steps[-1]))
        found[f"loss_pair_{a}{b}"] = float(value)
    broken = broken_pairs(run.config.task)
    for name, scores in (("late", late), ("loss", loss), ("final", curves.loss[-1])):
        areas = detection(scores, curves.groups, broken)
        found |= {
            f"auroc_{name}": areas.auroc,
            f"auroc_{name}_neighbours": areas.neighbours,
            f"auroc_{name}_strangers": areas.strangers,
        }
    return found


def embedding(run: Any) -> Numbers:
    """How far arithmetic steps stand out of the embedding, as z scores."""
    from anchor_interp.embeddings import embedding_structure, key_embeddings

    steps = embedding_structure(key_embeddings(run.model, run.config.task)).steps
    z = (steps.closeness - steps.expected) / steps.spread
    return {f"step_z_{step}": float(z[steps.steps == step][0]) for step in _STEPS}


MEASURES: Mapping[str, Callable[[Any], Numbers]] = MappingProxyType(
    {"mechanism": mechanism, "learning": learning, "pairs": pairs, "embedding": embedding}
)
"""The measures by name; each takes a :class:`anchor_interp.run.Run`."""


def kept(out: Path, measure: str, name: str, step: int | None = None) -> Numbers | None:
    """What was measured of a run before; None if it was not, or cannot be read.

    Args:
        out: the folder of the runs.
        measure: the measure's name.
        name: the run's identity.
        step: the checkpoint; None for the last.
    """
    try:
        found = files.read_json(_file(out, measure, name, step))
        numbers = found["numbers"] if found["schema"] == SCHEMA else None
    except (StoreError, LookupError, TypeError):
        return None
    return numbers if isinstance(numbers, dict) else None


def _file(out: Path, measure: str, name: str, step: int | None) -> Path:
    return out / "measured" / measure / (f"{name}.json" if step is None else f"{name}-{step}.json")


def work(out: Path, jobs: list[tuple[str, str, int | None]]) -> int:
    """Measure and keep; returns how many jobs failed, whose errors go to standard error."""
    import torch

    from anchor_interp.run import load

    torch.set_num_threads(1)
    failed = 0
    for measure, name, step in jobs:
        try:
            numbers = MEASURES[measure](load(out / "runs" / name, step=step))
            file = _file(out, measure, name, step)
            file.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(file, {"schema": SCHEMA, "run_id": name, "numbers": numbers})
        except AnchorInterpError as error:
            failed += 1
            print(f"{name}: {error}", file=sys.stderr, flush=True)
        print(name, flush=True)
    return failed


if __name__ == "__main__":
    given = [tuple(job) for job in json.load(sys.stdin)]
    raise SystemExit(min(1, work(Path(sys.argv[1]), given)))
