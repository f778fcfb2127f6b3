"""What the analyses cost against the number of sequences, one thread.

The patching sweep replaces the residual stream before each layer at each position: 18 sites of a
tiny specimen of the zoo. Three ways take turns within one process, so that a noisy machine slows
all of them, and each ratio is a median over the turns:

* ours: :func:`anchor_interp.interventions.patching.patch`, one value for every site and example;
* the loop: what TransformerLens's hooks suggest, one forward pass for every site and example;
* TransformerLens's own sweep, ``patching.get_act_patch_resid_pre``: one forward pass for every
  site, and the mean over the examples alone.

A mask is compared with the same hooked forward pass without it. Information flow and the pruning
of a circuit have nothing to compare with: their times are given.

    python benchmarks/analysis.py --json
    python benchmarks/analysis.py --batches 1 64 --turns 3
"""

import argparse
import contextlib
import io
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformer_lens import patching

from anchor_interp.analysis.circuits import prune
from anchor_interp.analysis.flow import information_flow
from anchor_interp.interventions.ablation_bench import EdgeAblation
from anchor_interp.interventions.masks import mask_edges, token_edges
from anchor_interp.interventions.metrics import logit_difference
from anchor_interp.interventions.patching import patch
from anchor_interp.interventions.sites import site_grid
from anchor_interp.models.transformer import HookedTransformer, token_rows
from anchor_interp.runs.run import load
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.counterfactuals import ContrastPairs, contrast_pairs
from anchor_interp.tasks.sequences import PROBE_POSITION, aligned_sequences
from measuring import Row, answer, in_turns, machine, number, of_range, ratio, table

SPECIMEN = "tiny/inferential/1"
BATCHES = (1, 4, 16, 64, 256, 1024)
Way = Callable[[], Any]


def sweep(model: HookedTransformer, task: AnchorTask, n: int, turns: int) -> Row:
    """The patching sweep in three ways, which give the same values; times in seconds."""
    pair = contrast_pairs(task, "key", n, seed=0)
    metric = logit_difference(*pair)
    layers, length = model.cfg.n_layers, task.length
    sites = site_grid(model, ["resid_pre"], positions=range(length))
    clean, corrupted = (token_rows(model, part.tokens) for part in pair)

    def generic() -> Tensor:
        _, cache = model.run_with_cache(clean)
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
            found: Tensor = patching.get_act_patch_resid_pre(
                model, corrupted, cache, lambda logits: metric(logits[:, -1]).mean()
            )
        return found

    ways: dict[str, Way] = {
        "ours": lambda: patch(model, *pair, sites, metric).values,
        "loop": lambda: one_by_one(model, pair),
        "transformer_lens": generic,
    }
    values: dict[str, Tensor] = {}
    times = in_turns(ways, turns, values)
    ours = torch.as_tensor(values["ours"]).view(layers, length, n)
    return {
        "case": "patching sweep",
        "batch": n,
        "sites": len(sites),
        "seconds": statistics.median(times["ours"]),
        "loop_seconds": statistics.median(times["loop"]),
        "transformer_lens_seconds": statistics.median(times["transformer_lens"]),
        "ratio_to_loop": ratio(times["loop"], times["ours"]),
        "ratio_to_transformer_lens": ratio(times["transformer_lens"], times["ours"]),
        "largest_difference": max(
            float((ours - values["loop"]).abs().max()),
            float((ours.mean(-1) - values["transformer_lens"]).abs().max()),
        ),
    }


def one_by_one(model: HookedTransformer, pair: ContrastPairs) -> Tensor:
    """A loop over examples, layers and positions; (layer, position, example)."""
    clean, corrupted = (token_rows(model, part.tokens) for part in pair)
    right, wrong = (torch.from_numpy(part.targets).long() for part in pair)
    n, length = clean.shape
    found = torch.empty(model.cfg.n_layers, length, n)
    for i in range(n):
        _, cache = model.run_with_cache(clean[i : i + 1])
        for layer in range(model.cfg.n_layers):
            for position in range(length):
                name = f"blocks.{layer}.hook_resid_pre"

                def put(
                    tensor: Tensor, *, hook: Any, position: int = position, given: Any = cache
                ) -> Tensor:
                    tensor[:, position] = given[hook.name][:, position]
                    return tensor

                logits: Any = model.run_with_hooks(corrupted[i : i + 1], fwd_hooks=[(name, put)])
                found[layer, position, i] = logits[0, -1, right[i]] - logits[0, -1, wrong[i]]
    return found


