"""Train with two processes that share a step's rows: a helper, run as a script.

``python two_processes.py FOLDER WAY [KILLS]`` trains a short run in FOLDER/run by forked processes,
as accelerate would start them. WAY says what befalls them:

* ``whole``: nothing;
* ``killed``: both die by SIGKILL, KILLS times, after a random time; then two finish the run;
* ``stopped``: one gets SIGTERM, which stops both; one process finishes the run;
* ``alone``: one process does it all;
* ``refused``: two processes have a batch of one row;
* ``twice``: nothing, and they train the same run in FOLDER/other after it.

It prints the exit codes of all attempts as a JSON list.
"""

import importlib
import json
import os
import random
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import torch
from short import SHORT, wait_for_lines

import anchor_interp
from anchor_interp._util.errors import AnchorInterpError
from anchor_interp.realistic.corpus import Corpus

STEPS = 240


def config(texts: Path, batch_size: int = 9) -> anchor_interp.RunConfig:
    """Nine rows a step: the processes' shares differ."""
    settings = SHORT | {"steps": STEPS, "log_every": 4, "eval_every": 60, "checkpoint_every": 10}
    task = Corpus(source=f"folder:{texts}", length=32)
    return anchor_interp.preset(
        "language-tiny", task=task, n_ctx=32, **(settings | {"batch_size": batch_size})
    )


def start(
    folder: Path, size: int, batch_size: int = 9, names: tuple[str, ...] = ("run",)
) -> list[int]:
    """Fork the processes of a training; returns their ids."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    outs = [folder / name for name in names]
    return [_forked(outs, rank, size, port, batch_size) for rank in range(size)]


def _forked(outs: list[Path], rank: int, size: int, port: int, batch_size: int) -> int:
    process = os.fork()
    if process:
        return process
    try:
        torch.set_num_threads(1)
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        told |= {"MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in told.items()}
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        for out in outs:
            made = config(out.parent / "texts", batch_size)
            anchor_interp.train(made, out, device="cpu", threads=1, quiet=True)
        os._exit(0)
    except AnchorInterpError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(error.exit_code)
    except BaseException:
        traceback.print_exc()
        os._exit(99)


def codes(processes: list[int]) -> list[int]:
    """Wait for the processes."""
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]


def main(folder: Path, way: str, kills: int = 0) -> None:
    """Do it."""
    importlib.import_module("accelerate")  # here, so that forked processes need not load it
    chance, found, metrics = random.Random(0), [], folder / "run" / "metrics.jsonl"
    for _ in range(kills):
        running = start(folder, 2)
        wait_for_lines(metrics, chance.randint(2, 4))
        time.sleep(chance.uniform(0, 0.05))
        for process in chance.sample(running, 2):
            os.kill(process, signal.SIGKILL)
        found.append(codes(running))
    if way == "stopped":
        running = start(folder, 2)
        wait_for_lines(metrics, 8)
        os.kill(running[1], signal.SIGTERM)
        found.append(codes(running))
    size = 1 if way in ("alone", "stopped") else 2
    names = ("run", "other") if way == "twice" else ("run",)
    found.append(codes(start(folder, size, 1 if way == "refused" else 9, names)))
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
