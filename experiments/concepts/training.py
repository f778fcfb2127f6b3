"""What training on pictures minimises, and what a trained network draws.

Training minimises the mean squared error of the predicted noise (Ho, Jain and Abbeel 2020, equation
14).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from anchor_interp import ConfigError, Dataset, RunConfig
from anchor_interp._util.schema import checked
from anchor_interp.models.number_checks import check_finite
from anchor_interp.runs.loop import Objective
from anchor_interp.tasks.hashing import batch_indices, random_integers, stream_key

from .diffusion import noised, sample_pictures
from .pictures import Pictures, as_tensor
from .unet import UNet

if TYPE_CHECKING:
    from .task import Concepts

_AT_ONCE = 64  # drawings


@dataclass(frozen=True)
class NoisyBatch:
    """Noisy pictures of one step on the training device, and the noise to predict."""

    noisy: Float[Tensor, "batch 3 row column"]
    times: Float[Tensor, " batch"]
    """t / T."""
    cond: Float[Tensor, "batch width"]
    noise: Float[Tensor, "batch 3 row column"]


class DiffusionObjective(Objective):
    """Mean squared error of the noise; pictures, times and noise depend on (seed, step) alone."""

    def __init__(
        self, config: RunConfig, training: Dataset, pictures: Pictures, device: torch.device
    ) -> None:
        self.training, self._device = training, device
        self._seed, self._batch_size = config.seed, config.train.batch_size
        model: Any = config.model
        self._n_timesteps = model.n_times
        self._pixels = torch.from_numpy(pictures.pixels).to(device)
        self._cond = torch.from_numpy(pictures.conditions).to(device)

    def batch(self, step: int) -> NoisyBatch:
        """The batch of a step."""
        size, seed, n_timesteps = self._batch_size, self._seed, self._n_timesteps
        rows = torch.from_numpy(batch_indices(step, size, len(self.training), seed=seed))
        rows = rows.to(self._device)
        drawn = random_integers(size, n_timesteps, seed=seed, stream=f"t-{step}")
        times = torch.from_numpy(1 + drawn)
        noise = _normal((size, *self._pixels.shape[1:]), seed, f"noise-{step}").to(self._device)
        pictures = self._pixels[rows].float() / 127.5 - 1
        noisy = noised(pictures, noise, times.to(self._device), n_timesteps)
        shares = (times / n_timesteps).float().to(self._device)
        return NoisyBatch(noisy, shares, self._cond[rows], noise)

    def parts(self, step: int) -> Sequence[NoisyBatch]:
        """The batch, whole."""
        return (self.batch(step),)

    def loss(self, module: UNet, batch: NoisyBatch) -> Float[Tensor, ""]:
        """The mean squared error over pictures and pixels."""
        return F.mse_loss(module(batch.noisy, batch.times, batch.cond).float(), batch.noise)


def draw(
    network: Any,
    task: "Concepts",
    nodes: Int[np.ndarray, "n attribute"],
    *,
    seed: int = 0,
    stream: str = "draw",
) -> Float[Tensor, "n 3 row column"]:
    """What a network draws of nodes: -1 to 1, on the CPU, the same for the same seed and stream.

    Raises:
        ConfigError: the network is not a U-Net of the task's pictures, or draws what is not finite.
    """
    model = checked(network, UNet, "model").cfg
    if (model.d_image, model.d_told) != (task.pixels, task.widths):
        raise ConfigError(
            f"the model draws pictures of {model.d_image} pixels with conditions of "
            f"{model.d_told}; the task has {task.pixels} and {task.widths}"
        )
    cond = torch.from_numpy(task.conditions(nodes)).to(next(network.parameters()))
    parts = [torch.empty(0, 3, task.pixels, task.pixels, dtype=torch.float32)]
    for start in range(0, len(cond), _AT_ONCE):
        generator = _generator(seed, f"{stream}/{start}")
        shape = {"side": model.d_image, "n_timesteps": model.n_times}
        part = cond[start : start + _AT_ONCE]
        parts.append(sample_pictures(network, part, **shape, generator=generator).cpu())
    return check_finite(torch.cat(parts), "the model's drawings").clamp(-1, 1).float()


@torch.no_grad()
def noise_loss(network: UNet, real: Pictures, *, seed: int, stream: str) -> float:
    """The mean squared error of the noise in real pictures at random times."""
    pictures, cond = as_tensor(real.pixels), torch.from_numpy(real.conditions)
    n, n_timesteps, weight = len(pictures), network.cfg.n_times, next(network.parameters())
    times = torch.from_numpy(1 + random_integers(n, n_timesteps, seed=seed, stream=f"t/{stream}"))
    noise = _normal(pictures.shape, seed, f"noise/{stream}")
    noisy = noised(pictures, noise, times, n_timesteps)
    shares, total = (times / n_timesteps).float(), 0.0
    for rows in (slice(start, start + _AT_ONCE) for start in range(0, n, _AT_ONCE)):
        predicted = network(*(part[rows].to(weight) for part in (noisy, shares, cond))).cpu()
        total += float((predicted.double() - noise[rows]).square().mean((1, 2, 3)).sum())
    return total / n


def _normal(shape: Sequence[int], seed: int, stream: str) -> Tensor:
    generator = _generator(seed, stream)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float32)


def _generator(seed: int, stream: str) -> torch.Generator:
    """A generator of its own on the CPU; manual_seed takes 63 bits."""
    return torch.Generator().manual_seed(int(stream_key(seed, f"diffusion/{stream}")) >> 1)
