"""What the verdict and the answer map say of every packaged and every hand-set model."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from anchor_interp import Run, answer_map, fingerprint, load, verdict
from anchor_interp._util.schema import to_dict
from anchor_interp.models.exact import Mechanism
from anchor_interp.runs.zoo import names
from claim_effects import Row, Rows
from common import table


def runs(_: Path) -> Iterator[tuple[Row, Run]]:
    """The models."""
    for name in [*names(), *(f"exact/{mechanism}" for mechanism in get_args(Mechanism))]:
        yield {"name": name}, load(name)


def measure(run: Run) -> Row:
    """The verdict with its evidence, and the map of answers."""
    given, answers = verdict(fingerprint(run, quiet=True)), answer_map(run)
    evidence = {each.number.name: [each.value, each.margin] for each in given.evidence}
    said = [run.phase, given.phase, given.reason, answers.sentence]
    return {"said": said, "phase": run.phase, "verdict": given.phase, "evidence": evidence,
            "cells": answers.cells, "explained": answers.explained}  # fmt: skip


def report(rows: Rows) -> dict[str, object]:
    """A line a model."""
    head = ["model", "phase by answers", "verdict", "evidence", "answers to unseen pairs"]
    lines = [[row["name"], *row["said"]] for row in rows]
    kept = ("phase", "verdict", "evidence", "cells", "explained")
    data = {row["name"]: to_dict({name: row[name] for name in kept}) for row in rows}
    return {"data": data, "table": table(head, lines)}
