"""Trained models that come with the package: three specimens of every recipe.

``anchor_interp.load("tiny/inferential/1")`` opens one like any other run, but with its last
checkpoint only. A name is ``tiny``, a recipe of :data:`anchor_interp.runs.presets.RECIPES` and a
number from 1 to 3. An existing folder of that name goes first.

A fixed rule chose them: the first three seeds whose final checkpoint has the recipe's phase with
its margin, from 600 on for the symmetric recipes and from 200 on for the others. So a specimen
shows what a phase looks like, not how often a recipe leads there: counts and tests need all seeds
(``docs/evidence/recipes.md`` has ten of every recipe).

``experiments/evidence/zoo.py`` makes them. The weights are rounded to float16, and ``result.json``
evaluates the rounded ones; ``provenance.json`` has the SHA-256 of the float32 weights.
"""

from pathlib import Path

from anchor_interp._util.errors import StoreError, raising
from anchor_interp._util.files import is_there
from anchor_interp._util.schema import check_name

SPECIMENS = Path(__file__).parent / "specimens"
"""One run folder per specimen, and ``SHA256SUMS``."""


def names() -> list[str]:
    """The names of all specimens."""
    files = SPECIMENS.glob("tiny/*/*/config.json")
    return sorted(path.parent.relative_to(SPECIMENS).as_posix() for path in files)


def find(path: Path) -> Path:
    """The folder of a specimen's name; any other path is returned unchanged."""
    if path.parts[:1] != ("tiny",) or is_there(path):
        return path
    with raising(StoreError, ""):
        check_name(path.as_posix(), names(), "no folder and no specimen")
    return SPECIMENS / path
