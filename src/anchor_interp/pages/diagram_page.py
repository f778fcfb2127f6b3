"""The page of a sweep's phase diagrams, its figures as files, and its numbers.

The page makes no request and shows everything without a script. With it, a pointer, a finger or
the keyboard asks a cell for its runs, a cell that is picked is marked in every figure, and the
table of runs is filtered.
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
from anchor_interp.pages import diagram_figures, style
from anchor_interp.pages.page import Picture, fill_page, output_folder, template_text
from anchor_interp.sweeps.diagrams import (
    MEASURES,
    STATES,
    Cell,
    Diagram,
    Diagrams,
    Row,
    Value,
    label,
    phase_diagrams,
    summary,
    word,
    words,
)

_SMALLEST = 0.75
"""On a narrow page figures shrink to this share of their size; then they scroll."""


@dataclass(frozen=True)
class Part:
    """The figures of one diagram, or of all together."""

    id: str
    """Its anchor on the page."""
    title: str
    """Its heading."""
    pictures: tuple[Picture, ...]
    """Its figures; their names are unique among all parts."""


def write_diagrams(
    rows: Sequence[Row],
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
        rows: the sweep's table; see :func:`anchor_interp.sweeps.diagrams.phase_diagrams` for these and
            for ``x``, ``y``, ``where`` and ``best_over``.
        out: a folder, created if need be; files of the same names in it are replaced, each when
            the new one is complete.
        x: setting of the horizontal axis.
        y: setting of the vertical axis.
        where: values to keep by column.
        best_over: settings of whose values the best accuracy of each seed counts.
        name: what the page calls the sweep.

    Returns:
        ``index.html``, ``diagram.json`` (:class:`anchor_interp.sweeps.diagrams.Diagrams`), ``cells.csv``
        (:func:`anchor_interp.sweeps.diagrams.summary`) and the figures, ``figures/*.png`` and ``*.svg``.

    Raises:
        ConfigError: rows that make no diagram, or no path.
        StoreError: a file cannot be written, or the folder is a run's or no folder.
    """
    out = output_folder(out, "the diagrams")
    found = phase_diagrams(rows, x=x, y=y, where=where, best_over=best_over)
    parts, overviews = list(_parts(found)), list(_overviews(found))
    page, numbers, table = out / "index.html", out / "diagram.json", out / "cells.csv"
    write_output(numbers, canonical_json(found).encode())
    write_output(table, _csv(found).encode("utf-8", "replace"))
    pictures = [*overviews, *(picture for part in parts for picture in part.pictures)]
    written = [
        style.save(picture.figure, out / "figures" / f"{picture.name}.{ending}")
        for picture in pictures
        for ending in ("png", "svg")
    ]
    write_output(page, render_diagrams(found, parts, name=name).encode("utf-8", "replace"))
    return [page, numbers, table, *written]


def render_diagrams(
    found: Diagrams, parts: Sequence[Part] | None = None, *, name: str = "sweep"
) -> str:
    """The page as HTML."""
    parts = list(_parts(found)) if parts is None else parts
    first = found.diagrams[0]
    axes = [axis for axis in (first.x, first.y) if axis]
    places = list(_places(found))
    shown = [m for m in MEASURES if any(cell.measures[m].n for cell in found.cells)]
    states = Counter(run.state for run in found.runs)
    return fill_page(
        "diagrams.html.jinja",
        [],
        styles=["diagrams.css"],
        title=f"Phases of {name}",
        script=template_text("diagrams.js"),
        marks=STATES,
        measures={m: MEASURES[m][0] for m in shown},
        found=found,
        best=", ".join(f"{n} values of {label(n_)}" for n_, n in found.best_over.items()),
        where=[(label(n), ", ".join(map(word, values))) for n, values in found.where.items()],
        follows=[(label(n), ", ".join(map(word, values))) for n, values in found.follows.items()],
        columns=[*(label(n) for n in first.facet), *(axis.label for axis in axes)],
        cells=[
            {"cell": cell, "place": list(map(word, place.values())), "words": words(place)}
            for cell, place in places
        ],
        states={state: states[state] for state in STATES if states[state]},
        statuses=sorted({run.status for run in found.runs}),
        parts=[
            {
                "part": part,
                "figures": [
                    (p, _scrollable(style.inline_svg(p.figure, p.name))) for p in part.pictures
                ],
            }
            for part in parts
        ],
    )


