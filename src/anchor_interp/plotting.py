"""Figures from results: nothing is computed here and no model is loaded.

One style for all: colours that colour-blind readers can tell apart (Okabe and Ito), labels in the
papers' words, accuracies from 0 to 1. :func:`overview` is the one picture of several runs; the
other figures show one thing each, so that a narrow page can stack them.
"""

import contextlib
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anchor_interp.config import RunConfig
from anchor_interp.errors import ConfigError
from anchor_interp.files import write_output
from anchor_interp.phase import Evaluation, UnseenAnswers, decide
from anchor_interp.task import Pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from anchor_interp.analysis import Development
    from anchor_interp.circuits import Circuit, Comparison
    from anchor_interp.clusters import Clusters
    from anchor_interp.complexity import Complexity, CosineMatrix
    from anchor_interp.embeddings import EmbeddingStructure
    from anchor_interp.flow import InformationFlow
    from anchor_interp.patching import PatchResult
    from anchor_interp.representations import Similarity
    from anchor_interp.routes import RouteScores

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
ATTENTION, CHOSEN = "#555555", "#D55E00"
"""Colours of attention edges, and of those that a circuit keeps."""
INK = "#1c2024"
"""Colour of text and axes; :func:`inline_svg` makes it the surrounding text's."""
Side = Literal["train_keys", "test_keys"]
"""The keys that a map of accuracies is about."""
_BARS = 6
_ROLE_NAMES = {"key": "key", "first": "a1", "second": "a2", "last": "last"}
_ROLE_COLOURS = {"key": "#F0E442", "first": "#56B4E9", "second": "#009E73", "last": "#CC79A7"}
_QUALITATIVE = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000",
    "#999999", "#7B4F9D",
)  # fmt: skip
"""Okabe and Ito's eight colours and two more."""


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
    with single(5.2, 3.2) as figure:
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
    with single(5.2, 3.2) as figure:
        axes = figure.subplots()
        _accuracies(axes, metrics)
        axes.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    return figure


def pair_map(evaluation: Evaluation, side: Side) -> "Figure":
    """Accuracy of every ordered pair on one side of the split."""
    n = len({entry.pair[0] for entry in evaluation.pair_accuracy})
    label = {"train_keys": "training keys", "test_keys": "test keys"}[side]
    with single(2.3 + 0.5 * n, 1.7 + 0.5 * n) as figure:
        axes = figure.subplots()
        image = _pairs(axes, evaluation, side, label)
        figure.colorbar(image, ax=axes, label="accuracy", shrink=0.8)
    return figure


def unseen_answers(config: RunConfig, evaluation: Evaluation) -> "Figure":
    """The most frequent answers on each unseen pair."""
    bars = sum(min(len(answers.offsets), _BARS + 1) for answers in evaluation.unseen)
    with single(5.2, 1.3 + 0.24 * bars) as figure:
        _answers(figure.subplots(), config, evaluation)
    return figure


def information_flow(flow: "InformationFlow", circuit: "Circuit | None" = None) -> "Figure":
    """The attention graph with roles, layers upwards (NeurIPS paper, figures 3a and 3c).

    A line's width is the attention weight, its darkness the causal effect of the edge on the
    answer; the edges of a pruned circuit are drawn in its own colour. Edges that cannot reach the
    output are faint. Several heads of a layer share its lines: the largest weight, the summed
    effect.
    """
    attention = flow.attention.max(1)  # [layer, query, key]
    effect = np.abs(flow.logit_difference.sum(1))
    relative = effect / max(effect.max(), 1e-12)
    reachable = np.asarray(flow.reachable.any(1))
    kept = np.zeros_like(reachable) if circuit is None else np.asarray(circuit.edges.any(1))
    n_layers, length = len(attention), len(flow.roles)
    with single(0.75 * length + 1.3, 1.25 * n_layers + 1.6) as figure:
        axes = figure.subplots()
        for layer, query, key in np.argwhere((attention > 0.02) | kept).tolist():
            weight = attention[layer, query, key]
            chosen, counts = bool(kept[layer, query, key]), bool(reachable[layer, query, key])
            axes.plot(
                (key, query),
                (layer + 0.13, layer + 0.87),
                linewidth=0.6 + 5 * weight,
                color=CHOSEN if chosen else ATTENTION,
                alpha=1 if chosen else 0.2 + 0.8 * relative[layer, query, key] if counts else 0.1,
                zorder=3 if chosen else 2,
                solid_capstyle="round",
            )
        one = len(flow.tokens) == 1
        for position, role in enumerate(flow.roles):
            name = _ROLE_NAMES.get(role, "")
            below = f"{flow.tokens[0, position]}\n{name}" if one else name
            for layer in range(n_layers + 1):
                marked = bool(name)
                axes.scatter(position, layer, s=60, zorder=4, edgecolors=INK,
                             facecolors=_ROLE_COLOURS.get(role, "#ffffff"),
                             linewidths=1.2 if marked else 0.6)  # fmt: skip
            axes.text(position, -0.22, below, ha="center", va="top", fontsize=9)
            if one:
                axes.text(position, n_layers + 0.18, str(flow.outputs[0, position]), ha="center",
                          va="bottom", fontsize=9,
                          weight="bold" if position == length - 1 else "normal")  # fmt: skip
        axes.set_ylim(-0.75, n_layers + 0.45)
        axes.set_xlim(-0.5, length - 0.5)
        axes.set_yticks(
            [layer + 0.5 for layer in range(n_layers)], [f"layer {i + 1}" for i in range(n_layers)]
        )
        axes.set_xticks([])
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        axes.tick_params(length=0)
    return figure


