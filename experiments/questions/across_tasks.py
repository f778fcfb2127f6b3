"""Do runs of lower complexity generalise better on every task in the same way?

A task of the complexity-control paper's section VII is compared with itself alone: its runs differ
in initialisation, weight decay and seed. Spearman's correlation is taken inside each number of
examples, among runs that have fitted (``complexity_control/fig6_concepts.py``, ``fig7_tasks.py``).
"""

import math
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import norm

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp._util import statistics
from anchor_interp._util.statistics import POWER, Estimate, Floats, permutation_p
from anchor_interp.pages.style import INK, QUALITATIVE, legend_below, panel
from anchor_interp.sweeps.effects import Stratum, shuffles, standard
from claim_effects import Effect, Finding, Number, Row, Rows, finding_of, having, values_of, varied
from claims import Claim
from common import Panels, table
from complexity_control.fig7_tasks import FITTED, at_random, square
from figure import main
from measures import rank_share
from random_settings import RUNS as RANDOM
from studies import Data

STUDIES = ("scan", "cogs", "addition", "concepts")
FEWEST_TASKS = 3
_TOGETHER = ("gamma", "weight_decay", "seed")  # runs on several numbers of examples belong together


@dataclass(frozen=True)
class TaskRuns:
    """Where the runs of a task are, and which of their accuracies are compared."""

    study: str
    unseen: str = "ood_accuracy"  # the accuracy that tells whether a run generalises
    fit: str = "id_accuracy"  # the accuracy from which a run has fitted: ``FITTED``
    select: Callable[[Rows], Rows] = tuple

    def fitted(self, rows: Rows) -> list[Row]:
        """Its runs that are done and have fitted."""
        done = [row for row in self.select(rows) if row["status"] == "done"]
        return [row for row in done if (row[self.fit] or 0.0) >= FITTED]


TASK_RUNS: Mapping[str, TaskRuns] = {
    "SCAN": TaskRuns("scan"),
    "COGS": TaskRuns("cogs"),
    "addition, a square": TaskRuns("addition", select=square),
    "addition, at random": TaskRuns("addition", "id_accuracy", "train_accuracy", select=at_random),
    "concepts": TaskRuns("concepts", fit="train_accuracy"),  # of a U-Net's layers, in the mean
}


@dataclass(frozen=True)
class AcrossTasks(Effect):
    """The mean over tasks of a correlation inside each, on Fisher's scale: each task counts alike.

    A group is a task's runs on one number of examples. A task is compared if its groups leave a
    degree of freedom; a group in which a number never changes counts as 0. For p, values change
    places inside groups, those of a seed and setting together. The intervals are Fisher's. ``also``
    of the finding are the tasks.
    """

    of: Number  # the measure of complexity
    sign: int = 1  # -1 if it is claimed to be lower where a run generalises

    def measure(self, rows: Rows) -> Finding:
        """See the class."""
        parts = {
            name: self.inside(of, [row for row in rows if row["study"] == of.study])
            for name, of in TASK_RUNS.items()
        }
        compared = [part for part in parts.values() if part.freedom]
        told = {name: part.finding() for name, part in parts.items()}
        runs = [[row for part in compared for row in part.runs]]
        if (n := len(compared)) < FEWEST_TASKS:
            note = f"{n} tasks have enough runs that have fitted; expected at least {FEWEST_TASKS}"
            return finding_of(runs, 0, problem="not answerable here", note=note, also=told)
        mean = float(np.mean([part.z for part in compared]))
        error = math.sqrt(sum(1 / part.freedom for part in compared)) / len(compared)
        drawn = np.mean([np.arctanh(_inside(part.drawn)) for part in compared], axis=0)
        p = permutation_p(abs(mean), np.abs(drawn), exact=False)
        return finding_of(runs, 0, _of_fisher(mean, error, p), also=told)

    def inside(self, of: TaskRuns, rows: Rows) -> "TaskCorrelation":
        """The correlation inside a task, of the runs of its study."""
        kept = having(having(of.fitted(rows), self.of), of.unseen)
        groups = varied(kept, ("n_sequences",), self.of)
        used = [row for group in groups for row in group]
        freedom = len(used) - 3 * len(groups)
        if freedom < 1:
            return TaskCorrelation(tuple(used), 0.0, 0, np.zeros(statistics.DRAWN))
        strata = [
            Stratum(
                standard(np.array(values_of(group, self.of))),
                standard(np.array(values_of(group, of.unseen))),
                [tuple(map(row.get, _TOGETHER)) for row in group],
            )
            for group in groups
        ]
        rho = self.sign * sum(float(one.x @ one.y) * len(one.x) for one in strata) / len(used)
        # a seed by task, whose settings come in one order: the same shuffles would make draws agree
        seed = zlib.crc32(f"{of.study} {of.fit}".encode())
        drawn = np.zeros(statistics.DRAWN)
        for one, orders in zip(strata, shuffles(strata, seed=seed), strict=True):
            drawn += one.x[orders] @ one.y * len(one.x) / len(used)
        return TaskCorrelation(tuple(used), rho, freedom, drawn)

    def shown(self, found: Finding) -> str:
        """A task's correlation with its interval, not signed as claimed; why there is none."""
        if found.found is None:
            return str(found.note)
        low, high = sorted((self.sign * found.found.low, self.sign * found.found.high))
        return f"{self.sign * found.found.effect:.2f} ({low:.2f} to {high:.2f})"


