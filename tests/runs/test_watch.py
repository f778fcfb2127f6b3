"""Hugging Face's models on an anchor task: their data, their answers, their measures in a log."""

import json
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import own_modules
import pytest
import torch
from refusals import assert_refused
from torch import nn
from versions import only_4

import anchor_interp as ai
import own_training
from anchor_interp.behaviour.evaluation import predict

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
TASK = ai.TASKS["complexity-control"]


def test_labels_are_the_targets_as_hugging_face_shifts_them() -> None:
    sequences = ai.sample(TASK, "train", 40, seed=1)
    rows = sequences.as_dataset()
    assert len(rows) == 40
    for row, tokens, target in zip(rows, sequences.tokens, sequences.targets, strict=True):
        assert row["input_ids"].tolist() == [*tokens.tolist(), target]
        assert row["labels"].tolist() == [-100] * 9 + [target]
    model = own_modules.llama().eval()
    batch = {name: torch.tensor(np.array([row[name] for row in rows])) for name in rows[0]}
    with torch.no_grad():
        loss = float(model(**batch).loss)
        logits = model(sequences.tensor).logits[:, -1]
    targets = torch.tensor(sequences.targets.astype(int))
    assert loss == pytest.approx(float(nn.functional.cross_entropy(logits, targets)), rel=1e-5)


@pytest.fixture(scope="module")
def both() -> tuple[Any, Any]:
    """A trained HookedTransformer and a function that gives its logits."""
    model = ai.load("tiny/inferential/1").model
    return model, lambda tokens: model(tokens, return_type="logits")


def test_a_callable_is_evaluated_and_mapped_as_the_model_it_calls(both: Any) -> None:
    model, called = both
    own, other = (ai.evaluate(each, TASK, n=20) for each in both)
    assert (own.ood_accuracy, own.id_accuracy) == (other.ood_accuracy, other.id_accuracy)
    assert own.pair_accuracy == other.pair_accuracy
    assert (own.stable_rank is not None, other.stable_rank) == (True, None)
    maps = [ai.answer_map(each, TASK, n=2) for each in both]
    assert np.array_equal(maps[0].shares, maps[1].shares)
    wrapped = type("Wrapped", (), {"__call__": lambda _, t: type("Out", (), {"logits": called(t)})})
    some = ai.sample(TASK, "ood", 600, seed=0)
    expected = predict(model, some)
    assert np.array_equal(predict(wrapped(), some), expected)
    arrays: Any = type("Arrays", (), {"__call__": lambda _, t: called(t).detach().numpy()})
    assert np.array_equal(predict(arrays(), some), expected)
    early = ai.Examples(some.tokens, at=6)
    torch.testing.assert_close(ai.last_logits(called, early), model(some.tensor)[:, 6])


def test_a_model_of_hugging_face_is_evaluated() -> None:
    model = own_modules.gpt2().eval()
    found = ai.evaluate(model, TASK, n=5)
    query = model.transformer.h[0].attn.c_attn.weight[:, :64].detach().double()
    rank = float(query.square().sum() / torch.linalg.matrix_norm(query, 2) ** 2)
    assert found.stable_rank == pytest.approx(rank, rel=1e-5)
    assert ai.classify(found) == "undertrained"


def test_padding_before_a_text_moves_no_position_of_a_called_model() -> None:
    model = own_modules.gpt2().eval()
    short = torch.arange(6).view(2, 3)
    padded = np.hstack([np.zeros((2, 2), int), short.numpy()])
    mask = np.array([[0, 0, 1, 1, 1]] * 2)
    found = ai.last_logits(model, ai.Examples(padded, attention_mask=mask))
    torch.testing.assert_close(found, model(short).logits[:, -1].detach(), rtol=1e-4, atol=1e-5)
    examples = ai.Examples(padded, attention_mask=mask)
    torch.testing.assert_close(ai.last_logits(own_modules.Wrapped(model), examples), found)
    others: list[Any] = [lambda t, **_: model(t), lambda t: model(t)]
    ones = torch.ones(1, 3, dtype=torch.int64)
    others.append(lambda t, attention_mask=1 - ones: model(t, attention_mask=1 - attention_mask))
    for other in others:
        with pytest.raises(ai.ConfigError, match=r"row 0 by itself has another answer: .*padding"):
            ai.last_logits(other, examples)
    behind = ai.Examples(padded[:, ::-1], attention_mask=mask[:, ::-1])
    expected = model(torch.from_numpy(padded[:, :1:-1].copy())).logits[:, -1].detach()
    for causal in (model, others[0]):
        torch.testing.assert_close(ai.last_logits(causal, behind), expected, rtol=1e-4, atol=1e-5)


