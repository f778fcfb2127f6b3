"""The papers' probe sequence in a symmetric and in an inferential checkpoint of the zoo.

Source: NeurIPS paper, figures 3a and 3c. Writes figures/probe-symmetric.png and
figures/probe-inferential.png, and prints the circuits::

    python -m evidence.probe
"""

from pathlib import Path

import torch

from anchor_interp import load
from anchor_interp.analysis.circuits import prune
from anchor_interp.analysis.flow import information_flow
from anchor_interp.pages import mechanism_figures as plotting
from anchor_interp.pages import style
from anchor_interp.tasks.sequences import PROBE
from evidence.circuit_sizes import bench

FIGURES = Path(__file__).parents[2] / "figures"
SEQUENCES = 200


def main() -> None:
    """Prune a circuit on sequences with the key where the probe has it, and draw the probe."""
    torch.set_num_threads(1)
    for phase in ("symmetric", "inferential"):
        run = load(f"tiny/{phase}/1")
        circuit = prune(bench(run, 0, SEQUENCES))
        flow = information_flow(run.model, PROBE)
        path = FIGURES / f"probe-{phase}.png"
        style.save(plotting.information_flow(flow, circuit), path)
        print(f"{path.name}: {circuit.size} edges: {'; '.join(circuit.names)}")


if __name__ == "__main__":
    main()
