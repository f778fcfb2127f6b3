"""Edge attribution and residual circuits, against models run by hand with edges cut."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_models import LAYOUTS, lens_model, random_model, small_exact, with_offsets
from torch import Tensor
from twins import twins
from versions import only_3

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.circuits import random_circuits
from anchor_interp.interventions import residual_edges
from anchor_interp.interventions.residual_edges import ResidualGraph
from anchor_interp.models.exact import Normalization
from anchor_interp.models.forward import answer_logits
from anchor_interp.models.transformer import PostLNTransformer

_GENERATOR = np.random.default_rng(0)
N, POS = 5, 6
CLEAN, CORRUPTED = (
    ai.Examples(_GENERATOR.integers(0, 100, (N, POS)), _GENERATOR.integers(0, 100, N), at=-2)
    for _ in range(2)
)
METRIC = ai.logit_difference(CLEAN, CORRUPTED)
OTHER_SHAPES: dict[str, dict[str, Any]] = {
    "grouped, rotary, RMS, gated": {
        "positional_embedding_type": "rotary", "rotary_dim": 4, "n_key_value_heads": 2,
        "normalization_type": "RMS", "gated_mlp": True, "act_fn": "silu", "final_rms": True,
    },
    "parallel": {"parallel_attn_mlp": True, "normalization_type": "LN"},
    "folded": {"normalization_type": "LNPre"},
    "no norm, attention only": {"normalization_type": None, "attn_only": True},
}  # fmt: skip


@functools.cache
def model_of(kind: Any) -> Any:
    """A random model of 2 layers and 4 heads in float64."""
    if kind in ("pre", "post"):
        return with_offsets(random_model(kind, n_layers=2, n_heads=4))
    return lens_model(d_vocab=100, n_ctx=POS, **OTHER_SHAPES[kind])


def cache_of(model: Any, examples: ai.Examples) -> dict[str, Tensor]:
    with torch.no_grad():
        return dict(model.run_with_cache(torch.from_numpy(examples.tokens).long())[1])


def written(model: Any, cache: dict[str, Tensor], sender: str) -> Any:
    if sender == "embedding":
        return cache["blocks.0.hook_resid_pre"]
    layer, head = int(sender[1]), sender[3:]
    if head == "MLP":
        return cache[f"blocks.{layer}.hook_mlp_out"]
    z = cache[f"blocks.{layer}.attn.hook_z"][:, :, int(head)]
    return z @ model.blocks[layer].attn.W_O[int(head)]


def patched_edge(
    model: Any, own: dict[str, Tensor], change: Tensor, sender: str, receiver: str
) -> float:
    """The mean metric if a sender's change reaches one receiver, by the hooks of split inputs."""
    start = -1 if sender == "embedding" else int(sender[1])
    from_mlp = sender.endswith("MLP")
    reads = len(model.blocks) if receiver == "logits" else int(receiver[1])
    stream = own["blocks.0.hook_resid_pre"] + (change if start < 0 else 0)
    post = isinstance(model, PostLNTransformer)
    for layer, block in enumerate(model.blocks[: reads + 1]):
        if layer == reads and (receiver[-3:] != "MLP" or model.cfg.parallel_attn_mlp):
            break
        stream = stream + own[f"blocks.{layer}.hook_attn_out"]
        stream = stream + (change if start == layer and not from_mlp else 0)
        stream = block.ln1(stream) if post else stream
        if layer == reads:
            break
        if not model.cfg.attn_only:
            stream = stream + own[f"blocks.{layer}.hook_mlp_out"]
            stream = stream + (change if start == layer and from_mlp else 0)
        stream = block.ln2(stream) if post else stream
    kind, slot = receiver[-1], 0
    name = f"blocks.{reads}.hook_{kind}_input"
    if receiver == "logits":
        name = f"blocks.{reads - 1}.hook_resid_post"
    elif receiver.endswith("MLP"):
        name = f"blocks.{reads}.hook_mlp_in"
    else:
        slot = int(receiver[3]) if "H" in receiver else int(receiver.split()[2])

    def put(value: Tensor, hook: Any) -> Tensor:
        if value.ndim == 3:
            return stream
        value = value.clone()
        value[:, :, slot] = stream
        return value

    model.set_use_split_qkv_input(True)
    model.cfg.use_hook_mlp_in = True
    tokens = torch.from_numpy(CLEAN.tokens).long()
    try:
        with torch.no_grad():
            logits = model.run_with_hooks(tokens, fwd_hooks=[(name, put)])
    finally:
        model.set_use_split_qkv_input(False)
        model.cfg.use_hook_mlp_in = False
    return float(METRIC(logits[torch.arange(N), torch.from_numpy(CLEAN.at)]).mean())


