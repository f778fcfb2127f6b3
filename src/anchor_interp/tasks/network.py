"""What a task brings whose answers a network of its own gives, not a transformer.

Its class inherits :class:`OwnNetwork` before :class:`anchor_interp.tasks.task.Task`. Its network is
made of linear maps, convolutions and group normalisations: these are what the initialisation by
gamma and the measures of complexity know. This room is below all that it names: ``Any`` stands for
the classes of runs. ``experiments/concepts``, a diffusion model of pictures,
is an example.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Bool

from anchor_interp.tasks.examples import Dataset

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn


class NetworkConfig(ABC):
    """The configuration of such a network, which is a frozen dataclass."""

    @abstractmethod
    def network(self) -> "nn.Module":
        """The network; its weights are set later."""

    @property
    @abstractmethod
    def width(self) -> int:
        """What the time of a step depends on most: features that are multiplied with each other."""

    @property
    @abstractmethod
    def n_activations(self) -> int:
        """About how many numbers an example leaves for the backward pass."""

    @property
    @abstractmethod
    def example_bytes(self) -> int:
        """About how many bytes a training example takes beside its tokens."""

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return _n_parameters(self)


@dataclass(frozen=True)
class OwnFigure:
    """A figure of a report."""

    name: str
    """Its file's name."""
    caption: str
    draw: "Callable[[], Figure]"


class OwnNetwork(ABC):
    """Inherited by a task with a network of its own, which says these things differently.

    See :class:`anchor_interp.tasks.task.Task` for what holds of all other tasks. Such a task also
    has a ``loss_unit`` and may limit ``most_judged`` and ``most_probes``; its ``figures`` are
    :class:`OwnFigure`.
    """

    config_class: ClassVar[type[NetworkConfig]]
    """The class of ``RunConfig.model``."""
    why_alone: ClassVar[str] = "has its own network"
    part: ClassVar[str]
    """What a part of an answer is called, such as ``attribute``."""

    @abstractmethod
    def check_model(self, model: Any, init: Any) -> None:
        """ConfigError if a network of this configuration, so initialised, does not fit the task."""

    @abstractmethod
    def objective(self, config: Any, training: Dataset, device: Any) -> Any:
        """What training minimises on these examples, a function of (seed, step) alone.

        ``config`` is the run's :class:`anchor_interp.runs.config.RunConfig`; the result is an
        :class:`anchor_interp.runs.loop.Objective`.
        """

    @abstractmethod
    def judge(
        self, network: Any, examples: Dataset, *, seed: int, stream: str
    ) -> Mapping[str, Bool[np.ndarray, " n"]]:
        """For each part its name, and in which examples it is right; an answer has all parts right.

        A function of the network and these arguments alone.
        """

    @abstractmethod
    def loss(self, network: Any, examples: Dataset, *, seed: int, stream: str) -> float:
        """The loss on examples; a function of the network and these arguments alone."""


@functools.lru_cache(maxsize=64)
def _n_parameters(config: NetworkConfig) -> int:
    import torch  # configurations are read without it

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in config.network().parameters())
