"""CircuitsVis views of attention that work without a network, in a notebook and in a page.

CircuitsVis itself loads its script from the network whenever there is one. Its wheel also ships
the script, so a view here is a place (``<div id>``) and a call of ``CircuitsVis.render``; a page
needs the script once, a notebook's output has it with every view.
"""

import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor_interp.errors import AnchorInterpError

if TYPE_CHECKING:
    from anchor_interp.evaluation import AttentionExample


@dataclass(frozen=True)
class View:
    """One CircuitsVis element; a notebook shows it, offline too."""

    element: str
    """CircuitsVis's name of the element, such as ``AttentionHeads``."""
    id: str
    """The id of its place in the page."""
    props: dict[str, Any]
    """What the element shows, as JSON values."""

    def call(self) -> str:
        """The JavaScript that draws the view; safe inside ``<script>``."""
        return f"CircuitsVis.render({_js(self.id)}, CircuitsVis.{self.element}, {_js(self.props)});"

    def _repr_html_(self) -> str:
        script = f"{{{bundle()}\n{self.call()}}}"
        return f'<div id="{self.id}" style="background: white"></div><script>{script}</script>'


def attention_view(example: "AttentionExample", layer: int, *, id: str) -> View:
    """Attention of one layer: who looks (down) at whom (across), head by head.

    Args:
        example: the sequence with its patterns.
        layer: 0-based layer.
        id: letters, digits and hyphens, unique in the page.
    """
    heads = example.patterns[layer].round(4).tolist()
    shown = {"tokens": labels(example)}
    if len(heads) == 1:
        return View("AttentionPattern", id, shown | {"attention": heads[0]})
    return View("AttentionHeads", id, shown | {"attention": heads})


def labels(example: "AttentionExample") -> list[str]:
    """The tokens with their roles; CircuitsVis drops blanks and appends the position."""
    return [
        f"{token}\N{MIDDLE DOT}{role}" if role else str(token)
        for token, role in zip(example.tokens, roles(example), strict=True)
    ]


def roles(example: "AttentionExample") -> list[str]:
    """``key``, ``a1``, ``a2``, or nothing for noise, of every position."""
    named = {0: "key", 1: "a1", 2: "a2"}
    return [named.get(place - example.position, "") for place in range(len(example.tokens))]


def bundle() -> str:
    """CircuitsVis's script, safe inside ``<script>``.

    Raises:
        AnchorInterpError: CircuitsVis is not installed, or without its script.
    """
    spec = importlib.util.find_spec("circuitsvis")
    folders = [] if spec is None else spec.submodule_search_locations or []
    for folder in folders:
        path = Path(folder) / "dist" / "cdn" / "iife.js"
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            text = re.sub(r"^//# sourceMappingURL=.*$", "", text, flags=re.MULTILINE)
            # they occur in string literals, which read the escape as the same character
            return re.sub(r"<(?=/script|script|!--)", r"\\x3c", text, flags=re.IGNORECASE)
    raise AnchorInterpError("circuitsvis is not installed with its script; pip install circuitsvis")


def _js(value: Any) -> str:
    """JSON that no browser takes for markup."""
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
