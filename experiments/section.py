"""What the scripts of the papers' sections share: their command line, tables, examples, figures.

A script says which studies it needs and how to draw them::

    python experiments/control_8.py --scale tiny --out runs/papers

It first says what is missing and how long that takes, trains and measures it (resuming wherever it
was stopped, on runs that all sections share), draws the section's figure and prints its claims.
"""

import argparse
import contextlib
import io
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from anchor_interp import load
from anchor_interp._util.errors import AnchorInterpError, ConfigError
from anchor_interp._util.files import write_output
from anchor_interp._util.progress import format_seconds
from anchor_interp.pages.page import output_folder
from anchor_interp.runs.run import Run
from anchor_interp.sweeps.local import LocalEngine
from papers.claims import judge_ledger, section_claims
from papers.page import told
from papers.studies import ScaleName
from papers.tables import Row, gather, plan, read_tables, tables_folder, unfinished

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 110


@dataclass(frozen=True)
class Data:
    """What a section draws from."""

    scale: str
    """The scale's name."""
    tables: Mapping[str, Sequence[Row]]
    """Rows by study."""
    place: Path
    """The folder of the tables."""

    def rows(self, study: str) -> Sequence[Row]:
        """The rows of a study.

        Raises:
            ConfigError: its table is not there.
        """
        if study not in self.tables:
            raise ConfigError(
                f"{self.place} has no table of the study {study}; run this without --judge"
            )
        return self.tables[study]


Panels = Sequence[Sequence["tuple[str, Figure]"]]
"""A section's figure: rows of panels, each with what stands above it."""


def example(recipe: str) -> Run:
    """A run to look into: of the specimens, which are of the scale tiny."""
    return load(f"tiny/{recipe}/1")


def run_section(
    name: str, title: str, studies: Sequence[str], draw: Callable[[Data], Panels]
) -> int:
    """Do what one of the scripts is for.

    Args:
        name: its section, as in :attr:`papers.claims.Claim.section`.
        title: the paper and section.
        studies: the studies that it draws; those of its claims are trained as well.
        draw: from their tables to the panels of the figure.
    """
    parser = argparse.ArgumentParser(description=title, allow_abbrev=False)
    parser.add_argument("--scale", choices=get_args(ScaleName), default="tiny")
    parser.add_argument("--out", type=Path, default=Path("runs/papers"), help="folder of the runs")
    parser.add_argument(
        "--tables", type=Path, help="tables whose runs need no training (OUT/tables)"
    )
    parser.add_argument("--figures", type=Path, help="folder of the figure (OUT/figures)")
    parser.add_argument("--workers", type=int, help="runs at a time; all usable cores if not given")
    parser.add_argument("--device", default="auto", help="where runs train: auto, cpu, cuda, ...")
    parser.add_argument("--judge", action="store_true", help="train nothing")
    asked = parser.parse_args()
    lacking: list[str] = []
    needed = list(dict.fromkeys([*studies, *(s for c in section_claims(name) for s in c.studies)]))
    try:
        with _messages():
            place = tables_folder(asked.out, asked.tables)
            pictures = output_folder(asked.figures or asked.out / "figures", "the figure")
            if not asked.judge:
                workers, device = asked.workers, asked.device
                todo = plan(
                    needed, asked.scale, asked.out, tables=place, workers=workers, device=device
                )
                _say(todo)
                engine = LocalEngine(workers, device)
                lacking = unfinished(
                    gather(needed, asked.scale, asked.out, tables=place, engine=engine)
                )
            tables = read_tables(place, scale=asked.scale)
            panels = draw(Data(asked.scale, tables, place))
            path = pictures / f"{name}.png"
            write_output(path, montage(panels))
            for line in _claims(name, tables):
                print(line)
            print(f"figure: {path}")
    except AnchorInterpError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{name}: interrupted; what was done is kept", file=sys.stderr)
        return 130
    if lacking:
        print(
            f"{name}: {len(lacking)} runs failed or lack a measurement, such as {lacking[0]}; give "
            "the command again",
            file=sys.stderr,
        )
    return 1 if lacking else 0


@contextlib.contextmanager
def _messages() -> Iterator[None]:
    """Show what the package says on standard error."""
    logging.basicConfig(format="%(message)s")
    logger = logging.getLogger("anchor_interp")
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)


def _say(todo: Any) -> None:
    left = todo.training
    print(
        f"{todo.runs} runs: {todo.known} in tables, {left.todo} to be trained, "
        f"{format_seconds(left.seconds)} of training and {format_seconds(todo.measuring)} of "
        "measuring on this machine",
        file=sys.stderr,
        flush=True,
    )


def _claims(name: str, tables: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """The section's claims, adjusted together with all others whose tables are there."""
    judgements = judge_ledger(tables)
    for claim in section_claims(name):
        shown = told(judgements[claim.name], claim.section)
        verdict = judgements[claim.name].verdict
        yield f"{claim.name}: {verdict} ({shown['effect']}; {shown['n']})"


def montage(panels: Panels) -> bytes:
    """A figure of rows of panels, lettered as in the papers, as PNG."""
    from matplotlib.figure import Figure

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


def _pixels(figure: "Figure") -> np.ndarray:
    from matplotlib.image import imread

    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DPI, facecolor="white")
    data.seek(0)
    found: np.ndarray = np.rint(255 * imread(data)[:, :, :3]).astype(np.uint8)
    return found


def _padded(image: np.ndarray, height: int, width: int) -> np.ndarray:
    out = np.full((height, width, 3), 255, np.uint8)
    out[: image.shape[0], : image.shape[1]] = image[:height, :width]
    return out
