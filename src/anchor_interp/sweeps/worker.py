"""What a worker process of any engine does with a job: train its runs, then measure them."""

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path

from anchor_interp._util.errors import AnchorInterpError, InterruptedRunError
from anchor_interp.runs.measurements import measure_run
from anchor_interp.sweeps.engine import Job, RunResult


def do_job(job: Job, folder: Path, *, device: str, threads: int) -> Iterator[RunResult]:
    """Train the runs of a job and measure them, in this process.

    A run that is done already is measured at once. A measurement that fails is the run's error.
    Measurements are made on the CPU.

    Args:
        job: the runs.
        folder: where their folders go.
        device: where they train.
        threads: CPU threads of this process.

    Returns:
        An iterator of one result a run as it ends.

    Raises:
        InterruptedRunError: SIGINT or SIGTERM; the runs were checkpointed first.
    """
    from anchor_interp._util.environment import limited_threads  # it loads torch

    with contextlib.closing(_train(job, folder, device, threads)) as results:
        for result in results:
            error = result.error
            if error is None and job.measures:
                try:
                    with limited_threads(threads):
                        measure_run(result.path, job.measures)
                except InterruptedRunError:
                    raise
                except AnchorInterpError as failure:
                    error = failure
            yield RunResult(result.name, result.path, error)


def _train(job: Job, folder: Path, device: str, threads: int) -> Generator[RunResult, None, None]:
    from anchor_interp.runs.train import train

    if len(job.configs) > 1:
        yield from _train_together(job, folder, device, threads)
        return
    for name, config in job.configs.items():
        path = folder / name
        try:
            train(config, path, device=device, threads=threads, quiet=True)
        except InterruptedRunError:
            raise
        except AnchorInterpError as error:
            yield RunResult(name, path, error)
        else:
            yield RunResult(name, path, None)


def _train_together(job: Job, folder: Path, device: str, threads: int) -> Iterator[RunResult]:
    """Train the runs as a batch; what befalls all is the result of those that have none."""
    from anchor_interp.sweeps.batch import train_batch

    left = dict.fromkeys(job.configs)
    try:
        results = train_batch(job.configs, folder, device=device, threads=threads)
        with contextlib.closing(results):
            for result in results:
                del left[result.name]
                yield result
    except InterruptedRunError:
        raise
    except AnchorInterpError as error:
        for name in left:
            yield RunResult(name, folder / name, error)
