"""A conditional U-Net that predicts the noise in a picture.

The layers are those of the released code behind the complexity-control paper's figure 6: two levels
of down- and upsampling around a vector, residual blocks, and an embedding of the time and of each
attribute. The attributes' embeddings are added up and multiply the upward path, to which the time's
are added::

    up = Up([c * up + t, skip])

Its batch normalisation is a group normalisation here, so that a picture's answer does not depend on
the other pictures of its batch and a checkpoint is parameters alone.

The last convolution gives the noise, as in the released code, or the *velocity*
v = sqrt(abar_t) noise - sqrt(1 - abar_t) x_0 (Salimans and Ho, ICLR 2022), from which
noise = sqrt(1 - abar_t) x_t + sqrt(abar_t) v. A network that gives the noise has to copy the mean
of x_t over all pixels, of which the loss hardly tells: until it does, it draws on grounds of any
colour.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import bounded, check_fields, shown
from anchor_interp.tasks.network import NetworkConfig

from .diffusion import signal_left

_GROUPS = 8


@dataclass(frozen=True)
class UNetConfig(NetworkConfig):
    """The shape of a conditional U-Net and its diffusion.

    The names of its fields and of its layers are part of run ids and checkpoints.
    """

    n_features: int = bounded(16, low=8, high=1 << 12)
    """Features of the first layer, a multiple of 8 (256 in the released code)."""
    n_times: int = bounded(100, low=2, high=100_000)
    """Timesteps of the diffusion (500 in the released code)."""
    d_image: int = bounded(28, low=4, high=1024)
    """The side of a picture, a multiple of 4."""
    predicts: Literal["noise", "velocity"] = "noise"
    """What the last convolution gives: the noise (the released code), or the velocity, from which
    the noise follows and which a small network learns in fewer steps."""
    d_told: tuple[int, ...] = (2, 1, 3)
    """How many numbers of the condition belong to each attribute of a picture."""

    def __post_init__(self) -> None:
        check_fields(self, "model")
        for name, of in (("n_features", 8), ("d_image", 4)):
            if (value := getattr(self, name)) % of:
                raise ConfigError(f"model.{name} is {value}; expected a multiple of {of}")
        if not self.d_told or not all(1 <= width <= 1 << 16 for width in self.d_told):
            raise ConfigError(
                f"model.d_told is {shown(self.d_told)}; expected the width of every attribute"
            )

    @property
    def width(self) -> int:
        """Features of the innermost layers, which one pixel has."""
        return 4 * self.n_features

    @property
    def n_activations(self) -> int:
        """About 24 maps of features at full size, counting smaller ones."""
        return self.d_image**2 * self.n_features * 24

    @property
    def example_bytes(self) -> int:
        """A picture and its condition."""
        return 3 * self.d_image**2 + 4 * sum(self.d_told)

    def network(self) -> "UNet":
        """The U-Net."""
        return UNet(self)

    def __str__(self) -> str:
        picture = f"pictures of {self.d_image} x {self.d_image}"
        return f"U-Net, {self.n_features} features, {picture}, {self.n_times} times"


class UNet(nn.Module):
    """Predicts the noise in noisy pictures, given their time and their condition."""

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
        cond: Float[Tensor, "batch width"],
    ) -> Float[Tensor, "batch 3 row column"]:
        """The noise; ``times`` are t / T, from 0 to 1."""
        time = times[:, None]
        x = self.first(noisy)
        half = F.max_pool2d(self.down1(x), 2)
        quarter = F.max_pool2d(self.down2(half), 2)
        inner = F.gelu(F.avg_pool2d(quarter, self.cfg.d_image // 4))  # a vector for each picture
        up = F.relu(self.norm(self.widen(inner)))
        up = self.up1(_sum(self.told1, cond, self.cfg) * up + self.time1(time), quarter)
        up = self.up2(_sum(self.told2, cond, self.cfg) * up + self.time2(time), half)
        out: Tensor = self.out(F.relu(self.last_norm(self.last(torch.cat([up, x], 1)))))
        if self.cfg.predicts == "noise":
            return out
        left = signal_left(self.cfg.n_times).to(noisy)[(times * self.cfg.n_times).round().long()]
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
        up: Tensor = self.block2(self.block1(self.widen(torch.cat([x, beside], 1))))
        return up


class Embedding(nn.Module):
    """A vector of features, the same at every pixel, for a few numbers."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(d_in, d_out), nn.Linear(d_out, d_out)

    def forward(self, x: Float[Tensor, "batch d_in"]) -> Float[Tensor, "batch d_out 1 1"]:
        """One vector for each row."""
        features: Tensor = self.two(F.gelu(self.one(x)))
        return features[:, :, None, None]


def _sum(embeddings: nn.ModuleList, cond: Tensor, cfg: UNetConfig) -> Tensor:
    total, start = torch.zeros((), dtype=cond.dtype, device=cond.device), 0
    for embed, width in zip(embeddings, cfg.d_told, strict=True):
        total = total + embed(cond[:, start : start + width])
        start += width
    return total
