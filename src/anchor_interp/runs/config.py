"""What defines a run: task, model shape, initialisation, training and seed.

All are frozen dataclasses that validate themselves, and the command line is derived from them.
Device, threads and paths do not change a run's result, so they are not part of a configuration.
This module does not import torch.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from anchor_interp._util.errors import ConfigError, StoreError, raising
from anchor_interp._util.files import read_json
from anchor_interp._util.schema import (
    bounded,
    check_fields,
    check_name,
    checked,
    checked_path,
    digest,
    from_dict,
    shown,
)
from anchor_interp.models.shapes import InitConfig, ModelConfig, example_bytes, n_activations
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.catalog import NAMED_TASKS
from anchor_interp.tasks.contract import MAX_EXAMPLES
from anchor_interp.tasks.rules import require_anchors
from anchor_interp.tasks.task import Task

if TYPE_CHECKING:  # code about transformers need not ask which of the two it has
    Shape: TypeAlias = ModelConfig | Any
else:
    Shape = Any
SCHEMA = 1
"""Schema number of configurations and of all files of a run folder."""

MAX_CONFIG_BYTES = 1 << 20
Piece: TypeAlias = tuple[int, float, float]
"""The updates after which it holds, the peak learning rate, the weight decay."""
_MAX_STEPS = 1 << 40


@dataclass(frozen=True)
class TrainConfig:
    """AdamW on the cross-entropy of the tokens that a task predicts (both papers, appendix A)."""

    n_sequences: int = bounded(100_000, low=1, high=MAX_EXAMPLES)
    """Training sequences, drawn once and shuffled again every epoch."""
    batch_size: int = bounded(256, low=1, high=1 << 24)
    """Sequences per step; at most n_sequences."""
    steps: int = bounded(4_000, low=1, high=_MAX_STEPS)
    """Optimizer updates."""
    lr: float = bounded(1e-3, above=0, high=10)
    """Peak learning rate."""
    lr_start: float = bounded(0.0, low=0, high=10)
    """Learning rate at which the linear warm-up starts; at most lr, and at most the peak of a
    branch or piece within the warm-up."""
    lr_end: float = bounded(0.0, low=0, high=10)
    """Learning rate at which the cosine ends; at most every peak."""
    warmup: float = bounded(0.05, low=0, high=1)
    """Share of the steps that warm up."""
    weight_decay: float = bounded(0.01, low=0, high=1000)
    """AdamW's decoupled coefficient, on every parameter; at most 1 / lr, because a step multiplies
    each weight by 1 - lr * weight_decay."""
    beta1: float = bounded(0.9, low=0, high=0.999999)
    """Decay of the first moment."""
    beta2: float = bounded(0.999, low=0, high=0.999999999)
    """Decay of the second moment."""
    eps: float = bounded(1e-8, low=1e-30, high=1)
    """AdamW's epsilon; a much smaller one is 0 in float32 and turns weights into NaN."""
    clip: float | None = bounded(1.0, above=0)
    """Largest norm of the gradient; None (null in JSON) does not clip."""
    precision: Literal["float32", "bf16", "tf32"] = "float32"
    """``bf16`` runs matrix products under bfloat16 autocast; weights stay float32. ``tf32`` rounds
    the factors of float32 products to 10 bits of mantissa, on CUDA GPUs only."""
    log_every: int = bounded(20, low=1, high=_MAX_STEPS)
    """Steps between lines of metrics."""
    eval_every: int = bounded(200, low=1, high=_MAX_STEPS)
    """Steps between accuracies on the training, ID and OOD probes; each has a line of metrics."""
    checkpoint_every: int = bounded(500, low=1, high=_MAX_STEPS)
    """Steps between checkpoints; steps 0 and the last are always kept."""
    branch_step: int | None = bounded(None, low=1, high=_MAX_STEPS, since=2)
    """Updates after which ``branch_lr`` and ``branch_weight_decay`` hold; None for no branch. Until
    then the run equals the one without a branch, bit for bit."""
    branch_lr: float | None = bounded(None, above=0, high=10, since=2)
    """Peak of the schedule from ``branch_step`` on; lr if None."""
    branch_weight_decay: float | None = bounded(None, low=0, high=1000, since=2)
    """AdamW's coefficient from ``branch_step`` on; weight_decay if None."""
    schedule: tuple[Piece, ...] = bounded((), since=2)
    """Pieces (step, lr, weight_decay): after ``step`` updates this peak and this decay hold, until
    the next piece. A branch is a schedule of one piece: give one of the two."""
    until_accuracy: float | None = bounded(None, above=0, high=1, since=2)
    """Training is fitted once two evaluations in a row find this accuracy on the training probe,
    and goes on as long again, by at most 1,000 steps; ``steps`` is the most, and the schedule's
    length. None trains for all steps."""

    def __post_init__(self) -> None:
        check_fields(self, "train")
        step, changes = self.branch_step, (self.branch_lr, self.branch_weight_decay)
        if (step is None) != (changes == (None, None)):
            given = f"train.branch_step is {step} and branch_lr, branch_weight_decay are {changes}"
            expected = "expected a step with at least one of them, or none of the three"
            raise ConfigError(f"{given}; {expected}")
        if self.schedule and step is not None:
            raise ConfigError(f"train.branch_step is {step} beside train.schedule; make it a piece")
        for i, (before, piece) in enumerate(zip(self.pieces, self.schedule, strict=False)):
            where, (begin, lr, decay) = f"train.schedule[{i}]", piece
            checked(begin, int, f"{where}.step", above=before[0])
            checked(lr, float, f"{where}.lr", above=0, high=10)
            checked(decay, float, f"{where}.weight_decay", low=0, high=1000)
        for name, value, most, reason in self._limits():
            if value > most:
                raise ConfigError(f"train.{name} is {value:.9g}; expected at most {reason}")

    def _limits(self) -> Iterator[tuple[str, float, float, str]]:
        """Fields that others limit: name, value, the most it may be, and what that is."""
        n, last = self.n_sequences, self.steps - 1
        yield "batch_size", self.batch_size, n, f"n_sequences ({n})"
        later = [f"schedule[{i}]." for i in range(len(self.schedule))] or ["branch_"]
        for part, (step, lr, decay) in zip(["", *later], self.pieces, strict=False):
            yield f"{part}step", step, last, f"steps - 1 ({last})"
            peak = f"{part}lr ({lr:g}), the peak of the learning rate"
            yield "lr_end", self.lr_end, lr, peak
            if not step or step < self.warmup_steps:
                yield "lr_start", self.lr_start, lr, peak
            reason = f"1 / {part}lr ({1 / lr:g}): a step multiplies each weight by 1 - lr * decay"
            yield f"{part}weight_decay", decay, 1 / lr, reason

    @property
    def warmup_steps(self) -> int:
        """Steps of the linear warm-up."""
        return round(self.warmup * self.steps)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The rates of the start, then those of the branch or the schedule."""
        start, lr, decay = (0, self.lr, self.weight_decay), self.branch_lr, self.branch_weight_decay
        if self.branch_step is None:
            return start, *self.schedule
        later = self.lr if lr is None else lr, self.weight_decay if decay is None else decay
        return start, (self.branch_step, *later)

    def is_logged(self, step: int) -> bool:
        """Whether a step has a line of metrics."""
        return not step % self.log_every or not step % self.eval_every or step >= self.steps

    def rates(self, step: int) -> tuple[float, float]:
        """Peak learning rate and weight decay of the update after ``step`` updates."""
        *_, (_, lr, decay) = (piece for piece in self.pieces if piece[0] <= step)
        return lr, decay


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a run's result."""

    task: Task
    model: Shape = ModelConfig()
    """A transformer; of a task with a network of its own, that network's configuration."""
    init: InitConfig = InitConfig()
    train: TrainConfig = TrainConfig()
    seed: int = bounded(0, low=0, high=(1 << 63) - 1)
    """Seed of data, order and initial weights."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        check_fields(self)
        wanted = self.task.config_class or ModelConfig
        if isinstance(self.model, Mapping):  # from a file: which class it is follows from the task
            object.__setattr__(self, "model", from_dict(wanted, self.model, "model"))
        if not isinstance(self.model, wanted):
            expected = f"expected a {wanted.__name__}, which answers the task {self.task.kind}"
            raise ConfigError(f"model is {shown(self.model)}; {expected}")
        # flags and `override` name a field without its part, so no two parts may share a name
        owners: dict[str, str] = {}
        parts: dict[str, Any] = {"run": self, "init": self.init, "train": self.train}
        for part, value in (parts | {"model": self.model, "task": self.task}).items():
            for field in fields(value):
                if (owner := owners.setdefault(field.name, part)) != part:
                    advice = f"which is also a setting of the {owner}; give it another name"
                    raise ConfigError(f"the {part} has the field {field.name}, {advice}")
        self.task.check_model(self.model, self.init)

    @property
    def anchor_task(self) -> AnchorTask:
        """The task of a run with anchors; ConfigError for another, which analyses cannot use."""
        task: AnchorTask = require_anchors(self.task, "this analysis")
        return task


def memory_bytes(config: RunConfig) -> dict[str, int]:
    """A low estimate of the bytes that training needs, by what needs them."""
    train, task = config.train, config.task
    example = 0 if task.mapped else example_bytes(config.model) + task.length + 5
    return {
        # weight, gradient, two moments, and the initial model while the last one is judged
        "weights": 5 * 4 * config.model.n_parameters,
        "activations": 4 * n_activations(config.model, task, train.batch_size),
        "training sequences": train.n_sequences * (example + 3 * 8),  # bytes, int64 orders
    }


def shape_key(config: RunConfig) -> Hashable:
    """Equal for runs whose models can train as one (:mod:`anchor_interp.sweeps.model_stack`)."""
    task, train = config.task, config.train
    if not task.answers_last:
        return run_id(config)
    return config.model, task.length, task.n_input_tokens, train.batch_size, train.precision


def run_id(config: RunConfig) -> str:
    """16 hexadecimal digits that name a configuration; see :func:`schema.digest`."""
    return digest(checked(config, RunConfig, "config"))


def override(config: RunConfig, **changes: Any) -> RunConfig:
    """A copy of a configuration with some fields changed by their own names.

    Field names are unique among task, model, init and train, so ``gamma`` means ``init.gamma``.
    ``seed`` is the run's own; ``task`` is a whole task, whose fields may change too.
    """
    checked(config, RunConfig, "config")
    task = checked(changes.pop("task", config.task), Task, "task")
    parts = {"task": task, "model": config.model, "init": config.init, "train": config.train}
    seed = changes.pop("seed", config.seed)
    owner = {field.name: part for part, value in parts.items() for field in fields(value)}
    own: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for name, value in changes.items():
        check_name(name, ["task", "seed", *owner], "no field")
        own[owner[name]][name] = value
    changed = {
        part: replace(value, **own[part]) if own[part] else value for part, value in parts.items()
    }
    return replace(config, **changed, seed=seed)


def read_config(path: str | Path) -> RunConfig:
    """Read a configuration from a JSON file such as ``RUN/config.json``; ConfigError if damaged."""
    path = checked_path(path, "the path of the configuration")
    data = _read(path)
    with raising(ConfigError, f"{path}: "):
        config: RunConfig = from_dict(RunConfig, data)
    return config


def read_task(given: str | Path) -> Task:
    """A task from its name or from a JSON file; ConfigError if it is neither.

    The file holds the task's fields, or a configuration, such as ``RUN/config.json``, that has them
    under ``task``.
    """
    path = checked_path(given, "the task")
    if (named := NAMED_TASKS.get(str(path))) is not None:
        return named
    if not path.is_file():
        check_name(str(path), NAMED_TASKS, "no JSON file and no task")
    data = _read(path)
    within = data.get("task") if isinstance(data, Mapping) else None
    with raising(ConfigError, f"{path}: "):
        task: Task = from_dict(Task, data if within is None else within)
    return task


def _read(path: Path) -> Any:
    with raising(ConfigError, "", of=StoreError):
        return read_json(path, limit=MAX_CONFIG_BYTES)
