"""Records what the package computes, to compare two versions of its code.

``python tests/project/recording.py record FILE`` records the ``anchor_interp`` that Python imports,
with the ``experiments`` beside it; set ``PYTHONPATH`` to another checkout's ``src`` to record that.
It writes FILE after each part and goes on with what FILE lacks. It takes about half an hour on one
core. ``compare OLD NEW`` says what differs: weights, tables and names have to be equal bit for bit,
analyses to 1e-6; times are shown as ratios. The exit code is 1 if something differs.

The parts:

``weights``   digests of every preset's weights after some steps (``STEPS``), with its evaluation
``whole``     the same of the quickstart's three runs in full; only with ``--whole``
``analyses``  all numbers of ``analyze`` on the specimens and the hand-set models
``ledger``    the judgements of the committed tables
``sweep``     the table of a small sweep
``names``     the public names, the command line and the values that results depend on
``times``     processor seconds of an import, ``--help``, an analysis and a training step
"""

import argparse
import dataclasses
import hashlib
import importlib
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import anchor_interp as ai

ROOT = Path(ai.__file__).parents[2]
RECIPES = (
    "memorizing", "composite", "symmetric", "inferential",
    "neurips-memorizing", "neurips-symmetric", "neurips-inferential",
)  # fmt: skip
QUICKSTART = ("memorizing", "symmetric", "inferential")
STEPS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"steps": 300} for name in ("tiny", *RECIPES, "addition")},
    "language-tiny": {"steps": 60, "length": 32, "n_sequences": 2_000},
    "scan": {"steps": 300, "eval_every": 150},
    "cogs": {"steps": 20, "n_sequences": 1_000, "batch_size": 8, "eval_every": 20},
    "prontoqa": {"steps": 60, "batch_size": 8, "eval_every": 60},
    "concepts": {"steps": 20, "n_sequences": 200, "n_features": 8, "batch_size": 8},
    "paper-1head": {"steps": 5, "n_sequences": 2_000, "batch_size": 128},
    "paper-gpt2": {"steps": 3, "n_sequences": 500, "batch_size": 32},
}
"""The presets and how they are shortened. ``language-small``, ``language-medium`` and
``paper-concepts`` are left out: a step of theirs takes minutes on one core."""
SPECIMENS = tuple(f"tiny/{recipe}/{number}" for recipe in RECIPES for number in (1, 2, 3))
HAND_SET = tuple(
    f"exact/{mechanism}{layout}"
    for mechanism in ("symmetric", "inferential", "lookup")
    for layout in ("", "-pre")
)
SWEEP = (
    "tiny", "gamma=0.3,0.9", "weight_decay=0.01,0.1", "d_model=16", "d_head=8", "d_mlp=24",
    "n_sequences=300", "batch_size=32", "steps=60", "eval_every=20", "checkpoint_every=20",
)  # fmt: skip
OF_THE_MACHINE = (
    "seconds", "sessions", "started", "ended", "machine", "cpu", "device", "threads",
    "anchor_interp", "torch", "transformer_lens", "python", "result_ns", "fingerprint_ns",
)  # fmt: skip
"""Columns of a sweep's table that two recordings need not share."""
MOST_VALUES = 2_000
"""A larger array is kept as its sums and so many of its values."""
TOLERANCE = 1e-6


# recording


def record(path: Path, *, whole: bool) -> None:
    """Record every part that the file lacks."""
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def keep(part: str, name: str, make: Callable[[], Any]) -> None:
        if name in recorded.setdefault(part, {}):
            return
        print(f"{part}: {name}", file=sys.stderr, flush=True)
        recorded[part][name] = make()
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(recorded, sort_keys=True), encoding="utf-8")
        partial.replace(path)

    keep("names", "public", _public_names)
    keep("times", "import", lambda: _processor_seconds("-c", "import anchor_interp"))
    keep("times", "help", lambda: _processor_seconds("-m", "anchor_interp", "--help"))
    keep("times", "step", _step)
    for name, changes in STEPS.items():
        keep("weights", name, partial(_trained, name, changes))
    for name in SPECIMENS + HAND_SET:
        keep("analyses", name, partial(_analysis, name))
    keep("sweep", "table", _sweep)
    keep("ledger", "claims", _ledger)
    for name in QUICKSTART if whole else ():
        keep("whole", name, partial(_trained, name, {}))


