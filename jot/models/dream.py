"""Dream (Ye et al. 2025): the Qwen2.5 layout without a causal mask; predictions are shifted by one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig

from jot.models.base import DiffusionModel, RMSNorm, Rope, attend, rotate

if TYPE_CHECKING:
    from jot.sampler.cache import View


class DreamConfig(PreTrainedConfig):
    """Fields of the published ``config.json``; the defaults are Dream-v0-Instruct-7B's."""

    model_type = "Dream"
    vocab_size: int = 152064
    hidden_size: int = 3584
    intermediate_size: int = 18944
    num_hidden_layers: int = 28
    num_attention_heads: int = 28
    num_key_value_heads: int = 4
    hidden_act: str = "silu"
    max_position_embeddings: int = 131072
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1000000.0
    rope_scaling: dict | None = None
    use_sliding_window: bool = False
    tie_word_embeddings: bool = False
    use_cache: bool = False
    mask_token_id: int | None = 151666
    eos_token_id: int | None = 151643
    pad_token_id: int | None = 151643
    bos_token_id: int | None = 151643
    eot_token_id: int | None = None


SUPPORTED = {"hidden_act": "silu", "rope_scaling": None, "use_sliding_window": False, "tie_word_embeddings": False}


class DreamAttention(nn.Module):
    def __init__(self, config: DreamConfig):
        super().__init__()
        width = config.hidden_size
        self.head_dim = width // config.num_attention_heads
        kv_width = self.head_dim * config.num_key_value_heads
        self.q_proj = nn.Linear(width, width, bias=True)
        self.k_proj = nn.Linear(width, kv_width, bias=True)
        self.v_proj = nn.Linear(width, kv_width, bias=True)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, n: Tensor, rope: tuple[Rope, Rope], key_mask: Tensor | None, store=None) -> Tensor:
        q, k, v = (
            p(n).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        if store is not None:
            k, v = store(k, v)
        q, k = rotate(q, *rope[0]), rotate(k, *rope[1])
        return self.o_proj(attend(q, k, v, key_mask))


class DreamMLP(nn.Module):
    def __init__(self, config: DreamConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, n: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(n)) * self.up_proj(n))


class DreamLayer(nn.Module):
    def __init__(self, config: DreamConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DreamAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = DreamMLP(config)

    def forward(self, x: Tensor, rope: tuple[Rope, Rope], key_mask: Tensor | None, store=None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, key_mask, store)
        return x + self.mlp(self.post_attention_layernorm(x))


class DreamBackbone(nn.Module):
    def __init__(self, config: DreamConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([DreamLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class DreamModel(DiffusionModel):
    """Dream with its head; the logits that predict a position live one row to its left."""

    config_class = DreamConfig
    base_model_prefix = "model"
    family = "dream"
    shift = 1
    decode_defaults = {
        "schedule": "precomputed", "proposal": "dream", "ranking": "entropy",
        "temperature": 0.1, "top_p": 0.9,
    }  # fmt: skip

    def __init__(self, config: DreamConfig):
        super().__init__(config)
        self.model = DreamBackbone(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    @property
    def head(self) -> Tensor:
        return self.lm_head.weight

    @property
    def layers(self) -> nn.ModuleList:
        return self.model.layers

    @property
    def max_positions(self) -> int:
        return self.config.max_position_embeddings

    def hidden(self, input_ids: Tensor, key_mask: Tensor | None = None, view: View | None = None) -> Tensor:
        x = self.model.embed_tokens(input_ids)
        head_dim = self.config.hidden_size // self.config.num_attention_heads
        rope = self.rope(input_ids.shape[1], view, head_dim, x.dtype)  # in the model's dtype, unlike LLaDA
        for i, layer in enumerate(self.model.layers):
            x = layer(x, rope, key_mask, view and partial(view.update, i))
        return self.model.norm(x)
