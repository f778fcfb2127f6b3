"""What the report says of measurements, settings and tasks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anchor_interp._util.schema import to_dict
from anchor_interp.behaviour.phase import (
    PAPER,
    Evaluation,
    Phase,
    deciding,
    meanings,
    ood_threshold,
)
from anchor_interp.models.shapes import ModelConfig
from anchor_interp.pages.run_figures import top_answers
from anchor_interp.runs.config import RunConfig
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.catalog import task_name
from anchor_interp.tasks.contract import draw_examples
from anchor_interp.tasks.examples import Split
from anchor_interp.tasks.task import Task

if TYPE_CHECKING:
    from anchor_interp.analysis.report_data import Findings

EXAMPLE_SEED = 0
"""Seed of the example that the page shows of every split."""
_NOT_COMPARED = ("gamma", "weight_decay", "log_every", "checkpoint_every", "kind")
"""Settings that the summary has columns for, those that change no result, and a task's class."""
_Row = tuple[str, str, float | None, float]


@dataclass(frozen=True)
class ShownMeasure:
    """A measurement and its threshold."""

    name: str
    meaning: str
    """What is measured."""
    value: float | None
    """A share from 0 to 1; None if the task does not have it."""
    threshold: float
    """Where one phase ends and another begins."""
    asked: bool
    """Whether another value of it would change the phase."""


def sentence(phase: Phase, e: Evaluation) -> str:
    """What a run of this phase does, with its own numbers."""
    anchored = bool(e.pair_accuracy)
    others = "new sequences of the same pairs" if anchored else "held-out examples"
    texts: dict[str, tuple[float | None, str]] = {
        "undertrained": (e.train_accuracy, "It answers only {} of its own training sequences."),
        "memorizing": (
            e.id_accuracy, f"It knows its training sequences, but answers {{}} of {others}."
        ),
        "inferential": (
            e.ood_accuracy,
            "It answers unseen pairs with the composition of their functions, on {} of sequences."
            if anchored else "It answers {} of what training leaves out.",
        ),
        "symmetric": (
            e.symmetric_accuracy,
            "It answers an unseen pair as if its anchors changed places, on {} of sequences.",
        ),
    }  # fmt: skip
    share, text = texts.get(phase, (None, ""))
    if share is not None:
        return text.format(f"{100 * share:.0f} %")
    if phase in ("symmetric", "composite") and e.commutativity is not None:
        answers = ", ".join(dict.fromkeys(top_answers(one)[0][0] for one in e.unseen))
        how = "the same wrong answer" if phase == "symmetric" else "wrong answers that often differ"
        return f"It gives both orders of an unseen pair {how}, mostly {answers}."
    return meanings(anchored=anchored)[phase]


def measures(evaluation: Evaluation) -> list[ShownMeasure]:
    """The measurements that decide a phase, in the order of the rules."""
    decides = deciding(evaluation)
    rows = (_of_pairs if evaluation.pair_accuracy else _of_splits)(evaluation)
    return [
        ShownMeasure(*row, asked=name in decides and row[2] is not None)
        for name, row in rows.items()
    ]


def _of_splits(e: Evaluation) -> Mapping[str, _Row]:
    examples = {
        "train": "on the run's own training sequences",
        "id": "held out, as the training data",
        "ood": "what training leaves out",
    }
    for split in e.splits:
        if split.beside:
            examples[split.role] += f"; on {split.name}: {split.beside}"
    return {
        "train_accuracy": ("training accuracy", examples["train"], e.train_accuracy, PAPER.train),
        "id_accuracy": ("ID accuracy", examples["id"], e.id_accuracy, PAPER.id),
        "ood_accuracy": ("OOD accuracy", examples["ood"], e.ood_accuracy, ood_threshold(e)),
    }