def similarity_map(similarity: "Similarity", *, centred: bool = True) -> "Figure":
    """Cosines between vectors, sorted by the rule's value: equal values lie in blocks.

    With ``centred`` the mean over all keys is removed anchor by anchor; without, they are the
    papers' plain cosines (NeurIPS paper, figure 4; complexity-control paper, figures 4B and 4D).
    """
    order = np.lexsort((similarity.keys, similarity.values))
    matrix = (similarity.centred if centred else similarity.cosine)[np.ix_(order, order)]
    values = similarity.values[order]
    with single(5.0, 4.2) as figure:
        axes = figure.subplots()
        image = axes.imshow(matrix, vmin=-1, vmax=1, cmap="PuOr_r", interpolation="nearest")
        edges = [0, *(np.flatnonzero(np.diff(values)) + 1), len(values)]
        for start, stop in itertools.pairwise(edges):
            _box(axes, start, stop)
        middles = [(start + stop - 1) / 2 for start, stop in itertools.pairwise(edges)]
        ticks: list[float] = []
        for middle in middles:  # of neighbours that would overlap, the first
            if not ticks or middle - ticks[-1] >= len(values) / 15:
                ticks.append(middle)
        labels = [str(values[round(tick)]) for tick in ticks]
        axes.set_xticks(ticks, labels, fontsize=8)
        axes.set_yticks(ticks, labels, fontsize=8)
        what = "value by the rule" if similarity.state == "X_ao" else "g(x; a1)"
        axes.set(xlabel=what, ylabel=what)
        figure.colorbar(image, ax=axes, label="centred cosine" if centred else "cosine", shrink=0.8)
    return figure


def cluster_map(clusters: "Clusters") -> "Figure":
    """t-SNE of a state: one colour an unordered pair, one marker an order.

    Source: NeurIPS paper, figure 3b; complexity-control paper, figures 4A and 4C.

    Raises:
        ConfigError: the clusters were made without an embedding.
    """
    if clusters.embedding is None:
        raise ConfigError("these clusters have no t-SNE; make them with tsne=True")
    with single(5.4, 4.0) as figure:
        axes = figure.subplots()
        unordered = sorted({(min(pair), max(pair)) for pair in clusters.pairs})
        for index, pair in enumerate(clusters.pairs):
            rows = clusters.pair == index
            group = unordered.index((min(pair), max(pair)))
            axes.scatter(
                clusters.embedding[rows, 0],
                clusters.embedding[rows, 1],
                s=14,
                linewidths=0.8,
                color=_QUALITATIVE[group % len(_QUALITATIVE)],
                marker="o" if pair[0] <= pair[1] else "x",
                label=f"({pair[0]}, {pair[1]})",
            )
        axes.set(xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2")
        axes.legend(fontsize=8, frameon=False, bbox_to_anchor=(1, 0.5), loc="center left")
    return figure


def patch_map(result: "PatchResult") -> "Figure":
    """Mean recovery of every patch: activations and layers down, positions across."""
    recovery = np.nanmean(result.recovery(), axis=1)
    heads = any(getattr(site, "head", None) for site in result.sites)
    names = [_patch_cell(site, heads) for site in result.sites]
    cells = dict(zip(names, recovery, strict=True))
    rows = list(dict.fromkeys(row for row, _ in cells))
    columns = list(dict.fromkeys(column for _, column in cells))
    with single(2.6 + 0.75 * len(columns), 1.1 + 0.3 * len(rows)) as figure:
        axes = figure.subplots()
        grid = np.array([[cells.get((row, c), np.nan) for c in columns] for row in rows])
        image = axes.imshow(grid, vmin=-1, vmax=1, cmap="PuOr_r", aspect="auto")
        for row, column in np.argwhere(~np.isnan(grid)):
            value = round(grid[row, column], 2) + 0  # no -0.00
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8,
                      color="white" if abs(value) > 0.6 else "black")  # fmt: skip
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows, fontsize=8)
        figure.colorbar(image, ax=axes, label="recovery", shrink=0.8)
    return figure


