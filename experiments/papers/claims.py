"""The ledger: every claim of both papers and some of our own.

``claims.toml`` has their sentences, what judges them and the smallest effects; here these words
become effects, and a few odd statistics stand. Claims were written down before their runs,
but for those that :func:`papers.rows.was_known` and ``known`` in ``claims.toml`` name: the page
counts these claim by claim. ``docs/claims.md`` tells what was changed after runs had been seen, and
``registered.toml`` holds claims whose runs are still to come.

Settings and phases go together: nearly all inferential runs of ``phases`` are pre-LayerNorm models.
So claims about phases compare the runs of ``settings``, whose settings were drawn at random, inside
one task and layout.
"""

import math
import tomllib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.statistics import DRAWN, POWER, largest, permutation_p
from anchor_interp.sweeps.effects import FEWEST, Estimate

from . import wide
from .across_tasks import AcrossTasks
from .effects import (
    Answerable,
    Difference,
    Effect,
    Finding,
    Mean,
    Number,
    Rise,
    Trend,
    finding_of,
    grouped,
    values_of,
)
from .judging import Claim, Judgement, judge
from .rows import NUMBERS, PREPARED, Row, Rows, every, matching, never, never_came

PHASE_2 = ("composite", "symmetric")
# The studies whose runs are compared by phase.
RANDOM = ("settings", "settings-judging", "settings-post", "settings-post-again", "settings-pre")
# Half the smallest step between phases in the complexity-control paper's figure 5C: the stable rank
# is about 150 in phase 1, 55 in phase 2 (100, and 30 where it commutes) and 10 in phase 3.
HALF_A_STEP = math.sqrt(150 / 55)
_PREPARED = {
    **PREPARED,
    "outside-zone": wide.outside_zone,
    "complete-seeds": wide.complete,
    "unseen": wide.unseen,
}
_WORDS = frozenset((
    "studies", "elsewhere", "prepare", "kind", "python", "of", "on", "more", "less", "only",
    "reference", "where", "apart", "also", "within", "free", "cluster", "sign", "untrained",
    "fitted", "above", "unreached", "margin",
))  # fmt: skip


@dataclass(frozen=True)
class Alike(Effect):
    """By how much runs of one phase and stratum stay within a factor of each other.

    ``number`` is a logarithm. A run's distance is that to the mean of the other runs of its phase
    and stratum, whose settings are others; the effect is the logarithm of ``factor`` minus the mean
    distance. Below 0 the number changes more than that. Each phase counts alike. A phase of a
    stratum counts if it has five runs. For p, margins change sign; the interval is Student's, with
    Welch's degrees of freedom.
    """

    number: Number
    factor: float

    def measure(self, rows: Rows) -> Finding:
        """See the class."""
        (sample,), censored = self.samples(rows, self.number, every)
        margins: dict[Any, list[float]] = defaultdict(list)
        size = 0.0
        runs: dict[Any, list[Row]] = defaultdict(list)
        for (phase, *_), group in grouped(sample, ("phase", "task", "normalization")).items():
            if len(group) >= FEWEST:
                logs = np.array(values_of(group, self.number))
                others = (logs.sum() - logs) / (len(logs) - 1)
                size = max(size, largest(logs))
                margins[phase] += [*(math.log(self.factor) - np.abs(logs - others))]
                runs[phase] += group
        if not margins:
            note = f"no phase has {FEWEST} runs in a task and layout"
            return finding_of([sample], censored, problem="nothing comparable", note=note)
        found = _mean_of_means([*margins.values()], size)
        return finding_of([*runs.values()], censored, found, is_margin=True)


def _mean_of_means(groups: Sequence[Sequence[float]], size: float) -> Estimate:
    """The mean over groups of their means, with Welch's interval and the p of sign flips.

    ``size`` is the largest number that the values were computed from.
    """
    weighted = [np.array(group) / (len(group) * len(groups)) for group in groups]
    effect = float(sum(values.sum() for values in weighted))
    variances = np.array([len(values) * values.var(ddof=1) for values in weighted])
    error, reach, finds = math.sqrt(variances.sum()), 0.0, 0.0
    if error:
        df = error**4 / (variances**2 / [len(values) - 1 for values in weighted]).sum()
        reach = float(t.ppf(0.975, df)) * error
        finds = reach + float(t.ppf(POWER, df)) * error
    together = np.concatenate(weighted)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (DRAWN, len(together)))
    p = permutation_p(abs(effect), np.abs(signs @ together), exact=False, size=size)
    return Estimate(effect, effect - reach, effect + reach, p, finds)


