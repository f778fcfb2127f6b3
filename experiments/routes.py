"""Which route the runs of random settings take, by layout, and what they do there.

``python experiments/routes.py [TABLE]`` reads a table of the study ``settings``. A run takes the
route that carries most of its effect; memorizing and unfinished runs are left out.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import get_args

from anchor_interp.analysis.routes import RouteName
from measured import table
from papers.rows import Row
from papers.tables import read_study

TABLE = Path(__file__).parent / "tables" / "tiny" / "settings.csv"
PHASES = ("composite", "symmetric", "inferential")
NUMBERS = ("interchange", "value", "answer", "virtual_rule", "order_first", "order_logits")


def route_table(rows: Sequence[Row]) -> str:
    """A line for each layout, route, task and phase: runs, and medians of some numbers."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["phase"] in PHASES and row.get("route_gathered") is not None:
            route = max(get_args(RouteName), key=lambda name: row[f"route_{name}"])
            groups.setdefault((row["normalization"], route, row["task"], row["phase"]), []).append(
                row
            )
    lines = []
    for key in sorted(groups):
        found = [[v for row in groups[key] if (v := row.get(name)) is not None] for name in NUMBERS]
        lines.append(
            [*key, str(len(groups[key])), *(f"{median(v):.2f}" if v else "" for v in found)]
        )
    return table(["layout", "route", "task", "phase", "runs", *NUMBERS], lines)


if __name__ == "__main__":
    print(route_table(read_study(sys.argv[1] if len(sys.argv) > 1 else TABLE)))
