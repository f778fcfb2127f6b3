"""Kill a training again and again at chosen moments, by fork: a helper, run as a script.

``python killed_training.py FOLDER KILLS SEED`` trains a short run in FOLDER/run. Each attempt is a
forked process that is killed with SIGKILL: every second one by itself in the middle of a write (of
a checkpoint's file, between its files, before or after its rename, in a line of metrics, while an
old checkpoint is removed), the others by the parent after a random time. After KILLS kills it dies
while the final checkpoint is judged and before the result is written; then the run is finished
undisturbed. Prints a JSON line: where each attempt died.

The parent imports everything once and never computes, so that a fork is cheap and safe.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from short import SHORT

import anchor_interp
from anchor_interp._util import files
from anchor_interp.runs import store
from anchor_interp.runs import train as session

SETTINGS = SHORT | {
    "steps": 1600,
    "log_every": 10,
    "eval_every": 200,
    "checkpoint_every": 40,
}


def config() -> anchor_interp.RunConfig:
    return anchor_interp.preset("tiny", **SETTINGS)


def die(place: str, log: Path) -> None:
    with open(log, "a", encoding="utf-8") as file:
        file.write(place + "\n")
    os.kill(os.getpid(), signal.SIGKILL)


def arm(place: str, countdown: int, log: Path) -> None:
    """Make the countdown-th visit of a place in the store fatal."""
    left = [countdown]

    def due() -> bool:
        left[0] -= 1
        return left[0] == 0

    if place == "half a file":
        whole = files.write_bytes

        def half(path: Path, data: bytes) -> None:
            if due():
                path.write_bytes(data[: len(data) // 2])
                die(f"{place}: {path.parent.name}/{path.name}", log)
            whole(path, data)

        files.write_bytes = half
    elif place == "half a line of metrics":
        append = store.RunWriter.append_metrics

        def half_line(self: store.RunWriter, row: dict[str, Any]) -> None:
            if due():
                with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
                    file.write(json.dumps(row)[:25])
                die(place, log)
            append(self, row)

        store.RunWriter.append_metrics = half_line  # type: ignore[method-assign]
    elif place in ("before a rename", "after a rename"):
        _around(Path, "rename", place, due, log)
    elif place == "before thinning out":
        _around(store.RunWriter, "thin_out", place, due, log)
    elif place == "before the result":
        _around(store.RunWriter, "finish", place, due, log)
    elif place == "in the final judging":
        _around(session, "evaluate", place, due, log)
    else:
        raise ValueError(place)


def _around(owner: Any, name: str, place: str, due: Callable[[], bool], log: Path) -> None:
    original = getattr(owner, name)

    def wrapped(*args: Any, **settings: Any) -> Any:
        fatal = due()
        if fatal and place.startswith("before"):
            die(place, log)
        result = original(*args, **settings)
        if fatal:
            die(place, log)
        return result

    setattr(owner, name, wrapped)


PLACES = (
    "half a file",
    "half a line of metrics",
    "before a rename",
    "after a rename",
    "before thinning out",
)


def attempt(out: Path, log: Path, fault: tuple[str, int] | None) -> int:
    """Fork a process that trains, perhaps with a fault; returns its id."""
    process = os.fork()
    if process == 0:
        try:
            torch.set_num_threads(1)
            if fault:
                arm(*fault, log)
            session.train(config(), out, device="cpu", threads=1, quiet=True)
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    return process


def _wait_for_lines(path: Path, more: int) -> None:
    """Wait until a file has grown by some lines: steps done, however fast the machine is."""

    def lines() -> int:
        return path.read_bytes().count(b"\n") if path.exists() else 0

    start, deadline = lines(), time.monotonic() + 60
    while lines() < start + more and time.monotonic() < deadline:
        time.sleep(0.002)


def main(folder: Path, kills: int, seed: int) -> None:
    out, log, chance = folder / "run", folder / "deaths", random.Random(seed)
    log.touch()
    done = 0
    while done < kills:
        fault = (PLACES[done // 2 % len(PLACES)], chance.randint(1, 4)) if done % 2 == 0 else None
        process = attempt(out, log, fault)
        if fault is None:
            _wait_for_lines(out / "metrics.jsonl", chance.randint(1, 4))
            time.sleep(chance.uniform(0, 0.02))
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            raise SystemExit("an attempt failed instead of being killed")
        if os.WIFSIGNALED(status):
            done += 1
            if fault is None:
                with open(log, "a", encoding="utf-8") as file:
                    file.write("at a random time\n")
        elif (out / "result.json").exists():
            break
    for place in ("in the final judging", "before the result"):
        _, status = os.waitpid(attempt(out, log, (place, 1)), 0)
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"the attempt to die {place} survived")
    _, status = os.waitpid(attempt(out, log, None), 0)
    if status:
        raise SystemExit("the last attempt failed")
    print(json.dumps(log.read_text(encoding="utf-8").splitlines()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
