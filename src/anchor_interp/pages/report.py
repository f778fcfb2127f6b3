"""The report: what runs learned, and the measurements that show it.

This module loads no model. It shows what :func:`anchor_interp.analysis.findings.gather` found.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor_interp._util.errors import ConfigError, StoreError
from anchor_interp._util.files import output_file, write_output
from anchor_interp._util.schema import checked_path, to_dict
from anchor_interp.pages import run_figures, style
from anchor_interp.pages.page import (
    attention_of,
    draw_picture,
    file_name,
    fill_page,
    save_pictures,
    template_text,
)
from anchor_interp.pages.pictures import of_comparison, of_run
from anchor_interp.runs.config import RunConfig
from anchor_interp.runs.phase import (
    PAPER,
    Evaluation,
    asked,
    meanings,
    near_lines,
    ood_threshold,
)
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.catalog import task_name
from anchor_interp.tasks.drawing import draw_examples
from anchor_interp.tasks.examples import Split
from anchor_interp.tasks.task import Task

if TYPE_CHECKING:
    from anchor_interp.analysis.findings import Findings


EXAMPLE_SEED = 0
"""Seed of the example that the page shows of every split."""
_NOT_COMPARED = ("gamma", "weight_decay", "log_every", "eval_every", "checkpoint_every", "kind")
"""Settings that the summary has columns for, those that change no result, and a task's class."""


@dataclass(frozen=True)
class Measure:
    """A measurement and its threshold."""

    name: str
    meaning: str
    """What is measured."""
    value: float | None
    """A share from 0 to 1; None if the task does not have it."""
    threshold: float
    """Where one phase ends and another begins."""
    asked: bool
    """Whether the phase hangs on it."""


def write_report(
    runs: Sequence["Findings"], out: str | Path, *, pictures: Path | None = None
) -> list[Path]:
    """Write the page, and on request its figures as files.

    Args:
        runs: the runs to show.
        out: the HTML file. Its folder is created; an old file is replaced once the new one is
            complete.
        pictures: a folder for every figure as PNG and SVG.

    Returns:
        The files written, the page first.

    Raises:
        StoreError: a file cannot be written or belongs to a run.
        ConfigError: there is no run, or the path is empty.
    """
    out = checked_path(out, "out")
    output_file(out)
    if not runs:
        raise ConfigError("there is no run to report on; expected at least one")
    if pictures is not None:
        output_file(pictures / "any.png")
        if pictures.exists() and not pictures.is_dir():
            raise StoreError(f"{pictures} is a file; name a folder for the pictures")
    page = render(runs)
    written = []
    if pictures is not None:
        if len(runs) > 1:
            written += save_pictures(of_comparison(runs, _colours(runs)), pictures)
        for number, run in enumerate(runs, 1):
            name = file_name(run.name) or f"run-{number}"
            prefix = f"{number}-{name}-" if len(runs) > 1 else f"{name}-"
            written += save_pictures(of_run(run), pictures, prefix)
    write_output(out, page.encode("utf-8", "replace"))  # a run's name may hold any byte
    return [out, *written]


def render(runs: Sequence["Findings"]) -> str:
    """The page as HTML."""
    colours = _colours(runs)
    coloured = zip(runs, colours, strict=True)
    shown = [_run_content(run, n, colour) for n, (run, colour) in enumerate(coloured, 1)]
    tasks = dict.fromkeys(run.config.task for run in runs)
    anchored = {task.anchored is not None for task in tasks}
    return fill_page(
        "report.html.jinja",
        [view for run in shown for entry in run["attention"] for view in entry.views],
        title=f"What {runs[0].name} learned" if len(runs) == 1 else "What each model learned",
        runs=shown,
        meanings=[meanings(anchored=each) for each in (True, False) if each in anchored],
        differences=_differences([run.config for run in runs]),
        comparable=_comparable(runs),
        compared=_compared(runs, colours),
        metrics=run_figures.COMPARED,
        script=template_text("report.js"),
        tasks=[(_task_words(task), [r for r in runs if r.config.task == task]) for task in tasks],
        has_anchors=True in anchored,
        has_splits=False in anchored,
    )


