"""What a worker process of any engine does with a job: train its runs, then measure them."""

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path

from anchor_interp._util.errors import AnchorInterpError, InterruptedRunError
from anchor_interp.runs.measurements import measure_run
from anchor_interp.sweeps.engine import Job, RunResult


def do_job(job: Job, folder: Path, *, device: str, threads: int) -> Iterator[RunResult]:
    """Train the runs of a job and measure them, in this process.

    Finished runs are measured at once. Measurements are made on the CPU.

    Args:
        job: the runs.
        folder: where their folders are.
        device: where they train.
        threads: CPU threads of this process.

    Returns:
        An iterator of one result for each run as it ends. If a measurement fails, its error is the
        run's. If a batch fails, every unfinished run of it gets its error.

    Raises:
        InterruptedRunError: SIGINT or SIGTERM; the runs are checkpointed first.
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
    from anchor_interp.sweeps.batch import train_batch

    left = dict.fromkeys(job.configs)
    try:
        if len(job.configs) > 1:
            batch = train_batch(job.configs, folder, device=device, threads=threads)
            with contextlib.closing(batch) as results:
                for result in results:
                    del left[result.name]
                    yield result
        else:
            ((name, config),) = job.configs.items()
            train(config, folder / name, device=device, threads=threads, quiet=True)
            del left[name]
            yield RunResult(name, folder / name, None)
    except InterruptedRunError:
        raise
    except AnchorInterpError as error:
        for name in left:
            yield RunResult(name, folder / name, error)
