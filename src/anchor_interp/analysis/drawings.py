"""What a run's network draws of every node of its task, trained or not, and what the judge says."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, UInt8

from anchor_interp._util.errors import ConfigError
from anchor_interp.models.judge import judge_of
from anchor_interp.runs.diffusion import as_pixels, draw
from anchor_interp.runs.run import Run
from anchor_interp.tasks.concepts import bits_of, every_node


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
        found: Float[np.ndarray, " node"] = self.right.all(2).mean(1)
        return found


def drawings(run: Run, n: int = 8, *, seed: int = 0) -> Drawings:
    """What the network of a run's checkpoint draws, n times, of every node.

    Raises:
        ConfigError: the run is not one on pictures, or what it draws is not finite.
    """
    if (found := run.config.pictures) is None:
        raise ConfigError(f"drawings need a run on pictures; the task is {run.config.task.kind}")
    task, _ = found
    names = every_node(len(task.attributes))
    nodes = bits_of(names)
    repeated = np.repeat(nodes, n, axis=0)
    pictures = draw(run.model, task, repeated, seed=seed, stream="drawings")
    right = judge_of(task).right(pictures, repeated)
    roles = dict.fromkeys(task.trained, "trained") | dict.fromkeys(task.tested, "tested")
    pixels = as_pixels(pictures)
    return Drawings(
        titles=tuple(map(task.title, nodes)),
        roles=tuple(roles.get(name, "") for name in names),
        real=task.pictures(nodes, seed=seed, stream="drawings").pixels,
        drawn=pixels.reshape(len(nodes), n, *pixels.shape[1:]),
        right=right.reshape(len(nodes), n, -1),
    )
