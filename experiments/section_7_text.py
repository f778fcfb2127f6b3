"""What docs tell of section VII's tasks: the runs of each study, and one measure on all tasks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean

import numpy as np

from measured import table
from papers.across_tasks import TASK_RUNS, AcrossTasks
from papers.claims import NAMED
from papers.effects import grouped
from papers.language_runs import by_text, crossing, curve
from papers.rows import Row, Rows, columns_of, pairs_at_random, square_alone
from papers.section_7_runs import CORNERS

Tables = Mapping[str, Rows]
ACCURACIES = ("train_accuracy", "id_accuracy", "ood_accuracy")
PARTS: Mapping[str, Mapping[str, Callable[[Rows], Rows]]] = {
    "scan": {"SCAN": tuple},
    "scan-fitted": {"SCAN until fitted": tuple},
    "cogs": {"COGS": tuple},
    "cogs-fitted": {"COGS until fitted": tuple},
    "addition": {"addition, a square": square_alone, "addition, at random": pairs_at_random},
    "addition-20": {"addition, a square, twenty seeds": tuple},
    "prontoqa": {"PrOntoQA": tuple},
}


def corners_table(tables: Tables) -> str:
    """The mean and the range of every accuracy in each corner of every study that has runs."""
    lines = [
        [title, *line]
        for study, parts in PARTS.items()
        for title, chosen in parts.items()
        for line in _corners(study, chosen(tables[study]))
    ]
    head = ["task", "examples", "gamma", "weight decay", "runs", "training", "ID", "OOD"]
    return table(head, lines)


def _corners(study: str, rows: Rows) -> Iterator[list[str]]:
    settings = ("n_sequences", "gamma", "weight_decay")
    for size, gamma, decay in sorted({columns_of(row, settings) for row in rows}):
        mine = [row for row in rows if columns_of(row, settings) == (size, gamma, decay)]
        four = CORNERS.get(study)  # the other studies have the two corners alone
        both = four is None or (gamma, decay) in zip(four.gammas, four.decays, strict=True)
        corner = [f"{gamma:g}", f"{decay:g}"]
        shown = [f"**{text}**" for text in corner] if both else corner
        yield [f"{size:,}", *shown, str(len(mine)), *(_mean(mine, of) for of in ACCURACIES)]


def _mean(rows: list[Row], column: str) -> str:
    return _range([v for row in rows if (v := row[column]) is not None])


def _range(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} ({min(values):.2f} to {max(values):.2f})" if len(values) else ""


def concepts_table(tables: Tables) -> str:
    """What runs on concepts draw right, by initialisation."""
    shown = {"train_accuracy": "trained combinations", "ood_accuracy": "unseen: all",
             "ood_shape": "shape", "ood_size": "size", "ood_colour": "colour"}  # fmt: skip
    lines = [
        [f"{gamma:g}", str(len(mine)), *(_mean(mine, column) for column in shown)]
        for (gamma,), mine in grouped(tables["concepts"], ["gamma"]).items()
    ]
    return table(["gamma", "runs", *shown.values()], lines)


def language_table(tables: Tables) -> str:
    """Perplexity of language models early and late, by initialisation, and where curves cross."""
    lines = []
    for text, size, runs in by_text(tables["language"]):
        where = crossing(runs)
        crosses = "no crossing" if where is None else f"crosses at {where / 1e6:.3g} M tokens"
        for (gamma,), mine in grouped(runs, ["gamma"]).items():
            curves = np.array([curve(row)[1] for row in mine])  # [run, point]
            early, late = (_range(np.exp(losses)) for losses in (curves[:, 0], curves[:, -1]))
            counts = [f"{size:,}", f"{gamma:g}", str(len(mine))]
            lines.append([text, *counts, early, late, _mean(mine, "held_out_bits"), crosses])
    head = ["text", "windows", "gamma", "runs", "perplexity early", "at the end", "bits per byte"]
    return table([*head, "small against large weights"], lines)


def across_table(tables: Tables) -> str:
    """The correlation inside every task that has runs, for each measure of complexity."""
    lines = []
    names = {"across-tasks-rank": "stable rank", "across-tasks-condensation": "condensation"}
    for title, of in TASK_RUNS.items():
        rows = tables[of.study]
        line = [title, f"{len(of.fitted(rows))} of {len(of.prepare(rows))}"]
        for name in names:
            effect = NAMED[name].effect
            assert isinstance(effect, AcrossTasks)
            line.append(effect.shown(effect.within(of, rows).finding()))
        lines.append(line)
    head = ["task", "runs that have fitted", *(f"{title} of W_Q" for title in names.values())]
    return table(head, lines)
