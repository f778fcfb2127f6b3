"""Every figure of the report and of the analysis page, in order; templates hold the captions."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from anchor_interp.pages import mechanism_figures, run_figures
from anchor_interp.pages.answer_figures import answer_maps
from anchor_interp.pages.page import Picture, file_name

if TYPE_CHECKING:
    from anchor_interp.analysis.report_data import Findings
    from anchor_interp.analysis.results import Analysis, ExamplesAnalysis, MechanismAnalysis

_DEVELOPMENT = {
    "stable_rank": "development",
    "effective_rank": "development-effective",
    "condensation": "development-condensation",
}


def of_run(run: "Findings") -> Iterator[Picture]:
    """How a run learned, and what it answers."""
    if run.answers is not None:
        yield Picture("answer-map", answer_maps({"": run.answers}, columns=1, width=4.0))
    if run.answers_along:
        along = {f"step {step:,}": one for step, one in run.answers_along.items()}
        yield Picture("answers-along", answer_maps(along, columns=2, width=2.0))
    if run.evaluation.unseen:
        yield Picture("answers", run_figures.unseen_answers(run.config, run.evaluation))
    measured = {name for row in run.metrics for name in row}
    if "loss" in measured:
        yield Picture("loss", run_figures.loss_curve(run.metrics, run.config.task.loss_unit))
    if "train_accuracy" in measured:
        yield Picture("accuracy", run_figures.accuracy_curves(run.metrics))
    if "id_loss" in measured:
        yield Picture("perplexity", run_figures.perplexity_curves(run.metrics))
    for side in run_figures.SIDES if run.evaluation.pair_accuracy else ():
        name = f"pairs-{side.replace('_', '-')}"
        yield Picture(name, run_figures.pair_map(run.evaluation, side))
    for aspect in run_figures.aspects(run.evaluation):
        figure = run_figures.aspect_scores(run.evaluation, aspect)
        yield Picture(f"by-{file_name(aspect) or 'aspect'}", figure, about=aspect)
    for name, rows in run.along.items():
        yield Picture(f"along-{file_name(name)}", run_figures.along_curves(rows), about=name)
    for own in run.own_figures:
        yield Picture(own.name, own.draw())
    if (p := run.plane) is not None:
        yield Picture("plane", run_figures.plane_of_errors(p.plane, p.x, p.y, p.right))


def of_answers(runs: Sequence["Findings"]) -> Iterator[Picture]:
    """The maps of several runs in one figure."""
    maps = {run.name: run.answers for run in runs if run.answers is not None}
    if len(maps) > 1:
        yield Picture("answer-maps", answer_maps(maps, columns=2, width=2.0))


def of_comparison(runs: Sequence["Findings"], colours: Sequence[str]) -> Iterator[Picture]:
    """A figure for each metric that is compared and that a run has; ``about`` names the metric."""
    for metric in run_figures.COMPARED:
        curves = [run.metrics for run in runs]
        if any(metric in row for rows in curves for row in rows):
            figure = run_figures.compared_curves(curves, metric, colours)
            yield Picture(f"compared-{metric.replace('_', '-')}", figure, about=metric)


def of_analysis(analysis: "Analysis") -> Iterator[Picture]:
    """How a model works."""
    if analysis.answers is not None:
        yield Picture("answer-map", answer_maps({"": analysis.answers}, columns=1, width=4.0))
    m = analysis.mechanism
    if m is not None:
        yield from _inside(m)
    if analysis.examples is not None:
        yield from _on_examples(analysis.examples)
    yield Picture("stable-rank", mechanism_figures.stable_ranks(analysis.complexity))
    yield Picture("spectra", mechanism_figures.spectra(analysis.complexity))
    if analysis.neurons is not None:
        yield Picture("condensation", mechanism_figures.condensation_map(analysis.neurons))
    if m is not None and m.embedding is not None:
        yield Picture("embedding", mechanism_figures.embedding_plane(m.embedding, m.keys))
        yield Picture("steps", mechanism_figures.step_scores(m.embedding))
    if analysis.development is not None:
        for measure, name in _DEVELOPMENT.items():
            yield Picture(name, mechanism_figures.development(analysis.development, measure))


def _inside(m: "MechanismAnalysis") -> Iterator[Picture]:
    if m.flow is not None:
        figure = mechanism_figures.information_flow(m.flow, m.small_circuit, m.right_answer)
        yield Picture("flow", figure)
    if m.routes is not None:
        yield Picture("routes", mechanism_figures.route_bars(m.routes))
    yield from _circuit(m)
    for patched in m.patches:
        yield Picture(f"patching-{patched.contrast}", mechanism_figures.patch_map(patched.result))
    for each in m.similarities:
        yield Picture(f"similarity-{_state(each.state)}", mechanism_figures.similarity_map(each))
    for points in m.clusters:
        yield Picture(f"clusters-{_state(points.state)}", mechanism_figures.cluster_map(points))


def _on_examples(e: "ExamplesAnalysis") -> Iterator[Picture]:
    if e.patches is not None:
        yield Picture("patching", mechanism_figures.patch_map(e.patches))
    yield from _circuit(e)
    if e.flow is not None:
        circuit = e.circuit if e.circuit is not None and e.circuit.parts == "edges" else None
        yield Picture("flow", mechanism_figures.information_flow(e.flow, circuit))


def _circuit(of: "MechanismAnalysis | ExamplesAnalysis") -> Iterator[Picture]:
    if of.comparison is not None:
        yield Picture("circuit", mechanism_figures.circuit_baselines(of.comparison))
    if (edges := of.edges) is not None:
        yield Picture("edge-curve", mechanism_figures.edge_curve(edges.curve))
        yield Picture("edge-graph", mechanism_figures.edge_graph(edges.attribution, edges.circuit))


def _state(name: str) -> str:
    return name.replace("_", "-").lower()
