"""What figures share: colours of pairs, and the size of letters on a page."""

import io
import re
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from matplotlib import rc_context, rcParams
from matplotlib.colors import to_hex
from matplotlib.image import imread

from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.circuits import Performance
from anchor_interp.analysis.clusters import Clusters
from anchor_interp.analysis.rivals import CircuitComparison, RivalCircuit
from anchor_interp.analysis.similarity import Similarity
from anchor_interp.interventions.patching import PatchResult
from anchor_interp.interventions.sites import Connection, Site
from anchor_interp.models.matrix_complexity import CosineMatrix
from anchor_interp.pages import style
from anchor_interp.pages.mechanism_figures import (
    circuit_baselines,
    cluster_map,
    condensation_map,
    patch_map,
    similarity_map,
)
from anchor_interp.tasks.functions import Pair

ALL = tuple(combinations_with_replacement((1, 2, 3, 4), 2))


def clusters(pairs: tuple[Pair, ...]) -> Clusters:
    """One point a pair."""
    n = len(pairs)
    return Clusters(
        state="logits", layer=None, pairs=pairs, pair=np.arange(n), key=np.zeros(n, np.int64),
        silhouette_ordered=None, silhouette_unordered=None, silhouette_order=None,
        silhouette_key=None, n_clusters=1, agreement_ordered=0.0, agreement_unordered=0.0,
        embedding=np.arange(2.0 * n).reshape(-1, 2),
    )  # fmt: skip


def colours(pairs: tuple[Pair, ...]) -> dict[Pair, str]:
    (axes,) = cluster_map(clusters(pairs)).axes
    return {
        pair: to_hex(cast(Any, points).get_facecolor()[0])
        for pair, points in zip(pairs, axes.collections, strict=True)
    }


def test_a_pair_has_one_colour_in_every_panel_and_order() -> None:
    everywhere = colours(ALL)
    assert len(set(everywhere.values())) == len(ALL) == 10
    unequal = tuple((b, a) for a, b in ALL if a != b)
    assert colours(unequal) == {(b, a): everywhere[a, b] for b, a in unequal}


def test_cosines_are_drawn_plain_or_centred() -> None:
    """Sorted by value; the papers' are plain."""
    cosine, centred = np.array([[1, 0.5], [0.5, 1]]), np.array([[1, -0.3], [-0.3, 0.9]])
    nothing: Any = None
    found = Similarity("V", 1, ((1,), (1,)), np.array([7, 3]), np.array([12, 8]), cosine, centred,
                       nothing)  # fmt: skip
    for figure, matrix in (
        (similarity_map(found), centred),
        (similarity_map(found, centred=False), cosine),
    ):
        image = figure.axes[0].images[0].get_array()
        np.testing.assert_array_equal(image, matrix[::-1, ::-1])


def test_a_map_shows_sites_and_refuses_connections() -> None:
    sites = Site("z", 1, "last", 0), Site("z", 0, "key", 1), Site("mlp_out", 0, "last")
    runs = np.array([[0.25], [0.5], [1.0]]), np.array([1.0]), np.array([0.0])
    axes = patch_map(PatchResult(sites, "denoise", *runs)).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        "z L0H1",
        "mlp_out L0",
        "z L1H0",
    ]
    shown: Any = axes.images[0].get_array()
    assert shown.filled(-1).tolist() == [[0.5, -1], [-1, 1], [-1, 0.25]]
    paths = tuple(map(Connection, sites))
    with pytest.raises(ConfigError, match="not connections"):
        patch_map(PatchResult(paths, "denoise", *runs))


@pytest.mark.parametrize(("n", "all_others", "last"), [
    (3, False, "random,\n2 edges"), (3, True, "all others,\n2 edges"),
    (0, True, "a route,\n4 edges"),
])  # fmt: skip
def test_baselines_of_a_circuit_say_whether_they_are_all(
    n: int, all_others: bool, last: str
) -> None:
    shares, one = np.linspace(0, 0.4, n), Performance(1.0, 1.0)
    rival = RivalCircuit("a route", 4, one)
    compared = CircuitComparison(
        2, "zero", one, shares, shares, 0.25, 0.25, (rival,), (), all_others=all_others
    )
    axes = circuit_baselines(compared).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()][-1] == last


def test_a_slim_svg_looks_the_same(browser: Any) -> None:
    """Fewer characters, the same picture; parts with a name of their own keep it."""
    with style.panel(4, 3) as (figure, axes):
        axes.plot([0, 1, 2], [0.1, 1 / 3, 2 / 7], marker="o", gid="curve-0", label="a curve")
        axes.bar([0, 1, 2], [0.2, 0.1, 0.3], hatch="//", alpha=0.5)
        axes.set(xlabel="Initialisation rate 0.25", title="Two words")
        axes.legend()
    raw = io.BytesIO()
    figure.savefig(raw, format="svg", facecolor="white", metadata={"Date": None})
    slim = style.standalone_svg(figure)
    assert len(slim) < 0.8 * len(raw.getvalue())
    assert b'id="curve-0"' in slim
    page = browser.new_page(viewport={"width": 400, "height": 300})
    shots = []
    for svg in (raw.getvalue(), slim):
        element = "<svg" + svg.decode().partition("<svg")[2]
        page.set_content(f'<body style="margin: 0">{element}</body>')
        shots.append(imread(io.BytesIO(page.screenshot()))[:, :, :3])
    page.close()
    assert shots[0].std() > 0.05
    difference = abs(shots[0] - shots[1])
    assert difference.mean() < 0.001
    assert difference.max() < 0.5  # of the edge of a line


@pytest.mark.parametrize("points", [7, 9, 12])
def test_letters_on_a_page_are_ten_pixels_high(points: float) -> None:
    with style.panel(4, 3) as (figure, axes):
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "word", fontsize=points)
    svg = style.inline_svg(figure, "x")
    found = re.search(r"width: ([\d.]+)rem; min-width: ([\d.]+)rem", svg)
    assert found is not None
    widest, narrowest = (16 * float(size) for size in found.groups())
    assert narrowest / (4 * 72) * points == pytest.approx(10, rel=0.01)
    assert widest >= narrowest


@pytest.mark.parametrize("unkind", [{"figure.autolayout": True}, {"text.usetex": True}])
def test_a_users_matplotlibrc_changes_no_figure(unkind: dict[Any, Any], tmp_path: Path) -> None:
    """Neither how it is made nor how it is written; the user's own settings stay."""
    matrix = CosineMatrix(np.eye(3), np.arange(3))

    def written(name: str) -> list[bytes]:
        figure = style.settle(condensation_map(matrix))
        style.save(figure, tmp_path / f"{name}.png")
        svg = style.inline_svg(figure, "x").encode()
        return [(tmp_path / f"{name}.png").read_bytes(), svg, style.standalone_svg(figure)]

    usual = written("usual")
    with rc_context(unkind):
        assert written("unkind") == usual
        assert all(rcParams[name] == value for name, value in unkind.items())
