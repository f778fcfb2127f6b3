"""Makes the specimens of :mod:`anchor_interp.runs.zoo` from runs of the recipes.

``python -m evidence.zoo`` keeps the specimens under ``--out`` that are runs of their recipe and
replaces the others. It takes the runs that ``evidence/recipes.py judge`` left under ``--runs``
and trains those that it needs and that are missing. The same runs give the same bytes.
"""

import argparse
import hashlib
import shutil
from pathlib import Path

from safetensors.torch import save

from anchor_interp import Run, load, train
from anchor_interp._util.files import read_json, write_bytes, write_json, write_text
from anchor_interp._util.schema import to_dict
from anchor_interp.behaviour.phase import Evaluation, decide
from anchor_interp.runs.config import SCHEMA, override, run_id
from anchor_interp.runs.presets import RECIPES
from anchor_interp.runs.zoo import SPECIMENS
from common import exit_code
from evidence.margins import FRESH_SEEDS, MARGINS

PER_RECIPE = 3
COLLECTION = "tiny"
_SUMS = "SHA256SUMS"
_WEIGHTS = "weights.safetensors"


def make(runs: Path, out: Path) -> None:
    """Choose, round, judge and write all specimens; the earlier ones stay until all are made."""
    if out.exists() and not (out / _SUMS).exists():
        raise SystemExit(f"zoo: {out} holds no specimens; name a folder of their own")
    new = out.with_name(f"{out.name}.partial")
    shutil.rmtree(new, ignore_errors=True)
    for recipe in RECIPES:
        folders = [Path(COLLECTION, recipe, str(number)) for number in range(1, PER_RECIPE + 1)]
        if all(_is_run_of(recipe, out / folder) for folder in folders):
            shutil.copytree(out / COLLECTION / recipe, new / COLLECTION / recipe)
            continue
        for folder, run in zip((new / f for f in folders), _first_kept(recipe, runs), strict=True):
            _copy_rounded(run, folder)
            evaluation = _judge(run, folder)
            if not MARGINS[recipe].kept(evaluation):
                raise SystemExit(f"zoo: {run.folder.path} no longer keeps its margin as float16")
            print(f"{folder.relative_to(new)}: seed {run.config.seed}, {load(folder).reason}")
    paths = sorted(path for path in new.rglob("*") if path.is_file())
    sums = (f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(new)}\n" for p in paths)
    write_text(new / _SUMS, "".join(sums))
    shutil.rmtree(out, ignore_errors=True)
    new.rename(out)
    print(f"{sum(path.stat().st_size for path in out.rglob('*') if path.is_file()):,} bytes")


def _is_run_of(recipe: str, folder: Path) -> bool:
    if not folder.exists():
        return False
    config = load(folder).config
    return run_id(config) == run_id(override(RECIPES[recipe], seed=config.seed))


def _first_kept(recipe: str, runs: Path) -> list[Run]:
    """The first seeds' runs whose final checkpoint keeps the recipe's margin."""
    kept: list[Run] = []
    for seed in FRESH_SEEDS:
        config = override(RECIPES[recipe], seed=seed)
        run = train(config, runs / str(seed) / recipe, device="cpu")
        if MARGINS[recipe].kept(run.evaluation):
            kept.append(run)
        if len(kept) == PER_RECIPE:
            return kept
    raise SystemExit(f"zoo: only {len(kept)} seeds of {recipe} keep their margin")


def _copy_rounded(run: Run, folder: Path) -> None:
    """All of a specimen but its result."""
    before = run.folder.path / "checkpoints" / f"{run.step:08d}"
    after = folder / "checkpoints" / before.name
    after.mkdir(parents=True)
    for name in ("config.json", "metrics.jsonl"):
        write_bytes(folder / name, (run.folder.path / name).read_bytes())
    rounded = {name: value.half() for name, value in run.folder.weights(run.step).items()}
    data = save(rounded, {"schema": str(SCHEMA)})
    write_bytes(after / _WEIGHTS, data)
    state = read_json(before / "state.json")
    record = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_json(after / "state.json", state | {"files": {_WEIGHTS: record}})
    rounding = {
        "from_step": run.step, "run_id": run_id(run.config),
        "rounded": "weights from float32 to float16, then judged anew",
        "sha256_of_the_float32_weights": state["files"][_WEIGHTS]["sha256"],
    }  # fmt: skip
    sessions = [*run.folder.provenance(), rounding]
    write_json(folder / "provenance.json", {"schema": SCHEMA, "sessions": sessions})


def _judge(run: Run, folder: Path) -> Evaluation:
    """Measure the rounded model and write its result in the place of the run's."""
    evaluation = load(folder).evaluate()
    decision = decide(evaluation)
    judged = {"phase": decision.phase, "reason": decision.reason, "evaluation": to_dict(evaluation)}
    write_json(folder / "result.json", read_json(run.folder.path / "result.json") | judged)
    return evaluation


def main() -> None:
    """Parse the command line and make the zoo."""
    parser = argparse.ArgumentParser(description="Make the specimens of the model zoo.")
    parser.add_argument("--runs", type=Path, default=Path("runs/recipes"))
    parser.add_argument("--out", type=Path, default=SPECIMENS)
    asked = parser.parse_args()
    raise SystemExit(exit_code("zoo", lambda: make(asked.runs, asked.out)))


if __name__ == "__main__":
    main()
