"""The papers' phase diagrams by our own runs, and what of the papers they agree with.

``python experiments/diagrams.py decay`` trains what is missing of the sweep ``tiny-decay``
(complexity-control paper, figures 3B and 5C), ``... depth`` of ``tiny-depth`` (NeurIPS paper,
figure 2). Both resume. The table and the pictures go to ``figures/``, the judgements to
``docs/evidence/``. With ``--judge`` nothing is trained: all comes from the table that is there.
"""

import argparse
import sys
from pathlib import Path

from anchor_interp._util.files import write_text
from anchor_interp.pages.diagram_page import write_diagrams
from anchor_interp.sweeps.spec import SWEEPS
from anchor_interp.sweeps.sweep import sweep
from anchor_interp.sweeps.table import counts, phases, read_table
from anchor_interp.sweeps.table_files import to_csv
from measured import table, tell
from papers.diagram_claims import DIAGRAMS
from papers.rows import Row

ROOT = Path(__file__).parent.parent
TITLES = {"decay": "Diagram over weight decay", "depth": "Diagram over depth"}


def main() -> int:
    """Train what is missing, draw and judge."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("sweep", choices=DIAGRAMS)
    parser.add_argument("--out", type=Path, help="the sweep folder (runs/tiny-NAME)")
    parser.add_argument("--judge", action="store_true", help="from the table in figures/ alone")
    arguments = parser.parse_args()
    name = f"tiny-{arguments.sweep}"
    pictures = ROOT / "figures" / name
    if arguments.judge:
        found = read_table(pictures / "table.csv")
    else:
        found = sweep(SWEEPS[name], arguments.out or Path("runs") / name).rows()
        pictures.mkdir(parents=True, exist_ok=True)
        write_text(pictures / "table.csv", to_csv(found))
    written = write_diagrams(found, pictures, name=name)
    print(f"page and figures: {written[0].parent}", file=sys.stderr)
    verdicts: list[Row] = []
    for expectation, check in DIAGRAMS[arguments.sweep].items():
        agrees, seen = check(found)
        verdicts.append({"expectation": expectation, "found": seen, "agrees": agrees})
    seconds = sum(row["seconds"] or 0.0 for row in found)
    state = ", ".join(f"{n} {state}" for state, n in counts(found).items())
    phase = ", ".join(f"{n} {phase}" for phase, n in phases(found).items())
    lines = [[v["expectation"], v["found"], "yes" if v["agrees"] else "**no**"] for v in verdicts]
    text = (
        f"# {TITLES[arguments.sweep]}\n\n{len(found)} runs ({state}), {seconds / 3600:.1f} "
        f"core-hours: {phase}. What was expected was written into "
        f"`src/anchor_interp/sweeps/{name}.yaml` before the runs. A cell has a majority if more "
        f"than half of all its runs, finished or not, are in one phase. The study "
        f"`{arguments.sweep}` of the [claims](../claims.md#what-was-run) has more seeds. There the "
        "seeds 301 and 302 were trained a second time on another machine, where some runs ended in "
        "another phase.\n\n"
        + table(["expected", "found", "agrees"], lines)
        + f"\n![{name}](../../figures/{name}/figures/overview.png)\n"
    )
    data = {"runs": len(found), "states": counts(found), "phases": phases(found),
            "core_seconds": seconds, "verdicts": verdicts}  # fmt: skip
    tell(name.replace("-", "_"), data, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
