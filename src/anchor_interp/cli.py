"""The command line: ``anchor-interp quickstart | train | evaluate | report | ...``.

Its flags are derived from the configurations' fields. Data goes to standard output, progress and
messages to standard error, one line each. Exit codes: 0 done, 1 runtime, 2 usage, 130 interrupted.
"""

import contextlib
import io
import json
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from anchor_interp import __version__
from anchor_interp.completion import Shell, completion
from anchor_interp.config import (
    InitConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
    read_config,
    run_id,
)
from anchor_interp.errors import AnchorInterpError, ConfigError
from anchor_interp.flags import HELP, build, in_flags, parse
from anchor_interp.presets import MODELS, RUNS, preset
from anchor_interp.schema import checked, suggestion, to_dict
from anchor_interp.task import TASKS, AnchorTask, SplitRule, named_task

if TYPE_CHECKING:
    from anchor_interp.phase import Evaluation
    from anchor_interp.run import Run
    from anchor_interp.sweep.folder import SweepFolder
    from anchor_interp.sweep.job import Engine

_BASE = RUNS["tiny"]
_LOGGER = logging.getLogger("anchor_interp")
_MOST_ERRORS = 20

Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""A flag without a value."""


@dataclass(frozen=True)
class Output:
    """What is told, the same for every command."""

    json: Switch = False
    """Print one JSON object on standard output and nothing else there."""
    quiet: Switch = False
    """No progress and no notes: warnings and errors only."""
    verbose: Switch = False
    """Also say what is done in detail, and where an unexpected error came from."""

    @property
    def level(self) -> int:
        """The least level of the messages that are shown."""
        return logging.DEBUG if self.verbose else logging.WARNING if self.quiet else logging.INFO


@dataclass(frozen=True)
class Quickstart:
    """Train one model per phase; print what each learned and where its checkpoints are."""

    out: Path = Path("runs/quickstart")
    """Folder of the runs; give it again to resume."""
    seed: int = 0
    """Seed of every run."""
    workers: int | None = None
    """Runs at a time; all usable cores if None."""
    device: str = "auto"
    """auto (a CUDA GPU if there is one), cpu, cuda, cuda:1, ..."""
    output: Output = Output()


@dataclass(frozen=True)
class Train:
    """Train one model into a run folder, or resume it."""

    out: Path
    """The run folder; give the same command again to resume."""
    preset: str = "tiny"
    """Named run to start from (see the presets command); the flags below change it."""
    config: Path | None = None
    """Configuration file to start from instead, such as RUN/config.json."""
    task: str | None = None
    """Named task (see the presets command); None keeps the one of the preset or file."""
    model: ModelConfig = _BASE.model
    init: InitConfig = _BASE.init
    train: TrainConfig = _BASE.train
    seed: int = _BASE.seed
    """Seed of data, order and initial weights."""
    device: str = "auto"
    """auto (a CUDA GPU if there is one), cpu, cuda, cuda:1, ..."""
    threads: int | None = None
    """CPU threads; PyTorch's choice if None."""
    track: Literal["tensorboard", "wandb"] | None = None
    """Show the metrics there as well; needs the package of that name."""
    split: SplitRule = _BASE.task.split
    """What keeps training apart from test data: the key alone, or every position's token."""
    length: int = _BASE.task.length
    """Tokens per sequence."""
    key_min: int = _BASE.task.key_min
    """Smallest key and noise token."""
    key_max: int = _BASE.task.key_max
    """Largest key and noise token."""
    base_task: tyro.conf.Suppress[AnchorTask] = field(default=_BASE.task)
    output: Output = Output()

    def configuration(self) -> RunConfig:
        """The run that was asked for."""
        task = replace(
            self.base_task,
            split=self.split,
            length=self.length,
            key_min=self.key_min,
            key_max=self.key_max,
        )
        return RunConfig(task, self.model, self.init, self.train, self.seed)


@dataclass(frozen=True)
class Evaluate:
    """Measure a run's model and name its phase."""

    run: tyro.conf.Positional[Path]
    """The run folder, or a name of the zoo such as tiny/inferential/1."""
    step: int | None = None
    """Checkpoint to measure; the newest if None."""
    n: int = 500
    """Sequences per ordered pair and side of the split."""
    seed: int = 0
    """Seed of the evaluation sequences."""
    device: str = "cpu"
    """Where to run the model."""
    output: Output = Output()


