"""CircuitsVis views of attention that work offline, in a notebook and in a page.

CircuitsVis loads its script from the network, but its wheel ships the script as well. A view here
is a place (``<div id>``) and a call of ``CircuitsVis.render``, and a page holds the script once,
however many views it has. :func:`attention_views` is for notebooks: one output holds all views and
the script, so it still works after the page is loaded again. If a page has several outputs, all
use the script of the first.
"""

import importlib.util
import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor_interp._util.errors import AnchorInterpError, ConfigError

if TYPE_CHECKING:
    from anchor_interp.analysis.attention import AttentionExample, AttentionPatterns


_ROLES = {"key": "key", "first": "a1", "second": "a2", "noise": ""}
"""Short names for charts."""
_LONG_ROLES = {"key": "key", "first": "1st anchor", "second": "2nd anchor"}
_FRAMES = {"key": "#e69f00", "first": "#56b4e9", "second": "#009e73", "last": "#cc79a7"}
_STYLE = """
.anchor-views { background: #fff; color: #1c2024; padding: .75rem; font: 14px/1.4 sans-serif; }
.anchor-views section + section { margin-top: 1rem; padding-top: 1rem; border-top: 1px solid #ddd; }
.anchor-views .tokens { display: flex; flex-wrap: wrap; gap: .3rem; margin-bottom: .75rem; }
.anchor-views .token { min-width: 2.6rem; padding: .1rem .4rem; text-align: center;
  border: 2px solid #ddd; border-radius: .3rem; }
.anchor-views .token.answer { border-color: transparent; }
.anchor-views .token * { display: block; white-space: pre; }
.anchor-views .token i { font-style: normal; font-size: .8em; color: #555; }
.anchor-views .layers { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 23rem), 1fr)); }
.anchor-views figure { margin: 0; min-width: 0; max-width: 32rem; }
.anchor-views figcaption { font-weight: 600; }
.anchor-views .view { position: relative; overflow: hidden; padding: 0 20px; }
.anchor-views .view h3 { margin: .4rem 0 !important; font: 600 .85em sans-serif; }
.anchor-views .view h2 { display: none; }
.anchor-views .view h4 { font: 600 9px sans-serif; }
.anchor-views .view div:has(> div > div > h4) { flex: 0 0 5rem !important;
  width: 5rem !important; max-width: none !important; }
"""
_TOKEN = '<div role="listitem" class="token{}"{}><b>{}</b><i>{}</i></div>'
_BLANK = "This view needs JavaScript; in Jupyter, trust the notebook or run the cell."
"""Shown in the place of a view until it is drawn."""
_LONGEST = 16
"""Characters of a label in a chart; longer ones would leave no room for the chart."""


@dataclass(frozen=True)
class View:
    """One CircuitsVis element; a notebook shows it, also offline."""

    element: str
    """CircuitsVis's name of the element, such as ``AttentionHeads``."""
    id: str
    """The id of its place in the page."""
    props: dict[str, Any]
    """The properties of the element, as JSON values."""

    def call(self) -> str:
        """The JavaScript that draws the view; safe inside ``<script>``."""
        return f"CircuitsVis.render({_js(self.id)}, CircuitsVis.{self.element}, {_js(self.props)});"

    def _repr_html_(self) -> str:
        place = f'<div id="{escape(self.id)}" style="background: white"></div>'
        return place + _script([self])


@dataclass(frozen=True)
class AttentionViews:
    """Attention in several sequences for a notebook, one view per sequence and layer."""

    rows: tuple[tuple[View, ...], ...]
    """The views of every sequence, one per layer."""
    layers: tuple[int, ...]
    """The 0-based layers shown."""
    words: tuple[tuple[str, ...], ...]
    """The names of the tokens of every sequence."""
    roles: tuple[tuple[str, ...], ...]
    """The role of every position."""
    answers: tuple[int, ...]
    """What the model predicts at the end of every sequence."""

    def html(self) -> str:
        """All views with one script, complete in itself.

        Every call uses new ids, so the same views can stand in a page twice.
        """
        prefix = f"view-{uuid.uuid4().hex}"
        views, sections = [], []
        for index, row in enumerate(self.rows):
            own = [replace(view, id=f"{prefix}-{view.id}") for view in row]
            views += own
            figures = "".join(map(self._figure, own, self.layers))
            sections.append(
                f'<section>{self._sequence(index)}<div class="layers">{figures}</div></section>'
            )
        body = "".join(sections)
        return f'<style>{_STYLE}</style><div class="anchor-views">{body}</div>{_script(views)}'

    def _sequence(self, index: int) -> str:
        items = []
        for word, role in zip(self.words[index], self.roles[index], strict=True):
            frame = f' style="border-color: {_FRAMES[role]}"' if role in _FRAMES else ""
            said = escape(_LONG_ROLES.get(role, role))
            items.append(_TOKEN.format("", frame, escape(word), said))
        answer = f"\N{RIGHTWARDS ARROW} {self.answers[index]}"
        items.append(_TOKEN.format(" answer", "", answer, "answer"))
        return f'<div class="tokens" role="list">{"".join(items)}</div>'

    @staticmethod
    def _figure(view: View, layer: int) -> str:
        place = f'<div class="view" role="img" aria-label="attention" id="{view.id}">{_BLANK}</div>'
        return f"<figure><figcaption>layer {layer + 1}</figcaption>{place}</figure>"

    def _repr_html_(self) -> str:
        return self.html()

    def __repr__(self) -> str:
        return f"{len(self.rows)} sequences x {len(self.layers)} layers of attention, as HTML"


