"""Self-contained pages: what runs learned and how one can tell, and how one model does it.

A page makes no request: figures, attention views, styles and CircuitsVis's script are in the
file, and its Content-Security-Policy allows nothing else. This module loads no model: it shows
what :func:`anchor_interp.findings.gather` or :func:`anchor_interp.analysis.analyze` found.
"""

import base64
import functools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor_interp import __version__, plotting
from anchor_interp.errors import ConfigError, StoreError
from anchor_interp.files import is_there, output_file, write_output
from anchor_interp.phase import PAPER, Evaluation, Thresholds
from anchor_interp.plotting import Side
from anchor_interp.schema import canonical_json, checked_path, to_dict
from anchor_interp.task import AnchorTask
from anchor_interp.views import View, attention_view, bundle, roles

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

    from anchor_interp.analysis import Analysis
    from anchor_interp.complexity import Complexity
    from anchor_interp.evaluation import AttentionExample
    from anchor_interp.findings import Findings


@dataclass(frozen=True)
class Measure:
    """A measurement beside the threshold that it is held against."""

    name: str
    """What was measured."""
    meaning: str
    """The same in a sentence."""
    value: float | None
    """The share; None where the task does not have it."""
    threshold: float
    """Where one phase ends and another begins."""


@dataclass(frozen=True)
class Picture:
    """A figure with what is said about it."""

    name: str
    """Name of its file."""
    caption: str
    """What it shows."""
    figure: "Figure"
    """The figure."""


@dataclass(frozen=True)
class Attention:
    """An example sequence with one view a layer."""

    example: "AttentionExample"
    """The sequence."""
    roles: list[str]
    """The role of every token."""
    views: list[View]
    """CircuitsVis views, one a layer."""


def write_report(
    runs: Sequence["Findings"], out: str | Path, *, pictures: Path | None = None
) -> list[Path]:
    """Write the page, and on request its figures as files.

    Args:
        runs: what to show.
        out: the HTML file; its folder is created, a file that is there is replaced at once, when
            the new one is complete.
        pictures: folder for every figure as PNG and SVG.

    Returns:
        The files written, the page first.

    Raises:
        StoreError: a file cannot be written, or is one of a run.
        ConfigError: no run, or no path.
    """
    out = checked_path(out, "out")
    output_file(out)
    if not runs:
        raise ConfigError("there is no run to report on; expected at least one")
    if pictures is not None:
        output_file(pictures / "any.png")
        if pictures.exists() and not pictures.is_dir():
            raise StoreError(f"{pictures} is a file; name a folder for the pictures")
    page = render(runs)
    written = [] if pictures is None else _save_pictures(runs, pictures)
    write_output(out, page.encode("utf-8", "replace"))  # a run's name may hold any byte
    return [out, *written]


def render(runs: Sequence["Findings"]) -> str:
    """The page as HTML."""
    attention = [_attention(run.attention, number) for number, run in enumerate(runs, 1)]
    views = [view for shown in attention for entry in shown for view in entry.views]
    tasks = list(dict.fromkeys(run.config.task for run in runs))
    return fill_page(
        "report.html.jinja",
        views,
        title=_title(runs),
        runs=[
            {
                "id": f"run-{number}",
                "found": run,
                "measures": measures(run.evaluation),
                "pictures": [_drawn(picture, f"r{number}") for picture in _pictures(run)],
                "attention": attention[number - 1],
                "matrices": _matrices(run.complexity, run.complexity_at_init),
                "answers": [
                    (a.pair, plotting.top_answers(a), plotting.known_offsets(run.config, a.pair))
                    for a in run.evaluation.unseen
                ],
                "rows": [row for row in run.metrics if "id_accuracy" in row],
                "configuration": json.dumps(to_dict(run.config), indent=1),
            }
            for number, run in enumerate(runs, 1)
        ],
        tasks=[(_task_words(task), [r for r in runs if r.config.task == task]) for task in tasks],
    )