@dataclass(frozen=True)
class Export:
    """Write a run's weights as one safetensors file that plain TransformerLens can read."""

    run: tyro.conf.Positional[Path]
    """The run folder, or a name of the zoo such as tiny/inferential/1."""
    out: Path
    """The file; one that is there is replaced."""
    step: int | None = None
    """Checkpoint to write; the newest if None."""
    output: Output = Output()


@dataclass(frozen=True)
class Report:
    """Write one self-contained HTML page about one or several runs."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """The run folders, or names of the zoo such as tiny/inferential/1."""
    out: Path = Path("report.html")
    """The page; one that is there is replaced."""
    pictures: Path | None = None
    """Folder for every figure as PNG and SVG as well."""
    output: Output = Output()


@dataclass(frozen=True)
class Analyze:
    """Look inside one model: flow, masks, patching, representations, complexity."""

    run: tyro.conf.Positional[Path]
    """A run folder, a named model (tiny/inferential/1, exact/symmetric), or a .safetensors file of
    a HookedTransformer's weights, of which the complexity alone is measured."""
    out: Path
    """Folder for the page, the figures and the numbers."""
    step: int | None = None
    """Checkpoint of the run; the newest if None."""
    device: str = "cpu"
    """cpu, cuda, cuda:1, ..."""
    output: Output = Output()


@dataclass(frozen=True)
class SweepCommand:
    """Train many runs: every combination of the axes that is not done yet."""

    spec: tyro.conf.Positional[str]
    """A sweep's file, or a preset to start from."""
    out: Path
    """Folder of the sweep; give the same command again to resume, another sweep to extend it."""
    axes: tyro.conf.Positional[tuple[str, ...]] = ()
    """With a preset: gamma=0.3,0.5 is an axis, steps=2000 the same for all."""
    seeds: int | None = None
    """With a preset: seeds of every combination, counted from 0."""
    engine: Literal["local", "ray"] = "local"
    """Worker processes on this machine, or tasks on a Ray cluster (needs the package ray)."""
    workers: int | None = None
    """Runs at a time on this machine; all usable cores if None, one on a GPU."""
    batch: int = 1
    """Runs of one shape that a worker trains together as a batch of models; 0 chooses."""
    device: str = "auto"
    """auto (a CUDA GPU if there is one), cpu, cuda, cuda:1, ..."""
    address: str | None = None
    """With ray: the cluster, such as auto or 10.0.0.1:6379; a cluster of this machine if None."""
    gpus: float = 0.0
    """With ray: GPUs of each task, also a share such as 0.25."""
    dry_run: Switch = False
    """Only say what there is to do, how long it takes, run by run, and how much disk."""
    output: Output = Output()


@dataclass(frozen=True)
class Status:
    """Say how far a sweep is and what went wrong."""

    sweep: tyro.conf.Positional[Path]
    """The sweep folder."""
    output: Output = Output()


@dataclass(frozen=True)
class Table:
    """Bring a sweep's table.parquet up to date, and print it as CSV or JSON if asked to."""

    sweep: tyro.conf.Positional[Path]
    """The sweep folder."""
    csv: Switch = False
    """Print the table as CSV on standard output."""
    mechanism: Switch = False
    """Measure the mechanism of finished runs first, where that was not done yet; seconds a run."""
    output: Output = Output()


@dataclass(frozen=True)
class Diagram:
    """Draw a sweep's phase diagrams: a page, figures and numbers."""

    sweep: tyro.conf.Positional[Path]
    """The sweep folder, or a table of one (.parquet or .csv)."""
    out: Path
    """Folder for the page, the figures and the numbers."""
    where: tyro.conf.Positional[tuple[str, ...]] = ()
    """Runs to draw, such as lr=0.001 or n_layers=2,3; all if none is given."""
    x: str | None = None
    """Field of the horizontal axis; found from the runs if None."""
    y: str | None = None
    """Field of the vertical axis; found from the runs if None."""
    best_over: str | None = None
    """Field, such as lr, of whose values the best accuracy of each seed counts, as in the NeurIPS
    paper's figure 2; if None every run counts."""
    output: Output = Output()


