"""Concepts: draw what a tuple of words says, and some tuples were never seen together.

A *node* is a tuple of bits, one for each attribute: 010 is a small red circle if the attributes are
circle or triangle, large or small, red or blue. Training shows pictures of some nodes; the others
ask whether a model composes what it learned (complexity-control paper, section VII and figure 6;
Okawa, Lubana, Dick and Tanaka, NeurIPS 2023). With the paper's nodes every small object of the
training set is a blue triangle, so a model that ties size to shape draws 010 as a triangle.

What a network is given of a picture is, as in the released code, one-hot for a shape, the drawn
size and the drawn colour (:meth:`Concepts.conditions` gives them without variation).

As a task of sequences, a prompt names a node and the answer is what a judge reads off a picture::

    circle small red -> circle small red .
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int

from anchor_interp import ConfigError, Dataset, InitConfig, Run, RunConfig, Split, Task
from anchor_interp._util.schema import bounded, shown, suggestion
from anchor_interp.tasks.hashing import random_bits
from anchor_interp.tasks.network import OwnFigure, OwnNetwork

from .figures import report_figures
from .judge import judge_of
from .pictures import (
    ATTRIBUTES,
    N_VARIED,
    ONE_HOT,
    PROPERTIES,
    Numbers,
    Pictures,
    bits_of,
    render,
    varied,
)
from .training import DiffusionObjective, draw, noise_loss
from .unet import UNet, UNetConfig


@dataclass(frozen=True)
class Concepts(OwnNetwork, Task):
    """Draw a tuple of concepts; tested on tuples that training never shows."""

    kind: Literal["concepts"] = "concepts"
    """The name of this task in files."""
    attributes: tuple[tuple[str, str], ...] = (
        ("circle", "triangle"), ("large", "small"), ("red", "blue"),
    )  # fmt: skip
    """The two values of each attribute, for the bits 0 and 1; see :mod:`concepts.pictures`."""
    trained: tuple[str, ...] = ("000", "100", "001", "111")
    """The nodes of the training set."""
    tested: tuple[str, ...] = ("010", "011")
    """The unseen nodes that are tested (OOD)."""
    pixels: int = bounded(28, low=12, high=256)
    """The side of a picture, a multiple of 4."""

    config_class = UNetConfig
    loss_unit = "squared error"
    part = "attribute"
    most_judged = 256  # each takes a pass for every time of the diffusion
    most_probes = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        for word in itertools.chain(*self.attributes):
            if word not in ATTRIBUTES:
                close, known = suggestion(word, ATTRIBUTES), ", ".join(ATTRIBUTES)
                raise ConfigError(f"task.attributes names {shown(word)}{close}; known: {known}")
        for one, two in self.attributes:
            if ATTRIBUTES[one] != ATTRIBUTES[two] or one == two:
                wanted = "expected two values of one attribute"
                raise ConfigError(f"task.attributes has {one} and {two}; {wanted}")
        n = len(self.names)
        if len(set(self.names)) != n or not n:
            named = ", ".join(self.names) or "none"
            raise ConfigError(f"task.attributes are {named}; expected one or more, each once")
        for field, nodes in (("trained", self.trained), ("tested", self.tested)):
            for node in nodes:
                if len(node) != n or set(node) - {"0", "1"}:
                    wanted = f"expected {n} bits, such as {('01' * n)[:n]}"
                    raise ConfigError(f"task.{field} has {shown(node)}; {wanted}")
            if not nodes:
                raise ConfigError(f"task.{field} is empty; name at least one node")
        every = self.trained + self.tested
        if twice := next((node for node in every if every.count(node) > 1), None):
            raise ConfigError(f"the node {twice} is named twice in trained and tested; keep one")
        if self.pixels % 4:
            raise ConfigError(f"task.pixels is {self.pixels}; expected a multiple of 4")

    @property
    def names(self) -> tuple[str, ...]:
        """The attributes: ``("shape", "size", "colour")``."""
        return tuple(ATTRIBUTES[first] for first, _ in self.attributes)

    @property
    def widths(self) -> tuple[int, ...]:
        """How many numbers a network is given of each attribute."""
        pairs = zip(self.names, self.attributes, strict=True)
        return tuple(2 if name in ONE_HOT else len(PROPERTIES[name][w]) for name, (w, _) in pairs)

    @property
    def words(self) -> tuple[str, ...]:
        """Both values of each attribute, the arrow and the end."""
        return (*(word for pair in self.attributes for word in pair), "->", ".")

    @property
    def end(self) -> int:
        """The token ``.``."""
        return 2 * len(self.attributes) + 1

    @property
    def length(self) -> int:
        """Node, arrow and node."""
        return 2 * len(self.attributes) + 1

    @property
    def chance(self) -> float:
        """A picture at random has each attribute right half of the time."""
        return 0.5 ** len(self.attributes)

    @property
    def splits(self) -> tuple[Split, ...]:
        """``train`` and ``ood``. A model's own drawing of a trained node is new each time."""
        return Split("train", "train"), Split("ood", "ood")

    def examples(self, split: str, n: int, *, seed: int) -> Dataset:
        """The nodes of a split in turn; ``seed`` changes nothing but what is drawn of them."""
        del seed
        nodes = self.trained if split == "train" else self.tested
        return self.asked(bits_of(nodes)[np.arange(n) % len(nodes)])

    def asked(self, nodes: Int[np.ndarray, "n attribute"]) -> Dataset:
        """The examples of these nodes."""
        n, k = nodes.shape
        named = 2 * np.arange(k) + nodes
        tokens = np.hstack([named, np.full((n, 1), 2 * k), named, np.full((n, 1), self.end)])
        mask = np.zeros(tokens.shape, bool)
        mask[:, k + 1 :] = True
        return Dataset(tokens.astype(np.int32), mask, np.full(n, tokens.shape[1]))

    def nodes(self, examples: Dataset) -> Int[np.ndarray, "n attribute"]:
        """The bits that the prompts of examples name."""
        k = len(self.attributes)
        bits: Int[np.ndarray, "n attribute"] = examples.tokens[:, :k].astype(np.int64) % 2
        return bits

    def aspects(self, examples: Dataset) -> Mapping[str, Sequence[str | int]]:
        """The node of every example, such as ``010 circle small red``."""
        return {"node": [self.title(node) for node in self.nodes(examples)]}

    def title(self, node: Sequence[int] | Int[np.ndarray, " attribute"]) -> str:
        """A node with its words, such as ``010 circle small red``."""
        words = (pair[int(bit)] for pair, bit in zip(self.attributes, node, strict=True))
        return " ".join(["".join(str(int(bit)) for bit in node), *words])

    def conditions(self, nodes: Int[np.ndarray, "n attribute"]) -> Float32[np.ndarray, "n width"]:
        """What a network is given of nodes, in the middle of what varies."""
        return self._conditions(nodes, {name: self._middle(name, nodes) for name in self.names})

    def pictures(
        self, nodes: Int[np.ndarray, "n attribute"], *, seed: int, stream: str
    ) -> Pictures:
        """A picture of each node, a function of (seed, stream, index, node) alone."""
        bits = random_bits(len(nodes) * N_VARIED, seed=seed, stream=f"concepts/{stream}")
        middle = {name: self._middle(name, nodes) for name in PROPERTIES}
        numbers, centre = varied(middle, bits.reshape(len(nodes), N_VARIED))
        return Pictures(render(self.pixels, centre, numbers), self._conditions(nodes, numbers))

    def _middle(
        self, name: str, nodes: Int[np.ndarray, "n attribute"]
    ) -> Float[np.ndarray, "n part"]:
        """The numbers of an attribute at each node; its default's if the task does not have it."""
        values = PROPERTIES[name]
        if name not in self.names:
            return np.tile(np.array(next(iter(values.values())), float), (len(nodes), 1))
        column = self.names.index(name)
        pair = np.array([values[word] for word in self.attributes[column]], float)
        middle: Float[np.ndarray, "n part"] = pair[nodes[:, column]]
        return middle

    def _conditions(
        self, nodes: Int[np.ndarray, "n attribute"], numbers: Numbers
    ) -> Float32[np.ndarray, "n width"]:
        parts = [np.eye(2)[nodes[:, column]] if name in ONE_HOT else numbers[name]
                 for column, name in enumerate(self.names)]  # fmt: skip
        return np.hstack(parts).astype(np.float32)

    def check_model(self, model: UNetConfig, init: InitConfig) -> None:
        """ConfigError if a network draws other pictures, or an initialisation is not for it."""
        for name, needed in (("d_image", self.pixels), ("d_told", self.widths)):
            if (value := getattr(model, name)) != needed:
                raise ConfigError(f"model.{name} is {value}; the task's pictures need {needed}")
        plain = InitConfig(gamma=init.gamma, weights=init.weights)
        for field in fields(init):
            if (given := getattr(init, field.name)) != (default := getattr(plain, field.name)):
                reason = "a U-Net has one rule for all its layers"
                raise ConfigError(f"init.{field.name} is {given}; expected {default}: {reason}")

    def objective(
        self, config: RunConfig, training: Dataset, device: torch.device
    ) -> DiffusionObjective:
        """The squared error of the noise in noisy pictures of the training nodes."""
        pictures = self.pictures(self.nodes(training), seed=config.seed, stream="train")
        return DiffusionObjective(config, training, pictures, device)

    def judge(
        self, network: UNet, examples: Dataset, *, seed: int, stream: str
    ) -> dict[str, Bool[np.ndarray, " n"]]:
        """Which attributes the judge reads off a drawing of each node as they should be."""
        nodes = self.nodes(examples)
        drawings = draw(network, self, nodes, seed=seed, stream=stream)
        return dict(zip(self.names, judge_of(self).right(drawings, nodes).T, strict=True))

    def loss(self, network: UNet, examples: Dataset, *, seed: int, stream: str) -> float:
        """The loss on fresh real pictures of the examples' nodes."""
        real = self.pictures(self.nodes(examples), seed=seed, stream=stream)
        return noise_loss(network, real, seed=seed, stream=stream)

    def figures(self, run: Run) -> tuple[OwnFigure, ...]:
        """What the network draws of every node, and how its layers changed along training."""
        return report_figures(run)
