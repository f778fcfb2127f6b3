"""The page of a sweep's phase diagrams, its figures as files, and its numbers.

The page makes no request and shows everything without its script. With it, pointing at a cell (or
a tap, or the keyboard) shows the cell's runs, a picked cell is marked in every figure, and the
table of runs can be filtered.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchor_interp._util.files import write_output
from anchor_interp._util.schema import canonical_json
from anchor_interp.pages import style
from anchor_interp.pages.diagram_curves import along_axis, over_decay
from anchor_interp.pages.diagram_maps import (
    MARKED,
    RankMeasure,
    accuracy_map,
    has,
    overview,
    phase_map,
    rank_map,
)
from anchor_interp.pages.page import Picture, fill_page, output_folder, template_text
from anchor_interp.sweeps.cells import MEASURES, STATE_MARKS, in_order
from anchor_interp.sweeps.diagrams import Diagram, Diagrams, phase_diagrams, summary
from anchor_interp.sweeps.settings import TableRow, Value, label, word, words

_SMALLEST = 0.75  # the share of its size to which a figure shrinks; on narrower pages it scrolls
_CAPTIONS = {
    "ood_accuracy": "OOD accuracy: unseen pairs answered with the composition.",
    "id_accuracy": "ID accuracy: seen pairs, test keys.",
    "symmetric_accuracy": "Symmetric answers: unseen pairs answered as their other order.",
    "commutativity": "Commutativity: answers on unseen pairs that stay the same when the anchors "
    "change places.",
}
_RANKS: dict[RankMeasure, str] = {
    "stable_rank": "Stable rank of W_Q(1)",
    "stable_rank_ratio": "Stable rank of W_Q(1) as a share of the value at initialisation",
}


@dataclass(frozen=True)
class Part:
    """A section of the page: the figures of one diagram, or of all together."""

    id: str
    """Its anchor on the page."""
    title: str
    """Its heading."""
    pictures: tuple[Picture, ...]
    """Its figures; their names are unique among all parts."""


def write_diagrams(
    rows: Sequence[TableRow],
    out: str | Path,
    *,
    x: str | None = None,
    y: str | None = None,
    where: Mapping[str, Any] | None = None,
    best_over: str | Sequence[str] = (),
    name: str = "sweep",
) -> list[Path]:
    """Write a sweep's diagrams as a page, figures and numbers.

    Args:
        rows: the sweep's table, one run each.
        out: a folder, created if needed; complete new files replace files of the same names.
        x: this and the next three are those of
            :func:`anchor_interp.sweeps.diagrams.phase_diagrams`.
        y: the setting of the vertical axis.
        where: the values to keep, by column.
        best_over: the settings over which the best accuracy of each seed counts.
        name: the name of the sweep on the page.

    Returns:
        ``index.html``, ``diagram.json`` (:class:`anchor_interp.sweeps.diagrams.Diagrams`),
        ``cells.csv`` (:func:`anchor_interp.sweeps.diagrams.summary`) and the figures,
        ``figures/*.png`` and ``*.svg``.

    Raises:
        ConfigError: the rows make no diagram, or the path is not a path.
        StoreError: a file cannot be written, or ``out`` is a file or a run's folder.
    """
    out = output_folder(out, "the diagrams")
    found = phase_diagrams(rows, x=x, y=y, where=where, best_over=best_over)
    parts = list(_parts(found))
    overviews = [
        _picture("overview", n, found, "", overview(diagram, best_over=found.best_over))
        for n, diagram in enumerate(found.diagrams, 1)
    ]
    page, numbers, table = out / "index.html", out / "diagram.json", out / "cells.csv"
    write_output(numbers, canonical_json(found).encode())
    write_output(table, _csv(found).encode("utf-8", "replace"))
    written = [
        style.save(picture.figure, out / "figures" / f"{picture.name}.{ending}")
        for picture in [*overviews, *(picture for part in parts for picture in part.pictures)]
        for ending in ("png", "svg")
    ]
    write_output(page, render_diagrams(found, parts, name=name).encode("utf-8", "replace"))
    return [page, numbers, table, *written]


def render_diagrams(
    found: Diagrams, parts: Sequence[Part] | None = None, *, name: str = "sweep"
) -> str:
    """The page as HTML."""
    first = found.diagrams[0]
    places = [(cell, diagram.place(cell)) for diagram in found.diagrams for cell in diagram.cells]
    measures = [m for m in MEASURES if any(cell.measures[m].n for cell in found.cells)]
    return fill_page(
        "diagrams.html.jinja",
        [],
        styles=["diagrams.css"],
        title=f"Phases of {name}",
        script=template_text("diagrams.js"),
        marks=STATE_MARKS,
        measures={measure: MEASURES[measure][0] for measure in measures},
        found=found,
        best=", ".join(f"{n} values of {label(best)}" for best, n in found.best_over.items()),
        where=_listed(found.where),
        follows=_listed(found.follows),
        columns=[
            *map(label, first.facet),
            *(axis.label for axis in (first.x, first.y) if axis),
        ],
        cells=[
            {"cell": cell, "place": list(map(word, place.values())), "words": words(place)}
            for cell, place in places
        ],
        states=in_order(Counter(run.state for run in found.runs)),
        statuses=sorted({run.status for run in found.runs}),
        parts=[
            {
                "part": part,
                "figures": [
                    (p, _scrollable(style.inline_svg(p.figure, p.name))) for p in part.pictures
                ],
            }
            for part in (_parts(found) if parts is None else parts)
        ],
    )


def _listed(values: Mapping[str, tuple[Value, ...]]) -> list[tuple[str, str]]:
    return [(label(name), ", ".join(map(word, several))) for name, several in values.items()]


def _scrollable(svg: str) -> str:
    """Let a figure shrink, but not until its letters are too small to read."""
    return re.sub(
        r'style="width: ([\d.]+)rem"',
        lambda m: f'style="width: {m[1]}rem; min-width: {_SMALLEST * float(m[1]):.2f}rem"',
        svg,
        count=1,
    )


def _csv(found: Diagrams) -> str:
    rows = list(summary(found))
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _picture(name: str, number: int, found: Diagrams, caption: str, figure: Any) -> Picture:
    """A settled figure; its name has the diagram's number if there are several."""
    name = f"{name}-{number}" if len(found.diagrams) > 1 else name
    return Picture(name, caption, style.settle(figure))


def _parts(found: Diagrams) -> Iterator[Part]:
    for number, diagram in enumerate(found.diagrams, 1):
        axes = " and ".join(axis.label for axis in (diagram.x, diagram.y) if axis)
        title = words(diagram.facet) or f"Over {axes}"
        pictures = tuple(
            _picture(name, number, found, caption, figure)
            for name, caption, figure in _figures(diagram, found.best_over)
        )
        yield Part(f"diagram-{number}", title[0].upper() + title[1:], pictures)
    if any(len(series.points) > 2 for panel in found.decay for series in panel.series):
        caption = (
            "ID and OOD accuracy over the effective decay, the learning rate x weight decay "
            "summed over all steps: runs of different lengths and learning rates share one axis. "
            "Means with 95 % intervals (Student's t over runs), every run beside them, its phase "
            "above."
        )
        picture = Picture("over-decay", caption, style.settle(over_decay(found)))
        yield Part("decay", "Over effective decay", (picture,))


def _figures(diagram: Diagram, best_over: Mapping[str, int]) -> Iterator[tuple[str, str, Any]]:
    """Name, caption and figure of everything that is drawn of one diagram."""
    caption = (
        "The phase of every run, one place per seed. A letter or mark tells it without colour."
    )
    yield "phases", caption, phase_map(diagram)
    for measure, caption in _CAPTIONS.items():
        if not has(diagram, measure):
            continue
        caption += " One place per seed, the mean below"
        caption += ", with the number of runs in brackets if some have no measurement."
        if measure in MARKED:
            caption += " Stripes: ID accuracy below 0.9; outline: its mean is below 0.9."
            if any(run.poor_commutativity for cell in diagram.cells for run in cell.runs):
                caption += " Triangles: commutativity below 0.7."
        figure = accuracy_map(diagram, measure, best_over=best_over)
        yield measure.replace("_", "-"), caption, figure
    for rank, caption in _RANKS.items():
        if has(diagram, rank):
            caption += " as colour, one bubble per seed; its size is the index of the phase: 1 "
            caption += "memorizing, 2 composite or symmetric, 3 inferential. The mean below."
            yield rank.replace("_", "-"), caption, rank_map(diagram, rank)
    caption = (
        f"ID and OOD accuracy along {diagram.x.label}: means with 95 % intervals (Student's t "
        "over runs, cut to 0 and 1), every run beside them, its phase above; the background is "
        "divided as the runs are."
    )
    yield "along", caption, along_axis(diagram, best_over=best_over)
