"""A conditional U-Net that predicts the noise in a picture, and its diffusion (DDPM).

The layers are those of the released code behind the complexity-control paper's figure 6: two levels
of down- and upsampling around a vector, residual blocks, and an embedding of the time and of each
attribute. The attributes' embeddings are added up and multiply the upward path, to which the time's
are added::

    up = Up([c * up + t, skip])

Its batch normalisation is a group normalisation here, so that a picture's answer does not depend on
the other pictures of its batch and a checkpoint is parameters alone.

Diffusion (Ho, Jain and Abbeel, NeurIPS 2020): with alpha_t = 1 - beta_t and abar_t = prod alpha_s,

    x_t     = sqrt(abar_t) x_0 + sqrt(1 - abar_t) noise
    x_(t-1) = (x_t - beta_t / sqrt(1 - abar_t) noise(x_t, t)) / sqrt(alpha_t) + sqrt(beta_t) z

for t = T ... 1, with z = 0 at t = 1. The last convolution gives the noise, as in the released code,
or the *velocity* v = sqrt(abar_t) noise - sqrt(1 - abar_t) x_0 (Salimans and Ho, ICLR 2022),
from which noise = sqrt(1 - abar_t) x_t + sqrt(abar_t) v. A network that gives the noise has to copy
the mean of x_t over all pixels, of which the loss hardly tells: until it does, it draws on grounds
of any colour. beta rises linearly from 0.05 / T to 10 / T, which is 1e-4 to
0.02 at the released code's T = 500: about 0.7 % of a picture's variance is left at the end.
"""

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from anchor_interp.models.shapes import UNetConfig

_GROUPS = 8


