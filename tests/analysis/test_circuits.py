"""Circuits: models whose circuit is known, the guarantees of pruning, bad input."""

import itertools
import time
from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
from exact_edges import exact_edges
from small_models import EACH_EXACT, FEW_KEYS, random_model, small_exact

import anchor_interp
from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.attention import attention_rollout
from anchor_interp.analysis.circuits import Circuit, Performance, prune, score_circuit
from anchor_interp.analysis.rivals import compare_circuit, rollouts
from anchor_interp.analysis.routes import ROUTES, RouteName, route_edges
from anchor_interp.interventions.ablate_edges import edge_outputs
from anchor_interp.interventions.ablation_bench import Ablation, EdgeAblation, Parts
from anchor_interp.models.exact import MECHANISMS, Mechanism, Normalization
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.tasks.anchor import TASKS
from anchor_interp.tasks.examples import Examples
from anchor_interp.tasks.sequences import aligned_sequences, position_roles

OF: dict[Mechanism, RouteName] = {
    "symmetric": "symmetric",
    "inferential": "inferential",
    "lookup": "gathered",
}
SEQUENCES = aligned_sequences(FEW_KEYS, 2, 40, seed=0)
OTHERS = aligned_sequences(FEW_KEYS, 2, 40, seed=1)


def route(model: HookedTransformer, name: RouteName, position: int = 2) -> Circuit:
    return Circuit(route_edges(model, ROUTES[name], 9, position), position_roles(9, position))


def numbers(relative: Performance) -> tuple[float, float]:
    return relative.accuracy, relative.logit_difference


@EACH_EXACT
def test_the_circuit_of_an_exact_model_is_its_wiring(
    mechanism: Mechanism, normalization: Normalization
) -> None:
    """The wiring is faithful, complete and minimal; rival circuits give none of the answers."""
    model = small_exact(mechanism, normalization)
    bench = EdgeAblation(model, SEQUENCES, "zero")
    circuit = prune(bench)
    assert (circuit.edges == exact_edges(mechanism, SEQUENCES)[:, 0].numpy()).all()
    assert (circuit.edges == route(model, OF[mechanism]).edges).all()
    scores = score_circuit(EdgeAblation(model, OTHERS, "zero"), circuit, n_subsets=5)
    assert (scores.size, scores.n_edges) == (circuit.size, 54)
    assert scores.faithfulness.accuracy == 1
    assert scores.faithfulness.logit_difference == pytest.approx(1, abs=1e-3)
    assert scores.remaining.accuracy == 0
    assert scores.remaining.logit_difference == pytest.approx(0, abs=1e-3)
    assert scores.incompleteness.accuracy == 0
    assert scores.incompleteness.logit_difference == pytest.approx(0, abs=1e-3)
    assert [loss.loss.accuracy for loss in scores.minimality] == [1] * circuit.size
    assert tuple(loss.edge for loss in scores.minimality) == circuit.names
    assert all(circuit.edges[loss.index] for loss in scores.minimality)
    for rival in OF.values():
        if rival != OF[mechanism]:
            (accuracy,) = bench.faithfulness(route(model, rival).edges[None])[0]
            assert accuracy == 0


