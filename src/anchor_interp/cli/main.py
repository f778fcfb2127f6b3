"""The command line: ``anchor-interp quickstart | train | evaluate | report | ...``.

The commands' flags are in ``commands``. Data goes to standard output, progress and
messages to standard error, one line each. Exit codes: 0 done, 1 runtime, 2 usage, 130 interrupted.
"""

import contextlib
import functools
import io
import json
import logging
import operator
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from anchor_interp import __version__
from anchor_interp._util.errors import AnchorInterpError, ConfigError
from anchor_interp._util.schema import checked, suggestion, to_dict
from anchor_interp.cli.commands import (
    COMMANDS,
    Analyze,
    Claims,
    Completion,
    Diagram,
    Doctor,
    Evaluate,
    Export,
    Output,
    Presets,
    Quickstart,
    Report,
    Status,
    SweepCommand,
    Table,
    Train,
)
from anchor_interp.cli.completion import completion
from anchor_interp.cli.flags import HELP, build, in_flags, parse
from anchor_interp.models.shapes import MODELS
from anchor_interp.runs.config import RunConfig, read_config, run_id
from anchor_interp.runs.presets import RUNS, preset
from anchor_interp.tasks.anchor import TASKS, named_task

if TYPE_CHECKING:
    from anchor_interp.runs.phase import Evaluation
    from anchor_interp.runs.run import Run
    from anchor_interp.sweeps.engine import Engine
    from anchor_interp.sweeps.folder import SweepFolder


_LOGGER = logging.getLogger("anchor_interp")


_MOST_ERRORS = 20


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
    if name in HELP or (name in COMMANDS and set(HELP) & set(options)):
        _print_help(name, rest)
        return 0
    command = _parse(arguments)
    _LOGGER.setLevel(getattr(command, "output", Output()).level)
    try:
        return _RUN[type(command)](command) or 0
    except ConfigError as error:
        raise ConfigError(in_flags(str(error), type(command))) from error


def _parse(arguments: list[str]) -> Any:
    """Turn arguments into a command; the defaults of ``train`` are its preset's or file's."""
    if not arguments or arguments[0] not in COMMANDS:
        commands = ", ".join(COMMANDS)
        what = "no command"
        if arguments:
            what += f" is called {arguments[0]!r}{suggestion(arguments[0], COMMANDS)}"
        raise ConfigError(f"{what}; commands: {commands}; see anchor-interp --help")
    name, kind = arguments[0], COMMANDS[arguments[0]]
    try:
        return _build(kind, arguments[1:])
    except ConfigError as error:
        raise ConfigError(f"{error}; see anchor-interp {name} --help") from error


def _build(kind: type, arguments: list[str]) -> Any:
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
    if name in COMMANDS:
        parser["prog"] += f" {name}"
    if name == "train":
        given = parse(Train, [text for text in arguments if text not in HELP])
        parser["default"] = build(Train, {"out": tyro.MISSING}, **_train_starts(given))
    # tyro looks at the terminal alone to choose colours
    plain = io.StringIO() if os.environ.get("NO_COLOR") else sys.stdout
    with contextlib.redirect_stdout(plain), contextlib.suppress(SystemExit):
        what: Any = COMMANDS.get(name, _ANY_COMMAND)
        tyro.cli(what, args=["--help"], **parser)
    if isinstance(plain, io.StringIO):
        print(plain.getvalue(), end="")


def _run_quickstart(command: Quickstart) -> None:
    from anchor_interp.cli.quickstart import print_table, quickstart

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
    from anchor_interp.runs.train import train

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
    from anchor_interp.runs.phase import decide
    from anchor_interp.runs.run import load

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
    from anchor_interp.runs.phase import decide

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
    from anchor_interp.runs.run import load

    run = load(command.run, step=command.step)
    path = run.export(command.out)
    if command.output.json:
        found = {"run": str(run.path), "run_id": run_id(run.config), "step": run.step}
        print(json.dumps(found | {"weights": str(path)}))
        return
    print(f"{path}: the weights of {run.path} at step {run.step}")


def _run_report(command: Report) -> None:
    from anchor_interp.analysis.findings import gather
    from anchor_interp.pages.report import write_report

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
    from anchor_interp.analysis.overview import analyze, analyze_model
    from anchor_interp.pages.analysis_page import analysis_folder, write_analysis
    from anchor_interp.runs.export import load_transformer

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
    from anchor_interp.sweeps.folder import SweepFolder
    from anchor_interp.sweeps.spec import typed_sweep

    plan = typed_sweep(command.spec, command.axes, seeds=command.seeds)
    checked(command.batch, int, "batch", low=0)
    engine = _engine(command)
    if command.dry_run:
        return _estimate(command, plan.configs(), engine)
    from anchor_interp.sweeps.sweep import sweep

    folder = sweep(
        plan, command.out, engine=engine, batch=command.batch, quiet=command.output.quiet
    )
    return _print_status(SweepFolder(folder.path), command.output)


