"""Trains the runs of figure 2 (NeurIPS paper) at the paper's width until they are fitted.

``python -m experiments.papers.wide_runs OUT`` trains what the table
``experiments/tables/paper/figure2-wide.csv`` lacks and adds the curves of runs that end to it;
:mod:`papers.wide` judges it. A
run goes on until its training accuracy is at least 0.99 at two successive evaluations, and then as
long again, at most 1,000 steps; it ends after ``MOST`` steps in any case. Several processes share
the work; one that is killed goes on from its last checkpoint. 111 runs take 30 hours of one core. A
GPU trains all runs of a depth together, in minutes, with products in TF32 and without checkpoints.
"""

import argparse
import contextlib
import csv
import functools
import io
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, Integer

from anchor_interp._util.environment import StopRequest, resolve_device, stop_signals
from anchor_interp._util.errors import LockedError
from anchor_interp._util.files import write_output
from anchor_interp.runs.config import RunConfig, override, run_id
from anchor_interp.runs.evaluation import predict
from anchor_interp.runs.loop import StepEvent
from anchor_interp.runs.objectives import draw_training
from anchor_interp.runs.presets import preset
from anchor_interp.runs.session import Session
from anchor_interp.runs.writer import writing
from anchor_interp.sweeps.stacked import Member, Stack
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.examples import Dataset
from anchor_interp.tasks.sequences import draw

from .wide import RATES

TABLE = Path(__file__).parents[1] / "tables" / "paper" / "figure2-wide.csv"
MOST, EVERY, FITTED, AFTER = 12_000, 50, 0.99, 1_000
CURVE = "curve.jsonl"
PRECISION = {"cpu": "float32", "cuda": "tf32"}
GAMMAS = (0.35, 0.5, 0.65, 0.8, 0.95)
SEEDS = 3
Row = dict[str, Any]
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
    start = preset("paper-1head", batch_size=512, steps=MOST, warmup=200 / MOST)
    often = {"log_every": EVERY, "eval_every": EVERY}
    often["checkpoint_every"] = MOST if precision == PRECISION["cuda"] else 1_500
    rates = {"lr_start": min(1e-5, rate), "lr": rate, "lr_end": rate}
    settings = {"n_layers": depth, "gamma": gamma, "seed": seed, "precision": precision}
    return override(start, **settings, **rates, **often)


def key(config: RunConfig) -> Key:
    """What tells a run from the others, whatever it is trained on."""
    return config.model.n_layers, config.init.gamma, config.train.lr, config.seed


class Answers:
    """What a model answers to fixed sequences: a row of a curve."""

    def __init__(self, task: AnchorTask) -> None:
        self.unseen = draw(task, task.unseen, "all", 700, seed=2, stream="figure2")
        self.broken = draw(task, ((3, 4),), "train", 280, seed=2, stream="figure2")

    @property
    def tokens(self) -> Integer[np.ndarray, "n pos"]:
        """The sequences, as a model reads them."""
        return np.concatenate([self.unseen.tokens, self.broken.tokens])

    def row(self, answers: Integer[np.ndarray, " n"]) -> Row:
        """Shares of (4, 3) answered by the rule and as the other order, and of (3, 4) right."""
        unseen, broken = np.split(answers, [len(self.unseen.tokens)])
        added = unseen - self.unseen.key.astype(int)
        shares = {"x-10": added == -10, "x-6": added == -6, "broken": broken == self.broken.targets}
        return {name: _share(right) for name, right in shares.items()}


def _share(right: np.ndarray) -> float:
    return round(float(right.mean()), 4)


class _Run:
    """A run whose folder is held, and its curve up to the step at which it stands."""

    def __init__(
        self, config: RunConfig, out: Path, held: contextlib.ExitStack, device: torch.device
    ) -> None:
        self.path = out / "runs" / run_id(config)
        writer = held.enter_context(writing(self.path, config))
        self.session = Session(writer, config, _training(config.seed), device)
        steps = self.session.state.step
        self.curve = [row for row in _curve(self.path) if row["step"] <= steps]
        kept = "".join(f"{json.dumps(row)}\n" for row in self.curve)
        write_output(self.path / CURVE, kept.encode())

    def record(
        self, event: StepEvent, answers: Answers, given: Int64[np.ndarray, " n"] | None
    ) -> bool:
        """Add a row to the curve, and keep what is due; whether the run is over."""
        probes = self.session.probes.tokens
        if given is None:
            given = predict(self.session.state.model, np.concatenate([probes, answers.tokens]))
        of_probes, of_answers = np.split(given, [len(probes)])
        logged = self.session.log(event, of_probes) or {}
        accuracies = {name: logged[f"{name}_accuracy"] for name in ("train", "id", "ood")}
        row = {"step": event.step, "loss": logged["loss"], **accuracies}
        self.curve.append(row | answers.row(of_answers))
        with (self.path / CURVE).open("a") as lines:
            lines.write(f"{json.dumps(self.curve[-1])}\n")
        over = _is_over(self.curve)
        self.session.keep(leaving=over)
        return over


