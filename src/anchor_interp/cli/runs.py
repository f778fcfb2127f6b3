"""Commands about single runs: train, evaluate, export, report, presets."""

import functools
import inspect
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

from cyclopts import App, Group, Parameter
from docstring_parser import parse_from_object

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import to_dict
from anchor_interp.behaviour.phase import Evaluation, decide
from anchor_interp.cli.options import PLAIN, Device, Outputs, RunName, check_values
from anchor_interp.models.shapes import MODELS
from anchor_interp.runs.config import RunConfig, override, read_config, run_id
from anchor_interp.runs.presets import RUNS
from anchor_interp.runs.tracking import Track
from anchor_interp.tasks.catalog import NAMED_TASKS
from anchor_interp.tasks.task import plain_fields

if TYPE_CHECKING:
    from anchor_interp.runs.run import Run

_LOGGER = logging.getLogger(__name__)

Preset = Annotated[str | None, Parameter(choices=tuple(RUNS), show_default="tiny")]
Task = Annotated[str | None, Parameter(choices=tuple(NAMED_TASKS))]


def starting_point(
    *, preset: Preset = None, config: Path | None = None, task: Task = None
) -> RunConfig:
    """The configuration that the flags of ``train`` change."""
    if preset is not None and config is not None:
        raise ConfigError("--preset and --config both give the start; use one of them")
    base = RUNS[preset or "tiny"] if config is None else read_config(config)
    return base if task is None else override(base, task=NAMED_TASKS[task])


def train(
    *,
    out: Path,
    preset: Preset = None,
    config: Path | None = None,
    task: Task = None,
    device: Device = "auto",
    threads: int | None = None,
    track: Track | None = None,
    output: Outputs = PLAIN,
    **changes: Any,
) -> None:
    """Train one model into a run folder, or resume it.

    Args:
        out: The run folder; give the same command again to resume.
        preset: Named run to start from (see the presets command); the flags below change it.
        config: Configuration file to start from instead, such as RUN/config.json.
        task: Named task (see the presets command) instead of the task of the preset or file.
        threads: CPU threads; if none, one for a narrow model, else PyTorch's choice.
        track: Show the metrics there as well; needs the package of that name.
    """
    wanted = override(starting_point(preset=preset, config=config, task=task), **changes)
    from anchor_interp.runs.distributed import is_follower
    from anchor_interp.runs.train import train

    run = train(wanted, out, device=device, threads=threads, quiet=output.quiet, track=track)
    if not is_follower():
        output.show(facts(run, run.evaluation), f"{run.name}: {run.phase} ({run.reason})")


def train_with_flags(arguments: Sequence[str]) -> Callable[..., None]:
    """:func:`train` with a flag for every field of the configuration that the arguments start."""
    options = App(
        help_flags=(), version_flags=(), config=check_values, default_command=starting_point
    )
    start, given, *_ = options.parse_known_args(arguments)
    base: RunConfig = start(*given.args, **given.kwargs)
    command: Any = functools.wraps(train)(lambda **values: train(**values))
    signature = inspect.signature(train)
    *own, _changes = signature.parameters.values()
    training = Group("Training", sort_key=4)
    flags = [
        *_flags(Group("Task", sort_key=1), base.task, *plain_fields(base.task)),
        *_flags(Group("Model", sort_key=2), base.model),
        *_flags(Group("Initialisation", sort_key=3), base.init),
        *_flags(training, base.train),
        *_flags(training, base, "seed"),
    ]
    command.__signature__ = signature.replace(parameters=[*own, *flags])
    return cast(Callable[..., None], command)


def _flags(group: Group, part: Any, *names: str) -> Iterator[inspect.Parameter]:
    """A flag for each field of a configuration, or for those named, at its value there."""
    hints = get_type_hints(type(part))
    classes = filter(is_dataclass, type(part).__mro__)  # whose fields have docstrings under them
    for text in itertools.chain.from_iterable(parse_from_object(c).params for c in classes):
        if not names or text.arg_name in names:
            about = " ".join((text.description or "").replace("``", "").split())
            yield inspect.Parameter(
                text.arg_name,
                inspect.Parameter.KEYWORD_ONLY,
                default=getattr(part, text.arg_name),
                annotation=Annotated[
                    hints[text.arg_name], Parameter(help=about, group=group, negative_iterable=())
                ],
            )


