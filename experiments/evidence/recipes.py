"""The recipes of :data:`anchor_interp.runs.presets.RECIPES`: how they were found and how they hold.

``python -m evidence.recipes search`` trains what was tried (``tried.yaml``); ``judge`` trains every
recipe on ten seeds that the search never saw and compares the final checkpoints with the margins,
which were written down before. Both resume and keep their runs under ``--out``. They print JSON and
write ``docs/evidence/recipes.md`` or ``recipes_search.md``.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import yaml

from anchor_interp import TASKS, load
from anchor_interp._util.progress import reporting
from anchor_interp.runs.config import RunConfig, override, run_id
from anchor_interp.runs.presets import RECIPES
from anchor_interp.runs.schedule import total_decay
from anchor_interp.sweeps.engine import each_alone
from anchor_interp.sweeps.local import LocalEngine
from claim_effects import Row
from common import exit_code, table
from evidence.margins import FRESH_SEEDS, MARGINS
from evidence.measured import tell

_HEADINGS = {
    "train_accuracy": "train", "id_accuracy": "ID", "ood_accuracy": "OOD",
    "symmetric_accuracy": "symmetric", "commutativity": "commut.",
}  # fmt: skip
_SETTINGS = ("task", "model", "sequences", "steps x lr", "gamma", "decay", "lr x wd")


def search(out: Path, workers: int | None) -> None:
    """Train everything in ``tried.yaml`` and write the table of it."""
    tried = dict(_tried())
    _train(tried, out / "search", workers)
    rows = [
        {"run_id": name, **_settings(config), "seed": config.seed, **_found(out / "search" / name)}
        for name, config in tried.items()
    ]
    lines = [[*_cells(row), str(row["seed"]), *_numbers(row), row["phase"]] for row in rows]
    head = [*_SETTINGS, "seed", *_HEADINGS.values(), "phase"]
    tell("recipes_search", {"runs": rows}, runs=table(head, lines))


def judge(out: Path, workers: int | None) -> None:
    """Train every recipe on the fresh seeds and compare with the margins.

    The runs lie where ``anchor-interp quickstart --seed SEED --out OUT/SEED`` puts them.
    """
    runs = {f"{seed}/{name}": override(config, seed=seed)
            for name, config in RECIPES.items() for seed in FRESH_SEEDS}  # fmt: skip
    _train(runs, out, workers)
    rows = []
    for name, seed in itertools.product(RECIPES, FRESH_SEEDS):
        path = out / str(seed) / name
        kept = MARGINS[name].kept(load(path).evaluation)
        rows.append({"recipe": name, "seed": seed, "kept": kept, **_found(path)})
    report_judged(rows)


def report_judged(rows: Sequence[Row]) -> None:
    """Write the tables of the recipes and of their runs."""
    summary, above = [], []
    for name, config in RECIPES.items():
        margin, mine = MARGINS[name], [row for row in rows if row["recipe"] == name]
        right = sum(row["phase"] == margin.phase for row in mine)
        entry: Row = {"recipe": name, "margin": margin.text, "kept": sum(r["kept"] for r in mine),
                      "right_phase": right, "seeds": len(mine), **_settings(config)}  # fmt: skip
        for column in _HEADINGS:
            values = [row[column] for row in mine if row[column] is not None]
            entry[column] = median(values) if values else None
        kept = f"{entry['kept']} of {entry['seeds']}"
        above.append([name, *_cells(entry), margin.text, kept, *_numbers(entry)])
        summary.append(entry)
    lines = [[row["recipe"], str(row["seed"]), *_numbers(row), row["phase"],
              "yes" if row["kept"] else "**no**"] for row in rows]  # fmt: skip
    medians = [f"median {heading}" for heading in _HEADINGS.values()]
    recipes = table(["recipe", *_SETTINGS, "margin", "kept", *medians], above)
    runs = table(["recipe", "seed", *_HEADINGS.values(), "phase", "margin kept"], lines)
    tell("recipes", {"recipes": summary, "runs": rows}, recipes=recipes, runs=runs)


def _tried() -> Iterator[tuple[str, RunConfig]]:
    tried = yaml.safe_load(Path(__file__).with_name("tried.yaml").read_text(encoding="utf-8"))
    for name, task in TASKS.items():
        for common, grid in tried.get(name, ()):
            base = override(RunConfig(task), **common)
            for values in itertools.product(*grid.values()):
                config = override(base, **dict(zip(grid, values, strict=True)))
                yield run_id(config), config


def _train(configs: Mapping[str, RunConfig], out: Path, workers: int | None) -> None:
    missing = {n: c for n, c in configs.items() if not (out / n / "result.json").exists()}
    print(f"{len(configs)} runs, {len(missing)} of them to train, in {out}", file=sys.stderr)
    failed = []
    with reporting({n: (c.train.steps, c.train.batch_size) for n, c in missing.items()}) as shown:
        for result in LocalEngine(workers).run(each_alone(missing), out, shown.__getitem__):
            print(f"done: {result.name}", file=sys.stderr)
            if result.error is not None:
                failed.append(f"{result.name}: {result.error}")
    if failed:
        raise SystemExit("\n".join(failed))


def _settings(config: RunConfig) -> Row:
    """What distinguishes a run, as far as recipes differ."""
    model, train = config.model, config.train
    shape = f"{model.n_layers} layers, d_model {model.d_model}"
    own = {name: getattr(config.init, f"gamma_{name}") for name in ("embed", "qk", "vo", "mlp")}
    rates = [f"{name} {rate:g}" for name, rate in own.items() if rate is not None]
    return {
        "task": next(name for name, task in TASKS.items() if task == config.task),
        "model": f"{model.normalization}-LayerNorm {model.act_fn}, {shape}",
        "n_sequences": train.n_sequences, "steps": train.steps, "lr": train.lr,
        "gammas": ", ".join([f"{config.init.gamma:g}", *rates]),
        "weight_decay": train.weight_decay, "total_decay": total_decay(train),
    }  # fmt: skip


def _cells(row: Row) -> list[str]:
    """The settings of a run under the headings of ``_SETTINGS``."""
    training = f"{row['steps']:,} x {row['lr']:g}"
    decay = (f"{row['weight_decay']:g}", f"{row['total_decay']:.3g}")
    return [row["task"], row["model"], f"{row['n_sequences']:,}", training, row["gammas"], *decay]


def _found(folder: Path) -> Row:
    run, names = load(folder), (*_HEADINGS, "stable_rank")
    return {name: getattr(run.evaluation, name) for name in names} | {"phase": run.phase}


def _numbers(row: Row) -> list[str]:
    return ["" if row[column] is None else f"{row[column]:.2f}" for column in _HEADINGS]


def main() -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(description="Find or judge the recipes.")
    parser.add_argument("what", choices=("search", "judge"))
    parser.add_argument("--out", type=Path, default=Path("runs/recipes"))
    parser.add_argument("--workers", type=int, help="runs at a time; all cores if not given")
    asked = parser.parse_args()
    work = search if asked.what == "search" else judge
    raise SystemExit(exit_code("recipes", lambda: work(asked.out, asked.workers)))


if __name__ == "__main__":
    main()