def attention_views(
    found: "AttentionPatterns", *, layers: Sequence[int] | None = None
) -> AttentionViews:
    """Attention in several sequences; make it the last line of a notebook cell.

    Args:
        found: what :func:`anchor_interp.analysis.attention.attention_patterns` found.
        layers: 0-based layers to show; all if None.

    Raises:
        ConfigError: a layer does not exist.
    """
    n_layers, n = found.patterns.shape[:2]
    shown = tuple(range(n_layers) if layers is None else layers)
    for layer in shown:
        if layer not in range(n_layers):
            raise ConfigError(f"layer is {layer!r}; expected 0 to {n_layers - 1}")
    tokens = [
        _labelled(words, [_ROLES.get(role, role) for role in roles])
        for words, roles in zip(found.words, found.roles, strict=True)
    ]
    rows = tuple(
        tuple(
            _view(found.patterns[layer, index], tokens[index], f"{index}-{layer}")
            for layer in shown
        )
        for index in range(n)
    )
    return AttentionViews(rows, shown, found.words, found.roles, tuple(found.answers.tolist()))


def attention_view(example: "AttentionExample", layer: int, *, id: str) -> View:
    """Attention of one layer: who looks (down) at whom (across), head by head.

    Args:
        example: the sequence with its patterns.
        layer: 0-based layer.
        id: letters, digits and hyphens, unique in the page.
    """
    return _view(example.patterns[layer], labels(example), id)


def labels(example: "AttentionExample") -> list[str]:
    """The tokens with their roles. CircuitsVis drops blanks and appends the position."""
    return _labelled([str(token) for token in example.tokens], roles(example))


def roles(example: "AttentionExample") -> list[str]:
    """``key``, ``a1``, ``a2``, or nothing for noise, at every position."""
    named = {0: "key", 1: "a1", 2: "a2"}
    return [named.get(place - example.position, "") for place in range(len(example.tokens))]


def bundle() -> str:
    """CircuitsVis's script, safe inside ``<script>``.

    Raises:
        AnchorInterpError: CircuitsVis or its script is not installed.
    """
    spec = importlib.util.find_spec("circuitsvis")
    folders = [] if spec is None else spec.submodule_search_locations or []
    for folder in folders:
        path = Path(folder) / "dist" / "cdn" / "iife.js"
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            text = re.sub(r"^//# sourceMappingURL=.*$", "", text, flags=re.MULTILINE)
            # these occur in string literals, where the escape means the same character
            return re.sub(r"<(?=/script|script|!--)", r"\\x3c", text, flags=re.IGNORECASE)
    raise AnchorInterpError("circuitsvis is not installed with its script; pip install circuitsvis")


def _view(patterns: Any, tokens: list[str], id: str) -> View:
    heads = patterns.round(4).tolist()
    if len(heads) == 1:
        return View("AttentionPattern", id, {"tokens": tokens, "attention": heads[0]})
    names = [f"head {head + 1}" for head in range(len(heads))]
    props = {"tokens": tokens, "attention": heads, "attentionHeadNames": names}
    return View("AttentionHeads", id, props)


def _labelled(words: Sequence[str], roles: Sequence[str]) -> list[str]:
    together = [
        f"{word}\N{MIDDLE DOT}{role}" if role else word
        for word, role in zip(words, roles, strict=True)
    ]
    return [
        label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
        for label in together
    ]


def _script(views: Sequence[View]) -> str:
    """Draw the views. CircuitsVis exists once per page, under a name that nobody else uses."""
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