def route_bars(scores: "RouteScores") -> "Figure":
    """How much of the tokens' effect takes each route."""
    names = ("symmetric", "inferential", "gathered")
    with single(4.2, 1.9) as figure:
        axes = figure.subplots()
        values = [getattr(scores, name) for name in names]
        axes.barh(names, values, color=[SYMMETRIC, INFERENTIAL, NEITHER])
        axes.invert_yaxis()
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set(xlabel="route score", xlim=(min(0, *values) - 0.02, max(1, *values) + 0.02))
    return figure


def circuit_baselines(comparison: "Comparison") -> "Figure":
    """Faithfulness of a circuit beside circuits that were found without looking at effects."""
    names = ["pruned by effect", *(other.name for other in comparison.others), "random"]
    values = [comparison.faithfulness, *(other.faithfulness for other in comparison.others)]
    with single(5.6, 0.9 + 0.42 * len(names)) as figure:
        axes = figure.subplots()
        for place, value in enumerate(values):
            axes.plot(value.accuracy, place, "o", color=CHOSEN, label="accuracy")
            axes.plot(value.logit_difference, place, "s", mfc="none", color="#0072B2",
                      label="logit difference")  # fmt: skip
        place = len(values)
        for found, marker, colour in (
            (comparison.random_accuracy, "o", CHOSEN),
            (comparison.random_logit_difference, "s", "#0072B2"),
        ):
            axes.plot(
                found, [place] * len(found), marker, mfc="none", ms=4, alpha=0.25, color=colour
            )
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
        axes.set(xlabel="faithfulness (0: everything ablated, 1: full model)")
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[:2], labels[:2], frameon=False, fontsize=8, ncols=2,
                    loc="lower center", bbox_to_anchor=(0.5, 1))  # fmt: skip
        axes.grid(alpha=0.25, axis="x")
    return figure


def stable_ranks(complexity: "Complexity") -> "Figure":
    """Stable rank of every matrix now, at initialisation and of Gaussian weights.

    One row a matrix; of models with more than four layers one curve over the layers a matrix.
    """
    entries = [entry for entry in complexity.matrices if entry.stable_rank is not None]
    if len({entry.layer for entry in entries}) > 5:
        return _stable_ranks_by_layer(complexity)
    with single(5.4, 0.9 + 0.24 * len(entries)) as figure:
        axes = figure.subplots()
        places = range(len(entries))
        gaussian = [_or_nan(entry.gaussian.stable_rank) for entry in entries]
        axes.plot(gaussian, places, "|", color=INK, ms=9, label="Gaussian")
        if any(entry.at_init is not None for entry in entries):
            start = [_or_nan(e.at_init.stable_rank if e.at_init else None) for e in entries]
            axes.plot(start, places, "o", mfc="none", color="#0072B2", label="at initialisation")
        now = [_or_nan(entry.stable_rank) for entry in entries]
        axes.plot(now, places, "o", color=CHOSEN, label="now")
        axes.set_yticks(places, [_matrix_name(e.name, e.layer) for e in entries], fontsize=8)
        axes.margins(y=0.03)
        axes.invert_yaxis()
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)
        axes.set(xlabel="stable rank")
        axes.legend(frameon=False, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
        axes.grid(alpha=0.25, axis="x")
    return figure


def _stable_ranks_by_layer(complexity: "Complexity") -> "Figure":
    with single(5.4, 3.2) as figure:
        axes = figure.subplots()
        inside = [entry for entry in complexity.matrices if entry.layer is not None]
        for index, name in enumerate(dict.fromkeys(entry.name for entry in inside)):
            mine = [entry for entry in inside if entry.name == name]
            layers = [1 + (entry.layer or 0) for entry in mine]
            colour = _QUALITATIVE[index % len(_QUALITATIVE)]
            now = [_or_nan(entry.stable_rank) for entry in mine]
            axes.plot(layers, now, marker=".", color=colour, label=name)
            gaussian = [_or_nan(entry.gaussian.stable_rank) for entry in mine]
            axes.plot(layers, gaussian, ":", color=colour, linewidth=1)
        axes.set(xlabel="layer (dotted: Gaussian)", ylabel="stable rank", yscale="log")
        plain_ticks(axes.yaxis)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8, bbox_to_anchor=(1, 0.5), loc="center left")
    return figure


