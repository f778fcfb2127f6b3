"""Holds both papers' claims against runs: ``python -m experiments.papers``.

Trains and measures what is missing, then judges every claim whose tables are there. It can be
stopped at any point; the same command resumes.
"""

import argparse
import json
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.files import write_output
from anchor_interp._util.progress import format_seconds
from anchor_interp._util.schema import canonical_json, to_dict
from anchor_interp.pages.page import output_folder
from anchor_interp.sweeps.local import LocalEngine

from . import command
from .claims import CLAIMS
from .gathering import gather, plan, unfinished
from .page import line, read_ledger
from .studies import STUDIES, study

_LOGGER = logging.getLogger("anchor_interp.papers")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = command.parser("python -m experiments.papers", __doc__ or "")
    found.add_argument("studies", nargs="*", metavar="STUDY", help=f"all of: {', '.join(STUDIES)}")
    found.add_argument(
        "--dry-run", action="store_true", help="only say what is missing and how long it takes"
    )
    found.add_argument("--json", action="store_true", help="print JSON")
    found.add_argument("--quiet", action="store_true", help="report no progress")
    return found


def run(asked: argparse.Namespace) -> int:
    """Do what the command line says; the exit code is 1 if a run failed or was not measured."""
    names = list(dict.fromkeys(asked.studies)) or list(STUDIES)
    for name in asked.studies:
        study(name)
    if asked.dry_run and asked.judge:
        raise ConfigError(
            "--judge is for tables that are there, --dry-run for what is missing; use one"
        )
    if asked.judge and (asked.studies or asked.workers is not None):
        what = "a study" if asked.studies else "--workers"
        raise ConfigError(f"--judge is for every table, without training; leave out {what}")
    tables = command.tables_folder(asked)
    if asked.dry_run:
        _tell_plan(names, tables, asked)
        return 0
    numbers = output_folder(asked.out, "the ledger") / "claims.json"
    left: list[str] = []
    if not asked.judge:
        engine, quiet = LocalEngine(asked.workers, asked.device), asked.quiet
        found = gather(names, asked.scale, asked.out, tables=tables, engine=engine, quiet=quiet)
        left = unfinished(found, asked.device)
    ledger = read_ledger(asked.scale, tables)
    write_output(numbers, canonical_json(ledger).encode())
    if left:
        _LOGGER.error(
            "%d runs failed or lack a measurement, such as %s; give the command again, or remove "
            "their folders in %s to train them anew",
            len(left), left[0], asked.out / "sweep" / "runs",
        )  # fmt: skip
    if asked.json:
        print(numbers.read_text(encoding="utf-8"))
    else:
        for claim in CLAIMS:
            print(line(claim, ledger.judgements[claim.name]))
        counted = Counter(found.verdict for found in ledger.judgements.values())
        print(", ".join(f"{number} {verdict}" for verdict, number in sorted(counted.items())))
        print(f"numbers: {numbers}")
    return 1 if left else 0


def _tell_plan(names: Sequence[str], tables: Path, asked: argparse.Namespace) -> None:
    todo = plan(
        names, asked.scale, asked.out, tables=tables, workers=asked.workers, device=asked.device
    )
    if asked.json:
        print(json.dumps(to_dict(todo)))
        return
    print(f"runs: {todo.runs}, of which {todo.known} are in tables and {todo.training.todo} new")
    print(
        f"time: {format_seconds(todo.training.seconds)} of training and "
        f"{format_seconds(todo.measuring)} of measuring on this machine"
    )
    print(f"disk: {todo.training.disk_bytes / 1e6:,.0f} MB")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, do what it says and return the exit code."""
    return command.exit_code("papers", lambda: run(parser().parse_args(arguments)))


if __name__ == "__main__":
    raise SystemExit(main())
