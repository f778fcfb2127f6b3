"""Figures of one model's mechanism. Nothing is computed here and no model is loaded.

Each figure shows one thing, so a narrow page can stack them. Labels use the papers' words.
"""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anchor_interp._util.errors import ConfigError
from anchor_interp.pages import style
from anchor_interp.pages.style import CHOSEN, INK, NEITHER, REFERENCE, panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from anchor_interp.analysis.circuits import Circuit, CircuitCurve
    from anchor_interp.analysis.clusters import Clusters
    from anchor_interp.analysis.development import Development
    from anchor_interp.analysis.edge_attribution import EdgeAttribution
    from anchor_interp.analysis.flow import InformationFlow
    from anchor_interp.analysis.rivals import CircuitComparison
    from anchor_interp.analysis.routes import RouteScores
    from anchor_interp.analysis.similarity import Similarity
    from anchor_interp.interventions.patching import PatchResult
    from anchor_interp.models.complexity import Complexity
    from anchor_interp.models.embeddings import EmbeddingStructure
    from anchor_interp.models.matrix_complexity import CosineMatrix


_ROLE_NAMES = {"key": "key", "first": "a1", "second": "a2", "last": "last"}
_READ = {
    "q": (-0.3, "#E69F00"), "k": (-0.15, "#009E73"), "v": (0, "#0072B2"),
    "MLP, logits": (0.12, "#999999"),
}  # fmt: skip
"""How a residual edge bends, and its colour, by what reads it."""
_ROLE_COLOURS = {"key": "#F0E442", "first": "#56B4E9", "second": "#009E73", "last": "#CC79A7"}


def information_flow(
    flow: "InformationFlow", circuit: "Circuit | None" = None, target: int | None = None
) -> "Figure":
    """The attention graph with roles, layers upwards (NeurIPS paper, figures 3a and 3c).

    The width of a line is the attention weight; the smaller the causal effect of the edge on the
    answer, the fainter it is. The edges of a pruned circuit have their own colour and a legend. The
    heads of a layer share its lines: the largest weight, the summed effect. The answer has a mark
    if the ``target``, the right one, is given.
    """
    attention = flow.attention.max(1)  # [layer, query, key]
    effect = np.abs(flow.logit_difference.sum(1))
    relative = effect / max(effect.max(), 1e-12)
    reachable = np.asarray(flow.reachable.any(1))
    kept = np.zeros_like(reachable) if circuit is None else np.asarray(circuit.edges.any(1))
    n_layers, length = len(attention), len(flow.roles)
    with panel(max(3.6, 0.33 * length + 0.95), 0.95 * n_layers + 1.25) as (figure, axes):
        for layer, query, key in np.argwhere((attention > 0.02) | kept).tolist():
            chosen, counts = bool(kept[layer, query, key]), bool(reachable[layer, query, key])
            alpha = 1 if chosen else 0.3 + 0.7 * relative[layer, query, key] if counts else 0.15
            axes.plot((key, query), (layer + 0.13, layer + 0.87), alpha=alpha, zorder=2 + chosen,
                      linewidth=0.5 + 3.5 * attention[layer, query, key],
                      color=CHOSEN if chosen else INK, solid_capstyle="round")  # fmt: skip
        if circuit is not None:
            axes.plot([], [], color=CHOSEN, lw=3, label="attention of the circuit")
            if ((attention > 0.02) & ~kept).any():
                axes.plot([], [], color=INK, alpha=0.4, label="other attention")
            style.legend_below(figure, axes, 2)
        one = len(flow.tokens) == 1
        for position, role in enumerate(flow.roles):
            name = _ROLE_NAMES.get(role, "")
            for layer in range(n_layers + 1):
                axes.scatter(position, layer, s=40, zorder=4, edgecolors=INK,
                             facecolors=_ROLE_COLOURS.get(role, "#ffffff"),
                             linewidths=1.2 if name else 0.6)  # fmt: skip
            below = f"{flow.tokens[0, position]}\n{name}" if one else name
            axes.text(position, -0.22, below, ha="center", va="top", fontsize=9)
        top = n_layers + (0.45 if target is None else 0.65)
        axes.set(xlim=(-0.5, length - 0.5), ylim=(-0.75, top), xticks=[])
        rows = {layer + 0.5: f"L{layer}" for layer in range(n_layers)}
        if one:
            above = str(flow.outputs[0, -1])
            if target is not None:
                above = f"{'right' if above == str(target) else f'not {target}'}\n{above}"
            axes.text(length - 1, n_layers + 0.18, above, ha="center", va="bottom", weight="bold")
            rows |= {-0.3: "token", n_layers + 0.27: "answer"}
        axes.set_yticks([*rows], [*rows.values()])
        axes.set_ylabel("layer, from 0", fontsize=9)
        axes.spines[["left", "bottom"]].set_visible(False)
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
    with panel(4.0, 3.4) as (figure, axes):
        name = "centred cosine" if centred else "cosine"
        style.signed_map(axes, matrix, name, interpolation="nearest")
        edges = [0, *(np.flatnonzero(np.diff(values)) + 1), len(values)]
        ticks: list[float] = []
        for start, stop in itertools.pairwise(edges):
            corner = start - 0.5, start - 0.5
            style.frame(axes, corner, stop - start, edgecolor="black", linewidth=0.9)
            middle = (start + stop - 1) / 2
            if not ticks or middle - ticks[-1] >= len(values) / 11:  # else labels would overlap
                ticks.append(middle)
        labels = [str(values[round(tick)]) for tick in ticks]
        axes.set_xticks(ticks, labels, fontsize=9)
        axes.set_yticks(ticks, labels, fontsize=9)
        what = "value by the rule" if similarity.state == "X_ao" else "g(x; a1)"
        axes.set(xlabel=what, ylabel=what)
    return figure


