"""Modular addition, from training to page: python examples/modular_addition.py runs/mod [STEPS]."""

import sys

import torch

import anchor_interp as ai
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.pages.analysis_page import write_analysis

P = 31
SHAPE = {"n_layers": 1, "n_heads": 4, "d_model": 64, "d_head": 16, "d_mlp": 256, "act_fn": "relu"}

if __name__ == "__main__":
    torch.manual_seed(0)
    a, b = (n.flatten() for n in torch.meshgrid(torch.arange(P), torch.arange(P), indexing="ij"))
    tokens, answers = torch.stack([a, b, torch.full_like(a, P)], 1), (a + b) % P  # a b =
    order = torch.randperm(P * P)
    train, other = order[: P * P * 7 // 10], order[P * P * 7 // 10 :]
    shape = SHAPE | {"d_vocab": P + 1, "n_ctx": 3, "normalization_type": None, "device": "cpu"}
    model = HookedTransformer(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1)
    for _ in range(int((sys.argv[2:] or ["2000"])[0])):
        logits = model(tokens[train])[:, -1]
        torch.autograd.backward(torch.nn.functional.cross_entropy(logits, answers[train]))
        optimizer.step()
        optimizer.zero_grad()
    right = model(tokens[other])[:, -1].argmax(-1) == answers[other]
    print(f"{right.float().mean():.2f} of the sums that it never saw are right")
    examples = ai.Examples(tokens, answers, places={"a": 0, "b": 1})
    analysis = ai.analyze_model(model, examples, name="modular addition")
    write_analysis(analysis, sys.argv[1])
