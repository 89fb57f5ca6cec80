"""What the two families share: row-wise predictions, rotary tables, normalization, tensor checks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

if TYPE_CHECKING:
    from jot.sampler.cache import View

Rope = tuple[Tensor, Tensor]


class RMSNorm(nn.Module):
    """Root-mean-square normalization with float32 statistics, cast back before the weight."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * F.rms_norm(x.float(), x.shape[-1:], None, self.eps).to(x.dtype)


def rope_table(length: int, head_dim: int, theta: float, device) -> Rope:
    """Cosine and sine of the rotary angles, each float32 ``[length, head_dim]`` (half-split layout).

    No buffer holds them: one that no checkpoint has would be uninitialized after a load by way of the meta device.
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    angle = torch.outer(torch.arange(length, dtype=torch.float32, device=device), 1.0 / theta**exponent)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of ``x`` ``[batch, heads, length, head_dim]`` in the dtype of its arguments."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def attend(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Bidirectional attention; ``key_mask`` ``[batch, length]`` is True at keys that may be seen.

    ``k`` and ``v`` may have fewer heads than ``q`` (grouped queries). Returns ``[batch, length, heads * dim]``.
    """
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    mask = None if key_mask is None else key_mask[:, None, None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=False).transpose(1, 2).flatten(2)


