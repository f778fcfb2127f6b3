"""Language models of GPT-2 small's width: our step against the plain loop, in turns, one thread.

Both take the same windows of random tokens, at d_model 768 with 12 heads. The plain
loop is what a user of TransformerLens writes: ``model(tokens)``, cross-entropy on every next token,
AdamW, clipping. The share of the core's product rate is that of :mod:`train_step`: the time that
the step's float32 products take alone, at the same shapes, over the time of the step.

    python benchmarks/language.py --json
    python benchmarks/language.py --table docs/evidence/language_speed.json
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from anchor_interp.models.shapes import MODELS
from anchor_interp.models.transformer import build_model
from anchor_interp.realistic.corpus import Corpus
from anchor_interp.runs.config import RunConfig, TrainConfig, override
from anchor_interp.runs.loop import TrainState
from anchor_interp.runs.objectives import MaskedObjective
from anchor_interp.runs.schedule import learning_rate
from anchor_interp.tasks.examples import Dataset
from measuring import Kept, Row, answer, machine, number, of_range, ratio, table
from train_step import fastest_product, products_alone, stepper

AIM = 1.5
"""What our step is meant to reach against the plain loop."""


@dataclass(frozen=True)
class Case:
    """A depth, vocabulary and batch."""

    name: str
    n_layers: int
    vocabulary: int
    batch: int
    length: int
    precision: Literal["float32", "bf16"] = "float32"


CASES = (
    Case("4 layers, bytes, short windows", 4, 257, 4, 256),
    Case("4 layers, bytes", 4, 257, 1, 1024),
    Case("4 layers, bytes, bf16", 4, 257, 1, 1024, "bf16"),
    Case("4 layers", 4, 50_257, 1, 1024),
    Case("GPT-2 small", 12, 50_257, 1, 1024),
)
"""GPT-2 small has 12 layers, 50,257 tokens and windows of 1,024. The plain loop is in float32."""


def configured(case: Case) -> RunConfig:
    """The run whose steps are timed."""
    tokenizer = "bytes" if case.vocabulary == 257 else "bpe"
    task = Corpus(tokenizer=tokenizer, vocabulary=case.vocabulary, length=case.length)
    train = TrainConfig(
        n_sequences=16 * case.batch, batch_size=case.batch, weight_decay=0.1,
        precision=case.precision,
    )  # fmt: skip
    config = RunConfig(task, MODELS["language-small"], train=train)
    return override(
        config, n_layers=case.n_layers, d_vocab=case.vocabulary, n_ctx=case.length, gamma=0.8
    )


def windows(config: RunConfig) -> Dataset:
    """Random tokens: what they are changes no time."""
    shape = config.train.n_sequences, config.task.length + 1
    tokens = np.random.default_rng(0).integers(0, config.task.n_tokens, shape, np.uint16)
    asked = np.broadcast_to(np.arange(shape[1]) > 0, shape)
    return Dataset(tokens, asked, np.broadcast_to(np.int64(shape[1]), shape[0]))


def measure(case: Case, turns: int) -> Row:
    """Time both loops in turns; all times in seconds of the processor per step."""
    config, cpu = configured(case), torch.device("cpu")
    objective = MaskedObjective(config, windows(config), cpu)
    our_step = stepper(TrainState.fresh(config, cpu), objective)
    plain = build_model(config.model, config.init, seed=config.seed)
    optimizer = torch.optim.AdamW(plain.parameters(), weight_decay=config.train.weight_decay)

    def plain_step(step: int) -> None:
        drawn = objective.training.rows(objective.rows(step)).tokens.astype(np.int64)
        tokens = torch.from_numpy(drawn)
        optimizer.param_groups[0]["lr"] = learning_rate(config.train, step)
        logits = plain(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(plain.parameters(), config.train.clip or float("inf"))
        optimizer.step()

    shapes = products(config)
    flops = sum(2 * m * k * n * count for (m, k, n), count in shapes.items())
    times: dict[str, list[float]] = {"ours": [], "plain": [], "mm": [], "fastest": []}
    for turn in range(turns + 1):
        found = {
            "ours": timed(our_step, turn),
            "plain": timed(plain_step, turn),
            "mm": products_alone(shapes, config, torch.mm, time.process_time),
            "fastest": products_alone(shapes, config, fastest_product(config), time.process_time),
        }
        if turn:  # the first turn warms up
            for name, value in found.items():
                times[name].append(value)
    median = {name: statistics.median(values) for name, values in times.items()}
    n_tokens, against = case.batch * case.length, ratio(times["plain"], times["ours"])
    return vars(case) | {
        "d_model": config.model.d_model,
        "ratio": against,
        "aim": AIM,
        "met": against["median"] >= AIM,
        "tokens_per_second": n_tokens / median["ours"],
        "plain_tokens_per_second": n_tokens / median["plain"],
        "gflop_executed": flops / 1e9,
        "share_of_torch_mm": ratio(times["mm"], times["ours"]),
        "share_of_fastest": ratio(times["fastest"], times["ours"]),
    }


def timed(step: Callable[[int], object], index: int) -> float:
    """Seconds of the processor for one step; other work on the machine changes them less."""
    began = time.process_time()
    step(index)
    return time.process_time() - began


def products(config: RunConfig) -> dict[tuple[int, int, int], int]:
    """(m, k, n) of every matrix product of our step but attention's own, with its count."""
    shape, places = config.model, config.train.batch_size * config.task.length
    heads = shape.n_heads * shape.d_head
    of_layer = [
        (places, shape.d_model, 3 * heads), (places, heads, shape.d_model),
        (places, shape.d_model, shape.d_mlp), (places, shape.d_mlp, shape.d_model),
    ]  # fmt: skip
    executed: dict[tuple[int, int, int], int] = {}
    for m, k, n in [*of_layer * shape.n_layers, (places, shape.d_model, shape.d_vocab)]:
        for product in ((m, k, n), (m, n, k), (k, m, n)):  # forward, both gradients
            executed[product] = executed.get(product, 0) + 1
    return executed


def tables(found: Row) -> dict[str, str]:
    """The JSON as one table."""
    lines = [
        [row["name"], f"{row['batch']} x {row['length']}",
         f"{number(row['tokens_per_second'], 3)} tokens/s", of_range(row["ratio"]),
         *(number(row[f"share_of_{name}"]["median"], 2) for name in ("torch_mm", "fastest"))]
        for row in found["cases"]
    ]  # fmt: skip
    head = ["case", "batch", "ours", "ratio", "of `torch.mm`", "of the fastest product"]
    return {"cases": table(head, lines)}


def measured(options: argparse.Namespace) -> Row:
    """All cases as one JSON object."""
    torch.set_num_threads(1)
    found: Row = {"schema": 1, "machine": machine(), "cases": []}
    kept = Kept("language_speed", options.turns)
    for case in CASES[: options.cases]:
        if case.precision == "bf16" and not found["machine"]["bf16"]:
            continue
        row = kept.row(case.name, functools.partial(measure, case, options.turns))
        found["cases"].append(row)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print FILE's JSON as a table")
    parser.add_argument("--turns", type=int, default=3, help="interleaved turns")
    parser.add_argument("--cases", type=int, default=len(CASES), help="how many, smallest first")
    options = parser.parse_args(arguments)
    if min(options.turns, options.cases) < 1:
        parser.error("--turns and --cases expect numbers from 1")
    answer(parser, options, measured, tables)


if __name__ == "__main__":
    main()
