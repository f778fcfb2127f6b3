"""Complexity control in Hugging Face's Trainer: python examples/own_training.py runs/own [STEPS].

GPT-2's and Llama's architecture, two layers each, from large and from small initial weights.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import transformers as hf

import anchor_interp as ai

TASK, GAMMAS, DECAY, RATE = ai.TASKS["complexity-control"], (0.3, 0.9), 0.1, 1.8e-3
DATA = ai.sample(TASK, "train", 5_000, seed=1)
ENDS = {"vocab_size": TASK.n_tokens, "bos_token_id": 0, "eos_token_id": 0}


def gpt2() -> Any:
    """Width 64; no dropout."""
    shape = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_inner": 128, "n_positions": 20}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return hf.GPT2LMHeadModel(hf.GPT2Config(**shape, **dropout, **ENDS))


def llama() -> Any:
    """Width 64."""
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**shape, intermediate_size=128, **ENDS))


def train(model: Any, out: Path, steps: int) -> Any:
    """The log of a run, which continues from its last checkpoint."""
    settings = hf.TrainingArguments(
        str(out), max_steps=steps, per_device_train_batch_size=128, lr_scheduler_type="cosine",
        warmup_steps=steps // 20, logging_steps=max(1, steps // 10), save_steps=max(1, steps // 2),
        seed=1, report_to="none", disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(ai.decay_groups(model, DECAY), lr=RATE)
    trainer = hf.Trainer(model, settings, None, DATA.as_dataset(), optimizers=(optimizer, None))
    ai.watch(trainer, "*.0.*attn*q*")  # the queries of the first layer
    trainer.train(resume_from_checkpoint=any(out.glob("checkpoint-*")))
    return trainer.state.log_history


if __name__ == "__main__":
    for build in (gpt2, llama):
        for gamma in GAMMAS:
            ai.initialize(model := build(), gamma, seed=1)
            out = Path(sys.argv[1]) / f"{build.__name__}-{gamma}"
            log = train(model, out, int((sys.argv[2:] or ["3000"])[0]))
            found = ai.evaluate(model.eval(), TASK, n=100, training=DATA)
            ranks = [row[name] for row in log for name in row if name.startswith("stable_rank")]
            print(f"{build.__name__}, gamma {gamma}: {ai.classify(found)},",
                  f"ID {found.id_accuracy:.2f}, OOD {found.ood_accuracy:.2f},",
                  f"stable rank {ranks[0]:.1f} -> {ranks[-1]:.1f}")  # fmt: skip
