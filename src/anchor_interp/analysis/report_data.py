"""What a report shows of one run. Models are loaded here, so that pages load none."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from anchor_interp._util.errors import StoreError
from anchor_interp._util.schema import checked_path
from anchor_interp.analysis.attention import AttentionExample, attention_examples
from anchor_interp.behaviour.answer_map import answer_map
from anchor_interp.behaviour.answer_map_numbers import AnswerMap
from anchor_interp.behaviour.evaluation import EVALUATION_SEED
from anchor_interp.behaviour.phase import Decision, Evaluation
from anchor_interp.behaviour.scoring import right_answers
from anchor_interp.interventions.subject import Subject
from anchor_interp.models.complexity import Complexity, complexity
from anchor_interp.models.networks import build_network
from anchor_interp.runs.config import RunConfig, run_id
from anchor_interp.runs.measurements import kept_along
from anchor_interp.runs.run import Run, load
from anchor_interp.runs.schedule import total_decay
from anchor_interp.runs.store import Row
from anchor_interp.runs.zoo import find
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.contract import draw_aspects, draw_examples
from anchor_interp.tasks.examples import Plane
from anchor_interp.tasks.network import OwnFigure

_IN_PLANE = 10_000  # most examples, about
_ALONG = 6  # checkpoints whose answers are mapped


@dataclass(frozen=True, eq=False)
class PlaneOfAnswers:
    """How right a model is over the plane that two aspects of its task span."""

    plane: Plane
    x: Int[np.ndarray, " n"]
    y: Int[np.ndarray, " n"]
    right: Float[np.ndarray, " n"]
    """From 0 to 1."""


@dataclass(frozen=True, eq=False)
class Findings:
    """One run at its newest checkpoint; ``sessions`` is the provenance of each training session."""

    name: str
    path: Path
    run_id: str
    config: RunConfig
    step: int
    done: bool
    metrics: Sequence[Row]
    evaluation: Evaluation
    decision: Decision
    answers: AnswerMap | None
    """Of the unseen pairs; None if the task has none."""
    answers_along: Mapping[int, AnswerMap]
    """The last unseen pair's, at some checkpoints by their steps; empty if there is only one."""
    attention: tuple[AttentionExample, ...]
    plane: PlaneOfAnswers | None
    """Of a task whose errors span one."""
    along: Mapping[str, Sequence[Row]]
    """What the run keeps along training (:func:`anchor_interp.runs.measurements.kept_along`)."""
    own_figures: Sequence[OwnFigure]
    """Of a task with a network of its own."""
    complexity: Complexity
    complexity_at_init: Complexity
    sessions: Sequence[Row]
    total_decay: float
    """Learning rate x weight decay, summed over the run's steps."""


def _plane(run: Run) -> PlaneOfAnswers | None:
    """Examples of all splits, training too, in proportion to the sizes of the splits."""
    task = run.config.task
    if (plane := task.plane) is None:
        return None
    sizes = {split.name: split.size or _IN_PLANE for split in task.splits}
    share, parts = min(1.0, _IN_PLANE / sum(sizes.values())), []
    for name, size in sizes.items():
        drawn = draw_examples(task, name, math.ceil(share * size), seed=EVALUATION_SEED)
        aspects = draw_aspects(task, drawn)
        right = right_answers(run.model, task, drawn)
        parts.append((np.array(aspects[plane.x]), np.array(aspects[plane.y]), right))
    return PlaneOfAnswers(plane, *map(np.concatenate, zip(*parts, strict=True)))


def _answers(run: Run) -> tuple[AnswerMap | None, Mapping[int, AnswerMap]]:
    """The map of a run's newest checkpoint, and those along training, from the first after 0."""
    task = run.config.task
    if not isinstance(task, AnchorTask) or not task.unseen:
        return None, {}
    steps = [step for step in run.steps if step > 0]
    places = np.linspace(0, len(steps) - 1, _ALONG).round().astype(int).tolist()
    shown = [steps[place] for place in dict.fromkeys(places)] if len(steps) > 1 else []
    along = {step: answer_map(run.at(step), pairs=task.unseen[-1:]) for step in shown}
    return answer_map(run), along


def gather(paths: Sequence[str | Path]) -> list[Findings]:
    """Measure runs. A run is named after its folder, or its path if two folders share a name.

    A specimen of the zoo keeps its own name. A damaged run is a StoreError or a ConfigError.
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
    if done and run.step != (last := run.evaluation.steps):
        raise StoreError(
            f"{run.path} lacks the checkpoint at step {last}, which its result is "
            "about; restore it, or remove result.json and train the run to its end again"
        )
    evaluation, decision = run.judged()
    answers, along = _answers(run)
    return Findings(
        name=name,
        path=run.path,
        run_id=run_id(config),
        config=config,
        step=run.step,
        done=done,
        metrics=run.metrics,
        evaluation=evaluation,
        decision=decision,
        answers=answers,
        answers_along=along,
        attention=attention_examples(Subject.of_run(run))
        if isinstance(config.task, AnchorTask)
        else (),
        plane=_plane(run),
        along=kept_along(run.path),
        own_figures=config.task.figures(run),
        complexity=complexity(run.model),
        complexity_at_init=complexity(build_network(config.model, config.init, seed=config.seed)),
        sessions=run.folder.provenance(),
        total_decay=total_decay(config.train, evaluation.steps if done else None),
    )
