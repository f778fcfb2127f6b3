"""Runs of the NeurIPS task whose answers to (4, 3) are told all along training.

A row of their table is a run at a step. A run that is stopped goes on from its last checkpoint; the
table is written each time that a run has ended, in the order of training.
"""

import csv
import itertools
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

import numpy as np
import torch

from anchor_interp._util.environment import resolve_device
from anchor_interp._util.files import read_bytes, write_output
from anchor_interp._util.signals import stop_signals
from anchor_interp.behaviour.evaluation import predict
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.config import RunConfig, override, run_id
from anchor_interp.runs.loop import StepEvent, TrainState, fit
from anchor_interp.runs.objectives import make_objective
from anchor_interp.runs.session import Probes, Session
from anchor_interp.runs.store import writing
from anchor_interp.sweeps.spec import Grid
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.sequences import draw
from claim_effects import Row, grouped
from studies import Study, write_csv

FITTED = 0.99  # training accuracy, in two rows in a row
CURVE = "curve.jsonl"
_ABOUT = ("run_id", "n_layers", "gamma", "seed", "lr", "batch_size", "precision")
_TEXTS = ("run_id", "precision")
_LIMIT = 1 << 28
Key = tuple[float, ...]
RowOf = Callable[[TrainState, StepEvent, Row], Row | None]


def curve_study(
    title: str,
    configs: Callable[[], Sequence[RunConfig]],
    witnesses: Callable[[Sequence[Row]], list[Row]],
    folder: str = "wide",
) -> Study:
    """A study of such runs, in the order of training.

    ``witnesses`` turns the rows of all curves into those that claims are judged on.
    """
    return Study(
        title, lambda: [Grid(config, seeds=(config.seed,)) for config in configs()],
        folder=folder, read=lambda path: witnesses(read_curves(path)),
        train=partial(_train_all, configs),
    )  # fmt: skip


def read_curves(path: Path) -> list[Row]:
    """Every row of a table: a run at a step."""
    lines = csv.DictReader(read_bytes(path, limit=_LIMIT).decode().splitlines())
    return [
        {name: text if name in _TEXTS else float(text) if text else None
         for name, text in line.items()} for line in lines
    ]  # fmt: skip


def by_run(rows: Sequence[Row]) -> list[Row]:
    """One row for each run: what it passes through and where it ends.

    The end is the mean of the last 2,000 steps, and ``last_`` the last step. A run is fitted at the
    second of two rows in a row with a training accuracy of 0.99.
    """
    found = []
    for curve in grouped(rows, ("run_id",)).values():
        curve.sort(key=lambda row: row["step"])
        fitted = [b["step"] for a, b in itertools.pairwise(curve)
                  if min(a["train"], b["train"]) >= FITTED]  # fmt: skip
        row: Row = {
            "run_id": curve[0]["run_id"], "status": "done", "censored": False, "task": "neurips",
            "normalization": "post", "phase": None, "seed": int(curve[0]["seed"]),
            "n_layers": int(curve[0]["n_layers"]), "gamma": curve[0]["gamma"],
            "lr": curve[0]["lr"], "best_id": max(one["id"] for one in curve),
            "fitted_step": int(fitted[0]) if fitted else None, "unfitted": not fitted,
        }  # fmt: skip
        for name, column in (("ood", "x-10"), ("symmetric", "x-6")):
            told = [(one["step"], one[column]) for one in curve if one[column] is not None]
            end = [share for step, share in told if step > told[-1][0] - 2_000]
            row |= {f"best_{name}": max(share for _, share in told), f"end_{name}": mean(end),
                    f"last_{name}": told[-1][1]}  # fmt: skip
        found.append(row)
    return found


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
    config: RunConfig, path: Path, device: torch.device, stopped: Callable[[], bool], row_of: RowOf
) -> list[Row]:
    """Train a run to its end; its curve, which is empty if a signal came before.

    ``row_of`` gives the row of a step, or None, from the state, the step and what it logs.
    """
    objective = make_objective(config, device)
    with writing(path, config) as writer:
        session = Session(writer, Probes(config, objective.training), device)
        curve = [row for row in _kept(path) if row["step"] <= session.state.step]
        write_output(path / CURVE, "".join(f"{json.dumps(row)}\n" for row in curve).encode())

        def on_event(state: TrainState, event: StepEvent) -> None:
            row = row_of(state, event, session.log(event) or {})
            if row is not None:
                curve.append(row)
                with (path / CURVE).open("a") as lines:
                    lines.write(f"{json.dumps(row)}\n")
            session.keep()

        while not (session.is_trained or stopped()):
            fit(session.state, objective, until=session.next_due, on_event=on_event)
        session.keep(leaving=True)
        return curve if session.is_trained else []


def answered(task: AnchorTask, state: TrainState, event: StepEvent, logged: Row) -> Row | None:
    """The row of an evaluation, with the answers to (4, 3)."""
    if "id_accuracy" not in logged:
        return None
    accuracies = {name: logged[f"{name}_accuracy"] for name in ("train", "id", "ood")}
    row = {"step": event.step, "loss": round(logged["loss"], 4), **accuracies}
    return row | answers(state.model, task)


def _kept(path: Path) -> list[Row]:
    curve = path / CURVE
    whole = curve.read_text().rpartition("\n")[0] if curve.exists() else ""  # a kill tears a line
    return [json.loads(line) for line in whole.splitlines()]


def _key(config: RunConfig) -> Key:
    """What tells a run from the others, whatever it is trained on."""
    return config.model.n_layers, config.init.gamma, config.train.lr, config.seed


def _train_all(
    configs: Callable[[], Sequence[RunConfig]], out: Path, path: Path, device_name: str
) -> None:
    """Train the runs that a table lacks, one after the other.

    On a GPU those of float32 have products in TF32.
    """
    device, curves = resolve_device(device_name), _table(path)
    torch.set_num_threads(1)
    with stop_signals() as stopped:
        for config in configs():
            if _key(config) in curves or stopped():
                continue
            on_gpu = device.type == "cuda" and config.train.precision == "float32"
            trained = override(config, precision="tf32") if on_gpu else config
            folder = out / "curves" / run_id(trained)
            row_of = partial(answered, config.anchor_task)
            if curve := train(trained, folder, device, stopped, row_of):
                about = {"run_id": run_id(trained), "seed": config.seed}
                for part in (trained.model, trained.init, trained.train):
                    about |= {name: getattr(part, name) for name in _ABOUT if hasattr(part, name)}
                curves[_key(config)] = [{n: about[n] for n in _ABOUT} | row for row in curve]
                rows = [row for one in configs() for row in curves.get(_key(one), ())]
                write_csv(path, rows, list(rows[0]))


def _table(path: Path) -> dict[Key, list[Row]]:
    """The rows of a table as they stand there, by run."""
    kept: dict[Key, list[Row]] = {}
    for row in csv.DictReader(path.read_text().splitlines() if path.exists() else ()):
        about = (float(row[name]) for name in ("n_layers", "gamma", "lr", "seed"))
        kept.setdefault(tuple(about), []).append(row)
    return kept
