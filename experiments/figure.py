"""Draws a figure from the tables and judges its claims.

``python experiments/figure.py neurips/fig2_solutions`` writes the picture and prints the verdicts;
``--train`` first trains and measures what the tables lack. A figure's file, such as
``experiments/neurips/fig2_solutions.py``, has ``CLAIMS`` (:mod:`claims`), ``RUNS``
(:mod:`studies`) and ``draw``, which takes the tables and returns rows of panels, each with its
title, which has the paper's letter.
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit code is 1 if a run failed."""
    parser = _Parser("figure", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    which = f"a figure or question, or the path of its file: {', '.join(scripts())}"
    add("name", type=_name, choices=scripts(), metavar="NAME", help=which)
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
        script, lacking = scripts()[asked.name], list[str]()
        claims = claims_of(script)
        if asked.train:
            studies = [*getattr(script, "RUNS", ()), *(s for c in claims for s in c.effect.runs)]
            engine = LocalEngine(asked.workers, asked.device)
            lacking = train([*dict.fromkeys(studies)], asked.out, asked.tables, engine)
        data = Data(asked.tables, [load(folder) for folder in asked.runs])
        figure = output_folder(asked.figures, "the figure") / f"{asked.name}.png"
        panels = script.draw(data)
        write_output(figure, montage(panels))
        write_output(figure.with_suffix(".pdf"), pages(panels))
        for name, judged in judge_all(data, [claim.name for claim in claims]).items():
            numbers = "; ".join(filter(None, (effect_text(judged), runs_text(judged))))
            print(f"{name}: {judged.verdict}{numbers and f' ({numbers})'}")
        print(f"figure: {figure}")
        if lacking:
            say(f"{len(lacking)} runs failed or lack a measurement, such as {lacking[0]}; give the "
                "command again")  # fmt: skip
        return 1 if lacking else 0

    return exit_code("figure", work)


def _name(text: str) -> str:
    return "/".join(Path(text).with_suffix("").parts[-2:])


if __name__ == "__main__":
    raise SystemExit(main())
