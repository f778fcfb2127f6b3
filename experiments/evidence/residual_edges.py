"""Residual edges: attribution against cutting them, their circuits beside pruned ones, the cost.

Four specimens and two random models are measured. Fixed before the first run: scores on 100
sequences with the key at position 2 (the papers' probe), against the references of
``circuit_sizes.py``; the metric is the logit difference between the model's own answers to both. A
circuit of attribution is the first of the ranking whose faithfulness is 0.9 by accuracy and by
logit difference, as :func:`prune` asks. All are judged on 100 other sequences. The cost is
processor time on one thread, a median of three, interleaved.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

import anchor_interp as ai
from anchor_interp import AnchorTask, Examples, edge_attribution
from anchor_interp.analysis.circuits import Circuit, prune, score_circuit
from anchor_interp.interventions.ablation_bench import EdgeAblation, Parts
from anchor_interp.models.transformer import HookedTransformer as Model
from anchor_interp.models.transformer_lens import HookedTransformer, HookedTransformerConfig
from anchor_interp.tasks.sequences import PROBE_POSITION, aligned_sequences
from claim_effects import Row, Rows
from common import say, table

N = 100
SPECIMENS = tuple(f"tiny/{phase}/1" for phase in ("memorizing", "composite", "symmetric",
                                                  "inferential"))  # fmt: skip
STEPS = (1, 8)
MISSES = 3


def runs(_: Path) -> Iterator[tuple[Row, ai.Run | Model]]:
    """The models."""
    trained: dict[str, ai.Run | Model] = {name: ai.load(name) for name in SPECIMENS}
    for name, of in (trained | random_models()).items():
        say(f"residual_edges: {name}")
        yield {"model": name}, of


def measure(of: ai.Run | Model) -> Row:
    """Estimates of one model beside patching; if it is trained, also its circuits."""
    if not isinstance(of, ai.Run):
        return compared(of, ai.TASKS["complexity-control"])
    task = of.config.anchor_task
    return compared(of.model, task) | {"kept": kept(of.model, task)}


def twins(model: Model, seed: int, task: AnchorTask) -> tuple[Examples, Examples]:
    """Sequences and others that the model answers differently, with both of its answers."""
    seeds = (seed, seed + 1)
    drawn = [aligned_sequences(task, PROBE_POSITION, N, seed=s).examples() for s in seeds]
    own, other = (ai.last_logits(model, each).argmax(-1).cpu().numpy() for each in drawn)
    apart = own != other
    answered = Examples(drawn[0].tokens, own, other, places=drawn[0].places)
    return answered[apart], drawn[1][apart]


def bench(model: Model, pair: tuple[Examples, Examples], parts: Parts) -> EdgeAblation:
    """The same answers, whatever is cut."""
    return EdgeAblation(model, pair[0], references=pair[1], parts=parts)


def compared(model: Model, task: AnchorTask) -> Row:
    """Estimates of every edge beside the effect of cutting it alone, at the whole difference."""
    pair = twins(model, 0, task)
    cut = bench(model, pair, "residual edges")
    edges = np.argwhere(cut.reachable)
    alone = np.zeros((len(edges), *cut.reachable.shape), np.bool_)
    alone[np.arange(len(edges)), *edges.T] = True
    effects = cut.measure(alone)[1] - cut.full[1]
    row: Row = {"edges": len(edges), "change": float(cut.nothing[1] - cut.full[1])}
    for steps in STEPS:
        found = edge_attribution(model, *pair, ai.logit_difference(pair[0]), steps=steps)
        scores, ends = found.scores[tuple(edges.T)], found.graph
        worst = np.argsort(-np.abs(scores - effects))[:MISSES]
        row[f"steps_{steps}"] = {
            "rank_correlation": float(spearmanr(scores, effects).statistic),
            "correlation": float(np.corrcoef(scores, effects)[0, 1]),
            "misses": [{"edge": f"{ends.receivers[edges[i][0]]} <- {ends.senders[edges[i][1]]}",
                        "score": float(scores[i]), "effect": float(effects[i])} for i in worst],
        }  # fmt: skip
    return row


def kept(model: Model, task: AnchorTask) -> Row:
    """What each way keeps of one specimen, and how faithful it is on other sequences."""
    own, others = twins(model, 0, task), twins(model, 2, task)
    at_nodes = bench(model, own, "residual edges")
    found = edge_attribution(model, *own, ai.logit_difference(own[0]), steps=STEPS[-1])
    ranked = [found.circuit(n) for n in range(1, at_nodes.n_parts + 1)]
    curve = score_circuit(at_nodes, ranked, n_random=1)
    circuits: dict[str, Circuit] = {
        "attribution": ranked[-1 if curve.smallest is None else curve.smallest],
        "pruned residual edges": prune(at_nodes, quiet=True),
        "pruned attention edges": prune(bench(model, own, "edges"), quiet=True),
    }
    row: Row = {}
    for way, circuit in circuits.items():
        judged = score_circuit(bench(model, others, circuit.parts), [circuit], n_random=20)
        row[way] = {
            "edges": list(circuit.names), "of": judged.n_edges,
            "accuracy": float(judged.accuracy[0]),
            "logit_difference": float(judged.logit_difference[0]),
            "best_random_accuracy": float(np.nanmax(judged.random_accuracy)),
        }  # fmt: skip
    return row


def random_models() -> dict[str, Model]:
    """Two layers of four heads, as they are drawn."""
    init = ai.InitConfig(gamma=0.3)
    shapes = {
        layout: ai.ModelConfig(n_layers=2, n_heads=4, d_model=64, d_head=16, d_mlp=128, bias=True,
                               normalization=layout, d_vocab=120, n_ctx=9)
        for layout in ("pre", "post")
    }  # fmt: skip
    return {f"random, {name}": ai.build_model(s, init, seed=0) for name, s in shapes.items()}


def cost() -> Row:
    """An edge attribution in forward passes of the same 8 x 64 tokens, on GPT-2 small's shape."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeprecationWarning)  # of HookedTransformer in TransformerLens
    cfg = HookedTransformerConfig(
        n_layers=12, d_model=768, n_ctx=1024, d_head=64, n_heads=12, d_mlp=3072, d_vocab=50257,
        act_fn="gelu_new", normalization_type="LN", seed=0, device="cpu",
    )  # fmt: skip
    model = HookedTransformer(cfg)
    generator = torch.Generator().manual_seed(0)
    clean, corrupted = torch.randint(cfg.d_vocab, (2, 8, 64), generator=generator)
    answers, wrong = torch.randint(cfg.d_vocab, (2, 8), generator=generator)
    pair = [Examples(tokens, answers, wrong) for tokens in (clean, corrupted)]
    metric = ai.logit_difference(pair[0])

    def seconds(work: Callable[[], Any]) -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    def forward() -> None:
        with torch.no_grad():
            model(clean)

    def attributed(steps: int) -> float:
        took = seconds(lambda: edge_attribution(model, pair[0], pair[1], metric, steps=steps))
        return took / steps / seconds(forward)

    forward()
    return {str(steps): median(attributed(steps) for _ in range(3)) for steps in (1, 5)}


