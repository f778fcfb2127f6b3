"""What is measured of a study's run beside its evaluation: plain numbers by name.

``python -m papers.measures OUT`` reads jobs as JSON from standard input and keeps
each result as a file of its own under ``OUT/measured``, so that several such processes share the
work and none of it is lost when they are stopped; :mod:`papers.tables` starts them.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from anchor_interp._util import files
from anchor_interp._util.errors import AnchorInterpError, StoreError
from anchor_interp.runs.phase import decide
from anchor_interp.tasks.anchor import Pair

Numbers = dict[str, float | str | None]
"""Columns of a study's table by name: numbers, or the name of a phase."""


LEVELS: Mapping[str, float] = MappingProxyType({"steps_to_loss": 0.05, "steps_to_half": 0.5})
"""Training losses, in nats: 0.05 is where data count as fitted (NeurIPS paper, section 6)."""


_LOGGED = 5


_STEPS = range(2, 7)


SCHEMA = 3
"""Schema number of the files that keep measurements."""


def mechanism(run: Any) -> Numbers:
    """The fingerprint of the checkpoint."""
    from anchor_interp.analysis.fingerprint import NUMBERS, fingerprint, keep_fingerprint

    found = keep_fingerprint(run) if run.step == run.steps[-1] else fingerprint(run)
    return {name: getattr(found, name) for name in NUMBERS}


def learning(run: Any) -> Numbers:
    """The steps from which the training loss is fitted, and half a nat: see :data:`LEVELS`.

    The first step at which the mean of five logged losses is no larger; None of a run that never
    came there.

    Raises:
        StoreError: fewer than five logged losses.
    """
    logged = [(row["step"], row["loss"]) for row in run.metrics if "loss" in row]
    if len(logged) < _LOGGED:
        raise StoreError(f"{run.folder.path} has {len(logged)} logged losses; {_LOGGED} are needed")
    steps, losses = map(np.array, zip(*logged, strict=True))
    means = np.convolve(losses, np.full(_LOGGED, 1 / _LOGGED), mode="valid")
    found: Numbers = {"final_loss": float(means[-1])}
    for name, level in LEVELS.items():
        there = np.flatnonzero(means <= level)
        found[name] = float(steps[there[0] + _LOGGED - 1]) if len(there) else None
    return found


def pairs(run: Any) -> Numbers:
    """Of every ordered pair when it is learned and its mean loss; how well these find broken ones.

    A pair that is not learned at the end counts as learned then.
    """
    from anchor_interp.analysis.learning_order import (
        broken_pairs,
        detection,
        lateness,
        learning_curves,
    )

    curves = learning_curves(run)
    late, loss = lateness(curves), curves.loss.mean(0)
    found: Numbers = {"never_learned": float(np.isinf(late).sum())}
    for (a, b), step, value in zip(curves.groups, late, loss, strict=True):
        found[f"late_pair_{a}{b}"] = float(min(step, curves.steps[-1]))
        found[f"loss_pair_{a}{b}"] = float(value)
    broken = broken_pairs(run.config.task)
    if not broken:
        return found
    for name, scores in (("late", late), ("loss", loss), ("final", curves.loss[-1])):
        areas = detection(scores, curves.groups, broken)
        found |= {
            f"auroc_{name}": areas.auroc,
            f"auroc_{name}_neighbours": areas.neighbours,
            f"auroc_{name}_strangers": areas.strangers,
        }
    return found


def pair_steps(row: Mapping[str, Any]) -> dict[Pair, float]:
    """When a row says that each ordered pair was learned; without those that it does not tell."""
    found = {}
    for name, value in row.items():
        if value is not None and (pair := re.fullmatch(r"late_pair_(\d)(\d)", name)):
            found[int(pair[1]), int(pair[2])] = float(value)
    return found


def embedding(run: Any) -> Numbers:
    """How far arithmetic steps stand out of the embedding, as z scores."""
    from anchor_interp.models.embeddings import embedding_structure, key_embeddings

    steps = embedding_structure(key_embeddings(run.model, run.config.task)).steps
    z = (steps.closeness - steps.expected) / steps.spread
    return {f"step_z_{step}": float(z[steps.steps == step][0]) for step in _STEPS}


def behaviour(run: Any) -> Numbers:
    """The phase of the checkpoint by its behaviour.

    Training accuracy is that of fresh sequences of the training cells: in the middle of a training
    it says whether what there is to be generalised was.
    """
    return {"behaviour": decide(run.evaluate(n=100)).phase}


MEASURES: Mapping[str, Callable[[Any], Numbers]] = MappingProxyType(
    {
        "mechanism": mechanism,
        "learning": learning,
        "pairs": pairs,
        "embedding": embedding,
        "behaviour": behaviour,
    }
)
"""The measures by name; each takes a :class:`anchor_interp.runs.run.Run`."""


VERSIONS: Mapping[str, int] = MappingProxyType(
    {"mechanism": 2, "learning": 2, "pairs": 1, "embedding": 1, "behaviour": 2}
)
"""Of every measure its version: numbers that another one kept are made anew."""


SECONDS: Mapping[str, float] = MappingProxyType(
    {"mechanism": 6.0, "learning": 0.5, "pairs": 8.0, "embedding": 1.0, "behaviour": 3.0}
)
"""About how long each takes on a core at ``tiny``."""


def kept(out: Path, measure: str, name: str, step: int | None = None) -> Numbers | None:
    """What was measured of a run before; None if it was not, of other weights, or unreadably.

    The same configuration trained on another machine, or once more, can have other weights.

    Args:
        out: the folder of the runs.
        measure: the measure's name.
        name: the run's identity.
        step: the checkpoint; None for the last.
    """
    try:
        found = files.read_json(_file(out, measure, name, step))
        about = {"numbers": found["numbers"]} | _about(out, measure, name, step)
        numbers = found["numbers"] if found == about else None
    except (StoreError, LookupError, TypeError):
        return None
    return numbers if isinstance(numbers, dict) else None


def _about(out: Path, measure: str, name: str, step: int | None) -> dict[str, Any]:
    """What a measurement is of."""
    from anchor_interp.runs.store import RunFolder

    folder = RunFolder(out / "sweep" / "runs" / name)
    return {
        "schema": SCHEMA,
        "version": VERSIONS[measure],
        "run_id": name,
        "step": step,
        "weights": folder.checksums(folder.steps()[-1] if step is None else step),
    }


def _file(out: Path, measure: str, name: str, step: int | None) -> Path:
    return out / "measured" / measure / (f"{name}.json" if step is None else f"{name}-{step}.json")


def work(out: Path, jobs: Sequence[tuple[str, str, int | None]]) -> int:
    """Measure and keep; returns how many jobs failed, whose errors go to standard error."""
    import torch

    from anchor_interp.runs.run import load

    torch.set_num_threads(1)
    failed = 0
    for measure, name, step in jobs:
        try:
            numbers = MEASURES[measure](load(out / "sweep" / "runs" / name, step=step))
            file = _file(out, measure, name, step)
            file.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(file, _about(out, measure, name, step) | {"numbers": numbers})
        except Exception as error:  # of one run: the others are measured all the same
            failed += 1
            kind = "" if isinstance(error, AnchorInterpError) else f"{type(error).__name__}: "
            print(f"{measure} of {name}: {kind}{error}", file=sys.stderr, flush=True)
        print(name, flush=True)
    return failed


if __name__ == "__main__":
    given = [tuple(job) for job in json.load(sys.stdin)]
    raise SystemExit(min(1, work(Path(sys.argv[1]), given)))
