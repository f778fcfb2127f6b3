"""Commands that look inside models: analyze, verdict."""

import logging
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import to_dict
from anchor_interp.cli.options import PLAIN, Device, Outputs, RunName
from anchor_interp.runs.config import read_task, run_id
from anchor_interp.runs.phase import decide
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.task import anchored

_LOGGER = logging.getLogger(__name__)
_EDGES = 8  # most edges of a circuit that are named


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
    from anchor_interp.analysis.conclusions import conclude
    from anchor_interp.analysis.overview import analyze, analyze_model
    from anchor_interp.pages.analysis_page import analysis_folder, write_analysis
    from anchor_interp.runs.export import load_transformer

    analysis_folder(out)
    given = None if task is None else anchored(read_task(task), "analyze")
    is_file = _holds_weights(run, given)
    budget: dict[str, Any] = {"max_seconds": max_seconds, "quiet": output.quiet}
    if is_file:
        if step is not None:
            raise ConfigError("step is of no use with a file of weights; leave it out")
        model = load_transformer(run, device=device, to_run=given is not None)
        found = analyze_model(model, given, name=run.stem, **budget)
    else:
        found = analyze(run, step=step, device=device, **budget)
    page, numbers, *figures = write_analysis(found, out)
    for reason in found.left_out:
        _LOGGER.warning("left out: %s", reason)
    lines = []
    for by, decision in (("answers", found.decision), ("mechanism", found.verdict)):
        if decision is not None:
            lines.append(f"by its {by}: {decision.phase} ({decision.reason})")
    lines += [f"near a line: {words}" for words in found.near]
    lines += conclude(found).values()
    if found.mechanism is not None and found.mechanism.circuit is not None:
        names = found.mechanism.circuit.names
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
    from anchor_interp.analysis.fingerprint import fingerprint, fingerprint_model
    from anchor_interp.analysis.mechanism import kept_fingerprint
    from anchor_interp.analysis.verdict import ACCURACY, FITTED_ON, verdict
    from anchor_interp.runs.evaluation import evaluate
    from anchor_interp.runs.export import load_transformer
    from anchor_interp.runs.run import load

    given = None if task is None else anchored(read_task(task), "verdict")
    told, lines = {}, []
    loaded: list[tuple[Any, Any]] = []
    for path in runs:  # a wrong name is told before the work
        if not _holds_weights(Path(path), given):
            loaded.append((path, load(path, device=device)))
        elif given is None:
            raise ConfigError(f"{path} is a file of weights; say its task with --task")
        else:
            loaded.append((path, load_transformer(path, device=device, to_run=True)))
    for path, run in loaded:
        known: dict[str, Any] = {"run_id": None, "step": None}
        if given is not None:
            numbers = fingerprint_model(run, given, quiet=output.quiet)
            behaviour = decide(evaluate(run, given, n=200))
            lines += [f"{path}:"]
        else:
            known = {"run_id": run_id(run.config), "step": run.step}
            kept = run.path and kept_fingerprint(run.path, run_id(run.config), run.step)
            numbers = kept or fingerprint(run, quiet=output.quiet)
            is_done = run.folder.result() is not None and run.evaluation.steps == run.step
            behaviour = decide(run.evaluation if is_done else run.evaluate(n=200))
            lines += [f"{path} at step {run.step}:"]
        mechanism = verdict(numbers)
        of_both = {"mechanism": mechanism, "behaviour": behaviour, "fingerprint": numbers}
        told[str(path)] = known | to_dict(of_both)
        lines += [f"  by mechanism  {mechanism.phase:<12} {mechanism.reason}"]
        lines += [f"  by behaviour  {behaviour.phase:<12} {behaviour.reason}"]
        lines += [f"  {conclude_phase(behaviour, mechanism)}"]
    lines += [
        f"On runs that set no threshold the verdict by mechanism names {ACCURACY:.2f} of the runs "
        f"of a phase rightly, in the mean over the phases; they are of {FITTED_ON}."
    ]
    output.show({"runs": told}, *lines)


def _holds_weights(path: Path, task: AnchorTask | None) -> bool:
    """Whether it is a file of weights; an error if a run is given a task."""
    if path.is_file() or (path.suffix == ".safetensors" and not path.is_dir()):
        return True
    if task is not None:
        raise ConfigError("task is for a file of weights; a run knows its own, so leave it out")
    return False
