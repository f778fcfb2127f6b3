"""Concepts: draw what a tuple of words says, and some tuples were never seen together.

A *node* is a tuple of bits, one for each attribute: 010 is a small red circle if the attributes are
circle or triangle, large or small, red or blue. Training shows pictures of some nodes; the others
ask whether a model composes what it learned (complexity-control paper, section VII and figure 6;
Okawa, Lubana, Dick and Tanaka, NeurIPS 2023). With the paper's nodes every small object of the
training set is a blue triangle, so a model that ties size to shape draws 010 as a triangle.

Pictures are drawn here: one antialiased object on a plain ground, whose place, size and colours
vary a little. What it *is told* of a picture is, as in the released code, one-hot for a shape, the
drawn size and the drawn colour (:meth:`Concepts.conditions` gives them without variation). Circle,
triangle and square of one size have one area, so that the shape cannot be read from the area.

As a task of sequences, a prompt names a node and the answer is what a judge reads off a picture::

    circle small red -> circle small red .

=========  =================================  ==========
attribute  values                             default
=========  =================================  ==========
shape      circle, triangle, square           circle
size       large, small                       large
colour     red, blue, green, yellow           red
fill       solid, hollow                      solid
ground     on-white, on-grey, on-black        on-white
=========  =================================  ==========
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Float32, Int, UInt8

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import bounded, shown, suggestion
from anchor_interp.tasks.examples import Examples, Split
from anchor_interp.tasks.hashing import random_bits
from anchor_interp.tasks.task import Task

_AT_ONCE = 1 << 20  # pixels that are drawn at once
_PLACE, _SIZE, _COLOUR = 0.07, 0.1, 0.08
"""How far the place (in sides of the picture), the size (as a share) and a colour's parts vary."""
_WIDTH = 0.3  # of a hollow object's line, in radii
_PROPERTIES: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "shape": {"circle": (0,), "triangle": (1,), "square": (2,)},
    "size": {"large": (2.4,), "small": (1.3,)},  # radius, in tenths of the picture's side
    "colour": {
        "red": (0.9, 0.1, 0.1), "blue": (0.1, 0.1, 0.9),
        "green": (0.1, 0.6, 0.1), "yellow": (0.9, 0.8, 0.1),
    },
    "fill": {"solid": (0,), "hollow": (1,)},
    "ground": {"on-white": (0.95,) * 3, "on-grey": (0.55,) * 3, "on-black": (0.1,) * 3},
}  # fmt: skip
_ONE_HOT = ("shape", "fill")  # all others are told as numbers
_WORDS = {word: name for name, words in _PROPERTIES.items() for word in words}


@dataclass(frozen=True, eq=False)
class Pictures:
    """n pictures and what a model is told of them."""

    pixels: UInt8[np.ndarray, "n 3 row column"]
    """Red, green and blue, 0 to 255."""
    conditions: Float32[np.ndarray, "n width"]
    """The attributes' numbers side by side, as wide as :attr:`Concepts.widths` says."""