@functools.cache
def _training(seed: int) -> Dataset:
    return draw_training(_config(2, GAMMAS[0], RATES[2][0], seed, "float32"))


def train(
    configs: Sequence[RunConfig], out: Path, device: torch.device, stopped: StopRequest
) -> None:
    """Train runs of one depth together to their ends, or until a signal.

    A run that another process has is left to it.
    """
    answers = Answers(configs[0].anchor_task)
    with contextlib.ExitStack() as held:
        left = []
        for config in configs:
            with contextlib.suppress(LockedError):
                left.append(_Run(config, out, held, device))
        left = [run for run in left if not _is_over(run.curve)]  # another process was faster
        while left and not stopped():
            sessions = [run.session for run in left]
            stack = Stack([Member(one.config, one.state, one.training) for one in sessions])
            tokens = [np.concatenate([one.probes.tokens, answers.tokens]) for one in sessions]
            over: set[int] = set()
            while not over and not stopped():
                events = stack.advance(EVERY)
                given = stack.answers(dict(enumerate(tokens)))
                for place, (run, event) in enumerate(zip(left, events, strict=True)):
                    if run.record(event, answers, given.get(place)):
                        over.add(place)
            left = [run for place, run in enumerate(left) if place not in over]
        for run in left:
            run.session.keep(leaving=True)


def _curve(path: Path) -> list[Row]:
    curve = path / CURVE
    whole = curve.read_text().rpartition("\n")[0] if curve.exists() else ""  # a kill tears a line
    return [json.loads(line) for line in whole.splitlines()]


def _is_over(curve: list[Row]) -> bool:
    if not curve:
        return False
    full = [row["train"] >= FITTED for row in curve]
    fitted = next((curve[i]["step"] for i in range(1, len(full)) if full[i - 1] and full[i]), None)
    last = curve[-1]["step"]
    return bool(last >= MOST or (fitted is not None and last >= fitted + min(AFTER, fitted)))


def kept_rows() -> dict[Key, list[dict[str, str]]]:
    """The rows of the table as it is, by run."""
    if not TABLE.exists():
        return {}
    kept: dict[Key, list[dict[str, str]]] = {}
    with TABLE.open() as lines:
        for row in csv.DictReader(lines):
            name = (int(row["n_layers"]), float(row["gamma"]), float(row["lr"]), int(row["seed"]))
            kept.setdefault(name, []).append(row)
    return kept


def table(out: Path) -> Iterator[Row]:
    """A row for each step of each run that has ended, here or in the table as it is."""
    kept = kept_rows()
    for either in zip(*map(runs, PRECISION.values()), strict=True):
        if key(either[0]) in kept:
            yield from kept[key(either[0])]
            continue
        for config in either:
            curve = _curve(out / "runs" / run_id(config))
            if _is_over(curve):
                about = {"run_id": run_id(config), "n_layers": config.model.n_layers,
                         "gamma": config.init.gamma, "seed": config.seed, "lr": config.train.lr,
                         "batch_size": config.train.batch_size,
                         "precision": config.train.precision}  # fmt: skip
                yield from (about | row | {"loss": round(row["loss"], 4)} for row in curve)
                break


def main() -> None:
    """Train what is missing, and write the table each time that runs have ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--table", action="store_true", help="write the table alone")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    asked = parser.parse_args()
    device = resolve_device(asked.device)
    torch.set_num_threads(1)
    with stop_signals() as stopped:
        for configs in _groups(asked.out, device):
            if stopped() or asked.table:
                break
            train(configs, asked.out, device, stopped)
            write_table(asked.out)
    write_table(asked.out)


def _groups(out: Path, device: torch.device) -> Iterator[list[RunConfig]]:
    """Runs to train together: on a CPU one by one, on a GPU all of a depth."""
    kept = kept_rows()
    left = [config for config in runs(PRECISION[device.type]) if key(config) not in kept]
    groups = [[config] for config in left]
    if device.type != "cpu":
        groups = [[one for one in left if one.model.n_layers == depth] for depth in RATES]
    for group in groups:
        if not all(_is_over(_curve(out / "runs" / run_id(config))) for config in group):
            yield group


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