@dataclass(frozen=True)
class Claims:
    """Hold both papers' claims against runs: train and measure what is missing, then judge."""

    out: Path = Path("runs/papers")
    """Folder of the runs, the page and the numbers; give the same command again to resume."""
    scale: Literal["tiny", "small", "paper"] = "tiny"
    """tiny for two cores of a laptop, small for one GPU, paper for the papers' own runs."""
    studies: tyro.conf.Positional[tuple[str, ...]] = ()
    """Studies to train and measure, such as decay or noise; all if none is given. Every claim is
    judged whose tables are there."""
    tables: Path | None = None
    """Folder of the studies' tables, whose finished runs need no training; OUT/tables if None."""
    workers: int | None = None
    """Runs at a time on this machine; all usable cores if None, one on a GPU."""
    device: str = "auto"
    """auto (a CUDA GPU if there is one), cpu, cuda, cuda:1, ..."""
    dry_run: Switch = False
    """Only say what there is to do and how long it takes."""
    judge: Switch = False
    """Train nothing: judge the tables that are there."""
    output: Output = Output()


@dataclass(frozen=True)
class Presets:
    """List the named runs, model shapes and tasks."""

    output: Output = Output()


@dataclass(frozen=True)
class Doctor:
    """Check that this machine can do the work; exit code 1 if something is wrong."""

    out: Path = Path("runs")
    """Folder that runs will go to."""
    output: Output = Output()


@dataclass(frozen=True)
class Completion:
    """Print a script that makes a shell complete commands, flags and values."""

    shell: tyro.conf.Positional[Shell]
    """The shell."""


Command = (
    Quickstart
    | Train
    | Evaluate
    | Export
    | Report
    | Analyze
    | SweepCommand
    | Status
    | Table
    | Diagram
    | Claims
    | Presets
    | Doctor
    | Completion
)
"""What the command line can be asked for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    with _messages():
        try:
            with _interruptible():
                code = _run(list(sys.argv[1:] if argv is None else argv))
                sys.stdout.flush()
        except AnchorInterpError as error:
            _LOGGER.error(error)
            return error.exit_code
        except KeyboardInterrupt:
            _LOGGER.error("interrupted; what was saved is kept")
            return 130
        except BrokenPipeError:
            # The reader of standard output has gone; keep Python from complaining when it flushes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except OSError as error:
            _LOGGER.error(error)
            return 1
        except MemoryError as error:
            _LOGGER.error("out of memory: %s; ask for less at a time", error)
            return 1
        except Exception as error:
            _LOGGER.error("unexpected %s: %s; --verbose shows where", type(error).__name__, error)
            _LOGGER.debug("traceback", exc_info=True)
            return 1
    return code


class _Messages(logging.Handler):
    """Messages as lines ``anchor-interp: ...`` on standard error, warnings marked as such."""

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        if record.levelno == logging.WARNING:
            text = f"warning: {text}"
        shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
        with contextlib.suppress(OSError, ValueError):  # a full or closed stream stops no work
            print(f"anchor-interp: {shown}", file=sys.stderr, flush=True)
            if record.exc_info:
                print(logging.Formatter().formatException(record.exc_info), file=sys.stderr)


@contextlib.contextmanager
def _messages() -> Iterator[None]:
    """Show what the package logs while a command runs."""
    handler, level = _Messages(), _LOGGER.level
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(level)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, unless the program already sees to it."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # outside the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(arguments: list[str]) -> int:
    """Do what the arguments ask for; returns the exit code."""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name == "--version":
        print(__version__)
        return 0
    options = rest[: rest.index("--")] if "--" in rest else rest
    if name in HELP or (name in _NAMES and set(HELP) & set(options)):
        _print_help(name, rest)
        return 0
    command = _parse(arguments)
    _LOGGER.setLevel(getattr(command, "output", Output()).level)
    try:
        return _COMMANDS[type(command)](command) or 0
    except ConfigError as error:
        raise ConfigError(in_flags(str(error), type(command))) from error


def _parse(arguments: list[str]) -> Command:
    """Turn arguments into a command; the defaults of ``train`` are its preset's or file's."""
    if not arguments or arguments[0] not in _NAMES:
        commands = ", ".join(_NAMES)
        what = "no command"
        if arguments:
            what += f" is called {arguments[0]!r}{suggestion(arguments[0], _NAMES)}"
        raise ConfigError(f"{what}; commands: {commands}; see anchor-interp --help")
    name, kind = arguments[0], _NAMES[arguments[0]]
    try:
        return _build(kind, arguments[1:])
    except ConfigError as error:
        raise ConfigError(f"{error}; see anchor-interp {name} --help") from error


def _build(kind: type[Command], arguments: list[str]) -> Command:
    values = parse(kind, arguments)
    if values.get("quiet") and values.get("verbose"):
        raise ConfigError("--quiet and --verbose contradict each other; use one of them")
    starts = _train_starts(values) if kind is Train else {}
    return build(kind, values, **starts)


def _train_starts(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that ``--preset``, ``--config`` and ``--task`` give to all other flags."""
    if {"preset", "config"} <= values.keys():
        raise ConfigError("--preset and --config both give the start; use one of them")
    if values.get("config") is not None:
        base = read_config(values["config"])
    else:
        base = preset(values.get("preset", "tiny"))
    task = base.task if values.get("task") is None else named_task(values["task"])
    return {
        "model": base.model,
        "init": base.init,
        "train": base.train,
        "seed": base.seed,
        "split": task.split,
        "length": task.length,
        "key_min": task.key_min,
        "key_max": task.key_max,
        "base_task": task,
    }