@dataclass(frozen=True)
class Concepts(Task):
    """Draw a tuple of concepts; tested on tuples that training never shows."""

    kind: Literal["concepts"] = "concepts"
    """The name of this task in files."""
    attributes: tuple[tuple[str, str], ...] = (
        ("circle", "triangle"), ("large", "small"), ("red", "blue"),
    )  # fmt: skip
    """The two values of each attribute, for the bits 0 and 1; see the module's table."""
    trained: tuple[str, ...] = ("000", "100", "001", "111")
    """The nodes of the training set."""
    tested: tuple[str, ...] = ("010", "011")
    """The unseen nodes that are tested (OOD)."""
    pixels: int = bounded(28, low=12, high=256)
    """The side of a picture, a multiple of 4."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for pair in self.attributes:
            for word in pair:
                if word not in _WORDS:
                    close, known = suggestion(word, _WORDS), ", ".join(_WORDS)
                    raise ConfigError(f"task.attributes names {shown(word)}{close}; known: {known}")
            if _WORDS[pair[0]] != _WORDS[pair[1]] or pair[0] == pair[1]:
                raise ConfigError(
                    f"task.attributes has {pair[0]} and {pair[1]}; expected two values of one "
                    "attribute"
                )
        if len(set(self.names)) != len(self.names) or not self.names:
            named = ", ".join(self.names) or "none"
            raise ConfigError(f"task.attributes are {named}; expected one or more, each once")
        for field, nodes in (("trained", self.trained), ("tested", self.tested)):
            for node in nodes:
                if len(node) != len(self.names) or set(node) - {"0", "1"}:
                    such = ("01" * len(self.names))[: len(self.names)]
                    wanted = f"{len(self.names)} bits, such as {such}"
                    raise ConfigError(f"task.{field} has {shown(node)}; expected {wanted}")
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
        return tuple(_WORDS[first] for first, _ in self.attributes)

    @property
    def widths(self) -> tuple[int, ...]:
        """How many numbers a model is told of each attribute."""
        return tuple(2 if n in _ONE_HOT else len(_PROPERTIES[n][w]) for n, (w, _) in self._named())

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

    def examples(self, split: str, n: int, *, seed: int) -> Examples:
        """The nodes of a split in turn; ``seed`` changes nothing but what is drawn of them."""
        del seed
        nodes = self.trained if split == "train" else self.tested
        return self.asked(bits_of(nodes)[np.arange(n) % len(nodes)])

    def asked(self, nodes: Int[np.ndarray, "n attribute"]) -> Examples:
        """The examples of these nodes."""
        n, k = nodes.shape
        named = 2 * np.arange(k) + nodes
        tokens = np.hstack([named, np.full((n, 1), 2 * k), named, np.full((n, 1), self.end)])
        mask = np.zeros(tokens.shape, bool)
        mask[:, k + 1 :] = True
        return Examples(tokens.astype(np.int32), mask, np.full(n, tokens.shape[1]))

    def nodes(self, examples: Examples) -> Int[np.ndarray, "n attribute"]:
        """The bits that the prompts of examples name."""
        k = len(self.attributes)
        bits: Int[np.ndarray, "n attribute"] = examples.tokens[:, :k].astype(np.int64) % 2
        return bits

    def aspects(self, examples: Examples) -> Mapping[str, Sequence[str | int]]:
        """The node of every example, such as ``010 circle small red``."""
        return {"node": [self.title(node) for node in self.nodes(examples)]}

    def title(self, node: Sequence[int] | Int[np.ndarray, " attribute"]) -> str:
        """A node with its words, such as ``010 circle small red``."""
        words = (pair[int(bit)] for pair, bit in zip(self.attributes, node, strict=True))
        return " ".join(["".join(str(int(bit)) for bit in node), *words])

    def conditions(self, nodes: Int[np.ndarray, "n attribute"]) -> Float32[np.ndarray, "n width"]:
        """What a model is told of nodes, in the middle of what varies."""
        return self._told(nodes, {name: self._middle(name, nodes) for name in self.names})

    def pictures(
        self, nodes: Int[np.ndarray, "n attribute"], *, seed: int, stream: str
    ) -> Pictures:
        """A picture of each node, a function of (seed, stream, index, node) alone."""
        n, columns = len(nodes), 6
        bits = random_bits(n * columns, seed=seed, stream=f"concepts/{stream}")
        drawn = bits.reshape(n, columns) / 2.0**63 - 1  # uniform in -1 ... 1
        found = {name: self._middle(name, nodes) for name in _PROPERTIES}
        found["size"] = found["size"] * (1 + _SIZE * drawn[:, 2:3])
        found["colour"] = (found["colour"] + _COLOUR * drawn[:, 3:6]).clip(0, 1)
        centre = 0.5 + _PLACE * drawn[:, :2]
        pixels = np.empty((n, 3, self.pixels, self.pixels), np.uint8)
        most = max(1, _AT_ONCE // self.pixels**2)
        for rows in (slice(start, start + most) for start in range(0, n, most)):
            part = {name: values[rows] for name, values in found.items()}
            pixels[rows] = _drawn(self.pixels, centre[rows], part)
        return Pictures(pixels, self._told(nodes, found))

    def _named(self) -> Iterator[tuple[str, tuple[str, str]]]:
        return zip(self.names, self.attributes, strict=True)

    def _middle(
        self, name: str, nodes: Int[np.ndarray, "n attribute"]
    ) -> Float[np.ndarray, "n part"]:
        """The numbers of a property at each node."""
        values = _PROPERTIES[name]
        if name not in self.names:
            return np.tile(np.array(next(iter(values.values())), float), (len(nodes), 1))
        column = self.names.index(name)
        pair = np.array([values[word] for word in self.attributes[column]], float)
        found: Float[np.ndarray, "n part"] = pair[nodes[:, column]]
        return found

    def _told(
        self,
        nodes: Int[np.ndarray, "n attribute"],
        found: Mapping[str, Float[np.ndarray, "n part"]],
    ) -> Float32[np.ndarray, "n width"]:
        parts = [np.eye(2)[nodes[:, column]] if name in _ONE_HOT else found[name]
                 for column, name in enumerate(self.names)]  # fmt: skip
        return np.hstack(parts).astype(np.float32)


def bits_of(nodes: Sequence[str]) -> Int[np.ndarray, "n attribute"]:
    """Nodes such as ``010`` as rows of bits."""
    return np.array([[int(bit) for bit in node] for node in nodes])


def every_node(n_attributes: int) -> tuple[str, ...]:
    """All nodes in the order of their numbers: ``000`` to ``111``."""
    return tuple(f"{number:0{n_attributes}b}" for number in range(1 << n_attributes))


TASKS = {"concepts": Concepts(), "concepts-64": Concepts(pixels=64)}
"""The named tasks: the paper's nodes at a size for CPUs and at the released code's."""


def _drawn(
    side: int, centre: Float[np.ndarray, "n 2"], parts: Mapping[str, Float[np.ndarray, "n part"]]
) -> UInt8[np.ndarray, "n 3 row column"]:
    """Pictures, whose edges are blended over one pixel."""
    middle = (np.arange(side) + 0.5) / side
    x = middle[None, None, :] - centre[:, 0, None, None]
    y = middle[None, :, None] - centre[:, 1, None, None]
    radius = parts["size"][:, :, None] / 10
    outside = _distance(parts["shape"][:, :, None], x, y, radius)  # [n, row, column]
    line = radius * _WIDTH
    outside = np.where(
        parts["fill"][:, :, None] == 1, np.abs(outside + line / 2) - line / 2, outside
    )
    cover = (0.5 - outside * side).clip(0, 1)[:, None]
    of_object, of_ground = (parts[name][:, :, None, None] for name in ("colour", "ground"))
    picture = cover * of_object + (1 - cover) * of_ground
    found: UInt8[np.ndarray, "n 3 row column"] = np.rint(255 * picture).astype(np.uint8)
    return found


def _distance(
    shape: Float[np.ndarray, "n 1 1"],
    x: Float[np.ndarray, "n 1 column"],
    y: Float[np.ndarray, "n row 1"],
    radius: Float[np.ndarray, "n 1 1"],
) -> Float[np.ndarray, "n row column"]:
    """How far each pixel is outside an object with the area of a circle of this radius."""
    circle = np.hypot(x, y) - radius
    # an equilateral triangle, point upwards: three half-planes at the inradius from the centre
    inner = radius * np.sqrt(np.pi / (3 * np.sqrt(3)))
    slanted = np.abs(x) * np.sqrt(3) / 2 - y / 2
    triangle = np.maximum(slanted, y + 0 * x) - inner
    square = np.maximum(np.abs(x), np.abs(y)) - radius * np.sqrt(np.pi) / 2
    found: Float[np.ndarray, "n row column"] = np.where(
        shape == 0, circle, np.where(shape == 1, triangle, square)
    )
    return found
