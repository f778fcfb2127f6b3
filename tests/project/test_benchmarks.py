"""The benchmarks: what they refuse, what they keep, and the tables made from their JSON."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import measuring
import scaling
import sweep
import tables
import train_step
from anchor_interp.models.shapes import ModelConfig
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.objectives import make_objective
from anchor_interp.runs.presets import RUNS
from measuring import Kept, process
from released import ReleasedCode, ReleasedStep, equivalent

STAND_IN = """
import seaborn  # not installed here, and not needed
import torch

class Model(torch.nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.all = torch.nn.Embedding(settings.vocab_size, {width})
    def forward(self, tokens):
        return self.all(tokens).flatten(0, 1)[:, : {outputs}], []

def get_model(settings, device):
    return Model(settings)

def get_optimizer(model, settings):
    return torch.optim.SGD(model.parameters(), lr=0.1), None

def train_step(settings, model, batches, optimizer, criterion, device, clip, scheduler=None):
    losses = []
    for tokens, targets in batches:
        optimizer.zero_grad()
        loss = criterion(model(tokens)[0].view(*tokens.shape, -1)[:, -1], targets[:, -1])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)
"""


def checkout(folder: Path, program: str) -> Path:
    """A folder with the names of the released code's and nothing else of it."""
    code = folder / "code_for_anchor_func"
    (code / "model").mkdir(parents=True)
    (code / "model" / "GPT2_init_for_diff_part_prenorm.py").write_text("")
    (code / "train.py").write_text(program)
    return folder


@pytest.fixture(autouse=True)
def no_module_called_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "train", raising=False)


def refused(capsys: pytest.CaptureFixture[str], benchmark: Any, *arguments: str) -> str:
    """The one line that a benchmark ends with."""
    with pytest.raises(SystemExit) as ended:
        benchmark.main(list(arguments))
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert not out
    line = str(err).splitlines()[-1]
    assert ": error: " in line
    return line


@pytest.mark.parametrize(
    ("benchmark", "arguments", "named"),
    [
        (train_step, ("--cases", "huge"), "huge"),
        (train_step, ("--turns", "0"), "--turns"),
        (scaling, ("--cases", "width-3"), "width-3"),
        (scaling, ("--turns", "0"), "--turns"),
        (sweep, ("--parts", "all"), "all"),
        (sweep, ("--many", "7"), "--many"),
        (sweep, ("--table", "no.json"), "no.json"),
    ],
)
def test_bad_arguments_end_with_one_line(
    benchmark: Any, arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert named in refused(capsys, benchmark, *arguments)


def test_released_code_that_cannot_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare, broken = tmp_path / "bare", checkout(tmp_path / "broken", "import a_package_not_there\n")
    other = checkout(tmp_path / "other", STAND_IN.format(width=300, outputs=201))
    ours = equivalent(4, "float32").model.n_parameters
    for path, named in (
        (bare, [str(bare), "github.com/sjtuzzw/complexity_control", "code_for_anchor_func/train"]),
        (broken, [str(broken), "a_package_not_there"]),
        (other, [f"{201 * 300:,}", f"{ours:,}"]),  # a model of another shape
    ):
        line = refused(capsys, train_step, "--released-code", str(path), "--batches", "4")
        assert all(each in line for each in named), line


def test_the_checkouts_own_step_trains_on_our_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkout(tmp_path, STAND_IN.format(width=201, outputs=201))
    before = list(sys.path), set(sys.modules)
    code = ReleasedCode.load(path)
    assert sys.path == before[0]
    assert set(sys.modules) - before[1] <= {"train"}
    assert not list(path.rglob("__pycache__"))
    assert code.commit is None
    monkeypatch.setattr(ModelConfig, "n_parameters", 201 * 201)
    config = override(RUNS["tiny"], batch_size=8)
    step = ReleasedStep(code, config)
    assert step.outputs == [8 * 9, 201]
    batch = make_objective(config, torch.device("cpu")).parts(0)[0]
    first = step.train([batch])
    assert step.train([batch]) < first


def test_the_factors_change_only_what_they_say() -> None:
    tiny = RUNS["tiny"]
    for factor in scaling.FACTORS.values():
        configs = [factor.config(value) for value in factor.values]
        assert len(set(configs)) == len(configs)
        assert all(isinstance(config, RunConfig) for config in configs)
        assert any(
            override(config, n_ctx=tiny.model.n_ctx, length=tiny.task.length) == tiny
            for config in configs
        )


def test_finished_cases_are_kept_until_all_are_there(tmp_path: Path) -> None:
    taken: list[str] = []

    def measure() -> dict[str, Any]:
        taken.append("measured")
        return {"seconds": len(taken)}

    kept = Kept("bench", {"turns": 3}, cache=tmp_path)
    assert kept.row("a", measure) == Kept("bench", {"turns": 3}, cache=tmp_path).row("a", measure)
    assert len(taken) == 1
    Kept("bench", {"turns": 4}, cache=tmp_path).row("a", measure)
    assert len(taken) == 2
    kept.clear()
    kept.row("a", measure)
    assert len(taken) == 3


def test_a_process_by_itself_is_told_of() -> None:
    small, large = (
        process("-c", f"import time; held = b'x' * {n}; time.sleep(0.2); print('there')")
        for n in (1, 200_000_000)
    )
    assert small.output == "there\n"
    assert small.seconds > 0.2 > small.cpu_seconds
    assert 150e6 < large.peak_bytes - small.peak_bytes < 250e6
    assert small.peak_bytes < 50e6, "the memory of the process that asks is not the other's"
    with pytest.raises(RuntimeError, match="exit code 3"):
        process("-c", "raise SystemExit(3)")


def test_a_short_turn_of_the_step_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    row = scaling.step_cost(scaling.Factor("batch", (8,), lambda n: {"batch_size": n}), 8, 1)
    assert row["value"] == 8
    assert row["to_tiny"]["median"] < 1
    assert 0 < row["share_of_torch_mm"] < 1.5
    found = {"machine": measuring.machine(), "cases": [row]}
    assert "| batch 8 |" in scaling.tables(found)["steps"]


def test_the_performance_pages_show_what_the_evidence_says() -> None:
    for path, count in zip(tables.PAGES, (3, 16), strict=True):
        page = path.read_text(encoding="utf-8")
        assert tables.filled(page) == page, "run: python benchmarks/tables.py"
        assert page.count("<!-- table: ") == page.count("<!-- end -->") == count


def test_a_table_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    found = json.loads((measuring.EVIDENCE / "train_step.json").read_text())
    found["cases"][0]["step_ms"] = 12345.0
    (tmp_path / "train_step.json").write_text(json.dumps(found))
    page = "a\n<!-- table: train_step cases -->\nold\n<!-- end -->\nb\n"
    once = tables.filled(page, tmp_path)
    assert once.startswith("a\n")
    assert once.endswith("-->\nb\n")
    assert "old" not in once
    assert "| `tiny` | 12,300 ms |" in once
    assert tables.filled(once, tmp_path) == once
    assert tables.filled(page, tmp_path / "empty") == page


def test_numbers_in_tables_have_two_digits() -> None:
    shown = {0.0123: "0.012", 0.2: "0.2", 1.0: "1.0", 9.96: "10", 24.4: "24", 1380.0: "1,400"}
    assert {value: measuring.number(value) for value in shown} == shown
    assert measuring.number(1380.0, 3) == "1,380"


def test_the_sweep_of_many_has_as_many_runs() -> None:
    from anchor_interp.sweeps.spec import parse_sweep

    for many in (5, 100, 250):
        assert len(parse_sweep(sweep.grid_of(many)).configs()) == many
