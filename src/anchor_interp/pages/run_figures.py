"""Figures of runs: learning curves, accuracy of every pair, answers on unseen pairs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Integer, Shaped

from anchor_interp.behaviour.phase import AspectScore, Evaluation, SplitScore, UnseenAnswers
from anchor_interp.pages import style
from anchor_interp.pages.style import PHASE_COLOURS, panel
from anchor_interp.runs.config import RunConfig
from anchor_interp.tasks.examples import Plane
from anchor_interp.tasks.functions import Ints, Pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES = (
    ("train_accuracy", "training", "#0072B2", "-"),
    ("id_accuracy", "ID", "#009E73", "--"),
    ("ood_accuracy", "OOD", "#D55E00", "-."),
)
"""Metric, label, colour and line style of the learning curves."""
Side = Literal["train_keys", "test_keys"]
"""The keys that a map of accuracies shows."""
SIDES: dict[Side, str] = {"train_keys": "training keys", "test_keys": "test keys"}
"""The words for them."""
_KINDS = {
    "the rule": PHASE_COLOURS["inferential"],
    "as for the other order": PHASE_COLOURS["symmetric"],
}
_BARS = 6
_MOST_CELLS = 100  # of a side of a plane of errors
_LEAST_TOLD = 0.05  # of an answer that is told whose it is
_MOST_TEXTS = 30  # of an aspect, that bars show
_GAP = 0.6  # between the groups of bars, whose width is 1


def loss_curve(metrics: Sequence[Mapping[str, Any]], unit: str = "nats") -> "Figure":
    """Training loss of every logged step, on a logarithmic axis."""
    rows = [row for row in metrics if "loss" in row]
    with panel(4.4, 2.9) as (figure, axes):
        axes.plot([row["step"] for row in rows], [row["loss"] for row in rows], color="#0072B2")
        if any(row["loss"] > 0 for row in rows):
            axes.set_yscale("log")
        axes.set(xlabel="step", ylabel=f"training loss ({unit})")
        axes.grid(alpha=0.25)
    return figure


def accuracy_curves(metrics: Sequence[Mapping[str, Any]]) -> "Figure":
    """Accuracies of the probes along training."""
    with panel(4.4, 2.9) as (figure, axes):
        for metric, label, colour, dashes in CURVES:
            rows = [row for row in metrics if metric in row]
            if rows:
                steps = [row["step"] for row in rows]
                axes.plot(steps, [row[metric] for row in rows], dashes, color=colour, label=label)
        axes.set(xlabel="step", ylabel="accuracy", ylim=(-0.03, 1.03))
        axes.grid(alpha=0.3)
        style.legend_above(axes, columns=3, fontsize=10)
    return figure


def perplexity_curves(metrics: Sequence[Mapping[str, Any]]) -> "Figure":
    """Perplexities of the probes along training, on a logarithmic axis."""
    with panel(4.4, 2.9) as (figure, axes):
        for metric, label, colour, line in CURVES:
            name = metric.replace("accuracy", "loss")
            rows = [row for row in metrics if name in row]
            values = np.exp([row[name] for row in rows])
            if rows:
                tokens = [row["tokens"] for row in rows]
                axes.plot(tokens, values, color=colour, linestyle=line, label=label)
        axes.set(xlabel="tokens seen", ylabel="perplexity", yscale="log")
        axes.locator_params(axis="x", nbins=4)
        axes.grid(alpha=0.25)
        style.legend_above(axes, columns=3, fontsize=10)
    return figure


def along_curves(rows: Sequence[Mapping[str, Any]]) -> "Figure":
    """Numbers of checkpoints, a line for each and run (:class:`anchor_interp.sweeps.along.Along`).

    A checkpoint without a number is a gap, and a cross below.
    """
    failed = [row["step"] for row in rows if row["reason"]]
    names = [name for name in rows[0] if name not in ("run_id", "step", "reason")]
    with panel(4.4, 2.9) as (figure, axes):
        for index, run in enumerate(dict.fromkeys(row.get("run_id") for row in rows)):
            of_run = [row for row in rows if row.get("run_id") == run]
            steps = [row["step"] for row in of_run]
            for number, name in enumerate(names):
                values, label = [row[name] for row in of_run], "_" * (index > 0) + name
                axes.plot(steps, values, "o-", ms=3, color=style.colour(number), label=label)
        how: Any = {"transform": axes.get_xaxis_transform(), "clip_on": False}  # below
        axes.plot(failed, [0] * len(failed), "x", color=style.NEITHER, **how)
        axes.set(xlabel="step", ylabel=names[0] if len(names) == 1 else "")
        axes.grid(alpha=0.25)
        if len(names) > 1:
            style.legend_above(axes, columns=3, fontsize=10)
    return figure


COMPARED = {
    "ood_accuracy": "OOD accuracy",
    "id_accuracy": "ID accuracy",
    "train_accuracy": "training accuracy",
    "id_loss": "loss on the ID split (nats)",
    "loss": "training loss (nats)",
}
"""The metrics in which runs are compared, and their words."""


def compared_curves(
    runs: Sequence[Sequence[Mapping[str, Any]]], metric: str, colours: Sequence[str]
) -> "Figure":
    """One metric of several runs along training, in these colours.

    The curve of run i has the id ``curve-i``, for the script of the page.
    """
    with panel(4.4, 2.8) as (figure, axes):
        for number, (rows, colour) in enumerate(zip(runs, colours, strict=True)):
            known = [row for row in rows if metric in row]
            steps, values = ([row[name] for row in known] for name in ("step", metric))
            axes.plot(steps, values, color=colour, linewidth=2, gid=f"curve-{number}")
        axes.set(xlabel="step", ylabel=COMPARED[metric])
        if metric.endswith("loss"):
            axes.set_yscale("log")
        else:
            axes.set_ylim(-0.03, 1.03)
        axes.grid(alpha=0.25)
    return figure


def pair_map(evaluation: Evaluation, side: Side) -> "Figure":
    """Accuracy of the ordered pairs on one side of the split, first anchor down, second across."""
    entries = evaluation.pair_accuracy
    anchors = list(dict.fromkeys(entry.pair[0] for entry in entries))
    n = len(anchors)
    shares = np.array([getattr(entry, side) for entry in entries]).reshape(n, n)
    with panel(2.0 + 0.5 * n, 1.6 + 0.5 * n) as (figure, axes):
        image = axes.imshow(shares, vmin=0, vmax=1, cmap="cividis")
        style.cell_values(axes, shares, white=shares <= 0.6)
        for index, entry in enumerate(entries):
            if entry.role != "inferential":
                row, column = divmod(index, n)
                colour = style.UNSEEN if entry.role == "unseen" else style.OVERRIDDEN
                corner = column - 0.46, row - 0.46
                style.frame(axes, corner, 0.92, edgecolor=colour, linewidth=2.5)
        axes.set_xticks(range(n), [str(token) for token in anchors])
        axes.set_yticks(range(n), [str(token) for token in anchors])
        roles = {entry.role for entry in entries}
        framed = [f"{role} framed" for role in ("unseen", "overridden") if role in roles]
        axes.set_title(f"accuracy, {SIDES[side]}\n({', '.join(framed) or 'all pairs seen'})")
        axes.set(xlabel="second anchor", ylabel="first anchor")
        style.colour_bar(image, axes, "accuracy")
    return figure


def unseen_answers(config: RunConfig, evaluation: Evaluation) -> "Figure":
    """The most frequent answers on each unseen pair, relative to the key."""
    labels, shares, colours = [], [], []
    for answers in evaluation.unseen:
        kinds = known_offsets(config, answers.pair)
        for label, share in top_answers(answers):
            kind = kinds.get(label, "") if share >= _LEAST_TOLD else ""
            labels.append(f"{answers.pair}: {label}" + (f"  {kind}" if kind else ""))
            shares.append(share)
            colours.append(_KINDS.get(kind, style.NEITHER))
    with panel(4.0, 1.3 + 0.24 * len(labels)) as (figure, axes):
        axes.barh(range(len(labels)), shares, color=colours)
        axes.set_yticks(range(len(labels)), labels, fontsize=9)
        axes.invert_yaxis()
        axes.set(xlabel="share of answers", xlim=(0, 1.0))
        axes.set_title("answers on the unseen pairs\n(relative to the key x)")
    return figure


def aspects(evaluation: Evaluation) -> list[str]:
    """What a task's errors are counted by, on the splits that test a model."""
    tested = [score for split in _tested(evaluation) for score in split.aspects]
    return list(dict.fromkeys(score.aspect for score in tested))


