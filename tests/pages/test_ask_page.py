"""The page of models that answer: its forward pass against PyTorch, its controls in a browser."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from watched_page import Watched

from anchor_interp._util.errors import ConfigError
from anchor_interp.behaviour.answer_map import AnswerMap
from anchor_interp.behaviour.answers import known_functions
from anchor_interp.cli.main import main
from anchor_interp.interventions.masks import mask_position
from anchor_interp.models.forward import last_logits
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer import build_model
from anchor_interp.pages.ask_page import model_data, write_ask
from anchor_interp.pages.page import template_text
from anchor_interp.runs.run import Run, load
from anchor_interp.sweeps.sweep import load_sweep  # noqa: F401
from anchor_interp.tasks.anchor import TASKS, AnchorTask
from anchor_interp.tasks.sequences import Sequences, sample

NAMES = ("tiny/memorizing/1", "tiny/symmetric/1", "tiny/inferential/1")
TOLERANCE = {"<f2": 1e-2, "<f4": 1e-4}
COMPUTE = """([data, half_precision, rows, hidden]) => {
  const bytes = bytesOf(data.weights).buffer;
  const values = half_precision ? Float32Array.from(new Uint16Array(bytes), half) : new Float32Array(bytes);
  const model = { shape: data.shape, weights: weightsOf(values, data.sizes) };
  return rows.map((tokens, row) => {
    const { logits, patterns } = forward(model, tokens, hidden[row]);
    return { logits: [...logits], patterns: patterns.map((edges) => [...edges]) };
  });
}"""


@pytest.fixture(scope="module")
def calculator(browser: Any) -> Any:
    """A browser's page with the forward pass."""
    shown = browser.new_page()
    shown.add_script_tag(content=template_text("forward.js"))
    return shown


def computed(calculator: Any, run: Any, sequences: Sequences, hide: str = "", dtype: str = "<f4") -> Any:
    away = {"key": 0, "second": 2}
    hidden = [[int(p) + away[hide]] if hide else [] for p in sequences.position]
    data = [model_data(run, dtype), dtype == "<f2", sequences.tokens.tolist(), hidden]
    rows = calculator.evaluate(COMPUTE, data)
    n = sequences.tokens.shape[1]
    patterns = np.array([row["patterns"] for row in rows])
    return np.array([row["logits"] for row in rows]), patterns.reshape(*patterns.shape[:2], n, n)
