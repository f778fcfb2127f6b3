"""Pages of the site that no file in docs/ holds: a hook of MkDocs.

The reference is made from docstrings and from ``--help``, home from the README, so that nothing is
written twice. What contributors read is there as text. Specimens answer on a page of their own.
"""

import ast
import functools
import posixpath
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import griffe
import numpy as np
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from PIL import Image

import anchor_interp
from anchor_interp.cli.main import command_line
from anchor_interp.cli.quickstart import LETTERS
from anchor_interp.runs.presets import QUICKSTART
from site_docstrings import markdown
from site_notebooks import NOTEBOOKS

ROOT = Path(__file__).parent.parent
ROOT_PAGES = {"README.md": "index.md"}
"""Documents of the root and the pages that show them."""
FOLDERS = {"experiments/notebooks": "notebooks.md"}
"""Folders of the root that documents link to and the pages about them."""
WIDE = ("index.md", "guide.md", "questions.md")
"""Pages whose pictures take the room of the table of contents, beside notebooks."""
PHONE, DESKTOP = 358, 930
"""Widths of a column in CSS pixels: pictures wider than a phone's say that they scroll."""
DARK = (
    '<svg aria-hidden="true" width="0" height="0" style="position: absolute"><filter id="dark" '
    'color-interpolation-filters="sRGB"><feColorMatrix values="{} {} {} 0 0 0 1 0"/></filter></svg>'
).format(".6 -1.2 -.4 0 1", "-.4 -.2 -.4 0 1", "-.4 -1.2 .6 0 1")
"""What site.css does to pictures in the dark: 1 - 2 brightness is added to red, green and blue.

Brightness is 0.2 red + 0.6 green + 0.2 blue."""
ROOT_FILES = {"CHANGELOG.md": "CHANGELOG.txt", "CITATION.cff": "CITATION.cff",
              "CONTRIBUTING.md": "CONTRIBUTING.txt", "LICENSE": "LICENSE"}  # fmt: skip
"""Files of the root that documents link to, and their names on the site: no text is a page."""
GUESS = "](figures/quickstart.png)\n"
"""Where the README asks which model is which; the site's home has a button below."""
BUTTON = "\n[Ask models like A, B and C](ask.html){ .md-button .md-button--primary }\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the root's pictures, tables, examples and files."""
    pages = {page: (ROOT / name).read_text(encoding="utf-8") for name, page in ROOT_PAGES.items()}
    for page in nav_pages(config.nav):
        if page.startswith("reference/"):
            pages[page] = _reference(page)
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "ask.html", content=ask_page()))
    figures = (path for path in ROOT.glob("figures/**/*") if path.is_file())
    kinds = ("tables/*/*.csv", "*.csv", "*.toml", "*/*.py")
    tables = [path for kind in kinds for path in ROOT.glob(f"experiments/{kind}")]
    examples = (path for path in ROOT.glob("examples/*.*") if path.is_file())
    for path in (*figures, *tables, *examples, *(ROOT / name for name in ROOT_FILES)):
        relative = path.relative_to(ROOT).as_posix()
        relative = ROOT_FILES.get(relative, relative)
        files.append(File.generated(config, relative, abs_src_path=str(path)))
    return files


@functools.cache
def ask_page() -> str:
    """Specimens of the quickstart's recipes, called A, B and C as on the site's home, answer."""
    from anchor_interp.analysis.ask_data import to_ask
    from anchor_interp.pages.ask_page import render_ask

    names = zip(LETTERS, QUICKSTART, strict=True)
    return render_ask(to_ask({a: anchor_interp.load(f"tiny/{recipe}/1") for a, recipe in names}))


def on_page_markdown(text: str, /, *, page: Page, **_: Any) -> str:
    """Point links between the root's documents and docs/ to their pages; make room for pictures."""
    here = page.file.src_uri
    if here in WIDE or here.startswith("notebooks/"):
        page.meta["hide"] = ["toc"]
    pages = ROOT_PAGES | NOTEBOOKS
    source = next((name for name, target in pages.items() if target == here), f"docs/{here}")

    def link(match: re.Match[str]) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        path = (pages | FOLDERS | ROOT_FILES).get(path, path.removeprefix("docs/"))
        return f"]({posixpath.relpath(path, posixpath.dirname(here) or '.')}{anchor})"

    if here.startswith("reference/"):
        return text
    if here == "index.md":
        text = text.replace(GUESS, GUESS + BUTTON)
    return re.sub(r"\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)", link, text)