class UNet(nn.Module):
    """Predicts the noise in noisy pictures, given their time and what was told of them."""

    def __init__(self, cfg: UNetConfig) -> None:
        super().__init__()
        self.cfg = cfg
        n, inside = cfg.n_features, cfg.d_image // 4
        self.first = Residual(3, n, skip=True)
        self.down1, self.down2 = Residual(n, n), Residual(n, 2 * n)
        self.widen = nn.ConvTranspose2d(2 * n, 2 * n, inside, inside)
        self.norm = nn.GroupNorm(_GROUPS, 2 * n)
        self.time1, self.time2 = Embedding(1, 2 * n), Embedding(1, n)
        self.told1 = nn.ModuleList(Embedding(width, 2 * n) for width in cfg.d_told)
        self.told2 = nn.ModuleList(Embedding(width, n) for width in cfg.d_told)
        self.up1, self.up2 = Up(4 * n, n), Up(2 * n, n)
        self.last = nn.Conv2d(2 * n, n, 3, padding=1)
        self.last_norm = nn.GroupNorm(_GROUPS, n)
        self.out = nn.Conv2d(n, 3, 3, padding=1)

    def forward(
        self,
        noisy: Float[Tensor, "batch 3 row column"],
        times: Float[Tensor, " batch"],
        told: Float[Tensor, "batch width"],
    ) -> Float[Tensor, "batch 3 row column"]:
        """The noise; ``times`` are t / T, from 0 to 1."""
        time = times[:, None]
        x = self.first(noisy)
        half = F.max_pool2d(self.down1(x), 2)
        quarter = F.max_pool2d(self.down2(half), 2)
        inner = F.gelu(F.avg_pool2d(quarter, self.cfg.d_image // 4))  # a vector for each picture
        up = F.relu(self.norm(self.widen(inner)))
        up = self.up1(_sum(self.told1, told, self.cfg) * up + self.time1(time), quarter)
        up = self.up2(_sum(self.told2, told, self.cfg) * up + self.time2(time), half)
        out: Tensor = self.out(F.relu(self.last_norm(self.last(torch.cat([up, x], 1)))))
        if self.cfg.predicts == "noise":
            return out
        left = kept(self.cfg.n_times).to(noisy)[(times * self.cfg.n_times).round().long()]
        left = left[:, None, None, None]
        return (1 - left).sqrt() * noisy + left.sqrt() * out


class Residual(nn.Module):
    """Two convolutions; with ``skip``, the first one's output is added to the second's."""

    def __init__(self, d_in: int, d_out: int, *, skip: bool = False) -> None:
        super().__init__()
        self.skip = skip
        self.conv1, self.norm1 = nn.Conv2d(d_in, d_out, 3, padding=1), nn.GroupNorm(_GROUPS, d_out)
        self.conv2, self.norm2 = nn.Conv2d(d_out, d_out, 3, padding=1), nn.GroupNorm(_GROUPS, d_out)

    def forward(self, x: Tensor) -> Tensor:
        """Features of the same height and width."""
        one = F.gelu(self.norm1(self.conv1(x)))
        two = F.gelu(self.norm2(self.conv2(one)))
        return one + two if self.skip else two


class Up(nn.Module):
    """Doubles height and width of features beside those of the downward path."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.widen = nn.ConvTranspose2d(d_in, d_out, 2, 2)
        self.block1, self.block2 = Residual(d_out, d_out), Residual(d_out, d_out)

    def forward(self, x: Tensor, beside: Tensor) -> Tensor:
        """Features of twice the height and width."""
        found: Tensor = self.block2(self.block1(self.widen(torch.cat([x, beside], 1))))
        return found


class Embedding(nn.Module):
    """A vector of features, the same at every pixel, for a few numbers."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(d_in, d_out), nn.Linear(d_out, d_out)

    def forward(self, x: Float[Tensor, "batch d_in"]) -> Float[Tensor, "batch d_out 1 1"]:
        """One vector for each row."""
        found: Tensor = self.two(F.gelu(self.one(x)))
        return found[:, :, None, None]


def _sum(embeddings: nn.ModuleList, told: Tensor, cfg: UNetConfig) -> Tensor:
    total, start = torch.zeros((), dtype=told.dtype, device=told.device), 0
    for embed, width in zip(embeddings, cfg.d_told, strict=True):
        total = total + embed(told[:, start : start + width])
        start += width
    return total


@functools.lru_cache(maxsize=8)
def betas(n_times: int) -> Float[Tensor, " time"]:
    """Variance of the noise that each time 1 ... T adds; the first entry, of time 0, is 0."""
    rising = torch.linspace(0.05, 10, n_times, dtype=torch.float64) / n_times
    return torch.cat([torch.zeros(1, dtype=torch.float64), rising.clamp(max=0.999)])


def kept(n_times: int) -> Float[Tensor, " time"]:
    """abar_t: the share of a picture's variance that is left at times 0 ... T."""
    return (1 - betas(n_times)).cumprod(0)


def noised(
    pictures: Float[Tensor, "batch 3 row column"],
    noise: Float[Tensor, "batch 3 row column"],
    times: Int[Tensor, " batch"],
    n_times: int,
) -> Float[Tensor, "batch 3 row column"]:
    """The pictures at times 0 ... T of the diffusion."""
    left = kept(n_times).to(noise.device)[times][:, None, None, None]
    return left.sqrt().to(noise.dtype) * pictures + (1 - left).sqrt().to(noise.dtype) * noise


Denoiser = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Noisy pictures, t / T and what is told of them become the noise; a :class:`UNet` is one."""


@torch.no_grad()
def sample(
    denoiser: Denoiser,
    told: Float[Tensor, "n width"],
    *,
    side: int,
    n_times: int,
    generator: torch.Generator,
) -> Float[Tensor, "n 3 row column"]:
    """Draw a picture for each row of ``told``, from noise drawn on the CPU."""
    shape = len(told), 3, side, side
    beta, left = betas(n_times).tolist(), kept(n_times).tolist()
    x = torch.randn(shape, generator=generator, dtype=torch.float32).to(told)
    for t in range(n_times, 0, -1):
        times = told.new_full((len(told),), t / n_times)
        noise = denoiser(x, times, told)
        x = (x - beta[t] / math.sqrt(1 - left[t]) * noise) / math.sqrt(1 - beta[t])
        if t > 1:
            x = x + math.sqrt(beta[t]) * torch.randn(
                shape, generator=generator, dtype=torch.float32
            ).to(told)
    return x
