"""A page of models that answer: whoever reads it picks a sequence, and all answer it there.

It holds their weights in half precision and computes them by itself (``templates/forward.js``), so
that it needs no server.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.files import write_output
from anchor_interp._util.schema import checked_path
from anchor_interp.behaviour.answers import known_functions
from anchor_interp.models.shapes import ModelConfig
from anchor_interp.pages.answer_figures import ANOTHER, WORDS, colours_of
from anchor_interp.pages.page import fill_page, template_text
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.rules import require_anchors
from anchor_interp.tasks.sequences import PROBE_POSITION, draw_noise

if TYPE_CHECKING:
    from anchor_interp.behaviour.answer_map import AnswerMap
    from anchor_interp.runs.run import Run

_MOST_PARAMETERS = 4_000_000
_SHAPE = ("n_layers", "n_heads", "d_model", "d_head", "act_fn", "attn_scale", "eps")
_CONSTANTS = ("attn.mask", "attn.IGNORE")


def write_ask(runs: Mapping[str, "Run"], maps: Mapping[str, "AnswerMap"], out: str | Path) -> Path:
    """Write the page; ``maps`` are of all pairs, by the names of the runs.

    Raises:
        ConfigError: see :func:`check_runs`.
        StoreError: the file cannot be written.
    """
    check_runs(runs)
    write_output(checked_path(out, "out"), render_ask(runs, maps).encode("utf-8", "replace"))
    return Path(out)


def check_runs(runs: Mapping[str, "Run"]) -> None:
    """ConfigError unless all runs have one task of anchors and models that the page can compute."""
    first, *_ = runs
    for name, run in runs.items():
        task, model = require_anchors(run.config.task, "ask"), run.config.model
        if task != runs[first].config.task:
            raise ConfigError(f"{name} has another task than {first}; ask runs of one task")
        if run.path is None or not isinstance(model, ModelConfig):
            raise ConfigError(f"{name} is not a trained transformer, which the page computes")
        if model.n_parameters > _MOST_PARAMETERS:
            size = f"{model.n_parameters:,} parameters"
            raise ConfigError(f"{name} has {size}; the page computes at most {_MOST_PARAMETERS:,}")


def render_ask(runs: Mapping[str, "Run"], maps: Mapping[str, "AnswerMap"]) -> str:
    """The page as HTML."""
    task: AnchorTask = next(iter(runs.values())).config.anchor_task
    names, values = known_functions(task, task.pairs)
    colours = colours_of(maps.values())
    noise = draw_noise(task, 1, keys="all", seed=0, stream="ask")[0]
    return fill_page(
        "ask.html.jinja",
        [],
        styles=["ask.css"],
        title="Ask the models",
        task=task,
        runs=runs,
        scripts=[template_text(name) for name in ("forward.js", "ask.js")],
        data={
            "low": task.key_min,
            "pairs": task.pairs,
            "roles": [task.role(pair) for pair in task.pairs],
            "noise": noise.tolist(),
            "start": {"key": task.key_max, "place": min(PROBE_POSITION, task.length - 3)},
            "functions": [
                {"name": WORDS.get(name, name), "colour": colours.get(name, colours[ANOTHER])}
                for name in names
            ],
            "values": _base64(values.astype("<i2")),
            "models": [model_data(run) | {"name": name, "map": _base64(maps[name].holding.astype("u1"))}
                       for name, run in runs.items()],
        },
    )  # fmt: skip


def model_data(run: "Run", dtype: str = "<f2") -> dict[str, Any]:
    """Shape and weights of a run's model, as ``forward.js`` reads them."""
    cfg, weights = run.model.cfg, run.model.state_dict()
    kept = {
        name: value.detach().cpu().numpy()
        for name, value in weights.items()
        if not name.endswith(_CONSTANTS)
    }
    shape = {name: getattr(cfg, name) for name in _SHAPE}
    return {
        "shape": shape | {"normalization": run.config.model.normalization},
        "sizes": [(name, value.size) for name, value in kept.items()],
        "weights": _base64(np.concatenate([v.ravel() for v in kept.values()]).astype(dtype)),
    }


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")