def aspect_scores(evaluation: Evaluation, aspect: str) -> "Figure":
    """Accuracy by one aspect on every ID and OOD split, with the number of examples.

    Texts are bars, with the number at their ends. Whole numbers are lines, with the numbers below.
    """
    parts = {
        split: [score for score in split.aspects if score.aspect == aspect]
        for split in _tested(evaluation)
    }
    if any(isinstance(score.value, str) for scores in parts.values() for score in scores):
        return _aspect_bars(parts)
    return _aspect_lines(aspect, parts)


def _tested(evaluation: Evaluation) -> list[SplitScore]:
    return [split for split in evaluation.splits if split.role != "train"]


def _split_styles(splits: Iterable[SplitScore]) -> dict[SplitScore, dict[str, Any]]:
    """Label and colour of every split: those of the learning curves, if each role has one split."""
    splits = list(splits)
    curves = {metric: (label, colour) for metric, label, colour, _ in CURVES}
    one_each = len({split.role for split in splits}) == len(splits)
    styles = {}
    for index, split in enumerate(splits):
        label, colour = curves[f"{split.role}_accuracy"]
        if not one_each:
            label, colour = f"{label}, {split.name}", style.colour(index)
        styles[split] = {"label": label, "color": colour}
    return styles


def _aspect_bars(parts: Mapping[SplitScore, Sequence[AspectScore]]) -> "Figure":
    """Bars in groups, one for each text; the texts that are hardest on average are at the top."""
    number: dict[str, int] = {}
    rights: dict[str, float] = {}
    for scores in parts.values():
        for score in scores:
            text = str(score.value)
            number[text] = number.get(text, 0) + score.n
            rights[text] = rights.get(text, 0) + score.n * score.accuracy
    most = sorted(number, key=lambda text: -number[text])[:_MOST_TEXTS]
    texts = sorted(most, key=lambda text: (rights[text] / number[text], text))
    places: dict[tuple[SplitScore, str], float] = {}
    ticks, top = [], 0.0
    for text in texts:
        of_text = [(split, s) for split, scores in parts.items() for s in scores if s.value == text]
        places |= {(split, text): top + index for index, (split, _) in enumerate(of_text)}
        ticks.append(top + (len(of_text) - 1) / 2)
        top += len(of_text) + _GAP
    with panel(4.0, 1.2 + 0.19 * top) as (figure, axes):
        for split, options in _split_styles(parts).items():
            kept = [score for score in parts[split] if score.value in texts]
            heights = [places[split, str(score.value)] for score in kept]
            axes.barh(heights, [score.accuracy for score in kept], 0.9, **options)
            for height, score in zip(heights, kept, strict=True):
                axes.text(score.accuracy + 0.01, height, str(score.n), va="center", fontsize=9)
        axes.set_yticks(ticks, texts, fontsize=9)
        axes.set_ylim(top - _GAP, -1)
        left_out = f"\n({len(number) - len(texts)} rarer ones left out)"
        several = left_out if len(number) > len(texts) else ""
        axes.set(xlabel=f"accuracy (beside a bar: its examples){several}", xlim=(0, 1.08))
        axes.grid(axis="x", alpha=0.25)
        axes.set_axisbelow(True)
        _legend(figure, axes)
    return figure


