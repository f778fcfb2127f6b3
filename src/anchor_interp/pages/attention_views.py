"""CircuitsVis views of attention that work offline, in a notebook and in a page.

CircuitsVis loads its script from the network, but its wheel ships the script as well. A view here
is a place (``<div id>``) and a call of ``CircuitsVis.render``. :func:`attention_views` is for
notebooks: one output holds all views and the script, so it still works after the page is loaded
again. If a page has several outputs, all use the script of the first.
"""

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor_interp._util.schema import checked

if TYPE_CHECKING:
    from anchor_interp.analysis.attention import (
        AttentionExample,
        AttentionPatterns,
        SequenceAttention,
    )


_ROLES = {"key": "key", "first": "a1", "second": "a2", "noise": ""}
_LONG_ROLES = {"key": "key", "first": "1st anchor", "second": "2nd anchor"}
_FRAMES = {"key": "#e69f00", "first": "#56b4e9", "second": "#009e73", "last": "#cc79a7"}
_TOKEN = '<div role="listitem" class="token{}"{}><b>{}</b><i>{}</i></div>'
_FIGURE = """<figure><figcaption>layer {}</figcaption>\
<div class="view" role="img" aria-label="attention" id="{}">\
This view needs JavaScript; in Jupyter, trust the notebook or run the cell.</div></figure>"""
_LONGEST = 16  # characters of a label; longer ones would leave no room for the chart


@dataclass(frozen=True)
class View:
    """One CircuitsVis element."""

    element: str
    """CircuitsVis's name of the element, such as ``AttentionHeads``."""
    id: str
    """The id of its place in the page."""
    props: dict[str, Any]
    """The properties of the element, as JSON values."""

    def call(self) -> str:
        """The JavaScript that draws the view; safe inside ``<script>``."""
        return f"CircuitsVis.render({_js(self.id)}, CircuitsVis.{self.element}, {_js(self.props)});"


@dataclass(frozen=True, eq=False)
class AttentionViews:
    """Attention in several sequences for a notebook, one view per sequence and layer."""

    attention: "AttentionPatterns"
    layers: tuple[int, ...]
    """The 0-based layers shown."""

    def html(self) -> str:
        """All views with one script, complete in itself.

        Every call uses new ids, so the same views can stand in a page twice.
        """
        prefix, shown = f"view-{uuid.uuid4().hex}", self.attention
        views, body = [], ""
        for index, (words, roles) in enumerate(zip(shown.words, shown.roles, strict=True)):
            labels, figures = _labelled(words, [_ROLES.get(role, role) for role in roles]), ""
            for layer in self.layers:
                view = _view(shown.patterns[layer, index], labels, f"{prefix}-{index}-{layer}")
                views.append(view)
                figures += _FIGURE.format(layer, view.id)
            tokens = _tokens(words, roles, int(shown.answers[index]))
            body += f'<section>{tokens}<div class="layers">{figures}</div></section>'
        sheet = files("anchor_interp.pages").joinpath("templates", "attention_views.css")
        style = f"<style>{sheet.read_text('utf-8')}</style>"
        return f'{style}<div class="anchor-views">{body}</div>{_script(views)}'

    _repr_html_ = html

    def __repr__(self) -> str:
        n_sequences = len(self.attention.words)
        return f"{n_sequences} sequences x {len(self.layers)} layers of attention, as HTML"


def attention_views(
    attention: "AttentionPatterns", *, layers: Sequence[int] | None = None
) -> AttentionViews:
    """Attention in several sequences; make it the last line of a notebook cell.

    Layers are 0-based; None shows all.
    """
    n_layers = len(attention.patterns)
    shown = tuple(range(n_layers) if layers is None else layers)
    for layer in shown:
        checked(layer, int, "layer", low=0, high=n_layers - 1)
    return AttentionViews(attention, shown)


def example_views(example: "AttentionExample | SequenceAttention", id: str) -> list[View]:
    """Attention of an example, a view for each layer, head by head: rows attend to columns.

    ``id`` holds letters, digits and hyphens, is unique in the page and begins the views' ids.
    CircuitsVis drops spaces and appends the position to a token.
    """
    labels = _labelled(example.words, example.roles)
    return [_view(heads, labels, f"{id}-{layer}") for layer, heads in enumerate(example.patterns)]


def bundle() -> str:
    """CircuitsVis's script, safe inside ``<script>``."""
    path = distribution("circuitsvis").locate_file("circuitsvis/dist/cdn/iife.js")
    text = Path(str(path)).read_text(encoding="utf-8")
    text = re.sub(r"^//# sourceMappingURL=.*$", "", text, flags=re.MULTILINE)
    # these occur in string literals, where the escape means the same character
    return re.sub(r"<(?=/script|script|!--)", r"\\x3c", text, flags=re.IGNORECASE)


def _view(patterns: Any, tokens: list[str], id: str) -> View:
    heads = patterns.round(4).tolist()
    if len(heads) == 1:
        return View("AttentionPattern", id, {"tokens": tokens, "attention": heads[0]})
    names = [f"H{head}" for head in range(len(heads))]  # a longer name is broken in two
    props = {"tokens": tokens, "attention": heads, "attentionHeadNames": names}
    return View("AttentionHeads", id, props)


def _labelled(words: Sequence[str], roles: Sequence[str]) -> list[str]:
    labels = []
    for word, role in zip(words, roles, strict=True):
        label = f"{word}\N{MIDDLE DOT}{role}" if role else word
        cut = f"{label[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
        labels.append(label if len(label) <= _LONGEST else cut)
    return labels


def _tokens(words: Sequence[str], roles: Sequence[str], answer: int) -> str:
    """The tokens of a sequence with their roles, and the answer."""
    items = []
    for word, role in zip(words, roles, strict=True):
        frame = f' style="border-color: {_FRAMES[role]}"' if role in _FRAMES else ""
        items.append(_TOKEN.format("", frame, escape(word), escape(_LONG_ROLES.get(role, role))))
    items.append(_TOKEN.format(" answer", "", f"\N{RIGHTWARDS ARROW} {answer}", "answer"))
    return f'<div class="tokens" role="list">{"".join(items)}</div>'


def _script(views: Sequence[View]) -> str:
    """Draw the views; the first script of a page keeps CircuitsVis under a name of its own."""
    calls = "\n".join(view.call() for view in views)
    return (
        "<script>(() => {\n"
        f"const CircuitsVis = window.anchorInterpViews ??= (() => {{\n{bundle()}\n"
        f"return CircuitsVis;\n}})();\n{calls}\n}})();</script>"
    )


def _js(value: Any) -> str:
    """JSON that a browser cannot mistake for markup."""
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
