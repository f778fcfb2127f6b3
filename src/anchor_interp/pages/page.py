"""Self-contained pages: a template, filled, with its pictures.

A page makes no request. Figures, attention views, styles and CircuitsVis's script are in the file,
and its Content-Security-Policy allows nothing else.
"""

import base64
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor_interp import __version__
from anchor_interp._util import files
from anchor_interp._util.schema import checked_path
from anchor_interp.pages import style
from anchor_interp.pages.attention_views import View, bundle

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure and the name of its file, without the ending; templates hold the captions."""

    name: str
    figure: "Figure"
    about: str = ""
    """Which of several it is, as its caption names it."""

    def __post_init__(self) -> None:
        style.settle(self.figure)


def output_folder(out: str | Path, what: str) -> Path:
    """The folder, if a page can be written into it; StoreError if it is a file or a run's."""
    out = files.output_folder(checked_path(out, "out"), what, "run")
    files.output_file(out / "index.html")
    return out


def fill_page(
    template: str, views: Sequence[View], *, styles: Sequence[str] = (), **content: Any
) -> str:
    """Fill a template; ``styles`` are further style sheets beside the templates.

    A formula such as x - 7 does not break.
    """
    page = (
        _environment()
        .get_template(template)
        .render(
            style="".join(template_text(name) for name in ("report.css", *styles)),
            bundle=bundle() if views else "",
            calls=[view.call() for view in views],
            version=__version__,
            **content,
        )
    )
    return re.sub(r"\bx ([-+]) (?=\d)", "x\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", page)


def template_text(name: str) -> str:
    """The text of a file among the templates."""
    return resources.files("anchor_interp.pages").joinpath("templates", name).read_text("utf-8")


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("anchor_interp.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name, form in (("share", "z.2f"), ("small", ".2g"), ("rank", ".1f"), ("fine", ".3g")):
        environment.filters[name] = functools.partial(_number, form=form)
    environment.filters["tidy"] = _tidy
    return environment


def file_name(text: str) -> str:
    """A text as part of a file's name: what is neither a letter nor a digit becomes a hyphen."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")


def draw_picture(picture: Picture, prefix: str) -> dict[str, str]:
    """A picture as templates use it: inline SVG, whose ids get the prefix, and a file as a link."""
    whole = base64.b64encode(style.standalone_svg(picture.figure)).decode("ascii")
    return {
        "name": picture.name,
        "about": picture.about,
        "svg": style.inline_svg(picture.figure, f"{prefix}-{picture.name}"),
        "link": f"data:image/svg+xml;base64,{whole}",
    }


def save_pictures(pictures: Iterable[Picture], folder: Path, prefix: str = "") -> list[Path]:
    """Write every picture as PNG and as SVG; the prefix begins the names of the files."""
    return [
        style.save(picture.figure, folder / f"{prefix}{picture.name}.{ending}")
        for picture in pictures
        for ending in ("png", "svg")
    ]


def _number(value: float | None, form: str) -> str:
    return "\N{EN DASH}" if value is None else format(value, form)


def _tidy(value: Any, depth: int = 3) -> str:
    """A provenance value in words."""
    if isinstance(value, dict) and depth:
        return ", ".join(f"{name} {_tidy(entry, depth - 1)}" for name, entry in value.items())
    return str(value)
