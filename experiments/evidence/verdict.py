"""Trains the runs that the verdict is fitted and judged on.

``python -m experiments.papers.verdict_runs OUT`` trains random settings of the distribution of the
study ``settings``, with seeds that no other study has (7,010,000 and above), into OUT, one folder a
run. Runs of an even index fit the verdict, runs of an odd index judge it, once: :func:`half`. The
order of training fills both halves alike. A run takes about a minute of one core. The indices from
100 on have three or four layers of two heads: nothing is fitted on them, and they are judged apart.
With ``--table`` it measures the mechanism of the runs that are there and writes their table.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from anchor_interp._util.errors import LockedError
from anchor_interp.analysis.mechanism import FINGERPRINT
from anchor_interp.runs.config import RunConfig, override, run_id
from anchor_interp.runs.measurements import measure_run
from anchor_interp.runs.train import train
from anchor_interp.sweeps.columns import CIRCUMSTANCES
from anchor_interp.sweeps.rows import planned_row, updated_row

from .rows import Row
from .studies import settings
from .tables import write_rows

TABLE = Path(__file__).parents[1] / "tables" / "tiny" / "verdict.csv"

INDICES, DEEPER = range(7_000_000, 7_000_100), range(7_000_100, 7_000_120)
Half = Literal["fit", "judge", "deeper"]


def configs() -> Iterator[RunConfig]:
    """All runs in the order of training: each index on both tasks in both layouts."""
    yield from settings("tiny", INDICES).configs().values()
    for config in settings("tiny", DEEPER).configs().values():
        heads = {"n_heads": 2, "d_head": config.model.d_head // 2}
        yield override(config, n_layers=3 + config.seed % 2, **heads)


def half_of(row: Row) -> Half:
    """What a row's run is for."""
    return half(row["seed"], row["n_layers"])


def half(seed: int, n_layers: int) -> Half:
    """What a run is for."""
    if n_layers > 2:
        return "deeper"
    return "judge" if seed % 2 else "fit"


def write_table(out: Path) -> None:
    """Measure every finished run, and write the table of settings, behaviour and mechanism."""
    rows: list[Row] = []
    for config in configs():
        path = out / run_id(config)
        if (path / "result.json").exists():
            measure_run(path, [FINGERPRINT])
            row = updated_row(planned_row(run_id(config), config), path, "done", None)
            rows.append({name: v for name, v in row.items() if name not in CIRCUMSTANCES})
            write_rows(TABLE, rows)


def main() -> None:
    """Train what is missing, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--table", action="store_true", help="measure what is trained")
    asked = parser.parse_args()
    if asked.table:
        write_table(asked.out)
        return
    for config in configs():
        try:
            run = train(config, asked.out / run_id(config), device="cpu", threads=1, quiet=True)
        except LockedError:
            continue
        kind = half(config.seed, config.model.n_layers)
        print(config.seed, kind, run.name, flush=True)


if __name__ == "__main__":
    main()
