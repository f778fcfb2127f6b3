"""Which property of a key or a position decides where a mixture follows the rule?

``--runs`` holds the runs of ``evidence/verdict.py``; those are measured that are neither memorizing
nor undertrained and whose accuracy on unseen pairs is 0.1 to 0.9.
"""

import numpy as np

from anchor_interp import Run, answer_map, sample
from anchor_interp.models.embeddings import key_embeddings
from claim_effects import Row, Rows
from common import table
from evidence.measured import mixtures

runs = mixtures
TITLES = {
    "held_out": "rule's share where the key is test data at its position, less that elsewhere",
    "frequency": "correlation with how often training has the key at the position",
    "embedding": "correlation of a key's share with that of its two nearest keys in the embedding",
    "numbers": "correlation of a key's share with that of the next smaller and larger key",
    "smallest": "rule's share of the smallest eighth of the keys, less that of all",
}


def measure(run: Run) -> Row:
    """How properties go with the rule's share, by key and position."""
    task, found = run.config.anchor_task, answer_map(run)
    follows = found.shares[..., 0].mean(0)  # [key, position]
    key, position = np.meshgrid(found.keys, np.arange(follows.shape[1]), indexing="ij")
    test, of_key = key % task.length == position, follows.mean(1)
    trained = sample(task, "train", run.config.train.n_sequences, seed=run.config.seed)
    counts = np.zeros_like(follows)
    np.add.at(counts, (trained.key.astype(int) - task.key_min, trained.position.astype(int)), 1)
    states = key_embeddings(run.transformer, task).numpy()
    states = states - states.mean(0)
    unit = states / np.linalg.norm(states, axis=1, keepdims=True)
    nearest = np.argsort(-(unit @ unit.T - 9 * np.eye(len(unit))), axis=1)[:, :2]
    number = np.arange(len(of_key))
    next_to = np.abs(number - number[:, None]) == 1
    numbers = {
        "held_out": follows[test].mean() - follows[~test].mean(),
        "frequency": _correlation(counts[~test], follows[~test]),
        "embedding": _correlation(of_key[nearest].mean(1), of_key),
        "numbers": _correlation(next_to @ of_key / next_to.sum(1), of_key),
        "smallest": of_key[: len(of_key) // 8].mean() - of_key.mean(),
    }
    return {name: float(n) for name, n in numbers.items()}


def _correlation(one: np.ndarray, two: np.ndarray) -> float:
    return float(np.corrcoef(one, two)[0, 1]) if one.std() * two.std() else 0.0


def report(rows: Rows) -> dict[str, object]:
    """The median and the range of every property."""
    values = {name: [row[name] for row in rows] for name in TITLES}
    lines = [[TITLES[name], f"{np.median(of):z.2f} ({min(of):z.2f} to {max(of):z.2f})"]
             for name, of in values.items()]  # fmt: skip
    return {"n": len(rows), "table": table(["property", "median (range)"], lines)}
