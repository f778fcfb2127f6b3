"""Commands that look inside models: ask, analyze, verdict."""

import logging
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.files import output_file
from anchor_interp._util.schema import to_dict
from anchor_interp.cli.options import PLAIN, Device, Outputs, RunName
from anchor_interp.runs.config import read_task, run_id
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.rules import require_anchors

_LOGGER = logging.getLogger(__name__)
_EDGES = 8  # most edges of a circuit that are named


def ask(
    *runs: Annotated[RunName, Parameter(required=True)],
    out: Path = Path("ask.html"),
    output: Outputs = PLAIN,
) -> None:
    """Write one offline HTML page in which models answer any sequence that is picked there.

    Args:
        out: The page; an existing one is replaced.
    """
    from anchor_interp.analysis.ask_data import to_ask
    from anchor_interp.pages.ask_page import write_ask
    from anchor_interp.runs.run import load

    output_file(out)  # before the maps of answers, which take seconds
    models = to_ask({str(run): load(run) for run in runs})
    output.show({"page": str(write_ask(models, out))}, f"page: {out}")


def analyze(
    run: Path,
    /,
    *,
    out: Path,
    task: str | None = None,
    step: int | None = None,
    device: Device = "cpu",
    max_seconds: float | None = None,
    output: Outputs = PLAIN,
) -> None:
    """Look inside one model: flow, masks, patching, representations, complexity.

    Args:
        run: A run folder, a named model (tiny/inferential/1, exact/symmetric), or a .safetensors
            file of a HookedTransformer's weights.
        out: Folder for the page, the figures and the numbers.
        task: For a file of weights. The anchor task of the model, a name (see the presets command)
            or a JSON file of its fields; if none, only the complexity is measured.
        step: Checkpoint of the run; the newest if none.
        max_seconds: Analyses that have not begun after this time are left out.
    """
    from anchor_interp.analysis.analyze import analyze, analyze_model
    from anchor_interp.pages.analysis_page import write_analysis
    from anchor_interp.pages.page import output_folder
    from anchor_interp.runs.export import load_transformer

    output_folder(out, "the analysis")  # before the analysis, which takes long
    given = None if task is None else require_anchors(read_task(task), "analyze")
    is_file = _holds_weights(run, given)
    budget: dict[str, Any] = {"max_seconds": max_seconds, "quiet": output.quiet}
    if is_file:
        if step is not None:
            raise ConfigError("step is of no use with a file of weights; leave it out")
        model = load_transformer(run, device=device, to_run=given is not None)
        analysis = analyze_model(model, given, name=run.stem, **budget)
    else:
        analysis = analyze(run, step=step, device=device, **budget)
    page, numbers, *figures = write_analysis(analysis, out)
    for reason in analysis.left_out:
        _LOGGER.warning("left out: %s", reason)
    lines = []
    for by, decision in (("answers", analysis.decision), ("mechanism", analysis.verdict)):
        if decision is not None:
            lines.append(f"by its {by}: {decision.phase} ({decision.reason})")
    lines += [f"near a line: {words}" for words in analysis.near]
    lines += analysis.conclusions.values()
    if analysis.mechanism is not None and analysis.mechanism.circuit is not None:
        names = analysis.mechanism.circuit.names
        more = f"; and {len(names) - _EDGES} more" if len(names) > _EDGES else ""
        lines.append(f"circuit: {'; '.join(names[:_EDGES])}{more}")
    output.show_pages(page, numbers, len(figures), *lines)


def verdict(
    *runs: Annotated[RunName, Parameter(required=True)],
    task: str | None = None,
    device: Device = "cpu",
    output: Outputs = PLAIN,
) -> None:
    """Name each run's phase by its mechanism, beside the phase by its behaviour.

    The mechanism is read off weights and seen pairs alone, in seconds a run.

    Args:
        runs: Run folders, named models, or .safetensors files of a HookedTransformer's weights.
        task: For files of weights. The anchor task of the models, a name (see the presets command)
            or a JSON file of its fields.
    """
    from anchor_interp.analysis.conclusions import conclude_phase
    from anchor_interp.analysis.fingerprint import both_phases
    from anchor_interp.analysis.verdict import judged
    from anchor_interp.runs.export import load_transformer
    from anchor_interp.runs.run import load

    given = None if task is None else require_anchors(read_task(task), "verdict")
    opened: list[Any] = []
    for path in runs:  # a wrong name is told before the work
        if not _holds_weights(path, given):
            opened.append(load(path, device=device))
        elif given is None:
            raise ConfigError(f"{path} is a file; expected a run, or weights and their --task")
        else:
            opened.append(load_transformer(path, device=device, to_run=True))
    results, lines = {}, []
    for path, model in zip(runs, opened, strict=True):
        identifier, step, title = None, None, str(path)
        if given is None:
            identifier, step = run_id(model.config), model.step
            title = f"{path} at step {step}"
        both = both_phases(model, given, quiet=output.quiet)
        mechanism, behaviour = both.mechanism, both.behaviour
        results[str(path)] = {"run_id": identifier, "step": step, **to_dict(both)}
        lines += [
            f"{title}:",
            f"  by mechanism  {mechanism.phase:<12} {mechanism.reason}",
            f"  by behaviour  {behaviour.phase:<12} {behaviour.reason}",
            f"  {conclude_phase(behaviour, mechanism)}",
        ]
    lines.append(judged())
    output.show({"runs": results}, *lines)


def _holds_weights(path: Path, task: AnchorTask | None) -> bool:
    """Whether it is a file of weights; an error if a run is given a task."""
    if path.is_file() or (path.suffix == ".safetensors" and not path.is_dir()):
        return True
    if task is not None:
        raise ConfigError("task is for a file of weights; a run knows its own, so leave it out")
    return False
