"""The recipes of :data:`anchor_interp.runs.presets.RECIPES`: how they were found, how well they hold.

``python experiments/recipes.py search`` trains what was tried, one or a few seeds each;
``python experiments/recipes.py judge`` trains every recipe on ten seeds that the search never saw
and compares the final checkpoints with the margins below, which were written down before.

Both resume where they were stopped and keep their runs under ``--out``. What they found goes to
standard output as JSON and to ``docs/evidence/recipes.md`` or ``recipes_search.md`` as a table.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from anchor_interp._util.errors import AnchorInterpError
from anchor_interp._util.files import write_text
from anchor_interp._util.progress import reporting
from anchor_interp.models.shapes import InitConfig
from anchor_interp.runs.config import RunConfig, override, run_id, total_decay
from anchor_interp.runs.phase import Evaluation, Phase
from anchor_interp.runs.presets import RECIPES
from anchor_interp.runs.run import load
from anchor_interp.sweeps.engine import RunResult, each_alone
from anchor_interp.sweeps.local import LocalEngine
from anchor_interp.tasks.anchor import TASKS

EVIDENCE = Path(__file__).parent.parent / "docs" / "evidence"
FRESH_SEEDS = range(200, 210)
"""The search saw 0 to 5, 100, 101 and 109: a first judgement, on 100 to 109, was given up when the
symmetric recipe failed on 101, and the search went on with that seed. After the judgement it went
on once more, with 201 and 203 among its seeds, and found nothing better."""


@dataclass(frozen=True)
class Margin:
    """What a recipe promises of a run, beyond the phase."""

    phase: Phase
    """The phase of its name."""
    text: str
    """The margin in words."""
    holds: Callable[[Evaluation], bool]
    """Whether a run keeps within it."""


def _share(value: float | None) -> float:
    """A measurement that the recipe's task is known to have."""
    assert value is not None
    return value


_MEMORIZING = Margin(
    "memorizing",
    "train >= 0.99 and ID <= 0.5",
    lambda e: _share(e.train_accuracy) >= 0.99 and e.id_accuracy <= 0.5,
)
_INFERENTIAL = Margin("inferential", "OOD >= 0.95", lambda e: _share(e.ood_accuracy) >= 0.95)

MARGINS: Mapping[str, Margin] = {
    "memorizing": _MEMORIZING,
    "composite": Margin(
        "composite",
        "ID >= 0.95, OOD <= 0.3 and commutativity <= 0.6",
        lambda e: (
            e.id_accuracy >= 0.95
            and _share(e.ood_accuracy) <= 0.3
            and _share(e.commutativity) <= 0.6
        ),
    ),
    "symmetric": Margin(
        "symmetric",
        "OOD <= 0.2 and commutativity >= 0.95",
        lambda e: _share(e.ood_accuracy) <= 0.2 and _share(e.commutativity) >= 0.95,
    ),
    "inferential": _INFERENTIAL,
    "neurips-memorizing": _MEMORIZING,
    "neurips-symmetric": Margin(
        "symmetric", "x - 6 on >= 0.9", lambda e: _share(e.symmetric_accuracy) >= 0.9
    ),
    "neurips-inferential": _INFERENTIAL,
}
"""One for each recipe; a run keeps its margin if the phase is right besides."""

_SPARSE = {"log_every": 100, "eval_every": 500, "checkpoint_every": 100_000}
_POST = {**_SPARSE, "normalization": "post", "act_fn": "relu", "lr": 1e-3, "steps": 4_000}
_POST_SHORTER = {**_POST, "steps": 2_500}
_PRE = {**_SPARSE, "normalization": "pre", "act_fn": "gelu", "lr": 1e-3, "steps": 4_000}
_PRE_SMALL = {**_PRE, "lr": 2e-3, "steps": 3_000, "n_sequences": 5_000}
_PRE_MIDDLE = {**_PRE_SMALL, "n_sequences": 20_000}

NOT_TRAINED = "not trained"
"""Stands in the table for a run that is missing; it does not count as kept."""

