"""Trains the runs of figure 2 (NeurIPS paper) at the paper's width until they are fitted.

``python -m experiments.papers.wide_runs OUT`` trains what the table
``experiments/tables/paper/figure2-wide.csv`` lacks and adds the curves of runs that end to it;
:mod:`papers.wide` judges it. A
run goes on until its training accuracy is at least 0.99 at two successive evaluations, and then as
long again, at most 1,000 steps; it ends after ``MOST`` steps in any case. Several processes share
the work; one that is killed goes on from its last checkpoint. 111 runs take 30 hours of one core.
"""

import argparse
import csv
import io
import itertools
import json
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchor_interp._util.environment import StopRequest, stop_signals
from anchor_interp._util.errors import LockedError
from anchor_interp._util.files import write_output
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.config import RunConfig, override, run_id
from anchor_interp.runs.evaluation import predict
from anchor_interp.runs.loop import StepEvent, TrainState, fit
from anchor_interp.runs.objectives import make_objective
from anchor_interp.runs.presets import preset
from anchor_interp.runs.session import Session
from anchor_interp.runs.writer import writing
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.sequences import draw

from .wide import RATES

TABLE = Path(__file__).parents[1] / "tables" / "paper" / "figure2-wide.csv"
MOST, EVERY, FITTED, AFTER = 12_000, 50, 0.99, 1_000
GAMMAS = (0.35, 0.5, 0.65, 0.8, 0.95)
SEEDS = 3
OFFSETS = (-10, -6, -7, -16, -4, -3, -1, 2, 3, 6, 10)
"""Answers to (4, 3) that are counted, as answer - key: the rule's, the symmetric, and seen sums."""

Row = dict[str, Any]


def runs() -> list[RunConfig]:
    """All runs in the order of training, the shortest first; a cell has seeds of its own."""
    configs = []
    for nth, depth in itertools.product(range(5), RATES):
        for rate in RATES[depth][nth : nth + 1]:
            for (place, gamma), seed in itertools.product(enumerate(GAMMAS), range(SEEDS)):
                cell = 10 * depth + place
                configs.append(_config(depth, gamma, rate, 1_000_000 + 100 * cell + seed))
    # as many seeds again of the smallest gammas, with two layers, at the first rate alone
    for place, seed in itertools.product(range(2), range(SEEDS, 2 * SEEDS)):
        configs.append(_config(2, GAMMAS[place], RATES[2][0], 1_002_000 + 100 * place + seed))
    return configs


def _config(depth: int, gamma: float, rate: float, seed: int) -> RunConfig:
    start = preset("paper-1head", batch_size=512, steps=MOST, warmup=200 / MOST)
    often = {"log_every": EVERY, "eval_every": EVERY, "checkpoint_every": 1_500}
    rates = {"lr_start": min(1e-5, rate), "lr": rate, "lr_end": rate}
    return override(start, n_layers=depth, gamma=gamma, seed=seed, **rates, **often)


class Answers:
    """What a model answers to fixed sequences: a row of a curve."""

    def __init__(self, task: AnchorTask) -> None:
        self.task = task
        self.unseen = draw(task, task.unseen, "all", 700, seed=2, stream="figure2")
        self.broken = draw(task, ((3, 4),), "train", 280, seed=2, stream="figure2")
        self.seen = draw(task, task.seen, "test", 1500, seed=2, stream="figure2")

    def row(self, model: HookedTransformer) -> Row:
        """Shares of the answers to (4, 3), in all and by position of the key; accuracies."""
        offsets = predict(model, self.unseen.tokens) - self.unseen.key.astype(int)
        row = {f"x{offset:+d}": _share(offsets == offset) for offset in OFFSETS}
        for position in range(self.task.length - 2):
            there = offsets[self.unseen.position == position]
            row |= {
                f"rule_p{position}": _share(there == -10),
                f"sym_p{position}": _share(there == -6),
            }
        row["broken"] = _share(predict(model, self.broken.tokens) == self.broken.targets)
        right = predict(model, self.seen.tokens) == self.seen.targets
        for index, (a, b) in enumerate(self.task.pairs):
            if (a, b) in self.task.seen:
                row[f"id_{a}{b}"] = _share(right[self.seen.pair == index])
        return row


