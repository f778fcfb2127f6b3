"""An engine that trains in the process of the test."""

import time
from collections.abc import Generator, Iterator
from pathlib import Path

from anchor_interp.sweeps.engine import Job, RunResult
from anchor_interp.sweeps.worker import do_job


class Here:
    """Runs jobs in this process, one after the other."""

    device = "cpu"

    def __init__(self) -> None:
        self.done: list[str] = []

    def run(
        self, jobs: Iterator[Job | None], folder: Path, *_: object
    ) -> Generator[RunResult, None, None]:
        """Run jobs; ``done`` lists the configurations in their order."""
        for job in jobs:
            if job is None:
                time.sleep(0.01)
                continue
            self.done += job.configs
            yield from self.do(job, folder)

    def do(self, job: Job, folder: Path) -> Iterator[RunResult]:
        """Run a job."""
        yield from do_job(job, folder, device="cpu", threads=1)