def _aspect_lines(aspect: str, parts: Mapping[SplitScore, Sequence[AspectScore]]) -> "Figure":
    """Accuracy over an aspect's whole numbers or ranges; below, how many examples each has."""
    with style.single(4.4, 3.8) as figure:
        axes, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        for split, options in _split_styles(parts).items():
            scores = parts[split]
            places = [(int(score.value) + (score.high or 0)) / 2 for score in scores]
            axes.plot(places, [score.accuracy for score in scores], "o-", markersize=4, **options)
            counts.plot(places, [score.n for score in scores], "o-", markersize=2, **options)
        axes.set(ylabel="accuracy", ylim=(-0.03, 1.03))
        counts.set(xlabel=aspect, ylabel="examples")
        counts.set_ylim(bottom=0)
        counts.locator_params(axis="x", integer=True)
        for below in (axes, counts):
            below.grid(alpha=0.25)
        _legend(figure, axes)
    return figure


def _legend(figure: "Figure", axes: "Axes") -> None:
    """What is drawn in these axes, above the figure: side by side if that has room."""
    handles, labels = axes.get_legend_handles_labels()
    columns = 3 if sum(map(len, labels)) < 30 else 1
    figure.legend(
        handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=10
    )


def plane_of_errors(
    plane: Plane,
    x: Integer[np.ndarray, " n"],
    y: Integer[np.ndarray, " n"],
    right: Shaped[np.ndarray, " n"],
) -> "Figure":
    """The share of right answers (each 0 to 1) over a plane of two numbers, from 0 on.

    A cell without an example stays white. Cells grow until there are at most 100 a side, and on
    average an example or more in each.
    """
    square = plane.square
    n_numbers = 1 + int(max(x.max(initial=0), y.max(initial=0), square[1] if square else 0))
    width = math.ceil(n_numbers / min(_MOST_CELLS, max(1, math.isqrt(len(right)))))
    n_cells = math.ceil(n_numbers / width)
    cell = (y // width) * n_cells + x // width
    counts, rights = (np.bincount(cell, w, n_cells**2) for w in (np.ones(len(x)), right))
    with np.errstate(invalid="ignore"):
        shares = (rights / counts).reshape(n_cells, n_cells)  # NaN where there is no example
    with panel(5.2, 4.4) as (figure, axes):
        edges = (-0.5, n_cells * width - 0.5)
        image = axes.imshow(
            shares, vmin=0, vmax=1, cmap="cividis", origin="lower", extent=(*edges, *edges)
        )
        style.colour_bar(image, axes, "right answers")
        if square is not None:
            low, high = square
            corner = low - 0.5, low - 0.5
            style.frame(axes, corner, high - low + 1, edgecolor=style.CHOSEN, linewidth=1.5)
        limits = -0.5, n_numbers - 0.5
        axes.set(xlabel=plane.x, ylabel=plane.y, xlim=limits, ylim=limits)
    return figure


def top_answers(answers: UnseenAnswers) -> list[tuple[str, float]]:
    """The most frequent answers as offsets from the key x, with their shares."""
    ranked = list(answers.offsets.items())
    rest = sum(share for _, share in ranked[_BARS:])
    top = [(f"x {label[0]} {label[1:]}", share) for label, share in ranked[:_BARS]]
    return [*top, ("anything else", rest)] if len(ranked) > _BARS else top


def known_offsets(config: RunConfig, pair: Pair) -> dict[str, str]:
    """What the answers are that are a constant offset: those of rule, shortcut and seen pairs."""
    task, keys = config.anchor_task, config.anchor_task.keys
    targets: dict[str, Ints | None] = {
        f"as for {seen}": task.target(seen, keys) for seen in reversed(task.seen)
    }
    targets |= {"as for the other order": task.symmetric(pair, keys)}
    targets |= {"the rule": task.composed(pair, keys)}
    known = {}
    for kind, target in targets.items():
        if target is not None and len(set((target - keys).tolist())) == 1:
            offset = int((target - keys)[0])
            known[f"x {'-+'[offset >= 0]} {abs(offset)}"] = kind
    return known
