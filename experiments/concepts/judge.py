"""Reads attributes off pictures: a small convolutional network, trained on real pictures.

It learns every node, unseen ones too, from pictures with noise and tints of many strengths, so that
what a diffusion leaves behind does not mislead it, and from empty ones, of which it shall not be
sure. It takes seconds and is the same each time.
"""

import functools
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from anchor_interp._util.errors import ConfigError
from anchor_interp.tasks.hashing import random_bits

from .pictures import as_tensor, bits_of, every_node

if TYPE_CHECKING:
    from .task import Concepts

LEAST = 0.99
"""The least accuracy, for each attribute, on real pictures that the judge was not trained on."""
NOISE = 0.4
"""The largest standard deviation of noise on training pictures; black is -1 and white 1."""
TINT = 0.3
"""The most by which the red, green and blue of a training picture are moved."""
SURE = 0.9
"""The least probability that the judge gives to what it reads; less counts as wrong."""
_EMPTY = 8  # pictures of each batch without an object, of which any value is as likely
_STEPS, _MOST_STEPS, _BATCH, _PICTURES = 200, 1600, 64, 4096
_SIDE = 32  # larger pictures are shrunk to about this


class Judge(nn.Module):
    """Says of each attribute of a picture which of its two values it has."""

    def __init__(self, task: "Concepts") -> None:
        super().__init__()
        self.task, self.shrink = task, max(1, task.pixels // _SIDE)
        side = task.pixels // self.shrink
        widths = (3, 16, 32, 32)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(d_in, d_out, 3, 2, 1) for d_in, d_out in itertools.pairwise(widths)
        )
        self.values = nn.Linear(widths[-1] * (-(-side // 8)) ** 2, len(task.attributes))

    def forward(self, pictures: Float[Tensor, "n 3 row column"]) -> Float[Tensor, "n attribute"]:
        """Log odds of the bit 1."""
        x = F.avg_pool2d(pictures, self.shrink)
        for convolution in self.convolutions:
            x = F.relu(convolution(x))
        odds: Tensor = self.values(x.flatten(1))
        return odds

    @torch.no_grad()
    def right(
        self, pictures: Float[Tensor, "n 3 row column"], nodes: Integer[np.ndarray, "n attribute"]
    ) -> Bool[np.ndarray, "n attribute"]:
        """Which attributes of pictures, -1 to 1, the judge is :data:`SURE` to be the nodes' own."""
        starts = range(0, len(pictures), 1024)
        parts = [self(pictures[start : start + 1024].cpu()) for start in starts]
        odds = torch.cat([torch.empty(0, nodes.shape[1], dtype=torch.float32), *parts]).numpy()
        right: Bool[np.ndarray, "n attribute"] = odds * (2 * nodes - 1) >= np.log(SURE / (1 - SURE))
        return right

    def accuracy(self, n: int, *, seed: int, noise: float = 0.0) -> Float[np.ndarray, " attribute"]:
        """Share of n real pictures whose attribute is read right, with noise of this strength."""
        pictures, nodes = _real(self.task, n, seed=seed, stream="judge/test")
        generator = torch.Generator().manual_seed(seed)
        extra = torch.randn(pictures.shape, generator=generator, dtype=torch.float32)
        right = self.right(pictures + noise * extra, nodes.long().numpy())
        accuracy: Float[np.ndarray, " attribute"] = right.mean(0)
        return accuracy


@functools.lru_cache(maxsize=8)
def judge_of(task: "Concepts") -> Judge:
    """The judge of a task's pictures, trained on the CPU once in a process.

    Raises:
        ConfigError: it cannot tell the values of an attribute apart in fresh real pictures.
    """
    generator = torch.Generator().manual_seed(0)
    drawing: dict[str, Any] = {"generator": generator, "dtype": torch.float32}
    with torch.device("meta"):
        judge = Judge(task).float()
    judge.to_empty(device="cpu")
    with torch.no_grad():
        for part in (*judge.convolutions, judge.values):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu", generator=generator)
            part.bias.zero_()
    pictures, nodes = _real(task, _PICTURES, seed=0, stream="judge")
    optimizer = torch.optim.Adam(judge.parameters(), 2e-3)
    accuracies = np.zeros(len(task.attributes))
    for step in range(_MOST_STEPS):
        rows = torch.randint(_PICTURES, (_BATCH,), generator=generator)
        noise = torch.randn((_BATCH, *pictures.shape[1:]), **drawing)
        strength = NOISE * torch.rand((_BATCH, 1, 1, 1), **drawing)
        tint = TINT * (2 * torch.rand((_BATCH, 3, 1, 1), **drawing) - 1)
        seen, wanted = pictures[rows], nodes[rows]
        seen[:_EMPTY] = seen[:_EMPTY, :, :1, :1]  # the ground alone
        wanted[:_EMPTY] = 0.5
        seen = (seen + tint).clamp(-1, 1) + strength * noise
        with torch.enable_grad():
            loss = F.binary_cross_entropy_with_logits(judge(seen), wanted)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
        optimizer.step()
        if (step + 1) % _STEPS == 0:
            accuracies = np.minimum(
                judge.accuracy(1024, seed=1), judge.accuracy(1024, seed=1, noise=NOISE / 2)
            )
            if accuracies.min() >= (1 + LEAST) / 2:
                return judge.eval()
    if accuracies.min() < LEAST:
        worst = int(accuracies.argmin())
        first, second = task.attributes[worst]
        raise ConfigError(
            f"the judge tells {first} from {second} in {accuracies[worst]:.1%} of real pictures of "
            f"{task.pixels} x {task.pixels}; expected {LEAST:.0%}: take larger pictures or values "
            "that differ more"
        )
    return judge.eval()


def _real(
    task: "Concepts", n: int, *, seed: int, stream: str
) -> tuple[Float[Tensor, "n 3 row column"], Float[Tensor, "n attribute"]]:
    """Pictures of nodes drawn at random from all, with their bits."""
    every = bits_of(every_node(len(task.attributes)))
    nodes = every[(random_bits(n, seed=seed, stream=stream) % len(every)).astype(np.int64)]
    real = task.pictures(nodes, seed=seed, stream=stream)
    return as_tensor(real.pixels), torch.from_numpy(nodes).float()
