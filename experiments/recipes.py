"""The recipes of :data:`anchor_interp.runs.presets.RECIPES`: how they were found and how they hold.

``python experiments/recipes.py search`` trains what was tried, one or a few seeds each;
``python experiments/recipes.py judge`` trains every recipe on ten seeds that the search never saw
and compares the final checkpoints with :data:`margins.MARGINS`, which were written down before.
Both resume and keep their runs under ``--out``. They print JSON and write
``docs/evidence/recipes.md`` or ``recipes_search.md``.
"""

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from anchor_interp._util.errors import AnchorInterpError
from anchor_interp._util.progress import reporting
from anchor_interp.runs.config import RunConfig, override, run_id, total_decay
from anchor_interp.runs.presets import RECIPES
from anchor_interp.runs.run import load
from anchor_interp.sweeps.engine import each_alone
from anchor_interp.sweeps.local import LocalEngine
from anchor_interp.tasks.anchor import TASKS
from margins import FRESH_SEEDS, MARGINS
from measured import table, tell
from papers.rows import Row

_SPARSE = {"log_every": 100, "eval_every": 500, "checkpoint_every": 100_000}
_POST = {**_SPARSE, "normalization": "post", "act_fn": "relu", "lr": 1e-3, "steps": 4_000}
_SHORTER = {**_POST, "steps": 2_500}
_PRE = {**_SPARSE, "normalization": "pre", "act_fn": "gelu", "lr": 1e-3, "steps": 4_000}
_PRE_3 = {**_PRE, "n_layers": 3}
_PRE_4 = {**_PRE, "n_layers": 4, "steps": 3_000}
_PRE_SMALL = {**_PRE, "lr": 2e-3, "steps": 3_000, "n_sequences": 5_000}
_PRE_MIDDLE = {**_PRE_SMALL, "n_sequences": 20_000}
_LARGE = {**_SHORTER, "weight_decay": 0.01}
_MERGING = {**_SHORTER, "gamma_qk": 0.4, "gamma": 0.6, "weight_decay": 1.0}

NOT_TRAINED = "not trained"
"""Stands in the table for a run that is missing; it does not count as kept."""