def _engine(command: SweepCommand) -> "Engine":
    if command.engine == "ray":
        from anchor_interp.sweeps.ray import RayEngine

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
    from anchor_interp.sweeps.local import LocalEngine

    return LocalEngine(command.workers, command.device)


def _estimate(command: SweepCommand, configs: Mapping[str, RunConfig], engine: "Engine") -> int:
    from anchor_interp._util.progress import format_seconds
    from anchor_interp.sweeps.estimate import estimate
    from anchor_interp.sweeps.folder import SweepFolder
    from anchor_interp.sweeps.local import LocalEngine

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
    from anchor_interp.sweeps.folder import sweep_folder

    _print_status(sweep_folder(command.sweep), command.output)
    return 0


def _print_status(folder: "SweepFolder", output: Output) -> int:
    """Print how far a sweep is; 1 if a run failed."""
    from anchor_interp.sweeps.table import counts, phases, rows

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
    from anchor_interp.sweeps.folder import sweep_folder
    from anchor_interp.sweeps.table import measure_mechanisms, to_csv, to_json, write_table

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
    from anchor_interp.pages.diagram_page import write_diagrams
    from anchor_interp.sweeps.diagrams import read_where
    from anchor_interp.sweeps.table import read_table

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
    from anchor_interp.pages.page import output_folder
    from papers.studies import STUDIES, study
    from papers.gathering import gather, unfinished

    names = list(dict.fromkeys(command.studies)) or list(STUDIES)
    for name in names:
        study(name)
    if command.dry_run and command.judge:
        raise ConfigError(
            "judge is for tables that are there, dry_run for what is missing; use one"
        )
    if command.judge and (command.studies or command.workers is not None):
        what = "a study" if command.studies else "workers"
        raise ConfigError(f"judge is for every table, without training; leave out {what}")
    tables = command.tables or command.out / "tables"
    if command.dry_run:
        _plan_claims(command, names, tables)
        return 0
    from anchor_interp.sweeps.local import LocalEngine
    from papers.page import read_ledger, write_ledger

    output_folder(command.out, "the ledger")
    left: list[str] = []
    if not command.judge:
        gathered = gather(
            names,
            command.scale,
            command.out,
            tables=tables,
            engine=LocalEngine(command.workers, command.device),
            quiet=command.output.quiet,
        )
        left = unfinished(gathered)
    ledger = read_ledger(command.scale, tables)
    page, numbers = write_ledger(ledger, command.out)
    if left:
        _LOGGER.error(
            "%d runs failed or lack a measurement, such as %s; give the command again, or remove "
            "their folders in %s to train them anew",
            len(left),
            left[0],
            command.out / "sweep" / "runs",
        )
    if command.output.json:
        print(numbers.read_text(encoding="utf-8"))
        return 1 if left else 0
    counted = Counter(found.verdict for found in ledger.judgements.values())
    print(", ".join(f"{number} {verdict}" for verdict, number in sorted(counted.items())))
    print(f"page: {page}")
    print(f"numbers: {numbers}")
    return 1 if left else 0


def _plan_claims(command: Claims, names: Sequence[str], tables: Path) -> None:
    from anchor_interp._util.progress import format_seconds
    from papers.gathering import plan

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
        return
    print(f"runs: {todo.runs}, of which {todo.known} are in tables and {todo.training.todo} new")
    print(
        f"time: {format_seconds(todo.training.seconds)} of training and "
        f"{format_seconds(todo.measuring)} of measuring on this machine"
    )
    print(f"disk: {todo.training.disk_bytes / 1e6:,.0f} MB")


def _run_presets(command: Presets) -> None:
    from anchor_interp.sweeps.spec import SWEEPS, read_sweep, to_plain

    sweeps = {name: read_sweep(path) for name, path in SWEEPS.items()}
    if command.output.json:
        named = {"runs": RUNS, "models": MODELS, "tasks": TASKS}
        told = {kind: to_dict(entries) for kind, entries in named.items()}
        told["sweeps"] = {name: to_plain(found) for name, found in sweeps.items()}
        print(json.dumps(told))
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
    print("sweeps (anchor-interp sweep NAME --out FOLDER)")
    for name, found in sweeps.items():
        axes = " x ".join(
            f"{len(v)} {axis}" for grid in found.grids for axis, v in grid.axes.items()
        )
        seeds = ", ".join(f"{len(grid.seeds)} seeds" for grid in found.grids)
        print(f"  {name:<22} {axes}, {seeds}: {len(found.configs()):,} runs")


def _run_doctor(command: Doctor) -> int:
    from anchor_interp.cli.doctor import describe, examine

    found = examine(command.out)
    print(json.dumps(to_dict(found)) if command.output.json else describe(found))
    for problem in found.problems:
        _LOGGER.error(problem)
    return 0 if found.ok else 1


def _run_completion(command: Completion) -> None:
    print(completion(command.shell, COMMANDS), end="")


_RUN: dict[type, Callable[[Any], int | None]] = {
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


_ANY_COMMAND: Any = functools.reduce(
    operator.or_,
    (Annotated[kind, tyro.conf.subcommand(name)] for name, kind in COMMANDS.items()),
)


_TYRO = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
