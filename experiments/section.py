"""How a section's figure is made: its tables, its models, and the sheet of its panels.

What is missing is trained and measured first, on runs that all sections share, then the figure is
drawn and the section's claims are printed. It resumes wherever it was stopped.
"""

import argparse
import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.image import imread

import papers.command  # loads torch with what papers sets
from anchor_interp._util.errors import ConfigError
from anchor_interp._util.files import write_output
from anchor_interp._util.progress import format_seconds
from anchor_interp.pages.page import output_folder
from anchor_interp.runs.config import override
from anchor_interp.runs.run import Run, load
from anchor_interp.runs.train import train
from anchor_interp.sweeps.local import LocalEngine
from measured import say
from papers.claims import RANDOM, judge_ledger, section_claims
from papers.gathering import gather, plan, unfinished
from papers.judging import Judgement
from papers.page import line
from papers.rows import Rows
from papers.studies import study_sweep
from papers.tables import read_tables

DPI = 110

Panels = Sequence[Sequence[tuple[str, Figure]]]
"""A section's figure: rows of panels, each with its title, which has the paper's letter."""
Image = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Data:
    """What a section draws from."""

    scale: str
    tables: Mapping[str, Rows]  # rows by study
    place: Path  # the folder of the tables
    judged: Mapping[str, Judgement] = field(default_factory=dict)  # every claim, by name
    own: Sequence[Run] = ()  # the user's runs, which stand in place of the packaged models
    out: Path = Path("runs/papers")

    def rows(self, study: str) -> Rows:
        """The rows of a study."""
        if study not in self.tables:
            raise ConfigError(
                f"{self.place} has no table of the study {study}; run this without --judge"
            )
        return self.tables[study]

    def random_settings(self) -> Rows:
        """The runs of random settings."""
        found = [row for name in RANDOM for row in self.tables.get(name, ())]
        return found or self.rows(RANDOM[0])

    def models(self, *recipes: str) -> list[Run]:
        """Runs to look into: the user's, or a packaged model of each recipe."""
        return [*self.own] or [load(f"tiny/{recipe}/1") for recipe in recipes]

    def gammas(self, *gammas: float) -> list[Run]:
        """Runs to look into: the user's, or runs that differ in gamma alone, trained if missing.

        They are two-layer post-LayerNorm models of the NeurIPS task.
        """
        if self.own:
            return [*self.own]
        start = study_sweep("settings-judging", "tiny").configs()["4abf90832369fcca"]
        start = override(start, checkpoint_every=start.train.steps // 10)
        return [
            train(override(start, gamma=gamma), self.out / "models" / f"gamma-{gamma:g}")
            for gamma in gammas
        ]


def titled(run: Run) -> str:
    """A run's phase, gamma and layout."""
    config = run.config
    layout = f"{config.model.n_layers} layers, {getattr(config.model, 'normalization', 'no')}"
    return f"{run.phase}, gamma {config.init.gamma:g} ({layout})"


def make(
    sections: Mapping[str, Callable[[Data], Panels]],
    studies: Sequence[str],
    asked: argparse.Namespace,
) -> int:
    """Train what is missing, draw, and print the claims; the exit code is 1 if a run failed."""
    claims = {name: section_claims(name) for name in sections}
    needed = dict.fromkeys(
        [*studies, *(s for of in claims.values() for c in of for s in c.studies)]
    )
    place = papers.command.tables_folder(asked)
    pictures = output_folder(asked.figures or asked.out / "figures", "the figure")
    own = [load(folder) for folder in asked.runs]
    lacking: list[str] = []
    if not asked.judge:
        workers, device = asked.workers, asked.device
        todo = plan([*needed], asked.scale, asked.out, tables=place, workers=workers, device=device)
        say(
            f"{todo.runs} runs: {todo.known} in tables, {todo.training.todo} to be trained, "
            f"{format_seconds(todo.training.seconds)} of training and "
            f"{format_seconds(todo.measuring)} of measuring on this machine"
        )
        engine = LocalEngine(workers, device)
        found = gather([*needed], asked.scale, asked.out, tables=place, engine=engine)
        lacking = unfinished(found, device)
    tables = read_tables(place, scale=asked.scale)
    judged = judge_ledger(tables)  # adjusted together with all others whose tables are there
    data = Data(asked.scale, tables, place, judged, own, asked.out)
    for name, draw in sections.items():
        figure, panels = pictures / f"{name}.png", draw(data)
        write_output(figure, montage(panels))
        write_output(figure.with_suffix(".pdf"), pages(panels))
        for claim in claims[name]:
            print(line(claim, judged[claim.name]))
        print(f"figure: {figure}")
    if lacking:
        say(
            f"{', '.join(sections)}: {len(lacking)} runs failed or lack a measurement, such as "
            f"{lacking[0]}; give the command again"
        )
    return 1 if lacking else 0


def montage(panels: Panels) -> bytes:
    """A figure of rows of panels with their titles, as PNG."""
    rows = []
    for row in panels:
        images = []
        for title, figure in row:
            image = _pixels(figure)
            heading = Figure(figsize=(image.shape[1] / DPI, 0.3))
            heading.text(0.5, 0.4, title, ha="center", va="center", fontsize=11)
            images.append(np.vstack([_padded(_pixels(heading), 33, image.shape[1]), image]))
        height = max(image.shape[0] for image in images)
        rows.append(np.hstack([_padded(image, height, image.shape[1]) for image in images]))
    width = max(row.shape[1] for row in rows)
    whole = np.vstack([_padded(row, row.shape[0], width) for row in rows])
    sheet = Figure(figsize=(width / DPI, whole.shape[0] / DPI), dpi=DPI)
    sheet.figimage(whole)
    data = io.BytesIO()
    sheet.savefig(data, format="png", dpi=DPI)
    return data.getvalue()


def pages(panels: Panels) -> bytes:
    """The same panels as PDF, a page each, with the TrueType letters that publishers ask for."""
    data = io.BytesIO()
    with rc_context({"pdf.fonttype": 42}), PdfPages(data, metadata={"CreationDate": None}) as file:
        for title, figure in itertools.chain(*panels):
            heading = figure.text(0.5, 1.01, title, ha="center", va="bottom", fontsize=11)
            file.savefig(figure, bbox_inches="tight", facecolor="white")
            heading.remove()
    return data.getvalue()


def _pixels(figure: Figure) -> Image:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DPI, facecolor="white")
    data.seek(0)
    found: Image = np.rint(255 * imread(data)[:, :, :3]).astype(np.uint8)
    return found


def _padded(image: Image, height: int, width: int) -> Image:
    out = np.full((height, width, 3), 255, np.uint8)
    out[: image.shape[0], : image.shape[1]] = image[:height, :width]
    return out