def _places(found: Diagrams) -> Iterator[tuple[Cell, dict[str, Value]]]:
    """Every cell with the settings that tell it from the others."""
    for diagram in found.diagrams:
        for cell in diagram.cells:
            place = diagram.facet | {diagram.x.name: cell.x}
            yield cell, place | ({diagram.y.name: cell.y} if diagram.y else {})


def _scrollable(svg: str) -> str:
    """Let a figure shrink, but not so far that its letters are lost."""
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


def _overviews(found: Diagrams) -> Iterator[Picture]:
    for number, diagram in enumerate(found.diagrams, 1):
        figure = diagram_figures.overview(diagram, best_over=found.best_over)
        yield Picture(_named("overview", number, found), "", style.settle(figure))


def _named(name: str, number: int, found: Diagrams) -> str:
    return f"{name}-{number}" if len(found.diagrams) > 1 else name


def _parts(found: Diagrams) -> Iterator[Part]:
    for number, diagram in enumerate(found.diagrams, 1):
        axes = " and ".join(axis.label for axis in (diagram.x, diagram.y) if axis)
        title = words(diagram.facet) or f"Over {axes}"
        pictures = tuple(
            Picture(
                _named(picture.name, number, found),
                picture.caption,
                style.settle(picture.figure),
            )
            for picture in _pictures(diagram, found.best_over)
        )
        yield Part(f"diagram-{number}", title[0].upper() + title[1:], pictures)
    if any(len(series.points) > 2 for panel in found.decay for series in panel.series):
        caption = (
            "ID and OOD accuracy over the effective decay, the learning rate x weight decay "
            "summed over all steps: runs of different lengths and learning rates stand on one "
            "axis. Means with 95 % intervals (Student's t over runs), every run beside them, its "
            "phase above."
        )
        figure = style.settle(diagram_figures.over_decay(found))
        picture = Picture("over-decay", caption, figure)
        yield Part("decay", "Over effective decay", (picture,))


_CAPTIONS = {
    "ood_accuracy": "OOD accuracy: unseen pairs answered with the composition.",
    "symmetric_accuracy": "Symmetric answers: unseen pairs answered as their other order.",
    "id_accuracy": "ID accuracy: seen pairs, test keys.",
    "commutativity": "Commutativity: answers on unseen pairs that stay when the anchors change "
    "places.",
}


def _pictures(diagram: Diagram, best_over: dict[str, int]) -> Iterator[Picture]:
    yield Picture(
        "phases",
        "The phase of every run, one place a seed. A letter or mark tells it without colour.",
        diagram_figures.phase_map(diagram),
    )
    for measure in diagram_figures.measures_of(diagram):
        caption = f"{_CAPTIONS[measure]} One place a seed, the mean below"
        caption += ", in brackets over how many runs if not all have a measurement."
        if measure in ("ood_accuracy", "symmetric_accuracy"):
            caption += " Stripes: ID accuracy below 0.9; outlined where its mean is."
            if any(run.poor_commutativity for cell in diagram.cells for run in cell.runs):
                caption += " Triangles: commutativity below 0.7."
        figure = diagram_figures.accuracy_map(diagram, measure, best_over=best_over)
        yield Picture(measure.replace("_", "-"), caption, figure)
    for rank in diagram_figures.ranks_of(diagram):
        what = {
            "stable_rank": "Stable rank of W_Q(1)",
            "stable_rank_ratio": "Stable rank of W_Q(1) as a share of the value at initialisation",
        }[rank]
        caption = f"{what} as colour, one bubble a seed; its size is the phase's index: 1 "
        caption += "memorizing, 2 composite or symmetric, 3 inferential. The mean below."
        figure = diagram_figures.rank_map(diagram, rank)
        yield Picture(rank.replace("_", "-"), caption, figure)
    yield Picture(
        "along",
        f"ID and OOD accuracy along {diagram.x.label}: means with 95 % intervals (Student's t "
        "over runs, cut to 0 and 1), every run beside them, its phase above; the background is "
        "parted as the runs are.",
        diagram_figures.along_axis(diagram, best_over=best_over),
    )
