"""Do runs of lower complexity generalise better on every task in the same way?

A task of the complexity-control paper's section VII is compared with itself alone: its runs differ
in initialisation, weight decay and seed, and Spearman's correlation is taken inside each number of
examples, among runs that have fitted (``complexity_control/fig6_concepts.py``, ``fig7_tasks.py``).
"""

import math
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.stats import norm

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor_interp.analysis import statistics
from anchor_interp.analysis.statistics import POWER, Floats, permutation_p
from anchor_interp.sweeps.effects import Estimate, Stratum, shuffles, standard
from claims import Claim
from common import main
from complexity_control.fig7_tasks import FITTED, at_random, square
from effects import Effect, Finding, Number, Row, Rows, finding_of, value_of, values_of, varied
from measures import rank_share

STUDIES = ("scan", "cogs", "addition", "prontoqa", "concepts")
FEWEST_TASKS = 3
_TOGETHER = ("gamma", "weight_decay", "seed")  # runs on several numbers of examples belong together


@dataclass(frozen=True)
class TaskRuns:
    """Where the runs of a task are, and which of their accuracies are compared."""

    study: str
    unseen: str = "ood_accuracy"  # the accuracy that tells whether a run generalises
    fit: str = "id_accuracy"  # the accuracy that is matched: at least ``least``
    least: float = FITTED
    select: Callable[[Rows], Rows] = tuple

    def fitted(self, rows: Rows) -> list[Row]:
        """Its runs that are done and have fitted."""
        return [
            row
            for row in self.select(rows)
            if row["status"] == "done" and (row[self.fit] or 0.0) >= self.least
        ]


TASK_RUNS: Mapping[str, TaskRuns] = {
    "SCAN": TaskRuns("scan"),
    "COGS": TaskRuns("cogs"),
    "addition, a square": TaskRuns("addition", select=square),
    "addition, at random": TaskRuns("addition", "id_accuracy", "train_accuracy", select=at_random),
    "PrOntoQA": TaskRuns("prontoqa", "id_accuracy", "train_accuracy"),
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
        if len(compared) < FEWEST_TASKS:
            note = f"{len(compared)} tasks have enough runs that have fitted; expected at least "
            note += str(FEWEST_TASKS)
            return finding_of(runs, 0, problem="not answerable here", note=note, also=told)
        mean = float(np.mean([part.z for part in compared]))
        error = math.sqrt(sum(1 / part.freedom for part in compared)) / len(compared)
        drawn = np.mean([np.arctanh(_inside(part.drawn)) for part in compared], axis=0)
        p = permutation_p(abs(mean), np.abs(drawn), exact=False)
        return finding_of(runs, 0, _of_fisher(mean, error, p), also=told)

    def inside(self, of: TaskRuns, rows: Rows) -> "TaskCorrelation":
        """The correlation inside a task, of the runs of its study."""
        kept = [
            row
            for row in of.fitted(rows)
            if None not in (value_of(row, self.of), value_of(row, of.unseen))
        ]
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


CLAIMS = [
    Claim(
        "across-tasks-rank", "low stable rank goes with generalising, all tasks",
        AcrossTasks(rank_share, sign=-1, runs=STUDIES),
        least=0.3, source="C VII",
        asks="On average over the tasks of section VII, runs whose queries have a lower stable "
        "rank generalise better.",
        statistic="Spearman's correlation of the accuracy on what training leaves out with "
        "minus the stable rank of W_Q (of a U-Net: the mean over its layers) over "
        "its value at initialisation, inside each task and number of examples, among "
        "runs that have fitted; mean over tasks on Fisher's scale",
        known=("scan", "cogs", "addition", "prontoqa", "concepts"),
    ),
]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(__file__))
