"""Do fitted runs follow one function, or several?

The papers' figure 1 gives three solutions for the unseen pair. A *cell* is an unseen pair with one
key at one position; a run is a mixture if no function holds in nine of ten cells. Judged on fitted
random settings of both tasks, post-LayerNorm.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from claims import registered
from common import main
from effects import Mean, equal
from random_settings import RAW

FITTED = ("composite", "symmetric", "inferential")
CLAIMS = [
    registered(
        "maps-mixed", "most fitted runs are mixtures",
        Mean("mixed", equal(phase=FITTED), 0.5, runs=RAW, apart=("task",)),
        known=("settings-post",),
    ),
]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(__file__))