@pytest.mark.parametrize(
    ("mechanism", "way"),
    [("symmetric", "mean"), ("inferential", "mean"), ("inferential", "resample"),
     ("lookup", "resample")],
)  # fmt: skip
def test_what_is_equal_in_all_sequences_needs_no_edge(mechanism: Mechanism, way: Ablation) -> None:
    """The inferential model's second anchor looks up the key's position."""
    model = small_exact(mechanism, "pre")
    bench = EdgeAblation(model, SEQUENCES, way, references=OTHERS)
    circuit = prune(bench)
    wired = exact_edges(mechanism, SEQUENCES)[:, 0].numpy()
    if mechanism == "inferential":
        wired[0, 0, 4, 2] = False
    assert (circuit.edges == wired).all()
    comparison = compare_circuit(bench, circuit, n_random=19)
    assert comparison.faithfulness.accuracy == 1
    assert comparison.random_accuracy.max() < 0.5
    assert comparison.p_accuracy == comparison.p_logit_difference == 1 / 20
    for other in comparison.others:
        if other.name == f"{'gathered' if mechanism == 'lookup' else mechanism} route":
            assert other.faithfulness.accuracy == 1
        elif other.name != "attention rollout":  # a few answers are right by chance
            assert other.faithfulness.accuracy < 0.25


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_heads_and_mlps_of_an_exact_model(mechanism: Mechanism) -> None:
    """All of them but the lookup model's second MLP, which writes nothing."""
    bench = EdgeAblation(small_exact(mechanism, "post"), SEQUENCES, "zero", parts="heads and MLPs")
    circuit = prune(bench)
    unused = {"L1 MLP"} if mechanism == "lookup" else set()
    assert set(circuit.names) == {"L0H0", "L0 MLP", "L1H0", "L1 MLP"} - unused
    scores = score_circuit(bench, circuit, n_subsets=5)
    assert (scores.size, scores.n_edges) == (circuit.size, 4)
    assert scores.faithfulness.accuracy == 1
    assert {loss.index for loss in scores.minimality} <= {(0, 0), (0, 1), (1, 0), (1, 1)}
    compared = compare_circuit(bench, circuit, n_random=3)
    assert compared.others == compared.rollouts == ()


@pytest.mark.parametrize("parts", ["edges", "heads and MLPs"])
def test_the_answers_of_examples_are_what_a_circuit_keeps(parts: Parts) -> None:
    """Not the model's own answers, which differ in a quarter of the examples."""
    model = small_exact("symmetric", "post")
    own = EdgeAblation(model, SEQUENCES).answers.numpy()
    right = np.where(np.arange(40) < 30, own, (own + 1) % 42)
    wrong = (own + 2) % 42
    examples = anchor_interp.Examples(SEQUENCES.tokens, right, wrong)
    bench = EdgeAblation(model, examples, "zero", parts=parts)
    logits = anchor_interp.last_logits(model, SEQUENCES).detach()
    each = range(40)
    against = (logits[each, right] - logits[each, wrong]).mean()
    assert bench.full[:2] == pytest.approx([0.75, float(against)], rel=1e-4)
    assert "answers against wrong ones: 0.75" in repr(bench)
    circuit = prune(bench, quiet=True)
    kept = bench.measure(bench.reachable & ~circuit.edges[None])[:2, 0]
    assert (kept >= bench.nothing[:2] + 0.9 * (bench.full - bench.nothing)[:2]).all()
    with pytest.raises(ConfigError, match="right and wrong are the same in all 40 examples"):
        EdgeAblation(model, anchor_interp.Examples(SEQUENCES.tokens, own, own), "zero")
    plain = EdgeAblation(model, anchor_interp.Examples(SEQUENCES.tokens, right), "zero")
    assert plain.full[1] < bench.full[1]
    assert "the model's own answers: 1.00" in repr(EdgeAblation(model, SEQUENCES))


def test_mlps_stand_beside_edges() -> None:
    """Edges are pruned as before, and each MLP is kept at the positions where it is read."""
    edges = prune(EdgeAblation(small_exact("inferential", "post"), SEQUENCES, "zero"))
    bench = EdgeAblation(
        small_exact("inferential", "post"), SEQUENCES, "zero", parts="edges and MLPs"
    )
    assert bench.n_parts == 54 + 10
    assert set(prune(bench).names) == {
        *edges.names, "L0 MLP: first", "L0 MLP: second", "L1 MLP: last"
    }  # fmt: skip


def test_names_of_edges() -> None:
    circuit = route(small_exact("inferential", "post"), "inferential")
    assert circuit.names == (
        "L0H0: first <- key",
        "L0H0: second <- key",
        "L1H0: last <- first",
        "L1H0: last <- second",
    )
    heads = np.zeros((2, 3, 9, 9), bool)
    heads[1, 2, 8, 6] = True
    assert Circuit(heads, circuit.roles).names == ("L1H2: last <- noise at 6",)
    assert Circuit(heads, (*map(str, range(8)), "last")).names == ("L1H2: last <- position 6",)


@pytest.fixture(scope="module")
def specimen() -> HookedTransformer:
    return anchor_interp.load("tiny/inferential/1").model


