"""What all figures share: colours, axes, legends, heat maps, and how a figure becomes PNG or SVG.

Colour-blind readers can tell the colours apart (Okabe and Ito). matplotlib is loaded by the first
figure that is drawn. Figures start from its own defaults, whatever a matplotlibrc says.
"""

import contextlib
import io
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from anchor_interp._util.files import write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK = "#1c2024"
"""Text and axes; :func:`inline_svg` replaces it by the colour of the text around the figure."""
INFERENTIAL, SYMMETRIC, NEITHER = "#D55E00", "#56B4E9", "#999999"
"""Answers."""
UNSEEN, OVERRIDDEN = "#CC79A7", "#E69F00"
"""Frames around pairs."""
CHOSEN, REFERENCE = "#D55E00", "#0072B2"
"""What a figure is about; what it is compared with."""
_SMALLEST = 7.5
"""Letters of this size in points, 10 px on a page, are the smallest that are shown."""
QUALITATIVE = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", INK,
    "#999999", "#7B4F9D",
)  # fmt: skip
"""Okabe and Ito's eight colours, black as ink, and two more."""
PHASE_COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "memorizing": "#E69F00",
        "composite": "#CC79A7",
        "symmetric": "#56B4E9",
        "inferential": "#009E73",
        "undertrained": "#999999",
        "other": "#A39200",
    }
)
"""Phases, on every page (Okabe and Ito's colours, a grey and a dark yellow)."""

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
ET.register_namespace("", _SVG)
ET.register_namespace("xlink", _XLINK)

_SETTLED: "WeakKeyDictionary[Figure, str | None]" = WeakKeyDictionary()
"""The SVG of each settled figure, once it has been drawn."""


@contextlib.contextmanager
def defaults(**style: Any) -> Iterator[None]:
    """Matplotlib's own defaults with this style, instead of the user's matplotlibrc."""
    from matplotlib import rc_context, rcdefaults, rcParams

    settings: dict[Any, Any] = style
    with rc_context():
        rcdefaults()
        rcParams.update(settings)
        yield


@contextlib.contextmanager
def single(width: float, height: float) -> Iterator["Figure"]:
    """A figure of this size in inches; everything that is not data is drawn in ``INK``."""
    from matplotlib.figure import Figure

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    open_frame = dict.fromkeys(("axes.spines.top", "axes.spines.right"), False)
    style: dict[str, Any] = dict.fromkeys(inked, INK) | open_frame
    with defaults(**style, **{"axes.facecolor": "none", "axes.titlesize": 10}):
        yield Figure(figsize=(width, height), layout="constrained")


@contextlib.contextmanager
def panel(width: float, height: float) -> Iterator[tuple["Figure", "Axes"]]:
    """A figure as :func:`single` makes it, with one set of axes."""
    with single(width, height) as figure:
        yield figure, figure.subplots()


def colour(index: int) -> str:
    """The qualitative colour of this index; they repeat after the last."""
    return QUALITATIVE[index % len(QUALITATIVE)]


def colour_bar(image: Any, axes: "Axes", label: str) -> None:
    """Explain the colours of an image or of points beside their axes."""
    image.figure.colorbar(image, ax=axes, label=label, shrink=0.8)


def signed_map(axes: "Axes", matrix: Any, label: str, **options: Any) -> None:
    """Draw a matrix of values from -1 to 1 with its colour bar."""
    colour_bar(axes.imshow(matrix, vmin=-1, vmax=1, cmap="PuOr_r", **options), axes, label)


def cell_values(axes: "Axes", matrix: Any, white: Any) -> None:
    """Write the values of a matrix [row, column] into its cells, unless NaN; some in white."""
    for row, column in np.argwhere(~np.isnan(matrix)):
        axes.text(column, row, f"{matrix[row, column]:z.2f}", ha="center", va="center",
                  fontsize=9, color="white" if white[row, column] else "black")  # fmt: skip


def legend_below(figure: "Figure", axes: "Axes", columns: int) -> None:
    """A legend below the figure, where it takes no width."""
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns,
        frameon=False, fontsize=9, columnspacing=1, handletextpad=0.4,
    )  # fmt: skip


def legend_above(axes: "Axes", columns: int, fontsize: int = 9) -> None:
    """A legend above the axes."""
    axes.legend(frameon=False, fontsize=fontsize, ncols=columns, loc="lower center",
                bbox_to_anchor=(0.5, 1))  # fmt: skip


