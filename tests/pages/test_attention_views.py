"""Attention views in a notebook: what they hold, and how a browser shows several of them."""

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from watched_page import Watched

from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.attention import AttentionPatterns, attention_patterns
from anchor_interp.models.exact import exact_model
from anchor_interp.models.shapes import InitConfig, ModelConfig
from anchor_interp.models.transformer import build_model
from anchor_interp.pages.attention_views import AttentionViews, attention_views
from anchor_interp.tasks.anchor import TASKS
from anchor_interp.tasks.examples import Examples
from anchor_interp.tasks.sequences import aligned_sequences

HOSTILE = "<img/src=x/onerror=alert(1)></script><script>alert(2)</script>"
TASK = TASKS["complexity-control"]


@pytest.fixture(scope="module")
def known() -> AttentionPatterns:
    """Two sequences with the key at position 2 in the exact inferential model."""
    return attention_patterns(
        exact_model("inferential", TASK), aligned_sequences(TASK, 2, 2, seed=0, keys="test")
    )


@pytest.fixture(scope="module")
def hostile() -> AttentionPatterns:
    """Two layers of three heads on tokens without a task, whose names are markup."""
    shape = ModelConfig(n_layers=2, n_heads=3, d_model=12, d_head=4, d_mlp=8, d_vocab=50, n_ctx=6)
    tokens = torch.arange(4)[None]
    words = [[HOSTILE, "a b", "&amp;", "1"]]
    return attention_patterns(
        build_model(shape, InitConfig(), seed=0),
        tokens,
        words=words,
        roles=[[HOSTILE, "", "subject", "last"]],
    )


def props(views: AttentionViews) -> list[dict[str, Any]]:
    found = re.findall(
        r"CircuitsVis\.render\(\"[^\"]*\", CircuitsVis\.\w+, (\{.*\})\);", views.html()
    )
    return [json.loads(each) for each in found]


def test_patterns_equal_the_cached_ones(known: AttentionPatterns) -> None:
    model = exact_model("inferential", TASK)
    sequences = aligned_sequences(TASK, 2, 2, seed=0, keys="test")
    _, cache = model.run_with_cache(torch.from_numpy(sequences.tokens).long())
    for layer in range(2):
        expected = cache["pattern", layer].numpy()
        np.testing.assert_array_equal(known.patterns[layer], expected)
    assert known.answers.tolist() == sequences.targets.tolist()
    assert known.words[1] == tuple(map(str, sequences.tokens[1]))
    noise = ("",)
    assert known.roles[0] == (*noise * 2, "key", "first", "second", *noise * 3, "last")
    assert known.patterns[0, :, 0, 3, 2] == pytest.approx(1)  # the first anchor looks at the key


def test_places_of_examples_are_roles() -> None:
    examples = Examples([[1, 2, 3], [4, 5, 0]], places={"verb": [0, 1]}, padding=0)
    roles = attention_patterns(exact_model("symmetric", TASK), examples).roles
    assert roles == (("verb", "", "last"), ("", "verb", ""))


def test_views_show_patterns_layer_by_layer(known: AttentionPatterns) -> None:
    shown = props(attention_views(known))
    assert len(shown) == 4
    for index, view in enumerate(shown):
        sequence, layer = divmod(index, 2)
        assert view["attention"] == known.patterns[layer, sequence, 0].round(4).tolist()
        key, first, second = known.words[sequence][2:5]
        assert view["tokens"][2:5] == [f"{key}·key", f"{first}·a1", f"{second}·a2"]
        assert view["tokens"][0] == known.words[sequence][0]
        assert view["tokens"][8] == f"{known.words[sequence][8]}·last"
    assert [view["attention"] for view in props(attention_views(known, layers=[1]))] == [
        view["attention"] for view in shown[1::2]
    ]
    with pytest.raises(ConfigError, match="layer is 2; expected at most 1"):
        attention_views(known, layers=[0, 2])


def test_an_output_has_one_script_and_new_ids(known: AttentionPatterns) -> None:
    views = attention_views(known)
    one, two = views.html(), views.html()
    assert one.count("<script") == one.count("</script>") == 1
    assert one.count("var CircuitsVis=") == 1
    ids = re.findall(r' id="([^"]+)"', one) + re.findall(r' id="([^"]+)"', two)
    assert len(ids) == len(set(ids)) == 8
    assert len(repr(views)) < 100  # a notebook stores it beside the page


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"words": [["a"]]}, r"1 sequences of \[1\] tokens; expected 1 of 9"),
        ({"roles": []}, r"0 sequences of \[\] tokens; expected 1 of 9"),
        ({"sequences": np.empty((0, 9), np.int64)}, "at least one"),
        ({"sequences": np.full((1, 9), 1000)}, "tokens run from 1000"),
    ],
)
def test_bad_sequences_words_and_roles_are_refused(given: dict[str, Any], said: str) -> None:
    tokens = given.pop("sequences", np.zeros((1, 9), np.int64))
    with pytest.raises(ConfigError, match=said):
        attention_patterns(exact_model("symmetric", TASK), tokens, **given)


def test_a_browser_draws_every_view(
    browser: Any, known: AttentionPatterns, hostile: AttentionPatterns, tmp_path: Path
) -> None:
    """Three outputs in one page, two of them equal: every view is drawn, CircuitsVis loads once."""
    views = attention_views(known)
    outputs = [views.html(), attention_views(hostile).html(), views.html()]
    page = tmp_path / "page.html"
    counted = "var runs = 0; Object.defineProperty(window, 'anchorInterpViews', {configurable: \
true, get: () => this.kept, set: value => { this.kept = value; runs += 1 }});"
    page.write_text(
        f"<!doctype html><meta charset=utf-8><script>{counted}</script>{''.join(outputs)}", "utf-8"
    )
    shown = browser.new_page(viewport={"width": 1000, "height": 900})
    watched = Watched(shown)
    shown.goto(page.as_uri())
    canvases = 4 + 2 * (3 + 1) + 4  # several heads: each is shown small and one large
    shown.locator(".view canvas").nth(canvases - 1).wait_for()
    shown.wait_for_timeout(300)  # charts get their layout after they appear
    ink = shown.evaluate(
        """() => [...document.querySelectorAll('.view')].map(place =>
            [...place.querySelectorAll('canvas')].map(entry => entry.getContext('2d')
                .getImageData(0, 0, entry.width, entry.height).data.some(value => value)))"""
    )
    assert [len(view) for view in ink] == [1] * 4 + [4] * 2 + [1] * 4
    assert all(drawn for view in ink for drawn in view)
    shown.locator(".view canvas").nth(7).hover()  # a large chart names its cells
    assert shown.locator(".token", has_text=HOSTILE).count() == 1
    said = shown.locator(".anchor-views").first.locator(".token i").all_inner_texts()
    assert said[2:5] == ["key", "1st anchor", "2nd anchor"]
    assert html.unescape(shown.locator(".token b").nth(18 + 2 + 1).inner_text()) == "a b"
    assert shown.locator("img").count() == 0
    assert shown.get_by_text("needs JavaScript").count() == 0
    assert shown.evaluate("[runs, typeof CircuitsVis]") == [1, "undefined"]
    assert watched.complaints == []
    assert watched.requests == [page.as_uri()]
    shown.close()
