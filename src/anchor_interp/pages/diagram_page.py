"""The page of a sweep's phase diagrams, its figures as files, and its numbers.

The page makes no request and shows everything without its script. With it, pointing at a cell (or
a tap, or the keyboard) shows the cell's runs, a picked cell is marked in every figure, and the
table of runs can be filtered.
"""

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from anchor_interp._util.files import write_output
from anchor_interp._util.schema import canonical_json
from anchor_interp.pages import diagram_maps, style
from anchor_interp.pages.diagram_curves import along_axis, over_decay
from anchor_interp.pages.diagram_maps import MARKED, RankMeasure, has
from anchor_interp.pages.page import Picture, fill_page, output_folder, save_pictures, template_text
from anchor_interp.runs.phase import meanings
from anchor_interp.sweeps.cells import MEASURES, STATE_MARKS, in_order, measure_label
from anchor_interp.sweeps.diagrams import Diagram, Diagrams, phase_diagrams, summary
from anchor_interp.sweeps.settings import TableRow, Value, label, listed, word, words

_PHASES = "The phase of every run, one place per seed. A letter or mark tells it without colour."
_CAPTIONS = {
    "ood_accuracy": "OOD accuracy: unseen pairs answered with the composition.",
    "id_accuracy": "ID accuracy: seen pairs, test keys.",
    "symmetric_accuracy": "Symmetric answers: unseen pairs answered as their other order.",
    "commutativity": "Commutativity: answers on unseen pairs that stay the same when the anchors "
    "change places.",
}
_WITHOUT_ANCHORS = {
    "ood_accuracy": "OOD accuracy: examples of what training leaves out.",
    "id_accuracy": "ID accuracy: held-out examples, distributed as the training data.",
}
_MEANS = (
    " One place per seed, the mean below, with the number of runs in brackets if some have no "
    "measurement."
)
_RANKS: dict[RankMeasure, str] = {
    "stable_rank": "Stable rank of W_Q L0, the papers' W_Q(1)",
    "stable_rank_ratio": "Stable rank of W_Q L0, the papers' W_Q(1), over that at initialisation",
}
_BUBBLES = " as colour, one bubble per seed; its size is the index of the phase: "
_INDICES = "1 memorizing, 2 composite or symmetric, 3 inferential. The mean below."
_INDICES_WITHOUT_ANCHORS = "1 memorizing, 3 inferential. The mean below."
_ALONG = (
    "means with 95 % intervals (Student's t over runs, cut to 0 and 1), every run beside them, "
    "its phase above; the background is divided as the runs are."
)
_OVER_DECAY = (
    "ID and OOD accuracy over the effective decay, the learning rate x weight decay summed over "
    "all steps: runs of different lengths and learning rates share one axis. Means with 95 % "
    "intervals (Student's t over runs), every run beside them, its phase above."
)


@dataclass(frozen=True)
class Part:
    """A section of the page: the figures of one diagram, or of all together."""

    id: str
    title: str
    pictures: tuple[Picture, ...]
    """Their names are unique among all parts."""


