"""Sweeps as grids: expansion, names of runs, and errors."""

import itertools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import yaml

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.rounding import decimal
from anchor_interp._util.schema import canonical_json
from anchor_interp.cli.typed import named_values, typed_sweep
from anchor_interp.runs.config import override, run_id
from anchor_interp.runs.presets import preset
from anchor_interp.runs.schedule import total_decay
from anchor_interp.sweeps import spec
from anchor_interp.sweeps.columns import rows_where
from anchor_interp.sweeps.folder import SweepFolder
from anchor_interp.sweeps.rows import planned_row
from anchor_interp.sweeps.spec import (
    SWEEPS,
    Grid,
    Loader,
    Sweep,
    parse_sweep,
    plain_sweep,
    read_sweep,
    written,
)
from anchor_interp.sweeps.table_files import from_csv, to_csv

GRID = """
schema: 1
grids:
  - preset: tiny
    set: {steps: 300, task: neurips}
    axes: {gamma: [0.3, 0.5], weight_decay: [0.01, 0.1, 1.0]}
    zip: [{lr: [0.001, 0.002], eval_every: [100, 200]}]
    seeds: 2
"""


def test_grid_gives_every_combination_once(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(GRID)
    found = read_sweep(file).configs()
    base = preset("tiny", steps=300, task="neurips")
    zipped = ((0.001, 100), (0.002, 200))
    expected = [
        override(base, gamma=gamma, weight_decay=decay, lr=lr, eval_every=every, seed=seed)
        for gamma, decay, (lr, every), seed in itertools.product(
            (0.3, 0.5), (0.01, 0.1, 1.0), zipped, (0, 1)
        )
    ]
    assert list(found.values()) == expected
    assert list(found) == [run_id(config) for config in expected]


def test_config_path_is_relative_to_the_sweep_file(tmp_path: Path) -> None:
    config = preset("tiny", steps=77)
    (tmp_path / "mine.json").write_text(canonical_json(config))
    (tmp_path / "sweep.yaml").write_text("{config: mine.json, axes: {gamma: [0.4]}}")
    (found,) = read_sweep(tmp_path / "sweep.yaml").configs().values()
    assert found == override(config, gamma=0.4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"gridz": []}, "has no field 'gridz'"),
        ({"grids": [{"axis": {}}]}, "did you mean 'axes'?"),
        ({"grids": [{}], "schema": 2}, "schema is 2"),
        ({"grids": {}}, "grids is {}; expected"),
        ({"axes": {"gama": [1]}}, "did you mean 'gamma'?"),
        ({"axes": {"gamma": 3}}, "axes.gamma is 3; expected a list"),
        ({"axes": {"gamma": [9]}}, "init.gamma is 9.0; expected at most 4"),
        ({"axes": {3: [1]}}, "no field is called '3'"),
        ({"axes": {"task": ["neurip"]}}, "neurip"),
        ({"axes": {"anchor": [[{"token": 1}]]}}, "did you mean 'anchors'?"),
        ({"axes": {"anchors": [{"token": 1}]}}, "in a sweep file write [{token: 1, function: {add"),
        ({"axes": {"anchors": [{1: 5, 2: 1}]}}, "in a sweep file write [{token: 1, function: {add"),
        ({"set": {"anchors": [{"tokn": 1}]}}, "has no field 'tokn' (did you mean 'token'?)"),
        ({"set": {"unseen": [3, 4]}}, "in a sweep file write [[3, 4], ...]"),
        ({"axes": {"schedule": [[9, 1e-3, 1]]}}, "in a sweep file write [[1000, 0.001, 1.0], ...]"),
        ({"axes": {"schedule": [[[9, 1, 9]]]}}, "train.schedule[0].weight_decay is 9; expected at"),
        ({"set": {"overrides": [[3, 4]]}}, "in a sweep file write [{pair: [3, 4], function: {"),
        ({"set": {"task": {"anchor": []}}}, "task has no field 'anchor' (did you mean 'anchors'?)"),
        ({"zip": [{"lr": [1e-3], "steps": [1, 2]}]}, "lr has 1, steps has 2"),
        ({"zip": {"lr": [1]}}, "grid 1.zip is {'lr': [1]}; expected"),
        ({"axes": {"gamma": [0.5]}, "zip": [{"gamma": [0.4]}]}, "gamma is on two axes"),
        ({"axes": {"seed": [1]}}, "seed is on two axes"),
        ({"seeds": 0}, "seeds is 0"),
        ({"seeds": []}, "the number of seeds is 0"),
        ({"seeds": "many"}, "seeds is 'many'"),
        ({"preset": "tiny", "config": "c.json"}, "a preset and a config"),
        ({"config": "missing.json"}, "missing.json"),
        ([], "the sweep is []; expected grids"),
        (None, "the sweep is None; expected grids"),
        ({}, "the sweep is {}; expected grids"),
        ({"zip": [{}]}, "zip has fields of different lengths, or none ()"),
        ({"grids": [[]]}, "grid 1 is []"),
    ],
)
def test_invalid_entry_is_named(data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_sweep(data).configs()


def test_a_grid_starts_at_a_configuration() -> None:
    with pytest.raises(ConfigError, match="start is 'tiny'; expected a RunConfig"):
        Grid(start=cast(Any, "tiny"))


def test_exponents_without_a_point_are_numbers(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("preset: tiny\nset: {weight_decay: 1e-2}\naxes: {lr: [1e-3, 2e-3]}\n")
    found = [(c.train.lr, c.train.weight_decay) for c in read_sweep(file).configs().values()]
    assert found == [(1e-3, 1e-2), (2e-3, 1e-2)]


def test_plain_form_of_a_sweep_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "sweep.json"
    anchors = Path(__file__).parents[2] / "examples/own_anchors.yaml"
    for path in (*SWEEPS.values(), anchors):
        file.write_text(json.dumps(plain_sweep(read_sweep(path))))  # eps is 1e-08 there
        assert read_sweep(file) == read_sweep(path)


def test_schedules_are_an_axis_and_a_column(tmp_path: Path) -> None:
    file, later = tmp_path / "sweep.yaml", ((1000, 1e-3, 1.0), (2000, 5e-4, 0.01))
    file.write_text(
        "{preset: tiny, axes: {schedule: [[], [[1000, 1e-3, 1]], [[1000, 1e-3, 1], "
        "[2000, 5e-4, 0.01]]]}}"
    )
    found = read_sweep(file).configs()
    asked = [override(preset("tiny"), schedule=later[:n]) for n in range(3)]
    assert list(found.values()) == asked
    axes: Any = {"schedule": [(), [(1000, 1e-3, 1.0)], np.array(later, object)]}
    assert Sweep((Grid(preset("tiny"), axes),)).configs() == found
    assert next(iter(found)) == run_id(preset("tiny"))
    assert parse_sweep(json.loads(json.dumps(plain_sweep(read_sweep(file))))).configs() == found
    rows = [planned_row(*run) for run in found.items()]
    first, second = "1000 0.001 1", "2000 0.0005 0.01"
    assert [row["schedule"] for row in rows] == [None, first, f"{first}; {second}"]
    assert [row["total_decay"] for row in rows] == [total_decay(one.train) for one in asked]
    assert [row["schedule"] for row in from_csv(to_csv(rows))] == [row["schedule"] for row in rows]
    kept, _ = rows_where(rows, named_values([f"schedule={first}; {second}"]))
    assert kept == rows[2:]


def test_seeds_on_the_command_line() -> None:
    def seeds(*changes: str, n: int | None = None) -> list[int]:
        configs = typed_sweep("tiny", changes, seeds=n).configs().values()
        return [config.seed for config in configs]

    assert seeds("seed=5") == [5]
    assert seeds("seed=5,7") == [5, 7]
    assert seeds(n=2) == [0, 1]
    with pytest.raises(ConfigError, match="both name seeds"):
        seeds("seed=5", n=2)


def test_the_tiny_grid_is_nine_runs_of_tiny_decay_of_at_least_three_phases() -> None:
    grid, decay = (set(read_sweep(SWEEPS[name]).configs()) for name in ("tiny-grid", "tiny-decay"))
    assert len(grid) == 9
    assert grid < decay
    table = pd.read_csv(Path(__file__).parents[2] / "figures/tiny-decay/table.csv")
    assert table[table["run_id"].isin(grid)]["phase"].nunique() >= 3


@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_shipped_sweeps_are_found_by_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()  # as `sweep NAME --out NAME` makes it; resuming repeats the command
    found = typed_sweep(name, []).configs()
    assert found.keys() == read_sweep(SWEEPS[name]).configs().keys()
    assert len(found) > 50 or name == "tiny-grid"


@pytest.mark.parametrize("text", ["{", "a: !!python/object:os.system {}", "\x00", "- [" * 5000])
def test_invalid_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(str(file))):
        read_sweep(file)


def test_too_many_runs_are_refused_before_expansion() -> None:
    numbers = tuple(range(1, 2_000))
    with pytest.raises(ConfigError, match="expected at most 1000000"):
        Sweep((Grid(preset("tiny"), {"steps": numbers, "batch_size": numbers}),))


def test_zipped_values_may_repeat() -> None:
    """Zipped values are rows of a group, not values of an axis."""
    sweep = parse_sweep({"schema": 1, "zip": [{"lr": [1e-3, 1e-3, 2e-3], "n_layers": [2, 3, 3]}]})
    found = [(config.train.lr, config.model.n_layers) for config in sweep.configs().values()]
    assert found == [(1e-3, 2), (1e-3, 3), (2e-3, 3)]


def read(tmp_path: Path, text: str, name: str = "sweep.yaml") -> Sweep:
    (tmp_path / name).write_text(text)
    return read_sweep(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("axes: {gamma: [0.3]}\naxes: {lr: [0.001]}", "axes"),
        ("set: {steps: 3, steps: 4}", "steps"),
        ("axes:\n  gamma: [0.3]\n  lr: [0.1]\n  gamma: [0.5]", "gamma"),
        ("grids:\n- preset: tiny\n  preset: tiny-pre", "preset"),
        ('{"axes": {"gamma": [0.3], "gamma": [0.5]}}', "gamma"),
        ("set: {task: {kind: anchor, length: 9, length: 8}}", "length"),
        ('axes: {1: [2], "1": [3]}', "1"),
    ],
)
def test_a_name_that_occurs_twice_is_refused(tmp_path: Path, text: str, name: str) -> None:
    for file in ("sweep.yaml", "sweep.json"):
        with pytest.raises(ConfigError, match=f"the name '{name}' occurs twice.*line") as caught:
            read(tmp_path, text, file)
        assert "\n" not in str(caught.value)


