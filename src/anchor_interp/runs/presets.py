"""Named runs; shapes are in :mod:`anchor_interp.models.shapes`, tasks in ``tasks.catalog``.

A run on a task of the room ``realistic`` names it, and is made when it is asked for.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from anchor_interp._util.schema import check_name, checked
from anchor_interp.models.shapes import MODELS, ModelConfig
from anchor_interp.runs.config import RunConfig, TrainConfig, override
from anchor_interp.tasks.anchor import TASKS
from anchor_interp.tasks.catalog import Catalog, named_task


def _paper(multiplier: float) -> TrainConfig:
    """210 epochs of 900,000 sequences: 10 of warm-up, 200 of cosine (both papers, appendix A)."""
    return TrainConfig(
        n_sequences=900_000, batch_size=2048, steps=round(210 * 900_000 / 2048),
        lr=1e-5 * multiplier, lr_start=1e-5, lr_end=1e-5, warmup=10 / 210,
        log_every=100, eval_every=1_000, checkpoint_every=2_000,
    )  # fmt: skip


def _language(**changes: Any) -> TrainConfig:
    """512 windows a step, with GPT-2's warm-up and second moment."""
    usual = TrainConfig(
        n_sequences=1_000, batch_size=512, lr=6e-4, lr_end=6e-5, warmup=0.02, beta2=0.95,
        weight_decay=0.1, eval_every=1_000, checkpoint_every=2_000,
    )  # fmt: skip
    return replace(usual, **changes)


_TASK, _NEURIPS = TASKS["complexity-control"], TASKS["neurips"]
_PRE = ModelConfig(normalization="pre", act_fn="gelu")
_SMALL_DATA = RunConfig(_TASK, _PRE, train=TrainConfig(n_sequences=5_000, lr=2e-3, steps=3_000))
_NARROW = override(
    RunConfig(_TASK, ModelConfig(d_model=64, d_head=32, d_mlp=128)),
    n_sequences=30_000, batch_size=128, lr=1.5e-3, gamma=0.6, weight_decay=0.4,
)  # fmt: skip
_DEEPER = RunConfig(_NEURIPS, replace(_PRE, n_layers=4), train=TrainConfig(steps=3_000))

RECIPES: Mapping[str, RunConfig] = MappingProxyType(
    {
        "memorizing": override(_SMALL_DATA, gamma=0.3, weight_decay=0.01),
        "composite": override(RunConfig(_TASK), steps=2_500, gamma=0.3, weight_decay=0.01),
        "symmetric": _NARROW,
        "inferential": override(_SMALL_DATA, gamma=0.9, weight_decay=0.5),
        "neurips-memorizing": override(_SMALL_DATA, task=_NEURIPS, gamma=0.3, weight_decay=0.01),
        "neurips-symmetric": override(_NARROW, task=_NEURIPS),
        "neurips-inferential": override(_DEEPER, gamma=0.6, weight_decay=1.0),
    }
)
"""One run for each phase of each task, one to three minutes each on one core.

Memorizing and inferential are pre-LayerNorm models on 5,000 sequences and differ in gamma and
weight decay alone. Composite and symmetric have the papers' post-LayerNorm layout: composite is 128
wide and has 100,000 sequences, symmetric is 64 wide and has 30,000. On the NeurIPS task an
inferential model must also learn the exception (3, 4): with two or three layers the exception
spreads to (4, 3) for some seeds, so the recipe has four. ``docs/evidence/recipes_search.md`` lists
what else was tried, ``recipes.md`` how each recipe does on ten fresh seeds."""

QUICKSTART: Mapping[str, RunConfig] = MappingProxyType(
    {name: RECIPES[name] for name in ("memorizing", "symmetric", "inferential")}
)
"""The recipes of the quickstart."""


def _on(task: str, model: ModelConfig, train: TrainConfig, **changes: Any) -> RunConfig:
    """A run on a named task with some fields changed."""
    return RunConfig(replace(named_task(task), **changes), model, train=train)


_RUNS: dict[str, Any] = {
    "tiny": RunConfig(_TASK),
    **RECIPES,
    "paper-1head": RunConfig(_NEURIPS, MODELS["paper-1head"], train=_paper(25)),
    "paper-gpt2": RunConfig(_TASK, MODELS["paper-gpt2"], train=_paper(15)),
    "scan": partial(
        _on,
        "scan-turn-left",
        replace(_PRE, n_heads=4, d_model=64, d_head=16, d_vocab=21, n_ctx=58),
        TrainConfig(n_sequences=4_400, batch_size=64, lr=2e-3, steps=2_000),
    ),
    "cogs": partial(
        _on,
        "cogs",
        replace(_PRE, n_heads=4, d_model=64, d_head=16, d_vocab=827, n_ctx=600),
        TrainConfig(n_sequences=24_155, batch_size=64, lr=2e-3, steps=5_000, eval_every=500),
        exposures=100,
    ),
    "addition": partial(
        _on, "addition-100", ModelConfig(), TrainConfig(n_sequences=8_559, lr=2e-3, steps=5_000)
    ),
    "prontoqa": partial(
        _on,
        "prontoqa-faithful",
        replace(_PRE, n_heads=4, d_model=64, d_head=16, d_vocab=50, n_ctx=229),
        TrainConfig(n_sequences=1_000, batch_size=32, lr=2e-3, steps=1_500),
        hops=2,
        chain_of_thought=False,
    ),
    "language-tiny": partial(
        _on,
        "corpus-both",
        MODELS["language-tiny"],
        TrainConfig(n_sequences=40_000, batch_size=32, lr=2e-3, steps=2_000, eval_every=250),
        length=128,
    ),
    "language-small": partial(
        _on,
        "corpus-both",
        replace(MODELS["language-small"], d_vocab=8_192),
        _language(n_sequences=2_000, batch_size=64, steps=2_000),
        tokenizer="bpe",
        vocabulary=8_192,
        length=1_024,
    ),
    "language-medium": partial(
        _on,
        "corpus-code",
        MODELS["language-medium"],
        _language(steps=75_000, n_sequences=39_000_000, lr=3e-4, precision="bf16"),
        source="hub:cerebras/SlimPajama-627B",
        tokenizer="bpe",
        vocabulary=50_257,
        length=1_024,
        limit=40 * 10**9,
    ),
}
RUNS: Catalog[RunConfig] = Catalog(_RUNS)
"""Complete runs. The ``paper-`` runs have the papers' settings at gamma 0.5. ``scan`` is the task
of the complexity-control paper's figure 7A at a scale of minutes: about a fifth of its commands.
``cogs`` is figure 7B's, with sentences of our own or, with ``data="official"``, the official
training set; ``addition`` is figure 7C's on a hundredth of its pairs, all of which it trains on;
``prontoqa`` is figure 7E's with judgements alone, on so few worlds that a model can memorise
them. ``language-`` runs are figure 7D's: ``tiny`` and ``small`` on a corpus that every machine has,
Python's own library, ``medium`` on 40 billion tokens of SlimPajama."""


def preset(name: str, **changes: Any) -> RunConfig:
    """A named run, with some fields changed by their own names.

    For example ``preset("tiny", gamma=0.9, weight_decay=0.5, task="neurips", seed=1)``.
    """
    check_name(name, RUNS, "no preset")
    if isinstance(changes.get("task"), str):
        changes["task"] = named_task(changes["task"])
    return override(RUNS[name], **changes)


def name_preset(name: str, config: RunConfig) -> None:
    """Make a run of one's own known under a name, in this process, as a module of tasks may do."""
    RUNS[checked(name, str, "the preset's name")] = checked(config, RunConfig, "config")
