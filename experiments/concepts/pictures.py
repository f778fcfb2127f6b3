"""Pictures of one antialiased object on a plain ground, drawn from numbers.

Place, size and colours vary a little. Circle, triangle and square of one size have one area, so
that the shape cannot be read from the area.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, UInt8, UInt64
from torch import Tensor

PROPERTIES: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "shape": {"circle": (0,), "triangle": (1,), "square": (2,)},
    "size": {"large": (2.4,), "small": (1.3,)},  # radius, in tenths of the picture's side
    "colour": {
        "red": (0.9, 0.1, 0.1), "blue": (0.1, 0.1, 0.9),
        "green": (0.1, 0.6, 0.1), "yellow": (0.9, 0.8, 0.1),
    },
    "fill": {"solid": (0,), "hollow": (1,)},
    "ground": {"on-white": (0.95,) * 3, "on-grey": (0.55,) * 3, "on-black": (0.1,) * 3},
}  # fmt: skip
"""The numbers of every value of an attribute."""
ONE_HOT = ("shape", "fill")
"""Attributes of which a network is given a one-hot vector; of the others it is given numbers."""
ATTRIBUTES = {word: name for name, words in PROPERTIES.items() for word in words}
"""The attribute of every value."""
N_VARIED = 6
"""How many numbers of a picture vary: two of its place, its size, three of its colour."""
Numbers = Mapping[str, Float[np.ndarray, "n part"]]
"""The numbers of every attribute, one row a picture."""

_PLACE, _SIZE, _COLOUR = 0.07, 0.1, 0.08
"""How far the place (in sides of the picture), the size (as a share) and a colour's parts vary."""
_WIDTH = 0.3  # of a hollow object's line, in radii
_AT_ONCE = 1 << 20  # pixels that are drawn at once


@dataclass(frozen=True, eq=False)
class Pictures:
    """n pictures and what a network is given of them."""

    pixels: UInt8[np.ndarray, "n 3 row column"]
    """Red, green and blue, 0 to 255."""
    conditions: Float32[np.ndarray, "n width"]
    """The attributes' numbers side by side, as wide as the task's ``widths`` say."""


def bits_of(nodes: Sequence[str]) -> Int[np.ndarray, "n attribute"]:
    """Nodes such as ``010`` as rows of bits."""
    return np.array([[int(bit) for bit in node] for node in nodes])


def every_node(n_attributes: int) -> tuple[str, ...]:
    """All nodes in the order of their numbers: ``000`` to ``111``."""
    return tuple(f"{number:0{n_attributes}b}" for number in range(1 << n_attributes))


def varied(numbers: Numbers, bits: UInt64[np.ndarray, "n 6"]) -> tuple[Numbers, np.ndarray]:
    """The numbers with size and colour varied by random bits, and the objects' centres [n, 2]."""
    shift = bits / 2.0**63 - 1  # uniform in -1 ... 1
    size = numbers["size"] * (1 + _SIZE * shift[:, 2:3])
    colour = (numbers["colour"] + _COLOUR * shift[:, 3:6]).clip(0, 1)
    return {**numbers, "size": size, "colour": colour}, 0.5 + _PLACE * shift[:, :2]


def render(
    side: int, centre: Float[np.ndarray, "n 2"], numbers: Numbers
) -> UInt8[np.ndarray, "n 3 row column"]:
    """Pictures in red, green and blue, 0 to 255."""
    n = len(centre)
    pixels = np.empty((n, 3, side, side), np.uint8)
    most = max(1, _AT_ONCE // side**2)
    for rows in (slice(start, start + most) for start in range(0, n, most)):
        part = {name: values[rows] for name, values in numbers.items()}
        pixels[rows] = _render(side, centre[rows], part)
    return pixels


def as_tensor(pixels: UInt8[np.ndarray, "n 3 row column"]) -> Float[Tensor, "n 3 row column"]:
    """Pictures of 0 to 255 as numbers from -1 to 1."""
    return torch.from_numpy(pixels).float() / 127.5 - 1


def _render(
    side: int, centre: Float[np.ndarray, "n 2"], numbers: Numbers
) -> UInt8[np.ndarray, "n 3 row column"]:
    """Pictures, whose edges are blended over one pixel."""
    middle = (np.arange(side) + 0.5) / side
    x = middle[None, None, :] - centre[:, 0, None, None]
    y = middle[None, :, None] - centre[:, 1, None, None]
    radius = numbers["size"][:, :, None] / 10
    outside = _distance(numbers["shape"][:, :, None], x, y, radius)  # [n, row, column]
    line = radius * _WIDTH
    outside = np.where(
        numbers["fill"][:, :, None] == 1, np.abs(outside + line / 2) - line / 2, outside
    )
    cover = (0.5 - outside * side).clip(0, 1)[:, None]
    of_object, of_ground = (numbers[name][:, :, None, None] for name in ("colour", "ground"))
    picture = cover * of_object + (1 - cover) * of_ground
    pixels: UInt8[np.ndarray, "n 3 row column"] = np.rint(255 * picture).astype(np.uint8)
    return pixels


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
    distance: Float[np.ndarray, "n row column"] = np.where(
        shape == 0, circle, np.where(shape == 1, triangle, square)
    )
    return distance
