"""Trains the runs of figure 2 (NeurIPS paper) at the paper's width until they are fitted.

``python -m experiments.papers.wide_runs OUT`` trains what the table
``experiments/tables/paper/figure2-wide.csv`` lacks, one run after the other, and adds their curves;
:mod:`papers.wide` judges it. A run that is stopped goes on from its last checkpoint. A run ends as
:class:`anchor_interp.runs.session.Session` says for ``until_accuracy``, or after ``MOST`` steps;
111 runs take 30 hours of one core. The runs of the table that have ``tf32`` were trained on a GPU,
all of a depth together.
"""

import argparse
import csv
import io
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from anchor_interp._util.environment import resolve_device, stop_signals
from anchor_interp._util.files import write_output
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.config import RunConfig, run_id
from anchor_interp.runs.evaluation import predict
from anchor_interp.runs.loop import StepEvent, TrainState, fit
from anchor_interp.runs.objectives import make_objective
from anchor_interp.runs.presets import preset
from anchor_interp.runs.session import Session
from anchor_interp.runs.writer import writing
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.sequences import draw

from .rows import Row
from .wide import RATES

TABLE = Path(__file__).parents[1] / "tables" / "paper" / "figure2-wide.csv"
MOST, EVERY, FITTED = 12_000, 50, 0.99
CURVE = "curve.jsonl"
GAMMAS = (0.35, 0.5, 0.65, 0.8, 0.95)
SEEDS = 3
Key = tuple[float, ...]


def runs(precision: str = "float32") -> list[RunConfig]:
    """All runs in the order of training, the shortest first; a cell has seeds of its own."""
    configs = []
    for nth, depth in itertools.product(range(5), RATES):
        for rate in RATES[depth][nth : nth + 1]:
            for (place, gamma), nth_seed in itertools.product(enumerate(GAMMAS), range(SEEDS)):
                seed = 1_000_000 + 100 * (10 * depth + place) + nth_seed
                configs.append(_config(depth, gamma, rate, seed, precision))
    # as many seeds again of the smallest gammas, with two layers, at the first rate alone
    for place, seed in itertools.product(range(2), range(SEEDS, 2 * SEEDS)):
        seed += 1_002_000 + 100 * place
        configs.append(_config(2, GAMMAS[place], RATES[2][0], seed, precision))
    return configs


def _config(depth: int, gamma: float, rate: float, seed: int, precision: str) -> RunConfig:
    often = {"log_every": EVERY, "eval_every": EVERY, "checkpoint_every": 1_500}
    rates = {"lr_start": min(1e-5, rate), "lr": rate, "lr_end": rate}
    settings = {"n_layers": depth, "gamma": gamma, "seed": seed, "precision": precision}
    return preset("paper-1head", batch_size=512, steps=MOST, warmup=200 / MOST,
                  until_accuracy=FITTED, **settings, **rates, **often)  # fmt: skip


def key(config: RunConfig) -> Key:
    """What tells a run from the others, whatever it is trained on."""
    return config.model.n_layers, config.init.gamma, config.train.lr, config.seed


def answers(model: HookedTransformer, task: AnchorTask) -> Row:
    """Shares of (4, 3) answered by the rule and as the other order, and of (3, 4) right."""
    unseen = draw(task, task.unseen, "all", 700, seed=2, stream="figure2")
    broken = draw(task, ((3, 4),), "train", 280, seed=2, stream="figure2")
    together = predict(model, np.concatenate([unseen.tokens, broken.tokens]))
    given, to_broken = np.split(together, [len(unseen)])
    added = given - unseen.key.astype(int)
    shares = {"x-10": added == -10, "x-6": added == -6, "broken": to_broken == broken.targets}
    return {name: round(float(right.mean()), 4) for name, right in shares.items()}


def train(
    config: RunConfig, path: Path, device: torch.device, stopped: Callable[[], bool]
) -> list[Row]:
    """Train a run to its end; its curve, which is empty if a signal came before."""
    objective = make_objective(config, device)
    with writing(path, config) as writer:
        session = Session(writer, config, objective.training, device)
        curve = [row for row in _curve(path) if row["step"] <= session.state.step]
        write_output(path / CURVE, "".join(f"{json.dumps(row)}\n" for row in curve).encode())

        def on_event(state: TrainState, event: StepEvent) -> None:
            logged = session.log(event)
            if logged is not None and "id_accuracy" in logged:
                accuracies = {name: logged[f"{name}_accuracy"] for name in ("train", "id", "ood")}
                row = {"step": event.step, "loss": round(logged["loss"], 4), **accuracies}
                curve.append(row | answers(state.model, config.anchor_task))
                with (path / CURVE).open("a") as lines:
                    lines.write(f"{json.dumps(curve[-1])}\n")
            session.keep()

        while not (session.is_trained or stopped()):
            fit(session.state, objective, until=session.next_due, on_event=on_event)
        session.keep(leaving=True)
        return curve if session.is_trained else []


def _curve(path: Path) -> list[Row]:
    curve = path / CURVE
    whole = curve.read_text().rpartition("\n")[0] if curve.exists() else ""  # a kill tears a line
    return [json.loads(line) for line in whole.splitlines()]


def table() -> dict[Key, list[Row]]:
    """The rows of the table as it is, by run."""
    kept: dict[Key, list[Row]] = {}
    if TABLE.exists():
        with TABLE.open() as lines:
            for row in csv.DictReader(lines):
                about = (float(row[name]) for name in ("n_layers", "gamma", "lr", "seed"))
                kept.setdefault(tuple(about), []).append(row)
    return kept


def write_table(curves: Mapping[Key, list[Row]]) -> None:
    """Write the curves of runs, in the order of training."""
    rows = [row for config in runs() for row in curves.get(key(config), ())]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    write_output(TABLE, text.getvalue().encode())
    print(f"{TABLE}: {len(curves)} of {len(runs())} runs", flush=True)


def main() -> None:
    """Train what is missing, and write the table each time that a run has ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    asked = parser.parse_args()
    device, curves = resolve_device(asked.device), table()
    torch.set_num_threads(1)
    with stop_signals() as stopped:
        for config in runs("float32" if device.type == "cpu" else "tf32"):
            if key(config) in curves or stopped():
                continue
            if curve := train(config, asked.out / "runs" / run_id(config), device, stopped):
                about = {"run_id": run_id(config), "n_layers": config.model.n_layers,
                         "gamma": config.init.gamma, "seed": config.seed, "lr": config.train.lr,
                         "batch_size": config.train.batch_size,
                         "precision": config.train.precision}  # fmt: skip
                curves[key(config)] = [about | row for row in curve]
                write_table(curves)


if __name__ == "__main__":
    main()
