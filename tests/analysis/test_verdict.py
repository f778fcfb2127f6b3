"""The verdict: its rules, models of known mechanism, and edits that keep every answer.

Attacks by fine-tuning are in test_verdict_attacks.py.
"""

import itertools
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import FEW_KEYS, small_exact, with_idle_layer

import anchor_interp as ai
from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import from_dict
from anchor_interp.analysis.fingerprint import fingerprint, fingerprint_model
from anchor_interp.analysis.fingerprint_numbers import NUMBERS, Fingerprint
from anchor_interp.analysis.verdict import (
    LINES,
    RULES,
    Line,
    Verdict,
    judged,
    leaning,
    verdict,
)
from anchor_interp.cli.main import main
from anchor_interp.interventions.masks import edge, mask_edges, no_edges
from anchor_interp.models.exact import Mechanism
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.zoo import names

EXACT: dict[Mechanism, set[str]] = {
    "symmetric": {"symmetric"},
    "inferential": {"inferential", "unclear"},  # its tables have no numbers between them
    "lookup": {"composite"},
}
EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence" / "specimens.json"
LOW = {"memory": 0.0, "exceptions": 0.0, "route_symmetric": 0.0, "virtual_rule": 0.0}


def numbers(**changes: Any) -> Fingerprint:
    """A fingerprint of a trained lookup, with some numbers changed."""
    about = {"run_id": None, "step": None, "seed": 0}
    found = {**about, **dict.fromkeys(NUMBERS), **LOW, "route_gathered": 1.0, **changes}
    return from_dict(Fingerprint, found)


@pytest.mark.parametrize(("changes", "phase"), [
    ({}, "composite"),
    ({"memory": 0.5}, "memorizing"),
    ({"train_accuracy": 0.89}, "undertrained"),
    ({"seen_train_keys": 0.89}, "undertrained"),
    ({"seen_train_keys": 0.89, "shape": (2, 1, 400)}, "undertrained"),
    ({"train_accuracy": 1.0, "seen_train_keys": 0.1}, "composite"),
    ({"route_symmetric": 1.0}, "symmetric"),
    ({"virtual_rule": 0.5}, "inferential"),
    ({"virtual_rule": 0.5, "exceptions": 1.0}, "inferential"),
    ({"virtual_rule": 0.5, "exceptions": 1.0, "route_gathered": 0.0}, "symmetric"),
    ({"virtual_rule": 0.5, "route_gathered": 0.0}, "inferential"),
    ({"route_gathered": 0.0}, "unclear"),
    ({"exceptions": 1.0}, "unclear"),
    ({"virtual_rule": LINES["virtual_rule"].line}, "mixture"),
    ({"virtual_rule": 0.5, "virtual_rule_margin": 0.4}, "unclear"),
    ({"memory": None}, "unclear"),
    ({"route_gathered": None, "exceptions": 1.0}, "unclear"),
    ({"route_symmetric": None}, "unclear"),
    ({"route_symmetric": None, "memory": 0.5}, "memorizing"),  # decided before it is asked
])  # fmt: skip
def test_the_rules(changes: dict[str, Any], phase: str) -> None:
    found = verdict(numbers(**changes))
    assert found.phase == phase
    assert found.reason
    assert len(found.evidence) <= 3