def linear_to(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """``x @ weight.T`` in ``dtype``, without a rounded intermediate: CUDA can hand out the float32 sums of 16-bit
    products; elsewhere the weight is widened a slice at a time."""
    if weight.dtype.itemsize >= min(dtype.itemsize, 4):
        return F.linear(x.to(weight.dtype), weight).to(dtype)
    if x.is_cuda and x.dtype == weight.dtype:
        return torch.mm(x, weight.t(), out_dtype=torch.float32).to(dtype)
    return torch.cat([F.linear(x.float(), part.float()) for part in weight.split(8192)], dim=-1).to(dtype)


class Parts(NamedTuple):
    """The modules of one transformer block by what they do; a family has its own names for them."""

    norm1: RMSNorm
    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    out: nn.Linear
    norm2: RMSNorm
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear


class Block(nn.Module):
    """A transformer block without a causal mask; subclasses make its modules and name them as ``parts``."""

    parts: Parts

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.kv_width = self.head_dim * (config.num_key_value_heads or config.num_attention_heads)

    def forward(self, x: Tensor, rope: tuple[Rope, Rope], key_mask: Tensor | None, store=None) -> Tensor:
        parts = self.parts
        n = parts.norm1(x)
        q, k, v = (p(n).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for p in (parts.q, parts.k, parts.v))
        if store is not None:
            k, v = store(k, v)
        # In the dtype of the tables, whatever the weights are.
        q, k = (rotate(t.to(table[0].dtype), *table).to(v.dtype) for t, table in zip((q, k), rope, strict=True))
        x = x + parts.out(attend(q, k, v, key_mask))
        n = parts.norm2(x)
        return x + parts.down(F.silu(parts.gate(n)) * parts.up(n))


class DiffusionModel(PreTrainedModel):
    """A mask predictor: hidden states for a canvas, logits for the rows that are asked for.

    ``jot.decode`` adds ``generate``. Subclasses make the modules and set what follows.
    """

    family: str
    decode_defaults: dict  # the decoding parameters it is published with
    shift: int = 0  # how many rows to the left of a position its prediction lives
    wide_rope: bool = False  # rotate in float32 (``rope_full_precision``), not in the model's dtype
    places: dict[str, str]  # where embedding, layers, final norm and head are, by their names in a checkpoint
    _supports_sdpa = True
    _tied_weights_keys = None
    name: str = "unnamed"
    fingerprint: str = "unsaved"
    tokenizer = None

    DERIVED = ("_fast_state", "_fast_loops", "_fast_pool", "_fused")  # what ``jot.fast.loop`` keeps with a model

    def __getstate__(self) -> dict:
        """What a copy or a pickle holds."""
        return {name: value for name, value in self.__dict__.items() if name not in self.DERIVED}

    def not_numbers(self) -> str:
        """The sentence on logits that are not numbers: of the weights, or of a type that is too narrow for them."""
        if wrong := [name for name, weight in self.named_parameters() if not weight.isfinite().all()]:
            return f"{wrong[0]} of {self.name} holds values that are not numbers; fetch the weights again"
        return f"the model's logits are not numbers in {self.dtype}; use bfloat16 or float32"

    def source_row(self, position: Tensor) -> Tensor:
        """The canvas row whose hidden state predicts ``position``; row 0 where there is nothing to its left."""
        return (position - self.shift).clamp_min(0)

    def hidden(self, input_ids: Tensor, key_mask: Tensor | None = None, view: View | None = None) -> Tensor:
        """Final normalized hidden states ``[batch, length, width]`` of ``input_ids`` ``[batch, length]``.

        ``view`` stores keys and values, or lets part of a canvas attend to stored ones (see ``jot.sampler.cache``).
        """
        x = self.get_input_embeddings()(input_ids)
        rope = self.rope(input_ids.shape[1], view, torch.float32 if self.wide_rope else x.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, key_mask, view and partial(view.update, i))
        return self.norm(x)

    def rope(self, length: int, view: View | None, dtype: torch.dtype) -> tuple[Rope, Rope]:
        """Rotary tables of the queries and of the keys."""
        whole, head_dim = view.length if view else length, self.layers[0].head_dim
        keys = tuple(t.to(dtype) for t in rope_table(whole, head_dim, self.config.rope_theta, self.device))
        if view is None or view.positions is None:
            return keys, keys
        return tuple(t[view.positions][:, None] for t in keys), keys

    def get_input_embeddings(self) -> nn.Embedding:
        return self.get_submodule(self.places["embedding"])

    def get_output_embeddings(self) -> nn.Linear:
        return self.get_submodule(self.places["head"])

    @property
    def head(self) -> Tensor:
        """Weight of the language-model head, ``[vocabulary, width]``."""
        return self.get_output_embeddings().weight

    @property
    def layers(self) -> nn.ModuleList:
        return self.get_submodule(self.places["layers"])

    @property
    def norm(self) -> RMSNorm:
        return self.get_submodule(self.places["norm"])

    @property
    def mask_id(self) -> int:
        return self.config.mask_token_id

    @property
    def eos_id(self) -> int:
        return self.config.eos_token_id

    @property
    def max_positions(self) -> int:
        """Longest canvas, prompt included, in tokens."""
        return self.config.max_position_embeddings

    def predict(
        self,
        canvas: Tensor,
        key_mask: Tensor | None,
        slot: Tensor,
        position: Tensor,
        head_dtype: torch.dtype = torch.float32,
        view: View | None = None,
        hidden: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """Logits ``[rows, vocabulary]`` that predict canvas ``position[i]`` of batch row ``slot[i]``.

        Args:
            canvas: token ids ``[batch, length]``.
            key_mask: ``[batch, length]``, False at padding, or None where nothing is padded.
            slot, position: the asked rows, each ``[rows]``; one that stands before a cached part is answered with
                its first row, for steps whose idle rows stand at 0.
            hidden: in place of ``self.hidden``.
        """
        within = view is not None and view.positions is not None
        states = (hidden or self.hidden)(canvas.gather(1, view.positions) if within else canvas, key_mask, view)
        row = self.source_row(position)
        if within:
            row = (row - view.positions[slot, 0]).clamp_min(0)
        return linear_to(states[slot, row], self.head, head_dtype)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_) -> MaskedLMOutput:
        """Unshifted logits of every row in the model's dtype, as the public modeling code returns them."""
        key_mask = None if attention_mask is None else attention_mask.bool()
        return MaskedLMOutput(logits=F.linear(self.hidden(input_ids, key_mask), self.head))
