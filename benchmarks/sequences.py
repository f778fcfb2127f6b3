"""Tasks of sequences on one thread: a training step, its data, and decoding, each in turns.

* **step**: ours against the plain loop of a user of TransformerLens on the same training set:
  batches in the order of the epoch, padded to their longest sequence, ``model(tokens)``,
  cross-entropy on the masked tokens, clipping, AdamW.
* **data**: making the batches of our steps, as a share of the step; and drawing the training set
  once, as a share of the preset's run.
* **decoding**: greedy answers with the cache against reading every sequence anew. No answer ends
  before ``most`` tokens, so both write equally many.

    python benchmarks/sequences.py --json
    python benchmarks/sequences.py --table docs/evidence/sequences.json
"""

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from anchor_interp.models.decoding import generate
from anchor_interp.models.shapes import InitConfig
from anchor_interp.models.transformer import build_model
from anchor_interp.runs.loop import TrainState, train_step
from anchor_interp.runs.objectives import WINDOW, draw_training, make_objective
from anchor_interp.runs.presets import RUNS
from anchor_interp.runs.schedule import learning_rate
from anchor_interp.tasks.hashing import batch_indices
from measuring import Row, answer, in_turns, machine, number, of_range, ratio, seconds, table

STEP_AIM, DATA_AIM, DECODING_AIM = 2.0, 0.05, 5.0
PRESETS = ("scan", "cogs")  # whose steps are measured; decoding has the model of the last
_PROMPT, _MOST, _ROWS = 12, 150, 16


def measure_step(name: str, turns: int) -> Row:
    """Our step of a preset and the plain loop, one window of batches a turn."""
    config, cpu = RUNS[name], torch.device("cpu")
    began = time.perf_counter()
    training = draw_training(config)
    drawing = time.perf_counter() - began
    objective, state = make_objective(config, cpu, training), TrainState.fresh(config, cpu)
    plain = build_model(config.model, config.init, seed=config.seed)
    optimizer = torch.optim.AdamW(plain.parameters(), weight_decay=config.train.weight_decay)

    def plain_step(step: int) -> None:
        rows = batch_indices(step, config.train.batch_size, len(training), seed=config.seed)
        batch = training.rows(rows)
        tokens = torch.from_numpy(batch.tokens.astype(np.int64))
        mask = torch.from_numpy(batch.mask[:, 1:])
        optimizer.param_groups[0]["lr"] = learning_rate(config.train, step)
        loss = F.cross_entropy(plain(tokens[:, :-1])[mask], tokens[:, 1:][mask])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(plain.parameters(), config.train.clip or float("inf"))
        optimizer.step()

    steps: dict[str, Callable[[int], object]] = {
        "ours": lambda _: train_step(state, objective),
        "plain": plain_step,
        "data": lambda step: objective.parts(10**6 + step),
    }
    times: dict[str, list[float]] = {case: [] for case in steps}
    for turn in range(turns + 1):
        for case, step in steps.items():
            found = seconds(functools.partial(_at, step, turn * WINDOW), WINDOW)
            if turn:  # the first turn warms up
                times[case].append(found)
    median = {case: statistics.median(values) for case, values in times.items()}
    share = median["data"] / median["ours"]
    return {
        "ratio": ratio(times["plain"], times["ours"]),
        "aim": STEP_AIM,
        "met": ratio(times["plain"], times["ours"])["median"] >= STEP_AIM,
        "step_ms": 1e3 * median["ours"],
        "plain_step_ms": 1e3 * median["plain"],
        "data_share": share,
        "data_aim": DATA_AIM,
        "data_met": share <= DATA_AIM,
        "drawing_share": drawing / (median["ours"] * config.train.steps),
    }


def _at(step: Callable[[int], object], first: int, index: int) -> object:
    return step(first + index)


def measure_decoding(turns: int) -> Row:
    """Decoding with and without a cache at the lengths of COGS."""
    shape = RUNS[PRESETS[-1]].model
    model = build_model(shape, InitConfig(), seed=0)
    with torch.no_grad():
        model.unembed.b_U[0] = -1e4  # the end token never comes
    tokens = np.random.default_rng(0).integers(1, shape.d_vocab, (_ROWS, _PROMPT)).tolist()

    def decoded() -> list[tuple[int, ...]]:
        return generate(model, tokens, end=0, most=_MOST)

    def uncached() -> list[tuple[int, ...]]:
        with model.hooks(fwd_hooks=[("hook_embed", lambda *_, **__: None)]):
            return decoded()  # with a hook attached nothing is cached

    times = in_turns({"cached": decoded, "whole": uncached}, turns)
    found = ratio(times["whole"], times["cached"])
    return {
        "rows": _ROWS,
        "prompt": _PROMPT,
        "most": _MOST,
        "ratio": found,
        "aim": DECODING_AIM,
        "met": found["median"] >= DECODING_AIM,
        "tokens_per_second": _ROWS * _MOST / statistics.median(times["cached"]),
    }


def tables(found: Row) -> dict[str, str]:
    """The JSON as one table."""
    decoding, lines = found["decoding"], []
    for name, step in found["steps"].items():
        lines += [
            [f"training step, `{name}`", f"{number(step['step_ms'], 3)} ms",
             of_range(step["ratio"]), f"{step['aim']:g} x the plain loop"],
            [f"batches of a step, `{name}`", f"{step['data_share']:.1%} of it", "-",
             f"at most {step['data_aim']:.0%}"],
            [f"drawing the data once, `{name}`", f"{step['drawing_share']:.1%} of the run", "-",
             f"at most {step['data_aim']:.0%}"],
        ]  # fmt: skip
    lines.append(
        [f"decoding {decoding['most']} tokens", f"{decoding['tokens_per_second']:,.0f} tokens/s",
         of_range(decoding["ratio"]), f"{decoding['aim']:g} x without a cache"]
    )  # fmt: skip
    return {"cases": table(["what", "ours", "ratio", "aim"], lines)}


def measured(options: argparse.Namespace) -> Row:
    """Steps and decoding as one JSON object."""
    torch.set_num_threads(1)
    found: Row = {"schema": 2, "machine": machine()}
    found["steps"] = {}
    for name in PRESETS:
        print(f"measuring the step of {name} ...", file=sys.stderr)
        found["steps"][name] = measure_step(name, options.turns)
    print("measuring decoding ...", file=sys.stderr)
    found["decoding"] = measure_decoding(options.decodings)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print FILE's JSON as a table")
    parser.add_argument("--turns", type=int, default=9, help="interleaved turns of steps")
    parser.add_argument("--decodings", type=int, default=3, help="interleaved turns of decoding")
    options = parser.parse_args(arguments)
    if min(options.turns, options.decodings) < 1:
        parser.error("--turns and --decodings expect numbers from 1")
    answer(parser, options, measured, tables)


if __name__ == "__main__":
    main()