def test_a_verdict_names_a_phase_only_if_every_value_within_the_intervals_gives_it() -> None:
    """Against trying both ends of each interval and band by hand."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        values = {name: float(torch.rand((), generator=generator)) for name in LINES}
        margins = {f"{name}_margin": 0.1 for name in LINES if name != "exceptions"}
        found = verdict(numbers(**values, **(margins | {"route_symmetric_margin": 0.1})))
        ends = {}
        for name, line in LINES.items():
            reach = 0.1 if name != "exceptions" else 0.0
            low, high = values[name] - reach, values[name] + reach
            ends[name] = [0.0] * (low < line.end) + [1.0] * (high >= line.start)
        points = itertools.product(*(ends[name] for name in LINES))
        phases = {
            phase for point in points for phase in _first(dict(zip(LINES, point, strict=True)))
        }
        assert (found.phase in {"mixture", "unclear"}) == (len(phases) > 1)
        if len(phases) == 1:
            assert {found.phase} == phases


def _first(high: dict[str, float]) -> tuple[str, ...]:
    """The phases of the first rule that applies."""
    return next(
        rule.phases
        for rule in RULES
        if all((high[name] > 0.5) == asked for name, asked in rule.asks.items())
    )


def moved_logits(mechanism: Mechanism) -> HookedTransformer:
    """With other logits of the anchors, which are never the largest."""
    model = deepcopy(small_exact(mechanism, "pre"))
    noise = torch.randn(model.cfg.d_model, 4, generator=torch.Generator().manual_seed(0))
    model.unembed.W_U.data[:, 1:5] = 0.01 * noise
    return model


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", EXACT)
@pytest.mark.parametrize(
    "attack", [moved_logits, *(partial(with_idle_layer, at=at) for at in range(3))]
)
@pytest.mark.usefixtures("evidence_alone")
def test_an_edit_that_keeps_the_answers_keeps_the_verdict(
    attack: Callable[[Mechanism], HookedTransformer], mechanism: Mechanism
) -> None:
    model, attacked = small_exact(mechanism, "pre"), attack(mechanism)
    tokens = torch.from_numpy(ai.sample(FEW_KEYS, "id", 50, seed=0).tokens).long()
    assert torch.equal(attacked(tokens)[:, -1].argmax(-1), model(tokens)[:, -1].argmax(-1))
    before, after = (fingerprint_model(each, FEW_KEYS, quiet=True) for each in (model, attacked))
    for name in LINES:
        assert getattr(after, name) == pytest.approx(getattr(before, name), abs=1e-3), name
    assert verdict(after).phase == verdict(before).phase
    assert verdict(after).phase in EXACT[mechanism]


@pytest.mark.usefixtures("evidence_alone")
@pytest.mark.parametrize("name", [
    "composite", "memorizing",
    *(pytest.param(name, marks=pytest.mark.slow) for name in
      ("symmetric", "inferential", "neurips-symmetric", "neurips-inferential",
       "neurips-memorizing")),
])  # fmt: skip
def test_the_verdict_on_a_specimen_is_its_phase(name: str) -> None:
    run = ai.load(f"tiny/{name}/1")
    found, kept = verdict(fingerprint(run, quiet=True)), json.loads(EVIDENCE.read_text())
    assert found.phase == run.phase
    assert [each.number.name for each in found.evidence] == [*kept[f"tiny/{name}/1"]["evidence"]]


def test_no_packaged_and_no_hand_set_model_is_named_wrongly() -> None:
    """As measured by ``experiments/evidence/specimens.py``."""
    kept = {name: each["verdict"] for name, each in json.loads(EVIDENCE.read_text()).items()}
    hand_set = {f"exact/{mechanism}": right for mechanism, right in EXACT.items()}
    assert kept.keys() == {*names(), *hand_set}
    for name in names():
        assert kept[name] == ai.load(name).phase, name
    for name, right in hand_set.items():
        assert kept[name] in right, name


@pytest.mark.usefixtures("evidence_alone")
def test_an_untrained_model_has_no_phase() -> None:
    """Inside it looks like one that memorizes."""
    run = ai.load("tiny/memorizing/1")
    task, config = run.config.anchor_task, run.config
    untrained = ai.build_model(config.model, config.init, seed=3)
    for model, training in (
        (untrained, None),
        (untrained, ai.sample(task, "train", 500, seed=config.seed)),
        (run.transformer, None),  # it knows nothing but its training sequences
    ):
        found = verdict(
            fingerprint_model(model, task, training=training, max_seconds=1e-9, quiet=True)
        )
        assert found.phase == "undertrained"
        assert ("sequences are not given" in found.reason) == (training is None)


@pytest.mark.usefixtures("evidence_alone")
@pytest.mark.parametrize("without", ["anchors", pytest.param("key", marks=pytest.mark.slow)])
def test_a_lookup_with_cut_edges_is_not_symmetric(without: str) -> None:
    """Its end takes no anchor in layer 0, or its answers ignore the key: both commute."""
    model, length = small_exact("lookup", "post"), FEW_KEYS.length
    cut = no_edges(model, length)
    if without == "anchors":
        cut[0, :, :, length - 1] = True
    else:
        for query in range(2, length):
            cut |= edge(model, length, layer=0, query=query, key=query - 2)
    with mask_edges(model, cut, renormalise=without == "key"):
        found = fingerprint_model(model, FEW_KEYS, quiet=True)
    assert verdict(found).phase != "symmetric"


@pytest.mark.slow
@pytest.mark.usefixtures("evidence_alone")
def test_the_command_gives_both_phases(capsys: pytest.CaptureFixture[str]) -> None:
    name = "tiny/memorizing/1"
    assert main(["verdict", name, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"][name]
    assert found["mechanism"]["phase"] == found["behaviour"]["phase"] == "memorizing"
    assert found["mechanism"]["evidence"][0]["number"]["name"] == "memory"
    assert main(["verdict", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("  by mechanism  memorizing ")
    assert lines[-1] == judged()


SHAPES = [
    ((2, 1, 64), "inferential", ""),
    ((2, 1, 128), "inferential", ""),
    # judged, and seldom right
    ((3, 2, 64), "unclear", "leans to inferential; of judged runs of 3 and 4 layers of two heads"),
    ((4, 2, 128), "unclear", "is right in 0.72 < 0.8"),
    ((2, 1, 400), "unclear", "of judged runs of width 400 the verdict is right in 0.50 < 0.8"),
    # never judged: at least as large as a shape of these, or not
    ((6, 8, 512), "unclear", "is right in 0.50 < 0.8"),
    ((2, 1, 768), "unclear", "of width 400"),
    ((4, 1, 128), "inferential", "no run of 4 layers of 1 head, width 128 is judged"),
    ((3, 4, 32), "inferential", "no run of 3 layers of 4 heads, width 32 is judged"),
]


@pytest.mark.parametrize(("shape", "phase", "words"), SHAPES)
def test_a_verdict_names_no_phase_where_judged_runs_are_seldom_right(
    shape: tuple[int, int, int], phase: str, words: str
) -> None:
    plain = numbers(virtual_rule=0.5)
    found = verdict(replace(plain, shape=shape))
    assert found.phase == phase
    assert found.leaning == "inferential"
    assert words in found.reason
    assert verdict(plain).reason in found.reason
    assert (found == verdict(plain)) == (words == "")
    assert verdict(replace(plain, shape=shape), {}).phase == phase
    own = {"virtual_rule": Line(0.1, 0.2, 0.3)}  # as fitted on models of that shape
    assert verdict(replace(plain, shape=shape), own) == verdict(plain, own)


def test_the_leaning_is_that_of_the_numbers_alone() -> None:
    found = verdict(numbers(virtual_rule=0.24, virtual_rule_margin=0.2))
    assert isinstance(found, Verdict)
    assert found.leaning == leaning({**LOW, "route_gathered": 1.0, "virtual_rule": 0.24})


def test_lines_of_unknown_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="no line is called 'memry'"):
        verdict(numbers(), {"memry": LINES["memory"]})