def _print_help(name: str, arguments: list[str]) -> None:
    """Print tyro's help; of ``train`` with the defaults of the preset or file asked for."""
    parser: dict[str, Any] = {"prog": "anchor-interp", "config": _TYRO}
    if name in _NAMES:
        parser["prog"] += f" {name}"
    if name == "train":
        given = parse(Train, [text for text in arguments if text not in HELP])
        parser["default"] = build(Train, {"out": tyro.MISSING}, **_train_starts(given))
    # tyro looks at the terminal alone to choose colours
    plain = io.StringIO() if os.environ.get("NO_COLOR") else sys.stdout
    with contextlib.redirect_stdout(plain), contextlib.suppress(SystemExit):
        what: Any = _NAMES.get(name, _ANY_COMMAND)
        tyro.cli(what, args=["--help"], **parser)
    if isinstance(plain, io.StringIO):
        print(plain.getvalue(), end="")


def _run_quickstart(command: Quickstart) -> None:
    from anchor_interp.quickstart import print_table, quickstart

    runs = quickstart(
        command.out,
        seed=command.seed,
        workers=command.workers,
        device=command.device,
        quiet=command.output.quiet,
    )
    picture, report = command.out / "overview.png", command.out / "report.html"
    if command.output.json:
        found = {name: _facts(run, run.evaluation) for name, run in runs.items()}
        print(json.dumps({"runs": found, "picture": str(picture), "report": str(report)}))
        return
    print_table(runs)
    print(f"picture: {picture}")
    print(f"report: {report}")


def _run_train(command: Train) -> None:
    config = command.configuration()
    from anchor_interp.run import train

    run = train(
        config,
        command.out,
        device=command.device,
        threads=command.threads,
        quiet=command.output.quiet,
        track=command.track,
    )
    if command.output.json:
        print(json.dumps(_facts(run, run.evaluation)))
        return
    print(f"{run.path}: {run.phase} ({run.reason})")


def _run_evaluate(command: Evaluate) -> None:
    from anchor_interp.phase import decide
    from anchor_interp.run import load

    run = load(command.run, step=command.step, device=command.device)
    _LOGGER.info("measuring %s at step %d", run.path, run.step)
    evaluation = run.evaluate(n=command.n, seed=command.seed)
    if command.output.json:
        print(json.dumps(_facts(run, evaluation)))
        return
    decision = decide(evaluation)
    print(f"{run.path} at step {run.step}: {decision.phase} ({decision.reason})")
    for name, value in to_dict(evaluation).items():
        if isinstance(value, int | float) and name not in ("schema", "steps"):
            print(f"  {name.replace('_', ' '):<22} {value:.4g}")
    print("  mean accuracy          training keys, test keys")
    cells = evaluation.cells
    print(f"    seen pairs           {cells.seen_train_keys:.3f}  {cells.seen_test_keys:.3f}")
    if cells.unseen_train_keys is not None and cells.unseen_test_keys is not None:
        print(
            f"    unseen pairs         {cells.unseen_train_keys:.3f}  {cells.unseen_test_keys:.3f}"
        )
    print("  accuracy per pair      training keys, test keys")
    for entry in evaluation.pair_accuracy:
        print(f"    {entry.pair}  {entry.role:<12} {entry.train_keys:.3f}  {entry.test_keys:.3f}")


