"""Trains runs of one shape together and writes the curve of what each answers.

A row of the table is a run at a step, as in ``tables/paper/figure2-wide.csv``: accuracies, and the
shares of (4, 3) answered by the rule (x - 10) and as the other order (x - 6), and of (3, 4) right.
All runs of :func:`train` are one stack, so on a GPU a step of one costs little more than a step of
all. What a signal stops goes on where it was, in the same folder.
"""

import argparse
import contextlib
import csv
import io
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from anchor_interp._util.environment import resolve_device, stop_signals
from anchor_interp._util.files import write_output
from anchor_interp.analysis.mechanism import NUMBERS
from anchor_interp.runs.config import RunConfig, last_step, override, run_id
from anchor_interp.runs.evaluation import predict
from anchor_interp.runs.measurements import Measure, kept
from anchor_interp.runs.objectives import draw_training
from anchor_interp.runs.session import Session
from anchor_interp.runs.writer import writing
from anchor_interp.sweeps.columns import CIRCUMSTANCES
from anchor_interp.sweeps.folder import SweepFolder
from anchor_interp.sweeps.local import LocalEngine
from anchor_interp.sweeps.spec import Grid, Sweep
from anchor_interp.sweeps.stacked import Member, Stack
from anchor_interp.sweeps.sweep import sweep
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.examples import Dataset
from anchor_interp.tasks.sequences import draw
from papers.gathering import task_columns
from papers.measures import MEASURES
from papers.tables import write_rows

Row = dict[str, Any]
_PER_ROW = 700, 280  # sequences of (4, 3) and of (3, 4)


class Curve:
    """The rows of a run, and what its model is asked for them."""

    def __init__(self, session: Session, task: AnchorTask) -> None:
        self.session, self.rows = session, list[Row]()
        self._unseen = draw(task, task.unseen, "all", _PER_ROW[0], seed=2, stream="figure2")
        self._broken = draw(task, ((3, 4),), "train", _PER_ROW[1], seed=2, stream="figure2")
        asked = (session.probes.tokens, self._unseen.tokens, self._broken.tokens)
        self.tokens = np.concatenate(asked)
        self._ends = np.cumsum([*map(len, asked)])[:-1]

    def add(self, event: Any, given: np.ndarray) -> None:
        """Write the line of metrics of a step, and keep its row."""
        probed, unseen, broken = np.split(given, self._ends)
        row = self.session.log(event, probed) or {}
        added = unseen - self._unseen.key.astype(int)
        shares = {
            "x-10": added == -10,
            "x-6": added == -6,
            "broken": broken == self._broken.targets,
        }
        self.rows.append(
            {"step": event.step, "loss": round(row["loss"], 4)}
            | {name: round(row[f"{name}_accuracy"], 4) for name in ("train", "id", "ood")}
            | {name: round(float(right.mean()), 4) for name, right in shares.items()}
        )


def train(runs: Sweep, out: Path, table: Path, device: torch.device) -> bool:
    """Train until all runs have ended or a signal comes; whether they ended.

    Every run is evaluated at the same steps, those of ``eval_every``.
    """
    kept = read(table)
    with contextlib.ExitStack() as held, stop_signals() as stopped:
        curves, drawn = list[Curve](), dict[Any, Dataset]()
        for name, config in runs.configs().items():
            writer = held.enter_context(writing(out / "runs" / name, config))
            key = config.task, config.train.n_sequences, config.seed
            if key not in drawn:
                drawn[key] = draw_training(config)
            session = Session(writer, config, drawn[key], device)
            curves.append(Curve(session, config.anchor_task))
            curves[-1].rows += [row for row in kept.get(name, ())
                                if row["step"] <= session.state.step]  # fmt: skip
        stack = Stack([Member(c.session.config, c.session.state, c.session.training)
                       for c in curves])  # fmt: skip
        first, begun = curves[0].session, time.monotonic()
        until, every = first.last_step, first.config.train.eval_every
        while first.state.step < until and not stopped():
            events = stack.advance(every - first.state.step % every)
            if first.state.step % every == 0:
                _evaluate(stack, curves, events)
            if first.state.step % 1_000 == 0:
                write(table, curves)
                passed = time.monotonic() - begun
                print(f"step {first.state.step}, {passed:.0f} s", flush=True)
        for curve in curves:
            curve.session.keep(leaving=True)
        write(table, curves)
        return first.state.step >= until


def _evaluate(stack: Stack, curves: Sequence[Curve], events: Sequence[Any]) -> None:
    together = stack.answers({i: curve.tokens for i, curve in enumerate(curves)})
    for i, (curve, event) in enumerate(zip(curves, events, strict=True)):
        given = together.get(i)
        if given is None:
            given = predict(curve.session.state.model, curve.tokens)
        curve.add(event, given)


def read(table: Path) -> dict[str, list[Row]]:
    """The rows of a table of curves by run."""
    found: dict[str, list[Row]] = {}
    if table.exists():
        for line in csv.DictReader(table.read_text().splitlines()):
            mine = found.setdefault(line["run_id"], [])
            mine.append({name: float(text) for name, text in line.items() if name in _NUMBERS})
    return found