def on_page_content(html: str, /, *, page: Page, **_: Any) -> str:
    """Show pictures in a size in which their letters can be read; a click opens a file.

    A picture that is wider than the page scrolls by itself. Notebooks hold theirs as text. Maps
    keep their colours in the dark. Code breaks between its words, not inside a flag or a name, a
    cell not inside a number.
    """

    def framed(match: re.Match[str]) -> str:
        source, text = match["source"], match["text"]
        place = posixpath.join(posixpath.dirname(page.file.src_uri), source)
        file = ROOT / posixpath.normpath(place)
        if not text and not file.is_file():
            return match[0]
        opened = BytesIO(b64decode(text)) if text else file
        width = _readable_width(opened)
        if PHONE < width < 1.2 * PHONE:  # rather a little smaller than scrolled
            width = PHONE
        size = f"min-width: {width}px" if width > PHONE else f"min-width: min({width}px, 100%)"
        if text:  # two dots a pixel: without a width the letters would be twice the page's
            size += f"; width: {1.3 * width:.0f}px"
        picture = f'<img style="{size}" {match[0][5:]}'
        kind = "picture wide" if width > PHONE else "picture"
        kind += " map" * _is_map(opened)
        if text:
            return f'<span class="{kind}">{picture}</span>'
        return f'<a class="{kind}" href="{source}">{picture}</a>'

    def broken(match: re.Match[str]) -> str:
        code = re.sub(r"(?<=[a-z])([._](?=[a-z])|=(?=&quot;))", r"\1<wbr>", _flags(match[1]))
        return f"<code>{code}</code>"

    html = re.sub(r"<code>([^<\n]+)</code>", broken, html)
    html = _texts(r"(<pre.*?</pre>|<code.*?</code>|<[^>]+>)", html, _kept)
    html = re.sub(
        r"<pre.*?</pre>", lambda of: _texts(r"(<[^>]+>)", of[0], _flags), html, flags=re.S
    )
    inline = r"data:image/png;base64,(?P<text>[^\"]+)"
    picture = rf'<img [^>]*?src="(?P<source>{inline}|[^":]+\.png)"[^>]*>'
    return DARK + re.sub(picture, framed, html)


def _texts(others: str, html: str, change: Callable[[str], str]) -> str:
    """Change what stands between tags and other parts, which a group of the expression holds."""
    parts = re.split(others, html, flags=re.S)
    return "".join(part if place % 2 else change(part) for place, part in enumerate(parts))


def _kept(text: str) -> str:
    """Numbers and formulas stay whole: powers of ten, intervals, shares, x - 7."""
    text = re.sub(r"\bx ([-+]) (?=\d)", "x\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", text)
    text = re.sub(r"[\d.]+e-\d+", r'<span class="flag">\g<0></span>', text)
    text = re.sub(r"(\[[-+\d.]+,|\bp) (?=[-+\d.]+)", "\\1\N{NO-BREAK SPACE}", text)
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", text)


def _flags(code: str) -> str:
    return re.sub(r"(?<![\w-])--\w[\w-]*", r'<span class="flag">\g<0></span>', code)


def _readable_width(file: Path | BytesIO) -> int:
    """The CSS pixels at which letters of 8 points have 9.4 pixels, or the picture's own width."""
    with Image.open(file) as picture:
        dots = float(picture.info.get("dpi", (120,))[0])
        return round(min(picture.width, picture.width / dots * 85, DESKTOP))


def _is_map(file: Path | BytesIO) -> bool:
    """Whether colours that mean something fill a quarter of the picture."""
    with Image.open(file) as picture:
        small = picture.convert("HSV").resize((100, 100), Image.Resampling.NEAREST)
    _, saturation, value = np.moveaxis(np.asarray(small, float), -1, 0)
    return bool(np.mean(saturation * value > 0.4 * 255**2) > 0.25)


def nav_pages(nav: Any) -> Iterator[str]:
    """The pages of a navigation tree, in order."""
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav or ():
            yield from nav_pages(entry)


def _reference(page: str) -> str:
    name = page.removeprefix("reference/").removesuffix(".md")
    if name == "index":
        return _public_names()
    if name == "command-line":
        return _command_line()
    return _room(name)


def _room(name: str) -> str:
    """The page of a room of the package: its docstring, then every module."""
    folder = ROOT / "src" / "anchor_interp" / name
    about = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    modules = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    parts = [
        f"::: anchor_interp.{name}.{module}\n    options:\n      heading_level: 2\n"
        for module in modules
    ]
    return "\n".join([f"# {name}\n\n{about}\n", *parts])


def _public_names() -> str:
    """The names that ``import anchor_interp`` gives, with the first line of their docstrings."""
    package = griffe.load("anchor_interp", search_paths=[ROOT / "src"])  # read, not imported
    lines = [
        "# Reference",
        "",
        "`import anchor_interp as ai` gives the names that most work needs, and loads neither "
        "torch nor TransformerLens before one of them is used. [Versions and "
        "deprecation](../deprecation.md) says which of them you can build on.",
        "",
    ]
    for name in anchor_interp.__all__:
        if name.startswith("__"):
            continue
        public = package[name]
        about = markdown(public.docstring.value, public).splitlines()[0] if public.docstring else ""
        lines += [f"[`{name}`][{public.target_path}]", f":   {about}", ""]
    return "\n".join(
        [*lines, "Each page of this section is one room of the package, module by module."]
    )


def _command_line() -> str:
    """The commands and their options, as ``--help`` explains them."""
    text = command_line().generate_docs(output_format="markdown")
    return text.replace("# anchor-interp", "# Command line", 1)
