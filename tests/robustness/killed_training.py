"""Kill a training again and again at chosen moments: a helper, run as a script.

``python killed_training.py FOLDER KILLS SEED [PRESET]`` trains a short run of a preset (tiny unless
given) in FOLDER/run. Each attempt is a
forked process that dies by SIGKILL. Every second one kills itself in the middle of a write: in a
file, in a line of metrics, before or after a rename, before old checkpoints are removed. The parent
kills the others after a random time. After KILLS kills, one attempt dies while the final checkpoint
is judged and one before the result is written; the last one finishes the run. The script prints
where each attempt died, as a JSON list.

The parent imports everything once and computes nothing, so that a fork is cheap and safe.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from short import SHORT, wait_for_lines

import anchor_interp
from anchor_interp._util import files
from anchor_interp.realistic import cogs, cogs_corpus
from anchor_interp.runs import session
from anchor_interp.runs.config import override
from anchor_interp.runs.store import RunWriter
from concepts import PRESETS, Concepts

SETTINGS = SHORT | {"steps": 480, "log_every": 3, "eval_every": 60, "checkpoint_every": 12}


_OF_SEQUENCES = {
    "steps": 120,
    "log_every": 2,
    "eval_every": 60,
    "checkpoint_every": 4,
    "batch_size": 8,
}
"""Changes for a preset of sequences, whose steps take longer."""


_OF_PICTURES = {
    "task": Concepts(pixels=12), "d_image": 12, "n_features": 8, "n_times": 4,
    "n_sequences": 64, "batch_size": 8, "steps": 60, "log_every": 2, "eval_every": 20,
    "checkpoint_every": 4,
}  # fmt: skip
"""Changes for the preset ``concepts``."""


def config(preset: str = "tiny") -> anchor_interp.RunConfig:
    settings: dict[str, Any] = SETTINGS if preset == "tiny" else SETTINGS | _OF_SEQUENCES
    if preset == "concepts":
        return override(PRESETS[preset], **_OF_PICTURES)
    return anchor_interp.preset(preset, **settings)


@contextlib.contextmanager
def small_cogs() -> Iterator[None]:
    """Leave COGS few sentences: to draw all of them takes longer than a short training."""
    caches = (cogs_corpus.own_corpus, cogs._examples, cogs._types)
    few = {"TRAIN_ROWS": 600, "TEST_ROWS": 60, "ROWS_OF_TYPE": 2}
    with contextlib.ExitStack() as stack:
        for cache in caches:
            stack.callback(cache.cache_clear)
            cache.cache_clear()
        for module in (cogs, cogs_corpus):
            known: dict[str, Any] = {name: n for name, n in few.items() if hasattr(module, name)}
            stack.enter_context(patch.multiple(module, **known))
        yield


def die(place: str, log: Path) -> None:
    with open(log, "a", encoding="utf-8") as file:
        file.write(place + "\n")
    os.kill(os.getpid(), signal.SIGKILL)


def arm(place: str, countdown: int, log: Path) -> None:
    """Die at the countdown-th visit of a place."""
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
        append = RunWriter.append_metrics

        def half_line(self: RunWriter, row: dict[str, Any]) -> None:
            if due():
                with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
                    file.write(json.dumps(row)[:25])
                die(place, log)
            append(self, row)

        patch.object(RunWriter, "append_metrics", half_line).start()
    elif place in ("before a rename", "after a rename"):
        _around(Path, "rename", place, due, log)
    elif place == "before thinning out":
        _around(RunWriter, "thin_out", place, due, log)
    elif place == "before the result":
        _around(session, "to_dict", place, due, log)  # of the evaluation, for the result
    elif place == "in the final judging":
        _around(session, "evaluate_run", place, due, log)
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


PLACES = ("half a file", "half a line of metrics", "before a rename", "after a rename",
          "before thinning out")  # fmt: skip


def attempt(out: Path, log: Path, fault: tuple[str, int] | None, preset: str) -> int:
    """Fork a process that trains, with or without a fault; returns its id."""
    process = os.fork()
    if process == 0:
        try:
            torch.set_num_threads(1)
            if fault:
                arm(*fault, log)
            anchor_interp.train(config(preset), out, device="cpu", threads=1, quiet=True)
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    return process


def main(folder: Path, kills: int, seed: int, preset: str = "tiny") -> None:
    out, log, chance = folder / "run", folder / "deaths", random.Random(seed)
    log.touch()
    done = 0
    while done < kills:
        fault = (PLACES[done // 2 % len(PLACES)], chance.randint(1, 4)) if done % 2 == 0 else None
        process = attempt(out, log, fault, preset)
        if fault is None:
            wait_for_lines(out / "metrics.jsonl", chance.randint(1, 4), seconds=60)
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
        _, status = os.waitpid(attempt(out, log, (place, 1), preset), 0)
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"the attempt to die {place} survived")
    _, status = os.waitpid(attempt(out, log, None, preset), 0)
    if status:
        raise SystemExit("the last attempt failed")
    print(json.dumps(log.read_text(encoding="utf-8").splitlines()))


if __name__ == "__main__":
    with small_cogs():
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
