"""A measure of one's own: a function of a run is a column of a sweep's table, and a map.

python examples/own_measure.py runs/measured
anchor-interp diagram runs/measured --out runs/measured-diagram --map key_at_first
"""

import sys

import anchor_interp as ai
from anchor_interp.runs.measurements import column_measure
from anchor_interp.sweeps import spec, sweep


def key_at_first(run: ai.Run) -> float:
    """The attention that the first anchor pays to the key in layer 0, mean over heads."""
    some = ai.aligned_sequences(run.config.anchor_task, 2, 100, seed=0)  # the key is at position 2
    return float(run.model.run_with_cache(some.tensor)[1]["pattern", 0][:, :, 3, 2].mean())


if __name__ == "__main__":
    out, *steps = sys.argv[1:] or sys.exit(__doc__)
    start = ai.preset("tiny", steps=int((steps or ["3000"])[0]))
    plan = spec.Sweep((spec.Grid(start, {"gamma": (0.4, 0.8)}),))
    done = sweep.sweep(plan, out, measures=[column_measure(f"{__file__}:key_at_first")])
    print(done.table()[["gamma", "phase", "key_at_first"]])
