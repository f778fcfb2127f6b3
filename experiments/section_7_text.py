"""What docs tell of section VII's tasks: every corner of each study, and one measure on all."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import mean

from measured import table
from papers.across_tasks import TASK_RUNS, AcrossTasks
from papers.claims import LEDGER
from papers.rows import Row, Rows, columns_of
from papers.section_7_runs import CORNERS, held_out_at_random, held_out_square
from papers.tables import read_tables

ACCURACIES = ("train_accuracy", "id_accuracy", "ood_accuracy")
PARTS: Mapping[str, Mapping[str, Callable[[Rows], Rows]]] = {
    "scan": {"SCAN": tuple},
    "cogs": {"COGS": tuple},
    "addition": {"addition, a square": held_out_square, "addition, at random": held_out_at_random},
    "prontoqa": {"PrOntoQA": tuple},
}


def corners_table(place: Path) -> str:
    """The mean and the range of every accuracy in each corner of every study that has runs."""
    tables = read_tables(place, [*CORNERS])
    lines = [
        [title, *line]
        for study, parts in PARTS.items()
        for title, chosen in parts.items()
        for line in _corners(study, chosen(tables.get(study, ())))
    ]
    head = ["task", "examples", "gamma", "weight decay", "runs", "training", "ID", "OOD"]
    return table(head, lines) if lines else "not run\n"


def _corners(study: str, rows: Rows) -> Iterator[list[str]]:
    settings = ("n_sequences", "gamma", "weight_decay")
    for size, gamma, decay in sorted({columns_of(row, settings) for row in rows}):
        mine = [row for row in rows if columns_of(row, settings) == (size, gamma, decay)]
        both = (gamma, decay) in zip(CORNERS[study].gammas, CORNERS[study].decays, strict=True)
        corner = [f"{gamma:g}", f"{decay:g}"]
        shown = [f"**{text}**" for text in corner] if both else corner
        yield [f"{size:,}", *shown, str(len(mine)), *(_mean(mine, of) for of in ACCURACIES)]


def _mean(rows: list[Row], column: str) -> str:
    values = [v for row in rows if (v := row[column]) is not None]
    return f"{mean(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else ""


def across_table(place: Path) -> str:
    """The correlation inside every task that has runs, for each measure of complexity."""
    lines = []
    tables = read_tables(place, [*CORNERS])
    names = {"across-tasks-rank": "stable rank", "across-tasks-condensation": "condensation"}
    for title, of in TASK_RUNS.items():
        rows = [row | {"study": of.study} for row in tables.get(of.study, ())]
        if not rows:
            continue
        line = [title, f"{len(of.fitted(rows))} of {len(of.prepare(rows))}"]
        for name in names:
            effect = LEDGER.named(name).effect
            assert isinstance(effect, AcrossTasks)
            found = effect.within(of, rows).finding()
            if found.effect is None or found.low is None or found.high is None:
                line.append(str(found.note))
                continue
            low, high = sorted((effect.sign * found.low, effect.sign * found.high))
            line.append(f"{effect.sign * found.effect:.2f} ({low:.2f} to {high:.2f})")
        lines.append(line)
    head = ["task", "runs that have fitted", *(f"{title} of W_Q" for title in names.values())]
    return table(head, lines) if lines else "not run\n"
