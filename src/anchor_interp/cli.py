"""The command line: ``anchor-interp quickstart | train | evaluate | presets``.

Its flags are derived from the configurations' fields. Data goes to standard output, progress and
messages to standard error. Exit codes: 0 done, 1 runtime, 2 usage, 130 interrupted.
"""

import argparse
import contextlib
import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import tyro

from anchor_interp import __version__
from anchor_interp.config import (
    InitConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
    read_config,
)
from anchor_interp.errors import AnchorInterpError, ConfigError
from anchor_interp.presets import MODELS, RUNS, preset
from anchor_interp.schema import to_dict
from anchor_interp.task import TASKS, AnchorTask, SplitRule, named_task

_BASE = RUNS["tiny"]


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
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Report no progress."""
    split: SplitRule = _BASE.task.split
    """What keeps training apart from test data: the key alone, or every position's token."""
    length: int = _BASE.task.length
    """Tokens per sequence."""
    key_min: int = _BASE.task.key_min
    """Smallest key and noise token."""
    key_max: int = _BASE.task.key_max
    """Largest key and noise token."""
    base_task: tyro.conf.Suppress[AnchorTask] = field(default=_BASE.task)

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
    """The run folder."""
    step: int | None = None
    """Checkpoint to measure; the newest if None."""
    n: int = 500
    """Sequences per ordered pair and side of the split."""
    seed: int = 0
    """Seed of the evaluation sequences."""
    device: str = "cpu"
    """Where to run the model."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one JSON object with every measurement."""


@dataclass(frozen=True)
class Presets:
    """List the named runs, model shapes and tasks."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print them whole, as one JSON object."""


Command = Quickstart | Train | Evaluate | Presets
"""What the command line can be asked for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(__version__)
        return 0
    try:
        command = _parse(arguments)
        with _interruptible():
            _COMMANDS[type(command)](command)
            sys.stdout.flush()
    except AnchorInterpError as error:
        print(f"anchor-interp: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(
            "anchor-interp: interrupted; give the same command again to continue", file=sys.stderr
        )
        return 130
    except BrokenPipeError:
        # The reader of standard output has gone; keep Python from complaining when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"anchor-interp: {error}", file=sys.stderr)
        return 1
    except MemoryError as error:
        print(f"anchor-interp: out of memory: {error}; ask for less at a time", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does."""

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


def _parse(arguments: list[str]) -> Command:
    """Turn arguments into a command; the defaults of ``train`` are its preset's or file's."""
    name, rest = (arguments[0], arguments[1:]) if arguments[:1] else ("", [])
    parser: dict[str, Any] = {"prog": "anchor-interp", "args": arguments, "config": _TYRO}
    if name in _NAMES:
        parser |= {"prog": f"anchor-interp {name}", "args": rest}
    if name == "train":
        parser["default"] = _train_defaults(rest)
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            what: Any = _NAMES.get(name, _ANY_COMMAND)
            command: Command = tyro.cli(what, **parser)
    except SystemExit as stop:
        if not stop.code:
            raise
        place = f"{name} --help" if name in _NAMES else "--help"
        message = _unboxed(messages.getvalue())
        raise ConfigError(f"{message}; see anchor-interp {place}") from None
    return command


def _train_defaults(arguments: list[str]) -> Train:
    """The values that ``--preset``, ``--config`` and ``--task`` give to all other flags."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in ("--preset", "--config", "--task"):
        first.add_argument(flag)
    try:
        named, _ = first.parse_known_args(arguments)
    except argparse.ArgumentError:
        return Train(out=tyro.MISSING)  # a flag without its value: the full parser says so
    given = {name: value for name, value in vars(named).items() if value not in (None, "None")}
    if {"preset", "config"} <= given.keys():
        raise ConfigError("--preset and --config both give the start; use one of them")
    if "config" in given:
        base = read_config(Path(given["config"]))
    else:
        base = preset(given.get("preset", "tiny"))
    task = named_task(given["task"]) if "task" in given else base.task
    return Train(
        out=tyro.MISSING,
        model=base.model,
        init=base.init,
        train=base.train,
        seed=base.seed,
        split=task.split,
        length=task.length,
        key_min=task.key_min,
        key_max=task.key_max,
        base_task=task,
    )


def _unboxed(text: str) -> str:
    """The one message in the parser's framed error text."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.strip("\u2502 ") for line in plain.splitlines()]
    body = [line for line in lines if line and not line.startswith(("\u256d", "\u2570"))]
    rule = next((i for i, line in enumerate(body) if set(line) == {"\u2500"}), len(body))
    message = " ".join(body[:rule])
    message = re.sub(r"Error parsing \w+: (?:model|init|train)\.(\w+)", r"--\1", message)
    return message.rstrip(".") or "the command line cannot be read"


def _run_quickstart(command: Quickstart) -> None:
    from anchor_interp.quickstart import print_table, quickstart

    runs = quickstart(
        command.out, seed=command.seed, workers=command.workers, device=command.device
    )
    print_table(runs)
    print(f"picture: {command.out / 'overview.png'}")


def _run_train(command: Train) -> None:
    config = command.configuration()
    from anchor_interp.run import train

    run = train(
        config, command.out, device=command.device, threads=command.threads, quiet=command.quiet
    )
    print(f"{run.path}: {run.phase} ({run.reason})")


def _run_evaluate(command: Evaluate) -> None:
    from anchor_interp.phase import decide
    from anchor_interp.run import load

    run = load(command.run, step=command.step, device=command.device)
    print(f"measuring {run.path} at step {run.step} ...", file=sys.stderr)
    evaluation = run.evaluate(n=command.n, seed=command.seed)
    decision = decide(evaluation)
    if command.json:
        found = {"run": str(run.path), "phase": decision.phase, "reason": decision.reason}
        print(json.dumps(found | to_dict(evaluation) | {"config": to_dict(run.config)}))
        return
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


def _run_presets(command: Presets) -> None:
    if command.json:
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


_NAMES: dict[str, type[Command]] = {
    "quickstart": Quickstart,
    "train": Train,
    "evaluate": Evaluate,
    "presets": Presets,
}
_COMMANDS: dict[type[Command], Callable[[Any], None]] = {
    Quickstart: _run_quickstart,
    Train: _run_train,
    Evaluate: _run_evaluate,
    Presets: _run_presets,
}
_ANY_COMMAND: Any = (
    Annotated[Quickstart, tyro.conf.subcommand("quickstart")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Presets, tyro.conf.subcommand("presets")]
)
_TYRO = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
