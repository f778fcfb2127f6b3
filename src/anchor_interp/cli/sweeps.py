"""Commands about many runs: sweep, status, table, diagram, effect."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import to_dict
from anchor_interp.cli.options import PLAIN, Device, Output, Outputs, Switch, Workers

if TYPE_CHECKING:
    from anchor_interp.sweeps.engine import Engine
    from anchor_interp.sweeps.folder import SweepFolder
    from anchor_interp.sweeps.spec import Sweep

_MOST_ERRORS = 20
Folder = Annotated[Path, Parameter(help="The sweep folder.")]
_MEASURE = (
    "A function of a run, as module:function or file.py:function, that returns a number or a "
    "dictionary of numbers: a column of the table. May be repeated."
)
Functions = Annotated[tuple[str, ...], Parameter(name="--measure", negative=(), help=_MEASURE)]


def sweep(
    spec: str,
    /,
    *axes: str,
    out: Path,
    seeds: int | None = None,
    engine: Literal["local", "ray"] = "local",
    workers: Workers = None,
    batch: int = 1,
    device: Device = "auto",
    address: str | None = None,
    gpus: float = 0.0,
    measure: Functions = (),
    dry_run: Switch = False,
    output: Outputs = PLAIN,
) -> int:
    """Train many runs: every combination of the axes that is not done yet.

    Args:
        spec: A sweep's file, the name of one that comes along (tiny-decay, ...), or a preset to
            start from.
        axes: With a preset. gamma=0.3,0.5 is an axis, steps=2000 holds for all.
        out: Folder of the sweep; give the same command again to resume, another sweep to extend it.
        seeds: With a preset. Seeds of every combination, counted from 0.
        engine: Worker processes on this machine, or tasks on a Ray cluster (needs the package ray).
        batch: Runs of one shape that a worker trains together as a batch of models; 0 chooses.
        address: With ray. The cluster, such as auto or 10.0.0.1:6379; if none, one on this machine.
        gpus: With ray. GPUs of each task, also a share such as 0.25.
        dry_run: Only say how many runs are missing, and how much time and disk they take.
    """
    from anchor_interp.cli.typed import typed_sweep
    from anchor_interp.sweeps.folder import new_folder
    from anchor_interp.sweeps.local import LocalEngine
    from anchor_interp.sweeps.ray import RayEngine
    from anchor_interp.sweeps.sweep import own_measures, sweep, unmeasured

    plan = new_folder(out).resumed(typed_sweep(spec, axes, seeds=seeds))
    measures = own_measures(measure)
    runner: Engine
    if engine == "local":
        _refuse({"address": address is not None, "gpus": gpus != 0}, "ray")
        runner = LocalEngine(workers, device)
    else:
        _refuse({"workers": workers is not None, "batch 0": batch == 0}, "local")
        runner = RayEngine(address=address, gpus=gpus, device=device)
    if dry_run:
        # how much room a cluster will have is not known
        at_a_time = runner.slots() if isinstance(runner, LocalEngine) else 1
        _show_estimate(plan, out, at_a_time, device, output)
        return 0
    done = sweep(plan, out, engine=runner, measures=measures, batch=batch, quiet=output.quiet)
    failed = bool(measures and unmeasured(done, measures, plan.configs()))
    return max(_show_status(done, output), failed)


def _refuse(flags: Mapping[str, bool], engine: str) -> None:
    """Raise ConfigError if a flag is given that only this engine has."""
    for flag, is_given in flags.items():
        if is_given:
            raise ConfigError(f"{flag} is for the {engine} engine; add --engine {engine}")


def _show_estimate(plan: "Sweep", out: Path, workers: int, device: str, output: Output) -> None:
    """Print how many runs are missing, and how much time and disk they take."""
    from anchor_interp._util.progress import format_seconds
    from anchor_interp.sweeps.estimate import estimate
    from anchor_interp.sweeps.folder import SweepFolder

    needs = estimate(plan.configs(), SweepFolder(out), workers=workers, device=device)
    output.show(
        to_dict(needs),
        f"runs: {needs.runs}, of which {needs.todo} are to be done",
        f"time: {format_seconds(needs.seconds)} with {workers} at a time "
        f"({format_seconds(needs.core_seconds)} one after the other), from {needs.basis}",
        f"disk: {needs.disk_bytes / 1e6:,.0f} MB; free: {needs.free_bytes / 1e6:,.0f} MB",
    )


def status(sweep: Folder, /, *, output: Outputs = PLAIN) -> None:
    """Say how far a sweep is and what went wrong."""
    from anchor_interp.sweeps.folder import sweep_folder

    _show_status(sweep_folder(sweep), output)


def _show_status(folder: "SweepFolder", output: Output) -> int:
    """Print how far a sweep is; returns 1 if a run failed."""
    from anchor_interp.sweeps.folder import counts, phases

    runs = folder.rows()
    states, ended = counts(runs), phases(runs)
    failed = [row for row in runs if row["error"] is not None]
    lines = [f"{folder.path}: {len(runs)} runs"]
    for title, numbers in (("states", states), ("phases", ended)):
        shown = ", ".join(f"{number} {name}" for name, number in numbers.items())
        lines.append(f"{title}: {shown or 'none'}")
    lines += [f"{row['status']}: {row['run_id']}: {row['error']}" for row in failed[:_MOST_ERRORS]]
    if len(failed) > _MOST_ERRORS:
        lines.append(f"and {len(failed) - _MOST_ERRORS} more; table --json has all")
    errors = {row["run_id"]: row["error"] for row in failed}
    facts = {"runs": len(runs), "states": states, "phases": ended, "errors": errors}
    output.show({"path": str(folder.path), **facts}, *lines)
    return 1 if states.get("failed") else 0


def table(
    sweep: Folder,
    /,
    *,
    csv: Switch = False,
    mechanism: Switch = False,
    measure: Functions = (),
    output: Outputs = PLAIN,
) -> int:
    """Bring a sweep's table.parquet up to date; print it as CSV or JSON if asked to.

    Args:
        csv: Print the table as CSV on standard output.
        mechanism: First measure the mechanism of finished runs that lack it; seconds a run.
    """
    from anchor_interp.analysis.fingerprint_numbers import FINGERPRINT
    from anchor_interp.sweeps.folder import sweep_folder
    from anchor_interp.sweeps.sweep import measure_runs, own_measures
    from anchor_interp.sweeps.table_files import to_csv, to_json

    if csv and output.json:
        raise ConfigError("csv and json are two forms of one output; use one of them")
    folder = sweep_folder(sweep)
    measures = [*own_measures(measure), *([FINGERPRINT] if mechanism else [])]
    failed = measure_runs(folder, measures, quiet=output.quiet) if measures else 0
    runs = folder.write_table()
    if csv:
        print(to_csv(runs), end="")
    elif output.json:
        print(to_json(runs))
    else:
        print(f"{folder.path / 'table.parquet'}: {len(runs)} runs")
    return 1 if failed else 0


def diagram(
    sweep: Path,
    /,
    *where: str,
    out: Path,
    x: str | None = None,
    y: str | None = None,
    best_over: str | None = None,
    maps: Annotated[tuple[str, ...], Parameter(name="--map", negative=())] = (),
    output: Outputs = PLAIN,
) -> None:
    """Draw a sweep's phase diagrams: a page, figures and numbers.

    A run whose folder holds a report.html is linked to it.

    Args:
        sweep: The sweep folder, or its table (.parquet or .csv).
        where: Runs to draw, such as lr=0.001 or n_layers=2,3; all if none is given.
        out: Folder for the page, the figures and the numbers.
        x: Field of the horizontal axis; found from the runs if none.
        y: Field of the vertical axis; found from the runs if none.
        best_over: Field, such as lr; the best accuracy of each seed over its values counts, as in
            figure 2 of the NeurIPS paper. Every run counts if none.
        maps: Further column with numbers to map, such as a measure of your own. May be repeated.
    """
    from anchor_interp.cli.typed import named_values
    from anchor_interp.pages.diagram_page import write_diagrams
    from anchor_interp.sweeps.folder import read_table

    rows, name = read_table(sweep), sweep.resolve().name
    choices = {"x": x, "y": y, "where": named_values(where), "best_over": best_over or ()}
    page, numbers, table, *figures = write_diagrams(
        rows, out, name=name, maps=maps, runs=sweep / "runs", **choices
    )
    output.show_pages(page, numbers, len(figures), f"table: {table}")


def effect(
    runs: Path,
    /,
    *where: str,
    of: str,
    on: str,
    within: str | None = None,
    least: float = 0.3,
    between: str | None = None,
    cluster: str | None = None,
    output: Outputs = PLAIN,
) -> None:
    """Say whether a number of a sweep's runs goes with a setting: effect, interval, p and power.

    Args:
        runs: The sweep folder, or its table (.parquet or .csv).
        where: Runs that count, such as lr=0.001 or n_layers=2,3; all if none is given.
        of: Column of the number, such as ood_accuracy or a measure of your own.
        on: Column of the setting, such as gamma; its correlation with the number is the effect.
        within: Columns, with commas between them, in which compared runs agree.
        least: The smallest effect that counts, positive if the number should rise.
        between: Two values of the setting, such as symmetric,inferential: the effect is the mean
            at the second minus that at the first.
        cluster: Columns, such as seed, whose runs of one setting count as one.
    """
    from anchor_interp.cli.typed import named_values
    from anchor_interp.sweeps import effects

    answer = effects.effect(
        runs, of=of, on=on, within=_names(within), least=least, cluster=_names(cluster),
        between=None if between is None else named_values([f"between={between}"])["between"],
        where=named_values(where),
    )  # fmt: skip
    lines = [str(answer), *(f"{at}: {part.sentence}" for at, part in answer.strata.items())]
    output.show(to_dict(answer), *lines)


def _names(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(name.strip() for name in text.split(","))