@dataclass(frozen=True)
class TaskCorrelation:
    """Spearman's correlation inside one task."""

    runs: tuple[Row, ...]
    rho: float
    freedom: int  # runs less 3 for each group; 0 if there are too few
    drawn: Floats  # [draw], the correlation of shuffled values

    @property
    def z(self) -> float:
        """The correlation on Fisher's scale."""
        return float(np.arctanh(_inside(np.array(self.rho))))

    def finding(self) -> Finding:
        """The correlation with its interval and p."""
        if not self.freedom:
            note = "too few runs have fitted"
            found = finding_of([self.runs], 0, problem="not answerable here", note=note)
            return replace(found, runs=())
        p = permutation_p(abs(self.rho), np.abs(self.drawn), exact=False)
        estimate = _of_fisher(self.z, 1 / math.sqrt(self.freedom), p)
        return replace(finding_of([self.runs], 0, estimate), runs=())


def _of_fisher(z: float, error: float, p: float) -> Estimate:
    """A correlation with its interval, from Fisher's scale."""
    reach, power = float(norm.ppf(0.975)) * error, float(norm.ppf(POWER)) * error
    ends = (math.tanh(z - reach), math.tanh(z + reach))
    return Estimate(math.tanh(z), *ends, p, math.tanh(reach + power))


def _inside(rho: Floats) -> Floats:
    """Correlations that have a finite value on Fisher's scale."""
    found: Floats = np.clip(rho, -0.999999, 0.999999)
    return found


RANK = AcrossTasks(rank_share, sign=-1, runs=STUDIES)
CLAIMS = [
    Claim("across-tasks-rank", "low stable rank goes with generalising, all tasks", RANK, least=0.3,
        source="C VII",
        asks="On average over the tasks of section VII, runs whose queries have a lower stable "
        "rank generalise better.",
        statistic="Spearman's correlation of the accuracy on what training leaves out with minus "
        "the stable rank of W_Q (of a U-Net: the mean over its layers) over its value at "
        "initialisation, inside each task and number of examples, among runs that have fitted; "
        "mean over tasks on Fisher's scale",
        note="PrOntoQA is left out: its runs have fitted their training worlds and guess on new "
        "ones (accuracy 0.50), so that there is nothing to explain. With it the mean is -0.04.",
        known=STUDIES),
]  # fmt: skip


def draw(data: Data) -> Panels:
    """Accuracy on what training leaves out over the stable rank of W_Q: a panel a task."""
    panels = []
    for task, of in TASK_RUNS.items():
        rows = data.rows(of.study)
        found = RANK.inside(of, rows).finding()
        told = RANK.shown(found)
        told = f"rho {told},\n{found.n[0]} runs" if found.found else told
        panels.append((task, points(of, rows, told)))
    panels.append(("anchor tasks, not counted", points(TaskRuns(""), data.rows(*RANDOM), "")))
    return [panels[:3], panels[3:]]


def points(of: TaskRuns, rows: Rows, told: str) -> Figure:
    """The runs of a task: those that have fitted are filled, in a colour by their examples."""
    fitted = {row["run_id"] for row in of.fitted(rows)}
    sizes = sorted({row["n_sequences"] for row in rows}) if told else []
    colours = dict(zip(sizes, QUALITATIVE, strict=False))
    with panel(2.75, 2.9) as (figure, axes):
        shown = having(having(of.select(rows), rank_share), of.unseen)
        numbers = (values_of(shown, number) for number in (rank_share, of.unseen))
        for row, x, y in zip(shown, *numbers, strict=True):
            colour = colours.get(row["n_sequences"], QUALITATIVE[0])
            face = colour if row["run_id"] in fitted else "none"
            axes.scatter(x, y, s=14, facecolor=face, edgecolor=colour, linewidth=0.7)
        names = {f"n = {size:,}": colour for size, colour in colours.items()}
        for label, colour in (names or {"fitted": QUALITATIVE[0]}).items():
            axes.scatter([], [], s=14, color=colour, label=label)
        axes.scatter([], [], s=14, facecolor="none", edgecolor=INK, label="not fitted")
        axes.set(ylim=(-0.03, 1.03), xlabel="stable rank of W_Q / initial",
                 ylabel="accuracy, left out")  # fmt: skip
        axes.set_title(told, fontsize=9)
        axes.locator_params(axis="x", nbins=4)
        axes.grid(alpha=0.25)
        legend_below(figure, axes, columns=2)
    return figure


def tasks_table(data: Data) -> str:
    """The correlation inside every task, for two measures of complexity."""
    effects = (RANK, AcrossTasks("condensation", runs=STUDIES))
    lines = []
    for title, of in TASK_RUNS.items():
        rows = data.rows(of.study)
        inside = [effect.shown(effect.inside(of, rows).finding()) for effect in effects]
        lines.append([title, f"{len(of.fitted(rows))} of {len(of.select(rows))}", *inside])
    names = ("stable rank of W_Q", "condensation of W_Q")
    return table(["task", "runs that have fitted", *names], lines)


TABLES = {"across-tasks": tasks_table}


if __name__ == "__main__":
    raise SystemExit(main(__file__))
