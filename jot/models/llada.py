"""LLaDA (Nie et al. 2025): a bidirectional Llama-style mask predictor in its published checkpoint layout."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig

from jot.models.base import DiffusionModel, RMSNorm, Rope, attend, rotate

if TYPE_CHECKING:
    from jot.sampler.cache import View


class LLaDAConfig(PreTrainedConfig):
    """Fields of the published ``config.json``; the defaults are LLaDA-8B's."""

    model_type = "llada"
    d_model: int = 4096
    n_layers: int = 32
    n_heads: int = 32
    n_kv_heads: int | None = 32
    mlp_hidden_size: int = 12288
    vocab_size: int = 126464
    embedding_size: int | None = 126464
    max_sequence_length: int = 4096
    rope_theta: float = 500000.0
    rms_norm_eps: float = 1e-5
    weight_tying: bool = False
    block_type: str = "llama"
    layer_norm_type: str = "rms"
    activation_type: str = "silu"
    include_bias: bool = False
    include_qkv_bias: bool | None = False
    rope: bool = True
    scale_logits: bool = False
    input_emb_norm: bool = False
    attention_layer_norm: bool = False
    tie_word_embeddings: bool = False
    use_cache: bool = False
    mask_token_id: int | None = 126336
    eos_token_id: int | None = 126081
    pad_token_id: int | None = 126081
    bos_token_id: int | None = None
    eot_token_id: int | None = None


# The layout switches that change the network, with the only value this file implements.
SUPPORTED = {
    "block_type": "llama", "layer_norm_type": "rms", "activation_type": "silu", "include_bias": False,
    "rope": True, "scale_logits": False, "input_emb_norm": False, "attention_layer_norm": False,
    "weight_tying": False, "tie_word_embeddings": False, "rope_full_precision": True, "layer_norm_with_affine": True,
    "block_group_size": 1,
}  # fmt: skip


class LLaDABlock(nn.Module):
    def __init__(self, config: LLaDAConfig):
        super().__init__()
        width, mlp = config.d_model, config.mlp_hidden_size
        self.head_dim = width // config.n_heads
        kv_width = self.head_dim * (config.n_kv_heads or config.n_heads)
        self.attn_norm = RMSNorm(width, config.rms_norm_eps)
        self.q_proj = nn.Linear(width, width, bias=bool(config.include_qkv_bias))
        self.k_proj = nn.Linear(width, kv_width, bias=bool(config.include_qkv_bias))
        self.v_proj = nn.Linear(width, kv_width, bias=bool(config.include_qkv_bias))
        self.attn_out = nn.Linear(width, width, bias=False)
        self.ff_norm = RMSNorm(width, config.rms_norm_eps)
        self.ff_proj = nn.Linear(width, mlp, bias=False)
        self.up_proj = nn.Linear(width, mlp, bias=False)
        self.ff_out = nn.Linear(mlp, width, bias=False)

    def forward(self, x: Tensor, rope: tuple[Rope, Rope], key_mask: Tensor | None, store=None) -> Tensor:
        n = self.attn_norm(x)
        q, k, v = (
            p(n).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        if store is not None:
            k, v = store(k, v)
        # The rotation runs in float32 whatever the weights are (``rope_full_precision``).
        q, k = (rotate(t.float(), *table).to(v.dtype) for t, table in zip((q, k), rope, strict=True))
        x = x + self.attn_out(attend(q, k, v, key_mask))
        n = self.ff_norm(x)
        return x + self.ff_out(F.silu(self.ff_proj(n)) * self.up_proj(n))


class LLaDABackbone(nn.Module):
    def __init__(self, config: LLaDAConfig):
        super().__init__()
        rows = config.embedding_size or config.vocab_size
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(rows, config.d_model),
                "blocks": nn.ModuleList([LLaDABlock(config) for _ in range(config.n_layers)]),
                "ln_f": RMSNorm(config.d_model, config.rms_norm_eps),
                "ff_out": nn.Linear(config.d_model, rows, bias=False),
            }
        )


class LLaDAModelLM(DiffusionModel):
    """LLaDA with its head; logits of a position live at that position."""

    config_class = LLaDAConfig
    base_model_prefix = "model"
    family = "llada"
    decode_defaults = {"schedule": "llada", "proposal": "llada", "ranking": "confidence", "temperature": 0.0}

    def __init__(self, config: LLaDAConfig):
        super().__init__(config)
        self.model = LLaDABackbone(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.transformer["wte"]

    def get_output_embeddings(self) -> nn.Linear:
        return self.model.transformer["ff_out"]

    @property
    def head(self) -> Tensor:
        return self.model.transformer["ff_out"].weight

    @property
    def layers(self) -> nn.ModuleList:
        return self.model.transformer["blocks"]

    @property
    def max_positions(self) -> int:
        return self.config.max_sequence_length

    def hidden(self, input_ids: Tensor, key_mask: Tensor | None = None, view: View | None = None) -> Tensor:
        parts = self.model.transformer
        x = parts["wte"](input_ids)
        rope = self.rope(input_ids.shape[1], view, self.config.d_model // self.config.n_heads, torch.float32)
        for i, block in enumerate(parts["blocks"]):
            x = block(x, rope, key_mask, view and partial(view.update, i))
        return parts["ln_f"](x)
