"""Complexity control in Hugging Face's Trainer: python examples/own_training.py runs/own [STEPS].

GPT-2's and Llama's architecture, two layers each, from large and from small initial weights.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import anchor_interp as ai

TASK, GAMMAS, DECAY, RATE = ai.TASKS["complexity-control"], (0.3, 0.9), 0.1, 1.8e-3
DATA = ai.sample(TASK, "train", 5_000, seed=1)
ENDS = {"vocab_size": TASK.n_tokens, "bos_token_id": 0, "eos_token_id": 0}


def gpt2() -> Any:
    """Width 64; no dropout."""
    shape = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_inner": 128, "n_positions": 20}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(**shape, **dropout, **ENDS))


def llama() -> Any:
    """Width 64."""
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**shape, intermediate_size=128, **ENDS))


def train(model: Any, out: Path, steps: int) -> list[dict[str, float]]:
    """The log of a run, which continues from its last checkpoint."""
    settings = TrainingArguments(
        str(out), max_steps=steps, per_device_train_batch_size=128, lr_scheduler_type="cosine",
        warmup_steps=steps // 20, logging_steps=max(1, steps // 10), save_steps=max(1, steps // 2),
        seed=1, report_to="none", disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(ai.decay_groups(model, DECAY), lr=RATE)
    data = DATA.as_dataset()
    trainer = Trainer(model, settings, train_dataset=data, optimizers=(optimizer, None))
    ai.watch(trainer, "*.0.*attn*q*")  # the queries of the first layer
    trainer.train(resume_from_checkpoint=any(out.glob("checkpoint-*")))
    return trainer.state.log_history  # type: ignore[no-any-return]


if __name__ == "__main__":
    steps = int((sys.argv[2:] or ["3000"])[0])
    for build in (gpt2, llama):
        for gamma in GAMMAS:
            ai.initialize(model := build(), gamma, seed=1)
            log = train(model, Path(sys.argv[1]) / f"{build.__name__}-{gamma}", steps)
            found = ai.evaluate(model.eval(), TASK, training=DATA)
            ranks = [row[name] for row in log for name in row if name.startswith("stable_rank")]
            accuracy = f"ID {found.id_accuracy:.2f}, OOD {found.ood_accuracy:.2f}"
            phase, rank = ai.classify(found), f"stable rank {ranks[0]:.1f} -> {ranks[-1]:.1f}"
            print(f"{build.__name__}, gamma {gamma}: {phase} ({accuracy}), {rank}")