def _facts(run: "Run", evaluation: "Evaluation") -> dict[str, Any]:
    """A run with its measurements, as JSON values."""
    from anchor_interp.phase import decide

    decision = decide(evaluation)
    return {
        "run": str(run.path),
        "run_id": run_id(run.config),
        "phase": decision.phase,
        "reason": decision.reason,
        **to_dict(evaluation),
        "config": to_dict(run.config),
    }


def _run_export(command: Export) -> None:
    from anchor_interp.run import load

    run = load(command.run, step=command.step)
    path = run.export(command.out)
    if command.output.json:
        found = {"run": str(run.path), "run_id": run_id(run.config), "step": run.step}
        print(json.dumps(found | {"weights": str(path)}))
        return
    print(f"{path}: the weights of {run.path} at step {run.step}")


def _run_report(command: Report) -> None:
    from anchor_interp.findings import gather
    from anchor_interp.report import write_report

    found = gather(command.runs)
    page, *pictures = write_report(found, command.out, pictures=command.pictures)
    if command.output.json:
        runs = {run.name: {"phase": run.decision.phase, "step": run.step} for run in found}
        told = {"report": str(page), "runs": runs, "pictures": list(map(str, pictures))}
        print(json.dumps(told))
        return
    print(f"report: {page}")
    if pictures:
        print(f"pictures: {len(pictures)} files in {command.pictures}")


def _run_analyze(command: Analyze) -> None:
    from anchor_interp.analysis import analyze, analyze_model
    from anchor_interp.report import analysis_folder, write_analysis
    from anchor_interp.weights import load_transformer

    analysis_folder(command.out)
    if command.run.suffix == ".safetensors" and not command.run.is_dir():
        if command.step is not None:
            raise ConfigError("step is of no use with a file of weights; leave it out")
        model = load_transformer(command.run, device=command.device)
        found = analyze_model(model, name=command.run.stem)
    else:
        found = analyze(command.run, step=command.step, device=command.device)
    page, numbers, *figures = write_analysis(found, command.out)
    for reason in found.left_out:
        _LOGGER.warning("left out: %s", reason)
    if command.output.json:
        print(numbers.read_text(encoding="utf-8"))
        return
    if found.mechanism is not None and (routes := found.mechanism.routes) is not None:
        print(f"symmetric route {routes.symmetric:.2f}, inferential route {routes.inferential:.2f}")
        if found.mechanism.circuit is not None:
            print(f"circuit: {'; '.join(found.mechanism.circuit.names)}")
    print(f"page: {page}")
    print(f"numbers: {numbers}")
    print(f"figures: {len(figures)} files in {command.out / 'figures'}")


def _run_sweep(command: SweepCommand) -> int:
    from anchor_interp.sweep.folder import SweepFolder
    from anchor_interp.sweep.spec import typed_sweep

    plan = typed_sweep(command.spec, command.axes, seeds=command.seeds)
    checked(command.batch, int, "batch", low=0)
    engine = _engine(command)
    if command.dry_run:
        return _estimate(command, plan.configs(), engine)
    from anchor_interp.sweep.driver import sweep

    folder = sweep(
        plan, command.out, engine=engine, batch=command.batch, quiet=command.output.quiet
    )
    return _print_status(SweepFolder(folder.path), command.output)


def _engine(command: SweepCommand) -> "Engine":
    if command.engine == "ray":
        from anchor_interp.sweep.ray import RayEngine

        if command.workers is not None:
            raise ConfigError("workers is for the local engine; the cluster decides by its room")
        if command.batch == 0:
            raise ConfigError(
                "batch is 0, which chooses by this machine's device; expected a number of runs "
                "with --engine ray"
            )
        return RayEngine(address=command.address, gpus=command.gpus, device=command.device)
    if command.address is not None or command.gpus:
        name = "address" if command.address is not None else "gpus"
        raise ConfigError(f"{name} is for the ray engine; add --engine ray")
    from anchor_interp.sweep.local import LocalEngine

    return LocalEngine(command.workers, command.device)