def plain_ticks(axis: "Axis") -> None:
    """Label a logarithmic axis 1, 2, 5, 10, 20, ... as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_formatter(NullFormatter())


def frame(axes: "Axes", corner: tuple[float, float], size: float, **style: Any) -> None:
    """Draw an empty square with this lower left corner."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle(corner, size, size, fill=False, **style))


def or_nan(value: float | None) -> float:
    """The value, or NaN if None: matplotlib leaves NaN out."""
    return np.nan if value is None else value


def save(figure: "Figure", path: Path) -> Path:
    """Write a figure whole or not at all: SVG if the name ends in ``.svg``, else PNG."""
    if path.suffix.lower() == ".svg":
        write_output(path, standalone_svg(figure))
    else:
        data = io.BytesIO()
        with defaults():
            figure.savefig(data, format="png", dpi=120, facecolor="white")
        write_output(path, data.getvalue())
    return path


def settle(figure: "Figure") -> "Figure":
    """Fix the layout of a finished figure: from then on its SVG is drawn once and kept."""
    with defaults():
        figure.draw_without_rendering()
        figure.set_layout_engine(None)  # with "none" every file would compute the layout again
    _SETTLED[figure] = None
    return figure


def standalone_svg(figure: "Figure") -> bytes:
    """A figure as an SVG file on white."""
    root = _svg(figure)
    root.insert(0, ET.Element("rect", {"width": "100%", "height": "100%", "fill": "white"}))
    file: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return file


def inline_svg(figure: "Figure", prefix: str) -> str:
    """A figure as an ``<svg>`` element for a page, hidden from screen readers.

    Text and axes take the colour of the text around it; the background is transparent. Ids
    begin with the prefix, so several figures fit in one page. It shrinks on a narrow page, until
    its smallest letters are 10 px high.
    """
    root = _svg(figure)
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "id":
                element.set(name, f"{prefix}-{value}")
            elif value.startswith("#") and name == f"{{{_XLINK}}}href":
                element.set(name, f"#{prefix}-{value[1:]}")
            else:
                own = value.replace("url(#", f"url(#{prefix}-")
                element.set(name, own.replace(INK, "currentColor"))
    wide, least = 6 * figure.get_figwidth(), min(1.25, _SMALLEST / _smallest_letters(figure))
    for name in ("width", "height"):
        del root.attrib[name]
    size = f"width: {wide * max(1, least):.2f}rem; min-width: {wide * least:.2f}rem"
    root.attrib = {"aria-hidden": "true", "style": size} | root.attrib
    return ET.tostring(root, encoding="unicode")


def _smallest_letters(figure: "Figure") -> float:
    from matplotlib.text import Text

    shown: list[Any] = figure.findobj(lambda one: isinstance(one, Text) and one.get_visible())
    return min((text.get_fontsize() for text in shown if text.get_text()), default=_SMALLEST)


def _svg(figure: "Figure") -> ET.Element:
    """A figure as SVG without a background."""
    text = _SETTLED.get(figure)
    if text is None:
        buffer = io.BytesIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with defaults(**{"svg.hashsalt": "anchor-interp"}):
            figure.savefig(buffer, format="svg", facecolor="none", metadata=nothing)
        text = _slim(buffer.getvalue().decode("utf-8"))
        if figure in _SETTLED:
            _SETTLED[figure] = text
    return ET.fromstring(text)


def _slim(svg: str) -> str:
    """Matplotlib's SVG with less text: hundredths of a point, no comment, no id that it numbered.

    Ids that a figure gives its own parts (``cell-3``) have no underscore before their number.
    """
    root = ET.fromstring(svg)
    for element in root.iter():
        numbered = element.tag == f"{{{_SVG}}}g" and "_" in element.get("id", "")
        if numbered or element.tag == f"{{{_SVG}}}image":  # equal images have equal ids
            element.attrib.pop("id", None)
        for name in {"d", "x", "y"}.intersection(element.keys()):
            element.set(name, " ".join(map(_rounded, element.get(name, "").split())))
        if element.tag != f"{{{_SVG}}}style" and not (element.text or "").strip():
            element.text = None
        element.tail = None
    return ET.tostring(root, encoding="unicode")


def _rounded(part: str) -> str:
    """A number of a path in hundredths; a letter as it is."""
    return part if part.isalpha() else f"{float(part):.2f}".rstrip("0").rstrip(".")
