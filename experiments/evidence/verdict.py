"""The verdict from the mechanism against behaviour, on runs that it was not fitted on.

``python -m evidence.verdict`` prints its score from the tables, draws ``verdict.png`` and writes
how good it is on judged runs, by their shape, where the package reads it (``JUDGED``);
``--lines`` prints its lines, fitted anew. ``--train OUT`` trains the runs, one folder a run, and
measures them: random settings of the distribution of the study ``settings``, with seeds that no
other study has (7,010,000 and above). Runs of an even index fit the verdict, runs of an odd index
judge it, once. A run takes about a minute of one core; the order of training fills both halves
alike. The indices from 100 on have three or four layers of two heads: nothing is fitted on them,
and they are judged apart.
"""

import argparse
import itertools
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.figure import Figure

from anchor_interp import analysis, train
from anchor_interp._util.errors import LockedError
from anchor_interp._util.files import write_text
from anchor_interp._util.schema import canonical_json
from anchor_interp.analysis.fingerprint_numbers import FINGERPRINT
from anchor_interp.pages.style import panel, save
from anchor_interp.runs.config import RunConfig, override, run_id
from anchor_interp.runs.measurements import measure_run
from anchor_interp.sweeps.columns import CIRCUMSTANCES
from anchor_interp.sweeps.rows import planned_row, updated_row
from claim_effects import Row
from common import FIGURES, table
from evidence import verdict_score as scores
from evidence.verdict_score import GIVEN, PHASES, VerdictScore
from random_settings import settings
from studies import TABLES as FOLDER
from studies import Data, read_study, write_rows

JUDGED = Path(analysis.__file__).with_name("verdict_judged.json")
INDICES, DEEPER = range(7_000_000, 7_000_100), range(7_000_100, 7_000_120)
SHAPES = {"deeper": "3 and 4 layers of two heads", "wide": "width 400"}
WIDTHS = (0, 0.5, 1, 1.5, 2, 3)
Half = Literal["fit", "judge", "deeper"]