def _of_pairs(e: Evaluation) -> Mapping[str, _Row]:
    t = PAPER
    train = ("training accuracy", "on the run's own training sequences", e.train_accuracy)
    if e.train_accuracy is None:
        train = ("training cells", "on fresh sequences", e.cells.seen_train_keys)
    other_order = "unseen pairs, target of the other order"
    if e.symmetric_accuracy is None and e.commutativity is not None:
        other_order += "; none is defined here: see commutativity"
    return {
        "train_accuracy": (*train, t.train),
        "id_accuracy": ("ID accuracy", "seen pairs, test keys", e.id_accuracy, t.id),
        "ood_accuracy": ("OOD accuracy", "unseen pairs, composed answer", e.ood_accuracy, t.ood),
        "symmetric_accuracy": ("symmetric answers", other_order, e.symmetric_accuracy, t.symmetric),
        "commutativity": ("commutativity", "predictions that stay when the anchors change places",
                          e.commutativity, t.commutativity),
        "key_dependence": ("key dependence", "predictions that change with the key",
                           e.key_dependence, t.key_dependence),
    }  # fmt: skip


def _settings(config: RunConfig) -> dict[str, Any]:
    """The settings that runs are compared by: all that change a result and have no column."""
    parts = (config.task, config.model, config.init, config.train)
    settings = {name: value for part in parts for name, value in to_dict(part).items()}
    # evaluations change a result only where they decide when training ends
    left_out = (*_NOT_COMPARED, *["eval_every"] * (config.train.until_accuracy is None))
    compared = {name: value for name, value in settings.items() if name not in left_out}
    own = type(config.model).__name__.removesuffix("Config")
    network = "transformer" if isinstance(config.model, ModelConfig) else own
    return {"task": task_name(config.task), "network": network} | compared


def comparable(runs: Sequence["Findings"]) -> list[list[str]]:
    """Names of runs that share all these settings, where at least two do."""
    groups: dict[str, list[str]] = {}
    names = [run.name for run in runs]
    for number, run in enumerate(runs, 1):
        name = run.name if names.count(run.name) == 1 else f"{run.name} (run {number})"
        groups.setdefault(json.dumps(_settings(run.config)), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def differences(configs: Sequence[RunConfig]) -> list[str]:
    """These settings where they differ, each with its values.

    A setting that not all runs have is left out: then the tasks or the networks differ.
    """
    values: dict[str, list[Any]] = {}
    for config in configs:
        for name, value in _settings(config).items():
            values.setdefault(name, []).append(value)
    differing = []
    for name, of_runs in values.items():
        different = [value for n, value in enumerate(of_runs) if value not in of_runs[:n]]
        if len(different) > 1 and len(of_runs) == len(configs):
            plain = not any(isinstance(value, list | dict) for value in different)
            differing.append(f"{name} ({', '.join(map(_value, different))})" if plain else name)
    return differing


def _value(value: Any) -> str:
    """A setting's value in words; thousands are set apart."""
    if value is None or isinstance(value, bool | str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else repr(value)


def task_words(task: Task) -> dict[str, Any]:
    """What the page says of a task."""
    return _anchor_words(task) if isinstance(task, AnchorTask) else _split_words(task)


def _split_words(task: Task) -> dict[str, Any]:
    def shown(split: Split) -> str:
        drawn = draw_examples(task, split.name, 1, seed=EXAMPLE_SEED)
        return task.decode(drawn.tokens[0, : drawn.lengths[0]])

    return {"task": task, "splits": [(split, shown(split)) for split in task.splits]}


def _anchor_words(task: AnchorTask) -> dict[str, Any]:
    by_role: dict[str, list[str]] = {"inferential": [], "unseen": []}
    for pair in task.pairs:
        if task.override(pair) is None or pair in task.unseen:
            by_role[task.role(pair)].append(f"({pair[0]},\N{NO-BREAK SPACE}{pair[1]})")
    return {
        "task": task,
        "anchors": [(anchor.token, str(anchor.function)) for anchor in task.anchors],
        "by_role": by_role,
        "overridden": [(str(o.pair), str(o.function)) for o in task.overrides],
    }