def masking(model: HookedTransformer, task: AnchorTask, n: int, turns: int) -> Row:
    """A forward pass with every edge masked that carries the key, against one without."""
    sequences = aligned_sequences(task, PROBE_POSITION, n, seed=0)
    rows = token_rows(model, sequences.tokens)
    edges = token_edges(model, sequences, "key")

    def masked() -> None:
        with mask_edges(model, edges):
            model(rows)

    times = in_turns({"masked": masked, "plain": lambda: model(rows)}, 4 * turns)
    return {
        "case": "key mask",
        "batch": n,
        "seconds": statistics.median(times["masked"]),
        "plain_seconds": statistics.median(times["plain"]),
        "ratio_to_plain": ratio(times["masked"], times["plain"]),
    }


def flow(model: HookedTransformer, task: AnchorTask, n: int, turns: int) -> Row:
    """Information flow of n sequences."""
    sequences = aligned_sequences(task, PROBE_POSITION, n, seed=0)
    return timed("information flow", n, lambda: information_flow(model, sequences), turns)


def pruning(model: HookedTransformer, task: AnchorTask, n: int, turns: int) -> Row:
    """A circuit pruned on n sequences, with other tokens in the place of what is cut."""
    sequences, references = (
        aligned_sequences(task, PROBE_POSITION, n, seed=seed) for seed in (0, 1)
    )

    def pruned() -> None:
        prune(EdgeAblation(model, sequences, "resample", references=references))

    return timed("pruning", n, pruned, turns)


def timed(case: str, n: int, way: Way, turns: int) -> Row:
    """The time of one way alone."""
    times = in_turns({"ours": way}, turns)["ours"]
    return {"case": case, "batch": n, "seconds": statistics.median(times)}


MEASURES = (sweep, masking, flow, pruning)


def tables(found: Row) -> dict[str, str]:
    """The JSON as two tables: the sweep against others' ways, and what the rest takes."""
    cases = found["cases"]
    sweeps = [
        [
            str(row["batch"]), f"{number(row['seconds'])} s", f"{number(row['loop_seconds'])} s",
            of_range(row["ratio_to_loop"]), f"{number(row['transformer_lens_seconds'])} s",
            of_range(row["ratio_to_transformer_lens"]),
        ]
        for row in cases if row["case"] == "patching sweep"
    ]  # fmt: skip
    head = ["examples", "ours", "loop", "ratio", "TransformerLens", "ratio"]
    rest = [row for row in cases if row["case"] != "patching sweep"]
    names = list(dict.fromkeys(row["case"] for row in rest))
    taken = {(row["case"], row["batch"]): f"{number(row['seconds'])} s" for row in rest}
    batches = sorted({row["batch"] for row in rest})
    lines = [[str(n), *(taken.get((name, n), "") for name in names)] for n in batches]
    return {"sweep": table(head, sweeps), "rest": table(["examples", *names], lines)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print FILE's JSON as tables")
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--turns", type=int, default=3, help="interleaved turns per case")
    options = parser.parse_args(arguments)
    answer(parser, options, measured, tables)


@torch.no_grad()
def measured(options: argparse.Namespace) -> Row:
    """What the command line asks for, as one JSON object."""
    torch.set_num_threads(1)
    run = load(SPECIMEN)
    model, task = run.model, run.config.anchor_task
    rows = []
    for measure in MEASURES:
        measure(model, task, 2, 1)  # warms up
        for n in options.batches:
            print(f"measuring {measure.__name__} of {n} ...", file=sys.stderr)
            rows.append(measure(model, task, n, options.turns))
    return {"schema": 1, "machine": machine(), "specimen": SPECIMEN, "cases": rows}


if __name__ == "__main__":
    main()
