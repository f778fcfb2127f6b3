"""What a figure's script does when it is run: train, draw, judge.

``python experiments/neurips/fig2_solutions.py`` draws the figure from the tables and prints the
verdicts on its claims; ``--train`` first trains and measures what the tables lack. A script has
``CLAIMS`` (:mod:`claims`), ``RUNS`` (:mod:`studies`) and ``draw``, which takes the tables and
returns rows of panels, each with its title, which has the paper's letter.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from anchor_interp import ConfigError, load
from anchor_interp._util.files import write_output
from anchor_interp.pages.page import output_folder
from anchor_interp.sweeps.local import LocalEngine
from claims import claims_of, judge_all, scripts
from common import FIGURES, effect_text, exit_code, montage, pages, runs_text, say
from studies import TABLES, Data, train


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help lists the options")


def main(file: str, arguments: Sequence[str] | None = None) -> int:
    """Do what a script's command line says; the exit code is 1 if a run failed."""
    name = "/".join(Path(file).resolve().with_suffix("").parts[-2:])
    script = scripts()[name]
    parser = _Parser(Path(file).name, description=script.__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--train", action="store_true", help="first train and measure what the tables lack")
    add("--out", type=Path, default=Path("runs/papers"), help="folder of the runs (runs/papers)")
    add("--tables", type=Path, default=TABLES, help="tables of the runs (experiments/tables)")
    add("--figures", type=Path, default=FIGURES, help="folder of the figures (figures/papers)")
    add("--workers", type=int, help="runs at a time; all usable cores, or one on a GPU")
    add("--device", default="auto", help="where runs train: auto, cpu, cuda, cuda:1, ...")
    own = "a run of your own to look into, in place of the packaged models; as often as you like"
    add("--run", action="append", default=[], dest="runs", metavar="FOLDER", help=own)

    def work() -> int:
        asked = parser.parse_args(arguments)
        claims, lacking = claims_of(script), list[str]()
        if asked.train:
            studies = [*getattr(script, "RUNS", ()), *(s for c in claims for s in c.effect.runs)]
            engine = LocalEngine(asked.workers, asked.device)
            lacking = train([*dict.fromkeys(studies)], asked.out, asked.tables, engine)
        data = Data(asked.tables, [load(folder) for folder in asked.runs])
        figure = output_folder(asked.figures, "the figure") / f"{name}.png"
        panels = script.draw(data)
        write_output(figure, montage(panels))
        write_output(figure.with_suffix(".pdf"), pages(panels))
        for claim, judged in judge_all(data, [claim.name for claim in claims]).items():
            numbers = "; ".join(filter(None, (effect_text(judged), runs_text(judged))))
            print(f"{claim}: {judged.verdict}{numbers and f' ({numbers})'}")
        print(f"figure: {figure}")
        if lacking:
            say(f"{len(lacking)} runs failed or lack a measurement, such as {lacking[0]}; give the "
                "command again")  # fmt: skip
        return 1 if lacking else 0

    return exit_code(Path(file).stem, work)
