"""What all figures share: ink, ticks, and how a figure becomes PNG or SVG."""

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from anchor_interp._util.files import write_output

INK = "#1c2024"
"""Colour of text and axes; :func:`inline_svg` makes it the surrounding text's."""


def plain_ticks(axis: "Axis") -> None:
    """1, 2, 5, 10, 20 ... on a logarithmic axis, as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_formatter(NullFormatter())


def save(figure: "Figure", path: Path, *, dpi: int = 120) -> Path:
    """Write a figure as PNG or, if the name ends so, as SVG, whole or not at all.

    Raises:
        StoreError: the file cannot be written.
    """
    data = io.BytesIO()
    if path.suffix.lower() == ".svg":
        data.write(standalone_svg(figure))
    else:
        figure.savefig(data, format="png", dpi=dpi, facecolor="white")
    write_output(path, data.getvalue())
    return path


def settle(figure: "Figure") -> "Figure":
    """Lay a figure out for good: one that is written several times takes half as long."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def standalone_svg(figure: "Figure") -> bytes:
    """A figure as an SVG file on white."""
    return _svg(figure, facecolor="white", metadata={"Date": None})


def inline_svg(figure: "Figure", prefix: str) -> str:
    """A figure as an ``<svg>`` element to stand in a page, hidden from screen readers.

    Its text and axes take the colour of the text around it, its background is transparent, and
    its ids begin with the prefix, so that several fit in one page.
    """
    bare = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    text = _svg(figure, facecolor="none", metadata=bare).decode("utf-8")
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    width = re.search(r'<svg [^>]*?width="([\d.]+)pt"', text)
    assert width is not None, "matplotlib gives an SVG its width in points"
    head = f'<svg aria-hidden="true" style="width: {float(width[1]) / 12:.2f}rem"'
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    return text.replace("<svg", head, 1).replace(INK, "currentColor")


def _svg(figure: "Figure", **options: Any) -> bytes:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "anchor-interp"}):
        figure.savefig(buffer, format="svg", **options)
    return buffer.getvalue()


@contextlib.contextmanager
def single(width: float, height: float) -> Iterator["Figure"]:
    """A figure of its own, in inches; everything that is no data is drawn in ``INK``."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    open_frame = dict.fromkeys(("axes.spines.top", "axes.spines.right"), False)
    style: dict[Any, Any] = dict.fromkeys(inked, INK) | open_frame
    with rc_context(style | {"axes.facecolor": "none", "axes.titlesize": 10}):
        yield Figure(figsize=(width, height), layout="constrained")


def box(axes: "Axes", start: float, stop: float) -> None:
    from matplotlib.patches import Rectangle

    size = stop - start
    corner = (start - 0.5, start - 0.5)
    axes.add_patch(Rectangle(corner, size, size, fill=False, edgecolor=INK, linewidth=0.9))


def or_nan(value: float | None) -> float:
    return np.nan if value is None else value
