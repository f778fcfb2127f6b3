"""Draws the answer maps of some models: which function each applies, by key and its position.

``python -m evidence.answers [MODEL ...] --out FILE``: a model is a run folder or a specimen like
``tiny/composite/1``. What each map says in words goes to standard output.
"""

import argparse
from pathlib import Path

from anchor_interp import answer_map, load
from anchor_interp.pages.answer_figures import answer_maps
from anchor_interp.pages.style import save

MODELS = ("tiny/memorizing/1", "tiny/composite/1", "tiny/symmetric/1", "tiny/inferential/3")


def main() -> None:
    """Draw the maps that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--out", type=Path, default=Path("figures/answer-maps.png"))
    asked = parser.parse_args()
    maps = {}
    for model in asked.models:
        maps[model] = answer_map(load(model))
        print(f"{model}: {maps[model].sentence}")
    print(f"figure: {save(answer_maps(maps), asked.out)}")


if __name__ == "__main__":
    main()