def configs() -> Iterator[RunConfig]:
    """All runs in the order of training: each index on both tasks in both layouts."""
    for grid in settings(INDICES):
        yield from grid.configs()
    for config in itertools.chain(*(grid.configs() for grid in settings(DEEPER))):
        heads = {"n_heads": 2, "d_head": config.model.d_head // 2}
        yield override(config, n_layers=3 + config.seed % 2, **heads)


def half(seed: int, n_layers: int) -> Half:
    """What a run is for."""
    if n_layers > 2:
        return "deeper"
    return "judge" if seed % 2 else "fit"


def kinds(data: Data) -> dict[str, list[Row]]:
    """The runs by what they are for, and those of width 400, which other claims have."""
    found: dict[str, list[Row]] = {"fit": [], "judge": [], "deeper": []}
    for row in read_study(data.tables / "tiny" / "verdict.csv"):
        found[half(row["seed"], row["n_layers"])].append(row)
    return found | {"wide": data.rows("solutions")}


def known_rows(data: Data) -> list[Row]:
    """The rows that the verdict's lines are fitted on."""
    return scores.fitting_rows(data.rows("settings", "settings-judging"), kinds(data)["fit"])


@cache
def score(tables: Path) -> VerdictScore:
    """The verdict's score on the tables."""
    (_, judged), *apart = judging(data := Data(tables)).items()
    return scores.judge_verdict(judged, known_rows(data), dict(apart))


def judging(data: Data) -> dict[str, list[Row]]:
    """The runs that judge, by their shape; those of the shape that was fitted come first."""
    titles = {"judge": "two layers of one head", **SHAPES}
    return {title: rows for kind, rows in kinds(data).items() if (title := titles.get(kind))}


def judged_text(data: Data) -> str:
    """What the package knows of its verdict: how good it is on judged runs, by their shape."""
    found = scores.judged_shapes(judging(data))
    return "[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n"


def rules_table(data: Data) -> str:
    """The verdict beside rules that know less."""
    lines = [
        [rule.rule, str(rule.n), f"{rule.accuracy:.2f} ({rule.low:.2f} to {rule.high:.2f})",
         f"{rule.without:.2f}", f"{rule.far:.2f}",
         "" if rule.behind is None else f"{rule.behind:.2f} (at least {rule.behind_low:.2f})"]
        for rule in score(data.tables).rules
    ]  # fmt: skip
    head = ["what names the phase", "runs", "balanced accuracy (95 %)", "without memorizing runs",
            "not near a line", "behind by"]  # fmt: skip
    return table(head, lines)


def confusion_table(data: Data) -> str:
    """Runs by phase and verdict."""
    found = score(data.tables)
    lines = [[p, *(str(found.confusion[p][column]) for column in GIVEN)] for p in PHASES]
    counted = table(["phase, from behaviour", *(f"verdict {name}" for name in GIVEN)], lines)
    runs = sum(found.n.values()) + found.left_out
    return f"{counted}\n{found.left_out} of {runs} runs have none of these phases: left out.\n"


def disagreements_table(data: Data) -> str:
    """Every run that the verdict names otherwise than its behaviour."""
    lines = [[run.settings, run.phase, run.verdict, run.reason.partition(";")[0], run.behaviour,
              "yes" * run.near] for run in score(data.tables).disagreements]  # fmt: skip
    return table(["run", "phase", "verdict", "because", "behaviour", "near a line"], lines)


def coverage_table(data: Data) -> str:
    """Accuracy against coverage."""
    judged = [row for row in kinds(data)["judge"] if scores.can_be_judged(row)]
    lines = [[one.name, f"{share:.0%}", f"{one.accuracy:.2f} ({one.low:.2f} to {one.high:.2f})"]
             for share, one in scores.coverage_curve(judged, WIDTHS)]  # fmt: skip
    return table(["width", "named", "balanced accuracy (95 %)"], lines)


def shapes_table(data: Data) -> str:
    """Verdicts by phase, on runs of other shapes than those that fitted it."""
    lines, rows = [], kinds(data)
    for kind, title in SHAPES.items():
        for phase, given in scores.named_by(rows[kind]).items():
            others = ", ".join(f"{n} {name}" for name, n in given.most_common() if name != phase)
            lines.append([title, phase, str(given.total()), str(given[phase]), others])
    return table(["runs", "phase", "of these", "named rightly", "other verdicts"], lines)


TABLES = {
    "rules": rules_table, "confusion": confusion_table, "coverage": coverage_table,
    "shapes": shapes_table, "disagreements": disagreements_table,
}  # fmt: skip


def confusion(found: VerdictScore) -> Figure:
    """The phase of every run against the verdict from its mechanism."""
    counts = np.array([[found.confusion[phase][other] for other in GIVEN] for phase in PHASES])
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    with panel(5.2, 3.4) as (figure, axes):
        axes.imshow(shares, vmin=0, vmax=1, cmap="Blues")
        for (row, column), n in np.ndenumerate(counts):
            if n:
                colour = "white" if shares[row, column] > 0.6 else "black"
                axes.text(column, row, str(n), ha="center", va="center", color=colour)
        axes.set_xticks(range(len(GIVEN)), GIVEN, rotation=25, ha="right", fontsize=8)
        axes.set_yticks(range(len(PHASES)), PHASES, fontsize=8)
        axes.set(xlabel="verdict, from the mechanism", ylabel="phase, from behaviour")
        axes.spines[["top", "right"]].set_visible(True)
    return figure


def _train(out: Path) -> None:
    """Train what is missing, and write the table of settings, behaviour and mechanism."""
    rows: list[Row] = []
    for config in configs():
        name = run_id(config)
        try:
            train(config, out / name, device="cpu", threads=1, quiet=True)
        except LockedError:  # another process trains it
            continue
        measure_run(out / name, [FINGERPRINT])
        row = updated_row(planned_row(name, config), out / name, "done", None)
        rows.append({key: value for key, value in row.items() if key not in CIRCUMSTANCES})
        write_rows(FOLDER / "tiny" / "verdict.csv", rows)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", action="store_true", help="fit the lines anew")
    parser.add_argument("--train", type=Path, metavar="OUT", help="train and measure the runs")
    asked = parser.parse_args()
    if asked.train:
        _train(asked.train)
    if asked.lines:
        for name, line in scores.fit_lines(known_rows(Data())).items():
            print(f"{name}: {line}")
    else:
        found = score(FOLDER)
        save(confusion(found), FIGURES / "verdict.png")
        write_text(JUDGED, judged_text(Data()))
        print(canonical_json(found))


if __name__ == "__main__":
    main()
