"""Records what the program computes, and compares two records.

Weights, verdicts, tables and names must agree exactly, analyses to 1e-6. Every number comes from
the command line of a checkout, so one script serves two layouts of the package::

    python benchmarks/before_after.py record OLD before.json
    python benchmarks/before_after.py record . after.json
    python benchmarks/before_after.py compare before.json after.json
"""

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ABSOLUTE = 1e-6
QUICKSTART = ("memorizing", "symmetric", "inferential")
SHORT = {
    "tiny": [],
    "tiny-pre": ["--preset", "tiny", "--normalization", "pre", "--act-fn", "gelu", "--bias"],
    "tiny-bf16": ["--preset", "tiny", "--precision", "bf16"],
    "tiny-released": ["--preset", "tiny", "--scheme", "released", "--bias"],
    "neurips-inferential": [],
    "paper-1head": ["--batch-size", "128", "--n-sequences", "20000"],
    "paper-1head-bf16": [
        "--preset", "paper-1head", "--precision", "bf16", "--batch-size", "128",
        "--n-sequences", "20000",
    ],
    "paper-gpt2": ["--batch-size", "8", "--n-sequences", "20000"],
}  # fmt: skip
SPECIMENS = (
    "tiny/memorizing/1", "tiny/composite/1", "tiny/symmetric/1", "tiny/inferential/1",
    "tiny/neurips-memorizing/1", "tiny/neurips-symmetric/1", "tiny/neurips-inferential/1",
    "tiny/symmetric/2", "tiny/inferential/3",
    "exact/symmetric", "exact/inferential", "exact/lookup",
)  # fmt: skip
_FINGERPRINT = """
import dataclasses, json, sys, anchor_interp as ai
out = {}
for name in sys.argv[1:]:
    found = ai.fingerprint(ai.load(name))
    verdict = ai.verdict(found)
    out[name] = [dataclasses.asdict(found), verdict.phase, verdict.reason]
print(json.dumps(out))
"""


def main() -> int:
    """Record or compare; 1 if two records differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--only", default="", help="record what begins so")
    given = parser.parse_args()
    if given.action == "compare":
        return compare(json.loads(given.first.read_text()), json.loads(given.second.read_text()))
    given.second.write_text(json.dumps(record(given.first.resolve(), given.only), indent=1))
    return 0


def record(checkout: Path, only: str = "") -> dict[str, Any]:
    """Everything of one checkout, two processes of one thread at a time."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        jobs: dict[str, Any] = {}

        with ThreadPoolExecutor(2) as pool:

            def submit(name: str, job: Callable[..., Any], *arguments: Any) -> None:
                if name.startswith(only):
                    jobs[name] = pool.submit(job, *arguments)

            for name in QUICKSTART:
                submit(f"quickstart/{name}", _train, checkout, out, name, ["--preset", name])
            for name, flags in SHORT.items():
                start = flags if "--preset" in flags else ["--preset", name, *flags]
                short = ["--steps", "300", "--checkpoint-every", "150", "--eval-every", "100"]
                flags = [*start, *short, "--log-every", "50"]
                submit(f"short/{name}", _train, checkout, out, f"short-{name}", flags)
            for name in SPECIMENS:
                submit(f"analysis/{name}", _analyze, checkout, out, name)
            submit("fingerprints", _json, checkout, ["-c", _FINGERPRINT, *SPECIMENS[:9]])
            submit("claims", _claims, checkout, out)
            submit("sweep", _sweep, checkout, out, 1)
            submit("batched sweep", _sweep, checkout, out, 2)
        return {name: job.result() for name, job in jobs.items()}


def compare(before: Any, after: Any) -> int:
    """Print every difference; returns the exit code."""
    count = 0
    for name in sorted(before.keys() | after.keys()):
        found = list(_differences(before.get(name), after.get(name), name.startswith("analysis")))
        print(f"{name}: {'equal' if not found else f'{len(found)} differences'}")
        for line in found[:20]:
            print(f"  {line}")
        count += len(found)
    return int(count > 0)


def _differences(a: Any, b: Any, rounded: bool, path: str = "") -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            if key not in a or key not in b:
                yield f"{path}.{key} is only in the {'first' if key in a else 'second'}"
            else:
                yield from _differences(a[key], b[key], rounded, f"{path}.{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _differences(x, y, rounded, f"{path}[{i}]")
    elif (
        rounded
        and isinstance(a, int | float)
        and isinstance(b, int | float)
        and math.isclose(a, b, rel_tol=ABSOLUTE, abs_tol=ABSOLUTE)
    ):
        return
    elif a != b:
        yield f"{path}: {str(a)[:80]} != {str(b)[:80]}"


def _run(checkout: Path, arguments: list[str]) -> str:
    environment = os.environ | {
        "PYTHONPATH": f"{checkout / 'src'}:{checkout}",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=checkout
    )
    if done.returncode:
        raise SystemExit(f"{arguments} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def _json(checkout: Path, arguments: list[str]) -> Any:
    return json.loads(_run(checkout, arguments).splitlines()[-1])


def _command(checkout: Path, *arguments: str) -> str:
    return _run(checkout, ["-m", "anchor_interp", *arguments])


def _train(checkout: Path, out: Path, name: str, flags: list[str]) -> Any:
    path = out / name
    _command(
        checkout, "train", *flags, "--seed", "0", "--threads", "1", "--out", str(path), "--quiet"
    )
    weights = sorted(path.glob("checkpoints/*/weights.safetensors"))
    result = json.loads((path / "result.json").read_text())
    return {
        "weights": {p.parent.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in weights},
        "evaluation": result["evaluation"],
    }


def _analyze(checkout: Path, out: Path, name: str) -> Any:
    path = out / name.replace("/", "-")
    _command(checkout, "analyze", name, "--out", str(path), "--quiet")
    return json.loads((path / "analysis.json").read_text())


def _claims(checkout: Path, out: Path) -> Any:
    module = "experiments.papers" if (checkout / "experiments/papers").exists() else None
    start = ["-m", module] if module else ["-m", "anchor_interp", "claims"]
    tables = str(checkout / "experiments/tables/tiny")
    return _json(
        checkout, [*start, "--judge", "--tables", tables, "--out", str(out / "claims"), "--json"]
    )


def _sweep(checkout: Path, out: Path, batch: int) -> Any:
    path = out / f"sweep-{batch}"
    _command(
        checkout, "sweep", "tiny", "gamma=0.3,0.9", "steps=100", "n_sequences=5000",
        "log_every=20", "eval_every=100", "checkpoint_every=100", "--seeds", "2",
        "--workers", "1", "--batch", str(batch), "--out", str(path), "--quiet",
    )  # fmt: skip
    return _command(checkout, "table", str(path), "--csv", "--quiet").splitlines()


if __name__ == "__main__":
    raise SystemExit(main())
