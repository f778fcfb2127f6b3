"""Greedy decoding: a model writes its most likely token, reads it, and goes on until the end.

Prompts of different lengths decode together. The *cache* keeps every layer's keys and values, so a
new token costs one position and not the whole sequence again. It holds them by position, for either
place of the LayerNorm: prompts are padded on the right, and what a row writes replaces its padding.
TransformerLens's own cache pads on the left.
"""

import operator
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor

from anchor_interp._util.errors import ConfigError, raising
from anchor_interp._util.schema import checked
from anchor_interp.models import forward
from anchor_interp.models.number_checks import check_finite
from anchor_interp.models.transformer import HookedTransformer, check_model, device, token_rows

_ENDED = 0.25
"""Share of ended rows from which on the others go on without them."""
_NOTHING = -1
"""What stands after the end of an answer."""


@torch.no_grad()
def generate(
    model: HookedTransformer,
    prompts: Sequence[Sequence[int]],
    *,
    end: int | None,
    most: int | None = None,
) -> list[tuple[int, ...]]:
    """What a model answers to each prompt: ``most`` tokens, or fewer of which the last is ``end``.

    A prompt's answer does not depend on the prompts beside it.

    Args:
        model: any HookedTransformer; its hooks act, and then nothing is cached.
        prompts: tokens, at least one each.
        end: the token after which an answer stops; None if there is none.
        most: most tokens of an answer; if None, each goes on to the end of the model's context.

    Raises:
        ConfigError: a prompt that is empty or not a list of tokens, a token outside the vocabulary,
            more positions than the model has, or logits that are not finite.
    """
    check_model(model)
    checked(end, int | None, "end")
    checked(most, int | None, "most", low=1)
    with raising(ConfigError, "prompts are not lists of tokens: ", of=TypeError):
        plain = [[operator.index(token) for token in prompt] for prompt in prompts]
    if not plain:
        return []
    tokens, lengths = _padded(model, plain, most or 1)
    room = model.cfg.n_ctx + 1 - lengths  # the last token is written, not read
    longest = int(room.max()) if most is None else most
    kind = _Cached if forward.takes_fast_path(model) else _Whole
    reader = kind(model, tokens, lengths, longest)
    answers = torch.full((len(tokens), longest), _NOTHING, device=tokens.device)
    rows = torch.arange(len(tokens), device=tokens.device)
    ended = torch.zeros_like(rows, dtype=torch.bool)
    for place in range(longest):
        written = check_finite(reader.logits, "the model's logits").argmax(-1)
        answers[rows[~ended], place] = written[~ended]
        full = room[rows] == place + 1
        ended |= full if end is None else (written == end) | full
        if place == longest - 1 or ended.all():
            break
        if full.any() or ended.float().mean() > _ENDED:
            going = (~ended).nonzero()[:, 0]
            reader.keep(going)
            rows, written, ended = rows[going], written[going], ended[going]
        reader.read(written)
    return [tuple(token for token in answer if token != _NOTHING) for answer in answers.tolist()]


def _padded(
    model: HookedTransformer, prompts: list[list[int]], most: int
) -> tuple[Int64[Tensor, "n pos"], Int64[Tensor, " n"]]:
    """The prompts, padded with zeros on the right, and their lengths."""
    lengths = torch.tensor([len(prompt) for prompt in prompts], device="cpu")
    if not lengths.all():
        raise ConfigError(f"prompt {int(lengths.argmin())} is empty; expected at least one token")
    longest, n_ctx = int(lengths.max()), model.cfg.n_ctx
    if (need := longest + most - 1) > n_ctx:
        text = f"prompts of up to {longest} tokens and {most} more take {need} positions"
        raise ConfigError(f"{text}; the model has {n_ctx}")
    tokens = torch.zeros(len(prompts), longest, dtype=torch.int64, device="cpu")
    tokens[torch.arange(longest, device="cpu") < lengths[:, None]] = torch.tensor(
        [token for prompt in prompts for token in prompt], device="cpu"
    )
    return token_rows(model, tokens), lengths.to(device(model))


class _Whole:
    """Reads every sequence anew, with the model's own forward pass."""

    logits: Float[Tensor, "n d_vocab"]
    """Of the next token of each row."""

    def __init__(self, model: HookedTransformer, tokens: Tensor, lengths: Tensor, most: int):
        self._model, self._tokens, self._lengths = model, F.pad(tokens, (0, most)), lengths
        self._answer()

    def _answer(self) -> None:
        logits: Tensor = self._model(self._tokens[:, : int(self._lengths.max())])
        self.logits = logits[torch.arange(len(logits), device=logits.device), self._lengths - 1]

    def read(self, tokens: Int64[Tensor, " n"]) -> None:
        """Read one more token of each row."""
        self._tokens[torch.arange(len(tokens), device=tokens.device), self._lengths] = tokens
        self._lengths = self._lengths + 1
        self._answer()

    def keep(self, rows: Int64[Tensor, " kept"]) -> None:
        """Forget all other rows."""
        self._tokens, self._lengths = self._tokens[rows], self._lengths[rows]


class _Cached:
    """Does the same, but reads only what is new, on the fast path's own functions."""

    def __init__(self, model: HookedTransformer, tokens: Tensor, lengths: Tensor, most: int):
        self._model, self._lengths = model, lengths
        self._keys: list[Float[Tensor, "n head pos d_head"]] = []
        self._values: list[Float[Tensor, "n head pos d_head"]] = []
        n_pos = tokens.shape[1]
        x = F.embedding(tokens, model.embed.W_E) + model.pos_embed.W_pos[:n_pos]
        for block in model.blocks:
            qkv = forward.project_qkv(model, block, x)
            _, k, v = forward.split_qkv(model, qkv)
            self._keys.append(F.pad(k, (0, 0, 0, most)))  # room for what will be written
            self._values.append(F.pad(v, (0, 0, 0, most)))
            x = forward.after_attention(model, block, x, forward.attend(model, block, qkv))
        row = torch.arange(len(tokens), device=tokens.device)
        self.logits = forward.unembed(model, x[row, lengths - 1])

    def read(self, tokens: Tensor) -> None:
        model, position = self._model, self._lengths
        row = torch.arange(len(tokens), device=tokens.device)
        n_pos = int(position.max()) + 1
        known = torch.arange(n_pos, device=tokens.device) <= position[:, None]
        x = model.embed.W_E[tokens] + model.pos_embed.W_pos[position]
        for block, keys, values in zip(model.blocks, self._keys, self._values, strict=True):
            qkv = forward.project_qkv(model, block, x[:, None])
            q, k, v = forward.split_qkv(model, qkv)
            keys[row, :, position], values[row, :, position] = k[:, :, 0], v[:, :, 0]
            scale = 1 / block.attn.attn_scale
            z = F.scaled_dot_product_attention(
                q, keys[:, :, :n_pos], values[:, :, :n_pos], known[:, None, None], scale=scale
            )
            z = rearrange(z, "n head 1 d_head -> n (head d_head)")
            x = forward.after_attention(model, block, x, z)
        self.logits = forward.unembed(model, x)
        self._lengths = position + 1

    def keep(self, rows: Tensor) -> None:
        self._lengths = self._lengths[rows]
        self._keys = [keys[rows] for keys in self._keys]
        self._values = [values[rows] for values in self._values]
