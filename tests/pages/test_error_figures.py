"""The plane of errors: shares in the right places, cells that do not grow too many."""

from typing import Any

import numpy as np
import pytest

from anchor_interp.pages.run_figures import plane_of_errors
from anchor_interp.tasks.examples import Plane


def drawn(*arguments: Any, square: tuple[int, int] | None = None) -> tuple[Any, Any]:
    """The image of a figure and its axes."""
    axes = plane_of_errors(Plane("a", "b", square), *arguments).axes[0]
    return axes.images[0], axes


def test_every_pair_of_a_small_plane_is_a_cell() -> None:
    a, b = np.divmod(np.arange(400), 20)
    wrong = (a >= 8) & (a <= 12) & (b == 9)
    image, axes = drawn(a, b, ~wrong, square=(8, 12))
    shares = image.get_array()
    assert shares.shape == (20, 20)
    assert np.argwhere(shares == 0).tolist() == [[9, column] for column in range(8, 13)]  # [b, a]
    assert image.get_extent() == [-0.5, 19.5, -0.5, 19.5]
    assert image.origin == "lower"
    (frame,) = axes.patches
    assert (frame.get_xy(), frame.get_width(), frame.get_height()) == ((7.5, 7.5), 5, 5)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("a", "b")


def test_a_large_plane_is_binned() -> None:
    a, b = np.divmod(np.arange(1_000_000), 1_000)
    right = a % 10 < 3
    image, axes = drawn(a, b, right)
    assert image.get_array().shape == (100, 100)
    assert np.allclose(image.get_array(), 0.3)
    assert not axes.patches
    few = np.random.default_rng(0).integers(0, 1_000, (2, 900))
    image, axes = drawn(*few, few[0] > 500, square=(400, 600))
    cells = image.get_array()
    assert cells.shape[0] == cells.shape[1] <= 30
    assert axes.get_xlim() == (-0.5, few.max() + 0.5)


def test_places_without_an_example_are_left_out() -> None:
    a, b = np.array([0, 0, 3]), np.array([0, 0, 1])
    image, _ = drawn(a, b, np.array([True, False, True]))
    found = image.get_array().filled(np.nan)
    assert found[0, 0] == pytest.approx(2 / 3)  # one cell: there are three examples
    image, _ = drawn(a.repeat(6), b.repeat(6), np.array([True, False, True]).repeat(6))
    found = image.get_array().filled(np.nan)
    assert found.shape == (4, 4)
    assert (found[0, 0], found[1, 3]) == (0.5, 1)
    assert np.isnan(found).sum() == 14
