"""Do fitted runs follow one function, or several?

The papers' figure 1 gives three solutions for the unseen pair. A *cell* is an unseen pair with one
key at one position; a run is a mixture if no function holds in nine of ten cells. Judged on fitted
random settings of both tasks, post-LayerNorm.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from claim_effects import Mean, equal, grouped, values_of
from claims import registered
from common import Panels
from drawing import strips
from figure import main
from random_settings import RAW
from studies import Data

FITTED = ("composite", "symmetric", "inferential")
CLAIMS = [
    registered("maps-mixed", "most fitted runs are mixtures, on one task of two",
        Mean("mixed", equal(phase=FITTED), 0.5, runs=RAW, apart=("task",)),
        known=("settings-post",)),
]  # fmt: skip


def draw(data: Data) -> Panels:
    """Which runs are mixtures, by task, and how much cells explain of where the rule holds."""
    fitted = [*filter(equal(phase=FITTED), data.rows(*RAW))]
    tasks = grouped(fitted, ("task",)).items()
    labels = {"mixed": "no function in 9 of 10 cells", "by_cell": "variance that cells explain"}
    panels = []
    for name, label in labels.items():
        values = {task: values_of(rows, name) for (task,), rows in tasks}
        panels.append((label, strips(values, label, reference=0.5)))
    return [panels]


if __name__ == "__main__":
    raise SystemExit(main(__file__))