Grid = dict[str, Sequence[Any]]
TRIED: Mapping[str, Sequence[tuple[dict[str, Any], Grid]]] = {
    "complexity-control": (
        (_PRE_SMALL, {"gamma": [0.5, 0.7], "weight_decay": [0.05, 0.3]}),
        (_PRE_SMALL, {"gamma": [0.9], "weight_decay": [0.5], "seed": [2, 3]}),
        (_PRE_MIDDLE, {"gamma": [0.3, 0.5, 0.7], "weight_decay": [0.01, 0.5]}),
        ({**_PRE, "n_layers": 3}, {"gamma": [0.3], "weight_decay": [0.01]}),
        ({**_POST, "n_layers": 1}, {"gamma": [0.5, 0.6], "weight_decay": [1.0], "seed": [3]}),
        (_POST, {"gamma": [0.3], "weight_decay": [0.01], "seed": [0, 1, 2, 3]}),
        (_POST, {"gamma": [0.5], "weight_decay": [1.0], "seed": [0, 1, 2, 3]}),
        (_POST, {"gamma": [0.6], "weight_decay": [1.0], "seed": [2, 3, 4]}),
        (_POST, {"gamma": [0.5, 0.6], "weight_decay": [2.0], "seed": [2]}),
        (_POST, {"gamma_qk": [0.3, 1.0], "gamma": [0.5], "weight_decay": [1.0], "seed": [3]}),
        (_POST, {"gamma_qk": [1.0], "gamma": [0.5], "weight_decay": [1.0], "seed": [4]}),
        (_POST, {"gamma_qk": [0.8], "gamma": [0.5], "weight_decay": [0.3], "seed": [3]}),
        (_POST, {"gamma_qk": [0.4], "gamma": [0.6], "weight_decay": [1.0], "seed": [3, 4]}),
        ({**_POST, "steps": 3_000}, {"gamma": [0.6], "weight_decay": [1.0], "seed": [2]}),
        (
            _POST_SHORTER,
            {
                "gamma_qk": [0.4],
                "gamma": [0.6],
                "weight_decay": [1.0],
                "seed": [0, 1, 2, 4, 100, 101, 109],
            },
        ),
        (
            {**_POST_SHORTER, "d_mlp": 1024},
            {"gamma_qk": [0.4], "gamma": [0.6], "weight_decay": [1.0], "seed": [101]},
        ),
        (_POST_SHORTER, {"gamma": [0.5], "weight_decay": [1.0], "seed": [4, 101]}),
        (_POST_SHORTER, {"gamma": [0.4], "weight_decay": [1.0], "seed": [3, 101]}),
        (
            _POST_SHORTER,
            {"gamma_qk": [1.0], "gamma": [0.3, 0.4], "weight_decay": [0.01], "seed": [3, 101]},
        ),
        (
            _POST_SHORTER,
            {"gamma_qk": [2.0], "gamma": [0.35], "weight_decay": [0.01], "seed": [3, 101]},
        ),
        (
            {**_POST_SHORTER, "gamma_qk": 1.0, "gamma_vo": 0.6},
            {"gamma": [0.3], "weight_decay": [0.01], "seed": [3, 101, 201, 203]},
        ),
        (
            {**_POST_SHORTER, "gamma_qk": 1.0, "gamma_embed": 0.6},
            {"gamma": [0.3], "weight_decay": [0.01], "seed": [3, 101]},
        ),
        (
            _POST_SHORTER,
            {"gamma_qk": [1.0], "gamma": [0.3], "weight_decay": [1.0], "seed": [3, 101]},
        ),
        (_POST_SHORTER, {"gamma": [0.4], "weight_decay": [2.0], "seed": [3, 101]}),
        (_POST_SHORTER, {"gamma_embed": [0.7], "weight_decay": [1.0], "seed": [3, 4, 101]}),
        (_POST_SHORTER, {"gamma_vo": [0.7], "weight_decay": [1.0], "seed": [3]}),
        (_POST_SHORTER, {"gamma_mlp": [0.7], "weight_decay": [1.0], "seed": [3]}),
    ),
    "neurips": (
        ({**_PRE, "n_layers": 3}, {"gamma": [0.3, 0.45], "weight_decay": [0.01]}),
        ({**_PRE, "n_layers": 3}, {"gamma": [0.6, 0.8], "weight_decay": [0.1, 1.0]}),
        ({**_PRE, "n_layers": 3}, {"gamma": [0.8], "weight_decay": [1.0], "seed": [1]}),
        (
            {**_PRE, "n_layers": 4, "steps": 3_000},
            {"gamma": [0.6], "weight_decay": [1.0], "seed": [0, 1, 2]},
        ),
        (_PRE_SMALL, {"n_layers": [2, 3], "gamma": [0.9], "weight_decay": [0.5], "seed": [1]}),
        (
            {**_PRE_MIDDLE, "n_layers": 3},
            {"gamma": [0.9], "weight_decay": [0.5], "seed": [1]},
        ),
        ({**_POST, "d_model": 64}, {"gamma": [0.7], "weight_decay": [0.01]}),
        (_POST, {"gamma": [0.5, 0.7], "weight_decay": [0.01, 1.0]}),
        (_POST, {"gamma": [0.5], "weight_decay": [1.0], "seed": [1, 3]}),
        (_POST, {"gamma_qk": [1.0], "gamma": [0.5], "weight_decay": [1.0], "seed": [0, 1, 3]}),
        (_POST, {"gamma_qk": [0.3], "gamma": [0.5], "weight_decay": [1.0], "seed": [3]}),
        (_POST, {"gamma_qk": [1.2], "gamma": [0.6], "weight_decay": [1.0], "seed": [1, 3]}),
        (_POST_SHORTER, {"gamma": [0.5], "weight_decay": [1.0], "seed": [3, 4]}),
        (
            _POST_SHORTER,
            {"gamma_qk": [0.4], "gamma": [0.6], "weight_decay": [1.0], "seed": [3, 4, 5, 101]},
        ),
    ),
}
"""What was tried for each task: settings in common and the grid over the others, with 100,000
sequences and seed 0 unless it says so."""

