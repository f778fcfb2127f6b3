"""The papers' phase diagrams by our own runs, and what of the papers they agree with.

``python experiments/diagrams.py decay`` trains the sweep ``tiny-decay.yaml`` of
``src/anchor_interp/sweep/`` (complexity-control paper, figures 3B and 5C) as far as it is missing,
``... depth`` the sweep ``tiny-depth.yaml`` (NeurIPS paper, figure 2). Either resumes where it was
stopped, keeps its runs under ``--out``, its table and pictures under ``figures/`` and its verdicts
under ``docs/evidence/``. With ``--judge`` nothing is trained: the verdicts and the pictures come
from the table that is there.

What counts as agreement stands in the sweeps' files and was written before the runs.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from scipy.stats import permutation_test, rankdata

from anchor_interp._util.files import write_text
from anchor_interp._util.schema import to_dict
from anchor_interp.pages.diagram_page import write_diagrams
from anchor_interp.runs.phase import PAPER
from anchor_interp.sweeps.settings import TableRow
from anchor_interp.sweeps.spec import SWEEPS
from anchor_interp.sweeps.sweep import sweep
from anchor_interp.sweeps.table import counts, phases, read_table, rows, to_csv
from measured import table, tell

ROOT = Path(__file__).parent.parent
ALPHA = 0.05
_RESAMPLES = 9999


@dataclass(frozen=True)
class Verdict:
    """What the runs say to one expectation."""

    expectation: str
    """In words."""
    found: str
    """The numbers."""
    agrees: bool
    """Whether they meet it."""


@dataclass(frozen=True)
class Trend:
    """Spearman's rank correlation of a measure with an axis over runs, every seed a point."""

    n: int
    rho: float
    p: float
    """Two-sided, of a permutation test with 9,999 relabellings."""

    @classmethod
    def of(cls, found: Sequence[TableRow], x: str, y: str) -> "Trend":
        """The trend of ``y`` with ``x``; runs without the measure are left out, ``n`` says so."""
        points = [(row[x], row[y]) for row in found if row[y] is not None]
        if not points:
            return cls(0, 0.0, 1.0)
        ranks = [rankdata(column) for column in zip(*points, strict=True)]
        xs, ys = (column - column.mean() for column in ranks)
        if not (xs.any() and ys.any()):  # a measure that never changes has no trend
            return cls(len(points), 0.0, 1.0)
        scale = np.linalg.norm(xs) * np.linalg.norm(ys)
        tested = permutation_test(
            (xs,),
            lambda shuffled, axis: (shuffled * ys).sum(axis) / scale,
            permutation_type="pairings",
            vectorized=True,
            n_resamples=_RESAMPLES,
            rng=np.random.default_rng(0),
        )
        return cls(len(points), float(tested.statistic), float(tested.pvalue))

    def __str__(self) -> str:
        return f"{self.rho:+.2f} (p = {self.p:.4f}, n = {self.n})"


def at(found: Sequence[TableRow], **values: Any) -> list[TableRow]:
    """The rows with these values."""
    return [row for row in found if all(row[name] == value for name, value in values.items())]


def axis(found: Sequence[TableRow], name: str) -> list[Any]:
    """The values of an axis, ascending."""
    return sorted({row[name] for row in found})


def majority(cell: Sequence[TableRow], wanted: Callable[[TableRow], bool]) -> bool:
    """Whether more than half of a cell's runs, whatever became of the others, are such."""
    return 2 * sum(map(wanted, cell)) > len(cell)


def of_phase(phase: str) -> Callable[[TableRow], bool]:
    """Runs of a phase."""
    return lambda row: row["phase"] == phase


def is_phase_2(row: TableRow) -> bool:
    """Good ID and poor OOD accuracy in a trained run (complexity-control paper, section IV)."""
    if row["phase"] in (None, "undertrained"):
        return False
    return bool(row["id_accuracy"] >= PAPER.id and row["ood_accuracy"] < PAPER.ood)


def names(cell: Sequence[TableRow]) -> str:
    """What became of a cell's runs."""
    return ", ".join(row["phase"] or row["status"] for row in cell)


def judge_decay(found: Sequence[TableRow]) -> Iterator[Verdict]:
    """The six expectations of ``tiny-decay.yaml``."""
    decays, gammas = axis(found, "weight_decay"), axis(found, "gamma")
    corner = at(found, gamma=gammas[0], weight_decay=decays[0])
    text = f"most seeds memorize at gamma {gammas[0]} without weight decay"
    yield Verdict(text, names(corner), majority(corner, of_phase("memorizing")))
    corner = at(found, gamma=gammas[-1], weight_decay=decays[-1])
    text = f"most seeds are inferential at gamma {gammas[-1]}, weight decay {decays[-1]:g}"
    yield Verdict(text, names(corner), majority(corner, of_phase("inferential")))
    yield _trends(found, "OOD accuracy rises with gamma", "ood_accuracy", decays, rising=True)
    first = {decay: _first_inferential(found, decay) for decay in (0.01, 1.0)}
    shown = ", ".join(f"{decay:g}: {gamma or 'none'}" for decay, gamma in first.items())
    low, high = first[1.0], first[0.01]
    yield Verdict(
        "the smallest gamma whose majority is inferential is smaller at weight decay 1 than at "
        "0.01",
        shown,
        low is not None and high is not None and low < high,
    )
    ranked = [row | {"share": _rank_share(row)} for row in found]
    text = "the stable rank of W_Q(1), as a share of its initial value, falls with gamma"
    yield _trends(ranked, text, "share", decays, rising=False)
    kinds = [_kind(at(found, gamma=gamma, weight_decay=0.01)) for gamma in gammas]
    order = "".join(kind for kind in kinds if kind in "M2I")
    yield Verdict(
        "at weight decay 0.01 cells with good ID and poor OOD accuracy lie between memorizing and "
        "inferential ones",
        ", ".join(f"{gamma}: {_KINDS[kind]}" for gamma, kind in zip(gammas, kinds, strict=True)),
        set(order) == set("M2I") and order == "".join(sorted(order, key="M2I".index)),
    )


