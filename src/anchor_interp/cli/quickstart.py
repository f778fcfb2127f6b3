"""The main job on default settings: one run for each phase, a table, a picture and a report.

The models are called A, B and C, so that a reader can guess their phases from the picture.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from anchor_interp._util.files import output_folder
from anchor_interp._util.readable import number
from anchor_interp.cli.options import PLAIN, Device, Outputs, Workers
from anchor_interp.cli.runs import facts
from anchor_interp.runs.config import override
from anchor_interp.runs.presets import QUICKSTART

if TYPE_CHECKING:
    from anchor_interp.runs.run import Run

LETTERS = "ABC"
"""Names of the runs, in the order of their training."""
_LOGGER = logging.getLogger(__name__)


def quickstart(
    *,
    out: Path = Path("runs/quickstart"),
    seed: int = 0,
    workers: Workers = None,
    device: Device = "auto",
    output: Outputs = PLAIN,
) -> None:
    """Train one model per phase; print what each learned and where its checkpoints are.

    Args:
        out: Folder of the runs; give it again to resume.
        seed: Seed of every run.
    """
    runs = train_phases(out, seed=seed, workers=workers, device=device, quiet=output.quiet)
    files = {"picture": "answers.png", "report": "report.html", "ask": "ask.html"}
    written = {what: str(out / file) for what, file in files.items()}
    if not output.json:
        print_table(runs)
    measured = {name: facts(run, run.evaluation) for name, run in runs.items()}
    output.show({"runs": measured, **written}, *map(": ".join, written.items()))


def train_phases(
    out: Path, *, seed: int, workers: int | None, device: str, quiet: bool = False
) -> "dict[str, Run]":
    """Train or resume the runs of :data:`anchor_interp.runs.presets.QUICKSTART` side by side.

    If one fails, the others finish first and are kept. Writes ``answers.png``, ``report.html``
    and ``ask.html``.
    """
    configs = {name: override(config, seed=seed) for name, config in QUICKSTART.items()}
    output_folder(out, "the quickstart", "run", "sweep")
    from anchor_interp._util.progress import reporting
    from anchor_interp.analysis.ask_data import to_ask
    from anchor_interp.analysis.report_data import gather
    from anchor_interp.behaviour.answer_map import answer_map
    from anchor_interp.pages.answer_figures import answer_maps
    from anchor_interp.pages.ask_page import write_ask
    from anchor_interp.pages.report import write_report
    from anchor_interp.pages.style import save
    from anchor_interp.runs.run import load
    from anchor_interp.sweeps.engine import each_alone
    from anchor_interp.sweeps.local import LocalEngine

    sizes = [(config.train.steps, config.train.batch_size) for config in configs.values()]
    with reporting(dict(zip(LETTERS, sizes, strict=True)), quiet=quiet) as progress:
        bars = dict(zip(configs, progress.values(), strict=True))
        results = LocalEngine(workers, device).run(each_alone(configs), out, bars.__getitem__)
        _LOGGER.info("training %d models in %s", len(configs), out)
        failures = [result.error for result in results if result.error is not None]
    if failures:
        raise failures[0]
    runs = {name: load(out / name) for name in configs}
    maps = {
        letter: answer_map(run, pairs=run.config.anchor_task.unseen[-1:])
        for letter, run in zip(LETTERS, runs.values(), strict=True)
    }
    save(answer_maps(maps, columns=1, width=4.0), out / "answers.png")
    named = zip(LETTERS, runs.values(), strict=True)
    write_ask(to_ask({f"{letter}: {run.phase}": run for letter, run in named}), out / "ask.html")
    write_report(gather([out / name for name in configs]), out / "report.html", ask="ask.html")
    return runs


def print_table(runs: "Mapping[str, Run]") -> None:
    """Print the phases, the numbers that decided them and where the checkpoints are."""
    from pandas import DataFrame

    rows, lines = [], []
    for letter, run in zip(LETTERS, runs.values(), strict=False):
        config, e = run.config, run.evaluation
        ranks = (e.stable_rank_at_init, e.stable_rank)
        rows.append({
            "model": letter,
            "gamma": f"{config.init.gamma:g}",
            "decay": f"{config.train.weight_decay:g}",
            "train": number(e.train_accuracy),
            "ID": number(e.id_accuracy),
            "OOD": number(e.ood_accuracy),
            "commut.": number(e.commutativity),
            "stable rank": " -> ".join("-" if rank is None else f"{rank:.1f}" for rank in ranks),
            "phase": run.phase,
        })  # fmt: skip
        lines.append(f"{letter}: {run.phase}, because {run.reason}")
        lines.append(f"  checkpoints: {run.folder.path / 'checkpoints'}")
    print("What each model learned", DataFrame(rows).to_string(index=False), *lines, sep="\n")