_COLUMNS = ("train_accuracy", "id_accuracy", "ood_accuracy", "symmetric_accuracy", "commutativity")
_HEADINGS = ("train", "ID", "OOD", "symmetric", "commut.")


def search(out: Path, workers: int | None, train: bool = True) -> None:
    """Train everything in :data:`TRIED` and write the table of it."""
    tried = dict(_expanded())
    if train:
        _train(tried, out / "search", workers)
    rows = [
        {"run_id": name, **_settings(config), "seed": config.seed, **_found(out / "search" / name)}
        for name, config in tried.items()
    ]
    lines = [[*_cells(row), str(row["seed"]), *_numbers(row), row["phase"]] for row in rows]
    head = [*_SETTINGS, "seed", *_HEADINGS, "phase"]
    _write("recipes_search", {"runs": rows}, head, lines, "")


def judge(out: Path, workers: int | None, train: bool = True) -> None:
    """Train every recipe on the fresh seeds and compare with the margins.

    The runs lie as ``anchor-interp quickstart --seed SEED --out OUT/SEED`` puts its own.
    """
    runs = {
        f"{seed}/{name}": override(config, seed=seed)
        for name, config in RECIPES.items()
        for seed in FRESH_SEEDS
    }
    if train:
        _train(runs, out, workers)
    rows, summary, lines = [], [], []
    for name, config in RECIPES.items():
        margin = MARGINS[name]
        for seed in FRESH_SEEDS:
            found = _found(out / str(seed) / name)
            kept = found["phase"] == margin.phase and margin.holds(
                load(out / str(seed) / name).evaluation
            )
            rows.append({"recipe": name, "seed": seed, "kept": kept, **found})
            lines.append([name, str(seed), *_numbers(rows[-1]), rows[-1]["phase"], _yes(kept)])
        mine = [row for row in rows if row["recipe"] == name]
        entry: dict[str, Any] = {
            "recipe": name,
            "margin": margin.text,
            "kept": sum(row["kept"] for row in mine),
            "right_phase": sum(row["phase"] == margin.phase for row in mine),
            "seeds": len(mine),
            "trained": sum(row["phase"] != NOT_TRAINED for row in mine),
            **_settings(config),
        }
        for column in _COLUMNS:
            values = [row[column] for row in mine if row[column] is not None]
            entry[column] = median(values) if values else None
        summary.append(entry)
    head = ["recipe", "seed", *_HEADINGS, "phase", "margin kept"]
    _write("recipes", {"recipes": summary, "runs": rows}, head, lines, _summary(summary))