def cluster_map(clusters: "Clusters") -> "Figure":
    """t-SNE of a state: one colour per unordered pair, one marker per order.

    Source: NeurIPS paper, figure 3b; complexity-control paper, figures 4A and 4C.
    """
    if clusters.embedding is None:
        raise ConfigError("these clusters have no t-SNE; make them with tsne=True")
    anchors = sorted({anchor for pair in clusters.pairs for anchor in pair})
    unordered = list(itertools.combinations_with_replacement(anchors, 2))  # alike in every panel
    with panel(4.0, 4.2) as (figure, axes):
        for index, pair in enumerate(clusters.pairs):
            across, up = clusters.embedding[clusters.pair == index, :2].T
            first, last = sorted(pair)
            axes.scatter(across, up, s=14, linewidths=0.8, label=f"({pair[0]}, {pair[1]})",
                         color=style.colour(unordered.index((first, last))),
                         marker="o" if pair == (first, last) else "x")  # fmt: skip
        axes.set(xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2")
        style.legend_below(figure, axes, columns=4)
    return figure


def patch_map(result: "PatchResult") -> "Figure":
    """Mean recovery of every patch: activations in the order of computation, positions across."""
    sites: Sequence[Any] = result.sites
    if any(hasattr(site, "sender") for site in sites):
        raise ConfigError("a map shows sites, not connections: see result.to_frame()")
    by_head = any(site.head for site in sites)
    cells = {}
    values = zip(sites, result.recovery(), strict=True)
    for site, value in sorted(values, key=lambda of: of[0].depth):
        row = f"{site.activation} L{site.layer}"
        row += f"H{site.head}" if by_head and site.head is not None else ""
        cells[row, str(site.position)] = value
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    grid = np.array([[cells.get((row, column), np.nan) for column in columns] for row in rows])
    with panel(1.72 + 0.52 * len(columns), 1.1 + 0.3 * len(rows)) as (figure, axes):
        style.signed_map(axes, grid, "recovery", aspect="auto")
        style.cell_values(axes, grid, white=abs(grid) > 0.6)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows, fontsize=9)
    return figure


