"""The page of an analysis: how one model works."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anchor_interp._util.files import write_output
from anchor_interp._util.schema import canonical_json
from anchor_interp.analysis.conclusions import SIGNIFICANT, conclude
from anchor_interp.analysis.verdict import ACCURACY, FITTED_ON, Line, lines
from anchor_interp.pages import mechanism_figures as figures
from anchor_interp.pages.attention_views import View, sequence_view
from anchor_interp.pages.page import (
    Picture,
    attention_of,
    draw_picture,
    fill_page,
    output_folder,
    save_pictures,
)
from anchor_interp.runs.phase import meanings

if TYPE_CHECKING:
    from anchor_interp.analysis.attention import SequenceAttention
    from anchor_interp.analysis.overview import Analysis, MechanismAnalysis
    from anchor_interp.models.embeddings import StepTest
    from anchor_interp.runs.phase import Decision


def write_analysis(analysis: "Analysis", out: str | Path) -> list[Path]:
    """Write an analysis as a page, its figures and its numbers.

    Args:
        analysis: the analysis to show.
        out: the folder. It is created; an old file is replaced once the new one is complete.

    Returns:
        ``index.html``, ``analysis.json`` and the figures, ``figures/*.png`` and ``*.svg``.

    Raises:
        StoreError: a file cannot be written, or the path is a file or a run's folder.
        ConfigError: the path is empty.
    """
    out = analysis_folder(out)
    pictures = list(_pictures(analysis))
    page, numbers = out / "index.html", out / "analysis.json"
    write_output(numbers, canonical_json(analysis).encode())
    written = save_pictures(pictures, out / "figures")
    write_output(page, render_analysis(analysis, pictures).encode("utf-8", "replace"))
    return [page, numbers, *written]


def analysis_folder(out: str | Path) -> Path:
    """The folder, if an analysis can be written into it; call this before the analysis.

    Raises:
        StoreError: the path is a file or a run's folder.
        ConfigError: the path is empty.
    """
    return output_folder(out, "the analysis")


def render_analysis(analysis: "Analysis", pictures: Sequence[Picture] | None = None) -> str:
    """The page of an analysis as HTML."""
    drawn = list(_pictures(analysis)) if pictures is None else pictures
    mechanism, config = analysis.mechanism, analysis.config
    attention = [] if mechanism is None else attention_of(mechanism.attention, 1)
    sequences = [(example, _views(example, i)) for i, example in enumerate(analysis.attention)]
    shown = [entry.views for entry in attention] + [views for _, views in sequences]
    fingerprint = None if mechanism is None else mechanism.fingerprint
    asked = () if fingerprint is None else lines(fingerprint)
    return fill_page(
        "analysis.html.jinja",
        [view for views in shown for view in views],
        title=f"How the model {analysis.name} works",
        found=analysis,
        mechanism=mechanism,
        says=conclude(analysis),
        phases=meanings(anchored=config is None or config.task.anchored is not None),
        named=dict.fromkeys(d.phase for d in (analysis.decision, analysis.verdict) if d),
        lines=asked,
        decided=_decided(asked, analysis.verdict),
        accuracy=ACCURACY,
        fitted_on=FITTED_ON,
        pictures={picture.name: draw_picture(picture, "a") for picture in drawn},
        attention=attention,
        sequences=sequences,
    )


def _decided(asked: Sequence[Line], verdict: "Decision | None") -> int | None:
    """The place of the line that decided the verdict; None if none did."""
    phase = None if verdict is None else verdict.phase
    places = (i for i, line in enumerate(asked) if line.speaks and line.phase == phase)
    return next(places, None)


def _views(example: "SequenceAttention", index: int) -> list[View]:
    layers = range(len(example.patterns))
    return [sequence_view(example, layer, id=f"sequence-{index}-{layer}") for layer in layers]


def _pictures(analysis: "Analysis") -> Iterator[Picture]:
    m = analysis.mechanism
    if m is not None:
        yield from _inside(m)
    caption = "Stable rank of every weight matrix."
    yield Picture("stable-rank", caption, figures.stable_ranks(analysis.complexity))
    caption = "Singular values of each head's QK and OV product, relative to the largest."
    yield Picture("spectra", caption, figures.spectra(analysis.complexity))
    if analysis.neurons is not None:
        caption = "Cosines between the input weights of the neurons of W_Q L0, the papers' W_Q(1)."
        yield Picture("condensation", caption, figures.condensation_map(analysis.neurons))
    if m is not None and m.embedding is not None:
        caption = "Embedded keys on their first two principal components."
        yield Picture("embedding", caption, figures.embedding_plane(m.embedding, m.keys))
        yield Picture("steps", _steps_caption(m.embedding.steps), figures.step_scores(m.embedding))
    if analysis.development is not None:
        for measure, words in _DEVELOPMENT.items():
            figure = figures.development(analysis.development, measure)
            name = "development" if measure == "stable_rank" else f"development-{words.split()[0]}"
            yield Picture(name.lower(), f"{words} along training.", figure)


def _steps_caption(steps: "StepTest") -> str:
    claimed = " and ".join(map(str, steps.claimed))
    caption = (
        "How much closer keys are embedded that lie this many steps apart than a smooth curve "
        f"explains. The papers see peaks at {claimed} in inferential models."
    )
    if steps.z is None:
        return f"{caption} Here the curve explains everything."
    found = "are both" if steps.p_value <= SIGNIFICANT else "are not both"
    most = steps.steps[int(steps.z.argmax())]
    return (
        f"{caption} Here keys that far apart {found} closer than by chance "
        f"(p = {steps.p_value:.2g}), and step {most} stands out most."
    )


def _inside(m: "MechanismAnalysis") -> Iterator[Picture]:
    if m.flow is not None:
        caption = (
            "Attention on the probe sequence as a graph, layers upwards. Below: its tokens. Above: "
            "what the model predicts at each position. A line's width is the attention, its "
            "darkness the effect of that edge on the answer."
        )
        caption += "" if m.circuit is None else " In colour: the edges of the pruned circuit."
        yield Picture("flow", caption, figures.information_flow(m.flow, m.circuit))
    if m.routes is not None:
        caption = (
            "The share of a token's effect on the answer that each route carries, of the token "
            "that it carries least (at its best split of the layers). Symmetric: both anchors to "
            "the last position first, then the key. Inferential: the key to both anchors first. "
            "Gathered: key and first anchor to the second anchor first."
        )
        yield Picture("routes", caption, figures.route_bars(m.routes))
    if m.comparison is not None:
        caption = (
            "Faithfulness of the pruned circuit beside random circuits of its size, the edges with "
            "most attention to the answer (rollout) at several sizes, the published routes and the "
            "gathered one. Pruned on other sequences the circuit can have an edge more or less."
        )
        yield Picture("circuit", caption, figures.circuit_baselines(m.comparison))
    for patched in m.patches:
        caption = (
            f"{_CONTRASTS[patched.contrast]} differs: how much of the clean answer comes back when "
            "one clean activation is put into the corrupted run (mean over examples)."
        )
        name = f"patching-{patched.contrast}"
        yield Picture(name, caption, figures.patch_map(patched.result))
    for similarity in m.similarities:
        name = f"similarity-{similarity.state.replace('_', '-').lower()}"
        caption = f"{_SIMILARITIES[similarity.state]} Boxes: equal values."
        yield Picture(name, caption, figures.similarity_map(similarity))
    for clusters in m.clusters:
        name = f"clusters-{clusters.state.replace('_', '-').lower()}"
        caption = f"{_CLUSTERS[clusters.state]} (t-SNE; colour: unordered pair, marker: order)."
        yield Picture(name, caption, figures.cluster_map(clusters))


_DEVELOPMENT = {
    "stable_rank": "Stable rank",
    "effective_rank": "Effective rank",
    "condensation": "Condensation",
}
_CONTRASTS = {"key": "The key", "first": "The first anchor", "second": "The second anchor"}
_SIMILARITIES = {
    "V": "Cosines of V in layer 1 (the papers' layer 2) at the first anchor, across keys and first "
    "anchors.",
    "OV": "Cosines of what the heads write there (V through W_O), which does not depend on the "
    "basis inside a head.",
    "X_ao": "Cosines after attention of layer 1 (the papers' layer 2) at the last position, across "
    "keys and pairs.",
    "logits": "Cosines of the logits with the second anchor masked, across keys and first anchors.",
}
_CLUSTERS = {
    "logits": "Logits with the key masked",
    "X_ao": "The state after attention of layer 0 (the papers' layer 1) at the last position",
}
