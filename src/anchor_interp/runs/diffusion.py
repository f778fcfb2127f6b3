"""Runs that draw pictures: what their training minimises, and how drawings are judged.

Training minimises the mean squared error of the predicted noise (Ho, Jain and Abbeel 2020, equation
14). A drawing of a node is right if the judge (:mod:`anchor_interp.models.judge`) reads all of the
node's attributes off it, and is sure of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.models.finite import check_finite
from anchor_interp.models.judge import as_tensor, judge_of
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.models.unet import UNet, noised, sample
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.loop import Objective
from anchor_interp.tasks.concepts import Concepts
from anchor_interp.tasks.examples import Examples
from anchor_interp.tasks.hashing import batch_indices, random_integers, stream_key
from anchor_interp.tasks.task import Task

MOST_DRAWN = 256
"""Most drawings of a split in an evaluation: each takes a pass for every time of the diffusion."""
_AT_ONCE = 64  # drawings


@dataclass(frozen=True)
class NoisyBatch:
    """Noisy pictures of one step on the training device, and the noise to predict."""

    noisy: Float[Tensor, "batch 3 row column"]
    times: Float[Tensor, " batch"]
    """t / T."""
    told: Float[Tensor, "batch width"]
    noise: Float[Tensor, "batch 3 row column"]


class DiffusionObjective(Objective):
    """Mean squared error of the noise; pictures, times and noise depend on (seed, step) alone."""

    def __init__(self, config: RunConfig, training: Examples, device: torch.device) -> None:
        assert config.pictures is not None
        task, self._model = config.pictures
        self.training, self._device = training, device
        self._seed, self._batch_size = config.seed, config.train.batch_size
        found = task.pictures(task.nodes(training), seed=config.seed, stream="train")
        self._pixels = torch.from_numpy(found.pixels).to(device)
        self._told = torch.from_numpy(found.conditions).to(device)

    def batch(self, step: int) -> NoisyBatch:
        """The batch of a step."""
        size, seed, n_times = self._batch_size, self._seed, self._model.n_times
        rows = torch.from_numpy(batch_indices(step, size, len(self.training), seed=seed))
        rows = rows.to(self._device)
        times = torch.from_numpy(1 + random_integers(size, n_times, seed=seed, stream=f"t-{step}"))
        noise = _normal((size, *self._pixels.shape[1:]), seed, f"noise-{step}").to(self._device)
        pictures = self._pixels[rows].float() / 127.5 - 1
        noisy = noised(pictures, noise, times.to(self._device), n_times)
        shares = (times / n_times).float().to(self._device)
        return NoisyBatch(noisy, shares, self._told[rows], noise)

    def parts(self, step: int) -> Sequence[NoisyBatch]:
        """The batch, whole."""
        return (self.batch(step),)

    def loss(self, module: UNet, batch: NoisyBatch) -> Float[Tensor, ""]:
        """The mean squared error over pictures and pixels."""
        return F.mse_loss(module(batch.noisy, batch.times, batch.told).float(), batch.noise)


def draw(
    model: HookedTransformer | UNet,
    task: Concepts,
    nodes: Int[np.ndarray, "n attribute"],
    *,
    seed: int = 0,
    stream: str = "draw",
) -> Float[Tensor, "n 3 row column"]:
    """What a model draws of nodes: -1 to 1, on the CPU, the same for the same seed and stream.

    Raises:
        ConfigError: the model is not a U-Net of the task's pictures, or draws what is not finite.
    """
    network: UNet = checked(model, UNet, "model")
    checked(task, Concepts, "task")
    if (network.cfg.d_image, network.cfg.d_told) != (task.pixels, task.widths):
        raise ConfigError(
            f"the model draws pictures of {network.cfg.d_image} pixels and is told "
            f"{network.cfg.d_told}; the task has {task.pixels} and {task.widths}"
        )
    told = torch.from_numpy(task.conditions(nodes)).to(next(network.parameters()))
    parts = [torch.empty(0, 3, task.pixels, task.pixels, dtype=torch.float32)]
    for start in range(0, len(told), _AT_ONCE):
        generator = _generator(seed, f"{stream}/{start}")
        side, n_times = network.cfg.d_image, network.cfg.n_times
        part = told[start : start + _AT_ONCE]
        parts.append(sample(network, part, side=side, n_times=n_times, generator=generator).cpu())
    return check_finite(torch.cat(parts), "the model's drawings").clamp(-1, 1).float()


def as_pixels(pictures: Float[Tensor, "n 3 row column"]) -> UInt8[np.ndarray, "n 3 row column"]:
    """Pictures of -1 to 1 as 0 to 255."""
    found: UInt8[np.ndarray, "n 3 row column"] = (
        ((pictures.clamp(-1, 1) + 1) * 127.5).round().byte().numpy()
    )
    return found


def right_attributes(
    model: UNet, task: Task, examples: Examples, *, seed: int, stream: str
) -> Bool[np.ndarray, "n attribute"]:
    """Which attributes the judge reads off a drawing of each example's node as they should be."""
    concepts: Concepts = checked(task, Concepts, "the task of a U-Net")
    nodes = concepts.nodes(examples)
    found = draw(model, concepts, nodes, seed=seed, stream=stream)
    return judge_of(concepts).right(found, nodes)


@torch.no_grad()
def noise_loss(model: UNet, task: Concepts, examples: Examples, *, seed: int, stream: str) -> float:
    """The loss on fresh real pictures of the examples' nodes."""
    real = task.pictures(task.nodes(examples), seed=seed, stream=stream)
    n, n_times, weight = len(examples), model.cfg.n_times, next(model.parameters())
    times = torch.from_numpy(1 + random_integers(n, n_times, seed=seed, stream=f"t/{stream}"))
    noise = _normal((n, 3, task.pixels, task.pixels), seed, f"noise/{stream}")
    noisy = noised(as_tensor(real.pixels), noise, times, n_times)
    told, shares, total = torch.from_numpy(real.conditions), (times / n_times).float(), 0.0
    for rows in (slice(start, start + _AT_ONCE) for start in range(0, n, _AT_ONCE)):
        found = model(*(part[rows].to(weight) for part in (noisy, shares, told))).cpu()
        total += float((found.double() - noise[rows]).square().mean((1, 2, 3)).sum())
    return total / n


def _normal(shape: Sequence[int], seed: int, stream: str) -> Tensor:
    generator = _generator(seed, stream)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float32)


def _generator(seed: int, stream: str) -> torch.Generator:
    """A generator of its own on the CPU; manual_seed takes 63 bits."""
    return torch.Generator().manual_seed(int(stream_key(seed, f"diffusion/{stream}")) >> 1)