TASK = TASKS["complexity-control"]


def test_no_edge_of_a_pruned_circuit_can_be_removed(specimen: HookedTransformer) -> None:
    """A trained model's circuit is within the tolerance, and outside it without any one edge."""
    sequences = aligned_sequences(TASK, 2, 40, seed=0)
    sizes = []
    for tolerance in (0.1, 0.4):
        bench = EdgeAblation(specimen, sequences)
        circuit = prune(bench, tolerance=tolerance)
        assert not (circuit.edges & ~bench.reachable).any()
        found = score_circuit(bench, circuit, n_subsets=0)
        whole = found.faithfulness
        assert min(whole.accuracy, whole.logit_difference) >= 1 - tolerance
        for entry in found.minimality:
            left = (
                whole.accuracy - entry.loss.accuracy,
                whole.logit_difference - entry.loss.logit_difference,
            )
            assert min(left) < 1 - tolerance
        sizes.append(circuit.size)
    assert sizes[0] >= sizes[1] > 0


def test_pruning_ends_with_its_time_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = EdgeAblation(random_model(n_layers=2), aligned_sequences(FEW_KEYS, 2, 8, seed=0))
    whole = prune(bench, quiet=True)
    assert whole.finished
    assert (prune(bench, max_seconds=1e6, quiet=True).edges == whole.edges).all()
    seconds = itertools.count()  # each look at the clock takes one
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    sizes = []
    for most in (0.5, 2.5, 6.5):
        cut = prune(bench, max_seconds=most, quiet=True)
        assert not cut.finished
        assert "fewer may do" in repr(cut)
        (accuracy, difference) = bench.faithfulness(cut.edges[None])
        assert min(accuracy.item(), difference.item()) >= 0.9  # the best so far is faithful
        sizes.append(cut.size)
    assert sizes[0] == bench.reachable.sum()
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]
    with pytest.raises(ConfigError, match="max_seconds is -1"):
        prune(bench, max_seconds=-1)
    assert capsys.readouterr().err == ""


def test_the_empty_and_the_whole_circuit() -> None:
    bench = EdgeAblation(random_model(), SEQUENCES)
    assert prune(bench, tolerance=1.0, quiet=True).size == 0
    nothing = score_circuit(bench, Circuit(np.zeros_like(bench.reachable), bench.roles))
    assert nothing.size == 0
    assert numbers(nothing.faithfulness) == pytest.approx((0, 0))
    assert numbers(nothing.remaining) == pytest.approx((1, 1))
    assert numbers(nothing.incompleteness) == pytest.approx((1, 1))
    assert nothing.minimality == ()
    whole = score_circuit(bench, Circuit(bench.reachable, bench.roles), n_subsets=3)
    assert whole.size == 198
    assert numbers(whole.faithfulness) == pytest.approx((1, 1))
    assert numbers(whole.remaining) == pytest.approx((0, 0))
    assert numbers(whole.incompleteness) == pytest.approx((0, 0))
    assert whole.full.accuracy == 1