Grid = dict[str, Sequence[float]]
TRIED: Mapping[str, Sequence[tuple[Mapping[str, Any], Grid]]] = {
    "complexity-control": (
        (_PRE_SMALL, {"gamma": [0.5, 0.7], "weight_decay": [0.05, 0.3]}),
        (_PRE_SMALL, {"gamma": [0.9], "weight_decay": [0.5], "seed": [2, 3]}),
        (_PRE_MIDDLE, {"gamma": [0.3, 0.5, 0.7], "weight_decay": [0.01, 0.5]}),
        (_PRE_3, {"gamma": [0.3], "weight_decay": [0.01]}),
        (_POST | {"n_layers": 1}, {"gamma": [0.5, 0.6], "weight_decay": [1.0], "seed": [3]}),
        (_POST, {"gamma": [0.3], "weight_decay": [0.01], "seed": [0, 1, 2, 3]}),
        (_POST, {"gamma": [0.5], "weight_decay": [1.0], "seed": [0, 1, 2, 3]}),
        (_POST, {"gamma": [0.6], "weight_decay": [1.0], "seed": [2, 3, 4]}),
        (_POST, {"gamma": [0.5, 0.6], "weight_decay": [2.0], "seed": [2]}),
        (_POST, {"gamma_qk": [0.3, 1.0], "gamma": [0.5], "weight_decay": [1.0], "seed": [3]}),
        (_POST, {"gamma_qk": [1.0], "gamma": [0.5], "weight_decay": [1.0], "seed": [4]}),
        (_POST, {"gamma_qk": [0.8], "gamma": [0.5], "weight_decay": [0.3], "seed": [3]}),
        (_POST, {"gamma_qk": [0.4], "gamma": [0.6], "weight_decay": [1.0], "seed": [3, 4]}),
        (_POST | {"steps": 3_000}, {"gamma": [0.6], "weight_decay": [1.0], "seed": [2]}),
        (_MERGING, {"seed": [0, 1, 2, 4, 100, 101, 109]}),
        (_MERGING | {"d_mlp": 1024}, {"seed": [101]}),
        (_SHORTER, {"gamma": [0.5], "weight_decay": [1.0], "seed": [4, 101]}),
        (_SHORTER, {"gamma": [0.4], "weight_decay": [1.0], "seed": [3, 101]}),
        (_LARGE | {"gamma_qk": 1.0}, {"gamma": [0.3, 0.4], "seed": [3, 101]}),
        (_LARGE | {"gamma_qk": 2.0}, {"gamma": [0.35], "seed": [3, 101]}),
        (_LARGE | {"gamma_qk": 1.0, "gamma_vo": 0.6}, {"gamma": [0.3], "seed": [3, 101, 201, 203]}),
        (_LARGE | {"gamma_qk": 1.0, "gamma_embed": 0.6}, {"gamma": [0.3], "seed": [3, 101]}),
        (_SHORTER, {"gamma_qk": [1.0], "gamma": [0.3], "weight_decay": [1.0], "seed": [3, 101]}),
        (_SHORTER, {"gamma": [0.4], "weight_decay": [2.0], "seed": [3, 101]}),
        (_SHORTER, {"gamma_embed": [0.7], "weight_decay": [1.0], "seed": [3, 4, 101]}),
        (_SHORTER, {"gamma_vo": [0.7], "weight_decay": [1.0], "seed": [3]}),
        (_SHORTER, {"gamma_mlp": [0.7], "weight_decay": [1.0], "seed": [3]}),
    ),
    "neurips": (
        (_PRE_3, {"gamma": [0.3, 0.45], "weight_decay": [0.01]}),
        (_PRE_3, {"gamma": [0.6, 0.8], "weight_decay": [0.1, 1.0]}),
        (_PRE_3, {"gamma": [0.8], "weight_decay": [1.0], "seed": [1]}),
        (_PRE_4, {"gamma": [0.6], "weight_decay": [1.0], "seed": [0, 1, 2]}),
        (_PRE_SMALL, {"n_layers": [2, 3], "gamma": [0.9], "weight_decay": [0.5], "seed": [1]}),
        (_PRE_MIDDLE | {"n_layers": 3}, {"gamma": [0.9], "weight_decay": [0.5], "seed": [1]}),
        (_POST | {"d_model": 64}, {"gamma": [0.7], "weight_decay": [0.01]}),
        (_POST, {"gamma": [0.5, 0.7], "weight_decay": [0.01, 1.0]}),
        (_POST, {"gamma": [0.5], "weight_decay": [1.0], "seed": [1, 3]}),
        (_POST, {"gamma_qk": [1.0], "gamma": [0.5], "weight_decay": [1.0], "seed": [0, 1, 3]}),
        (_POST, {"gamma_qk": [0.3], "gamma": [0.5], "weight_decay": [1.0], "seed": [3]}),
        (_POST, {"gamma_qk": [1.2], "gamma": [0.6], "weight_decay": [1.0], "seed": [1, 3]}),
        (_SHORTER, {"gamma": [0.5], "weight_decay": [1.0], "seed": [3, 4]}),
        (_MERGING, {"seed": [3, 4, 5, 101]}),
    ),
}
"""What was tried for each task: settings in common and the grid over the others, with 100,000
sequences and seed 0 unless it says so."""

_HEADINGS = {
    "train_accuracy": "train", "id_accuracy": "ID", "ood_accuracy": "OOD",
    "symmetric_accuracy": "symmetric", "commutativity": "commut.",
}  # fmt: skip
_SETTINGS = ("task", "model", "sequences", "steps x lr", "gamma", "decay", "lr x wd")


def search(out: Path, workers: int | None, train: bool = True) -> None:
    """Train everything in :data:`TRIED` and write the table of it."""
    tried = dict(_expanded())
    if train:
        _train(tried, out / "search", workers)
    report_search(
        {"run_id": name, **_settings(config), "seed": config.seed, **_found(out / "search" / name)}
        for name, config in tried.items()
    )


def report_search(found: Iterable[Row]) -> None:
    """Write the table of what was tried."""
    rows = list(found)
    lines = [[*_cells(row), str(row["seed"]), *_numbers(row), row["phase"]] for row in rows]
    head = [*_SETTINGS, "seed", *_HEADINGS.values(), "phase"]
    tell("recipes_search", {"runs": rows}, f"# recipes search\n\n{table(head, lines)}")


def judge(out: Path, workers: int | None, train: bool = True) -> None:
    """Train every recipe on the fresh seeds and compare with the margins.

    The runs lie where ``anchor-interp quickstart --seed SEED --out OUT/SEED`` puts them.
    """
    runs = {
        f"{seed}/{name}": override(config, seed=seed)
        for name, config in RECIPES.items()
        for seed in FRESH_SEEDS
    }
    if train:
        _train(runs, out, workers)
    rows = []
    for name in RECIPES:
        for seed in FRESH_SEEDS:
            path = out / str(seed) / name
            found = _found(path)
            kept = found["phase"] != NOT_TRAINED and MARGINS[name].kept(load(path).evaluation)
            rows.append({"recipe": name, "seed": seed, "kept": kept, **found})
    report_judged(rows)


