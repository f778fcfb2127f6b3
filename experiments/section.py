"""What the scripts of the papers' sections share: their command line, tables, examples, figures.

A script says how to draw its section from the studies' tables::

    python experiments/control_8.py --scale tiny --out runs/papers

It says what is missing and how long that takes, trains and measures it (resuming wherever it was
stopped, on runs that all sections share), draws the section's figure and prints its claims.
"""

import argparse
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.image import imread

import papers.command  # loads torch with what papers sets
from anchor_interp._util.errors import ConfigError
from anchor_interp._util.files import write_output
from anchor_interp._util.progress import format_seconds
from anchor_interp.pages.page import output_folder
from anchor_interp.runs.run import Run, load
from anchor_interp.sweeps.local import LocalEngine
from papers.claims import RANDOM, judge_ledger, section_claims
from papers.gathering import gather, plan, unfinished
from papers.page import line
from papers.rows import Rows
from papers.tables import read_tables

DPI = 110

Panels = Sequence[Sequence[tuple[str, Figure]]]
"""A section's figure: rows of panels, each with its title."""
Image = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Data:
    """What a section draws from."""

    scale: str
    tables: Mapping[str, Rows]  # rows by study
    place: Path  # the folder of the tables

    def rows(self, *studies: str) -> Rows:
        """The rows of the first of these studies that has a table."""
        for study in studies:
            if study in self.tables:
                return self.tables[study]
        raise ConfigError(
            f"{self.place} has no table of the study {studies[0]}; run this without --judge"
        )

    def random_settings(self) -> Rows:
        """The runs of random settings; those of ``phases`` if there are none."""
        found = [row for name in RANDOM for row in self.tables.get(name, ())]
        return found or self.rows("phases")


def example(recipe: str) -> Run:
    """A run to look into: a specimen, which is of the scale tiny."""
    return load(f"tiny/{recipe}/1")


def main(draw: Callable[[Data], Panels], *studies: str) -> None:
    """Run the script that holds ``draw``."""
    raise SystemExit(run(draw, *studies))


def run(
    draw: Callable[[Data], Panels], *studies: str, arguments: Sequence[str] | None = None
) -> int:
    """Does what :func:`main` does and returns the exit code."""
    path = Path(draw.__code__.co_filename)
    parser = papers.command.parser(path.name, str(draw.__globals__["__doc__"]))
    parser.add_argument("--figures", type=Path, help="folder of the figure (OUT/figures)")
    return papers.command.exit_code(
        path.stem, lambda: _run(path.stem, draw, studies, parser.parse_args(arguments))
    )


def _run(
    name: str, draw: Callable[[Data], Panels], studies: Sequence[str], asked: argparse.Namespace
) -> int:
    claims = section_claims(name)
    needed = list(dict.fromkeys([*studies, *(study for c in claims for study in c.studies)]))
    place = papers.command.tables_folder(asked)
    pictures = output_folder(asked.figures or asked.out / "figures", "the figure")
    lacking: list[str] = []
    if not asked.judge:
        workers, device = asked.workers, asked.device
        todo = plan(needed, asked.scale, asked.out, tables=place, workers=workers, device=device)
        _say(
            f"{todo.runs} runs: {todo.known} in tables, {todo.training.todo} to be trained, "
            f"{format_seconds(todo.training.seconds)} of training and "
            f"{format_seconds(todo.measuring)} of measuring on this machine"
        )
        engine = LocalEngine(workers, device)
        lacking = unfinished(gather(needed, asked.scale, asked.out, tables=place, engine=engine))
    tables = read_tables(place, scale=asked.scale)
    figure = pictures / f"{name}.png"
    write_output(figure, montage(draw(Data(asked.scale, tables, place))))
    judgements = judge_ledger(tables)  # adjusted together with all others whose tables are there
    for claim in claims:
        print(line(claim, judgements[claim.name]))
    print(f"figure: {figure}")
    if lacking:
        _say(
            f"{name}: {len(lacking)} runs failed or lack a measurement, such as {lacking[0]}; give "
            "the command again"
        )
    return 1 if lacking else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def montage(panels: Panels) -> bytes:
    """A figure of rows of panels, lettered as in the papers, as PNG."""
    rows, number = [], 0
    for row in panels:
        images = []
        for title, figure in row:
            letter = f"({chr(ord('a') + number)}) " if sum(map(len, panels)) > 1 else ""
            image = _pixels(figure)
            heading = Figure(figsize=(image.shape[1] / DPI, 0.3))
            heading.text(0.5, 0.4, f"{letter}{title}", ha="center", va="center", fontsize=11)
            images.append(np.vstack([_padded(_pixels(heading), 33, image.shape[1]), image]))
            number += 1
        height = max(image.shape[0] for image in images)
        rows.append(np.hstack([_padded(image, height, image.shape[1]) for image in images]))
    width = max(row.shape[1] for row in rows)
    whole = np.vstack([_padded(row, row.shape[0], width) for row in rows])
    sheet = Figure(figsize=(width / DPI, whole.shape[0] / DPI), dpi=DPI)
    sheet.figimage(whole)
    data = io.BytesIO()
    sheet.savefig(data, format="png", dpi=DPI)
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