def write_analysis(analysis: "Analysis", out: str | Path) -> list[Path]:
    """Write an analysis as a page, its figures and its numbers.

    Args:
        analysis: what to show.
        out: a folder, created if need be; files of the same names in it are replaced, each when
            the new one is complete.

    Returns:
        ``index.html``, ``analysis.json`` and the figures, ``figures/*.png`` and ``*.svg``.

    Raises:
        StoreError: a file cannot be written, or the folder is a run's or no folder.
        ConfigError: no path.
    """
    out = analysis_folder(out)
    pictures = list(_mechanism_pictures(analysis))
    page, numbers = out / "index.html", out / "analysis.json"
    write_output(numbers, canonical_json(analysis).encode())
    written = [
        plotting.save(picture.figure, out / "figures" / f"{picture.name}.{ending}")
        for picture in pictures
        for ending in ("png", "svg")
    ]
    write_output(page, render_analysis(analysis, pictures).encode("utf-8", "replace"))
    return [page, numbers, *written]


def analysis_folder(out: str | Path) -> Path:
    """A folder that an analysis can be written into; to be asked before the analysis is made.

    Raises:
        StoreError: a run's folder, or no folder.
        ConfigError: no path.
    """
    return output_folder(out, "the analysis")


def output_folder(out: str | Path, what: str) -> Path:
    """A folder that a page and its figures can be written into.

    Raises:
        StoreError: a run's folder, or no folder.
        ConfigError: no path.
    """
    out = checked_path(out, "out")
    if out.exists() and not out.is_dir():
        raise StoreError(f"{out} is a file; name a folder for {what}")
    if is_there(out / "config.json"):
        raise StoreError(f"{out} is a run's folder; name another one for {what}")
    output_file(out / "index.html")
    return out


def render_analysis(analysis: "Analysis", pictures: Sequence[Picture] | None = None) -> str:
    """The page of an analysis as HTML."""
    drawn = list(_mechanism_pictures(analysis)) if pictures is None else pictures
    mechanism = analysis.mechanism
    attention = [] if mechanism is None else _attention(mechanism.attention, 1)
    return fill_page(
        "analysis.html.jinja",
        [view for entry in attention for view in entry.views],
        title=f"How {analysis.name} works",
        found=analysis,
        mechanism=mechanism,
        pictures={picture.name: _drawn(picture, "a") for picture in drawn},
        attention=attention,
    )


def measures(evaluation: Evaluation, thresholds: Thresholds = PAPER) -> list[Measure]:
    """What decides a phase, in the order in which the rules ask for it."""
    e, t = evaluation, thresholds
    train = ("training accuracy", "on the run's own training sequences", e.train_accuracy)
    if e.train_accuracy is None:
        train = ("training cells", "on fresh sequences", e.cells.seen_train_keys)
    return [
        Measure(*train, t.train),
        Measure("ID accuracy", "seen pairs, test keys", e.id_accuracy, t.id),
        Measure("OOD accuracy", "unseen pairs, composed answer", e.ood_accuracy, t.ood),
        Measure(
            "symmetric answers",
            "unseen pairs, target of the other order",
            e.symmetric_accuracy,
            t.symmetric,
        ),
        Measure(
            "commutativity",
            "predictions that stay when the anchors change places",
            e.commutativity,
            t.commutativity,
        ),
        Measure(
            "key dependence",
            "predictions that change with the key",
            e.key_dependence,
            t.key_dependence,
        ),
    ]


def fill_page(
    template: str,
    views: Sequence[View],
    *,
    styles: Sequence[str] = (),
    **content: Any,
) -> str:
    """A page from its template, with what every page has.

    Args:
        template: name of the file, which extends ``base.html.jinja``.
        views: attention views that it shows.
        styles: further style sheets among the templates.
        content: the template's own names.
    """
    return (
        _environment()
        .get_template(template)
        .render(
            style="".join(template_text(name) for name in ("report.css", *styles)),
            bundle=bundle() if views else "",
            calls=[view.call() for view in views],
            version=__version__,
            **content,
        )
    )


