"""What each command of the command line can be told.

Flags are derived from the fields of a command's class, their help from the texts below them.
"""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from anchor_interp.cli.completion import Shell
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.runs.config import RunConfig, TrainConfig
from anchor_interp.runs.presets import RUNS
from anchor_interp.tasks.anchor import AnchorTask, SplitRule

_BASE = RUNS["tiny"]


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
    """A sweep's file, one that comes along (tiny-decay, ...), or a preset to start from."""
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
    """Folder of the studies' tables, whose finished runs need no training, and which are brought up
    to date; OUT/tables if None."""
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
    """List the named runs, model shapes, tasks and sweeps."""

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


COMMANDS: dict[str, type] = {
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
"""Every command by the name that it has on the command line."""
