"""Figures from results: nothing is computed here and no model is loaded.

One style for all: colours that colour-blind readers can tell apart (Okabe and Ito), labels in the
papers' words, accuracies from 0 to 1. :func:`overview` is the one picture of several runs; the
other figures show one thing each, so that a narrow page can stack them.
"""

import contextlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anchor_interp.config import RunConfig
from anchor_interp.files import write_output
from anchor_interp.phase import Evaluation, UnseenAnswers, decide
from anchor_interp.task import Pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES = (
    ("train_accuracy", "training", "#0072B2", "-"),
    ("id_accuracy", "ID", "#009E73", "--"),
    ("ood_accuracy", "OOD", "#D55E00", "-."),
)
"""Metric, label, colour and line style of the learning curves."""

INFERENTIAL, SYMMETRIC, NEITHER = "#D55E00", "#56B4E9", "#999999"
"""Colours of answers."""
UNSEEN, OVERRIDDEN = "#CC79A7", "#E69F00"
"""Colours of the frames around pairs."""
INK = "#1c2024"
"""Colour of text and axes; :func:`inline_svg` makes it the surrounding text's."""
Side = Literal["train_keys", "test_keys"]
"""The keys that a map of accuracies is about."""
_BARS = 6


@dataclass(frozen=True)
class RunView:
    """What a figure needs to know of one run."""

    name: str
    """Title of its row."""
    config: RunConfig
    """Its configuration."""
    metrics: Sequence[Mapping[str, Any]]
    """Its lines of metrics."""
    evaluation: Evaluation
    """The evaluation of its final checkpoint."""


def overview(runs: Sequence[RunView]) -> "Figure":
    """One row a run: learning curves, accuracy of every ordered pair, answers on unseen pairs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 3.6 * len(runs)), layout="constrained")
    grid = figure.subplots(len(runs), 4, squeeze=False, width_ratios=(1.5, 1, 1, 1.5))
    for row, run in zip(grid, runs, strict=True):
        _curves(row[0], run)
        _pairs(row[1], run.evaluation, "train_keys", "training keys")
        image = _pairs(row[2], run.evaluation, "test_keys", "test keys")
        figure.colorbar(image, ax=row[2], label="accuracy", shrink=0.8)
        _answers(row[3], run.config, run.evaluation)
    return figure


def loss_curve(metrics: Sequence[Mapping[str, Any]]) -> "Figure":
    """Training loss of every logged step, on a logarithmic axis."""
    with _single(5.2, 3.2) as figure:
        axes = figure.subplots()
        rows = [row for row in metrics if "loss" in row]
        axes.plot([row["step"] for row in rows], [row["loss"] for row in rows], color="#0072B2")
        if any(row["loss"] > 0 for row in rows):
            axes.set_yscale("log")
        axes.set(xlabel="step", ylabel="training loss (nats)")
        axes.grid(alpha=0.25)
    return figure


def accuracy_curves(metrics: Sequence[Mapping[str, Any]]) -> "Figure":
    """Accuracies of the probes along training."""
    with _single(5.2, 3.2) as figure:
        axes = figure.subplots()
        _accuracies(axes, metrics)
        axes.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    return figure


def pair_map(evaluation: Evaluation, side: Side) -> "Figure":
    """Accuracy of every ordered pair on one side of the split."""
    n = len({entry.pair[0] for entry in evaluation.pair_accuracy})
    label = {"train_keys": "training keys", "test_keys": "test keys"}[side]
    with _single(2.3 + 0.5 * n, 1.7 + 0.5 * n) as figure:
        axes = figure.subplots()
        image = _pairs(axes, evaluation, side, label)
        figure.colorbar(image, ax=axes, label="accuracy", shrink=0.8)
    return figure


def unseen_answers(config: RunConfig, evaluation: Evaluation) -> "Figure":
    """The most frequent answers on each unseen pair."""
    bars = sum(min(len(answers.offsets), _BARS + 1) for answers in evaluation.unseen)
    with _single(5.2, 1.3 + 0.24 * bars) as figure:
        _answers(figure.subplots(), config, evaluation)
    return figure


def save(figure: "Figure", path: Path, *, dpi: int = 120) -> Path:
    """Write a figure as PNG or, if the name ends so, as SVG, whole or not at all.

    Raises:
        StoreError: the file cannot be written.
    """
    data = io.BytesIO()
    if path.suffix.lower() == ".svg":
        data.write(standalone_svg(figure))
    else:
        figure.savefig(data, format="png", dpi=dpi, facecolor="white")
    write_output(path, data.getvalue())
    return path


def standalone_svg(figure: "Figure") -> bytes:
    """A figure as an SVG file on white."""
    return _svg(figure, facecolor="white", metadata={"Date": None})


def inline_svg(figure: "Figure", prefix: str) -> str:
    """A figure as an ``<svg>`` element to stand in a page, hidden from screen readers.

    Its text and axes take the colour of the text around it, its background is transparent, and
    its ids begin with the prefix, so that several fit in one page.
    """
    bare = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    text = _svg(figure, facecolor="none", metadata=bare).decode("utf-8")
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    width = re.search(r'<svg [^>]*?width="([\d.]+)pt"', text)
    assert width is not None, "matplotlib gives an SVG its width in points"
    head = f'<svg aria-hidden="true" style="width: {float(width[1]) / 12:.2f}rem"'
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    return text.replace("<svg", head, 1).replace(INK, "currentColor")


def _svg(figure: "Figure", **options: Any) -> bytes:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "anchor-interp"}):
        figure.savefig(buffer, format="svg", **options)
    return buffer.getvalue()


@contextlib.contextmanager
def _single(width: float, height: float) -> Iterator["Figure"]:
    """A figure of its own, in inches; everything that is no data is drawn in ``INK``."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    open_frame = dict.fromkeys(("axes.spines.top", "axes.spines.right"), False)
    style: dict[Any, Any] = dict.fromkeys(inked, INK) | open_frame
    with rc_context(style | {"axes.facecolor": "none", "axes.titlesize": 10}):
        yield Figure(figsize=(width, height), layout="constrained")


