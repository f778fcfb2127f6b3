"""What commands share: panels become files, judgements become text, errors one line."""

import io
import itertools
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from PIL import Image

from anchor_interp import AnchorInterpError
from anchor_interp._util.statistics import Estimate
from claims import Judgement

FIGURES = Path(__file__).parents[1] / "figures" / "papers"
DPI = 110
Panels = Sequence[Sequence[tuple[str, Figure]]]
"""A figure: rows of panels, each with its title."""


def exit_code(name: str, work: Callable[[], int | None]) -> int:
    """The exit code of a command; an error is one line on standard error."""
    logger = logging.getLogger("anchor_interp")
    handler, level = logging.StreamHandler(), logger.level
    handler.setFormatter(logging.Formatter(f"{name}: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        return work() or 0
    except KeyboardInterrupt:
        logger.error("interrupted; what was done is kept, and the same command resumes")
        return 130
    except (AnchorInterpError, OSError) as error:
        logger.error(error)
        return error.exit_code if isinstance(error, AnchorInterpError) else 1
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median and range as text, ``0.79 (0.59-0.83)``; the value alone if all print alike."""
    if not values:
        return ""
    low, middle, high = (f"{of(values):z.{digits}f}" for of in (min, median, max))
    return middle if low == high else f"{middle} ({low}-{high})"


def effect_text(judged: Judgement) -> str:
    """A judgement's effect with its interval; empty if there is none."""
    return estimate_text(judged.finding.found if judged.finding else None)


def estimate_text(found: Estimate | None) -> str:
    """An effect with its interval; empty if there is none."""
    return "" if found is None else f"{found.effect:+.2f} [{found.low:.2f}, {found.high:.2f}]"


def runs_text(judged: Judgement) -> str:
    """How many runs and seeds stand in a judgement, and how many are censored."""
    if (found := judged.finding) is None:
        return ""
    censored = f", {found.censored} censored" if found.censored else ""
    seeds = f", {found.seeds} seeds" if found.seeds else ""  # none where a sample is empty
    return f"{' + '.join(map(str, found.n))} runs{seeds}{censored}"


def montage(panels: Panels) -> bytes:
    """A figure of rows of panels with their titles, as PNG."""
    rows = []
    for row in panels:
        lines = 1 + max(title.count("\n") for title, _ in row)
        rows.append(_joined([_titled(title, lines, figure) for title, figure in row], down=False))
    whole, data = _joined(rows, down=True), io.BytesIO()
    sheet = Figure(figsize=(whole.width / DPI, whole.height / DPI), dpi=DPI)
    sheet.figimage(np.asarray(whole))
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


def _titled(title: str, lines: int, figure: Figure) -> Image.Image:
    """A panel under its title, which has room for so many lines."""
    image = _drawn(figure)
    heading = Figure(figsize=(image.width / DPI, 0.3 * lines))
    heading.text(0.5, 0.45, title, ha="center", va="center", fontsize=11)
    return _joined([_drawn(heading), image], down=True)


def _drawn(figure: Figure) -> Image.Image:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DPI, facecolor="white")
    return Image.open(data).convert("RGB")


def _joined(images: Sequence[Image.Image], *, down: bool) -> Image.Image:
    """Pictures below or beside each other, on white."""
    widths, heights = zip(*(image.size for image in images), strict=True)
    size = (max(widths), sum(heights)) if down else (sum(widths), max(heights))
    sheet, at = Image.new("RGB", size, "white"), 0
    for image in images:
        sheet.paste(image, (0, at) if down else (at, 0))
        at += image.height if down else image.width
    return sheet


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "".join("| " + " | ".join(row) + " |\n" for row in escaped)