def measures(evaluation: Evaluation) -> list[Measure]:
    """The measurements that decide a phase, in the order of the rules."""
    e, t, decides = evaluation, PAPER, asked(evaluation)
    if not e.pair_accuracy:
        meanings = {
            "train": "on the run's own training sequences",
            "id": "held out, as the training data",
            "ood": "what training leaves out",
        }
        for split in e.splits:
            if split.beside:
                meanings[split.role] += f"; on {split.name}: {split.beside}"
        shares = {
            "train": ("training accuracy", e.train_accuracy, t.train),
            "id": ("ID accuracy", e.id_accuracy, t.id),
            "ood": ("OOD accuracy", e.ood_accuracy, ood_threshold(e)),
        }
        return [
            Measure(
                name,
                meanings[role],
                value,
                least,
                asked=f"{role}_accuracy" in decides and value is not None,
            )
            for role, (name, value, least) in shares.items()
        ]
    train = ("training accuracy", "on the run's own training sequences", e.train_accuracy)
    if e.train_accuracy is None:
        train = ("training cells", "on fresh sequences", e.cells.seen_train_keys)
    other_order = "unseen pairs, target of the other order"
    if e.symmetric_accuracy is None and e.commutativity is not None:
        other_order += "; none is defined here, so commutativity decides"
    rows = {
        "train_accuracy": (*train, t.train),
        "id_accuracy": ("ID accuracy", "seen pairs, test keys", e.id_accuracy, t.id),
        "ood_accuracy": ("OOD accuracy", "unseen pairs, composed answer", e.ood_accuracy, t.ood),
        "symmetric_accuracy": ("symmetric answers", other_order, e.symmetric_accuracy, t.symmetric),
        "commutativity": ("commutativity", "predictions that stay when the anchors change places",
                          e.commutativity, t.commutativity),
        "key_dependence": ("key dependence", "predictions that change with the key",
                           e.key_dependence, t.key_dependence),
    }  # fmt: skip
    return [
        Measure(*row, asked=name in decides and row[2] is not None) for name, row in rows.items()
    ]


def _colours(runs: Sequence["Findings"]) -> list[str]:
    """The colour of every run: that of its phase, if no two runs share one."""
    phases = [run.decision.phase for run in runs]
    if len(set(phases)) < len(phases):
        return [style.colour(number) for number in range(len(runs))]
    return [style.PHASE_COLOURS[phase] for phase in phases]


def _settings(config: RunConfig) -> dict[str, Any]:
    """The settings but for the seed, those of the summary's columns and those of no effect."""
    parts = (config.task, config.model, config.init, config.train)
    found = {name: value for part in parts for name, value in to_dict(part).items()}
    kept = {name: value for name, value in found.items() if name not in _NOT_COMPARED}
    network = "transformer" if config.pictures is None else "U-Net"
    return {"task": task_name(config.task), "network": network} | kept


def _comparable(runs: Sequence["Findings"]) -> list[list[str]]:
    """Names of runs that share all these settings, where at least two do."""
    groups: list[tuple[dict[str, Any], list[str]]] = []
    names = [run.name for run in runs]
    for number, run in enumerate(runs, 1):
        mine = _settings(run.config)
        name = run.name if names.count(run.name) == 1 else f"{run.name} (run {number})"
        known = next((names for settings, names in groups if settings == mine), None)
        if known is None:
            groups.append((mine, [name]))
        else:
            known.append(name)
    return [names for _, names in groups if len(names) > 1]


def _differences(configs: Sequence[RunConfig]) -> list[str]:
    """These settings where they differ, each with its values.

    One that not all runs have is not named: then the tasks or the networks differ.
    """
    values: dict[str, list[Any]] = {}
    for config in configs:
        for name, value in _settings(config).items():
            values.setdefault(name, []).append(value)
    found = []
    for name, mine in values.items():
        different = [v for n, v in enumerate(mine) if v not in mine[:n]]
        if len(different) > 1 and len(mine) == len(configs):
            plain = not any(isinstance(value, list | dict) for value in different)
            found.append(f"{name} ({', '.join(map(_said, different))})" if plain else name)
    return found


def _said(value: Any) -> str:
    """A setting's value in words; thousands are set apart."""
    if value is None or isinstance(value, bool | str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else repr(value)


def _compared(runs: Sequence["Findings"], colours: Sequence[str]) -> list[dict[str, Any]]:
    """The figures of the comparison as the template uses them, with numbers for the script."""
    drawn = []
    for picture in of_comparison(runs, colours) if len(runs) > 1 else ():
        (axes,), metric = picture.figure.axes, picture.about
        box, (low, high) = axes.get_position(), axes.get_xlim()
        curves = [
            [[row["step"], row[metric]] for row in run.metrics if metric in row] for run in runs
        ]
        data = {"left": box.x0, "right": box.x1, "low": low, "high": high, "runs": curves}
        drawn.append(draw_picture(picture, "c") | {"data": data})
    return drawn


def _run_content(run: "Findings", number: int, colour: str) -> dict[str, Any]:
    matrices = zip(run.complexity.matrices, run.complexity_at_init.matrices, strict=True)
    return {
        "id": f"run-{number}",
        "found": run,
        "colour": colour.replace(style.INK, "currentColor"),
        "meaning": meanings(anchored=run.config.task.anchored is not None)[run.decision.phase],
        "near": near_lines(run.evaluation),
        "measures": measures(run.evaluation),
        "pictures": {picture.name: draw_picture(picture, f"r{number}") for picture in of_run(run)},
        "attention": attention_of(run.attention, number),
        "matrices": list(matrices),
        "answers": [
            (a.pair, run_figures.top_answers(a), run_figures.known_offsets(run.config, a.pair))
            for a in run.evaluation.unseen
        ],
        "rows": [row for row in run.metrics if "train_accuracy" in row],
        "configuration": json.dumps(to_dict(run.config), indent=1),
    }


def _task_words(task: Task) -> dict[str, Any]:
    """What the page says of a task."""
    return _split_words(task) if task.anchored is None else _anchor_words(task.anchored)


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
