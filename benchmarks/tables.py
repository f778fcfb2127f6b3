"""The tables of docs/performance.md and docs/evidence/speed.md, from the JSON in docs/evidence.

On a page a table stands between two comments, the first of which names its JSON and which of the
benchmark's tables it is; this puts it there, so that no number of a table is typed by hand. A table
whose JSON is not there is left as it is.

    python benchmarks/tables.py
    python benchmarks/tables.py --check
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import analysis
import attribution_patching
import busy
import gpt2_shape
import gpu
import language
import scaling
import sequences
import sweep
import train_step
from anchor_interp._util.files import read_json, write_text
from measuring import EVIDENCE, ROOT, Tables, described

PAGES = (ROOT / "docs" / "performance.md", EVIDENCE / "speed.md")
BENCHMARKS: Mapping[str, Tables] = {
    "train_step": train_step.tables,
    "train_step_without_onednn": train_step.tables,
    "released_code": train_step.tables,
    "scaling": scaling.tables,
    "sweep": sweep.tables,
    "sweep_long": sweep.tables,
    "analysis": analysis.tables,
    "attribution_patching": attribution_patching.tables,
    "busy": busy.tables,
    "gpt2_shape": gpt2_shape.tables,
    "gpu": gpu.tables,
    "sequences": sequences.tables,
    "language_speed": language.tables,
}
"""Whose JSON it is that has this name."""

_PLACE = re.compile(r"(<!-- table: (\w+) ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, evidence: Path = EVIDENCE) -> str:
    """The page with every table made anew whose JSON is there."""

    def put(place: re.Match[str]) -> str:
        begin, name, which, end = place.groups()
        path = evidence / f"{name}.json"
        if not path.exists():
            return place[0]
        found = read_json(path)
        made = BENCHMARKS[name](found)
        return f"{begin}\n{made[which]}\n{described(found['machine'])}{end}"

    return _PLACE.sub(put, page)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the pages, or with ``--check`` only tell whether they are up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    options = parser.parse_args(arguments)
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = filled(before)
        if options.check and after != before:
            parser.error(f"{page.name} is out of date; run: python benchmarks/tables.py")
        if not options.check:
            write_text(page, after)


if __name__ == "__main__":
    main()
