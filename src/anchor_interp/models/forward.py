"""The fast path: logits from a HookedTransformer's own parameters, only where they are needed.

:func:`fast_logits` takes any positions. The anchor task needs the last position only (cross-entropy
on the last token). So :func:`fast_last_logits`

* computes the first layer's queries, keys and values once per (token, position), on which alone
  they depend, where that is fewer rows than the sequences have;
* follows one query per head through the last layer and never forms keys and values: the scores
  ``q . (x W_K)`` are ``(q W_K^T) . x``, and ``sum_j a_j (x_j W_V)`` is ``(sum_j a_j x_j) W_V``.

Logits and gradients agree with ``model(tokens)`` to float64 rounding. It fires no hooks and runs no
code that a user put into the model: :func:`takes_fast_path` tells where it may be taken, and
:func:`place_logits` takes the model's own forward pass elsewhere.
"""

import copy
import inspect
import math
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from anchor_interp._util.errors import ConfigError, raising
from anchor_interp._util.schema import shown
from anchor_interp.models.fast_linear import linear
from anchor_interp.models.inputs import Rows, finite_rows, warn_of_padding
from anchor_interp.models.number_checks import check_finite, rounding
from anchor_interp.models.replaced_code import Snapshot, is_known, is_library_whole
from anchor_interp.models.transformer import (
    HookedTransformer,
    Inputs,
    PostLNTransformer,
    are_hooked,
    check_dropout,
    device,
    has_hooks,
    is_transformer,
    place,
)
from anchor_interp.tasks.examples import Examples, as_examples

Block = Any
"""A TransformerLens block or LayerNorm, whose attributes its classes declare as abstract."""
_CALLED = 256  # 256 rows of 10 tokens are 0.5 GB of logits at 50,000 tokens
_FAR = 50  # below the largest logit: a share of e^-50 or less, as of tokens that are masked
_COMPARED = (3, 32)
"""Rows, and positions of each at most, by which both paths are compared."""


def last_logits(
    model: HookedTransformer | Any, tokens: Inputs | Rows
) -> Float[Tensor, "batch *k d_vocab"]:
    """Logits at the last position of sequences or token indices; of examples, at their answer's.

    Of examples with k answers each, at all of them. The model may also be anything that takes
    tokens [batch, pos] and returns logits [batch, pos, d_vocab], or an object with these ``logits``
    as Hugging Face's models do. Of a HookedTransformer it takes the fast path where it can,
    otherwise ``model(tokens)[:, -1]``: with hooks attached, with padding masked, for an
    architecture that the fast path does not implement, or where a user changed what runs.

    Raises:
        ConfigError: as :func:`anchor_interp.models.inputs.model_rows`; weights or logits that are
            not finite; dropout that acts; of a called model, rows that others or padding change.
    """
    if callable(model) and not is_transformer(model) and not isinstance(tokens, Rows):
        return called_logits(model, as_examples(tokens))
    logits = answer_logits(model, finite_rows(model, tokens))
    return check_finite(logits, "the model's logits")


def called_logits(model: Any, examples: Examples) -> Float[Tensor, "batch *k d_vocab"]:
    """:func:`last_logits` of a model that is called, some rows at a time."""
    if getattr(model, "training", False):  # then dropout may act
        raise ConfigError("the model is in training mode; call model.eval() first")
    if isinstance(model, nn.Module):
        check_dropout(model)
    starts = range(0, len(examples), _CALLED)
    parts = [_called(model, examples[start : start + _CALLED]) for start in starts]
    _check_alone(model, examples, logits := check_finite(torch.cat(parts), "the model's logits"))
    return logits


class _OtherShapeError(ConfigError):
    """A called model gives no logits for each position of each row."""


def _called(model: Any, examples: Examples) -> Float[Tensor, "batch *k d_vocab"]:
    weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    on = torch.device("cpu") if weight is None else weight.device
    tokens, mask = torch.from_numpy(examples.tokens.astype(np.int64)).to(on), None
    if examples.attention_mask is not None:
        mask = torch.from_numpy(examples.attention_mask).to(tokens)
    elif not examples.inside[:, 0].all():
        warn_of_padding(examples.padding)
    with raising(ConfigError, "the model refuses the tokens: ", of=(IndexError, TypeError)):
        out = model(tokens, **({} if mask is None else _masked(model, mask)))
    logits = getattr(out, "logits", out)
    if tuple(getattr(logits, "shape", ()))[:-1] != tokens.shape:
        expected = f"expected logits {(*tokens.shape, 'd_vocab')}"
        remedy = "of several outputs pass these on, such as lambda tokens: model(tokens)[0]; of "
        remedy += "nanoGPT, which gives only the last without targets, model(tokens, tokens)[0]"
        raise _OtherShapeError(f"the model gives {shown(logits)}; {expected}: {remedy}")
    at = torch.from_numpy(examples.each_at)
    read = torch.as_tensor(logits)[torch.arange(len(tokens), device=at.device)[:, None], at]
    return read[:, 0] if at.shape[1] == 1 else read


