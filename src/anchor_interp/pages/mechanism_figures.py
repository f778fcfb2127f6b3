"""Figures of one model's mechanism. Nothing is computed here and no model is loaded.

Each figure shows one thing, so a narrow page can stack them. Labels use the papers' words.
"""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anchor_interp._util.errors import ConfigError
from anchor_interp.pages.style import (
    ATTENTION,
    CHOSEN,
    INFERENTIAL,
    INK,
    NEITHER,
    QUALITATIVE,
    SYMMETRIC,
    frame,
    or_nan,
    plain_ticks,
    single,
)  # fmt: skip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from anchor_interp.analysis.circuits import Circuit, CircuitComparison
    from anchor_interp.analysis.clusters import Clusters
    from anchor_interp.analysis.flow import InformationFlow
    from anchor_interp.analysis.overview import Development
    from anchor_interp.analysis.routes import RouteScores
    from anchor_interp.analysis.similarity import Similarity
    from anchor_interp.interventions.patching import PatchResult
    from anchor_interp.models.complexity import Complexity, CosineMatrix
    from anchor_interp.models.embeddings import EmbeddingStructure


_ROLE_NAMES = {"key": "key", "first": "a1", "second": "a2", "last": "last"}
_ROLE_COLOURS = {"key": "#F0E442", "first": "#56B4E9", "second": "#009E73", "last": "#CC79A7"}


def information_flow(flow: "InformationFlow", circuit: "Circuit | None" = None) -> "Figure":
    """The attention graph with roles, layers upwards (NeurIPS paper, figures 3a and 3c).

    The width of a line is the attention weight, its darkness the causal effect of the edge on the
    answer. The edges of a pruned circuit have their own colour; edges that cannot reach the output
    are faint. The heads of a layer share its lines: the largest weight, the summed effect.
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

    Source: NeurIPS paper, figure 4; complexity-control paper, figures 4B and 4D. With ``centred``
    each anchor's mean over all keys is subtracted first; the papers' cosines are plain.
    """
    order = np.lexsort((similarity.keys, similarity.values))
    matrix = (similarity.centred if centred else similarity.cosine)[np.ix_(order, order)]
    values = similarity.values[order]
    with single(5.0, 4.2) as figure:
        axes = figure.subplots()
        image = axes.imshow(matrix, vmin=-1, vmax=1, cmap="PuOr_r", interpolation="nearest")
        edges = [0, *(np.flatnonzero(np.diff(values)) + 1), len(values)]
        for start, stop in itertools.pairwise(edges):
            frame(axes, (start - 0.5, start - 0.5), stop - start, edgecolor=INK, linewidth=0.9)
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
        ConfigError: the clusters have no t-SNE.
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
                color=QUALITATIVE[group % len(QUALITATIVE)],
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
    """The share of the tokens' effect that each route carries."""
    names = ("symmetric", "inferential", "gathered")
    with single(4.2, 1.9) as figure:
        axes = figure.subplots()
        values = [getattr(scores, name) for name in names]
        axes.barh(names, values, color=[SYMMETRIC, INFERENTIAL, NEITHER])
        axes.invert_yaxis()
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set(xlabel="route score", xlim=(min(0, *values) - 0.02, max(1, *values) + 0.02))
    return figure


def circuit_baselines(comparison: "CircuitComparison") -> "Figure":
    """Faithfulness of a circuit beside circuits that ignore causal effects."""
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

    One row per matrix; beyond four layers, one curve over the layers per matrix.
    """
    entries = [entry for entry in complexity.matrices if entry.stable_rank is not None]
    if len({entry.layer for entry in entries}) > 5:
        return _stable_ranks_by_layer(complexity)
    with single(5.4, 0.9 + 0.24 * len(entries)) as figure:
        axes = figure.subplots()
        places = range(len(entries))
        gaussian = [or_nan(entry.gaussian.stable_rank) for entry in entries]
        axes.plot(gaussian, places, "|", color=INK, ms=9, label="Gaussian")
        if any(entry.at_init is not None for entry in entries):
            start = [or_nan(e.at_init.stable_rank if e.at_init else None) for e in entries]
            axes.plot(start, places, "o", mfc="none", color="#0072B2", label="at initialisation")
        now = [or_nan(entry.stable_rank) for entry in entries]
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
            colour = QUALITATIVE[index % len(QUALITATIVE)]
            now = [or_nan(entry.stable_rank) for entry in mine]
            axes.plot(layers, now, marker=".", color=colour, label=name)
            gaussian = [or_nan(entry.gaussian.stable_rank) for entry in mine]
            axes.plot(layers, gaussian, ":", color=colour, linewidth=1)
        axes.set(xlabel="layer (dotted: Gaussian)", ylabel="stable rank", yscale="log")
        plain_ticks(axes.yaxis)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8, bbox_to_anchor=(1, 0.5), loc="center left")
    return figure


def spectra(complexity: "Complexity") -> "Figure":
    """Singular values of every head's QK and OV, relative to the largest; one line per head."""
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
                color=QUALITATIVE[layers.index(entry.layer) % len(QUALITATIVE)],
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
            dashes = ("-", "--", ":", "-.")[index // len(QUALITATIVE) % 4]
            axes.plot(found.steps, found.stable_rank[:, index], dashes, marker=".", label=name,
                      color=QUALITATIVE[index % len(QUALITATIVE)])  # fmt: skip
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


def _patch_cell(site: Any, heads: bool) -> tuple[str, str]:
    head = f", head {site.head + 1}" if heads and site.head is not None else ""
    return f"{site.activation}, layer {site.layer + 1}{head}", str(site.position)


def _matrix_name(name: str, layer: int | None) -> str:
    return name if layer is None else f"{name}, layer {layer + 1}"