def test_random_circuits_have_as_many_edges_in_every_layer(
    specimen: HookedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = EdgeAblation(specimen, aligned_sequences(TASK, 2, 20, seed=0))
    circuit = route(specimen, "inferential")
    seen = watch(bench, monkeypatch)
    one, same, other = (compare_circuit(bench, circuit, n_random=12, seed=s) for s in (0, 0, 1))
    rolled, circuits = seen[:2]
    drawn = circuits[1:]  # after the circuit itself
    assert len(drawn) == 12
    assert (drawn.sum((2, 3, 4)) == [2, 2]).all()
    assert not (drawn & ~bench.reachable).any()
    assert len({edges.tobytes() for edges in drawn}) == 12
    assert rolled.sum((1, 2, 3, 4)).tolist() == [3, 4, 5, 6, 8]
    assert [rival.size for rival in one.rollouts] == [3, 4, 5, 6, 8]
    assert (rolled[:-1] <= rolled[1:]).all()  # a larger rollout has the edges of a smaller one
    most = rolled[1]
    share = attention_rollout(edge_outputs(specimen, bench.tokens).patterns)
    assert share[most].min() >= share[bench.reachable & ~most].max()
    assert (one.random_accuracy == same.random_accuracy).all()
    assert (one.random_logit_difference != other.random_logit_difference).any()
    assert [(o.name, o.size) for o in one.others] == [
        ("attention rollout", 4), ("symmetric route", 3), ("inferential route", 4),
        ("gathered route", 3),
    ]  # fmt: skip
    assert one.others[2].faithfulness == one.faithfulness
    k = (one.random_logit_difference >= one.faithfulness.logit_difference).sum()
    assert one.p_logit_difference == (1 + k) / 13


def test_the_routes_lead_to_where_the_answer_is_read() -> None:
    """What stands behind the answer changes no rival in a causal model."""
    model, given = random_model("pre"), SEQUENCES.examples()
    behind = np.pad(given.tokens, ((0, 0), (0, 1)), mode="edge")
    short, long = (
        compare_circuit(bench, Circuit(bench.reachable, bench.roles), n_random=1).others
        for tokens in (given.tokens, behind)
        for bench in [EdgeAblation(model, Examples(tokens, at=8, places=given.places), "zero")]
    )
    assert [(one.name, one.size) for one in short] == [(one.name, one.size) for one in long]
    for one, other in zip(short, long, strict=True):
        assert numbers(one.faithfulness) == pytest.approx(numbers(other.faithfulness))


def watch(bench: EdgeAblation, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Every set of circuits whose faithfulness is measured."""
    seen: list[np.ndarray] = []
    faithfulness = bench.faithfulness

    def watched(circuits: np.ndarray) -> np.ndarray:
        seen.append(circuits)
        return faithfulness(circuits)

    monkeypatch.setattr(bench, "faithfulness", watched)
    return seen


@pytest.mark.parametrize(("lacks", "n_others"), [([(0, 3)], 8), ([], 0), ([(0, 1), (1, 2)], 80)])
def test_a_control_does_not_hold_the_circuit_itself(
    lacks: list[tuple[int, int]], n_others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another part can be missing from a layer of 8 heads and an MLP: each is tried once."""
    model = random_model(n_layers=2, n_heads=8)
    bench = EdgeAblation(model, SEQUENCES, parts="heads and MLPs")
    edges = bench.reachable.copy()
    for head in lacks:
        edges[head] = False
    seen = watch(bench, monkeypatch)
    found = compare_circuit(bench, Circuit(edges, bench.roles, parts=bench.parts), n_random=100)
    ((own, *others),) = seen
    assert (own == edges).all()
    assert len(others) == len(found.random_accuracy) == n_others
    assert found.all_others
    assert len({other.tobytes() for other in (own, *others)}) == 1 + n_others
    for other in others:
        assert (other.any((2, 3)).sum(1) == edges.any((2, 3)).sum(1)).all()
        assert (other <= bench.reachable).all()
    better = (found.random_logit_difference >= found.faithfulness.logit_difference).sum()
    assert found.p_logit_difference == (1 + better) / (1 + n_others)
    rows = found.to_frame()["circuit"].tolist()
    if n_others:
        assert f"best of the {n_others} other circuits" in repr(found)
        assert rows[1] == f"best of the {n_others} other circuits"
    else:
        assert (found.p_accuracy, found.p_logit_difference) == (1, 1)
        assert "no other circuit has as many parts in every layer" in repr(found)
        assert rows == ["the circuit"]


def test_random_circuits_differ_where_few_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """150 of 152 others, each with as many edges."""
    bench = EdgeAblation(random_model(n_layers=1), SEQUENCES)
    edges = np.zeros_like(bench.reachable)
    edges[0, 0, 8, :2] = True
    assert bench.reachable.sum() == 18  # of which 153 pairs can be made
    seen = watch(bench, monkeypatch)
    found = compare_circuit(bench, Circuit(edges, bench.roles), n_random=150)
    circuits = next(circuits for circuits in seen if len(circuits) == 151)
    assert len({circuit.tobytes() for circuit in circuits}) == 151
    assert (circuits.sum((1, 2, 3, 4)) == 2).all()
    assert not found.all_others
    assert "best of 150 random circuits" in repr(found)


def test_a_random_circuit_as_faithful_but_for_rounding_ties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = EdgeAblation(random_model(n_layers=1), SEQUENCES)
    edges = np.zeros_like(bench.reachable)
    edges[0, 0, 8, 0] = True
    shares = np.array([[0.5] * 18, [0.5, *[0.5 - 1e-8] * 6, *[0.4] * 11]])
    monkeypatch.setattr(bench, "faithfulness", lambda c: shares[:, : len(c)])
    found = compare_circuit(bench, Circuit(edges, bench.roles))
    assert found.p_logit_difference == 7 / 18
    assert found.p_accuracy == 1


def test_rollout_sums_over_all_paths() -> None:
    """Every path written out: a head in each later layer, or the residual stream."""
    model = random_model()
    patterns = edge_outputs(model, SEQUENCES.tokens[:3]).patterns
    n_heads, last = 2, 8
    for layer, query, key in ((0, 3, 1), (1, 8, 5), (1, 4, 0), (2, 8, 2), (2, 7, 2)):
        total = np.zeros((3, n_heads))
        n_ways = 2 - layer
        for stations in itertools.product(range(9), repeat=n_ways):
            way, at = np.ones(3), query
            for later, to in enumerate(stations, layer + 1):
                way = way * (patterns[later, :, :, to, at].mean(1).numpy() + (to == at))
                at = to
            if at == last:
                total += way[:, None] * patterns[layer, :, :, query, key].numpy()
        found = attention_rollout(patterns)[layer, :, query, key]
        np.testing.assert_allclose(found, total.mean(0), atol=1e-12)
        assert (found == 0).all() == (layer == 2 and query != last)


def test_a_circuit_is_read_where_the_examples_are_answered() -> None:
    """What lies behind that position does not count."""
    model, tokens = random_model(), SEQUENCES.tokens
    benches = (EdgeAblation(model, anchor_interp.Examples(tokens, at=6)),
               EdgeAblation(model, tokens[:, :7]))  # fmt: skip
    one, other = (numbers(rollouts(bench, [9])[0].faithfulness) for bench in benches)
    assert one == pytest.approx(other, abs=1e-9)
    found = attention_rollout(edge_outputs(model, tokens).patterns, read=6)
    expected = attention_rollout(edge_outputs(model, tokens[:, :7]).patterns)
    np.testing.assert_allclose(found[..., :7, :7], expected, atol=1e-12)
    assert found.sum() == pytest.approx(expected.sum())


def test_a_model_without_the_published_routes_is_compared_with_rollout_alone() -> None:
    """One layer has none, and a route needs the key right before both anchors."""
    places = {"key": 2, "first": 4, "second": 3}
    examples = anchor_interp.Examples(SEQUENCES.tokens, places=places)
    for bench in (EdgeAblation(random_model(n_layers=1), SEQUENCES),
                  EdgeAblation(random_model(), examples)):  # fmt: skip
        found = compare_circuit(bench, Circuit(bench.reachable, bench.roles), n_random=1)
        assert [other.name for other in found.others] == ["attention rollout"]
        assert found.p_accuracy == 1  # all reachable edges


def test_circuits_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    model = random_model()
    bench = EdgeAblation(model, SEQUENCES)
    circuit = route(model, "symmetric")
    for wrong in (route(model, "symmetric", 3), replace(circuit, edges=circuit.edges[:2])):
        with pytest.raises(ConfigError, match=r"model and sequences have \(3, 2, 9, 9\)") as caught:
            score_circuit(bench, wrong)
        assert "\n" not in str(caught.value)
        with pytest.raises(ConfigError, match="positions noise, noise"):
            compare_circuit(bench, wrong)
    with pytest.raises(ConfigError, match=r"residual edges, shape .* and edges"):
        score_circuit(bench, replace(circuit, parts="residual edges"))
    with pytest.raises(ConfigError, match="n_subsets is -1"):
        score_circuit(bench, circuit, n_subsets=-1)
    with pytest.raises(ConfigError, match="n_random is 0"):
        compare_circuit(bench, circuit, n_random=0)
    with pytest.raises(ConfigError, match=r"tolerance is 1\.5; expected at most 1"):
        prune(bench, tolerance=1.5)