def _estimate(command: SweepCommand, configs: Mapping[str, RunConfig], engine: "Engine") -> int:
    from anchor_interp.progress import format_seconds
    from anchor_interp.sweep.estimate import estimate
    from anchor_interp.sweep.folder import SweepFolder
    from anchor_interp.sweep.local import LocalEngine

    # of a cluster nobody knows how much room it will have
    workers = engine.slots() if isinstance(engine, LocalEngine) else 1
    folder = SweepFolder(command.out)
    found = estimate(configs, folder, workers=workers, device=command.device)
    if command.output.json:
        print(json.dumps(to_dict(found)))
        return 0
    print(f"runs: {found.runs}, of which {found.todo} are to be done")
    print(
        f"time: {format_seconds(found.seconds)} with {workers} at a time "
        f"({format_seconds(found.core_seconds)} one after the other), from {found.basis}"
    )
    print(f"disk: {found.disk_bytes / 1e6:,.0f} MB; free: {found.free_bytes / 1e6:,.0f} MB")
    return 0


def _run_status(command: Status) -> int:
    from anchor_interp.sweep.folder import sweep_folder

    _print_status(sweep_folder(command.sweep), command.output)
    return 0


def _print_status(folder: "SweepFolder", output: Output) -> int:
    """Print how far a sweep is; 1 if a run failed."""
    from anchor_interp.sweep.table import counts, phases, rows

    found = rows(folder)
    states, ended = counts(found), phases(found)
    failed = [row for row in found if row["error"] is not None]
    if output.json:
        failures = {row["run_id"]: row["error"] for row in failed}
        facts = {"runs": len(found), "states": states, "phases": ended, "errors": failures}
        print(json.dumps({"path": str(folder.path), **facts}))
    else:
        print(f"{folder.path}: {len(found)} runs")
        for title, numbers in (("states", states), ("phases", ended)):
            shown = ", ".join(f"{number} {name}" for name, number in numbers.items())
            print(f"{title}: {shown or 'none'}")
        for row in failed[:_MOST_ERRORS]:
            print(f"{row['status']}: {row['run_id']}: {row['error']}")
        if len(failed) > _MOST_ERRORS:
            print(f"and {len(failed) - _MOST_ERRORS} more; table --json has all")
    return 1 if states.get("failed") else 0


def _run_table(command: Table) -> int:
    from anchor_interp.sweep.folder import sweep_folder
    from anchor_interp.sweep.table import measure_mechanisms, to_csv, to_json, write_table

    if command.csv and command.output.json:
        raise ConfigError("csv and json are two forms of one output; use one of them")
    folder = sweep_folder(command.sweep)
    failed = measure_mechanisms(folder, quiet=command.output.quiet) if command.mechanism else 0
    found = write_table(folder)
    if command.csv or command.output.json:
        print(to_csv(found) if command.csv else to_json(found), end="" if command.csv else None)
    else:
        print(f"{folder.path / 'table.parquet'}: {len(found)} runs")
    return 1 if failed else 0


def _run_diagram(command: Diagram) -> None:
    from anchor_interp.diagram_page import write_diagrams
    from anchor_interp.diagrams import read_where
    from anchor_interp.sweep.table import read_table

    page, numbers, table, *figures = write_diagrams(
        read_table(command.sweep),
        command.out,
        x=command.x,
        y=command.y,
        where=read_where(command.where),
        best_over=command.best_over or (),
        name=command.sweep.resolve().name,
    )
    if command.output.json:
        print(numbers.read_text(encoding="utf-8"))
        return
    print(f"page: {page}")
    print(f"numbers: {numbers}, {table}")
    print(f"figures: {len(figures)} files in {command.out / 'figures'}")


def _run_claims(command: Claims) -> int:
    from anchor_interp.papers.studies import STUDIES, study
    from anchor_interp.papers.tables import checkpoints_table, gather, plan, read_study, read_tables

    names = list(dict.fromkeys(command.studies)) or list(STUDIES)
    for name in names:
        study(name)
    if command.dry_run and command.judge:
        raise ConfigError(
            "judge is for tables that are there, dry_run for what is missing; use one"
        )
    tables = command.out / "tables" if command.tables is None else command.tables
    if command.dry_run:
        from anchor_interp.progress import format_seconds

        todo = plan(
            names,
            command.scale,
            command.out,
            tables=tables,
            workers=command.workers,
            device=command.device,
        )
        if command.output.json:
            print(json.dumps(to_dict(todo)))
            return 0
        print(
            f"runs: {todo.runs}, of which {todo.known} are in tables and {todo.training.todo} new"
        )
        print(
            f"time: {format_seconds(todo.training.seconds)} of training and "
            f"{format_seconds(todo.measuring)} of measuring on this machine"
        )
        print(f"disk: {todo.training.disk_bytes / 1e6:,.0f} MB")
        return 0
    from anchor_interp.papers.page import HELD_OUT, make_ledger, write_ledger
    from anchor_interp.report import output_folder
    from anchor_interp.sweep.local import LocalEngine

    output_folder(command.out, "the ledger")
    if not command.judge:
        engine = LocalEngine(command.workers, command.device)
        gather(
            names,
            command.scale,
            command.out,
            tables=tables,
            engine=engine,
            quiet=command.output.quiet,
        )
    along = checkpoints_table(tables, HELD_OUT)
    ledger = make_ledger(
        command.scale,
        read_tables(tables, scale=command.scale),
        read_study(along) if along.is_file() else (),
    )
    page, numbers = write_ledger(ledger, command.out)
    if command.output.json:
        print(numbers.read_text(encoding="utf-8"))
        return 0
    counted = Counter(found.verdict for found in ledger.judgements.values())
    print(", ".join(f"{number} {verdict}" for verdict, number in sorted(counted.items())))
    print(f"page: {page}")
    print(f"numbers: {numbers}")
    return 0


