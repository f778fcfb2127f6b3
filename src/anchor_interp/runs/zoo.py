"""Trained models that come with the package: three specimens of every recipe.

``anchor_interp.load("tiny/inferential/1")`` opens one like any other run: its model, configuration,
metrics and evaluation are there, of its checkpoints the last alone
(:attr:`anchor_interp.runs.run.Run.initial` builds the first anew). A name is ``tiny``, a recipe of
:data:`anchor_interp.runs.presets.RECIPES` and a number from 1 to 3.

The rule by which they were chosen is fixed: of the seeds 200, 201, ... that the recipes were
judged on, the first three whose final checkpoint is of the recipe's phase and keeps its margin
(``docs/evidence/recipes.md``, which tells of all ten). So they show what a phase looks like, and
say nothing of how often a recipe leads there: what is counted or tested needs all seeds.

The weights were rounded to float16, and the evaluation in ``result.json`` is that of the rounded
ones. ``provenance.json`` has the training's sessions and a last entry about the rounding, with the
SHA-256 of the weights as they were trained. ``experiments/zoo.py`` makes the specimens, and
``SHA256SUMS`` beside them has the checksum of every file. Nothing is written when one is loaded.

A folder goes before a name: where ``tiny/inferential/1`` exists in the working directory, that is
what is loaded, as with any other path.
"""

from pathlib import Path

from anchor_interp._util.errors import StoreError
from anchor_interp._util.files import is_there
from anchor_interp._util.schema import suggestion

SPECIMENS = Path(__file__).parent / "specimens"
"""Where they lie: one run folder a specimen, and ``SHA256SUMS``."""


_COLLECTION = "tiny"


def names() -> list[str]:
    """The names of all specimens."""
    found = SPECIMENS.glob(f"{_COLLECTION}/*/*/config.json")
    return sorted(path.parent.relative_to(SPECIMENS).as_posix() for path in found)


def find(path: Path) -> Path:
    """The folder that a path or a specimen's name stands for.

    Args:
        path: what a user gave; anything but the name of a specimen is returned as it is.

    Raises:
        StoreError: nothing lies there, and it begins like a specimen's name but is none.
    """
    if path.parts[:1] != (_COLLECTION,) or is_there(path):
        return path
    known = names()
    if path.as_posix() not in known:
        close = suggestion(path.as_posix(), known)
        recipes = ", ".join(sorted({name.split("/")[1] for name in known}))
        raise StoreError(
            f"there is no folder {path} and no specimen of that name{close}; specimens are "
            f"{_COLLECTION}/RECIPE/NUMBER with a number from 1 to 3 and the recipes {recipes}"
        )
    return SPECIMENS / path
