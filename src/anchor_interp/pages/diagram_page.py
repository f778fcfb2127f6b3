"""The page of a sweep's phase diagrams, its figures as files, and its numbers.

The page makes no request and shows everything without its script. With it, pointing at a cell (or
a tap, or the keyboard) shows the cell's runs, a picked cell is marked in every figure, and the
table of runs can be filtered.
"""

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import quote

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.files import write_output
from anchor_interp._util.schema import canonical_json
from anchor_interp.behaviour.phase import meanings
from anchor_interp.pages import diagram_maps, style
from anchor_interp.pages.diagram_curves import along_axis
from anchor_interp.pages.diagram_maps import MARKED, RankMeasure, has
from anchor_interp.pages.page import (
    Picture,
    file_name,
    fill_page,
    output_folder,
    save_pictures,
    template_text,
)
from anchor_interp.sweeps.cells import MEASURE_LABELS, STATE_MARKS, Cell, in_order
from anchor_interp.sweeps.columns import TableRow, Value, label, listed, word, words
from anchor_interp.sweeps.compared import FEWEST
from anchor_interp.sweeps.diagrams import Diagram, Diagrams, phase_diagrams, plain_diagrams, summary
from anchor_interp.sweeps.effect_verdict import LEVEL
from anchor_interp.sweeps.effects import Effect, effect

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ACCURACIES = ("ood_accuracy", "id_accuracy", "symmetric_accuracy", "commutativity")


@dataclass(frozen=True)
class Part:
    """A section of the page: the figures of one diagram."""

    id: str
    title: str
    diagram: Diagram
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
    """Write the diagrams of a sweep called ``name`` into a folder.

    Rows and choices are those of :func:`anchor_interp.sweeps.diagrams.phase_diagrams`. A run with a
    ``report.html`` in its folder, below ``runs``, is linked to it.

    Returns:
        ``index.html``, ``diagram.json`` (:class:`anchor_interp.sweeps.diagrams.Diagrams`),
        ``cells.csv`` (:func:`anchor_interp.sweeps.diagrams.summary`) and the figures,
        ``figures/*.png`` and ``*.svg``. StoreError if one cannot be written.
    """
    from pandas import DataFrame

    out = output_folder(out, "the diagrams")
    diagrams = phase_diagrams(rows, **choices)
    parts = list(_parts(diagrams))
    page, numbers, table = out / "index.html", out / "diagram.json", out / "cells.csv"
    write_output(numbers, canonical_json(plain_diagrams(diagrams)).encode())
    cells = DataFrame(summary(diagrams), dtype=object)
    write_output(table, cells.to_csv(index=False, lineterminator="\n").encode("utf-8", "replace"))
    pictures = (picture for part in parts for picture in part.pictures)
    written = save_pictures(pictures, out / "figures")
    reports = _reports(diagrams, runs, out)
    source = render_diagrams(diagrams, parts, name=name, reports=reports)
    write_output(page, source.encode("utf-8", "replace"))
    return [page, numbers, table, *written]


def _reports(diagrams: Diagrams, runs: Path | None, out: Path) -> dict[str, str]:
    """The report of every run that has one, as a link from the page."""
    if runs is None:
        return {}
    names = (str(run["run_id"]) for run in diagrams.runs)
    known = {name: runs.resolve() / name / "report.html" for name in names}
    start = out.resolve()
    return {
        run_id: quote(Path(os.path.relpath(report, start)).as_posix())
        for run_id, report in known.items()
        if report.is_file()
    }