def write_diagrams(
    rows: Sequence[TableRow],
    out: str | Path,
    *,
    name: str = "sweep",
    runs: Path | None = None,
    **choices: Any,
) -> list[Path]:
    """Write the diagrams of a sweep called ``name`` as a page, figures and numbers.

    Rows and choices (``x``, ``y``, ``where``, ``best_over``, ``maps``) are those of
    :func:`anchor_interp.sweeps.diagrams.phase_diagrams`. The folder ``out`` is created if needed;
    complete new files replace files of the same names. ``runs`` is the folder of the run folders: a
    run whose folder holds a ``report.html`` is linked to it.

    Returns:
        ``index.html``, ``diagram.json`` (:class:`anchor_interp.sweeps.diagrams.Diagrams`),
        ``cells.csv`` (:func:`anchor_interp.sweeps.diagrams.summary`) and the figures,
        ``figures/*.png`` and ``*.svg``.

    Raises:
        ConfigError: the rows make no diagram, or the path is not a path.
        StoreError: a file cannot be written, or ``out`` is a file or a run's folder.
    """
    out = output_folder(out, "the diagrams")
    found = phase_diagrams(rows, **choices)
    parts = list(_parts(found))
    page, numbers, table = out / "index.html", out / "diagram.json", out / "cells.csv"
    write_output(numbers, canonical_json(found).encode())
    cells, text = list(summary(found)), io.StringIO()
    writer = csv.DictWriter(text, cells[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
    write_output(table, text.getvalue().encode("utf-8", "replace"))
    pictures = (picture for part in parts for picture in part.pictures)
    written = save_pictures(pictures, out / "figures")
    reports = _reports(found, runs, out)
    source = render_diagrams(found, parts, name=name, reports=reports)
    write_output(page, source.encode("utf-8", "replace"))
    return [page, numbers, table, *written]


def _reports(found: Diagrams, runs: Path | None, out: Path) -> dict[str, str]:
    """The report of every run that has one, as a link from the page."""
    if runs is None:
        return {}
    known = {run.run_id: runs.resolve() / run.run_id / "report.html" for run in found.runs}
    start = out.resolve()
    return {
        run_id: quote(Path(os.path.relpath(report, start)).as_posix())
        for run_id, report in known.items()
        if report.is_file()
    }


def render_diagrams(
    found: Diagrams,
    parts: Sequence[Part],
    *,
    name: str = "sweep",
    reports: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The page as HTML, with the pictures that have a caption; ``reports`` are links by run id."""
    first = found.diagrams[0]
    places = [(cell, diagram.place(cell)) for diagram in found.diagrams for cell in diagram.cells]
    all_measures = (*MEASURES, *found.maps)
    measures = [m for m in all_measures if any(cell.measures[m].n for cell in found.cells)]
    drawn = [
        {
            "part": part,
            "figures": [
                (picture, style.inline_svg(picture.figure, picture.name))
                for picture in part.pictures
                if picture.caption
            ],
        }
        for part in parts
    ]
    return fill_page(
        "diagrams.html.jinja",
        [],
        styles=["diagrams.css"],
        title=f"Phases of {name}",
        script=template_text("diagrams.js"),
        marks=STATE_MARKS,
        reports=reports,
        phases=meanings(anchored="commutativity" in measures),
        measures={measure: measure_label(measure) for measure in measures},
        found=found,
        best=", ".join(f"{n} values of {label(best)}" for best, n in found.best_over.items()),
        where=_listed(found.where),
        follows=_listed(found.follows),
        columns=[label(column) for column in first.place(first.cells[0])],
        cells=[
            {"cell": cell, "place": list(map(word, place.values())), "words": words(place)}
            for cell, place in places
        ],
        states=in_order(Counter(run.state for run in found.runs)),
        statuses=sorted({run.status for run in found.runs}),
        parts=drawn,
    )


def _listed(values: Mapping[str, tuple[Value, ...]]) -> list[tuple[str, str]]:
    return [(label(name), listed(several)) for name, several in values.items()]


def _parts(found: Diagrams) -> Iterator[Part]:
    for number, diagram in enumerate(found.diagrams, 1):
        axes = " and ".join(axis.label for axis in (diagram.x, diagram.y) if axis)
        title = words(diagram.facet) or f"Over {axes}"
        end = f"-{number}" if len(found.diagrams) > 1 else ""
        pictures = tuple(
            Picture(f"{name}{end}", caption, figure)
            for name, caption, figure in _figures(diagram, found.best_over, found.maps)
        )
        yield Part(f"diagram-{number}", title[0].upper() + title[1:], pictures)
    if any(len(series.points) > 2 for panel in found.decay for series in panel.series):
        picture = Picture("over-decay", _OVER_DECAY, over_decay(found))
        yield Part("decay", "Over effective decay", (picture,))


def _figures(
    diagram: Diagram, best_over: Mapping[str, int], maps: Sequence[str]
) -> Iterator[tuple[str, str, Any]]:
    """Name, caption and figure of everything that is drawn of one diagram."""
    yield "overview", "", diagram_maps.overview(diagram, best_over=best_over)
    yield "phases", _PHASES, diagram_maps.phase_map(diagram)
    is_anchored = has(diagram, "commutativity")
    captions = _CAPTIONS if is_anchored else _WITHOUT_ANCHORS
    for measure in filter(lambda measure: has(diagram, measure), captions):
        caption = captions[measure] + _MEANS
        if measure in MARKED:
            caption += " Stripes: ID accuracy below 0.9; outline: its mean is below 0.9."
            if any(run.poor_commutativity for cell in diagram.cells for run in cell.runs):
                caption += " Triangles: commutativity below 0.7."
        figure = diagram_maps.accuracy_map(diagram, measure, best_over=best_over)
        yield measure.replace("_", "-"), caption, figure
    for rank, caption in _RANKS.items():
        if has(diagram, rank):
            figure = diagram_maps.rank_map(diagram, rank)
            indices = _INDICES if is_anchored else _INDICES_WITHOUT_ANCHORS
            yield rank.replace("_", "-"), caption + _BUBBLES + indices, figure
    for name in filter(lambda name: has(diagram, name), maps):
        figure = diagram_maps.accuracy_map(diagram, name)
        yield "map-" + re.sub(r"[^\w-]", "-", name), f"{name}.{_MEANS}", figure
    caption = f"ID and OOD accuracy along {diagram.x.label}: {_ALONG}"
    yield "along", caption, along_axis(diagram, best_over=best_over)
