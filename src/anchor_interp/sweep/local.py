"""Many runs on this machine: one worker process per core, one thread each.

A worker that finds its parent gone asks its own training to stop, which checkpoints and leaves, so
killing the driver loses nothing and leaves no process behind.
"""

import concurrent.futures as futures
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchor_interp.config import RunConfig
from anchor_interp.errors import AnchorInterpError, ConfigError
from anchor_interp.progress import Progress

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class RunResult:
    """How one run of several ended."""

    name: str
    """Its name among the runs."""
    path: Path
    """Its folder."""
    error: AnchorInterpError | None
    """What went wrong; None for a finished run."""


def run_local(
    configs: Mapping[str, RunConfig],
    folder: Path,
    progress: Mapping[str, Progress],
    *,
    workers: int | None = None,
    device: str = "auto",
) -> Iterator[RunResult]:
    """Train runs side by side; each in ``folder / name``, resuming what is there.

    Args:
        configs: runs by name, started in this order.
        folder: where the run folders go.
        progress: what each run reports to.
        workers: processes at a time; the number of usable cores if None.
        device: where each run trains.

    Yields:
        One result per run as it ends; a failed run does not stop the others.

    Raises:
        ConfigError: fewer than one worker.
    """
    count = available_cores() if workers is None else workers
    if count < 1:
        raise ConfigError(f"workers is {count}; expected at least 1")
    with futures.ProcessPoolExecutor(
        max_workers=min(count, len(configs)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_leave_with_parent,
        initargs=(os.getpid(),),
    ) as pool:
        running = {
            pool.submit(_work, config, folder / name, device): name
            for name, config in configs.items()
        }
        try:
            while running:
                done, _ = futures.wait(running, _POLL_SECONDS, futures.FIRST_COMPLETED)
                for name in configs:
                    _report(folder / name, progress[name])
                for future in done:
                    name = running.pop(future)
                    yield RunResult(name, folder / name, _error_of(future))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list((pool._processes or {}).values()):
                process.terminate()  # SIGTERM: checkpoint and leave
            raise


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _work(config: RunConfig, path: Path, device: str) -> None:
    from anchor_interp.run import train  # torch is loaded in the workers only

    train(config, path, device=device, threads=1, quiet=True)


def _leave_with_parent(parent: int) -> None:
    """Send this process SIGTERM once its parent has died."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def _report(path: Path, progress: Progress) -> None:
    import json

    metrics = path / "metrics.jsonl"
    if not metrics.exists():
        return
    facts: dict[str, Any] = {}
    for line in metrics.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            facts.update(json.loads(line))
    if facts:
        progress.update(facts["step"], facts)


def _error_of(future: "futures.Future[None]") -> AnchorInterpError | None:
    error = future.exception()
    if error is None or isinstance(error, AnchorInterpError):
        return error
    if isinstance(error, Exception):
        return AnchorInterpError(f"{type(error).__name__}: {error}")
    raise error