def render_diagrams(
    diagrams: Diagrams,
    parts: Sequence[Part],
    *,
    name: str = "sweep",
    reports: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The page as HTML, without the overviews; ``reports`` are links by run id."""
    first, rises = diagrams.diagrams[0], effects(diagrams)
    places = [
        (cell, diagram.place(cell)) for diagram in diagrams.diagrams for cell in diagram.cells
    ]
    all_measures = (*MEASURE_LABELS, *diagrams.maps)
    measures = [m for m in all_measures if any(cell.measures[m].n for cell in diagrams.cells)]
    return fill_page(
        "diagrams.html.jinja",
        [],
        conclusion=conclusion(rises, diagrams.runs),
        highest=highest(places),
        effects=rises,
        styles=["diagrams.css"],
        title=f"Phases of {name}",
        script=template_text("diagrams.js"),
        marks=STATE_MARKS,
        reports=reports,
        phases=meanings(anchored="commutativity" in measures),
        measures={measure: MEASURE_LABELS.get(measure, measure) for measure in measures},
        diagrams=diagrams,
        has=has,
        marked=MARKED,
        best=", ".join(f"{n} values of {label(best)}" for best, n in diagrams.best_over.items()),
        where=_listed(diagrams.where),
        follows=_listed(diagrams.follows),
        level=LEVEL,
        setting=label,
        columns=[label(column) for column in first.place(first.cells[0])],
        cells=[
            {"cell": cell, "place": list(map(word, place.values())), "words": words(place)}
            for cell, place in places
        ],
        states=in_order(Counter(run["state"] for run in diagrams.runs)),
        statuses=sorted({run["status"] for run in diagrams.runs}),
        parts=parts,
        draw=style.inline_svg,
    )


def effects(diagrams: Diagrams) -> list[Effect]:
    """What every axis goes with, for each measure that is mapped: the runs of all diagrams.

    Runs are compared where the other axis and all else that varies are equal.
    """
    first = diagrams.diagrams[0]
    axes = [axis.name for axis in (first.x, first.y) if axis]
    others = [*axes, *first.facet, *diagrams.best_over]
    mapped = [*_ACCURACIES, *get_args(RankMeasure), *diagrams.maps]
    measures = [m for m in mapped if any(has(diagram, m) for diagram in diagrams.diagrams)]
    measured = []
    for measure, axis in itertools.product(measures, axes):
        with contextlib.suppress(ConfigError):  # an axis of several texts has no direction
            within = [name for name in others if name != axis]
            measured.append(effect(diagrams.runs, of=measure, on=axis, within=within, least=0))
    return [one for one in measured if one.found is not None]


def conclusion(rises: Sequence[Effect], runs: Sequence[TableRow]) -> str:
    """That most runs are undertrained, and what OOD accuracy goes with; empty without either."""
    up, down, flat = "rises on the whole with", "falls on the whole with", "shows no trend with"
    ways: dict[str, list[str]] = {up: [], down: [], flat: []}
    for one in rises:
        if one.of == "ood_accuracy" and one.found is not None:
            trend = {"supported": up, "reversed": down}.get(one.verdict, flat)
            ways[trend].append(label(one.on))
    parts = [f"{way} {' and '.join(axes)}" for way, axes in ways.items() if axes]
    fitted = [not run["censored"] for run in runs if run["ood_accuracy"] is not None]
    if not parts and fitted and sum(fitted) < FEWEST:
        parts = [f"has no trend yet: {FEWEST} fitted runs are needed"]
    early = sum(run["state"] == "undertrained" for run in runs)
    said = [f"OOD accuracy {', and '.join(parts)}."] * bool(parts)
    if runs and early >= len(runs) / 2:
        said.insert(0, f"{early} of {len(runs)} runs are undertrained: not fitted to their data.")
    return " ".join(said)


def highest(places: Sequence[tuple[Cell, Mapping[str, Value]]]) -> str:
    """Where the mean of OOD accuracy is highest, among cells of fitted runs; empty without any."""
    means = {
        words(place): cell.measures["ood_accuracy"].mean
        for cell, place in places
        if not any(run["censored"] for run in cell.runs)
    }
    shown = {place: f"{mean:z.2f}" for place, mean in means.items() if mean is not None}
    best = max(shown.values(), default="")
    at = [place for place, mean in shown.items() if mean == best]
    where = " and at ".join(at) if len(at) < 3 else f"{at[0]} and {len(at) - 1} other cells"
    among = ", where all runs have fitted," if len(means) < len(places) else ""
    return f"The highest mean of OOD accuracy{among} is {best}, at {where}." if at else ""


def _listed(values: Mapping[str, tuple[Value, ...]]) -> list[tuple[str, str]]:
    return [(label(name), listed(several)) for name, several in values.items()]


def _parts(diagrams: Diagrams) -> Iterator[Part]:
    for number, diagram in enumerate(diagrams.diagrams, 1):
        axes = " and ".join(axis.label for axis in (diagram.x, diagram.y) if axis)
        title = words(diagram.facet) or f"Over {axes}"
        end = f"-{number}" if len(diagrams.diagrams) > 1 else ""
        pictures = []
        for name, figure in _figures(diagram, diagrams.best_over, diagrams.maps):
            stem = name if name.startswith("map-") else name.replace("_", "-")  # a column's own
            pictures.append(Picture(f"{file_name(stem)}{end}", figure, about=name))
        yield Part(f"diagram-{number}", title[0].upper() + title[1:], diagram, tuple(pictures))


def _figures(
    diagram: Diagram, best_over: Mapping[str, int], maps: Sequence[str]
) -> Iterator[tuple[str, "Figure"]]:
    """Everything that is drawn of one diagram, by name."""
    yield "overview", diagram_maps.overview(diagram, best_over=best_over)
    yield "phases", diagram_maps.phase_map(diagram)
    for measure in filter(lambda measure: has(diagram, measure), _ACCURACIES):
        yield measure, diagram_maps.accuracy_map(diagram, measure, best_over=best_over)
    for rank in filter(lambda rank: has(diagram, rank), get_args(RankMeasure)):
        yield rank, diagram_maps.rank_map(diagram, rank)
    for name in filter(lambda name: has(diagram, name), maps):
        yield f"map-{name}", diagram_maps.accuracy_map(diagram, name, best_over=best_over)
    yield "along", along_axis(diagram, best_over=best_over)
