"""What tests share: a task with few keys, its exact models, random models, an engine in this
process, a watched page."""

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from anchor_interp.models.exact import Mechanism, Normalization, exact_model
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer import HookedTransformer, build_model
from anchor_interp.sweeps.engine import Job, RunResult
from anchor_interp.sweeps.worker import do_job
from anchor_interp.tasks.anchor import TASKS, AnchorTask

LAYOUTS: list[Normalization] = ["post", "pre"]
FEW_KEYS = AnchorTask(key_max=31, unseen=TASKS["complexity-control"].unseen)
"""The complexity-control task with 12 keys, which makes its exact models narrow."""


@lru_cache
def small_exact(mechanism: Mechanism, normalization: Normalization) -> HookedTransformer:
    """The exact model of :data:`FEW_KEYS`, shared by the tests: leave it as it is."""
    return exact_model(mechanism, FEW_KEYS, normalization=normalization)


def random_model(
    normalization: Normalization = "post",
    *,
    n_layers: int = 3,
    n_heads: int = 2,
    seed: int = 0,
) -> HookedTransformer:
    """A narrow model of random weights in double precision, whose edges all matter a little."""
    shape = ModelConfig(
        n_layers=n_layers, n_heads=n_heads, d_model=16, d_head=5, d_mlp=12,
        normalization=normalization, d_vocab=120, n_ctx=10, bias=True,
    )  # fmt: skip
    return build_model(shape, InitConfig(gamma=0.2), seed=seed, dtype=torch.float64)


def with_offsets(model: HookedTransformer, *, seed: int = 1) -> HookedTransformer:
    """The same model with random biases and LayerNorm gains and offsets, which start trivial."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".b" in name or ".w" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator))
    return model


class Here:
    """An engine that does its jobs in this process, one after the other."""

    device = "cpu"

    def __init__(self) -> None:
        self.done: list[str] = []

    def run(
        self, jobs: Iterator[Job | None], folder: Path, *_: object
    ) -> Generator[RunResult, None, None]:
        """Do jobs."""
        for job in jobs:
            if job is None:
                time.sleep(0.01)
                continue
            self.done += job.configs
            yield from self.do(job, folder)

    def do(self, job: Job, folder: Path) -> Iterator[RunResult]:
        """Do a job."""
        yield from do_job(job, folder, device="cpu", threads=1)


@dataclass
class Watched:
    """What a browser's page complains of and asks for."""

    page: Any
    """Playwright's page."""
    complaints: list[str] = field(default_factory=list)
    """Console messages, errors and dialogs."""
    requests: list[str] = field(default_factory=list)
    """Addresses asked for, its own among them."""

    def __post_init__(self) -> None:
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
