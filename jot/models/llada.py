"""LLaDA (Nie et al. 2025): a bidirectional Llama-style mask predictor in its published checkpoint layout."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedConfig

from jot.models.base import Block, DiffusionModel, Parts, RMSNorm


class LLaDAConfig(PreTrainedConfig):
    """Fields of the published ``config.json``; the defaults are LLaDA-8B's."""

    model_type = "llada"
    attribute_map = {
        "hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads", "max_position_embeddings": "max_sequence_length",
    }  # fmt: skip
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


class LLaDABlock(Block):
    def __init__(self, config: LLaDAConfig):
        super().__init__(config)
        width, mlp, bias = config.d_model, config.mlp_hidden_size, bool(config.include_qkv_bias)
        self.attn_norm = RMSNorm(width, config.rms_norm_eps)
        self.q_proj = nn.Linear(width, width, bias=bias)
        self.k_proj = nn.Linear(width, self.kv_width, bias=bias)
        self.v_proj = nn.Linear(width, self.kv_width, bias=bias)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.ff_norm = RMSNorm(width, config.rms_norm_eps)
        self.ff_proj = nn.Linear(width, mlp, bias=False)
        self.up_proj = nn.Linear(width, mlp, bias=False)
        self.ff_out = nn.Linear(mlp, width, bias=False)

    @property
    def parts(self) -> Parts:
        attention = self.attn_norm, self.q_proj, self.k_proj, self.v_proj, self.attn_out
        return Parts(*attention, self.ff_norm, self.ff_proj, self.up_proj, self.ff_out)


class LLaDAModelLM(DiffusionModel):
    """LLaDA with its head; logits of a position live at that position."""

    config_class = LLaDAConfig
    base_model_prefix = "model"
    family = "llada"
    decode_defaults = {"schedule": "llada", "proposal": "llada", "ranking": "confidence", "temperature": 0.0}
    wide_rope = True
    places = {
        "embedding": "model.transformer.wte", "layers": "model.transformer.blocks",
        "norm": "model.transformer.ln_f", "head": "model.transformer.ff_out",
    }  # fmt: skip

    def __init__(self, config: LLaDAConfig):
        super().__init__(config)
        rows = config.embedding_size or config.vocab_size
        parts = {
            "wte": nn.Embedding(rows, config.d_model),
            "blocks": nn.ModuleList([LLaDABlock(config) for _ in range(config.n_layers)]),
            "ln_f": RMSNorm(config.d_model, config.rms_norm_eps),
            "ff_out": nn.Linear(config.d_model, rows, bias=False),
        }
        self.model = nn.ModuleDict({"transformer": nn.ModuleDict(parts)})
        self.post_init()