_NUMBERS = ("step", "loss", "train", "id", "ood", "x-10", "x-6", "broken")


def write(table: Path, curves: Iterable[Curve]) -> None:
    """Write the table of the curves."""
    rows = [_about(curve.session.config) | row for curve in curves for row in curve.rows]
    if rows:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | {"step": int(row["step"])} for row in rows)
        write_output(table, text.getvalue().encode())


def _about(config: RunConfig) -> Row:
    init, train = config.init, config.train
    return {
        "run_id": run_id(config), "n_layers": config.model.n_layers,
        "d_model": config.model.d_model, "gamma": init.gamma, "gamma_vo": init.gamma_vo,
        "gamma_mlp": init.gamma_mlp, "seed": config.seed, "lr": train.lr,
        "batch_size": train.batch_size, "precision": train.precision,
    }  # fmt: skip


def save_weights(runs: Sweep, out: Path, path: Path, most: int = 15 << 20) -> None:
    """The final weights of the runs as files ``path``-1, -2, ... of at most so many bytes."""
    parts: list[dict[str, torch.Tensor]] = [{}]
    for name in runs.configs():
        steps = sorted((out / "runs" / name / "checkpoints").glob("[0-9]*"))
        own = load_file(steps[-1] / "weights.safetensors")
        if sum(t.nbytes for t in (*parts[-1].values(), *own.values())) > most:
            parts.append({})
        parts[-1] |= {f"{name}/{weight}": tensor for weight, tensor in own.items()}
    for number, part in enumerate(parts, 1):
        save_file(part, path.with_name(f"{path.name}-{number}.safetensors"))


def main(runs: Callable[..., Sweep], name: str, *, weights: bool) -> None:
    """The command line of a script: train, judge, measure and write the tables of some runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("out", type=Path, help="folder of the tables")
    add("--runs", type=Path, help="folder of the runs (OUT/NAME)")
    add("--device", default="cuda")
    add("--steps", type=int, help="fewer steps, to try it")
    add("--workers", type=int, default=12, help="processes that judge and measure")
    add("--only", type=float, nargs="*", default=(), help="gammas of width 400")
    add("--train-only", action="store_true", help="without judging and measuring")
    asked = parser.parse_args()
    device, folder = resolve_device(asked.device), asked.runs or asked.out / name
    asked.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    wanted = _changed(runs(*asked.only), device, asked.steps)
    part = "-".join([name, *(f"{gamma:g}" for gamma in asked.only)])
    ended = train(wanted, folder, asked.out / f"{part}-curves.csv", device)
    if weights:
        save_weights(wanted, folder, asked.out / f"{part}-weights")
    if ended and not asked.train_only:
        engine = LocalEngine(asked.workers, asked.device)
        measures = [MEASURES[name] for name in ("mechanism", "raw", "answers")]
        measured(wanted, folder, asked.out / f"{part}.csv", engine, *measures)


def _changed(runs: Sweep, device: torch.device, steps: int | None) -> Sweep:
    """The runs on a device: without TF32 where it has none; with fewer steps, if asked."""
    changes: Row = {} if device.type == "cuda" else {"precision": "float32"}
    if steps is not None:
        changes |= {"steps": steps, "warmup": 0.5, "checkpoint_every": steps}
    if not changes:
        return runs
    change: Callable[[RunConfig], RunConfig] = partial(override, **changes)
    return Sweep(tuple(Grid(change(g.start), g.axes, g.together, g.seeds) for g in runs.grids))


_KEPT = ("seconds", "machine", "cpu", "torch")
_NAMES = {"fingerprint": "mechanism"}


def measured(
    runs: Sweep,
    folder: Path,
    table: Path,
    engine: LocalEngine,
    *measures: Measure,
    scale: str = "paper",
    batch: int = 1,
) -> None:
    """Train what is missing, judge and measure it, and write a study's table."""
    configs = runs.configs()
    sweep(runs, folder, engine=engine, measures=measures, batch=batch)
    rows = []
    for row in SweepFolder(folder).rows():
        if (config := configs.get(row["run_id"])) is not None:
            last = last_step(config.train.steps, row["fitted_step"])
            run, names = folder / "runs" / row["run_id"], list[str]()
            row = {name: row[name] for name in row if name not in CIRCUMSTANCES or name in _KEPT}
            for measure in measures:
                if (values := kept(run, measure, last)) is not None:
                    names.append(_NAMES.get(measure.name, measure.name))
                    plain = NUMBERS if measure is MEASURES["mechanism"] else values
                    row |= {name: values[name] for name in plain}
            row |= {"scale": scale, "measured": " ".join(names) or None}
            rows.append(row | task_columns(config.task))
    order = {name: place for place, name in enumerate(configs)}
    write_rows(table, sorted(rows, key=lambda row: order[row["run_id"]]))