def route_bars(scores: "RouteScores") -> "Figure":
    """The share of the tokens' effect that each route carries."""
    values = {name: getattr(scores, name) for name in ("symmetric", "inferential", "gathered")}
    with panel(4.0, 1.9) as (figure, axes):
        colours = [style.SYMMETRIC, style.INFERENTIAL, NEITHER]
        axes.barh(list(values), list(values.values()), color=colours)
        for row, value in enumerate(values.values()):
            axes.text(max(0, value) + 0.02, row, f"{value:z.2f}", va="center", fontsize=9)
        axes.invert_yaxis()
        axes.axvline(0, color=INK, linewidth=0.8)
        low, high = min(0, *values.values()), max(1, *values.values())
        axes.set(xlabel="route score", xlim=(low - 0.02, high + 0.15))
    return figure


def circuit_baselines(comparison: "CircuitComparison") -> "Figure":
    """Faithfulness of a circuit beside circuits that ignore causal effects, with their sizes."""
    routes = [other for other in comparison.others if other not in comparison.rollouts]
    rivals = [*comparison.rollouts, *routes]
    names = [f"{name},\n{size} {comparison.parts}" for name, size in (
        ("pruned by effect", comparison.size), *((rival.name, rival.size) for rival in rivals),
        *[("all others" if comparison.all_others else "random", comparison.size)]
        * bool(comparison.drawn),
    )]  # fmt: skip
    values = [comparison.faithfulness, *(rival.faithfulness for rival in rivals)]
    accuracy = [value.accuracy for value in values]
    difference = [value.logit_difference for value in values]
    with panel(4.0, 1.1 + 0.42 * len(names)) as (figure, axes):
        axes.plot(accuracy, range(len(values)), "o", color=CHOSEN, label="accuracy")
        axes.plot(difference, range(len(values)), "s", mfc="none", color=REFERENCE,
                  label="logit difference")  # fmt: skip
        for scores, marker, ink, place in (
            (comparison.random_accuracy, "o", CHOSEN, len(values) - 0.2),
            (comparison.random_logit_difference, "s", REFERENCE, len(values) + 0.2),
        ):
            axes.plot(scores, [place] * len(scores), marker, mfc="none", ms=4, color=ink)
        axes.set_yticks(range(len(names)), names, fontsize=9)
        axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
        axes.set(xlabel="faithfulness", ylim=(len(names) - 0.5, -0.5))
        style.legend_above(axes, columns=1)
        axes.grid(alpha=0.25, axis="x")
    return figure


def edge_curve(curve: "CircuitCurve") -> "Figure":
    """Faithfulness of the circuits of the best n residual edges, beside random ones."""
    with panel(4.0, 3.2) as (figure, axes):
        for name, marker, ink in (("accuracy", "o", CHOSEN), ("logit_difference", "s", REFERENCE)):
            random = getattr(curve, f"random_{name}")
            known, label = ~np.isnan(random).all(1), name.replace("_", " ")
            ends = np.nanmin(random[known], 1), np.nanmax(random[known], 1)
            sizes = np.array(curve.sizes)
            axes.plot(sizes, getattr(curve, name), marker=marker, color=ink, label=label)
            axes.fill_between(sizes[known], *ends, color=ink, alpha=0.2, lw=0, label="random")
        axes.axhline(1, color=INK, linewidth=0.8, linestyle=":")
        axes.set(xlabel="residual edges", ylabel="faithfulness", xscale="log", ylim=(-0.55, 1.55))
        style.plain_ticks(axes.xaxis)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.grid(alpha=0.25)
        style.legend_above(axes, columns=2)
    return figure


