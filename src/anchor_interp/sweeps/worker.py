"""What a worker process of any engine does with a job: train its runs, then measure them."""

import contextlib
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from anchor_interp._util.errors import AnchorInterpError, InterruptedRunError, error_of
from anchor_interp._util.schema import from_dict
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.measurements import Measure, measure_run
from anchor_interp.sweeps.engine import Job, RunResult


def read_job(data: Mapping[str, Any]) -> Job:
    """A job from its plain JSON values; ConfigError if a task of it is not known here."""
    configs = {name: from_dict(RunConfig, config) for name, config in data["configs"].items()}
    return Job(configs, tuple(from_dict(Measure, one) for one in data["measures"]))


def do_job(job: Job, folder: Path, *, device: str, threads: int) -> Iterator[RunResult]:
    """Train the runs of a job in this process, and measure each on the CPU once it is finished.

    If a measurement fails, its error is the run's. If a batch fails, every unfinished run of it
    gets its error. InterruptedRunError on SIGINT or SIGTERM; the runs are checkpointed first.
    """
    from anchor_interp._util.environment import limited_threads  # it loads torch

    def measure(path: Path) -> None:
        with limited_threads(threads):
            measure_run(path, job.measures)

    left = dict.fromkeys(job.configs)
    with contextlib.closing(_train(job, folder, device, threads)) as results:
        try:
            for result in results:
                error = result.error
                if error is None and job.measures:
                    error = error_of(measure, result.path)
                del left[result.name]
                yield RunResult(result.name, result.path, error)
        except InterruptedRunError:
            raise
        except AnchorInterpError as error:
            for name in left:
                yield RunResult(name, folder / name, error)


def _train(job: Job, folder: Path, device: str, threads: int) -> Generator[RunResult, None, None]:
    from anchor_interp.runs.train import train
    from anchor_interp.sweeps.batch import train_batch

    if len(job.configs) > 1:
        yield from train_batch(job.configs, folder, device=device, threads=threads)
    else:
        ((name, config),) = job.configs.items()
        train(config, folder / name, device=device, threads=threads, quiet=True)
        yield RunResult(name, folder / name, None)
