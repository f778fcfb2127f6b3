"""Pictures of the README and of docs: the probe sequence with circuits, and maps of answers.

``python -m evidence.pictures`` draws the circuits of a symmetric and an inferential specimen on
the papers' probe sequence (NeurIPS paper, figures 3a and 3c) side by side as
``figures/routes.png``, and prints them. With models, run folders or specimens such as
``tiny/composite/1``, it draws their maps of answers: which function each applies, by key and its
position. ``figures/answer-maps.png`` has
``tiny/memorizing/1 tiny/composite/1 tiny/symmetric/1 tiny/inferential/3``. ``FOLDER@STEP`` is a
checkpoint of a run; its map has the step as its title.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from anchor_interp import answer_map, load, prune
from anchor_interp._util.files import write_output
from anchor_interp.analysis.flow import information_flow
from anchor_interp.pages import mechanism_figures as plotting
from anchor_interp.pages.answer_figures import answer_maps
from anchor_interp.pages.style import save
from anchor_interp.tasks.sequences import PROBE
from common import montage
from evidence.circuit_sizes import bench

FIGURES = Path(__file__).parents[2] / "figures"


def main() -> None:
    """Draw what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--out", type=Path, default=FIGURES / "answer-maps.png")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    maps = {}
    for model in asked.models:
        name, _, step = model.partition("@")
        run = load(name)
        maps[f"step {step}" if step else name] = answer_map(run.at(int(step)) if step else run)
    for model, found in maps.items():
        print(f"{model}: {found.sentence}")
    if maps:
        print(f"figure: {save(answer_maps(maps), asked.out)}")
        return
    panels = []
    for letter, phase in {"B": "symmetric", "C": "inferential"}.items():
        run = load(f"tiny/{phase}/1")
        circuit = prune(bench(run, 0, 200))  # sequences with the key where the probe has it
        flow = information_flow(run.model, PROBE)
        flow = replace(
            flow, attention=flow.attention * circuit.edges
        )  # the other lines only hide it
        panels.append((f"as {letter}: {phase}", plotting.information_flow(flow, circuit)))
        print(f"{phase}: {circuit.size} edges: {'; '.join(circuit.names)}")
    write_output(FIGURES / "routes.png", montage([panels]))


if __name__ == "__main__":
    main()