def template_text(name: str) -> str:
    """A file among the templates."""
    return files("anchor_interp").joinpath("templates", name).read_text("utf-8")


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("anchor_interp"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"share": _share, "rank": _rank, "tidy": _tidy, "small": _small}
    return environment


def _title(runs: Sequence["Findings"]) -> str:
    return f"What {runs[0].name} learned" if len(runs) == 1 else "What each model learned"


def _pictures(run: "Findings") -> Iterator[Picture]:
    if any("loss" in row for row in run.metrics):
        loss = plotting.loss_curve(run.metrics)
        yield Picture("loss", "Training loss by step.", loss)
    if any("id_accuracy" in row for row in run.metrics):
        yield Picture(
            "accuracy",
            "Accuracy by step: training sequences; ID, seen pairs with test keys; OOD, unseen "
            "pairs.",
            plotting.accuracy_curves(run.metrics),
        )
    sides: tuple[tuple[Side, str], ...] = (
        ("train_keys", "training keys"),
        ("test_keys", "test keys"),
    )
    for side, keys in sides:
        yield Picture(
            f"pairs-{side.replace('_', '-')}",
            f"Accuracy of every ordered pair, {keys}.",
            plotting.pair_map(run.evaluation, side),
        )
    if run.evaluation.unseen:
        yield Picture(
            "answers",
            "Most frequent answers on the unseen pairs, relative to the key x.",
            plotting.unseen_answers(run.config, run.evaluation),
        )


def _drawn(picture: Picture, run: str) -> dict[str, str]:
    whole = base64.b64encode(plotting.standalone_svg(picture.figure)).decode("ascii")
    return {
        "name": picture.name,
        "caption": picture.caption,
        "svg": plotting.inline_svg(picture.figure, f"{run}-{picture.name}"),
        "link": f"data:image/svg+xml;base64,{whole}",
    }


def _mechanism_pictures(analysis: "Analysis") -> Iterator[Picture]:
    m = analysis.mechanism
    if m is not None and m.flow is not None:
        kept = "" if m.circuit is None else ", in colour those of the pruned circuit"
        yield Picture(
            "flow",
            "Attention as a graph, layers upwards, on the probe sequence (its tokens below, what "
            "the model predicts at each position above). A line's width is the attention, its "
            f"darkness the effect of that edge on the answer{kept}.",
            plotting.information_flow(m.flow, m.circuit),
        )
    if m is not None and m.routes is not None:
        yield Picture(
            "routes",
            "How much of the tokens' effect on the answer takes each mechanism's route.",
            plotting.route_bars(m.routes),
        )
    if m is not None and m.comparison is not None:
        yield Picture(
            "circuit",
            "Faithfulness of the pruned circuit beside circuits of the same size.",
            plotting.circuit_baselines(m.comparison),
        )
    for patched in () if m is None else m.patches:
        yield Picture(
            f"patching-{patched.contrast}",
            f"{_CONTRASTS[patched.contrast]} differs: how much of the clean answer comes back when "
            "one clean activation is put into the corrupted run (mean over examples).",
            plotting.patch_map(patched.result),
        )
    for similarity in () if m is None else m.similarities:
        yield Picture(
            f"similarity-{similarity.state.replace('_', '-').lower()}",
            f"{_SIMILARITIES[similarity.state]} Boxes: equal values.",
            plotting.similarity_map(similarity),
        )
    for clusters in () if m is None else m.clusters:
        yield Picture(
            f"clusters-{clusters.state.replace('_', '-').lower()}",
            f"{_CLUSTERS[clusters.state]} (t-SNE; colour: unordered pair, marker: order).",
            plotting.cluster_map(clusters),
        )
    yield Picture(
        "stable-rank",
        "Stable rank of every weight matrix.",
        plotting.stable_ranks(analysis.complexity),
    )
    yield Picture(
        "spectra",
        "Singular values of each head's QK and OV product, relative to the largest.",
        plotting.spectra(analysis.complexity),
    )
    if analysis.neurons is not None:
        yield Picture(
            "condensation",
            "Cosines between the input weights of the neurons of W_Q in layer 1.",
            plotting.condensation_map(analysis.neurons),
        )
    if m is not None and m.embedding is not None:
        yield Picture(
            "embedding",
            "Embedded keys on their first two principal components.",
            plotting.embedding_plane(m.embedding, m.keys),
        )
        yield Picture(
            "steps",
            "How much closer keys a step apart are embedded than a smooth curve explains "
            f"(p = {m.embedding.steps.p_value:.2g} for both steps).",
            plotting.step_scores(m.embedding),
        )
    if analysis.development is not None:
        yield Picture(
            "development",
            "Stable rank along training.",
            plotting.development(analysis.development),
        )


