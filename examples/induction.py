"""Induction, from training to page: python examples/induction.py runs/induction [STEPS]."""

import sys

import torch

import anchor_interp as ai
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.pages.analysis_page import write_analysis

N_TOKENS, LENGTH, AT = 300, 20, 14
SHAPE = {"n_layers": 3, "n_heads": 4, "d_model": 64, "d_head": 16, "d_mlp": 128, "act_fn": "relu"}


def repeated(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens again and again [n, LENGTH], and after how many they begin anew [n, 1]."""
    generator = torch.Generator().manual_seed(seed)
    period = torch.randint(5, 11, (n, 1), generator=generator)
    order = torch.rand(n, N_TOKENS, generator=generator).argsort(1)
    return order.gather(1, torch.arange(LENGTH) % period), period


if __name__ == "__main__":
    torch.manual_seed(0)
    model = HookedTransformer(SHAPE | {"d_vocab": N_TOKENS, "n_ctx": LENGTH, "device": "cpu"})
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(int((sys.argv[2:] or ["1000"])[0])):
        tokens, period = repeated(128, step + 1)
        known = torch.arange(LENGTH - 1) >= period  # where the next token has been before
        logits, answers = model(tokens)[:, :-1][known], tokens[:, 1:][known]
        torch.autograd.backward(torch.nn.functional.cross_entropy(logits, answers))
        optimizer.step()
        optimizer.zero_grad()
    tokens, period = repeated(600, 0)  # a circuit is of one period
    same = AT - period[:, 0]  # where the last token has been before
    places = {"same": same, "next": same + 1}
    examples = ai.Examples(tokens, tokens[:, AT + 1], at=AT, places=places)
    analysis = ai.analyze_model(model, examples, name="induction")
    write_analysis(analysis, sys.argv[1])
