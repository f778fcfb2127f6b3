"""Figure 7E (complexity-control paper): how far does each part of a proof come on PrOntoQA?

A proof has parts that are learned at different times: which concept comes next, whether the last
property is negated (the *sign*), and the judgement. ``along`` measures them along training.

``python -m evidence.prontoqa_learned OUT PILOT`` trains one of :data:`PILOTS`, or resumes it, and
writes ``OUT/PILOT.csv``, a row every 100 steps. Pilots judge no claim.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

import curves
from anchor_interp import Dataset, Prontoqa, preset
from anchor_interp._util.environment import resolve_device
from anchor_interp._util.signals import stop_signals
from anchor_interp.models.batches import masked_batch
from anchor_interp.models.forward import place_logits
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.config import RunConfig, override
from anchor_interp.runs.loop import StepEvent, TrainState
from claim_effects import Row
from studies import write_csv

_WORDS = Prontoqa().words
_STOP, _EVERY, _IS, _A = map(_WORDS.index, (".", "Every", "is", "a"))
_TRUE, _FALSE = map(_WORDS.index, ("True", "False"))


@dataclass(frozen=True)
class SignedProntoqa(Prontoqa):
    """PrOntoQA whose proofs also say what each concept on their way is, or is not."""

    kind: Literal["prontoqa-signed"] = "prontoqa-signed"  # type: ignore[assignment]

    @property
    def length(self) -> int:
        """Each hop but the last, in ``deeper`` every one of ``hops``, says eleven words more."""
        return super().length + 11 * self.hops

    def examples(self, split: str, n: int, *, seed: int) -> Dataset:
        """The same worlds and questions with longer proofs."""
        plain = super().examples(split, n, seed=seed)
        ends = zip(plain.tokens, plain.starts, plain.lengths, strict=True)
        rows = [(row[:length].tolist(), start) for row, start, length in ends]
        prompts = [row[:start] for row, start in rows]
        return Dataset.of(prompts, [_signed(row, start) for row, start in rows])


def _sentences(tokens: list[int]) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for token in tokens:
        found[-1].append(token)
        if token == _STOP:
            found.append([])
    return found


def _signed(row: list[int], start: int) -> list[int]:
    """The answer with the rule on the property of every concept that a link leaves."""
    traits = {rule[1]: rule[3:] for rule in _sentences(row[:start])
              if rule[:1] == [_EVERY] and rule[3] != _A}  # fmt: skip
    answer, person = [], row[start]
    for sentence in _sentences(row[start:]):
        if sentence[0] == _EVERY and sentence[3] == _A:
            trait = traits[sentence[1]]
            answer += [*sentence[:3], *trait, person, _IS, *trait]
        answer += sentence
    return answer


def parts_of(examples: Dataset) -> list[str]:
    """What part of the proof each token to predict is, in the order of the examples."""
    found = []
    for row, start, length in zip(examples.tokens, examples.starts, examples.lengths, strict=True):
        tokens = row[:length].tolist()
        mine = list(_parts(_sentences(tokens[start:])))
        last = len(mine) - 1 - mine[::-1].index("sign")
        found += [p if p != "sign" or i == last else "earlier sign" for i, p in enumerate(mine)]
    return found


def _parts(sentences: list[list[int]]) -> Iterator[str]:
    for sentence in sentences:
        for place, token in enumerate(sentence):
            if token in (_TRUE, _FALSE):
                yield "judgement"
            elif sentence[0] != _EVERY or place < 3 or token in (_A, _STOP):
                yield "rest"
            elif place == 3:
                yield "sign"
            else:
                yield "concept" if sentence[3] == _A else "property"


@torch.no_grad()
def along(model: HookedTransformer, examples: Dataset, parts: np.ndarray) -> Row:
    """Mean loss in nats, and share of right tokens, of each part."""
    batch = masked_batch(examples, model.cfg.n_ctx, next(model.parameters()).device)
    logits = place_logits(model, batch.tokens, batch.places)[: len(parts)]
    targets = batch.targets[: len(parts)]
    losses = F.cross_entropy(logits, targets, reduction="none").cpu().numpy()
    right = (logits.argmax(-1) == targets).cpu().numpy()
    return {
        f"{part} {name}": round(float(values[parts == part].mean()), 4)
        for part in dict.fromkeys(parts)
        for name, values in (("loss", losses), ("right", right))
    }


def _pilot(task: Prontoqa, seed: int, **changes: object) -> RunConfig:
    base = preset("prontoqa", task=task, n_ctx=task.length, n_layers=2, d_model=128, n_heads=8,
                  d_head=16, d_mlp=512)  # fmt: skip
    settings = {"n_sequences": 400_000, "batch_size": 32, "steps": 12_000, "lr": 1e-3,
                "warmup": 0.02, "gamma": 0.5, "weight_decay": 0.01, "log_every": 20,
                "eval_every": 1_000, "checkpoint_every": 1_000} | changes  # fmt: skip
    return override(base, seed=seed, lr_end=settings["lr"], **settings)


_THREE, _SIGNED = Prontoqa(hops=3, least_hops=3), SignedProntoqa(hops=3, least_hops=3)
PILOTS: Mapping[str, RunConfig] = {
    "three-hops": _pilot(_THREE, 920),
    "signed": _pilot(_SIGNED, 921),
    "three-hops-4-layers": _pilot(_THREE, 922, n_layers=4),
    "signed-4-layers": _pilot(_SIGNED, 923, n_layers=4),
    "three-hops-batch-128": _pilot(_THREE, 924, batch_size=128, lr=2e-3, steps=3_000),
    "signed-batch-128": _pilot(_SIGNED, 925, batch_size=128, lr=2e-3, steps=3_000),
}


def main() -> None:
    """Train a pilot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("pilot", choices=PILOTS)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    config, device = PILOTS[asked.pilot], resolve_device(asked.device)
    probes = config.task.examples("id", 256, seed=3)
    parts = np.array(parts_of(probes))

    def row_of(state: TrainState, event: StepEvent, logged: Row) -> Row | None:
        if event.step % 100:
            return None
        judged = {name: logged[name] for name in logged if name.endswith("accuracy")}
        measured = {"step": event.step, "loss": round(float(event.loss), 4)} | judged
        return measured | along(state.model, probes, parts)

    with stop_signals() as stopped:
        rows = curves.train(config, asked.out / asked.pilot, device, stopped, row_of)
    if rows:
        columns = dict.fromkeys(name for row in rows for name in row)
        write_csv(asked.out / f"{asked.pilot}.csv", rows, [*columns])


if __name__ == "__main__":
    main()