def edge_graph(attribution: "EdgeAttribution", circuit: "Circuit") -> "Figure":
    """A circuit of residual edges, upwards; a line is wider the larger the size of its score."""
    graph, scores = attribution.graph, np.abs(attribution.scores)
    across = np.linspace(-1.5, 0.3, graph.n_heads) if graph.n_heads > 1 else np.array([-0.6])
    top = (0.0, 2.0 * graph.n_layers + 1)
    sent, read = {0: (0.0, 0.0)}, {len(scores) - 1: (*top, "MLP, logits")}
    for layer, nodes in enumerate(graph.layers):
        y, mlp = 2.0 * layer + 1, (1.0, 2.0 * layer + 1.8)
        sent |= {nodes.heads.start + i: (x, y) for i, x in enumerate(across)}
        for kind, slots in zip("qkv", nodes[:3], strict=True):
            middles = across.reshape(slots.stop - slots.start, -1).mean(1)
            read |= {slots.start + i: (x, y, kind) for i, x in enumerate(middles)}
        if graph.n_mlps:
            sent[nodes.mlp_out.start], read[nodes.mlp_in.start] = mlp, (*mlp, "MLP, logits")
    with panel(4.0, 1.2 + 0.8 * graph.n_layers) as (figure, axes):
        names = {"logits": top}
        for receiver, sender in np.argwhere(circuit.edges).tolist():
            x, y, kind = read[receiver]
            bend, ink = _READ[kind]
            width = 0.6 + 3 * scores[receiver, sender] / scores[circuit.edges].max()
            line = {"arrowstyle": "-", "color": ink, "linewidth": width}
            line["connectionstyle"] = f"arc3,rad={bend}"
            axes.annotate("", (x, y), sent[sender], arrowprops=line)
            names[graph.senders[sender]] = sent[sender]
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": INK}
        for name, (x, y) in names.items():
            axes.text(x, y, name, ha="center", va="center", fontsize=9, bbox=box, zorder=5)
        for kind, (_, ink) in _READ.items():
            axes.plot([], [], color=ink, label=kind)
        axes.set(xlim=(-1.9, 1.5), ylim=(-0.4, top[1] + 0.4))
        axes.axis("off")
        style.legend_below(figure, axes, columns=4)
    return figure


def stable_ranks(complexity: "Complexity") -> "Figure":
    """Stable rank of every matrix now, at initialisation and of Gaussian weights.

    One row per matrix; beyond four layers, one curve over the layers per matrix.
    """
    entries = [entry for entry in complexity.matrices if entry.stable_rank is not None]
    if len({entry.layer for entry in entries}) > 5:
        return _stable_ranks_by_layer(complexity)
    with panel(4.0, 0.9 + 0.24 * len(entries)) as (figure, axes):
        places = range(len(entries))
        gaussian = [style.or_nan(entry.gaussian.stable_rank) for entry in entries]
        axes.plot(gaussian, places, "|", color=INK, ms=9, label="Gaussian")
        if any(entry.at_init is not None for entry in entries):
            start = [style.or_nan(e.at_init.stable_rank if e.at_init else None) for e in entries]
            axes.plot(start, places, "o", mfc="none", color=REFERENCE, label="at initialisation")
        now = [style.or_nan(entry.stable_rank) for entry in entries]
        axes.plot(now, places, "o", color=CHOSEN, label="now")
        axes.set_yticks(places, [_matrix_name(e.name, e.layer) for e in entries], fontsize=9)
        axes.margins(y=0.03)
        axes.invert_yaxis()
        axes.set(xlabel="stable rank", xscale="log")
        style.plain_ticks(axes.xaxis)
        axes.set_xlim(max(tick for tick in axes.get_xticks() if tick <= axes.get_xlim()[0]))
        style.legend_above(axes, columns=3)
        axes.grid(alpha=0.25, axis="x")
    return figure


def _stable_ranks_by_layer(complexity: "Complexity") -> "Figure":
    inside = [entry for entry in complexity.matrices if entry.layer is not None]
    with panel(4.0, 3.4) as (figure, axes):
        for index, name in enumerate(dict.fromkeys(entry.name for entry in inside)):
            mine = [entry for entry in inside if entry.name == name]
            layers = [entry.layer or 0 for entry in mine]
            now = [style.or_nan(entry.stable_rank) for entry in mine]
            axes.plot(layers, now, marker=".", color=style.colour(index), label=name)
            gaussian = [style.or_nan(entry.gaussian.stable_rank) for entry in mine]
            axes.plot(layers, gaussian, ":", color=style.colour(index), linewidth=1)
        axes.set(xlabel="layer, from 0 (dotted: Gaussian)", ylabel="stable rank", yscale="log")
        style.plain_ticks(axes.yaxis)
        axes.grid(alpha=0.25)
        style.legend_below(figure, axes, columns=4)
    return figure