def by_hand(model: Any, step: float) -> np.ndarray:
    """The effect of every edge, divided by the share of the difference that it carries."""
    graph = ResidualGraph.of(model)
    own, given = cache_of(model, CLEAN), cache_of(model, CORRUPTED)
    effects = np.zeros(graph.reachable.shape)
    for read, sent in np.argwhere(graph.reachable):
        sender, receiver = graph.senders[sent], graph.receivers[read]
        change = written(model, given, sender) - written(model, own, sender)
        ends = [patched_edge(model, own, s * change, sender, receiver) for s in (step, -step)]
        effects[read, sent] = (ends[0] - ends[1]) / (2 * step)
    return effects


@pytest.mark.parametrize(
    "kind", ["pre", "post", *(pytest.param(each, marks=only_3) for each in OTHER_SHAPES)]
)
def test_every_score_is_the_effect_of_a_small_difference(kind: str) -> None:
    """Between LayerNorms, in parallel blocks and by groups of heads too."""
    model = model_of(kind)
    found = ai.edge_attribution(model, CLEAN, CORRUPTED, METRIC)
    expected = by_hand(model, 1e-5)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found.scores, expected, atol=1e-6 * np.abs(expected).max())
    n_grouped = sum("group" in name for name in found.graph.receivers)
    assert n_grouped == (8 if kind.startswith("grouped") else 0)


def run_by_hand(model: Any, kept: np.ndarray) -> Any:
    """Logits of a circuit: every receiver's own stream, in a decoder written out."""
    graph, reference = ResidualGraph.of(model), cache_of(model, CORRUPTED)
    post, n_heads = isinstance(model, PostLNTransformer), model.cfg.n_heads
    values: dict[str, Tensor] = {"embedding": cache_of(model, CLEAN)["blocks.0.hook_resid_pre"]}

    def stream(receiver: str, layer: int, middle: bool) -> Tensor:
        row = kept[graph.receivers.index(receiver)]

        def arrived(sender: str) -> Tensor:
            mine = row[graph.senders.index(sender)]
            return values[sender] if mine else written(model, reference, sender)

        x = arrived("embedding")
        for below, block in enumerate(model.blocks[: layer + middle]):
            x = x + sum(arrived(f"L{below}H{head}") for head in range(n_heads)) + block.attn.b_O
            x = block.ln1(x) if post else x
            if below < layer:
                x = x + arrived(f"L{below} MLP")
                x = block.ln2(x) if post else x
        return x

    for layer, block in enumerate(model.blocks):
        norms = [(lambda x: x) if post else norm for norm in (block.ln1, block.ln2)]
        weights, biases = ([getattr(block.attn, f"{w}_{x}") for x in "QKV"] for w in "Wb")
        for head in range(n_heads):
            reads = [norms[0](stream(f"L{layer}H{head} {kind}", layer, False)) for kind in "qkv"]
            q, k, v = (
                read @ weight[head] + bias[head]
                for read, weight, bias in zip(reads, weights, biases, strict=True)
            )
            scale = 1 / block.attn.attn_scale
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
            values[f"L{layer}H{head}"] = z @ block.attn.W_O[head]
        mlp = block.mlp
        hidden = F.relu if model.cfg.act_fn == "relu" else F.gelu
        read = norms[1](stream(f"L{layer} MLP", layer, True))
        values[f"L{layer} MLP"] = hidden(read @ mlp.W_in + mlp.b_in) @ mlp.W_out + mlp.b_out
    x = stream("logits", len(model.blocks), False)
    x = x if post else model.ln_final(x)
    answered = x[torch.arange(N), torch.from_numpy(CLEAN.at)]
    return answered @ model.unembed.W_U + model.unembed.b_U


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_circuit_runs_as_a_decoder_with_a_stream_for_every_receiver(
    layout: Normalization,
) -> None:
    model = model_of(layout)
    bench = ai.EdgeAblation(model, CLEAN, references=CORRUPTED, parts="residual edges")
    generator, rows = np.random.default_rng(1), np.arange(N)
    kept = bench.reachable & (generator.random((6, *bench.reachable.shape)) < 0.6)
    found = bench.measure(bench.reachable & ~kept)
    for i, each in enumerate(kept):
        with torch.no_grad():
            logits = run_by_hand(model, each).log_softmax(-1).numpy()
        assert CLEAN.answers is not None
        expected = logits[rows, CLEAN.answers].mean()
        assert found[2, i] == pytest.approx(expected, abs=1e-9)
    assert found[2].std() > 1e-3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_edges_of_the_embedding_add_up_to_the_whole_change(layout: Normalization) -> None:
    """In the limit of many steps; the edges into the logits do not."""
    model = random_model(layout, n_layers=2, n_heads=4)
    off, into_logits = [], []
    for steps in (4, 64):
        found = ai.edge_attribution(model, CLEAN, CORRUPTED, METRIC, steps=steps)
        change = found.corrupted - found.clean
        off.append(abs(found.scores[:, 0].sum() - change))
        into_logits.append(abs(found.scores[-1].sum() - change))
    assert off[1] < 0.2 * off[0]
    assert off[1] < 0.05 * abs(change)
    assert layout == "post" or into_logits[1] > 0.05 * abs(change)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_known_circuit_of_a_hand_set_model_comes_first(layout: Normalization) -> None:
    """The key goes by values alone: to both anchors, through the MLP, to the end, to the answer."""
    model = small_exact("inferential", layout, torch.float64)
    clean, corrupted = twins("key", 8)
    metric = ai.logit_difference(clean, corrupted)
    found = ai.edge_attribution(model, clean, corrupted, metric, steps=8)
    chain = ("embedding", "L0H0", "L0 MLP", "L1H0", "L1 MLP", "logits")
    names = [
        f"{reader}{' v' if 'H' in reader else ''} <- {sender}"
        for sender, reader in itertools.pairwise(chain)
    ]
    assert set(found.circuit(len(names)).names) == set(names)
    assert set(found.to_frame()["edge"][: len(names)]) == set(names)


