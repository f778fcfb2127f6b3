"""Maps of answers: key by position of the key, one colour a function, one panel a pair.

One glance tells memorizing (no colour holds), symmetric (one colour, a wrong one), inferential (one
colour, the rule's) and mixtures (:mod:`anchor_interp.behaviour.answer_map`).
"""

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from anchor_interp.behaviour.answer_map_numbers import EXCEPTION, NONE, OTHER_ORDER, RULE, AnswerMap
from anchor_interp.pages.style import PHASE_COLOURS, single

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OWN = {
    RULE: PHASE_COLOURS["inferential"],
    OTHER_ORDER: PHASE_COLOURS["symmetric"],
    EXCEPTION: "#7B4F9D",
}
_BORROWED = ("#07B", "#FA8", "#C7A", "#880", "#B22", "#77C", "#E90", "#FE4", "#A52")
ANOTHER, _REST = "another function", {"another function": "#A9A9C9", NONE: "#88888830"}
WORDS = {RULE: "the rule", OTHER_ORDER: "the target of the other order",
          EXCEPTION: "its exception", NONE: "no seen pair's function, nor the rule"}  # fmt: skip


def answer_maps(
    maps: Mapping[str, AnswerMap], *, columns: int | None = None, width: float = 3.4
) -> "Figure":
    """One panel for every map and pair, in the order given.

    Args:
        maps: one or more, by the title of their panels; one of several pairs names the pair too.
        columns: panels side by side; if None, the pairs of a map, or else up to three maps.
        width: of a panel, in inches.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    panels = [
        (title if title and len(one.pairs) == 1 else f"{title}, {pair}".lstrip(", "), one, index)
        for title, one in maps.items()
        for index, pair in enumerate(str(pair).replace(" ", "\xa0") for pair in one.pairs)
    ]
    colours = colours_of(maps.values())
    most = max(len(one.pairs) for one in maps.values())
    columns = min(len(panels), columns or (most if most > 1 else 3))
    n_rows = -(-len(panels) // columns)
    with single(width * columns, 1.5 * n_rows + 0.9) as figure:
        axes = figure.subplots(n_rows, columns, sharex=True, sharey=True, squeeze=False)
        for each in axes.flat[len(panels) :]:
            each.set_axis_off()
        held: set[str] = set()
        for each, (title, one, index) in zip(axes.flat, panels, strict=False):
            holding = one.holding[index].T  # [position key]
            first, last = int(one.keys[0]), int(one.keys[-1])
            palette = ListedColormap([colours.get(n, colours[ANOTHER]) for n in one.functions])
            each.imshow(
                holding, cmap=palette, vmin=-0.5, vmax=len(one.functions) - 0.5, aspect="auto",
                interpolation="nearest",
                extent=(first - 0.5, last + 0.5, len(holding) - 0.5, -0.5),
            )  # fmt: skip
            each.set_title(textwrap.fill(title, round(10 * width)))
            each.set_yticks(range(0, len(holding), 2))
            names = {one.functions[i] for i in np.unique(holding)}
            held |= {name if name in colours else ANOTHER for name in names}
        for each in axes.flat[max(0, len(panels) - columns) : len(panels)]:
            each.set_xlabel("key x")
            each.tick_params(labelbottom=True)
        figure.supylabel("position of the key", fontsize=10)
        shown = {name: tint for name, tint in colours.items() if name in held}
        beside = min(len(shown), int(width * columns // 1.7))
        figure.legend(
            handles=[Patch(color=c, label=WORDS.get(name, name)) for name, c in shown.items()],
            loc="outside lower center", ncols=beside, frameon=False, fontsize=9,
            columnspacing=1.2, handletextpad=0.4,
        )  # fmt: skip
    return figure


def colours_of(maps: Iterable[AnswerMap]) -> dict[str, str]:
    """The colour of each function, by its place in the task; of too many, the most frequent."""
    total = Counter[str]()
    for one in maps:
        total.update(one.cells)
    seen = [name for name in total if name not in (*_OWN, NONE)]
    if len(seen) > len(_BORROWED):
        seen.sort(key=lambda name: -total[name])
    return {**_OWN, **dict(zip(seen, _BORROWED, strict=False)), **_REST}