def spectra(complexity: "Complexity") -> "Figure":
    """Singular values of every head's QK and OV, relative to the largest; one line per head."""
    layers = list(dict.fromkeys(entry.layer for entry in complexity.heads))
    labelled = set()
    with panel(4.0, 3.0) as (figure, axes):
        for entry in complexity.heads:
            values = entry.spectrum[entry.spectrum > 0]
            if not len(values):
                continue
            label = _matrix_name(entry.name, entry.layer)
            line, colour = {"QK": "-", "OV": "--"}[entry.name], layers.index(entry.layer)
            axes.plot(range(1, len(values) + 1), values / values[0], line, linewidth=1.2,
                      color=style.colour(colour),
                      label=None if label in labelled else label)  # fmt: skip
            labelled.add(label)
        axes.set(xlabel="index", ylabel="singular value / largest", yscale="log", xscale="log")
        axes.grid(alpha=0.25)
        if len(layers) <= 4:
            style.legend_above(axes, columns=4)
    return figure


def embedding_plane(structure: "EmbeddingStructure", keys: Sequence[int]) -> "Figure":
    """Embedded keys on their first two principal components (NeurIPS paper, figures 5c, 5d)."""
    across, up = structure.coordinates[:, 0], structure.coordinates[:, 1]
    share = structure.eigenvalues / structure.eigenvalues.sum()
    with panel(4.0, 3.4) as (figure, axes):
        points = axes.scatter(across, up, c=list(keys), cmap="cividis", s=20, zorder=2,
                              edgecolors=INK, linewidths=0.4)  # fmt: skip
        axes.set_xlabel(f"component 1 ({share[0]:.0%} of the variance)")
        axes.set_ylabel(f"component 2 ({share[1]:.0%})")
        style.colour_bar(points, axes, "key")
    return figure


def step_scores(structure: "EmbeddingStructure") -> "Figure":
    """How much closer embeddings a step apart lie than a smooth curve explains, as z scores.

    All are 0 where the curve explains everything.
    """
    test = structure.steps
    scores = np.zeros(len(test.steps)) if test.z is None else test.z
    with panel(4.0, 2.6) as (figure, axes):
        colours = [CHOSEN if step in test.claimed else NEITHER for step in test.steps]
        axes.bar(test.steps, scores, color=colours)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_xticks([step for step in test.steps if step % 5 == 0 or step in test.claimed])
        claimed = " and ".join(map(str, test.claimed))
        axes.set(xlabel=f"step (in colour: {claimed})", ylabel="closeness beyond\nsmooth (z)")
    return figure


def development(along: "Development", measure: str) -> "Figure":
    """A measure of the weight matrices over the checkpoints of a run, such as their stable_rank."""
    with panel(4.0, 4.2) as (figure, axes):
        for index, name in enumerate(along.names):
            dashes = ("-", "--", ":", "-.")[index // len(style.QUALITATIVE) % 4]
            values = [style.or_nan(row[index]) for row in getattr(along, measure)]
            axes.plot(along.steps, values, dashes, marker=".", label=name,
                      color=style.colour(index))  # fmt: skip
        axes.set(xlabel="step", ylabel=measure.replace("_", " "), yscale="log")
        style.plain_ticks(axes.yaxis)
        axes.grid(alpha=0.25)
        style.legend_below(figure, axes, columns=3)
    return figure


def condensation_map(matrix: "CosineMatrix") -> "Figure":
    """Cosines between the input weights of neurons (NeurIPS paper, figures 5a and 5b)."""
    with panel(4.0, 3.4) as (figure, axes):
        style.signed_map(axes, matrix.cosines, "cosine", interpolation="nearest")
        axes.set(xlabel="neuron (sorted)", ylabel="neuron (sorted)", xticks=[], yticks=[])
    return figure


def _matrix_name(name: str, layer: int | None) -> str:
    return name if layer is None else f"{name} L{layer}"