def _run_presets(command: Presets) -> None:
    if command.output.json:
        named = {"runs": RUNS, "models": MODELS, "tasks": TASKS}
        print(json.dumps({kind: to_dict(entries) for kind, entries in named.items()}))
        return
    print("runs (anchor-interp train --preset NAME)")
    for name, run in RUNS.items():
        title = next(title for title, task in TASKS.items() if task == run.task)
        print(
            f"  {name:<14} {title}, {run.model.normalization}-LayerNorm, {run.model.n_layers} "
            f"layers x {run.model.n_heads} heads, d_model {run.model.d_model}, gamma "
            f"{run.init.gamma:g}, weight decay {run.train.weight_decay:g}, "
            f"{run.train.n_sequences:,} sequences, {run.train.steps:,} steps"
        )
    print("tasks (anchor-interp train --task NAME)")
    for name, task in TASKS.items():
        functions = ", ".join(f"{anchor.token}: {anchor.function}" for anchor in task.anchors)
        overridden = ", ".join(f"{o.pair} -> {o.function}" for o in task.overrides)
        unseen = ", ".join(map(str, task.unseen)) or "none"
        print(f"  {name:<22} {functions}; unseen {unseen}; overridden {overridden or 'none'}")


def _run_doctor(command: Doctor) -> int:
    from anchor_interp.doctor import describe, examine

    found = examine(command.out)
    print(json.dumps(to_dict(found)) if command.output.json else describe(found))
    for problem in found.problems:
        _LOGGER.error(problem)
    return 0 if found.ok else 1


def _run_completion(command: Completion) -> None:
    print(completion(command.shell, _NAMES), end="")


_NAMES: dict[str, type[Command]] = {
    "quickstart": Quickstart,
    "train": Train,
    "evaluate": Evaluate,
    "export": Export,
    "report": Report,
    "analyze": Analyze,
    "sweep": SweepCommand,
    "status": Status,
    "table": Table,
    "diagram": Diagram,
    "claims": Claims,
    "presets": Presets,
    "doctor": Doctor,
    "completion": Completion,
}
_COMMANDS: dict[type[Command], Callable[[Any], int | None]] = {
    Quickstart: _run_quickstart,
    Train: _run_train,
    Evaluate: _run_evaluate,
    Export: _run_export,
    Report: _run_report,
    Analyze: _run_analyze,
    SweepCommand: _run_sweep,
    Status: _run_status,
    Table: _run_table,
    Diagram: _run_diagram,
    Claims: _run_claims,
    Presets: _run_presets,
    Doctor: _run_doctor,
    Completion: _run_completion,
}
_ANY_COMMAND: Any = (
    Annotated[Quickstart, tyro.conf.subcommand("quickstart")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Analyze, tyro.conf.subcommand("analyze")]
    | Annotated[SweepCommand, tyro.conf.subcommand("sweep")]
    | Annotated[Status, tyro.conf.subcommand("status")]
    | Annotated[Table, tyro.conf.subcommand("table")]
    | Annotated[Diagram, tyro.conf.subcommand("diagram")]
    | Annotated[Claims, tyro.conf.subcommand("claims")]
    | Annotated[Presets, tyro.conf.subcommand("presets")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
    | Annotated[Completion, tyro.conf.subcommand("completion")]
)
_TYRO = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
