"""The report: what runs learned, and the measurements that show it.

This module loads no model. It shows what :func:`anchor_interp.analysis.report_data.gather` found.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.files import output_file, output_folder, write_output
from anchor_interp._util.schema import checked_path, to_dict
from anchor_interp.behaviour.phase import near_lines
from anchor_interp.pages import run_figures, style
from anchor_interp.pages.attention_views import example_views
from anchor_interp.pages.page import (
    draw_picture,
    file_name,
    fill_page,
    save_pictures,
    template_text,
)
from anchor_interp.pages.pictures import of_answers, of_comparison, of_run
from anchor_interp.pages.report_words import comparable, differences, measures, sentence, task_words
from anchor_interp.tasks.anchor import AnchorTask

if TYPE_CHECKING:
    from anchor_interp.analysis.report_data import Findings


def write_report(
    runs: Sequence["Findings"],
    out: str | Path,
    *,
    pictures: Path | None = None,
    ask: str = "",
) -> list[Path]:
    """Write the page, and every figure as PNG and SVG if there is a folder for ``pictures``.

    ``ask`` is the address of a page that lets the models answer, to link.
    Returns the files, the page first; StoreError if one cannot be written or belongs to a run.
    """
    out = checked_path(out, "out")
    output_file(out)
    if not runs:
        raise ConfigError("there is no run to report on; expected at least one")
    if pictures is not None:
        output_file(output_folder(pictures, "the pictures") / "any.png")
    page = render(runs, ask)
    written = []
    if pictures is not None:
        if len(runs) > 1:
            both = [*of_answers(runs), *of_comparison(runs, _colours(runs))]
            written += save_pictures(both, pictures)
        for number, run in enumerate(runs, 1):
            name = file_name(run.name) or f"run-{number}"
            prefix = f"{number}-{name}-" if len(runs) > 1 else f"{name}-"
            written += save_pictures(of_run(run), pictures, prefix)
    write_output(out, page.encode("utf-8", "replace"))  # a run's name may hold any byte
    return [out, *written]


def render(runs: Sequence["Findings"], ask: str = "") -> str:
    """The page as HTML."""
    colours = _colours(runs)
    coloured = zip(runs, colours, strict=True)
    shown = [_run_content(run, n, colour) for n, (run, colour) in enumerate(coloured, 1)]
    tasks = dict.fromkeys(run.config.task for run in runs)
    return fill_page(
        "report.html.jinja",
        [view for run in shown for _, views in run["attention"] for view in views],
        title=f"What {runs[0].name} learned" if len(runs) == 1 else "What each model learned",
        runs=shown,
        ask=ask,
        differences=differences([run.config for run in runs]),
        comparable=comparable(runs),
        compared=_compared(runs, colours),
        maps=[draw_picture(picture, "c") for picture in of_answers(runs)],
        metrics=run_figures.COMPARED,
        script=template_text("report.js"),
        tasks=[(task_words(task), [r for r in runs if r.config.task == task]) for task in tasks],
        has_anchors=any(map(_is_anchored, runs)),
        has_splits=not all(map(_is_anchored, runs)),
    )


def _is_anchored(run: "Findings") -> bool:
    return isinstance(run.config.task, AnchorTask)


def _colours(runs: Sequence["Findings"]) -> list[str]:
    """The colour of every run: its phase's, if no two runs share a phase."""
    phases = [run.decision.phase for run in runs]
    if len(set(phases)) < len(phases):
        return [style.colour(number) for number in range(len(runs))]
    return [style.PHASE_COLOURS[phase] for phase in phases]


def _compared(runs: Sequence["Findings"], colours: Sequence[str]) -> list[dict[str, Any]]:
    """The figures of the comparison as the template uses them, with numbers for the script."""
    drawn = []
    for picture in of_comparison(runs, colours) if len(runs) > 1 else ():
        (axes,), metric = picture.figure.axes, picture.about
        box, (low, high) = axes.get_position(), axes.get_xlim()
        curves = [
            [[row["step"], row[metric]] for row in run.metrics if metric in row] for run in runs
        ]
        data = {"left": box.x0, "right": box.x1, "low": low, "high": high, "runs": curves}
        drawn.append(draw_picture(picture, "c") | {"data": data})
    return drawn


def _run_content(run: "Findings", number: int, colour: str) -> dict[str, Any]:
    matrices = zip(run.complexity.matrices, run.complexity_at_init.matrices, strict=True)
    return {
        "id": f"run-{number}",
        "findings": run,
        "colour": colour.replace(style.INK, "currentColor"),
        "sentence": sentence(run.decision.phase, run.evaluation),
        "near": near_lines(run.evaluation),
        "measures": measures(run.evaluation),
        "pictures": {picture.name: draw_picture(picture, f"r{number}") for picture in of_run(run)},
        "attention": [
            (example, example_views(example, f"view-{number}-{index}"))
            for index, example in enumerate(run.attention)
        ],
        "matrices": list(matrices),
        "answers": [
            (a.pair, run_figures.top_answers(a), run_figures.known_offsets(run.config, a.pair))
            for a in run.evaluation.unseen
        ],
        "rows": [row for row in run.metrics if "train_accuracy" in row],
        "configuration": json.dumps(to_dict(run.config), indent=1),
    }