def test_circuits_grow_edge_by_edge_and_stay_connected_to_the_logits() -> None:
    found = ai.edge_attribution(model_of("pre"), CLEAN, CORRUPTED, METRIC)
    graph, smaller = found.graph, np.zeros_like(found.graph.reachable)
    n_edges = int(graph.reachable.sum())
    for n in (1, 2, 3, 10, 40, n_edges):
        circuit = found.circuit(n)
        assert circuit.size == n
        assert (circuit.edges >= smaller).all()
        smaller = circuit.edges
        joined = {"logits", *(name.split(" <- ")[1] for name in circuit.names)}
        readers = {name.split(" <- ")[0] for name in circuit.names}
        assert all(name.rpartition(" ")[0] in joined or name in joined for name in readers)
    with pytest.raises(ConfigError, match=f"n is {n_edges + 1}"):
        found.circuit(n_edges + 1)


def test_a_curve_has_random_circuits_of_equal_size() -> None:
    """All edges give the answers; other circuits as large as the second one do not."""
    run = ai.load("tiny/inferential/1")
    task = run.config.anchor_task
    clean, corrupted = (ai.aligned_sequences(task, 2, 40, seed=seed) for seed in (0, 1))
    own = [ai.last_logits(run.model, each).argmax(-1) for each in (clean, corrupted)]
    found = ai.edge_attribution(run.model, clean, corrupted, ai.logit_difference(*own), steps=5)
    bench = ai.EdgeAblation(run.model, clean, references=corrupted, parts="residual edges")
    circuits = [found.circuit(n) for n in (5, 12, 23)]
    curve = ai.score_circuit(bench, circuits, n_random=10)
    assert curve.sizes == (5, 12, 23)
    assert curve.n_edges == 23
    np.testing.assert_allclose(curve.logit_difference[-1], 1)
    assert np.isnan(curve.random_logit_difference[-1]).all()  # no other circuit has all edges
    others, are_all = random_circuits(bench, circuits[1], 10, np.random.default_rng(0))
    assert not are_all
    assert len({each.tobytes() for each in (circuits[1].edges, *others)}) == 1 + 10
    assert (others.sum((1, 2)) == 12).all()
    alone = ai.score_circuit(bench, circuits[1], n_subsets=0)
    assert alone.faithfulness.logit_difference == pytest.approx(curve.logit_difference[1])
    assert curve.random_accuracy.shape == (3, 10)
    assert curve.random_accuracy[1].mean() < 0.5
    assert list(curve.to_frame()["size"]) == [5, 12, 23]
    assert (bench.faithfulness(ai.prune(bench, quiet=True).edges[None]) >= 0.9).all()