def _trained(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    if name == "concepts":
        sys.path.append(str(ROOT / "experiments"))
        importlib.import_module("concepts")  # which names its preset
    config = ai.preset(name, **changes)
    with tempfile.TemporaryDirectory() as folder:
        run = ai.train(config, Path(folder) / "run", device="cpu", threads=1, quiet=True)
        metrics = [dict(row) for row in run.metrics]
        for row in metrics:  # what a machine adds
            row.pop("seconds", None)
        return {
            "run_id": ai.run_id(config),
            "weights": _digest(run.model),
            "losses": _sha256(json.dumps([row.get("loss") for row in metrics]).encode()),
            "evaluation": dict(_leaves(run.evaluation)),
        }


def _digest(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _analysis(name: str) -> dict[str, Any]:
    begun = time.process_time()
    analysis = ai.analyze(name, quiet=True)
    seconds = time.process_time() - begun
    return {"seconds": seconds, "numbers": dict(_leaves(analysis))}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in a result by its path; an array is one leaf."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, Mapping):
        named = {str(key): part for key, part in value.items()}
    elif isinstance(value, list | tuple):
        numbers = np.array(value) if value and all(map(_is_number, value)) else None
        if numbers is not None:
            yield path, _array(numbers)
            return
        named = {str(index): part for index, part in enumerate(value)}
    else:
        yield path, _leaf(value)
        return
    for name, part in named.items():
        yield from _leaves(part, f"{path}.{name}" if path else name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return _array(value)
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _array(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    numbers = values.astype(np.float64).ravel()
    finite = np.nan_to_num(numbers)
    step = max(1, math.ceil(numbers.size / MOST_VALUES))
    return {
        "shape": list(values.shape),
        "sums": [float(finite.sum()), float((finite**2).sum())],
        "values": numbers[::step].tolist(),
    }


def _sweep() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        options = ("--out", folder, "--seeds", "2", "--workers", "1", "--quiet")
        _python("-m", "anchor_interp", "sweep", *SWEEP, *options)
        table = pd.read_parquet(Path(folder) / "table.parquet")
    kept = table.drop(columns=list(OF_THE_MACHINE), errors="ignore").sort_values("run_id")
    rows = json.loads(kept.to_json(orient="records", double_precision=15))
    return {row["run_id"]: row for row in rows}


def _ledger() -> dict[str, Any]:
    named = ("experiments/fill_pages.py", "experiments/ledger.py")
    script = next(path for path in named if Path(path).exists())
    return dict(_leaves(json.loads(_python(script, "--json"))))


def _public_names() -> dict[str, Any]:
    names = {name: type(getattr(ai, name)).__name__ for name in ai.__all__}
    code = "import public_api; print(public_api.describe())"
    folder = str(ROOT / "tests" / "project")
    text = _python("-c", f"import sys; sys.path.insert(0, {folder!r}); {code}")
    return {"all": names, "described": text.splitlines()}


def _python(*arguments: str) -> str:
    """What a Python at the checkout's root prints."""
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.check_output(
        [sys.executable, *arguments], cwd=ROOT, env=environment, text=True
    )


def _processor_seconds(*arguments: str) -> float:
    """The least processor time of five Pythons: other processes do not count."""
    trials = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _python(*arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        trials.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(trials)


def _step() -> float:
    """Processor seconds of a training step of the tiny preset, without start and evaluation."""

    def seconds(steps: int) -> float:
        config = ai.preset("tiny", steps=steps, eval_every=10_000, checkpoint_every=10_000)
        with tempfile.TemporaryDirectory() as folder:
            begun = time.process_time()
            ai.train(config, Path(folder) / "run", device="cpu", threads=1, quiet=True)
            return time.process_time() - begun

    seconds(50)
    return (min(seconds(450) for _ in range(3)) - min(seconds(50) for _ in range(3))) / 400


# comparing


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs, one line each."""
    lines: list[str] = []
    for part in ("weights", "whole", "sweep", "ledger"):
        before, after = (dict(_flat(recorded.get(part, {}))) for recorded in (old, new))
        lines += _differences(part, before, after, tolerance=0)
    for name in sorted({*old.get("analyses", {}), *new.get("analyses", {})}):
        before, after = (r.get("analyses", {}).get(name, {}) for r in (old, new))
        before, after = (recorded.get("numbers", {}) for recorded in (before, after))
        lines += _differences(f"analyses {name}", before, after, tolerance=TOLERANCE)
    return [*lines, *_name_differences(old, new)]


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of recorded JSON; an array stays whole."""
    if not isinstance(value, dict) or "values" in value:
        yield path, value
        return
    for name, part in value.items():
        yield from _flat(part, f"{path}: {name}" if path else name)


def _differences(
    part: str, before: Mapping[str, Any], after: Mapping[str, Any], *, tolerance: float
) -> Iterator[str]:
    gone = {path: before[path] for path in before if path not in after}
    come = {path: after[path] for path in after if path not in before}
    for path, value in gone.items():
        same = [other for other in come if is_equal(value, come[other], tolerance)]
        if same:  # the first, because parts keep their order
            del come[same[0]]
            yield f"{part}: {path} is now {same[0]}, with an equal value"
        else:
            yield f"{part}: {path} is gone; it was {_short(value)}"
    for path, value in come.items():
        yield f"{part}: {path} is new: {_short(value)}"
    for path in before.keys() & after.keys():
        if not is_equal(before[path], after[path], tolerance):
            yield f"{part}: {path}: {_short(before[path])} -> {_short(after[path])}"


def is_equal(before: Any, after: Any, tolerance: float) -> bool:
    """Whether two recorded leaves are equal; numbers and arrays within the tolerance."""
    if isinstance(before, dict) and isinstance(after, dict):
        return before["shape"] == after["shape"] and all(
            _close(before[key], after[key], tolerance) for key in ("sums", "values")
        )
    if _is_number(before) and _is_number(after):
        return _close([before], [after], tolerance)
    return bool(before == after)


def _close(before: list[float], after: list[float], tolerance: float) -> bool:
    return bool(np.allclose(before, after, rtol=tolerance, atol=tolerance, equal_nan=True))


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:100]} ..."


def _name_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, after = (recorded.get("names", {}).get("public", {}) for recorded in (old, new))
    before, after = (names.get("described", []) for names in (before, after))
    yield from (f"names: gone: {line.strip()}" for line in before if line not in after)
    yield from (f"names: new: {line.strip()}" for line in after if line not in before)


def ratios(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """New time / old time; the analyses together."""
    times = [dict(recorded.get("times", {})) for recorded in (old, new)]
    analyses = [recorded.get("analyses", {}) for recorded in (old, new)]
    shared = analyses[0].keys() & analyses[1].keys()
    for recorded, all_times in zip(analyses, times, strict=True):
        if shared:
            all_times["analyze"] = sum(recorded[name]["seconds"] for name in shared)
    before, after = times
    return [
        f"times: {name}: {before[name]:.4g} s -> {after[name]:.4g} s, "
        f"ratio {after[name] / before[name]:.2f}"
        for name in before
        if name in after
    ]


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="record the package that Python imports")
    recorder.add_argument("file", type=Path)
    recorder.add_argument("--whole", action="store_true", help="also train three whole runs")
    comparer = commands.add_parser("compare", help="say what differs between two recordings")
    comparer.add_argument("old", type=Path)
    comparer.add_argument("new", type=Path)
    asked = parser.parse_args()
    if asked.command == "record":
        torch.set_num_threads(1)
        record(asked.file, whole=asked.whole)
        return 0
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (asked.old, asked.new))
    lines = compare(old, new)
    missing = [f"{part} is recorded in one file only" for part in sorted(old.keys() ^ new.keys())]
    moved = [line for line in lines if line.endswith("with an equal value")]
    differing = [line for line in lines if line not in moved]
    print(*missing, *ratios(old, new), *moved, *differing, sep="\n")
    print(f"{len(differing)} differences, {len(moved)} values under another name")
    return 1 if differing or missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
