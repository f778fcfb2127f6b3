"""Shapes of models and scales of their initial weights. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from anchor_interp._util.schema import bounded, check_fields
from anchor_interp.tasks.task import Task

Normalization = Literal["post", "pre"]
"""Where LayerNorm sits; see :attr:`ModelConfig.normalization`."""
MOST_POSITIONS = 1 << 15
"""Most positions of one forward pass over sequences of several lengths (a longer one is alone)."""
_MOST_LOGITS = 1 << 28  # of one forward pass, 1 GiB in float32


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder-only transformer; names follow TransformerLens."""

    n_layers: int = bounded(2, low=1, high=1000)
    """Number of blocks."""
    n_heads: int = bounded(1, low=1, high=1000)
    """Attention heads per block; n_heads * d_head need not equal d_model."""
    d_model: int = bounded(128, low=1, high=1 << 16)
    """Width of the residual stream."""
    d_head: int = bounded(64, low=1, high=1 << 16)
    """Width of queries, keys and values per head."""
    d_mlp: int = bounded(256, low=1, high=1 << 18)
    """Hidden width of the MLP."""
    act_fn: Literal["relu", "gelu"] = "relu"
    """Activation of the MLP (gelu: the exact one)."""
    normalization: Normalization = "post"
    """Where LayerNorm sits: ``post`` normalises the sums, LN(x + attn(x)) (NeurIPS paper, eq. 7);
    ``pre`` normalises the inputs and adds a final LayerNorm (GPT-2)."""
    bias: bool = False
    """Whether the attention and MLP matrices have biases; the unembedding always has one."""
    d_vocab: int = bounded(201, low=2, high=1 << 20)
    """Number of tokens (201 in the released code)."""
    n_ctx: int = bounded(20, low=3, high=1 << 13)
    """Number of positions (20 in the released code)."""

    def __post_init__(self) -> None:
        check_fields(self, "model")

    @property
    def width(self) -> int:
        """What the time of a step depends on most: features that are multiplied with each other."""
        return self.d_model

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        heads = self.n_heads * self.d_head
        attention, mlp = 4 * self.d_model * heads, 2 * self.d_model * self.d_mlp
        if self.bias:
            attention, mlp = attention + 3 * heads + self.d_model, mlp + self.d_mlp + self.d_model
        norms = 4 * self.n_layers + (2 if self.normalization == "pre" else 0)
        embeddings = self.d_model * (2 * self.d_vocab + self.n_ctx) + self.d_vocab
        return self.n_layers * (attention + mlp) + norms * self.d_model + embeddings

    def __str__(self) -> str:
        heads = "head" if self.n_heads == 1 else "heads"
        shape = f"{self.n_layers} layers, {self.n_heads} {heads}, d_model {self.d_model}"
        return f"{shape}, {self.normalization}-LayerNorm"


@dataclass(frozen=True)
class InitConfig:
    """Initialisation by rate gamma: every weight ~ N(0, (d_in^-gamma)^2); see models.init."""

    gamma: float = bounded(0.5, low=-1, high=4)
    """The initialisation rate of every matrix that has no rate of its own."""
    scheme: Literal["paper", "released"] = "paper"
    """``paper``: d_in is the input width of each matrix, biases start at 0. ``released`` is the
    released code's variant: d_model for every matrix, W_O and W_out divided by sqrt(2 n_layers),
    biases uniform in +-1/sqrt(d_in)."""
    gamma_embed: float | None = bounded(None, low=-1, high=4)
    """Rate of W_E, W_pos and W_U; gamma if None."""
    gamma_qk: float | None = bounded(None, low=-1, high=4)
    """Rate of W_Q and W_K; gamma if None."""
    gamma_vo: float | None = bounded(None, low=-1, high=4)
    """Rate of W_V and W_O; gamma if None."""
    gamma_mlp: float | None = bounded(None, low=-1, high=4)
    """Rate of W_in and W_out; gamma if None."""
    embed_d_in: Literal["d_model", "d_vocab"] = "d_model"
    """The input width of the embedding tables, which the papers leave open: ``d_model`` (the
    released code) or the width of the one-hot input."""
    weights: Literal["normal", "uniform"] = bounded("normal", since=2)
    """``uniform`` draws from -d_in^-gamma to d_in^-gamma instead; at gamma 0.5 that is PyTorch's
    default for linear maps and convolutions (complexity-control paper, figure 6)."""

    def __post_init__(self) -> None:
        check_fields(self, "init")


MODELS: Mapping[str, ModelConfig] = MappingProxyType(
    {
        "tiny": ModelConfig(),
        "paper-1head": ModelConfig(d_model=400, d_head=200, d_mlp=1200),
        "paper-gpt2": ModelConfig(
            n_layers=10, n_heads=10, d_model=640, d_head=64, d_mlp=1280,
            act_fn="gelu", normalization="pre", bias=True,
        ),
        "language-tiny": ModelConfig(
            n_layers=3, n_heads=4, d_model=128, d_head=32, d_mlp=512,
            act_fn="gelu", normalization="pre", bias=True, d_vocab=257, n_ctx=128,
        ),
        "language-small": ModelConfig(
            n_layers=12, n_heads=12, d_model=768, d_head=64, d_mlp=3072,
            act_fn="gelu", normalization="pre", bias=True, d_vocab=50257, n_ctx=1024,
        ),
        "language-medium": ModelConfig(
            n_layers=24, n_heads=16, d_model=1024, d_head=64, d_mlp=4096,
            act_fn="gelu", normalization="pre", bias=True, d_vocab=50257, n_ctx=1024,
        ),
    }
)  # fmt: skip
"""Named shapes: ``paper-1head`` (NeurIPS paper, appendix A; complexity-control figures 4, 5A, 5B),
``paper-gpt2`` (complexity-control figures 3, 5C; widths from the released code), ``tiny`` (a
post-LayerNorm model of the same kind that trains in minutes on one core); ``language-small`` and
``language-medium`` (GPT-2's shapes, with an unembedding of its own; medium is complexity-control
figure 7D's), ``language-tiny`` (such a model of bytes, for minutes on one core)."""


def most_positions(d_vocab: int) -> int:
    """Most positions of one forward pass: fewer where the vocabulary is large."""
    return min(MOST_POSITIONS, max(1, _MOST_LOGITS // d_vocab))


def n_activations(model: "ModelConfig | Any", task: Task, batch_size: int) -> int:
    """About how many numbers a step leaves for the backward pass, at least."""
    if not isinstance(model, ModelConfig):
        own: int = batch_size * model.n_activations
        return own
    logits, positions = batch_size * model.d_vocab, batch_size * task.length
    if not task.answers_last:  # a larger batch comes in parts
        positions = min(positions, max(task.length, most_positions(model.d_vocab)))
    if task.mapped:  # all positions predict
        logits = positions * model.d_vocab
    per_token = model.d_model + 3 * model.n_heads * model.d_head + model.d_mlp
    return positions * model.n_layers * per_token + logits


def example_bytes(model: "ModelConfig | Any") -> int:
    """About how many bytes a training example takes beside its tokens."""
    return 0 if isinstance(model, ModelConfig) else model.example_bytes