def test_a_divergence_has_no_gradient_in_the_clean_run_and_one_along_the_path() -> None:
    model = random_model("pre", n_layers=2, n_heads=4)
    metric = ai.kl_divergence(model, CLEAN)
    logits = [ai.last_logits(model, each) for each in (CLEAN, CORRUPTED)]
    pair = [each.log_softmax(-1) for each in logits]
    expected = -F.kl_div(pair[1], pair[0], reduction="none", log_target=True).sum(-1)
    torch.testing.assert_close(metric(logits[1]), expected)
    with pytest.raises(ConfigError, match=r"gradient is 0 in the clean run.*take steps=5"):
        ai.edge_attribution(model, CLEAN, CORRUPTED, metric)
    found = ai.edge_attribution(model, CLEAN, CORRUPTED, metric, steps=64)
    assert found.scores[:, 0].sum() == pytest.approx(found.corrupted, rel=0.05)


@pytest.mark.parametrize(("call", "why"), [
    (lambda m: ai.edge_attribution(m, CLEAN, CORRUPTED, METRIC, steps=0), "steps is 0"),
    (lambda m: ai.edge_attribution(m, CLEAN, CORRUPTED[:3], METRIC), "clean has tokens of shape"),
    (lambda m: ai.edge_attribution(m, CLEAN, CORRUPTED, ai.rank(CLEAN)), "no gradient"),
    (lambda m: ai.EdgeAblation(m, CLEAN, references=CORRUPTED[:3], parts="residual edges"),
     "sequences has tokens"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(call: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        call(model_of("pre"))


def test_a_model_that_is_more_than_its_graph_is_refused() -> None:
    """Here attention reads the stream twice as large as its LayerNorm makes it."""
    model = random_model("pre", n_layers=2, n_heads=4)
    block: Any = model.blocks[1]
    handle = block.ln1.register_forward_hook(lambda *given: 2 * given[-1])
    try:
        with pytest.raises(ConfigError, match=r"layer 1 does more than read its stream.*fold"):
            ai.edge_attribution(model, CLEAN, CORRUPTED, METRIC)
    finally:
        handle.remove()


def test_positions_beside_the_stream_are_refused() -> None:
    """However little they change: here the logits by less than a thousandth."""
    model = lens_model(d_vocab=100, n_ctx=POS, positional_embedding_type="shortformer")
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.1)
    with pytest.raises(ConfigError, match="shortformer"):
        ai.EdgeAblation(model, CLEAN, references=CORRUPTED, parts="residual edges")
    with pytest.raises(ConfigError, match="shortformer"):
        ai.edge_attribution(model, CLEAN, CORRUPTED, METRIC)


def test_the_graph_is_looked_at_with_sequences_that_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the bench's own are: of equal ones each would get the other's logits anyway."""
    rows: list[Any] = []

    def watched(model: Any, given: Any) -> Tensor:
        rows.append(given.tokens)
        return answer_logits(model, given)

    monkeypatch.setattr(residual_edges, "answer_logits", watched)
    alike = ai.Examples(np.full((4, POS), 7), np.zeros(4, np.int64))
    ai.EdgeAblation(model_of("pre"), alike, references=alike, parts="residual edges")
    assert (rows[0][0] != rows[0][1]).all()


def test_examples_may_be_answered_anywhere() -> None:
    """A row by itself, cut off where it is answered, has the same scores."""
    model, at = random_model("post", n_layers=2, n_heads=4), np.array([5, 3, 4, 2, 5])
    clean, corrupted = (ai.Examples(e.tokens, e.answers, at=at) for e in (CLEAN, CORRUPTED))
    metric = ai.logit_difference(clean, corrupted)
    found = ai.edge_attribution(model, clean, corrupted, metric).scores
    each = []
    for row in range(N):
        cut: list[Any] = [clean[row], corrupted[row]]
        one, other = (ai.Examples(e.tokens[:, : at[row] + 1], e.answers) for e in cut)
        each.append(ai.edge_attribution(model, one, other, ai.logit_difference(one, other)).scores)
    np.testing.assert_allclose(found, np.mean(each, 0), atol=1e-12)