def _summary(entries: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for entry in entries:
        kept = f"{entry['kept']} of {entry['trained']}"
        if entry["trained"] < entry["seeds"]:
            kept += f" ({entry['seeds'] - entry['trained']} not trained)"
        lines.append([entry["recipe"], *_cells(entry), entry["margin"], kept, *_numbers(entry)])
    medians = [f"median {heading}" for heading in _HEADINGS]
    return _table(["recipe", *_SETTINGS, "margin", "kept", *medians], lines) + "\n"


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
    failures: list[RunResult] = []
    with reporting(shapes) as progress:
        jobs = each_alone(missing)
        for result in LocalEngine(workers).run(jobs, out, progress.__getitem__):
            print(f"done: {result.name}", file=sys.stderr)
            if result.error is not None:
                failures.append(result)
    for failure in failures:
        print(f"{failure.name}: {failure.error}", file=sys.stderr)
    if failures:
        raise SystemExit(1)


def _settings(config: RunConfig) -> dict[str, Any]:
    """What distinguishes a run, as far as recipes differ."""
    model, train = config.model, config.train
    shape = f"{model.n_layers} layers, d_model {model.d_model}"
    return {
        "task": next(name for name, task in TASKS.items() if task == config.task),
        "model": f"{model.normalization}-LayerNorm {model.act_fn}, {shape}",
        "n_sequences": train.n_sequences,
        "steps": train.steps,
        "lr": train.lr,
        "gammas": _gammas(config.init),
        "weight_decay": train.weight_decay,
        "total_decay": total_decay(train),
    }


_SETTINGS = ("task", "model", "sequences", "steps x lr", "gamma", "decay", "lr x wd")


def _cells(row: Mapping[str, Any]) -> list[str]:
    """The settings of a run under the headings of ``_SETTINGS``."""
    training = f"{row['steps']:,} x {row['lr']:g}"
    decay = (f"{row['weight_decay']:g}", f"{row['total_decay']:.3g}")
    data = f"{row['n_sequences']:,}"
    return [row["task"], row["model"], data, training, row["gammas"], *decay]


def _gammas(init: InitConfig) -> str:
    """The rate of every matrix, and the rates of those that have one of their own."""
    own = {name: getattr(init, f"gamma_{name}") for name in ("embed", "qk", "vo", "mlp")}
    rates = [f"{name} {rate:g}" for name, rate in own.items() if rate is not None]
    return ", ".join([f"{init.gamma:g}", *rates])


def _found(folder: Path) -> dict[str, Any]:
    if not (folder / "result.json").exists():
        return dict.fromkeys((*_COLUMNS, "stable_rank")) | {"phase": NOT_TRAINED}
    run = load(folder)
    measured = {column: getattr(run.evaluation, column) for column in _COLUMNS}
    return {**measured, "stable_rank": run.evaluation.stable_rank, "phase": run.phase}


def _numbers(row: Mapping[str, Any]) -> list[str]:
    return ["" if row[column] is None else f"{row[column]:.2f}" for column in _COLUMNS]


def _yes(kept: bool) -> str:
    return "yes" if kept else "**no**"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def _write(
    name: str, data: object, head: Sequence[str], lines: Sequence[Sequence[str]], before: str
) -> None:
    text = f"# {name.replace('_', ' ')}\n\n{before}{_table(head, lines)}"
    write_text(EVIDENCE / f"{name}.md", text)
    print(json.dumps(data, indent=1))


def main() -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(description="Find or judge the recipes.")
    parser.add_argument("what", choices=("search", "judge"))
    parser.add_argument("--out", type=Path, default=Path("runs/recipes"))
    parser.add_argument("--workers", type=int, help="runs at a time; all cores if not given")
    parser.add_argument(
        "--table", action="store_true", help="train nothing; only tell what is there"
    )
    asked = parser.parse_args()
    try:
        {"search": search, "judge": judge}[asked.what](asked.out, asked.workers, not asked.table)
    except AnchorInterpError as error:
        raise SystemExit(f"recipes: {error}") from error


if __name__ == "__main__":
    main()
