"""The page of an analysis: how one model works."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anchor_interp._util.files import write_output
from anchor_interp._util.schema import canonical_json, to_dict
from anchor_interp.analysis.conclusions import ORDER, SIGNIFICANT
from anchor_interp.analysis.verdict import MEANINGS, RULES, judged
from anchor_interp.behaviour.phase import meanings
from anchor_interp.pages.attention_views import example_views
from anchor_interp.pages.page import Picture, draw_picture, fill_page, output_folder, save_pictures
from anchor_interp.pages.pictures import of_analysis
from anchor_interp.tasks.anchor import AnchorTask

if TYPE_CHECKING:
    from anchor_interp.analysis.results import Analysis


def write_analysis(analysis: "Analysis", out: str | Path) -> list[Path]:
    """Write a folder: ``index.html``, ``analysis.json`` and ``figures/*.png`` and ``*.svg``.

    Returns these files; StoreError if one cannot be written, or ``out`` is a run's folder.
    """
    out = output_folder(out, "the analysis")
    pictures = list(of_analysis(analysis))
    page, numbers = out / "index.html", out / "analysis.json"
    known = json.loads(json.dumps(to_dict(analysis)), parse_constant=lambda _: None)  # no NaN
    write_output(numbers, canonical_json(known).encode())
    written = save_pictures(pictures, out / "figures")
    write_output(page, render_analysis(analysis, pictures).encode("utf-8", "replace"))
    return [page, numbers, *written]


def render_analysis(analysis: "Analysis", pictures: Sequence[Picture] | None = None) -> str:
    """The page of an analysis as HTML."""
    drawn = list(of_analysis(analysis)) if pictures is None else pictures
    mechanism, config = analysis.mechanism, analysis.config
    examples = () if mechanism is None else mechanism.attention
    attention = [(each, example_views(each, f"view-{i}")) for i, each in enumerate(examples)]
    sequences = [
        (each, example_views(each, f"sequence-{i}")) for i, each in enumerate(analysis.attention)
    ]
    return fill_page(
        "analysis.html.jinja",
        [view for _, views in [*attention, *sequences] for view in views],
        title=f"How the model {analysis.name} works",
        analysis=analysis,
        mechanism=mechanism,
        says=analysis.conclusions,
        phases={
            **MEANINGS,
            **meanings(anchored=config is None or isinstance(config.task, AnchorTask)),
        },
        named=dict.fromkeys(d.phase for d in (analysis.decision, analysis.verdict) if d),
        rules=RULES,
        judged=judged(),
        significant=SIGNIFICANT,
        order_line=ORDER,
        pictures={picture.name: draw_picture(picture, "a") for picture in drawn},
        attention=attention,
        sequences=sequences,
    )
