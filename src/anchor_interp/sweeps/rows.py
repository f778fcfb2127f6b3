"""The row of one run in a sweep's table, from its configuration and the files of its run folder."""

import contextlib
import math
from datetime import datetime
from pathlib import Path

from anchor_interp._util import files
from anchor_interp._util.errors import StoreError
from anchor_interp._util.rounding import decimal
from anchor_interp._util.schema import from_dict
from anchor_interp.analysis.fingerprint_numbers import kept_fingerprint
from anchor_interp.behaviour.phase import Evaluation
from anchor_interp.models.shapes import ModelConfig
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.measurements import kept_columns
from anchor_interp.runs.schedule import last_step, total_decay
from anchor_interp.runs.store import RunFolder
from anchor_interp.sweeps.columns import (
    ALONG,
    ANCHORS,
    CELLS,
    CIRCUMSTANCES,
    COLUMNS,
    LAST_SESSION,
    MEASURED,
    MECHANISM,
    OF_MODEL,
    OF_TASK,
    OWN,
    TASK_SETTINGS,
    VERSIONS,
    RunStatus,
    TableRow,
    kind_of,
)
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.catalog import NAMED_TASKS, task_name
from anchor_interp.tasks.task import Task, plain_fields


def planned_row(name: str, config: RunConfig) -> TableRow:
    """The row of a run that has not started."""
    row: TableRow = dict.fromkeys(COLUMNS)
    row |= {"run_id": name, "task": task_name(config.task), "seed": config.seed}
    row |= _task_columns(config.task)
    prefix = "" if isinstance(config.model, ModelConfig) else OF_MODEL
    row |= {prefix + name: value for name, value in plain_fields(config.model).items()}
    for part in (config.init, config.train):
        row |= {name: decimal(value) for name, value in vars(part).items() if name in COLUMNS}
    pieces = (f"{step} {lr:.15g} {decay:.15g}" for step, lr, decay in config.train.schedule)
    schedule = "; ".join(pieces) or None
    return row | {"schedule": schedule, "total_decay": total_decay(config.train)}


def _task_columns(task: Task) -> TableRow:
    """A task's plain fields: in the columns that tasks share, if they fit, else in their own."""
    row: TableRow = {}
    for name, value in ({"length": task.length} | plain_fields(task)).items():
        shared = name in TASK_SETTINGS and kind_of([value]) in (COLUMNS[name], None)
        row[name if shared else OF_TASK + name] = value
    if isinstance(task, AnchorTask) and task_name(task) not in NAMED_TASKS:
        row[ANCHORS] = ", ".join(f"{each.token}: {each.function}" for each in task.anchors)
    return row


def updated_row(row: TableRow, run: Path, state: RunStatus, error: str | None) -> TableRow:
    """A row, brought up to date with its run's folder.

    ``error`` is why the run did not end. A finished run's row stays as it is while ``result.json``
    and ``measurements.json`` are the same files.
    """
    if state == "missing" and row["status"] == "missing":
        return row
    result = run / "result.json"
    written = {
        "result_ns": _written(result) if state == "done" else None,
        "fingerprint_ns": _written(run / "measurements.json"),
    }
    if state == "done" and row["status"] == "done" and written.items() <= row.items():
        return row
    numbers = (*MEASURED, *ALONG, *CELLS, *MECHANISM, *CIRCUMSTANCES)
    derived = ("error", "phase", "reason", "fitted_step", *numbers)
    row = {key: value for key, value in row.items() if key in COLUMNS or key.startswith(OWN)}
    row |= dict.fromkeys(derived) | {"status": state, "error": error, "censored": True} | written
    if state != "missing":
        row |= _circumstances(run)
    if state != "done":
        return row
    try:
        read = _result(run, row["run_id"])
        last = last_step(row["steps"], read["fitted_step"])
        return row | _measured(run, last) | _along_training(run) | read
    except StoreError as problem:
        return row | {"status": "failed", "error": str(problem)}
    except (LookupError, TypeError, ValueError) as problem:
        return row | {"status": "failed", "error": f"{result} is damaged ({problem}); remove it"}


def _result(run: Path, name: str) -> TableRow:
    """The phase and the measurements of a finished run."""
    if (result := RunFolder(run).result()) is None:
        raise StoreError(f"the result.json of {run} has vanished; give the same command again")
    if result["run_id"] != name:
        raise ValueError(f"it belongs to the run {result['run_id']!r:.40}")
    evaluation = from_dict(Evaluation, result["evaluation"])
    about: TableRow = {name: str(result[name]) for name in ("phase", "reason")}
    about["censored"] = about["phase"] == "undertrained"
    about["fitted_step"] = result.get("fitted_step")
    if about["fitted_step"] is not None:
        about["total_decay"] = result["total_decay"]  # up to its end, before the most steps
    about |= {key: getattr(evaluation, key) for key in MEASURED}
    return about | {key: getattr(evaluation.cells, key) for key in CELLS}


def _along_training(run: Path) -> TableRow:
    """The best along training; empty if the metrics are damaged, which costs no other number."""
    curves = {name: name.removeprefix("best_") for name in ALONG}
    with contextlib.suppress(StoreError):
        metrics = RunFolder(run).metrics()
        return {
            name: max((row[curve] for row in metrics if curve in row), default=None)
            for name, curve in curves.items()
        }
    return {}


def _measured(run: Path, step: int) -> TableRow:
    """The numbers of the mechanism and a user's own measures, as far as the run keeps them."""
    row: TableRow = dict(kept_columns(run))
    if (fingerprint := kept_fingerprint(run, step)) is not None:
        row |= {name: getattr(fingerprint, name) for name in MECHANISM}
    return row


def _written(path: Path) -> int | None:
    """When a file was written, in nanoseconds; None if it does not exist."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return None


def _circumstances(run: Path) -> TableRow:
    """The :data:`CIRCUMSTANCES` of a run; empty if its provenance is damaged."""
    with contextlib.suppress(StoreError, LookupError, TypeError, ValueError):
        sessions = files.read_json(run / "provenance.json")["sessions"]
        last = sessions[-1]
        ended = [session for session in sessions if "ended" in session]
        times = [map(datetime.fromisoformat, (one["ended"], one["started"])) for one in ended]
        spans = [(end - start).total_seconds() for end, start in times]
        is_known = spans and min(spans) >= 0  # else the clock was set back during a session
        return {
            "seconds": math.fsum(spans) if is_known else None,
            "sessions": len(sessions),
            "started": sessions[0]["started"],
            "ended": last.get("ended"),
            **{key: last[key] for key in LAST_SESSION},
            **{key: last["versions"][key.replace("_", "-")] for key in VERSIONS},
        }
    return {}