_CONTRASTS = {"key": "The key", "first": "The first anchor", "second": "The second anchor"}
_SIMILARITIES = {
    "V": "Cosines of V in layer 2 at the first anchor, across keys and first anchors.",
    "OV": "The same of what the heads write (V through W_O), which no basis inside a head changes.",
    "X_ao": "Cosines after attention of layer 2 at the last position, across keys and pairs.",
    "logits": "Cosines of the logits with the second anchor masked, across keys and first anchors.",
}
_CLUSTERS = {
    "logits": "Logits with the key masked",
    "X_ao": "The state after attention of layer 1 at the last position",
}


def _attention(examples: Sequence["AttentionExample"], number: int) -> list[Attention]:
    return [
        Attention(
            example,
            roles(example),
            [
                attention_view(example, layer, id=f"view-{number}-{index}-{layer}")
                for layer in range(len(example.patterns))
            ],
        )
        for index, example in enumerate(examples)
    ]


def _matrices(now: "Complexity", initial: "Complexity") -> list[dict[str, Any]]:
    """Every matrix beside itself at initialisation."""
    return [
        {"name": after.name, "layer": after.layer, "now": after, "initial": before}
        for after, before in zip(now.matrices, initial.matrices, strict=True)
    ]


def _task_words(task: AnchorTask) -> dict[str, Any]:
    by_role: dict[str, list[str]] = {"inferential": [], "unseen": []}
    for pair in task.pairs:
        if task.override(pair) is None or pair in task.unseen:
            by_role[task.role(pair)].append(f"({pair[0]},\N{NO-BREAK SPACE}{pair[1]})")
    return {
        "task": task,
        "anchors": [(anchor.token, str(anchor.function)) for anchor in task.anchors],
        "by_role": by_role,
        "overridden": [(str(o.pair), str(o.function)) for o in task.overrides],
    }


def _save_pictures(runs: Sequence["Findings"], folder: Path) -> list[Path]:
    written = []
    for number, run in enumerate(runs, 1):
        name = re.sub(r"[^\w.-]+", "-", run.name).strip("-.") or f"run-{number}"
        prefix = f"{number}-{name}" if len(runs) > 1 else name
        for picture in _pictures(run):
            for ending in ("png", "svg"):
                path = folder / f"{prefix}-{picture.name}.{ending}"
                written.append(plotting.save(picture.figure, path))
    return written


def _share(value: float | None) -> str:
    return "\N{EN DASH}" if value is None else f"{round(value, 2) + 0:.2f}"  # no -0.00


def _small(value: float | None) -> str:
    """A number that may be tiny."""
    return "\N{EN DASH}" if value is None else f"{value:.2g}"


def _rank(value: float | None) -> str:
    return "\N{EN DASH}" if value is None else f"{value:.1f}"


def _tidy(value: Any, depth: int = 3) -> str:
    """A provenance value in words."""
    if isinstance(value, dict) and depth:
        return ", ".join(f"{name} {_tidy(entry, depth - 1)}" for name, entry in value.items())
    return str(value)
