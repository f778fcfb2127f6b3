"""What a report tells of one run, gathered where models may be loaded and drawn elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anchor_interp._util.errors import StoreError
from anchor_interp._util.schema import checked_path
from anchor_interp.analysis.attention import AttentionExample, attention_examples
from anchor_interp.models.complexity import Complexity, complexity
from anchor_interp.models.transformer import build_model
from anchor_interp.runs.config import RunConfig, run_id, total_decay
from anchor_interp.runs.phase import Decision, Evaluation, decide
from anchor_interp.runs.run import load
from anchor_interp.runs.store import Row
from anchor_interp.runs.zoo import find


@dataclass(frozen=True, eq=False)
class Findings:
    """One run at its newest checkpoint."""

    name: str
    """What it is called among the runs of a report."""
    path: Path
    """The run folder."""
    run_id: str
    """The run's identity."""
    config: RunConfig
    """Its configuration."""
    step: int
    """The checkpoint, as updates done."""
    done: bool
    """Whether training has reached its last step."""
    metrics: Sequence[Row]
    """Its lines of metrics."""
    evaluation: Evaluation
    """The stored evaluation; of a run that is not done, one made now."""
    decision: Decision
    """Its phase and why."""
    attention: tuple[AttentionExample, ...]
    """Attention in example sequences."""
    complexity: Complexity
    """Complexity of the checkpoint's weights."""
    complexity_at_init: Complexity
    """The same of the initial weights."""
    sessions: Sequence[Row]
    """Provenance: one entry for each session that worked on the run."""
    total_decay: float
    """Learning rate x weight decay, summed over the run's steps."""


def gather(paths: Sequence[str | Path]) -> list[Findings]:
    """Look into runs; the name of one is its folder's, or its path where two agree.

    A specimen of the zoo keeps its own name.

    Raises:
        StoreError: a folder that holds no run, a run without a checkpoint, or a damaged file.
        ConfigError: a damaged configuration.
    """
    folders = [checked_path(path, "the path of the run") for path in paths]
    names = [path.resolve().name if find(path) == path else str(path) for path in folders]
    return [
        _findings(path, name if names.count(name) == 1 else str(path))
        for path, name in zip(folders, names, strict=True)
    ]


def _findings(path: Path, name: str) -> Findings:
    run = load(path)
    if run.path is None:
        raise StoreError(f"{run.name} has no run folder, which a report needs; analyze it instead")
    config = run.config
    done = run.folder.result() is not None
    evaluation = run.evaluation if done else run.evaluate()
    if done and run.step != evaluation.steps:
        raise StoreError(
            f"{run.path} lacks the checkpoint at step {evaluation.steps} that its result is about; "
            "restore it, or remove result.json and train the run to its end again"
        )
    return Findings(
        name=name,
        path=run.path,
        run_id=run_id(config),
        config=config,
        step=run.step,
        done=done,
        metrics=run.metrics,
        evaluation=evaluation,
        decision=decide(evaluation),
        attention=attention_examples(run.model, config.task),
        complexity=complexity(run.model),
        complexity_at_init=complexity(build_model(config.model, config.init, seed=config.seed)),
        sessions=run.folder.provenance(),
        total_decay=total_decay(config.train),
    )
