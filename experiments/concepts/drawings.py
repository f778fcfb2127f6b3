"""What a run's network draws of every node of its task, trained or not, and what the judge says."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, UInt8

from anchor_interp.runs.run import Run

from .judge import judge_of
from .pictures import bits_of, every_node
from .training import draw


@dataclass(frozen=True, eq=False)
class Drawings:
    """Drawings of nodes by one checkpoint."""

    titles: tuple[str, ...]
    """Each node with its words, such as ``010 circle small red``."""
    roles: tuple[str, ...]
    """``trained``, ``tested`` or, of a node that is neither, the empty text."""
    real: UInt8[np.ndarray, "node 3 row column"]
    """A real picture of each node."""
    drawn: UInt8[np.ndarray, "node sample 3 row column"]
    right: Bool[np.ndarray, "node sample attribute"]
    """Which attributes the judge reads as the node has them."""

    @property
    def shares(self) -> Float[np.ndarray, " node"]:
        """The share of each node's drawings of which every attribute is right."""
        shares: Float[np.ndarray, " node"] = self.right.all(2).mean(1)
        return shares


def drawings(run: Run, n: int = 8) -> Drawings:
    """What the network of a run's checkpoint draws, n times, of every node.

    Raises:
        ConfigError: what it draws is not finite.
    """
    task: Any = run.config.task
    names = every_node(len(task.attributes))
    nodes = bits_of(names)
    repeated = np.repeat(nodes, n, axis=0)
    pictures = draw(run.model, task, repeated, seed=0, stream="drawings")
    right = judge_of(task).right(pictures, repeated)
    roles = dict.fromkeys(task.trained, "trained") | dict.fromkeys(task.tested, "tested")
    pixels = ((pictures.clamp(-1, 1) + 1) * 127.5).round().byte().numpy()
    return Drawings(
        titles=tuple(map(task.title, nodes)), roles=tuple(roles.get(name, "") for name in names),
        real=task.pictures(nodes, seed=0, stream="drawings").pixels,
        drawn=pixels.reshape(len(nodes), n, *pixels.shape[1:]),
        right=right.reshape(len(nodes), n, -1),
    )  # fmt: skip