def report(rows: Rows) -> dict[str, object]:
    """A line a model, then what each way keeps, then the cost."""
    lines, sizes = [], []
    for row in rows:
        ways = [row[f"steps_{steps}"] for steps in STEPS]
        kinds = ("rank_correlation", "correlation")
        alike = [f"{way[kind]:z.2f}" for kind in kinds for way in ways]
        miss = ways[-1]["misses"][0]
        worst = f"{miss['edge']}: {miss['score']:z.2f} for {miss['effect']:z.2f}"
        lines.append([row["model"], str(row["edges"]), *alike, f"{row['change']:z.2f}", worst])
        for way, found in row.get("kept", {}).items():
            edges = found["edges"]
            shares = ("accuracy", "logit_difference", "best_random_accuracy")
            sizes.append([row["model"], way, f"{len(edges)} of {found['of']}",
                          *(f"{found[share]:z.2f}" for share in shares),
                          "; ".join(edges) if len(edges) <= 12 else "more than 12"])  # fmt: skip
    head = ["model", "edges", "rank correlation, 1 step", "8 steps", "correlation, 1 step",
            "8 steps", "all edges cut", "largest miss, 8 steps"]  # fmt: skip
    circuits = table(["model", "way", "edges", "accuracy", "logit difference",
                      "best of 20 random", "kept"], sizes)  # fmt: skip
    say("residual_edges: the cost")
    passes = cost()
    text = " and ".join(f"{n:.1f} with `steps={steps}`" for steps, n in passes.items())
    alone = [{name: row[name] for name in row if name != "kept"} for row in rows]
    circuit_rows = [{"model": row["model"], **row["kept"]} for row in rows if "kept" in row]
    data = {"compared": alone, "kept": circuit_rows, "forward_passes_a_step": passes}
    return {"data": data, "n": N, "alike": table(head, lines), "circuits": circuits, "passes": text}