def _masked(model: Any, mask: Int[Tensor, "batch pos"]) -> dict[str, Tensor]:
    """What a called model takes beside its tokens; padding before a text moves no position."""
    given = {"attention_mask": mask}
    if not bool(mask[:, 0].all() and (mask[:, 1:] <= mask[:, :-1]).all()):
        given["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    takes = inspect.signature(getattr(model, "forward", model)).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in takes.values())
    return {name: value for name, value in given.items() if takes_any or name in takes}


def _check_alone(model: Any, examples: Examples, logits: Tensor) -> None:
    """ConfigError if a row, one with padding if there is one, is answered otherwise by itself."""
    tokens, mask = examples.tokens, examples.attention_mask
    inside = np.ones(tokens.shape, np.bool_) if mask is None else mask
    row = int((~inside.all(1) + (1 - inside[:, 0])).argmax())  # padding in front first
    at = (inside[row].cumsum() - 1)[examples.each_at[row]]
    again = Examples(tokens[row : row + 1, inside[row]], at=at[None])
    try:
        answer = _called(model, again)
    except _OtherShapeError:
        raise
    except Exception as error:
        if inside[row].all():  # a model of whole batches
            return
        raise ConfigError(
            f"row {row} without its padding: {error}; take rows of one length"
        ) from error
    own, alone = (x.cpu().double() for x in (logits[row], answer[0]))
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    kinds = {x.dtype for x in (logits, *weights) if x.is_floating_point()}
    coarse = max((torch.finfo(kind).eps for kind in kinds), default=0.0) ** 0.5
    counts = torch.stack([x > x.amax(-1, keepdim=True) - _FAR for x in (own, alone)]).any(0)
    own, alone = own[counts], alone[counts]
    most = coarse * own.abs().amax() + own.std(correction=0) / 10
    if not (own - alone).abs().amax() <= most:
        why = "other rows, padding or chance change it (dropout, an unread mask, quantisation)"
        to_do = "call model.eval() first, or give higher precision if it is autocast"
        raise ConfigError(f"row {row} by itself has another answer: {why}; {to_do}")


def answer_logits(model: HookedTransformer, rows: Rows) -> Float[Tensor, "batch *k d_vocab"]:
    """:func:`last_logits` of checked rows."""
    tokens, at, places = rows.tokens, rows.at, None
    if at is not None:
        starts = torch.arange(len(tokens), device=at.device) * tokens.shape[1]
        places = (at + (starts if at.ndim == 1 else starts[:, None])).flatten()
    if rows.attention_mask is None:
        logits = place_logits(model, tokens, places)
    else:
        logits = rows.through(model)
        logits = logits[:, -1] if places is None else logits.flatten(0, 1)[places]
    return logits if at is None else logits.view(*at.shape, logits.shape[-1])


def place_logits(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch pos"],
    places: Int[Tensor, " place"] | None = None,
    *,
    n_input_tokens: int | None = None,
    fast: bool | None = None,
) -> Float[Tensor, "place d_vocab"]:
    """Logits at some positions, given as indices of the flattened tokens; at the last if None.

    ``fast`` is what :func:`takes_fast_path` says, if it was asked before. Tokens of the fast path
    are below ``n_input_tokens``.
    """
    if takes_fast_path(model) if fast is None else fast:
        if places is None:
            return fast_last_logits(model, tokens, n_input_tokens=n_input_tokens)
        return fast_logits(model, tokens, places, n_input_tokens=n_input_tokens)
    logits = cast(Tensor, model(tokens))
    return logits[:, -1] if places is None else logits.flatten(0, 1)[places]


def fast_last_logits(
    model: HookedTransformer, tokens: Int[Tensor, "batch pos"], *, n_input_tokens: int | None = None
) -> Float[Tensor, "batch d_vocab"]:
    """The fast path at the last position, without checks; it fires no hooks."""
    block, x = _before_last_block(model, tokens, n_input_tokens)
    return unembed(model, _last_block(model, block, x))


def fast_logits(
    model: HookedTransformer,
    tokens: Int[Tensor, "batch pos"],
    places: Int[Tensor, " place"],
    *,
    n_input_tokens: int | None = None,
) -> Float[Tensor, "place d_vocab"]:
    """The fast path of :func:`place_logits`, without checks; it fires no hooks."""
    block, x = _before_last_block(model, tokens, n_input_tokens)
    z = attend(model, block, project_qkv(model, block, x))
    x, z = x.flatten(0, 1)[places], z.flatten(0, 1)[places]
    return unembed(model, after_attention(model, block, x, z))


def _before_last_block(
    model: HookedTransformer, tokens: Int[Tensor, "batch pos"], n_input_tokens: int | None
) -> tuple[Block, Float[Tensor, "batch pos d_model"]]:
    """The last block and its input."""
    n_tokens = n_input_tokens or model.cfg.d_vocab
    blocks: list[Block] = list(model.blocks)
    if len(blocks) > 1 and n_tokens < len(tokens):
        # the first layer's residual stream and q, k, v by a table of rows (position, token)
        first, n_pos = blocks.pop(0), tokens.shape[1]
        embedded = model.embed.W_E[:n_tokens] + model.pos_embed.W_pos[:n_pos, None]
        table = embedded.flatten(0, 1)  # [pos * token, d_model]
        qkv = project_qkv(model, first, table)
        row = tokens + torch.arange(n_pos, device=tokens.device) * n_tokens  # [batch, pos]
        z = attend(model, first, F.embedding(row, qkv))
        x = after_attention(model, first, F.embedding(row, table), z)
    else:
        x = F.embedding(tokens, model.embed.W_E) + model.pos_embed.W_pos[: tokens.shape[1]]
    for block in blocks[:-1]:
        x = after_attention(model, block, x, attend(model, block, project_qkv(model, block, x)))
    return blocks[-1], x


def fast_logits_from(
    model: HookedTransformer, x: Tensor, layer: int, *, at_mlp: bool
) -> Float[Tensor, "batch d_vocab"]:
    """Last logits from [batch, pos, d_model] before a layer, or before its MLP."""
    blocks: list[Block] = list(model.blocks)[layer:]
    if at_mlp:
        x = _mlp(model, blocks.pop(0), x)
    for block in blocks[:-1]:
        x = after_attention(model, block, x, attend(model, block, project_qkv(model, block, x)))
    return unembed(model, _last_block(model, blocks[-1], x) if blocks else x[:, -1])


def takes_fast_path(model: HookedTransformer, watched: Block = None) -> bool:
    """Whether this path computes what ``model(tokens)`` does; every caller asks here.

    Each call looks for hooks, except those of the part ``watched``, and for replaced code
    (:mod:`anchor_interp.models.replaced_code`). A model's first call without hooks, and the first
    after a change, also compares the logits of both paths on a few rows.
    """
    if not is_library_whole():
        return False
    seen = Snapshot.of(model)
    if seen is None:
        if has_hooks(model) or not is_known(model):
            return False
        if (agrees := _agrees(model)) is None:
            return True
        seen = Snapshot(model, agrees=agrees)
    return seen.agrees and not are_hooked(part for part in seen.parts if part is not watched)


@torch.no_grad()
def _agrees(model: HookedTransformer) -> bool | None:
    """Whether both paths give the same logits, up to rounding; None if they cannot tell."""
    n_rows, n_pos = _COMPARED[0], min(_COMPARED[1], model.cfg.n_ctx)
    places = torch.arange(n_rows * n_pos, device=device(model))
    rows = (places * 7919 % model.cfg.d_vocab).view(n_rows, n_pos)
    with torch.autocast(rows.device.type, enabled=False):
        try:
            own = cast(Tensor, model(rows))
        except Exception:  # it is for the caller's own call to raise this
            return False
        every, last = fast_logits(model, rows, places), fast_last_logits(model, rows)
    off = float(torch.cat([every - own.flatten(0, 1), last - own[:, -1]]).abs().amax())
    largest = float(own.abs().amax())
    if not math.isfinite(off + largest):
        return None  # NaN hides what differs
    if off <= rounding(own, model.cfg.dtype) * largest:
        return True
    # large weights amplify rounding: as far as the fast path itself is off, both may differ
    exact = fast_logits(place(copy.deepcopy(model), "cpu").double(), rows.cpu(), places.cpu())
    return off <= 10 * float((every.cpu() - exact).abs().amax())


def _layer_norm(norm: Block, x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), norm.w, norm.b, norm.eps)


