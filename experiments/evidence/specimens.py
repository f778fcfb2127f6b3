"""What the verdict and the answer map say of every packaged and every hand-set model.

``python experiments/specimens.py > docs/evidence/specimens.json``
"""

from typing import get_args

from anchor_interp import answer_map, fingerprint, load, verdict
from anchor_interp._util.schema import to_dict
from anchor_interp.models.exact import Mechanism
from anchor_interp.runs.zoo import names
from measured import table, tell


def main() -> None:
    """Measure every model."""
    found, lines = {}, []
    for name in [*names(), *(f"exact/{mechanism}" for mechanism in get_args(Mechanism))]:
        run = load(name)
        given, answers = verdict(fingerprint(run, quiet=True)), answer_map(run)
        lines.append([name, run.phase, given.phase, given.reason, answers.sentence])
        evidence = {each.number.name: [each.value, each.margin] for each in given.evidence}
        found[name] = {"phase": run.phase, "verdict": given.phase, "evidence": evidence,
                       "cells": answers.cells, "explained": answers.explained}  # fmt: skip
    head = ["model", "phase by answers", "verdict", "evidence", "answers to unseen pairs"]
    tell("specimens", to_dict(found), table=table(head, lines))


if __name__ == "__main__":
    main()