@only_4
@pytest.mark.filterwarnings("ignore")
def test_a_bridge_answers_as_the_model_that_it_wraps() -> None:
    model, bridge = own_modules.gpt2().eval(), ai.bridge(own_modules.gpt2())
    own, bridged = (ai.evaluate(each, TASK, n=10) for each in (model, bridge))
    assert own.pair_accuracy == bridged.pair_accuracy
    assert own.stable_rank == pytest.approx(bridged.stable_rank, rel=1e-5)
    with pytest.raises(ai.ConfigError, match="is a TransformerBridge; initialise its original_mod"):
        ai.initialize(bridge)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "training": (lambda: own_modules.gpt2().train(), "the model is in training mode; call model"),
    "vocabulary": (lambda: nn.Embedding(50, 3).eval(), "the model refuses the tokens: index"),
    "shape": (lambda: lambda tokens: tokens, r"expected logits \(.*, 9, 'd_vocab'\)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_gives_no_logits_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, message = WRONG[case]
    assert_refused(lambda: ai.evaluate(make(), TASK, n=5), message, monkeypatch)


def test_weight_measures_are_those_of_complexity() -> None:
    module, start = own_modules.encoder(), own_modules.encoder()
    ai.initialize(module, 0.3)
    first = ai.weight_measures(start)
    found = ai.weight_measures(module, "*.in_proj.?", first)
    expected = {one.name: one for one in ai.complexity(module, start).matrices}
    assert len(found) == 3 * 4
    for name, value in found.items():
        measure, _, matrix = name.partition("/")
        assert value == pytest.approx(getattr(expected[matrix], measure), rel=1e-6)
    assert not any(name.startswith("share/") for name in first)
    hooked = ai.load("tiny/inferential/1").model
    assert "stable_rank/0.W_Q" in ai.weight_measures(hooked, "*.W_Q")
    with pytest.raises(ai.ConfigError, match="no matrix is called '"):
        ai.weight_measures(module, "*.query")


def trained(
    out: Path,
    kind: Any = None,
    callbacks: Any = None,
    *,
    steps: int = 6,
    resume: bool = False,
    watched: tuple[str, ...] = ("*.attn.*",),
    **arguments: Any,
) -> Any:
    """A short watched run of GPT-2."""
    from transformers import Trainer, TrainingArguments

    model = own_modules.gpt2()
    ai.initialize(model, 0.6)
    settings = {"max_steps": steps, "per_device_train_batch_size": 8, "learning_rate": 1e-3,
                "logging_steps": 2, "save_steps": 2, "report_to": [], "disable_tqdm": True,
                "use_cpu": True, "lr_scheduler_type": "constant"}  # fmt: skip
    data = ai.sample(TASK, "train", 64, seed=0).as_dataset()
    trainer = (kind or Trainer)(
        model, TrainingArguments(str(out), **settings | arguments), train_dataset=data
    )
    for matrices in watched:
        ai.watch(trainer, matrices)
    for callback in callbacks or ():
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def told(trainer: Any) -> list[dict[str, float]]:
    """The log without times."""
    log = json.loads(json.dumps(trainer.state.log_history))
    return [row for row in log if "train_runtime" not in row]


def test_a_watched_trainer_logs_the_measures_beside_the_loss(tmp_path: Path) -> None:
    straight = trained(tmp_path / "a", report_to=["tensorboard"])
    log = told(straight)
    steps = [(row["step"], "loss" in row) for row in log]
    assert steps == [(0, False), (2, True), (4, True), (6, True)]
    last = log[-1]
    name = "transformer.h.0.attn.c_attn.q"
    expected = next(m for m in ai.complexity(straight.model).matrices if m.name == name)
    for measure in ("stable_rank", "condensation", "norm"):
        assert last[f"{measure}/{name}"] == pytest.approx(getattr(expected, measure), rel=1e-6)
    share = last[f"stable_rank/{name}"] / log[0][f"stable_rank/{name}"]
    assert last[f"share/{name}"] == pytest.approx(share)
    assert not any(key.startswith("share/") for key in log[0])
    events = b"".join(path.read_bytes() for path in (tmp_path / "a").rglob("events.out.*"))
    assert f"train/stable_rank/{name}".encode() in events

    trained(tmp_path / "b", steps=4)
    resumed = trained(tmp_path / "b", resume=True)
    assert told(resumed) == log
    for one, other in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_every_record_of_the_first_step_gives_shares(tmp_path: Path) -> None:
    log = told(trained(tmp_path, steps=2, watched=("*.h.0.mlp.c_fc", "*.h.0.attn.c_proj")))
    shares = {name for row in log if row["step"] == 2 for name in row if name.startswith("share/")}
    assert shares == {f"share/transformer.h.0.{name}" for name in ("mlp.c_fc", "attn.c_proj")}


def test_a_record_has_the_loss_its_measures_once_and_a_trainers_own_metrics(tmp_path: Path) -> None:
    """Whoever asks for the loss, and though ``log`` forgets what it has told."""
    from transformers import Trainer, TrainerCallback

    class Flushing(Trainer):  # type: ignore[misc]
        metrics: ClassVar[list[float]] = []

        def compute_loss(self, *given: Any, **named: Any) -> Any:
            self.metrics.append(1.0)
            return super().compute_loss(*given, **named)

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            super().log(logs | ({"accuracy": 1.0} if self.metrics else {}), start_time)
            self.metrics.clear()

    class Late(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_log = state.global_step == 3

    watched = ("*.c_fc",) * 2
    trainer = trained(tmp_path, Flushing, [Late()], steps=4, logging_steps=9, watched=watched)
    rows = [{name.split("/")[0] for name in row} for row in told(trainer)]
    measures = {"stable_rank", "norm", "condensation"}
    start = measures | {"step", "epoch"}
    assert rows == [start, start | {"share", "loss", "grad_norm", "learning_rate", "accuracy"}]


def test_weights_that_are_not_finite_stop_no_training_and_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import TrainerCallback

    class Spoil(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _args: Any, state: Any, _control: Any, **named: Any) -> None:
            if state.global_step == 3:
                named["model"].transformer.h[1].mlp.c_fc.weight.data[0, 0] = torch.nan

    log = told(trained(tmp_path, callbacks=[Spoil()]))
    measured = [row["step"] for row in log if any(name.startswith("norm/") for name in row)]
    assert measured == [0, 2]
    assert [row["step"] for row in log if "loss" in row] == [2, 4, 6]
    (record,) = (one for one in caplog.records if one.name == "anchor_interp.runs.watch")
    assert re.search(r"at step 4: the values of .* are not finite", record.getMessage())


@pytest.mark.parametrize(("matrices", "warns"), [("*", True), ("*.c_fc", True), ("*.wte", False)])
def test_a_watch_names_the_matrices_that_it_leaves_out(
    matrices: str, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import Trainer, TrainingArguments

    model = own_modules.gpt2()
    nn.utils.parametrizations.weight_norm(model.transformer.h[1].mlp.c_fc)
    trainer = Trainer(model, TrainingArguments(str(tmp_path), report_to=[], use_cpu=True))
    ai.watch(trainer, matrices)
    told = [one.getMessage() for one in caplog.records if one.name == "anchor_interp.runs.watch"]
    assert len(told) == warns
    assert all("h.1.mlp.c_fc.parametrizations.weight.original1" in text for text in told)


def test_the_example_gives_equal_numbers_twice_and_resumed(tmp_path: Path) -> None:
    def run(folder: str) -> tuple[list[dict[str, float]], bytes]:
        model = own_training.llama()
        ai.initialize(model, 0.3, seed=1)
        log = own_training.train(model, tmp_path / folder, 4)
        kept = [row for row in log if "train_runtime" not in row]
        return kept, (tmp_path / folder / "checkpoint-4" / "model.safetensors").read_bytes()

    first = run("a")
    assert run("b") == first
    shutil.rmtree(tmp_path / "b" / "checkpoint-4")  # as if it had been stopped after two steps
    assert run("b") == first
    steps = [row["step"] for row in first[0] if any(name.startswith("stable") for name in row)]
    assert steps == [0, 1, 2, 3, 4]


def test_the_example_prints_phases_and_stable_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(own_training.__file__)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60
    evaluate = ai.evaluate
    monkeypatch.setattr(
        ai, "evaluate", lambda *given, **named: evaluate(*given, **named | {"n": 2})
    )
    monkeypatch.setattr(sys, "argv", [str(path), str(tmp_path), "1"])
    runpy.run_path(str(path), run_name="__main__")
    told = [line for line in capsys.readouterr().out.splitlines() if line[0] != "{"]
    accuracy = r"undertrained, ID 0.\d\d, OOD 0.\d\d"
    pattern = rf"(gpt2|llama), gamma 0.[39]: {accuracy}, stable rank 17.\d -> 1\d.\d"
    assert len(told) == 4
    assert all(re.fullmatch(pattern, line) for line in told), told