def test_a_merged_name_may_be_given_again(tmp_path: Path) -> None:
    shared = "  - set: &same {lr: 0.002, steps: 300}\n  - set: {<<: *same, lr: 0.003}\n"
    found = read(tmp_path, f"schema: 1\ngrids:\n{shared}").configs().values()
    assert [(each.train.lr, each.train.steps) for each in found] == [(0.002, 300), (0.003, 300)]


def test_what_was_merged_may_be_merged_again(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text("base: &a {x: 1}\nlist: [&b {<<: *a, x: 2}]\nc: {<<: *b, y: 1}\n")
    assert yaml.load(path.read_text(), spec.Loader)["c"] == {"x": 2, "y": 1}


@pytest.mark.parametrize("text", ["!!map foo", "0x_", "0b_"])
def test_a_value_that_is_none_of_its_kind_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        read(tmp_path, f"axes: {{steps: [{text}]}}").configs()


@pytest.mark.parametrize(
    "text", ["1:5", "10:00", "0100", "0o17", "00", "2024-01-01", "1:5.5", "+0100"]
)
def test_what_is_no_decimal_number_is_a_text(tmp_path: Path, text: str) -> None:
    """YAML 1.1 reads 1:5 as 65, 10:00 as 600 and 0100 as 64."""
    assert named_values([f"steps={text}"]) == {"steps": [text]}
    ways: list[Callable[[], Sweep]] = [
        lambda: read(tmp_path, f"axes: {{steps: [{text}]}}"),
        lambda: typed_sweep("tiny", [f"steps={text},300"]),
        lambda: read(tmp_path, f"seeds: {text}"),
    ]
    for make in ways:
        with pytest.raises(ConfigError, match=re.escape(f"is '{text}'; expected an integer")):
            make().configs()


def test_numbers_and_words_that_files_have_are_read_as_before() -> None:
    """Values that YAML 1.1 reads as their writer meant them."""
    read_as: dict[str, Any] = {
        "3": 3, "+3": 3, "-3": -3, "0": 0, "1_000": 1000, "0x10": 16, "0b11": 3, "0.5": 0.5,
        ".5": 0.5, "5.": 5.0, "1e-3": 0.001, "1.5e3": 1500.0, "-1E3": -1000.0, "1_0.5": 10.5,
        "yes": True, "no": False, "on": True, "off": False, "true": True, "False": False,
        "null": None, "~": None, "tiny": "tiny", ".inf": math.inf, "-.inf": -math.inf,
    }  # fmt: skip
    for text, value in read_as.items():
        (found,) = named_values([f"x={text}"])["x"]
        assert (type(found), found) == (type(value), value)
    assert math.isnan(named_values(["x=.nan"])["x"][0])


def test_texts_that_look_like_numbers_come_back_from_a_folder(tmp_path: Path) -> None:
    """What a sweep writes it reads as it was, whatever reads as a number."""
    texts = ["1e3", "1e-3", "1:5", "0100", "yes", "2024-01-01", "1_0", "<<", "="]
    assert yaml.load(written(texts), Loader) == texts


def gammas(sweep: Sweep) -> list[float]:
    return [config.init.gamma for config in sweep.configs().values()]


def test_computed_values_are_the_decimals_that_they_stand_for(tmp_path: Path) -> None:
    start = preset("tiny")
    linear: Any = np.linspace(0.3, 0.9, 3)
    assert linear.tolist() == [0.3, 0.6000000000000001, 0.9]
    wanted: Any = [0.3, 0.6, 0.9]
    single: Any = np.float32(wanted)
    values: Any
    for values in (linear, linear.tolist(), tuple(linear), list(single), single, pd.Series(linear)):
        grid = Grid(start, {"gamma": values})
        assert gammas(Sweep((grid,))) == wanted
        assert (
            Sweep((grid,)).configs().keys()
            == Sweep((Grid(start, {"gamma": wanted}),)).configs().keys()
        )
    twice: Any = [0.6, 0.1 * 6, 0.30000000000000004, 0.3]
    assert gammas(Sweep((Grid(start, {"gamma": twice}),))) == [0.6, 0.3]
    assert gammas(read(tmp_path, f"axes: {{gamma: {twice}}}")) == [0.6, 0.3]
    assert gammas(typed_sweep("tiny", ["gamma=" + ",".join(map(str, twice))])) == [0.6, 0.3]
    steps: Any = np.array([100, 200, 300])
    zipped = Grid(start, together=({"gamma": linear, "steps": steps},))
    assert gammas(Sweep((zipped,))) == wanted
    assert [config.train.steps for config in zipped.configs()] == [100, 200, 300]
    assert gammas(read(tmp_path, "set: {gamma: 0.6000000000000001}")) == [0.6]


def test_numbers_that_no_short_decimal_stands_for_stay() -> None:
    """Their runs keep their names."""
    values = [1 / 3, 2**-0.5, 10**-2.5, 0.123456789012345, math.pi / 10, 1e-08, 0.1 + 1e-9]
    for value in values:
        assert decimal(value) == value
    assert decimal(np.float32(1 / 3)) == 0.33333334
    assert decimal(np.float16(0.7)) == 0.7
    assert decimal(9.999999999999999e-06) == 1e-05
    assert [decimal(value) for value in ("0.6000000000000001", 3, True, None)] == [
        "0.6000000000000001", 3, True, None
    ]  # fmt: skip


def test_runs_of_a_folder_keep_their_names_digit_for_digit(tmp_path: Path) -> None:
    """A folder of an earlier version may hold 0.6000000000000001: its runs are resumed."""
    start = preset("tiny")
    old = Grid(start, {"gamma": (0.3, 0.6000000000000001)}, exact=True)
    folder = SweepFolder(tmp_path / "sweep")
    before = folder.extend(Sweep((old,))).configs()
    assert gammas(folder.spec()) == [0.3, 0.6000000000000001]
    again = Sweep((Grid(start, {"gamma": (0.3, 0.1 * 6)}),))
    assert again.configs().keys() != before.keys()
    assert folder.resumed(again).configs() == before
    more = Sweep((*again.grids, Grid(start, {"gamma": (0.9,)})))
    assert gammas(folder.resumed(more)) == [0.3, 0.6000000000000001, 0.9]
    assert SweepFolder(tmp_path / "other").resumed(again) == again
    (first, second) = folder.rows()
    assert (first["gamma"], second["gamma"]) == (0.3, 0.6)
    assert second["run_id"] in before


@pytest.mark.parametrize(
    "values", [np.array(0.3), np.ones((2, 2)), np.array([]), "0.3", 0.3, {0.3: 1}, b""]
)
def test_an_axis_is_a_list_of_values(values: Any) -> None:
    with pytest.raises(ConfigError, match=r"axes\.gamma is .*; expected a list of one or more"):
        Grid(preset("tiny"), {"gamma": values})