def _share(right: np.ndarray) -> float:
    return round(float(right.mean()), 4)


def train(config: RunConfig, out: Path, stopped: StopRequest) -> None:
    """Train one run to its end, or until a signal; LockedError if another process has it."""
    path = out / "runs" / run_id(config)
    answers = Answers(config.anchor_task)
    with writing(path, config) as writer:
        objective = make_objective(config, torch.device("cpu"))
        session = Session(writer, config, objective.training, torch.device("cpu"))
        curve = [row for row in _curve(path) if row["step"] <= session.state.step]
        _write_curve(path, curve)

        def on_event(state: TrainState, event: StepEvent) -> None:
            logged = session.log(event)
            if logged is not None and "train_accuracy" in logged:
                accuracies = {name: logged[f"{name}_accuracy"] for name in ("train", "id", "ood")}
                row = {"step": state.step, "loss": logged["loss"], **accuracies}
                curve.append(row | answers.row(state.model))
                _write_curve(path, curve)
            session.keep(leaving=_is_over(curve))

        while not (_is_over(curve) or stopped()):
            fit(session.state, objective, until=session.state.step + EVERY, on_event=on_event)
        session.keep(leaving=True)


def _curve(path: Path) -> list[Row]:
    curve = path / "curve.jsonl"
    return [json.loads(line) for line in curve.open()] if curve.exists() else []


def _write_curve(path: Path, curve: list[Row]) -> None:
    write_output(path / "curve.jsonl", "".join(f"{json.dumps(row)}\n" for row in curve).encode())


def _is_over(curve: list[Row]) -> bool:
    if not curve:
        return False
    full = [row["train"] >= FITTED for row in curve]
    fitted = next((curve[i]["step"] for i in range(1, len(full)) if full[i - 1] and full[i]), None)
    last = curve[-1]["step"]
    return bool(last >= MOST or (fitted is not None and last >= fitted + min(AFTER, fitted)))


def kept_rows() -> dict[str, list[dict[str, str]]]:
    """The rows of the table as it is, by run."""
    if not TABLE.exists():
        return {}
    with TABLE.open() as lines:
        rows = sorted(csv.DictReader(lines), key=operator.itemgetter("run_id"))
    return {name: list(of) for name, of in itertools.groupby(rows, operator.itemgetter("run_id"))}


def table(out: Path) -> Iterator[Row]:
    """A row for each step of each run that has ended, here or in the table as it is."""
    kept = kept_rows()
    for config in runs():
        if run_id(config) in kept:
            yield from kept[run_id(config)]
            continue
        curve = _curve(out / "runs" / run_id(config))
        about = {"run_id": run_id(config), "n_layers": config.model.n_layers,
                 "gamma": config.init.gamma, "seed": config.seed, "lr": config.train.lr,
                 "batch_size": config.train.batch_size}  # fmt: skip
        if _is_over(curve):
            yield from (about | row | {"loss": round(row["loss"], 4)} for row in curve)


def main() -> None:
    """Train what is missing, and write the table after each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--table", action="store_true", help="write the table alone")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with stop_signals() as stopped:
        for config in runs():
            if stopped() or asked.table:
                break
            if run_id(config) not in kept_rows() and not _is_over(
                _curve(asked.out / "runs" / run_id(config))
            ):
                try:
                    train(config, asked.out, stopped)
                except LockedError:
                    continue
                write_table(asked.out)
    write_table(asked.out)


def write_table(out: Path) -> None:
    """Write the curves of all runs that have ended."""
    rows = list(table(out))
    if rows:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        write_output(TABLE, text.getvalue().encode())
        print(f"{TABLE}: {len({row['run_id'] for row in rows})} of {len(runs())} runs", flush=True)


if __name__ == "__main__":
    main()