def _effect(said: Mapping[str, Any]) -> Effect:
    """The effect that a claim's words mean."""
    common: dict[str, Any] = {
        "studies": tuple(said["studies"]),
        "elsewhere": tuple(said.get("elsewhere", ())),
        "prepare": _prepared(said.get("prepare", ())),
        "untrained": said.get("untrained", False),
        "stratum": matching(said.get("where", {})),
        "apart": tuple(said.get("apart", ())),
        "also": tuple(said.get("also", ())),
    }
    number, sign = NUMBERS.get(said["of"], said["of"]), said.get("sign", 1)
    within, cluster = (tuple(said.get(name, ())) for name in ("within", "cluster"))
    answerable = Answerable(
        fitted=tuple(said["fitted"]) if "fitted" in said else None,
        above=tuple(said["above"]) if "above" in said else None,
        unreached=never_came if said.get("unreached") else never,
    )
    only = matching(said.get("only", {}))
    match said.get("kind") or said["python"]:
        case "trend":
            return Trend(said["on"], number, within, only, sign, cluster, answerable, **common)
        case "difference":
            more, less = matching(said["more"]), matching(said["less"])
            free = tuple(said.get("free", ()))
            return Difference(number, more, less, within, free, cluster, answerable, **common)
        case "mean":
            reference, margin = said.get("reference", 0.0), said.get("margin", False)
            return Mean(number, only, reference, answerable, margin, **common)
        case "rise":
            return Rise(said["on"], number, within, sign, **common)
        case "alike":
            return Alike(number, HALF_A_STEP, **common)
        case "across":
            return AcrossTasks(number, sign, **common)
        case other:
            raise ConfigError(f"claims.toml has the kind {other}, which claims.py does not know")


def _prepared(names: Sequence[str]) -> Callable[[Rows], Rows]:
    def prepare(rows: Rows) -> Rows:
        for name in names:
            rows = _PREPARED[name](rows)
        return rows

    return prepare


def _claim(name: str, said: Mapping[str, Any]) -> Claim:
    words = {key: value for key, value in said.items() if key not in _WORDS}
    if registered := words.pop("registered", ()):
        said_before = REGISTERED[registered[0]]
        before = {k: v for k, v in said_before.items() if k not in (*_WORDS, *_PLANNED)}
        words = {"ours": said_before["by"] == "ours", "planned": said_before["n"]} | before | words
    known, source = words.pop("known", ()), words.pop("figure")
    minimum = words.pop("least") if "least" in words else math.log(words.pop("ratio", 1.0))
    studies = tuple(said["studies"])
    return Claim(
        name, source=source, minimum=minimum, effect=_effect(said),
        known=studies if known is True else tuple(known), **words,
    )  # fmt: skip


def _read(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


REGISTERED = _read("registered.toml")
"""Claims that were written down before their runs."""
_PLANNED = ("by", "n", "spread", "finds")
_TEXTS = _read("claims.toml")
CLAIMS = tuple(_claim(name, said) for name, said in _TEXTS.items())
JUDGED_AS: Mapping[str, str] = {
    one: f"claims.md#{name}"
    for name, said in _TEXTS.items() for one in said.get("registered", ())
}  # fmt: skip
"""Where a registered claim stands."""
NAMED: Mapping[str, Claim] = {claim.name: claim for claim in CLAIMS}
BETWEEN_PHASES = tuple(
    claim
    for claim in CLAIMS
    if {*claim.studies} & {*RANDOM}
    and any("phase" in _TEXTS[claim.name].get(kind, {}) for kind in ("more", "less"))
)
"""Claims that compare runs of random settings by phase."""
REALISTIC = frozenset(
    claim.name
    for claim in CLAIMS
    if claim.section in ("control_7", "control_7_concepts", "control_7d", "across_tasks")
)
"""Claims on the tasks of the complexity-control paper's section VII, and across all tasks."""


def section_claims(section: str) -> tuple[Claim, ...]:
    """The claims that one section's script shows."""
    return tuple(claim for claim in CLAIMS if claim.section == section)


def judge_ledger(tables: Mapping[str, Rows]) -> dict[str, Judgement]:
    """The judgement of every claim of the ledger, by name; ``tables`` holds rows by study."""
    return judge(CLAIMS, tables)
