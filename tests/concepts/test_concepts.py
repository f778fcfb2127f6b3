"""Concepts: pictures are functions of (seed, stream, index), and show what their node says."""

import re
from typing import Any

import numpy as np
import pytest

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import from_dict, to_dict
from anchor_interp.runs.config import run_id
from anchor_interp.runs.presets import preset
from anchor_interp.sweeps.spec import parse_sweep
from anchor_interp.tasks.contract import draw_aspects, draw_examples
from anchor_interp.tasks.task import Task
from concepts import Concepts
from concepts.pictures import bits_of, every_node

EVERY = bits_of(every_node(3))
OWN = Concepts(
    attributes=(("circle", "square"), ("solid", "hollow"), ("on-white", "on-black")),
    trained=("000", "011", "101"),
    tested=("110",),
    pixels=64,
)
"""Other attributes, and another corner held out."""


def test_the_papers_nodes() -> None:
    task = Concepts()
    drawn = draw_examples(task, "train", 5, seed=0)
    texts = [task.decode(row) for row in drawn.tokens]
    assert texts == [
        "circle large red -> circle large red .",
        "triangle large red -> triangle large red .",
        "circle large blue -> circle large blue .",
        "triangle small blue -> triangle small blue .",
        "circle large red -> circle large red .",
    ]
    unseen = draw_aspects(task, draw_examples(task, "ood", 3, seed=0))["node"]
    assert unseen == ["010 circle small red", "011 circle small blue", "010 circle small red"]
    assert task.chance == 1 / 8


def test_a_picture_depends_on_seed_stream_index_and_node_alone() -> None:
    task = Concepts()
    nodes = EVERY[np.arange(2100) % 8]  # in several parts
    many = task.pictures(nodes, seed=3, stream="train")
    few = task.pictures(nodes[:1030], seed=3, stream="train")
    assert (many.pixels[:1030] == few.pixels).all()
    assert (many.conditions[:1030] == few.conditions).all()
    for seed, stream in ((4, "train"), (3, "test")):
        other = task.pictures(nodes[:50], seed=seed, stream=stream).pixels
        assert (other != few.pixels[:50]).any((1, 2, 3)).all()
    assert len(np.unique(few.pixels[:1000].reshape(1000, -1), axis=0)) == 1000


def test_objects_have_the_size_and_colour_that_the_model_is_told() -> None:
    """The area of every shape is that of a circle of the radius told; the middle has the colour."""
    task = Concepts(
        attributes=(("circle", "triangle"), ("large", "small"), ("red", "blue")), pixels=128
    )
    found = task.pictures(EVERY, seed=0, stream="x")
    ground = 0.95
    for node, picture, told in zip(EVERY, found.pixels / 255, found.conditions, strict=True):
        assert told[:2].tolist() == np.eye(2)[node[0]].tolist()
        radius, colour = told[2] / 10, told[3:]
        dark = (ground - picture[1]) / (ground - colour[1])  # how much of a pixel is covered
        assert dark.mean() == pytest.approx(np.pi * radius**2, rel=0.03)
        y, x = (int(values.mean()) for values in np.nonzero(dark > 0.9))
        np.testing.assert_allclose(picture[:, y, x], colour, atol=1 / 255)
        assert picture[:, 0, 0] == pytest.approx(ground, abs=1 / 255)


def test_sizes_and_colours_vary_within_their_bounds() -> None:
    task = Concepts()
    told = task.pictures(EVERY[np.arange(4000) % 8], seed=0, stream="x").conditions
    middle = task.conditions(EVERY)[np.arange(4000) % 8]
    assert np.abs(told[:, 2] / middle[:, 2] - 1).max() == pytest.approx(0.1, abs=0.002)
    assert np.abs(told[:, 3:] - middle[:, 3:]).max() == pytest.approx(0.08, abs=0.002)
    assert (told[:, 2] / middle[:, 2]).mean() == pytest.approx(1, abs=0.005)


def test_own_attributes_are_a_value(tmp_path: Any) -> None:
    assert OWN.names == ("shape", "fill", "ground")
    assert OWN.widths == (2, 2, 3)
    assert OWN.title((1, 1, 0)) == "110 square hollow on-white"
    assert from_dict(Task, to_dict(OWN)) == OWN
    hollow, solid = OWN.pictures(bits_of(("010", "000")), seed=0, stream="x").pixels[:, 1]
    assert (hollow < 128).sum() < 0.6 * (solid < 128).sum()
    plain = {"kind": "concepts", "tested": ["110"], "trained": ["000", "011"]}
    (config,) = parse_sweep({"preset": "concepts", "set": {"task": plain}}).configs().values()
    assert config.task == Concepts(trained=("000", "011"), tested=("110",))
    assert run_id(config) != run_id(preset("concepts"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attributes": (("circle", "trangle"),)}, "names 'trangle' (did you mean 'triangle'?)"),
        ({"attributes": (("circle", "small"),)}, "has circle and small; expected two values of"),
        ({"attributes": (("red", "blue"),) * 2}, "are colour, colour; expected one or more"),
        ({"trained": ("00",)}, "task.trained has '00'; expected 3 bits, such as 010"),
        ({"tested": ()}, "task.tested is empty; name at least one node"),
        ({"tested": ("000",)}, "the node 000 is named twice in trained and tested"),
        ({"pixels": 30}, "task.pixels is 30; expected a multiple of 4"),
    ],
)  # fmt: skip
def test_a_wrong_value_has_one_clear_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        Concepts(**fields)
    assert "\n" not in str(error.value)