def evaluate(
    run: RunName,
    /,
    *,
    step: int | None = None,
    n: int = 500,
    seed: int = 0,
    device: Device = "cpu",
    output: Outputs = PLAIN,
) -> None:
    """Measure a run's model and name its phase.

    Args:
        step: Checkpoint to measure; the newest if none.
        n: Sequences per ordered pair and side of the split; without anchors, examples per split.
        seed: Seed of the evaluation sequences.
    """
    from anchor_interp.runs.run import load

    loaded = load(run, step=step, device=device)
    _LOGGER.info("measuring %s at step %d", loaded.name, loaded.step)
    evaluation = loaded.evaluate(n=n, seed=seed)
    decision, numbers = decide(evaluation), to_dict(evaluation)
    lines = [f"{loaded.name} at step {loaded.step}: {decision.phase} ({decision.reason})"]
    for name, value in (numbers | numbers["cells"]).items():
        if isinstance(value, int | float) and name not in ("schema", "steps"):
            lines.append(f"  {name.replace('_', ' '):<22} {value:.4g}")
    for score in evaluation.splits:
        beside = f" ({score.beside})" if score.beside else ""
        about = f"accuracy {score.accuracy:.3f}{beside}, loss {score.loss:.4g}, {score.n} examples"
        if score.perplexity is not None:
            about += f", perplexity {score.perplexity:.4g}"
        if score.bits_per_byte is not None:
            about += f", {score.bits_per_byte:.4g} bits a byte"
        lines.append(f"  {f'{score.name} ({score.role})':<22} {about}")
    if evaluation.pair_accuracy:
        pairs = evaluation.to_frame().replace({"role": {"inferential": "by the rule"}})
        table = pairs.to_string(index=False, float_format="{:.3f}".format)
        lines.append(f"accuracy of each ordered pair:\n{table}")
    output.show(facts(loaded, evaluation), *lines)


def facts(run: "Run", evaluation: Evaluation) -> dict[str, Any]:
    """A run with its measurements, as JSON values."""
    decision = decide(evaluation)
    known = {"run": run.name, "run_id": run_id(run.config), **to_dict(decision)}
    return {**known, **to_dict(evaluation), "config": to_dict(run.config)}


def export(run: RunName, /, *, out: Path, step: int | None = None, output: Outputs = PLAIN) -> None:
    """Write a run's weights as one safetensors file that plain TransformerLens can read.

    Args:
        out: The file; an existing one is replaced.
        step: Checkpoint to write; the newest if none.
    """
    from anchor_interp.runs.run import load

    loaded = load(run, step=step)
    path = loaded.export(out)
    about = {"run": loaded.name, "run_id": run_id(loaded.config), "step": loaded.step}
    text = f"{path}: the weights of {loaded.name} at step {loaded.step}"
    output.show(about | {"weights": str(path)}, text)


def report(
    *runs: Annotated[RunName, Parameter(required=True)],
    out: Path = Path("report.html"),
    pictures: Path | None = None,
    output: Outputs = PLAIN,
) -> None:
    """Write one self-contained HTML page about one or several runs.

    Args:
        out: The page; an existing one is replaced.
        pictures: Folder for every figure as PNG and SVG as well.
    """
    from anchor_interp.analysis.report_data import gather
    from anchor_interp.pages.report import write_report

    findings = gather(runs)
    page, *drawn = write_report(findings, out, pictures=pictures)
    named = {run.name: {"phase": run.decision.phase, "step": run.step} for run in findings}
    lines = [f"report: {page}"]
    if drawn:
        lines.append(f"pictures: {len(drawn)} files in {pictures}")
    output.show({"report": str(page), "runs": named, "pictures": list(map(str, drawn))}, *lines)


def presets(*, output: Outputs = PLAIN) -> None:
    """List the named runs, model shapes, tasks and sweeps."""
    from anchor_interp.sweeps.spec import SWEEPS, plain_sweep, read_sweep

    sweeps = {name: read_sweep(path) for name, path in SWEEPS.items()}
    lines = ["runs (anchor-interp train --preset NAME)"]
    for name, run in RUNS.items():
        titles = (title for title, task in NAMED_TASKS.items() if task == run.task)
        settings = f"gamma {run.init.gamma:g}, weight decay {run.train.weight_decay:g}"
        size = f"{run.train.n_sequences:,} sequences, {run.train.steps:,} steps"
        lines.append(f"  {name:<20} {next(titles, run.task.kind)}, {run.model}, {settings}, {size}")
    lines.append("tasks (anchor-interp train --task NAME)")
    lines += [f"  {name:<22} {task.about}" for name, task in NAMED_TASKS.items()]
    lines.append("sweeps (anchor-interp sweep NAME --out FOLDER)")
    for name, sweep in sweeps.items():
        values = [axis for grid in sweep.grids for axis in grid.axes.items()]
        axes = " x ".join(f"{len(choices)} {axis}" for axis, choices in values)
        seeds = ", ".join(f"{len(grid.seeds)} seeds" for grid in sweep.grids)
        lines.append(f"  {name:<22} {axes}, {seeds}: {len(sweep.configs()):,} runs")
    named = to_dict({"runs": RUNS, "models": MODELS, "tasks": NAMED_TASKS})
    plain = {name: plain_sweep(sweep) for name, sweep in sweeps.items()}
    output.show(named | {"sweeps": plain}, *lines)
