"""A page of models that answer: whoever reads it picks a sequence, and all answer it there.

It holds their weights and computes them by itself (``templates/forward.js``): it needs no server.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anchor_interp._util.files import write_output
from anchor_interp._util.schema import checked_path
from anchor_interp.behaviour.answer_map import known_functions
from anchor_interp.behaviour.answer_map_numbers import OTHER_ORDER
from anchor_interp.pages.answer_figures import ANOTHER, WORDS, colours_of
from anchor_interp.pages.page import fill_page, template_text
from anchor_interp.tasks.sequences import PROBE_POSITION, draw_noise

if TYPE_CHECKING:
    from anchor_interp.analysis.ask_data import Asked


def write_ask(models: Sequence["Asked"], out: str | Path) -> Path:
    """Write the page of one or more models; StoreError if the file cannot be written."""
    out = checked_path(out, "out")
    write_output(out, render_ask(models).encode("utf-8", "replace"))
    return out


def render_ask(models: Sequence["Asked"]) -> str:
    """The page as HTML."""
    task = models[0].task
    names, values = known_functions(task, task.pairs)
    colours = colours_of(model.answers for model in models)
    data = {
        "low": task.key_min,
        "pairs": task.pairs,
        "roles": [task.role(pair) for pair in task.pairs],
        "noise": draw_noise(task, 1, keys="all", seed=0, stream="ask")[0].tolist(),
        "start": {"key": task.key_max, "place": min(PROBE_POSITION, task.length - 3)},
        "functions": [
            {"name": WORDS.get(name, name), "colour": colours.get(name, colours[ANOTHER])}
            for name in names
        ],
        "other": names.index(OTHER_ORDER) if OTHER_ORDER in names else -1,
        "values": _base64(values.astype("<i2")),
        "models": [model_data(model) for model in models],
    }
    scripts = [template_text(name) for name in ("forward.js", "ask.js")]
    return fill_page(
        "ask.html.jinja", [], styles=["ask.css"], title="Ask the models", task=task,
        names=[model.name for model in models], data=data, scripts=scripts,
    )  # fmt: skip


def model_data(model: "Asked") -> dict[str, Any]:
    """A model as the scripts read it."""
    values = np.concatenate([weight.ravel() for weight in model.weights.values()])
    return {
        "name": model.name,
        "shape": model.shape,
        "sizes": [(name, weight.size) for name, weight in model.weights.items()],
        "halves": values.dtype == np.float16,
        "weights": _base64(values),
        "map": _base64(model.answers.holding.astype(np.uint8)),
    }


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")