def plain_ticks(axis: "Axis") -> None:
    """1, 2, 5, 10, 20 ... on a logarithmic axis, as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_formatter(NullFormatter())


def spectra(complexity: "Complexity") -> "Figure":
    """Singular values of every head's QK and OV, relative to the largest, one line a head."""
    with single(5.4, 3.0) as figure:
        axes = figure.subplots()
        styles = {"QK": "-", "OV": "--"}
        layers = list(dict.fromkeys(entry.layer for entry in complexity.heads))
        shown = set()
        for entry in complexity.heads:
            values = entry.spectrum[entry.spectrum > 0]
            if not len(values):
                continue
            label = _matrix_name(entry.name, entry.layer)
            axes.plot(
                np.arange(1, len(values) + 1),
                values / values[0],
                styles[entry.name],
                color=_QUALITATIVE[layers.index(entry.layer) % len(_QUALITATIVE)],
                linewidth=1.2,
                label=None if label in shown or len(layers) > 4 else label,
            )
            shown.add(label)
        axes.set(xlabel="index", ylabel="singular value / largest", yscale="log", xscale="log")
        axes.grid(alpha=0.25)
        if len(layers) <= 4:
            axes.legend(frameon=False, fontsize=8)
    return figure


def embedding_plane(structure: "EmbeddingStructure", keys: Sequence[int]) -> "Figure":
    """Embedded keys on their first two principal components (NeurIPS paper, figures 5c, 5d)."""
    with single(4.6, 3.8) as figure:
        axes = figure.subplots()
        across, up = structure.coordinates[:, 0], structure.coordinates[:, 1]
        points = axes.scatter(across, up, c=list(keys), cmap="cividis", s=16, zorder=2)
        for index in range(0, len(keys), 5):
            axes.annotate(str(keys[index]), (across[index], up[index]), fontsize=7,
                          xytext=(3, 3), textcoords="offset points")  # fmt: skip
        share = structure.eigenvalues / structure.eigenvalues.sum()
        axes.set(
            xlabel=f"component 1 ({share[0]:.0%} of the variance)",
            ylabel=f"component 2 ({share[1]:.0%})",
        )
        figure.colorbar(points, ax=axes, label="key", shrink=0.8)
    return figure


def step_scores(structure: "EmbeddingStructure") -> "Figure":
    """How much closer embeddings a step apart lie than a smooth curve explains, as z scores."""
    test = structure.steps
    with single(5.2, 2.6) as figure:
        axes = figure.subplots()
        scores = (test.closeness - test.expected) / test.spread
        colours = [CHOSEN if step in test.claimed else NEITHER for step in test.steps]
        axes.bar(test.steps, scores, color=colours)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_xticks(test.steps, [str(step) for step in test.steps], fontsize=8)
        claimed = " and ".join(map(str, test.claimed))
        axes.set(xlabel=f"step (in colour: {claimed})", ylabel="closeness beyond\nsmooth (z)")
    return figure


def development(found: "Development") -> "Figure":
    """Stable rank of the weight matrices over the checkpoints of a run."""
    with single(5.4, 3.2) as figure:
        axes = figure.subplots()
        for index, name in enumerate(found.names):
            dashes = ("-", "--", ":", "-.")[index // len(_QUALITATIVE) % 4]
            axes.plot(found.steps, found.stable_rank[:, index], dashes, marker=".", label=name,
                      color=_QUALITATIVE[index % len(_QUALITATIVE)])  # fmt: skip
        axes.set(xlabel="step", ylabel="stable rank", yscale="log")
        plain_ticks(axes.yaxis)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=7, bbox_to_anchor=(1, 0.5), loc="center left")
    return figure


def condensation_map(matrix: "CosineMatrix") -> "Figure":
    """Cosines between the input weights of neurons (NeurIPS paper, figures 5a and 5b)."""
    with single(4.4, 3.6) as figure:
        axes = figure.subplots()
        image = axes.imshow(matrix.cosines, vmin=-1, vmax=1, cmap="PuOr_r", interpolation="nearest")
        axes.set(xlabel="neuron (sorted)", ylabel="neuron (sorted)", xticks=[], yticks=[])
        figure.colorbar(image, ax=axes, label="cosine", shrink=0.8)
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


def settle(figure: "Figure") -> "Figure":
    """Lay a figure out for good: one that is written several times takes half as long."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


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
def single(width: float, height: float) -> Iterator["Figure"]:
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


def _box(axes: "Axes", start: float, stop: float) -> None:
    from matplotlib.patches import Rectangle

    size = stop - start
    corner = (start - 0.5, start - 0.5)
    axes.add_patch(Rectangle(corner, size, size, fill=False, edgecolor=INK, linewidth=0.9))


def _patch_cell(site: Any, heads: bool) -> tuple[str, str]:
    head = f", head {site.head + 1}" if heads and site.head is not None else ""
    return f"{site.activation}, layer {site.layer + 1}{head}", str(site.position)


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value


def _matrix_name(name: str, layer: int | None) -> str:
    return name if layer is None else f"{name}, layer {layer + 1}"


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
