"""The picture of maps of answers."""

from typing import Any

import numpy as np

from anchor_interp.behaviour.answer_map_numbers import AnswerMap
from anchor_interp.pages.answer_figures import answer_maps


def one(holding: str, *, pairs: int = 1) -> AnswerMap:
    functions = ("rule", "symmetric", "(2, 4): x - 7", "(4, 4): x - 16", "none")
    shares = np.zeros((pairs, 80, 7, len(functions)))
    shares[..., functions.index(holding)] = 1
    return AnswerMap(((3, 4), (4, 3))[:pairs], functions, np.arange(20, 100), 10, shares)


def test_a_panel_for_every_map_and_pair_and_a_legend_of_what_holds() -> None:
    figure = answer_maps({"model A": one("none", pairs=2), "model B": one("rule")})
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:3] == ["model A, (3,\xa04)", "model A, (4,\xa03)", "model B"]
    shown = {text.get_text() for text in figure.legends[0].get_texts()}
    assert shown == {"the rule", "no seen pair's function, nor the rule"}


def test_titles_stay_in_their_panels() -> None:
    names = ("tiny/memorizing/1", "a_name_without_a_place_to_break_it")
    figure = answer_maps({name: one("rule", pairs=2) for name in names}, columns=2, width=2.0)
    figure.draw_without_rendering()
    boxes = [axes.title.get_window_extent() for axes in figure.axes]
    for left, right in zip(boxes[::2], boxes[1::2], strict=True):
        assert left.x1 < right.x0


def test_a_function_has_one_colour_in_all_figures() -> None:
    alone, beside = {"a": one("(4, 4): x - 16")}, {"b": one("(2, 4): x - 7")}
    figures = answer_maps(alone), answer_maps({**beside, **alone})
    images: list[Any] = [figure.axes[-1].images[0] for figure in figures]
    colours = [image.to_rgba(image.get_array())[0, 0] for image in images]
    assert np.array_equal(*colours)
