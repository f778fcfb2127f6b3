"""The main job on default settings: one run for each phase, a table, a picture and a report."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from anchor_interp._util.progress import reporting
from anchor_interp.analysis.findings import gather
from anchor_interp.pages.report import write_report
from anchor_interp.pages.run_figures import RunView, overview
from anchor_interp.pages.style import save
from anchor_interp.runs.config import override
from anchor_interp.runs.presets import PHASES
from anchor_interp.runs.run import Run, load
from anchor_interp.sweeps.engine import each_alone
from anchor_interp.sweeps.local import LocalEngine

NARROWEST = 100


_LOGGER = logging.getLogger(__name__)


def quickstart(
    out: Path,
    *,
    seed: int = 0,
    workers: int | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> dict[str, Run]:
    """Train the runs of :data:`anchor_interp.runs.presets.PHASES` side by side, or resume them.

    Args:
        out: folder of the run folders, of ``overview.png`` and of ``report.html``.
        seed: seed of every run.
        workers: processes at a time; all usable cores if None.
        device: where each run trains.
        quiet: report no progress.

    Returns:
        The finished runs by name.

    Raises:
        AnchorInterpError: a run failed; the others are finished first and kept.
    """
    configs = {name: override(config, seed=seed) for name, config in PHASES.items()}
    failures = []
    shapes = {name: (c.train.steps, c.train.batch_size) for name, c in configs.items()}
    with reporting(shapes, quiet=quiet) as progress:
        engine = LocalEngine(workers, device)
        results = engine.run(each_alone(configs), out, progress.__getitem__)
        _LOGGER.info("training %d models in %s", len(configs), out)
        for result in results:
            if result.error is not None:
                failures.append(result.error)
    if failures:
        raise failures[0]
    runs = {name: load(out / name) for name in configs}
    views = [RunView(name, run.config, run.metrics, run.evaluation) for name, run in runs.items()]
    save(overview(views), out / "overview.png")
    write_report(gather([out / name for name in configs]), out / "report.html")
    return runs


def print_table(runs: Mapping[str, Run]) -> None:
    """Print the phases, the numbers that decided them and where the checkpoints are."""
    width = None if sys.stdout.isatty() else NARROWEST
    console = Console(width=width)
    table = Table(title="What each model learned", title_justify="left")
    for heading in ("run", "gamma", "decay", "train", "ID", "OOD", "commut.", "stable rank"):
        table.add_column(heading, justify="left" if heading == "run" else "right")
    table.add_column("phase")
    for name, run in runs.items():
        config, e = run.config, run.evaluation
        rank = " -> ".join(
            "-" if value is None else f"{value:.1f}"
            for value in (e.stable_rank_at_init, e.stable_rank)
        )
        shares = (e.train_accuracy, e.id_accuracy, e.ood_accuracy, e.commutativity)
        table.add_row(
            name,
            f"{config.init.gamma:g}",
            f"{config.train.weight_decay:g}",
            *("-" if share is None else f"{share:.2f}" for share in shares),
            rank,
            run.phase,
        )
    console.print(table)
    for name, run in runs.items():
        console.print(f"{name}: {run.phase}, because {run.reason}", highlight=False, markup=False)
        console.print(
            f"  checkpoints: {run.path / 'checkpoints'}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