def _pre_norm(model: HookedTransformer, norm: Block, x: Tensor) -> Tensor:
    return x if isinstance(model, PostLNTransformer) else _layer_norm(norm, x)


def _add(model: HookedTransformer, norm: Block, x: Tensor, update: Tensor) -> Tensor:
    """The residual sum, normalised in a post-LayerNorm model."""
    total = x + update
    return _layer_norm(norm, total) if isinstance(model, PostLNTransformer) else total


def merge_heads(weight: Tensor) -> Tensor:
    """[head, d_model, d_head] -> [d_model, head * d_head]."""
    return rearrange(weight, "head d_model d_head -> d_model (head d_head)")


def project_qkv(model: HookedTransformer, block: Block, x: Tensor) -> Tensor:
    """[..., d_model] -> [..., 3 * head * d_head], queries, keys and values in one product."""
    attn = block.attn
    weight = torch.cat([merge_heads(w) for w in (attn.W_Q, attn.W_K, attn.W_V)], dim=1)
    bias = torch.cat([attn.b_Q.flatten(), attn.b_K.flatten(), attn.b_V.flatten()])
    return linear(_pre_norm(model, block.ln1, x), weight, bias)


def split_qkv(model: HookedTransformer, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[batch, pos, 3 * head * d_head] -> three [batch, head, pos, d_head]."""
    split = "batch pos (qkv head d_head) -> qkv batch head pos d_head"
    q, k, v = rearrange(qkv, split, qkv=3, head=model.cfg.n_heads).unbind()
    return q, k, v


def attend(model: HookedTransformer, block: Block, qkv: Tensor) -> Tensor:
    """Causal attention: [batch, pos, 3 * head * d_head] -> [batch, pos, head * d_head]."""
    q, k, v = split_qkv(model, qkv)
    scale = 1 / block.attn.attn_scale
    z = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return rearrange(z, "batch head pos d_head -> batch pos (head d_head)")


def after_attention(model: HookedTransformer, block: Block, x: Tensor, z: Tensor) -> Tensor:
    """The rest of a block, from its input and what its heads mixed: [..., d_model]."""
    out = linear(z, block.attn.W_O.flatten(0, 1), block.attn.b_O)
    return _mlp(model, block, _add(model, block.ln1, x, out))


def unembed(model: HookedTransformer, x: Tensor) -> Tensor:
    """[..., d_model] after the last block -> [..., d_vocab]."""
    if not isinstance(model, PostLNTransformer):
        x = _layer_norm(model.ln_final, x)
    return linear(x, model.unembed.W_U, model.unembed.b_U)


def _mlp(model: HookedTransformer, block: Block, x: Tensor) -> Tensor:
    mlp = block.mlp
    relu = model.cfg.act_fn == "relu"
    hidden = linear(_pre_norm(model, block.ln2, x), mlp.W_in, mlp.b_in, relu=relu)
    out = linear(hidden if relu else F.gelu(hidden), mlp.W_out, mlp.b_out)
    return _add(model, block.ln2, x, out)


def _last_block(model: HookedTransformer, block: Block, x: Tensor) -> Tensor:
    """The last block at the last position: [batch, pos, d_model] -> [batch, d_model].

    One query asks all positions. So keys and values of the others are never made: the query goes
    through W_K to the stream, and W_V is applied after the mean. The products are the same, in
    another order; a position costs d_model instead of d_model * d_head.
    """
    attn, heads = block.attn, range(model.cfg.n_heads)
    normed = _pre_norm(model, block.ln1, x)
    q = linear(normed[:, -1], merge_heads(attn.W_Q), attn.b_Q.flatten())
    q = rearrange(q, "batch (head d_head) -> head batch d_head", head=len(heads))
    # q . (x W_K + b_K) = (q W_K^T) . x + q . b_K
    q_in = torch.stack([linear(q[h], attn.W_K[h].mT) for h in heads], dim=1)
    q_bias = rearrange(torch.bmm(q, attn.b_K[..., None]), "head batch 1 -> batch head 1")
    # no causal mask: the last position sees all
    scores = torch.matmul(q_in, normed.mT) + q_bias  # [batch, head, pos]
    pattern = (scores / attn.attn_scale).softmax(-1)  # [batch, head, pos]
    # sum_i p_i (x_i W_V + b_V) = (sum_i p_i x_i) W_V + b_V, because the p_i add up to 1
    mixed = torch.matmul(pattern, normed)  # [batch, head, d_model]
    z = torch.cat([linear(mixed[:, h], attn.W_V[h], attn.b_V[h]) for h in heads], dim=1)
    return after_attention(model, block, x[:, -1], z)
