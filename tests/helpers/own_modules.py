"""Small random models that are not ours: Hugging Face's, and modules of PyTorch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

SIZES = {"vocab_size": 201, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 128, "max_position_embeddings": 20, "bos_token_id": 0,
         "eos_token_id": 0}  # fmt: skip


def gpt2(**changes: Any) -> Any:
    """Two layers of width 64."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 201, "n_positions": 20, "n_embd": 64, "n_layer": 2, "n_head": 4}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return seeded(lambda: GPT2LMHeadModel(GPT2Config(**sizes, **ends, **changes)))


def hooked_weights(model: Any) -> dict[str, torch.Tensor]:
    """The weights of a GPT-2 of four heads under HookedTransformer's names."""
    weights = {name.removeprefix("transformer."): each for name, each in model.state_dict().items()}
    renamed = {
        "embed.W_E": weights["wte.weight"], "pos_embed.W_pos": weights["wpe.weight"],
        "unembed.W_U": weights["lm_head.weight"].T,
        "unembed.b_U": torch.zeros(len(weights["lm_head.weight"])),
        "ln_final.w": weights["ln_f.weight"], "ln_final.b": weights["ln_f.bias"],
    }  # fmt: skip
    for layer in range(2):
        block, old = f"blocks.{layer}", f"h.{layer}"
        for new, part in (("w", "weight"), ("b", "bias")):
            renamed[f"{block}.ln1.{new}"] = weights[f"{old}.ln_1.{part}"]
            renamed[f"{block}.ln2.{new}"] = weights[f"{old}.ln_2.{part}"]
        matrix, bias = (weights[f"{old}.attn.c_attn.{part}"] for part in ("weight", "bias"))
        for each, w, b in zip("QKV", matrix.chunk(3, 1), bias.chunk(3), strict=True):
            renamed[f"{block}.attn.W_{each}"] = w.reshape(len(w), 4, -1).transpose(0, 1)
            renamed[f"{block}.attn.b_{each}"] = b.reshape(4, -1)
        out = weights[f"{old}.attn.c_proj.weight"]
        renamed[f"{block}.attn.W_O"] = out.reshape(4, -1, out.shape[1])
        renamed[f"{block}.attn.b_O"] = weights[f"{old}.attn.c_proj.bias"]
        for each, part in (("in", "c_fc"), ("out", "c_proj")):
            renamed[f"{block}.mlp.W_{each}"] = weights[f"{old}.mlp.{part}.weight"]
            renamed[f"{block}.mlp.b_{each}"] = weights[f"{old}.mlp.{part}.bias"]
    return renamed


def llama(**changes: Any) -> Any:
    """Two layers of width 64, with grouped keys and values."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return seeded(lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, **changes)))


def mistral() -> Any:
    """Llama's shape with sliding windows."""
    from transformers import MistralConfig, MistralForCausalLM

    return seeded(lambda: MistralForCausalLM(MistralConfig(**SIZES, num_key_value_heads=2)))


def gemma() -> Any:
    """Norms multiply by 1 + weight; the head is tied."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 3}
    return seeded(lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, **sizes)))


def neox() -> Any:
    """Pythia's architecture: queries, keys and values in one matrix, head by head."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return seeded(lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES)))


class Wrapped(nn.Module):
    """A model within another that passes on what it is given, as adapters do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.train(model.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns."""
        return self.model(*args, **kwargs)


def encoder() -> Any:
    """A layer with ``nn.MultiheadAttention``."""
    return seeded(lambda: nn.TransformerEncoderLayer(64, 4, 128))


def convolutional() -> Any:
    """Convolutions in one, two and three dimensions, grouped and transposed ones."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.Conv2d(32, 64, 3, groups=4),
            nn.ConvTranspose2d(64, 16, 2), nn.GroupNorm(4, 16), nn.Conv1d(16, 40, 5),
            nn.Conv3d(4, 50, 2), nn.Linear(50, 30),
        )
    )  # fmt: skip


def seeded(make: Callable[[], Any]) -> Any:
    """A model, without a trace in torch's generator."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()