def _curves(axes: "Axes", run: RunView) -> None:
    _accuracies(axes, run.metrics)
    decision = decide(run.evaluation)
    gamma, decay = run.config.init.gamma, run.config.train.weight_decay
    axes.set_title(f"{run.name} (gamma {gamma:g}, weight decay {decay:g})\n-> {decision.phase}")
    axes.legend(loc="center right", framealpha=0.8)


def _accuracies(axes: "Axes", metrics: Sequence[Mapping[str, Any]]) -> None:
    for metric, label, colour, style in CURVES:
        rows = [row for row in metrics if metric in row]
        if rows:
            steps = [row["step"] for row in rows]
            axes.plot(steps, [row[metric] for row in rows], style, color=colour, label=label)
    axes.set(xlabel="step", ylabel="accuracy", ylim=(-0.03, 1.03))
    axes.grid(alpha=0.3)


def _pairs(axes: "Axes", evaluation: Evaluation, side: str, label: str) -> Any:
    """Accuracy of the ordered pairs as a matrix, first anchor down, second across."""
    firsts = list(dict.fromkeys(entry.pair[0] for entry in evaluation.pair_accuracy))
    n = len(firsts)
    shares = np.array([getattr(entry, side) for entry in evaluation.pair_accuracy]).reshape(n, n)
    image = axes.imshow(shares, vmin=0, vmax=1, cmap="cividis")
    for index, entry in enumerate(evaluation.pair_accuracy):
        row, column = divmod(index, n)
        share = shares[row, column]
        colour = "black" if share > 0.6 else "white"
        axes.text(column, row, f"{share:.2f}", ha="center", va="center", color=colour, fontsize=9)
        if entry.role != "inferential":
            _outline(axes, row, column, UNSEEN if entry.role == "unseen" else OVERRIDDEN)
    axes.set_xticks(range(n), [str(token) for token in firsts])
    axes.set_yticks(range(n), [str(token) for token in firsts])
    roles = {entry.role for entry in evaluation.pair_accuracy}
    framed = [f"{role} framed" for role in ("unseen", "overridden") if role in roles]
    axes.set_title(f"accuracy, {label}\n({', '.join(framed) or 'all pairs seen'})")
    axes.set(xlabel="second anchor", ylabel="first anchor")
    return image


def _outline(axes: "Axes", row: int, column: int, colour: str) -> None:
    from matplotlib.patches import Rectangle

    corner = (column - 0.46, row - 0.46)
    axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=colour, linewidth=2.5))


def _answers(axes: "Axes", config: RunConfig, evaluation: Evaluation) -> None:
    """The most frequent answers on each unseen pair, relative to the key."""
    if not evaluation.unseen:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "every pair is seen", ha="center", va="center")
        return
    labels, shares, colours = [], [], []
    for answers in evaluation.unseen:
        kinds = known_offsets(config, answers.pair)
        for label, share in top_answers(answers):
            kind = kinds.get(label)
            labels.append(f"{answers.pair}: {label}" + (f"  {kind}" if kind else ""))
            shares.append(share)
            colours.append(
                {"inferential": INFERENTIAL, "symmetric": SYMMETRIC}.get(kind or "", NEITHER)
            )
    places = range(len(labels))
    axes.barh(places, shares, color=colours)
    axes.set_yticks(places, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="share of answers", xlim=(0, 1.0))
    axes.set_title("answers on the unseen pairs\n(relative to the key x)")


def top_answers(answers: UnseenAnswers) -> list[tuple[str, float]]:
    """The most frequent answers as offsets from the key x, with their shares."""
    ranked = list(answers.offsets.items())
    rest = sum(share for _, share in ranked[_BARS:])
    top = [(f"x {label[0]} {label[1:]}", share) for label, share in ranked[:_BARS]]
    return [*top, ("anything else", rest)] if len(ranked) > _BARS else top


def known_offsets(config: RunConfig, pair: Pair) -> dict[str, str]:
    """Labels of the inferential and the symmetric answer, where they are a constant offset."""
    keys = config.task.keys
    targets = {
        "symmetric": config.task.symmetric(pair, keys),
        "inferential": config.task.composed(pair, keys),
    }
    known = {}
    for kind, target in targets.items():
        if target is not None and len(set((target - keys).tolist())) == 1:
            offset = int((target - keys)[0])
            known[f"x {'-+'[offset >= 0]} {abs(offset)}"] = kind
    return known