def judge_depth(found: Sequence[TableRow]) -> Iterator[Verdict]:
    """The expectations of ``tiny-depth.yaml``."""
    depths = axis(found, "n_layers")
    text = "inferential accuracy on (4, 3) rises with gamma"
    yield _trends(found, text, "ood_accuracy", depths, rising=True, by="n_layers")
    text = "symmetric accuracy on (4, 3) falls with gamma"
    yield _trends(found, text, "symmetric_accuracy", depths, rising=False, by="n_layers")
    gammas = axis(found, "gamma")
    poor = [
        (gamma, depth)
        for gamma in gammas
        for depth in depths
        if (shares := _shares(at(found, gamma=gamma, n_layers=depth), "id_accuracy"))
        and mean(shares) < 0.9
    ]
    shown = ", ".join(f"gamma {gamma}, {depth} layers" for gamma, depth in poor) or "none"
    low = [gamma for gamma, _ in poor]
    yield Verdict(
        "the shaded zone (mean ID accuracy < 0.9) lies at the smallest gammas and is not empty",
        shown,
        bool(poor) and max(low) < gammas[len(gammas) // 2],
    )


JUDGES = {"decay": judge_decay, "depth": judge_depth}
"""Sweeps by name."""

_KINDS = {
    "M": "memorizing",
    "2": "phase 2",
    "I": "inferential",
    "U": "undertrained",
    ".": "no majority",
}


def _kind(cell: Sequence[TableRow]) -> str:
    """The letter in :data:`_KINDS` of what most runs of a cell are."""
    kinds = {
        "M": of_phase("memorizing"),
        "2": is_phase_2,
        "I": of_phase("inferential"),
        "U": of_phase("undertrained"),
    }
    return next((kind for kind, wanted in kinds.items() if majority(cell, wanted)), ".")


def _trends(
    found: Sequence[TableRow],
    text: str,
    measure: str,
    values: Sequence[Any],
    *,
    rising: bool,
    by: str = "weight_decay",
) -> Verdict:
    """Whether a measure has the expected trend along gamma at every value of the other axis."""
    trends = {value: Trend.of(at(found, **{by: value}), "gamma", measure) for value in values}
    shown = "; ".join(f"{value:g}: {trend}" for value, trend in trends.items())
    agrees = [trend.p < ALPHA and (trend.rho > 0) == rising for trend in trends.values()]
    title = by.replace("n_layers", "depth").replace("_", " ")
    return Verdict(f"{text}, at each {title} (Spearman)", shown, all(agrees))


def _first_inferential(found: Sequence[TableRow], decay: float) -> float | None:
    for gamma in axis(found, "gamma"):
        if majority(at(found, gamma=gamma, weight_decay=decay), of_phase("inferential")):
            return float(gamma)
    return None


def _rank_share(row: TableRow) -> float | None:
    if row["stable_rank"] is None or not row["stable_rank_at_init"]:
        return None
    return float(row["stable_rank"] / row["stable_rank_at_init"])


def _shares(found: Sequence[TableRow], measure: str) -> list[float]:
    return [row[measure] for row in found if row[measure] is not None]


def main() -> int:
    """Train what is missing, draw and judge."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("sweep", choices=JUDGES)
    parser.add_argument("--out", type=Path, help="the sweep folder (runs/tiny-NAME)")
    parser.add_argument("--judge", action="store_true", help="from the table in figures/ alone")
    arguments = parser.parse_args()
    name = f"tiny-{arguments.sweep}"
    pictures = ROOT / "figures" / name
    if arguments.judge:
        found = read_table(pictures / "table.csv")
    else:
        out = arguments.out or Path("runs") / name
        found = rows(sweep(SWEEPS[name], out))
        pictures.mkdir(parents=True, exist_ok=True)
        write_text(pictures / "table.csv", to_csv(found))
    verdicts = list(JUDGES[arguments.sweep](found))
    written = write_diagrams(found, pictures, name=name)
    print(f"page and figures: {written[0].parent}", file=sys.stderr)
    seconds = sum(row["seconds"] or 0.0 for row in found)
    hours = f"{seconds / 3600:.1f} core-hours"
    title = f"# {name.replace('-', '_')}\n\n"
    state = ", ".join(f"{n} {state}" for state, n in counts(found).items())
    phase = ", ".join(f"{n} {phase}" for phase, n in phases(found).items())
    lines = [[v.expectation, v.found, "yes" if v.agrees else "**no**"] for v in verdicts]
    text = (
        f"{title}{len(found)} runs ({state}), {hours}: {phase}. What was expected was written into "
        f"`src/anchor_interp/sweep/{name}.yaml` before the runs; a cell has a majority if more "
        "than half of its runs are of a phase, runs that did not end among them. The study of that "
        "name on the page of [results](../results.md) has more seeds, and there the seeds 301 and "
        "302 were trained a second time on another machine, where some runs ended in another "
        "phase.\n\n"
        + table(["expected", "found", "agrees"], lines)
        + f"\n![{name}](../../figures/{name}/figures/overview.png)\n"
    )
    data = {
        "runs": len(found),
        "states": counts(found),
        "phases": phases(found),
        "core_seconds": seconds,
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    tell(name.replace("-", "_"), to_dict(data), text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
