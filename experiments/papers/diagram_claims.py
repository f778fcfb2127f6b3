"""What runs of the sweeps ``tiny-decay`` and ``tiny-depth`` are expected to show.

The expectations stand in the sweeps' files and were written down before the runs. A cell has a
majority if more than half of its runs, whatever became of the others, are of a kind.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anchor_interp.runs.phase import PAPER
from anchor_interp.sweeps.effects import LEVEL, Stratum, trend

from .rows import Row, Rows, Test, having, number_of, phase, rank_share

Check = Callable[[Rows], tuple[bool, str]]
_INFERENTIAL, _MEMORIZING = phase("inferential"), phase("memorizing")


def spearman(rows: Rows, x: str, y: str) -> tuple[int, float, float]:
    """Spearman's correlation over runs: how many have the number, rho and its permutation p."""
    points = [(number_of(row, x), number_of(row, y)) for row in rows if row[y] is not None]
    if not points:
        return 0, 0.0, 1.0
    xs, ys = (np.array(column, np.float64) for column in zip(*points, strict=True))
    found = trend([Stratum(xs, ys, range(len(points)))])
    return len(points), found.effect if found else 0.0, found.p if found else 1.0


def _cell(rows: Rows, **values: Any) -> list[Row]:
    return list(filter(having(**values), rows))


def _axis(rows: Rows, name: str) -> list[float]:
    return sorted({row[name] for row in rows})


def _majority(rows: Rows, wanted: Test) -> bool:
    return 2 * sum(map(wanted, rows)) > len(rows)


def _mostly(name: str, **where: float) -> Check:
    """Whether most runs of a cell are of a phase."""

    def check(rows: Rows) -> tuple[bool, str]:
        cell = _cell(rows, **where)
        return _majority(cell, phase(name)), ", ".join(r["phase"] or r["status"] for r in cell)

    return check


def _trends(number: str, by: str, *, sign: int) -> Check:
    """Whether a number rises (sign 1) or falls (-1) with gamma at every value of the other axis."""

    def check(rows: Rows) -> tuple[bool, str]:
        rows = [row | {"rank_share": rank_share(row)} for row in rows]
        found = {
            value: spearman(_cell(rows, **{by: value}), "gamma", number)
            for value in _axis(rows, by)
        }
        texts = [f"{v:g}: {rho:+.2f} (p = {p:.4f}, n = {n})" for v, (n, rho, p) in found.items()]
        return all(p < LEVEL and sign * rho > 0 for _, rho, p in found.values()), "; ".join(texts)

    return check


def _less_gamma_with_more_decay(rows: Rows) -> tuple[bool, str]:
    def first(decay: float) -> float | None:
        at = {gamma: _cell(rows, gamma=gamma, weight_decay=decay) for gamma in _axis(rows, "gamma")}
        return next((gamma for gamma, cell in at.items() if _majority(cell, _INFERENTIAL)), None)

    high, low = first(0.01), first(1.0)
    text = f"0.01: {high or 'none'}, 1: {low or 'none'}"
    return low is not None and high is not None and low < high, text


def _is_phase_2(row: Row) -> bool:
    """Good ID and poor OOD accuracy in a trained run (complexity-control paper, section IV)."""
    seen, unseen = number_of(row, "id_accuracy"), number_of(row, "ood_accuracy")
    trained = row["phase"] not in (None, "undertrained") and None not in (seen, unseen)
    return trained and (seen or 0.0) >= PAPER.id and (unseen or 0.0) < PAPER.ood


_KINDS: dict[str, Test] = {
    "memorizing": _MEMORIZING, "phase 2": _is_phase_2, "inferential": _INFERENTIAL,
    "undertrained": phase("undertrained"),
}  # fmt: skip


def _phase_2_in_between(rows: Rows) -> tuple[bool, str]:
    kinds = {}
    for gamma in _axis(rows, "gamma"):
        cell = _cell(rows, gamma=gamma, weight_decay=0.01)
        of_most = (kind for kind, test in _KINDS.items() if _majority(cell, test))
        kinds[gamma] = next(of_most, "no majority")
    wanted = list(_KINDS)[:3]
    order = [wanted.index(kind) for kind in kinds.values() if kind in wanted]
    text = ", ".join(f"{gamma}: {kind}" for gamma, kind in kinds.items())
    return set(order) == {0, 1, 2} and order == sorted(order), text


def _poor_at_small_gamma(rows: Rows) -> tuple[bool, str]:
    gammas = _axis(rows, "gamma")
    poor = []
    for gamma in gammas:
        for depth in _axis(rows, "n_layers"):
            cell = _cell(rows, gamma=gamma, n_layers=depth)
            shares = [v for row in cell if (v := number_of(row, "id_accuracy")) is not None]
            if shares and sum(shares) / len(shares) < 0.9:
                poor.append((gamma, depth))
    text = ", ".join(f"gamma {gamma}, {depth} layers" for gamma, depth in poor) or "none"
    return bool(poor) and max(gamma for gamma, _ in poor) < gammas[len(gammas) // 2], text


DIAGRAMS: Mapping[str, Mapping[str, Check]] = {
    "decay": {
        "most seeds memorize at gamma 0.3 without weight decay":
            _mostly("memorizing", gamma=0.3, weight_decay=0.0),
        "most seeds are inferential at gamma 0.9, weight decay 1":
            _mostly("inferential", gamma=0.9, weight_decay=1.0),
        "OOD accuracy rises with gamma, at each weight decay (Spearman)":
            _trends("ood_accuracy", "weight_decay", sign=1),
        "the smallest gamma whose majority is inferential is smaller at weight decay 1 than at "
        "0.01": _less_gamma_with_more_decay,
        "the stable rank of W_Q L0, as a share of its initial value, falls with gamma, at each "
        "weight decay (Spearman)": _trends("rank_share", "weight_decay", sign=-1),
        "at weight decay 0.01 cells with good ID and poor OOD accuracy lie between memorizing and "
        "inferential ones": _phase_2_in_between,
    },
    "depth": {
        "inferential accuracy on (4, 3) rises with gamma, at each depth (Spearman)":
            _trends("ood_accuracy", "n_layers", sign=1),
        "symmetric accuracy on (4, 3) falls with gamma, at each depth (Spearman)":
            _trends("symmetric_accuracy", "n_layers", sign=-1),
        "the shaded zone (mean ID accuracy < 0.9) lies at the smallest gammas and is not empty":
            _poor_at_small_gamma,
    },
}  # fmt: skip
"""The expectations and what tells whether they hold, by the sweep's name."""