def report_judged(rows: Sequence[Row]) -> None:
    """Write the tables of the recipes and of their runs."""
    summary, above = [], []
    for name, config in RECIPES.items():
        margin, mine = MARGINS[name], [row for row in rows if row["recipe"] == name]
        entry: Row = {
            "recipe": name,
            "margin": margin.text,
            "kept": sum(row["kept"] for row in mine),
            "right_phase": sum(row["phase"] == margin.phase for row in mine),
            "seeds": len(mine),
            "trained": sum(row["phase"] != NOT_TRAINED for row in mine),
            **_settings(config),
        }
        for column in _HEADINGS:
            values = [row[column] for row in mine if row[column] is not None]
            entry[column] = median(values) if values else None
        kept = f"{entry['kept']} of {entry['trained']}"
        if entry["trained"] < entry["seeds"]:
            kept += f" ({entry['seeds'] - entry['trained']} not trained)"
        above.append([name, *_cells(entry), margin.text, kept, *_numbers(entry)])
        summary.append(entry)
    lines = [
        [
            row["recipe"],
            str(row["seed"]),
            *_numbers(row),
            row["phase"],
            "yes" if row["kept"] else "**no**",
        ]
        for row in rows
    ]
    medians = [f"median {heading}" for heading in _HEADINGS.values()]
    recipes = table(["recipe", *_SETTINGS, "margin", "kept", *medians], above)
    runs = table(["recipe", "seed", *_HEADINGS.values(), "phase", "margin kept"], lines)
    tell("recipes", {"recipes": summary, "runs": rows}, f"# recipes\n\n{recipes}\n{runs}")


def _expanded() -> Iterator[tuple[str, RunConfig]]:
    for task, grids in TRIED.items():
        for common, grid in grids:
            base = override(RunConfig(TASKS[task]), **common)
            for values in itertools.product(*grid.values()):
                config = override(base, **dict(zip(grid, values, strict=True)))
                yield run_id(config), config


def _train(configs: Mapping[str, RunConfig], out: Path, workers: int | None) -> None:
    missing = {
        name: config
        for name, config in configs.items()
        if not (out / name / "result.json").exists()
    }
    print(f"{len(configs)} runs, {len(missing)} of them to train, in {out}", file=sys.stderr)
    shapes = {name: (c.train.steps, c.train.batch_size) for name, c in missing.items()}
    failed = []
    with reporting(shapes) as progress:
        jobs = each_alone(missing)
        for result in LocalEngine(workers).run(jobs, out, progress.__getitem__):
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
        "n_sequences": train.n_sequences,
        "steps": train.steps,
        "lr": train.lr,
        "gammas": ", ".join([f"{config.init.gamma:g}", *rates]),
        "weight_decay": train.weight_decay,
        "total_decay": total_decay(train),
    }


def _cells(row: Row) -> list[str]:
    """The settings of a run under the headings of ``_SETTINGS``."""
    training = f"{row['steps']:,} x {row['lr']:g}"
    decay = (f"{row['weight_decay']:g}", f"{row['total_decay']:.3g}")
    return [row["task"], row["model"], f"{row['n_sequences']:,}", training, row["gammas"], *decay]


def _found(folder: Path) -> Row:
    if not (folder / "result.json").exists():
        return dict.fromkeys((*_HEADINGS, "stable_rank")) | {"phase": NOT_TRAINED}
    run = load(folder)
    names = (*_HEADINGS, "stable_rank")
    return {name: getattr(run.evaluation, name) for name in names} | {"phase": run.phase}


def _numbers(row: Row) -> list[str]:
    return ["" if row[column] is None else f"{row[column]:.2f}" for column in _HEADINGS]


def main() -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(description="Find or judge the recipes.")
    parser.add_argument("what", choices=("search", "judge"))
    parser.add_argument("--out", type=Path, default=Path("runs/recipes"))
    parser.add_argument("--workers", type=int, help="runs at a time; all cores if not given")
    parser.add_argument("--table", action="store_true", help="train nothing; report what is there")
    asked = parser.parse_args()
    try:
        {"search": search, "judge": judge}[asked.what](asked.out, asked.workers, not asked.table)
    except AnchorInterpError as error:
        raise SystemExit(f"recipes: {error}") from error


if __name__ == "__main__":
    main()
