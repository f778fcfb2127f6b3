"""The diffusion of pictures (DDPM): noise is added step by step, and taken away by a network.

Ho, Jain and Abbeel (NeurIPS 2020): with alpha_t = 1 - beta_t and abar_t = prod alpha_s,

    x_t     = sqrt(abar_t) x_0 + sqrt(1 - abar_t) noise
    x_(t-1) = (x_t - beta_t / sqrt(1 - abar_t) noise(x_t, t)) / sqrt(alpha_t) + sqrt(beta_t) z

for t = T ... 1, with z = 0 at t = 1. beta rises linearly from 0.05 / T to 10 / T, which is 1e-4 to
0.02 at the released code's T = 500: about 0.7 % of a picture's variance is left at the end.
"""

import functools
import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor


@functools.lru_cache(maxsize=8)
def betas(n_timesteps: int) -> Float[Tensor, " time"]:
    """Variance of the noise that each time 1 ... T adds; the first entry, of time 0, is 0."""
    rising = torch.linspace(0.05, 10, n_timesteps, dtype=torch.float64) / n_timesteps
    return torch.cat([torch.zeros(1, dtype=torch.float64), rising.clamp(max=0.999)])


def signal_left(n_timesteps: int) -> Float[Tensor, " time"]:
    """abar_t: the share of a picture's variance that is left at times 0 ... T."""
    return (1 - betas(n_timesteps)).cumprod(0)


def noised(
    pictures: Float[Tensor, "batch 3 row column"],
    noise: Float[Tensor, "batch 3 row column"],
    times: Int[Tensor, " batch"],
    n_timesteps: int,
) -> Float[Tensor, "batch 3 row column"]:
    """The pictures at times 0 ... T of the diffusion."""
    left = signal_left(n_timesteps).to(noise.device)[times][:, None, None, None]
    return left.sqrt().to(noise.dtype) * pictures + (1 - left).sqrt().to(noise.dtype) * noise


Denoiser = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Noisy pictures, t / T and their condition become the noise, as by :class:`concepts.unet.UNet`."""


@torch.no_grad()
def sample_pictures(
    denoiser: Denoiser,
    cond: Float[Tensor, "n width"],
    *,
    side: int,
    n_timesteps: int,
    generator: torch.Generator,
) -> Float[Tensor, "n 3 row column"]:
    """Draw a picture for each condition, from noise drawn on the CPU."""
    shape = len(cond), 3, side, side
    beta, left = betas(n_timesteps).tolist(), signal_left(n_timesteps).tolist()
    x = torch.randn(shape, generator=generator, dtype=torch.float32).to(cond)
    for t in range(n_timesteps, 0, -1):
        times = cond.new_full((len(cond),), t / n_timesteps)
        noise = denoiser(x, times, cond)
        x = (x - beta[t] / math.sqrt(1 - left[t]) * noise) / math.sqrt(1 - beta[t])
        if t > 1:
            noise = torch.randn(shape, generator=generator, dtype=torch.float32).to(cond)
            x = x + math.sqrt(beta[t]) * noise
    return x
